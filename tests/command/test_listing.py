"""``perfnb show`` of a folder with several things: a list with their verdicts, newest first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import perfnb as package
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
    # A file per rank still is a job.
    for name, rank in (("before", 0), ("after", 1)):
        (folder / f"{name}.json").rename(folder / f"trace_{rank}.json")
    assert isinstance(package.load(folder), package.results.Ranks)
    assert "Newest first" not in called("show", folder).stdout
