"""Which candidates are accepted, and why others are not."""

from __future__ import annotations

from math import inf, nan

import pytest

from perfnb.bench.acceptance import (
    ACCEPT,
    CANNOT_TELL,
    GAIN,
    INCONCLUSIVE,
    NO_GAIN,
    OVER,
    REJECT,
    SLOWER,
    UNJUDGED,
    UNMEASURED,
    UNSURE,
    WORSE,
    Decision,
    Resource,
    decide,
)
from perfnb.bench.quality import Loss

GOOD, BAD, UNKNOWN = (
    Loss(name, value, None, limit) for name, value, limit in (("a", 1, 1), ("b", 2, 1), ("c", 1, None))
)
WITHIN, ABOVE, UNMEASURED_ONE = (Resource(name, value, 5.0) for name, value in (("x", 5.0), ("y", 6.0), ("z", None)))
AT_LIMIT = Resource("w", 5.0, 5.0, (4.0, 6.0))


@pytest.mark.parametrize(
    ("value", "bounds", "exceeded", "unsure"),
    [
        (4.9, None, False, False),
        (5.0, None, False, False),
        (5.1, None, True, False),
        (nan, None, True, False),
        (None, None, False, False),
        (5.1, (4.9, 5.2), False, True),
        (5.1, (5.0, 5.2), False, True),
        (4.9, (4.8, 5.0), False, False),
        (4.9, (4.8, 5.1), False, True),
        (5.2, (5.1, 5.3), True, False),
        (5.2, (5.1, inf), True, False),
    ],
)
def test_a_resource_exceeds_its_limit_only_with_all_of_its_interval(
    value: float | None, bounds: tuple[float, float] | None, exceeded: bool, unsure: bool
) -> None:
    resource = Resource("time", value, 5.0, bounds)

    assert (resource.exceeded, resource.unsure) == (exceeded, unsure)


@pytest.mark.parametrize("verdict", ["faster", "slower", "same", "inconclusive"])
def test_bad_results_and_exceeded_limits_are_rejected_whatever_the_time(verdict: str) -> None:
    assert decide(verdict, [GOOD, BAD, UNKNOWN], [ABOVE]) == Decision(REJECT, WORSE, ("b",))
    assert decide(verdict, [GOOD, UNKNOWN], [WITHIN, ABOVE, UNMEASURED_ONE], ["d"]) == Decision(REJECT, OVER, ("y",))


@pytest.mark.parametrize(
    ("verdict", "decision"),
    [
        ("slower", Decision(REJECT, SLOWER)),
        ("same", Decision(REJECT, NO_GAIN)),
        ("inconclusive", Decision(INCONCLUSIVE, CANNOT_TELL)),
        ("faster", Decision(ACCEPT, GAIN)),
    ],
)
def test_a_candidate_with_good_results_is_accepted_only_if_it_is_faster(verdict: str, decision: Decision) -> None:
    assert decide(verdict, [GOOD], [WITHIN]) == decision


def test_a_faster_candidate_is_not_accepted_unless_everything_was_measured() -> None:
    assert decide("faster") == Decision(INCONCLUSIVE, UNJUDGED)
    assert decide("faster", [GOOD, UNKNOWN], [UNMEASURED_ONE]) == Decision(INCONCLUSIVE, UNJUDGED, ("c",))
    assert decide("faster", [GOOD], [WITHIN, UNMEASURED_ONE, AT_LIMIT]) == Decision(INCONCLUSIVE, UNMEASURED, ("z",))
    assert decide("faster", [GOOD], [WITHIN, AT_LIMIT], ["d"]) == Decision(INCONCLUSIVE, UNMEASURED, ("d",))
    assert decide("faster", [GOOD], [UNMEASURED_ONE], ["d"]) == Decision(INCONCLUSIVE, UNMEASURED, ("z", "d"))
    assert decide("faster", [GOOD], [WITHIN, AT_LIMIT]) == Decision(INCONCLUSIVE, UNSURE, ("w",))
    assert decide("same", [GOOD, UNKNOWN], [UNMEASURED_ONE]) == Decision(REJECT, NO_GAIN)
