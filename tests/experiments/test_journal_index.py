"""Whatever perfnb saved below a folder is found and read once; whatever else is in it can neither hang nor break it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb.experiments import journal_index
from perfnb.experiments.ab_test import ABTest
from perfnb.experiments.journal_index import INDEX, WORDS, Catalogue, SavedEntry, of_added
from perfnb.loop.run import RunSummary
from perfnb.recording.outcome import Outcome
from tests.experiments.ab_samples import experiment
from tests.experiments.journal_entries import BEGIN, timing_entry
from tests.loop.planted_runs import recorded, usual
from tests.ranks.rank_traces import rank_trace, written

HOSTILE = "<b onclick='x()'>&amp; $x^2$ `y`"


def timing(ms: float = 10.0) -> perfnb.Timing:
    return perfnb.Timing(tuple(ms * (1 + 0.001 * (place % 5 - 2)) for place in range(40)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one thing of each kind, at several depths."""
    tmp_path = tmp_path_factory.mktemp("made")
    folder = tmp_path / "saved"
    timing().save(folder / "timing")
    (traces := tmp_path / "traces").mkdir()
    paths = written(traces, [rank_trace(0), rank_trace(50)])
    perfnb.load(paths[0]).save(folder / "a" / "b" / "profile")  # type: ignore[union-attr]
    perfnb.load(paths).save(folder / "a" / "job")  # type: ignore[union-attr]
    RunSummary(recorded(usual(200), usual(200, 6.0))).save(folder / "a" / "run")
    ABTest(**vars(experiment(0.5)), change="fused").save(folder / "test")
    perfnb.journal(folder).add(timing(12.0), hypothesis="slower", name="mine")
    return folder


