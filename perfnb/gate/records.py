"""Store the counts of steps in files that are committed to a repository.

Each test file has one record file next to it, so the two files can be moved together. The file is JSON with one line
per count, which makes the effect of a change visible in its diff. Each record belongs to a test and an environment.
Recording on one machine therefore does not replace counts from a different kind of machine.
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

#: The counts of a step by name. A count that does not exist on the device is ``None``.
Counts = Mapping[str, int | None]
#: The counts by test and environment.
Records = dict[str, dict[str, dict[str, int | None]]]


def file_of(test_file: Path) -> Path:
    """Return the record file for a test file: ``test_model.perf.json`` for ``test_model.py``."""
    return test_file.with_suffix(".perf.json")


def read_records(file: Path) -> Records:
    """Read the counts from a file. If the file does not exist, the result is empty.

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
                    raise TypeError("a count is not a whole number")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordingError(f"{file} is damaged ({error}): delete it and run pytest --perf-update.") from error
    return dict(held["tests"])


def update_record(file: Path, test: str, environment: str, counts: Counts) -> None:
    """Record the counts of a test in an environment. All other records are kept.

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
    """Describe the differences between two sets of counts.

    Counts that vary are not recorded, and are therefore not compared.
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
    """Return the counts that are equal in two measurements, and the names of the counts that differ."""
    vary = [name for name in first if first[name] != second[name]]
    return {name: value for name, value in first.items() if name not in vary}, vary


def missing(records: Mapping[str, Mapping[str, Counts]], test: str, environment: str) -> str | None:
    """Return the reason why a test's counts cannot be compared in this environment, or ``None`` if they can be."""
    if environment in records.get(test, {}):
        return None
    known = "; ".join(sorted(records[test]))
    return f"its counts are recorded for another environment ({known}), but this one is {environment}"
