"""The test for a steady step time, on series whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from perfnb.step.budget import is_steady, steady_from


def noisy(count: int, spread: float, seed: int = 0) -> np.ndarray:
    return 1e6 * (1 + spread * np.random.default_rng(seed).standard_normal(count))


@pytest.mark.parametrize("count", range(6))
def test_too_few_steps_cannot_tell(count: int) -> None:
    assert is_steady([1.0] * count) is None


@pytest.mark.parametrize("count", [6, 7, 20, 200])
def test_equal_steps_are_steady(count: int) -> None:
    assert is_steady([5] * count) is True


def test_a_trend_is_not_steady() -> None:
    assert is_steady(np.linspace(2.0, 1.0, 20)) is False
    assert is_steady(np.linspace(1.0, 2.0, 20)) is False


def test_a_jump_is_forgotten_once_it_lies_before_the_window() -> None:
    jump = np.concatenate([noisy(30, 0.005) * 3, noisy(20, 0.005)])

    assert is_steady(jump[:40]) is False
    assert is_steady(jump) is True


def test_the_unit_does_not_matter_and_the_series_is_left_alone() -> None:
    series = noisy(40, 0.02, seed=3)
    before = series.copy()

    assert is_steady(series) == is_steady(series / 1e6) == is_steady(series.tolist())
    assert (series == before).all()


def test_a_clock_that_stands_still_or_ticks_coarsely_is_not_called_steady() -> None:
    assert is_steady([0] * 20) is None
    assert is_steady([0, 0, 0, 1] * 5) is None
    assert is_steady([0] * 10 + [5] * 10) is None
    assert is_steady([5] * 10 + [0] * 10) is None


EVEN = [100.0] * 10


@pytest.mark.parametrize(
    ("late", "steady"),
    [
        ([105.0] * 10, True),
        ([105.1] * 10, False),
        ([95.0] * 10, True),
        ([94.9] * 10, False),
        ([100.0] * 7 + [106.6] * 3, True),  # only the upper quartile differs
        ([100.0] * 6 + [105.1] * 4, False),
        ([95.0] * 4 + [100.0] * 6, True),  # only the lower quartile differs
        ([93.3] * 3 + [100.0] * 7, False),
    ],
)
def test_the_median_and_both_quartiles_may_differ_by_five_percent(late: list[float], steady: bool) -> None:
    assert is_steady(EVEN + late) is steady


def test_a_median_lies_halfway_between_the_two_middle_steps() -> None:
    assert is_steady([100.0] * 6 + [110.0] * 4 + [100.0] * 5 + [110.0] * 5) is True  # 100 and 105
    assert is_steady([100.0] * 5 + [110.0] * 5 + [99.75] * 6 + [110.0] * 4) is True  # 105 and 99.75


@pytest.mark.parametrize(("first", "steady"), [(90.0, True), (114.0, True), (114.5, True), (114.6, False)])
def test_the_first_step_may_exceed_the_upper_quartile_by_one_and_a_half_quartile_ranges(
    first: float, steady: bool
) -> None:
    others = [96.0] * 3 + [100.0] * 3 + [104.0] * 3
    # The quartiles of the first half are 97 and 104 if its first step is the slowest.
    assert is_steady([first, *others, 104.0, *others]) is steady


def test_the_spreads_may_differ_by_ten_points_where_all_quartiles_agree() -> None:
    early = [100.0, 80.0, 100.0]  # no median deviation
    assert is_steady([*early, 96.0, 75.0, 105.0]) is True  # 9 of 96
    assert is_steady([*early, 96.0, 75.0, 106.0]) is False  # 10 of 96
    assert is_steady([*early[::-1], 96.0, 75.0, 106.0]) is False


def test_of_an_odd_number_of_steps_the_first_is_left_out() -> None:
    assert is_steady([1000.0] + [100.0] * 6) is True
    assert is_steady([100.0] * 3 + [120.0] * 3 + [100.0]) is False


def test_the_warm_up_ends_where_the_last_twenty_steps_begin() -> None:
    steady = [5.0] * 20
    assert steady_from(steady[1:]) is None
    assert steady_from(steady) == 0
    assert steady_from([9.0, *steady]) == 1
    assert steady_from([9.0, *steady], fewest=1) == 1
    assert steady_from([9.0, *steady], fewest=2) is None
    assert steady_from([*steady, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0]) is None
