"""Documents as HTML without scripts, which reads well even where a host strips its style sheet and its SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.as_text import cell_words, effect_words, figure_words, left_out_words, listed, scale_of, section_text
from perfnb.draw.document import (
    Bars,
    Cell,
    Choice,
    Code,
    Column,
    Document,
    Effect,
    Effects,
    Heat,
    Line,
    Picture,
    Scatter,
    Section,
    Series,
    Strip,
    Table,
    Verdict,
    words,
)
from perfnb.draw.frame import framed, notes_html, static_page
from perfnb.draw.palette import Mark

#: Pixels of a bar behind a row, of the longest of several bars, and of the scale of effects.
_BAR, _LONGEST, _SCALE = 72, 360, 150
#: Size of a chart, and of its margins.
_WIDE, _HIGH, _LEFT, _BELOW = 720, 150, 64, 24
_STATES = {"good": "✓", "bad": "▲", "open": "?", "none": ""}


def document_html(document: Document) -> str:
    """Return a document as safe HTML, in its outer element."""
    parts = [_head(document)]
    for part in (document, *document.tabs):
        parts += [section_html(section) for section in part.sections]
    notes = list(dict.fromkeys([*document.notes, *chain.from_iterable(tab.notes for tab in document.tabs)]))
    return framed("".join(parts) + notes_html(notes), narrow=True)


def document_page(document: Document) -> str:
    """Return a document as a self-contained page."""
    return static_page(document.subject or document.kind, document_html(document))


def _head(document: Document) -> str:
    known = [escape.html_sentence(part) for part in (document.subject, document.device) if part]
    title = " · ".join([f"<strong>{escape.html(document.kind)}</strong>", *known])
    facts = [escape.html_sentence(fact) for fact in document.facts]
    figures = [escape.html_sentence(figure_words(figure)) for figure in document.figures]
    if figures:
        figures[0] = f'<strong class="pf-step">{figures[0]}</strong>'
    return f'<p class="pf-head">{title}</p>{_verdict(document.verdict)}' + _paragraph([*figures, *facts])


def _paragraph(lines: Sequence[str]) -> str:
    return f'<p class="pf-head">{"<br>".join(lines)}</p>' if lines else ""


def _verdict(verdict: Verdict) -> str:
    if not verdict.sentence:
        return ""
    sign = f'<span aria-hidden="true">{_STATES[verdict.state]}</span> ' if _STATES[verdict.state] else ""
    confidence = f" <em>({escape.html(verdict.confidence)} confidence)</em>" if verdict.confidence else ""
    lines = [f"<strong>{sign}{escape.html_sentence(verdict.sentence)}</strong>{confidence}"]
    lines += [
        f"<span><em>{label}</em> {escape.html_sentence(said)}</span>"
        for label, said in (("Why", verdict.why), ("Next", verdict.next))
        if said
    ]
    lines += [_code(verdict.code)] * bool(verdict.code)
    return f'<div class="pf-verdict pf-{verdict.state}">{"<br>".join(lines)}</div>'


def _code(text: str) -> str:
    return f"<pre>{'<br>'.join(escape.html(line, 2000) for line in text.splitlines())}</pre>"


def section_html(section: Section) -> str:
    """Return a section, or nothing if there is nothing to show."""
    return _RENDERERS[type(section)](section)


def _titled(title: str, body: str) -> str:
    head = f"<p><strong>{escape.html_sentence(title)}</strong></p>" if title else ""
    return f"<div>{head}{body}</div>" if body else ""


def _bars(section: Bars) -> str:
    totals = [sum(part.value for part in bar.parts) for bar in section.bars]
    longest = max(totals, default=0.0)
    if not longest > 0:
        return ""
    if len(section.bars) == 1:
        (bar,), (total,) = section.bars, totals
        parts = [(part.mark, part.value) for part in bar.parts if part.value > 0]
        rows = [
            (tables.keyed(mark), escape.html(words(value, section.unit)), escape.html(fmt.share(value / total)))
            for mark, value in parts
        ]
        return tables.full_bar(parts, total) + tables.table(escape.html_sentence(section.title), ["", "", "share"], rows)
    marks = list(dict.fromkeys(part.mark for bar in section.bars for part in bar.parts if part.value > 0))
    rows = []
    for bar, total in zip(section.bars, totals, strict=True):
        held = {part.mark: part.value for part in bar.parts}
        figures = (escape.html(words(held[mark], section.unit)) if mark in held else "" for mark in marks)
        drawn = tables.bar([(part.mark, part.value) for part in bar.parts], longest, _LONGEST)
        rows.append((tables.name(bar.label), escape.html(words(total, section.unit)), drawn, *figures))
    heads = ["", "total", "", *map(tables.keyed, marks)]
    return tables.table(escape.html_sentence(section.title), heads, rows)


def _effects(section: Effects) -> str:
    place = scale_of(section.rows)
    rows = [
        (tables.name(row.label), escape.html_sentence(effect_words(row)), _on_scale(row, place), escape.html(row.verdict),
         escape.html_sentence(row.detail))
        for row in section.rows
    ]  # fmt: skip
    if not rows:
        return ""
    detailed = any(row.detail for row in section.rows)
    heads = [escape.html(section.head), "ratio", "", "verdict", *[""] * detailed]
    caption = section.title
    if section.same_within is not None:
        caption += f" (1 × is the baseline; within {fmt.share(section.same_within)} of it is the same)"
    kept = rows if detailed else [row[:-1] for row in rows]
    return tables.table(escape.html_sentence(caption), heads, kept, last_texts=1 + detailed)


def _on_scale(row: Effect, place: Callable[[float], float]) -> str:
    """The ratio as a dot with its interval, on a scale with 1 × in the middle."""
    if row.ratio is None or not row.ratio > 0:
        return ""
    low, high = row.interval or (row.ratio, row.ratio)
    ends = [place(max(end, 1e-9)) * (_SCALE - 8) + 4 for end in (low, row.ratio, high)]
    return (
        f'<svg width="{_SCALE}" height="14" role="img" aria-label="{escape.html(effect_words(row))}">'
        f'<path d="M{_SCALE / 2} 0V14" stroke="currentColor" stroke-opacity=".4"/>'
        f'<path d="M{ends[0]:.1f} 7H{max(ends[2], ends[0] + 1):.1f}" stroke="currentColor" stroke-width="2"/>'
        f'<circle cx="{ends[1]:.1f}" cy="7" r="4" fill="currentColor"/></svg>'
    )


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    body, left_out = listed(table, table.budget.html)
    barred = next((place for place, column in enumerate(table.columns) if column.bar), None)
    shown = [line.layer for line in body if line.layer >= 0]
    most = max((_number(table.rows[row][barred]) for row in shown), default=0.0) if barred is not None else 0.0
    lines = []
    for line in body:
        indent = "&nbsp;" * min(4 * line.depth, 60)  # shows the nesting even without styles
        if line.layer < 0:
            said = escape.html_sentence(left_out_words(table, line.left_out))
            lines.append(f'<tr><td colspan="{len(table.columns)}" {tables.LEFT}>{indent}<em>… {said}</em></td></tr>')
            continue
        row = table.rows[line.layer]
        inside = f" <em>+{line.inside:,}</em>" if line.inside else ""
        cells = [_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        if barred is not None:
            cells[barred] = f"{_eighths(_number(row[barred]), most)} {cells[barred]}"
        first, *others = cells
        marked = (f"<td {_side(column)}>{cell}</td>" for cell, column in zip(others, table.columns[1:], strict=True))
        lines.append(f"<tr><th {tables.ROW_HEAD}>{indent}{first}{inside}</th>{''.join(marked)}</tr>")
        if table.details is not None and table.details[line.layer]:
            said = escape.html_sentence(table.details[line.layer])
            lines.append(f'<tr><td colspan="{len(table.columns)}" {tables.LEFT}>{indent}&nbsp;&nbsp;{said}</td></tr>')
    caption = escape.html_sentence(table.title)
    if left_out:
        caption += f" <em>({left_out:,} more {escape.html(table.noun)}{'s' * (left_out != 1)} not listed)</em>"
    heads = "".join(
        f'<th scope="col" {_side(column)}{_help(column)}>{escape.html(column.head)}</th>' if column.head else "<td></td>"
        for column in table.columns
    )
    return f"<table><caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _help(column: Column) -> str:
    return f' title="{escape.html_sentence(column.help)}"' if column.help else ""


def _side(column: Column) -> str:
    return tables.LEFT if column.unit == "text" else tables.RIGHT


def _cell(cell: Cell, column: Column) -> str:
    if isinstance(cell, Mark):
        return tables.keyed(cell)
    if column.unit == "text" and not isinstance(cell, (int, float)) and cell is not None:
        return tables.name(cell_words(cell, column.unit))
    return escape.html_sentence(cell_words(cell, column.unit))


def _number(cell: Cell) -> float:
    return 0.0 if cell is None or isinstance(cell, (str, Mark)) else fmt.known(getattr(cell, "number", cell)) or 0.0


def _eighths(value: float, most: float) -> str:
    """A bar of characters, which no host strips."""
    if not value > 0 or not most > 0:
        return ""
    width = max(1, round(_BAR * value / most))
    return f'<span class="pf-inline-bar" aria-hidden="true" style="width:{width}px">{"▇" * max(1, round(8 * value / most))}</span>'


def _series(section: Series) -> str:
    known = [value for line in section.lines for value in line.values if fmt.known(value) is not None]
    if not known or len(section.at) < 2:
        return ""
    top = max([*known, *section.levels.values()]) or 1.0
    across = _placed(section.at[0], section.at[-1], _LEFT, _WIDE)
    up = _placed(0.0, top, _HIGH, 8)
    drawn = [_level(name, value, up) for name, value in section.levels.items()]
    for line in section.lines:
        drawn += _band(section, line, across, up)
        points = [
            f"{across(x):.1f} {up(y):.1f}" for x, y in zip(section.at, line.values, strict=True) if fmt.known(y) is not None
        ]
        drawn.append(f'<path d="M{"L".join(points)}" fill="none" stroke="{line.mark.colour}" stroke-width="1.6"/>')
    ends = [words(end, section.x.unit) for end in (section.at[0], section.at[-1])]
    axes = _axes(ends, section.x.label, ["0", words(top, section.y.unit)])
    keys = " ".join(tables.keyed(line.mark) for line in section.lines)
    alt = " ".join(section_text(section, 200)[1:])
    return _titled(section.title, f"<p>{keys}</p>{_svg(drawn + axes, alt)}")


def _band(section: Series, line: Line, across: Callable[[float], float], up: Callable[[float], float]) -> Iterator[str]:
    if line.low is None or line.high is None:
        return
    edges = [
        f"{across(x):.1f} {up(y):.1f}"
        for side, values in ((1, line.low), (-1, line.high))
        for x, y in [*zip(section.at, values, strict=True)][::side]
        if y is not None
    ]
    yield f'<path d="M{"L".join(edges)}Z" fill="{line.mark.colour}" fill-opacity=".2"/>'


def _level(name: str, value: float, up: Callable[[float], float]) -> str:
    y = up(value)
    return (
        f'<path d="M{_LEFT} {y:.1f}H{_WIDE}" stroke="currentColor" stroke-dasharray="4 3" stroke-opacity=".6"/>'
        f'<text x="{_LEFT + 4}" y="{y - 3:.1f}" font-size="11" fill="currentColor">{escape.html(name)}</text>'
    )


def _placed(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    span = high - low
    return lambda value: begin + (end - begin) * ((value - low) / span if span else 0.5)


def _axes(ends: Sequence[str], label: str, levels: Sequence[str]) -> list[str]:
    text = '<text x="{x}" y="{y}" font-size="11" fill="currentColor" fill-opacity=".75" text-anchor="{anchor}">{word}</text>'
    below = _HIGH + 15
    return [
        f'<path d="M{_LEFT} 4V{_HIGH}H{_WIDE}" fill="none" stroke="currentColor" stroke-opacity=".4"/>',
        text.format(x=_LEFT, y=below, anchor="start", word=escape.html(ends[0])),
        text.format(x=(_LEFT + _WIDE) / 2, y=below, anchor="middle", word=escape.html(label)),
        text.format(x=_WIDE, y=below, anchor="end", word=escape.html(ends[1])),
        text.format(x=_LEFT - 5, y=_HIGH, anchor="end", word=escape.html(levels[0])),
        text.format(x=_LEFT - 5, y=14, anchor="end", word=escape.html(levels[1])),
    ]


def _svg(parts: Sequence[str], alt: str) -> str:
    said = escape.html_sentence(alt)
    return f'<svg viewBox="0 0 {_WIDE} {_HIGH + _BELOW}" style="max-width:{_WIDE}px" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def _scatter(section: Scatter) -> str:
    rows = [(dot.label, dot.mark, dot.x, dot.y) for dot in section.dots]
    columns = (Column("name"), Column(""), Column(section.x.label, section.x.unit), Column(section.y.label, section.y.unit))
    return _table(Table(section.title, columns, rows, noun="point"))


def _strip(section: Strip) -> str:
    values = [value for _, group in section.groups for value in group]
    if not values:
        return ""
    across = _placed(min(values), max(values), _LEFT, _WIDE - 6)
    height = _HIGH / max(1, len(section.groups))
    drawn = [
        f'<circle cx="{across(value):.1f}" cy="{8 + height * (row + 0.5):.1f}" r="3" fill="{mark.colour}" fill-opacity=".6"/>'
        for row, (mark, group) in enumerate(section.groups)
        for value in group
    ]
    if section.at is not None:
        x = across(section.at[1])
        drawn.append(f'<path d="M{x:.1f} 4V{_HIGH}" stroke="currentColor" stroke-dasharray="4 3"/>')
    ends = [words(end, section.axis.unit) for end in (min(values), max(values))]
    keys = " ".join(tables.keyed(mark) for mark, _ in section.groups)
    alt = " ".join(section_text(section, 200)[1:])
    return _titled(section.title, f"<p>{keys}</p>{_svg(drawn + _axes(ends, section.axis.label, ['', '']), alt)}")


def _heat(section: Heat) -> str:
    known = [value for row in section.values for value in row if value is not None]
    if not known:
        return ""
    most = max(known) or 1.0
    rows = [
        f"<tr><th {tables.ROW_HEAD}>{tables.name(name)}</th>"
        + "".join(
            f'<td {tables.RIGHT} style="background:color-mix(in srgb,#0072b2 {60 * (value or 0.0) / most:.0f}%,transparent)">'
            f"{escape.html(words(value, section.unit))}</td>"
            for value in row
        )
        + "</tr>"
        for name, row in zip(section.rows, section.values, strict=True)
    ]
    heads = tables.head_row([escape.html(section.across), *map(escape.html, section.columns)])
    return (
        f"<table><caption>{escape.html_sentence(section.title)}</caption><thead>{heads}</thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _choice(section: Choice) -> str:
    """Where nothing can be chosen, the first alternative stands open and the others are folded below it."""
    bodies = [(name, "".join(map(section_html, parts))) for name, parts in section.options.items()]
    folded = "".join(f"<details><summary>{escape.html(name)}</summary>{body}</details>" for name, body in bodies[1:])
    return _titled(section.title, bodies[0][1] + folded) if bodies else ""


_RENDERERS: dict[type, Callable[[Any], str]] = {
    Bars: _bars,
    Effects: _effects,
    Table: _table,
    Series: _series,
    Scatter: _scatter,
    Strip: _strip,
    Heat: _heat,
    Code: lambda section: _titled(section.title, _code(section.text)),
    Choice: _choice,
    Picture: lambda section: _titled(section.title, section.html()),
}
