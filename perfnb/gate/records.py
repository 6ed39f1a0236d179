"""Store the counts of steps that a repository records.

There is one file for each test file, next to it, so that both move together. The file is JSON with a line for each
figure, so that the diff of a change shows its effect. A record belongs to a test and an environment: one machine's
figures never replace another's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfnb.errors import RecordingError
from perfnb.files import read_regular, write_text

_VERSION = 1
_MOST_BYTES = 10_000_000

#: A step's counts by name; ``None`` for a figure that its device lacks.
Counts = Mapping[str, int | None]
#: Counts by test and environment.
Records = dict[str, dict[str, dict[str, int | None]]]


def file_of(test_file: Path) -> Path:
    """Return the file with the counts of the tests in a file: ``test_model.perf.json`` for ``test_model.py``."""
    return test_file.with_suffix(".perf.json")


def read_records(file: Path) -> Records:
    """Read the counts in a file; none if there is no file.

    Raises
    ------
    RecordingError
        If the file is damaged.
    """
    if not file.exists():
        return {}
    try:
        held: Any = json.loads(read_regular(file, _MOST_BYTES))
        if held["version"] > _VERSION:
            raise RecordingError(f"{file} was written by a newer version of perfnb.")
        for of_test in held["tests"].values():
            for counts in of_test.values():
                if not all(value is None or type(value) is int for value in counts.values()):
                    raise TypeError("a count is no whole number")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordingError(f"{file} is damaged ({error}): delete it and run pytest --perf-update.") from error
    return dict(held["tests"])


def update_record(file: Path, test: str, environment: str, counts: Counts) -> None:
    """Record the counts of a test in an environment; all other records stay.

    Raises
    ------
    RecordingError
        If the file is damaged or cannot be written.
    """
    records = read_records(file)
    records[test] = {**records.get(test, {}), environment: dict(counts)}
    ordered = {name: dict(sorted(records[name].items())) for name in sorted(records)}
    write_text(json.dumps({"version": _VERSION, "tests": ordered}, indent=2, ensure_ascii=False) + "\n", file)


def differences(recorded: Counts, counted: Counts) -> list[str]:
    """Return the differences between two sets of counts, in words.

    A figure that varies was not recorded, and is not compared.
    """
    words = []
    for name, before in recorded.items():
        after = counted.get(name)
        if before == after:
            continue
        change = f" ({after / before - 1:+.1%})" if before and after is not None else ""
        words.append(f"{name} {_number(before)} → {_number(after)}{change}")
    return words


def _number(value: int | None) -> str:
    return "n/a" if value is None else f"{value:,}"


def stable(first: Counts, second: Counts) -> tuple[dict[str, int | None], list[str]]:
    """Return the counts that are the same in two counts of the work, and the names of those that differ."""
    vary = [name for name in first if first[name] != second[name]]
    return {name: value for name, value in first.items() if name not in vary}, vary


def missing(records: Mapping[str, Mapping[str, Counts]], test: str, environment: str) -> str | None:
    """Return the reason why the counts of a test cannot be compared in this environment; ``None`` if they can."""
    if environment in records.get(test, {}):
        return None
    known = "; ".join(sorted(records[test]))
    return f"its counts are recorded for another environment ({known}), and this is {environment}"
