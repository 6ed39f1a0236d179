"""The step of median length, as a picture and a table show it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from perfnb.attribution.interval_sets import union
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.recording.text import TEXT
from perfnb.timeline.memory import MemoryCurve
from perfnb.timeline.timeline import Timeline, Track, lanes
from perfnb.trace_names import CALLS, DATA_SPAN, DEVICE_WORK, LAYER_SPAN, OPS, STEP_MARKS

#: Categories that count as work: no enclosing spans, no Python calls.
_WORK = {
    "thread": (*OPS, *CALLS),
    "stream": DEVICE_WORK,
    "python": (),
}
#: Ranges around work.
_MARKS = (*STEP_MARKS, LAYER_SPAN, DATA_SPAN)


@dataclass(frozen=True)
class StepTimeline:
    """What ran during one step.

    Attributes
    ----------
    name : str
        ``step 3``.
    duration_ns : int
        Length of the step on the host.
    shown_ns : int
        Until the step and all device work that it launched had ended.
    timeline : Timeline
        The events that are work, from the start of the step; enclosing spans are left out. Host events are cut at the
        end of the step. Device events are those during the step, and later ones that it launched.
    tracks : DataFrame
        One row per track, in the same order: ``track``, ``kind``, ``events``, ``busy_ms`` (at least one event ran),
        ``share`` (of what is shown), ``longest`` (name of the longest event, or of the longest layer without children),
        ``layer`` (its layer, missing if none) and ``longest_ms``.
    """

    name: str
    duration_ns: int
    shown_ns: int
    timeline: Timeline
    tracks: pd.DataFrame


def step_timeline(timeline: Timeline) -> StepTimeline | None:
    """The traced step of median length (of two, the longer); ``None`` if none takes time."""
    steps = timeline.rows_on(timeline.of("steps")[0])
    lengths = steps["duration"].to_numpy()
    chosen = steps.iloc[int(np.argmax(lengths == np.sort(lengths)[len(lengths) // 2]))]
    begin, duration = int(chosen["start"]), int(chosen["duration"])
    if duration <= 0:
        return None
    rows = _Rows(timeline)
    launched = {track: rows.launched(track, begin, begin + duration) for track in timeline.of("stream")}
    shown = max([duration, *(rows.latest(track, ours) - begin for track, ours in launched.items())])
    parts, tracks, first = [], [], 0
    for track in timeline.tracks:
        part = rows.during(track, begin, begin + duration, launched.get(track), begin + shown)
        if part.shape[1] and track.kind != "steps":
            parts.append(part)
            tracks.append(replace(track, first=first, count=part.shape[1], depth=int(part[3].max()) + 1))
            first += part.shape[1]
    place, start, length, depth = np.concatenate(parts, axis=1) if parts else np.empty((4, 0), dtype=np.int64)
    whole = timeline.rows.iloc[place].reset_index(drop=True)
    whole = whole.assign(start=start, duration=length, depth=depth.astype(whole["depth"].dtype))
    whole = whole.assign(launch=NONE, forward=NONE)
    curves = tuple(_cut(curve, begin, begin + shown) for curve in timeline.memory)
    seen = replace(timeline, tracks=tuple(tracks), rows=whole, memory=curves)
    facts = [_facts(seen, track, shown) for track in tracks]
    table = pd.DataFrame(facts, columns=list(_COLUMNS), dtype="object")  # a missing layer stays one beside texts
    return StepTimeline(timeline.names[int(chosen["name"])], duration, shown, seen, table.astype(_COLUMNS))


_COLUMNS = {
    "track": TEXT, "kind": TEXT, "events": "int64", "busy_ms": "float64", "share": "float64", "longest": TEXT,
    "layer": "object", "longest_ms": "float64",
}  # fmt: skip


class _Rows:
    """A timeline's rows, column by column: a trace may have thousands of tracks of a few rows each."""

    def __init__(self, timeline: Timeline) -> None:
        rows = timeline.rows
        self._start, self._depth = rows["start"].to_numpy(), rows["depth"].to_numpy()
        self._end = self._start + rows["duration"].to_numpy()
        self._launch = rows["launch"].to_numpy()
        marks = np.array([name.startswith(_MARKS) for name in timeline.names] + [False], dtype=bool)
        marked = marks[rows["name"].to_numpy()]
        category = rows["category"].to_numpy()
        self._work = {
            kind: np.array([name in words for name in timeline.categories] + [False], dtype=bool)[category] & ~marked
            for kind, words in _WORK.items()
        }

    def launched(self, track: Track, begin: int, end: int) -> Bools:
        """Which work of a stream was launched in the step."""
        own = _own(track)
        launch = self._launch[own]
        at = self._start[launch]
        return np.asarray((launch != NONE) & (at >= begin) & (at < end) & self._work[track.kind][own])

    def latest(self, track: Track, chosen: Bools) -> int:
        """When the last of the chosen rows of a track ends; 0 if there are none."""
        return int(self._end[_own(track)][chosen].max(initial=0))

    def during(self, track: Track, begin: int, end: int, launched: Bools | None, last: int) -> Ints:
        """Place, start, duration and depth of each visible row of a track, cut to the step, by depth and start."""
        own = _own(track)
        chosen = (self._start[own] < end) & (self._end[own] > begin)
        if track.kind in _WORK:
            chosen &= self._work[track.kind][own]
        place = track.first + np.flatnonzero(chosen if launched is None else chosen | launched)
        start = np.maximum(self._start[place], begin)
        finish = np.maximum(np.minimum(self._end[place], end if launched is None else last), start)
        depth = self._depth[place]
        if track.kind in _WORK:
            order = np.lexsort((depth, -finish, start))
            place, start, finish = place[order], start[order], finish[order]
            depth = lanes(start, finish)
        shown = np.stack([place, start - begin, finish - start, depth]).astype(np.int64)
        return shown[:, np.lexsort((shown[1], shown[3]))]


