"""Collectives close together, evenly, lost, and many: clocks and waiting are right, or said not to be known."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfnb.ranks.collectives import (
    Ends,
    TwoRanks,
    _frequent,
    _nearest_place,
    collectives,
    matching,
    waited_for,
    waits,
    with_waiting,
)
from tests.traces_by_hand import Trace

AHEAD_NS = 5_000_000_000
NCCL = "ncclDevKernel_AllReduce"


def table(rank: int, end: np.ndarray, duration: int, step: int | np.ndarray = 1, group: str = "") -> pd.DataFrame:
    rows = pd.DataFrame(
        {"rank": rank, "step": step, "kind": "allreduce", "group": group, "on_host": False}, index=range(len(end))
    )
    return rows.assign(start_ns=end - duration, end_ns=end)


def ends(gap_us: int | str, count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    gaps = random.integers(30_000, 900_000, count) if gap_us == "uneven" else np.full(count, int(gap_us) * 1000)
    if gap_us == "uneven":
        gaps[::7] = 9_000_000  # bursts, then nothing
    return np.asarray(np.cumsum(gaps)) + 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([], [(10, 20, True)]),  # the operator that started it, unless it only launched a kernel
        *[([("nccl:all_reduce", 12, 18)], []), ([("nccl:coalesced", 12, 18)], [(10, 20, True)])],
        *[([("gloo:all_reduce", 12, 50)], [(12, 50, True)]), ([(NCCL, 30, 60)], [(30, 60, False)])],
        *[([("gemm", 30, 60)], []), ([(NCCL, 7, 8), (NCCL, 5, 9)], [(5, 9, False), (7, 8, False)])],
        ([(NCCL, 7, 9), ("gloo:all_reduce", 5, 6)], [(7, 9, False), (5, 6, True)]),
    ],
)
def test_collectives_ran_on_the_device_or_else_on_the_host(
    others: list[tuple[str, int, int]], found: list[tuple[int, int, bool]]
) -> None:
    trace = Trace().event("ProfilerStep#4", 0, 100, "user_annotation").event("c10d::allreduce_", 10, 20)
    for name, begin, end in others:
        _ = trace.event(name, begin, end, "user_annotation") if ":" in name else trace.work(name, begin, end)

    rows = collectives(trace.frame(), 3, 1000)

    expected = [[3, 4, "allreduce", "", 1000 * (1 + a), 1000 * (1 + b), host] for a, b, host in found]
    assert rows.to_numpy().tolist() == expected
    assert collectives(trace.frame(), 3, 1000, step=7)["step"].tolist() == [7] * len(found)


@pytest.mark.parametrize("gap_us", [50, "uneven"])
@pytest.mark.parametrize("off_ns", [0, 2_000])
@pytest.mark.parametrize("steps", [1, 5])
def test_collectives_close_together(gap_us: int | str, off_ns: int, steps: int) -> None:
    end = ends(gap_us, 60)
    random = np.random.default_rng(1)
    others = end + AHEAD_NS + (random.integers(-off_ns, off_ns, len(end)) if off_ns else 0)
    step = np.arange(60) * steps // 60

    matched, clocks = matching({0: table(0, end, 25_000, step), 1: table(1, others, 10_000, step)})

    assert clocks["ahead_us"].tolist() == pytest.approx([0, AHEAD_NS / 1e3], abs=off_ns / 1e3 + 1e-3)
    assert clocks["spread_us"].max() <= off_ns / 1e3
    assert clocks["collectives"].tolist() == [60, 60]
    waited = waits(with_waiting(matched, clocks)).groupby("rank")["waiting_ms"].sum()
    assert waited.tolist() == pytest.approx([60 * 0.015, 0], abs=60 * off_ns / 1e6 + 1e-6)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sets(st.integers(0, 59), max_size=6), st.sets(st.integers(0, 59), max_size=6))
def test_lost_collectives_at_uneven_distances(seed: int, lost: set[int], lost_too: set[int]) -> None:
    end = ends("uneven", 60, seed)
    # Two, each lost by one rank alone, that are near each other pass for one.
    near = np.median(np.diff(end))
    assume(all(abs(end[a] - end[b]) > near for a in lost - lost_too for b in lost_too - lost))
    mine = np.delete(end, sorted(lost))
    others = np.delete(end, sorted(lost_too)) + AHEAD_NS

    matched, clocks = matching({0: table(0, mine, 9_000), 1: table(1, others, 9_000)})

    assert clocks["ahead_us"].tolist() == pytest.approx([0, AHEAD_NS / 1e3], abs=1e-3)
    assert clocks["collectives"].tolist() == [60 - len(lost | lost_too)] * 2
    assert (matched["end_ns"] - matched["rank"] * AHEAD_NS).groupby(matched["place"]).nunique().eq(1).all()


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([50, 200, 500]), st.sets(st.integers(0, 59), max_size=4), st.sets(st.integers(0, 59), max_size=4)
)
def test_lost_collectives_at_even_distances_give_the_truth_or_nothing(
    gap_us: int, lost: set[int], lost_too: set[int]
) -> None:
    end = ends(gap_us, 60)
    if len(lost) == len(lost_too):
        lost_too = lost  # else the n-th of each would be taken for one
    mine = np.delete(end, sorted(lost))
    others = np.delete(end, sorted(lost_too)) + AHEAD_NS

    _, clocks = matching({0: table(0, mine, 9_000), 1: table(1, others, 9_000)})

    ahead = clocks.loc[1, "ahead_us"]
    assert pd.isna(ahead) or ahead == pytest.approx(AHEAD_NS / 1e3)


@pytest.mark.parametrize("lost", [0, 5])
def test_twenty_thousand_of_one_kind_in_one_step_need_little_memory(lost: int) -> None:
    end = ends("uneven", 20_000)
    others = np.delete(end, np.arange(lost) * 999) + 7_777
    tables = {0: table(0, end, 9_000), 1: table(1, others, 9_000)}
    tracemalloc.start()
    try:
        _, clocks = matching(tables)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert most < 100 * 2**20
    assert clocks["collectives"].tolist() == [20_000 - lost] * 2
    assert clocks["ahead_us"].tolist() == pytest.approx([0, 7.777])


def test_times_that_int64_cannot_tell_apart_are_not_known() -> None:
    end = ends(500, 9)
    far = np.array([-(2**63) + 10**6, *range(10**6, 9 * 10**6, 10**6)], dtype=np.int64)

    near, wide = end - end[0], np.arange(9) * 2**56
    for one, other in ((end, far), (far, far), (far, -end), (near, near + 2**62), (wide, wide)):
        _, clocks = matching({0: table(0, one, 0), 1: table(1, other, 0)})
        assert clocks["ahead_us"].isna().tolist() == [False, True]


def test_a_rank_is_waited_for_by_those_of_its_groups() -> None:
    """In groups of two and of two others; and all four, by way of a second kind of group."""
    end = ends("uneven", 40)
    durations = (30_000, 30_000, 30_000, 10_000)
    tables = {rank: table(rank, end, durations[rank], group=f"{rank // 2}") for rank in range(4)}
    matched, clocks = matching(tables)
    assert clocks["reference"].tolist() == [0, 0, 2, 2]
    assert waited_for(with_waiting(matched, clocks)).to_dict() == pytest.approx({0: 0, 1: 0, 2: -0.8, 3: 0.8})

    crossing = {rank: table(rank, end + 15_000_000, durations[rank], group=f"x{rank % 2}") for rank in range(4)}
    both = {rank: pd.concat([tables[rank], crossing[rank]], ignore_index=True) for rank in range(4)}
    matched, clocks = matching(both)
    assert clocks["reference"].tolist() == [0] * 4
    assert clocks["collectives"].tolist() == [80] * 4
    assert waited_for(with_waiting(matched, clocks))[3] == pytest.approx(0.8)


def test_the_most_frequent_differences_are_medians_of_their_windows() -> None:
    differences = np.array([14, 0, 100, 11, 10, 101, 13, 12, 1])
    assert _frequent(differences, 5, 1) == [12]
    assert sorted(_frequent(differences, 5, 3)) == [0, 12, 100]
    assert _frequent(differences, 5, 9) == _frequent(differences, 5, 3)
    assert _frequent(differences[:0], 5, 3) == []


@pytest.mark.parametrize(
    ("wanted", "place"), [(-9, 0), (0, 0), (5, 0), (6, 1), (10, 1), (14, 1), (15, 1), (16, 2), (20, 2), (99, 2)]
)
def test_the_nearest_of_two_is_the_earlier_if_both_are_as_near(wanted: int, place: int) -> None:
    assert _nearest_place(np.array([0, 10, 20]), np.array([wanted])).tolist() == [place]


@pytest.mark.parametrize(
    ("keys", "other_keys", "shift", "from_end", "pairs"),
    [
        ([0, 0], [0, 0], 0, False, [(0, 0), (1, 1)]),
        ([0, 0, 0], [0, 0], 0, False, []),
        ([0, 0, 0], [0, 0], 1, False, [(0, 1)]),
        ([0, 0, 0], [0, 0], -1, False, [(1, 0), (2, 1)]),
        ([0, 0, 0], [0, 0], 0, True, [(1, 0), (2, 1)]),
        ([0, 0, 0], [0, 0], 1, True, [(0, 0), (1, 1)]),
        ([0, 0, 0], [0, 0], -1, True, [(2, 0)]),
        ([0, 0, 1], [0, 0, 1, 1], 0, False, [(0, 0), (1, 1)]),
        ([0, 0, 1], [0, 0, 1, 1], 0, True, [(0, 0), (1, 1), (2, 3)]),
        ([0, 0, 1], [0, 0, 1, 1], 1, False, [(0, 1), (2, 3)]),
    ],
)
def test_pairs_are_of_one_key_and_counted_from_either_end(
    keys: list[int], other_keys: list[int], shift: int, from_end: bool, pairs: list[tuple[int, int]]
) -> None:
    both = TwoRanks(*(Ends(np.array(k), np.arange(len(k)) * 10**6, np.zeros(len(k), bool)) for k in (keys, other_keys)))

    mine, others = both._nth(shift, from_end)

    assert list(zip(mine.tolist(), others.tolist(), strict=True)) == pairs


@pytest.mark.parametrize(("most", "chosen"), [(99, [0, 1, 2, 3, 4]), (6, [0, 2, 4]), (2, [0])])
def test_of_too_many_pairs_an_even_sample_is_compared(
    monkeypatch: pytest.MonkeyPatch, most: int, chosen: list[int]
) -> None:
    monkeypatch.setattr("perfnb.ranks.collectives._PAIRS", most)
    mine, others = np.arange(5) * 1000, np.array([10_000, 10_007])
    both = TwoRanks(Ends(np.zeros(5, int), mine, np.zeros(5, bool)), Ends(np.zeros(2, int), others, np.zeros(2, bool)))

    found = both._some_differences()

    assert sorted(found.tolist()) == sorted(other - 1000 * one for one in chosen for other in others.tolist())


@pytest.mark.parametrize(
    ("off", "by_ns", "known"),
    [((2, 5), 90_000, True), ((2, 4, 6), 90_000, False), ((2, 4, 6), 50_000, True), ((2, 4, 6), 50_001, False)],
)
def test_pairs_in_order_must_agree_in_three_of_four_to_a_quarter_of_their_distance(
    off: tuple[int, ...], by_ns: int, known: bool
) -> None:
    end = ends(200, 8)  # evenly, so that only their order tells them apart
    others = end + AHEAD_NS
    others[list(off)] += by_ns
    one_kind = np.zeros(8, dtype=np.int64)
    both = TwoRanks(*(Ends(one_kind, times, one_kind > 0) for times in (end, others)))

    _, clocks = matching({0: table(0, end, 9_000), 1: table(1, others, 9_000)})

    assert both._by_order() == (AHEAD_NS if known else None)
    assert clocks["ahead_us"].notna().tolist() == [True, known]
    if known:
        assert clocks.loc[1, "ahead_us"] == pytest.approx(AHEAD_NS / 1e3)


@pytest.mark.parametrize(
    ("alike", "mine", "others", "known"), [(2, 0, 0, False), (3, 0, 0, True), (4, 5, 4, True), (4, 6, 5, False)]
)
def test_three_and_half_of_the_collectives_have_an_order(alike: int, mine: int, others: int, known: bool) -> None:
    """Only kinds of which both ranks have as many have an order."""
    keys = [np.array([0] * alike + [1] * rest) for rest in (mine, others)]
    both = TwoRanks(*(Ends(key, np.arange(len(key)) * 10**6, key < 0) for key in keys))

    assert both._by_order() == (0 if known else None)


@pytest.mark.parametrize(
    ("uneven", "lost", "known"),
    [(0, [0], False), (1, [0], False), (1, [6], True), (2, [0, 12], False), (3, [0, 12], True)],
)
@pytest.mark.parametrize("gap_us", [50, 200])
def test_an_offset_must_fit_clearly_better_than_others(gap_us: int, uneven: int, lost: list[int], known: bool) -> None:
    gaps = np.full(12, gap_us * 1000)
    gaps[1 : 2 * uneven : 2] += gap_us * 450
    end = np.cumsum([10**9, *gaps])

    matched, clocks = matching({0: table(0, end, 9_000), 1: table(1, np.delete(end, lost) + AHEAD_NS, 9_000)})

    assert clocks["ahead_us"].dropna().tolist() == [0, AHEAD_NS / 1e3][: 1 + known]
    assert clocks["reference"].notna().tolist() == [True, known]
    assert clocks["collectives"].tolist() == [(13 - len(lost)) * known] * 2
    assert waits(with_waiting(matched, clocks)).empty == (not known)


def two_ranks(end: list[int], other: list[int], keys: list[int] | None = None) -> TwoRanks:
    key = np.array(keys or [0] * len(end))
    return TwoRanks(*(Ends(key, np.array(times) + 10**9, key < 0) for times in (end, other)))


@pytest.mark.parametrize(
    ("gaps", "window", "surely"),
    [
        ([], 1_000_000, 1_000_000),
        ([200_000] * 3, 50_000, 100_000),
        ([40_000] * 3, 20_000, 20_000),
        ([50_000] * 3, 20_000, 25_000),
        ([3_000_000] * 3, 750_000, 1_000_000),
        ([8_000_000] * 3, 1_000_000, 1_000_000),
        ([800_000] * 5 + [40_000, 400_000] + [800_000] * 4, 100_000, 100_000),  # one in ten may be closer
    ],
)
def test_ends_may_differ_by_a_part_of_their_distance(gaps: list[int], window: int, surely: int) -> None:
    end = [0, *np.cumsum(gaps).tolist()]

    assert two_ranks(end, end)._tolerance() == (window, surely)
    of_two_kinds = two_ranks([*end, *(one + 7 for one in end)], [*end, *end], [0] * len(end) + [1] * len(end))
    assert of_two_kinds._tolerance() == (window, surely)


@pytest.mark.parametrize(
    ("off", "lost"),
    [
        ({}, []),
        ({2: 50_000, 4: 100_000, 6: -100_000}, []),  # six of eight are within the window, so the others may be farther
        ({2: 50_001, 4: 90_000, 6: 90_000}, [2, 4, 6]),
        ({4: 100_001, 6: 90_000}, [4]),
    ],
)
def test_pairs_in_order_may_be_farther_apart_if_three_of_four_agree(off: dict[int, int], lost: list[int]) -> None:
    end = [200_000 * place for place in range(8)]
    both = two_ranks(end, [one + 7 + off.get(place, 0) for place, one in enumerate(end)])

    mine, others = both.same(7)

    assert sorted(mine.tolist()) == [place for place in range(8) if place not in lost]
    assert mine.tolist() == others.tolist()
    assert sorted(both._nearest(7)[0].tolist()) == [at for at in range(8) if abs(off.get(at, 0)) <= 50_000]


def test_many_lost_from_the_start_and_the_end_of_two_steps_are_found() -> None:
    """No shift of the order by a few fits."""
    end = ends("uneven", 60)
    step = np.arange(60) // 30
    kept = (np.arange(60) % 30 >= 6) & (np.arange(60) % 30 < 23)

    matched, clocks = matching({0: table(0, end, 9_000, step), 1: table(1, end[kept] + 123_000, 9_000, step[kept])})

    assert clocks["ahead_us"].tolist() == pytest.approx([0, 123])
    assert clocks["collectives"].tolist() == [34, 34]
    assert (matched["end_ns"] - matched["rank"] * 123_000).groupby(matched["place"]).nunique().eq(1).all()


@pytest.mark.parametrize(("count", "known"), [(1, False), (2, False), (3, True)])
def test_a_clock_needs_three_collectives(count: int, known: bool) -> None:
    end = ends("uneven", count)

    _, clocks = matching({0: table(0, end, 9_000), 1: table(1, end + 500, 9_000)})

    assert clocks["ahead_us"].notna().tolist() == [True, known]
    assert clocks["collectives"].tolist() == [count if known else 0] * 2


def test_the_spread_of_a_clock_is_half_of_the_middle_half_of_its_differences() -> None:
    """Ranks 0 and 2 share nothing, but both share with rank 1. Offsets and spreads add up along the chain."""
    end, off = ends(500, 8), np.array([0, 0, 0, 40, 40, 40, 400, 400]) * 1000  # the last two are too far off
    first, second = (table(1, end + 7_000 + late, 9_000, group=group) for group, late in (("a", off), ("b", 0)))
    tables = {0: table(0, end, 9_000, group="a"), 1: pd.concat([first, second], ignore_index=True)}

    _, clocks = matching({**tables, 2: table(2, end + 2_000 + off, 9_000, group="b")})

    assert clocks["ahead_us"].tolist() == pytest.approx([0, 7 + 20, 2 + 20 + 20])
    assert clocks["spread_us"].tolist() == pytest.approx([0, 20, 40])


def test_collectives_of_another_kind_group_or_step_are_not_the_same() -> None:
    end = ends("uneven", 8)
    mine = table(0, end, 9_000)

    for change in ({"kind": "allgather"}, {"group": "other"}, {"step": 2}, {"on_host": True}):
        matched, clocks = matching({0: mine, 1: table(1, end, 9_000).assign(**change)})
        assert matched.empty
        assert clocks["ahead_us"].isna().tolist() == [False, True]


def test_collectives_of_the_host_are_the_same_in_order_however_far_apart_they_end() -> None:
    end = ends("uneven", 2)
    late = end + AHEAD_NS + np.array([0, 40_000_000])

    matched, clocks = matching(
        {0: table(0, end, 9_000).assign(on_host=True), 1: table(1, late, 9_000).assign(on_host=True)}
    )

    assert clocks["collectives"].tolist() == [2, 2]
    assert clocks.loc[1, "ahead_us"] == pytest.approx(AHEAD_NS / 1e3 + 20_000)
    assert matched.groupby("place")["rank"].apply(sorted).tolist() == [[0, 1]] * 2
    assert matched.sort_values(["rank", "end_ns"])["place"].tolist() == matched["place"].tolist()[:2] * 2
