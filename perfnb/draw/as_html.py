"""Render documents as HTML without scripts. It stays readable even if a host removes its style sheet and SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, TypeGuard

from perfnb import quantities as fmt
from perfnb.draw import as_text, escape, svg, tables
from perfnb.draw.as_text import all_known, cell_words, effect_words, number_of, on_axis, row_cells
from perfnb.draw.document import (
    Axis,
    Bars,
    Card,
    Cards,
    Cell,
    Choice,
    Code,
    Column,
    Document,
    Dot,
    Effect,
    Effects,
    Heat,
    Picture,
    Scatter,
    Section,
    Series,
    Split,
    Strip,
    Table,
    Verdict,
    words,
)
from perfnb.draw.frame import framed, notes_html
from perfnb.draw.palette import BLUE, Mark

#: The widths in pixels of a bar behind a row, of the longest of several bars, and of the scale of effects.
_BAR, _LONGEST, _SCALE = 72, 240, 150
#: A band is cut off above this many times the highest value.
_BANDED = 1.5
#: The width of a chart, its left margin, the heights of a chart and of a scatter plot, and the space below them.
_WIDE, _LEFT, _HIGH, _TALL, _BELOW = 720, 88, 150, 260, 40
#: The maximum number of points with a name.
_NAMED = 5
#: The factor by which a logarithmic axis extends beyond its first and last point.
_ROOM = 10**0.1
STATES = {"good": "✓", "bad": "▲", "open": "?", "none": ""}

_Place: TypeAlias = Callable[[float], float]


def document_html(document: Document) -> str:
    """Return a document as safe HTML, including its outer element."""
    parts = []
    for part in document.parts:
        body = "".join(map(section_html, part.sections))
        if body or part is document or part.verdict.sentence or part.figures:
            parts += [_head(part, as_text.tab_title(part) if part is not document else part.kind), body]
    return framed("".join(parts) + notes_html(document.all_notes))


def _head(document: Document, kind: str) -> str:
    known = [escape.html_sentence(part) for part in (document.subject, document.device) if part]
    title = " · ".join([f"<strong>{escape.html(kind)}</strong>", *known])
    figures = list(map(as_text.figure_words, document.figures))
    lines = [f'<strong class="pf-step">{escape.html_sentence(figure)}</strong>' for figure in figures[:1]]
    lines += [escape.html_sentence(" · ".join(small))] if (small := [*figures[1:], *document.facts]) else []
    below = f'<p class="pf-head">{"<br>".join(lines)}</p>' if lines else ""
    return f'<p class="pf-head">{title}</p>{_verdict(document.verdict)}{below}'


def _verdict(verdict: Verdict) -> str:
    if not verdict.sentence:
        return ""
    sign = f'<span aria-hidden="true">{STATES[verdict.state]}</span> ' if STATES[verdict.state] else ""
    confidence = f" <em>({escape.html(verdict.confidence)} confidence)</em>" if verdict.confidence else ""
    lines = [f"<strong>{sign}{escape.html_sentence(verdict.sentence)}</strong>{confidence}"]
    lines += [
        f"<em>{label}:</em> {escape.html_sentence(reason)}"
        for label, reason in (("Why", verdict.why), ("Next", verdict.next))
        if reason
    ]
    return f'<div class="pf-verdict pf-{verdict.state}">{"<br>".join(lines)}{_code(verdict.code)}</div>'


def _code(text: str) -> str:
    lines = "\n".join(escape.html(line.expandtabs(4), 2000) for line in text.splitlines())
    return lines and f"<pre>{lines}</pre>"


def section_html(section: Section) -> str:
    """Return a section as HTML, or an empty string if there is nothing to show."""
    return _RENDERERS[type(section)](section)


def _titled(title: str, body: str) -> str:
    head = f"<p><strong>{escape.html_sentence(title)}</strong></p>" if title else ""
    return body and f"<div>{head}{body}</div>"


def _bars(section: Bars) -> str:
    stacks, longest = as_text.stacks_of(section)
    if not longest > 0:
        return ""
    sums = list(map(as_text.sums_of, stacks))
    if len(stacks) == 1:
        rows = [
            (_row_head(mark.word, tables.keyed(mark)), _figure(value, section.unit), _figure(value / longest, "share"))
            for mark, value in sums[0].items()
        ]
        return tables.bar(stacks[0]) + _tabled(section.title, ["", "", "share"], rows)
    marks, lines = as_text.marks_in(section), list[Sequence[str]]()
    for bar, stack, held in zip(section.bars, stacks, sums, strict=True):
        total = sum(held.values())
        drawn = tables.bar(stack, max(1, round(_LONGEST * total / longest)))
        figures = (_figure(held[mark], section.unit) if mark in held else "" for mark in marks)
        lines.append((_row_head(bar.label, tables.name(bar.label)), drawn, _figure(total, section.unit), *figures))
    return _tabled(section.title, ["", "", "total", *map(tables.keyed, marks)], lines, texts=(0, 1))


def _figure(value: float | None, unit: str) -> str:
    return escape.html_sentence(words(value, unit))


def _effects(section: Effects) -> str:
    place, lines = as_text.scale_of(section.rows), list[Sequence[str]]()
    for row in section.rows:
        ratio, verdict = escape.html_sentence(effect_words(row)), escape.html(row.verdict)
        lines.append((_row_head(row.label, tables.name(row.label)), ratio, _on_scale(row, place), verdict))
        lines += [escape.html_sentence(row.detail)] * bool(row.detail)
    caption = section.title
    if section.same_within is not None:
        caption += f" (1 × is the baseline; within {fmt.share(section.same_within)} of it is the same)"
    return _tabled(caption, [escape.html(section.head), "ratio", "", "verdict"], lines, texts=(0, 2, 3))


def _row_head(name: str, body: str) -> str:
    """Return the head cell of a row. The name is only broken across lines if it is long."""
    least = min(24, escape.cells(escape.plain(name)))
    cell = 'th scope="row"' if name.strip() else "td"  # a cell without words is not a heading
    return f'<{cell} align="left" style="text-align:left;min-width:{least}ch">{body}</{cell[:2]}>'


def _tabled(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], texts: Collection[int] = (0,)) -> str:
    """Return an HTML table, or an empty string if there are no rows.

    The first cell of each row comes from `_row_head`, and the columns in `texts` contain words. A row that is a string
    belongs to the row above it and spans the table.
    """
    if not rows:
        return ""
    sides = [tables.LEFT if place in texts else tables.RIGHT for place in range(len(heads))]
    lines = [
        f'<td colspan="{len(heads)}" {tables.LEFT}>&nbsp;&nbsp;<em>{row}</em></td>'
        if isinstance(row, str)
        else row[0] + "".join(f"<td {side}>{cell}</td>" for cell, side in zip(row[1:], sides[1:], strict=False))
        for row in rows
    ]
    words = (
        f'<th scope="col" {side}>{head}</th>' if head else "<td></td>" for head, side in zip(heads, sides, strict=True)
    )
    title = f"<caption>{escape.html_sentence(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{title}<thead><tr>{''.join(words)}</tr></thead><tbody>{body}</tbody></table>"


def _on_scale(row: Effect, place: Callable[[float], float]) -> str:
    """Draw the ratio as a dot with its interval, on a scale with 1 × in the middle."""
    placed = as_text.ends_on_scale(row, place)
    if placed is None:
        return ""
    ends = [end * (_SCALE - 8) + 4 for end in placed]
    return (
        f'<svg width="{_SCALE}" height="14" style="vertical-align:middle" role="img" '
        f'aria-label="{escape.html(effect_words(row))}">'
        f'<path d="M{_SCALE / 2} 0V14" stroke="currentColor" stroke-opacity=".4"/>'
        f'<path d="M{ends[0]:.1f} 7H{max(ends[2], ends[0] + 1):.1f}" stroke="currentColor" stroke-width="2"/>'
        f'<circle cx="{ends[1]:.1f}" cy="7" r="4" fill="currentColor"/></svg>'
    )


def _table(table: Table) -> str:
    body, left_out = as_text.listed(table, table.budget.html)
    shown = [line.layer for line in body if line.layer >= 0]
    held = as_text.columns_held(table, shown)
    columns = [table.columns[place] for place in held]
    barred = next((place for place, column in enumerate(columns) if column.bar), None)
    rows = {row: [row_cells(table, row)[place] for place in held] for row in shown}
    most = 0.0 if barred is None else max((number_of(row[barred]) for row in rows.values()), default=0.0)
    lines = list[Sequence[str]]()
    for line in body:
        indent = "&nbsp;" * min(4 * line.depth, 60)  # this shows the nesting even without a style sheet
        if line.layer < 0:
            lines.append(f"{indent}… {escape.html_sentence(as_text.left_out_words(table, line.left_out))}")
            continue
        row = rows[line.layer]
        inside = f" <em>+{line.inside:,}</em>" if line.inside else ""
        first, *others = (_cell(cell, column) for cell, column in zip(row, columns, strict=True))
        if barred is not None:
            others[barred - 1] = f"{_inline_bar(row[barred], columns[barred].marks, most)} {others[barred - 1]}"
        lines.append((_row_head(cell_words(row[0], "text"), f"{indent}{first}{inside}"), *others))
        if detail := as_text.detail_of(table, line.layer):
            lines.append(indent + escape.html_sentence(detail))
    if left_out:
        lines.append(escape.html_sentence(f"… {fmt.counted(left_out, f'more {table.noun}')}"))
    texts = [place for place, column in enumerate(columns) if column.unit == "text"]
    return _tabled(table.title, list(map(_head_of, columns)), lines, texts)


def _head_of(column: Column) -> str:
    head = escape.html(column.head)
    return f'<span title="{escape.html_sentence(column.help)}">{head}</span>' if head and column.help else head


def _cell(cell: Cell, column: Column) -> str:
    if isinstance(cell, Mark):
        return tables.keyed(cell)
    if isinstance(cell, str):
        return tables.name(cell) if cell else ""
    return escape.html_sentence(cell_words(cell, column.unit))


def _inline_bar(cell: Cell, marks: Sequence[Mark], most: float) -> str:
    """Return a bar that consists of characters, which no host removes.

    The style sheet replaces it with a box in the colours of its parts.
    """
    value = number_of(cell)
    if not value > 0 or not most > 0:
        return ""
    width, characters = max(1, round(_BAR * value / most)), "▇" * max(1, round(8 * value / most))
    box = f"width:{width}px;margin-right:{_BAR - width + 5}px"  # align the left ends of the bars
    if isinstance(cell, Split) and any(map(fmt.known, cell.parts)):
        ends = pairwise(accumulate(((fmt.known(part) or 0.0) / value for part in cell.parts), initial=0.0))
        stops = [f"{mark.colour} {begin:.0%} {end:.0%}" for mark, (begin, end) in zip(marks, ends, strict=False)]
        box += f";background:linear-gradient(90deg,{','.join(stops)},transparent 0)"
    return f'<span class="pf-inline-bar" aria-hidden="true" style="{box}">{characters}</span>'


def _series(section: Series) -> str:
    lines = [(line, values) for line in section.lines if (values := all_known(line.values))]
    if not lines or not section.at:
        return ""
    known = [*(value for line in section.drawn for value in all_known(line.values)), *section.levels.values()]
    least, top = min(known) if section.y.log else 0.0, max(known) or 1.0
    # A wide band is cut off, because it would otherwise flatten the line.
    banded = max((end for line in section.drawn for end in all_known(line.high or ())), default=top)
    top = max(top, min(_BANDED * top, banded))
    across, up, drawn = _frame(section.x, (section.at[0], section.at[-1]), section.y, (least, top), _HIGH)
    drawn += [_level(name, up(value)) for name, value in section.levels.items()]
    for line in section.drawn:
        middle, low, high = (
            [f"{across(x):.1f} {up(y):.1f}" for x, y in zip(section.at, values or (), strict=False) if _is_known(y)]
            for values in (line.values, line.low, line.high)
        )
        if low and high:
            opacity = 1 if section.stacked else 0.2
            edges = "L".join([*low, *reversed(high)])
            drawn.append(f'<path d="M{edges}Z" fill="{line.mark.colour}" fill-opacity="{opacity}"/>')
        drawn.append(f'<path d="M{"L".join(middle)}" fill="none" stroke="{line.mark.colour}" stroke-width="1.6"/>')
    for mark, begin, end in section.spans:
        box = svg.box(across(begin), _HIGH + 1, across(end) - across(begin), 5)
        drawn.append(f'<path d="{box}" fill="{mark.colour}"><title>{escape.html(mark.word)}</title></path>')
    spans = [f"{escape.plain(line.mark.word, 40)}: {as_text.span_words(values, section.y)}" for line, values in lines]
    alt = "; ".join([*spans, *as_text.axis_words(section.x, section.at), *as_text.level_words(section)])
    keys = "<br>".join(
        f"{tables.key(line.mark)}{escape.html_sentence(span)}" for (line, _), span in zip(lines, spans, strict=True)
    )
    if section.spans:
        keys += "<br>Meanwhile: " + " ".join(map(tables.keyed, dict.fromkeys(mark for mark, *_ in section.spans)))
    return _titled(section.title, f"<p>{keys}</p>{svg.picture(drawn, _WIDE, _HIGH + _BELOW, alt)}")


def _is_known(value: Any) -> TypeGuard[float]:
    return fmt.known(value) is not None


def _level(name: str, y: float) -> str:
    line = f'<path d="M{_LEFT} {y:.1f}H{_WIDE}" stroke="currentColor" stroke-dasharray="4 3" stroke-opacity=".6"/>'
    return line + svg.label(_LEFT + 4, round(y - 3 if y > 15 else y + 12, 1), "start", name)


def _frame(x: Axis, xs: Sequence[float], y: Axis, ys: Sequence[float], high: int) -> tuple[_Place, _Place, list[str]]:
    """Return functions that place numbers on both axes of a chart, and the elements that draw the axes."""
    (across, below), (up, beside) = _scale(x, xs, _LEFT, _WIDE - 8), _scale(y, ys, high, 8)
    drawn = [f'<path d="M{_LEFT} 4V{high}H{_WIDE}" fill="none" stroke="currentColor" stroke-opacity=".4"/>']
    for at, word in below:
        anchor = "end" if at > 0.95 * _WIDE else "middle"
        drawn += [_rule(f"M{at:.1f} 4V{high}"), svg.label(round(at, 1), high + 15, anchor, word)]
    for at, word in beside:
        drawn += [_rule(f"M{_LEFT} {at:.1f}H{_WIDE}"), svg.label(_LEFT - 4, round(at + 4, 1), "end", word)]
    label = f"{x.label} → · ↑ {y.label}" if y.label else x.label
    return across, up, [*drawn, svg.label((_LEFT + _WIDE) / 2, high + 31, "middle", label)]


def _scale(axis: Axis, values: Sequence[float], begin: float, end: float) -> tuple[_Place, list[tuple[float, str]]]:
    """Return a function that places a number on an axis, and the axis's ticks: powers of ten, or its ends.

    Numbers outside the scale are drawn at the edge.
    """
    values = [value for value in values if value > 0 or not axis.log]
    ticks = list(dict.fromkeys((min(values), max(values)))) if values else []
    first = last = 0.0
    if ticks:
        room = _ROOM if axis.log else 1.0
        first, last = on_axis(axis, ticks[0] / room), on_axis(axis, ticks[-1] * room)
    if axis.log and ticks and not axis.unit.startswith("bytes"):
        powers = range(math.ceil(math.log10(ticks[0])), math.floor(math.log10(ticks[-1])) + 1)
        ticks = [10.0**power for power in powers] if len(powers) > 1 else ticks

    def place(value: float) -> float:
        share = (on_axis(axis, value) - first) / (last - first) if last > first else 0.5
        return begin + (end - begin) * min(1.0, max(0.0, share))

    return place, [(place(tick), fmt.on_axis(words(tick, axis.unit)).strip()) for tick in ticks]


def _rule(path: str) -> str:
    return f'<path d="{path}" stroke="currentColor" stroke-opacity=".12"/>'


def _scatter(section: Scatter) -> str:
    drawn = _scattered(section)
    if section.selects:  # the points are rows of the selected section
        return drawn
    return drawn + _table(replace(as_text.table_of_points(section), title="" if drawn else section.title))


def _scattered(section: Scatter) -> str:
    """Draw the points and lines, or return an empty string if fewer than two points can be placed."""
    dots = [dot for dot in section.dots if _has_place(dot.x, section.x) and _has_place(dot.y, section.y)]
    ends = [*((dot.x, dot.y) for dot in dots), *(end for _, line in section.lines for end in line)]
    if len(ends) < 2:
        return ""
    across, up, drawn = _frame(section.x, [x for x, _ in ends], section.y, [y for _, y in ends], _TALL)
    for mark, line in section.lines:
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in line)
        drawn.append(f'<path d="M{path}" fill="none" stroke="{mark.colour}" stroke-width="2"/>')
        drawn.append(svg.label(_WIDE - 8, up(line[-1][1]) - 5, "end", mark.word))
    placed = [(across(dot.x), up(dot.y)) for dot in dots]
    drawn += [_dot(x, y, dot.mark) for dot, (x, y) in zip(dots, placed, strict=True)]
    drawn += _names_of(dots, placed)
    keys = " ".join(map(tables.keyed, dict.fromkeys(dot.mark for dot in dots)))
    return _titled(section.title, f"<p>{keys}</p>{svg.picture(drawn, _WIDE, _TALL + _BELOW, section.title)}")


def _has_place(value: float, axis: Axis) -> bool:
    known = fmt.known(value)
    return known is not None and (known > 0 or not axis.log)


def _names_of(dots: Sequence[Dot], placed: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield the names of the first points, placed next to the points, unless the names would overlap."""
    taken: list[tuple[float, float]] = []
    for dot, (x, y) in zip(dots, placed, strict=True):
        if len(taken) == _NAMED or any(abs(x - a) < 170 and abs(y - b) < 13 for a, b in taken):
            continue
        taken.append((x, y))
        late = x > 0.7 * _WIDE
        yield svg.label(x - 8 if late else x + 8, y + 4, "end" if late else "start", escape.shorten(dot.label, 26))


