"""Changes of level are found where they are, seldom where none is, and not in the order of outliers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata

from perfnb.stats import change_points as module
from perfnb.stats.change_points import _inflation, _p_of_largest, change_points


def noise(count: int, seed: int, spread: float = 0.02) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(0.0, spread, count)


def autoregressive(count: int, rho: float, seed: int) -> np.ndarray:
    shocks, values = np.random.default_rng(seed).normal(size=count + 50), np.zeros(count + 50)
    for place in range(1, len(values)):
        values[place] = rho * values[place - 1] + shocks[place]
    return values[50:]


def test_a_change_is_found_where_it_is() -> None:
    values = noise(1000, 1)
    values[700:] *= 1.05

    (found,) = change_points(values)

    assert abs(found.place - 700) <= 5
    assert found.p_value < 1e-6


def test_a_change_and_its_end_are_found_though_they_look_like_correlation() -> None:
    values = noise(300, 2, 0.01)
    values[100:200] *= 1.2

    assert [found.place for found in change_points(values)] == [100, 200]


def test_a_few_entries_after_a_change_are_enough() -> None:
    values = noise(205, 3, 0.01)
    values[200:] *= 1.1

    assert [found.place for found in change_points(values)] == [200]
    assert change_points(values[:203]) == []


def levels(count: int, *of: float) -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.concatenate([level + rng.permutation(np.arange(float(count))) for level in of])


def test_the_p_value_is_that_of_the_largest_sum_of_ranks() -> None:
    values = levels(10, 0, 20)
    (found,) = change_points(values)
    # By hand: the sum of ranks is off by 50, and its standard deviation is sqrt(35 * 5).
    assert found == (10, pytest.approx(_p_of_largest(50 / 175**0.5, 5 / 20)))
    assert change_points(values, level=found.p_value) == [found]
    assert change_points(values, level=0.999 * found.p_value) == []


def test_each_side_of_a_change_is_searched_with_half_of_the_level() -> None:
    values = levels(12, 0, 20, 40, 60)
    left, middle, right = change_points(values)
    ((_, p_value),) = change_points(values[:24])
    assert [left.place, middle.place, right.place] == [12, 24, 36]
    assert (left.p_value, right.p_value) == (pytest.approx(2 * p_value), pytest.approx(2 * p_value))
    assert middle.p_value < left.p_value


@pytest.mark.parametrize(
    ("before", "after", "fewest", "place"),
    [
        *[(20, 5, 5, 20), (5, 20, 5, 5), (21, 4, 5, 20), (4, 21, 5, 5), (21, 4, 4, 21), (4, 21, 4, 4)],
        *[(5, 5, 5, 5), (5, 4, 5, None), (22, 3, 5, None)],
    ],
)
def test_a_change_has_at_least_so_many_values_on_either_side(
    before: int, after: int, fewest: int, place: int | None
) -> None:
    found = change_points([7.0] * before + [9.0] * after, fewest=fewest)
    assert [one.place for one in found] == ([] if place is None else [place])


def test_outliers_equal_values_and_short_sequences_have_no_changes() -> None:
    stalls = noise(100, 4)
    stalls[[10, 40, 41, 80]] *= 50

    assert change_points(stalls) == change_points([3.0] * 40) == change_points(noise(9, 5)) == change_points([]) == []


def test_more_comparisons_ask_for_a_clearer_change() -> None:
    values = noise(60, 6)
    values[30:] *= 1.03
    (alone,) = change_points(values)

    (among,) = change_points(values, comparisons=7)

    assert among.place == alone.place
    assert among.p_value == pytest.approx(7 * alone.p_value)
    assert change_points(values, comparisons=round(1 / alone.p_value)) == []


@pytest.mark.parametrize(("rho", "factor"), [(0.5, 3.0), (0.6, 4.0)])
def test_correlation_widens_as_the_sums_of_an_autoregression_vary(rho: float, factor: float) -> None:
    """By Bayley and Hammersley, the factor is (1 + rho) / (1 - rho)."""
    values = autoregressive(10_000, rho, 7)
    assert _inflation(values, 5000) == pytest.approx(factor, rel=0.1)
    values[5000:] += 3
    assert _inflation(values, 5000) == pytest.approx(factor, rel=0.1)  # the change itself is no correlation


@pytest.mark.parametrize(
    ("count", "lag1", "factor"),
    [
        *[(60, 0.26, 1.26 / 0.74), (60, 0.258, 1.0)],  # chance produces 2 / sqrt(60)
        *[(400, 0.201, 1.201 / 0.799), (400, 0.2, 1.0), (400, 0.99, 39.0)],
    ],
)
def test_correlation_counts_if_it_exceeds_a_fifth_and_chance(
    count: int, lag1: float, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "lag1", lambda values: lag1)
    assert _inflation(np.sin(np.arange(count) / 9), 30) == pytest.approx(factor)


def test_correlation_is_at_most_that_of_the_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "lag1", lambda values: 0.9)
    values = autoregressive(300, 0.6, 7)
    ranks = rankdata(np.diff(values)) - 150
    rho = 1 + 2 * float(ranks[1:] @ ranks[:-1]) / float(ranks @ ranks)
    assert 0.4 < rho < 0.8
    assert _inflation(values, 30) == pytest.approx((1 + rho) / (1 - rho))
    assert _inflation(np.arange(300.0), 30) == 1.0  # all differences are equal


def test_changes_alone_do_not_look_like_correlation() -> None:
    values = noise(1000, 8)
    assert _inflation(values, 500) == 1.0
    values[200:600] *= 1.5
    assert _inflation(values, 200) == 1.0  # the second change is still in them


@pytest.mark.simulation
@pytest.mark.parametrize("count", [12, 50, 1000])
def test_of_a_thousand_shuffled_histories_at_most_fifty_have_a_change(count: int) -> None:
    """The step times are skewed, drift and jump; only their order is random."""
    rng = np.random.default_rng(count)
    history = np.concatenate([rng.lognormal(2.0, 0.05, count // 2), rng.lognormal(2.1, 0.2, count - count // 2)])
    alarms = sum(bool(change_points(rng.permutation(history))) for _ in range(1000))
    assert alarms <= 50


@pytest.mark.simulation
@pytest.mark.parametrize("rho", [0.3, 0.6, 0.9])
def test_a_machine_that_is_slow_for_a_while_is_not_a_change(rho: float) -> None:
    alarms = sum(bool(change_points(autoregressive(400, rho, seed))) for seed in range(500))
    assert alarms <= 50


@pytest.mark.simulation
def test_five_percent_at_entry_700_are_found_under_the_usual_noise() -> None:
    for spread in (0.02, 0.05):
        found = []
        for seed in range(200):
            values = noise(1000, seed, spread)
            values[700:] *= 1.05
            found.append([change.place for change in change_points(values)])
        assert all(found)
        assert np.mean([any(abs(place - 700) <= 30 for place in places) for places in found]) >= 0.95


def test_the_probability_of_the_largest_sum_is_one_at_most_and_falls() -> None:
    assert _p_of_largest(0.5, 0.1) == _p_of_largest(1.0, 0.1) == 1
    assert _p_of_largest(1.5, 0.01) == 1
    # By hand: 0.05399 * ((2 - 0.5) * 2 * ln(9) + 2).
    assert _p_of_largest(2.0, 0.1) == pytest.approx(0.4639, rel=1e-3)
    falling = [_p_of_largest(largest / 4, 0.1) for largest in range(8, 24)]
    assert falling == sorted(falling, reverse=True)
