"""Represent sets of time as sorted, disjoint intervals, with union, intersection, difference and overlap.

Intervals are half-open and measured in whole nanoseconds, so lengths are exact. Empty intervals are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from perfnb.recording.nesting import Bools, Ints

#: Determines whether a time is in the result, given whether it is in each of two sets.
_Rule = Callable[[Bools, Bools], Bools]


class IntervalSet(NamedTuple):
    """Disjoint intervals in chronological order that do not touch each other."""

    start: Ints
    end: Ints

    @property
    def length(self) -> int:
        """The total length in nanoseconds."""
        return int((self.end - self.start).sum())

    def until(self, times: Ints) -> Ints:
        """Return the number of nanoseconds in the set before each of `times`."""
        if len(self.start) == 0:
            return np.zeros(len(times), dtype=np.int64)
        before = np.concatenate(([0], np.cumsum(self.end - self.start)))
        place = np.searchsorted(self.start, times, side="right")
        last = np.maximum(place - 1, 0)
        return np.where(place > 0, before[last] + np.minimum(times, self.end[last]) - self.start[last], 0)

    def within(self, start: Ints, end: Ints) -> Ints:
        """Return the number of nanoseconds in the set inside each of the given intervals, which may overlap."""
        return self.until(np.maximum(start, end)) - self.until(start)


EMPTY = IntervalSet(np.array([], dtype=np.int64), np.array([], dtype=np.int64))


def union(start: Ints, end: Ints) -> IntervalSet:
    """Return the time covered by at least one of the given intervals, which may be in any order."""
    real = end > start
    start, end = start[real], end[real]
    if len(start) == 0:
        return EMPTY
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return IntervalSet(start[first], reach[last])


def intersection(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Return the time in both sets."""
    if len(a.start) == 0 or len(b.start) == 0:
        return EMPTY
    return _where(a, b, lambda in_a, in_b: in_a & in_b)


def difference(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Return the time in `a` but not in `b`."""
    return _where(a, b, lambda in_a, in_b: in_a & ~in_b)


def _where(a: IntervalSet, b: IntervalSet, wanted: _Rule) -> IntervalSet:
    """Return the time when `wanted` is true.

    To compute it, both sets are cut at all borders, and the pieces are joined.
    """
    borders = np.unique(np.concatenate((*a, *b)))
    if len(borders) == 0:
        return EMPTY
    begin, end = borders[:-1], borders[1:]
    chosen = wanted(_contains(a, begin), _contains(b, begin))
    return union(begin[chosen], end[chosen])


def _contains(a: IntervalSet, times: Ints) -> Bools:
    place = np.searchsorted(a.start, times, side="right") - 1
    inside: Bools = place >= 0
    inside[inside] = times[inside] < a.end[place[inside]]
    return inside
