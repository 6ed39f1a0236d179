"""The frames of a recording have the columns and types of one schema, wherever they come from."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

import perfnb
from perfnb.recording.raw_frames import RAW_FRAMES, frame_of_rows, raw_frame
from perfnb.recording.recording import Recording
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


def test_a_live_step_and_what_is_saved_of_it(tmp_path: Path) -> None:
    model, x = three_linears(), torch.ones(4, 8)
    p = perfnb.profile_step(training_step(model, x), warmup=1, steps=2, traced=2, stacks=True, watch=True)

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
    p = perfnb.profile_step(lambda: model().backward(), warmup=1, steps=2, traced=1)

    loaded = perfnb.load(p.save(tmp_path / "saved"))

    assert r"odd\udc80" in loaded.allocations["name"].tolist()


@pytest.mark.parametrize("name", RAW_FRAMES)
def test_a_frame_without_rows_has_its_types(name: str) -> None:
    frame = frame_of_rows(name, []).reset_index()

    for column, kind in RAW_FRAMES[name].items():
        assert frame[column].dtype == kind.dtype


def test_columns_that_the_schema_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="frame 'spans' has the columns span, layer, loss, derived, not span, layer"):
        raw_frame("spans", {"span": [0], "layer": [0]})
    with pytest.raises(ValueError, match="same length"):
        raw_frame("spans", {"span": [0, 1], "layer": [0], "loss": [True, False], "derived": [False, False]})
    assert raw_frame("spans", {"derived": [False], "loss": [True], "layer": [2], "span": [5]}).equals(
        pd.DataFrame({"layer": [2], "loss": [True], "derived": [False]}, index=pd.Index([5], name="span"))
    )
