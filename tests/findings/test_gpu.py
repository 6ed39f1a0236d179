"""Idle time of a GPU laid to its causes, on recordings made by hand where each microsecond has its cause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.attribution import attribute
from perfnb.findings.gpu_facts import Copies, GpuFacts, gpu_facts
from perfnb.findings.rules.optimizer import optimizer_loop
from perfnb.profile.profile import Profile
from perfnb.profile.summary import summarize
from tests.findings.findings_recordings import facts
from tests.recordings import ByHand

STEPS = 3


def facts_of(hand: ByHand) -> GpuFacts:
    recording = hand.recording()
    found = gpu_facts(recording, attribute(recording))
    assert found is not None
    return found


def verdict(hand: ByHand) -> str:
    found = Profile(hand.recording())._summary.findings
    assert found is not None
    return found.verdict.verdict


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


@pytest.mark.parametrize(
    ("kernel", "advice"),
    [("ampere_sgemm_128x64", "lower precision ("), ("ampere_bf16_s16816gemm", "kernels tuned to these sizes")],
)
def test_lower_precision_is_for_products_in_float32_and_other_kernels_for_the_rest(kernel: str, advice: str) -> None:
    hand = ByHand()
    for t in range(0, 20_000 * STEPS, 20_000):
        hand.step(t, t + 1_000)
        hand.kernel(kernel, t + 5, t + 10, t + 990)
    found = Profile(hand.recording())._summary.findings
    assert found is not None
    [said] = [text for text in found.table["advice"] if "less or faster arithmetic" in text]
    others = {"lower precision (", "kernels tuned to these sizes"} - {advice}

    assert advice in said
    assert not any(other in said for other in others)


@pytest.mark.parametrize(
    ("hand", "causes"),
    [
        (two_kernels(500), {"launches": 0.5 + 0.01 + 0.1}),
        (two_kernels(5000), {"host": 5.0, "launches": 0.01 + 0.1}),
        (two_kernels(5000, launched_at=50), {"other": 5.0, "launches": 0.01 + 0.1}),
        (
            two_kernels(5000, stream_wait=True, launched_at=50),
            {"awaited": 5.0, "launches": 0.01 + 0.1},
        ),
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


def test_many_short_gaps_are_launches_however_much_of_the_step_they_are() -> None:
    hand = ByHand()
    for t in range(0, 20_000 * STEPS, 20_000):
        hand.step(t, t + 5000)
        for place in range(50):
            hand.kernel("tiny", t + 100 * place + 80, t + 100 * place + 90, t + 100 * place + 95)

    table = Profile(hand.recording()).findings.set_index("bottleneck")

    assert table.index[0] == "launch overhead"
    assert "host work" not in table.index
    # 95 µs before the first, between and after the last: 5 µs of each 100 are work.
    assert table["bound_ms"].iloc[0] == pytest.approx(4.75, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "said"),
    [
        ("cuda_runtime", "cudaGetDevice", "4.00 ms in calls to the GPU's runtime (most in cudaGetDevice)"),
        ("cpu_op", "aten::slow", "4.00 ms in ops (most in aten::slow)"),
        ("python_function", "train.py(7): collate", "4.00 ms in Python functions (most in train.py(7): collate)"),
    ],
)
def test_host_work_says_where_the_host_was_seen(place: str, name: str, said: str) -> None:
    hand = two_kernels(5000)
    for number in range(STEPS):
        hand.event("around", 20_000 * number, 20_000 * number + 5300, "user_annotation")
        hand.event(name, 20_000 * number + 500, 20_000 * number + 4500, place)

    work = Profile(hand.recording()).findings.set_index("bottleneck").loc["host work"]

    assert said in work["evidence"]
    assert "for 0.999 ms, the trace does not show its work" in work["evidence"]
    assert work["confidence"] == "high"


def test_host_work_of_which_nothing_is_on_record_is_less_sure_and_asks_for_stacks() -> None:
    work = Profile(two_kernels(5000).recording()).findings.set_index("bottleneck").loc["host work"]

    assert "The trace does not show its work." in work["evidence"]
    assert work["confidence"] == "medium"
    assert "stacks=True" in work["advice"]


def test_stacks_are_not_asked_for_where_they_are_on_record() -> None:
    hand = two_kernels(5000)
    for number in range(STEPS):
        hand.event("a.py(1): f", 20_000 * number + 500, 20_000 * number + 600, "python_function")

    work = Profile(hand.recording()).findings.set_index("bottleneck").loc["host work"]

    assert "stacks=True" not in work["advice"]
    assert "none of the recorded ops, calls and functions" in work["advice"]


def test_what_other_threads_do_is_no_host_work() -> None:
    hand = two_kernels(5000)
    for number in range(STEPS):
        hand.event("monitor.py(1): run", 20_000 * number, 20_000 * number + 5300, "python_function", thread=9)

    assert facts_of(hand).doing.seen < 0.01  # the launching calls


@pytest.mark.parametrize("stream_wait", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_gpu_that_idles_for_no_reason_on_record_is_said_to(stream_wait: bool) -> None:
    hand = two_kernels(5000, stream_wait, launched_at=50)

    found = Profile(hand.recording()).findings.iloc[0]

    assert (found["bottleneck"], found["confidence"]) == ("unexplained idle time", "low")
    assert found["bound_ms"] == pytest.approx(5)
    assert ("waited for an event" in found["evidence"]) == stream_wait
    assert (
        verdict(hand) == "The GPU is idle for 94 % of the step (5.00 ms of 5.31 ms), and the trace does not show why."
    )


def test_a_cause_that_is_known_comes_before_one_that_is_not_unless_most_of_the_step_is() -> None:
    hand = two_kernels(900, launched_at=50)
    for number in range(STEPS):
        t = 20_000 * number
        hand.kernel("ncclDevKernel_AllReduce", t + 60, t + 1110, t + 1910)
        next(row for row in hand.rows if row["name"] == f"pf_step#{number}")["duration_ns"] = 1_910_000

    found = Profile(hand.recording())._summary.findings

    assert found is not None
    assert list(found.table["bottleneck"][:2]) == ["unexplained idle time", "collectives"]
    assert found.verdict.verdict.startswith("Communication-bound")
    assert found.verdict.why.endswith("ms, and the trace does not show why.")
    assert found.verdict.finding == 1


def test_a_copy_that_may_itself_have_waited_is_told_with_low_confidence() -> None:
    hand = two_kernels(5000, stream_wait=True, launched_at=50)
    for number in range(STEPS):
        hand.event("hipMemcpyWithStream", 20_000 * number + 60, 20_000 * number + 5110, "cuda_runtime")

    found = Profile(hand.recording()).findings.iloc[0]

    assert (found["bottleneck"], found["confidence"]) == ("host-device copies", "low")
    assert found["bound_ms"] == pytest.approx(5)
    assert "its next work had already been launched" in found["evidence"]
    assert "before the trace began" in found["blind"]


def test_a_copy_that_runs_keeps_the_gpu_busy_however_unsure_its_wait_is() -> None:
    # Copies run for 5 ms with nothing computing; for 10 us around them nobody knows what the GPU waited for.
    hand = two_kernels(5000, stream_wait=True, launched_at=50)
    for number in range(STEPS):
        hand.event("hipMemcpyWithStream", 20_000 * number + 60, 20_000 * number + 5110, "cuda_runtime")
        hand.event(
            "Memcpy HtoD (Pinned -> Device)", 20_000 * number + 110, 20_000 * number + 5100, "gpu_memcpy", stream=8
        )

    profile = Profile(hand.recording())

    found = profile.findings.iloc[0]
    assert (found["bottleneck"], found["confidence"]) == ("host-device copies", "medium")
    assert profile._summary.findings.verdict.verdict.startswith("Bound by copies between host and device: removing")


def test_a_host_that_only_waits_for_work_already_launched_holds_nothing_up() -> None:
    hand = two_kernels(5000, stream_wait=True, launched_at=50)
    for number in range(STEPS):
        hand.event("cudaStreamSynchronize", 20_000 * number + 60, 20_000 * number + 5110, "cuda_runtime")

    assert "synchronisation" not in set(Profile(hand.recording()).findings["bottleneck"])


def test_a_step_is_no_longer_than_the_host_s_for_work_that_comes_much_later() -> None:
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

    found = list(optimizer_loop(facts(hand.recording())))

    assert bool(found) == noted
    if noted:
        # 6 of each 79 µs are the GPU's.
        assert found[0].bound_ms == pytest.approx(4.0 - 50 * 0.006, abs=0.1)
        assert "The GPU was idle for 3.7" in found[0].evidence


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


def test_a_mostly_idle_gpu_is_never_said_to_bind_the_step() -> None:
    hand = ByHand()
    for t in range(0, 20_000 * STEPS, 20_000):
        hand.step(t, t + 510)
        for place in range(50):  # launched long before they begin, with 9 µs from one to the next
            hand.kernel("tiny", t + 2 * place, t + 5 + 10 * place, t + 6 + 10 * place)

    assert verdict(hand) == (
        "Nothing stands out. The step is bound by gaps between kernels that were launched in time."
    )


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

    overhead = summarize(replace(recording, steps=traced)).findings.table.iloc[0]

    assert (overhead["bottleneck"], overhead["confidence"]) == ("launch overhead", confidence)
    assert ("The trace contains only one step" in overhead["why"]) == (steps == 1)
