"""Waiting for a collective is a phase of its own, and each collective has its row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfnb
from perfnb.attribution.collective_waits import HostCollectives, _started_by, waits_of_host
from perfnb.attribution.collectives import (
    _matched,
    _shared_out,
    _until_received,
    _with_counted,
    collective_table,
)
from perfnb.attribution.interval_sets import IntervalSet, union
from perfnb.profile.profile import Profile
from perfnb.recording.recording import ArithmeticRecord
from tests.attribution.test_gaps import phases
from tests.recordings import ByHand
from tests.written_traces import MAIN, Written

WORKER = 55
ACCUMULATE = "torch::autograd::AccumulateGrad"
JOB: dict[str, Any] = {"pg_count": 1, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}], "world_size": 2}


def ddp_step(trace: Written, number: int, t: float, sleep: float = 0.0, wait: float = 0.0, end: float = 0.0) -> Written:
    """Return two buckets: the first is in flight during backward, the second ends 200 µs, and `wait` more, after it.

    Forward takes 100 µs and `sleep` more.
    """
    trace.step(number, t, t + (end or 1000 + sleep + wait))
    trace.module("Net_0", t + 50, t + 150 + sleep).op("aten::mm", t + 60, t + 140, 2 * number)
    t += sleep
    shaped = {"Input Dims": [[100]], "Input type": ["float"]}
    for bucket, begin in enumerate((200, 300)):
        trace.node("MmBackward0", t + begin, t + begin + 50, 2 * number, tid=MAIN)
        trace.event(f"autograd::engine::evaluate_function: {ACCUMULATE}", t + begin + 50, t + begin + 90)
        trace.op("aten::mul", t + begin + 52, t + begin + 60)
        trace.op("c10d::allreduce_", t + begin + 70, t + begin + 85)
        finished = t + 450 + 150 * bucket + wait
        trace.event("gloo:all_reduce", t + begin + 75, finished, "user_annotation", WORKER + bucket, **shaped)
    trace.event("Optimizer.step#SGD.step", t + 700 + wait, t + 900 + wait, "user_annotation")
    return trace.op("aten::add_", t + 710 + wait, t + 800 + wait)


def loaded(tmp_path: Path, trace: Written) -> Profile:
    profile = perfnb.load(trace.write(tmp_path / "trace.json"))
    assert isinstance(profile, Profile)
    return profile


def test_the_final_wait_of_ddp_and_the_start_of_its_buckets_are_communication(tmp_path: Path) -> None:
    p = loaded(tmp_path, ddp_step(Written(distributedInfo=JOB), 0, 0))

    us = (p.phases["ms"] * 1000).round(3)
    # from the last operator to the end of the last bucket, and while the first bucket's operator started it
    assert us["communication"] == (600 - 360) + 15
    assert us["backward"] == pytest.approx(190 - 15 - 30)
    assert us["forward"] == 100
    assert us.sum() == 1000


def test_a_collective_has_its_bucket_bytes_group_and_what_nothing_hid(tmp_path: Path) -> None:
    trace = Written(distributedInfo=JOB)
    ddp_step(ddp_step(trace, 0, 0), 1, 2000)

    table = loaded(tmp_path, trace).collectives.set_index("bucket").sort_index()

    assert table["collective"].tolist() == ["allreduce"] * 2
    assert table["group"].tolist() == ["0 [0, 1]"] * 2
    assert table["dtype"].tolist() == ["float32"] * 2
    assert table["bytes"].tolist() == [400, 400]
    assert table["calls"].tolist() == [1, 1]
    assert (table["ms"] * 1000).tolist() == pytest.approx([450 - 270, 600 - 370])
    assert (table["exposed_ms"] * 1000).tolist() == pytest.approx([15 + 90, 150])
    assert table["waiting_ms"].isna().all()
    assert table["bytes_per_s"].tolist() == pytest.approx([400 / 175e-6, 400 / 225e-6])


def in_flight(until: float) -> ByHand:
    """Return a step whose collective is started from 100 to 110 and runs on another thread."""
    hand = ByHand().step(0, 1000).op("c10d::allreduce_", 100, 110)
    return hand.event("gloo:all_reduce", 105, until, "user_annotation", thread=9)


def test_the_host_waits_until_a_collective_ends_or_its_bucket_is_taken() -> None:
    late_end = in_flight(1500).op("aten::as_strided", 400, 410).op("aten::as_strided", 412, 420)
    late_end.event("Optimizer.step#SGD.step", 600, 800, "user_annotation")
    times = phases(late_end)
    assert (times["communication"], times["other"]) == (10 + 290 + 2, 1000 - 302 - (times["optimizer"] or 0))
    inside = in_flight(1500).op("aten::transpose", 400, 420).op("aten::as_strided", 400, 410)
    assert phases(inside) == {"communication": 10, "other": 990}
    assert phases(in_flight(500).event("pf_data", 200, 600))["data"] == 400  # waiting for data is what it is
    functional = ByHand().step(0, 1000).op("_c10d_functional::all_reduce", 100, 110).op("aten::mm", 120, 300)
    functional.event("gloo:all_reduce", 105, 500, "user_annotation", thread=9)
    functional.op("_c10d_functional::wait_tensor", 300, 520).op("aten::mm", 520, 700).op("c10d::allreduce_", 102, 108)
    assert phases(functional) == {"communication": 210, "other": 790}
    assert Profile(functional.recording()).collectives["calls"].tolist() == [1]  # the inner operator is a part of it


Spans = list[tuple[int, int]]


def covered(intervals: Spans) -> IntervalSet:
    return union(*np.array(intervals, dtype=np.int64).reshape(-1, 2).T)


@pytest.mark.parametrize(
    ("flights", "busy", "calls", "received", "waits"),
    [
        *[([(10, 60)], [], [], [], [(10, 60)]), ([(10, 60)], [(60, 100)], [], [], [(10, 60)])],
        ([(10, 60)], [(0, 20), (40, 50)], [], [], [(50, 60)]),  # from 20 to 40 no collective ends
        ([(10, 60), (70, 90)], [], [], [], [(10, 60), (70, 90)]),
        *[([(10, 150)], [], [], [], []), ([(10, 150)], [], [(5, 15)], [], [(10, 15)])],  # ends after the step
        ([(10, 150)], [(12, 14)], [(5, 15)], [], [(10, 12), (14, 15)]),
        *[([(10, 150)], [], [], [100], [(10, 100)]), ([(10, 60)], [], [], [99], [(10, 60)])],
        *[([(10, 60)], [], [], [100], [(10, 100)]), ([(10, 20)], [(10, 19)], [], [100], [(19, 100)])],  # woke up late
        *[([(10, 20)], [(10, 20)], [], [100], []), ([], [], [(5, 15)], [100], [])],  # it had ended before
    ],
)
def test_the_host_waits_while_a_collective_is_in_flight_that_ends_before_anything_else_runs(
    flights: Spans, busy: Spans, calls: Spans, received: list[int], waits: Spans
) -> None:
    start, end = np.array(flights, dtype=np.int64).reshape(-1, 2).T
    rows = np.arange(len(start))
    collectives = HostCollectives(rows, rows, start, start, end, np.full(len(start), "allreduce"))

    found = waits_of_host(collectives, covered([(0, 100)]), covered(busy), covered(calls), np.array(received))

    assert list(zip(*map(list, found), strict=True)) == waits


def test_a_host_that_wakes_up_late_still_waits_for_the_bucket() -> None:
    hand = in_flight(250).op("aten::as_strided", 400, 410)

    assert phases(hand) == {"communication": 300, "other": 700}
    table = Profile(hand.recording()).collectives
    assert (table["exposed_ms"] * 1000).tolist() == [300]
    assert (table["ms"] * 1000).tolist() == [150]


def test_an_all_reduce_inside_a_layer_leaves_its_forward_alone() -> None:
    hand = ByHand().step(0, 1000)
    model = hand.layer("model")
    hand.call(model, 100, 800).op("aten::mm", 110, 300, 1).op("c10d::allreduce_", 350, 400)
    hand.event("gloo:all_reduce", 360, 600, "user_annotation", thread=9).op("aten::relu", 650, 790, 2)

    p = Profile(hand.recording())

    assert phases(hand) == {"forward": 700 - 250, "communication": 250, "other": 300}
    assert p.layers.loc["model", "forward_ms"] == pytest.approx(0.45)
    assert p.collectives["layer"].tolist() == ["model"]


def test_on_a_gpu_it_is_the_hosts_wait_for_collectives_alone() -> None:
    hand = ByHand().step(0, 1000)
    hand.kernel("gemm", 10, 100, 300).kernel("ncclDevKernel_AllReduce_Sum_f32", 20, 200, 800)
    hand.event("cudaDeviceSynchronize", 400, 900, "cuda_runtime")

    assert phases(hand) == {"communication": 400, "other": 600}
    table = Profile(hand.recording()).collectives
    assert (table["exposed_ms"] * 1000).tolist() == [500]
    assert (table["ms"] * 1000).tolist() == [600]


def test_without_collectives_there_is_no_communication() -> None:
    hand = ByHand().step(0, 1000).op("aten::mm", 100, 200)

    p = Profile(hand.recording())

    assert p.phases.loc["communication", "ms"] == 0
    assert p.collectives.empty


@pytest.mark.parametrize(
    ("seen", "counted", "sizes", "matched"),
    [
        ("aa", "aaa", [8, 8, 8], [0, 1]),
        ("baa", "baaa", [4, 8, 8, 8], [0, 1, 2]),
        ("aa", "aaa", [8, 16, 8], [-1, -1]),
        ("aaa", "aa", [8, 8], [-1, -1, -1]),
        ("bac", "bc", [4, 2], [0, -1, 1]),
        ("abca", "abca", [8, 4, 6, 7], [0, 1, 2, 3]),
        ("abcab", "abca", [8, 4, 6, 7], [0, 1, 2, 3, -1]),  # with what one of several steps logs
        ("abcaa", "abca", [8, 4, 6, 7], [0, 1, 2, -1, -1]),  # either of the last two may be the one that was counted
        ("aba", "abca", [8, 4, 6, 7], [0, 1, 3]),
        ("ccc", "abca", [8, 4, 6, 7], [-1, -1, -1]),
    ],
)
def test_an_extra_collective_leaves_equal_ones_certain(
    seen: str, counted: str, sizes: list[int], matched: list[int]
) -> None:
    assert _matched([*seen], [*counted], [(size, "float32") for size in sizes]).tolist() == matched


def test_counted_bytes_fill_in_only_what_a_trace_does_not_tell() -> None:
    recording = ByHand().step(0, 1000).op("aten::mm", 1, 2).recording()
    ops = ["aten::mm", "c10d::wait_", "c10d::allreduce_", "_c10d_functional::broadcast", "my c10d::broadcast_"]
    calls = pd.DataFrame({"op": ops, "bytes": [1, 2, 8, 4, 16], "dtype": ["a", "b", "float32", None, "e"]})
    calls = calls.rename_axis("number").iloc[::-1]
    frame = pd.DataFrame(
        {
            "step": [0, 0, 1, 1],
            "collective": ["allreduce", "broadcast"] * 2,
            "bytes": [-1, -1, 0, 5],
            "dtype": ["", "", "int8", ""],
        }
    )

    counted = replace(recording, arithmetic=ArithmeticRecord(recording.events, calls))

    assert _with_counted(counted, frame)[["bytes", "dtype"]].to_numpy().tolist() == [
        *([8, "float32"], [4, ""], [0, "int8"], [5, ""])
    ]
    assert _with_counted(recording, frame) is frame
    assert _with_counted(counted, frame.iloc[:0]).empty


@pytest.mark.parametrize(
    ("time", "intervals", "shares"),
    [
        ([(0, 100)], [], []),
        ([], [(0, 50)], [0]),
        ([(0, 200)], [(50, 100)], [50]),
        ([(0, 10), (20, 30)], [(0, 30)], [20]),
        ([(0, 100)], [(0, 50), (20, 100)], [50, 50]),
        ([(0, 100)], [(20, 100), (0, 50)], [50, 50]),
        ([(0, 100)], [(60, 70), (0, 100)], [10, 90]),
        ([(0, 100)], [(60, 70), (65, 80), (0, 100)], [10, 10, 80]),
        ([(0, 100)], [(0, 50), (20, 50)], [50, 0]),
        ([(0, 100)], [(60, 70), (80, 90)], [10, 10]),
    ],
)
def test_time_in_several_intervals_belongs_to_the_one_that_ends_first(
    time: Spans, intervals: Spans, shares: list[int]
) -> None:
    start, end = np.array(intervals, dtype=np.int64).reshape(-1, 2).T

    assert _shared_out(covered(time), start, end).tolist() == shares


@pytest.mark.parametrize(
    ("ends", "until"),
    [
        ([], []),
        ([5, 8, 20], [5, 10, 25]),
        ([8, 8, 5], [10, 10, 5]),
        ([10, 25], [10, 25]),
        ([9, 10], [9, 10]),
        ([11, 14, 30], [11, 14, 30]),
        ([0, 16], [0, 25]),
    ],
)
def test_the_last_collective_of_a_wait_ends_with_it(ends: list[int], until: list[int]) -> None:
    waiting = union(np.array([1, 15]), np.array([10, 25]))
    given = np.array(ends, dtype=np.int64)

    assert _until_received(given, waiting).tolist() == until
    assert _until_received(given, union(given, given)).tolist() == ends


def test_equal_collectives_are_one_row_with_their_figures_per_step() -> None:
    same = {"collective": "allreduce", "group": "0", "dtype": "float32", "bytes": 1_000, "layer": "", "bucket": 0}
    times = {"start_ns": 0, "begin_ns": 1_000, "end_ns": 3_000, "exposed_ns": 500}
    other = {"group": "", "dtype": "", "bytes": -1, "layer": "net", "bucket": -1}
    calls = pd.DataFrame(
        [
            {**same, **times},
            {**same, **times, "end_ns": 5_000, "exposed_ns": 1_500},
            {**same, **other, **times, "end_ns": 20_000},
            {**same, **times, "collective": "broadcast", "begin_ns": 3_000},
        ]
    )

    table = collective_table(calls, 2)
    waited = collective_table(calls.assign(waiting_ns=pd.array([500, 1_500, None, 0], dtype="Int64")), 2)

    assert table["collective"].tolist() == ["allreduce", "allreduce", "broadcast"]
    assert table["group"].fillna("none").tolist() == ["none", "0", "0"]
    assert table["dtype"].fillna("none").tolist() == ["none", "float32", "float32"]
    assert table["layer"].fillna("none").tolist() == ["net", "none", "none"]
    assert table["bucket"].fillna(-1).tolist() == [-1, 0, 0]
    assert table["bytes"].fillna(-1).tolist() == [-1, 1_000, 1_000]
    assert table["calls"].tolist() == [0.5, 1, 0.5]
    assert table["ms"].tolist() == [0.01, 0.004, 0.0015]
    assert table["exposed_ms"].tolist() == [0.00025, 0.001, 0.00025]
    assert table["waiting_ms"].isna().all()
    assert table["transfer_ms"].isna().all()
    assert table["bytes_per_s"].fillna(-1).tolist() == [-1, pytest.approx(2_000 / 6e-6), -1]
    assert waited["waiting_ms"].fillna(-1).tolist() == [-1, 0.001, 0]
    assert waited["transfer_ms"].fillna(-1).tolist() == [-1, 0.002, 0]
    assert waited["bytes_per_s"].fillna(-1).tolist() == [-1, pytest.approx(2_000 / 4e-6), -1]
    assert collective_table(calls, 0)["ms"].tolist() == [0.02, 0.008, 0.003]
    assert collective_table(calls.iloc[:0], 2).empty


@pytest.mark.parametrize(
    ("begin", "kind", "started", "started_kind", "by"),
    [
        ([10, 20], "AB", [], "", [-1, -1]),
        ([], "", [5], "A", []),
        ([10, 20], "AB", [5, 15], "AB", [0, 1]),
        ([10], "A", [10], "A", [0]),
        ([10], "A", [11], "A", [-1]),
        ([10, 20], "AB", [1, 5], "XA", [0, 1]),  # with equal numbers there is no shift
        ([10, 20], "AB", [1, 5], "BX", [0, 1]),
        ([20, 30], "BA", [1, 11, 21], "ABA", [1, 2]),  # the first run is missing
        ([20, 30], "AB", [1, 11, 31], "ABA", [0, 1]),  # the last one
        ([5, 15, 25], "ABA", [11, 21], "BA", [-1, 0, 1]),  # the first operator
        ([5, 15, 25], "ABA", [1, 11], "AB", [0, 1, -1]),  # the last one
        ([20], "A", [1, 11], "AA", [0]),
    ],
)
def test_a_run_was_started_by_the_operator_of_the_same_place(
    begin: list[int], kind: str, started: list[int], started_kind: str, by: list[int]
) -> None:
    arrays = (np.array(values) for values in (begin, [*kind], np.array(started, dtype=int), [*started_kind]))

    assert _started_by(*arrays).tolist() == by
