"""Sets of intervals: what they hold does not depend on how the intervals came."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfnb.attribution.interval_sets import IntervalSet, difference, intersection, union

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=20)


def made(pairs: list[tuple[int, int]]) -> IntervalSet:
    start = np.array([begin for begin, _ in pairs], dtype=np.int64)
    return union(start, start + np.array([length for _, length in pairs], dtype=np.int64))


def moments(pairs: list[tuple[int, int]]) -> set[int]:
    return {moment for begin, length in pairs for moment in range(begin, begin + length)}


def members(one: IntervalSet) -> set[int]:
    return {moment for begin, end in zip(*one, strict=True) for moment in range(begin, end)}


def test_a_union_joins_what_overlaps_and_what_touches() -> None:
    one = made([(10, 5), (0, 4), (2, 3), (15, 1), (30, 0)])

    assert one.start.tolist() == [0, 10]
    assert one.end.tolist() == [5, 16]
    assert one.length == 11


def test_no_interval_is_an_empty_set() -> None:
    assert made([]).length == 0
    assert made([(3, 0)]).length == 0
    assert made([]).until(np.array([5])).tolist() == [0]


@given(INTERVALS, INTERVALS)
def test_sets_hold_exactly_the_moments_of_their_intervals(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    one, other = made(a), made(b)

    assert members(one) == moments(a)
    assert one.length == len(moments(a))
    assert members(intersection(one, other)) == moments(a) & moments(b)
    assert members(difference(one, other)) == moments(a) - moments(b)
    assert (one.start[1:] > one.end[:-1]).all()


@given(INTERVALS, st.integers(-5, 80), st.integers(-5, 80))
def test_how_much_of_a_set_lies_in_an_interval(pairs: list[tuple[int, int]], begin: int, end: int) -> None:
    within = made(pairs).within(np.array([begin]), np.array([end]))

    assert within.tolist() == [len([moment for moment in moments(pairs) if begin <= moment < end])]
