"""Parents of intervals, found without a loop, against a search that looks at every pair."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfnb.recording.layer_tree import nested, split_layers
from perfnb.recording.nesting import (
    NONE,
    Forest,
    children_sums,
    forest_of,
    innermost,
    innermost_over_time,
    nest,
    nest_cutting,
    outermost,
    subtree_sums,
)
from perfnb.recording.schema import SPECIAL_ROWS


@pytest.mark.parametrize(
    ("intervals", "parents"),
    [
        ([(0, 10), (0, 5), (5, 10)], [NONE, 0, 0]),  # one begins where another ends
        ([(0, 5), (5, 5), (5, 9)], [NONE, 2, NONE]),  # an empty one is in the one that begins with it
        ([(1, 9), (1, 9), (1, 9)], [NONE, 0, 1]),  # of equal ones, the first is outside
    ],
)
def test_the_parents_of_intervals_that_share_an_end(intervals: list[tuple[int, int]], parents: list[int]) -> None:
    start, end = np.array(intervals).T

    assert nest(np.zeros(3), start, end).parent.tolist() == parents


def test_an_interval_that_ends_after_the_one_in_which_it_starts_is_cut() -> None:
    thread = np.array([0, 0, 0, 0, 0, 1])
    start, end = np.array([0, 10, 20, 60, 30, 10]), np.array([50, 60, 55, 70, 40, 60])

    forest, cut = nest_cutting(thread, start, end)

    assert cut.tolist() == [50, 50, 50, 70, 40, 60]
    assert forest.parent.tolist() == [NONE, 0, 1, NONE, 2, NONE]
    assert forest.depth.tolist() == [0, 1, 2, 0, 3, 0]
    assert end.tolist() == [50, 60, 55, 70, 40, 60]


def nested_by_walking(start: list[int], end: list[int]) -> tuple[list[int], list[int]]:
    """Return parents and cut ends, for intervals in the order of their starts."""
    parents, ends, open_ = [], list(end), list[int]()
    for place, begin in enumerate(start):
        while open_ and ends[open_[-1]] <= begin:
            open_.pop()
        parents.append(open_[-1] if open_ else NONE)
        ends[place] = min([end[place], *(ends[around] for around in open_[-1:])])
        open_.append(place)
    return parents, ends


def test_intervals_are_cut_from_the_outside_in() -> None:
    """What starts between the true and the late end of an interval is not in it, and keeps its end."""
    assert nested_by_walking([2, 5, 8, 11], [10, 17, 20, 21]) == ([NONE, 0, 1, NONE], [10, 10, 10, 21])
    random = np.random.default_rng(1)
    for count in (2, 4, 5, 6) * 50:
        start = np.sort(random.choice(15, count, replace=False))
        end = start + random.integers(1, 15, count)
        parents, ends = map(np.array, nested_by_walking(start.tolist(), end.tolist()))
        order = random.permutation(2 * count)  # of two threads
        thread, first = order // count, np.where(order < count, 0, count)
        place = order % count

        forest, cut = nest_cutting(thread, start[place], end[place])

        assert cut.tolist() == ends[place].tolist()
        above = np.where(forest.parent == NONE, NONE, order[forest.parent] - first)
        assert above.tolist() == parents[place].tolist()
        again = nest(thread, start[place], cut)
        assert (again.parent.tolist(), again.depth.tolist()) == (forest.parent.tolist(), forest.depth.tolist())
        assert forest.depth.tolist() == forest_of(forest.parent).depth.tolist()


def test_nothing_nests_in_nothing() -> None:
    empty = np.array([], dtype=np.int64)

    forest = nest(empty, empty, empty)
    assert len(forest.parent) == len(forest.by_depth()) == 0
    assert len(innermost(forest, empty.astype(bool))) == len(subtree_sums(forest, empty.astype(float))) == 0


def test_a_deep_stack_nests_all_the_way() -> None:
    count = 2000
    thread, start = np.zeros(count, dtype=int), np.arange(count)

    forest = nest(thread, start, 2 * count - start)

    assert forest.parent.tolist() == [NONE, *range(count - 1)]
    assert forest.depth[-1] == count - 1


@given(st.lists(st.integers(-1, 10**6), max_size=30), st.data())
def test_sums_and_innermost_marks_are_those_of_a_walk_upwards(choices: list[int], data: st.DataObject) -> None:
    parent = np.array([NONE if i == 0 or c < 0 else c % i for i, c in enumerate(choices)], dtype=np.int64)
    marked = np.array(data.draw(st.lists(st.booleans(), min_size=len(parent), max_size=len(parent))), dtype=bool)
    values = np.arange(1, len(parent) + 1, dtype=float)

    forest = forest_of(parent)

    lines = []
    for place in range(len(parent)):
        line = []
        above = parent[place]
        while above != NONE:
            line.append(int(above))
            above = parent[above]
        lines.append(line)
    assert forest.depth.tolist() == [len(line) for line in lines]
    assert innermost(forest, marked).tolist() == [next((a for a in line if marked[a]), NONE) for line in lines]
    from_outside = [[*reversed(line), place] for place, line in enumerate(lines)]
    assert outermost(forest, marked).tolist() == [next((a for a in line if marked[a]), NONE) for line in from_outside]
    whole = values.copy()
    for place, line in enumerate(lines):
        whole[line] += values[place]
    assert subtree_sums(forest, values).tolist() == whole.tolist()
    assert children_sums(parent, values).tolist() == [values[parent == i].sum() for i in range(len(parent))]


def test_levels_hold_every_position_once() -> None:
    forest = forest_of(np.array([NONE, 0, 0, 1, NONE]))

    assert [level.tolist() for level in Forest(*forest).by_depth()] == [[0, 4], [1, 2], [3]]


def test_the_innermost_interval_over_time_changes_where_one_begins_or_ends() -> None:
    start, end = np.array([0, 10, 20, 40, 5]), np.array([100, 20, 30, 40, 8])
    thread, depth = np.array([1, 1, 1, 1, 0]), np.array([0, 1, 1, 1, 0])
    own, above = np.arange(5), np.array([NONE, 0, 0, 0, NONE])

    threads, times, now = innermost_over_time(thread, start, end, depth, own, above)

    assert threads.tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert times.tolist() == [5, 8, 0, 10, 20, 30, 100]
    assert now.tolist() == [4, NONE, 0, 1, 2, 0, NONE]


@pytest.mark.parametrize(
    ("names", "depths", "labels", "parents"),
    [
        (["net", "net.a", "net.a.b", "net.c"], [0, 1, 2, 1], ["net", "a", "b", "c"], [-1, 0, 1, 0]),
        (["net", "net.a.b", "other.c"], [0, 1, 0], ["net", "a.b", "other.c"], [-1, 0, -1]),
        (["net", "net", "net.a"], [0, 0, 1], ["net", "net", "a"], [-1, -1, 0]),
        (["net.a", "net.ab", ".c", "net.a..d"], [None] * 4, ["net.a", "net.ab", ".c", ".d"], [-1, -1, -1, 0]),
        (["A", "B", "C", "D", "E"], [0, 1, 2, 1, 0], ["A", "B", "C", "D", "E"], [-1, 0, 1, 0, -1]),
        (["", ".c"], [None] * 2, ["", ".c"], [-1, -1]),
        ([], [], [], []),
    ],
)
def test_layers_are_nested_by_their_names_and_otherwise_by_their_depths(
    names: list[str], depths: list[int | None], labels: list[str], parents: list[int]
) -> None:
    modules = pd.DataFrame({"depth": pd.array(depths, dtype="Int64")}, index=names)

    assert nested(modules) == (labels, parents)


def test_rows_of_the_table_of_layers_that_are_no_modules_are_split_off() -> None:
    first, second = SPECIAL_ROWS[:2]
    layers = pd.DataFrame({"module": ["Net", None, None, "Odd"]}, index=["net", "net.a", first, second])

    modules, special = split_layers(layers)

    assert (modules.index.tolist(), special.index.tolist()) == (["net", "net.a", second], [first])
