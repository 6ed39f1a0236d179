"""Idle time of a GPU laid to its causes, on recordings made by hand where each microsecond has its cause."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.attribution import attribute
from perfnb.attribution.blocks import Kind
from perfnb.findings import gpu_facts as of_gpu
from perfnb.findings.gpu_facts import Copies, GpuFacts, gpu_facts
from perfnb.findings.rules.optimizer import optimizer_loop
from perfnb.gpu.device_time import LAUNCH_NS
from perfnb.recording.nesting import NONE
from tests.findings.findings_recordings import facts, found
from tests.recordings import ByHand

STEPS = 3


def facts_of(hand: ByHand) -> GpuFacts:
    recording = hand.recording()
    gpu = gpu_facts(recording, attribute(recording))
    assert gpu is not None
    return gpu


def two_kernels(between: float, stream_wait: bool = False, launched_at: float | None = None) -> ByHand:
    """Return steps with a kernel of 100 µs at their begin, and one after so many microseconds."""
    hand = ByHand()
    for t in range(0, 20_000 * STEPS, 20_000):
        end = t + 110 + between
        hand.step(t, end + 200)
        hand.kernel("gemm_a", t + 5, t + 10, t + 110)
        if stream_wait:
            hand.event("cudaStreamWaitEvent", t + 20, t + 21, "cuda_runtime")
        hand.kernel("gemm_b", end - 10 if launched_at is None else t + launched_at, end, end + 100)
    return hand


def without_launches(hand: ByHand) -> ByHand:
    hand.rows = [row for row in hand.rows if row["name"] != "cudaLaunchKernel"]
    return hand


def test_a_call_that_launches_many_kernels_counts_once_in_the_duration_of_a_launch() -> None:
    hand = ByHand()
    for number in range(STEPS):
        t = 20_000 * number
        hand.step(t, t + 2_000)
        for launch in (10, 20):
            hand.kernel("gemm", t + launch, t + launch + 5, t + launch + 8)
        hand.event("cudaGraphLaunch", t + 100, t + 300, "cuda_runtime", correlation=100 + number)
        for begin in (400, 500, 600, 700):
            row = {"thread": -1, "device": 0, "stream": 7, "correlation": 100 + number}
            hand.event("gemm", t + begin, t + begin + 50, "kernel", **row)
    assert facts_of(hand).call_us == 1


def test_figures_of_a_gpu_are_those_of_its_work_per_step() -> None:
    hand = ByHand()
    for number in range(2):
        t = 10_000 * number
        hand.step(t, t + 1000)
        hand.op("aten::mm", t + 4, t + 8).kernel("gemm", t + 5, t + 10, t + 110)
        hand.op("aten::add", t + 198, t + 206).kernel("add", t + 200, t + 210, t + 210.5)
        hand.op("aten::mul", t + 350, t + 420).kernel("mul", t + 400, t + 410, t + 413)
        hand.event("cudaGraphLaunch", t + 500, t + 507, "cuda_runtime", correlation=9000 + number)
        # 10 µs are a switch between kernels, and 11 are not; a launch that many kernels share counts once.
        for begin, took in ((520, 6), (536, 5), (552, 6), *((558 + place, 1) for place in range(6))):
            row = {"thread": -1, "device": 0, "stream": 7, "correlation": 9000 + number}
            hand.event("in a graph", t + begin, t + begin + took, "kernel", **row)
        hand.kernel("Memset (Device)", t + 600, t + 605, t + 607, category="gpu_memset")
        hand.kernel("ncclDevKernel_AllReduce", t + 700, t + 710, t + 740)
        hand.kernel("gemm", t + 715, t + 720, t + 730)
        hand.rows[-1]["stream"] = 8
        hand.kernel("Memcpy HtoD (Pinned -> Device)", t + 716, t + 725, t + 765, category="gpu_memcpy")
        hand.rows[-1]["stream"] = 9
        for place, call in enumerate(("cudaFree", "hipMemcpyWithStream", "cudaDeviceSynchronize", "cudaMalloc")):
            kind = "cpu_op" if call == "cudaMalloc" else "cuda_runtime"
            hand.event(call, t + 800 + 20 * place, t + 810 + 21 * place, kind)

    gpu = facts_of(hand)

    busy_ms = (100 + 0.5 + 3 + 23 + 2 + 55) / 1000
    assert (gpu.span_ms, gpu.busy_ms, gpu.idle_ms) == pytest.approx((1.0, busy_ms, 1.0 - busy_ms))
    assert (gpu.communication_ms, gpu.exposed_ms, gpu.copies_ms) == pytest.approx((0.03, 0.02, 0.025))
    assert {cause: ms for cause, ms in gpu.idle_by.items() if ms} == pytest.approx(
        {"launches": 0.7745, "dependency": 0.01, "awaited": 0.011, "allocator": 0.01, "copies": 0.011}
    )
    assert (gpu.kernels, gpu.short_share, gpu.graph_share) == (16.0, 1 / 14, 9 / 16)  # one of 14 kernels took 0.5 µs
    assert (gpu.call_us, gpu.kernel_us) == (1.0, 2.5)
    spent = {cause: (round(ms, 6), calls) for cause, (ms, calls) in gpu.calls_ms.items()}
    assert spent == {"allocator": (0.01, 2), "copies": (0.011, 2), "synchronisation": (0.012, 2)}
    assert gpu.late_ops == ["aten::mm", "aten::mul", "aten::add"]
    assert gpu.kernel_names.tolist() == ["gemm", "ncclDevKernel_AllReduce", "in a graph", "mul", "add"]


@pytest.mark.parametrize(
    ("hand", "causes"),
    [
        (two_kernels(500), {"launches": 0.5 + 0.01 + 0.1}),
        (two_kernels(5000), {"host": 5.0, "launches": 0.01 + 0.1}),
        (two_kernels(5000, launched_at=50), {"other": 5.0, "launches": 0.01 + 0.1}),
        (two_kernels(5000, stream_wait=True, launched_at=50), {"awaited": 5.0, "launches": 0.01 + 0.1}),
        (without_launches(two_kernels(5000)), {"unknown": 5.0 + 0.01 + 0.1}),
    ],
)
def test_idle_time_has_one_cause_and_adds_up_with_the_work_to_the_step(hand: ByHand, causes: dict[str, float]) -> None:
    # The step's first 10 µs and its last 100 are idle time too.
    gpu = facts_of(hand)

    known = {cause: ms for cause, ms in gpu.idle_by.items() if ms}
    assert known == pytest.approx(causes, abs=1e-3)
    step_ms = (hand.rows[0]["duration_ns"]) / 1e6
    assert gpu.busy_ms + sum(known.values()) == pytest.approx(step_ms)
    assert gpu.span_ms == pytest.approx(step_ms)


@pytest.mark.parametrize(
    ("call", "begin", "idle_by"),
    [
        ("cudaFree", 200, {"allocator": 1.5, "launches": 0.3}),
        ("hipMemcpyWithStream", 200, {"copies": 1.5, "launches": 0.3}),
        ("cudaStreamSynchronize", 50, {"synchronisation": 1.7, "launches": 0.1}),  # all of the gap that it led to
        ("cudaGetDevice", 200, {"host": 1.7, "launches": 0.1}),  # no launch takes so long
    ],
)
def test_idle_time_is_attributed_to_what_the_host_did_meanwhile(
    call: str, begin: float, idle_by: dict[str, float]
) -> None:
    hand = ByHand()
    for number in range(STEPS):
        t = 10_000 * number
        hand.step(t, t + 2000)
        hand.kernel("gemm_a", t + 5, t + 10, t + 110)
        hand.event(call, t + begin, t + 1700, "cuda_runtime", correlation=100_000 + number)
        hand.kernel("gemm_b", t + 1800, t + 1810, t + 1910)

    assert {cause: ms for cause, ms in facts_of(hand).idle_by.items() if ms} == pytest.approx(idle_by, abs=0.011)


@pytest.mark.parametrize(
    ("call", "called", "second", "begin", "end"),
    [
        (NONE, 0, 60, 20, 80),  # its launch is not in the trace
        (0, 20 - LAUNCH_NS // 1000, 60, 1, 80),
        (0, 19 - LAUNCH_NS // 1000, 60, 20, 80),  # it waited in a queue
        (0, 10, 65, 1, 80),  # the GPU works for half of the time after the host's step
        (0, 10, 66, 1, 50),
    ],
)
def test_without_marks_a_step_is_that_of_the_host_and_what_is_left_of_its_work(
    call: int, called: int, second: int, begin: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's step takes from 1 to 50 µs; two kernels run from 20 to 30, and from `second` to 80."""
    start, ends = 1000 * np.array([20, second]), 1000 * np.array([30, 80])
    work: Any = SimpleNamespace(start=start, end=ends, call=np.array([call, call]))
    blocks = pd.DataFrame({"kind": [Kind.STEP, Kind.ENGINE], "start": [1000, 0], "end": [50_000, 99_000]})
    monkeypatch.setattr(of_gpu, "step_windows", lambda events: pd.DataFrame())
    monkeypatch.setattr(of_gpu, "_spans", lambda events: (None, np.array([1000 * called])))
    attribution: Any = SimpleNamespace(host=SimpleNamespace(blocks=blocks))

    steps = of_gpu._steps(pd.DataFrame(), work, np.ones(2, dtype=bool), attribution)

    assert (steps.start.tolist(), steps.end.tolist()) == ([1000 * begin], [1000 * end])


