"""Medians that were not measured in pairs."""

from __future__ import annotations

import math

import pytest

from perfnb.stats.comparisons import compare_medians, judge, within_band


@pytest.mark.parametrize(
    ("b", "b_ci", "verdict"),
    [
        (11.0, (10.9, 11.1), "slower"),
        (9.0, (8.9, 9.1), "faster"),
        (10.05, (10.0, 10.1), "same"),
        (10.3, (9.0, 12.0), "inconclusive"),
        (20.0, None, "inconclusive"),
    ],
)
def test_verdicts(b: float, b_ci: tuple[float, float] | None, verdict: str) -> None:
    found = compare_medians(10.0, (9.95, 10.05), b, b_ci)

    assert found.verdict == verdict
    assert found.ratio == pytest.approx(b / 10)
    if b_ci is None:
        assert compare_medians(b, None, 10.0, (9.9, 10.1)).ratio_ci is None


def test_the_interval_is_that_of_two_lognormals_by_hand() -> None:
    a, b, wide_a, wide_b = 10.0, 12.0, 0.03, 0.04
    found = compare_medians(
        a, (a * math.exp(-wide_a), a * math.exp(wide_a)), b, (b * math.exp(-wide_b), b * math.exp(wide_b))
    )

    assert found.ratio_ci is not None
    assert found.ratio_ci == pytest.approx((1.2 * math.exp(-0.05), 1.2 * math.exp(0.05)))


@pytest.mark.parametrize(("half", "verdict"), [(0.0230, "same"), (0.0242, "inconclusive")])
def test_equal_within_the_band_are_medians_whose_90_percent_interval_is_inside_it(half: float, verdict: str) -> None:
    # The interval of the ratio is root 2 wider, and that for equality 1.645 / 1.960 of it; the band ends at log 1.02.
    around = half / math.sqrt(2)
    bounds = (10 * math.exp(-around), 10 * math.exp(around))
    assert math.log(1.02) / (1.6449 / 1.96) == pytest.approx(0.0236, abs=1e-4)
    assert compare_medians(10.0, bounds, 10.0, bounds).verdict == verdict


@pytest.mark.parametrize(
    ("ratio_ci", "equal_within", "inside"),
    [
        ((0.5, 2.0), 1.0, True),  # the band is symmetric on the log scale, and its ends belong to it
        ((0.499, 2.0), 1.0, False),
        ((0.5, 2.001), 1.0, False),
        ((1.0, 1.0), 0.0, False),
    ],
)
def test_an_interval_is_in_the_band_if_both_ends_are(
    ratio_ci: tuple[float, float], equal_within: float, inside: bool
) -> None:
    assert within_band(ratio_ci, equal_within) == inside


@pytest.mark.parametrize(
    ("ratio_ci", "equivalent", "significant", "verdict"),
    [
        (None, True, True, "inconclusive"),
        ((0.7, 0.9), True, True, "same"),
        ((0.7, 0.9), False, False, "faster"),
        ((1.1, 1.3), False, False, "slower"),
        ((0.7, 1.0), False, False, "inconclusive"),
        ((1.0, 1.3), False, False, "inconclusive"),
        ((0.7, 1.0), False, True, "faster"),
        ((1.0, 1.3), False, True, "slower"),
    ],
)
def test_equality_is_judged_before_a_difference(
    ratio_ci: tuple[float, float] | None, equivalent: bool, significant: bool, verdict: str
) -> None:
    assert judge(ratio_ci, sum(ratio_ci or (2.0, 0.0)) / 2, equivalent, significant) == verdict
