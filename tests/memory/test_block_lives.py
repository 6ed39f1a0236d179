"""Allocations and frees paired to blocks of memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.memory.allocations import AFTER, BEFORE, _step_at, _text, paired


def changes_of(*rows: tuple[int, int, int, str]) -> pd.DataFrame:
    """Return the time, address, bytes and device of each change; the event is the row's number."""
    frame = pd.DataFrame(rows, columns=["time_ns", "address", "bytes", "device"]).astype({"device": "category"})
    numbers = dict.fromkeys(("time_ns", "address", "bytes"), "int64")
    return frame.astype(numbers).assign(event=np.arange(len(rows)), allocated=-1, reserved=-1)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from(["cpu", "cuda:0"]), st.booleans())),
    st.sets(st.tuples(st.integers(0, 2), st.sampled_from(["cpu", "cuda:0"]))),
)
def test_blocks_add_up_to_the_changes_at_every_instant(
    moves: list[tuple[int, int, str, bool]], before: set[tuple[int, str]]
) -> None:
    """Each move waits a while (or not), then makes a block at an address or frees the one there.

    A block made where another is alive takes its place; some blocks are there from the begin.
    """
    alive = {place: 1000 + number for number, place in enumerate(sorted(before))}
    rows: list[tuple[int, int, int, str]] = []
    freed: set[tuple[int, str]] = set()
    expected: dict[int, int] = {}
    now = 0
    for number, (wait, address, device, makes) in enumerate(moves):
        now += wait
        place = (address, device)
        if makes and (place not in before or place in freed):
            alive[place] = 1 + number
            rows.append((now, address, alive[place], device))
        elif not makes and place in alive:
            rows.append((now, address, -alive.pop(place), device))
            freed.add(place)
        expected[now] = sum(size for place, size in alive.items() if place not in before or place in freed)

    blocks = paired(changes_of(*rows))

    unseen = sum(1000 + number for number, place in enumerate(sorted(before)) if place in freed)
    start, end, size_of = (blocks[name].to_numpy() for name in ("start", "end", "bytes"))
    assert size_of[start == BEFORE].sum() == unseen
    for moment, size in expected.items():
        at = size_of[(start <= moment) & (end > moment)].sum()
        later = size_of[(start == BEFORE) & (end > moment)].sum()
        assert at - later == size
    assert len(blocks) == sum(size > 0 for _, _, size, _ in rows) + len(freed & before)
    assert (end >= start).all()


def test_blocks_end_with_their_free_or_where_the_next_begins() -> None:
    blocks = paired(
        changes_of(
            (10, 1, 100, "cpu"),
            (15, 1, 7, "cuda:0"),  # another device's address
            (20, 1, -100, "cpu"),
            (20, 1, 200, "cpu"),
            (30, 1, 300, "cpu"),  # the free of the one before was not seen
            (40, 2, -400, "cpu"),  # made before the watch
            (50, 2, -500, "cpu"),  # so was this, or it was not seen being made
        )
    )

    lives = {row.bytes: (row.start, row.end, row.event) for row in blocks.itertuples()}
    assert lives == {
        100: (10, 20, 0),
        200: (20, 30, 3),
        300: (30, AFTER, 4),
        400: (BEFORE, 40, -1),
        500: (BEFORE, 50, -1),
        7: (15, AFTER, 1),
    }
    assert paired(changes_of()).empty


def test_a_block_is_made_in_the_step_that_contains_its_time_with_both_ends() -> None:
    starts, ends = np.array([10, 30]), np.array([20, 40])
    times = np.array([9, 10, 15, 20, 21, 29, 30, 40, 41])

    assert _step_at(times, starts, ends).tolist() == [-1, 0, 0, 0, -1, -1, 1, 1, -1]


def test_a_text_is_missing_where_it_is_empty_or_has_no_place() -> None:
    found = _text(pd.Series(["a", "", "c"]), np.array([2, 1, -1, 0]))

    assert found.isna().tolist() == [False, True, True, False]
    assert found.dropna().tolist() == ["c", "a"]
