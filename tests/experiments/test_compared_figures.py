"""How the results of two steps are compared."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from perfnb.experiments.compared_figures import compare_results


def agrees(first: Any, second: Any) -> None:
    assert first == second, "not  equal\nat all"


def fails(first: Any, second: Any) -> None:
    raise AssertionError


HALF = torch.tensor([1.0, 0.5])
ONE = torch.tensor([1.0, 1.0])
WORDS = "the result differs by up to 0.5 times the largest value"


@pytest.mark.parametrize(
    ("first", "second", "check", "limit", "expected"),
    [
        (
            1,
            2,
            lambda one, other: one == other,
            None,
            (math.inf, 0.0, "check", "check says that the results differ", ""),
        ),
        (1, 1, lambda one, other: one == other, None, (0.0, 0.0, "check", "", "")),
        (1, 2, lambda one, other: None, 0.0, (0.0, 0.0, "check", "", "")),
        (1, 2, agrees, None, (math.inf, 0.0, "check", "not equal at all assert 1 == 2", "")),
        (1, 1, agrees, None, (0.0, 0.0, "check", "", "")),
        (1, 1, fails, None, (math.inf, 0.0, "check", "the check failed", "")),
        (ONE, HALF, None, None, (0.5, 1e-4, "results", WORDS, "float32")),
        (ONE, ONE, None, None, (0.0, 1e-4, "results", "", "float32")),
        (ONE, HALF, None, 0.5, (0.5, 0.5, "results", "", "")),
        (ONE, HALF, None, 0.499, (0.5, 0.499, "results", WORDS, "")),
        (ONE, HALF, 0.5, None, (0.5, 0.5, "check", "", "")),
        (ONE, HALF, 0.499, 1.0, (0.5, 0.499, "check", WORDS, "")),
        (ONE, HALF, 0, None, (0.5, 0.0, "check", WORDS, "")),
    ],
)
def test_results_are_compared_by_a_function_a_tolerance_or_a_limit(
    first: Any, second: Any, check: Any, limit: float | None, expected: tuple[float, float, str, str, str]
) -> None:
    quality = compare_results(first, second, check, limit)
    (loss,) = quality.losses
    assert (loss.candidate, loss.limit, quality.judged_by, quality.said, quality.dtype) == expected
    assert (loss.name, loss.baseline) == ("difference", None)


def test_results_that_cannot_be_compared_have_no_difference() -> None:
    quality = compare_results(None, None, None, None)
    assert (quality.losses, quality.judged_by, quality.dtype) == ((), "results", "")
    assert quality.said
