"""No share is above 100 %: neither a bound's nor one that the evidence names, whatever the recording holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import strategies as st

from perfnb.errors import TraceError
from perfnb.profile.profile import Profile
from perfnb.recording.recording import Recording
from tests.findings.findings_recordings import facts, found, live_cpu, loaded, obeys_the_laws, one_layer
from tests.findings.test_findings import timed
from tests.findings.test_host import with_pause
from tests.laws import holds_of
from tests.recordings import ByHand
from tests.written_traces import Written


@pytest.mark.parametrize("after", ["step", "read"])
def test_python_that_tracing_slowed_too_is_no_more_than_the_step(after: str) -> None:
    # Of a traced step of 4 ms 2 lie between ops; a timed one took but 0.1, as where Python's calls were recorded.
    recording = timed(with_pause(after).recording(), [0.1] * 20)
    slowed = timed(with_pause(after).recording(), [2.2] * 20)

    obeys_the_laws(recording)
    # Where it fits into a timed step it is not slowed: 2 ms stay 2 ms.
    name = {"step": "host code", "read": "synchronisation"}[after]
    assert found(slowed).loc[name, "bound_ms"] == pytest.approx(2.0, rel=0.1)
    if after == "read":
        assert found(timed(with_pause(after).recording(), [1.0] * 20)).loc[name, "bound_share"] < 0.6


def test_a_pause_within_the_wait_for_a_batch_is_a_part_of_it() -> None:
    pauses = {"gc_pauses": [[n, 5.0] for n in range(9)]}
    recording = timed(with_pause("step").recording(), [10.0] * 9, [9.9] * 9, noise=pauses)

    obeys_the_laws(recording)

    assert facts(recording).step_ms == pytest.approx(10.0)
    assert facts(recording).per_step(1e6) > 0


def test_medians_of_parts_are_no_more_than_the_whole(tmp_path: Path) -> None:
    # In each of three steps another of three ops is short: the medians add up to half as much again as the steps.
    trace = Written()
    for number in range(3):
        t = 10_000.0 * number
        trace.step(number, t, t + 2010)
        begin = t + 5
        for place in range(3):
            end = begin + (2 if place == number else 999)
            trace.op("aten::item", begin, end)
            begin = end + 1

    obeys_the_laws(loaded(tmp_path, trace))


@pytest.mark.parametrize("scale", [0.01, 40.0])
def test_a_step_with_everything_wrong_obeys_whatever_slowed_it(scale: float) -> None:
    recording = live_cpu()
    is_timed = (recording.steps["pass"] == "timed").to_numpy()
    wall = recording.steps["wall_ms"].where(~is_timed, recording.steps["wall_ms"] * scale)
    waits = recording.steps["data_ms"].where(~is_timed, recording.steps["data_ms"] * scale)

    assert obeys_the_laws(replace(recording, steps=recording.steps.assign(wall_ms=wall, data_ms=waits)))


KINDS = ["op", "read", "layer", "optimizer", "data", "node", "other", "kernel", "copy"]


@st.composite
def recordings(draw: Any) -> Recording:
    """Return steps of nested layers, ops, reads, backward nodes, optimizers and kernels at random times, timed at
    random.
    """
    hand, model = one_layer("net")
    hand.layer("net.a", model)
    length = draw(st.integers(50, 3000))
    with_gpu = draw(st.booleans())
    for number in range(draw(st.integers(1, 4))):
        t = 10_000 * number
        hand.step(t, t + length)
        place = t
        for turn in range(draw(st.integers(0, 25))):
            begin = place + draw(st.integers(0, 60))
            end = min(begin + draw(st.integers(1, 400)), t + length)
            if begin >= end:
                break
            kind = draw(
                st.sampled_from(["op", "read", "layer", "optimizer", "data", "node", "other", "kernel", "copy"])
            )
            if kind == "op":
                hand.op(draw(st.sampled_from(["aten::mul", "aten::add", "aten::mm"])), begin, end, 100 * number + turn)
            elif kind == "read":
                hand.op("aten::item", begin, end)
            elif kind == "layer":
                hand.call(draw(st.integers(0, 1)), begin, end).op("aten::mm", begin, (begin + end) // 2)
            elif kind == "optimizer":
                hand.event("Optimizer.step#SGD.step", begin, end, "user_annotation").op("aten::add_", begin, end)
            elif kind == "data":
                hand.event("pf_data", begin, end)
            elif kind == "node":
                hand.node("MulBackward0", begin, max(end, begin + 3), 100 * number + turn - 1, draw(st.integers(1, 2)))
            elif kind == "other":
                hand.op("aten::mm", begin, end, thread=9)
            elif with_gpu:
                name = "Memcpy DtoH (Device -> Pageable)" if kind == "copy" else "volta_sgemm"
                late = draw(st.integers(0, 500))
                category = "gpu_memcpy" if kind == "copy" else "kernel"
                hand.kernel(name, begin, begin + late, end + late, category=category)
                hand.rows[-1]["stream"] = draw(st.integers(1, 3))
            place = begin if kind == "kernel" else max(end, begin + 3)
    count = draw(st.integers(1, 12))
    times = st.floats(0.001, 30)
    wall = draw(st.lists(times, min_size=count, max_size=count))
    waits = [draw(st.floats(0, 1)) * ms for ms in wall]
    pauses = [[n, draw(times)] for n in range(count) if draw(st.booleans())]
    cost = {"op_ns": draw(st.floats(0, 20_000)), "call_ns": draw(st.floats(0, 20_000))}
    meta = {"noise": {"gc_pauses": pauses}, "cost": cost, "stacks": draw(st.booleans())}
    return timed(hand.recording(), wall, waits, **meta)


def of_a_step(recording: Recording) -> None:
    obeys_the_laws(recording)


test_no_share_is_above_the_step = holds_of(recordings(), some=12, many=5000)(of_a_step)

SPANS = st.lists(
    st.tuples(
        st.sampled_from(
            ["aten::mm", "aten::item", "Optimizer.step#SGD.step", "cudaDeviceSynchronize", "sgemm", "copy"]
        ),
        st.integers(0, 900),
        st.integers(1, 600),
        st.integers(1, 3),
    ),
    max_size=14,
)


def of_a_trace(steps: list[list[tuple[str, int, int, int]]]) -> None:
    """Traces of marked steps, whose work overlaps on several streams, and whose ops may lie on other threads."""
    trace = Written()
    for number, spans in enumerate(steps):
        t = 2000.0 * number
        trace.step(number + 1, t, t + 1500)
        for name, begin, length, lane in spans:
            if name in ("sgemm", "copy"):
                trace.kernel(name, t + begin, t + begin + 3, t + begin + 3 + 3 * length, stream=lane)
                if name == "copy":
                    trace.events[-1] |= {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)"}
            elif name.startswith("cuda"):
                trace.event(name, t + begin, t + begin + length, "cuda_runtime")
            else:
                kind = "user_annotation" if name.startswith("Optimizer") else "cpu_op"
                trace.event(name, t + begin, t + begin + length, kind, 100 if lane < 3 else 105)
    with TemporaryDirectory() as folder:
        try:
            recording = loaded(Path(folder), trace)
        except TraceError:
            return
        obeys_the_laws(recording)


test_no_share_of_a_trace_is_above_the_step = holds_of(st.lists(SPANS, min_size=1, max_size=3), some=8, many=3000)(
    of_a_trace
)


def one_step_held_up(where: str) -> ByHand:
    """Return steps of 0.3 ms forward, 0.6 ms backward and 0.1 ms outside; one was held up for 2 ms."""
    hand, model = one_layer()
    for number, more in enumerate((0, 2000, 0)):
        t = 10_000 * number
        forward, rest = (300 + more, 100) if where == "forward" else (300, 100 + more)
        hand.step(t, t + forward + 600 + rest)
        hand.call(model, t, t + forward).op("aten::mm", t + 1, t + forward - 1, 1)
        hand.node("MmBackward0", t + forward, t + forward + 600, 1)
        hand.op("aten::mm", t + forward + 600, t + forward + 600 + rest)
    return hand


@pytest.mark.parametrize(
    ("where", "words"),
    [("forward", "the forward pass"), ("other", "code outside all phases: Python, or ops outside model")],
)
def test_the_verdict_names_the_phase_that_the_report_shows_as_the_longest(where: str, words: str) -> None:
    summary = Profile(timed(one_step_held_up(where).recording(), [1.0] * 20))._summary

    assert summary.findings is not None
    shown = 100 * float(summary.phases["share"][where])
    assert summary.phases["share"].idxmax() == where
    assert f"The step is bound by {words}" in summary.findings.verdict.verdict
    assert f" takes {shown:.0f} % of the step." in summary.findings.verdict.why


def test_the_report_knows_one_ratio_of_traced_to_timed_steps() -> None:
    profile = Profile(timed(one_step_held_up("forward").recording(), [0.3] * 20))
    summary = profile._summary

    assert summary.findings is not None
    assert summary.slowdown is not None
    ratio = f"{summary.slowdown:.3g} times as long as timed ones"
    assert ratio.startswith("5.56")  # by medians it is 3.3
    assert ratio in " ".join(summary.notes)
    assert ratio in summary.findings.verdict.why


@pytest.mark.parametrize(("more", "timed_ms"), [(0, 0.5), (3000, 3.0)])
def test_an_update_saves_no_more_than_its_phase_is_shown_to_take(more: int, timed_ms: float) -> None:
    hand, model = one_layer()
    for number in range(3):
        t, held_up = 10_000 * number, more if number == 1 else 0
        hand.step(t, t + 1000 + held_up)
        hand.call(model, t, t + 500).op("aten::mm", t + 1, t + 499)
        hand.event("Optimizer.step#SGD.step", t + 500, t + 1000 + held_up, "user_annotation")
        for place in range(100):
            late = held_up if place >= 50 else 0
            hand.op("aten::add_", t + 501 + 4.9 * place + late, t + 504 + 4.9 * place + late)
    summary = Profile(timed(hand.recording(bare_cost={"op_ns": 100.0}), [timed_ms] * 20))._summary

    assert summary.findings is not None
    loop = summary.findings.table.set_index("bottleneck").loc["optimizer"]
    phase = summary.phases.loc["optimizer"]
    assert loop["bound_ms"] <= phase["ms"]
    assert loop["bound_share"] <= phase["share"]
    assert f"takes {100 * phase['share']:.0f} % of the step ({phase['ms']:#.3g} ms as traced" in loop["evidence"]
