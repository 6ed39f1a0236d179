"""The data model of results. perfnb describes everything that it displays once, as data.

A view chooses the words and rows and returns a `Document`. It is not responsible for the layout: `perfnb.draw.as_text`,
`perfnb.draw.as_html` and `perfnb.draw.as_json` render every document, at any width and in any environment. Names and
sentences are passed unescaped, because the renderers escape them.

A document is checked when it is created: parts must add up to their total, an interval must contain its value, a row
must have a cell for each column, a line must have a value for each position on its axis, and every unit must be known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, TypeAlias

from perfnb import quantities as fmt
from perfnb.draw.palette import Mark

#: The units of numbers; see `words`. Any other unit that ends in ``/s`` is a rate, such as ``samples/s``.
Unit: TypeAlias = str
#: The states of a verdict: ``good`` and ``bad`` are results, ``open`` is undecided, and ``none`` means no verdict.
State = Literal["good", "bad", "open", "none"]
Interval: TypeAlias = tuple[float, float]
#: The content of a table's cell: text, a number in the column's unit, a mark with its word, or an unknown value.
Cell: TypeAlias = "str | float | int | Mark | Value | Split | None"

_WORDS: Mapping[Unit, Callable[[Any], str]] = {
    "ms": fmt.duration,
    "bytes": fmt.size,
    "share": fmt.share,
    "flops": fmt.flops,
    "count": fmt.count,
    "number": fmt.significant,
    "ratio": fmt.ratio,
    "bytes/s": lambda value: f"{fmt.size(value)}/s",
    "flops/s": lambda value: f"{fmt.flops(value)}/s",
    **{unit: functools.partial(fmt.reading, unit=unit) for unit in ("watts", "joules", "celsius", "megahertz")},
}

#: The relative tolerance between a total and the sum of its parts, because parts may be rounded.
_ADDS_UP = 0.005

#: Whether to raise an error if a document's checks fail. Otherwise, the failures become notes, because a doubtful
#: figure is no reason to lose a report.
strict = False


class DocumentError(ValueError):
    """Raised when a document contradicts itself."""


def words(value: Any, unit: Unit) -> str:
    """Format a number in its unit, or as ``n/a`` if it is unknown."""
    number = fmt.known(value)
    if number is None:
        return fmt.UNKNOWN
    if number < 0:
        return f"{fmt.MINUS}{words(-number, unit)}"
    if unit in _WORDS:
        return _WORDS[unit](value)
    return fmt.rate(value, unit.removesuffix("/s")) if unit.endswith("/s") else fmt.significant(value)


@dataclass(frozen=True)
class Value:
    """A number with an interval, or with its own unit if the rows of a table have different units."""

    number: float | None
    unit: Unit = "number"
    interval: Interval | None = None


@dataclass(frozen=True)
class Split:
    """A number in its column's unit, divided into one part for each of the column's marks."""

    number: float | None
    parts: tuple[float | None, ...]


@dataclass(frozen=True)
class Verdict:
    """The answer, as a sentence."""

    state: State
    #: A sentence that can be understood on its own: "Input-bound: removing the wait could save up to 12.3 ms per step".
    sentence: str
    #: The evidence.
    why: str = ""
    #: A recommendation.
    next: str = ""
    #: The lines of code that carry out the recommendation.
    code: str = ""
    #: ``high``, ``medium``, ``low``, or empty.
    confidence: str = ""
    #: The key of the section that contains the evidence.
    selects: str = ""


@dataclass(frozen=True)
class Figure:
    """A number in the headline."""

    label: str
    value: float | None
    unit: Unit
    interval: Interval | None = None
    #: How the number was measured, for example "median of 20 timed steps".
    basis: str = ""
    #: The individual measurements in order of execution. The live view draws them as dots.
    samples: Sequence[float] = ()


@dataclass(frozen=True)
class Part:
    """One part of a stacked bar."""

    mark: Mark
    value: float


@dataclass(frozen=True)
class Bar:
    """A stacked bar. If it is the only bar in its section, its label is empty."""

    label: str
    parts: tuple[Part, ...]
    #: The total of the parts, if it is known independently.
    total: float | None = None


@dataclass(frozen=True)
class Bars:
    """Stacked bars on the same scale, and a table of their parts."""

    title: str
    unit: Unit
    bars: tuple[Bar, ...]
    key: str = ""


@dataclass(frozen=True)
class Effect:
    """The ratio of a candidate's time or size to its baseline's. Effects are always presented in this way."""

    label: str
    #: The candidate divided by the baseline, or ``None`` if it was not measured.
    ratio: float | None
    interval: Interval | None = None
    #: ``faster``, ``slower``, ``same`` or another verdict.
    verdict: str = ""
    #: Additional information about this row.
    detail: str = ""


@dataclass(frozen=True)
class Effects:
    """Effects on the same scale, centred at 1, where the candidate and the baseline are equal."""

    title: str
    rows: tuple[Effect, ...]
    #: Ratios within this distance of 1 count as "the same".
    same_within: float | None = None
    #: What the labels refer to.
    head: str = "candidate"
    key: str = ""


@dataclass(frozen=True)
class Column:
    """A table column. Text and static HTML omit columns without known values."""

    head: str
    #: ``text`` for words, or the unit of the numbers. A cell may contain a word in place of a number.
    unit: Unit = "text"
    #: When space is short, the columns with the largest numbers are dropped first.
    priority: int = 0
    #: Whether a bar shows the column's numbers.
    bar: bool = False
    #: The meaning of the column, shown on hover.
    help: str = ""
    #: The marks of the parts, if the column's cells are `Split`.
    marks: tuple[Mark, ...] = ()
    #: Whether only the live view contains the column.
    live: bool = False


@dataclass(frozen=True)
class Budget:
    """The number of rows that text and static HTML list. The live view contains all rows."""

    text: int = 15
    html: int = 40


@dataclass(frozen=True)
class Nesting:
    """The structure that turns a table into a tree."""

    #: The row number of each row's parent, or -1 for roots. Parents come first.
    parents: Sequence[int]
    #: The weight of each row. The heaviest rows are listed first.
    weights: Sequence[float]
    #: The path, from a root downwards, that a view opens initially.
    path: Sequence[int] = ()


@dataclass(frozen=True)
class Inner:
    """Rows inside a table's rows. The live view lists them for the selected row, and merges rows with equal texts."""

    title: str
    #: The columns. Text columns come first.
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Any]]
    #: The row of the table to which each inner row belongs.
    owner: Sequence[int]
    #: The key of the section that contains the rows named in the first column.
    selects: str = ""


