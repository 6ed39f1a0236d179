"""Documents as text of at most a given width."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import bars, escape
from perfnb.draw.document import (
    Bars,
    Cell,
    Choice,
    Code,
    Column,
    Document,
    Effect,
    Effects,
    Figure,
    Heat,
    Picture,
    Scatter,
    Section,
    Series,
    Strip,
    Table,
    Value,
    Verdict,
    words,
)
from perfnb.draw.palette import Mark
from perfnb.draw.tree import Line, page_of, tree_of_parents

#: Width where there is no terminal, and the least that fits the columns.
USUAL, LEAST = 100, 60
#: Longest sentence, and cells that names keep while there are columns to give up, and at the least.
_SENTENCE, _NAME, _SHORT_NAME = 2000, 24, 10
#: Cells of a bar behind a row, of a scale of effects, and of a label beside a bar.
_BAR, _SCALE, _LABEL = 8, 21, 24
_EIGHTHS = " ▏▎▍▌▋▊▉"


def terminal_width() -> int:
    """Return the width of the terminal, or `USUAL` where there is none."""
    return max(LEAST, shutil.get_terminal_size((USUAL, 24)).columns)


def document_text(document: Document, width: int = USUAL) -> str:
    """Return a document as text, without tabs' own headers: their sections follow one another."""
    width = max(LEAST, width)
    blocks = [_head(document, width)]
    for part in (document, *document.tabs):
        blocks += [block for section in part.sections if (block := section_text(section, width))]
    notes = list(dict.fromkeys([*document.notes, *(note for tab in document.tabs for note in tab.notes)]))
    if notes:
        blocks.append(["Notes", *escape.bullets(notes, width)])
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks)


def _head(document: Document, width: int) -> list[str]:
    known = [escape.plain(part) for part in (document.kind, document.subject, document.device) if part]
    lines = escape.wrapped(f"perfnb · {' · '.join(known)}", width)
    lines += _verdict(document.verdict, width)
    return [*lines, *_joined([*map(figure_words, document.figures), *document.facts], width)]


def _verdict(verdict: Verdict, width: int) -> list[str]:
    confidence = f" ({verdict.confidence} confidence)" if verdict.confidence else ""
    lines = _sentences(f"{verdict.sentence}{confidence}", width) if verdict.sentence else []
    for label, said in (("Why", verdict.why), ("Next", verdict.next)):
        lines += [f"{label if not place else '':<6}{line}" for place, line in enumerate(_sentences(said, width - 6)) if said]
    return lines + [f"      {line}" for line in _code(verdict.code, width - 6)]


def _sentences(text: str, width: int) -> list[str]:
    return escape.wrapped(escape.plain(text, _SENTENCE), width)


def _code(text: str, width: int) -> list[str]:
    return [part for line in text.splitlines() for part in escape.wrapped(escape.plain(line, _SENTENCE), width)]


def _joined(facts: Sequence[str], width: int) -> Iterator[str]:
    """Facts in lines as full as they get, none of them broken if it fits into one."""
    line = ""
    for fact in (escape.plain(fact, _SENTENCE) for fact in facts):
        if line and escape.cells(line) + 3 + escape.cells(fact) > width:
            yield from escape.wrapped(line, width)
            line = ""
        line = f"{line} · {fact}" if line else fact
    if line:
        yield from escape.wrapped(line, width)


def figure_words(figure: Figure) -> str:
    """Return a figure with its label, its interval and how it was measured."""
    basis = f" ({figure.basis})" if figure.basis else ""
    value = fmt.with_interval(words(figure.value, figure.unit), figure.value, figure.interval)
    return f"{figure.label} {value}{basis}".strip()


def section_text(section: Section, width: int) -> list[str]:
    """Return the lines of a section, none if there is nothing to show."""
    lines = _RENDERERS[type(section)](section, width)
    return [*_sentences(section.title, width), *lines] if lines and section.title else lines


def _bars(section: Bars, width: int) -> list[str]:
    labels = [escape.plain(bar.label, _LABEL) for bar in section.bars]
    cells = max(map(escape.cells, labels), default=0)
    totals = [sum(part.value for part in bar.parts) for bar in section.bars]
    figures = [words(total, section.unit) for total in totals]
    room = width - (cells + 1 if cells else 0) - (1 + max(map(len, figures)) if cells else 0)
    longest, lines = max(totals, default=0.0), list[str]()
    if not longest > 0:
        return []
    for label, bar, total, figure in zip(labels, section.bars, totals, figures, strict=True):
        drawn = bars.stacked(
            [part.mark for part in bar.parts], [part.value for part in bar.parts], round(room * total / longest)
        )
        lines.append(f"{escape.fit(label, cells)} {drawn} {figure}" if cells else drawn)
    if len(section.bars) == 1:
        whole = totals[0]
        entries = [
            (part.mark, words(part.value, section.unit), fmt.share(part.value / whole))
            for part in section.bars[0].parts
            if part.value > 0
        ]
        return lines + bars.legend(entries, width)
    marks = {part.mark: None for bar in section.bars for part in bar.parts if part.value > 0}
    return [*lines, *escape.wrapped("  ".join(f"{mark.glyph} {escape.plain(mark.word, 30)}" for mark in marks), width)]


