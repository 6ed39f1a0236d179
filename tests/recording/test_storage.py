"""A saved profile is the same when it is loaded, is written whole or not at all, and is open to other tools."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow.parquet
import pytest
import torch

import perfnb
from perfnb import labs
from perfnb.errors import LabError, PerfnbError, RecordingError
from perfnb.files import write_text
from perfnb.recording.store import VERSION
from tests.step.models import three_linears, training_step

TABLES = ("layers", "phases", "steps", "ops", "layer_ops", "kernels", "gpu_time", "events")


@pytest.fixture(scope="module")
def profile() -> perfnb.Profile:
    step = training_step(three_linears(), torch.ones(4, 8))
    return perfnb.profile_step(step, warmup=1, steps=6, traced=2, name="größe/<b>")


@pytest.fixture
def saved(profile: perfnb.Profile, tmp_path: Path) -> Path:
    return profile.save(tmp_path / "run")


@pytest.mark.slow
def test_all_tables_and_figures_come_back_also_a_second_time(
    profile: perfnb.Profile, saved: Path, tmp_path: Path
) -> None:
    again = perfnb.load(saved)
    second = perfnb.load(again.save(tmp_path / "second"))

    for table in TABLES:
        for loaded in (again, second):
            pd.testing.assert_frame_equal(getattr(loaded, table), getattr(profile, table))
    assert again.timing == profile.timing
    assert again.meta == profile.meta
    assert str(again) == str(profile)


@pytest.mark.slow
def test_a_step_without_allocations_comes_back(tmp_path: Path) -> None:
    profile = perfnb.profile_step(lambda: None, warmup=1, steps=1, traced=1)

    assert str(perfnb.load(profile.save(tmp_path / "run"))) == str(profile)


def test_the_files_are_open_to_other_tools(profile: perfnb.Profile, saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == [
        *("arithmetic_calls.parquet", "arithmetic_events.parquet", "events.parquet", "memory_changes.parquet"),
        *("memory_events.parquet", "memory_known.parquet", "memory_resident.parquet", "modules.parquet"),
        *("profile.json", "spans.parquet", "steps.parquet", "table_events.parquet", "table_gpu_time.parquet"),
        *("table_kernels.parquet", "table_layer_ops.parquet", "table_layers.parquet", "table_ops.parquet"),
        "table_phases.parquet",
    ]
    events = pyarrow.parquet.read_table(saved / "events.parquet")
    assert events.num_rows == len(profile.events)
    assert {"name", "start_ns", "duration_ns"} <= set(events.column_names)
    assert str(events.schema.field("start_ns").type) == "int64"
    content = json.loads((saved / "profile.json").read_text("utf-8"))
    assert content["format"] == "perfnb"
    assert content["version"] == VERSION
    assert content["meta"]["name"] == "größe/<b>"


def test_a_folder_is_made_where_it_is_missing_and_may_be_empty_and_given_as_text(
    profile: perfnb.Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "empty").mkdir()

    assert profile.save(str(tmp_path / "a" / "b" / "run")) == tmp_path / "a" / "b" / "run"
    assert profile.save("~/run") == tmp_path / "run"
    assert profile.save(tmp_path / "empty") == tmp_path / "empty"
    for path in (str(tmp_path / "a" / "b" / "run"), "~/run", tmp_path / "empty"):
        assert perfnb.load(path).timing == profile.timing


def test_an_earlier_profile_is_replaced_whole(profile: perfnb.Profile, saved: Path) -> None:
    (saved / "spans.parquet").unlink()

    profile.save(saved)

    assert perfnb.load(saved).timing == profile.timing
    assert [path.name for path in saved.parent.iterdir()] == ["run"]


@pytest.mark.parametrize(("owner", "name", "fails_at"), [(pd.DataFrame, "to_parquet", 1), (os, "replace", 2)])
def test_an_earlier_profile_stays_if_a_file_or_the_folder_cannot_be_written(
    profile: perfnb.Profile, saved: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, fails_at: int
) -> None:
    write, calls = getattr(owner, name), []

    def fails_once(*given: object, **named: object) -> None:
        calls.append(given)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        write(*given, **named)

    monkeypatch.setattr(owner, name, fails_once)
    with pytest.raises(RecordingError, match="No space left on device"):
        profile.save(saved)

    assert perfnb.load(saved).timing == profile.timing
    assert [path.name for path in saved.parent.iterdir()] == ["run"]


def _foreign_json(path: Path) -> None:
    path.mkdir()
    (path / "profile.json").write_text('{"mine": 1}')


def _notes_beside_a_profile(path: Path) -> None:
    path.mkdir()
    (path / "profile.json").write_text('{"format": "perfnb", "version": 1, "meta": {}}')
    (path / "notes.txt").write_text("mine")


@pytest.mark.parametrize(
    "make",
    [_foreign_json, _notes_beside_a_profile, lambda path: path.write_text("mine")],
    ids=["json", "notes", "file"],
)
def test_something_else_is_never_overwritten(
    profile: perfnb.Profile, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    path = tmp_path / "mine"
    make(path)
    before = sorted(path.rglob("*"))

    with pytest.raises(
        RecordingError, match=r"is not just a perfnb profile: choose another path, or remove it first\.$"
    ) as caught:
        profile.save(path)

    assert str(path) in str(caught.value)
    assert sorted(path.rglob("*")) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_one_error_that_names_it(profile: perfnb.Profile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for save in (profile.save, profile.to_html):
        with pytest.raises(RecordingError, match="cannot be written") as caught:
            save(tmp_path / "file" / "run")
        assert str(tmp_path / "file" / "run") in str(caught.value)


FILES = ("events.parquet", "steps.parquet", "modules.parquet", "spans.parquet", "profile.json")
DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(os.urandom(500)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_one_error_that_names_it(saved: Path, file: str, damage: Callable[[Path], object]) -> None:
    damage(saved / file)

    with pytest.raises(RecordingError) as caught:
        perfnb.load(saved)

    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)


WRONG = ["[]", "3", "null", "{}", '{"version": 1}', '{"version": "x", "meta": {}}', '{"version": 1, "meta": 3}']


@pytest.mark.slow
@pytest.mark.parametrize("text", WRONG)
def test_a_profile_json_of_another_shape_is_damaged(saved: Path, text: str) -> None:
    (saved / "profile.json").write_text(text)

    with pytest.raises(RecordingError, match=r"profile\.json is damaged"):
        perfnb.load(saved)


def test_a_newer_form_asks_for_a_newer_perfnb(saved: Path) -> None:
    content = json.loads((saved / "profile.json").read_text("utf-8"))
    (saved / "profile.json").write_text(json.dumps(content | {"version": 99}))

    with pytest.raises(
        RecordingError, match=r"saved by a newer perfnb \(format 99, this one reads 1\); update perfnb\.$"
    ):
        perfnb.load(saved)


def test_a_path_without_a_profile_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"contains neither a saved profile \(no profile\.json\) nor traces"):
        perfnb.load(tmp_path)
    with pytest.raises(RecordingError, match=r"missing does not exist\.$"):
        perfnb.load(tmp_path / "missing")


@pytest.mark.parametrize("write", [lambda path: write_text("text", path), labs.export], ids=["page", "results"])
def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    """As /dev/null would be, for everyone, where root asks for it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(PerfnbError, match="it is a folder, a pipe or a device"):
        write(pipe)

    assert pipe.is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_results_are_not_written_to_a_path_that_can_be_none() -> None:
    with pytest.raises(LabError, match="The results could not be written to"):
        labs.export("a\0b")
