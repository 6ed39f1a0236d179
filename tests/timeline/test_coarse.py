"""A coarser timeline: short neighbours become blocks, and links and times stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.timeline.data import _shortest_for
from perfnb.timeline.memory import MemoryCurve
from perfnb.timeline.timeline import JOINED, KINDS, Timeline, Track, coarser, longest_of, size_of_coarser
from tests.recordings import US, ByHand
from tests.timeline.test_timeline import timeline, told, training

Made = tuple[int, int, int, str]


def by_hand(*tracks: list[Made], launch: dict[int, int] | None = None) -> Timeline:
    """Return threads of events, each with its start, duration, depth and kind; names are the numbers of the events."""
    events = [event for track in tracks for event in track]
    number = np.arange(len(events))
    start, duration, depth = (np.array([event[part] for event in events], dtype=np.int64) for part in range(3))
    columns = dict.fromkeys(("category", "layer", "detail", "forward"), number * 0)
    columns |= {"start": start, "duration": duration, "depth": depth, "name": number, "event": number}
    columns["kind"] = np.array([KINDS.index(event[3]) for event in events], dtype=np.int64)
    columns["launch"] = np.array([(launch or {}).get(place, -1) for place in number], dtype=np.int64)
    firsts = np.cumsum([0, *map(len, tracks)])
    named = [Track("thread", f"Thread {n}", int(firsts[n]), len(track), 2) for n, track in enumerate(tracks)]
    texts = (tuple(map(str, number)), ("op",), KINDS, ("net",), ("[]",))
    return Timeline(tuple(named), pd.DataFrame(columns), *texts)


def all_told(line: Timeline) -> list[list[tuple[str, float, float, int, str]]]:
    """Return what `told` tells of each track, with depth and start as the order, and times in ns."""
    tracks = [told(line, track) for track in line.tracks]
    scaled = [[(name, begin * US, end * US, depth, kind) for name, begin, end, depth, kind in one] for one in tracks]
    return [sorted(one, key=lambda event: (event[3], event[1])) for one in scaled]


TWO = (
    [
        *[(0, 9, 0, "forward"), (12, 9, 0, "forward"), (30, 9, 0, "backward")],  # 3 and 9 apart
        *[(49, 9, 0, "loss"), (70, 10, 0, "loss")],  # 10 apart, and not short
        *[(81, 5, 0, "forward"), (87, 5, 0, "backward")],
        *[(90, 5, 1, "forward"), (96, 3, 1, "backward")],  # on another line
    ],
    [(99, 5, 1, "forward")],  # on another thread
)


def busy() -> ByHand:
    made = training()
    for place in range(40):  # a crowd, then a long one, then two alone
        made.op("aten::tiny", 1710 + 2 * place, 1711 + 2 * place)
    return made.op("aten::long", 1800, 1850).op("aten::one", 1860, 1861).op("aten::two", 1880, 1881)


def test_short_events_of_a_line_that_are_near_become_blocks_of_what_most_of_them_are() -> None:
    line = by_hand(*TWO, launch={4: 3, 3: 4, 7: 3, 9: 0, 5: 9})

    few = coarser(line, 10)

    assert all_told(few) == [
        [
            ("3 short events", 0, 39, 0, "forward"),
            *[("3", 49, 58, 0, "loss"), ("4", 70, 80, 0, "loss")],
            ("2 short events", 81, 92, 0, "other"),  # of both as much
            ("2 short events", 90, 99, 1, "forward"),
        ],
        [("9", 99, 104, 1, "forward")],
    ]
    assert [(track.first, track.count) for track in few.tracks] == [(0, 5), (5, 1)]
    assert few.rows["launch"].tolist() == [-1, 2, 1, -1, -1, -1]  # no event is in the place of one that was joined
    assert few.rows["event"].tolist() == [-1, 3, 4, -1, -1, 9]
    assert few.rows["forward"].tolist() == [-1] * 6
    for name in ("layer", "detail"):
        assert few.rows[name].tolist() == [-1, 0, 0, -1, -1, 0]
    assert few.rows["category"].map(dict(enumerate(few.categories))).tolist() == [
        *[JOINED, "op", "op", JOINED, JOINED, "op"]
    ]
    assert [size_of_coarser(line, shortest) for shortest in (0, 6, 9, 10, 11)] == [10, 8, 8, 6, 4]
    instants = by_hand([(start, 0, 0, kind) for start, kind in enumerate(("forward", "forward", "backward"))])
    assert all_told(coarser(instants, 10)) == [[("3 short events", 0, 2, 0, "forward")]]


def test_the_longest_events_are_kept_and_of_equals_the_first() -> None:
    line = by_hand(*TWO, launch={4: 3, 0: 4, 2: 9})

    few = longest_of(line, 4)

    assert all_told(few) == [
        [
            *[("0", 0, 9, 0, "forward"), ("1", 12, 21, 0, "forward"), ("2", 30, 39, 0, "backward")],
            ("4", 70, 80, 0, "loss"),
        ]
    ]
    assert few.rows["launch"].tolist() == [3, -1, -1, -1]
    assert few.rows["forward"].tolist() == [0] * 4
    assert [track.title for track in longest_of(line, 10).tracks] == ["Thread 0", "Thread 1"]
    for none in (0, -1):
        assert (len(longest_of(line, none)), longest_of(line, none).tracks) == (0, ())
    assert longest_of(line, 0).span_ns == (0, 0)


@pytest.mark.parametrize("shorten", [lambda line: coarser(line, 1), lambda line: longest_of(line, 1)])
def test_a_long_curve_of_memory_is_thinned_around_its_peak(shorten: Callable[[Timeline], Timeline]) -> None:
    def shortened(count: int) -> MemoryCurve:
        sizes = np.arange(count) % 3
        sizes[777] = 9
        curve = MemoryCurve("cpu", "planted", np.arange(count), sizes)
        (found,) = shorten(replace(by_hand(*TWO), memory=(curve,))).memory
        return found

    assert shortened(4000).times_ns.tolist() == list(range(4000))
    thinned = shortened(8001)
    assert 3000 < len(thinned.bytes) <= 4000
    assert (thinned.times_ns[0], thinned.times_ns[-1]) == (0, 8000)
    assert thinned.bytes.tolist() == [9 if time == 777 else time % 3 for time in thinned.times_ns.tolist()]
    assert 777 in thinned.times_ns


def test_the_shortest_length_at_which_few_enough_remain_is_chosen() -> None:
    lengths = [5, 9, 17, 33, 65, 129]
    starts = np.cumsum([0, *(2 * length for length in lengths)])
    line = by_hand([(int(starts[n]), length, 0, "other") for n, length in enumerate(lengths)])
    for wanted in (5, 4, 3, 2, 1):
        shortest = _shortest_for(line, wanted)
        # A length is tried four times per doubling.
        assert size_of_coarser(line, shortest) <= wanted < size_of_coarser(line, int(shortest / 2**0.25) - 1)
    assert _shortest_for(line, 6) == 1
    assert size_of_coarser(line, _shortest_for(line, 0)) == 1  # fewer there cannot be


@pytest.mark.parametrize("shortest", [0, 3 * US, 12 * US, 100 * US, 10_000 * US])
def test_links_of_a_coarser_timeline_lead_to_the_same_events(shortest: int) -> None:
    line = timeline(busy().kernel("gemm", 1100, 1500, 1600))
    few = coarser(line, shortest)
    original = line.rows.set_index("event")
    for name in ("launch", "forward"):
        linked = few.rows[few.rows[name] >= 0]
        for row in linked.itertuples():
            target = few.rows.iloc[getattr(row, name)]
            before = original.loc[row.event]
            before = before[before["category"] == row.category].iloc[0] if isinstance(before, pd.DataFrame) else before
            assert line.rows["event"].iloc[int(before[name])] == target["event"]
    assert (
        (few.rows[["start", "duration"]].to_numpy()[few.rows["duration"] >= shortest].shape[0])
        >= (line.rows["duration"] >= shortest).sum()
    )
    assert few.span_ns == line.span_ns


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 990), st.integers(0, 300), st.integers(1, 3)), max_size=25), st.integers(1, 400)
)
def test_whatever_the_events_all_are_there_and_time_is_kept(made: list[tuple[int, int, int]], shortest: int) -> None:
    hand = ByHand().step(0, 1000)
    for begin, length, thread in made:
        hand.op("aten::a", begin, begin + length, thread=thread)

    line = timeline(hand)

    assert sum(track.count for track in line.of("thread")) == len(made) + 1
    few = coarser(line, shortest * US)
    assert few.span_ns == line.span_ns
    assert len(few) == size_of_coarser(line, shortest * US)
    long = line.rows[line.rows["duration"] >= shortest * US]
    assert len(few.rows[few.rows["event"].isin(long["event"])]) >= len(long)
