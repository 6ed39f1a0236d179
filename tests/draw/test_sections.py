"""Sections whose drawings are worked out by hand, as text and as HTML."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd
import pytest

from perfnb.draw import as_html, as_text, bars, palette, svg, tables
from perfnb.draw.as_html import section_html
from perfnb.draw.as_json import plain
from perfnb.draw.as_text import document_text, scale_of, section_text
from perfnb.draw.boxes import Box, boxes_svg
from perfnb.draw.document import (
    Axis,
    Bar,
    Bars,
    Budget,
    Card,
    Cards,
    Choice,
    Code,
    Column,
    Document,
    Dot,
    Effect,
    Effects,
    Figure,
    Heat,
    Inner,
    Line,
    Link,
    Nesting,
    Part,
    Picture,
    Scatter,
    Section,
    Series,
    Split,
    Strip,
    Table,
    Verdict,
)
from perfnb.draw.palette import BLUE, mark
from perfnb.draw.tree import TreeLine

FORWARD, BACKWARD, LOSS = mark("forward"), mark("backward"), mark("loss")
TIME, COST = Axis("t", "ms"), Axis("y", "ms")


def lines_of(section: Section, width: int = 60) -> list[str]:
    return [line.rstrip() for line in section_text(section, width)]


def paths_of(html: str, colour: str) -> list[str]:
    """Return the paths of one colour, whether they are lines or areas."""
    return re.findall(rf'<path d="([^"]+)" (?:fill="none" stroke|fill)="{colour}"', html)


def dots_of(html: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="4"', html)]


def labels_of(html: str) -> list[tuple[str, str, str, str]]:
    """Return the position, anchor and words of each label."""
    return re.findall(r'<text x="([^"]+)" y="([^"]+)"[^>]* text-anchor="(\w+)">([^<]*)<', html)


def words_of(html: str) -> list[str]:
    """Return the words between the tags of a page."""
    return [words.strip() for words in re.split(r"<[^>]*>", html.replace("\u00a0", " ")) if words.strip()]


def sides_of(html: str) -> list[str]:
    """Return the alignments of the cells in each row of a table: left or right."""
    rows = (re.findall(r'<t[dh][^>]*align="(.)', row) for row in html.split("<tr>")[1:])
    return ["".join(row) for row in rows]


ONE_BAR = Bars("", "ms", (Bar("", (Part(FORWARD, 6.0), Part(BACKWARD, 2.0), Part(LOSS, 0.0))),))
TWO_BARS = Bars(
    "", "ms", (Bar("a", (Part(FORWARD, 6.0), Part(BACKWARD, 2.0))), Bar("bb", (Part(FORWARD, 4.0), Part(LOSS, 0.0))))
)


def test_a_bar_is_divided_in_proportion_to_its_parts() -> None:
    assert lines_of(ONE_BAR) == ["█" * 45 + "▓" * 15, "█ forward   6.00 ms   75 %    ▓ backward  2.00 ms   25 %"]
    html = section_html(ONE_BAR)
    assert re.findall(r'width:([\d.]+)%;background-color:([#\w]+)"', html) == [
        ("75.00", FORWARD.colour),
        ("25.00", BACKWARD.colour),
    ]
    assert words_of(html) == ["share", "forward", "6.00 ms", "75 %", "backward", "2.00 ms", "25 %"]


def test_several_bars_have_one_scale() -> None:
    assert lines_of(TWO_BARS) == [
        "a  " + "█" * 37 + "▓" * 12 + " 8.00 ms",
        "bb " + "█" * 24 + " 4.00 ms",
        "   █ forward ▓ backward",
        "───────────────────────",
        "a    6.00 ms    2.00 ms",
        "bb   4.00 ms",
    ]
    html = section_html(TWO_BARS)
    assert re.findall(r'aria-hidden="true" style="width:(\d+)px"', html) == ["240", "120"]
    assert words_of(html)[3:] == ["a", "8.00 ms", "6.00 ms", "2.00 ms", "bb", "4.00 ms", "4.00 ms"]


def test_words_are_aligned_to_the_left_and_numbers_to_the_right() -> None:
    columns = (Column("name"), Column("time", "ms"), Column("kind"), Column("calls", "count"))
    table = Table("", columns, [("a", 1.0, "b", 2)], details=["It waits."])
    assert sides_of(section_html(ONE_BAR)) == ["r", "lrr", "lrr"]  # heads without words have no side
    assert sides_of(section_html(TWO_BARS)) == ["rrr", "llrrr", "llrrr"]
    assert sides_of(section_html(EFFECTS))[:3] == ["lrl", "lrll", "l"]
    assert sides_of(section_html(table)) == ["lrlr", "lrlr", "l"]
    assert sides_of(section_html(Heat("", "ms", ["r"], ["a", "b"], [[1.0, 2.0]], "to"))) == ["lrr", "lrr"]


def test_the_shortest_bar_can_be_seen() -> None:
    html = section_html(Bars("", "ms", (Bar("a", (Part(FORWARD, 1e6),)), Bar("b", (Part(FORWARD, 1.0),)))))
    assert re.findall(r'aria-hidden="true" style="width:(\d+)px"', html) == ["240", "1"]
    assert section_html(Bars("", "ms", (Bar("a", (Part(FORWARD, 0.0),)), Bar("b", ())))) == ""


def test_cells_are_divided_without_a_rest() -> None:
    assert bars.cells_of([1, 1, 1], 10) == [3, 4, 3]
    assert bars.cells_of([3, 1], 8) == [6, 2]
    assert bars.cells_of([0, 0], 8) == [0, 0]


def test_a_cell_above_zero_is_never_empty() -> None:
    assert bars.heights([-1, 0, 0.01, 0.25, 0.5, 1, 2], 1.0) == "  ▁▂▄██"
    assert bars.heights([1.0, 2.0], 0.0) == "  "


def test_a_legend_has_as_many_columns_as_fit() -> None:
    entries = [(FORWARD, "1 ms", "50 %"), (BACKWARD, "123456789", "100.00 %"), (LOSS, "2 ms", "5 %")]
    cells = ["█ forward      1 ms   50 %", "▓ backward 123456789 100.00 %", "▪ loss         2 ms    5 %"]
    assert bars.legend(entries, 60) == cells
    short = [entries[0]] * 3
    cell = "█ forward     1 ms   50 %"
    assert bars.legend(short, 3 * 25 + 8) == [f"{cell}    {cell}    {cell}"]
    assert bars.legend(short, 3 * 25 + 7) == [f"{cell}    {cell}", cell]
    assert bars.legend(short, 25) == [cell] * 3
    assert bars.legend([], 60) == []


def test_a_box_is_wide_enough_to_be_seen() -> None:
    assert svg.box(1, 2, 3, 4) == "M1.0 2.0h3.0v4.0h-3.0z"
    assert svg.box(1, 2, 0.01, 4) == "M1.0 2.0h0.3v4.0h-0.3z"


def test_a_bar_without_a_width_is_as_wide_as_the_page() -> None:
    parts = [(FORWARD, 1.0), (BACKWARD, 3.0)]
    assert 'aria-hidden="true">' in tables.bar(parts)
    assert 'aria-hidden="true" style="width:7px">' in tables.bar(parts, 7)
    assert re.findall(r"width:([\d.]+)%", tables.bar(parts)) == ["25.00", "75.00"]


EFFECTS = Effects(
    "Times",
    (
        Effect("half", 0.5, (0.25, 1.0), "faster", "It warns."),
        Effect("four", 4.0, None, "slower"),
        Effect("eight", 8.0, (2.0, 16.0), "slower"),
        Effect("none", None),
    ),
)


def test_gains_set_the_scale_of_effects() -> None:
    assert lines_of(EFFECTS, 80) == [
        "Times",
        "half   0.500 × [0.250, 1.000]  ─────●─────            faster",
        "  It warns.",
        "four   4.00 ×                            │         ●  slower",
        "eight  8.00 × [2.00, 16.00]              │    ─────●  slower",
        "none   n/a                               │",
    ]
    place = scale_of(EFFECTS.rows)
    assert [place(ratio) for ratio in (0.1, 0.25, 0.5, 1, 2, 4, 64)] == [0, 0, 0.25, 0.5, 0.75, 1, 1]
    html = section_html(EFFECTS)
    assert dots_of(html) == [(39.5, 7), (146, 7), (146, 7)]
    assert re.findall(r'd="M([\d.]+) 7H([\d.]+)"', html) == [("4.0", "75.0"), ("146.0", "147.0"), ("110.5", "146.0")]


def test_a_scale_without_gains_reaches_the_slowest() -> None:
    rows = (Effect("two", 2.0, (1.0, 4.0)), Effect("nearly", 0.95), Effect("gone", 0.0))
    place = scale_of(rows)
    assert [place(ratio) for ratio in (0.25, 1, 2, 4)] == [0, 0.5, 0.75, 1]
    small = scale_of((Effect("a", 0.94), Effect("b", 4.0)))
    assert [small(ratio) for ratio in (0.5, 1, 2, 4)] == [0, 0.5, 1, 1]
    assert scale_of((Effect("same", 1.0),))(1.0) == 0.5
    assert dots_of(section_html(Effects("", rows[2:]))) == []


def test_a_narrow_page_has_no_scale_of_effects() -> None:
    row = Effect("x" * 40, 2.0, (1.0, 4.0), "slower")
    assert lines_of(Effects("", (row,)), 76) == [
        "x" * 12 + "…" + "x" * 11 + "  2.00 × [1.00, 4.00]  " + " " * 10 + "─────●─────" + "  slower"
    ]
    assert lines_of(Effects("", (row,)), 75) == ["x" * 40 + "  2.00 × [1.00, 4.00]  slower"]
    assert lines_of(Effects("", (row,)), 60) == ["x" * 15 + "…" + "x" * 15 + "  2.00 × [1.00, 4.00]  slower"]
    long = Effect("x" * 40, 2.0, (1.0, 4.0), "v" * 40)
    assert lines_of(Effects("", (long,))) == [f"xxxxxx…xxxxxx  2.00 × [1.00, 4.00]  {'v' * 12}…{'v' * 11}"]


def test_effects_say_what_counts_as_the_same() -> None:
    shown = Effects("Times", EFFECTS.rows[1:2], 0.02)
    assert lines_of(shown, 80)[-1] == "1 × is the baseline; ratios within 2.0 % of it are the same."
    assert "Times (1 × is the baseline; within 2.0 % of it is the same)" in words_of(section_html(shown))
    assert "baseline" not in " ".join(lines_of(EFFECTS, 80)) + section_html(EFFECTS)


COLUMNS = (Column("name"), Column("time", "ms", bar=True, help="what it took"))
ROWS: list[tuple[Any, ...]] = [("a", 4.0), ("b", 1.0), ("c", 0.0), ("d", None)]


def test_bars_behind_rows_are_drawn_to_the_largest() -> None:
    shown = Table("", COLUMNS, [*ROWS, ("e", 0.001)])
    assert lines_of(shown) == [
        "name    time",
        "─────────────────────",
        "a    4.00 ms ████████",
        "b    1.00 ms ██",
        "c       0 ms",
        "d        n/a",
        "e    1.00 µs ▏",
        "n/a: not measured, or not applicable to this row",
    ]
    html = section_html(shown)
    assert re.findall(r'style="width:(\d+)px;margin-right:(\d+)px">(▇+)<', html) == [
        ("72", "5", "▇" * 8),
        ("18", "59", "▇▇"),
        ("1", "76", "▇"),
    ]
    assert '<span title="what it took">time</span>' in html


@pytest.mark.parametrize("numbers", [(-1.0, -2.0), (0.0, 0.0), (0.0, None)])
def test_a_table_without_a_number_above_zero_has_no_bars(numbers: tuple[float | None, ...]) -> None:
    shown = Table("", COLUMNS, [("a", numbers[0]), ("b", numbers[1])])
    assert not set(" ".join(lines_of(shown))) & set("█▏▎▍▌▋▊▉")
    assert "pf-inline-bar" not in section_html(shown)


@pytest.mark.parametrize(
    ("value", "drawn"), [(0.0, ""), (0.001, "▏"), (1.0, "█"), (1.5, "█▌"), (1.125, "█▏"), (7.875, "███████▉")]
)
def test_bars_behind_rows_have_eighths_of_a_cell(value: float, drawn: str) -> None:
    line = lines_of(Table("", COLUMNS, [("a", 8.0), ("b", value)]))[3]
    assert line.partition("s")[2].strip() == drawn


def test_only_long_names_may_be_broken_across_lines() -> None:
    html = section_html(Table("", COLUMNS, [("ab", 1.0), ("x" * 24, 1.0), ("x" * 25, 1.0), (" ", 1.0)]))
    assert re.findall(r'<(th|td)[^>]*min-width:(\d+)ch"', html) == [
        ("th", "2"),
        ("th", "24"),
        ("th", "24"),
        ("td", "1"),
    ]


def test_a_divided_bar_has_the_colours_of_its_parts() -> None:
    columns = (Column("name"), Column("time", "ms", bar=True, marks=(FORWARD, BACKWARD)))
    rows = [("a", Split(4.0, (1.0, 3.0))), ("b", Split(2.0, (None, 1.0))), ("c", Split(1.0, (None, None)))]
    html = section_html(Table("", columns, rows))
    assert re.findall(r"linear-gradient\(90deg,([^)]*)\)", html) == [
        f"{BLUE} 0% 25%,{BACKWARD.colour} 25% 100%,transparent 0",
        f"{BLUE} 0% 0%,{BACKWARD.colour} 0% 50%,transparent 0",
    ]
    assert html.count("pf-inline-bar") == 3


@pytest.mark.parametrize(
    ("width", "name", "shown", "bar"),
    [(60, 43, 43, True), (60, 44, 44, False), (79, 90, 71, False), (80, 90, 63, True), (80, 63, 63, True)],
)
def test_a_wide_page_shortens_names_to_make_room_for_bars(width: int, name: int, shown: int, bar: bool) -> None:
    line = lines_of(Table("", COLUMNS, [("x" * name, 4.0)]), width)[2]
    assert (line.index(" "), line.endswith(" 4.00 ms" + " ████████" * bar)) == (shown, True)


@pytest.mark.parametrize(
    ("width", "columns", "widths"),
    [
        *[(94, [0, 1, 2, 3, 4], [40, 7, 20, 7, 16]), (93, [0, 1, 2, 3, 4], [39, 7, 20, 7, 16])],
        # The name gives way first, down to twice the width of other words.
        *[(62, [0, 1, 2, 3, 4], [22, 7, 11, 7, 11]), (61, [0, 1, 2, 3], [29, 7, 15, 7])],
        *[(51, [0, 1, 2, 3], [23, 7, 11, 7]), (50, [0, 1, 2], [27, 7, 14])],
        # A column with a priority is dropped before the name is short, and others before it is very short.
        *[(29, [0, 1, 2], [10, 7, 10]), (28, [0, 1], [20, 7]), (18, [0, 1], [10, 7]), (17, [0], [17])],
    ],
)
def test_which_columns_of_a_table_fit_and_how_wide_they_are(width: int, columns: list[int], widths: list[int]) -> None:
    numbers = (Column("calls", "ms", 1), Column("a long head here", "ms", 2))
    table = Table("", (Column("name"), Column("time", "ms"), Column("kind"), *numbers), [])
    assert as_text._fitted(table, range(5), [40, 7, 20, 7, 8], width) == (columns, widths)


@pytest.mark.parametrize(
    ("last", "width", "name", "glyphs"),
    [
        *[((), 5, 9, ""), ((False,), 12, 9, "├─ ")],
        *[((True,), 12, 99, "└ "), ((True,), 13, 99, "└─ ")],  # of a long name, ten characters are left
        *[((False, True, False), 18, 9, "│     ├─ "), ((False, True, False), 17, 9, "│   ├ ")],
        *[((False, True, False), 15, 9, "│   ├ "), ((False, True, False), 14, 9, "3: ")],
    ],
)
def test_the_depth_of_a_row_is_drawn(last: tuple[bool, ...], width: int, name: int, glyphs: str) -> None:
    assert as_text._glyphs(TreeLine(0, len(last), last), width, name) == glyphs


def test_a_table_lists_as_many_rows_as_its_budget_and_its_tail() -> None:
    rows = [*ROWS[:3], ("total", 5.0)]
    shown = Table("", COLUMNS, rows, tail=1, budget=Budget(text=1, html=2), details=["", "It waits.", "", ""])
    assert [line.split()[0] for line in lines_of(shown)[2:]] == ["a", "total", "…"]
    assert lines_of(shown)[-1] == "… 2 more rows"
    listed = words_of(section_html(shown))
    assert [word for word in listed if word in ("a", "b", "c", "total")] == ["a", "b", "total"]
    assert listed[-1] == "… 1 more row"
    assert "It waits." in listed
    whole = Table("", COLUMNS, rows, tail=1, budget=Budget(text=3, html=3), details=["", "It waits.", "", ""])
    assert "more" not in " ".join([*lines_of(whole), *words_of(section_html(whole))])
    assert lines_of(whole)[3:5] == ["b     1.00 ms █▋", "  It waits."]


def test_rows_of_a_tree_that_are_left_out_have_their_share() -> None:
    columns = (Column("name"), Column("share", "share", bar=True))
    rows = [("the whole model", 1.0), ("a", 0.5), ("b", 0.3), ("c", 0.2), ("within", 0.1)]
    nesting = Nesting([-1, 0, 0, 0, 1], [1.0, 0.5, 0.3, 0.2, 0.1])
    shown = Table("", columns, rows, nesting, budget=Budget(text=3, html=3), noun="layer")
    assert [line.rstrip("█▏▎▍▌▋▊▉ ") for line in lines_of(shown)[2:]] == [
        "the whole model 100 %",
        "├─ a +1          50 %",
        "└─ … 2 more layers, 50 %",
    ]
    html = section_html(shown)
    assert "&nbsp;" * 4 + "… 2 more layers, 50\u00a0%" in html
    assert "<em>+1</em>" in html
    deep = Table("", columns, [rows[0], ("a" * 99, 0.5), *rows[2:]], nesting, budget=Budget(text=3))
    assert lines_of(deep)[3] == f"├─ {'a' * 24}…{'a' * 23} +1  50 %"
    for column in (Column("share", "share"), Column("time", "ms", bar=True)):
        assert as_text.left_out_words(Table("", (columns[0], column), rows, noun="layer"), [1, 2]) == "2 more layers"


def test_a_line_of_a_series_reaches_to_its_next_value() -> None:
    lines = (Line(FORWARD, [1, 2, 4, None]), Line(BACKWARD, [8, 4, 2, 1]))
    spans = ((FORWARD, 10, 11), (BACKWARD, 12, 13))
    shown = Series("", TIME, COST, [10, 11, 12, 13], lines, {"cap": 9.0}, spans=spans)
    assert lines_of(shown) == [
        "forward  " + "▁" * 10 + "▂" * 11 + "▄" * 11 + " 1.00 ms to 4.00 ms",
        "backward " + "█" * 11 + "▄" * 11 + "▂" * 10 + " 1.00 ms to 8.00 ms",
        "         " + "█" * 11 + " " * 10 + "▓" * 11,
        "█ forward · ▓ backward",
        "t from 10.0 ms to 13.0 ms · cap: 9.00 ms",
    ]


def test_a_value_does_not_reach_the_cell_at_whose_start_the_next_one_begins() -> None:
    assert as_text._binned([10, 11, 12], [8.0, 1.0, 1.0], 4) == [8, 8, 1, 1]
    assert as_text._binned([10, 11, 12], [8.0, 1.0, 1.0], 5) == [8, 8, 8, 1, 1]
    assert as_text._binned([10, 10], [8.0, 1.0], 2) == [8, 1]


def test_stacked_lines_have_a_row_for_their_sum() -> None:
    shown = Series("", TIME, COST, [0, 1], (Line(FORWARD, [1, 2]), Line(BACKWARD, [3, None])), stacked=True)
    assert lines_of(shown) == [
        "forward  " + "▂" * 31 + "▄ 1.00 ms to 2.00 ms",
        "backward " + "▆" * 32 + " 3.00 ms to 3.00 ms",
        "together " + "█" * 32 + " 2.00 ms to 4.00 ms",
        "t from 0 ms to 1.00 ms",
    ]
    html = section_html(shown)
    assert paths_of(html, FORWARD.colour) == [
        "M88.0 150.0L712.0 150.0L712.0 79.0L88.0 114.5Z",
        "M88.0 114.5L712.0 79.0",
    ]
    assert paths_of(html, BACKWARD.colour) == ["M88.0 114.5L712.0 79.0L712.0 79.0L88.0 8.0Z", "M88.0 8.0L712.0 79.0"]
    assert html.count('fill-opacity="1"') == 2


def test_heights_on_a_logarithmic_axis_start_at_the_smallest_value() -> None:
    shown = Series("", TIME, Axis("y", "ms", True), [0, 1, 2], (Line(FORWARD, [1, 10, 100]),))
    assert lines_of(shown)[0] == "forward " + "▁" * 17 + "▄" * 16 + "█ 1.00 ms to 100 ms"
    same = Series("", TIME, Axis("y", "ms", True), [0, 1], (Line(FORWARD, [5, 5]),))
    assert lines_of(same)[0].count("█") == 60 - len("forward  5.00 ms to 5.00 ms")


def test_a_line_is_drawn_with_its_band_levels_and_events() -> None:
    lines = (Line(FORWARD, [1, 2, 4, None]), Line(BACKWARD, [8, 4, 2, 1], [7, 3, 1, 1], [9, 5, None, 1]))
    events = ((FORWARD, 10, 11), (LOSS, 12, 13), (LOSS, 11, 12))
    shown = Series("Memory", TIME, COST, [10, 11, 12, 13], lines, {"cap": 9.0}, spans=events)
    html = section_html(shown)
    assert paths_of(html, FORWARD.colour) == ["M88.0 134.2L296.0 118.4L504.0 86.9", "M88.0 151.0h208.0v5.0h-208.0z"]
    assert paths_of(html, BACKWARD.colour) == [
        "M88.0 39.6L296.0 102.7L504.0 134.2L712.0 134.2L712.0 134.2L296.0 71.1L88.0 8.0Z",
        "M88.0 23.8L296.0 86.9L504.0 118.4L712.0 134.2",
    ]
    assert paths_of(html, LOSS.colour) == ["M504.0 151.0h208.0v5.0h-208.0z", "M296.0 151.0h208.0v5.0h-208.0z"]
    assert 'fill-opacity="0.2"' in html
    assert '<path d="M88 8.0H720" stroke="currentColor" stroke-dasharray' in html
    assert re.findall(r'aria-label="([^"]*)"', html.replace("\u00a0", " ")) == [
        "forward: 1.00 ms to 4.00 ms; backward: 1.00 ms to 8.00 ms; t from 10.0 ms to 13.0 ms; cap: 9.00 ms"
    ]
    assert words_of(html)[:7] == [
        *("Memory", "forward: 1.00 ms to 4.00 ms", "backward: 1.00 ms to 8.00 ms"),
        *("Meanwhile:", "forward", "loss", "10 ms"),
    ]
    assert "Meanwhile" not in section_html(Series("Memory", TIME, COST, [0, 1, 2, 3], lines))


def test_the_words_of_a_level_lie_above_it_unless_it_is_at_the_top() -> None:
    values = (Line(FORWARD, [100.0, 100.0]),)
    html = section_html(Series("", TIME, COST, [0, 1], values, {"half": 50.0, "most": 100.0}))
    assert [label[:3] for label in labels_of(html) if label[3] in ("half", "most")] == [
        ("92", "76", "start"),
        ("92", "20", "start"),
    ]


@pytest.mark.parametrize(
    ("axis", "values", "ticks", "places"),
    [
        (Axis("x", "ms"), (0, 10), {"0 ms": 100, "10 ms": 200}, {-1: 100, 5: 150, 11: 200}),
        (Axis("x", "ms"), (5, 5), {"5 ms": 150}, {0: 150, 9: 150}),
        (Axis("x", "ms"), (), {}, {1: 150}),
        (Axis("x", "ms", True), (0,), {}, {1: 150}),
        (
            Axis("x", "ms", True),
            (0, 1, 1000),
            {"1 ms": 103.125, "10 ms": 134.375, "100 ms": 165.625, "1 s": 196.875},
            {0: 100, -1: 100, 1: 103.125, 1000: 196.875, 1e6: 200},
        ),
        (Axis("x", "ms", True), (2, 30), {"2 ms": 107.267, "30 ms": 192.733}, {10: 158.061}),
        (Axis("x", "ms", True), (2, 300), {"10 ms": 133.625, "100 ms": 175.711}, {2: 104.209}),
        (Axis("x", "bytes", True), (1, 1000), {"1 B": 103.125, "1,000 B": 196.875}, {10: 134.375}),
    ],
)
def test_an_axis_has_ticks_at_its_ends_or_at_powers_of_ten(
    axis: Axis, values: tuple[float, ...], ticks: dict[str, float], places: dict[float, float]
) -> None:
    place, found = as_html._scale(axis, values, 100, 200)
    assert {word: at for at, word in found} == pytest.approx(ticks, abs=1e-3)
    assert {value: place(value) for value in places} == pytest.approx(places, abs=0.01)


def test_the_last_tick_of_an_axis_ends_at_it() -> None:
    html = section_html(Series("", TIME, COST, [0, 10], (Line(FORWARD, [5, 2]),)))
    assert labels_of(html) == [
        ("88", "165", "middle", "0 ms"),
        ("712", "165", "end", "10 ms"),
        ("84", "154", "end", "0 ms"),
        ("84", "12", "end", "5 ms"),
        ("404", "181", "middle", "t → · ↑ y"),
    ]
    assert re.findall(r'd="(M[^"]+)" stroke="currentColor" stroke-opacity=".12"', html) == [
        *("M88.0 4V150", "M712.0 4V150", "M88 150.0H720", "M88 8.0H720")
    ]


def test_dots_are_placed_between_the_ends_of_both_axes() -> None:
    dots = (Dot("a", 1, 1, FORWARD), Dot("b", 3, 2, BACKWARD))
    html = section_html(Scatter("Points", TIME, COST, dots))
    assert dots_of(html) == [(88, 260), (712, 8)]
    assert labels_of(html)[-2:] == [("96", "264", "start", "a"), ("704", "12", "end", "b")]
    assert words_of(html)[-8:] == ["a", "forward", "1.00 ms", "1.00 ms", "b", "backward", "3.00 ms", "2.00 ms"]
    assert "<caption>" not in html


def test_a_line_of_a_scatter_plot_belongs_to_its_scale() -> None:
    dots = (Dot("a", 1, 1, FORWARD), Dot("b", 3, 2, BACKWARD))
    html = section_html(Scatter("", TIME, COST, dots, ((LOSS, ((1, 1), (5, 5))),), selects="rows"))
    assert dots_of(html) == [(88, 260), (400, 197)]
    assert paths_of(html, LOSS.colour) == ["M88.0 260.0L712.0 8.0"]
    assert ("712", "3", "end", "loss") in labels_of(html)
    assert "<table>" not in html
    assert section_text(Scatter("", TIME, COST, dots, selects="rows"), 60) == []
    assert len(section_text(Scatter("", TIME, COST, dots), 60)) == 4


def test_a_single_dot_is_only_listed() -> None:
    one = Scatter("Points", TIME, COST, (Dot("a", 1, 1, FORWARD),))
    assert "<svg" not in section_html(one)
    assert "<caption>Points</caption>" in section_html(one)
    log = Axis("t", "ms", True)
    dots = (Dot("a", 1, 1, FORWARD), Dot("b", 0, 2, FORWARD), Dot("c", float("nan"), 2, FORWARD))
    assert "<svg" not in section_html(Scatter("", log, COST, dots))
    assert "<svg" not in section_html(Scatter("", COST, log, tuple(Dot(d.label, d.y, d.x, d.mark) for d in dots)))
    assert dots_of(section_html(Scatter("", TIME, COST, dots))) == [(712, 260), (88, 8)]


def test_names_of_dots_do_not_overlap() -> None:
    near = (Dot("first", 0.0, 0.0, FORWARD), Dot("near", 0.1, 0.0, FORWARD), Dot("far", 10.0, 10.0, FORWARD))
    named = [label[3] for label in labels_of(section_html(Scatter("", TIME, COST, near)))]
    assert named[-2:] == ["first", "far"]
    dots = [Dot("abc", 1, 1, FORWARD)] * 4

    def names_at(*places: tuple[float, float]) -> int:
        return len(list(as_html._names_of(dots[: len(places)], places)))

    anchors = [label[2] for label in labels_of("".join(as_html._names_of(dots[:2], [(503, 20), (505, 200)])))]
    assert anchors == ["start", "end"]
    assert names_at((100, 100), (269.9, 112.9)) == 1
    assert names_at((100, 100), (270, 100)) == 2
    assert names_at((100, 100), (100, 113)) == 2
    assert names_at((100, 100), (100, 87)) == 2
    assert names_at((100, 100), (269, 100), (439, 100)) == 2


def test_only_the_first_dots_have_names() -> None:
    dots = [Dot(str(place), 1, 1, FORWARD) for place in range(7)]
    named = as_html._names_of(dots, [(100.0, 20.0 * place) for place in range(7)])
    assert [label[3] for label in labels_of("".join(named))] == ["0", "1", "2", "3", "4"]


def test_measurements_are_dots_in_the_row_of_their_group() -> None:
    shown = Strip("", Axis("r", "ratio"), ((FORWARD, [1.0, 2.0, 2.0]), (BACKWARD, [3.0])), ("same", 1.5))
    assert lines_of(shown) == [
        "forward  ▄" + " " * 24 + "█",
        "backward " + " " * 50 + "█",
        "r from 1.00 × to 3.00 × · same: 1.50 ×",
    ]
    html = section_html(shown)
    assert dots_of(html) == [(88, 39.5), (400, 39.5), (400, 39.5), (712, 110.5)]
    assert re.findall(r'd="M([\d.]+) 4V150" stroke="currentColor" stroke-dasharray', html) == ["244.0"]


def test_a_strip_of_equal_measurements_is_one_cell() -> None:
    assert lines_of(Strip("", Axis("r", "ratio"), ((FORWARD, [1.0, 1.0]),))) == ["forward █", "r from 1.00 × to 1.00 ×"]
    unmarked = section_html(Strip("", Axis("r", "ratio"), ((FORWARD, [1.0, 2.0]),)))
    assert "stroke-dasharray" not in unmarked


def test_a_value_of_a_strip_beyond_all_measurements_widens_its_axis() -> None:
    html = section_html(Strip("", Axis("r", "ratio"), ((FORWARD, [1.0, 2.0]),), ("limit", 5.0)))
    assert dots_of(html) == [(88, 75), (244, 75)]


def test_a_heat_map_is_as_intense_as_its_numbers_are_large() -> None:
    shown = Heat("", "ms", ["r", "qq"], ["a", "b"], [[1.0, 8.0], [None, 4.0]], "to")
    assert lines_of(shown) == ["r  ▁█", "qq  ▄", "to: a to b · highest: 8.00 ms"]
    html = section_html(shown)
    assert re.findall(rf"color-mix\(in srgb,{BLUE} (\d+)%,transparent\)", html) == ["8", "60", "0", "30"]
    assert words_of(html) == ["to", "a", "b", "r", "1.00 ms", "8.00 ms", "qq", "n/a", "4.00 ms"]


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_heat_map_without_a_number_above_zero_has_no_colour(value: float) -> None:
    html = section_html(Heat("", "ms", ["r"], ["a", "b"], [[value, value]]))
    assert re.findall(r" (\d+)%,transparent", html) == ["0", "0"]


def test_findings_are_numbered_if_there_are_several() -> None:
    first = Card("wait", "2 ms", evidence="e", advice="a", code="c()", trial=("Try it:", "t()"), confidence="high")
    second = Card("copy", "1 ms")
    assert lines_of(Cards("", (first, second))) == [
        "1. wait: 2 ms, high confidence",
        *("   e", "   Try: a", "      c()", "      t()"),
        "2. copy: 1 ms",
    ]
    assert lines_of(Cards("", (second,))) == ["copy: 1 ms"]
    assert words_of(section_html(Cards("", (second,)))) == ["copy", ": 1 ms"]


@pytest.mark.parametrize(
    ("caveat", "words", "said"),
    [
        ("Once.", "conv", ["Caveat: Once. About:", "conv", "."]),
        ("Once.", "", ["Caveat: Once."]),
        ("", "conv", ["About:", "conv", "."]),
        ("", "", []),
    ],
)
def test_a_finding_ends_with_its_caveat_and_its_rows(caveat: str, words: str, said: list[str]) -> None:
    links = (Link("layers", "model.conv", words),) if words else ()
    html = section_html(Cards("", (Card("copy", "1 ms", caveat=caveat, links=links),)))
    assert words_of(html)[2:] == said


def test_the_first_alternative_is_open() -> None:
    shown = Choice("", {"a": (Code("x"), Code("y")), "b": (Code("z"),), "c": ()})
    assert lines_of(shown) == ["a (also: b, c)", "x", "", "y"]
    html = section_html(shown)
    assert re.findall(r"<details( open)?><summary>(\w)<", html) == [(" open", "a"), ("", "b")]
    assert lines_of(Choice("", {"a": (Code("x"),)})) == ["a", "x"]
    assert lines_of(Choice("", {"a": (), "b": (Code("x"),)})) == []


def test_charts_of_a_picture_with_one_axis_describe_it_once() -> None:
    chart = Series("Memory", TIME, COST, [0, 1], (Line(FORWARD, [1, 2]),))
    later = Series("Memory", TIME, COST, [0, 2], (Line(FORWARD, [1, 2]),))
    other = Series("Memory", Axis("u", "ms"), COST, [0, 1], (Line(FORWARD, [1, 2]),))

    def described(*parts: Section) -> list[str]:
        return [line for line in lines_of(Picture("flame", "", static=parts)) if " from " in line]

    assert described(chart, chart) == ["t from 0 ms to 1.00 ms"]
    (line, axis), drawn = lines_of(chart)[1:], lines_of(Picture("flame", "", static=(chart, later)))
    assert (axis, drawn.count(line)) == ("t from 0 ms to 1.00 ms", 2)
    twice = lines_of(Picture("flame", "", static=(chart, chart)))
    assert (twice.count("Memory"), twice.count(line)) == (2, 2)
    assert described(chart, later) == ["t from 0 ms to 1.00 ms", "t from 0 ms to 2.00 ms"]
    assert described(chart, other) == ["t from 0 ms to 1.00 ms", "u from 0 ms to 1.00 ms"]
    assert described(chart, Code("x"), chart) == ["t from 0 ms to 1.00 ms"] * 2
    assert lines_of(Picture("flame", "", static=(Code("x"), Code("y")))) == ["x", "", "y"]


def test_names_of_columns_that_do_not_fit_are_listed() -> None:
    columns = (Column("name"), Column("dtype", priority=1), *(Column(f"time {place}", "ms") for place in range(8)))
    (line,) = (line for line in lines_of(Table("", columns, [("a", "float", *[1.5] * 8)])) if "Not shown" in line)
    assert line == "Not shown at this width: dtype, time 7."


def test_long_and_deep_code_is_broken_below_its_indentation() -> None:
    assert as_text._code("    " + "x" * 70 + "\n" + " " * 40 + "y", 60) == [
        *("    " + "x" * 56, "    " + "x" * 14, " " * 30 + "y")
    ]


def test_numbers_in_a_column_of_words_are_short() -> None:
    assert [as_text.cell_words(cell, "text") for cell in (3, 2.5, None, math.nan)] == ["3", "2.5", "", ""]


def test_facts_are_not_broken_if_they_fit_into_a_line() -> None:
    facts = ("a" * 30, "b" * 27, "c" * 30, "d" * 28)
    shown = document_text(Document("profile", facts=facts), 60).splitlines()
    assert shown[1:] == [f"{'a' * 30} · {'b' * 27}", "c" * 30, "d" * 28]


def test_a_verdict_has_its_reasons_below_it() -> None:
    verdict = Verdict("open", "It waits.", "It was measured.", "Use workers.", confidence="low")
    assert document_text(Document("profile", verdict=verdict)).splitlines()[1:] == [
        *("It waits (low confidence)", "Why   It was measured.", "Next  Use workers.")
    ]
    plain = document_text(Document("profile", verdict=Verdict("good", "It waits.", next="Use workers.")))
    assert plain.splitlines()[1:] == ["It waits.", "Next  Use workers."]


@pytest.mark.parametrize(
    ("width", "name", "shown"),
    [
        (29.2, "abcdefgh", "ab…h"),
        (29.1, "abcdefgh", None),
        (23.4, "abc", "abc"),
        (23.3, "abc", None),
        (200.0, "", ""),
        (10.0, "", None),
    ],
)
def test_a_box_has_its_name_if_there_is_room(width: float, name: str, shown: str | None) -> None:
    html = boxes_svg([Box(1.0, 30.0, width, "#ffffff", name)])
    found = re.findall(r'<text x="4.0" y="40.5">([^<]*)</text>', html)
    assert found == ([] if shown is None else [shown])


def test_boxes_of_a_colour_are_one_path_with_readable_names() -> None:
    boxes = [Box(0, 0, 50.6, "#ffffff", "a"), Box(60, 15, 0.5, "#000000", "b"), Box(70, 0, 50.6, "#ffffff", "c")]
    html = boxes_svg([*boxes, Box(0, 30, 50.6, "#000000", "d")])
    assert re.findall(r'<path d="([^"]*)" fill="([^"]*)"/>', html) == [
        ("M0.0 0h50.0v14h-50.0zM70.0 0h50.0v14h-50.0z", "#ffffff"),
        ("M60.0 15h0.4v14h-0.4zM0.0 30h50.0v14h-50.0z", "#000000"),
    ]
    assert re.findall(r'fill="(#\w+)">((?:<text[^>]*>\w</text>)+)', html) == [
        ("#000", '<text x="3.0" y="10.5">a</text><text x="73.0" y="10.5">c</text>'),
        ("#fff", '<text x="3.0" y="40.5">d</text>'),
    ]


@pytest.mark.parametrize(
    ("colour", "ink"), [("#ff0000", "#fff"), ("#00ff00", "#000"), ("#0000ff", "#fff"), ("#ff4000", "#fff")]
)
def test_names_contrast_with_their_boxes(colour: str, ink: str) -> None:
    assert f'fill="{ink}">' in boxes_svg([Box(0, 0, 50, colour, "a")])


def test_a_figure_draws_the_lines_with_their_intervals_and_levels() -> None:
    from perfnb.draw.as_figure import series_figure

    lines = (
        Line(FORWARD, [1.0, None, 3.0], [0.5, None, 2.5], [1.5, None, 3.5]),
        Line(BACKWARD, [2.0, 2.0, 2.0]),
    )
    chart = Series("Cost", Axis("entry", "count"), Axis("time", "ms"), [1, 2, 3], lines, {"accepted": 4.0})
    memory = Series("Memory", TIME, Axis("held", "bytes"), [0, 1], (Line(FORWARD, [0.0, 9.0 * 2**30]),))

    figure: Any = series_figure([chart, memory, chart], across=2)

    assert len(figure.axes) == 3
    assert figure.get_size_inches().tolist() == pytest.approx([8.8, 4.2])
    axes, of_memory = figure.axes[:2]
    first, second, level = axes.lines
    assert [first.get_xdata().tolist(), second.get_ydata().tolist()] == [[1, 2, 3], [2.0, 2.0, 2.0]]
    assert first.get_ydata().tolist() == pytest.approx([1.0, math.nan, 3.0], nan_ok=True)
    assert [first.get_color(), second.get_color()] == [FORWARD.colour, BACKWARD.colour]
    assert first.get_linestyle() != second.get_linestyle()
    (bars,) = axes.collections
    assert [bar[:, 1].tolist() for bar in bars.get_segments() if bar.size] == [[0.5, 1.5], [2.5, 3.5]]
    assert set(level.get_ydata()) == {4.0}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [FORWARD.word, BACKWARD.word, "accepted"]
    assert (axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()) == ("Cost", "entry", "time")
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] > 4.0
    assert axes.yaxis.get_major_formatter()(2000.0, 0) == "2 s"
    assert all(tick == round(tick) for tick in axes.get_xticks())
    assert [tick % 2**29 for tick in of_memory.get_yticks()] == [0.0] * len(of_memory.get_yticks())
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_figure_of_nothing_says_so() -> None:
    from perfnb.draw.as_figure import series_figure

    figure = series_figure([])
    assert ([text.get_text() for text in figure.texts], figure.axes) == (["Nothing to draw."], [])
    assert type(figure).__name__ == "Figure"
    assert figure.get_size_inches()[1] == 1.0


def test_marks_of_unknown_names_look_like_other_but_keep_their_names() -> None:
    for of, known in ((palette.mark, palette.MARKS), (palette.category, palette.CATEGORIES)):
        assert [of(name) for name in known] == list(known.values())
        assert of("mine") == palette.Mark("mine", palette.GREY, "·", "none")
    marks = [palette.line(place, "word") for place in range(palette.LINES + 2)]
    assert len({mark.colour for mark in marks}) == palette.LINES
    assert marks[palette.LINES :] == marks[:2]


@pytest.mark.parametrize(("y", "label"), [(40.0, 37.0), (15.1, 12.1), (15.0, 27.0), (3.04, 15.0)])
def test_a_level_is_named_above_its_line_if_there_is_room(y: float, label: float) -> None:
    drawn = as_html._level("cap", y)
    assert f"M{as_html._LEFT} {y:.1f}H" in drawn
    assert drawn.endswith(svg.label(as_html._LEFT + 4, label, "start", "cap"))


def test_tabs_follow_the_document_with_those_that_are_upfront_first() -> None:
    tabs = (
        Document("memory", sections=(Code("y"), Code("z"))),
        Document("empty"),
        Document("only figures", figures=(Figure("peak", 2.0, "ms"),)),
        Document("verdict", verdict=Verdict("good", "Yes"), upfront=True, sections=(Code("v", "Title"),)),
    )
    shown = Document("profile", "net", sections=(Code("x"),), tabs=tabs, notes=("A note.",))
    assert document_text(shown, 60).split("\n\n") == [
        *("perfnb · profile · net", "x", "Verdict\nYes", "Title\nv", "Memory\ny", "z"),
        *("Only figures\npeak 2.00 ms", "Notes\n• A note."),
    ]
    assert document_text(Document("empty")) == "perfnb · empty"
    heads = re.findall(r"<strong>(.*?)</strong>", as_html.document_html(shown))
    assert heads == [
        "profile",
        "Verdict",
        '<span aria-hidden="true">✓</span> Yes',
        "Title",
        "Memory",
        "Only figures",
        "Notes",
    ]
    assert "<strong>empty</strong>" in as_html.document_html(Document("empty"))


def test_rows_inside_rows_share_their_texts_and_have_six_digits() -> None:
    columns, rows = (Column("layer"), Column("ms", "ms")), [("a", 1.23456789), ("b", 2), ("a", None)]
    data = plain(Inner("Layers", columns, rows, [0, 0, 1]))
    assert (data["rows"], data["names"], data["owner"]) == ([[0, 1.23457], [1, 2], [0, None]], ["a", "b"], [0, 0, 1])
    assert plain(pd.NA) is None


@pytest.mark.parametrize(("script", "html", "still"), [("", "<p>", "<p>"), ("a.js", "<p>", ""), ("", None, "")])
def test_only_a_picture_without_a_script_is_sent_as_html(script: str, html: str | None, still: str) -> None:
    data = plain(Picture("kind", "", html=None if html is None else lambda: html, data=lambda: [1], script=script))
    assert (data["still"], data["data"]) == (still, [1])
