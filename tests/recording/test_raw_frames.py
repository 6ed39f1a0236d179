"""The frames of a recording have the columns and types of one schema, wherever they come from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import perfnb
from perfnb.errors import RecordingError
from perfnb.recording import frame_files, saved_profile
from perfnb.recording.frame_files import FrameFile, SavedColumn
from perfnb.recording.raw_frames import RAW_FRAMES, frame_of_rows, frame_of_schema, raw_frame
from perfnb.recording.recording import PythonRecord, Recording
from perfnb.recording.saved_profile import SavedProfile
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT
from tests.recordings import ByHand
from tests.step.models import three_linears, training_step
from tests.written_traces import training


def assert_as_declared(recording: Recording) -> None:
    for name, frame in recording.frames().items():
        if name.startswith("watch_"):  # its frames are those of `SCHEMA`
            continue
        columns = {column: kind for column, kind in RAW_FRAMES[name].items() if not kind.index}
        wanted = [column for column, kind in columns.items() if kind.needed or column in frame]
        assert frame.columns.tolist() == wanted, name
        for column in wanted:
            assert frame[column].dtype == columns[column].dtype, (name, column)
        assert frame.index.names == ([one for one, kind in RAW_FRAMES[name].items() if kind.index] or [None]), name


@pytest.mark.slow
def test_a_live_step_and_what_is_saved_of_it(tmp_path: Path) -> None:
    model, x = three_linears(), torch.ones(4, 8)
    p = perfnb.profile_step(training_step(model, x), warmup=1, steps=1, traced=1, stacks=True, watch=True)

    assert_as_declared(p._recording)
    assert {name.partition("_")[0] for name in p._recording.frames()} >= {"memory", "arithmetic", "watch", "python"}
    assert_as_declared(perfnb.load(p.save(tmp_path / "saved"))._recording)


def test_a_trace_with_memory_and_modules(tmp_path: Path) -> None:
    trace = training().memory(30, 512, 512).op("aten::mm", 1200, 1300)
    loaded = perfnb.load(trace.write(tmp_path / "trace.json"))._recording

    assert {"modules", "outside", "trace_memory"} <= loaded.frames().keys()
    assert len(loaded.modules)
    assert_as_declared(loaded)
    assert_as_declared(perfnb.load(perfnb.Profile(loaded).save(tmp_path / "saved"))._recording)


def test_a_name_that_utf_8_cannot_encode_can_be_saved(tmp_path: Path) -> None:
    """That of a parameter, among the blocks of memory with an owner."""
    model = torch.nn.Module()
    model.register_parameter("odd\udc80", torch.nn.Parameter(torch.ones(8)))
    model.forward = lambda: model.get_parameter("odd\udc80").sum()  # type: ignore[method-assign]
    p = perfnb.profile_step(lambda: model().backward(), warmup=1, steps=1, traced=1)

    loaded = perfnb.load(p.save(tmp_path / "saved"))

    assert r"odd\udc80" in loaded.allocations["name"].tolist()


@pytest.mark.parametrize("name", RAW_FRAMES)
def test_a_frame_without_rows_has_its_types(name: str) -> None:
    frame = frame_of_rows(name, []).reset_index()

    for column, kind in RAW_FRAMES[name].items():
        assert frame[column].dtype == kind.dtype


def test_a_table_of_the_schema_needs_all_columns_or_those_given() -> None:
    whole, part = frame_of_schema("marks"), frame_of_schema("marks", {"name": SavedColumn(TEXT)})

    assert whole.keys() == part.keys()
    assert {(kind.needed, kind.missing) for kind in whole.values()} == {(True, True)}
    assert part["name"] == SavedColumn(TEXT)
    assert {(kind.needed, kind.missing) for name, kind in part.items() if name != "name"} == {(False, True)}
    assert frame_of_schema("ops")["op"] == SavedColumn(TEXT, missing=True, index=True)


def test_columns_that_the_schema_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="frame 'spans' has the columns span, layer, loss, derived, not span, layer"):
        raw_frame("spans", {"span": [0], "layer": [0]})
    with pytest.raises(ValueError, match="same length"):
        raw_frame("spans", {"span": [0, 1], "layer": [0], "loss": [True, False], "derived": [False, False]})
    assert raw_frame("spans", {"derived": [False], "loss": [True], "layer": [2], "span": [5]}).equals(
        pd.DataFrame({"layer": [2], "loss": [True], "derived": [False]}, index=pd.Index([5], name="span"))
    )


FROM_0_TO_9 = SavedColumn("int64", low=0, high=9)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        (FROM_0_TO_9, [0, 9, 5], None),
        (FROM_0_TO_9, [5, -1], r"an out-of-range value \(-1\)"),
        (FROM_0_TO_9, [10, 5], r"an out-of-range value \(10\)"),
        (FROM_0_TO_9, [5, None], "missing values"),
        (FROM_0_TO_9, ["5"], "an unexpected type"),
        (FROM_0_TO_9, [0.5], "an unexpected type"),
        (FROM_0_TO_9, [[5]], "contains lists"),
        (SavedColumn("int64"), [-(2**63), 2**63 - 1], None),
        (SavedColumn("Int64", missing=True, low=2), [2, None], None),
        (SavedColumn("Int64", missing=True, low=2), [None, 1], "out-of-range"),
        (SavedColumn("Int64"), [None, 1], "missing values"),
        (SavedColumn(TEXT, missing=True), [None, None], None),
        (SavedColumn("float64", low=0, high=1), [0.0, 1.0], None),
        (SavedColumn("float64", low=0, high=1), [0.0, 1.5], "out-of-range"),
        (SavedColumn("float64"), [0.0, float("nan")], "missing values"),
        (SavedColumn("Float64", missing=True), [0.5, None, float("nan")], None),
        (SavedColumn("bool"), [True, False], None),
        (SavedColumn("bool"), [1, 0], "an unexpected type"),
        (SavedColumn("category"), ["a", "b", "a"], None),
        (SavedColumn("category"), ["a", None], "missing values"),
        (SavedColumn(TEXT), ["a", "a"], None),
        (SavedColumn(TEXT), [5], "an unexpected type"),
        (SavedColumn(TEXT, missing=True), ["a", None], None),
        (SavedColumn("int64", index=True), [3, 1], None),
        (SavedColumn("int64", index=True), [3, 3], "a number twice"),
        (SavedColumn(TEXT, index=True), ["a", "a"], None),
    ],
)
def test_a_column_is_as_declared_or_damage(
    tmp_path: Path, column: SavedColumn, values: list[Any], why: str | None, statistics: bool
) -> None:
    """Whether its file has figures of its values, and whether only these or its values are looked at."""
    path = tmp_path / "frame.parquet"
    pq.write_table(pa.table({"a": values}), path, write_statistics=statistics, row_group_size=1)
    file = FrameFile(path, {"a": column})

    assert file.rows() == len(values) if why != "contains lists" else True
    for read in (file.check, file.frame):
        if why is None:
            read()
        elif read == file.frame or why != "a number twice" or not statistics:
            with pytest.raises(RecordingError, match=rf"frame\.parquet is damaged: its column 'a' .*{why}"):
                read()
    if why is None:
        frame = file.frame().reset_index()
        assert frame["a"].dtype == column.dtype
        assert [None if pd.isna(one) else one for one in frame["a"]] == [None if pd.isna(v) else v for v in values]


def test_columns_may_be_absent_if_they_are_not_needed_and_rows_are_then_numbered(tmp_path: Path) -> None:
    path = tmp_path / "frame.parquet"
    pq.write_table(pa.table({"b": [5, 6], "other": ["x", "y"]}), path)
    optional = {"a": SavedColumn("int64", needed=False), "b": FROM_0_TO_9}

    assert FrameFile(path, optional).frame().to_dict("list") == {"b": [5, 6]}
    pd.DataFrame({"b": pd.array([5], "Int64")}).to_parquet(tmp_path / "notes.parquet")  # pandas' notes are ignored
    assert FrameFile(tmp_path / "notes.parquet", optional).frame()["b"].dtype == "int64"
    with pytest.raises(RecordingError, match="it has no column 'a'"):
        FrameFile(path, {"a": FROM_0_TO_9}).check()
    for kind in ("int64", TEXT):
        frame = FrameFile(path, {"b": FROM_0_TO_9, "n": SavedColumn(kind, needed=False, index=True)}).frame()
        assert frame.index.name == "n"
        assert frame.index.tolist() == [0, 1]
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 2, names=["b", "b"]), path)
    with pytest.raises(RecordingError, match="it has the column 'b' twice"):
        FrameFile(path, optional).frame()
    with pytest.raises(RecordingError, match=r"gone\.parquet cannot be read"):
        FrameFile(tmp_path / "gone.parquet", optional)


def test_a_narrower_limit_holds_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "frame.parquet"
    pq.write_table(pa.table({"a": [5, 6], "b": [9, 9]}), path)
    file = FrameFile(path, {"a": FROM_0_TO_9, "b": FROM_0_TO_9})

    file.check(a=6)
    for read in (lambda: file.check(a=5), file.frame, file.check):
        with pytest.raises(RecordingError, match=r"its column 'a' contains an out-of-range value \(6\)"):
            read()
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), path)
    FrameFile(path, {"a": FROM_0_TO_9}).check(a=-1)


def test_a_files_rows_and_its_size_in_memory_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "frame.parquet"
    pq.write_table(pa.table({"a": np.zeros(5_000, dtype=np.int64)}), path, row_group_size=2_000, use_dictionary=False)
    metadata, size = pq.read_metadata(path), path.stat().st_size
    unpacked = sum(metadata.row_group(place).total_byte_size for place in range(3))

    def allowed(**limits: int) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in limits.items():
                patch.setattr(frame_files, name, value)
            try:
                return FrameFile(path, {"a": FROM_0_TO_9}).rows() == 5_000
            except RecordingError as error:
                return "it claims to" not in str(error)

    for name, least in (("_MOST_ROWS", 5_000), ("_ROWS_OF_ANY", 5_000 - size)):
        assert [allowed(**{name: least + more}) for more in (-1, 0)] == [False, True]
    for ratio in (0, 2):
        limit = unpacked - ratio * size
        assert [allowed(_MOST_RATIO=ratio, _SIZE_OF_ANY=limit + more) for more in (-1, 0)] == [False, True]


def tree(*parents: int) -> PythonRecord:
    rows = [(parent, "own", "f", "a.py", 1, "", 0, 0) for parent in parents]
    return PythonRecord(frame_of_rows("python_tree", rows))


@pytest.fixture(scope="module")
def saved_by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile of two layers, one in the other, with a call each, blocks of memory and Python functions."""
    hand = ByHand().step(0, 100).block(1, 9, 64, 10).known(1, 64, 10, "gradients")
    outer = hand.layer("outer")
    hand.call(outer, 10, 90).call(hand.layer("inner", outer), 20, 80)
    recording = hand.recording(python={"steps": 1, "samples": 3})
    return saved_profile.save(replace(recording, python=tree(-1, 0)), tmp_path_factory.mktemp("saved") / "run")


