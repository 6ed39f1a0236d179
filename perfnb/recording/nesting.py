"""Which interval lies inside which: parents and innermost enclosing markers, without a loop over events."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Parent of an interval that lies in no other.
NONE = -1
#: How often ends are cut before what still crosses stays as it is.
_CUTS = 8


class Forest(NamedTuple):
    """Intervals as trees: position of the parent (`NONE` for a root) and number of ancestors of each."""

    parent: Ints
    depth: Ints

    def by_depth(self) -> list[Ints]:
        """Positions level by level, roots first."""
        order = np.argsort(self.depth, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.depth[order])) + 1) if len(order) else []


def nest(thread: Ints, start: Ints, end: Ints) -> Forest:
    """The smallest interval around each interval of the same thread.

    Intervals of a thread nest, as those of a call stack do. Of two equal intervals the one that comes first in the
    arrays is outside. An interval that begins where another ends lies beside it.
    """
    forest = Forest(np.full(len(start), NONE, dtype=np.int64), np.zeros(len(start), dtype=np.int64))
    # An empty interval takes a nanosecond here, so that it lies in what begins with it.
    end = np.maximum(end, start + 1)
    order = np.lexsort((-end, start, thread))
    for members in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        # Open intervals at a start: those that began before it less those that ended by then.
        ended = np.searchsorted(np.sort(end[members]), start[members], side="right")
        forest.depth[members] = np.arange(len(members)) - ended
        level = Forest(members, forest.depth[members]).by_depth()
        for outer, inner in pairwise(level):
            forest.parent[members[inner]] = members[outer[np.searchsorted(outer, inner) - 1]]
    return forest


def nest_cutting(thread: Ints, start: Ints, end: Ints) -> tuple[Forest, Ints]:
    """As `nest`, of intervals that may end a little after the one around them, and the ends that make them nest.

    Times that a file rounds do so. What ends too late is cut to the end of what it began in.
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
    """The forest of given parents."""
    depth = np.zeros(len(parent), dtype=np.int64)
    above = parent
    while (above != NONE).any():
        depth += above != NONE
        above = np.where(above != NONE, parent[above], NONE)
    return Forest(parent, depth)


def innermost(forest: Forest, marked: Bools) -> Ints:
    """Position of the nearest marked ancestor of each interval, itself not counted; `NONE` where there is none."""
    result = np.full(len(marked), NONE, dtype=np.int64)
    for level in forest.by_depth()[1:]:
        above = forest.parent[level]
        result[level] = np.where(marked[above], above, result[above])
    return result


def outermost(forest: Forest, marked: Bools) -> Ints:
    """Position of the farthest marked ancestor-or-self of each interval."""
    result = np.where(marked, np.arange(len(marked)), NONE)
    for level in forest.by_depth()[1:]:
        above = result[forest.parent[level]]
        result[level] = np.where(above != NONE, above, result[level])
    return result


def subtree_sums(forest: Forest, values: Floats) -> Floats:
    """Sum of `values` over each node and all below it."""
    sums = values.astype(np.float64).copy()
    for level in reversed(forest.by_depth()[1:]):
        np.add.at(sums, forest.parent[level], sums[level])
    return sums


def children_sums(parent: Ints, values: Floats) -> Floats:
    """Sum of `values` over the direct children of each node."""
    has = parent != NONE
    return np.bincount(parent[has], weights=values[has], minlength=len(parent)).astype(np.float64)
