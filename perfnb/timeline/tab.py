"""Create the Timeline tab.

A live report shows all events. Any other report shows the median step as a picture, with the work on each track.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, svg, tables
from perfnb.draw.boxes import ROW, WIDE, Box, boxes_svg
from perfnb.draw.document import Budget, Column, Document, Picture, Table, Verdict
from perfnb.draw.tab import Tab
from perfnb.timeline.data import memory_word
from perfnb.timeline.median_step import StepTimeline, step_timeline
from perfnb.timeline.timeline import coarser
from perfnb.trace_names import BACKWARD_NODE

if TYPE_CHECKING:
    from perfnb.timeline.memory import MemoryCurve
    from perfnb.timeline.timeline import Timeline, Track

#: The maximum number of tracks of each kind that are drawn, and the maximum number of lines per track.
_TRACKS = {"phases": 1, "layers": 1, "thread": 4, "stream": 6}
_LINES = {"phases": 1, "layers": 4, "thread": 2, "stream": 2}
#: The width of titles, the space between tracks, and the height of a memory curve, in pixels.
_LEFT, _GAP, _MEMORY = 136, 8, 44
#: The horizontal resolution. Narrower events are merged with their neighbours.
_PARTS = 600
_TITLE = 22
_BEGINS = (f"{BACKWARD_NODE}: ", "torch::autograd::", "aten::")


def shown_tracks(step: StepTimeline) -> list[Track]:
    """Return the tracks to draw. If there are many threads and streams, only the busiest are drawn."""
    tracks, table = step.timeline.tracks, step.tracks
    chosen: list[int] = []
    for kind, most in _TRACKS.items():
        busy = table.loc[table["kind"] == kind, "busy_ms"].sort_values(ascending=False, kind="stable")
        chosen += sorted(busy.index[:most])
    return [tracks[place] for place in sorted(chosen)]


def step_html(step: StepTimeline) -> str:
    """Return the step as a picture with a legend."""
    timeline = coarser(step.timeline, max(2, step.shown_ns // _PARTS))
    by_title = {(track.kind, track.title): track for track in timeline.tracks}
    scale, top, words, boxes = (WIDE - _LEFT) / step.shown_ns, 0, "", list[Box]()
    for track in shown_tracks(step):
        words += _beside(top + 11, _title(track))
        rows = timeline.rows_on(by_title[track.kind, track.title])
        for row in _rows(rows[rows["depth"] < _LINES[track.kind]]):
            colour = palette.mark(timeline.kinds[row.kind]).colour
            y, name = top + row.depth * ROW, _name(timeline, row)
            boxes.append(Box(_LEFT + row.start * scale, y, row.duration * scale, colour, name))
        top += min(track.depth, _LINES[track.kind]) * ROW + _GAP
    for curve in _curves(step):
        size = f"{fmt.size(curve.bytes.max())} at most"
        words += _beside(top + 20, f"Memory, {memory_word(curve.device)}")
        words += _beside(top + 34, size)
        path = _curve(curve, step.shown_ns, top + _MEMORY)
        words += f'<path d="{path}" fill="currentColor" fill-opacity=".2" stroke="currentColor"/>'
        top += _MEMORY + _GAP
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LEFT + part * (WIDE - _LEFT)
        words += f'<path d="M{x:.0f} 0V{top}" stroke="currentColor" stroke-opacity=".2"/>'
        anchor = "end" if part == 1 else "middle"
        words += svg.label(round(x), top + 12, anchor, fmt.duration(part * step.shown_ns / 1e6) if part else "0")
    if step.duration_ns < step.shown_ns:
        words += (
            f'<path d="M{_LEFT + step.duration_ns * scale:.1f} 0V{top}" stroke="currentColor" stroke-dasharray="4 3"/>'
        )
    marks = [palette.mark(timeline.kinds[kind]) for kind in sorted(set(timeline.rows["kind"].tolist()))]
    key = " ".join(tables.keyed(replace(mark, pattern="solid")) for mark in marks)
    return f"{svg.picture([words, boxes_svg(boxes)], WIDE, top + 18, _alt(step))}<p>{key}</p>"


def _beside(y: float, text: str) -> str:
    """Return the SVG for text to the left of the drawing."""
    return svg.label(_LEFT - 6, y, "end", escape.plain(text, _TITLE))


def _title(track: Track) -> str:
    """Return a thread's title up to and including its role."""
    for role in ("(main", "(backward"):
        if f"{role}, " in track.title:
            return f"{track.title.partition(role)[0]}{role})"
    return track.title


def _name(timeline: Timeline, row: Any) -> str:
    name = str(timeline.names[row.name])
    if name in timeline.kinds:
        return palette.mark(name).word
    for start in _BEGINS:
        name = name.removeprefix(start)
    return name


def _curves(step: StepTimeline) -> list[MemoryCurve]:
    """Return the curves of the two devices with the most memory, if any memory was alive on them."""
    used = [curve for curve in step.timeline.memory if curve.bytes.max(initial=0) > 0]
    return sorted(used, key=lambda curve: -int(curve.bytes.max()))[:2]