def effect_words(row: Effect) -> str:
    """Return an effect in its only notation: ``0.540 × [0.510, 0.570]``."""
    return fmt.with_interval(fmt.ratio(row.ratio), row.ratio, row.interval)


def _effects(section: Effects, width: int) -> list[str]:
    rows = section.rows
    if not rows:
        return []
    figures, verdicts = [effect_words(row) for row in rows], [escape.plain(row.verdict, 24) for row in rows]
    right = [max(map(escape.cells, column)) for column in (figures, verdicts)]
    scaled = width - sum(right) - 4 - _SCALE - 2 >= _NAME
    room = width - sum(right) - 4 - (_SCALE + 2 if scaled else 0)
    label = max(_SHORT_NAME, min(room, max(escape.cells(escape.plain(row.label)) for row in rows)))
    place, lines = scale_of(rows), list[str]()
    for row, figure, verdict in zip(rows, figures, verdicts, strict=True):
        drawn = f"  {_on_scale(row, place)}" if scaled else ""
        left = f"{escape.fit(row.label, label)}  {escape.fit(figure, right[0])}"
        lines.append(f"{left}{drawn}  {verdict}" if verdict else f"{left}{drawn}")
        lines += [f"  {line}" for line in _sentences(row.detail, width - 2) if row.detail]
    if section.same_within is not None:
        lines += _sentences(f"1 × is the baseline; ratios within {fmt.share(section.same_within)} of it are the same.", width)
    return lines


def scale_of(rows: Sequence[Effect]) -> Callable[[float], float]:
    """Return what places a ratio on a logarithmic scale from 0 to 1, with 1 × in the middle.

    What is many times slower is cut off, or nobody would see what the others gain.
    """
    ends = [math.log(end) for row in rows for end in (row.ratio, *(row.interval or ())) if end is not None and end > 0]
    most = max(math.log(2), -min(ends, default=0.0))
    longest = min(most, max(map(abs, ends), default=0.0)) or 1.0
    return lambda ratio: 0.5 + 0.5 * max(-1.0, min(1.0, math.log(ratio) / longest))


