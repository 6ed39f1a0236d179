"""Verdicts on machines whose truth is known: no false difference under drift, no difference missed, no wrong sign."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, norm, t

from perfnb.stats import comparisons
from perfnb.stats.comparisons import PairedComparison, compare_pairs
from perfnb.stats.intervals import hodges_lehmann, signed_rank_p, spread
from perfnb.stats.planning import plan_pairs, smallest_detectable
from tests.system.machines import LOADS, autoregressive, interleaved, steps

#: Full size as a rule; ten times as many where the tables of a release are made.
TIMES = [1, pytest.param(10, marks=[pytest.mark.simulation, pytest.mark.slow])]
pairs_of = st.lists(st.integers(-60, 60), min_size=1, max_size=60).map(lambda values: [v / 256 for v in values])
MIRRORED = {"faster": "slower", "slower": "faster", "same": "same", "inconclusive": "inconclusive"}


def verdicts(rows: np.ndarray) -> Counter[str]:
    return Counter(compare_pairs(row).verdict for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize(("pairs", "step_s"), [(10, 0.005), (60, 0.05), (150, 0.005)])
@pytest.mark.parametrize("load", LOADS)
def test_of_200_comparisons_of_equal_steps_at_most_18_differ(load: str, pairs: int, step_s: float, times: int) -> None:
    rng = np.random.default_rng(41)

    found = verdicts(interleaved(rng, steps(rng, 200 * times, 2 * pairs, LOADS[load], step_s)))

    assert found["faster"] + found["slower"] <= 18 * times


@pytest.mark.slow
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("noise", [0.02, 0.03])
@pytest.mark.parametrize("ratio", [1.05, 1 / 1.05])
def test_a_planted_5_percent_is_found_with_the_right_sign(ratio: float, noise: float, times: int) -> None:
    rng = np.random.default_rng(43)
    right, wrong = ("slower", "faster") if ratio > 1 else ("faster", "slower")
    found: list[PairedComparison] = []
    for pilot in rng.normal(math.log(ratio), noise, (100 * times, 10)):
        # A budget below what the plan asks for: 5 % must be seen all the same.
        pairs = min(20, plan_pairs(pilot).count)
        found.append(compare_pairs(rng.normal(math.log(ratio), noise, pairs)))

    said = Counter(comparison.verdict for comparison in found)
    held = [c.ratio_ci is not None and c.ratio_ci[0] <= ratio <= c.ratio_ci[1] for c in found]

    assert said[right] >= 80 * times
    assert said[wrong] == said["same"] == 0
    assert sum(held) >= 89 * times


def test_a_planted_5_percent_is_found_under_load_and_stalls() -> None:
    rng = np.random.default_rng(44)
    for load in LOADS.values():
        rows = interleaved(rng, steps(rng, 100, 80, load, 0.05), 1.05)
        found = [compare_pairs(row) for row in rows]
        said = Counter(comparison.verdict for comparison in found)

        assert said["slower"] >= 80
        assert said["faster"] == said["same"] == 0
        assert sum(c.ratio_ci[0] <= 1.05 <= c.ratio_ci[1] for c in found if c.ratio_ci) >= 89


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("noise", [0.01, 0.02])
def test_equal_steps_are_called_the_same(noise: float, times: int) -> None:
    rng = np.random.default_rng(45)
    found = Counter(
        compare_pairs(rng.normal(0, noise, plan_pairs(pilot).count)).verdict
        for pilot in rng.normal(0, noise, (100 * times, 10))
    )

    assert found["same"] >= 80 * times
    assert found["faster"] + found["slower"] <= 5 * times


def test_intervals_hold_the_ratio_though_pairs_correlate() -> None:
    rows = 0.02 * autoregressive(np.random.default_rng(46), 200, 60, 0.6)
    found = [compare_pairs(row) for row in rows]
    plain = [compare_pairs(np.random.default_rng(0).permutation(row)) for row in rows]

    def held(comparisons: list[PairedComparison]) -> int:
        return sum(c.ratio_ci[0] <= 1 <= c.ratio_ci[1] for c in comparisons if c.ratio_ci)

    assert held(found) >= 182
    # In another order the same log ratios look independent, and the interval is too narrow.
    assert held(plain) < 160
    assert np.mean([comparison.correlation for comparison in found]) == pytest.approx(0.58, abs=0.05)
    for comparison in found:
        assert (comparison.p_value <= 0.05) == (comparison.verdict in ("faster", "slower")) or (
            comparison.verdict == "same" or 0.03 < comparison.p_value < 0.07
        )


@pytest.mark.parametrize(
    ("shift", "noise", "band", "verdict"),
    [
        (0.005, 0.002, 0.02, "same"),  # certain, and certainly too small to matter
        (0.005, 0.002, 0.001, "slower"),  # the same difference where it matters
        (0.03, 0.004, 0.02, "slower"),
        (-0.03, 0.004, 0.02, "faster"),
        (0.019, 0.006, 0.02, "slower"),  # certain, and it may reach beyond the band
        (0.0, 0.002, 0.02, "same"),
        (0.0, 0.3, 0.02, "inconclusive"),
        (0.0, 0.002, 0.0, "inconclusive"),  # without a band nothing is the same
    ],
)
def test_the_rule(shift: float, noise: float, band: float, verdict: str) -> None:
    even = np.random.default_rng(47).permutation(np.linspace(-noise, noise, 20)) * 1.7

    found = compare_pairs(shift + even, band)

    assert found.verdict == verdict
    assert found.ratio == pytest.approx(math.exp(shift))
    assert found.equivalent == (verdict == "same")
    assert found.correlation == 0


def test_few_correlated_pairs_count_as_at_least_three_independent_ones() -> None:
    values = 0.01 * np.arange(20.0)  # each says nearly the same as the one before

    found, plain = compare_pairs(values), hodges_lehmann(values)

    assert found.correlation == 0.9
    assert found.ratio_ci is not None
    # Student's t for three and for 20 values, from a table.
    wider = math.sqrt(20 / 3) * 4.3027 / 2.0930
    assert math.log(found.ratio_ci[0]) == pytest.approx(plain.estimate - wider * (plain.estimate - plain.low), rel=1e-3)
    assert math.log(found.ratio_ci[1]) == pytest.approx(
        plain.estimate + wider * (plain.high - plain.estimate), rel=1e-3
    )


@pytest.mark.parametrize(("rho", "independent"), [(0.0, 20.0), (0.5, 20 / 3), (0.8, 3.0)])
def test_correlated_pairs_count_for_fewer_but_for_at_least_three(
    rho: float, independent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparisons, "_correlation", lambda values: rho)
    values = np.linspace(-0.05, 0.11, 20)
    found = compare_pairs(values)

    wider = math.sqrt(20 / independent) * t.ppf(0.975, independent - 1) / t.ppf(0.975, 19)
    for interval, confidence in ((found.ratio_ci, 0.95), (found.equivalence_ci, 0.9)):
        estimate, low, high = hodges_lehmann(values, confidence)
        expected = [estimate - wider * (estimate - low), estimate + wider * (high - estimate)]
        assert interval == pytest.approx(np.exp(expected))
    assert found.p_value == pytest.approx(2 * norm.cdf(norm.ppf(signed_rank_p(values) / 2) / wider))
    assert found.smallest_detectable == pytest.approx(smallest_detectable(wider * spread(values), 20))
    assert found.correlation == rho


@pytest.mark.parametrize(
    ("lag1", "pairs", "correlation"),
    [
        *[(0.95, 100, 0.9), (0.201, 100, 0.201), (0.2, 100, 0.0), (-0.5, 100, 0.0)],
        *[(0.33, 25, 0.33), (0.328, 25, 0.0)],  # chance produces 1.645 / 5
    ],
)
def test_a_correlation_counts_if_it_exceeds_a_fifth_and_chance(
    lag1: float, pairs: int, correlation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparisons, "lag1", lambda values: lag1)
    assert comparisons._correlation(np.zeros(pairs)) == correlation


@pytest.mark.parametrize("pairs", range(1, 6))
def test_fewer_than_six_pairs_say_nothing(pairs: int) -> None:
    found = compare_pairs([0.5 + 0.001 * place for place in range(pairs)])

    assert (found.verdict, found.ratio_ci, found.equivalence_ci) == ("inconclusive", None, None)
    assert found.p_value > 0.05
    assert found.pairs == pairs


def test_equal_pairs_and_wrong_ones() -> None:
    found = compare_pairs([0.0] * 10)
    assert (found.ratio, found.ratio_ci, found.p_value, found.verdict) == (1.0, (1.0, 1.0), 1.0, "same")
    assert compare_pairs([0.1] * 10).verdict == "slower"
    for wrong in ([], [math.nan] * 10, [math.inf, 0.0]):
        with pytest.raises(ValueError, match="finite"):
            compare_pairs(wrong)
    for band in (-0.1, 1.0, 2.0):
        with pytest.raises(ValueError, match="equal_within"):
            compare_pairs([0.0] * 10, band)


def test_very_many_pairs_are_judged_by_medians_of_neighbours() -> None:
    values = np.random.default_rng(48).normal(0.01, 0.05, 20_001)

    found = compare_pairs(values)

    assert found.pairs == 20_001
    assert found.ratio == pytest.approx(math.exp(0.01), rel=0.002)
    assert found.verdict == "same"


def test_medians_of_neighbours_are_compared_if_there_are_very_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "_MOST", 3)
    found = compare_pairs([0.1, 0.2, 9.0, 0.3, 0.4, 0.5, -9.0])  # the medians are 0.25 and 0.4
    assert (found.ratio, found.pairs) == (pytest.approx(math.exp(0.325)), 7)


@given(pairs_of, st.sampled_from([0.0, 0.02, 0.1]))
def test_swapping_a_and_b_inverts_the_ratio_and_mirrors_the_verdict(pairs: list[float], band: float) -> None:
    found, swapped = compare_pairs(pairs, band), compare_pairs([-value for value in pairs], band)

    assert swapped.ratio == pytest.approx(1 / found.ratio)
    assert swapped.verdict == MIRRORED[found.verdict]
    assert swapped.p_value == pytest.approx(found.p_value)
    assert swapped.smallest_detectable == pytest.approx(found.smallest_detectable)
    if found.ratio_ci is not None:
        assert swapped.ratio_ci == pytest.approx((1 / found.ratio_ci[1], 1 / found.ratio_ci[0]))


@given(pairs_of)
def test_the_intervals_are_nested_around_the_ratio(pairs: list[float]) -> None:
    found = compare_pairs(pairs)

    if found.ratio_ci is not None and found.equivalence_ci is not None:
        low, high = found.ratio_ci
        inner_low, inner_high = found.equivalence_ci
        assert low <= inner_low <= found.ratio * (1 + 1e-12)
        assert found.ratio * (1 - 1e-12) <= inner_high <= high
    assert 0 <= found.p_value <= 1
    # A wider band makes more the same, never the other way round.
    if found.equivalent:
        assert compare_pairs(pairs, 0.05).verdict == "same"


@pytest.mark.parametrize("load", LOADS)
def test_one_after_the_other_equal_steps_differ_in_more_than_a_fifth_of_cases(load: str) -> None:
    rng = np.random.default_rng(42)
    times = steps(rng, 200, 80, LOADS[load], 0.05)

    p_values = mannwhitneyu(times[:, :40], times[:, 40:], axis=1).pvalue

    assert np.mean(p_values < 0.05) > 0.2