def test_many_short_gaps_are_launch_overhead_even_if_they_are_most_of_the_step() -> None:
    hand = ByHand()
    for t in range(0, 20_000 * STEPS, 20_000):
        hand.step(t, t + 5000)
        for place in range(50):
            hand.kernel("tiny", t + 100 * place + 80, t + 100 * place + 90, t + 100 * place + 95)

    table = found(hand.recording(), "launch overhead", "host work")

    assert list(table.index) == ["launch overhead"]
    # 95 µs before the first, between and after the last: 5 µs of each 100 are work.
    assert table["bound_ms"].iloc[0] == pytest.approx(4.75, abs=0.01)


@pytest.mark.parametrize(
    ("place", "name", "where"),
    [
        ("cuda_runtime", "cudaGetDevice", "calls"),
        ("cpu_op", "aten::slow", "ops"),
        ("python_function", "train.py(7): collate", "functions"),
    ],
)
def test_host_work_is_what_the_host_was_seen_at(place: str, name: str, where: str) -> None:
    hand = two_kernels(5000)
    for number in range(STEPS):
        hand.event("around", 20_000 * number, 20_000 * number + 5300, "user_annotation")
        hand.event(name, 20_000 * number + 500, 20_000 * number + 4500, place)

    doing = facts_of(hand).doing

    assert doing.shares == pytest.approx({"calls": 0.0, "ops": 0.0, "functions": 0.0} | {where: 0.8}, abs=1e-3)
    assert doing.longest[where] == name