@pytest.fixture
def saved(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "saved", ignore=shutil.ignore_patterns(INDEX))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the folders that are read from now on."""
    read: list[str] = []
    reads: Callable[..., Any] = journal_index._read

    def reader(folder: Path, word: str, *rest: Any) -> Any:
        read.append(f"{folder.name}/{word}")
        return reads(folder, word, *rest)

    monkeypatch.setattr(journal_index, "_read", reader)
    return read


def test_everything_saved_is_an_entry(saved: Path) -> None:
    journal = perfnb.journal(saved)
    table = journal.table

    kinds = dict(zip(table.index, table["kind"], strict=True))
    (added,) = table.index[table["hypothesis"].notna()]
    places = {"timing": "timing", "a/b/profile": "profile", "a/job": "profile", "a/run": "run", "test": "report"}
    assert kinds == places | {added: "timing"}
    assert table["number"].tolist() == list(range(1, 7))
    assert table["at"].is_monotonic_increasing
    assert table["damaged"].isna().all()
    assert table.loc["a/job", "ranks"] == 2
    assert table.loc["test", "decision"] == "inconclusive"
    assert table.loc["a/run", "verdict"] == "Input-bound"
    assert table.loc["a/run", "data_share"] > 0.1
    assert table.loc["timing", "step_low_ms"] <= table.loc["timing", "step_ms"] == 10.0
    assert table.loc[added, ["name", "hypothesis", "step_ms"]].tolist() == ["mine", "slower", 12.0]
    assert journal.history.index.tolist() == [added]
    assert journal.history["number"].tolist() == [table.loc[added, "number"]]
    assert len(journal) == 6
    assert [type(journal.load(entry)).__name__ for entry in ("a/job", "a/run", added, "test")] == [
        *("Ranks", "RunSummary", "Timing", "ABTest"),
    ]  # fmt: skip


def test_an_unchanged_entry_is_never_read_twice(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = perfnb.journal(saved).table
    read = counted(monkeypatch)

    journal = perfnb.journal(saved)
    assert journal.table.equals(first)
    timing(11.0).save(saved / "timing")
    timing(13.0).save(saved / "new")

    assert journal.table["step_ms"].dropna().max() == 13.0
    assert perfnb.journal(saved).table.loc["timing", "step_ms"] == 11.0
    assert sorted(read) == ["new/timing", "timing/timing"]


@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b"\xff\x00"),
        lambda path: path.write_text(path.read_text().replace(journal_index._VERSION, "0", 1)),
        lambda path: path.write_text('{"version": "1", "entries": {"timing": 3}}'),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    ],
)
def test_an_index_that_cannot_be_used_is_made_anew(saved: Path, harm: Callable[[Path], object]) -> None:
    before = perfnb.journal(saved).table
    harm(saved / INDEX)

    assert perfnb.journal(saved).table.equals(before)


def test_a_folder_that_moves_keeps_its_index(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = perfnb.journal(saved).table
    moved = saved.rename(saved.with_name("moved"))
    read = counted(monkeypatch)

    assert perfnb.journal(moved).table.equals(before)
    assert read == []
    shutil.copytree(moved, saved)
    assert perfnb.journal(saved).table.equals(before)
    assert str(saved) not in (saved / INDEX).read_text("utf-8")


def test_a_folder_that_cannot_be_written_to_is_shown(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(journal_index, "write_file", refuse)

    assert len(perfnb.journal(saved)) == 6
    assert not (saved / INDEX).exists()


def test_a_job_with_a_damaged_rank_has_the_others(saved: Path) -> None:
    (saved / "a" / "job" / "rank_1" / "profile.json").write_text("{")
    assert perfnb.journal(saved).table.loc["a/job", "ranks"] == 1
    (saved / "a" / "job" / "rank_0" / "profile.json").write_text("{")

    damaged = perfnb.journal(saved).damaged
    assert list(damaged) == ["a/job"]
    assert damaged["a/job"].startswith("rank_0: ")
    (saved / "a" / "job" / "ranks.json").write_text('{"mine": 1}')
    assert "rank_0" not in perfnb.journal(saved).damaged["a/job"]


def test_a_job_is_its_slowest_rank_with_the_largest_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rank(number: int, step_ms: float | None, peak: int | None, damaged: str = "") -> SavedEntry:
        outcome = Outcome(at=BEGIN, name="train", step_ms=step_ms, peak_bytes=peak)
        return SavedEntry(kind="profile", at=BEGIN, outcome=outcome, profiles=((".", number),), damaged=damaged)

    made = {"rank_0": rank(0, 10.0, 7), "rank_1": rank(1, 12.0, 5), "rank_2": rank(2, 99.0, 99, "its file is empty")}
    made |= {"rank_3": rank(3, None, None), "rank_4": SavedEntry(kind="profile", at=BEGIN)}
    for name in made:
        (tmp_path / name).mkdir()
        (tmp_path / name / "profile.json").touch()
    monkeypatch.setattr(journal_index, "facts_in", lambda *_: None)
    monkeypatch.setattr(journal_index, "_read", lambda folder, word: made[folder.name])

    job = journal_index._job(tmp_path, [*made, "rank_5"])
    assert job.outcome is not None
    assert (job.outcome.step_ms, job.outcome.peak_bytes, job.ranks) == (12.0, 7, 3)
    assert job.profiles == (("rank_0", 0), ("rank_1", 1), ("rank_3", 3))


def test_the_facts_of_a_saved_result_come_from_its_outcome_or_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saved(word: str, outcome: Outcome | None = None, **facts: Any) -> SavedEntry:
        monkeypatch.setattr(journal_index, "facts_in", lambda *_: (facts, outcome))
        return journal_index._saved(tmp_path / "folder", word)

    bare, known = (Outcome(at=BEGIN, name="x", environment=facts) for facts in ({}, {"threads": 4}))
    assert saved("run", known, environment={"threads": 2}).environment == {"threads": 4}
    assert saved("run", bare, environment={"threads": 2}).environment == {"threads": 2}
    assert saved("run", bare, environment="x").environment == {}
    names = [entry.outcome and entry.outcome.name for entry in (saved("run", name="mine"), saved("run", name=3))]
    assert names == ["mine", "folder"]
    assert [saved(word, bare, rank=3).profiles for word in ("profile", "run")] == [((".", 3),), ()]
    assert saved("profile", bare, rank=None).profiles == ((".", None),)
    assert [saved(word, bare, reason="gone").damaged for word in ("run", "unread")] == ["", "gone"]


def test_an_added_entry_without_a_result_has_what_was_added_with_it() -> None:
    known = of_added(timing_entry(ms=2.0, name="x", batch_size=4, peak_memory_bytes=9)).outcome
    assert known is not None
    assert (known.name, known.step_ms, known.step_ci_ms, known.batch_size, known.peak_bytes) == (
        *("x", 2.0, (1.98, 2.02), 4, 9),
    )  # fmt: skip
    assert (known.host, known.torch, known.device) == ("lab-3", "2.13.0", "A processor")
    unknown = of_added(timing_entry(environment={})).outcome
    assert unknown is not None
    assert (unknown.host, unknown.torch, unknown.commit, unknown.device) == (None, None, None, None)


def test_files_of_other_programs_are_none_of_its(tmp_path: Path) -> None:
    for name in ("report.json", "a/run.json", "a/entry.json", "b/ranks.json", "b/profile.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"mine": 1}')
    journal = perfnb.journal(tmp_path)

    assert (journal.table.index.tolist(), journal.damaged) == ([], {})
    timing().save(tmp_path / "d")
    assert journal.table.index.tolist() == ["d"]


def test_a_hostile_folder_is_listed_with_reasons(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = perfnb.journal(saved).table.index
    (saved / "loop").symlink_to(saved)
    (saved / "a" / "up").symlink_to("..")
    timing().save(tmp_path / "elsewhere")
    (saved / "link").symlink_to(tmp_path / "elsewhere")
    for name in (HOSTILE, "line\nbreak", "huge", "half", "pipe", "closed", "deep"):
        timing().save(saved / name)
    with (saved / "huge" / "timing.json").open("r+b") as file:
        file.truncate(2**40)
    text = (saved / "half" / "timing.json").read_text("utf-8")
    (saved / "half" / "timing.json").write_text(text[: len(text) // 2])
    (saved / "pipe" / "timing.json").unlink()
    os.mkfifo(saved / "pipe" / "timing.json")
    os.rename(saved / "deep", os.fsencode(saved) + b"/not\xfftext")
    (saved / "a" / "b" / "profile" / "profile.json").unlink()
    list_folder = os.scandir

    def scandir(path: Any) -> Any:
        if not isinstance(path, int) and Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", scandir)
    begin = time.monotonic()
    journal = perfnb.journal(saved)
    damaged = journal.damaged

    assert time.monotonic() - begin < 60  # it ends
    assert damaged.keys() - {"half"} == {
        *("line\nbreak", "not\\xfftext", "huge", "pipe", "closed", "a/b/profile"),
    }  # fmt: skip
    assert damaged["closed"] == "Permission denied"
    assert "larger than" in damaged["huge"]
    assert damaged["pipe"] == "it is a pipe or a device, not a file"
    assert damaged["a/b/profile"] == "it has no profile.json"
    assert damaged["line\nbreak"] == "its name contains characters that cannot be displayed"
    readable = journal.table.index[journal.table["damaged"].isna()]
    assert set(readable) == set(good) - {"a/b/profile"} | {HOSTILE}
    page = journal.to_html(tmp_path / "page.html").read_text("utf-8")
    assert HOSTILE not in page
    assert str(journal)
    assert perfnb.journal(saved).table.equals(journal.table)


def test_too_many_folders_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        timing().save(tmp_path / f"{number}")
    timing().save(tmp_path / "x" / "y" / "z")
    monkeypatch.setattr(journal_index, "_DEEPEST", 2)
    catalogue = Catalogue(tmp_path)

    assert list(catalogue.entries())[:5] == list("01234")
    assert catalogue.limits.endswith("at most 2 levels deep, were searched.")
    assert catalogue.limits in " ".join(str(perfnb.journal(tmp_path)).split())

    for place in ("a/entry", "b/entry"):
        timing().save(tmp_path / "two" / place)
    for most, found in ((4, ["a/entry", "b/entry"]), (3, ["a/entry"])):
        monkeypatch.setattr(journal_index, "_MOST_FOLDERS", most)
        catalogue = Catalogue(tmp_path / "two")
        assert list(catalogue.entries()) == found
        assert catalogue.limits.startswith("Only 3 folders") == (most == 3)


def test_a_date_that_no_table_holds_is_damage(tmp_path: Path) -> None:
    file = timing().save(tmp_path / "t") / "timing.json"
    content = json.loads(file.read_text("utf-8"))
    for date in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "soon"):
        content["outcome"]["at"] = date
        file.write_text(json.dumps(content))
        journal = perfnb.journal(tmp_path)
        assert (len(journal), list(journal.damaged)) == (0, ["t"])
        assert journal.table["at"].iloc[0].year == datetime.now(UTC).year


def test_every_kind_that_is_saved_is_looked_for() -> None:
    sources = (path.read_text("utf-8") for path in Path(perfnb.__file__).parent.rglob("*.py"))
    kinds = {word for source in sources for word in re.findall(r'\bSavedKind\(\s*"(\w+)"', source)}
    assert len(kinds) > 5
    assert kinds <= set(WORDS)
