"""The report's tab of memory: a picture with tables and text without scripts, and the browser's data."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette, tables
from perfnb.draw.document import Document, Picture
from perfnb.draw.picture import picture_html
from perfnb.draw.tab import Tab
from perfnb.memory.picture import draw_memory

if TYPE_CHECKING:
    from perfnb.memory.table import MemorySummary

#: Most owners listed, heaviest first.
OWNERS_IN_BROWSER, OWNERS_IN_HTML, OWNERS_IN_TEXT = 200, 15, 8

_INCHES = (8.8, 3.7)
_FAILED = "Incomplete: the step failed. Shown is the memory alive until then:"
#: In the browser's data: no name.
_NONE = -1


def memory_html(summary: MemorySummary) -> str:
    """The memory view as a picture and tables."""
    parts = [f"<p><strong>Memory</strong> · {escape.html_sentence(' · '.join(memory_facts(summary)))}</p>"]
    if summary.incomplete is not None:
        parts.append(f"<p><strong>{_FAILED}</strong> {escape.html_sentence(summary.incomplete)}</p>")
    if len(summary.timeline):
        parts.append(f"<p>{picture_html(functools.partial(draw_memory, summary=summary), _INCHES, _alt(summary))}</p>")
    instant = _instant(summary)
    if rows := [(tables.keyed(mark), size, escape.html(share)) for mark, size, share in _held(summary)]:
        parts.append(tables.table(f"Memory at the {instant}, by category", ["category", "memory", "share"], rows))
    if owners := [
        (tables.name(layer), tables.keyed(mark), size, escape.html(share), count)
        for layer, mark, size, share, count in _owners(summary, OWNERS_IN_HTML)
    ]:
        left = len(summary.owners) - len(owners)
        more = f": the largest; {fmt.counted(left, 'smaller one')} not listed" if left else ""
        heads = ["layer", "category", "memory", "share", "allocations"]
        parts.append(tables.table(f"Owners at the {instant}{more}", heads, owners, texts=2))
    if fits := [
        (escape.html(row.option, 60), escape.html_sentence(row.detail), escape.html(row.basis, 20), *freed)
        for row, freed in _fits(summary)
    ]:
        heads = ["option", "why", "basis", "frees", "leaves"]
        parts.append(tables.table(_fits_head(summary), heads, fits, texts=3))
    return "".join(parts)


def memory_text(summary: MemorySummary, width: int = 100) -> list[str]:
    """The memory view as lines of at most `width` cells."""
    facts = " · ".join(memory_facts(summary))
    lines = escape.wrapped(f"Memory · {escape.plain(facts, 2000)}", width)
    if summary.incomplete is not None:
        lines += escape.wrapped(f"{_FAILED} {escape.plain(summary.incomplete, 600)}", width)
    lines += _curve(summary, width)
    if held := _held(summary):
        sizes = [size for size in summary.by_category.values() if size > 0]
        lines += [f"at the {_instant(summary)}", bars.stacked([mark for mark, *_ in held], sizes, width)]
        lines += bars.legend(held, width)
    return [line.rstrip() for line in [*lines, *_owners_text(summary, width), *_fits_text(summary, width)]]


def memory_facts(summary: MemorySummary) -> list[str]:
    """The headline: how much, when, where, and the allocator's own figures."""
    (phase,) = _phases_at(summary, np.array([summary.peak_ms]))
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


def _phases_at(summary: MemorySummary, instants_ms: np.ndarray) -> list[str | None]:
    """The phase of the step at each of some instants."""
    phases = summary.phases
    begin, end = (phases[name].to_numpy(dtype=float) for name in ("start_ms", "end_ms"))
    inside = (begin <= instants_ms[:, None]) & (instants_ms[:, None] < end)
    names = [str(name) for name in phases["phase"]]
    return [names[row.argmax()] if row.any() else None for row in inside]


