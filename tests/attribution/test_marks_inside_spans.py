"""Marks of steps that fall into the middle of other spans, as in a trainer that calls back from `Optimizer.step`."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st

from perfnb.attribution.blocks import Kind, _cut_at_steps, _Steps
from perfnb.profile.profile import Profile
from perfnb.recording.from_trace import recording_of_trace, with_module_layers
from perfnb.trace.kineto import decode
from tests.laws import holds_of
from tests.profile.test_load_trace import in_us
from tests.written_traces import BACKWARD, MAIN, NODE, Written

ANNOTATION = "user_annotation"


def lightning(steps: int = 3, *, modules: str = "annotated", nodes_on: int = MAIN) -> Written:
    """Lightning's loop under its `PyTorchProfiler`: the mark comes when `training_step` ends, inside `Optimizer.step`.

    A batch takes 1200 µs: 200 forward, 150 loss, 340 backward, 310 optimizer, 200 between two batches.
    """
    trace = Written()
    for batch in range(steps + 1):
        t, n = 1200.0 * batch, 10 * batch
        if batch < steps:
            trace.step(2 + batch, t + 500, t + 1700)
        trace.event("[pl][profile]run_training_batch", t + 50, t + 1150, ANNOTATION)
        trace.event("Optimizer.step#Adam.step", t + 100, t + 1100, ANNOTATION)
        trace.event("[pl][profile][Strategy]SingleDeviceStrategy.training_step", t + 150, t + 500, ANNOTATION)
        if modules == "annotated":
            trace.event("[pl][module]torch.nn.modules.container.Sequential: net", t + 200, t + 400, ANNOTATION)
            trace.event("[pl][module]torch.nn.modules.linear.Linear: net.0", t + 210, t + 390, ANNOTATION)
        elif modules == "recorded":
            trace.module("Sequential_0", t + 200, t + 400).module("Linear_0", t + 210, t + 390)
        trace.op("aten::linear", t + 220, t + 380, n + 1)
        trace.op("aten::mse_loss", t + 420, t + 480, n + 2)
        trace.event("[pl][profile][Strategy]SingleDeviceStrategy.backward", t + 520, t + 900, ANNOTATION)
        trace.node("MseLossBackward0", t + 550, t + 650, n + 2, nodes_on)
        trace.node("AddmmBackward0", t + 650, t + 890, n + 1, nodes_on)
        trace.op("aten::_fused_adam_", t + 950, t + 1050)
    # What began before the first mark is not in such a trace: recording starts there.
    trace.events = [event for event in trace.events if event["ts"] >= 500]
    return trace


def profile_of(trace: Written) -> Profile:
    events = json.dumps({"traceEvents": trace.events}).encode()
    return Profile(with_module_layers(recording_of_trace(decode(events), "trace.json")))


def step_sums_ms(profile: Profile) -> list[float]:
    """Return what the phases of each step add up to."""
    sums = profile._analysis.attribution.cells.groupby("step")["ns"].sum().div(1e6)
    return [float(sums.get(step, 0.0)) for step in range(len(profile.steps))]


@pytest.mark.parametrize("nodes_on", [MAIN, BACKWARD])
@pytest.mark.parametrize("modules", ["annotated", "recorded"])
def test_a_closure_in_an_optimizer_that_marks_cut_has_its_phases(modules: str, nodes_on: int) -> None:
    profile = profile_of(lightning(4, modules=modules, nodes_on=nodes_on))

    assert step_sums_ms(profile) == profile.steps["wall_ms"].tolist() == [1.2, 1.2, 1.2, 1.2]
    cells = profile._analysis.attribution.cells
    for step in (1, 2):  # the first one's `Optimizer.step` began before the recording, the last one's ends after it
        phases = cells[cells["step"] == step].groupby("phase", observed=True)["ns"].sum() // 1000
        assert phases[phases > 0].to_dict() == {
            **{"forward": 200, "loss": 150, "backward": 340, "optimizer": 310, "other": 200}
        }


@pytest.mark.parametrize("modules", ["annotated", "recorded"])
def test_layers_of_such_a_trace_have_forward_and_backward(modules: str) -> None:
    layers = profile_of(lightning(modules=modules)).layers

    names = {"annotated": ["net", "net.0"], "recorded": ["Sequential_0", "Sequential_0.Linear_0"]}[modules]
    assert layers.index[:2].tolist() == names
    assert layers["module"].iloc[:2].tolist() == ["Sequential", "Linear"]
    assert layers["depth"].iloc[:2].tolist() == [0, 1]
    assert layers["calls"].iloc[:2].tolist() == [1.0, 1.0]
    assert in_us(layers["forward_ms"].iloc[:2]) == {names[0]: 200, names[1]: 180}
    # Of the first of three steps, backward answers operators from before the recording.
    assert in_us(layers["backward_ms"].iloc[:2]) == {names[0]: 160, names[1]: 160}


def test_a_call_that_a_mark_cuts_is_one_call_with_a_part_in_each_step() -> None:
    trace = Written().step(1, 0, 100).step(2, 100, 200)
    trace.module("Net_0", 50, 150).op("aten::mm", 60, 140)

    profile = profile_of(trace)

    assert step_sums_ms(profile) == [0.1, 0.1]
    assert in_us(profile.phases["ms"])["forward"] == 50
    assert in_us(profile.layers["forward_ms"]) == {"Net_0": 50}
    assert profile.layers["calls"].tolist() == [0.5]
    assert profile.ops["calls"].tolist() == [0.5]
    assert profile.ops["total_cpu_ms"].tolist() == [0.04]


def test_a_wait_for_data_that_a_mark_cuts_belongs_to_both_steps() -> None:
    trace = Written().step(1, 0, 100).step(2, 100, 200).event("enumerate(DataLoader)#_It.__next__", 70, 120, ANNOTATION)

    profile = profile_of(trace)

    assert profile.steps["data_ms"].tolist() == [0.03, 0.02]
    assert in_us(profile.phases["ms"])["data"] == 25


@pytest.mark.parametrize(
    ("begin", "end", "parts"),
    [
        (10_000, 90_000, [(0, 10_000, 90_000)]),
        (50_000, 150_000, [(0, 50_000, 100_000), (1, 100_000, 150_000)]),
        (98_999, 150_000, [(0, 98_999, 100_000), (1, 100_000, 150_000)]),
        (99_000, 150_000, [(1, 100_000, 150_000)]),  # but for rounding
        (50_000, 101_000, [(0, 50_000, 100_000)]),
        (50_000, 101_001, [(0, 50_000, 100_000), (1, 100_000, 101_001)]),
        (-5_000, 300_000, [(0, 0, 100_000), (1, 100_000, 200_000), (2, 250_000, 300_000)]),
        (220_000, 230_000, [(1, 220_000, 220_000)]),  # between two steps
    ],
)
def test_a_block_is_cut_at_the_borders_of_steps(begin: int, end: int, parts: list[tuple[int, int, int]]) -> None:
    starts, ends = np.array([0, 100_000, 250_000]), np.array([100_000, 200_000, 350_000])
    steps = _Steps.of(np.full(3, Kind.STEP), np.zeros(3, dtype=int), starts, ends)

    cut, step = _cut_at_steps(pd.DataFrame({"start": [begin], "end": [end]}), steps)

    assert list(zip(step, cut["start"], cut["end"], strict=True)) == parts
    assert cut["continued"].tolist() == [False, True, True][: len(parts)]


@pytest.mark.parametrize(("end", "forward", "loss"), [(100.6, 25, 0), (101, 25, 0), (101.001, 25.5005, 24.4995)])
def test_what_a_files_rounding_moves_over_a_mark_starts_nothing_in_the_next_step(
    end: float, forward: float, loss: float
) -> None:
    trace = Written().step(1, 0, 100).step(2, 100, 200)
    trace.module("Net_0", 50, end)  # ends with its step, but for a rounding of up to 1 µs
    trace.node("MmBackward0", 150, 160, 1, MAIN)

    times = in_us(profile_of(trace).phases["ms"])
    expected = {"forward": forward, "loss": loss, "backward": 5, "other": 95 - forward - loss}
    assert times == pytest.approx(dict.fromkeys(times, 0) | expected)


SPANS = st.sampled_from(
    [
        ("nn.Module: Net_0", "python_function"),
        ("nn.Module: Linear_1", "python_function"),
        ("nn.Module: MSELoss_0", "python_function"),
        ("Optimizer.step#SGD.step", ANNOTATION),
        ("enumerate(DataLoader)#_It.__next__", ANNOTATION),
        ("[pl][profile]training_step", ANNOTATION),
        (NODE + "MmBackward0", "cpu_op"),
        ("aten::mm", "cpu_op"),
    ]
)


@st.composite
def crossed(draw: st.DrawFn) -> Written:
    """Call stacks on two threads and marks of steps, with or without gaps between them, anywhere in these."""
    trace = Written()
    cuts = sorted(draw(st.sets(st.integers(0, 400), min_size=2, max_size=8)))
    apart = draw(st.booleans())
    for number, (begin, end) in enumerate(pairwise(cuts)):
        trace.step(number, begin, end - (apart and end - begin > 2))

    def fill(tid: int, begin: int, end: int, depth: int) -> None:
        at = begin
        for _ in range(draw(st.integers(0, 3))):
            if at >= end:
                return
            first = draw(st.integers(at, end - 1))
            last = draw(st.integers(first + 1, end))
            name, category = draw(SPANS)
            number = draw(st.integers(1, 4))
            args = {"Sequence number": number, "Fwd thread id": int(name.startswith(NODE))}
            trace.event(name, first, last, category, tid, **(args if category == "cpu_op" else {}))
            if depth < 4:
                fill(tid, first, last, depth + 1)
            at = last

    fill(MAIN, 0, 400, 0)
    if draw(st.booleans()):
        fill(BACKWARD, 0, 400, 2)
    return trace


def phases_add_up(trace: Written) -> None:
    profile = profile_of(trace)

    assert step_sums_ms(profile) == pytest.approx(profile.steps["wall_ms"].tolist(), abs=1e-9)
    assert profile.phases["ms"].sum() == pytest.approx(profile.steps["wall_ms"].mean())
    assert (profile._analysis.attribution.cells["ns"] >= 0).all()
    shares = profile.phases["share"].to_numpy(dtype=float)
    assert np.nansum(shares) == pytest.approx(1.0)
    assert profile.steps["data_ms"].le(profile.steps["wall_ms"] + 1e-9).all()


test_phases_add_up_to_the_step_wherever_its_marks_fall = holds_of(crossed(), some=15, many=3000)(phases_add_up)
