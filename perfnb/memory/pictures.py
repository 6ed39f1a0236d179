"""Memory as opaque pictures, in text and as static SVG: stacked areas over time, and the segments of an allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, svg, tables
from perfnb.draw.palette import Mark

#: Size of a picture and its margins in pixels; heights of the strip below the areas, and of a segment.
_WIDE, _HIGH, _LEFT, _STRIP, _ROW = 720, 190, 64, 9, 15
#: Most segments in text and in HTML.
_IN_TEXT, IN_HTML = 10, 40


@dataclass(frozen=True)
class Areas:
    """Amounts of memory over time, stacked.

    Attributes
    ----------
    times_ms : sequence of float
        Instants from which the amounts last until the next one.
    end_ms : float
        When the last of them ends; the picture begins at 0.
    parts : sequence of (Mark, sequence of float)
        Bytes at each instant.
    spans : sequence of (Mark, float, float)
        What happened meanwhile, from when to when, below the areas.
    at : tuple of (float, str), optional
        An instant that matters, and what it is.
    """

    times_ms: Sequence[float]
    end_ms: float
    parts: Sequence[tuple[Mark, Sequence[float]]]
    spans: Sequence[tuple[Mark, float, float]] = ()
    at: tuple[float, str] | None = None

    @property
    def totals(self) -> list[float]:
        """All parts together at each instant."""
        return [float(sum(values)) for values in zip(*(values for _, values in self.parts), strict=True)]


def areas_text(areas: Areas, width: int) -> list[str]:
    """Most memory alive in each part of the time, and what happened meanwhile."""
    if len(areas.times_ms) < 2 or areas.end_ms <= 0 or not any(areas.totals):
        return []
    times, totals = np.asarray(areas.times_ms, dtype=float), np.asarray(areas.totals)
    edges = np.linspace(0, areas.end_ms, width + 1)
    # Levels last until the next instant: a part starts with what the previous one left alive.
    first = np.maximum(np.searchsorted(times, edges[:-1], side="right") - 1, 0)
    last = np.maximum(np.searchsorted(times, edges[1:], side="left"), first + 1)
    most = [totals[a:b].max() if times[a] < end else 0.0 for a, b, end in zip(first, last, edges[1:], strict=True)]
    lines = [bars.heights(most, float(max(most)))]
    middles = (edges[:-1] + edges[1:]) / 2
    strip = [next((mark for mark, begin, end in areas.spans if begin <= at < end), None) for at in middles]
    if any(strip):
        used = list(dict.fromkeys(mark for mark in strip if mark))
        lines.append("".join(mark.glyph if mark else " " for mark in strip))
        lines += escape.wrapped("  ".join(f"{mark.glyph} {escape.plain(mark.word, 20)}" for mark in used), width)
    return lines + escape.wrapped(f"at most {fmt.size(max(most))}, over {fmt.duration(areas.end_ms)}", width)


def areas_html(areas: Areas) -> str:
    """The areas with a key of their parts."""
    parts = [(mark, values) for mark, values in areas.parts if any(values)]
    if not parts or areas.end_ms <= 0:
        return ""
    top = max(areas.totals)
    across = _scale(areas.end_ms, _LEFT, _WIDE)
    up = _scale(top, _HIGH, 10)
    xs = [*map(across, areas.times_ms), _WIDE]
    base, drawn = np.zeros(len(areas.times_ms)), list[str]()
    for mark, values in parts:
        upper = base + np.asarray(values, dtype=float)
        edge, back = _steps(xs, [up(value) for value in upper]), _steps(xs, [up(value) for value in base])[::-1]
        points = "L".join(f"{x:.1f} {y:.1f}" for x, y in (*edge, *back))
        drawn.append(f'<path d="M{points}Z" fill="{mark.colour}" stroke="currentColor" stroke-width=".4"/>')
        base = upper
    for mark, begin, end in areas.spans:
        box = svg.box(across(begin), _HIGH + 3, across(end) - across(begin), _STRIP)
        drawn.append(f'<path d="{box}" fill="{mark.colour}"><title>{escape.html(mark.word)}</title></path>')
    if areas.at is not None:
        x = across(areas.at[0])
        anchor, beside = ("end", -5) if x > _WIDE / 2 else ("start", 5)
        drawn.append(f'<path d="M{x:.1f} 0V{_HIGH}" stroke="currentColor" stroke-dasharray="4 3"/>')
        drawn.append(svg.label(x + beside, 9, anchor, areas.at[1]))
    low = _HIGH + (_STRIP + 3 if areas.spans else 0) + 14
    drawn += [
        f'<path d="M{_LEFT} 4V{_HIGH}H{_WIDE}" fill="none" stroke="currentColor" stroke-opacity=".4"/>',
        svg.label(_LEFT - 5, 16, "end", fmt.size(top)),
        svg.label(_LEFT - 5, _HIGH, "end", "0"),
        svg.label(_LEFT, low, "start", "0 ms"),
        svg.label(_WIDE, low, "end", fmt.duration(areas.end_ms)),
    ]
    keys = [f"From the bottom: {_keys(mark for mark, _ in parts)}"]
    keys += [f"Meanwhile: {_keys(mark for mark, *_ in areas.spans)}"] if areas.spans else []
    alt = f"Memory over {fmt.duration(areas.end_ms)}, at most {fmt.size(top)}"
    return f"<p>{'<br>'.join(keys)}</p>{svg.picture(drawn, _WIDE, low + 4, alt)}"


def _steps(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """The corners of steps: each level lasts until the next place."""
    return [(x, y) for begin, end, y in zip(xs, xs[1:], ys, strict=False) for x in (begin, end)]


@dataclass(frozen=True)
class Segment:
    """Memory that the allocator got from the device: ``blocks`` are its parts in order, free if without a mark."""

    label: str
    size: int
    blocks: Sequence[tuple[Mark | None, int]]


def segments_text(segments: Sequence[Segment], count: int, width: int) -> list[str]:
    """The largest segments, of so many, as bars."""
    shown = segments[:_IN_TEXT]
    if not shown:
        return []
    label = max(escape.cells(segment.label) for segment in shown)
    room, lines = max(10, width - label - 1), list[str]()
    for segment in shown:
        cells = max(1, round(room * segment.size / max(1, shown[0].size)))
        free = Mark("free", "none", "·", "none")
        bar = bars.stacked([mark or free for mark, _ in segment.blocks], [size for _, size in segment.blocks], cells)
        lines.append(f"{escape.fit(segment.label, label)} {bar}")
    used = list(dict.fromkeys(mark for segment in shown for mark, _ in segment.blocks if mark))
    for mark in used:
        lines += escape.wrapped(f"{mark.glyph} {escape.plain(mark.word, 200)}", width)
    return [*lines, "· free", *_more(count - len(shown))]


def segments_html(segments: Sequence[Segment], count: int) -> str:
    """The largest segments, of so many, as rows, their blocks as rectangles; pointing at one tells what made it."""
    shown = segments[:IN_HTML]
    if not shown:
        return ""
    left, drawn = 2 * _LEFT + 50, list[str]()
    across = _scale(shown[0].size, 0, _WIDE - left)
    for row, segment in enumerate(shown):
        top, at = row * _ROW + 2, 0
        wide = max(1.0, across(segment.size))
        drawn.append(svg.label(left - 6, top + 10, "end", segment.label))
        held: dict[Mark, list[tuple[int, int]]] = {}
        for mark, size in segment.blocks:
            if mark is not None:
                held.setdefault(mark, []).append((at, size))
            at += size
        for mark, blocks in held.items():
            box = "".join(svg.box(left + across(begin), top, across(size), _ROW - 3) for begin, size in blocks)
            whole = f"{mark.word}: {fmt.size(sum(size for _, size in blocks))} in {fmt.counted(len(blocks), 'block')}"
            drawn.append(
                f'<path d="{box}" fill="{mark.colour}" stroke="currentColor" stroke-width=".3">'
                f"<title>{escape.html_sentence(whole)}</title></path>"
            )
        drawn.append(
            f'<path d="{svg.box(left, top, wide, _ROW - 3)}" fill="none" stroke="currentColor" stroke-opacity=".5"/>'
        )
    marks = dict.fromkeys(mark for segment in shown for mark, _ in segment.blocks if mark)
    alt = f"Segments of the allocator, largest first: {', '.join(segment.label for segment in shown[:3])}"
    left_out = "".join(f"<br>{line}" for line in _more(count - len(shown)))
    return f"<p>{_keys(marks)}{left_out}</p>{svg.picture(drawn, _WIDE, len(shown) * _ROW + 4, alt)}"


def _keys(marks: Iterable[Mark]) -> str:
    """The marks with their words, one below another if these are long."""
    once = [*dict.fromkeys(marks)]
    return (" " if all(len(mark.word) < 20 for mark in once) else "<br>").join(map(tables.keyed, once))


def _more(left: int) -> Iterator[str]:
    if left > 0:
        yield f"… {fmt.counted(left, 'more segment')}"


def _scale(most: float, begin: float, end: float) -> Callable[[float], float]:
    return lambda value: begin + (end - begin) * min(1.0, max(0.0, value / (most or 1.0)))
