"""What a document's checks find when it is made."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from perfnb.draw import document
from perfnb.draw.as_html import document_html
from perfnb.draw.as_json import document_data
from perfnb.draw.as_text import document_text
from perfnb.draw.document import (
    Axis,
    Bar,
    Bars,
    Choice,
    Column,
    Document,
    DocumentError,
    Effect,
    Effects,
    Figure,
    Heat,
    Line,
    Nesting,
    Part,
    Series,
    Table,
    Value,
)
from perfnb.draw.palette import mark

PARTS = (Part(mark("forward"), 7.0), Part(mark("backward"), 5.0))
NAMES = (Column("layer"), Column("time", "ms"))


def table(rows: Any, **options: Any) -> dict[str, Any]:
    return {"sections": (Table("Layers", NAMES, rows, **options),)}


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "parts that miss their total": (
        {"sections": (Bars("Phases", "ms", (Bar("", PARTS, 13.0),)),)},
        "Phases: the parts of the bar add up to 12.0 ms, not 13.0 ms",
    ),
    "a part below 0": (
        {"sections": (Bars("Phases", "ms", (Bar("A", (Part(mark("loss"), -1.0),)),)),)},
        "Phases: a part of A is below 0",
    ),
    "an interval without its value": (
        {"figures": (Figure("step", 12.3, "ms", (12.4, 12.6)),)},
        "step: 12.3 lies outside its interval [12.4, 12.6]",
    ),
    "an interval that ends before it begins": (
        {"sections": (Effects("Effects", (Effect("fused", 0.5, (0.6, 0.4)),)),)},
        "fused: 0.5 lies outside its interval [0.6, 0.4]",
    ),
    "an interval in a cell": (
        table([("a", Value(3.0, "ms", (1.0, 2.0)))]),
        "Layers: 3 lies outside its interval [1, 2]",
    ),
    "an unknown unit": ({"figures": (Figure("step", 12.3, "seconds"),)}, "step: there is no unit 'seconds'"),
    "an unknown unit of an axis": (
        {"sections": (Series("Memory", Axis("t", "hours"), Axis("y", "ms"), [], ()),)},
        "Memory: there is no unit 'hours'",
    ),
    "a cell too few": (table([("a", 1.0), ("b",)]), "Layers: a row has 1 cells for 2 columns"),
    "a tree of another size": (
        table([("a", 1.0), ("b", 1.0)], nesting=Nesting([-1], [1.0])),
        "Layers: the tree has 1 rows, not 2",
    ),
    "a child before its parent": (
        table([("a", 1.0), ("b", 1.0)], nesting=Nesting([1, -1], [1.0, 1.0])),
        "Layers: a row comes before its parent",
    ),
    "a row that is its own parent": (
        table([("a", 1.0), ("b", 1.0)], nesting=Nesting([0, -1], [1.0, 1.0])),
        "Layers: a row comes before its parent",
    ),
    "a detail too few": (table([("a", 1.0)], details=[]), "Layers: 0 details for 1 rows"),
    "a line without values": (
        {"sections": (Series("Memory", Axis("t", "ms"), Axis("y", "ms"), [1.0, 2.0], (Line(mark("loss"), [1.0]),)),)},
        "Memory: loss has 1 values for 2 places",
    ),
    "a ragged matrix": (
        {"sections": (Heat("Traffic", "bytes", ["a"], ["b", "c"], [[1.0]]),)},
        "Traffic: its numbers are not 1 rows of 2 columns",
    ),
    "one inside an alternative": (
        {"sections": (Choice("By", {"time": (Bars("Phases", "ms", (Bar("", PARTS, 13.0),)),)}),)},
        "Phases: the parts of the bar add up to 12.0 ms, not 13.0 ms",
    ),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_a_contradiction_is_an_error_in_tests_and_a_note_for_users(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, complaint = CONTRADICTIONS[kind]
    with pytest.raises(DocumentError) as raised:
        Document("profile", **parts)
    assert str(raised.value) == f"profile: {complaint}"
    monkeypatch.setattr(document, "strict", False)
    shown = Document("profile", **parts, notes=("Another note.",))
    assert shown.notes == (f"These figures disagree, which is a bug in perfnb: {complaint}.", "Another note.")
    assert complaint.split(": ")[-1][:20] in " ".join(document_text(shown, 160).split())
    assert document_html(shown)
    assert document_data(shown)["notes"][1] == "Another note."


def test_rounding_and_unknown_numbers_are_no_contradiction() -> None:
    nearly = Bars("Phases", "ms", (Bar("", PARTS, 12.06), Bar("", (*PARTS, Part(mark("loss"), 0.0)), 11.95)))
    intervals = ((1.000001, 1.2), (0.8, 0.999999), (1.0, 1.0))
    figures = (*(Figure("step", 1.0, "ms", each) for each in intervals), Figure("rate", None, "/s", (1.0, 2.0)))
    notes = ("Said twice.", "Said twice.")
    assert Document("profile", figures=figures, sections=(nearly,), notes=notes).notes == ("Said twice.",)


def test_a_table_takes_the_columns_of_a_frame_with_their_intervals() -> None:
    frame = pd.DataFrame(
        {
            "name": ["a", None],
            "ms": pd.array([1.5, pd.NA], "Float64"),
            "low": [1.0, float("nan")],
            "high": [2.0, float("inf")],
            "calls": pd.array([3, pd.NA], "Int64"),
            "kind": [mark("loss"), None],
        }
    )
    columns = {
        "name": Column("name"),
        ("ms", "low", "high"): Column("time", "ms"),
        "calls": Column("calls", "count"),
        "kind": Column("kind"),
    }
    made = Table.of("Layers", frame, columns, noun="layer")
    assert made.rows == [("a", Value(1.5, "ms", (1.0, 2.0)), 3, mark("loss")), (None, Value(None, "ms"), None, None)]
    assert (made.noun, made.columns) == ("layer", tuple(columns.values()))


def test_stacked_lines_are_drawn_on_top_of_each_other() -> None:
    time, size = Axis("time", "ms"), Axis("alive", "bytes")
    lines = (Line(mark("forward"), [1.0, 2.0]), Line(mark("backward"), [3.0, None]))
    below, above = Series("Memory", time, size, [0, 1], lines, stacked=True).drawn
    assert (below.low, below.high) == ([0.0, 0.0], [1.0, 2.0])
    assert (above.low, above.high) == ([1.0, 2.0], [4.0, 2.0])
    assert Series("Memory", time, size, [0, 1], lines).drawn == lines


def test_parts_of_one_mark_are_one_entry_below_their_bar() -> None:
    parts = (Part(mark("forward"), 1.0), Part(mark("loss"), 2.0), Part(mark("forward"), 1.0))
    shown = Document("memory", sections=(Bars("Blocks", "ms", (Bar("", parts),)),))
    (words,) = (line for line in document_text(shown).splitlines() if "forward" in line)
    assert "2.00 ms   50 %" in words
    assert document_html(shown).count("forward") == 1
