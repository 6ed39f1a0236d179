"""Which losses of quality exceed what is accepted, and which losses and limits are refused."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch

from perfnb.bench.quality import Loss, limits_of, losses_of, require_quality


@pytest.mark.parametrize(
    ("baseline", "limit", "largest"),
    [
        (None, None, None),
        (nan, None, None),
        (-inf, None, None),
        (2.0, None, 2.002),
        (-2.0, None, -1.998),
        (2.0, 3.0, 3.0),
        (None, 3.0, 3.0),
    ],
)
def test_a_loss_may_be_at_most_the_limit_or_a_little_above_the_baseline(
    baseline: float | None, limit: float | None, largest: float | None
) -> None:
    def exceeded(candidate: float) -> bool:
        return Loss("loss", candidate, baseline, limit).exceeded

    assert Loss("loss", 0.0, baseline, limit).largest == pytest.approx(largest)
    assert all(map(exceeded, (nan, inf, -inf)))
    if largest is None:
        assert not exceeded(1e9)
    else:
        assert [exceeded(largest + more) for more in (-1e-6, 0.0, 1e-6)] == [False, False, True]


def test_limits_are_numbers_by_name() -> None:
    assert limits_of(None, judged=False, profiled=False) == {}
    given = {"difference": 0, "median_ms": 3, "p95_ms": torch.tensor(2.5), "peak_memory_bytes": 7}
    assert limits_of(given, judged=False, profiled=True) == {
        "difference": 0.0,
        "median_ms": 3.0,
        "p95_ms": 2.5,
        "peak_memory_bytes": 7.0,
    }
    assert limits_of({"loss": -1.5, "difference": -1}, judged=True, profiled=False) == {"loss": -1.5, "difference": -1}


@pytest.mark.parametrize(
    ("given", "judged", "error", "message"),
    [
        ([("loss", 1)], True, TypeError, "limits must be a mapping such as .*, not list"),
        ({"loss": inf}, True, ValueError, "the limit of 'loss' must be a finite number, not inf"),
        ({"loss": nan}, True, ValueError, "must be a finite number, not nan"),
        ({"loss": "1"}, True, TypeError, "'loss' in limits must be a number, not str"),
        ({"loss": True}, True, TypeError, "'loss' in limits must be a number, not bool"),
        ({"loss": torch.ones(2)}, True, TypeError, "'loss' in limits must be a number, not Tensor"),
        ({"loss": 10**400}, True, TypeError, "'loss' in limits must be a number, not int"),
        ({"": 1}, True, TypeError, "names in limits must be non-empty strings, not ''"),
        ({3: 1}, True, TypeError, "names in limits must be non-empty strings, not 3"),
        ({"loss": 1}, False, ValueError, "limits contains 'loss', which is not measured: without quality"),
        ({"median_msec": 1}, False, ValueError, r"which is not measured \(did you mean 'median_ms'\?\)"),
        ({"difference": -0.1}, False, ValueError, "relative to the largest value and must not be negative"),
        ({"peak_memory_bytes": 1}, True, ValueError, "pass profile=True"),
    ],
)
def test_limits_that_make_no_sense_are_refused(given: Any, judged: bool, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        limits_of(given, judged=judged, profiled=False)


def test_losses_are_those_of_the_candidate_or_of_both_sides() -> None:
    alone = losses_of({"a": 1, "b": torch.tensor([2.0], requires_grad=True)}, {"b": 3.0})
    assert alone == (Loss("a", 1.0), Loss("b", 2.0, None, 3.0))

    both = losses_of({"baseline": {"a": 1, "b": 2}, "candidate": {"b": 4, "a": 3}}, {"a": 9.0})
    assert both == (Loss("b", 4.0, 2.0), Loss("a", 3.0, 1.0, 9.0))

    named = losses_of({"baseline": 1, "candidate": 2}, {})  # losses of these names
    assert named == (Loss("baseline", 1.0), Loss("candidate", 2.0))


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (0.3, TypeError, "quality must return a mapping of names to numbers such as .*, not float"),
        ({}, ValueError, "quality returned no losses"),
        ({"baseline": {}, "candidate": {}}, ValueError, "quality returned no losses"),
        ({"candidate": {"a": 1}}, ValueError, "quality returned losses for the candidate only"),
        ({"baseline": {"a": 1}}, ValueError, "quality returned losses for the baseline only"),
        ({"baseline": {"a": 1}, "candidate": {"b": 1, "a": 1}}, ValueError, "quality returned 'b' for only one side"),
        ({"baseline": {"a": 1, "c": 1}, "candidate": {"a": 1}}, ValueError, "quality returned 'c' for only one side"),
        ({"baseline": {"a": 1}, "candidate": 3}, TypeError, "'baseline' in quality must be a number, not dict"),
        ({"a": 1, "median_ms": 1}, ValueError, "a loss named 'median_ms', which perfnb measures itself"),
        ({"flops": 1}, ValueError, "a loss named 'flops', which perfnb measures itself"),
    ],
)
def test_losses_that_make_no_sense_are_refused(returned: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        losses_of(returned, {})


def test_quality_is_a_function_without_arguments() -> None:
    require_quality(None)
    require_quality(lambda: 1)
    require_quality(lambda x=1, *more, **named: 1)
    require_quality(dict)  # a function in C without a signature
    with pytest.raises(TypeError, match="not dict: pass quality, not quality"):
        require_quality({"loss": 1})
    with pytest.raises(TypeError, match="must be a function without arguments: missing a required argument: 'x'"):
        require_quality(lambda x: 1)
