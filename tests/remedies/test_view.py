"""The ladder: what it says, and that names in it are text."""

from __future__ import annotations

import pathlib
from dataclasses import replace
from typing import Any

import pytest

import perfnb
from perfnb.bench.values import Values
from perfnb.remedies.try_levers import LeverTrials
from perfnb.remedies.verdicts import LeverFigures, LeverTrial

CODE = ["for group in opt.param_groups: group['fused'] = True"]
TRIALS = [
    LeverTrial("threads", "same", 1.002, (0.99, 1.01), -0.02, Values("exact", 0.0), 0.0),
    LeverTrial("autocast", "slower", 1.4, (1.31, 1.5), -4.0, Values("reduced precision", 0.03), 0.1, "lower precision"),
    LeverTrial("fused_optimizer", "faster", 0.86, (0.83, 0.89), 1.4, Values("within noise", 2e-7), 0.02, "", CODE, 2.0),
    LeverTrial("compile", "inconclusive", 0.9, None, 1.0, Values("exact", 0.0), 21.0),
    LeverTrial("attention", "not tried", why_not="no <b>attention</b>"),
]
KEPT = LeverTrial("fused_optimizer", "faster", 0.87, (0.84, 0.9), 1.3)


def shown(
    trials: list[LeverTrial] = TRIALS, confirmed: LeverTrial | None = KEPT, name: str = "step", **figures: Any
) -> LeverTrials:
    kept = () if confirmed is None else tuple(confirmed.lever.split(" and "))
    options: dict[str, Any] = {"step_ms": 10.0, "rounds": 40, "kept": kept, "confirmed": confirmed} | figures
    return LeverTrials(LeverFigures(name, trials=trials, **options))


def found(confirmed: LeverTrial | None = KEPT) -> LeverTrials:
    return shown(confirmed=confirmed, name="<script>")


def test_the_ladder_as_text() -> None:
    text = str(found())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "Levers for <script> (step 10.0 ms, 40 rounds, every lever once in each)"
    assert lines[3] == (
        "fused_optimizer faster −14.0 % [−17.0, −11.0] within noise (2e-07) 1.40 ms n/a 20.0 ms 15 steps"
    )
    assert lines[4] == "compile inconclusive −10.0 % exact n/a 21.0 s"
    assert lines[5].startswith("threads same +0.2 % [−1.0, +1.0] exact n/a")
    assert (
        "Keep fused_optimizer: 1.30 ms (10.0 ms → 8.70 ms) saved, confirmed on fresh pairs: −13.0 % [−16.0, −10.0]."
        in " ".join(text.split())
    )
    assert text.endswith(CODE[0])
    assert max(map(len, text.splitlines())) < 160


def test_the_ladder_as_html() -> None:
    html = found()._repr_mimebundle_()["text/html"]
    assert "<script>" not in html
    assert "no <b>" not in html
    assert html.count("<svg") == 4
    assert "Not tried: attention (no &lt;b&gt;attention&lt;/b&gt;)." in html
    assert 'aria-label="faster −14.0 % [−17.0, −11.0]"' in html


def test_what_is_kept_and_the_lines_for_it() -> None:
    assert found().best == ("fused_optimizer",)
    assert found().code == CODE[0]
    said = "keep fused_optimizer: 1.30 ms (10.0 ms → 8.70 ms) saved, confirmed on fresh pairs: −13.0 % [−16.0, −10.0]"
    assert repr(found()) == f"<perfnb.LeverTrials: <script>: {said}>"
    assert "Not tried: attention (no <b>attention</b>)." in str(found())
    untried = shown(TRIALS[-1:], None, rounds=0, noise={"load_before": 5.0, "cpus": 2}, fed_ms=12.0)
    assert "Nothing was tried." in str(untried)
    about = str(untried).splitlines()[0]
    assert "(step 10.0 ms (12.0 ms with its batch), nothing timed; " in about
    assert "the machine was already busy (load 5.0 on 2 CPUs)" in about
    once = shown([replace(TRIALS[2], unconfirmed=True)], None, rounds=9, confirms=False)
    assert (once.best, once.code) == (("fused_optimizer",), CODE[0])
    assert "not confirmed (confirm=False)" in str(once)
    nothing = found(None)
    assert (nothing.best, nothing.code) == ((), "")
    assert "Nothing that was tried makes the step faster and keeps its results." in str(nothing)


def test_what_was_not_tried_takes_a_line() -> None:
    left = [LeverTrial(f"lever_{place}", "not tried", why_not=f"reason {place}, " * 9) for place in range(20)]
    trials = shown([*TRIALS, *left])
    (line,) = [line for line in str(trials).splitlines() if "ot tried" in line]
    assert line == ("Not tried: attention, lever_0, lever_1 and 18 more; .table says why.")
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
    names = journal.add(shown(trials, rounds=3), hypothesis="one of them helps")
    history = journal.history
    assert len(names) == len(history) == 4
    assert history["change"].tolist() == ["lever fused_optimizer", "lever compile", "lever threads", "lever autocast"]
    assert history["accepted"].tolist() == [True, False, False, False]
    assert history["verdict"].iloc[-1] == "slower"
    assert set(history["hypothesis"]) == {"one of them helps"}
    assert not history["regression"].any(), "a lever that is slower was only tried"
    assert "Regression" not in str(journal)
    with pytest.raises(TypeError, match="leave out change"):
        journal.add(found(), change="mine")  # type: ignore[call-overload]


def test_a_journal_takes_an_entry_for_the_combination_that_is_kept(tmp_path: pathlib.Path) -> None:
    times = tuple(8.0 + 0.01 * number for number in range(9))
    trials = [replace(one, times_ms=times) for one in (TRIALS[2], replace(TRIALS[0], verdict="faster"))]
    both = replace(KEPT, lever="fused_optimizer and threads", times_ms=tuple(each - 1 for each in times))
    journal = perfnb.journal(tmp_path / "experiments")
    names = journal.add(shown(trials, both, rounds=3))
    history = journal.history
    assert len(names) == 3
    assert history["change"].tolist()[-1] == "levers fused_optimizer and threads"
    assert history["accepted"].tolist() == [False, False, True]
    assert journal.load(names[-1]).median_ms == pytest.approx(7.04)  # type: ignore[union-attr]
