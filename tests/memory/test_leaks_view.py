"""What is said about leaks."""

from __future__ import annotations

import pytest

from perfnb.draw.document import Series, Table
from perfnb.memory.leaks.view import slope_words
from perfnb.stats.slope import Slope
from tests.memory.leak_samples import KEPT, LEAKS, MIB, NOISY


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_reported_only_where_it_is_the_verdict(name):
    sentence, verdict = LEAKS[name].sentence, LEAKS[name].verdict
    assert (": a leak" in sentence) == (verdict == "leak")
    assert ("No leak seen" in sentence) == (verdict == "no leak seen")


@pytest.mark.parametrize(
    ("slope", "text"),
    [
        (KEPT, "1.00 MiB [1.00, 1.00] per step"),
        (NOISY, "0 B [−700, 900] per step"),
        (Slope(-3 * MIB, -4 * MIB, 1000, 40), "−3.00 MiB [−4.00, 0.00] per step"),
        (Slope(2048, None, None, 5), "2.00 KiB per step"),
        (None, ""),
    ],
)
def test_growth_is_given_in_one_unit(slope, text):
    assert slope_words(slope) == text


def test_garbage_that_grows_is_freed_and_garbage_that_may_not_grow_waits() -> None:
    growing, waiting = (LEAKS[name]._document().verdict for name in ("garbage", "collected"))
    assert growing.sentence.endswith("while the steps run, but Python's garbage collector frees it.")
    assert growing.why == "The tensors are in reference cycles."
    assert waiting.sentence.startswith("No leak seen. Measured growth: torch's memory 573 KiB")
    assert waiting.why.startswith("After the last step, 22.9 MiB in reference cycles had not been collected")


def test_a_leak_is_reported_with_its_growth_its_owner_and_what_to_do() -> None:
    shown = LEAKS["kept"]._document()
    assert shown.verdict.sentence == "Memory grows by 1.00 MiB [1.00, 1.00] per step in a run of 130 steps: a leak."
    assert shown.verdict.why == (
        "Each step leaves memory behind, most of it allocated in encoder.layers.0 (forward) by aten::add."
    )
    assert "loss.item()" in shown.verdict.code
    assert [figure.label for figure in shown.figures] == ["torch's allocator", "process"]
    assert repr(LEAKS["kept"]) == "<perfnb.Leaks: leak, 1.00 MiB [1.00, 1.00] per step>"


def test_memory_is_drawn_from_its_lowest_level_and_suspects_are_listed() -> None:
    series, table = LEAKS["kept"]._document().sections
    assert isinstance(series, Series)
    assert isinstance(table, Table)
    assert [line.values[0] for line in series.lines] == [0, 0]
    assert series.lines[0].values[39] == 39 * MIB
    assert [row[0] for row in table.rows] == ["encoder.layers.0", "(no layer)"]
    assert table.rows[0][3] == MIB - 4096
