"""Decisions: every row of the table, and what no evidence may lead to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfnb.bench.acceptance import Decision, Resource, decide
from perfnb.bench.quality import SLACK, Loss
from perfnb.experiments.compared_figures import compare_results


class Evidence(NamedTuple):
    """What `decide` takes."""

    verdict: str
    losses: tuple[Loss, ...] = ()
    resources: tuple[Resource, ...] = ()
    unmatched: tuple[str, ...] = ()


GOOD = Loss("loss", 0.3, limit=0.31)
BAD = Loss("loss", 0.32, limit=0.31)
FITS, OVER, UNSEEN, NONE = (Resource("memory", value, 2.0) for value in (1.0, 3.0, None, math.nan))


@pytest.mark.parametrize(
    ("evidence", "decision"),
    [
        (Evidence("faster", (GOOD,)), Decision("accept", "gain")),
        (Evidence("faster", (GOOD,), (FITS,)), Decision("accept", "gain")),
        (Evidence("faster", (BAD,)), Decision("reject", "worse", ("loss",))),
        (Evidence("slower", (BAD,), (OVER,)), Decision("reject", "worse", ("loss",))),
        (Evidence("faster", (GOOD,), (OVER,)), Decision("reject", "over a limit", ("memory",))),
        (Evidence("faster", (GOOD,), (NONE,)), Decision("reject", "over a limit", ("memory",))),
        (Evidence("faster", (), (OVER,)), Decision("reject", "over a limit", ("memory",))),
        (Evidence("slower", (GOOD,)), Decision("reject", "slower")),
        (Evidence("slower"), Decision("reject", "slower")),
        (Evidence("same", (GOOD,)), Decision("reject", "no gain")),
        (Evidence("inconclusive", (GOOD,)), Decision("inconclusive", "cannot tell")),
        (Evidence("inconclusive", (BAD,)), Decision("reject", "worse", ("loss",))),
        (Evidence("faster"), Decision("inconclusive", "quality unknown")),
        (Evidence("faster", (Loss("f1", 0.2),)), Decision("inconclusive", "quality unknown", ("f1",))),
        (Evidence("faster", (GOOD,), (UNSEEN,)), Decision("inconclusive", "limit unchecked", ("memory",))),
        (Evidence("faster", (GOOD,), (), ("los",)), Decision("inconclusive", "limit unchecked", ("los",))),
    ],
)
def test_the_weightiest_cause_decides(evidence: Evidence, decision: Decision) -> None:
    assert decide(*evidence) == decision


@pytest.mark.parametrize(
    ("loss", "exceeded"),
    [
        (Loss("x", 1.0, limit=1.0), False),
        (Loss("x", math.nextafter(1.0, 2.0), limit=1.0), True),
        (Loss("x", math.nan, limit=1.0), True),
        (Loss("x", math.nan), True),
        (Loss("x", math.inf), True),
        (Loss("x", 5.0), False),
        (Loss("x", 1.0, baseline=1.0), False),
        (Loss("x", 1.0 + 2 * SLACK, baseline=1.0), True),
        (Loss("x", 1.0 + 2 * SLACK, baseline=1.0, limit=2.0), False),
        (Loss("x", -1.0 + 2 * SLACK, baseline=-1.0), True),
        (Loss("x", -1.0 + SLACK / 2, baseline=-1.0), False),
        (Loss("x", 5.0, baseline=math.nan), False),
    ],
)
def test_a_loss_is_measured_by_its_limit_else_by_the_baseline(loss: Loss, exceeded: bool) -> None:
    assert loss.exceeded is exceeded


NUMBERS = st.floats(-10, 10)
LOSSES = st.builds(
    Loss,
    st.sampled_from("abc"),
    NUMBERS | st.sampled_from([math.nan, math.inf]),
    st.none() | NUMBERS,
    st.none() | NUMBERS,
)
RESOURCES = st.builds(Resource, st.sampled_from("mn"), st.none() | NUMBERS | st.just(math.nan), NUMBERS)
EVIDENCE = st.builds(
    Evidence,
    st.sampled_from(["faster", "slower", "same", "inconclusive"]),
    st.lists(LOSSES, max_size=3).map(tuple),
    st.lists(RESOURCES, max_size=3).map(tuple),
    st.lists(st.just("x"), max_size=1).map(tuple),
)
#: A busy machine is no fault of a decision's.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
RANK = {"reject": 0, "inconclusive": 1, "accept": 2}
ORDER = ["slower", "same", "inconclusive", "faster"]


@UNHURRIED
@given(EVIDENCE)
def test_nothing_is_accepted_whose_quality_fails_or_that_exceeds_a_limit(evidence: Evidence) -> None:
    """The conditions written out anew, not by the properties that the decision uses."""
    right = all(
        math.isfinite(loss.candidate)
        and (
            loss.candidate <= loss.limit
            if loss.limit is not None
            else loss.baseline is not None and loss.candidate <= loss.baseline + SLACK * abs(loss.baseline)
        )
        for loss in evidence.losses
    )
    kept = all(each.value is not None and each.value <= each.limit for each in evidence.resources)
    may = evidence.verdict == "faster" and bool(evidence.losses) and right and kept and not evidence.unmatched
    assert (decide(*evidence).decision == "accept") == may


@UNHURRIED
@given(EVIDENCE, st.data())
def test_what_is_worse_is_never_judged_better(evidence: Evidence, data: st.DataObject) -> None:
    by = data.draw(st.floats(0, 5))
    worse = [
        evidence._replace(verdict=ORDER[data.draw(st.integers(0, ORDER.index(evidence.verdict)))]),
        evidence._replace(losses=tuple(replace(loss, candidate=loss.candidate + by) for loss in evidence.losses)),
        evidence._replace(
            losses=tuple(
                loss if loss.limit is None else replace(loss, limit=loss.limit - by) for loss in evidence.losses
            ),
        ),
        evidence._replace(losses=(*evidence.losses, BAD)),
        evidence._replace(
            resources=tuple(
                each if each.value is None else replace(each, value=each.value + by) for each in evidence.resources
            ),
        ),
        evidence._replace(resources=(*evidence.resources, data.draw(RESOURCES))),
        evidence._replace(unmatched=("y",)),
    ]
    for each in worse:
        assert RANK[decide(*each).decision] <= RANK[decide(*evidence).decision]


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
