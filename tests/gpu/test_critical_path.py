"""The critical path of steps made by hand, one for each thing that can hold a step up, and of real traces."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.device_work import device_work, thread_keys
from perfnb.gpu.dependencies import (
    EVENT,
    LAUNCH,
    STREAM,
    UNKNOWN,
    handovers,
    held_up,
    host_timeline,
    host_waits,
    latest,
)
from tests.gpu.paths import critical_path
from tests.traces_by_hand import Trace


def step(trace: Trace, end: float = 100) -> pd.DataFrame:
    return trace.event("ProfilerStep#1", 0, end, "user_annotation").frame()


def in_us(path: pd.DataFrame) -> list[tuple[str, str, int, int]]:
    """Return the kind, name, begin and duration of each segment."""
    names = path["name"].astype("object").where(path["name"].notna(), "")
    columns = (path["kind"], names, path["start_ns"] // 1000, path["duration_ns"] // 1000)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def waiting() -> Trace:
    """Return a host that waits for a kernel: 10 to launch, 5 until it begins, 75 of it, 5 to return."""
    trace = Trace().event("aten::mm", 2, 20).work("gemm", 15, 90, (10, 12))
    return trace.event("cudaDeviceSynchronize", 50, 95, "cuda_runtime")


def test_threads_resume_when_another_of_the_backward_pass_has_finished() -> None:
    trace = Trace().event("a", 10, 30).event("b", 60, 80).event("c", 90, 95)
    trace.event("x", 35, 60, thread=2, forward_thread=1).event("y", 70, 80, thread=2, forward_thread=1)
    trace.event("forward elsewhere", 40, 58, thread=3, forward_thread=0)
    trace.event("MmBackward0", 36, 50, thread=4)  # in an older trace
    trace.event("MmBackward0", 40, 59, "cuda_runtime", thread=5)
    timeline = host_timeline(trace.frame())
    main, backward, older = (int(key) for key in thread_keys(trace.frame())[[0, 3, 6]])

    over = handovers(trace.frame(), timeline, main)

    # The main thread also pauses from 80 to 90, after "y" had already ended.
    rows = zip(over.thread, over.time // 1000, over.other, over.ended // 1000, strict=True)
    assert list(rows) == [(main, 60, backward, 60), (backward, 35, main, 30), (older, 36, main, 30)]


@pytest.mark.parametrize(
    ("begin", "end", "pieces"),
    [
        (5, 70, [(-1, 5, 10), (0, 10, 30), (-1, 30, 60), (1, 60, 70)]),
        (30, 60, [(-1, 30, 60)]),
        (29, 61, [(0, 29, 30), (-1, 30, 60), (1, 60, 61)]),
        (10, 10, [(0, 10, 10)]),
        (90, 99, [(-1, 90, 99)]),
    ],
)
def test_an_interval_is_cut_where_a_thread_turns_to_something_else(
    begin: int, end: int, pieces: list[tuple[int, int, int]]
) -> None:
    timeline = host_timeline(Trace().event("a", 10, 30).event("b", 60, 80).frame())

    owner, start, stop = timeline.cut(0, 1000 * begin, 1000 * end)

    assert list(zip(owner, start // 1000, stop // 1000, strict=True)) == pieces
    elsewhere = timeline.cut(1, 5, 70)
    assert [part.tolist() for part in elsewhere] == [[-1], [5], [70]]


@pytest.mark.parametrize(
    ("group", "until", "before", "at_or_before"),
    [(0, 5, -1, 0), (0, 6, 0, 0), (0, 9, 0, 3), (0, 10, 3, 3), (1, 7, -1, 2), (1, 99, 2, 2), (2, 99, -1, -1)],
)
def test_the_last_member_of_a_group_before_a_time(group: int, until: int, before: int, at_or_before: int) -> None:
    members = np.array([0, 0, 1, 0]), np.array([5, 9, 7, 9])
    asked = np.array([group]), np.array([until])

    assert latest(*members, *asked).tolist() == [before]
    assert latest(*members, *asked, side="right").tolist() == [at_or_before]


def test_a_step_that_waits_for_a_kernel_goes_through_its_launch_and_the_kernel() -> None:
    path = critical_path(step(waiting()), 1)

    assert in_us(path) == [
        ("host", "", 0, 2),
        ("operator", "aten::mm", 2, 8),
        ("launch", "cudaLaunchKernel", 10, 5),
        ("computation", "gemm", 15, 75),
        ("synchronisation", "cudaDeviceSynchronize", 90, 5),
        ("host", "", 95, 5),
    ]
    assert path["op"].tolist()[1:4] == ["aten::mm"] * 3
    assert path["thread"].tolist() == [1, 1, 1, pd.NA, 1, 1]
    assert path["stream"].tolist()[2:4] == [7, 7]


def test_a_step_that_does_not_wait_is_the_hosts_alone_unless_its_tail_counts() -> None:
    trace = step(Trace().event("aten::mm", 2, 20).work("gemm", 15, 190, (10, 12)))

    assert in_us(critical_path(trace, 1)) == [
        ("host", "", 0, 2),
        ("operator", "aten::mm", 2, 8),
        ("call", "cudaLaunchKernel", 10, 2),
        ("operator", "aten::mm", 12, 8),
        ("host", "", 20, 80),
    ]
    assert in_us(critical_path(trace, 1, tail=True)) == [
        ("host", "", 0, 2),
        ("operator", "aten::mm", 2, 8),
        ("launch", "cudaLaunchKernel", 10, 5),
        ("computation", "gemm", 15, 175),
    ]


def test_a_kernel_waits_for_the_one_before_it_on_its_stream() -> None:
    trace = Trace().work("first", 5, 50, (1, 3)).work("second", 52, 90, (4, 6))
    trace.event("cudaStreamSynchronize", 10, 95, "cuda_runtime")

    assert in_us(critical_path(step(trace), 1))[1:] == [
        ("launch", "cudaLaunchKernel", 1, 4),
        ("computation", "first", 5, 45),
        ("delay", "second", 50, 2),
        ("computation", "second", 52, 38),
        ("synchronisation", "cudaStreamSynchronize", 90, 5),
        ("host", "", 95, 5),
    ]


def test_a_kernel_launched_after_the_one_before_it_had_ended_waits_for_its_launch() -> None:
    trace = Trace().work("first", 5, 50, (1, 3)).work("second", 72, 90, (60, 66))
    trace.event("cudaDeviceSynchronize", 70, 95, "cuda_runtime")

    assert ("launch", "cudaLaunchKernel", 60, 12) in in_us(critical_path(step(trace), 1))


def streams(with_event: bool) -> Trace:
    """Return a kernel on stream 9 that waits for one on stream 7, as the trace says or as its times show."""
    trace = Trace().work("a", 5, 60, (1, 3))
    trace.event("cudaEventRecord", 6, 7, "cuda_runtime", correlation=50)
    if with_event:
        trace.event("cudaStreamWaitEvent", 8, 9, "cuda_runtime", correlation=51)
        wait = {"wait_stream": 7, "wait_correlation": 50, "correlation": 51}
        trace.event("Stream Wait Event", 8, 9, "cuda_sync", device=0, stream=9, **wait)
    trace.work("later on 7", 60, 62, (12, 13)).work("b", 63, 90, (14, 16), stream=9)
    return trace.event("cudaDeviceSynchronize", 20, 95, "cuda_runtime")


@pytest.mark.parametrize("with_event", [True, False])
def test_a_kernel_waits_for_an_event_of_another_stream(with_event: bool) -> None:
    path = critical_path(step(streams(with_event)), 1)

    # With the event it is known that "a" was awaited. Without it, only that "later on 7" ended just before.
    before = [("delay", "b", 60, 3)] if with_event else [("computation", "later on 7", 60, 2), ("delay", "b", 62, 1)]
    assert in_us(path)[1:-3] == [
        ("launch", "cudaLaunchKernel", 1, 4),
        ("computation", "a", 5, 55),
        *before,
    ]
    assert path["inferred"].any() != with_event


def test_only_the_first_work_after_the_wait_waits_for_the_event() -> None:
    trace = streams(with_event=True).work("c", 91, 92, (17, 18), stream=9).frame()

    held = held_up(trace, device_work(trace))

    assert held.by.tolist() == [LAUNCH, STREAM, EVENT, STREAM]
    assert held.awaited.tolist() == [-1, -1, 0, -1]


@pytest.mark.parametrize(
    ("ended", "launch", "began", "by", "explained"),
    [
        (50, (40, 49), 52, STREAM, 52),
        (50, (40, 50), 52, LAUNCH, 52),
        (52, (40, 52), 52, LAUNCH, 52),
        (51, (40, 53), 52, STREAM, 52),  # the call returns after the work began
        (50, (60, 62), 92, LAUNCH, 92),
        (50, (60, 62), 92.001, LAUNCH, 62),
        (50, (40, 42), 80, STREAM, 80),
        (50, (40, 42), 80.001, STREAM, 50),
        (50, None, 60, STREAM, 60),
    ],
)
def test_work_waits_for_the_later_of_its_launch_and_the_work_before_it(
    ended: float, launch: tuple[float, float] | None, began: float, by: int, explained: float
) -> None:
    trace = Trace().work("first", 5, ended, (1, 3)).work("second", began, 100, launch).frame()

    held = held_up(trace, device_work(trace))

    assert (held.by.tolist(), held.explained.tolist()) == ([LAUNCH, by], [5_000, round(explained * 1000)])
    assert (held.before.tolist(), held.inferred.any()) == ([-1, 0], False)
    assert held.launch[1] == (round(launch[0] * 1000) if launch else -1)


@pytest.mark.parametrize(
    ("ended", "began", "by"),
    [(25, 30, LAUNCH), (25, 30.001, EVENT), (21, 31, EVENT), (20.999, 31, LAUNCH), (19, 31, LAUNCH), (32, 31, LAUNCH)],
)
def test_other_work_was_awaited_if_it_ended_just_before_and_nothing_else_explains_the_delay(
    ended: float, began: float, by: int
) -> None:
    trace = Trace().work("a", 5, ended, (1, 3)).work("b", began, 90, (18, 20), stream=9).frame()

    held = held_up(trace, device_work(trace))

    assert (held.by[1], held.awaited[1], held.inferred[1]) == (by, 0 if by == EVENT else -1, by == EVENT)
    lost = trace.drop(index=2)  # the launch of b
    assert held_up(lost, device_work(lost)).by.tolist() == [LAUNCH, UNKNOWN]


def test_each_waiting_call_is_paired_with_the_last_work_of_what_it_waits_for() -> None:
    trace = Trace().work("a", 10, 40, (1, 2)).work("b", 20, 60, (3, 4), stream=9)
    trace.work("c", 20, 50, (5, 6), device=1).work("d", 70, 80, (32, 33))
    calls = (
        ("cudaDeviceSynchronize", 32, 55, {"device": 0}),  # b ends within 10 after the call, d is launched with it
        ("cudaStreamSynchronize", 33, 75, {"device": 0, "stream": 9}),
        ("cudaDeviceSynchronize", 7, 49.999, {}),  # b ends too late for the call to have waited for it
        ("cudaDeviceSynchronize", 8, 50, {}),
        ("cudaDeviceSynchronize", 9, 52, {"device": 1}),
        ("cudaEventSynchronize", 34, 60, None),
        ("cudaEventSynchronize", 32, 81, None),  # d was launched when the call began, so nothing is known
    )
    for number, (name, begin, end, synchronised) in enumerate(calls, start=50):
        trace.event(name, begin, end, "cuda_runtime", correlation=number, thread=number)
        if synchronised is not None:
            trace.event("Sync", begin, end, "cuda_sync", correlation=number, **synchronised)
    events = trace.frame()

    waits = host_waits(events, work := device_work(events))

    names = np.append(events["name"].to_numpy(dtype=object)[work.rows], "")
    found = [(int(begin) // 1000, names[last]) for begin, last in zip(waits.start, waits.work, strict=True)]
    assert found == [(32, "b"), (33, "b"), (7, "c"), (8, "b"), (9, "c"), (34, "b"), (32, "")]
    every = [{names[w] for w in waits.awaited[waits.waiting == place]} for place in range(len(calls))]
    assert every == [{"a", "b"}, {"b"}, {"a", "c"}, {"a", "b", "c"}, {"c"}, {"b"}, set()]


def test_calls_that_wait_are_sorted_by_thread_and_time_of_return() -> None:
    trace = Trace().work("copy", 5, 30, (1, 30), "gpu_memcpy", "cudaMemcpy", launch_thread=2)
    trace.work("late", 40, 50, (35, 49.999), "gpu_memcpy", "cudaMemcpy")
    for begin, end in ((60, 90), (61, 80)):
        trace.event("cudaStreamSynchronize", begin, end, "cuda_runtime", thread=2)
    events = trace.event("cudaEventSynchronize", 20, 60, "cuda_runtime", thread=3).frame()

    waits = host_waits(events, device_work(events))

    assert events["thread"].to_numpy()[waits.rows].tolist() == [2, 2, 2, 3]
    assert (waits.end // 1000).tolist() == [30, 80, 90, 60]
    assert waits.work.tolist() == [0, 1, 1, -1]


def test_waiting_for_an_event_waits_for_what_was_launched_before_it_was_recorded() -> None:
    trace = Trace().work("a", 5, 40, (1, 3)).event("cudaEventRecord", 6, 7, "cuda_runtime", correlation=50)
    trace.work("b", 40, 80, (8, 9)).event("cudaEventSynchronize", 10, 45, "cuda_runtime", correlation=51)
    known = {"wait_stream": 7, "wait_correlation": 50, "correlation": 51}
    told = trace.event("Event Sync", 10, 45, "cuda_sync", device=0, **known)

    assert host_waits(told.frame(), device_work(told.frame())).work.tolist() == [0]
    assert ("synchronisation", "cudaEventSynchronize", 40, 5) in in_us(critical_path(step(told), 1))


def test_waiting_for_one_stream_does_not_wait_for_another() -> None:
    trace = Trace().work("a", 5, 40, (1, 3)).work("b", 40, 50, (4, 5), stream=9)
    trace.event("cudaStreamSynchronize", 10, 45, "cuda_runtime", correlation=50)
    trace.event("Stream Sync", 10, 45, "cuda_sync", device=0, stream=7, correlation=50)

    assert in_us(critical_path(step(trace), 1))[-2:] == [
        ("synchronisation", "cudaStreamSynchronize", 40, 5),
        ("host", "", 45, 55),
    ]


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaMemcpy", "hipMemcpyWithStream", "hipMemcpyAsync"])
def test_a_copy_that_had_ended_when_its_call_returned_was_waited_for(call: str) -> None:
    trace = Trace().work("gemm", 5, 40, (1, 3)).work("copy", 41, 50, (10, 54), "gpu_memcpy", call)
    trace.work("later", 60, 90, (58, 59), "gpu_memcpy", call)

    assert in_us(critical_path(step(trace), 1))[1:] == [
        ("launch", "cudaLaunchKernel", 1, 4),
        ("computation", "gemm", 5, 35),
        ("delay", "copy", 40, 1),
        ("memcpy", "copy", 41, 9),
        ("synchronisation", call, 50, 4),
        ("host", "", 54, 4),
        ("call", call, 58, 1),
        ("host", "", 59, 41),
    ]


def test_a_wait_for_what_had_ended_already_is_a_call_like_others() -> None:
    trace = Trace().work("gemm", 5, 40, (1, 3)).event("hipDeviceSynchronize", 60, 70, "cuda_runtime")

    kinds = critical_path(step(trace), 1)["kind"].tolist()

    assert kinds == ["host", "call", "host", "call", "host"]


def test_forward_and_backward_take_turns_on_two_threads() -> None:
    trace = Trace().event("aten::mm", 10, 20).event("aten::step", 70, 80)
    node = {"thread": 2, "forward_thread": 1, "sequence": 4}
    trace.event("autograd::engine::evaluate_function: MmBackward0", 25, 60, **node)
    trace.event("aten::copy_", 0, 66, thread=3)  # loads data and has nothing to do with it

    assert in_us(critical_path(step(trace), 1)) == [
        ("host", "", 0, 10),
        ("operator", "aten::mm", 10, 10),
        ("handover", "", 20, 5),
        ("operator", "autograd::engine::evaluate_function: MmBackward0", 25, 35),
        ("handover", "", 60, 10),
        ("operator", "aten::step", 70, 10),
        ("host", "", 80, 20),
    ]


def test_kernels_of_a_graph_wait_for_each_other_and_the_first_for_the_launch() -> None:
    trace = Trace().work("a", 6, 20, (2, 50), call="cudaGraphLaunch").work("b", 21, 30, correlation=1)
    trace.event("cudaDeviceSynchronize", 10, 35, "cuda_runtime", thread=1)

    names = [segment[:2] for segment in in_us(critical_path(trace.frame(), window=(0, 35_000)))]

    assert names == [
        ("host", ""),
        ("launch", "cudaGraphLaunch"),
        ("computation", "a"),
        ("delay", "b"),
        ("computation", "b"),
        ("synchronisation", "cudaDeviceSynchronize"),
    ]


def test_a_kernel_of_a_graph_waits_for_the_one_before_it_though_that_had_ended_when_the_call_returned() -> None:
    trace = Trace().work("a", 6, 8, (2, 10), call="cudaGraphLaunch").work("b", 52, 60, correlation=1).frame()

    held = held_up(trace, device_work(trace))

    assert held.by.tolist() == [LAUNCH, STREAM]
    assert held.explained.tolist() == [6_000, 52_000]  # the graph defines gaps of any length


def test_a_kernel_that_seems_to_begin_before_its_launch_stands_in_the_path_all_the_same() -> None:
    trace = Trace().event("aten::mm", 2, 30).work("early", 8, 90, (10, 12))
    trace.event("cudaDeviceSynchronize", 50, 85, "cuda_runtime")  # and to end after the call that waited for it

    path = critical_path(step(trace), 1)

    assert in_us(path) == [
        ("host", "", 0, 2),
        ("operator", "aten::mm", 2, 6),
        ("computation", "early", 8, 77),
        ("host", "", 85, 15),
    ]


def test_without_launches_the_path_is_what_the_devices_show_and_the_rest_is_unknown() -> None:
    trace = Trace().work("a", 10, 40).work("b", 45, 60)

    path = critical_path(trace.frame())

    assert in_us(path) == [("computation", "a", 10, 30), ("delay", "b", 40, 5), ("computation", "b", 45, 15)]
    assert in_us(critical_path(trace.frame(), window=(0, 60_000), tail=True))[0] == ("unknown", "", 0, 10)


def test_a_kernel_that_begins_long_after_its_launch_waited_for_what_is_not_known() -> None:
    trace = Trace().work("late", 500, 560, (10, 12)).event("cudaDeviceSynchronize", 50, 565, "cuda_runtime")

    assert in_us(critical_path(step(trace, 570), 1)) == [
        ("host", "", 0, 10),
        ("launch", "cudaLaunchKernel", 10, 2),
        ("unknown", "", 12, 488),
        ("computation", "late", 500, 60),
        ("synchronisation", "cudaDeviceSynchronize", 560, 5),
        ("host", "", 565, 5),
    ]


def test_a_kernel_that_begins_long_after_the_one_before_it_waited_for_what_is_not_known() -> None:
    trace = Trace().work("first", 5, 50, (1, 3)).work("second", 190, 200, (4, 6))
    trace.event("cudaDeviceSynchronize", 10, 205, "cuda_runtime")

    assert ("unknown", "", 50, 140) in in_us(critical_path(step(trace, 210), 1))


def test_layers_of_the_events_are_those_of_the_segments() -> None:
    frame = step(waiting())
    frame["layer"] = pd.Categorical(
        ["model.a" if name in ("aten::mm", "cudaLaunchKernel") else "" for name in frame["name"]]
    )

    layers = critical_path(frame, 1)["layer"]

    assert layers.tolist()[1:4] == ["model.a"] * 3
    assert layers.isna().tolist() == [True, False, False, False, True, True]


def test_nothing_has_an_empty_path() -> None:
    assert len(critical_path(Trace().frame())) == 0
