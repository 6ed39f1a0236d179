"""The report: its tabs in their order, its text, its HTML without scripts, and the data that the browser draws."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import assets, bars, escape, palette, tables
from perfnb.draw.frame import framed, notes_html
from perfnb.draw.tree import split_layers
from perfnb.findings.tab import verdict_html, verdict_text
from perfnb.profile.registry import TABS
from perfnb.profile.tab import layer_ops_data
from perfnb.profile.timing import noise_facts

if TYPE_CHECKING:
    from perfnb.draw.tab import Tab
    from perfnb.profile.analysis import Analysis
    from perfnb.profile.summary import Summary
    from perfnb.timeline.timeline import Timeline

#: Minimum width of the text that fits the columns.
MIN_WIDTH = 80

_SCRIPT = "profile/js/report.js"

_INFERENCE = "This is inference: nothing ran backward. perfnb.latency shows how long requests take under load."
_NO_RATE = " With batches (for batch in loader), samples/s would be known too."


@dataclass(frozen=True)
class Report:
    """What the tabs show.

    Attributes
    ----------
    summary : Summary
    timeline : Timeline or None
        When everything ran; ``None`` if no step was traced.
    timeline_facts : mapping or None
        What the browser is told of the packed timeline; see `perfnb.timeline.data.timeline_bytes`.
    """

    summary: Summary
    timeline: Timeline | None = None
    timeline_facts: Mapping[str, Any] | None = None

    def shown(self) -> list[tuple[Tab, Any]]:
        """The tabs that appear, each with what it shows, in the order of the report."""
        shown = ((tab, tab.shows(self)) for tab in tabs())
        return [(tab, part) for tab, part in shown if part is not None]

    def shown_static(self) -> list[tuple[Tab, Any]]:
        """The same in the order of the static twin."""
        return sorted(self.shown(), key=lambda pair: not pair[0].upfront)

    def part(self, key: str, compute: Callable[[Analysis], Any]) -> Any:
        """What a tab computes from the analysis for itself, once; ``None`` without an analysis."""
        parts, analysis = self.summary.parts, self.summary.analysis
        if key not in parts:
            parts[key] = None if analysis is None else compute(analysis)
        return parts[key]

    @functools.cached_property
    def layer_places(self) -> dict[str, int]:
        """The row of each layer in the browser's table."""
        names = [str(name) for part in split_layers(self.summary.layers) for name in part.index]
        return {name: place for place, name in reversed(list(enumerate(names)))}

    @functools.cached_property
    def op_places(self) -> dict[str, int]:
        """The row of each op in the browser's table."""
        names = dict.fromkeys([*map(str, self.summary.ops.index), *map(str, self.summary.layer_ops["op"])])
        return {name: place for place, name in enumerate(names)}


@functools.cache
def tabs() -> tuple[Tab, ...]:
    """All tabs; their rooms are imported at the first call."""
    return tuple(map(resolve_name, TABS))


def report_script(keys: Iterable[str] | None = None) -> str:
    """The report's script with the tabs of these keys, by default all: a module whose default export has ``render``."""
    return assets.script(*(tab.script for tab in _of(keys)), _SCRIPT)


def report_style(keys: Iterable[str] | None = None) -> str:
    """The report's style sheet with those of the tabs of these keys, by default all."""
    return assets.style(*(tab.style for tab in _of(keys) if tab.style))


def _of(keys: Iterable[str] | None) -> list[Tab]:
    chosen = None if keys is None else set(keys)
    return [tab for tab in tabs() if tab.script and (chosen is None or tab.key in chosen)]


def summary_text(summary: Summary, width: int = 100, timeline: Timeline | None = None) -> str:
    """Return the report as text for a terminal, a log or a notebook without HTML.

    Parameters
    ----------
    summary : Summary
    width : int
        Maximum line width in character cells, at least `MIN_WIDTH`.
    timeline : Timeline, optional
        Timeline of the same profile.
    """
    width = max(MIN_WIDTH, width)
    title = f"perfnb · {escape.plain(summary.name, width // 2)} · {escape.plain(summary.device, width)}"
    verdict = [] if summary.findings is None else verdict_text(summary.findings, width)
    parts = [[escape.shorten(title, width), *verdict, *_joined(_headline(summary), width)]]
    caption, shares, figures = _phases(summary)
    if figures:
        bar = bars.stacked([mark for mark, _ in shares], [share for _, share in shares], width)
        parts.append([caption, bar, *bars.legend(figures, width)])
    parts += [tab.text(part, width) for tab, part in Report(summary, timeline).shown_static() if tab.text]
    if notes := notes_of(summary):
        parts.append(["Notes", *escape.bullets(notes, width)])
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)


