"""Why a GPU was idle: gaps made by hand, one for each reason, and those of a real trace derived from its events."""

from __future__ import annotations

import pandas as pd
import pytest

from perfnb.analysis.gpu_idle import REASONS, idle_gaps, idle_time
from perfnb.analysis.gpu_time import gpu_time
from tests.analysis.traces import Trace, expected, public, public_trace


def gap_after(begin: float, launch: tuple[float, float] | None, **rest: int) -> pd.Series:
    """The gap between work that ends at 100 and work that begins at the given time."""
    trace = Trace().work("before", 0, 100, (-50, -40)).work("after", begin, begin + 10, launch, **rest)
    return idle_gaps(trace.frame()).iloc[0]


@pytest.mark.parametrize(
    ("begin", "launch", "reason"),
    [
        (200, (150, 160), "host"),  # launched after the device fell idle
        (200, (90, 150), "host"),  # the call had begun, but not returned
        (112, (80, 99), "host"),  # returned just before, and a launch takes 13 us
        (102, (80, 90), "dependency"),  # in the queue: one work hands over to the next
        (102, (99, 110), "dependency"),  # begun before the call returned; the call had begun in time
        (500, (80, 90), "other"),  # nothing tells why it waited for 400 us
        (500, None, "other"),  # its launch is not in the trace
        (105, None, "other"),
    ],
)
def test_the_reason_of_a_gap(begin: float, launch: tuple[float, float] | None, reason: str) -> None:
    gap = gap_after(begin, launch)

    assert gap["reason"] == reason
    assert gap["duration_ns"] == (begin - 100) * 1000
    assert gap["launch_known"] == (launch is not None)


def test_a_gap_tells_how_late_the_call_began_and_what_came_next() -> None:
    trace = Trace().work("before", 0, 100).event("aten::mm", 120, 190).work("after", 200, 210, (150, 160))

    gap = idle_gaps(trace.frame()).iloc[0]

    assert gap["host_ns"] == 50_000
    assert gap["next"] == "after"
    assert gap["op"] == "aten::mm"
    assert pd.isna(gap_after(500, None)["host_ns"])
    assert gap_after(500, (80, 90))["host_ns"] == 0


def test_kernels_of_a_graph_do_not_wait_for_the_host_though_their_call_has_not_returned() -> None:
    trace = Trace().work("first", 110, 120, (100, 300), call="cudaGraphLaunch")
    trace.work("second", 150, 160, correlation=1)

    assert idle_gaps(trace.frame())["reason"].tolist() == ["dependency"]


def test_a_stream_that_waits_for_an_event_of_which_nothing_is_known_waits() -> None:
    trace = Trace().work("before", 0, 100, (-50, -40))
    trace.event("Stream Wait Event", 20, 21, "cuda_sync", device=0, stream=7).work("after", 500, 510, (80, 90))

    assert idle_gaps(trace.frame())["reason"].tolist() == ["dependency"]


def test_a_stream_that_waits_for_an_event_before_other_work_does_not_explain_the_next_one() -> None:
    trace = Trace().event("Stream Wait Event", -60, -59, "cuda_sync", device=0, stream=7)
    trace.work("before", 0, 100, (-50, -40)).work("after", 500, 510, (80, 90))

    assert idle_gaps(trace.frame())["reason"].tolist() == ["other"]


def test_a_device_is_idle_where_none_of_its_streams_works_and_a_stream_where_it_does_not() -> None:
    trace = Trace().work("a", 0, 100).work("b", 90, 200, stream=9).work("c", 200, 210)

    assert len(idle_gaps(trace.frame())) == 0
    assert idle_gaps(trace.frame(), per_stream=True)[["stream", "duration_ns"]].to_numpy().tolist() == [[7, 100_000]]


def test_sums_add_up_to_the_idle_time() -> None:
    trace = Trace().event("ProfilerStep#3", -60, 1000, "user_annotation")
    trace.work("a", 0, 100, (-50, -40)).work("b", 200, 210, (150, 160)).work("c", 212, 220, (170, 175))
    trace.work("d", 700, 720, (180, 185)).work("e", 800, 820)

    table = idle_time(trace.frame(), by_step=True)

    assert table.to_dict("records") == [
        {"rank": 0, "device": 0, "step": 3}
        | {"idle_ms": pytest.approx(0.662), "host_ms": pytest.approx(0.1), "dependency_ms": pytest.approx(0.002)}
        | {"other_ms": pytest.approx(0.56), "unknown_ms": pytest.approx(0.08), "gaps": 4}
    ]


def test_no_gap_is_no_row() -> None:
    for trace in (Trace(), Trace().event("aten::mm", 0, 10), Trace().work("alone", 0, 10)):
        assert len(idle_gaps(trace.frame())) == 0
        assert len(idle_time(trace.frame(), by_step=True)) == 0


@public
def test_the_idle_time_of_alexnet_is_the_hosts() -> None:
    events = public_trace("a100_alexnet.json.gz")
    origin = int(events["start_ns"].min())
    gaps = idle_gaps(events)
    # The measured forward pass begins 43,313,521 us after the first event; its first kernel runs from 322,404 to
    # 322,408 (us after 43 s from here on).
    us = (gaps["start_ns"] - origin) // 1000 - 43_000_000
    gaps = gaps.assign(us=us)[us >= 322_404]

    # Three kernels were launched only after the GPU had fallen idle:
    #   at 322,408, the convolution at 322,424 (launched 322,412), 16 us;
    #   at 323,791, the pooling at 330,932 (launched 330,912, after a cudaMalloc of 8,275), 7,141 us;
    #   at 331,095, the transform at 345,795 (launched 345,777, after cudaMallocs of 11,592 and 3,107), 14,700 us.
    late = gaps[gaps["reason"] == "host"]
    assert late["us"].tolist() == [322_408, 323_791, 331_095]
    assert (late["duration_ns"] // 1000).tolist() == [16, 7141, 14700]
    assert (late["host_ns"] // 1000).tolist() == [322_412 - 322_408, 330_912 - 323_791, 345_777 - 331_095]
    assert late["op"].tolist() == [
        "aten::cudnn_convolution",
        "aten::max_pool2d_with_indices",
        "aten::cudnn_convolution",
    ]
    # All else had been launched long before, and the GPU needed 1 to 3 us from one to the next.
    rest = gaps[gaps["reason"] != "host"]
    assert (rest["reason"] == "dependency").all()
    assert rest["duration_ns"].max() == 3000
    assert rest["duration_ns"].sum() == 53_000


@public
@pytest.mark.parametrize("name", sorted(expected()))
def test_the_parts_of_the_idle_time_of_a_public_trace_add_up(name: str) -> None:
    events = public_trace(name)
    sums, whole = idle_time(events), gpu_time(events)

    assert sums["idle_ms"].sum() == pytest.approx(whole["idle_ms"].sum(), rel=1e-12)
    parts = sums[[f"{reason}_ms" for reason in REASONS]].sum(axis=1)
    assert parts.tolist() == pytest.approx(sums["idle_ms"].tolist(), rel=1e-12)
    assert (sums["unknown_ms"] <= sums["other_ms"]).all()
    per_stream = idle_gaps(events, per_stream=True)
    assert (per_stream["duration_ns"] > 0).all()


def test_work_without_duration_ends_a_gap_and_begins_one() -> None:
    trace = Trace().work("empty", 0, 0).work("a", 20, 30).work("empty", 70, 70)

    assert (idle_gaps(trace.frame())["duration_ns"] // 1000).tolist() == [20, 40]
    assert gpu_time(trace.frame())["idle_ms"].tolist() == [0.060]
