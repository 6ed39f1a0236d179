"""Render documents as text with a maximum width."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import bars, escape
from perfnb.draw.document import (
    Axis,
    Bars,
    Budget,
    Card,
    Cards,
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
    Split,
    Strip,
    Table,
    Value,
    Verdict,
    words,
)
from perfnb.draw.palette import Mark
from perfnb.draw.tree import TreeLine, page_of

#: The width if there is no terminal, and the minimum width.
USUAL, LEAST = 100, 60
#: The maximum length of a sentence; the width that names keep as long as other columns can be dropped; and the minimum
#: width of names.
_SENTENCE, _NAME, _SHORT_NAME = 2000, 24, 10
#: The widths, in cells, of a bar behind a row, of the scale of effects, of a label next to a bar, and of the text
#: before a reason.
_BAR, _SCALE, _LABEL, _INDENT = 8, 21, 24, 6
#: From this width on, a bar takes precedence over columns that can be dropped.
_ROOMY = 80
_EIGHTHS = " ▏▎▍▌▋▊▉"
#: Ratios below this are gains, which must be visible on the scale of effects.
_GAIN = 0.95


def terminal_width() -> int:
    """Return the terminal's width, or `USUAL` if there is no terminal."""
    return max(LEAST, shutil.get_terminal_size((USUAL, 24)).columns)


def document_text(document: Document, width: int = USUAL) -> str:
    """Return a document as text, followed by its tabs in order."""
    width = max(LEAST, width)
    blocks = []
    for part in document.parts:
        head = _head(part, width, part is not document)
        body = [block for section in part.sections if (block := section_text(section, width))]
        if part is not document and len(head) == 1 and body:
            blocks += [head + body[0], *body[1:]]  # there is only a title above the first section
        elif part is document or len(head) > 1:
            blocks += [head, *body]
    if notes := document.all_notes:
        blocks.append(["Notes", *escape.bullets(notes, width)])
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks)


def document_line(document: Document) -> str:
    """Return a single line with a document's subject and answer."""
    subject, answer = escape.plain(document.subject, 40), escape.plain(document.verdict.sentence)
    return ": ".join(filter(None, (subject or document.kind, answer)))


def _head(document: Document, width: int, is_tab: bool) -> list[str]:
    before = [tab_title(document)] if is_tab else ["perfnb", document.kind]
    known = [escape.plain(part) for part in (*before, document.subject, document.device) if part]
    lines = escape.wrapped(" · ".join(known), width)
    lines += _verdict(document.verdict, width)
    return [*lines, *_joined([*map(figure_words, document.figures), *document.facts], width)]


def tab_title(document: Document) -> str:
    """Return the title of one part of a document."""
    return document.kind[:1].upper() + document.kind[1:]


def _verdict(verdict: Verdict, width: int) -> list[str]:
    confidence = f" ({verdict.confidence} confidence)" if verdict.confidence else ""
    sentence = verdict.sentence.removesuffix(".") if confidence else verdict.sentence
    lines = _sentences(f"{sentence}{confidence}", width) if sentence else []
    for label, said in (("Why", verdict.why), ("Next", verdict.next)):
        if said:
            first, *others = _sentences(said, width - _INDENT)
            lines += [f"{label:<{_INDENT}}{first}", *(" " * _INDENT + line for line in others)]
    return lines + [" " * _INDENT + line for line in _code(verdict.code, width - _INDENT)]


def _sentences(text: str, width: int) -> list[str]:
    return escape.wrapped(escape.plain(text, _SENTENCE), width)