def _on_scale(row: Effect, place: Callable[[float], float]) -> str:
    cells = [" "] * _SCALE
    cells[_SCALE // 2] = "│"
    if row.ratio is not None and row.ratio > 0:
        low, high = row.interval or (row.ratio, row.ratio)
        ends = [round(place(max(end, 1e-9)) * (_SCALE - 1)) for end in (low, row.ratio, high)]
        for cell in range(ends[0], ends[2] + 1):
            cells[cell] = "─"
        cells[ends[1]] = "●"
    return "".join(cells)


def cell_words(cell: Cell, unit: str) -> str:
    """Return what stands in a cell, plain."""
    if isinstance(cell, Mark):
        return escape.plain(cell.word)
    if isinstance(cell, Value):
        return fmt.with_interval(words(cell.number, cell.unit), cell.number, cell.interval)
    if unit == "text":
        return "" if cell is None else escape.plain(cell)
    return words(cell, unit)


def _table(table: Table, width: int) -> list[str]:
    if not table.rows:
        return []
    body, left_out = listed(table, table.budget.text)
    shown = [line.layer for line in body if line.layer >= 0]
    texts = {row: [cell_words(*pair) for pair in _pairs(table, row)] for row in shown}
    columns = _columns_that_fit(table, texts.values(), width)
    widths = _widths(table, columns, texts.values(), body, width)
    barred = next((place for place, column in enumerate(table.columns) if column.bar), None)
    room = width - sum(widths) - len(widths)
    has_bar = barred is not None and room >= _BAR
    most = max((_number(table.rows[row][barred]) for row in shown), default=0.0) if barred is not None else 0.0
    lines = [_row([table.columns[place].head for place in columns], table, columns, widths)]
    lines.append("─" * min(width, escape.cells(lines[0]) + (1 + _BAR if has_bar else 0)))
    for line in body:
        if line.layer < 0:
            said = f"{_glyphs(line, widths[0])}… {left_out_words(table, line.left_out)}"
            lines.append(escape.shorten(said, width))
            continue
        cells = [texts[line.layer][place] for place in columns]
        closed = f" +{line.inside:,}" if line.inside else ""
        glyphs = _glyphs(line, widths[0])
        cells[0] = glyphs + escape.plain(cells[0], widths[0] - len(glyphs) - len(closed)) + closed
        drawn = f" {_eighths(_number(table.rows[line.layer][barred]), most)}" if has_bar and barred is not None else ""
        lines.append(_row(cells, table, columns, widths) + drawn)
        if table.details is not None and table.details[line.layer]:
            lines += [f"  {part}" for part in _sentences(table.details[line.layer], width - 2)]
    if left_out:
        lines.append(f"… {left_out:,} more {table.noun}{'s' * (left_out != 1)}")
    if any("n/a" in text for row in texts.values() for text in row):
        lines.append(f"{fmt.UNKNOWN}: not measured, or not applicable to this row")
    return lines


def _pairs(table: Table, row: int) -> Iterator[tuple[Cell, str]]:
    return zip(table.rows[row], (column.unit for column in table.columns), strict=True)


def listed(table: Table, limit: int) -> tuple[list[Line], int]:
    """Choose the rows that a budget allows.

    Returns
    -------
    tuple of (list of Line, int)
        The rows in order, with placeholders for what a tree leaves out, and how many a flat table leaves out.
    """
    count = len(table.rows) - table.tail
    tail = [Line(place, 0, ()) for place in range(count, len(table.rows))]
    if table.nesting is None:
        kept = min(count, limit)
        return [*(Line(place, 0, ()) for place in range(kept)), *tail], count - kept
    tree = tree_of_parents(table.nesting.parents)
    path = [tree.names[place] for place in table.nesting.path]
    return [*page_of(tree, table.nesting.weights, path, limit), *tail], 0


def left_out_words(table: Table, rows: Sequence[int]) -> str:
    """Return how many rows of a tree a placeholder stands for, and how much of the whole they are."""
    said = f"{len(rows):,} more {table.noun}{'s' * (len(rows) != 1)}"
    shares = next((place for place, column in enumerate(table.columns) if column.bar and column.unit == "share"), None)
    if shares is None:
        return said
    return f"{said}, {fmt.share(sum(_number(table.rows[row][shares]) for row in rows))}"


def _number(cell: Cell) -> float:
    value = cell.number if isinstance(cell, Value) else cell
    return 0.0 if isinstance(value, (str, Mark)) else fmt.known(value) or 0.0


def _columns_that_fit(table: Table, rows: Any, width: int) -> list[int]:
    """Give up columns, those of the largest priority number first, until the others fit."""
    places = list(range(len(table.columns)))
    least = {place: _least(table.columns[place], place, [row[place] for row in rows]) for place in places}
    while sum(least[place] + 1 for place in places) - 1 > width:
        spare = [place for place in places if table.columns[place].priority > 0]
        if not spare:
            break
        places.remove(max(spare, key=lambda place: (table.columns[place].priority, place)))
    return places


def _least(column: Column, place: int, texts: Sequence[str]) -> int:
    """The cells that a column needs: numbers are never cut, text may be."""
    longest = max([escape.cells(column.head), *map(escape.cells, texts)])
    if column.unit != "text":
        return longest
    return min(longest, _NAME if place == 0 else _SHORT_NAME)


def _widths(table: Table, columns: Sequence[int], rows: Any, body: Sequence[Line], width: int) -> list[int]:
    natural, flexible = [], []
    for column in columns:
        texts = [row[column] for row in rows]
        longest = max([escape.cells(table.columns[column].head), *map(escape.cells, texts)])
        if column == 0:
            grown = {line.layer: _natural_indent(line) + len(f" +{line.inside:,}" if line.inside else "") for line in body}
            by_row = {line.layer: row[0] for line, row in zip([one for one in body if one.layer >= 0], rows, strict=True)}
            longest = max([longest, *(grown[row] + escape.cells(text) for row, text in by_row.items())])
        natural.append(longest)
        flexible.append(table.columns[column].unit == "text")
    spare = width - sum(natural) - len(natural) + 1
    while spare < 0:
        candidates = [place for place, may in enumerate(flexible) if may and natural[place] > _SHORT_NAME]
        if not candidates:
            break
        widest = max(candidates, key=lambda place: natural[place] / (2 if place == 0 else 1))
        natural[widest] -= 1
        spare += 1
    return natural


def _row(cells: Sequence[str], table: Table, columns: Sequence[int], widths: Sequence[int]) -> str:
    sides = ["<" if table.columns[place].unit == "text" else ">" for place in columns]
    return " ".join(_padded(cell, room, side) for cell, room, side in zip(cells, widths, sides, strict=True))


def _padded(text: str, room: int, side: str) -> str:
    text = escape.shorten(text, room)
    padding = " " * (room - escape.cells(text))
    return text + padding if side == "<" else padding + text


def _natural_indent(line: Line) -> int:
    return 3 * line.depth


def _glyphs(line: Line, width: int) -> str:
    if not line.depth:
        return ""
    step = next((step for step in (3, 2) if step * line.depth <= width - _SHORT_NAME), 0)
    if not step:
        return f"{line.depth}: "
    lines = "".join((" " if last else "│").ljust(step) for last in line.last[:-1])
    return lines + ("└" if line.last[-1] else "├") + ("─ " if step == 3 else " ")


def _eighths(value: float, most: float) -> str:
    if value <= 0 or most <= 0:
        return ""
    eighths = max(1, round(8 * _BAR * min(1.0, value / most)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _series(series: Series, width: int) -> list[str]:
    lines: list[str] = []
    for line in series.lines:
        known = [value for value in line.values if fmt.known(value) is not None]
        if not known:
            continue
        ends = f"{words(min(known), series.y.unit)} to {words(max(known), series.y.unit)}"
        lines += escape.wrapped(f"{escape.plain(line.mark.word, 40)}: {ends}", width)
        lines.append(bars.heights(_binned(series.at, line.values, width), max(known)))
    if not lines:
        return []
    axis = f"{series.x.label} from {words(series.at[0], series.x.unit)} to {words(series.at[-1], series.x.unit)}"
    levels = [f"{name}: {words(value, series.y.unit)}" for name, value in series.levels.items()]
    return [*lines, *_joined([axis, *levels], width)]


def _binned(at: Sequence[float], values: Sequence[float | None], width: int) -> list[float]:
    """The largest value in each cell; a value lasts until the next one."""
    first, last = at[0], at[-1]
    cells, held = [0.0] * width, 0.0
    places = [min(width - 1, int(width * (x - first) / (last - first))) if last > first else 0 for x in at]
    cursor = 0
    for cell in range(width):
        cells[cell] = held
        while cursor < len(places) and places[cursor] <= cell:
            held = fmt.known(values[cursor]) or 0.0
            cells[cell] = max(cells[cell], held)
            cursor += 1
    return cells


def _scatter(section: Scatter, width: int) -> list[str]:
    rows = [(dot.label, dot.mark, dot.x, dot.y) for dot in section.dots]
    columns = (Column("name"), Column("", priority=2), *(Column(axis.label, axis.unit) for axis in (section.x, section.y)))
    return _table(Table("", columns, rows, noun="point"), width)


def _strip(section: Strip, width: int) -> list[str]:
    values = [value for _, group in section.groups for value in group]
    if not values:
        return []
    low, high = min(values), max(values)
    label = max(escape.cells(escape.plain(mark.word, _LABEL)) for mark, _ in section.groups)
    room, lines = width - label - 1, list[str]()
    for mark, group in section.groups:
        counts = [0.0] * room
        for value in group:
            counts[min(room - 1, int(room * (value - low) / (high - low))) if high > low else 0] += 1
        lines.append(f"{escape.fit(mark.word, label)} {bars.heights(counts, max(counts))}")
    ends = [words(end, section.axis.unit) for end in (low, high)]
    at = [] if section.at is None else [f"{section.at[0]}: {words(section.at[1], section.axis.unit)}"]
    return [*lines, *_joined([f"{section.axis.label} from {ends[0]} to {ends[1]}", *at], width)]


def _heat(section: Heat, width: int) -> list[str]:
    known = [value for row in section.values for value in row if value is not None]
    if not known:
        return []
    label = min(_LABEL, max(escape.cells(escape.plain(row)) for row in section.rows))
    room, most = width - label - 1, max(known)
    lines = []
    for name, row in zip(section.rows, section.values, strict=True):
        cells = _binned(range(len(row)), row, min(room, len(row)))
        lines.append(f"{escape.fit(name, label)} {bars.heights(cells, most)}")
    across = f"{section.across} {section.columns[0]} to {section.columns[-1]}".strip()
    return [*lines, *_joined([across, f"highest: {words(most, section.unit)}"], width)]


def _choice(section: Choice, width: int) -> list[str]:
    first = next(iter(section.options.values()), ())
    return [line for part in first for line in section_text(part, width)]


_RENDERERS: dict[type, Callable[[Any, int], list[str]]] = {
    Bars: _bars,
    Effects: _effects,
    Table: _table,
    Series: _series,
    Scatter: _scatter,
    Strip: _strip,
    Heat: _heat,
    Code: lambda section, width: _code(section.text, width),
    Choice: _choice,
    Picture: lambda section, width: section.text(width),
}
