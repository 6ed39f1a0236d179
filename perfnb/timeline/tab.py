"""The timeline tab: all events live; elsewhere the median step as a picture, and what each of its tracks did."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.draw.document import Budget, Column, Document, Picture, Table, Verdict
from perfnb.draw.picture import GROUND, HATCHES, INK, LINE, QUIET, bare, picture_html
from perfnb.draw.tab import Tab
from perfnb.timeline.data import memory_word
from perfnb.timeline.median_step import StepTimeline, step_timeline
from perfnb.timeline.timeline import coarser
from perfnb.trace_names import BACKWARD_NODE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfnb.timeline.median_step import StepTimeline
    from perfnb.timeline.memory import MemoryCurve
    from perfnb.timeline.timeline import Timeline, Track

#: Tracks drawn of each kind, and lines of each.
_TRACKS = {"phases": 1, "layers": 1, "thread": 4, "stream": 6}
_LINES = {"phases": 1, "layers": 4, "thread": 2, "stream": 2}
_WIDTH = 8.8
_LINE_INCHES, _GAP, _MEMORY_INCHES, _REST_INCHES = 0.19, 0.55, 0.6, 0.62
#: Horizontal resolution: narrower events are merged with their neighbours.
_PARTS = 900
_INCHES_A_CHARACTER = 0.062
_TITLE = 22
#: A name that does not fit gets at least this many characters, or is left out.
_LEAST_ROOM = 7
_BEGINS = (f"{BACKWARD_NODE}: ", "torch::autograd::", "aten::")


def inches_of(step: StepTimeline) -> tuple[float, float]:
    """Width and height of the chart."""
    lines = sum(min(track.depth, _LINES[track.kind]) + _GAP for track in shown_tracks(step))
    return _WIDTH, _REST_INCHES + lines * _LINE_INCHES + _MEMORY_INCHES * len(_curves(step))


def shown_tracks(step: StepTimeline) -> list[Track]:
    """The tracks that are drawn: the busiest of many threads and streams."""
    tracks, table = step.timeline.tracks, step.tracks
    chosen: list[int] = []
    for kind, most in _TRACKS.items():
        busy = table.loc[table["kind"] == kind, "busy_ms"].sort_values(ascending=False, kind="stable")
        chosen += sorted(busy.index[:most])
    return [tracks[place] for place in sorted(chosen)]


def draw_step(figure: Figure, step: StepTimeline) -> None:
    """Draw the step into an empty figure."""
    curves, shown = _curves(step), shown_tracks(step)
    lines = sum(min(track.depth, _LINES[track.kind]) + _GAP for track in shown)
    heights = [lines * _LINE_INCHES, *[_MEMORY_INCHES] * len(curves)]
    grid: Any = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
    above, *below = grid[:, 0]
    timeline = coarser(step.timeline, max(2, step.shown_ns // _PARTS))
    by_title = {(track.kind, track.title): track for track in timeline.tracks}
    top, places = 0.0, []
    for track in shown:
        places.append((top + 0.5, escape.chart(_title(track), _TITLE)))
        _band(above, timeline, by_title[track.kind, track.title], top, step.shown_ns)
        top += min(track.depth, _LINES[track.kind]) + _GAP
    above.set_ylim(top - _GAP + 0.1, -0.1)
    above.set_yticks([place for place, _ in places], [word for _, word in places])
    for axes, curve in zip(below, curves, strict=True):
        _memory(axes, curve, step.shown_ns)
    for axes in (above, *below):
        bare(axes)
        axes.set_xlim(0, step.shown_ns)
        if step.duration_ns < step.shown_ns:
            axes.axvline(step.duration_ns, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.xaxis.grid(True, color=LINE, linewidth=0.6)
        axes.xaxis.set_major_formatter(lambda value, _: fmt.duration(value / 1e6) if value else "0")
        axes.tick_params(axis="x", labelbottom=axes is grid[-1, 0])
    _key(figure, timeline)


def _title(track: Track) -> str:
    """The title without anything after a thread's role."""
    for role in ("(main", "(backward"):
        if f"{role}, " in track.title:
            return f"{track.title.partition(role)[0]}{role})"
    return track.title


def _band(axes: Axes, timeline: Timeline, track: Track, top: float, whole: int) -> None:
    rows = timeline.rows_on(track)
    rows = rows[rows["depth"] < _LINES[track.kind]]
    least = whole / (1.5 * _PARTS)
    for kind in np.unique(rows["kind"].to_numpy()).tolist():
        group = rows[rows["kind"] == kind]
        mark = palette.mark(timeline.kinds[kind])
        hatch, colour = HATCHES.get(mark.pattern, (None, GROUND))
        wide = np.maximum(group["duration"].to_numpy(float), least)
        axes.barh(
            top + 0.5 + group["depth"].to_numpy(float), wide, height=0.88, left=group["start"].to_numpy(float),
            facecolor=mark.colour, hatch=hatch if track.kind == "phases" else None, edgecolor=colour, linewidth=0.3,
        )  # fmt: skip
    _words(axes, timeline, rows, top, whole)


