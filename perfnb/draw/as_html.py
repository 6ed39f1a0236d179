"""Render documents as HTML without scripts. It stays readable even if a host removes its style sheet and SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import escape, svg, tables
from perfnb.draw.as_text import (
    all_known,
    axis_words,
    cell_words,
    columns_held,
    detail_of,
    effect_words,
    ends_on_scale,
    figure_words,
    left_out_words,
    level_words,
    listed,
    marks_in,
    number_of,
    on_axis,
    row_cells,
    scale_of,
    span_words,
    stacks_of,
    strip_words,
    sums_of,
    sure_words,
    tab_title,
    table_of_points,
)
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
    Line,
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
#: The size of a chart and of its margins.
_WIDE, _HIGH, _LEFT, _BELOW = 720, 150, 64, 24
#: The height of a scatter plot, and the maximum number of points with a name.
_TALL, _NAMED = 260, 5
#: The factor by which a logarithmic axis extends beyond its first and last point.
_ROOM = 10**0.1
STATES = {"good": "✓", "bad": "▲", "open": "?", "none": ""}


def document_html(document: Document) -> str:
    """Return a document as safe HTML, including its outer element."""
    parts = []
    for part in document.parts:
        body = "".join(map(section_html, part.sections))
        if body or part is document or part.verdict.sentence or part.figures:
            parts += [_head(part, tab_title(part) if part is not document else part.kind), body]
    return framed("".join(parts) + notes_html(document.all_notes))


def _head(document: Document, kind: str) -> str:
    known = [escape.html_sentence(part) for part in (document.subject, document.device) if part]
    title = " · ".join([f"<strong>{escape.html(kind)}</strong>", *known])
    figures = [*map(figure_words, document.figures)]
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
    stacks, longest = stacks_of(section)
    if not longest > 0:
        return ""
    title, rows = escape.html_sentence(section.title), list[Sequence[str]]()
    if len(stacks) == 1:
        for mark, value in sums_of(stacks[0]).items():
            rows.append((tables.keyed(mark), _figure(value, section.unit), _figure(value / longest, "share")))
        return tables.full_bar(stacks[0], longest) + tables.table(title, ["", "", "share"], rows)
    marks = marks_in(section)
    for bar, stack in zip(section.bars, stacks, strict=True):
        held = sums_of(stack)
        figures = (_figure(held[mark], section.unit) if mark in held else "" for mark in marks)
        drawn = tables.bar(stack, longest, _LONGEST)
        rows.append((tables.name(bar.label), drawn, _figure(sum(held.values()), section.unit), *figures))
    return tables.table(title, ["", "", "total", *map(tables.keyed, marks)], rows, texts=2)


def _figure(value: float | None, unit: str) -> str:
    return escape.html_sentence(words(value, unit))


def _effects(section: Effects) -> str:
    place = scale_of(section.rows)
    lines = []
    for row in section.rows:
        figure = f"<td {tables.RIGHT}>{escape.html_sentence(effect_words(row))}</td><td>{_on_scale(row, place)}</td>"
        verdict = f"<td {tables.LEFT}>{escape.html(row.verdict)}</td>"
        lines.append(f"<tr>{_row_head(row.label, tables.name(row.label))}{figure}{verdict}</tr>")
        lines += [_across(4, escape.html_sentence(row.detail))] * bool(row.detail)
    caption = section.title
    if section.same_within is not None:
        caption += f" (1 × is the baseline; within {fmt.share(section.same_within)} of it is the same)"
    heads = tables.head_row([escape.html(section.head), "ratio", "", "verdict"], after=3)
    return _tabled(caption, heads, lines)


def _row_head(name: str, body: str) -> str:
    """Return the head cell of a row. The name is only broken across lines if it is long."""
    least = min(24, escape.cells(escape.plain(name)))
    cell = 'th scope="row"' if name.strip() else "td"  # a cell without words is not a heading
    return f'<{cell} align="left" style="text-align:left;min-width:{least}ch">{body}</{cell[:2]}>'


def _across(columns: int, body: str) -> str:
    """Return a row that belongs to the row above it and spans the table."""
    return f'<tr><td colspan="{columns}" {tables.LEFT}>&nbsp;&nbsp;<em>{body}</em></td></tr>'


def _tabled(caption: str, heads: str, lines: Sequence[str]) -> str:
    """Return an HTML table, or an empty string if there are no rows."""
    if not lines:
        return ""
    title = f"<caption>{escape.html_sentence(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead>{heads}</thead><tbody>{''.join(lines)}</tbody></table>"


def _on_scale(row: Effect, place: Callable[[float], float]) -> str:
    """Draw the ratio as a dot with its interval, on a scale with 1 × in the middle."""
    placed = ends_on_scale(row, place)
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
    body, left_out = listed(table, table.budget.html)
    shown = [line.layer for line in body if line.layer >= 0]
    held = columns_held(table, shown)
    columns = [table.columns[place] for place in held]
    barred = next((place for place, column in enumerate(columns) if column.bar), None)
    rows = {row: [row_cells(table, row)[place] for place in held] for row in shown}
    most = 0.0 if barred is None else max((number_of(row[barred]) for row in rows.values()), default=0.0)
    lines = []
    for line in body:
        indent = "&nbsp;" * min(4 * line.depth, 60)  # this shows the nesting even without a style sheet
        if line.layer < 0:
            lines.append(
                _across(len(columns), f"{indent}… {escape.html_sentence(left_out_words(table, line.left_out))}")
            )
            continue
        row = rows[line.layer]
        inside = f" <em>+{line.inside:,}</em>" if line.inside else ""
        first, *others = (_cell(cell, column) for cell, column in zip(row, columns, strict=True))
        if barred is not None:
            others[barred - 1] = f"{_inline_bar(row[barred], columns[barred].marks, most)} {others[barred - 1]}"
        marked = (f"<td {_side(column)}>{cell}</td>" for cell, column in zip(others, columns[1:], strict=True))
        head = _row_head(cell_words(row[0], "text"), f"{indent}{first}{inside}")
        lines.append(f"<tr>{head}{''.join(marked)}</tr>")
        if detail := detail_of(table, line.layer):
            lines.append(_across(len(columns), indent + escape.html_sentence(detail)))
    if left_out:
        lines.append(_across(len(columns), escape.html_sentence(f"… {fmt.counted(left_out, f'more {table.noun}')}")))
    heads = "".join(
        f'<th scope="col" {_side(column)}{_help(column)}>{escape.html(column.head)}</th>'
        if column.head
        else "<td></td>"
        for column in columns
    )
    return _tabled(table.title, f"<tr>{heads}</tr>", lines)


def _help(column: Column) -> str:
    return f' title="{escape.html_sentence(column.help)}"' if column.help else ""


def _side(column: Column) -> str:
    if column.unit != "text":
        return tables.RIGHT
    return 'align="left" style="text-align:left;min-width:6.5em"'


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
    if isinstance(cell, Split) and (stops := _stops(cell, marks, value)):
        box += f";background:linear-gradient(90deg,{stops})"
    return f'<span class="pf-inline-bar" aria-hidden="true" style="{box}">{characters}</span>'


def _stops(cell: Split, marks: Sequence[Mark], value: float) -> str:
    """Return the parts of a bar as colour stops for a CSS gradient."""
    stops, begin = [], 0.0
    for part, mark in zip(cell.parts, marks, strict=False):
        end = min(100.0, begin + 100 * (fmt.known(part) or 0.0) / value)
        if end > begin:
            stops.append(f"{mark.colour} {begin:.0f}% {end:.0f}%")
        begin = end
    return ",".join([*stops, *([f"transparent {begin:.0f}%"] if stops and begin < 99.5 else [])])


def _series(section: Series) -> str:
    lines = [(line, values) for line in section.lines if (values := all_known(line.values))]
    if not lines or not section.at:
        return ""
    known = [*(value for line in section.drawn for value in all_known(line.values)), *section.levels.values()]
    least, top = min(known) if section.y.log else 0.0, max(known) or 1.0
    # A wide band is cut off, because it would otherwise flatten the line.
    banded = max((end for line in section.drawn for end in all_known(line.high or ())), default=top)
    top = max(top, min(_BANDED * top, banded))
    across = _on_axis(section.x, section.at[0], section.at[-1], _LEFT, _WIDE)
    up = _on_axis(section.y, least, top, _HIGH, 8)
    drawn = [_level(name, value, up) for name, value in section.levels.items()]
    for line in section.drawn:
        drawn += _band(section, line, across, up)
        path = f'<path d="M{"L".join(_points(section.at, line.values, across, up))}" fill="none"'
        drawn.append(f'{path} stroke="{line.mark.colour}" stroke-width="1.6"/>')
    for mark, begin, end in section.spans:
        box = svg.box(across(begin), _HIGH + 1, across(end) - across(begin), 5)
        drawn.append(f'<path d="{box}" fill="{mark.colour}"><title>{escape.html(mark.word)}</title></path>')
    ends = [words(end, section.x.unit) for end in (section.at[0], section.at[-1])]
    axes = _axes(ends, section.x.label, [words(least, section.y.unit) if least else "0", words(top, section.y.unit)])
    spans = [f"{escape.plain(line.mark.word, 40)}: {span_words(values, section.y)}" for line, values in lines]
    alt = "; ".join([*spans, *axis_words(section.x, section.at), *level_words(section)])
    keys = "<br>".join(
        f"{tables.key(line.mark)}{escape.html_sentence(span)}" for (line, _), span in zip(lines, spans, strict=True)
    )
    if section.spans:
        keys += "<br>Meanwhile: " + " ".join(map(tables.keyed, dict.fromkeys(mark for mark, *_ in section.spans)))
    return _titled(section.title, f"<p>{keys}</p>{svg.picture(drawn + axes, _WIDE, _HIGH + _BELOW, alt)}")


def _points(
    at: Sequence[float],
    values: Sequence[float | None],
    across: Callable[[float], float],
    up: Callable[[float], float],
) -> list[str]:
    pairs = [(x, fmt.known(y)) for x, y in zip(at, values, strict=False)]
    return [f"{across(x):.1f} {up(y):.1f}" for x, y in pairs if y is not None]


def _band(section: Series, line: Line, across: Callable[[float], float], up: Callable[[float], float]) -> Iterator[str]:
    if line.low is None or line.high is None:
        return
    edges = [*_points(section.at, line.low, across, up), *_points(section.at, line.high, across, up)[::-1]]
    yield f'<path d="M{"L".join(edges)}Z" fill="{line.mark.colour}" fill-opacity="{1 if section.stacked else 0.2}"/>'


def _level(name: str, value: float, up: Callable[[float], float]) -> str:
    y = up(value)
    height = y - 3 if y > 15 else y + 12
    return (
        f'<path d="M{_LEFT} {y:.1f}H{_WIDE}" stroke="currentColor" stroke-dasharray="4 3" stroke-opacity=".6"/>'
        f'<text x="{_LEFT + 4}" y="{height:.1f}" font-size="11" fill="currentColor">{escape.html(name)}</text>'
    )


def _placed(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    span = high - low
    return lambda value: begin + (end - begin) * ((value - low) / span if span else 0.5)


def _on_axis(axis: Axis, low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    """Return a function that places a number like `_placed`, but on a logarithmic scale if the axis has one.

    Numbers outside the scale are drawn at the edge.
    """
    placed = _placed(on_axis(axis, low), on_axis(axis, high), begin, end)
    return lambda value: min(max(placed(on_axis(axis, value)), min(begin, end)), max(begin, end))


def _axes(ends: Sequence[str], label: str, levels: Sequence[str]) -> list[str]:
    below = _HIGH + 15
    return [
        f'<path d="M{_LEFT} 4V{_HIGH}H{_WIDE}" fill="none" stroke="currentColor" stroke-opacity=".4"/>',
        svg.label(_LEFT, below, "start", ends[0]),
        svg.label((_LEFT + _WIDE) / 2, below, "middle", label),
        svg.label(_WIDE, below, "end", ends[1]),
        svg.label(_LEFT - 5, _HIGH, "end", levels[0]),
        svg.label(_LEFT - 5, 14, "end", levels[1]),
    ]


def _scatter(section: Scatter) -> str:
    drawn = _scattered(section)
    if section.selects:  # the points are rows of the selected section
        return drawn
    return drawn + _table(replace(table_of_points(section), title="" if drawn else section.title))


def _scattered(section: Scatter) -> str:
    """Draw the points and lines, or return an empty string if fewer than two points can be placed."""
    dots = [dot for dot in section.dots if _has_place(dot.x, section.x) and _has_place(dot.y, section.y)]
    ends = [end for _, line in section.lines for end in line]
    if len(dots) + len(ends) < 2:
        return ""
    across, below = _scale(section.x, [*(dot.x for dot in dots), *(x for x, _ in ends)], _LEFT + 24, _WIDE - 8)
    up, beside = _scale(section.y, [*(dot.y for dot in dots), *(y for _, y in ends)], _TALL - 8, 14)
    drawn = [f'<path d="M{_LEFT + 24} 4V{_TALL}H{_WIDE}" fill="none" stroke="currentColor" stroke-opacity=".4"/>']
    for at, word in below:
        drawn += [_rule(f"M{at:.1f} 4V{_TALL}"), svg.label(at, _TALL + 15, "middle", word)]
    for at, word in beside:
        drawn += [_rule(f"M{_LEFT + 24} {at:.1f}H{_WIDE}"), svg.label(_LEFT + 20, at + 4, "end", word)]
    drawn.append(svg.label((_LEFT + _WIDE) / 2, _TALL + 31, "middle", f"{section.x.label} → · ↑ {section.y.label}"))
    for mark, line in section.lines:
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in line)
        drawn.append(f'<path d="M{path}" fill="none" stroke="{mark.colour}" stroke-width="2"/>')
        drawn.append(svg.label(_WIDE - 8, up(line[-1][1]) - 5, "end", mark.word))
    placed = [(across(dot.x), up(dot.y)) for dot in dots]
    drawn += [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {_filled(dot.mark)}/>'
        for dot, (x, y) in zip(dots, placed, strict=True)
    ]
    drawn += _names_of(dots, placed)
    keys = " ".join(tables.keyed(mark) for mark in dict.fromkeys(dot.mark for dot in dots))
    return _titled(section.title, f"<p>{keys}</p>{svg.picture(drawn, _WIDE, _TALL + 16 + _BELOW, section.title)}")


def _has_place(value: float, axis: Axis) -> bool:
    known = fmt.known(value)
    return known is not None and (known > 0 or not axis.log)


def _scale(
    axis: Axis, values: Sequence[float], begin: float, end: float
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Return a function that places a number on an axis, and the tick positions: powers of ten, or the axis's ends."""
    low, high = min(values), max(values)
    if not axis.log:
        place = _on_axis(axis, low, high, begin, end)
        return place, [(place(value), words(value, axis.unit)) for value in dict.fromkeys((low, high))]
    place = _on_axis(axis, low / _ROOM, high * _ROOM, begin, end)
    powers = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    return place, [(place(power), fmt.on_axis(words(power, axis.unit)).strip()) for power in powers]