@pytest.mark.parametrize(
    ("frame", "column", "values"),
    [
        ("modules", "parent", [-1, 1]),
        ("modules", "parent", [0, 0]),
        ("modules", "parent", [-1, 7]),
        ("modules", "depth", [0, 0]),
        ("modules", "depth", [1, 2]),
        ("spans", "layer", [0, 2]),
        ("spans", "layer", [0, -2]),
        ("events", "span", [2, -1, -1, -1]),
        ("python_tree", "parent", [-1, 1]),
        ("memory_known", "layer", [2]),
        ("memory_changes", "event", [0, 5]),
        ("memory_events", "duration_ns", [-1]),
    ],
)
def test_a_row_that_refers_to_none_is_damage(
    saved_by_hand: Path, tmp_path: Path, frame: str, column: str, values: list[Any]
) -> None:
    saved = shutil.copytree(saved_by_hand, tmp_path / "run")
    file = saved / f"{frame}.parquet"
    table = pd.read_parquet(file)
    kind: Any = table[column].dtype
    table[column] = np.resize(np.array(values, dtype=kind), len(table))
    table.to_parquet(file)

    with pytest.raises(RecordingError, match=rf"{frame}\.parquet is damaged: its column '{column}' "):
        SavedProfile(saved)


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({"python": None}, "meta.python"),
        ({"failure": "it failed"}, "meta.failed_in"),
        ({"options": {"budget_s": 1.0}}, "meta.options.warmup"),
        ({"options": {"warmup": 1}}, "meta.options.budget_s"),
    ],
)
def test_facts_without_those_that_they_depend_on_are_damage(
    saved_by_hand: Path, tmp_path: Path, changes: dict[str, Any], lacking: str
) -> None:
    saved = shutil.copytree(saved_by_hand, tmp_path / "run")
    content = json.loads((saved / "profile.json").read_text("utf-8"))
    content["meta"] = {key: value for key, value in (content["meta"] | changes).items() if value is not None}
    (saved / "profile.json").write_text(json.dumps(content))

    with pytest.raises(RecordingError, match=rf"profile\.json is damaged: it does not contain {lacking}\."):
        SavedProfile(saved)