def test_the_work_of_other_threads_is_not_host_work() -> None:
    hand = two_kernels(5000)
    for number in range(STEPS):
        hand.event("monitor.py(1): run", 20_000 * number, 20_000 * number + 5300, "python_function", thread=9)

    assert facts_of(hand).doing.seen < 0.01  # the launching calls


@pytest.mark.parametrize("stream_wait", [False, True])
def test_idle_time_without_a_recorded_reason_is_reported_as_unexplained(stream_wait: bool) -> None:
    hand = two_kernels(5000, stream_wait, launched_at=50)

    (idle,) = found(hand.recording(), "unexplained idle time").to_dict("records")

    assert idle["confidence"] == "low"
    assert idle["bound_ms"] == pytest.approx(5)
    assert ("waited for an event" in idle["evidence"]) == stream_wait


def test_a_copy_that_may_itself_have_waited_has_low_confidence() -> None:
    hand = two_kernels(5000, stream_wait=True, launched_at=50)
    for number in range(STEPS):
        hand.event("hipMemcpyWithStream", 20_000 * number + 60, 20_000 * number + 5110, "cuda_runtime")

    (copies,) = found(hand.recording(), "host-device copies").to_dict("records")

    assert copies["confidence"] == "low"
    assert copies["bound_ms"] == pytest.approx(5)
    assert "its next work had already been launched" in copies["evidence"]
    assert "before the trace began" in copies["blind"]


