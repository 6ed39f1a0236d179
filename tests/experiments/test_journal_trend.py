"""Trends compare like with like, find what was planted, and name what else changed there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.experiments.journal_index import SavedEntry, of_added
from perfnb.experiments.journal_table import entry_table
from perfnb.experiments.journal_trend import CHANGES, LIKE, _also_changed, _compared, trend_changes, trend_rows
from perfnb.experiments.journal_view import trend_document
from perfnb.recording.outcome import Outcome
from tests.experiments.journal_entries import shown, timing_entry

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def entry(place: int, ms: float = 10.0, environment: dict[str, Any] | None = None, **facts: Any) -> SavedEntry:
    known = {
        "name": "train",
        "host": "lab",
        "torch": "2.13.0",
        "device": "A GPU",
        "batch_size": 32,
        "peak_bytes": 1 << 30,
    } | facts
    at = BEGIN + timedelta(hours=place)
    outcome = Outcome(at=at, step_ms=ms, step_ci_ms=(0.99 * ms, 1.01 * ms), **known)
    return SavedEntry(kind="profile", at=at, outcome=outcome, environment=environment or {"threads": 4})


def noisy(count: int, seed: int = 1, ms: float = 10.0) -> list[float]:
    return (ms * np.random.default_rng(seed).lognormal(0, 0.005, count)).tolist()


def trend(
    entries: list[SavedEntry], figure: str = "step_ms", across: tuple[str, ...] = (), equal_within: float = 0.02
) -> tuple[pd.DataFrame, pd.DataFrame]:
    named = {f"e{number}": one for number, one in enumerate(entries, start=1)}
    rows = trend_rows(entry_table(named), named, figure, across)
    changes, levels = trend_changes(rows, named, figure, equal_within)
    return rows.assign(level=levels), changes


def test_a_planted_change_is_found_with_what_changed_there() -> None:
    times = noisy(60)
    entries = [
        entry(
            place,
            ms * (1.05 if place >= 40 else 1),
            {"threads": 4 if place < 40 else 8, "python": "3.12"},
            commit=f"{place // 10:x}" * 40,
        )
        for place, ms in enumerate(times)
    ]
    rows, changes = trend(entries)

    (change,) = changes.to_dict("records")
    assert (change["entry"], change["number"], change["verdict"], change["latest"]) == ("e41", 41, "slower", True)
    assert change["ratio_ci_low"] < 1.05 < change["ratio_ci_high"]
    assert change["before"] == pytest.approx(10.0, rel=0.01)
    assert change["also_changed"] == "threads 4 → 8; commit 3333333333 → 4444444444"
    assert rows["level"].nunique() == 2
    assert set(rows["series"]) == {1}


def test_only_like_is_compared_with_like() -> None:
    for other in ({"torch": "2.14.0"}, {"host": "b"}, {"device": "B"}, {"batch_size": 64}, {"name": "x"}):
        entries = [entry(place, ms, **({} if place < 20 else other)) for place, ms in enumerate(noisy(20))]
        entries += [entry(20 + place, 1.3 * ms, **other) for place, ms in enumerate(noisy(20))]
        rows, changes = trend(entries)
        assert (len(changes), rows["series"].nunique()) == (0, 2), other

        _, joined = trend(entries, across=tuple(other))
        assert joined["entry"].tolist() == ["e21"], other
        assert (next(iter(other)) in str(joined["also_changed"].iloc[0])) == (other.keys() != {"name"})
    missing = [entry(place, ms, batch_size=None, host=None) for place, ms in enumerate(noisy(20))]
    for across in ((), LIKE):
        assert trend(missing, across=tuple(across))[0]["series"].tolist() == [1] * 20


def test_a_change_that_does_not_matter_is_not_listed() -> None:
    entries = [entry(place, ms * (1.015 if place >= 100 else 1)) for place, ms in enumerate(noisy(200))]

    assert len(trend(entries)[1]) == 0
    assert trend(entries, equal_within=0.01)[1]["verdict"].tolist() == ["slower"]


def test_trials_tests_and_damaged_entries_belong_to_no_series() -> None:
    trial = of_added(timing_entry(1, options={"lever": True}))
    damaged = SavedEntry(kind="profile", at=BEGIN, damaged="it is gone")
    report = SavedEntry(kind="report", at=BEGIN, outcome=entry(0).outcome)

    assert len(trend([trial, damaged, report])[0]) == 0
    assert trend([entry(place, peak) for place, peak in enumerate((0.0, 1e-9))])[0]["step_ms"].tolist() == [1e-9]
    rows, changes = trend([])
    assert (len(rows), list(changes.columns)) == (0, list(CHANGES))


def test_memory_has_a_trend_too() -> None:
    more = [entry(place, peak_bytes=2**30 + 2**28 * (place > 14)) for place in range(30)]

    assert trend(more, "peak_bytes")[1]["verdict"].tolist() == ["more"]


def test_the_change_is_what_the_journal_says_first() -> None:
    times = noisy(40)
    slower = shown(*(entry(place, ms * (1.1 if place >= 30 else 1)) for place, ms in enumerate(times)))

    assert slower.verdict.state == "bad"
    assert slower.verdict.sentence.startswith("10 % more step time since entry 31 of train (2026-03-02): 1.10 × [")
    assert slower.verdict.why == "No other recorded fact changed at that point."
    assert [section.title for section in slower.sections] == ["Step time by entry: train", "What changed", "Entries"]
    faster = shown(*(entry(place, ms / (1.1 if place >= 30 else 1)) for place, ms in enumerate(times)))
    assert faster.verdict.state == "good"
    assert " % less step time since entry 31 of train" in faster.verdict.sentence
    longer = enumerate(noisy(90))
    recovered = shown(*(entry(place, ms * (1.1 if 30 <= place < 60 else 1)) for place, ms in longer))
    assert " % less step time since entry 61" in recovered.verdict.sentence
    assert [row[0] for row in recovered.sections[1].rows] == ["61", "31"]  # type: ignore[union-attr]
    steady = shown(*(entry(place, ms) for place, ms in enumerate(times)))
    assert steady.verdict.sentence == "No change found in 1 series with at least 10 entries"
    short = shown(entry(0), entry(1))
    assert short.verdict.sentence.startswith("No trend yet: a series needs 10 entries, and the longest series has 2")


def test_a_decision_after_a_change_comes_first() -> None:
    entries = [entry(place, ms * (1.1 if place >= 30 else 1)) for place, ms in enumerate(noisy(40))]
    decided = timing_entry(100, kind="report", decision="accept", accepted=True, ratio=0.8, ratio_ci=(0.79, 0.81))
    earlier = timing_entry(1, kind="report", decision="accept", accepted=True, ratio=0.8, ratio_ci=(0.79, 0.81))

    assert shown(*entries, decided).verdict.sentence.startswith("Last decision: entry 41 was accepted")
    assert shown(earlier, *entries).verdict.sentence.startswith("10 % more step time since entry")


@pytest.mark.parametrize(
    ("after", "within", "verdict"),
    [(10.0, 0.25, "slower"), (10.0, 0.2501, None), (6.0, 0.25, "faster"), (6.0, 0.2501, None), (8.0, 0.01, None)],
)
def test_a_change_matters_from_the_limit_on(after: float, within: float, verdict: str | None) -> None:
    def part(ms: float) -> pd.DataFrame:
        return pd.DataFrame(
            {"series": 1, "name": "train", "number": 5, "at": BEGIN, "step_ms": [ms, ms]}, index=["e5", "e6"]
        )

    found = _compared(part(8.0), part(after), "step_ms", within)
    if verdict is None:
        assert found is None
    else:
        expected = {"verdict": verdict, "before": 8.0, "after": after, "ratio": after / 8.0, "entry": "e5", "number": 5}
        assert found is not None
        assert {name: found[name] for name in expected} == expected
        assert (found["ratio_ci_low"], found["ratio_ci_high"]) == (None, None)


def test_what_else_changed_is_the_usual_value_of_the_five_entries_on_each_side() -> None:
    """The commits are those right before and after the change."""

    def changed(before: list[dict[str, Any]], after: list[dict[str, Any]], **commits: Any) -> str | None:
        ends = {len(before) - 1: commits.get("last"), len(before): commits.get("first")}
        made = [
            entry(place, environment=facts, commit=ends.get(place, f"{place}" * 12))
            for place, facts in enumerate(before + after)
        ]
        named = {f"e{place}": one for place, one in enumerate(made)}
        return _also_changed(list(named)[: len(before)], list(named)[len(before) :], named)

    four, eight, none = {"threads": 4}, {"threads": 8}, {"python": "3"}
    assert changed([four] * 5, [eight] * 5) == "threads 4 → 8"
    assert changed([eight] * 9 + [four] * 3 + [eight] * 2, [eight] * 3 + [four] * 20) == "threads 4 → 8"
    assert changed([four] * 5, [none, eight]) == "threads 4 → 8"
    assert changed([four] * 3 + [eight] * 2, [four] * 5) is None
    assert changed([four], [none]) is None
    assert changed([four], [four], last="a" * 40, first="b" * 40) == "commit aaaaaaaaaa → bbbbbbbbbb"
    assert changed([four], [eight], last="a" * 40, first="b" * 40) == "threads 4 → 8; commit aaaaaaaaaa → bbbbbbbbbb"
    for last, first in (("a", "a"), ("a", None), (None, "b")):
        assert changed([four], [four], last=last, first=first) is None


def test_a_trend_leads_with_the_last_change_for_the_worse() -> None:
    rows, changes = trend([entry(place, ms) for place, ms in enumerate(noisy(30) + noisy(30, ms=12) + noisy(30, ms=9))])
    assert changes["verdict"].tolist() == ["slower", "faster"]
    whole = trend_document(rows, changes, "step_ms", "here")
    assert (whole.verdict.state, whole.facts, len(whole.notes)) == ("good", ("90 entries", "1 series"), 1)

    mixed = changes.assign(latest=True)
    assert trend_document(rows, mixed, "step_ms", "here").verdict.state == "bad"
    assert trend_document(rows, mixed.assign(latest=[False, True]), "step_ms", "here").verdict.state == "good"
    steady = trend_document(rows, changes.head(0), "step_ms", "here")
    assert (steady.verdict.state, steady.notes) == ("none", ())
