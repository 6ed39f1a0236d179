"""Whether a replacement computes the same values, from errors planted by hand."""

from __future__ import annotations

import pytest

from perfnb.bench.values import DIFFERENT, NOISE, REDUCED, SAME, UNCHECKED, Errors, Values, judge_values


def errors(own: float, other: float, **more: object) -> Errors:
    """Return the errors of a result, next to one that is exact."""
    return Errors(False, {"x": own, "y": 0.0}, {"x": other, "y": 0.0}, **more)  # type: ignore[arg-type]


def test_identical_results_are_exact_however_far_they_are_from_the_truth() -> None:
    assert judge_values(Errors(True, {"x": 9.0}, {"x": 9.0}, ("x",), ("x",)), "bfloat16") == Values(SAME, 0.0)


def test_numbers_that_are_lost_are_named_first() -> None:
    assert judge_values(errors(0, 0, not_finite=("y", "x"), vanished=("x",)), "float16") == Values(
        DIFFERENT, 0.0, "y is infinite or NaN"
    )
    assert judge_values(errors(0, 0.5, vanished=("x", "y"))) == Values(DIFFERENT, 0.5, "x is zero or missing")


@pytest.mark.parametrize(
    ("own", "other", "verdict"),
    [
        (0.0, 1e-4, NOISE),  # what rounding in float32 explains
        (0.0, 1.1e-4, DIFFERENT),
        (0.1, 0.3001, NOISE),  # and three times the error of the original
        (0.1, 0.3002, DIFFERENT),
    ],
)
def test_a_replacement_may_be_three_times_as_far_from_the_truth(own: float, other: float, verdict: str) -> None:
    found = judge_values(errors(own, other))

    assert (found.verdict, found.error) == (verdict, other)
    assert ("x is off by" in found.why) == (verdict == DIFFERENT)


@pytest.mark.parametrize(
    ("lowers", "own", "other", "verdict"),
    [
        ("bfloat16", 0.0, 0.5, REDUCED),
        ("bfloat16", 0.0, 0.51, DIFFERENT),
        ("float16", 0.0, 0.0625, REDUCED),
        ("float16", 0.0, 0.063, DIFFERENT),
        ("int8", 0.0, 0.503, REDUCED),  # 64 / 127
        ("int8", 0.0, 0.505, DIFFERENT),
        ("float32", 0.0, 1e-4, REDUCED),
        ("float32", 0.0, 1.1e-4, DIFFERENT),
        ("float32", 0.2, 0.6, REDUCED),
        ("float32", 0.2, 0.61, DIFFERENT),
    ],
)
def test_lower_precision_may_be_as_far_off_as_its_rounding(lowers: str, own: float, other: float, verdict: str) -> None:
    found = judge_values(errors(own, other), lowers)

    assert found.verdict == verdict
    assert (f"more than {lowers} explains" in found.why) == (verdict == DIFFERENT)


@pytest.mark.parametrize(
    ("random", "reorders", "verdict"),
    [(True, True, UNCHECKED), (True, False, DIFFERENT), (False, True, DIFFERENT), (False, False, DIFFERENT)],
)
def test_random_numbers_in_another_order_leave_values_unchecked(random: bool, reorders: bool, verdict: str) -> None:
    assert judge_values(errors(0, 0.5, random=random), reorders=reorders).verdict == verdict
    assert judge_values(errors(0, 0.0, random=random), reorders=reorders).verdict == NOISE


def test_the_result_that_exceeds_its_tolerance_the_most_is_named() -> None:
    # y is farther off than x, but 2.5 times what is allowed instead of 5,000 times.
    found = judge_values(Errors(False, {"y": 0.1, "x": 0.0}, {"y": 0.75, "x": 0.5}))

    assert found == Values(DIFFERENT, 0.75, "x is off by 0.5 times its norm")
