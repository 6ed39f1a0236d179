"""A coarser timeline: short neighbours become blocks, and links and times stay."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.timeline.timeline import JOINED, coarser, size_of_coarser
from tests.recordings import US, ByHand
from tests.timeline.test_timeline import timeline, told, training


def busy() -> ByHand:
    made = training()
    for place in range(40):  # a crowd, then a long one, then two alone
        made.op("aten::tiny", 1710 + 2 * place, 1711 + 2 * place)
    return made.op("aten::long", 1800, 1850).op("aten::one", 1860, 1861).op("aten::two", 1880, 1881)


def test_short_neighbours_become_a_block_and_the_long_and_lonely_stay() -> None:
    line = timeline(busy())

    few = coarser(line, 5 * US)

    assert len(few) == size_of_coarser(line, 5 * US) == len(line) - 39
    (track,) = few.of("thread")
    blocks = [one for one in told(few, track) if "short events" in one[0]]
    assert blocks == [("40 short events", 710, 789, 2, "optimizer")]
    assert {few.categories[code] for code in few.rows_on(track)["category"]} >= {JOINED, "cpu_op"}
    kept = {name for name, *_ in told(few, track)}
    assert {"aten::long", "aten::one", "aten::two"} <= kept
    assert "aten::tiny" not in kept


def test_short_events_of_two_lines_or_threads_are_no_neighbours() -> None:
    made = (
        ByHand().step(0, 1000).op("aten::outer", 10, 13).op("aten::inner", 11, 12).op("aten::other", 11, 12, thread=2)
    )
    line = timeline(made)
    assert len(coarser(line, 5 * US)) == len(line)


@pytest.mark.parametrize("shortest", [0, 3 * US, 12 * US, 100 * US, 10_000 * US])
def test_links_of_a_coarser_timeline_lead_where_they_led(shortest: int) -> None:
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
@settings(max_examples=20, deadline=None)
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
