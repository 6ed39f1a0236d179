"""One step of all ranks on a common clock: which step, from where to where, and what runs in it."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from perfnb.ranks.lanes import StepLanes, gpu_lane, step_lanes
from perfnb.ranks.lanes_view import lanes_picture
from tests.traces_by_hand import Trace

NCCL = "ncclDevKernel_AllReduce"


def lane(*rows: tuple[int, str, int, int]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["step", "part", "start_ns", "end_ns"])


def lanes_of(lanes: dict[int, pd.DataFrame], wall_ms: dict[int, float], **ahead_ns: int) -> StepLanes | None:
    times = pd.DataFrame({"step": list(wall_ms), "wall_ms": list(wall_ms.values())})
    arrived = pd.DataFrame(
        [(1, 5, "allreduce", 0, 140_000, 60_000), (1, 5, "allreduce", 1, 200_000, 0), (2, 6, "allgather", 0, 9, 9)],
        columns=["step", "place", "kind", "rank", "on_clock_ns", "waiting_ns"],
    )
    ahead = {rank: ahead_ns.get(f"rank{rank}", 0) for rank in lanes}
    return step_lanes(lanes, arrived, times, ahead)


def rounded(rows: pd.DataFrame) -> list[list[object]]:
    return [[round(value, 9) if isinstance(value, float) else value for value in row] for row in rows.to_numpy()]


def test_the_work_of_a_gpu_is_divided_by_what_runs_at_once() -> None:
    trace = Trace().event("ProfilerStep#3", 20, 100, "user_annotation").event("ProfilerStep#4", 100, 200)
    trace.rows[-1]["category"] = "user_annotation"
    trace.work("early", 0, 10).work("gemm", 20, 50).work(NCCL, 30, 80, stream=9).work("gemm", 100, 130)

    found = gpu_lane(trace.frame()).sort_values("start_ns")

    assert (found["start_ns"] // 1000).tolist() == [0, 20, 30, 50, 100]
    assert (found["end_ns"] // 1000).tolist() == [10, 30, 50, 80, 130]
    assert found["step"].tolist() == [-1, 3, 3, 3, 4]
    assert found["part"].tolist() == ["computing_ms", "computing_ms", "both_ms", "exposed_ms", "computing_ms"]


def test_a_step_of_all_ranks_is_drawn_on_the_clock_of_the_first() -> None:
    lanes = {
        0: lane((1, "forward", 100_000, 150_000), (1, "backward", 150_000, 300_000), (2, "forward", 400_000, 500_000)),
        1: lane((1, "forward", 1_080_000, 1_200_000)),
    }

    drawn = lanes_of(lanes, {1: 0.2, 2: 0.1}, rank1=1_000_000)

    assert drawn is not None
    assert (drawn.step, drawn.span_ms) == (1, pytest.approx(0.22))  # from 80 to 300 µs
    assert rounded(drawn.lanes) == [
        [0, "forward", 0.02, 0.07],
        [0, "backward", 0.07, 0.22],
        [1, "forward", 0.0, 0.12],
    ]
    assert rounded(drawn.arrivals) == [[5, "allreduce", 0, 0.06, 0.06], [5, "allreduce", 1, 0.12, 0.0]]


@pytest.mark.parametrize(
    ("wall_ms", "step"),
    [
        ({1: 5.0}, 1),
        ({1: 5.0, 2: 9.0}, 1),  # the shorter of two
        ({1: 5.0, 2: 9.0, 3: 7.0}, 3),
        ({1: 5.0, 2: 9.0, 3: 7.0, 4: 6.0}, 4),
        ({1: 5.0, 2: 9.0, 8: 7.0, -1: 6.0}, 1),  # only one rank has step 8, and -1 is outside all steps
        ({8: 7.0, -1: 6.0}, None),
    ],
)
def test_the_step_in_the_middle_is_drawn_of_those_that_all_ranks_have(
    wall_ms: dict[int, float], step: int | None
) -> None:
    both = [(number, "forward", 1000 * number, 1000 * number + 500) for number in (-1, 1, 2, 3, 4)]

    drawn = lanes_of({0: lane(*both), 1: lane(*both, (8, "forward", 8000, 8500))}, wall_ms)

    assert (None if drawn is None else drawn.step) == step


def test_a_step_lasts_as_long_as_on_its_slowest_rank() -> None:
    both = [(number, "forward", 1000 * number, 1000 * number + 500) for number in (1, 2, 3)]
    times = pd.DataFrame({"step": [1, 2, 3] * 2, "wall_ms": [1.0, 2.0, 3.0, 9.0, 1.0, 1.0]})
    arrived = pd.DataFrame(columns=["step", "place", "kind", "rank", "on_clock_ns", "waiting_ns"], dtype="int64")

    drawn = step_lanes({0: lane(*both), 1: lane(*both)}, arrived, times, {0: 0, 1: 0})

    assert drawn is not None
    assert drawn.step == 3  # 2, 3 and 9 ms
    assert drawn.arrivals.empty


def test_a_rank_without_work_has_no_lane() -> None:
    drawn = lanes_of({0: lane((1, "forward", 0, 500)), 1: lane()}, {1: 1.0})

    assert drawn is not None
    assert set(drawn.lanes["rank"]) == {0}
    assert lanes_of({0: lane(), 1: lane()}, {1: 1.0}) is None


def test_stretches_with_a_gap_of_at_most_an_800th_are_one() -> None:
    near = lane((1, "forward", 0, 500_000), (1, "forward", 501_250, 700_000), (1, "forward", 701_251, 10**6))

    drawn = lanes_of({0: near}, {1: 1.0})

    assert drawn is not None
    assert rounded(drawn.lanes) == [[0, "forward", 0.0, 0.7], [0, "forward", 0.701251, 1.0]]
    assert drawn.span_ms == 1.0


def drawn_by_hand(*arrivals: tuple[int, str, int, float, float]) -> StepLanes:
    """Return a step of 10 ms of ranks 5 and 2, with arrivals at these collectives."""
    rows = [(5, "computing_ms", 0.0, 5.0), (5, "exposed_ms", 5.0, 10.0), (2, "computing_ms", 0.0, 0.01)]
    lanes = pd.DataFrame(rows, columns=["rank", "part", "start_ms", "end_ms"])
    columns = ["place", "kind", "rank", "at_ms", "waiting_ms"]
    return StepLanes(3, 10.0, lanes, pd.DataFrame(arrivals, columns=columns).astype({"waiting_ms": "float64"}))


def test_each_rank_has_a_bar_in_which_even_the_shortest_part_is_seen() -> None:
    picture = lanes_picture(drawn_by_hand((1, "allreduce", 2, 1.0, 0.0)))
    first, second, *marks = picture.text(47)  # type: ignore[misc]

    bars = [line[6:] for line in (first, second)]
    computing, exposed = bars[1][0], bars[1][-1]
    assert [line[:6] for line in (first, second)] == ["    2 ", "    5 "]
    assert computing != exposed
    assert bars == [computing, computing * 20 + exposed * 20]
    assert [word[0] for line in marks for word in line.split("  ") if word] == [computing, exposed]
    assert "Longest wait" not in picture.html()  # type: ignore[misc]
    assert all(len(line) <= 26 for line in picture.text(3)[:2])  # type: ignore[misc]


def test_the_longest_wait_is_from_the_first_to_the_last_that_arrives() -> None:
    lanes = drawn_by_hand(
        *((1, "allreduce", 2, 1.0, 2.0), (1, "allreduce", 5, 3.0, 0.0)),
        *((2, "allgather", 2, 8.0, 0.0), (2, "allgather", 5, 4.0, 4.0)),
    )
    picture = lanes_picture(lanes)
    page = picture.html()  # type: ignore[misc]

    sentence = "Longest wait: allgather, at which rank 5 arrived first after 4.00 ms, and rank 2 last after 8.00 ms."
    assert " ".join(picture.text(200)).endswith(sentence)  # type: ignore[misc]
    assert "allreduce: rank 5 arrived last, 2.00 ms after the first" in page
    assert "allgather: rank 2 arrived last, 4.00 ms after the first" in page
    assert page.count("<circle") == 2
    # 85.4 pixels per ms from 46 on, and a row of 26 for each rank. The longest wait comes first.
    assert re.findall(r'd="M([^"]*)" fill="none"', page) == ["729.2 13.0L387.6 39.0", "131.4 13.0L302.2 39.0"]
    assert re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', page) == [("729.2", "13.0"), ("302.2", "39.0")]
    assert re.findall(r'd="M([^"]*)z"', page) == [
        *("46.0 27.0h427.0v24.0h-427.0", "473.0 27.0h427.0v24.0h-427.0", "46.0 1.0h0.9v24.0h-0.9")
    ]
    assert re.findall(r'<text x="(\d+)" y="(\d+)".*?>(\d)<', page) == [("40", "17", "2"), ("40", "43", "5")]