def _joined(facts: Sequence[str], width: int) -> Iterator[str]:
    line = ""
    for fact in facts:
        if line and escape.cells(line) + 3 + escape.cells(fact) > width:
            yield from escape.wrapped(line, width)
            line = ""
        line = f"{line} · {fact}" if line else fact
    yield from escape.wrapped(line, width)


def summary_html(summary: Summary, timeline: Timeline | None = None) -> str:
    """Return the report as HTML without scripts, for GitHub, exports and untrusted notebooks.

    The outer element has the class ``perfnb-static``.
    """
    step, *facts = map(escape.html_sentence, _headline(summary))
    what = f"<strong>{escape.html(summary.name)}</strong> · {escape.html(summary.device)}"
    verdict = "<br>" if summary.findings is None else f'</p>{verdict_html(summary.findings)}<p class="pf-head">'
    rest = "<br>".join([f'<strong class="pf-step">{step}</strong>', *facts])
    parts = [f'<p class="pf-head">{what}{verdict}{rest}</p>']
    caption, shares, figures = _phases(summary)
    if figures:
        rows = [(tables.keyed(mark), time, escape.html(share)) for mark, time, share in figures]
        parts.append(tables.full_bar(shares, sum(share for _, share in shares) or 1.0))
        parts.append(tables.table(caption, ["phase", "time", "share"], rows))
    parts += [tab.html(part) for tab, part in Report(summary, timeline).shown_static() if tab.html]
    return framed("".join(parts) + notes_html(notes_of(summary)))


def _headline(summary: Summary) -> list[str]:
    """The sentences of the headline: the step time and how it was measured."""
    timing = summary.timing
    traced = f"traced step {fmt.duration(summary.traced_ms)}"
    if summary.source is not None:
        facts = [f"step {fmt.UNKNOWN} (a trace has no timed steps)", f"read from {escape.plain(summary.source, 200)}"]
        if summary.traced_ms is None:
            return [*facts, "no events"]
        count = summary.executed.get("traced", 0)
        facts.append(traced if count == 1 else f"{traced} (mean of {count:,})")
        if summary.until_gpu_ms is not None:
            until = fmt.duration(summary.until_gpu_ms)
            facts.append(f"GPU work continues after it: findings use {until}, until the GPU is done")
        return facts
    if not timing.steps:
        facts = [f"step {fmt.UNKNOWN} (no timed step)"]
    else:
        per = " per batch" if summary.by_batch else ""
        facts = [f"step {fmt.interval(timing.median_ms, timing.ci_ms)}{per} ({timing.basis})"]
        if timing.throughput_per_s is not None:
            size = "" if timing.batch_size is None else f", batch of {timing.batch_size:,}"
            facts.append(f"{fmt.rate(timing.throughput_per_s, 'samples')}{size}")
        if is_inference(summary):
            facts.insert(1, "inference")
        if summary.tokens_per_s is not None:
            facts.append(fmt.rate(summary.tokens_per_s, "tokens"))
        if summary.mfu is not None:
            facts.append(f"MFU {fmt.share(summary.mfu)} {mfu_words(summary)}")
    facts.append(fmt.executions(summary.executed))
    if summary.traced_ms is None:
        return [*facts, "no trace"]
    beside = "" if summary.slowdown is None else f", {fmt.ratio(summary.slowdown)} the timed step"
    return [*facts, traced + beside]


_Marked = list[tuple[palette.Mark, float]]
_Figures = list[tuple[palette.Mark, str, str]]


def _phases(summary: Summary) -> tuple[str, _Marked, _Figures]:
    """A caption, and of each phase that took time its share as a number, and its time and share in words."""
    shown = [
        (palette.mark(str(name)), row) for name, row in summary.phases.iterrows() if (fmt.known(row["ms"]) or 0) > 0
    ]
    shares = [(mark, max(0.0, fmt.known(row["share"]) or 0.0)) for mark, row in shown]
    figures = [(mark, fmt.duration(row["ms"]), fmt.share(row["share"])) for mark, row in shown]
    return f"Phases of a traced step ({fmt.duration(summary.traced_ms)})", shares, figures