def _own(track: Track) -> slice:
    return slice(track.first, track.first + track.count)


def _facts(seen: Timeline, track: Track, shown: int) -> tuple[object, ...]:
    rows = seen.rows_on(track)
    start, length = rows["start"].to_numpy(), rows["duration"].to_numpy()
    busy = union(start, start + length).length
    asked = np.where(_has_none_inside(rows), length, NONE) if track.kind == "layers" else length
    longest = int(asked.argmax())
    name, layer = (int(rows[column].iloc[longest]) for column in ("name", "layer"))
    owner = seen.layers[layer] if layer != NONE else None
    return (
        track.title, track.kind, len(rows), busy / 1e6, busy / shown, seen.names[name], owner,
        int(length[longest]) / 1e6,
    )  # fmt: skip


def _has_none_inside(rows: pd.DataFrame) -> Bools:
    """Whether no row of the next depth starts within each; rows are sorted by depth and start."""
    depth, start = rows["depth"].to_numpy(), rows["start"].to_numpy()
    end = start + rows["duration"].to_numpy()
    alone = np.ones(len(rows), dtype=bool)
    for level in range(int(depth.max(initial=0))):
        inner = start[depth == level + 1]
        here = np.flatnonzero(depth == level)
        alone[here] = np.searchsorted(inner, start[here]) == np.searchsorted(inner, end[here])
    return alone


def _cut(curve: MemoryCurve, begin: int, end: int) -> MemoryCurve:
    begun = int(np.searchsorted(curve.times_ns, begin, side="right"))
    first, last = max(begun - 1, 0), max(int(np.searchsorted(curve.times_ns, end)), begun)
    times = np.maximum(curve.times_ns[first:last] - begin, 0)
    return replace(curve, times_ns=times, bytes=curve.bytes[first:last])
