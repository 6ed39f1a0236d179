"""A journal as text and as HTML. Golden texts: ``pytest --overwrite-golden``."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
import pytest

from perfnb.draw import escape
from perfnb.experiments.journal_files import JournalEntry
from perfnb.experiments.journal_table import journal_history
from perfnb.experiments.journal_view import MOST_ROWS, journal_figure, journal_html, journal_text
from tests.experiments.journal_entries import ENVIRONMENT, report_entry, timing_entry
from tests.summaries import HOSTILE

OTHER = {**ENVIRONMENT, "torch": "2.14.0"}
ELSEWHERE = {**ENVIRONMENT, "processor": "Another", "cpus": 2}
DAMAGED = {f"2026-{n}": "Input data was truncated" for n in range(6)}


def history(*entries: JournalEntry) -> pd.DataFrame:
    return journal_history({f"e{number}": entry for number, entry in enumerate(entries, start=1)})


TRIED = (
    timing_entry(0, 10.0, hypothesis="where we begin"),
    report_entry(2, 10.0, 0.8, "accept", change="fused optimizer"),
    report_entry(20, 8.05, 0.6, "reject", change="half precision everywhere, and nothing else at all"),
    report_entry(22, 8.0, 1.0, "inconclusive", change="channels last"),
    timing_entry(45, 9.1, change="a new loader", disturbed="the machine was busy before (load 9.0 on 8 CPUs)"),
    timing_entry(46, 7.0, change="no logging", environment=OTHER),
    timing_entry(47, 3.0, environment=ELSEWHERE),
    timing_entry(48, median_ms=None, ci_ms=None),
)
EXAMPLES = {
    "empty": history(),
    "one": history(TRIED[0]),
    "tried": history(*TRIED),
    "several": history(*(timing_entry(n, 10.0 + n, name="ab"[n % 2], accepted=n == 1) for n in range(4))),
    "many": history(*(timing_entry(n, 10.0 * 1.01**n, accepted=n % 9 == 0) for n in range(100))),
    "without times": history(*TRIED[-1:]),
}


def test_golden(golden: Callable[[str, str], None]) -> None:
    texts = (f"== {name}\n{journal_text(example, {}, 'experiments')}\n" for name, example in EXAMPLES.items())
    golden("journal.txt", "\n".join([*texts, journal_text(EXAMPLES["one"], DAMAGED, "experiments")]))


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_asked(name: str, width: int) -> None:
    for line in journal_text(EXAMPLES[name], DAMAGED, "x" * 300, width).splitlines():
        assert escape.cells(line) <= width, line


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_page_has_a_chart_and_no_script(name: str) -> None:
    page = journal_html(EXAMPLES[name], DAMAGED, "experiments")

    assert ("<img alt=" in page) == (name != "empty")
    assert page.count("<tr>") == (0 if name == "empty" else 1 + min(MOST_ROWS, len(EXAMPLES[name])))
    assert not re.search(r"<script|https?:|on(load|error)=", page)
    assert "2 more entries are damaged" in page


def test_the_chart_shows_every_interval_and_says_what_is_slower() -> None:
    figure = journal_figure(EXAMPLES["tried"])

    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["regression"]
    drawn = [line for line in axes.lines if len(line.get_xdata())]
    times = sorted(float(line.get_ydata()[0]) for line in drawn)
    assert times == sorted([10.0, 10.0, 8.0, 8.05, 4.83, 8.0, 8.0, 9.1, 9.1, 7.0, 3.0])  # a ring around one
    assert len(figure.legends[0].get_texts()) == 7
    assert [axes.get_ylim()[0] for axes in journal_figure(EXAMPLES["several"]).axes] == [0, 0]


def test_what_was_never_accepted_is_not_called_so() -> None:
    text = journal_text(history(report_entry(0, 10.0, 1.2, "reject"), timing_entry(1, 12.0)), {}, "experiments")

    assert "Nothing accepted yet; the others are compared with the baseline of entry 1." in text
    assert "× the time of the baseline of entry 1." in " ".join(text.split())
    assert "last accepted before it" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name: str) -> None:
    entries = [
        timing_entry(0, change=name, hypothesis=name, name=name),
        report_entry(1, 20.0, 0.5, "accept", change=name, name=name, disturbed=name),
        timing_entry(2, 20.0, change=name, name=name, environment={**ENVIRONMENT, "torch": name, "host": name}),
    ]
    example = history(*entries)

    page = journal_html(example, {name: name}, name)
    assert not re.search(r"<(script|svg|img(?! alt=)|b>|iframe)|on(load|error)=[^&]*>", page)
    assert "\x1b" not in journal_text(example, {name: name}, name)
