"""Memory over a step without scripts: a picture with tables, and text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette, tables
from perfnb.draw.picture import picture_html
from perfnb.memory.picture import draw_memory

if TYPE_CHECKING:
    from perfnb.memory.table import MemorySummary

#: Most owners listed.
OWNERS_IN_HTML, OWNERS_IN_TEXT = 15, 8

_INCHES = (8.8, 3.7)
_NO_LAYER = "no layer"


def memory_html(summary: MemorySummary) -> str:
    """The memory view as a picture and tables."""
    parts = [f"<p><strong>Memory</strong> · {escape.html_sentence(' · '.join(memory_facts(summary)))}</p>"]
    if summary.incomplete is not None:
        parts.append(f"<p><strong>{_FAILED}</strong> {escape.html_sentence(summary.incomplete)}</p>")
    if len(summary.timeline):
        parts.append(f"<p>{picture_html(functools.partial(draw_memory, summary=summary), _INCHES, _alt(summary))}</p>")
    if held := _held(summary):
        rows = [
            (tables.keyed(palette.category(name)), fmt.size(size), escape.html(fmt.share(size / summary.peak_bytes)))
            for name, size in held
        ]
        parts.append(
            tables.table(f"Memory at the {instant_word(summary)}, by category", ["category", "memory", "share"], rows)
        )
    parts += [_owners_html(summary), _fits_html(summary)]
    return "".join(parts)


def memory_text(summary: MemorySummary, width: int = 100) -> list[str]:
    """The memory view as lines of at most `width` cells."""
    facts = " · ".join(memory_facts(summary))
    lines = escape.wrapped(f"Memory · {escape.plain(facts, 2000)}", width)
    if summary.incomplete is not None:
        lines += escape.wrapped(f"{_FAILED} {escape.plain(summary.incomplete, 600)}", width)
    lines += _curve(summary, width)
    if held := _held(summary):
        marks = [palette.category(name) for name, _ in held]
        lines += [f"at the {instant_word(summary)}", bars.stacked(marks, [size for _, size in held], width)]
        figures = [(fmt.size(size), fmt.share(size / summary.peak_bytes)) for _, size in held]
        lines += bars.legend([(mark, *both) for mark, both in zip(marks, figures, strict=True)], width)
    return [line.rstrip() for line in [*lines, *_owners_text(summary, width), *_fits_text(summary, width)]]


def memory_facts(summary: MemorySummary) -> list[str]:
    """The headline: how much, when, where, and the allocator's own figures."""
    (phase,) = phases_at(summary, np.array([summary.peak_ms]))
    where = f" in {palette.mark(phase).word}" if phase else ""
    what = "peak" if summary.incomplete is None else "at the failure"
    peak = f"{what} {fmt.size(summary.peak_bytes)} at {fmt.duration(summary.peak_ms)}{where}"
    facts = [f"{peak if summary.peak_bytes else 'no allocations seen'}, on {summary.device}"]
    if summary.reserved_peak_bytes is not None:
        unused = "" if summary.fragmentation is None else f", {fmt.share(summary.fragmentation)} of it unused"
        facts.append(f"reserved {fmt.size(summary.reserved_peak_bytes)}{unused}")
    if summary.largest_free_bytes is not None:
        facts.append(f"largest free block {fmt.size(summary.largest_free_bytes)}")
    if summary.retries:
        facts.append(
            "1 retry of the allocator" if summary.retries == 1 else f"{summary.retries:,} retries of the allocator"
        )
    if summary.ooms:
        facts.append(f"out of memory {'once' if summary.ooms == 1 else f'{summary.ooms:,} times'}")
    if summary.process_peak_bytes is not None:
        facts.append(f"process {fmt.size(summary.process_peak_bytes)} at most")
    return facts


def instant_word(summary: MemorySummary) -> str:
    """The instant described in full: the peak, or the failure if the step failed."""
    return "peak" if summary.incomplete is None else "failure"


def phases_at(summary: MemorySummary, instants_ms: np.ndarray) -> list[str | None]:
    """The phase of the step at each of some instants."""
    phases = summary.phases
    begin, end = (phases[name].to_numpy(dtype=float) for name in ("start_ms", "end_ms"))
    inside = (begin <= instants_ms[:, None]) & (instants_ms[:, None] < end)
    names = [str(name) for name in phases["phase"]]
    return [names[row.argmax()] if row.any() else None for row in inside]


_FAILED = "Incomplete: the step failed. Shown is the memory alive until then:"


def _held(summary: MemorySummary) -> list[tuple[str, int]]:
    """The categories that hold memory at the peak, in order."""
    return [(name, int(size)) for name, size in summary.by_category.items() if size > 0] if summary.peak_bytes else []


