"""The figures of a report on a change, against what they must be by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.bench.paired_times import PairedTimes
from perfnb.bench.quality import Loss
from perfnb.experiments.ab_test import ABTest
from perfnb.experiments.ab_view import ab_document
from perfnb.experiments.compared_figures import COLUMNS, Quality, of_two_ceilings
from perfnb.roofline.levels import RooflineLevels
from perfnb.stats.intervals import quantile_interval
from perfnb.stats.step_times import StepTimes
from tests import summaries
from tests.experiments.ab_samples import SAME, experiment, profiles_of


def profiled(
    median_ms: float, utilisation: float | None, flops: int | None, peak: int | None, dtype: str = "float32"
) -> Any:
    """Return a summary of a profile that found this."""
    roofline = RooflineLevels("", {}, None, pd.DataFrame(), utilisation, flops, dtype=dtype)
    memory = None if peak is None else type("Memory", (), {"peak_bytes": peak})()
    timing = StepTimes((median_ms,) * 3)
    return replace(summaries.small_cnn(), roofline=roofline, memory=memory, timing=timing)


def judged(times: PairedTimes, quality: Quality, limits: dict[str, float], profiles: Sequence[Any] = ()) -> ABTest:
    return ABTest(**vars(times), quality=quality, limits=limits, profiles=profiles_of(*profiles))


def test_figures_are_those_of_the_pairs_and_of_the_profiles() -> None:
    ab = experiment(0.5, pairs=100)
    found = judged(ab, SAME, {"p95_ms": 7.0}, [profiled(20.0, 0.1, 1000, 4000), profiled(20.0, 0.3, 2000, 6000)])
    table = found.table

    assert list(table.columns) == list(COLUMNS)
    assert table.loc["median_ms", "ratio"] == ab.comparison.ratio
    assert (table.loc["median_ms", "ci_low"], table.loc["median_ms", "ci_high"]) == ab.ratio_ci
    # 32 samples a step, of the median time.
    assert found.baseline.throughput_per_s == pytest.approx(32e3 / np.median(ab.a_ms))
    assert table.loc["throughput_per_s", "ci_low"] == pytest.approx(1 / ab.comparison.ratio_ci[1])  # type: ignore[index]
    # What was found in 20 ms is twice and four times as much in the time of the pairs.
    assert found.baseline.utilisation == pytest.approx(0.1 * 20 / np.median(ab.a_ms))
    assert table.loc["utilisation", "candidate"] == pytest.approx(0.3 * 20 / np.median(ab.b_ms))
    # Three times the work (as the ceilings count it) in half the time.
    assert table.loc["utilisation", "ratio"] == pytest.approx(3 / ab.comparison.ratio)
    assert table.loc["peak_memory_bytes", ["difference", "ratio"]].tolist() == [2000.0, 1.5]
    assert table.loc["flops", "ratio"] == 2.0
    assert table.loc["p95_ms", "baseline"] == pytest.approx(np.quantile(ab.a_ms, 0.95))
    assert table.loc["p95_ms", "limit"] == 7.0
    assert found.decision == "accept"


def test_utilisations_of_two_ceilings_have_no_ratio_and_flops_per_second_do() -> None:
    ab = experiment(1.32, pairs=100)
    profiles = [profiled(10.0, 0.5, 1000, None), profiled(13.2, 0.7, 1000, None, "bfloat16")]

    found = judged(ab, SAME, {}, profiles)

    table = found.table
    assert table.loc["utilisation", ["baseline", "candidate"]].notna().all()
    assert table.loc["utilisation", ["difference", "ratio", "ci_low", "ci_high"]].isna().all()
    assert table.loc["flops_per_s", "baseline"] == pytest.approx(1000 / np.median(ab.a_ms) * 1e3)
    assert table.loc["flops_per_s", "ratio"] == pytest.approx(1 / ab.comparison.ratio)
    assert table.loc["flops_per_s", "ci_high"] < 1
    said = " ".join(ab_document(found).notes)
    assert "float32 ceiling for the baseline, and to the bfloat16 ceiling for the candidate. Compare FLOP" in said
    under_one = judged(ab, SAME, {}, [profiles[0], profiles[0]]).table
    assert "flops_per_s" not in under_one.index


def test_what_is_unknown_is_missing_and_not_zero() -> None:
    ab = replace(experiment(0.5, pairs=20), batch_size=None)
    found = judged(ab, SAME, {})

    assert found.baseline.throughput_per_s == pytest.approx(1e3 / np.median(ab.a_ms))  # steps
    assert found.table.loc["throughput_per_s", "unit"] == "steps/s"
    for name in ("p95_ms", "utilisation", "peak_memory_bytes", "flops"):
        assert found.table.loc[name, ["baseline", "candidate", "difference", "ratio", "ci_low"]].isna().all(), name
    assert found.table["limit"].isna()["median_ms"]


def test_a_baseline_without_arithmetic_has_no_ratio() -> None:
    profiles = [profiled(20.0, 0.0, 0, 0), profiled(20.0, None, None, None)]
    found = judged(experiment(0.5), SAME, {}, profiles)

    assert found.table["ratio"].isna()[["utilisation", "peak_memory_bytes", "flops"]].all()


def test_limits_reach_the_decision() -> None:
    profiles = [profiled(20.0, None, None, 4000), profiled(20.0, None, None, 6000)]
    quality = Quality((Loss("loss", 0.3, limit=0.4),), "function")

    def decided(**limits: float) -> tuple[str, tuple[str, ...]]:
        test = judged(experiment(0.5), quality, limits, profiles)
        return test.decision, test.outcome.about

    assert decided() == ("accept", ())
    assert decided(peak_memory_bytes=6000) == ("accept", ())
    assert decided(peak_memory_bytes=5999) == ("reject", ("peak_memory_bytes",))
    assert decided(median_ms=1.0, p95_ms=1.0) == ("reject", ("median_ms", "p95_ms"))
    ends = experiment(0.5).b.ci_ms
    assert ends is not None
    assert decided(median_ms=ends[1]) == ("accept", ())
    for limit in (ends[0], sum(ends) / 2):
        assert decided(median_ms=limit) == ("inconclusive", ("median_ms",))
    assert decided(median_ms=0.999 * ends[0]) == ("reject", ("median_ms",))
    tail = quantile_interval(experiment(0.5).b_ms, 0.95)
    assert tail is not None
    assert decided(p95_ms=sum(tail) / 2) == ("inconclusive", ("p95_ms",))
    assert decided(los=1.0) == ("inconclusive", ("los",))


def test_the_interval_of_a_high_quantile_needs_many_times() -> None:
    assert quantile_interval(np.arange(71), 0.95) is None
    assert quantile_interval(np.arange(72), 0.95) is not None
    assert quantile_interval(np.arange(85), 0.95, 0.975) is None
    assert quantile_interval(np.arange(86), 0.95, 0.975) is not None


@pytest.mark.slow
def test_the_ratio_of_the_95th_percentiles_holds_the_truth() -> None:
    """Both are lognormal, so that the true ratio is known: that of the medians."""
    held = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        a, b = 10 * np.exp(generator.normal(0, 0.2, (2, 150)))
        ab = replace(experiment(0.8, pairs=150), a_ms=tuple(a), b_ms=tuple(0.8 * b))
        row = judged(ab, SAME, {}).table.loc["p95_ms"]
        held += bool(row["ci_low"] <= 0.8 <= row["ci_high"])
    assert held >= 55


@pytest.mark.parametrize(
    ("utilisations", "ceilings", "apart"),
    [
        ((0.1, 0.2), ("a", "b"), True),
        ((0.1, 0.2), ("a", "a"), False),
        ((None, 0.2), ("a", "b"), False),
        ((0.1, None), ("a", "b"), False),
    ],
)
def test_two_utilisations_may_be_of_two_ceilings(
    utilisations: tuple[Any, Any], ceilings: tuple[str, str], apart: bool
) -> None:
    one, other = (SimpleNamespace(utilisation=u, ceiling=c) for u, c in zip(utilisations, ceilings, strict=True))
    assert of_two_ceilings(one, other) is apart  # type: ignore[arg-type]
