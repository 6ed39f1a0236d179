"""A watch's readings as frames: names, types, what is missing, and marks one inside the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfnb.errors import RecordingError
from perfnb.recording.samples import watch_record
from perfnb.recording.saved_profile import SavedProfile
from perfnb.telemetry.history import MOST_MARKS, Marks, WatchMark
from perfnb.watching.saved import WATCH, load_watch, save_watch

NAN = float("nan")
META = {"interval_s": 0.5, "devices": {"host": {}}, "absent": {}, "notes": [], "ticks": 2, "missed": 0}


def columns(**metrics: list[float]) -> dict[str, np.ndarray]:
    length = len(next(iter(metrics.values())))
    own = {
        "t_s": np.arange(length) * 0.5,
        "window_s": np.array([NAN, *[0.5] * (length - 1)]),
        "read_ms": np.ones(length),
        "late_ms": np.zeros(length),
        "missed_ticks": np.zeros(length),
        "readings": np.ones(length),
    }
    return own | {name: np.array(values, dtype=float) for name, values in metrics.items()}


def test_what_was_not_read_is_missing_and_the_rows_are_in_order_of_time() -> None:
    record = watch_record(
        {"host": columns(cpu_percent=[NAN, 50.0, 60.0]), "gpu0": columns(power_w=[NAN, NAN, 70.0])}, []
    )
    samples = record.samples
    assert list(samples["device"]) == ["host", "gpu0"] * 3
    host = samples[samples["device"] == "host"]
    assert host["cpu_percent"].tolist() == [pd.NA, 50.0, 60.0]
    assert host["power_w"].isna().all()
    assert samples["cpu_percent"].dtype == "Float64"
    assert host["window_s"].isna().tolist() == [True, False, False]
    assert record.marks.empty


def test_throttle_reasons_are_words() -> None:
    samples = watch_record({"gpu0": columns(throttle_reasons=[0, 0x4, 0x4 | 0x8, NAN])}, []).samples
    assert samples["throttle_reasons"].isna().tolist() == [False, False, False, True]
    assert samples["throttle_reasons"].tolist()[:3] == ["", "SwPowerCap", "HwSlowdown, SwPowerCap"]


def test_a_reading_has_the_innermost_mark_around_it() -> None:
    marks = [WatchMark("cell 5", 0, 0.4, 1.6), WatchMark("epoch 1", 1, 0.9, 1.1), WatchMark("cell 6", 0, 2.0, None)]
    samples = watch_record({"host": columns(load=[0.0] * 6)}, marks, shift_s=10.0).samples
    assert samples["mark"].isna().tolist() == [True, False, False, False, False, False]
    assert samples["mark"].tolist()[1:] == ["cell 5", "epoch 1", "cell 5", "cell 6", "cell 6"]
    assert samples["t_s"].iloc[0] == 10.0


def test_marks_nest_and_are_bounded() -> None:
    marks = Marks()
    outer = marks.start("outer", 0.0)
    for number in range(MOST_MARKS + 5):
        marks.end(marks.start(f"step {number}", float(number)), number + 0.5)
    marks.end(outer, 1e6)
    marks.end(outer, 2e6)  # has ended
    kept = marks.all()
    assert len(kept) <= MOST_MARKS
    assert marks.dropped > 0
    assert kept[0].name == "outer"
    assert kept[0].end_s == 1e6
    assert {mark.depth for mark in kept[1:]} == {1}


def test_a_saved_watch_comes_back(tmp_path: Path) -> None:
    record = watch_record({"host": columns(load=[0.0, 1.0])}, [WatchMark("cell 1", 0, 0.0, None)])
    path = save_watch(record, META, tmp_path / "w")
    assert WATCH.is_at(path)
    loaded, facts = load_watch(path)
    pd.testing.assert_frame_equal(loaded.samples, record.samples)
    pd.testing.assert_frame_equal(loaded.marks, record.marks)
    assert facts == META
    with pytest.raises(RecordingError, match="is not a saved perfnb profile"):
        SavedProfile(path).recording()
    (path / "samples.parquet").write_bytes(b"PAR1")
    with pytest.raises(RecordingError, match=r"samples\.parquet is damaged"):
        load_watch(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("devices", []),
        ("devices", {"host": 3}),
        ("interval_s", "x"),
        ("interval_s", 0),
        ("absent", []),
        ("notes", "a"),
        ("ticks", None),
        ("exact", {"host": 1}),
    ],
)
def test_a_saved_watch_with_odd_facts_is_refused(tmp_path: Path, name: str, value: object) -> None:
    record = watch_record({"host": columns(load=[0.0, 1.0])}, [])
    path = save_watch(record, META | {name: value}, tmp_path / "w")
    with pytest.raises(RecordingError, match=r"watch\.json is damaged: .* at `meta\.\w+"):
        load_watch(path)


@pytest.mark.parametrize(
    ("frame", "column", "value"),
    [
        ("samples", "t_s", NAN),
        ("samples", "t_s", float("inf")),
        ("samples", "readings", -1),
        ("samples", "load", "many"),
        ("marks", "start_s", None),
        ("marks", "depth", -1),
    ],
)
def test_a_saved_watch_with_odd_numbers_is_refused(tmp_path: Path, frame: str, column: str, value: object) -> None:
    record = watch_record({"host": columns(load=[0.0, 1.0])}, [WatchMark("cell 1", 0, 0.0, None)])
    path = save_watch(record, META, tmp_path / "w")
    changed = getattr(record, frame).astype({column: "object"})
    changed[column] = value
    changed.to_parquet(path / f"{frame}.parquet")
    with pytest.raises(RecordingError, match="is damaged"):
        load_watch(path)


def test_a_saved_number_that_is_none_is_missing(tmp_path: Path) -> None:
    record = watch_record({"host": columns(load=[0.0, 1.0])}, [])
    record.samples["load"] = [float("inf"), 1.0]
    loaded, _ = load_watch(save_watch(record, META, tmp_path / "w"))
    assert loaded.samples["load"].isna().tolist() == [True, False]
