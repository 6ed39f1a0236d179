"""Profiles saved one by one, by the ranks of a job or from their traces, are loaded as ranks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfnb
from perfnb.errors import RecordingError, TraceError
from perfnb.profile.profile import Profile
from perfnb.recording.job import place_of_rank, tell_of_ranks
from tests.ranks.rank_traces import rank_trace, written
from tests.recordings import ByHand


def of_rank(rank: int, world_size: int, name: str = "step", **meta: Any) -> Profile:
    """Return a profile of a process that knows its place in a job."""
    made = ByHand().step(0, 100 + rank).op("aten::mm", 10, 20)
    recording = made.recording(name=name, rank=rank, job={"rank": rank, "world_size": world_size}, **meta)
    traced = recording.steps["pass"] == "traced"
    numbers = pd.Series(0, recording.steps.index, dtype="Int64").where(traced)
    return Profile(replace(recording, steps=recording.steps.assign(step=numbers)))


def saved_in(folder: Path, profile: Profile) -> None:
    """Save the profiles as each rank saves its own."""
    profile.save(place_of_rank(folder, profile.meta))
    tell_of_ranks(folder, profile.meta)


def test_a_rank_is_the_profiles_else_the_names_else_the_place(tmp_path: Path) -> None:
    def saved(folder: str, profile: Profile) -> Path:
        return profile.save(tmp_path / folder)

    unknown = Profile(ByHand().step(0, 100).op("aten::mm", 10, 20).recording())
    known = [saved("a", of_rank(5, 8)), saved("b", of_rank(2, 8))]
    named = [saved("run_rank3", unknown), saved("run_rank1", unknown)]
    nothing = [saved("c", unknown), saved("d", unknown)]

    assert perfnb.load(known).ranks == [2, 5]
    assert perfnb.load(nothing).ranks == [0, 1]
    assert perfnb.load([known[0], known[0]]).ranks == [0, 1]
    both = perfnb.load(named)
    assert both.ranks == [1, 3]
    assert set(both.events["rank"]) == {1, 3}
    assert both[3].meta["rank"] == 3
    assert set(perfnb.load(nothing[0]).events["rank"]) == {0}


def test_a_job_is_loaded_from_the_folder_in_which_each_rank_saved_its_own(tmp_path: Path) -> None:
    for rank in (1, 0):
        saved_in(tmp_path / "runs", of_rank(rank, 2))

    ranks = perfnb.load(tmp_path / "runs")

    assert isinstance(ranks, perfnb.results.Ranks)
    assert ranks.ranks == [0, 1]
    assert ranks.times["wall_ms"].tolist() == pytest.approx([0.1, 0.101])
    assert ranks.times["waiting_ms"].isna().all()
    assert ranks.clocks["ahead_us"].isna().tolist() == [False, True]
    assert "None of the ranks recorded any GPU work" in str(ranks)
    assert "may not belong to the same job" not in str(ranks)
    ranks.save(tmp_path / "again")
    assert perfnb.load(tmp_path / "again").ranks == [0, 1]
    shutil.rmtree(tmp_path / "again" / "rank_1")  # damage, because they were saved together
    with pytest.raises(RecordingError, match="rank_1 does not exist"):
        perfnb.load(tmp_path / "again")


def test_ranks_reduced_to_their_tables_have_these_and_say_what_is_missing(tmp_path: Path) -> None:
    whole = [of_rank(rank, 2) for rank in (0, 1)]
    for profile in whole:
        saved_in(tmp_path / "runs", profile._reduced())

    ranks = perfnb.load(tmp_path / "runs")

    assert isinstance(ranks, perfnb.results.Ranks)
    assert ranks.ranks == [0, 1]
    for table in ("layers", "phases", "ops", "kernels"):
        expected = pd.concat([getattr(one, table).reset_index() for one in whole], ignore_index=True)
        pd.testing.assert_frame_equal(getattr(ranks, table).drop(columns="rank"), expected)
    assert ranks.times["wall_ms"].tolist() == pytest.approx([0.1, 0.101])
    assert ranks.times["computation_ms"].isna().all()
    assert ranks.collectives.empty
    assert ranks.collectives["rank"].dtype == "int64"
    assert ranks.straggler is None
    said = " ".join(str(ranks).split())
    assert "reduced to their tables" in said
    assert "None of the ranks recorded any GPU work" not in said
    for table in ("events", "gpu_steps", "gpu_idle"):
        with pytest.raises(RecordingError, match="keep_trace=True"):
            getattr(ranks, table)
    ranks.save(tmp_path / "again")
    pd.testing.assert_frame_equal(perfnb.load(tmp_path / "again").layers, ranks.layers)


def test_a_rank_that_saved_nothing_is_missed(tmp_path: Path) -> None:
    saved_in(tmp_path, of_rank(2, 3))
    saved_in(tmp_path, of_rank(0, 3))

    ranks = perfnb.load(tmp_path)

    assert ranks.ranks == [0, 2]
    assert "2 of 3 ranks are loaded. Some of the waits may be for ranks that are" in " ".join(str(ranks).split())
    for rank in (0, 2):
        shutil.rmtree(tmp_path / f"rank_{rank}")
    with pytest.raises(RecordingError, match="none of its ranks has saved a profile in it"):
        perfnb.load(tmp_path)


def test_ranks_of_an_altered_file_are_refused(tmp_path: Path) -> None:
    for rank in (0, 1):
        saved_in(tmp_path, of_rank(rank, 2))
    shutil.rmtree(tmp_path / "rank_1")
    shutil.copytree(tmp_path / "rank_0", tmp_path / "rank_1")
    with pytest.raises(RecordingError, match=r"its meta\.rank is 0, not 1"):
        perfnb.load(tmp_path)
    ranks = tmp_path / "ranks.json"
    whole = json.loads(ranks.read_text())
    ranks.write_text(json.dumps(whole | {"meta": {**whole["meta"], "ranks": [0, 0]}}))
    with pytest.raises(RecordingError, match=r"ranks\.json is damaged: meta\.ranks contains a rank twice"):
        perfnb.load(tmp_path)
    facts = json.loads((tmp_path / "rank_0" / "profile.json").read_text())
    facts["meta"]["job"]["world_size"] = -1
    (tmp_path / "rank_0" / "profile.json").write_text(json.dumps(facts))
    with pytest.raises(RecordingError, match="is damaged"):
        perfnb.load([tmp_path / "rank_0"])


def test_a_job_of_one_rank_is_one_profile(tmp_path: Path) -> None:
    saved_in(tmp_path / "run", of_rank(0, 1))

    assert isinstance(perfnb.load(tmp_path / "run"), perfnb.Profile)
    assert not (tmp_path / "run" / "ranks.json").exists()


def test_traces_and_saved_profiles_are_not_mixed(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [rank_trace(0)])

    with pytest.raises(TraceError, match=r"is a saved profile, but .*rank0\.json is not"):
        perfnb.load([of_rank(0, 2).save(tmp_path / "saved"), path])