def test_a_profile_of_another_rank_has_no_tables_of_the_old_one(tmp_path: Path) -> None:
    recording = ByHand().step(0, 100).op("aten::mm", 10, 20).recording(rank=3)
    ops = conform(pd.DataFrame({"calls": [2.0]}, index=pd.Index(["aten::mm"], dtype=TEXT)), "ops")
    saved = SavedProfile(saved_profile.save(recording, tmp_path / "run", {"ops": ops}, made_by="a"))
    unmarked = SavedProfile(saved_profile.save(recording, tmp_path / "unmarked", {"ops": ops}))

    assert saved.of_rank(3) is saved
    assert (saved.of_rank(5).meta["rank"], saved.meta["rank"]) == (5, 3)
    assert saved.of_rank(5).recording().rank == 5
    found = saved.table("ops", "a")
    assert found is not None
    pd.testing.assert_frame_equal(found, ops)
    assert all(one is None for one in (saved.table("ops", "b"), saved.table("ops", None), saved.table("layers", "a")))
    assert saved.of_rank(5).table("ops", "a") is None
    assert unmarked.table("ops", None) is None
    saved.meta["reduced"] = True
    assert saved.table("ops", None) is not None
    with pytest.raises(RecordingError, match="contains only tables, and layers cannot be read"):
        saved.table("layers", "b")
    assert saved.table("events", "b") is None
