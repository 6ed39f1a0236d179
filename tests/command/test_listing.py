"""``perfnb show`` of a folder with several things: a list with their verdicts, newest first."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfnb.command.listing import Folder, without_ranks
from perfnb.draw.document import Table
from perfnb.loop.run import RunSummary
from tests.command.processes import called
from tests.loop.planted_runs import recorded, usual
from tests.ranks.rank_traces import rank_trace, written


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for name, wait_ms in [("steady", 0.1), ("waits", 6.0)]:
        RunSummary(recorded(usual(200), usual(200, wait_ms))).save(folder / name / "run")
    return folder


def test_several_runs_are_listed_with_their_verdicts_newest_first(runs: Path) -> None:
    done = called("show", runs)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == called("journal", runs).stdout
    text = done.stdout
    assert text.index("waits/run · Input-bound") < text.index("steady/run · Steady")


def test_one_that_is_damaged_does_not_hide_the_others(runs: Path) -> None:
    (runs / "steady" / "run" / "run.json").write_bytes(b'{"format": "perfnb"')
    done = called("show", runs)
    assert done.returncode == 0
    assert "damaged" in done.stdout
    assert "Input-bound" in done.stdout


def test_folders_of_traces_are_listed_below_what_was_saved(runs: Path, tmp_path: Path) -> None:
    for name in ("good", "cut off"):
        (runs / name).mkdir()
        (file,) = written(runs / name, [rank_trace(0)], "trace_{}.json")
        if name == "cut off":
            file.write_bytes(file.read_bytes()[:-100])
        os.utime(file, (10**9 + len(name),) * 2)
        os.utime(file.parent, (10**9,) * 2)
    found = json.loads(called("show", runs, "--json").stdout)
    saved, traces = found["sections"]
    assert saved["names"] == ["waits/run", "steady/run"]
    assert traces["names"] == [str(runs / "cut off"), str(runs / "good")]
    assert "trace_0.json" in traces["details"][0]
    assert traces["details"][1]
    done = called("show", runs, "--html", tmp_path / "page.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert "waits/run" in (tmp_path / "page.html").read_text("utf-8")
    done = called("show", runs, "--rank", "3")
    assert done.returncode == 2
    assert "does not contain ranks" in done.stderr


def test_unrelated_traces_are_no_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    files = written(folder, [rank_trace(0), rank_trace(0)], "trace_{}.json")
    for file, name in zip(files, ("before", "after"), strict=True):
        file.rename(folder / f"{name}.json")
    done = called("show", folder)

    assert (done.returncode, done.stderr) == (0, "")
    assert "rank" not in done.stdout.replace(str(tmp_path), "").lower()
    assert "\nbefore.json " in done.stdout


@pytest.mark.parametrize(
    ("files", "are_ranks"),
    [
        (["trace_1.json", "trace_0.json"], True),
        (["node1_rank0.json", "node1_rank1.json"], True),
        (["trace_1.json", "trace_2.json"], False),
        (["trace_0.json", "trace_2.json"], False),
        (["trace_0.json", "other_1.json"], False),
        (["before.json"], True),
        (["before.json", ""], True),  # not of a file
        (["host.xplane.pb", "other.xplane.pb"], True),
        (["host.xplane.pb", "other.json"], False),
    ],
)
def test_traces_are_ranks_if_their_names_count_from_0(files: list[str], are_ranks: bool, tmp_path: Path) -> None:
    found: Any = [SimpleNamespace(meta={"trace": {"file": name, "rank_known": False}}) for name in files]
    for name in filter(None, files):
        (tmp_path / name).touch()
    assert (without_ranks(found, str(tmp_path)) is found) == are_ranks
    found[0].meta["trace"]["rank_known"] = True  # some may have been recorded by a job
    assert (without_ranks(found, str(tmp_path)) is found) == are_ranks
    for each in found:
        each.meta["trace"]["rank_known"] = True
    assert without_ranks(found, str(tmp_path)) is found


def test_only_the_newest_traces_are_read_for_their_verdicts(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.json" for number in range(31)]
    for number, file in enumerate(files):
        file.touch()
        os.utime(file, (10**9 + number,) * 2)
    document = Folder(str(tmp_path), files, lambda path: f"verdict on {path.stem}")._document()
    table = document.sections[-1]
    assert isinstance(table, Table)
    newest_first = range(30, -1, -1)
    assert table.names == [str(files[number]) for number in newest_first]
    assert table.details == [*(f"verdict on {number}" for number in newest_first[:30]), ""]
    assert (document.verdict.sentence, document.verdict.code) == (
        "31 traces. To see the newest:",
        f"perfnb show {files[30]}",
    )