def _instant(summary: MemorySummary) -> str:
    """The instant described in full: the peak, or the failure if the step failed."""
    return "peak" if summary.incomplete is None else "failure"


def _held(summary: MemorySummary) -> list[tuple[palette.Mark, str, str]]:
    """The categories that hold memory at the peak, in order, and how much."""
    return [
        (palette.category(name), fmt.size(size), fmt.share(size / summary.peak_bytes))
        for name, size in summary.by_category.items()
        if size > 0 and summary.peak_bytes
    ]


def _alt(summary: MemorySummary) -> str:
    held = ", ".join(f"{mark.word} {size}" for mark, size, _ in _held(summary))
    return f"Memory over the step by category; {memory_facts(summary)[0]}: {held}"


def _owners(summary: MemorySummary, most: int) -> Iterator[tuple[str, palette.Mark, str, str, str]]:
    """Layer, category, memory, share and number of allocations of the largest owners."""
    rows: Iterable[Any] = summary.owners.head(most).itertuples(index=False)
    for row in rows:
        layer = "no layer" if pd.isna(row.layer) else str(row.layer)
        mark = palette.category(str(row.category))
        yield layer, mark, fmt.size(row.bytes), fmt.share(row.share), fmt.count(row.count)


def _fits(summary: MemorySummary) -> Iterator[tuple[Any, tuple[str, str]]]:
    """What would make the step fit, with what it frees and leaves."""
    for row in summary.fits.itertuples():
        frees = fmt.known(row.frees_bytes)
        yield row, (fmt.size(frees), fmt.size(None if frees is None else max(0.0, summary.peak_bytes - frees)))


def _fits_head(summary: MemorySummary) -> str:
    return f"What would make it fit? (each option on its own, at the {_instant(summary)})"


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
    shown = _phases_at(summary, (edges[:-1] + edges[1:]) / 2)
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
    lines = [f"{f'owners at the {_instant(summary)}':<{names}} {'category':<{words}} {'memory':>8} {'share':>6}"]
    for layer, mark, size, share, _ in _owners(summary, OWNERS_IN_TEXT):
        lines.append(f"{escape.fit(layer, names)} {escape.fit(mark.word, words)} {size:>8} {share:>6}")
    left = len(summary.owners) - OWNERS_IN_TEXT
    return [*lines, f"… {left:,} smaller one{'s' * (left > 1)}"] if left > 0 else lines


def _fits_text(summary: MemorySummary, width: int) -> list[str]:
    if not len(summary.fits):
        return []
    names = min(34, max(escape.cells(escape.plain(option, 34)) for option in summary.fits["option"]))
    lines = [_fits_head(summary)]
    for row, (frees, leaves) in _fits(summary):
        basis = escape.fit(row.basis, 9)
        lines.append(f"{escape.fit(row.option, names)}  frees {frees:>8}, leaves {leaves:>8}  {basis}".rstrip())
        lines += [f"  {line}" for line in escape.wrapped(escape.plain(row.detail, 600), width - 2) if line]
    return lines


