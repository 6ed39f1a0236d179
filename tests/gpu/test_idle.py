"""Why a GPU was idle: gaps made by hand, one for each reason, and those of a real trace derived from its events."""

from __future__ import annotations

import pandas as pd
import pytest

from perfnb.gpu.device_time import REASONS, gpu_time, idle_gaps, idle_time
from tests.traces_by_hand import Trace, public, public_trace


def gap_after(begin: float, launch: tuple[float, float] | None, **rest: int) -> pd.Series:
    """Return the gap between work that ends at 100 and work that begins at the given time."""
    trace = Trace().work("before", 0, 100, (-50, -40)).work("after", begin, begin + 10, launch, **rest)
    return idle_gaps(trace.frame()).iloc[0]


def parts(gap: pd.Series) -> tuple[int, int, int]:
    """Return microseconds by reason."""
    return tuple(int(gap[f"{reason}_ns"]) // 1000 for reason in REASONS)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("begin", "launch", "host", "dependency", "other"),
    [
        (170, (150, 160), 70, 0, 0),  # launched after the device fell idle, and begun as soon as a launch takes
        (112, (90, 105), 12, 0, 0),  # the call had begun, but not returned
        (112, (80, 99), 12, 0, 0),  # returned just before, and a launch takes 13 us
        (900, (150, 160), 60, 0, 740),  # launched late, and nothing tells why it did not run when it was
        (900, (90, 150), 50, 0, 750),
        (900, (850, 950), 800, 0, 0),  # begun before the call returned
        (900, (90, 950), 800, 0, 0),  # the call lasted from before the gap until after it
        (102, (80, 90), 0, 2, 0),  # in the queue: one work hands over to the next
        (102, (99, 110), 0, 2, 0),  # begun before the call returned; the call had begun in time
        (500, (80, 90), 0, 0, 400),  # nothing tells why it waited for 400 us
        (110, (70, 80), 0, 10, 0),  # handed over as slowly as that can be
        (111, (70, 80), 0, 0, 11),
        (102, (80, 100), 0, 2, 0),  # returned just in time
        (102, (99, 101), 2, 0, 0),
        (102, (90, 102), 2, 0, 0),
        (102, (100, 110), 0, 2, 0),  # the call had just begun in time
        (102, (101, 110), 2, 0, 0),
        (170, (130, 140), 70, 0, 0),  # launched as slowly as that can be
        (171, (130, 140), 40, 0, 31),
        (500, None, 0, 0, 400),  # its launch is not in the trace
        (105, None, 0, 0, 5),
    ],
)
def test_the_parts_of_a_gap(
    begin: float, launch: tuple[float, float] | None, host: int, dependency: int, other: int
) -> None:
    gap = gap_after(begin, launch)

    assert parts(gap) == (host, dependency, other)
    assert gap["reason"] == REASONS[parts(gap).index(max(host, dependency, other))]
    assert gap["duration_ns"] == (begin - 100) * 1000
    assert gap["launch_known"] == (launch is not None)


def test_a_gap_tells_how_long_the_call_took_of_it_and_what_came_next() -> None:
    trace = Trace().work("before", 0, 100).event("aten::mm", 120, 190).work("after", 180, 210, (150, 160))

    gap = idle_gaps(trace.frame()).iloc[0]

    # 50 until the call began, 10 in it, 20 until the work began.
    assert (gap["host_ns"], gap["call_ns"], gap["latency_ns"]) == (80_000, 10_000, 20_000)
    assert gap["next"] == "after"
    assert gap["op"] == "aten::mm"
    unknown = gap_after(500, None)
    assert (unknown["host_ns"], unknown["call_ns"], unknown["latency_ns"]) == (0, 0, 0)


@pytest.mark.parametrize("thread", [1, 2])
def test_after_a_call_that_makes_a_stream_wait_the_rest_of_the_gap_is_waiting(thread: int) -> None:
    trace = Trace().work("before", 0, 100, (-50, -40))
    trace.event("hipStreamWaitEvent", 120, 122, "cuda_runtime", thread=thread).work("after", 900, 910, (130, 140))

    # A call on another thread tells nothing of it.
    assert parts(idle_gaps(trace.frame()).iloc[0]) == ((40, 760, 0) if thread == 1 else (40, 0, 760))


