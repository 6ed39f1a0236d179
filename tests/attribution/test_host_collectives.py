"""Collectives on the host are found in a table of events, and so is the time when the host only waits for them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.collective_waits import (
    HostCollectives,
    device_collectives_alone,
    host_collectives,
    pieces,
    starts_collective,
    synchronises,
    takes_results,
    waits_of_host,
)
from perfnb.attribution.interval_sets import IntervalSet, union
from perfnb.recording.text import TEXT
from tests.attribution.test_device_work import ints, table

Intervals = list[tuple[int, int]]


def intervals(given: Intervals) -> IntervalSet:
    return union(*np.array(given, dtype=np.int64).reshape(-1, 2).T)


def pairs(found: IntervalSet) -> Intervals:
    return list(zip(found.start.tolist(), found.end.tolist(), strict=True))


@pytest.mark.parametrize("on_device", [False, True])
def test_collectives_are_operators_and_the_ranges_that_run_them(on_device: bool) -> None:
    rows = [
        ("gloo:all_reduce", "user_annotation", 12, 48, 9, None),
        ("_c10d_functional::all_reduce", "cpu_op", 5, 45, 1, None),
        ("c10d::allreduce_", "cpu_op", 10, 20, 1, None),  # inside the one above
        ("c10d::broadcast_", "cpu_op", 13, 5, 2, None),  # on another thread
        ("mpi:broadcast", "cpu_op", 14, 30, 8, None),
        ("record_param_comms", "cpu_op", 70, 10, 1, "_allgather_base"),
        ("record_param_comms", "cpu_op", 90, 10, 1, None),
        ("xccl:reduce", "user_annotation", 65, 1, 9, None),
        *[("gloo:connect", "user_annotation", 95, 1, 9, None), ("nccl:all_reduce", "user_annotation", 96, 1, 9, None)],
        *[("gloo:all_reduce!", "user_annotation", 97, 1, 9, None), ("gloo:all_reduce", "kernel", 98, 1, 9, None)],
    ]
    collective = pd.Series([row[5] for row in rows], dtype=TEXT)
    events = table(*(row[:4] for row in rows), thread=[row[4] for row in rows]).assign(collective=collective)

    found = host_collectives(events, on_device)

    issued, ran, start, begin, end = (part.tolist() for part in found[:5])
    if on_device:  # those of a device may have been started by any operator
        assert (issued, ran, start, end) == ([-1, -1], [0, 4], [12, 14], [60, 44])
    else:
        assert (issued, ran) == ([1, 3, -1, 5], [0, 4, 7, -1])
        assert (start, begin, end) == ([5, 13, 65, 70], [12, 14, 65, 70], [60, 44, 66, 80])
    kinds = ["allreduce", "broadcast"]
    assert found.kind.tolist() == (kinds if on_device else [*kinds, "reduce", "allgather"])


def test_operators_that_start_or_await_collectives_and_calls_that_await_a_device_are_known_by_their_names() -> None:
    names = ["c10d::allreduce_", "_c10d_functional::wait_tensor", "record_param_comms", "c10d::other", "my c10d::send"]
    calls = ["cudaStreamSynchronize", "hipMemcpyAsync", "zeEventHostSynchronize", "cudaLaunchKernel", "my cudaMemcpy"]
    events = table(*[(name, "cpu_op", 0, 1) for name in names], ("c10d::send", "user_annotation", 0, 1))
    on_host = table(*[(name, "cuda_runtime", 0, 1) for name in calls], ("cudaMemcpy", "cpu_op", 0, 1))
    views = table(*[("aten::as_strided", "cpu_op", at, 1) for at in (5, 7)], ("aten::as_strided_", "cpu_op", 9, 1))

    assert starts_collective(events).tolist() == [True] * 3 + [False] * 3
    assert synchronises(on_host).tolist() == [True] * 3 + [False] * 3
    assert takes_results(views, np.array([False, True, True])).tolist() == [7]


def test_devices_run_only_collectives_while_no_other_work_runs() -> None:
    work = [("ncclKernel", "kernel", 0, 50), ("gemm", "kernel", 10, 10), ("ncclKernel", "kernel", 40, 30)]

    assert [pairs(device_collectives_alone(table(*work))[0]), device_collectives_alone(table(*work))[1]] == [
        [(0, 10), (20, 70)],
        True,
    ]
    alone, any_at_all = device_collectives_alone(table(work[1]))
    assert (pairs(alone), any_at_all) == ([], False)


@pytest.mark.parametrize(
    ("flights", "busy", "calls", "received", "waits"),
    [
        ([(10, 60)], [], [], [], [(10, 60)]),
        ([(10, 60)], [(0, 20), (40, 50)], [], [], [(50, 60)]),  # from 20 to 40 no collective ends
        ([(10, 60)], [(60, 100)], [], [], [(10, 60)]),
        ([(10, 60), (70, 90)], [], [], [], [(10, 60), (70, 90)]),
        ([(10, 150)], [], [], [], []),  # ends after the step
        ([(10, 150)], [], [(5, 15)], [], [(10, 15)]),
        ([(10, 150)], [(12, 14)], [(5, 15)], [], [(10, 12), (14, 15)]),
        ([(10, 150)], [], [], [100], [(10, 100)]),
        ([(10, 60)], [], [], [100], [(10, 100)]),  # the host woke up late
        ([(10, 60)], [], [], [99], [(10, 60)]),
        ([(10, 20)], [(10, 19)], [], [100], [(19, 100)]),
        ([(10, 20)], [(10, 20)], [], [100], []),  # it had ended before
        ([], [], [(5, 15)], [100], []),
    ],
)
def test_the_host_waits_while_a_collective_is_in_flight_that_ends_before_anything_else_runs(
    flights: Intervals, busy: Intervals, calls: Intervals, received: list[int], waits: Intervals
) -> None:
    start, end = np.array(flights, dtype=np.int64).reshape(-1, 2).T
    rows = np.arange(len(start))
    collectives = HostCollectives(rows, rows, start, start, end, np.full(len(start), "allreduce"))

    found = waits_of_host(collectives, intervals([(0, 100)]), intervals(busy), intervals(calls), ints(*received))

    assert pairs(found) == waits
    if not received:  # an operator whose range is not in the trace does not show when its collective ended
        lost = collectives._replace(ran=rows * 0 - 1)
        unseen = waits_of_host(lost, intervals([(0, 100)]), intervals(busy), intervals(calls), ints())
        assert pairs(unseen) == (waits if calls else [])


def test_intervals_are_cut_at_borders() -> None:
    begin, end = pieces(intervals([(0, 10), (20, 30)]), ints(5, 20, 25, 40))

    assert (begin.tolist(), end.tolist()) == ([0, 5, 20, 25], [5, 10, 25, 30])
    assert [part.tolist() for part in pieces(intervals([]), ints(5))] == [[], []]