def notes_of(summary: Summary) -> list[str]:
    """Return the notes of a report, including disturbances of the timed steps."""
    facts = noise_facts(summary.timing.noise)
    disturbed = [f"During the timed steps: {'; '.join(facts)}."] if facts else []
    return [*summary.notes, *disturbed, *_note_of_inference(summary)]


def _note_of_inference(summary: Summary) -> Iterator[str]:
    if is_inference(summary):
        yield _INFERENCE + ("" if summary.timing.throughput_per_s is not None else _NO_RATE)


def mfu_words(summary: Summary) -> str:
    """Name the peak that the MFU is a share of; a data sheet's would be higher."""
    dtype = None if summary.roofline is None else summary.roofline.dtype
    return f"of the measured {dtype} peak" if dtype else "of the measured peak"


def is_inference(summary: Summary) -> bool:
    """Whether a step that was run here has a forward pass, and neither a backward pass nor an optimizer's step."""
    times = {str(name): fmt.known(row["ms"]) or 0.0 for name, row in summary.phases.iterrows()}
    trained = times.get("backward", 0.0) > 0 or times.get("optimizer", 0.0) > 0
    return summary.source is None and times.get("forward", 0.0) > 0 and not trained


def report_data(
    summary: Summary, report_id: str = "report", timeline: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything that the browser shows, ready for JSON; unknown figures are ``None``.

    Parameters
    ----------
    summary : Summary
    report_id : str
        Links the live report to its static twin, whose class is ``perfnb-static-<report_id>``.
    timeline : mapping, optional
        Facts about the timeline, which is sent separately; see `perfnb.timeline.data.timeline_bytes`.
    """
    timing = summary.timing
    report = Report(summary, timeline_facts=timeline)
    shown = [(tab, tab.data(part)) for tab, part in report.shown() if tab.data]
    drawn = [(tab, data) for tab, data in shown if data is not None]
    filled = [(tab, data) for tab, data in drawn if tab.is_empty is None or not tab.is_empty(data)]
    places = report.layer_places
    exact = functools.partial(fmt.short, digits=9)  # the browser rounds headline figures again
    own = {
        "id": report_id,
        "name": escape.plain(summary.name),
        "device": escape.plain(summary.device),
        "source": None if summary.source is None else escape.plain(summary.source),
        "step": {
            "median_ms": exact(timing.median_ms),
            "ci_ms": [exact(bound) for bound in timing.ci_ms] if timing.ci_ms else None,
            "samples_ms": [fmt.short(ms) for ms in timing.samples_ms[:500]],
            "steps": timing.steps,
            "basis": timing.basis,
            "throughput_per_s": exact(timing.throughput_per_s),
            "batch_size": timing.batch_size,
            "by_batch": summary.by_batch,
            "inference": is_inference(summary),
            "tokens_per_s": exact(summary.tokens_per_s),
            "mfu": fmt.short(summary.mfu),
            "mfu_of": escape.plain(mfu_words(summary)),
            "traced_ms": exact(summary.traced_ms),
            "until_gpu_ms": exact(summary.until_gpu_ms),
            "slowdown": exact(summary.slowdown),
            "executed": [[fmt.PASS_WORDS.get(name, escape.plain(name)), n] for name, n in summary.executed.items()],
        },
        "phases": [
            {
                **palette.mark(str(name)).data,
                "word": escape.plain(palette.mark(str(name)).word),
                "ms": fmt.short(row["ms"]),
                "share": fmt.short(row["share"]),
            }
            for name, row in summary.phases.iterrows()
        ],
        "tabs": [[tab.key, tab.title] for tab, _ in filled or drawn],
        "layer_ops": layer_ops_data(summary, places, report.op_places),
        "hot_path": [places[name] for name in map(str, summary.hot_path) if name in places],
        "notes": [escape.plain(note, 2000) for note in notes_of(summary)],
    }
    of_tabs = {tab.key: None for tab in tabs()} | {tab.key: data for tab, data in drawn}
    assert not own.keys() & of_tabs.keys(), "a tab has the key of one of the report's own fields"
    return {**own, **of_tabs}


def layer_rows(summary: Summary, names: Iterable[str]) -> list[int]:
    """Return the row of each layer in the report; -1 if it has none."""
    places = Report(summary).layer_places
    return [places.get(name, -1) for name in names]