@dataclass(frozen=True)
class Table:
    """A table with typed columns. The first column contains the names of the rows."""

    title: str
    columns: tuple[Column, ...]
    #: The rows in display order, with the most important rows first.
    rows: Sequence[Sequence[Any]]
    nesting: Nesting | None = None
    #: The number of rows at the end that are always listed, such as totals and rows that do not belong to any branch.
    tail: int = 0
    #: A sentence for each row, which is displayed below it.
    details: Sequence[str] | None = None
    budget: Budget = Budget()
    #: What a row is called, as in "12 more layers".
    noun: str = "row"
    #: The keys of other sections, each with the text of a button that selects the row with the same name there.
    selects: Sequence[tuple[str, str]] = ()
    #: The full names of the rows, by which other sections select them, if the first column contains shorter names.
    names: Sequence[str] | None = None
    inner: Inner | None = None
    key: str = ""

    @classmethod
    def of(cls, title: str, frame: Any, columns: Mapping[Any, Column], **more: Any) -> Table:
        """Create a table from the columns of a DataFrame, by their names, with `more` fields of the table.

        A tuple of three names refers to a number and the bounds of its interval.
        """
        cells = [
            cells_of(frame[name]) if isinstance(name, str) else _values_of(frame, name, column.unit)
            for name, column in columns.items()
        ]
        return cls(title, tuple(columns.values()), list(zip(*cells, strict=True)), **more)


def cells_of(column: Any) -> list[Any]:
    """Return the cells of a DataFrame column: numbers, marks, words, and ``None`` for unknown values."""
    if column.dtype.kind not in "iuf":
        return [cell if isinstance(cell, str | Mark | Value | Split) else fmt.known(cell) for cell in column]
    numbers = column.to_numpy(dtype=float, na_value=math.nan).tolist()
    number = float if column.dtype.kind == "f" else int
    return [number(cell) if math.isfinite(cell) else None for cell in numbers]


def _values_of(frame: Any, names: tuple[str, str, str], unit: Unit) -> Iterator[Value]:
    for number, *bounds in zip(*(cells_of(frame[name]) for name in names), strict=True):
        yield Value(number, unit, fmt.known_bounds((bounds[0], bounds[1])))


@dataclass(frozen=True)
class Line:
    """A line in a chart. If it has bounds, they are drawn as a band around it."""

    mark: Mark
    values: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


@dataclass(frozen=True)
class Axis:
    """A chart's axis."""

    label: str
    unit: Unit
    log: bool = False


