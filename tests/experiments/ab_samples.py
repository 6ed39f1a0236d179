"""Made-up reports on changes with known figures, for the tests of the views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from perfnb.bench.paired_times import PairedTimes, paired_times
from perfnb.bench.quality import Loss
from perfnb.experiments.ab_test import ABTest
from perfnb.experiments.compared_figures import SIDES, Quality
from tests import summaries

ENVIRONMENT = {
    "torch": "2.13.0",
    "processor": "A processor",
    "threads": 2,
    "host": "lab-3",
    "commit": "0123456789abcdef",
    "uncommitted": True,
}
SAME = Quality((Loss("difference", 3e-7, limit=1e-4),), "results", "", "float32")
WRONG = Quality(
    (Loss("difference", 0.5, limit=1e-4),),
    "results",
    "the result differs by up to 0.5 times the largest value",
    "float32",
)
JUDGED = Quality((Loss("val_loss", 0.312, 0.310, 0.32), Loss("1 - F1", 0.08, 0.09)), "function")
WORSE = Quality((Loss("val_loss", 0.3201, 0.310, 0.32),), "function")
UNLIMITED = Quality((Loss("val_loss", 0.3),), "function")
SILENT = Quality((), "results", "a step returns no tensor and no number")


def experiment(ratio: float, pairs: int = 80, noise: float = 0.01, a: str = "old", b: str = "new") -> PairedTimes:
    times = 10 * np.exp(np.random.default_rng(3).normal(0, noise, (2, pairs)))
    return paired_times(
        times[0].tolist(), (ratio * times[1]).tolist(), equal_within=0.02, a_name=a, b_name=b, planned=pairs,
        needed=pairs, steady=True, batch_size=32,
    )  # fmt: skip


def figures(
    ratio: float = 0.9, quality: Quality = SAME, limits: Mapping[str, float] | None = None, **given: Any
) -> ABTest:
    known = replace(summaries.small_cnn(), name="small")
    profiles = profiles_of(*given.pop("profiles", (known, known)))
    change = given.pop("change", "fused optimizer")
    return ABTest(
        **vars(given.pop("times", None) or experiment(ratio, **given)), quality=quality, limits=limits or {},
        profiles=profiles, change=change, environment=ENVIRONMENT,
    )  # fmt: skip


def profiles_of(*summaries: Any) -> dict[str, Any]:
    """Stand-ins of the profiles with these summaries."""
    return {side: SimpleNamespace(_summary=each) for side, each in zip(SIDES, summaries, strict=False)}


EXAMPLES = {
    "accept": figures(),
    "judged": figures(quality=JUDGED, limits={"val_loss": 0.32}),
    "wrong": figures(0.5, WRONG),
    "worse": figures(0.5, WORSE, {"val_loss": 0.32}),
    "worse than the baseline": figures(0.5, Quality((Loss("val_loss", 1.38, 1.24),), "function")),
    "over": figures(0.9, limits={"median_ms": 8.0}),
    "near a limit": figures(0.9, limits={"median_ms": 9.01}),
    "of another form": figures(
        0.5,
        Quality((Loss("difference", float("inf"), limit=1e-4),), "results", "the result has different keys", "float32"),
    ),
    "nan": figures(0.5, Quality((Loss("loss", 0.3, float("nan")),), "function"), {"accuracy": 1.0}),
    "slower": figures(1.3),
    "no gain": figures(1.0),
    "cannot tell": figures(0.98, pairs=12, noise=0.2),
    "too few": figures(0.5, pairs=4),
    "wide": figures(0.8, pairs=8, noise=1.0),
    "silent": figures(0.8, SILENT, change=""),
    "unlimited": figures(0.8, UNLIMITED),
    "unchecked": figures(0.8, JUDGED, {"p95_ms": 20.0, "vall_oss": 1.0}, pairs=20, profiles=()),
}
