"""What levers did: the answer, the figures, and that names are text."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import perfnb
from perfnb.draw.document import Effects, Table
from perfnb.remedies.try_levers import LeverTrials
from perfnb.remedies.verdicts import LeverTrial
from perfnb.remedies.view import trials_document
from tests.remedies.lever_samples import CODE, KEPT, TRIALS, lever_trials
from tests.samples import texts
from tests.samples.remedies import DOCUMENTS


def found(confirmed: LeverTrial | None = KEPT) -> LeverTrials:
    return lever_trials(confirmed=confirmed, name="<script>")


def test_names_in_html_are_text() -> None:
    html = found()._repr_mimebundle_()["text/html"]
    assert "<script>" not in html
    assert "no <b>" not in html
    assert html.count("<svg") == 4
    assert "Not tried: attention (no &lt;b&gt;attention&lt;/b&gt;)." in html


def test_what_is_kept_and_the_lines_for_it() -> None:
    assert found().best == ("fused_optimizer",)
    assert found().code == CODE[0]
    said = "Keep fused_optimizer: 1.30 ms saved (13 % less), confirmed on fresh pairs: "
    said += "0.870 × [0.840, 0.900]"
    assert repr(found()) == f"<perfnb.LeverTrials: <script>: {said}>"
    assert "Not tried: attention (no <b>attention</b>)." in str(found())
    untried = lever_trials(TRIALS[-1:], None, rounds=0, noise={"load_before": 5.0, "cpus": 2}, fed_ms=12.0)
    assert str(untried).splitlines()[1:3] == [
        "Nothing was tried: no <b>attention</b>",
        "step 10.0 ms · step with its batch 12.0 ms · nothing timed",
    ]
    assert "The machine was already busy (load 5.0 on 2 CPUs)." in str(untried)
    assert "step with its batch 10.0 ms · 40 rounds" in str(lever_trials(fed_ms=10.0))
    once = lever_trials([replace(TRIALS[2], unconfirmed=True)], None, rounds=9, confirms=False)
    assert (once.best, once.code) == (("fused_optimizer",), CODE[0])
    nothing = found(None)
    assert (nothing.best, nothing.code) == ((), "")
    assert "fused_optimizer: faster, but not confirmed as worth keeping" in str(nothing)


@pytest.mark.parametrize(
    ("ratio", "ends", "why_not", "goal", "is_open"),
    [
        (0.37, (0.17, 1.1), "", "time", True),
        (0.97, (0.93, 1.02), "", "time", False),
        (1.2, (0.5, 2.1), "", "time", False),
        (0.37, (0.17, 1.1), "lower precision", "time", False),
        (0.37, (0.17, 1.1), "", "memory", False),
    ],
)
def test_a_lever_that_may_save_much_is_named_as_undecided(
    ratio: float, ends: tuple[float, float], why_not: str, goal: str, is_open: bool
) -> None:
    trial = LeverTrial("workers", "inconclusive", ratio, ends, 1.0, why_not=why_not)
    said = str(lever_trials([trial], None, goal=goal))
    assert ("proven to make the step faster, but workers may: give it more time" in said) == is_open
    assert ("None of the levers that were tried" in said) == (not is_open)


def said(trials: list[LeverTrial], confirmed: LeverTrial | None = None, **figures: Any) -> tuple[str, str]:
    """Return the state and the sentence of the answer."""
    verdict = trials_document(lever_trials(trials, confirmed, **figures)).verdict
    return verdict.state, verdict.sentence


def test_a_lever_that_is_kept_for_memory_is_reported_with_what_it_saves() -> None:
    kept = LeverTrial("checkpointing", "slower", 1.25, (1.2, 1.3), -2.5, peak_bytes=2**20)
    answer = "Keep checkpointing: peak memory 0.500 × (2.00 MiB → 1.00 MiB, 50 % less), time "
    assert said([kept], kept, goal="memory", own_peak=2**21) == ("good", f"{answer}1.25 × [1.20, 1.30]")
    untimed = LeverTrial("checkpointing", "not timed", peak_bytes=2**20)
    assert said([untimed], untimed, goal="memory", own_peak=2**21) == ("good", f"{answer}not measured")


@pytest.mark.parametrize(("goal", "helps"), [("time", "makes the step faster"), ("memory", "takes less memory")])
def test_words_of_levers_that_were_not_confirmed(goal: str, helps: str) -> None:
    two = [replace(TRIALS[2], lever=name, unconfirmed=True) for name in "ab"]
    assert said([*two, TRIALS[0]], goal=goal) == (
        "open",
        f"a and b could not be confirmed within this budget: in one measurement, it {helps}",
    )
    assert said(two[:1], goal=goal, confirms=False) == (
        "open",
        f"a: {helps}, but not confirmed (confirm=False), and each tried separately",
    )
    nothing = ("none", f"None of the levers that were tried {helps} without changing its results")
    assert said(TRIALS[:1], goal=goal) == nothing
    assert said(TRIALS[2:3], goal="memory")[0] == "none"


def test_words_if_nothing_was_tried_or_timed() -> None:
    untried = [LeverTrial(name, "not tried", why_not=f"no {name}") for name in "ab"]
    assert said(untried) == ("none", "Nothing was tried")
    assert said([*untried[:1], LeverTrial("c", "not tried", why_not="no a")]) == ("none", "Nothing was tried: no a")
    untimed = [LeverTrial("a", "not timed")]
    assert said(untimed, need_s=1200, rounds=0)[1].endswith("within the budget: about 1,200 s would be enough")
    assert said(untimed, need_s=1200, rounds=1)[1].startswith("None of the levers")
    assert said(untimed, rounds=0)[1].startswith("None of the levers")


def test_levers_are_listed_by_their_ratio_or_by_their_memory() -> None:
    trials = [
        LeverTrial("a", "slower", 1.2, peak_bytes=100, saves_ms=-2.0, setup_s=0.5),
        LeverTrial("b", "faster", 0.9, peak_bytes=300, saves_ms=1.0, setup_s=0.002),
        LeverTrial("c", "not timed"),
        LeverTrial("d", "faster", 0.8, peak_bytes=50),
        LeverTrial("e", "not tried"),
    ]

    def rows_of(goal: str, own_peak: int | None) -> list[tuple[Any, ...]]:
        effects, table = trials_document(lever_trials(trials, None, goal=goal, own_peak=own_peak)).sections
        assert isinstance(effects, Effects)
        assert isinstance(table, Table)
        assert [row.label for row in effects.rows] == [row[0] for row in table.rows]
        return [tuple(row) for row in table.rows]

    by_time = rows_of("time", 200)
    assert [row[0] for row in by_time] == ["d", "b", "a", "c"]
    assert by_time[1][3:] == (1.0, 300, 1.5, 2.0, 2)
    assert by_time[2][3:] == (None, 100, 0.5, 500.0, None)  # what is slower saves nothing
    assert by_time[3][3:] == (None, None, None, None, None)
    assert [row[0] for row in rows_of("memory", 200)] == ["d", "a", "b", "c"]
    assert {row[5] for row in rows_of("time", None)} == {None}


def test_the_table_has_the_change_of_memory() -> None:
    trials = [LeverTrial("a", "same", peak_bytes=300, notes=["one", "two"], code=["x", "y"]), LeverTrial("b", "same")]
    table = lever_trials(trials, None, own_peak=200).table
    assert table.loc["a", ["peak_bytes", "peak_change_bytes", "notes", "code"]].tolist() == [
        300,
        100,
        "one; two",
        "x\ny",
    ]
    assert table.loc["b", ["peak_bytes", "peak_change_bytes"]].isna().all()
    assert lever_trials(trials, None).table["peak_change_bytes"].isna().all()


def test_what_was_not_tried_takes_a_line() -> None:
    left = [LeverTrial(f"lever_{place}", "not tried", why_not=f"reason {place}, " * 9) for place in range(20)]
    trials = lever_trials([*TRIALS, *left])
    (line,) = [line for line in str(trials).splitlines() if "ot tried" in line]
    assert line == "• Not tried: attention, lever_0, lever_1 and 18 more; see .table."
    assert "reason 7" in trials.table.loc["lever_7", "why_not"]
    assert "reason" not in str(trials)


def test_the_table_has_na_where_nothing_was_measured() -> None:
    table = found().table
    assert table.loc["attention", ["ratio", "saves_ms", "error", "setup_s", "pays_after_steps"]].isna().all()
    assert table.loc["fused_optimizer", "pays_after_steps"] == 15
    assert table["pays_after_steps"].isna().sum() == 4, "only what is faster pays"


def test_a_journal_takes_an_entry_for_each_lever_that_was_tried(tmp_path: pathlib.Path) -> None:
    trials = [
        replace(one, times_ms=tuple(10 * one.ratio + 0.01 * number for number in range(9)) if one.ratio else ())
        for one in (*TRIALS[2:], *TRIALS[:2])
    ]
    journal = perfnb.journal(tmp_path / "experiments")
    confirmed = replace(KEPT, times_ms=(8.0,) * 9)  # a single lever needs no entry for a combination
    names = journal.add(lever_trials(trials, confirmed, rounds=3), hypothesis="one of them helps")
    history = journal.history
    assert len(names) == len(history) == 4
    assert history["change"].tolist() == ["lever fused_optimizer", "lever compile", "lever threads", "lever autocast"]
    assert history["accepted"].tolist() == [True, False, False, False]
    assert history["verdict"].iloc[-1] == "slower"
    assert set(history["hypothesis"]) == {"one of them helps"}
    assert not history["regression"].any(), "a lever that is slower was only tried"
    assert "Regression" not in str(journal)
    with pytest.raises(TypeError, match="cannot be passed with trials"):
        journal.add(found(), change="mine")  # type: ignore[call-overload]


def test_a_journal_takes_an_entry_for_the_combination_that_is_kept(tmp_path: pathlib.Path) -> None:
    times = tuple(8.0 + 0.01 * number for number in range(9))
    trials = [replace(one, times_ms=times) for one in (TRIALS[2], replace(TRIALS[0], verdict="faster"))]
    both = replace(KEPT, lever="fused_optimizer and threads", times_ms=tuple(each - 1 for each in times))
    journal = perfnb.journal(tmp_path / "experiments")
    names = journal.add(lever_trials(trials, both, rounds=3))
    history = journal.history
    assert len(names) == 3
    assert history["change"].tolist()[-1] == "levers fused_optimizer and threads"
    assert history["accepted"].tolist() == [False, False, True]
    assert journal.load(names[-1]).median_ms == pytest.approx(7.04)  # type: ignore[union-attr]


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