def _curve(curve: MemoryCurve, whole: int, low: int) -> str:
    """Return the SVG path of a curve. Each time bin is represented by its highest and its last value."""
    parts = np.maximum(curve.times_ns, 0) * _PARTS // whole
    places, first = np.unique(parts, return_index=True)
    high = low - (_MEMORY - 4) * curve.bytes / curve.bytes.max()
    last = high[np.append(first[1:], len(high)) - 1]
    xs = _LEFT + places * ((WIDE - _LEFT) / _PARTS)
    steps = zip(xs, np.minimum.reduceat(high, first), last, strict=True)
    return f"M{_LEFT} {low}{''.join(f'H{x:.0f}V{y:.0f}V{end:.0f}' for x, y, end in steps)}H{WIDE}V{low}Z"


def timeline_document(timeline: Timeline | None, facts: Mapping[str, Any] | None = None) -> Document:
    """Return the document for the Timeline tab.

    In a live report, the document contains the whole timeline. Otherwise, it shows the median step as a picture, with
    the work on each of its tracks.

    Parameters
    ----------
    timeline : Timeline or None
        The timeline, or ``None`` if only the browser has it.
    facts : mapping, optional
        The browser's description of the packed timeline, as described in `perfnb.timeline.data.timeline_bytes`.
    """
    step = None if timeline is None else step_timeline(timeline)
    if step is not None and not len(step.tracks):
        step = None
    picture = Picture(
        "timeline",
        "",
        lambda width: [],
        lambda: "" if step is None else step_html(step),
        lambda: None if facts is None else dict(facts),
        "timeline/js/timeline.js",
        "timeline/js/timeline.css",
        "timeline",
    )
    if timeline is None or step is None:
        return Document("timeline", sections=(picture,))
    notes = tuple(f"The memory curve is {curve.note}." for curve in timeline.memory[:1] if curve.note)
    return Document("timeline", verdict=timeline_verdict(step), sections=(picture, _tracks(step)), notes=notes)


def timeline_verdict(step: StepTimeline) -> Verdict:
    """Return a sentence about the step's duration and the utilisation of the GPU and the main thread."""
    tracks = step.tracks
    streams = tracks[tracks["kind"] == "stream"].sort_values("busy_ms", ascending=False, kind="stable")
    chosen = enumerate([*_rows(streams.head(1)), *_rows(tracks[tracks["kind"] == "thread"].head(1))])
    busy = [
        f"{'the main thread' if '(main' in row.track else row.track} "
        + (f"for {fmt.share(row.share)}" if place else f"is busy for {fmt.share(row.share)} of it")
        for place, row in chosen
    ]
    return Verdict("none", f"{fmt.capital(_length(step))}{': ' if busy else ''}{' and '.join(busy)}.")


def _tracks(step: StepTimeline) -> Table:
    """Return a table of tracks.

    The phases, the layers and the first thread come first. The other tracks follow in descending order of busy time.
    """
    table = step.tracks
    always = table["kind"].isin(("phases", "layers"))
    always |= (table["kind"] == "thread") & ~table["kind"].duplicated()
    others = table[~always].sort_values("busy_ms", ascending=False, kind="stable")
    columns = {
        "track": Column("track"),
        "longest": Column("longest event", priority=1),
        "longest_ms": Column("its time", "ms", priority=1),
        "events": Column("events", "count"),
        "busy_ms": Column("busy", "ms"),
        "share": Column("share", "share", bar=True),
    }
    shown = pd.concat([table[always], others])
    shown = shown.assign(longest=[_longest(row) for row in _rows(shown)])
    return Table.of(f"Tracks of {step.name}", shown, columns, budget=Budget(8, 24), noun="track")


def _rows(frame: pd.DataFrame) -> Any:
    return frame.itertuples(index=False)


def _length(step: StepTimeline) -> str:
    length = f"{step.name} takes {fmt.duration(step.duration_ns / 1e6)}"
    if step.shown_ns == step.duration_ns:
        return length
    return f"{length}, and work that it launched ends {fmt.duration(step.shown_ns / 1e6)} after it started"


def _longest(row: Any) -> str:
    name = palette.mark(row.longest).word if row.kind == "phases" else row.longest.removeprefix(_BEGINS[0])
    if row.layer is None or row.kind == "phases":
        return str(name)
    return str(row.layer) if row.kind == "layers" else f"{name} in {row.layer}"


def _alt(step: StepTimeline) -> str:
    phases = step.timeline.of("phases")
    tracks = ", ".join(str(track.title) for track in step.timeline.tracks)
    rows = step.timeline.rows_on(phases[0]) if phases else step.timeline.rows.iloc[:0]
    kinds = dict.fromkeys(palette.mark(step.timeline.kinds[kind]).word for kind in rows["kind"].tolist())
    return f"{_length(step)}; tracks: {tracks}; phases: {', '.join(kinds)}"


TAB = Tab(
    "timeline",
    lambda report: report if report.timeline is not None or report.timeline_facts is not None else None,
    lambda part: timeline_document(part.timeline, part.timeline_facts),
)
