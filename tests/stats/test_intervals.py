"""Intervals of the median, on data whose median is known; quantiles that few steps cannot support."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, rankdata

from perfnb.stats import intervals
from perfnb.stats.intervals import (
    CORRELATED_STATISTICS,
    ORDER_STATISTICS,
    RANGE,
    _sum_of_autocorrelations,
    effective_size,
    interval_of_median,
    lag1,
    quantile,
    quantile_interval,
    relative_standard_error,
    steps_for_quantile,
)
from tests.system.machines import SAMPLES, autoregressive

#: Full size as a rule; ten times as many where the tables of a release are made.
SIZES = [200, pytest.param(2000, marks=[pytest.mark.simulation, pytest.mark.slow])]
times = st.lists(st.floats(1e-3, 1e4), min_size=6, max_size=80)


def covered(intervals: list[tuple[float, float]], true: float) -> float:
    return float(np.mean([low <= true <= high for low, high in intervals]))


@pytest.mark.slow
@pytest.mark.parametrize("runs", SIZES)
@pytest.mark.parametrize("steps", [20, 50, 200])
@pytest.mark.parametrize("name", SAMPLES)
def test_95_percent_intervals_hold_the_median_in_at_least_182_of_200(name: str, steps: int, runs: int) -> None:
    rng = np.random.default_rng(11)
    true = {"lognormal": 1.0, "correlated": 1.0}.get(name) or float(np.median(SAMPLES[name](rng, 1, 2_000_000)))

    intervals = [interval_of_median(row) for row in SAMPLES[name](rng, runs, steps)]

    assert covered([(found.low, found.high) for found in intervals if found], true) >= 0.91
    assert len([found for found in intervals if found]) == runs


@pytest.mark.parametrize(("steps", "low", "high"), [(20, 0.7, 0.86), (400, 0.91, 1.0)])
def test_few_strongly_correlated_steps_have_an_interval_that_is_too_narrow(steps: int, low: float, high: float) -> None:
    """The limit that the documentation states."""
    found = [interval_of_median(row) for row in autoregressive(np.random.default_rng(14), 400, steps, 0.9)]

    assert low <= covered([(each.low, each.high) for each in found if each], 0.0) <= high
    assert ([each.method for each in found if each].count(RANGE) > 200) == (steps == 20)


def test_correlated_steps_are_distinguished_from_independent_ones() -> None:
    rng = np.random.default_rng(13)
    methods = {
        rho: [interval_of_median(row).method for row in autoregressive(rng, 100, 100, rho)]  # type: ignore[union-attr]
        for rho in (0.0, 0.6)
    }

    assert methods[0.6].count(CORRELATED_STATISTICS) >= 95
    assert methods[0.0].count(ORDER_STATISTICS) >= 90


def test_too_few_steps_for_their_correlation_give_their_range_and_say_so() -> None:
    samples = np.arange(20.0)

    assert interval_of_median(samples) == (0.0, 19.0, RANGE)
    assert interval_of_median(samples[:5]) is None


@pytest.mark.parametrize(
    ("count", "effective", "confidence", "expected"),
    [
        (100, 25.0, 0.95, (30, 71, CORRELATED_STATISTICS)),  # 50 - 1.960 * 100 / 5 / 2 = 30.4
        (100, 25.0, 0.9, (33, 68, CORRELATED_STATISTICS)),  # 50 - 1.645 * 100 / 5 / 2 = 33.6
        (100, 99.9, 0.95, (40, 61, CORRELATED_STATISTICS)),
        (100, 100.0, 0.95, (40, 61, ORDER_STATISTICS)),
        (21, 9.0, 0.95, (3, 19, CORRELATED_STATISTICS)),  # 10.5 - 1.960 * 21 / 3 / 2 = 3.6
        (20, 5.0, 0.95, (1, 20, CORRELATED_STATISTICS)),  # 10 - 1.960 * 20 / 2.236 / 2 = 1.2
        (20, 4.0, 0.95, (1, 20, RANGE)),  # 10 - 1.960 * 20 / 2 / 2 = 0.2
    ],
)
def test_the_ranks_of_an_interval_follow_from_the_number_of_independent_steps(
    count: int,
    effective: float,
    confidence: float,
    expected: tuple[int, int, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intervals, "effective_size", lambda samples: effective)
    samples = np.random.default_rng(1).permutation(np.arange(1.0, count + 1))
    assert interval_of_median(samples, confidence) == expected


@pytest.mark.parametrize(
    ("rho", "measured", "expected"),
    [
        (0.2, 9.0, 4.0),  # not correlated
        (0.5, 1.0, 1.86223),  # 4 / (1 + 4/pi * (arcsin(0.5) + arcsin(0.25) + arcsin(0.125)))
        (0.5, 2.5, 1.6),
        (0.99, 1.0, 0.74901),  # as for 0.95
    ],
)
def test_the_larger_sum_of_autocorrelations_determines_the_effective_size(
    rho: float, measured: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "lag1", lambda samples: rho)
    monkeypatch.setattr(intervals, "_sum_of_autocorrelations", lambda values: measured)
    assert effective_size([1.0, 2.0, 3.0, 4.0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("count", [5, 6, 30, 31])
def test_autocorrelations_are_summed_in_pairs_while_they_are_positive_and_do_not_grow(count: int) -> None:
    rows = np.round(autoregressive(np.random.default_rng(count), 20, count, 0.8))  # with ties
    for values in rows:
        signs = np.sign(values - np.median(values))
        signs -= signs.mean()
        total, least = 0.0, np.inf
        for lag in range(0, count - 1, 2):
            pair = signs[: count - lag] @ signs[lag:] + signs[: count - lag - 1] @ signs[lag + 1 :]
            if pair <= 1e-9:
                break
            least = min(least, pair)
            total += least / (signs @ signs)
        assert _sum_of_autocorrelations(values) == pytest.approx(max(1.0, 2 * total - 1))
    assert _sum_of_autocorrelations(np.ones(count)) == 1.0


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6, 0.8])
def test_lag1_and_effective_size_of_an_autoregression(rho: float) -> None:
    rows = autoregressive(np.random.default_rng(14), 200, 200, rho)
    # Values above and below the median correlate by 2/pi arcsin(rho^k) at lag k.
    expected = 200 / (1 + 2 * np.sum(2 / np.pi * np.arcsin(rho ** np.arange(1, 100)))) if rho else 200

    # Ranks of normal values correlate a little less than the values: 6/pi arcsin(rho / 2).
    assert np.mean([lag1(row) for row in rows]) == pytest.approx(6 / np.pi * np.arcsin(rho / 2), abs=0.02)
    assert np.median([effective_size(row) for row in rows]) == pytest.approx(expected, rel=0.15)


def test_one_stall_of_a_second_in_50_steps_moves_the_median_by_less_than_a_percent() -> None:
    rng = np.random.default_rng(15)
    before = 5.0 * np.exp(rng.normal(0, 0.02, 299))
    for steps in (50, 299):
        calm = before[:steps]
        stalled = calm.copy()
        stalled[17] = 1000.0
        assert np.median(stalled) == pytest.approx(np.median(calm), rel=0.01)
        found, known = interval_of_median(stalled), interval_of_median(calm)
        assert found is not None
        assert known is not None
        assert (found.high - found.low) < 1.5 * (known.high - known.low)
        assert found.method == known.method
        assert stalled.max() == 1000.0


def test_a_stall_neither_hides_nor_makes_correlation() -> None:
    rows = autoregressive(np.random.default_rng(16), 50, 100, 0.6)
    stalled = rows.copy()
    stalled[:, 40] = 1e6

    assert np.mean([lag1(row) for row in stalled]) == pytest.approx(np.mean([lag1(row) for row in rows]), abs=0.05)


@pytest.mark.parametrize(("q", "needed"), [(0.9, 29), (0.95, 59), (0.99, 299), (0.1, 29), (0.5, 5)])
def test_a_quantile_is_withheld_where_too_few_steps_support_it(q: float, needed: int) -> None:
    assert steps_for_quantile(q) == needed
    for outside in (0.0, 1.0, 99.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            quantile(np.ones(300), outside)
    assert quantile(np.arange(needed - 1), q) is None
    assert quantile(np.arange(needed), q) == pytest.approx(np.quantile(np.arange(needed), q))
    # With so many steps the largest lies above the quantile in 95 of 100 cases, with one fewer it does not.
    assert binom.cdf(needed - 1, needed, max(q, 1 - q)) >= 0.95 > binom.cdf(needed - 2, needed - 1, max(q, 1 - q))


@given(times, st.sampled_from([0.25, 8.0, 1024.0]))
def test_the_interval_scales_with_the_unit_and_holds_the_median(samples: list[float], unit: float) -> None:
    found, scaled = interval_of_median(samples), interval_of_median(np.array(samples) * unit)

    assert found is not None
    assert scaled is not None
    assert found.low <= np.median(samples) <= found.high
    assert scaled == (found.low * unit, found.high * unit, found.method)
    assert quantile_interval(sorted(samples), 0.5) == quantile_interval(samples, 0.5)
    assert lag1(samples[::-1]) == pytest.approx(lag1(samples), abs=1e-9)
    assert 0 < effective_size(samples) <= len(samples)


@given(st.lists(st.integers(1, 5), min_size=8, max_size=40))
def test_equal_steps_share_their_rank(samples: list[int]) -> None:
    n, ranks = len(samples), rankdata(samples)
    ranks -= ranks.mean()
    raw = ranks[1:] @ ranks[:-1] / max(ranks @ ranks, 1e-9)

    assert lag1(samples) == (pytest.approx(np.clip((raw * (n - 1) + 1) / (n - 4), -1, 1)) if ranks.any() else 0)


def test_autocorrelation_is_corrected_for_its_bias_but_never_exceeds_1() -> None:
    assert lag1([1.0, 2.0] * 8) == -1.0
    assert lag1([1.0, 1.0, 2.0, 2.0] * 2) == pytest.approx((1 / 8 * 7 + 1) / 4)
    assert lag1([3.0, 1.0, 1.0, 5.0, 8.0, 5.0, 5.0, 9.0, 2.0]) == pytest.approx((15.25 / 57.5 * 8 + 1) / 5)
    assert [lag1([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), lag1([3.0] * 9)] == [0.0, 0.0]


def test_equal_steps_have_an_interval_without_width() -> None:
    assert interval_of_median([2.0] * 30) == (2.0, 2.0, ORDER_STATISTICS)
    assert relative_standard_error([2.0] * 30) == 0.0
    assert relative_standard_error([2.0] * 5) is None
    assert relative_standard_error([0.0] * 30) is None


def test_the_standard_error_is_that_of_a_normal_median() -> None:
    rows = 5.0 + np.random.default_rng(17).normal(0, 0.1, (200, 100))

    errors = [relative_standard_error(row) for row in rows]

    assert np.mean(errors) == pytest.approx(1.2533 * 0.1 / 5.0 / 10, rel=0.15)  # type: ignore[arg-type]


def test_where_half_of_the_steps_stall_the_median_is_known_to_be_unknown() -> None:
    for stalls in (19, 20, 21):
        samples = np.random.default_rng(18).permutation([1.0] * (40 - stalls) + [50.0] * stalls)
        assert (relative_standard_error(samples) or 0) == pytest.approx(np.log(50) / 3.92)
