"""The rules about a job: what each needs to report a finding, its bound, and the ranks that it names."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from perfnb.findings.finding import Finding
from perfnb.ranks.buckets import BucketSizes
from perfnb.ranks.findings import (
    RanksFacts,
    communication,
    copies,
    larger_buckets,
    listed,
    straggler,
    unbalanced_input,
)
from perfnb.ranks.host import HostRank, LateWork, late_work
from perfnb.ranks.lateness import Lateness

PARTS = ("computing_ms", "both_ms", "exposed_ms", "copying_ms", "idle_ms")


def facts(
    waiting: Mapping[int, float | None],
    parts: Mapping[int, tuple[float, ...]] | None = None,
    step_ms: float = 100.0,
    traced_ms: float = 100.0,
    data: Mapping[int, float] | None = None,
    **known: Any,
) -> RanksFacts:
    """Return facts with the ms that each rank waits, spends in `PARTS` and waits for data."""
    times = pd.DataFrame({"rank": list(waiting), "waiting_ms": pd.array(list(waiting.values()), dtype="Float64")})
    frame = pd.DataFrame(parts or {}, index=list(PARTS)).T
    phases = {rank: pd.DataFrame({"data": [ms]}) for rank, ms in (data or {}).items()}
    hosts = {rank: HostRank(one, pd.DataFrame(), pd.DataFrame(), pd.DataFrame()) for rank, one in phases.items()}
    summary = {"straggler": None, "late": None, "lateness": None, "samples": {}, "host": hosts, "parts": frame}
    summary |= {"times": times.assign(wall_ms=traced_ms)}
    buckets = known.pop("buckets", None)
    return RanksFacts(SimpleNamespace(**summary | known), buckets, step_ms)  # type: ignore[arg-type]


def bounds(found: Any) -> list[float | None]:
    return [pytest.approx(one.bound_ms) for one in found]


def ranks_of(one: Finding) -> list[str]:
    return [row.name for row in one.rows if row.kind == "rank"]


def test_without_a_straggler_there_is_no_finding() -> None:
    assert list(straggler(facts({0: 30.0, 1: 0.0}))) == []


def test_the_others_wait_for_the_straggler_on_average() -> None:
    (one,) = straggler(facts({0: 30.0, 1: 2.0, 2: 10.0}, straggler=1))

    assert one.bound_ms == pytest.approx(20.0)
    assert "The other ranks wait 20.0 ms per step for it (20 % of the step), but it waits 2.00 ms." in one.evidence
    assert ranks_of(one) == ["1"]
    assert not one.why.endswith("confidence).")


def test_times_of_traced_steps_are_scaled_to_the_timed_step() -> None:
    job = facts({0: 30.0, 1: 2.0}, {0: (40.0, 0.0, 30.0, 12.0, 0.0)}, step_ms=50.0, straggler=1)

    assert job.scale == pytest.approx(0.5)
    assert bounds(straggler(job)) == [15.0]
    assert job.waiting_ms.to_dict() == pytest.approx({0: 15.0, 1: 1.0})
    assert job.part_ms("copying_ms") == pytest.approx(6.0)


def test_the_late_work_and_the_evidence_are_reported() -> None:
    late = LateWork("backward", 8.0, "net.head", 6.0)
    sure = Lateness(1, 28.0, 26.0, 30.0, 9, 4, 10, True, False)

    (one,) = straggler(facts({0: 30.0, 1: 0.0}, traced_ms=200.0, straggler=1, late=late, lateness=sure))

    assert "but it waits for no other rank. It is late in backward, which takes 4.00 ms longer than on" in one.evidence
    assert one.evidence.endswith("on the others, mostly in net.head (3.00 ms).")
    assert [(row.kind, row.name) for row in one.rows] == [("rank", "1"), ("phase", "backward"), ("layer", "net.head")]
    assert "waited at least 13.0 ms to 15.0 ms longer per step (10 collectives in 4 steps, 90 % confidence)" in one.why

    by_sign = Lateness(1, 28.0, None, None, 9, 1, 10, True, False)
    late = LateWork("host_to_device", 8.0, "", 0.0)
    (one,) = straggler(facts({0: 30.0, 1: 0.0}, straggler=1, late=late, lateness=by_sign))

    assert one.evidence.endswith("It is late in host to device, which takes 8.00 ms longer than on the others.")
    assert [(row.kind, row.name) for row in one.rows] == [("rank", "1"), ("phase", "host_to_device")]
    assert one.why.endswith(" The other ranks waited longer in 9 of 10 collectives in 1 step.")


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ({0: 8.0, 1: 16.0}, [28.0]),
        ({0: 19.0, 1: 21.0}, []),  # 5 % more than the mean
        ({0: 18.9, 1: 21.1}, [28.0]),
        ({0: 16.0, 1: 16.0}, []),
        ({}, []),
    ],
)
def test_a_rank_with_more_samples_is_unbalanced_input(samples: dict[int, float], expected: list[float]) -> None:
    found = list(unbalanced_input(facts({0: 30.0, 1: 2.0}, samples=samples)))

    assert bounds(found) == expected
    assert all(ranks_of(one) == ["1"] and one.confidence == "high" for one in found)


def test_samples_of_ranks_whose_waits_are_unknown_do_not_count() -> None:
    assert list(unbalanced_input(facts({0: 30.0, 1: 2.0, 2: None}, samples={0: 8.0, 1: 8.0, 2: 99.0}))) == []
    assert list(unbalanced_input(facts({0: None, 1: 2.0}, samples={0: 8.0, 1: 99.0}))) == []


@pytest.mark.parametrize(
    ("data", "late", "expected"),
    [
        ({0: 1.0, 1: 9.0, 2: 3.0}, 1, [7.0]),  # 9 - 2
        ({0: 1.0, 1: 90.0, 2: 3.0}, 1, [20.0]),  # as long as the others wait
        ({0: 1.0, 1: 4.0, 2: 3.0}, 1, []),  # 2 ms of 100 are not worth it
        ({0: 1.0, 1: 4.1, 2: 3.0}, 1, [2.1]),
        ({0: 1.0, 1: 9.0, 2: 3.0}, None, []),
        ({0: 1.0, 1: 9.0, 2: 3.0}, 0, []),
        ({1: 9.0}, 1, []),
        ({}, 1, []),
    ],
)
def test_a_late_rank_that_waits_longest_for_data_is_unbalanced_input(
    data: dict[int, float], late: int | None, expected: list[float]
) -> None:
    found = list(unbalanced_input(facts({0: 30.0, 1: 0.0, 2: 10.0}, data=data, straggler=late)))

    assert bounds(found) == expected
    assert all(ranks_of(one) == ["1"] and one.confidence == "medium" for one in found)


def test_what_uneven_data_explains_is_not_the_stragglers() -> None:
    def bound(data_ms: float) -> list[float | None]:
        return bounds(straggler(facts({0: 20.0, 1: 0.0}, data={0: 0.0, 1: data_ms}, straggler=1)))

    assert bound(1.0) == [20.0]
    assert bound(12.0) == [8.0]
    assert bound(17.0) == [3.0]
    assert bound(18.0) == []  # 2 ms of 100 are not worth it
    assert bounds(straggler(facts({0: 1.0, 1: 0.0}, straggler=1))) == [1.0]


def sizes(fewer_ms: float | None, low_ms: float | None = 1.0) -> BucketSizes:
    return BucketSizes(9.0, 1e6, 1.5, low_ms, 2.0, 1e9, fewer_ms, 20.0, "")


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        (sizes(10.0), [10.0]),
        (sizes(2.1), [2.1]),
        (sizes(2.0), []),
        (sizes(10.0, 0.0), []),
        (sizes(10.0, None), []),
        (sizes(None), []),
        (None, []),
    ],
)
def test_larger_buckets_need_a_latency_that_is_worth_it(buckets: BucketSizes | None, expected: list[float]) -> None:
    assert bounds(larger_buckets(facts({0: 0.0, 1: 0.0}, buckets=buckets))) == expected


@pytest.mark.parametrize(("copying", "expected"), [(5.1, [5.0]), (5.0, [4.9]), (4.9, []), (0.0, [])])
def test_copies_are_the_mean_of_the_ranks(copying: float, expected: list[float]) -> None:
    parts = {0: (30.0, 4.0, 9.0, copying + 0.1, 0.0), 1: (50.0, 8.0, 9.0, copying - 0.3, 0.0)}
    found = list(copies(facts({0: 0.0, 1: 0.0}, parts, step_ms=98.0, traced_ms=98.0)))

    assert bounds(found) == expected
    assert all("They compute for 46.0 ms." in one.evidence for one in found)


@pytest.mark.parametrize(
    ("waiting", "exposed", "expected", "confidence"),
    [
        ({0: 10.0, 1: 2.0}, 40.0, [34.0], "medium"),  # without the wait of 6 ms
        ({0: 10.0, 1: 2.0}, 11.0, [5.0], "medium"),
        ({0: 10.0, 1: 2.0}, 10.9, [], "medium"),
        ({0: None, 1: None}, 11.0, [11.0], "low"),
    ],
)
def test_communication_is_what_is_not_waiting(
    waiting: dict[int, float | None], exposed: float, expected: list[float], confidence: str
) -> None:
    parts = dict.fromkeys((0, 1), (30.0, 4.0, exposed, 0.0, 0.0))
    found = list(communication(facts(waiting, parts)))

    assert bounds(found) == expected
    assert all(one.confidence == confidence for one in found)
    unsure = "may include waiting for other ranks"
    assert all((unsure in one.evidence) == (confidence == "low") for one in found)


def test_parts_of_a_step_that_are_unknown_take_no_time() -> None:
    assert facts({0: None}, {0: (float("nan"),) * 5}).part_ms("copying_ms") == 0.0
    assert list(copies(facts({0: None}, {0: (float("nan"),) * 5}))) == []


def test_ranks_in_words() -> None:
    assert listed([3]) == "rank 3"
    assert listed(range(8)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7"
    assert listed(range(9)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more"
    assert listed([4, 5], "Ranks") == "Ranks 4, 5"
    assert listed([4], "Ranks") == "Rank 4"


def host(phases: dict[str, tuple[float, ...]], *layers: tuple[str, str, float]) -> HostRank:
    of_layers = pd.DataFrame(layers, columns=["phase", "layer", "ms"])
    return HostRank(pd.DataFrame(phases), of_layers, pd.DataFrame(), pd.DataFrame())


HOSTS = {
    0: host(
        {"forward": (9.0, 11.0), "backward": (5.0, 5.0), "communication": (50.0, 50.0)},
        *(("backward", "", 1.0), ("backward", "net.a", 2.0), ("forward", "net.b", 1.0)),
    ),
    1: host(
        {"forward": (12.0, 12.0), "backward": (8.0, 10.0), "communication": (0.0, 0.0)},
        *(("backward", "", 8.0), ("backward", "net.a", 3.0), ("backward", "net.b", 0.5), ("forward", "net.b", 99.0)),
    ),
    2: host(
        {"forward": (14.0, 14.0), "backward": (5.0, 5.0), "communication": (9.0, 9.0)},
        *(("backward", "net.a", 1.0), ("backward", "net.b", 0.2)),
    ),
}


def test_the_late_work_is_what_takes_longest_beyond_the_mean_of_the_others() -> None:
    assert late_work(HOSTS, 1) == LateWork("backward", pytest.approx(4.0), "net.a", pytest.approx(1.5))
    assert late_work(HOSTS, 2) == LateWork("forward", pytest.approx(3.0), "", 0.0)
    assert late_work(HOSTS, 0) is None  # all that takes longer is communication
    assert late_work({0: HOSTS[0], 2: HOSTS[2]}, 2) == LateWork("forward", pytest.approx(4.0), "", 0.0)


@pytest.mark.parametrize(("ranks", "late"), [((0, 1), None), ((0, 2), 1), ((1,), 1), ((), 1)])
def test_without_the_work_of_the_straggler_and_another_rank_nothing_is_late(
    ranks: tuple[int, ...], late: int | None
) -> None:
    assert late_work({rank: HOSTS[rank] for rank in ranks}, late) is None


def test_layers_that_take_no_longer_are_not_late() -> None:
    alike = {
        rank: host({"forward": (ms,), "communication": (0.0,)}, ("forward", "net", 2.0))
        for rank, ms in ((0, 2.0), (1, 3.0))
    }
    assert late_work(alike, 1) == LateWork("forward", pytest.approx(1.0), "", 0.0)
