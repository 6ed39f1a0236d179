"""How work came to the GPU: calls, delays, queues; and kernels in groups by what launched them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfnb.gpu.launches import (
    LaunchFacts,
    _quantile,
    kernels_by_op,
    launch_facts,
    launches,
    launches_by_op,
    queue_lengths,
)
from tests.traces_by_hand import Trace


def two_ops() -> Trace:
    trace = Trace().event("aten::linear", 0, 100, shapes="[[8, 16]]").event("aten::addmm", 10, 60, shapes="[[8], [4]]")
    trace.work("gemm", 40, 90, (20, 30)).work("bias", 95, 98, (32, 38))
    trace.event("aten::addmm", 200, 260, shapes="[[2], [4]]").work("gemm", 260, 290, (210, 214))
    return trace.work("Memcpy DtoH (Device -> Pageable)", 310, 320, (300, 330), "gpu_memcpy", "cudaMemcpyAsync")


def test_each_launch_has_its_call_its_delay_and_its_operator() -> None:
    table = launches(two_ops().frame())

    assert table["op"].tolist()[:3] == ["aten::addmm"] * 3
    assert pd.isna(table["op"].iloc[3])
    assert table["call"].tolist() == ["cudaLaunchKernel"] * 3 + ["cudaMemcpyAsync"]
    assert (table["call_ns"] // 1000).tolist() == [10, 6, 4, 30]
    assert (table["delay_ns"] // 1000).tolist() == [20, 63, 50, 10]
    assert (table["duration_ns"] // 1000).tolist() == [50, 3, 30, 10]
    # Three microseconds after a launch of six: a copy that waits is no launch to compare with.
    assert table["short"].tolist()[:3] == [False, True, False]
    assert pd.isna(table["short"].iloc[3])


def test_sums_of_launches() -> None:
    by_op = launches_by_op(launches(two_ops().frame()))

    row = by_op.loc["aten::addmm"]
    assert row["calls"] == row["launched"] == 3
    assert row["call_ms"] == 0.020
    assert row["delay_us"] == 50
    assert row["gpu_ms"] == 0.083
    assert row["short"] == 1
    assert row["short_share"] == pytest.approx(1 / 3)


def test_what_is_not_known_of_a_launch_is_missing() -> None:
    trace = Trace().work("lost", 0, 10).work("early", 20, 30, (25, 28))  # the second begins before its launch

    table = launches(trace.frame())

    assert table["call_ns"].isna().tolist() == [True, False]
    assert table["short"].isna().tolist() == [True, False]
    assert table["delay_ns"].isna().all()


def test_one_call_for_many_kernels_counts_once() -> None:
    trace = Trace().work("a", 110, 113, (100, 109), call="cudaGraphLaunch")
    trace.work("b", 120, 122, correlation=1).work("c", 122, 130, correlation=1)

    table = launches(trace.frame())

    assert table["shared"].tolist() == [3, 3, 3]
    assert table["short"].tolist() == [False, True, False]  # 3 us of the call for each
    assert launches_by_op(launches(trace.frame()))["call_ms"].sum() == 0.009


def test_the_figures_of_launches_are_medians_and_95th_percentiles() -> None:
    trace = Trace()
    for us in range(1, 21):  # the call lasts this many microseconds, and the delay three times as many
        trace.work("k", 100 * us + 3 * us, 100 * us + 99, (100 * us, 101 * us))
    trace.work("lost", 3000, 3010)
    rows = launches(trace.frame())
    spans = pd.DataFrame({"device": [0], "start_ns": [103_000], "end_ns": [3_010_000]})
    queue = queue_lengths(trace.frame()).rename(columns={"time_ns": "start_ns"})

    facts = launch_facts(rows, queue, spans, 2)

    assert (facts.launched, facts.known, facts.short_share) == (10.5, 10, 0)
    assert (facts.call_us, facts.call_us_95, facts.delay_us, facts.delay_us_95) == (10, 19, 30, 57)
    assert facts.longest_queue == 1
    # All delays but the first, which is over when the first work begins.
    assert facts.empty_share == pytest.approx(1 - 3 * sum(range(2, 21)) / 2907)
    none = launch_facts(rows.tail(1), queue.head(0), spans, 0)
    assert none == LaunchFacts(1, 0, *[None] * 7)


def test_a_weighted_quantile_is_a_value_that_occurs() -> None:
    values, weights = np.array([7.0, 9.0, 1.0, 2.0]), np.ones(4)
    assert [_quantile(values, weights, share) for share in (0, 0.25, 0.26, 0.75, 0.76, 1)] == [1, 1, 2, 7, 9, 9]
    assert _quantile(np.array([9.0, 7.0, 7.0, 7.0]), np.array([1, 1 / 3, 1 / 3, 1 / 3]), 0.5) == 7
    assert _quantile(values[:0], weights[:0], 0.5) is None


def test_the_queue_grows_with_launches_and_shrinks_when_work_begins() -> None:
    trace = Trace().work("a", 10, 100, (0, 5)).work("b", 100, 200, (20, 25)).work("c", 200, 300, (30, 35))
    trace.work("other", 50, 60, (40, 45), stream=9).work("lost", 400, 410).work("early", 500, 510, (505, 506))

    table = queue_lengths(trace.frame())

    of_7 = table[table["stream"] == 7]
    assert (of_7["time_ns"] // 1000).tolist() == [0, 10, 20, 30, 100, 200]
    assert of_7["length"].tolist() == [1, 0, 1, 2, 1, 0]
    assert table[table["stream"] == 9]["length"].tolist() == [1, 0]


def test_calls_of_another_rank_with_the_same_number_launched_nothing_here() -> None:
    trace = Trace().work("a", 10, 20, (0, 5)).event("aten::mm", 0, 9, rank=1)
    trace.event("cudaLaunchKernel", 1, 8, "cuda_runtime", correlation=1, rank=1)
    trace.event("b", 30, 40, "kernel", device=0, stream=7, correlation=1, rank=1)

    table = launches(trace.frame())

    assert (table["call_ns"] // 1000).tolist() == [5, 7]
    assert table["op"].isna().tolist() == [True, False]


def test_kernels_by_operator_and_shapes() -> None:
    table = kernels_by_op(launches(two_ops().frame()))

    known = table[table["op"].notna()]
    assert known["shapes"].tolist() == ["[[8], [4]]", "[[2], [4]]"]
    assert known["op_calls"].tolist() == [1, 1]
    assert known["kernels"].tolist() == [2, 1]
    assert known["calls"].tolist() == [2, 1]
    assert known["total_ms"].tolist() == [0.053, 0.030]
    assert known["mean_us"].tolist() == [26.5, 30]
    assert known["min_us"].tolist() == [3, 30]
    assert known["max_us"].tolist() == [50, 30]
    unknown = table[table["op"].isna()].iloc[0]
    assert unknown["calls"] == 1
    assert pd.isna(unknown["op_calls"])
    assert len(kernels_by_op(launches(two_ops().frame()), ["op", "shapes", "name"])) == 4


def test_the_external_id_names_the_operator_where_the_call_is_lost() -> None:
    trace = Trace().event("aten::mm", 0, 10, external_id=5).event("aten::add", 20, 30, external_id=77)
    trace.work("gemm", 15, 20, external_id=5, correlation=70)
    trace.work("not add", 35, 40, external_id=77, correlation=77)  # Kineto's own way to say that there was none

    table = launches(trace.frame())

    assert table["op"].iloc[0] == "aten::mm"
    assert pd.isna(table["op"].iloc[1])


def test_the_operator_is_found_on_the_thread_of_the_call_also_where_times_are_rounded() -> None:
    trace = Trace().event("aten::a", 0, 10).event("aten::b", 5, 11)  # ends a microsecond after what it lies in
    trace.event("aten::c", 10, 20).work("k", 30, 40, (12, 14)).event("aten::elsewhere", 0, 50, thread=2)

    assert launches(trace.frame())["op"].tolist() == ["aten::c"]


def test_the_operator_is_around_a_call_that_lies_in_another_call() -> None:
    trace = (
        Trace().event("aten::mm", 0, 50).work("a", 60, 70, (10, 30)).work("b", 70, 80, (12, 20), call="cuLaunchKernel")
    )

    assert launches(trace.frame())["op"].tolist() == ["aten::mm", "aten::mm"]
