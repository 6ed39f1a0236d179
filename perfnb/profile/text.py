"""The report as text: headline, phases, tabs, notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette
from perfnb.findings.view import verdict_text
from perfnb.profile.noise import notes_of
from perfnb.profile.report import Report
from perfnb.profile.summary import Summary

if TYPE_CHECKING:
    from perfnb.timeline.timeline import Timeline

#: Minimum width that fits the columns.
MIN_WIDTH = 80


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
    tabs = [tab.text(part, width) for tab, part in Report(summary, timeline).shown_static() if tab.text]
    parts = [_headline(summary, width), _phases(summary, width), *tabs, _notes(summary, width)]
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in map(list, parts) if part)


def headline_facts(summary: Summary) -> list[str]:
    """Return the sentences of the headline: the step time and how it was measured."""
    timing = summary.timing
    if summary.source is not None:
        step = f"step {fmt.UNKNOWN} (a trace has no timed steps)"
    elif not timing.steps:
        step = f"step {fmt.UNKNOWN} (no timed step)"
    else:
        step = f"step {fmt.interval(timing.median_ms, timing.ci_ms)} ({timing.basis})"
    facts = [step]
    if timing.steps and timing.throughput_per_s is not None:
        size = "" if timing.batch_size is None else f", batch of {timing.batch_size:,}"
        facts.append(f"{fmt.rate(timing.throughput_per_s, 'samples')}{size}")
    if summary.source is None:
        facts.append(fmt.executions(summary.executed))
    else:
        facts.append(f"read from {escape.plain(summary.source, 200)}")
    if summary.traced_ms is None:
        facts.append("no trace" if summary.source is None else "no events")
    elif summary.source is not None:
        count = summary.executed.get("traced", 0)
        mean = "" if count == 1 else f" (mean of {count:,})"
        facts.append(f"traced step {fmt.duration(summary.traced_ms)}{mean}")
        if summary.until_gpu_ms is not None:
            until = fmt.duration(summary.until_gpu_ms)
            facts.append(f"GPU work continues after it: findings use {until}, until the GPU is done")
    elif summary.slowdown is None:
        facts.append(f"traced step {fmt.duration(summary.traced_ms)}")
    else:
        facts.append(f"traced step {fmt.duration(summary.traced_ms)}, {fmt.ratio(summary.slowdown)} the timed step")
    return facts


def _headline(summary: Summary, width: int) -> list[str]:
    title = f"perfnb · {escape.plain(summary.name, width // 2)} · {escape.plain(summary.device, width)}"
    verdict = [] if summary.findings is None else verdict_text(summary.findings, width)
    return [escape.shorten(title, width), *verdict, *_joined(headline_facts(summary), width)]


def _joined(facts: Sequence[str], width: int) -> Iterator[str]:
    line = ""
    for fact in facts:
        if line and escape.cells(line) + 3 + escape.cells(fact) > width:
            yield from escape.wrapped(line, width)
            line = ""
        line = f"{line} · {fact}" if line else fact
    yield from escape.wrapped(line, width)


def _phases(summary: Summary, width: int) -> list[str]:
    shown = [(str(name), row) for name, row in summary.phases.iterrows() if (fmt.known(row["ms"]) or 0) > 0]
    if not shown:
        return []
    shares = [max(0.0, fmt.known(row["share"]) or 0.0) for _, row in shown]
    bar = bars.stacked([palette.mark(name) for name, _ in shown], shares, width)
    figures = [(palette.mark(name), fmt.duration(row["ms"]), fmt.share(row["share"])) for name, row in shown]
    return [f"Phases of a traced step ({fmt.duration(summary.traced_ms)})", bar, *bars.legend(figures, width)]


def _notes(summary: Summary, width: int) -> list[str]:
    notes = escape.bullets(notes_of(summary), width)
    return ["Notes", *notes] if notes else []