@dataclass(frozen=True)
class Series:
    """Lines that share their axes."""

    title: str
    x: Axis
    y: Axis
    at: Sequence[float]
    lines: tuple[Line, ...]
    #: Important values of y, by name.
    levels: Mapping[str, float] = field(default_factory=dict)
    key: str = ""
    #: Whether each line is drawn as an area on top of the previous lines.
    stacked: bool = False
    #: Events during the series, with their start and end on the axis.
    spans: Sequence[tuple[Mark, float, float]] = ()

    @property
    def drawn(self) -> tuple[Line, ...]:
        """The lines to draw. If they are stacked, these are the sums, each with its area as a band."""
        if not self.stacked:
            return self.lines
        below, lines = [0.0] * len(self.at), list[Line]()
        for line in self.lines:
            sums = [base + (fmt.known(value) or 0.0) for base, value in zip(below, line.values, strict=False)]
            lines.append(Line(line.mark, sums, below, sums))
            below = sums
        return tuple(lines)


@dataclass(frozen=True)
class Dot:
    """A point in a scatter plot."""

    label: str
    x: float
    y: float
    mark: Mark


@dataclass(frozen=True)
class Scatter:
    """Points, with the most important first, and lines, such as a roofline, which are labelled at their ends.

    Values that are 0 or negative cannot be shown on a logarithmic axis.
    """

    title: str
    x: Axis
    y: Axis
    dots: tuple[Dot, ...]
    lines: tuple[tuple[Mark, tuple[tuple[float, float], ...]], ...] = ()
    #: The key of a section where a dot selects the row of the same name. In text, that section lists the points
    #: instead.
    selects: str = ""
    key: str = ""


@dataclass(frozen=True)
class Strip:
    """Individual measurements as dots on one scale, with one row per group."""

    title: str
    axis: Axis
    groups: tuple[tuple[Mark, Sequence[float]], ...]
    #: An important value on the scale, as a label and a number.
    at: tuple[str, float] | None = None
    key: str = ""


@dataclass(frozen=True)
class Heat:
    """A matrix of numbers, with darker cells for larger numbers."""

    title: str
    unit: Unit
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    #: What the columns represent, as a label for the axis.
    across: str = ""
    key: str = ""


@dataclass(frozen=True)
class Link:
    """A link to a row in another section, with the section's key, the row's full name, and the text to display."""

    key: str
    name: str
    words: str = ""


@dataclass(frozen=True)
class Card:
    """A finding, with its cause, its cost, the evidence for it, and a recommendation."""

    title: str
    #: The maximum cost, in words.
    bound: str
    #: The maximum cost as a share of the step. It is drawn as a bar.
    share: float | None = None
    confidence: str = ""
    #: The reason for the confidence.
    why: str = ""
    evidence: str = ""
    advice: str = ""
    code: str = ""
    caveat: str = ""
    #: A way to try the recommendation, in words and as code.
    trial: tuple[str, str] | None = None
    #: The rows to which the finding applies.
    links: Sequence[Link] = ()
    #: The lever that the *Try it* button applies.
    lever: str = ""


@dataclass(frozen=True)
class Cards:
    """Findings, with the most expensive first."""

    title: str
    cards: tuple[Card, ...]
    key: str = ""


@dataclass(frozen=True)
class Code:
    """Lines of code that the reader can copy."""

    text: str
    title: str = ""
    key: str = ""


@dataclass(frozen=True)
class Choice:
    """Alternatives. The live view shows one of them at a time, and text and static HTML show the first."""

    title: str
    options: Mapping[str, tuple[Section, ...]]
    key: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture of data that no other type of section can show. It provides its own static form, data and script."""

    kind: str
    title: str
    #: Returns lines, given a width in cells.
    text: Callable[[int], list[str]] | None = None
    #: Returns safe HTML without scripts.
    html: Callable[[], str] | None = None
    #: Returns the data that the script draws, ready to be written as JSON.
    data: Callable[[], Any] | None = None
    #: A script in the package that sets ``pictures[kind]``. Without it, the live view shows the static HTML.
    script: str = ""
    #: A style sheet in the package.
    style: str = ""
    key: str = ""
    #: Sections that replace the picture if scripts do not run. If there are any, `text` and `html` are not needed.
    static: tuple[Section, ...] = ()


Section: TypeAlias = Bars | Effects | Table | Series | Scatter | Strip | Heat | Cards | Code | Choice | Picture


@dataclass(frozen=True)
class Document:
    """A result, with its kind and subject, its answer, the figures that support it, sections, and notes."""

    #: The kind of result, for example ``profile`` or ``A/B test``.
    kind: str
    #: The name of the step or object that was measured.
    subject: str = ""
    #: The device on which the step ran.
    device: str = ""
    verdict: Verdict = Verdict("none", "")
    #: The headline.
    figures: tuple[Figure, ...] = ()
    #: Other facts for the headline, such as the number of steps or the sides of a comparison.
    facts: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    #: Caveats that readers need in order to understand the figures. They are displayed last.
    notes: tuple[str, ...] = ()
    #: Parts that a view shows one at a time. Their kinds serve as titles.
    tabs: tuple[Document, ...] = ()
    #: For a tab, whether text and static HTML show it before the other tabs.
    upfront: bool = False

    @property
    def parts(self) -> tuple[Document, ...]:
        """The document and its tabs in reading order."""
        return (self, *sorted(self.tabs, key=lambda tab: not tab.upfront))

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes of the document and of its tabs, without duplicates."""
        return tuple(dict.fromkeys(chain(self.notes, *(tab.notes for tab in self.tabs))))

    def __post_init__(self) -> None:
        complaints = list(chain.from_iterable(map(_complaints, (*self.figures, *self.sections))))
        if complaints and strict:
            raise DocumentError(f"{self.kind}: {'; '.join(complaints)}")
        doubts = tuple(f"These figures disagree, which is a bug in perfnb: {complaint}." for complaint in complaints)
        object.__setattr__(self, "notes", (*doubts, *dict.fromkeys(self.notes)))