def _words(axes: Axes, timeline: Timeline, rows: pd.DataFrame, top: float, whole: int) -> None:
    inches = (rows["duration"] / whole * (_WIDTH - 1.9)).to_numpy()
    for place in np.flatnonzero(inches > _INCHES_A_CHARACTER).tolist():
        row = rows.iloc[place]
        name, room = _name(timeline, row), int(inches[place] / _INCHES_A_CHARACTER)
        if room < min(_LEAST_ROOM, escape.cells(name)):
            continue
        mark = palette.mark(timeline.kinds[int(row["kind"])])
        text = axes.text(
            row["start"] + row["duration"] / 2, top + 0.5 + row["depth"], escape.chart(name, room),
            ha="center", va="center", size=7, color=_ink(mark.colour), clip_on=True,
        )  # fmt: skip
        text.set_in_layout(False)  # it lies in its interval
        if mark.pattern in HATCHES:
            text.set_bbox({"facecolor": mark.colour, "edgecolor": "none", "pad": 0.6})


def _name(timeline: Timeline, row: pd.Series) -> str:
    name = timeline.names[int(row["name"])]
    if name in timeline.kinds:
        return palette.mark(name).word
    for start in _BEGINS:
        name = name.removeprefix(start)
    return name


def _ink(colour: str) -> str:
    """Black or white, whichever reads better on a colour."""
    red, green, blue = bytes.fromhex(colour[1:])
    return INK if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else GROUND


def _curves(step: StepTimeline) -> list[MemoryCurve]:
    """The two devices with the most memory, if anything was alive on them."""
    used = [curve for curve in step.timeline.memory if curve.bytes.max(initial=0) > 0]
    return sorted(used, key=lambda curve: -int(curve.bytes.max()))[:2]


def _memory(axes: Axes, curve: MemoryCurve, whole: int) -> None:
    times, sizes = curve.times_ns.astype(float), curve.bytes.astype(float)
    times, sizes = np.append(times, whole), np.append(sizes, sizes[-1])
    axes.fill_between(times, sizes, step="post", facecolor=LINE, edgecolor=QUIET, linewidth=0.8)
    most = float(sizes.max())
    axes.set_ylim(0, 1.15 * most)
    axes.set_yticks([most / 2], [f"Memory, {memory_word(curve.device)}\n{fmt.size(most)} at most"])


def _key(figure: Figure, timeline: Timeline) -> None:
    from matplotlib.patches import Patch

    marks = [palette.mark(timeline.kinds[kind]) for kind in sorted(set(timeline.rows["kind"].tolist()))]
    patches = [Patch(facecolor=mark.colour, label=mark.word) for mark in marks]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=8, frameon=False, handlelength=1.2, columnspacing=1.4
    )


#: Tracks that text and static HTML list.
_LISTED = Budget(8, 24)
_NODE = f"{BACKWARD_NODE}: "


def timeline_document(timeline: Timeline | None, facts: Mapping[str, Any] | None = None) -> Document:
    """When everything ran: all of it live, elsewhere the median step as a picture, and what each of its tracks did.

    Parameters
    ----------
    timeline : Timeline or None
        ``None`` if only the browser has it.
    facts : mapping, optional
        What the browser is told of the packed timeline; see `perfnb.timeline.data.timeline_bytes`.
    """
    step = None if timeline is None else step_timeline(timeline)
    if step is not None and not len(step.tracks):
        step = None
    picture = Picture(
        "timeline",
        "",
        lambda width: [],
        lambda: (
            "" if step is None else f"<p>{picture_html(partial(draw_step, step=step), inches_of(step), _alt(step))}</p>"
        ),
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
    """How long the step took, and how busy the GPU's busiest stream and the main thread were in it."""
    tracks = step.tracks
    streams = tracks[tracks["kind"] == "stream"].sort_values("busy_ms", ascending=False, kind="stable")
    chosen = [*_rows(streams.head(1)), *_rows(tracks[tracks["kind"] == "thread"].head(1))]
    names = ["the main thread" if "(main" in row.track else row.track for row in chosen]
    said = fmt.capital(_length(step))
    for row, name in zip(chosen, names, strict=True):
        said += f" and {name} for " if row is not chosen[0] else f": {name} is busy for "
        said += fmt.share(row.share) if row is not chosen[0] else f"{fmt.share(row.share)} of it"
    why = "; ".join(
        f"the longest event of {name} is {escape.shorten(_longest(row), 60)}, {fmt.duration(row.longest_ms)}"
        for row, name in zip(chosen, names, strict=True)
    )
    return Verdict("none", f"{said}.", f"{fmt.capital(why)}." if why else "")


def _tracks(step: StepTimeline) -> Table:
    """Phases, layers and the first thread, then the others from the busiest down."""
    table = step.tracks
    always = table["kind"].isin(("phases", "layers"))
    always |= (table["kind"] == "thread") & ~table["kind"].duplicated()
    others = table[~always].sort_values("busy_ms", ascending=False, kind="stable")
    columns = (
        Column("track"),
        Column("longest event", priority=1),
        Column("its time", "ms", priority=1),
        Column("events", "count"),
        Column("busy", "ms"),
        Column("share", "share", bar=True),
    )
    rows = [
        (row.track, _longest(row), row.longest_ms, row.events, row.busy_ms, row.share)
        for row in (*_rows(table[always]), *_rows(others))
    ]
    return Table(f"Tracks of {step.name}", columns, rows, budget=_LISTED, noun="track")


def _rows(frame: pd.DataFrame) -> Any:
    return frame.itertuples(index=False)


def _length(step: StepTimeline) -> str:
    length = f"{step.name} takes {fmt.duration(step.duration_ns / 1e6)}"
    if step.shown_ns == step.duration_ns:
        return length
    return f"{length}, and work that it launched ends {fmt.duration(step.shown_ns / 1e6)} after it started"


def _longest(row: Any) -> str:
    name = palette.mark(row.longest).word if row.kind == "phases" else row.longest.removeprefix(_NODE)
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