def memory_data(summary: MemorySummary) -> dict[str, Any]:
    """Everything the memory view shows, ready for JSON.

    Instants are integer nanoseconds, amounts integer bytes. A column in ``instants`` holds its first value and then
    differences, ``None`` where unknown; a column in which nothing is known is ``None``. Names are stored once in
    ``names``; name columns hold places in it, -1 for none.
    """
    names: dict[str, int] = {}

    def places(values: Iterable[Any]) -> list[int]:
        return [_NONE if pd.isna(value) else names.setdefault(str(value), len(names)) for value in values]

    timeline, largest, owners = summary.timeline, summary.largest, summary.owners.head(OWNERS_IN_BROWSER)
    times = [_nanoseconds(t) for t in timeline["t_ms"]]
    largest = largest.assign(start_ns=[_nanoseconds(t) for t in largest["start_ms"]]).sort_values("start_ns")
    peak_ns = _nanoseconds(summary.peak_ms)
    nearest = min(range(len(times)), key=lambda i: abs(times[i] - peak_ns), default=0)
    return {
        "device": escape.plain(summary.device),
        "step_ns": _nanoseconds(summary.step_ms),
        "peak": {"at": nearest, "bytes": int(summary.peak_bytes)},
        "categories": [
            {**mark.data, "peak": _whole(summary.by_category.get(name))} for name, mark in palette.CATEGORIES.items()
        ],
        "phases": [
            {
                **mark.data,
                "word": escape.plain(mark.word),
                "start_ns": _nanoseconds(row.start_ms),
                "end_ns": _nanoseconds(row.end_ms),
            }
            for row in summary.phases.itertuples()
            for mark in (palette.mark(str(row.phase)),)
        ],
        "instants": {
            "t": _differences(times),
            "categories": [_amounts(timeline[name]) for name in palette.CATEGORIES],
            **{column: _amounts(timeline[column]) for column in ("total", "reserved", "process")},
        },
        "largest": {
            "bytes": [int(value) for value in largest["bytes"]],
            "category": _categories(largest["category"]),
            "start": _differences(list(largest["start_ns"])),
            "end": [_nanoseconds(t) - start for t, start in zip(largest["end_ms"], largest["start_ns"], strict=True)],
            "phase": places(phase if pd.isna(phase) else palette.mark(str(phase)).word for phase in largest["phase"]),
            **{column: places(largest[column]) for column in ("layer", "op", "name")},
        },
        "owners": {
            "category": _categories(owners["category"]),
            "layer": places(owners["layer"]),
            "bytes": [int(value) for value in owners["bytes"]],
            "count": [_whole(value) for value in owners["count"]],
            "share": [fmt.short(value) for value in owners["share"]],
            "left_out": max(0, len(summary.owners) - OWNERS_IN_BROWSER),
        },
        "fits": [
            {
                "option": escape.plain(row.option),
                "frees": _whole(row.frees_bytes),
                "basis": escape.plain(row.basis, 20),
                "detail": escape.plain(row.detail, 600),
            }
            for row in summary.fits.itertuples()
        ],
        "process_peak": _whole(summary.process_peak_bytes),
        "reserved_peak": _whole(summary.reserved_peak_bytes),
        "fragmentation": fmt.short(summary.fragmentation),
        "retries": _whole(summary.retries),
        "ooms": _whole(summary.ooms),
        "largest_free": _whole(summary.largest_free_bytes),
        "incomplete": None if summary.incomplete is None else escape.plain(summary.incomplete, 600),
        "names": [escape.plain(name) for name in names],
    }


def _categories(values: Iterable[Any]) -> list[int]:
    places = {name: place for place, name in enumerate(palette.CATEGORIES)}
    return [places.get(str(value), places["other"]) for value in values]


def _amounts(values: pd.Series) -> list[int | None] | None:
    """Bytes as differences; ``None`` if nothing is known, or everything is zero."""
    amounts = [_whole(value) for value in values]
    return _differences(amounts) if any(amounts) else None


def _differences(values: Iterable[int | None]) -> list[int | None]:
    """Each value minus the previous known one."""
    before, result = 0, list[int | None]()
    for value in values:
        result.append(None if value is None else value - before)
        before = before if value is None else value
    return result


def _nanoseconds(ms: Any) -> int:
    return round(1e6 * (fmt.known(ms) or 0.0))


def _whole(value: Any) -> int | None:
    return None if fmt.known(value) is None else int(value)


TAB = Tab(
    "memory",
    lambda report: report.summary.memory,
    lambda part: Document(
        "memory",
        sections=(
            Picture(
                "memory",
                "",
                lambda width: memory_text(part, width),
                lambda: memory_html(part),
                lambda: memory_data(part),
                "memory/js/memory.js",
                "",
                "memory",
            ),
        ),
    ),
)