def test_gaps_before_a_step_are_marked_and_left_out_where_each_step_stands_alone() -> None:
    trace = (
        Trace().event("ProfilerStep#3", 0, 99, "user_annotation").event("ProfilerStep#4", 100, 200, "user_annotation")
    )
    trace.work("a", 10, 20, (1, 5)).work("b", 40, 50, (30, 35)).work("c", 120, 130, (110, 115))
    trace.work("d", 150, 160, (140, 145))

    gaps = idle_gaps(trace.frame())
    alone = idle_gaps(trace.frame(), own_step=True)

    assert (gaps["duration_ns"] // 1000).tolist() == [20, 70, 20]
    assert gaps["before_step"].tolist() == [False, True, False]
    assert (alone["duration_ns"] // 1000).tolist() == [20, 20]
    assert (alone["step"].tolist(), alone["before_step"].tolist()) == ([3, 4], [False, False])
    assert idle_time(trace.frame(), by_step=True)["before_ms"].tolist() == [0, pytest.approx(0.07, abs=1e-12)]


def test_a_gap_after_the_first_work_of_a_step_is_not_before_the_step() -> None:
    trace = Trace().event("ProfilerStep#3", 0, 50, "user_annotation").event("ProfilerStep#4", 50, 99, "user_annotation")
    trace.work("a", 10, 60, (1, 5)).work("empty", 60, 60, (51, 52)).work("b", 80, 90, (53, 54))

    gaps = idle_gaps(trace.frame())

    assert (gaps["start_ns"] // 1000).tolist() == [60]
    assert gaps[["step", "before_step"]].to_numpy().tolist() == [[4, False]]


def test_kernels_of_a_graph_do_not_wait_for_the_host_though_their_call_has_not_returned() -> None:
    trace = Trace().work("first", 110, 120, (100, 300), call="cudaGraphLaunch")
    trace.work("second", 150, 160, correlation=1)

    assert idle_gaps(trace.frame())["reason"].tolist() == ["dependency"]


@pytest.mark.parametrize(
    ("begin", "launch", "reason"),
    [(500, (80, 90), "dependency"), (115, (90, 100), "dependency"), (115, (90, 101), "host")],
)
def test_a_stream_that_waits_for_an_unknown_event_waits(begin: int, launch: tuple[int, int], reason: str) -> None:
    trace = Trace().work("before", 0, 100, (-50, -40))
    trace.work("other", 0, 50, (-45, -44), stream=5)
    trace.event("Stream Wait Event", 20, 21, "cuda_sync", device=0, stream=7).work("after", begin, 510, launch)

    assert idle_gaps(trace.frame())["reason"].tolist() == [reason]


def test_a_stream_that_waits_for_an_event_before_other_work_does_not_explain_the_next_one() -> None:
    trace = Trace().event("Stream Wait Event", -60, -59, "cuda_sync", device=0, stream=7)
    trace.work("before", 0, 100, (-50, -40)).work("after", 500, 510, (80, 90))

    assert idle_gaps(trace.frame())["reason"].tolist() == ["other"]


def test_a_device_is_idle_where_none_of_its_streams_works() -> None:
    trace = Trace().work("a", 0, 100).work("b", 90, 200, stream=9).work("c", 200, 210)

    assert len(idle_gaps(trace.frame())) == 0


def test_sums_add_up_to_the_idle_time() -> None:
    trace = Trace().event("ProfilerStep#3", -60, 1000, "user_annotation")
    trace.work("a", 0, 100, (-50, -40)).work("b", 200, 210, (150, 180)).work("c", 212, 220, (170, 175))
    trace.work("d", 700, 720, (180, 185)).work("e", 800, 820)

    table = idle_time(trace.frame(), by_step=True)

    assert table.round(9).to_dict("records") == [
        {"rank": 0, "device": 0, "step": 3}
        | {"idle_ms": 0.662, "host_ms": 0.1, "dependency_ms": 0.002, "other_ms": 0.56, "unknown_ms": 0.08}
        | {
            "call_ms": 0.03,
            "latency_ms": 0.02,
            "before_ms": 0,
            "gaps": 4,
        }
    ]


def test_without_a_gap_there_are_no_rows() -> None:
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
    until_call = late["host_ns"] - late["call_ns"] - late["latency_ns"]
    assert (until_call // 1000).tolist() == [322_412 - 322_408, 330_912 - 323_791, 345_777 - 331_095]
    assert late["host_ns"].tolist() == late["duration_ns"].tolist()  # the launches took 12, 20 and 18 in all
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


def test_work_without_duration_ends_a_gap_and_begins_one() -> None:
    trace = Trace().work("empty", 0, 0).work("a", 20, 30).work("empty", 70, 70)

    assert (idle_gaps(trace.frame())["duration_ns"] // 1000).tolist() == [20, 40]
    assert gpu_time(trace.frame())["idle_ms"].tolist() == [0.060]
