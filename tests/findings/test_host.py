"""Rules about host work outside torch's ops, and work that does not count after one occurrence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfnb.findings.rules.bound import compute
from perfnb.profile.profile import Profile
from tests.findings.findings_recordings import facts, found, one_layer
from tests.findings.test_bound import roofline
from tests.findings.test_findings import STEPS, timed
from tests.recordings import ByHand


def with_pause(after: str, pause: float = 2000.0) -> ByHand:
    """Return a layer of two ops, and code of the host's: in the layer, after a read, or after all."""
    hand, model = one_layer()
    for t in range(0, 10_000 * STEPS, 10_000):
        inside = pause if after == "op" else 0
        outside = pause - inside
        hand.step(t - 1, t + 2001 + pause)
        hand.call(model, t, t + 2000 + inside)
        hand.op("aten::mm", t, t + 1000).op("aten::mm", t + 1000 + inside, t + 2000 + inside)
        if after == "read":
            hand.op("aten::item", t + 2000, t + 2005)
        if outside:
            hand.op("aten::add", t + 1990 + outside, t + 2000 + outside)
    return hand


def test_code_between_ops_is_found_outside_of_the_layers() -> None:
    code = found(with_pause("step").recording(), "host code").loc["host code"]

    # Less what calling ops takes anyway.
    assert code["bound_ms"] == pytest.approx(2.0, rel=0.06)
    assert code["rows"] == [{"kind": "phase", "name": "other"}]
    assert (
        "host code" not in found(with_pause("op").recording(), "host code").index
    )  # large memory given back looks alike


def test_calls_of_python_have_the_step_and_phase_in_which_they_begin() -> None:
    hand, model = one_layer()
    for t in (0, 1000):
        hand.event("runner", t - 10, t + 900, "python_function")
        hand.step(t, t + 900).call(model, t + 100, t + 300).op("aten::mm", t + 110, t + 290)
        hand.event("forward", t + 105, t + 295, "python_function")
        hand.event("after", t + 300, t + 310, "python_function").event("late", t + 500, t + 800, "python_function")
        hand.event("elsewhere", t + 110, t + 200, "python_function", thread=9)

    events = Profile(hand.recording()).events
    calls = events[events["category"] == "python_function"].set_index("name")

    assert calls.loc["forward", "step"].tolist() == [0, 1]
    assert calls.loc["forward", "phase"].tolist() == ["forward", "forward"]
    assert calls.loc["forward", "layer"].tolist() == ["model", "model"]
    assert calls.loc[["after", "late"], "step"].tolist() == [0, 1, 0, 1]
    assert set(calls.loc[["after", "late"], "phase"]) == {"other"}
    assert calls.loc[["after", "late", "runner"], "layer"].isna().all()
    assert calls.loc[["runner", "elsewhere"], ["step", "phase"]].isna().all(axis=None)


def test_what_follows_a_read_is_not_counted_twice() -> None:
    table = found(with_pause("read").recording(), "synchronisation", "host code")

    assert "synchronisation" in table.index
    assert "host code" not in table.index


def test_short_pauses_and_compiled_code_are_no_host_code() -> None:
    assert "host code" not in found(with_pause("step", 150.0).recording(), "host code").index
    hand = with_pause("step")
    hand.event("Torch-Compiled Region: 0/0", 1, 2)
    assert "host code" not in found(hand.recording(), "host code").index


def test_recomputation_costs_what_the_backward_pass_computes_again() -> None:
    hand, model = one_layer()
    block = hand.layer("model.block", model)
    for t in range(0, 10_000 * STEPS, 10_000):
        hand.step(t, t + 3000)
        hand.call(model, t, t + 1000).call(block, t, t + 1000).op("aten::mm", t + 1, t + 999, 1)
        hand.event(
            "autograd::engine::evaluate_function: CheckpointBackward", t + 1000, t + 3000, sequence=1, forward_thread=1
        )
        hand.call(block, t + 1001, t + 2000).op("aten::mm", t + 1002, t + 1999)

    again = found(hand.recording(), "recomputation").loc["recomputation"]

    assert again["bound_ms"] == pytest.approx(0.999, rel=0.01)
    assert again["confidence"] == "high"
    assert again["rows"] == [{"kind": "layer", "name": "model.block"}]


def test_a_wait_inside_the_step_is_a_part_of_its_time() -> None:
    hand, model = one_layer()
    for t in range(0, 10_000 * STEPS, 10_000):
        hand.step(t - 1, t + 4001)
        hand.event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t, t + 3000)
        hand.call(model, t + 3000, t + 4000).op("aten::mm", t + 3001, t + 3999)

    wait = found(timed(hand.recording(), [4.002] * 20), "input pipeline").loc["input pipeline"]

    assert wait["bound_ms"] == pytest.approx(3.0, rel=0.01)
    assert wait["bound_share"] == pytest.approx(0.75, rel=0.01)


def test_layers_never_take_more_than_the_step() -> None:
    # One traced step of three was held up: times are typical ones, and add up to a timed step.
    hand, model = one_layer()
    for number, late in enumerate((0, 30_000, 0)):
        t = 100_000 * number
        hand.step(t - 1, t + 1001 + late)
        hand.call(model, t, t + 1000 + late).op("aten::mm", t + 1, t + 999 + late)
    recording = timed(hand.recording(), [1.0] * 20)
    known = facts(recording)
    figures = replace(known.figures, roofline=roofline(int(4e8), 1000, 11.0))

    (slow,) = compute(replace(known, figures=figures))

    assert slow.bound_ms == pytest.approx(0.6, rel=0.01)
    assert "(100 % of the step) and reach 40 %" in slow.evidence