def _alt(summary: MemorySummary) -> str:
    held = ", ".join(f"{palette.category(name).word} {fmt.size(size)}" for name, size in _held(summary))
    return f"Memory over the step by category; {memory_facts(summary)[0]}: {held}"


def _owner(row: Any) -> str:
    return _NO_LAYER if pd.isna(row.layer) else str(row.layer)


def _owners_html(summary: MemorySummary) -> str:
    if not len(summary.owners):
        return ""
    rows = [
        (
            tables.name(_owner(row)),
            tables.keyed(palette.category(str(row.category))),
            fmt.size(row.bytes),
            escape.html(fmt.share(row.share)),
            fmt.count(row.count),
        )
        for row in _first(summary.owners, OWNERS_IN_HTML)
    ]
    left = len(summary.owners) - len(rows)
    more = f": the largest; {left:,} smaller ones are not listed" if left else ""
    caption = f"Owners at the {instant_word(summary)}{more}"
    return tables.table(caption, ["layer", "category", "memory", "share", "allocations"], rows, texts=2)


def _fits_html(summary: MemorySummary) -> str:
    rows = [
        (
            escape.html(row.option, 60),
            escape.html_sentence(row.detail),
            escape.html(row.basis, 20),
            *_freed(summary, row),
        )
        for row in summary.fits.itertuples()
    ]
    heads = ["option", "why", "basis", "frees", "leaves"]
    return tables.table(_fits_head(summary), heads, rows, texts=3) if rows else ""


def _fits_head(summary: MemorySummary) -> str:
    return f"What would make it fit? (each option on its own, at the {instant_word(summary)})"


def _freed(summary: MemorySummary, row: Any) -> tuple[str, str]:
    frees = fmt.known(row.frees_bytes)
    return fmt.size(frees), fmt.size(None if frees is None else max(0.0, summary.peak_bytes - frees))


def _curve(summary: MemorySummary, width: int) -> list[str]:
    """Most memory alive in each part of the step, and the phases below."""
    if len(summary.timeline) < 2 or summary.step_ms <= 0:
        return []
    times = summary.timeline["t_ms"].to_numpy(float)
    totals = summary.timeline["total"].to_numpy(float, na_value=0.0)
    edges = np.linspace(0, summary.step_ms, width + 1)
    # Levels last until the next instant: a part starts with what the previous one left alive.
    first = np.maximum(np.searchsorted(times, edges[:-1], side="right") - 1, 0)
    last = np.maximum(np.searchsorted(times, edges[1:], side="left"), first + 1)
    most = [totals[a:b].max() if times[a] < end else 0.0 for a, b, end in zip(first, last, edges[1:], strict=True)]
    lines = ["memory alive over the step", bars.heights(most, float(max(most)))]
    shown = phases_at(summary, (edges[:-1] + edges[1:]) / 2)
    if any(shown):
        used = list(dict.fromkeys(name for name in shown if name))
        key = "  ".join(f"{palette.mark(name).glyph} {escape.plain(palette.mark(name).word, 20)}" for name in used)
        lines += ["".join(palette.mark(name).glyph if name else " " for name in shown), *escape.wrapped(key, width)]
    return lines


def _owners_text(summary: MemorySummary, width: int) -> list[str]:
    if not len(summary.owners):
        return []
    words = max(escape.cells(mark.word) for mark in palette.CATEGORIES.values())
    names = width - words - 18
    lines = [f"{f'owners at the {instant_word(summary)}':<{names}} {'category':<{words}} {'memory':>8} {'share':>6}"]
    for row in _first(summary.owners, OWNERS_IN_TEXT):
        word = escape.fit(palette.category(str(row.category)).word, words)
        lines.append(f"{escape.fit(_owner(row), names)} {word} {fmt.size(row.bytes):>8} {fmt.share(row.share):>6}")
    left = len(summary.owners) - OWNERS_IN_TEXT
    return [*lines, f"… {left:,} smaller ones"] if left > 0 else lines


def _fits_text(summary: MemorySummary, width: int) -> list[str]:
    if not len(summary.fits):
        return []
    names = min(34, max(escape.cells(escape.plain(option, 34)) for option in summary.fits["option"]))
    lines = [_fits_head(summary)]
    for row in summary.fits.itertuples():
        frees, leaves = _freed(summary, row)
        basis = escape.fit(row.basis, 9)
        lines.append(f"{escape.fit(row.option, names)}  frees {frees:>8}, leaves {leaves:>8}  {basis}".rstrip())
        lines += [f"  {line}" for line in escape.wrapped(escape.plain(row.detail, 600), width - 2) if line]
    return lines


def _first(frame: pd.DataFrame, most: int) -> Any:
    return frame.head(most).itertuples(index=False)
