"""Find which intervals lie inside which: parents and innermost enclosing markers, without looping over events."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: The parent of an interval that is inside no other.
NONE = -1
#: How often ends are cut before intervals that still overlap are left alone.
_CUTS = 8


class Forest(NamedTuple):
    """Intervals as trees: the position of each interval's parent (`NONE` for a root), and its number of ancestors."""

    parent: Ints
    depth: Ints

    def by_depth(self) -> list[Ints]:
        """Return the positions level by level, roots first."""
        # Small numbers are sorted several times as fast.
        depth = self.depth.astype(np.min_scalar_type(self.depth.max(initial=0)))
        order = np.argsort(depth, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(order) else []


def nest(thread: Ints, start: Ints, end: Ints) -> Forest:
    """Find the smallest interval around each interval of the same thread.

    A thread's intervals are nested like a call stack. Of two equal intervals, the first in the arrays is the outer one.
    If an interval starts where another ends, they are next to each other.
    """
    forest = Forest(np.full(len(start), NONE, dtype=np.int64), np.zeros(len(start), dtype=np.int64))
    # An empty interval lasts a nanosecond here, so that it is inside the one that starts with it.
    end = np.maximum(end, start + 1)
    order = np.lexsort((-end, start, thread))
    for members in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        # Open intervals at a start: those that started earlier, less those that ended by then.
        ended = np.searchsorted(np.sort(end[members]), start[members], side="right")
        forest.depth[members] = np.arange(len(members)) - ended
        level = Forest(members, forest.depth[members]).by_depth()
        for outer, inner in pairwise(level):
            forest.parent[members[inner]] = members[outer[np.searchsorted(outer, inner) - 1]]
    return forest


def nest_cutting(thread: Ints, start: Ints, end: Ints) -> tuple[Forest, Ints]:
    """Nest intervals in the same way as `nest`, even if they end just after their parent.

    Rounded times in a file cause such ends. An end that is too late is cut to the end of the interval where it started.
    Also return the ends that make the intervals nest.
    """
    forest = nest(thread, start, end)
    for _ in range(_CUTS):
        inside = np.flatnonzero(forest.parent != NONE)
        around = forest.parent[inside]
        late = inside[(end[inside] > end[around]) & (start[inside] < end[around])]
        if len(late) == 0:
            break
        end = end.copy()
        end[late] = end[forest.parent[late]]
        forest = nest(thread, start, end)
    return forest, end


def forest_of(parent: Ints) -> Forest:
    """Make a forest from parents."""
    depth = np.zeros(len(parent), dtype=np.int64)
    above = parent
    while (above != NONE).any():
        depth += above != NONE
        above = np.where(above != NONE, parent[above], NONE)
    return Forest(parent, depth)


def innermost(forest: Forest, marked: Bools) -> Ints:
    """Find the nearest marked ancestor of each interval, excluding itself, or `NONE` if there is none."""
    result = np.full(len(marked), NONE, dtype=np.int64)
    for level in forest.by_depth()[1:]:
        above = forest.parent[level]
        result[level] = np.where(marked[above], above, result[above])
    return result


def innermost_over_time(
    thread: Ints, start: Ints, end: Ints, depth: Ints, own: Ints, above: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return the thread and time of each change of the innermost interval, in this order, and that interval.

    Parameters
    ----------
    thread, start, end, depth : ndarray
        Nested intervals, with their numbers of ancestors. Empty intervals are left out.
    own, above : ndarray
        The numbers for each interval and for the interval around it, or `NONE` if there is none.
    """
    real = np.flatnonzero(end > start)
    threads, times = np.tile(thread[real], 2), np.concatenate([start[real], end[real]])
    # At one moment the last entry counts: ends from the inside out, then starts from the outside in.
    turn = np.concatenate([depth[real] + 1, -depth[real] - 1])
    order = np.lexsort((turn, times, threads))
    threads, times, now = threads[order], times[order], np.concatenate([own[real], above[real]])[order]
    last = np.append((threads[1:] != threads[:-1]) | (times[1:] != times[:-1]), True)[: len(order)]
    return threads[last], times[last], now[last]


def outermost(forest: Forest, marked: Bools) -> Ints:
    """Find the farthest marked ancestor of each interval, including itself."""
    result = np.where(marked, np.arange(len(marked)), NONE)
    for level in forest.by_depth()[1:]:
        above = result[forest.parent[level]]
        result[level] = np.where(above != NONE, above, result[level])
    return result


def subtree_sums(forest: Forest, values: Floats) -> Floats:
    """Sum `values` over each node and all of its descendants."""
    sums = values.astype(np.float64).copy()
    for level in reversed(forest.by_depth()[1:]):
        np.add.at(sums, forest.parent[level], sums[level])
    return sums


def children_sums(parent: Ints, values: Floats) -> Floats:
    """Sum `values` over each node's direct children."""
    has = parent != NONE
    return np.bincount(parent[has], weights=values[has], minlength=len(parent)).astype(np.float64)
