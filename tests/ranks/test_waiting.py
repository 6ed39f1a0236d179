"""How long each rank waits in shared collectives, by hand: on its own clock, once, and compared with other ranks."""

from __future__ import annotations

import pandas as pd

from perfnb.attribution.interval_sets import IntervalSet, union
from perfnb.ranks.collectives import waited_beyond, waited_for, waits, with_waiting


def shared(*rows: tuple[int, int, int, int], ahead_ns: tuple[int, ...] = (0, 0), **rest: object) -> pd.DataFrame:
    """Return the waits in collectives with these ranks, places, starts and ends."""
    matched = pd.DataFrame(rows, columns=["rank", "place", "start_ns", "end_ns"])
    matched = matched.assign(step=matched["place"] // 10, kind="allreduce", group="", on_host=False)
    clocks = pd.DataFrame({"ahead_us": pd.array([ns / 1e3 for ns in ahead_ns], dtype="Float64")})
    alone = rest.pop("alone", {})
    return with_waiting(matched.assign(**rest), clocks, alone)  # type: ignore[arg-type]


def test_a_rank_waits_until_the_last_one_comes_but_not_longer_than_its_collective_takes() -> None:
    rows = shared(
        *((0, 1, 100, 500), (1, 1, 1300, 1500)),  # rank 1 comes at 300 on the clock of rank 0
        *((0, 2, 600, 650), (1, 2, 1800, 1900)),
        *((0, 3, 1000, 1200), (1, 3, 2000, 2200)),  # both at once
        ahead_ns=(0, 1000),
    )

    assert rows["on_clock_ns"].tolist() == [100, 300, 600, 800, 1000, 1000]
    assert rows["waiting_ns"].tolist() == [200, 0, 50, 0, 0, 0]
    assert rows["is_last"].tolist() == [False, True, False, True, True, True]
    assert rows["alone_ns"].tolist() == rows["waiting_ns"].tolist()


ON_HOST = (
    *((0, 1, 0, 1000), (0, 2, 50, 1000), (0, 3, 60, 1000), (0, 14, 300, 1000)),
    *((1, 1, 80, 1000), (1, 2, 150, 1000), (1, 3, 70, 1000), (1, 14, 270, 1000)),
)


def test_waits_on_the_host_that_overlap_count_once() -> None:
    rows = shared(*ON_HOST, on_host=True)

    assert rows["waiting_ns"].tolist() == [80, 100, 10, 0, 0, 0, 0, 30]
    assert rows["alone_ns"].tolist() == [80, 70, 0, 0, 0, 0, 0, 30]  # rank 0 until 80, then until 150
    sums = waits(rows)
    assert sums.to_dict("list") == {
        "rank": [0, 0, 1, 1],
        "step": [0, 1, 0, 1],
        "waiting_ms": [150e-6, 0, 0, 30e-6],
    }


def test_only_the_exposed_part_of_a_wait_on_the_host_counts() -> None:
    alone = {0: union(*_ends((20, 60), (100, 120))), 1: IntervalSet(*_ends())}

    rows = shared(*ON_HOST, on_host=True, alone=alone)

    assert rows["alone_ns"].tolist() == [40, 20, 0, 0, 0, 0, 0, 0]
    assert rows["waiting_ns"].tolist() == [80, 100, 10, 0, 0, 0, 0, 30]
    mixed = shared(*ON_HOST, on_host=[True, False] * 4, alone=alone)
    assert mixed["alone_ns"].tolist() == [40, 100, 0, 0, 0, 0, 0, 30]


def _ends(*spans: tuple[int, int]) -> tuple[pd.Series, pd.Series]:
    frame = pd.DataFrame(spans, columns=["start", "end"], dtype="int64")
    return frame["start"].to_numpy(), frame["end"].to_numpy()  # type: ignore[return-value]


def waited(*rows: tuple[int, int, float, int]) -> pd.DataFrame:
    """Return waits with these ranks, places, milliseconds and ends."""
    frame = pd.DataFrame(rows, columns=["rank", "place", "ms", "end_ns"])
    return frame.assign(alone_ns=(frame["ms"] * 1e6).astype("int64"), step=frame["place"])


#: All ranks share the later collective, and only ranks 0 and 1 share the earlier one.
THREE = waited((0, 7, 5.0, 900), (1, 7, 0.0, 900), (2, 7, 3.0, 900), (0, 8, 1.0, 100), (1, 8, 0.0, 100))


def test_a_rank_is_compared_with_the_one_that_waited_least_of_those_it_shares_with() -> None:
    assert waited_for(THREE).to_dict() == {0: -6.0, 1: 3.0, 2: -3.0}
    assert waited_for(THREE.iloc[::-1]).to_dict() == {0: -6.0, 1: 3.0, 2: -3.0}
    assert waited_for(waited((4, 1, 2.0, 9))).empty  # shares with nobody


def test_the_differences_are_those_to_the_rank_that_waited_least() -> None:
    more = waited_beyond(THREE, 0)
    assert more.to_dict("list") == {"step": [8, 7], "more_ms": [-1.0, -5.0]}
    more = waited_beyond(THREE, 1)
    assert more.to_dict("list") == {"step": [7], "more_ms": [3.0]}
    assert waited_beyond(THREE[THREE["rank"] == 1], 1).to_dict("list") == {"step": [], "more_ms": []}
