"""Changes of level are found where they are, seldom where none is, and not in the order of outliers."""

from __future__ import annotations

import numpy as np
import pytest

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


def test_a_figure_that_is_constant_but_for_a_change_has_one() -> None:
    assert [found.place for found in change_points([7.0] * 12 + [8.0] * 9)] == [12]


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
def test_a_machine_that_is_slow_for_a_while_is_no_change(rho: float) -> None:
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
    assert _p_of_largest(0.5, 0.1) == 1
    assert _p_of_largest(1.5, 0.01) == 1
    # By hand: 0.05399 * ((2 - 0.5) * 2 * ln(9) + 2).
    assert _p_of_largest(2.0, 0.1) == pytest.approx(0.4639, rel=1e-3)
    falling = [_p_of_largest(largest / 4, 0.1) for largest in range(8, 24)]
    assert falling == sorted(falling, reverse=True)
