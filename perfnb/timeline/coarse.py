"""A coarser timeline: events too short to see from afar are merged with their neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfnb.memory.table import fullest
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.timeline.memory import MemoryCurve
from perfnb.timeline.timeline import KINDS, OTHER, Timeline, Track

#: Category of merged events.
JOINED = "joined"
#: Most points of a memory curve.
_MOMENTS = 4000


class _Joins(NamedTuple):
    """Rows that are merged, in order, and where each group of them starts."""

    rows: Ints
    first: Ints


def coarser(timeline: Timeline, shortest_ns: int) -> Timeline:
    """Merge neighbouring events shorter than `shortest_ns` into one block.

    Neighbours are on one line of a track with less than `shortest_ns` between them. A block is called ``12 short
    events``, has the category ``joined``, and the kind that takes most of its time, or ``other``. Short events without
    neighbours stay.
    """
    joins = _joins(timeline, shortest_ns)
    rows = timeline.rows
    kept = np.ones(len(rows), dtype=bool)
    kept[joins.rows] = False
    kept[joins.rows[joins.first]] = True  # the merged block
    start, duration = rows["start"].to_numpy(), rows["duration"].to_numpy().copy()
    count = np.diff(np.append(joins.first, len(joins.rows)))
    blocks = joins.rows[joins.first]
    if len(blocks):
        ends = np.maximum.reduceat((start + duration)[joins.rows], joins.first)
        kinds = _kinds(rows["kind"].to_numpy()[joins.rows], duration[joins.rows], count)
        duration[blocks] = ends - start[blocks]
    columns = {name: rows[name].to_numpy().copy() for name in rows.columns} | {"duration": duration}
    if len(blocks):
        numbers, place = np.unique(count, return_inverse=True)
        columns["name"][blocks] = len(timeline.names) + place
        columns["kind"][blocks] = kinds
        columns["category"][blocks] = len(timeline.categories)
        for name in ("layer", "launch", "forward", "detail", "event"):
            columns[name][blocks] = NONE
        words = tuple(f"{number:,} short events" for number in numbers.tolist())
    else:
        words = ()
    gone = ~kept
    gone[blocks] = True
    place = np.append(np.where(gone, NONE, np.cumsum(kept) - 1), NONE)
    for name in ("launch", "forward"):
        columns[name] = place[columns[name]]
    return replace(
        timeline,
        tracks=_tracks(timeline.tracks, kept),
        rows=rows.iloc[:0].reindex(range(int(kept.sum()))).assign(**{k: v[kept] for k, v in columns.items()}),
        names=(*timeline.names, *words),
        categories=(*timeline.categories, JOINED),
        memory=tuple(map(_thinned, timeline.memory)),
    )


def longest_of(timeline: Timeline, events: int) -> Timeline:
    """The timeline with at most this many events, the longest, and without texts that none of them uses."""
    rows = timeline.rows
    order = np.argsort(-rows["duration"].to_numpy(), kind="stable")
    kept = np.zeros(len(rows), dtype=bool)
    kept[order[: max(events, 0)]] = True
    place = np.append(np.where(kept, np.cumsum(kept) - 1, NONE), NONE)
    links = {name: place[rows[name].to_numpy()][kept] for name in ("launch", "forward")}
    return replace(
        timeline,
        tracks=tuple(track for track in _tracks(timeline.tracks, kept) if track.count),
        rows=rows[kept].reset_index(drop=True).assign(**links),
        memory=tuple(map(_thinned, timeline.memory)),
    )


def size_of_coarser(timeline: Timeline, shortest_ns: int) -> int:
    """Number of rows that `coarser` would return."""
    joins = _joins(timeline, shortest_ns)
    return len(timeline) - len(joins.rows) + len(joins.first)


def _joins(timeline: Timeline, shortest_ns: int) -> _Joins:
    rows = timeline.rows
    start, duration, depth = (rows[name].to_numpy() for name in ("start", "duration", "depth"))
    track = np.repeat(np.arange(len(timeline.tracks)), [track.count for track in timeline.tracks])
    short = np.flatnonzero(duration < shortest_ns)
    if len(short) == 0:
        return _Joins(short, short)
    # A longer event between two of them separates them.
    neighbours = (np.diff(short) == 1) & (np.diff(track[short]) == 0) & (np.diff(depth[short]) == 0)
    near = start[short[1:]] - (start + duration)[short[:-1]] < shortest_ns
    first = np.flatnonzero(np.concatenate([[True], ~(neighbours & near)]))
    count = np.diff(np.append(first, len(short)))
    several = np.repeat(count > 1, count)
    sizes = count[count > 1]
    return _Joins(short[several], np.cumsum(sizes) - sizes)


def _kinds(kind: Ints, weight: Ints, count: Ints) -> Ints:
    """The kind with more than half of the time of each group."""
    series = np.repeat(np.arange(len(count)), count)
    time = np.bincount(series * len(KINDS) + kind, weights=weight + 1.0, minlength=len(count) * len(KINDS))
    table = time.reshape(len(count), len(KINDS))
    return np.where(table.max(axis=1) > table.sum(axis=1) / 2, table.argmax(axis=1), OTHER)


def _tracks(tracks: tuple[Track, ...], kept: Bools) -> tuple[Track, ...]:
    before = np.concatenate([[0], np.cumsum(kept)])
    ends = [(int(before[track.first]), int(before[track.first + track.count])) for track in tracks]
    return tuple(replace(track, first=a, count=b - a) for track, (a, b) in zip(tracks, ends, strict=True))


def _thinned(curve: MemoryCurve) -> MemoryCurve:
    """The curve with the maximum of each time bin, its first and its last value."""
    if len(curve.bytes) <= _MOMENTS:
        return curve
    rows = fullest(curve.times_ns, curve.bytes, _MOMENTS)
    return replace(curve, times_ns=curve.times_ns[rows], bytes=curve.bytes[rows])
