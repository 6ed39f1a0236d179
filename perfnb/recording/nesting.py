"""Find the parents and the innermost enclosing markers of nested intervals, without looping over events."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: The parent of an interval that is not inside any other interval.
NONE = -1
#: The maximum number of passes that cut ends. Intervals that still overlap after that are left unchanged.
_CUTS = 8


class Forest(NamedTuple):
    """Intervals arranged as trees, with each interval's parent (`NONE` for a root) and number of ancestors."""

    parent: Ints
    depth: Ints

    def by_depth(self) -> list[Ints]:
        """Return the indices of the intervals level by level, starting with the roots."""
        # Sorting small integer types is several times as fast.
        depth = self.depth.astype(np.min_scalar_type(self.depth.max(initial=0)))
        order = np.argsort(depth, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(order) else []


def nest(thread: Ints, start: Ints, end: Ints) -> Forest:
    """Find the smallest enclosing interval of each interval on the same thread.

    A thread's intervals must be nested like a call stack. If two intervals are equal, the one that comes first in the
    arrays is the outer one. An interval that starts where another one ends is not inside it.
    """
    forest = Forest(np.full(len(start), NONE, dtype=np.int64), np.zeros(len(start), dtype=np.int64))
    # Empty intervals are extended to a nanosecond, which places them inside an interval that starts at the same time.
    end = np.maximum(end, start + 1)
    order = np.lexsort((-end, start, thread))
    for members in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        # The number of intervals that are open at a start is the number of earlier starts minus the number of earlier
        # ends.
        ended = np.searchsorted(np.sort(end[members]), start[members], side="right")
        forest.depth[members] = np.arange(len(members)) - ended
        level = Forest(members, forest.depth[members]).by_depth()
        for outer, inner in pairwise(level):
            forest.parent[members[inner]] = members[outer[np.searchsorted(outer, inner) - 1]]
    return forest


def nest_cutting(thread: Ints, start: Ints, end: Ints) -> tuple[Forest, Ints]:
    """Nest intervals in the same way as `nest`, even if they end just after their parent.

    Such ends occur because files contain rounded times. An end that is too late is moved to the end of the interval in
    which it started, after that end has been corrected itself. The corrected ends are returned along with the forest.
    """
    forest = nest(thread, start, end)
    for _ in range(_CUTS):
        inside = np.flatnonzero(forest.parent != NONE)
        around = forest.parent[inside]
        outside = np.zeros(len(end), dtype=bool)
        outside[inside] = end[inside] > end[around]
        late = inside[outside[inside] & (start[inside] < end[around])]
        if len(late) == 0:
            break
        late = late[innermost(forest, outside)[late] == NONE]  # the ends around these are final
        end = end.copy()
        end[late] = end[forest.parent[late]]
        forest = nest(thread, start, end)
    return forest, end


def forest_of(parent: Ints) -> Forest:
    """Build a forest from the index of each interval's parent."""
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
    """Return the thread and time of each change of the innermost interval, and the new innermost interval.

    Parameters
    ----------
    thread, start, end, depth : ndarray
        Nested intervals, with their numbers of ancestors. Empty intervals are left out.
    own, above : ndarray
        The number of each interval, and the number of the interval around it, or `NONE` if there is none.
    """
    real = np.flatnonzero(end > start)
    threads, times = np.tile(thread[real], 2), np.concatenate([start[real], end[real]])
    # If several changes happen at the same time, the last one counts. Ends are sorted from the inside out, followed by
    # starts from the outside in.
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
    """Sum `values` over each node and its descendants."""
    sums = values.astype(np.float64).copy()
    for level in reversed(forest.by_depth()[1:]):
        np.add.at(sums, forest.parent[level], sums[level])
    return sums


def children_sums(parent: Ints, values: Floats) -> Floats:
    """Sum `values` over each node's direct children."""
    has = parent != NONE
    return np.bincount(parent[has], weights=values[has], minlength=len(parent)).astype(np.float64)
