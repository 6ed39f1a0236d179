"""Summaries of several ranks, by hand: candidates for the straggler, doubts, and host times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from perfnb.ranks.host import HostRank, waits_alone, with_host_times
from perfnb.ranks.summary import Doubts, _candidate, _doubts_of, _only_step, _parts, _samples, with_waits
from perfnb.recording.recording import Recording
from perfnb.recording.schema import PHASES
from tests.recordings import ByHand


def times(waiting: dict[int, list[float | None]], wall_ms: float = 100.0) -> pd.DataFrame:
    rows = [(rank, ms) for rank, each in waiting.items() for ms in each]
    frame = pd.DataFrame(rows, columns=["rank", "waiting_ms"]).astype({"waiting_ms": "Float64"})
    return frame.assign(wall_ms=pd.array([wall_ms] * len(frame), dtype="Float64"))


@pytest.mark.parametrize(
    ("waiting", "waited", "expected"),
    [
        ({0: [5.0], 1: [0.0]}, {0: -5.0, 1: 5.0}, 1),
        ({0: [1.1], 1: [0.0]}, {0: -1.1, 1: 1.1}, 1),
        ({0: [1.0], 1: [0.0]}, {0: -1.0, 1: 1.0}, None),  # 1 % of the step
        ({0: [1.0, 3.0], 1: [0.0, 0.0]}, {0: -4.0, 1: 4.0}, 1),  # 2 ms per step
        ({0: [1.0, 1.0], 1: [0.0, 0.0]}, {0: -2.0, 1: 2.0}, None),
        ({0: [9.0], 1: [0.0], 2: [0.0]}, {0: -9.0, 1: 6.0, 2: 5.0}, None),  # two are about equally late
        ({0: [9.0], 1: [0.0], 2: [0.0]}, {0: -9.0, 1: 6.0, 2: 4.9}, 1),
        ({0: [9.0], 1: [0.0], 2: [0.0]}, {0: -9.0, 1: 4.9, 2: 6.0}, 2),
        ({0: [5.0]}, {0: 5.0}, None),
        ({0: [5.0], 1: [None]}, {0: 5.0}, None),
        ({0: [5.0], 1: [0.0, None]}, {0: -5.0, 1: 1.5}, 1),
    ],
)
def test_a_rank_may_be_late_if_all_others_wait_for_it_more_than_for_the_next(
    waiting: dict[int, list[float | None]], waited: dict[int, float], expected: int | None
) -> None:
    assert _candidate(times(waiting), pd.Series(waited)) == expected


def recording(rank: int = 0, gpus: tuple[str, ...] = (), **meta: Any) -> Recording:
    hand = ByHand().step(0, 100).op("aten::mm", 10, 20)
    return hand.recording(rank=rank, **({"environment": {"gpus": [*gpus]}} | meta))


NONE = Doubts(0, None, {}, {}, {}, True, False)


@pytest.mark.parametrize(
    ("recordings", "doubts"),
    [
        ([recording(0), recording(1)], NONE),
        (
            [recording(0, trace={"rank": 0, "world_size": 2}), recording(1, job={"rank": 1, "world_size": 2})],
            Doubts(0, 2, {}, {}, {}, True, False),
        ),
        ([recording(0, job={"rank": 0, "world_size": 5}), recording(1)], Doubts(3, 5, {}, {}, {}, True, False)),
        ([recording(0, job={"rank": 0, "world_size": 1}), recording(1)], Doubts(0, 1, {}, {}, {}, True, False)),
        (
            [recording(n, job={"rank": 7, "world_size": size}) for n, size in enumerate((2, 4, 2))],
            Doubts(0, None, {2: (0, 2), 4: (1,)}, {}, {7: (0, 1, 2)}, True, False),
        ),
        ([recording(n, trace={"rank": -1, "world_size": None}) for n in range(2)], NONE),
        (
            [recording(0, ("B", "A", "GPU 3")), recording(1, ("A",)), recording(2, ("GPU 0",)), recording(3, ("A",))],
            Doubts(0, None, {}, {"A, B": (0,), "A": (1, 3)}, {}, True, False),
        ),
        (
            [recording(0, ("A",)), recording(1, ("GPU 0",), devices=[{"name": "B"}, {"name": 3}, "C", {"name": "B"}])],
            Doubts(0, None, {}, {"A": (0,), "B": (1,)}, {}, True, False),
        ),
        ([recording(0, ("A",)), recording(1, ("A",), devices=[{"name": "B"}])], NONE),
        ([recording(0), recording(1, reduced=True)], Doubts(0, None, {}, {}, {}, True, True)),
        (
            [recording(0), ByHand().step(0, 9).kernel("gemm", 1, 2, 3).recording(rank=1)],
            Doubts(0, None, {}, {}, {}, False, False),
        ),
    ],
)
def test_what_the_ranks_tell_of_their_job_is_compared(recordings: list[Recording], doubts: Doubts) -> None:
    assert _doubts_of(recordings) == doubts


def test_samples_are_the_mean_of_the_steps_that_have_them() -> None:
    one, other, none = (recording(rank) for rank in (1, 2, 3))
    one.steps["samples"] = pd.array([8, *[None] * (len(one.steps) - 2), 16], dtype="Int64")
    other.steps["samples"] = 4

    assert _samples([one, other, none]) == {1: 12.0, 2: 4.0}


def test_the_only_step_of_a_trace_without_marks_is_mentioned() -> None:
    def of(marked: bool) -> Recording:
        made = recording(trace={"steps_marked": marked})
        made.steps["step"] = 5
        return made

    assert _only_step(of(False)) == 5
    assert _only_step(of(True)) is None
    assert _only_step(recording()) is None


def test_waits_are_those_of_the_same_collective_on_the_ranks_own_clock() -> None:
    calls = pd.DataFrame({"begin_ns": [10, 10, 30, 50], "end_ns": [20, 25, 40, 60]})
    shared = pd.DataFrame(
        [(0, 1010, 1020, 3), (0, 1010, 1020, 9), (1, 1010, 1025, 4), (0, 1030, 1040, 5)],
        columns=["rank", "start_ns", "end_ns", "waiting_ns"],
    )
    summary: Any = SimpleNamespace(collectives=shared, base_ns={0: 1000, 1: 1000})

    assert with_waits(calls, summary, 0)["waiting_ns"].tolist() == [3, pd.NA, 5, pd.NA]
    assert with_waits(calls, summary, 1)["waiting_ns"].tolist() == [pd.NA, 4, pd.NA, pd.NA]


def test_the_parts_of_a_ranks_mean_step_do_not_overlap() -> None:
    columns = ["rank", "computation_ms", "overlap_ms", "exposed_ms", "copying_ms", "idle_ms"]
    parts = _parts(pd.DataFrame([(0, 5.0, 1.0, 2.0, 3.0, 4.0), (0, 7.0, 3.0, 2.0, 3.0, 4.0)], columns=columns))

    assert parts.to_dict("index") == {
        0: {"computing_ms": 4.0, "both_ms": 2.0, "exposed_ms": 2.0, "copying_ms": 3.0, "idle_ms": 4.0}
    }


def test_a_hosts_steps_are_its_phases_and_its_collectives() -> None:
    own = {"host_to_device": 1.0, "forward": 2.0, "loss": 3.0, "backward": 4.0, "optimizer": 5.0, "data": 6.0}
    phases = pd.DataFrame([{**dict.fromkeys(PHASES, 0.0), **own, "communication": 7.0, "other": 8.0}] * 3)
    phases.index = pd.Index([4, 5, 6], name="step")
    # Of step 4, 10 ms in two collectives at once; of step 5, less than was waited; of step 6, more than was computed.
    flying = [(0, 0, 8), (0, 5, 10), (1, 0, 3), (2, 0, 40)]
    calls = pd.DataFrame([(n, a * 10**6, b * 10**6) for n, a, b in flying], columns=["step", "start_ns", "end_ns"])
    host = HostRank(phases, pd.DataFrame(), calls, pd.DataFrame())

    found = with_host_times(pd.DataFrame({"step": pd.array([4, 5, 6], dtype="Int64")}), host)

    assert found["computation_ms"].tolist() == [15.0] * 3
    assert found["exposed_ms"].tolist() == [7.0] * 3
    assert found["communication_ms"].tolist() == [10.0, 7.0, 40.0]
    assert found["overlap_ms"].tolist() == [3.0, 0.0, 15.0]
    assert found["idle_ms"].tolist() == [14.0] * 3
    empty = with_host_times(pd.DataFrame({"step": [4]}), HostRank(phases, pd.DataFrame(), calls[:0], pd.DataFrame()))
    assert empty["communication_ms"].tolist() == [7.0]


def test_a_rank_waits_alone_in_the_communication_of_its_lane() -> None:
    rows = [("forward", 0, 9), ("communication", 20, 30), ("communication", 10, 20), ("communication", 40, 45)]
    lane = pd.DataFrame(rows, columns=["part", "start_ns", "end_ns"])

    alone = waits_alone(HostRank(pd.DataFrame(), pd.DataFrame(), pd.DataFrame(), lane), 1000)

    assert list(zip(alone.start.tolist(), alone.end.tolist(), strict=True)) == [(1010, 1030), (1040, 1045)]
