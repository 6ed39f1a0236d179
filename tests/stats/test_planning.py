"""Plans keep their promise: so many steps give that interval, so many pairs find that difference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.stats.comparisons import compare_pairs
from perfnb.stats.intervals import interval_of_median, spread
from perfnb.stats.planning import (
    Planned,
    pairs_needed,
    plan_pairs,
    plan_pairs_blindly,
    plan_steps,
    smallest_detectable,
    steps_in_block,
    still_needed,
)
from tests.system.machines import autoregressive


# Sample sizes of the paired t-test at 90 % power from G*Power's tables of dz = effect / deviation.
@pytest.mark.parametrize(("dz", "pairs"), [(1.0, 13), (0.5, 44), (2 / 3, 26), (1 / 3, 97), (0.2, 265)])
def test_pairs_needed_are_those_of_the_paired_t_test(dz: float, pairs: int) -> None:
    found = pairs_needed(1.0, dz)

    # Equivalence asks for a few pairs more, (2 x 1.645 / (1.960 + 1.282))^2 = 1.03 times as many where they are many.
    assert pairs <= found <= pairs + 8
    assert pairs < 90 or found == pytest.approx(1.03 * pairs, rel=0.01)


def test_a_plan_from_ten_pairs_is_enough_in_most_cases() -> None:
    rng = np.random.default_rng(32)
    needed = pairs_needed(0.02, math.log1p(0.02))

    planned = [plan_pairs(pilot).needed for pilot in rng.normal(0, 0.02, (150, 10))]

    assert 0.7 <= np.mean(np.array(planned) >= needed) <= 0.92
    assert np.median(planned) <= 3 * needed


@pytest.mark.parametrize(("budget_s", "count"), [(math.inf, 1000), (2.0, 20), (0.01, 6)])
def test_the_budget_bounds_the_pairs(budget_s: float, count: int) -> None:
    pilot = np.random.default_rng(33).normal(0, 0.5, 10)

    plan = plan_pairs(pilot, budget_s=budget_s, pair_s=0.1)

    assert (plan.count, plan.enough) == (count, False)
    assert plan.needed > 1000


# G*Power's tables of dz = effect / deviation ask for 13, 44, 26, 97 and 265 pairs at 90 % power. Equivalence asks for a
# few pairs more, (2 x 1.645 / (1.960 + 1.282))^2 = 1.03 times as many where they are many.
@pytest.mark.parametrize(
    ("dz", "power", "confidence", "pairs"),
    [
        *[(1.0, 0.9, 0.95, 13), (0.5, 0.9, 0.95, 45), (2 / 3, 0.9, 0.95, 26), (1 / 3, 0.9, 0.95, 99)],
        *[(0.2, 0.9, 0.95, 272), (0.5, 0.8, 0.95, 36), (0.5, 0.9, 0.99, 66), (20.0, 0.9, 0.95, 6)],
        *[(0.5, 0.99, 0.95, 76), (1.5, 0.99, 0.95, 11)],
    ],
)
def test_pairs_needed_are_those_of_the_t_tests(dz: float, power: float, confidence: float, pairs: int) -> None:
    assert pairs_needed(2.0, 2 * dz, power=power, confidence=confidence) == pairs
    for most in (pairs - 1, pairs, pairs + 1):
        assert pairs_needed(2.0, 2 * dz, power=power, confidence=confidence, most=most) == min(pairs, max(most, 6))


def test_the_spread_of_a_pilot_is_its_upper_limit_of_80_percent() -> None:
    pilot = np.random.default_rng(40).normal(0, 0.1, 10)
    # The 20th percentile of chi squared with 9 degrees of freedom is 5.380.
    needed = pairs_needed(spread(pilot) * math.sqrt(9 / 5.380), math.log(1.02))
    assert plan_pairs(pilot) == Planned(needed, needed)
    assert plan_pairs(20 * pilot, most=50) == Planned(50, 100_000)
    assert not Planned(50, 500).enough


def test_pairs_without_spread_or_without_a_band() -> None:
    assert plan_pairs([0.1] * 10).needed == 6
    assert plan_pairs([0.1] * 10).enough
    assert plan_pairs([0.0, 0.1], equal_within=0, budget_s=3, pair_s=0.1) == Planned(30, 1000)
    with pytest.raises(ValueError, match="at least 2"):
        plan_pairs([0.1])


@pytest.mark.parametrize(("budget_s", "count"), [(math.inf, 12), (1.0, 10), (0.1, 6)])
def test_as_many_pairs_as_bear_a_disturbed_one_where_there_is_time(budget_s: float, count: int) -> None:
    assert plan_pairs([0.1] * 10, budget_s=budget_s, pair_s=0.1) == Planned(count, 6)
    disturbed = [0.1 + 0.001 * place for place in range(11)]
    assert compare_pairs([*disturbed, -3.0]).verdict == "slower"
    assert compare_pairs([*disturbed[:10], -3.0]).verdict == "inconclusive"


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_so_many_steps_put_the_median_within_two_percent(rho: float) -> None:
    rng = np.random.default_rng(34)
    rows = 5 * np.exp(0.1 * autoregressive(rng, 40, 3000, rho))

    half_widths = []
    for row in rows:
        plan = plan_steps(row[:100], most=2900)
        found = interval_of_median(row[100 : 100 + plan.count])
        assert found is not None
        half_widths.append((found.high - found.low) / 2 / np.median(row))

    assert np.median(half_widths) == pytest.approx(0.02, rel=0.25)


def test_correlated_and_scattered_pilots_ask_for_more_steps() -> None:
    rng = np.random.default_rng(35)
    calm, correlated = (
        np.median([plan_steps(np.exp(0.1 * row)).needed for row in autoregressive(rng, 50, 60, rho)])
        for rho in (0.0, 0.6)
    )

    assert correlated > 2 * calm
    assert plan_steps([5.0] * 20) == Planned(20, 20)
    quartiles = np.exp(0.05 * np.array([1.0, -2.0, 0.0, 2.0, -1.0]))  # the deviation is 0.1 / 1.349
    assert plan_steps(quartiles).needed == math.ceil((1.960 * 1.2533 * 0.1 / 1.349 / math.log(1.02)) ** 2) == 85
    assert plan_steps(quartiles, half_width=0.01).needed == 335
    assert plan_steps(quartiles, confidence=0.99).needed == 147


def test_the_budget_bounds_the_steps() -> None:
    pilot_ms = 100 * np.exp(np.random.default_rng(36).normal(0, 0.5, 50))
    mean_s = pilot_ms.mean() / 1e3

    plan = plan_steps(pilot_ms, budget_s=10.5 * mean_s)

    assert (plan.count, plan.enough) == (10, False)
    assert plan_steps(pilot_ms, budget_s=0.001).count == 1
    assert plan_steps(pilot_ms, most=200).count == 200


def test_one_stall_in_the_pilot_hardly_changes_the_plans() -> None:
    rng = np.random.default_rng(37)
    steps, pairs = np.exp(rng.normal(0, 0.1, 60)), rng.normal(0, 0.02, 20)
    stalled_steps, stalled_pairs = steps.copy(), pairs.copy()
    stalled_steps[7], stalled_pairs[7] = 200.0, 5.0

    assert plan_steps(stalled_steps).needed <= 1.5 * plan_steps(steps).needed
    assert plan_pairs(stalled_pairs).needed <= 2 * plan_pairs(pairs).needed


def test_the_smallest_detectable_effect_is_found_in_nine_of_ten_experiments() -> None:
    from scipy.stats import ttest_1samp

    effect = smallest_detectable(0.02, 20)
    rows = np.random.default_rng(38).normal(math.log1p(effect), 0.02, (3000, 20))

    assert smallest_detectable(5.0, 2, confidence=1 - 0.05 / 45) == smallest_detectable(0.0, 1) == math.inf
    assert np.mean(ttest_1samp(rows, 0, axis=1).pvalue < 0.05) == pytest.approx(0.9, abs=0.02)
    for pairs, of_tables in ((20, 2.0930 + 1.3277), (2, 12.7062 + 3.0777)):  # 19 degrees of freedom, and 1
        by_hand = math.expm1(of_tables * 0.02 / math.sqrt(pairs))
        assert smallest_detectable(0.02, pairs) == pytest.approx(by_hand, rel=1e-4)
    assert smallest_detectable(0.02, 1) == math.inf


@pytest.mark.parametrize(("pair_s", "count"), [(0.001, 100), (0.1, 36), (1.0, 6)])
def test_a_pilot_of_one_pair_is_followed_by_what_there_is_time_for(pair_s: float, count: int) -> None:
    plan = plan_pairs_blindly(budget_s=3.6, pair_s=pair_s, most=100)

    assert plan.count == plan.needed == count


@pytest.mark.parametrize(
    ("step_s", "count"),
    [(1.0, 1), (1e-4, 1), (9.9e-5, 11), (5e-5, 20), (2**-20, 1049), (1e-7, 10_000), (1e-9, 10_000), (0.0, 10_000)],
)
def test_very_short_steps_are_timed_in_blocks_of_a_millisecond(step_s: float, count: int) -> None:
    assert steps_in_block(step_s) == count


def test_more_samples_are_needed_as_the_interval_shrinks_with_the_root_of_their_number() -> None:
    # Of 20 samples the interval ends at the 6th and the 15th, here 0.12 below and 0.24 above the median of 10.
    ordered = [9.0] * 5 + [9.88] + [10.0] * 8 + [10.24] + [11.0] * 5
    samples = np.random.default_rng(39).permutation(ordered)
    assert still_needed(samples, half_width=0.02) == math.ceil(20 * 1.2**2) - 20
    assert still_needed(samples, half_width=0.0239) == 1
    assert still_needed(samples, half_width=0.0241) == 0
    assert still_needed(20 - samples, half_width=0.02) == math.ceil(20 * 1.2**2) - 20
    assert still_needed(samples, half_width=0.001) == 20
    assert still_needed([0.0] * 20) == 0
    assert still_needed(np.random.default_rng(1).permutation([0.0] * 14 + [1.0] * 6)) == 20
    assert (still_needed([]), still_needed([5.0, 1.0, 9.0])) == (1, 3)


@settings(max_examples=20)
@given(st.floats(0.001, 0.5), st.integers(2, 500))
def test_more_pairs_and_less_noise_see_smaller_effects(deviation: float, pairs: int) -> None:
    assert smallest_detectable(deviation, pairs + 1) < smallest_detectable(deviation, pairs)
    assert smallest_detectable(deviation / 2, pairs) < smallest_detectable(deviation, pairs)
    assert pairs_needed(deviation, 0.02) >= pairs_needed(deviation / 2, 0.02) >= 6


@settings(max_examples=20)
@given(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=20), st.floats(0.001, 0.5))
def test_the_sign_of_the_pilot_does_not_matter(pilot: list[float], band: float) -> None:
    plan = plan_pairs(pilot, equal_within=band)

    assert plan == plan_pairs([-value for value in pilot], equal_within=band)
    assert plan.count >= 6
