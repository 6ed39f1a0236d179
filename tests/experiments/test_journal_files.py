"""A journal on disk: whole entries or none, several writers, a folder that is moved, damage, and a thousand entries."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb.errors import RecordingError
from perfnb.experiments.journal_files import ENTRY, JournalEntry, entry_of, write_entry
from perfnb.experiments.journal_index import INDEX, Catalogue
from tests.experiments.journal_entries import report_entry, timing_entry
from tests.experiments.journal_writer import save

ROOT = Path(__file__).parents[2]


def read_entries(journal: Path) -> tuple[dict[str, JournalEntry], dict[str, str]]:
    """Return what was added, and what is wrong with what cannot be read."""
    entries = Catalogue(journal).entries()
    damaged = {name: entry.damaged for name, entry in entries.items() if entry.damaged}
    return {name: entry.added for name, entry in entries.items() if entry.added is not None}, damaged


def nothing(path: Path) -> None:
    path.mkdir()


def writer(journal: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.experiments.journal_writer", str(journal), str(count)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_an_entry_comes_back(tmp_path: Path) -> None:
    entries = [
        report_entry(1, 10.0, 0.9, "accept", change="größe <b>", reason="faster"),
        timing_entry(0, options={"steps": 3}, name="x", hypothesis="?"),
        timing_entry(2, median_ms=None, ci_ms=None),
    ]
    names = [write_entry(tmp_path / "a" / "journal", entry, nothing) for entry in entries]

    found, damaged = read_entries(tmp_path / "a" / "journal")

    assert damaged == {}
    assert list(found) == [names[1], names[0], names[2]]
    assert [found[name] for name in names] == entries
    assert read_entries(tmp_path / "missing") == ({}, {})


@pytest.mark.deep
@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_whole_entries_only(tmp_path: Path) -> None:
    """Killed at random moments of its writing, each time after an entry was said to be written."""
    journal, told, left = tmp_path / "journal", [], 0
    random.seed(7)
    for _ in range(6):
        process = writer(journal, 10_000)
        told.append(first_line(process))
        time.sleep(random.uniform(0, 0.08))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert process.stdout is not None
        told += [line.strip() for line in process.stdout if line.endswith("\n")]
        process.stdout.close()

        left += any(path.name.startswith(".perfnb-") for path in journal.iterdir())
        entries, damaged = read_entries(journal)
        assert damaged == {}
        assert set(told) <= set(entries)
        for name in entries:
            timing = perfnb.load(journal / name / "timing")
            assert isinstance(timing, perfnb.Timing)
            assert timing.steps == 20_000
    assert left  # most of them were killed while they wrote


@pytest.mark.slow
def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    processes = [writer(tmp_path / "journal", 10) for _ in range(2)]
    told = [line.strip() for process in processes for line in process.communicate(timeout=120)[0].splitlines()]

    entries, damaged = read_entries(tmp_path / "journal")

    assert [process.returncode for process in processes] == [0, 0]
    assert damaged == {}
    assert len(told) == 20
    assert sorted(told) == sorted(entries)
    assert [path.name for path in (tmp_path / "journal").iterdir() if path.name.startswith(".")] == [INDEX]


def test_what_a_killed_writer_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    for name, age_s in (("old", 7200), ("new", 60)):
        left = tmp_path / f".perfnb-{name}" / "new"
        left.mkdir(parents=True)
        (left / ENTRY.file).write_text("{")
        os.utime(left.parent, (time.time() - age_s,) * 2)

    name = write_entry(tmp_path, timing_entry(), nothing)

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".perfnb-new", name])
    assert list(read_entries(tmp_path)[0]) == [name]


def test_a_journal_that_is_moved_is_whole(tmp_path: Path) -> None:
    name = write_entry(tmp_path / "here" / "journal", timing_entry(), save)
    before = perfnb.journal(tmp_path / "here" / "journal").history

    shutil.move(tmp_path / "here", tmp_path / "there")

    journal = perfnb.journal(tmp_path / "there" / "journal")
    assert journal.history.equals(before)
    assert journal.load(name).steps == 20_000
    content = "".join(path.read_text("utf-8") for path in (tmp_path / "there").rglob("*.json"))
    assert str(tmp_path) not in content


def test_an_entry_that_cannot_be_saved_leaves_nothing(tmp_path: Path) -> None:
    def full(path: Path) -> None:
        path.mkdir()
        raise OSError(28, "No space left on device")

    with pytest.raises(RecordingError, match="No space left"):
        write_entry(tmp_path / "journal", timing_entry(), full)
    with pytest.raises(RecordingError, match="cannot be written"):
        write_entry(tmp_path / "journal", timing_entry(options={"x": float("nan")}), nothing)
    with pytest.raises(RecordingError, match="larger than"):
        write_entry(tmp_path / "journal", timing_entry(hypothesis="x" * 2**20), nothing)
    assert list((tmp_path / "journal").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="cannot be written"):
        write_entry(tmp_path / "file", timing_entry(), nothing)
    with pytest.raises(RecordingError, match="cannot be read as a journal"):
        perfnb.journal(tmp_path / "file")


def edited(**changes: object) -> Callable[[Path], object]:
    def edit(path: Path) -> None:
        content = json.loads(path.read_text("utf-8"))
        content["meta"] |= changes
        path.write_text(json.dumps(content))

    return edit


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "it has no entry.json"),
    "empty": (lambda path: path.write_bytes(b""), "Expecting value"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:200]), " column "),
    "garbage": (lambda path: path.write_bytes(b"\xff\x00{"), "can't decode byte"),
    "other": (lambda path: path.write_text("[1, 2]"), "perfnb did not write it"),
    "deep": (lambda path: path.write_text("[" * 100_000), ""),
    "large": (lambda path: path.write_text(" " * (1 << 21) + "{}"), "larger than"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "directory"),
    "wrong type": (edited(median_ms="fast"), "Expected"),
    "no time": (edited(median_ms=-1.0), "Expected `float`"),
    "a time that floats do not hold twice": (edited(median_ms=1e308, ci_ms=[1e307, 1.7e308]), "Expected `float`"),
    "a time near none": (edited(median_ms=5e-324), "Expected `float`"),
    "more steps than int64 holds": (edited(steps=2**70), "steps"),
    "bytes below 0": (edited(peak_memory_bytes=-1), "Expected `int` >= 0"),
    "infinite": (lambda path: path.write_text(path.read_text().replace("null", "1e999", 1)), ""),
    "of another kind": (edited(kind="../../x"), "`meta.kind`"),
    "half a fact": (edited(ci_ms=[1.0]), "length"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_named_and_the_others_are_read(tmp_path: Path, damage: str) -> None:
    names = [write_entry(tmp_path, timing_entry(hours), nothing) for hours in range(3)]
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / "pictures").mkdir()
    hurt, words = DAMAGE[damage]
    hurt(tmp_path / names[1] / ENTRY.file)
    journal = perfnb.journal(tmp_path)

    with pytest.warns(UserWarning, match=f"{names[1]} .* is damaged and ignored") as warned:
        assert journal.history.index.tolist() == [names[0], names[2]]
    assert journal.history.index.tolist() == [names[0], names[2]]  # warns once

    assert len(warned) == 1
    assert list(journal.damaged) == [names[1]]
    assert words in journal.damaged[names[1]]
    assert f"Damaged and ignored: {names[1]}." in " ".join(str(journal).split())


JSON = [None, True, -1, 0, 10**18, 2**63, 10**400, -1e308, 1e308, 5e-324, "", "\0", "0001-01-01T00:00+23:59", [], {}]
JSON += [[1e308, 1e308], {"torch": 1e308, "gpus": {}, "host": [None]}]


@pytest.mark.deep
@pytest.mark.slow
def test_whatever_stands_in_an_entry_it_is_read_or_damaged_and_the_others_are_shown(tmp_path: Path) -> None:
    names = [write_entry(tmp_path, report_entry(hours, 10.0, 0.9, "accept"), nothing) for hours in range(3)]
    facts = tmp_path / names[1] / ENTRY.file
    good = facts.read_text("utf-8")
    journal = perfnb.journal(tmp_path)
    for key in json.loads(good)["meta"]:
        for value in JSON:
            facts.write_text(good)
            edited(**{key: value})(facts)
            damaged = list(journal.damaged)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shown = journal.history.index.tolist()
            assert sorted([*damaged, *shown]) == names, (key, value)
            assert set(damaged) <= {names[1]}
            assert str(journal)
            if shown == names and key in ("at", "median_ms", "baseline_ms"):
                journal.plot()


def test_a_pipe_or_a_device_is_not_an_entry(tmp_path: Path) -> None:
    names = [write_entry(tmp_path, timing_entry(hours), nothing) for hours in range(3)]
    for name in names[1:]:
        (tmp_path / name / ENTRY.file).unlink()
    os.mkfifo(tmp_path / names[1] / ENTRY.file)
    (tmp_path / names[2] / ENTRY.file).symlink_to("/dev/zero")

    entries, damaged = read_entries(tmp_path)

    assert list(entries) == names[:1]
    assert set(damaged.values()) == {"it is a pipe or a device, not a file"}


def test_an_entry_in_a_newer_format_is_reported_as_such(tmp_path: Path) -> None:
    name = write_entry(tmp_path, timing_entry(), nothing)
    for meta in ({"at": 3}, json.loads((tmp_path / name / ENTRY.file).read_text("utf-8"))["meta"] | {"new": 1}):
        (tmp_path / name / ENTRY.file).write_text(json.dumps({"format": "perfnb", "version": 99, "meta": meta}))
        newer = "it was saved by a newer perfnb (format 99, this one reads 1); update perfnb"
        assert read_entries(tmp_path)[1] == {name: newer}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ""),
        ({"median_ms": 10.0, "ci_ms": (10.0, 10.0)}, ""),
        ({"median_ms": 10.0, "ci_ms": (10.1, 11.0)}, "its median_ms lies outside its interval"),
        ({"median_ms": 10.0, "ci_ms": (9.0, 9.9)}, "its median_ms lies outside its interval"),
        ({"baseline_ms": 10.0, "baseline_ci_ms": (9.0, 9.9)}, "its baseline_ms lies outside its interval"),
        ({"ratio": 1.0, "ratio_ci": (1.1, 1.2)}, "its ratio lies outside its interval"),
        ({"median_ms": None}, ""),
        ({"ci_ms": None}, ""),
        ({"at": "0001-01-01T00:00+23:59"}, "its date is invalid: 0001-01-01T00:00"),
        ({"at": "1969-12-31T00:00+00:00"}, "its date is invalid: 1969-12-31T00:00"),
        ({"at": "1970-01-01T00:00+00:00"}, ""),
        ({"at": "9999-12-31T23:59:59-23:59"}, "its date is invalid: 9999"),
        ({"at": "yesterday"}, "isoformat"),
        ({"at": "2200-12-31T00:00+00:00"}, ""),
        ({"at": "2201-01-01T00:00+00:00"}, "its date is invalid: 2201-01-01T00:00"),
    ],
)
def test_an_entry_has_a_date_and_figures_inside_their_intervals(
    tmp_path: Path, facts: dict[str, Any], words: str
) -> None:
    name = write_entry(tmp_path, timing_entry(), nothing)
    edited(**facts)(tmp_path / name / ENTRY.file)

    found, damaged = read_entries(tmp_path)

    assert (list(found), list(damaged)) == (([], [name]) if words else ([name], []))
    assert words in damaged.get(name, "")


def test_an_entry_is_found_by_name_begin_or_number() -> None:
    entries = ["a1", "a2", "b"]

    assert [entry_of(entries, wanted) for wanted in (1, -1, 3, "b", "a2")] == ["a1", "b", "b", "b", "a2"]
    for wanted, words in ((0, "no entry 0"), (4, "no entry 4"), (-4, "no entry"), ("a", "more than one"), ("c", "no ")):
        with pytest.raises(KeyError, match=words):
            entry_of(entries, wanted)


def a_thousand_entries(folder: Path) -> None:
    """Write so many, alike but for their names."""
    entry = report_entry(0, 10.0, 0.9, "accept", change="x" * 80, reason="y" * 120)
    name = write_entry(folder, entry, nothing)
    for number in range(999):
        copy = folder / f"{name[:-8]}{number:08x}"
        copy.mkdir()
        shutil.copy(folder / name / ENTRY.file, copy)


def test_entries_that_differ_in_nothing_but_their_place_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = [write_entry(tmp_path, replace(timing_entry(), change=str(number)), nothing) for number in range(5)]

    assert list(read_entries(tmp_path)[0]) == sorted(names)