def _complaints(thing: Any) -> Iterator[str]:
    """Yield a message for each contradiction in a figure or section."""
    match thing:
        case Figure():
            yield from _of_units(thing.label, thing.unit)
            yield from _of_interval(thing.label, thing.value, thing.interval)
        case Bars():
            yield from _of_units(thing.title, thing.unit)
            for bar in thing.bars:
                parts = sum(part.value for part in bar.parts)
                if any(part.value < 0 for part in bar.parts):
                    yield f"{thing.title}: a part of {bar.label or 'the bar'} is below 0"
                if bar.total is not None and not math.isclose(parts, bar.total, rel_tol=_ADDS_UP, abs_tol=1e-9):
                    sums = f"{words(parts, thing.unit)}, not {words(bar.total, thing.unit)}"
                    yield f"{thing.title}: the parts of {bar.label or 'the bar'} add up to {sums}"
        case Effects():
            for row in thing.rows:
                yield from _of_interval(row.label, row.ratio, row.interval)
        case Table():
            yield from _of_table(thing)
        case Series() | Scatter():
            yield from _of_units(thing.title, thing.x.unit, thing.y.unit)
            if isinstance(thing, Scatter):
                return
            for line in thing.lines:
                lengths = {len(values) for values in (line.values, line.low, line.high) if values is not None}
                if lengths != {len(thing.at)}:
                    yield f"{thing.title}: {line.mark.word} has {len(line.values)} values for {len(thing.at)} places"
        case Strip():
            yield from _of_units(thing.title, thing.axis.unit)
        case Heat():
            yield from _of_units(thing.title, thing.unit)
            if len(thing.values) != len(thing.rows) or {*map(len, thing.values)} - {len(thing.columns)}:
                yield f"{thing.title}: its numbers are not {len(thing.rows)} rows of {len(thing.columns)} columns"
        case Choice():
            yield from chain.from_iterable(map(_complaints, chain.from_iterable(thing.options.values())))
        case Picture():
            yield from chain.from_iterable(map(_complaints, thing.static))


def _of_units(title: str, *units: Unit) -> Iterator[str]:
    for unit in units:
        if unit not in _WORDS and not unit.endswith("/s"):
            yield f"{title}: there is no unit {unit!r}"


def _of_interval(label: str, value: float | None, interval: Interval | None) -> Iterator[str]:
    inside, number = fmt.known_bounds(interval), fmt.known(value)
    if inside is None or number is None:
        return
    low, high = inside
    slack = 1e-6 * max(abs(number), abs(low), abs(high))  # differences up to this size may be due to rounding
    if not low - slack <= number <= high + slack:
        yield f"{label}: {number:.6g} lies outside its interval [{low:.6g}, {high:.6g}]"


def _of_table(table: Table) -> Iterator[str]:
    yield from _of_units(table.title, *(column.unit for column in table.columns if column.unit != "text"))
    for cell in chain.from_iterable(table.rows):
        if isinstance(cell, Value):
            yield from _of_units(table.title, cell.unit)
            yield from _of_interval(table.title, cell.number, cell.interval)
    if odd := next((row for row in table.rows if len(row) != len(table.columns)), None):
        yield f"{table.title}: a row has {len(odd)} cells for {len(table.columns)} columns"
    if table.nesting is not None:
        expected = len(table.rows) - table.tail
        if {len(table.nesting.parents), len(table.nesting.weights)} != {expected}:
            yield f"{table.title}: the tree has {len(table.nesting.parents)} rows, not {expected}"
        elif any(parent >= row for row, parent in enumerate(table.nesting.parents)):
            yield f"{table.title}: a row comes before its parent"
    if table.details is not None and len(table.details) != len(table.rows):
        yield f"{table.title}: {len(table.details)} details for {len(table.rows)} rows"
