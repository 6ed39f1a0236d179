"""Where a GPU's time went, by unions of intervals: known frames by hand, and public traces with known figures."""

from __future__ import annotations

import pandas as pd
import pytest

from perfnb.attribution.device_work import device_work
from perfnb.gpu.device_time import gpu_time, gpu_time_by_step
from tests.traces_by_hand import Trace, expected, public, public_trace


def test_what_overlaps_is_counted_once_and_communication_behind_computation_is_overlap() -> None:
    trace = Trace()
    trace.work("gemm", 0, 100).work("gemm", 50, 150, stream=9)  # 150 of computation
    trace.work("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 120, 220, stream=20)  # 30 of it hidden
    trace.work("Memcpy HtoD (Pinned -> Device)", 210, 240, category="gpu_memcpy")
    trace.work("Memset (Device)", 300, 310, category="gpu_memset")

    row = gpu_time(trace.frame()).iloc[0].to_dict()

    assert row == pytest.approx(
        {
            "rank": 0,
            "device": 0,
            "total_ms": 0.310,
            "busy_ms": 0.250,
            "computation_ms": 0.160,
            "communication_ms": 0.100,
            "memcpy_ms": 0.030,
            "idle_ms": 0.060,
            "idle_pct": 100 * 60 / 310,
            "overlap_ms": 0.030,
            "overlap_pct": 30.0,
            "kernels": 3,
            "kernel_ms": 0.300,
        },
        abs=1e-12,
    )


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", True),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", True),
        ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", True),
        ("void ncclFunction(x)", True),
        ("_Z22ncclDevKernel_Generic_1v", True),
        ("gemm", False),
        ("winccl_gemm", False),
        ("triton_poi_fused_add_0", False),
    ],
)
def test_collectives_are_known_by_their_names(name: str, communicates: bool) -> None:
    row = gpu_time(Trace().work(name, 0, 10).frame()).iloc[0]

    assert (row["communication_ms"] > 0) == communicates
    assert (row["computation_ms"] > 0) != communicates


def test_each_device_of_each_rank_has_a_row_and_what_carries_none_has_its_own() -> None:
    trace = Trace().work("a", 0, 10, rank=1, device=1).work("b", 0, 20, rank=0, device=1).work("c", 5, 10, device=-1)

    table = gpu_time(trace.frame())

    assert table["rank"].tolist() == [0, 0, 1]
    assert table["device"].isna().tolist() == [True, False, False]
    assert table["busy_ms"].tolist() == [0.005, 0.020, 0.010]


def test_a_share_of_nothing_is_missing_and_so_is_a_gpu_where_nothing_ran_on_one() -> None:
    row = gpu_time(Trace().work("empty", 5, 5).frame()).iloc[0]

    assert row["total_ms"] == 0
    assert pd.isna(row["idle_pct"])
    assert pd.isna(row["overlap_pct"])
    assert len(gpu_time(Trace().event("aten::mm", 0, 10).frame())) == 0
    assert len(gpu_time(Trace().frame())) == 0


def steps() -> Trace:
    trace = Trace()
    for number in (9, 10):
        t = 1000 * (number - 9)
        trace.event(f"ProfilerStep#{number}", t, t + 1000, "user_annotation")
        trace.work("gemm", t + 50, t + 90, (t + 10, t + 20)).work("late", t + 900, t + 1200, (t + 30, t + 35))
    return trace


def test_work_belongs_to_the_step_that_launched_it_and_steps_are_in_the_order_of_their_numbers() -> None:
    table = gpu_time_by_step(steps().frame())

    assert table["step"].tolist() == [9, 10]
    # The last kernel of each step ends in the next one: 50 to 1200, of which 40 and 300 are busy.
    assert table["total_ms"].tolist() == [1.15, 1.15]
    assert table["busy_ms"].tolist() == [0.34, 0.34]
    assert gpu_time(steps().frame())["total_ms"].tolist() == [2.15]


def test_work_whose_launch_is_lost_belongs_to_the_step_in_which_it_began() -> None:
    trace = steps().work("lost", 1900, 1990, correlation=999).work("outside", 2500, 2600, correlation=998)

    work = device_work(trace.frame())

    assert work.step.tolist() == [9, 9, 10, 10, 10, -1]


def test_a_frame_may_lack_columns_and_hold_missing_numbers() -> None:
    frame = Trace().work("gemm", 0, 10, (-10, -5)).frame()
    bare = frame[["name", "category", "start_ns", "duration_ns", "thread", "device", "stream", "correlation"]]
    nullable = bare.astype({"device": "Int64", "stream": "Int64"})
    nullable.loc[0, ["device", "stream"]] = pd.NA

    assert gpu_time(bare)["busy_ms"].tolist() == [0.010]
    assert gpu_time(bare)["rank"].isna().all()
    assert gpu_time(nullable)["device"].tolist() == [0]


@public
@pytest.mark.parametrize("name", sorted(name for name in expected() if "asserted_by_another_tool" in expected()[name]))
def test_a_public_trace_has_the_times_that_another_tool_found(name: str) -> None:
    fact, row = expected()[name]["asserted_by_another_tool"], gpu_time(public_trace(name)).iloc[0]

    for key in ("total_ms", "busy_ms", "computation_ms"):
        assert row[key] == pytest.approx(fact[key], abs=1e-4, rel=0), key
    assert row["idle_pct"] == pytest.approx(fact["idle_pct"], abs=1e-3)
    if "kernels" in fact:
        assert row["kernels"] == fact["kernels"]
        assert row["kernel_ms"] * 1e3 == pytest.approx(fact["kernel_sum_us"], abs=1.1e-3)