def _strip(section: Strip) -> str:
    values = all_known(value for _, group in section.groups for value in group)
    if not values:
        return ""
    marked = [] if section.at is None else [section.at[1]]
    across, _, drawn = _frame(section.axis, values + marked, Axis("", "number"), (), _HIGH)
    height = (_HIGH - 8) / len(section.groups)
    drawn += [
        _dot(across(value), 4 + height * (row + 0.5), mark)
        for row, (mark, group) in enumerate(section.groups)
        for value in all_known(group)
    ]
    for x in map(across, marked):
        drawn.append(f'<path d="M{x:.1f} 4V{_HIGH}" stroke="currentColor" stroke-dasharray="4 3"/>')
    keys = " ".join(tables.keyed(mark) for mark, _ in section.groups)
    said = escape.html_sentence(" · ".join(as_text.strip_words(section)))
    picture = svg.picture(drawn, _WIDE, _HIGH + _BELOW, section.title)
    return _titled(section.title, f"<p>{keys}<br>{said}</p>{picture}")


def _dot(x: float, y: float, mark: Mark) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{mark.colour}" fill-opacity=".6"/>'


def _heat(section: Heat) -> str:
    known = all_known(value for row in section.values for value in row)
    if not known:
        return ""
    rows = [
        (_row_head(name, tables.name(name)), *(_heated(value, section.unit, max(known)) for value in row))
        for name, row in zip(section.rows, section.values, strict=False)
    ]
    return _tabled(section.title, list(map(escape.html, (section.across, *section.columns))), rows)


