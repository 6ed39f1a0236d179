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
    for age, (name, wait_ms) in enumerate([("waits", 6.0), ("steady", 0.1)]):
        place = RunSummary(recorded(usual(200), usual(200, wait_ms))).save(folder / name / "run")
        for each in (place.parent, place):
            os.utime(each, (10**9 - age * 10**5,) * 2)
    return folder


def test_several_runs_are_listed_with_their_verdicts_newest_first(runs: Path) -> None:
    done = called("show", runs)

    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    # Lines may break anywhere in a long path.
    assert f"perfnbshow{runs / 'waits'}" in "".join(text.split())
    assert text.index("\nwaits ") < text.index("Input-bound: removing the wait for data") < text.index("\nsteady ")


def test_one_that_is_damaged_does_not_hide_the_others(runs: Path) -> None:
    (runs / "steady" / "run" / "rows.parquet").write_bytes(b"PAR1")
    done = called("show", runs)
    assert done.returncode == 0
    # Lines may break anywhere in a long path.
    assert "rows.parquetisdamaged" in "".join(done.stdout.split())
    assert "Input-bound" in done.stdout


def test_the_list_as_json(runs: Path) -> None:
    found = json.loads(called("show", runs, "--json").stdout)
    (table,) = found["sections"]
    assert [row[:2] for row in table["rows"]] == [["waits", "RunSummary"], ["steady", "RunSummary"]]
    assert table["names"] == [str(runs / "waits"), str(runs / "steady")]


def test_a_page_needs_one_of_them(runs: Path, tmp_path: Path) -> None:
    done = called("show", runs, "--html", tmp_path / "page.html")
    assert done.returncode == 2
    assert "contains several results" in done.stderr


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
