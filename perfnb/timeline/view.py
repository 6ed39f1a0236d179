"""The timeline without scripts: one step as a picture with a table of its tracks, and text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.picture import picture_html
from perfnb.timeline.median_step import StepTimeline, step_timeline
from perfnb.timeline.picture import draw_step, inches_of
from perfnb.trace_names import BACKWARD_NODE

if TYPE_CHECKING:
    from perfnb.timeline.timeline import Timeline

#: Most tracks listed.
TRACKS_IN_HTML, TRACKS_IN_TEXT = 24, 8
_NODE = f"{BACKWARD_NODE}: "


def timeline_html(timeline: Timeline) -> str:
    """The median step as a picture, and what each of its tracks did."""
    step = step_timeline(timeline)
    if step is None or not len(step.tracks):
        return ""
    picture = picture_html(functools.partial(draw_step, step=step), inches_of(step), _alt(step))
    rows = [
        (
            tables.name(row.track),
            tables.name(_longest(row), 70),
            fmt.duration(row.longest_ms),
            fmt.count(row.events),
            fmt.duration(row.busy_ms),
            escape.html(fmt.share(row.share)),
        )
        for row in step.tracks.head(TRACKS_IN_HTML).itertuples(index=False)
    ]
    left = len(step.tracks) - len(rows)
    more = f": the first {len(rows)}; {left:,} more are not listed" if left else ""
    caption = f"Tracks of {step.name}{more}"
    table = tables.table(caption, ["track", "longest event", "its time", "events", "busy", "share"], rows, texts=2)
    head = f"<p><strong>Timeline</strong> · {escape.html_sentence(_headline(timeline, step))}</p>"
    return f"{head}<p>{picture}</p>{table}"


def timeline_text(timeline: Timeline, width: int = 100) -> list[str]:
    """What each track did in the median step, as lines of at most `width` cells."""
    step = step_timeline(timeline)
    if step is None or not len(step.tracks):
        return []
    shown = step.tracks.head(TRACKS_IN_TEXT)
    names = min(30, max(escape.cells(escape.plain(name, 30)) for name in shown["track"]))
    room = width - names - 36
    lines = escape.wrapped(f"Timeline · {escape.plain(_headline(timeline, step), 600)}", width)
    lines.append(f"{'track':<{names}} {'events':>8} {'busy':>8} {'share':>6}  longest")
    for row in shown.itertuples(index=False):
        figures = f"{fmt.count(row.events):>8} {fmt.duration(row.busy_ms):>8} {fmt.share(row.share):>6}"
        longest = f"{fmt.duration(row.longest_ms):>8} {escape.plain(_longest(row), room)}"
        lines.append(f"{escape.fit(row.track, names)} {figures}  {longest}".rstrip())
    left = len(step.tracks) - len(shown)
    return [*lines, f"… {left:,} more tracks"] if left else lines


def _headline(timeline: Timeline, step: StepTimeline) -> str:
    facts = [_length(step)]
    if timeline.memory:
        facts.append(f"memory {timeline.memory[0].note}")
    return " · ".join(facts)


def _length(step: StepTimeline) -> str:
    length = f"{step.name}, {fmt.duration(step.duration_ns / 1e6)}"
    if step.shown_ns == step.duration_ns:
        return length
    return f"{length}; work that it launched ends {fmt.duration(step.shown_ns / 1e6)} after it started"


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