def _heated(value: float | None, unit: str, most: float) -> str:
    """Return a number on a background that is more intense for larger numbers."""
    strength = 60 * max(0.0, fmt.known(value) or 0.0) / most if most > 0 else 0.0
    colour = f"color-mix(in srgb,{BLUE} {strength:.0f}%,transparent)"
    return f'<div style="background:{colour}">{_figure(value, unit)}</div>'


def _cards(section: Cards) -> str:
    items = "".join(f"<li>{'<br>'.join(_card(card))}</li>" for card in section.cards)
    return _titled(section.title, items and f"<ol>{items}</ol>")


def _card(card: Card) -> Iterator[str]:
    confidence = card.confidence and f", {escape.html(card.confidence)} confidence"
    why = card.why and f" <em>({escape.html_sentence(card.why)})</em>"
    yield f"<strong>{escape.html(card.title)}</strong>: {escape.html_sentence(card.bound)}{confidence}{why}"
    if card.evidence:
        yield escape.html_sentence(card.evidence)
    if card.advice:
        yield f"Try: {escape.html_sentence(card.advice)}{_code(card.code)}"
    if card.trial:
        yield f"{escape.html_sentence(card.trial[0])}{_code(card.trial[1])}"
    about = ", ".join(tables.name(link.words or link.name) for link in card.links)
    if card.caveat or about:
        caveat = card.caveat and f"Caveat: {escape.html_sentence(card.caveat)}"
        yield f"<em>{' '.join(filter(None, (caveat, about and f'About: {about}.')))}</em>"


def _choice(section: Choice) -> str:
    """Return alternatives for a page on which the reader cannot switch between them.

    The first alternative is open, and the others are collapsed below it.
    """
    bodies = [(escape.html(name), "".join(map(section_html, parts))) for name, parts in section.options.items()]
    folded = "".join(
        f"<details{' open' * (not place)}><summary>{name}</summary>{body}</details>"
        for place, (name, body) in enumerate(bodies)
        if body
    )
    return _titled(section.title, folded)


def _picture(section: Picture) -> str:
    return "".join(map(section_html, section.static)) if section.html is None else section.html()


_RENDERERS: dict[type, Callable[[Any], str]] = {
    Bars: _bars,
    Effects: _effects,
    Table: _table,
    Series: _series,
    Scatter: _scatter,
    Strip: _strip,
    Heat: _heat,
    Cards: _cards,
    Code: lambda section: _titled(section.title, _code(section.text)),
    Choice: _choice,
    Picture: lambda section: _titled(section.title, _picture(section)),
}
