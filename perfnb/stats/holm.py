"""Many comparisons at once: the more of them, the more each must show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd

from perfnb.stats.intervals import Floats, Samples
from perfnb.stats.paired import PairedComparison, compare_pairs, judge


def holm(p_values: Samples) -> Floats:
    """Adjusted p-values that keep the chance of any false difference among all comparisons at the level of one.

    The k-th smallest of m p-values is multiplied by m - k + 1, and none is below one before it (Holm, Scandinavian
    Journal of Statistics 6, 1979).
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values, kind="stable")
    steps = values[order] * (len(values) - np.arange(len(values)))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


def compare_all(
    times: Mapping[str, Samples], equal_within: float = 0.02, confidence: float = 0.95
) -> dict[tuple[str, str], PairedComparison]:
    """Each pair of names compared, in the order given; the first of a pair is the baseline.

    Parameters
    ----------
    times : mapping of str to sequence of float
        Step times by name, one a round; in each round every name is run once, in random order.

    Returns
    -------
    dict
        By (baseline, candidate). ``ratio_ci`` and ``equivalence_ci`` are simultaneous by Bonferroni: of m comparisons
        each leaves out an m-th part of 5 (or twice 5) %. ``p_value`` is Holm's, which rejects more than those
        intervals do; there is a difference where either says so, and an interval may hold 1, by a little, where the
        verdict is "faster" or "slower".
    """
    logs = {name: np.log(np.asarray(samples, dtype=float)) for name, samples in times.items()}
    if len({len(values) for values in logs.values()}) > 1:
        raise ValueError("Every name must have run in every round.")
    pairs = list(combinations(logs, 2))
    each = 1 - (1 - confidence) / max(1, len(pairs))
    found = [compare_pairs(logs[b] - logs[a], equal_within, each) for a, b in pairs]
    adjusted = holm([comparison.p_value for comparison in found])
    return {
        pair: replace(
            comparison,
            p_value=float(p_value),
            verdict=judge(
                comparison.ratio_ci,
                p_value <= 1 - confidence or _excludes_one(comparison.ratio_ci),
                comparison.ratio,
                comparison.equivalent,
            ),
        )
        for pair, comparison, p_value in zip(pairs, found, adjusted, strict=True)
    }


def _excludes_one(ratio_ci: tuple[float, float] | None) -> bool:
    """Whether a simultaneous interval says by itself that there is a difference."""
    return ratio_ci is not None and not ratio_ci[0] <= 1 <= ratio_ci[1]


def ratio_table(comparisons: Mapping[tuple[str, str], PairedComparison]) -> pd.DataFrame:
    """One row a comparison: which is the baseline, which the candidate, their ratio, its interval, and the verdict."""
    rows = [
        {
            "baseline": baseline,
            "candidate": candidate,
            "ratio": found.ratio,
            "ci_low": found.ratio_ci[0] if found.ratio_ci else None,
            "ci_high": found.ratio_ci[1] if found.ratio_ci else None,
            "p_value": found.p_value,
            "verdict": found.verdict,
            "smallest_detectable": found.smallest_detectable,
        }
        for (baseline, candidate), found in comparisons.items()
    ]
    columns = ["baseline", "candidate", "ratio", "ci_low", "ci_high", "p_value", "verdict", "smallest_detectable"]
    numbers = [name for name in columns if name not in ("baseline", "candidate", "verdict")]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(numbers, "Float64"))
