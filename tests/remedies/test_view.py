"""What levers did: the answer, the figures, and that names are text."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import replace

import pytest

import perfnb
from perfnb.remedies.try_levers import LeverTrials
from perfnb.remedies.verdicts import LeverTrial
from tests.remedies.lever_samples import CODE, KEPT, TRIALS, lever_trials
from tests.samples import texts
from tests.samples.remedies import DOCUMENTS


def found(confirmed: LeverTrial | None = KEPT) -> LeverTrials:
    return lever_trials(confirmed=confirmed, name="<script>")


def test_effects_and_what_else_a_lever_changes() -> None:
    lines = [" ".join(line.split()) for line in str(found()).splitlines()]
    assert lines[:2] == [
        "perfnb · levers · <script>",
        "Keep fused_optimizer: 1.30 ms saved (13 % less), confirmed on fresh pairs: 0.870 × [0.840, 0.900]",
    ]
    assert lines[2:4] == [CODE[0], "step 10.0 ms · 40 rounds, each with every lever once"]
    effects = lines[lines.index("Time of a step with each lever, against the baseline") :][1:6]
    assert effects[0].startswith("fused_optimizer 0.860 × [0.830, 0.890] ")
    assert effects[0].endswith(" faster")
    assert effects[1].startswith("compile 0.900 × ")
    assert effects[2].startswith("threads 1.00 × [0.99, 1.01] ")
    assert effects[4] == "lower precision", "what autocast warns of, below its row"
    assert "fused_optimizer within noise 2.00e-07 1.40 ms 20.0 ms 15" in lines
    assert "compile exact 0 n/a 21.0 s n/a" in lines


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
    assert "but not confirmed (confirm=False)" in str(once)
    nothing = found(None)
    assert (nothing.best, nothing.code) == ((), "")
    assert "fused_optimizer: faster, but not confirmed as worth keeping" in str(nothing)
    slower = lever_trials([trial for trial in TRIALS if trial.verdict != "faster"], None)
    assert "None of the levers that were tried makes the step faster without changing its results" in str(slower)


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
    names = journal.add(lever_trials(trials, rounds=3), hypothesis="one of them helps")
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
