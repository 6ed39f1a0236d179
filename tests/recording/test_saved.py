"""A saved profile brings its finished tables, which are never other than those that would be computed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import perfnb
from perfnb.analysis_version import ROOMS, analysis_version
from perfnb.profile import profile as profile_module
from perfnb.profile.profile import Profile
from perfnb.recording.saved_profile import TABLES, SavedProfile
from tests.written_traces import Written


def steps_and_kernels(folder: Path) -> Profile:
    trace = Written().op("before", 0, 10)
    for number in range(2):
        at = 100.0 + 1000 * number
        trace.step(number, at, at + 900)
        trace.event("aten::mm", at + 2, at + 50, **{"Input Dims": [[8, 16], [16, 4]]})
        trace.kernel("gemm", at + 10, at + 60, at + 90)
    return _loaded(trace, folder)


def no_step(folder: Path) -> Profile:
    return _loaded(Written().op("aten::mm", 0, 10).op("aten::add", 20, 30), folder)


def empty(folder: Path) -> Profile:
    return _loaded(Written(), folder)


def _loaded(trace: Written, folder: Path) -> Profile:
    profile = perfnb.load(trace.write(folder / "trace.json"))
    assert isinstance(profile, Profile)
    return profile


@pytest.mark.slow
@pytest.mark.parametrize("make", [steps_and_kernels, no_step, empty])
def test_saved_tables_are_those_that_are_computed(make: Callable[[Path], Profile], tmp_path: Path) -> None:
    first = make(tmp_path)
    alone = Profile(first._recording).ops
    pd.testing.assert_frame_equal(alone, first._summary.ops)
    saved = first.save(tmp_path / "run")
    again, anew = perfnb.load(saved), Profile(SavedProfile(saved).recording())

    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(again, name), getattr(anew, name))
        pd.testing.assert_frame_equal(getattr(again, name), getattr(first, name))
    assert again.meta == first.meta == anew.meta


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("once")
    return steps_and_kernels(folder).save(folder / "run")


@pytest.fixture
def saved(saved_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_once, tmp_path / "run"))


def planted(saved: Path) -> None:
    """Write what no analysis gives into the saved tables."""
    ops = pd.read_parquet(saved / "table_ops.parquet")
    ops.assign(calls=pd.array([77.0] * len(ops), dtype="Float64")).to_parquet(saved / "table_ops.parquet")


def test_nothing_is_computed_where_a_table_was_saved(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(saved)
    profile = perfnb.load(saved)
    for name in ("Analysis", "summarize", "event_table", "kernel_table", "gpu_time"):
        monkeypatch.setattr(profile_module, name, None)

    assert (profile.ops["calls"] == 77).all()
    assert all(len(getattr(profile, name).columns) for name in TABLES)
    assert "_recording" not in vars(profile)


@pytest.mark.slow
def test_tables_of_another_analysis_are_computed_again(saved: Path) -> None:
    planted(saved)
    content = json.loads((saved / "profile.json").read_text("utf-8"))
    assert content["meta"]["tables_made_by"] == analysis_version()
    content["meta"]["tables_made_by"] = "another"
    (saved / "profile.json").write_text(json.dumps(content))

    assert (perfnb.load(saved).ops["calls"] == 1).all()


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(path.read_bytes()[:300]),
        lambda path: pd.DataFrame({"calls": [1.0]}).to_parquet(path),
        lambda path: pd.read_parquet(path).astype({"calls": "float32"}).to_parquet(path),
        lambda path: pd.read_parquet(path).rename_axis("operator").to_parquet(path),
    ],
    ids=["missing", "cut off", "other columns", "other types", "other index"],
)
def test_a_table_that_is_not_as_it_was_is_not_used(saved: Path, damage: Callable[[Path], object]) -> None:
    assert SavedProfile(saved).table("ops", analysis_version()) is not None
    damage(saved / "table_ops.parquet")
    assert SavedProfile(saved).table("ops", analysis_version()) is None


@pytest.mark.slow
def test_what_becomes_of_the_folder_after_loading_does_not_matter(saved: Path) -> None:
    profile, events = perfnb.load(saved), perfnb.load(saved).events
    shutil.rmtree(saved)

    pd.testing.assert_frame_equal(profile.events, events)
    assert "aten::mm" in str(profile) + " ".join(profile.ops.index)
    assert len(profile.steps) == 2


def test_each_access_gives_a_table_that_may_be_changed(saved: Path) -> None:
    profile = perfnb.load(saved)
    events, ops = profile.events, profile.ops

    events["start_ns"] += 1
    events.loc[:, "device"] = 7
    ops.iloc[0, 0] = -1.0

    assert (profile.events["start_ns"] == events["start_ns"] - 1).all()
    assert (profile.ops["calls"] > 0).all()


def test_ranks_keep_their_tables_too(tmp_path: Path) -> None:
    files = [Written().step(0, 0, 90).op("aten::mm", 0, 10).write(tmp_path / f"rank{n}.json") for n in range(2)]
    ranks = perfnb.load(perfnb.load(files).save(tmp_path / "run"))

    assert list(ranks.ops["rank"]) == [0, 1]
    assert all("_recording" not in vars(profile) for profile in ranks)


def test_the_version_of_the_analysis_changes_with_its_code(tmp_path: Path) -> None:
    package = Path(perfnb.__file__).parent
    modules = [name for room in ROOMS for name in (f"{room}.py", f"{room}/__init__.py") if (package / name).is_file()]
    for name in ROOMS:
        if (package / name).is_dir():
            shutil.copytree(package / name, tmp_path / name)
        else:
            shutil.copy(package / f"{name}.py", tmp_path)

    versions = [analysis_version.__wrapped__(tmp_path)]
    for module in modules:
        with (tmp_path / module).open("a") as file:
            file.write("\n")
        versions.append(analysis_version.__wrapped__(tmp_path))

    assert versions[0] == analysis_version()
    assert None not in versions
    assert len(set(versions)) == len(versions) == 1 + len(ROOMS)
    assert analysis_version(tmp_path / "nowhere") is None
