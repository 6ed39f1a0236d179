"""Of the runs of a job's ranks, the one that waits for its data is found, and none where none stands out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import perfnb
from perfnb.command.main import main
from perfnb.loop.kept_run import keep_run
from perfnb.loop.rank_runs import LOADABLE, RankRuns, load_rank_runs
from perfnb.loop.run import RunSummary, place_of_run, profiles_beside
from perfnb.recording.job import tell_of_ranks
from tests.loop.planted_runs import run, usual
from tests.recordings import ByHand

pytestmark = pytest.mark.usefixtures("clock")
N = 600


def ranks(*waits: float, work: float = 10.0, count: int = N) -> RankRuns:
    """Return runs whose ranks wait so long for data, then for each other: all steps take the same time."""
    longest = max(waits)
    runs = []
    for rank, wait in enumerate(waits):
        waited = usual(count, wait, seed=rank + 3) if wait else np.zeros(count)
        found = run(waited + usual(count, work + longest - wait, seed=rank + 30), waited)
        found._recorded.facts.update(rank=rank, ranks=len(waits))
        runs.append(RunSummary(found._recorded))
    return RankRuns(runs)


def test_the_rank_that_waits_for_its_data() -> None:
    found = ranks(0.1, 0.1, 4.0, 0.1)
    assert found.straggler == 2
    row = found.differences.loc[(2, "waiting for data")]
    assert row["low_ms"] < 3.9 < row["high_ms"]
    assert row["high_ms"] - row["low_ms"] < 0.2
    assert "Rank 2 waits for its data 3.9" in str(found)
    assert found.times["data_ms"].tolist() == pytest.approx([0.1, 0.1, 4.0, 0.1], rel=0.02)


def test_ranks_that_are_alike() -> None:
    found = ranks(0.1, 0.1, 0.1)
    assert found.straggler is None
    assert "No rank waits longer for data" in str(found)


def test_a_rank_that_works_longer() -> None:
    runs = [run(usual(N, ms, seed=place)) for place, ms in enumerate((10.0, 13.0, 10.0))]
    found = RankRuns(runs)
    assert found.straggler == 1
    assert "Rank 1 works 2.99 ms [" in str(found)


def test_too_few_steps() -> None:
    found = ranks(0.1, 9.0, count=20)
    assert found.straggler is None
    assert "Too few steps" in str(found)


def test_waits_that_one_rank_did_not_measure_are_not_compared() -> None:
    known = ranks(0.1, 4.0)
    assert (len(known), known.ranks, [run.rank for run in known]) == (2, [0, 1], [0, 1])
    runs = list(known)
    runs[1] = run(usual(N))
    runs[1]._recorded.facts.update(rank=1, ranks=2, waits_known=False)
    found = RankRuns([runs[0], RunSummary(runs[1]._recorded)])
    assert found.times["data_ms"].isna().tolist() == [False, True]
    parts = [set(one.differences.index.get_level_values("part")) for one in (known, found)]
    assert parts == [{"waiting for data", "working", "step"}, {"working", "step"}]


def test_runs_of_ranks_are_in_their_folder_or_in_that_of_runs(tmp_path: Path) -> None:
    for rank in (10, 9):
        runs = run(usual(60))
        runs._recorded.facts.update(rank=rank, ranks=11)
        runs.save(tmp_path / "run" / f"rank_{rank}")
    (tmp_path / "run" / "rank_3").mkdir()
    for place in (tmp_path, tmp_path / "run"):
        assert load_rank_runs(place).ranks == [9, 10]
        assert LOADABLE.recognise(place)
    assert not LOADABLE.recognise(tmp_path / "run" / "rank_3")
    assert not LOADABLE.recognise(tmp_path / "nowhere")


def test_profiles_of_a_loop_are_listed_with_its_run(tmp_path: Path) -> None:
    profile = perfnb.Profile(ByHand().step(0, 1000).recording())
    for name in ("step_000030", "step_000004", "other"):
        profile.save(tmp_path / name)
    (tmp_path / "step_000009").mkdir()
    assert profiles_beside(tmp_path) == []
    run(usual(60)).save(tmp_path / "run")
    assert profiles_beside(tmp_path) == [str(tmp_path / name) for name in ("step_000004", "step_000030")]
    assert place_of_run(tmp_path) == place_of_run(tmp_path / "run") == tmp_path / "run"
    assert place_of_run(tmp_path / "other") == tmp_path / "other"


def test_saved_and_shown_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for one in ranks(0.1, 4.0):
        keep_run(one, tmp_path)
        for step in range(12):
            tell_of_ranks(tmp_path / f"step_{step:06}", {"job": {"rank": one.rank, "world_size": 2}})
    found = perfnb.load(tmp_path / "run")
    assert isinstance(found, RankRuns)
    assert "2 ranks: Rank 1 waits for its data" in repr(found)
    for words in (["ranks", str(tmp_path)], ["show", str(tmp_path)]):
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "Rank 1 waits for its data" in said
        figures, _, profiles = said.partition(f"\nProfiles in the same folder, for perfnb {words[0]}:\n")
        assert max(map(len, figures.splitlines())) <= 100
        assert profiles.splitlines() == [*(f"  {tmp_path}/step_{step:06}" for step in range(10)), "  … 2 more"]
    assert main(["ranks", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"]
    page = found.to_html(tmp_path / "ranks.html").read_text()
    assert "Rank 1 waits for its data" in page


def test_a_rank_that_is_missing_may_be_the_slow_one(tmp_path: Path) -> None:
    keep_run(ranks(0.1, 4.0)[0], tmp_path)
    found = perfnb.load(tmp_path)
    assert isinstance(found, RankRuns)
    assert "Only 1 of 2 ranks are included" in str(found)
    assert found.straggler is None
