"""What a journal says first, and what its entries say."""

from __future__ import annotations

from typing import Any

import pytest

from perfnb.draw.as_figure import series_figure
from perfnb.draw.document import Series
from perfnb.experiments.journal_view import trends
from tests.experiments.journal_entries import DAMAGED, OTHER, TRIED, history, report_entry, shown, timing_entry

SEVERAL = tuple(timing_entry(n, 10.0 + n, name="ab"[n % 2], accepted=n == 1) for n in range(4))


def document(*entries: Any) -> Any:
    return shown(*entries, damaged=DAMAGED)


SLOWER = (report_entry(0, 10.0, 1.2, "reject"), timing_entry(1, 12.0))
LAST = "Last accepted: entry 2 (fused optimizer), 8.00 ms [7.92, 8.08]."


@pytest.mark.parametrize(
    ("entries", "state", "sentence", "why"),
    [
        ((), "none", "Nothing added yet", ""),
        (TRIED[:1], "none", "Nothing accepted yet: entries are compared with entry 1", ""),
        (TRIED[:3], "bad", "Last decision: entry 3 (half precision everywhere, and nothing else at all) was rej", LAST),
        (TRIED, "bad", "Regression: entry 5 (a new loader) takes 14 % more time than entry 2, the last accepted before "
         "it: 1.14 × [1.12, 1.15]; disturbed: the machine was busy before (load 9.0 on 8 CPUs)",
         "Last decision: entry 4 (channels last) was inconclusive: the candidate takes 1.00 × [0.99, 1.00] the "
         f"baseline's time. {LAST}"),
        (SEVERAL, "bad", "Regression: entry 4 of b takes 18 % more time than entry 2, the last accepted before it: 1.1",
         "Last accepted: entry 2 of b, 11.0 ms [10.9, 11.1]."),
        (SEVERAL[1:2], "good", "Last accepted: entry 1 of b, 11.0 ms [10.9, 11.1]", ""),
        ((TRIED[0], timing_entry(1, 12.0, environment=OTHER)), "bad",
         "Regression: entry 2 takes 20 % more time than entry 1, the first: 1.20 × [1.18, 1.22]; the environment also "
         "changed (torch 2.13.0 → 2.14.0)", ""),
        (tuple(timing_entry(n, 10.0 + n, name=name, accepted=True) for n, name in enumerate("abc")), "good",
         "Last accepted: entry 3 of c, 12.0 ms [11.9, 12.1]",
         "Last accepted: entry 1 of a, 10.0 ms [9.9, 10.1]. Last accepted: entry 2 of b, 11.0 ms [10.9, 11.1]."),
        ((TRIED[0], report_entry(1, 12.0, 1.2, "reject")), "bad",
         "Regression: the baseline of entry 2 takes 20 % more time than entry 1, the first: 1.20 × [1.18, 1.22]",
         "Last decision: entry 2 was rejected: the candidate takes 1.20 × [1.19, 1.21] the baseline's time."),
        (SLOWER, "bad", "Regression: entry 2 takes 20 % more time than the baseline of entry 1, the first: 1.20 × [",
         "Last decision: entry 1 was rejected: the candidate takes 1.20 × [1.19, 1.21] the baseline's time."),
    ],
)  # fmt: skip
def test_the_last_decision_or_a_regression_since_comes_first(
    entries: tuple[Any, ...], state: str, sentence: str, why: str
) -> None:
    verdict = document(*entries).verdict
    assert (verdict.state, verdict.why) == (state, why)
    assert verdict.sentence.startswith(sentence)


def test_a_regression_before_the_last_acceptance_is_not_a_verdict() -> None:
    entries = (TRIED[0], timing_entry(1, 12.0), timing_entry(2, 9.0, accepted=True))
    result = document(*entries)
    assert result.verdict.sentence.startswith("Last accepted: entry 3, 9.00 ms")
    assert [row[5] for row in result.sections[-1].rows] == ["accepted", "regression", "first"]


def test_a_note_says_that_entries_without_names_are_compared() -> None:
    assert any("name=" in note for note in document(*TRIED).notes)
    assert not any("name=" in note for note in document(*SEVERAL).notes)


def test_the_trend_has_both_sides_of_a_b_tests_and_a_chart_per_step() -> None:
    (trend,) = (section for section in document(*TRIED).sections if isinstance(section, Series))
    assert list(trend.at) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(trend.lines[0].values) == [10.0, 8.0, pytest.approx(4.83), 8.0, 9.1, 7.0, 3.0, None]
    assert list(trend.lines[1].values) == [None, 10.0, 8.05, 8.0, *[None] * 4]
    assert trend.levels == {"last accepted": 8.0}
    assert [section.title for section in document(*SEVERAL).sections[:-1]] == [
        *("Step time by entry: a", "Step time by entry: b"),
    ]  # fmt: skip


def test_the_figure_has_both_sides_and_every_interval() -> None:
    figure = series_figure(list(trends(history(*TRIED), 1)))

    (axes,) = figure.axes
    drawn = [line for line in axes.lines if line.get_marker() not in ("", "None", None)]
    times = sorted(float(ms) for line in drawn for ms in line.get_ydata() if ms == ms)
    assert times == pytest.approx(sorted([10.0, 10.0, 8.0, 8.05, 4.83, 8.0, 8.0, 9.1, 7.0, 3.0]))
    assert [len(spans.get_paths()) for spans in axes.collections] == [8, 8]
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["step, or candidate of an A/B test", "baseline of an A/B test", "last accepted"]
    assert [axes.get_ylim()[0] for axes in series_figure(list(trends(history(*SEVERAL), 1))).axes] == [0, 0]
    assert not series_figure(list(trends(history(), 1))).axes