def _code(text: str, width: int) -> list[str]:
    """Return lines of code with their indentation. Only lines that are too long are broken."""
    lines = []
    for line in text.splitlines():
        code = escape.plain(line.expandtabs(4), _SENTENCE)
        indent = min(len(code) - len(code.lstrip(" ")), width // 2)
        lines += [" " * indent + part for part in escape.wrapped(code.lstrip(" "), width - indent)]
    return lines


def _joined(facts: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines filled with as many facts as possible. A fact is not broken if it fits into one line."""
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
    return f"{figure.label} {figure_value(figure)}{basis}".strip()


def figure_value(figure: Figure | Value) -> str:
    """Return a figure with its interval."""
    number = figure.value if isinstance(figure, Figure) else figure.number
    return fmt.with_interval(words(number, figure.unit), number, figure.interval)


def section_text(section: Section, width: int) -> list[str]:
    """Return the lines of a section, or no lines if there is nothing to show."""
    lines = _RENDERERS[type(section)](section, width)
    return [*_sentences(section.title, width), *lines] if lines and section.title else lines


def _bars(section: Bars, width: int) -> list[str]:
    stacks, longest = stacks_of(section)
    if not longest > 0:
        return []
    if len(stacks) == 1:
        held = sums_of(stacks[0]).items()
        entries = [(mark, words(value, section.unit), fmt.share(value / longest)) for mark, value in held]
        return [_stacked(stacks[0], width), *bars.legend(entries, width)]
    labels = [escape.plain(bar.label, _LABEL) for bar in section.bars]
    totals = [sum(value for _, value in stack) for stack in stacks]
    figures = [words(total, section.unit) for total in totals]
    cells = max(map(escape.cells, labels))
    room = width - cells - 2 - max(map(len, figures))
    lines = [
        f"{escape.fit(label, cells)} {_stacked(stack, round(room * total / longest))} {figure}"
        for label, stack, total, figure in zip(labels, stacks, totals, figures, strict=True)
    ]
    marks = marks_in(section)
    columns = (Column(""), *(Column(f"{mark.glyph} {mark.word}", section.unit) for mark in marks))
    rows = [
        (label, *(sums_of(stack).get(mark, "") for mark in marks)) for label, stack in zip(labels, stacks, strict=True)
    ]
    return [*lines, *_table(Table("", columns, rows, budget=Budget(len(rows))), width)]


def marks_in(section: Bars) -> list[Mark]:
    """Return the marks of the parts that are above zero in one of the bars, in the order of the parts."""
    parts = [part for bar in section.bars for part in bar.parts]
    held = {part.mark for part in parts if part.value > 0}
    return [mark for mark in dict.fromkeys(part.mark for part in parts) if mark in held]


def stacks_of(section: Bars) -> tuple[list[list[tuple[Mark, float]]], float]:
    """Return each bar's parts that are above zero, and the length of the longest bar."""
    stacks = [[(part.mark, part.value) for part in bar.parts if part.value > 0] for bar in section.bars]
    return stacks, max((sum(value for _, value in stack) for stack in stacks), default=0.0)


def sums_of(stack: Sequence[tuple[Mark, float]]) -> dict[Mark, float]:
    """Return the sum of a bar's parts for each mark, because a mark may occur more than once."""
    sums = dict.fromkeys((mark for mark, _ in stack), 0.0)
    for mark, value in stack:
        sums[mark] += value
    return sums


def _stacked(stack: Sequence[tuple[Mark, float]], width: int) -> str:
    return bars.stacked([mark for mark, _ in stack], [value for _, value in stack], width)


def effect_words(row: Effect) -> str:
    """Return an effect in the notation that is used everywhere: ``0.540 × [0.510, 0.570]``."""
    return fmt.with_interval(fmt.ratio(row.ratio), row.ratio, row.interval)


def _effects(section: Effects, width: int) -> list[str]:
    rows = section.rows
    if not rows:
        return []
    figures = [effect_words(row) for row in rows]
    cells = max(map(escape.cells, figures))
    verdicts = [escape.plain(row.verdict, min(_LABEL, width - cells - _SHORT_NAME - 4)) for row in rows]
    room = width - cells - max(map(escape.cells, verdicts)) - 4
    scaled = room - _SCALE - 2 >= _NAME
    room -= _SCALE + 2 if scaled else 0
    label = min(room, max(escape.cells(escape.plain(row.label)) for row in rows))
    place, lines = scale_of(rows), list[str]()
    for row, figure, verdict in zip(rows, figures, verdicts, strict=True):
        drawn = f"  {_on_scale(row, place)}" if scaled else ""
        left = f"{escape.fit(row.label, label)}  {escape.fit(figure, cells)}"
        lines.append(f"{left}{drawn}  {verdict}" if verdict else f"{left}{drawn}")
        if row.detail:
            lines += [f"  {line}" for line in _sentences(row.detail, width - 2)]
    if section.same_within is not None:
        lines += _sentences(
            f"1 × is the baseline; ratios within {fmt.share(section.same_within)} of it are the same.", width
        )
    return lines


def scale_of(rows: Sequence[Effect]) -> Callable[[float], float]:
    """Return a function that places a ratio on a logarithmic scale from 0 to 1, with 1 × in the middle.

    If any ratio is a gain, ratios of much slower candidates are cut off, because the gains would otherwise be
    invisible.
    """
    known = [fmt.known(end) for row in rows for end in (row.ratio, *(row.interval or ()))]
    ends = [math.log(end) for end in known if end is not None and end > 0]
    gains = any((fmt.known(row.ratio) or 1.0) < _GAIN for row in rows)
    most = max(math.log(2), -min(ends, default=0.0)) if gains else math.inf
    longest = min(most, max(map(abs, ends), default=0.0)) or 1.0
    return lambda ratio: 0.5 + 0.5 * max(-1.0, min(1.0, math.log(ratio) / longest))


def _on_scale(row: Effect, place: Callable[[float], float]) -> str:
    cells = [" "] * _SCALE
    cells[_SCALE // 2] = "│"
    if ends := ends_on_scale(row, place):
        first, dot, last = (round(end * (_SCALE - 1)) for end in ends)
        cells[first : last + 1] = "─" * (last + 1 - first)
        cells[dot] = "●"
    return "".join(cells)


def ends_on_scale(row: Effect, place: Callable[[float], float]) -> tuple[float, float, float] | None:
    """Return the positions of the interval's start, the ratio and the interval's end, or ``None`` without a ratio."""
    ratio = fmt.known(row.ratio)
    if ratio is None or ratio <= 0:
        return None
    low, high = fmt.known_bounds(row.interval) or (ratio, ratio)
    return place(max(low, 1e-9)), place(ratio), place(max(high, 1e-9))


def cell_words(cell: Cell, unit: str) -> str:
    """Return the content of a cell as plain text."""
    if isinstance(cell, Mark):
        return escape.plain(cell.word)
    if isinstance(cell, Value):
        return figure_value(cell)
    if isinstance(cell, Split):
        return words(cell.number, unit)
    if isinstance(cell, str):
        return escape.plain(cell)
    if unit == "text":
        return "" if fmt.known(cell) is None else fmt.significant(cell, trim=True)
    return words(cell, unit)


def row_cells(table: Table, row: int) -> list[Cell]:
    """Return a row's cells, with exactly one cell for each column."""
    cells = [*table.rows[row], *[None] * len(table.columns)]
    return cells[: len(table.columns)]


def detail_of(table: Table, row: int) -> str:
    """Return the sentence that is displayed below a row, or an empty string if there is none."""
    return "".join((table.details or ())[row : row + 1])


def columns_held(table: Table, rows: Iterable[int]) -> list[int]:
    """Return the first column and all columns that have a known value in any of these rows."""
    cells = [row_cells(table, row) for row in rows]
    shown = [place for place, column in enumerate(table.columns) if not column.live]
    return [place for place in shown if place == 0 or any(_is_known(row[place]) for row in cells)]


def _is_known(cell: Cell) -> bool:
    if isinstance(cell, (str, Mark)):
        return bool(cell)
    return fmt.known(cell.number if isinstance(cell, (Value, Split)) else cell) is not None


def _table(table: Table, width: int) -> list[str]:
    body, left_out = listed(table, table.budget.text)
    if not body:
        return []
    shown = [line.layer for line in body if line.layer >= 0]
    texts = {
        row: [cell_words(cell, column.unit) for cell, column in zip(row_cells(table, row), table.columns, strict=True)]
        for row in shown
    }
    indents = {line.layer: 3 * line.depth + escape.cells(_inside(line)) for line in body}
    longest = [
        max(escape.cells(texts[row][place]) + (indents[row] if place == 0 else 0) for row in shown)
        for place in range(len(table.columns))
    ]
    held = columns_held(table, shown)
    barred = next((place for place, column in enumerate(table.columns) if column.bar), None)
    columns, widths = _fitted(table, held, longest, width - (0 if barred is None or width < _ROOMY else _BAR + 1))
    numbers = {row: 0.0 if barred is None else number_of(row_cells(table, row)[barred]) for row in shown}
    has_bar = max(numbers.values()) > 0 and width - sum(widths) - len(widths) >= _BAR
    lines = [_row([_head_of(table, place) for place in columns], table, columns, widths)]
    lines.append("─" * (escape.cells(lines[0]) + (1 + _BAR if has_bar else 0)))
    for line in body:
        if line.layer < 0:
            lines.append(escape.shorten(f"{_glyphs(line, widths[0])}… {left_out_words(table, line.left_out)}", width))
            continue
        cells = [texts[line.layer][place] for place in columns]
        inside = _inside(line)
        glyphs = _glyphs(line, widths[0], escape.cells(cells[0] + inside))
        cells[0] = glyphs + escape.shorten(cells[0], widths[0] - len(glyphs) - len(inside)) + inside
        drawn = f" {_eighths(numbers[line.layer], max(numbers.values()))}" if has_bar else ""
        lines.append(_row(cells, table, columns, widths) + drawn)
        if detail := detail_of(table, line.layer):
            lines += [f"  {part}" for part in _sentences(detail, width - 2)]
    if left_out:
        lines.append(f"… {fmt.counted(left_out, f'more {table.noun}')}")
    if hidden := [_head_of(table, place) for place in held if place not in columns]:
        lines += _sentences(f"Not shown at this width: {', '.join(hidden)}.", width)
    if any(texts[row][place] == fmt.UNKNOWN for row in shown for place in columns):
        lines.append(f"{fmt.UNKNOWN}: not measured, or not applicable to this row")
    return lines


def _head_of(table: Table, place: int) -> str:
    return escape.plain(table.columns[place].head, 2 * _LABEL)


def _inside(line: TreeLine) -> str:
    """Describe how many rows a closed branch contains."""
    return f" +{line.inside:,}" if line.inside else ""


def _fitted(table: Table, held: Sequence[int], longest: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Choose the columns that fit, and their widths. Numbers are never shortened, but names, words and heads may be.

    Parameters
    ----------
    table : Table
    held : sequence of int
        The columns to choose from.
    longest : sequence of int
        The width, in cells, of the longest text in each column, not counting the column's head.
    width : int
    """
    least, natural = dict[int, int](), dict[int, int]()
    for place in held:
        head = escape.cells(_head_of(table, place))
        natural[place] = max(longest[place], head)
        is_text = table.columns[place].unit == "text"
        least[place] = min(natural[place], _SHORT_NAME) if is_text else max(longest[place], min(head, _SHORT_NAME))
    columns = list(held)

    def excess(widths: Mapping[int, int]) -> int:
        return sum(widths[place] + 1 for place in columns) - 1 - width

    roomy = least | {0: min(natural[0], _NAME)}
    while len(columns) > 1:
        spared = max(columns[1:], key=lambda place: (table.columns[place].priority, place))
        if excess(roomy if table.columns[spared].priority else least) <= 0:
            break
        columns.remove(spared)
    widths = dict(natural)
    while excess(widths) > 0:
        wide = [place for place in columns if widths[place] > least[place]]
        widths[max(wide, key=lambda place: widths[place] / (2 if place == 0 else 1))] -= 1
    return columns, [widths[place] for place in columns]


def _row(cells: Sequence[str], table: Table, columns: Sequence[int], widths: Sequence[int]) -> str:
    padded = []
    for cell, place, room in zip(cells, columns, widths, strict=True):
        text = escape.shorten(cell, room)
        padding = " " * (room - escape.cells(text))
        padded.append(text + padding if table.columns[place].unit == "text" else padding + text)
    return " ".join(padded)


def listed(table: Table, limit: int) -> tuple[list[TreeLine], int]:
    """Choose which rows to list within a table's budget.

    Returns
    -------
    tuple of (list of TreeLine, int)
        The rows in order, with placeholders for rows that a tree leaves out, and the number of rows that a flat table
        leaves out.
    """
    count = len(table.rows) - table.tail
    tail = [TreeLine(place, 0, ()) for place in range(count, len(table.rows))]
    if table.nesting is None or len(table.nesting.parents) != count:
        kept = min(count, limit)
        return [*(TreeLine(place, 0, ()) for place in range(kept)), *tail], count - kept
    nesting = table.nesting
    return [*page_of(nesting.parents, nesting.weights, nesting.path, limit), *tail], 0


def left_out_words(table: Table, rows: Sequence[int]) -> str:
    """Describe how many rows of a tree a placeholder represents, and their share of the whole."""
    said = fmt.counted(len(rows), f"more {table.noun}")
    shares = next((place for place, column in enumerate(table.columns) if column.bar and column.unit == "share"), None)
    if shares is None:
        return said
    return f"{said}, {fmt.share(sum(number_of(row_cells(table, row)[shares]) for row in rows))}"


def number_of(cell: Cell) -> float:
    """Return the number that a bar represents, or 0 if it is unknown."""
    value = cell.number if isinstance(cell, (Value, Split)) else cell
    return 0.0 if isinstance(value, (str, Mark)) else fmt.known(value) or 0.0


def _glyphs(line: TreeLine, width: int, name: int = _SHORT_NAME) -> str:
    """Return the characters that show a line's depth, in front of a name that is `name` cells wide."""
    if not line.depth:
        return ""
    step = next((step for step in (3, 2) if step * line.depth <= width - min(name, _SHORT_NAME)), 0)
    if not step:
        return f"{line.depth}: "
    lines = "".join((" " if last else "│").ljust(step) for last in line.last[:-1])
    return lines + ("└" if line.last[-1] else "├") + ("─ " if step == 3 else " ")


def _eighths(value: float, most: float) -> str:
    if value <= 0 or most <= 0:
        return ""
    eighths = max(1, round(8 * _BAR * min(1.0, value / most)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _series(series: Series, width: int, with_axis: bool = True) -> list[str]:
    sums = [replace(line, mark=replace(line.mark, word="together")) for line in series.drawn[-1:] if series.stacked]
    held = [(line, known) for line in (*series.lines, *sums) if (known := all_known(line.values))]
    if not held:
        return []
    spans = [span_words(known, series.y) for _, known in held]
    label = min(_LABEL, max(escape.cells(escape.plain(line.mark.word)) for line, _ in held))
    room = width - label - max(map(escape.cells, spans)) - 2
    at = [on_axis(series.x, x) for x in series.at]
    highest = [number for _, known in held for number in known]
    lines = [
        f"{escape.fit(line.mark.word, label)} "
        f"{bars.heights(_heights(_binned(at, line.values, room), series.y, highest), 1.0)} {span}"
        for (line, _), span in zip(held, spans, strict=True)
    ]
    lines += _spans(series, label, room)
    return [*lines, *_joined([*(axis_words(series.x, series.at) if with_axis else ()), *level_words(series)], width)]


def _spans(series: Series, label: int, room: int) -> Iterator[str]:
    """Yield a row of events, which is drawn below the lines, and a legend for its characters."""
    if not series.spans:
        return
    first, step = series.at[0], (series.at[-1] - series.at[0]) / room
    middles = (first + (cell + 0.5) * step for cell in range(room))
    held = [[mark.glyph for mark, begin, end in series.spans if begin <= at < end] for at in middles]
    yield f"{' ' * label} {''.join((glyphs or ' ')[0] for glyphs in held)}"
    words = (
        f"{mark.glyph} {escape.plain(mark.word, _LABEL)}" for mark in dict.fromkeys(mark for mark, *_ in series.spans)
    )
    yield from _joined([*words], label + room)


def on_axis(axis: Axis, value: float) -> float:
    """Return a number's position along its axis.

    On a logarithmic axis, a number that is 0 or negative is placed far below the visible range.
    """
    return math.log(max(value, 1e-300)) if axis.log else value


def _heights(cells: Sequence[float], axis: Axis, known: Sequence[float]) -> list[float]:
    """Return the height of each value as a share, from 0, or from the smallest value if the axis is logarithmic."""
    least = on_axis(axis, min(known)) if axis.log else 0.0
    span = on_axis(axis, max(known)) - least
    return [max(1e-9, (on_axis(axis, cell) - least) / span if span else 1.0) if cell > 0 else 0.0 for cell in cells]


def all_known(values: Iterable[Any]) -> list[float]:
    """Return the known numbers in their original order."""
    return [number for number in map(fmt.known, values) if number is not None]


def span_words(values: Sequence[float], axis: Axis) -> str:
    """Describe the range of a line, from its smallest to its largest value."""
    return f"{words(min(values), axis.unit)} to {words(max(values), axis.unit)}"


def axis_words(axis: Axis, values: Sequence[float]) -> list[str]:
    """Describe the range of an axis."""
    return [f"{axis.label} from {words(min(values), axis.unit)} to {words(max(values), axis.unit)}"]


def level_words(series: Series) -> list[str]:
    """Describe the important levels of a chart."""
    return [f"{name}: {words(value, series.y.unit)}" for name, value in series.levels.items()]


def _binned(at: Sequence[float], values: Sequence[float | None], width: int) -> list[float]:
    """Return the largest value in each cell. Each value applies until the next value."""
    first, last = at[0], at[-1]
    cells, held, filled = [0.0] * width, 0.0, -1
    for x, value in zip(at, values, strict=False):
        place = width * (x - first) / (last - first) if last > first else 0.0
        cell = min(width - 1, int(place))
        ended = math.ceil(place)  # a value does not reach a cell at whose start the next one begins
        cells[filled + 1 : ended] = [held] * (ended - filled - 1)
        held, filled = fmt.known(value) or 0.0, max(filled, cell)
        cells[cell] = max(cells[cell], held)
    cells[filled + 1 :] = [held] * (width - 1 - filled)
    return cells


def _scatter(section: Scatter, width: int) -> list[str]:
    return [] if section.selects else _table(table_of_points(section), width)


def table_of_points(section: Scatter) -> Table:
    """Return the points of a scatter plot as a table without a title."""
    axes = (Column(axis.label, axis.unit) for axis in (section.x, section.y))
    rows = [(dot.label, dot.mark, dot.x, dot.y) for dot in section.dots]
    return Table("", (Column("name"), Column("", priority=2), *axes), rows, noun="point")


def _strip(section: Strip, width: int) -> list[str]:
    values = all_known(value for _, group in section.groups for value in group)
    if not values:
        return []
    low, high = min(values), max(values)
    label = max(escape.cells(escape.plain(mark.word, _LABEL)) for mark, _ in section.groups)
    room, lines = width - label - 1, list[str]()
    for mark, group in section.groups:
        counts = [0.0] * room
        for value in all_known(group):
            counts[min(room - 1, int(room * (value - low) / (high - low))) if high > low else 0] += 1
        lines.append(f"{escape.fit(mark.word, label)} {bars.heights(counts, max(counts))}")
    return [*lines, *_joined(strip_words(section), width)]


def strip_words(section: Strip) -> list[str]:
    """Describe the ends of the scale and the marked position on it."""
    at = [] if section.at is None else [f"{section.at[0]}: {words(section.at[1], section.axis.unit)}"]
    return [*axis_words(section.axis, all_known(value for _, group in section.groups for value in group)), *at]


def _heat(section: Heat, width: int) -> list[str]:
    known = all_known(value for row in section.values for value in row)
    if not known or not section.columns:
        return []
    label = min(_LABEL, max(escape.cells(escape.plain(row)) for row in section.rows))
    room, most = width - label - 1, max(known)
    lines = []
    for name, row in zip(section.rows, section.values, strict=False):
        cells = [0.0] * min(room, len(row))
        for place, value in enumerate(row):
            cell = place * len(cells) // len(row)
            cells[cell] = max(cells[cell], fmt.known(value) or 0.0)
        lines.append(f"{escape.fit(name, label)} {bars.heights(cells, most)}")
    across = ": ".join(filter(None, (section.across, f"{section.columns[0]} to {section.columns[-1]}")))
    return [*lines, *_joined([across, f"highest: {words(most, section.unit)}"], width)]


def _cards(section: Cards, width: int) -> list[str]:
    lines = []
    for place, card in enumerate(section.cards, start=1):
        number = f"{place}. " if len(section.cards) > 1 else ""
        lines += _sentences(number + ", ".join(filter(None, (f"{card.title}: {card.bound}", sure_words(card)))), width)
        for sentence in filter(None, (card.evidence, card.advice and f"Try: {card.advice}")):
            lines += [f"   {line}" for line in _sentences(sentence, width - 3)]
        for code in filter(None, (card.code, *(card.trial or ())[1:])):
            lines += [f"      {line}" for line in _code(code, width - 6)]
    return lines


def sure_words(card: Card) -> str:
    """Return a finding's confidence, or an empty string if it has none."""
    return f"{card.confidence} confidence" if card.confidence else ""


def _choice(section: Choice, width: int) -> list[str]:
    """Return the first alternative, and the names of the others."""
    (name, parts), *others = section.options.items() or [("", ())]
    blocks = [block for part in parts if (block := section_text(part, width))]
    also = f" (also: {', '.join(other for other, _ in others)})" if others else ""
    lines = _sentences(f"{name}{also}", width)
    for place, block in enumerate(blocks):
        lines += [""] * (place > 0) + block
    return lines if blocks else []


def _picture(section: Picture, width: int) -> list[str]:
    if section.text is not None:
        return section.text(width)
    lines: list[str] = []
    for part, below in zip(section.static, (*section.static[1:], None), strict=False):
        lines += [""] * bool(lines)
        if isinstance(part, Series) and isinstance(below, Series) and part.x == below.x and part.at == below.at:
            lines += [*_sentences(part.title, width), *_series(part, width, with_axis=False)]
        else:
            lines += section_text(part, width)
    return lines


_RENDERERS: dict[type, Callable[[Any, int], list[str]]] = {
    Bars: _bars,
    Effects: _effects,
    Table: _table,
    Series: _series,
    Scatter: _scatter,
    Strip: _strip,
    Heat: _heat,
    Cards: _cards,
    Code: lambda section, width: _code(section.text, width),
    Choice: _choice,
    Picture: _picture,
}
