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


def forward_and_backward(hand: ByHand, model: int, t: int) -> None:
    """A step of 3 ms whose first is the model's, forward and backward; what updates it has the rest."""
    hand.step(t, t + 3000)
    hand.call(model, t, t + 500).op("aten::mm", t + 1, t + 499, 1)
    hand.node("MmBackward0", t + 500, t + 1000, 1)


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


@pytest.mark.parametrize(("updates", "noted"), [(1, True), (2, True), (8, False)])
def test_several_updates_in_a_step_cost_what_each_of_them_does_at_once(updates: int, noted: bool) -> None:
    hand, model = one_layer()
    for t in range(0, 10_000 * STEPS, 10_000):
        forward_and_backward(hand, model, t)
        for update in range(updates):
            each = 2000 // updates
            begin = t + 1000 + each * update
            hand.event("Optimizer.step#SGD.step", begin, begin + each, "user_annotation")
            for place in range(200 // updates):
                hand.op("aten::add_", begin + 1 + 9.9 * place, begin + 5 + 9.9 * place)
    optimizer = {"name": "o", "class": "SGD", "tensors": 200 // updates, "elements": 0, "groups": 1, "at_once": []}
    recording = hand.recording(bare_cost={"op_ns": 1000.0}, parts={"optimizers": [optimizer], "loader": None})

    loops = found(recording, "optimizer")

    assert ("optimizer" in loops.index) == noted
    if noted:
        assert loops.loc["optimizer", "bound_ms"] == pytest.approx(2.0 - 200 * 1.2e-3, rel=0.01)
        assert ("in 2 updates" in loops.loc["optimizer", "evidence"]) == (updates == 2)


def test_an_update_without_an_optimizer_is_the_host_s_own_code() -> None:
    hand, model = one_layer()
    for t in range(0, 10_000 * STEPS, 10_000):
        forward_and_backward(hand, model, t)
        for place in range(200):
            hand.op("aten::add_", t + 1001 + 9.9 * place, t + 1005 + 9.9 * place)

    table = found(hand.recording(), "optimizer", "host code")

    assert "optimizer" not in table.index
    assert table.loc["host code", "bound_ms"] == pytest.approx(2.0, rel=0.02)


def test_an_optimizer_that_updates_all_at_once_is_not_a_loop() -> None:
    hand, model = one_layer()
    for t in range(0, 10_000 * STEPS, 10_000):
        hand.step(t, t + 3000)
        hand.call(model, t, t + 500).op("aten::mm", t + 1, t + 499)
        hand.event("Optimizer.step#Adam.step", t + 500, t + 3000, "user_annotation")
        for place in range(60):
            hand.op("aten::_foreach_add_", t + 501 + 40 * place, t + 540 + 40 * place)

    assert "optimizer" not in found(hand.recording(), "optimizer").index


def attention(hand: ByHand, t: float) -> None:
    hand.op("aten::matmul", t, t + 300).event("aten::bmm", t + 50, t + 290)
    hand.op("aten::div", t + 300, t + 400)
    hand.op("aten::softmax", t + 400, t + 700).event("aten::_softmax", t + 410, t + 690)
    hand.op("aten::matmul", t + 700, t + 1000).event("aten::bmm", t + 710, t + 970)


def test_softmax_between_two_batched_products_is_attention() -> None:
    hand, model = one_layer()
    for t in range(0, 2000 * STEPS, 2000):
        hand.step(t - 1, t + 1001)
        hand.call(model, t, t + 1000)
        attention(hand, t)

    unfused = found(hand.recording(), "attention unfused").loc["attention unfused"]

    assert unfused["bound_ms"] == pytest.approx(1 - 0.24 - 0.26)
    assert unfused["rows"][0] == {"kind": "layer", "name": "model"}


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


def test_time_longer_than_a_call_can_take_is_not_overhead_of_calls() -> None:
    # 100 ops of 4 µs, and 300 µs around each while other programs had the core, or memory was returned.
    hand, model = one_layer()
    for t in range(0, 100_000 * STEPS, 100_000):
        hand.step(t - 1, t + 30_001)
        hand.call(model, t, t + 30_000)
        for place in range(100):
            hand.op("aten::add", t + 300 * place, t + 4 + 300 * place)
    overhead = found(timed(hand.recording(), [10.0] * 20), "dispatch overhead").loc["dispatch overhead"]
    slow = timed(hand.recording(), [300.0] * 20, noise={"load_after": 9.0, "cpus": 2})
    busy = found(timed(hand.recording(), [10.0] * 20, noise={"load_after": 9.0, "cpus": 2}), "dispatch overhead").loc[
        "dispatch overhead"
    ]

    # At most two tiny ops of 10 µs around each of 101 calls, whatever made the timed steps slower than the traced ones.
    assert overhead["bound_ms"] == pytest.approx(2.02 + 0.4 / 3, rel=0.01)
    assert "was busy" not in overhead["why"]
    assert busy["bound_ms"] == pytest.approx(1.01 + 0.4 / 3, rel=0.01)
    assert "was busy" in busy["why"]
    # Traced steps that are three times as long as timed ones, or a busy CPU, make each bound doubtful.
    assert (overhead["confidence"], busy["confidence"]) == ("low", "low")
    assert "dispatch overhead" not in found(slow, "dispatch overhead").index


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