def test_a_copy_that_runs_keeps_the_gpu_busy_however_unsure_its_wait_is() -> None:
    # Copies run for 5 ms with nothing computing; for 10 us around them nobody knows what the GPU waited for.
    hand = two_kernels(5000, stream_wait=True, launched_at=50)
    for number in range(STEPS):
        hand.event("hipMemcpyWithStream", 20_000 * number + 60, 20_000 * number + 5110, "cuda_runtime")
        hand.event(
            "Memcpy HtoD (Pinned -> Device)", 20_000 * number + 110, 20_000 * number + 5100, "gpu_memcpy", stream=8
        )

    (copies,) = found(hand.recording(), "host-device copies").to_dict("records")

    assert copies["confidence"] == "medium"
    assert not facts_of(hand).is_unsure("copies")


def test_a_host_that_only_waits_for_work_already_launched_holds_nothing_up() -> None:
    hand = two_kernels(5000, stream_wait=True, launched_at=50)
    for number in range(STEPS):
        hand.event("cudaStreamSynchronize", 20_000 * number + 60, 20_000 * number + 5110, "cuda_runtime")

    assert found(hand.recording(), "synchronisation").empty


def test_a_step_does_not_extend_to_work_that_comes_much_later() -> None:
    late, busy = two_kernels(500), two_kernels(500)
    late.kernel("late", 40_700, 50_000, 50_010)  # launched in the last step, and waits for 9 ms
    busy.kernel("long", 40_700, 40_810, 50_010)

    assert facts_of(late).span_ms == pytest.approx(0.81, abs=0.01)
    assert facts_of(busy).span_ms == pytest.approx((3 * 0.81 + 9.2) / 3, abs=0.01)


@pytest.mark.parametrize(("busy", "noted"), [(False, True), (True, False)])
def test_a_loop_over_parameters_costs_nothing_while_the_gpu_works(busy: bool, noted: bool) -> None:
    hand = ByHand()
    for t in range(0, 20_000 * STEPS, 20_000):
        hand.step(t, t + 5000)
        hand.event("Optimizer.step#SGD.step", t + 1000, t + 5000, "user_annotation")
        hand.kernel("gemm", t + 1, t + 10, t + (5000 if busy else 1000))
        for place in range(50):
            begin = t + 1001 + 79 * place
            hand.op("aten::add_", begin, begin + 70)
            if not busy:
                hand.kernel("add", begin + 60, begin + 64, begin + 70)

    loops = list(optimizer_loop(facts(hand.recording())))

    assert bool(loops) == noted
    if noted:
        # 6 of each 79 µs are the GPU's.
        assert loops[0].bound_ms == pytest.approx(4.0 - 50 * 0.006, abs=0.1)
        assert "The GPU was idle for 3.7" in loops[0].evidence


def test_idle_time_of_a_traced_step_shrinks_to_that_of_a_timed_one() -> None:
    gpu = facts_of(two_kernels(5000))

    timed = gpu.in_step_of(1.2)  # 0.2 ms of work

    assert timed.idle_ms == pytest.approx(1.0)
    assert timed.span_ms == pytest.approx(1.2)
    assert sum(timed.idle_by.values()) == pytest.approx(1.0)
    assert timed.idle_by["host"] / gpu.idle_by["host"] == pytest.approx(timed.idle_ms / gpu.idle_ms)
    assert gpu.in_step_of(100.0) is gpu


