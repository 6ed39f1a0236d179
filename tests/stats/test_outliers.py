"""Outliers are put in Tukey's classes, counted, and left where they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfnb.stats.step_times import Outliers, classify_outliers

#: With a large value, quartiles at 25.5 and 75.5, so that the fences are at 150.5 and 225.5; mirrored with a small one.
EVEN = [float(value) for value in range(0, 101)]


def with_value(value: float) -> Outliers:
    return classify_outliers([value, *EVEN, 50.0])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (150.5, {}),  # on a fence
        (151.0, {"high mild": 1}),
        (225.5, {"high mild": 1}),
        (226.0, {"high severe": 1}),
        (-50.5, {}),
        (-51.0, {"low mild": 1}),
        (-125.5, {"low mild": 1}),
        (-126.0, {"low severe": 1}),
    ],
)
def test_a_value_beyond_a_fence_is_in_its_class(value: float, expected: dict[str, int]) -> None:
    found = with_value(value)

    assert {name: count for name, count in found.by_class.items() if count} == expected
    assert found.count == len(expected)
    assert (found.samples, found.share) == (103, found.count / 103)


def test_a_stall_is_counted_and_its_place_known() -> None:
    samples = list(5.0 + np.random.default_rng(1).normal(0, 0.1, 50))
    samples[17] = 1000.0

    found = classify_outliers(samples)

    assert 17 in found.high_severe
    assert found.share == found.count / 50
    assert "1 high severe" in str(found)


def test_what_it_says() -> None:
    assert str(Outliers((), (), (), (), 20)) == "no outliers among 20 steps"
    assert str(Outliers((), (3,), (), (), 20)) == "1 outlier among 20 steps: 1 low mild"
    assert str(Outliers((), (), (1, 2), (), 20)) == "2 outliers among 20 steps: 2 high mild"
    assert str(Outliers((), (), (1, 2), (7,), 20)) == "3 outliers among 20 steps: 2 high mild, 1 high severe"


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, 1.0, 99.0]])
def test_too_few_samples_have_no_outliers(samples: list[float]) -> None:
    assert classify_outliers(samples).count == 0
    assert classify_outliers([1.0, 1.0, 1.0, 100.0]).high_mild == (3,)  # four are enough


@given(st.lists(st.integers(-1000, 1000), min_size=4, max_size=60), st.randoms())
def test_order_and_unit_do_not_matter_and_a_mirror_swaps_low_and_high(samples: list[int], random: object) -> None:
    found = classify_outliers(samples)
    shuffled = list(samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert classify_outliers(shuffled).by_class == found.by_class
    assert classify_outliers(np.array(samples) * 4.0).by_class == found.by_class
    assert (
        list(classify_outliers([-value for value in samples]).by_class.values()) == list(found.by_class.values())[::-1]
    )
    places = [*found.low_severe, *found.low_mild, *found.high_mild, *found.high_severe]
    assert len(set(places)) == found.count
