"""Comparisons of decoding with known figures."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.bench.paired_times import paired_times
from perfnb.experiments.ab_test import ABTest
from perfnb.inference.compare_decoding import DecodingComparison


def decoded(ratio: float, pairs: int = 40, same: bool | None = False, noise: float = 0.01) -> DecodingComparison:
    """Assisted decoding that takes so many times as long as plain decoding, and one answer of two that differs."""
    plain = 10 * np.exp(np.random.default_rng(3).normal(0, 0.01, pairs))
    assisted = ratio * plain * np.exp(np.random.default_rng(4).normal(0, noise, pairs))
    times = paired_times(
        plain.tolist(),
        assisted.tolist(),
        equal_within=0.02,
        a_name="plain",
        b_name="assisted",
        planned=pairs,
        needed=pairs,
        steady=True,
    )
    rows = [(0, 8, 3, 10, 5, None if same is None else True, 8), (1, 8, 8, None, None, same, 4)]
    names = ["request", "tokens", "passes", "proposed", "accepted", "same", "alike_tokens"]
    answers = pd.DataFrame(rows, columns=names).astype(dict.fromkeys(names[3:5], "Int64") | {"same": "boolean"})
    return DecodingComparison(ABTest(**vars(times)), answers)
