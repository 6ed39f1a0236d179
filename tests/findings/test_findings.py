"""Every rule of the findings on recordings made by hand, where what removing it saves is known to the microsecond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.findings.facts import typical
from perfnb.findings.finding import Finding, Rule, deciding, finding_table, found_by
from perfnb.profile.profile import Profile
from perfnb.recording.recording import Recording
from perfnb.recording.schema import SCHEMA
from tests.findings.findings_recordings import found, one_layer
from tests.recordings import NODE, ByHand

STEPS = 3


def timed(recording: Recording, wall_ms: list[float], data_ms: list[float] | float = 0.0, **meta: Any) -> Recording:
    """Return the recording with these timed steps."""
    traced = recording.steps[recording.steps["pass"] == "traced"]
    passes = pd.DataFrame(
        {
            "pass": "timed",
            "wall_ms": wall_ms,
            "data_ms": data_ms,
            "samples": pd.array([None] * len(wall_ms), dtype="Int64"),
        }
    )
    steps = pd.concat([passes, traced.astype({"pass": "str"})], ignore_index=True).astype({"pass": "category"})
    return Recording(**{**vars(recording), "steps": steps, "meta": {**recording.meta, **meta}})


def one_long_op(hand: ByHand | None = None, length: int = 1000, steps: int = STEPS) -> ByHand:
    """Return steps of one layer that computes in one op, in microseconds."""
    hand = hand or ByHand()
    model = hand.layer("model")
    for number in range(steps):
        t = number * 2 * length
        hand.step(t, t + length)
        hand.call(model, t + 1, t + length - 1).op("aten::mm", t + 2, t + length - 2)
    return hand


def test_a_step_of_one_long_op_has_nothing_wrong_and_says_what_it_is_bound_by() -> None:
    profile = Profile(timed(one_long_op().recording(), [1.0] * 20))

    assert profile.findings.empty
    assert list(profile.findings.columns) == list(SCHEMA["findings"])
    verdict = profile._summary.findings.verdict
    assert verdict.verdict == "Nothing stands out. The step is bound by the forward pass."
    assert verdict.why == "The forward pass takes 100 % of the step."
    assert verdict.finding is None


def test_small_ops_count_with_all_that_lies_around_them() -> None:
    hand, model = one_layer()
    for t in range(0, 10_000 * STEPS, 10_000):
        hand.step(t - 1, t + 3001)
        hand.call(model, t, t + 3000).op("aten::mm", t, t + 1000)
        for place in range(100):
            hand.op("aten::add", t + 1000 + 20 * place, t + 1004 + 20 * place)

    overhead = found(hand.recording(), "dispatch overhead").loc["dispatch overhead"]

    assert overhead["bound_ms"] == pytest.approx(2)
    assert overhead["bound_share"] == pytest.approx(2 / 3.002)
    assert "100 of 101 ops" in overhead["evidence"]
    assert overhead["rows"][0] == {"kind": "layer", "name": "model"}


def attention(hand: ByHand, t: float) -> None:
    hand.op("aten::matmul", t, t + 300).event("aten::bmm", t + 50, t + 290)
    hand.op("aten::div", t + 300, t + 400)
    hand.op("aten::softmax", t + 400, t + 700).event("aten::_softmax", t + 410, t + 690)
    hand.op("aten::matmul", t + 700, t + 1000).event("aten::bmm", t + 710, t + 970)


def test_ops_are_small_by_what_they_take_without_tracing() -> None:
    hand, model = one_layer()
    for t in range(0, 10_000 * STEPS, 10_000):
        hand.step(t - 1, t + 3001)
        hand.call(model, t, t + 3000).op("aten::mm", t, t + 1000)
        for place in range(100):
            hand.op("aten::add", t + 1000 + 20 * place, t + 1012 + 20 * place)

    assert "dispatch overhead" not in found(hand.recording(), "dispatch overhead").index
    assert (
        "dispatch overhead" in found(hand.recording(cost={"op_ns": 6000.0, "call_ns": 0.0}), "dispatch overhead").index
    )


@pytest.mark.parametrize(
    ("step", "kind", "wanted"),
    [
        ([0, 0, 1, 1, 2, 2], [7, 8] * 3, [3.0, 4.0] * 3),
        ([0, 0, 1, 1], [7, 8] * 2, [1.0, 2.0, 3.0, 9.0]),  # too few steps
        ([0, 0, 1, 1, 2], [7, 8, 7, 8, 7], [1.0, 2.0, 3.0, 9.0, 4.0]),
        ([0, 0, 1, 2, 1, 2], [7, 8] * 3, [1.0, 2.0, 3.0, 9.0, 4.0, 4.0]),
        ([0, 0, 1, 1, 2, 2], [7, 8, 7, 8, 7, 9], [1.0, 2.0, 3.0, 9.0, 4.0, 4.0]),
    ],
)
def test_typical_values_are_medians_over_steps_that_did_the_same(
    step: list[int], kind: list[int], wanted: list[float]
) -> None:
    values = np.array([1.0, 2.0, 3.0, 9.0, 4.0, 4.0][: len(step)])
    assert typical(values, np.array(step), np.array(kind)).tolist() == wanted


def test_what_is_urgent_comes_first_and_what_others_may_have_caused_last() -> None:
    finding = Finding("a", 1.0, "b", "high", "c", "d")
    found = [
        *(replace(finding, bound_ms=bound) for bound in (None, 2.0, 0.0)),
        *(replace(finding, urgency=-1, bound_ms=9.0), finding, replace(finding, urgency=1, bound_ms=None)),
    ]

    table = finding_table(found, 10.0)
    assert table["bound_ms"].astype(object).tolist() == [pd.NA, 2.0, 1.0, 0.0, pd.NA, 9.0]
    assert table["bound_share"].astype(object).tolist() == [pd.NA, 0.2, 0.1, 0.0, pd.NA, 0.9]
    rule = Rule("", "", "", lambda facts: iter(found))
    assert deciding(found_by([rule], None, 10.0), {"": rule}, 10.0, 0.5) == 0


def test_a_finding_has_no_more_confidence_than_it_may_and_tells_the_reason() -> None:
    finding = Finding("a", 1.0, "b", "high", "c", "d")

    assert finding.at_most("high", "Few.") is finding
    assert finding.at_most("medium", "Few.").why == "Few. c"
    assert finding.at_most("medium", "Few.").at_most("low", "Busy.") == replace(
        finding, confidence="low", why="Busy. Few. c"
    )
    assert finding.at_most("low", "Busy.").at_most("medium", "Few.").why == "Busy. c"


def test_a_node_of_backward_is_an_owner_like_any_other() -> None:
    hand, model = one_layer()
    for t in range(0, 10_000 * STEPS, 10_000):
        hand.step(t, t + 1000)
        hand.call(model, t, t + 100).op("aten::mm", t + 1, t + 99, 1)
        hand.event(NODE + "MmBackward0", t + 100, t + 1000, sequence=1, forward_thread=1)
        for place in range(40):
            hand.op("aten::mul", t + 110 + 20 * place, t + 112 + 20 * place)

    overhead = found(hand.recording(), "dispatch overhead").loc["dispatch overhead"]

    assert overhead["bound_ms"] == pytest.approx(0.902)
