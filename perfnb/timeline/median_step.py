"""Find the step with the median duration, which is shown as a picture and a table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.interval_sets import union
from perfnb.recording.nesting import NONE, Bools
from perfnb.recording.text import TEXT
from perfnb.timeline.memory import MemoryCurve
from perfnb.timeline.timeline import Timeline, Track, lanes
from perfnb.trace_names import CALLS, DATA_SPAN, DEVICE_WORK, LAYER_SPAN, OPS, PIECE, STEP_MARKS

#: The categories of events that count as work, which excludes enclosing spans and Python calls.
_WORK = {
    "thread": (*OPS, *CALLS),
    "stream": DEVICE_WORK,
    "python": (),
}
#: The categories of ranges that enclose work.
_MARKS = (*STEP_MARKS, LAYER_SPAN, DATA_SPAN, PIECE)


@dataclass(frozen=True)
class StepTimeline:
    """The events that ran during one step.

    Attributes
    ----------
    name : str
        ``step 3``.
    duration_ns : int
        The duration of the step on the host.
    shown_ns : int
        The time until the step and all of the device work that it launched have ended.
    timeline : Timeline
        The events that count as work, without enclosing spans. Times are relative to the start of the step. Host events
        are cut at the end of the step. Device events include those that ran during the step, and later ones that the
        step launched.
    tracks : DataFrame
        One row per track, in the same order: ``track``, ``kind``, ``events``, ``busy_ms`` (the time when at least one
        event ran), ``share`` (the fraction of the displayed time), ``longest`` (name of the longest event, or of the
        longest layer without children), ``layer`` (the layer of that event, if any) and ``longest_ms``.
    """

    name: str
    duration_ns: int
    shown_ns: int
    timeline: Timeline
    tracks: pd.DataFrame


def step_timeline(timeline: Timeline) -> StepTimeline | None:
    """Return the traced step with the median duration, or ``None`` if no step takes any time.

    If the number of steps is even, the longer one of the two middle steps is returned.
    """
    steps = timeline.rows_on(timeline.of("steps")[0])
    lengths = steps["duration"].to_numpy()
    chosen = steps.iloc[int(np.argmax(lengths == np.sort(lengths)[len(lengths) // 2]))]
    begin, duration = int(chosen["start"]), int(chosen["duration"])
    if duration <= 0:
        return None
    until, rows = begin + duration, timeline.rows
    start, depth, launch = (rows[name].to_numpy() for name in ("start", "depth", "launch"))
    end = start + rows["duration"].to_numpy()
    kind, seen = _track_kinds_and_seen(timeline)
    launched = seen & (kind == "stream") & (launch != NONE) & (start[launch] >= begin) & (start[launch] < until)
    shown = max(duration, int(end[launched].max(initial=0)) - begin)
    seen = (seen & (start < until) & (end > begin)) | launched
    parts, tracks, first = [], [], 0
    for track in timeline.tracks:
        place = track.first + np.flatnonzero(seen[track.first : track.first + track.count])
        if len(place) == 0:
            continue
        begun = np.maximum(start[place], begin)
        done = np.maximum(np.minimum(end[place], begin + shown if track.kind == "stream" else until), begun)
        line = depth[place]
        if track.kind in _WORK:
            order = np.lexsort((line, -done, begun))
            place, begun, done = place[order], begun[order], done[order]
            line = lanes(begun, done)
        part = np.stack([place, begun - begin, done - begun, line]).astype(np.int64)
        parts.append(part[:, np.lexsort((part[1], part[3]))])
        tracks.append(replace(track, first=first, count=len(place), depth=int(line.max()) + 1))
        first += len(place)
    place, start, length, depth = np.concatenate(parts, axis=1) if parts else np.empty((4, 0), dtype=np.int64)
    whole = timeline.rows.iloc[place].reset_index(drop=True)
    whole = whole.assign(start=start, duration=length, depth=depth.astype(whole["depth"].dtype))
    whole = whole.assign(launch=NONE, forward=NONE)
    curves = tuple(_cut(curve, begin, begin + shown) for curve in timeline.memory)
    part_of = replace(timeline, tracks=tuple(tracks), rows=whole, memory=curves)
    facts = [_facts(part_of, track, shown) for track in tracks]
    table = pd.DataFrame(facts, columns=list(_COLUMNS), dtype="object")  # keeps missing layers missing in a text column
    return StepTimeline(timeline.names[int(chosen["name"])], duration, shown, part_of, table.astype(_COLUMNS))


_COLUMNS = {
    "track": TEXT, "kind": TEXT, "events": "int64", "busy_ms": "float64", "share": "float64", "longest": TEXT,
    "layer": "object", "longest_ms": "float64",
}  # fmt: skip


def _track_kinds_and_seen(timeline: Timeline) -> tuple[npt.NDArray[np.str_], Bools]:
    """Return the kind of each row's track, and a flag for the rows that can be shown.

    On threads and streams, only events that count as work are shown.
    """
    kind = np.repeat([track.kind for track in timeline.tracks], [track.count for track in timeline.tracks])
    marks = np.array([name.startswith(_MARKS) for name in timeline.names] + [False])[timeline.rows["name"].to_numpy()]
    seen = (kind == "phases") | (kind == "layers")
    for one, words in _WORK.items():
        of_words = np.array([name in words for name in timeline.categories] + [False])
        seen |= (kind == one) & of_words[timeline.rows["category"].to_numpy()] & ~marks
    return kind, seen


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
    """Check for each row that no row at the next depth starts within it. Rows must be sorted by depth and start."""
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
