"""A journal's history: what each entry is compared with, what is a regression, and what else was changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from perfnb.experiments.journal_files import JournalEntry
from perfnb.experiments.journal_table import COLUMNS, journal_history
from tests.experiments.journal_entries import ENVIRONMENT, report_entry, timing_entry


def history(*entries: JournalEntry) -> pd.DataFrame:
    return journal_history({f"e{number}": entry for number, entry in enumerate(entries, start=1)})


def test_each_entry_is_compared_with_the_last_accepted_before_it() -> None:
    found = history(
        timing_entry(0, 10.0),
        report_entry(1, 10.0, 0.8, "accept", change="fused"),
        report_entry(2, 8.0, 0.5, "reject", change="wrong"),
        timing_entry(3, 8.05),
        timing_entry(4, 9.0),
        timing_entry(5, 9.0, accepted=True),
        timing_entry(6, 9.0),
    )

    assert found["against"].isna().tolist() == [True, *[False] * 6]
    assert found["against"].iloc[1:].tolist() == ["e1", "e2", "e2", "e2", "e2", "e6"]
    assert found["verdict"].iloc[1:].tolist() == ["same", "same", "same", "slower", "slower", "same"]
    assert found["regression"].tolist() == [False, False, False, False, True, True, False]
    assert found["ratio"].iloc[4] == pytest.approx(9.0 / 8.0)
    assert found["candidate_ratio"].dropna().tolist() == [0.8, 0.5]
    assert found["number"].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_of_a_report_it_is_the_baseline_that_may_have_become_slower() -> None:
    found = history(report_entry(0, 10.0, 0.9, "accept"), report_entry(1, 10.0, 0.5, "accept"))

    assert found.loc["e2", "ratio"] == pytest.approx(10.0 / 9.0)
    assert found["regression"].tolist() == [False, True]


def test_a_report_that_was_not_accepted_leaves_its_baseline_in_effect() -> None:
    found = history(report_entry(0, 10.0, 0.5, "reject"), timing_entry(1, 10.0), timing_entry(2, 6.0))

    assert found["verdict"].iloc[1:].tolist() == ["same", "faster"]


def test_steps_of_other_names_are_not_compared() -> None:
    found = history(timing_entry(0, 10.0, name="a"), timing_entry(1, 30.0, name="b"), timing_entry(2, 10.0, name="a"))

    assert found["against"].isna().tolist() == [True, True, False]
    assert found["verdict"].iloc[2] == "same"


@pytest.mark.parametrize(
    ("changed", "change", "two", "also"),
    [
        ({}, "fused", False, None),
        ({}, "", False, None),
        ({"torch": "2.14.0"}, "", False, "torch 2.13.0 → 2.14.0"),
        ({"torch": "2.14.0"}, "fused", True, "torch 2.13.0 → 2.14.0"),
        ({"torch": "2.14.0"}, "new torch", False, None),
        ({"torch": "2.14.0"}, "2.14.0 instead", False, None),
        ({"threads": 8}, "num_threads=8", False, None),
        ({"threads": 8}, "8-bit optimizer", True, "threads 4 → 8"),
        ({"torch": "2.14.0", "threads": 8}, "", True, "torch 2.13.0 → 2.14.0; threads 4 → 8"),
        ({"commit": "fedcba", "at": "2027-01-01T00:00:00+00:00"}, "fused", False, None),
        ({"new": 1}, "fused", False, None),
        ({"host": "lab-4"}, "fused", True, "host lab-3 → lab-4"),
    ],
)
def test_two_changes_at_once_are_noticed(changed: dict[str, Any], change: str, two: bool, also: str | None) -> None:
    found = history(timing_entry(0), timing_entry(1, 12.0, change=change, environment={**ENVIRONMENT, **changed}))

    row = found.loc["e2"]
    assert bool(row["two_changes"]) is two
    assert (None if pd.isna(row["also_changed"]) else row["also_changed"]) == also
    assert row["verdict"] == "slower"


def test_options_that_differ_are_a_change_between_entries_of_one_kind() -> None:
    profiles = [timing_entry(n, kind="profile", options={"memory": n > 0}, change="x" * n) for n in range(2)]
    other = timing_entry(2, options={"memory": False})

    assert history(*profiles)["also_changed"].iloc[1] == "memory False → True"
    assert history(*profiles)["two_changes"].tolist() == [False, True]
    assert history(profiles[0], other)["also_changed"].isna().all()


@pytest.mark.parametrize("changed", [{"processor": "Another"}, {"gpus": ["A GPU"]}, {"cpus": 2}, {"cpu_limit": 2.0}])
def test_times_of_another_machine_are_not_compared(changed: dict[str, Any]) -> None:
    other = {**ENVIRONMENT, **changed}
    found = history(
        timing_entry(0, environment={"cpu_limit": 4.0} | ENVIRONMENT), timing_entry(1, 30.0, environment=other)
    )

    assert found["not_compared"].isna().tolist() == [True, False]
    assert next(iter(changed)) in found["not_compared"].iloc[1]
    assert found["ratio"].isna().all()
    assert not found["regression"].any()


def test_each_machine_has_what_was_accepted_on_it() -> None:
    other = {**ENVIRONMENT, "processor": "Another"}
    found = history(
        timing_entry(0, 10.0, accepted=True),
        timing_entry(1, 30.0, environment=other),
        report_entry(2, 30.0, 0.8, "accept", environment=other),
        timing_entry(3, 11.0),
        timing_entry(4, 24.0, environment=other),
        timing_entry(5, 9.0, accepted=True),
        timing_entry(6, 30.0, environment=other),
    )

    assert found["against"].iloc[1:].tolist() == ["e1", "e2", "e1", "e3", "e1", "e3"]
    assert found["not_compared"].isna().tolist() == [True, False, True, True, True, True, True]
    assert found["regression"].tolist() == [False, False, False, True, False, False, True]


def test_times_of_another_batch_size_are_not_compared() -> None:
    found = history(
        timing_entry(0, 10.0, batch_size=32),
        timing_entry(1, 18.0, batch_size=64, change="batch size 64"),
        timing_entry(2, 18.1, batch_size=64),
        timing_entry(3, 12.0, batch_size=32),
        timing_entry(4, 12.0),
    )

    assert found["not_compared"].dropna().tolist() == ["batch_size 32 → 64"]
    assert found["also_changed"].isna().all()
    assert found["against"].iloc[1:].tolist() == ["e1", "e2", "e1", "e2"]
    assert found["regression"].tolist() == [False, False, False, True, False]
    assert found["batch_size"].tolist()[:4] == [32, 64, 64, 32]


def test_what_comes_first_and_has_no_time_stands_in_for_nothing() -> None:
    found = history(timing_entry(0, median_ms=None, ci_ms=None), timing_entry(1, 10.0), timing_entry(2, 12.0))

    assert found["against"].isna().tolist() == [True, True, False]
    assert found["regression"].tolist() == [False, False, True]


def test_without_a_time_and_an_interval_there_is_no_regression() -> None:
    unknown = timing_entry(1, median_ms=None, ci_ms=None)
    found = history(timing_entry(0), unknown, timing_entry(2, 30.0, ci_ms=None), replace(unknown, accepted=True))

    assert found["verdict"].isna().tolist() == [True, True, False, True]
    assert found["verdict"].iloc[2] == "inconclusive"
    assert not found["regression"].any()
    after = history(replace(unknown, accepted=True), timing_entry(2, 30.0))
    assert after["ratio"].isna().all()


def test_an_empty_journal_has_all_columns() -> None:
    found = history()

    assert list(found.columns) == list(COLUMNS)
    assert len(found) == 0
    assert {name: str(dtype) for name, dtype in found.dtypes.items()} == {
        name: str(dtype) for name, dtype in history(timing_entry()).dtypes.items()
    }