def _rule(path: str) -> str:
    return f'<path d="{path}" stroke="currentColor" stroke-opacity=".12"/>'


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
    low, high = min(values + marked), max(values + marked)
    across = _placed(low, high, _LEFT + 4, _WIDE - 4)
    height = (_HIGH - 8) / len(section.groups)
    drawn = [
        f'<circle cx="{across(value):.1f}" cy="{4 + height * (row + 0.5):.1f}" r="3" {_filled(mark)}/>'
        for row, (mark, group) in enumerate(section.groups)
        for value in all_known(group)
    ]
    for x in map(across, marked):
        drawn.append(f'<path d="M{x:.1f} 4V{_HIGH}" stroke="currentColor" stroke-dasharray="4 3"/>')
    axes = _axes([words(end, section.axis.unit) for end in (low, high)], section.axis.label, ["", ""])
    keys = " ".join(tables.keyed(mark) for mark, _ in section.groups)
    said = escape.html_sentence(" · ".join(strip_words(section)))
    picture = svg.picture(drawn + axes, _WIDE, _HIGH + _BELOW, section.title)
    return _titled(section.title, f"<p>{keys}<br>{said}</p>{picture}")


def _filled(mark: Mark) -> str:
    return f'fill="{mark.colour}" fill-opacity=".6"'


def _heat(section: Heat) -> str:
    known = all_known(value for row in section.values for value in row)
    if not known:
        return ""
    most = max(known)
    rows = []
    for name, row in zip(section.rows, section.values, strict=False):
        cells = (f"<td {tables.RIGHT} {_heated(value, most)}>{_figure(value, section.unit)}</td>" for value in row)
        rows.append(f"<tr><th {tables.ROW_HEAD}>{tables.name(name)}</th>{''.join(cells)}</tr>")
    heads = tables.head_row([escape.html(section.across), *map(escape.html, section.columns)])
    return _tabled(section.title, heads, rows)


def _heated(value: float | None, most: float) -> str:
    """Return the style of a cell's background, which is more intense for larger numbers."""
    strength = 60 * max(0.0, fmt.known(value) or 0.0) / most if most > 0 else 0.0
    return f'style="background:color-mix(in srgb,{BLUE} {strength:.0f}%,transparent)"'


def _cards(section: Cards) -> str:
    items = "".join(f"<li>{'<br>'.join(_card(card))}</li>" for card in section.cards)
    return _titled(section.title, items and f"<ol>{items}</ol>")


def _card(card: Card) -> Iterator[str]:
    confidence = sure_words(card) and f", {escape.html(sure_words(card))}"
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