def test_work_of_a_traced_step_that_is_longer_than_a_timed_one_shrinks_to_it() -> None:
    hand = two_kernels(1000)  # 0.2 ms of work in 1.31
    for t in range(0, 20_000 * STEPS, 20_000):
        hand.kernel("ncclDevKernel_AllReduce", t + 150, t + 160, t + 260)
        hand.kernel("Memcpy HtoD (Pinned -> Device)", t + 350, t + 360, t + 380, category="gpu_memcpy")
    gpu = facts_of(hand)
    assert (gpu.busy_ms, gpu.communication_ms, gpu.copies_ms) == pytest.approx((0.32, 0.1, 0.02))

    timed = gpu.in_step_of(0.08)

    assert (timed.busy_ms, timed.communication_ms, timed.exposed_ms, timed.copies_ms) == pytest.approx(
        (0.08, 0.025, 0.025, 0.005)
    )
    assert timed.ran_ms(np.ones(len(timed.runs.row), dtype=bool)) == pytest.approx(0.08)
    assert (timed.span_ms, timed.idle_ms, sum(timed.idle_by.values()), timed.per_step) == pytest.approx((0.08, 0, 0, 0))


def test_idle_time_of_a_late_host_is_that_inside_the_blocks() -> None:
    gpu = facts_of(two_kernels(5000))
    spans = [(t + begin, t + end) for t in (0, 20_000) for begin, end in ((1000, 1500), (1400, 2000), (90, 105))]

    # 1 ms of two of the three steps, and nothing while the first kernel runs.
    assert gpu.late_ms(1000 * pd.DataFrame(spans, columns=["start", "end"])) == pytest.approx(2 / 3)
    assert gpu.in_step_of(1.2).late_ms(1000 * pd.DataFrame(spans, columns=["start", "end"])) < 2 / 3


def test_copies_have_their_direction_size_memory_and_host_time() -> None:
    kinds = (
        ("HtoD (Pageable -> Device)", 8, 90),
        ("HtoD (Pinned -> Device)", 10, 40),
        ("DtoH (Device -> Pinned)", 4, 7),
    )
    hand = ByHand()
    for t in range(0, 20_000 * STEPS, 20_000):
        hand.step(t, t + 2000).kernel("gemm", t + 5, t + 10, t + 110)
        for place, (kind, size, took) in enumerate(kinds):
            begin = t + 200 + 100 * place
            told = {"correlation": 90_000 + begin}
            hand.event("cudaMemcpyAsync", begin, begin + took, "cuda_runtime", **told)
            told |= {"thread": -1, "device": 0, "stream": 7, "bytes": size}
            hand.event(f"Memcpy {kind}", begin + 5, begin + 75, "gpu_memcpy", **told)
    for row in hand.rows:
        row.setdefault("bytes", -1)

    gpu = facts_of(hand)

    assert replace(gpu.to_device, call_ms=0.0) == Copies(2 * STEPS, STEPS, STEPS, 9.0, 0.0)
    assert replace(gpu.to_host, call_ms=0.0) == Copies(STEPS, 0, STEPS, 4.0, 0.0)
    assert (gpu.to_device.call_ms, gpu.to_host.call_ms) == pytest.approx((0.13, 0.007))
    for row in hand.rows:
        row["bytes"] = -1
    assert facts_of(hand).to_host.each_bytes is None


@pytest.mark.parametrize(("steps", "confidence"), [(1, "medium"), (3, "high")])
def test_a_trace_of_one_step_gives_no_high_confidence(steps: int, confidence: str) -> None:
    hand = ByHand()
    for number in range(steps):
        t = 20_000 * number
        hand.step(t, t + 5000)
        for place in range(50):
            hand.kernel("tiny", t + 100 * place + 80, t + 100 * place + 90, t + 100 * place + 95)
    recording = hand.recording()
    traced = recording.steps[recording.steps["pass"] == "traced"].reset_index(drop=True)

    (overhead,) = found(replace(recording, steps=traced), "launch overhead").to_dict("records")

    assert overhead["confidence"] == confidence
    assert ("The trace contains only one step" in overhead["why"]) == (steps == 1)
