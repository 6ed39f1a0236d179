"""A trace that perfnb writes: it opens elsewhere, and loads to the tables of the profile it is from."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import perfnb
from perfnb.errors import RecordingError
from perfnb.recording.from_trace import layers_read, layers_written
from tests.recordings import ByHand
from tests.timeline.test_timeline import training as by_hand
from tests.trace.test_odd_names import HAS_EXACT
from tests.written_traces import BACKWARD, MAIN, Written, training

TABLES = ("phases", "layers", "layer_ops", "ops", "kernels", "gpu_time")

#: An older torch cannot export a range that is called so.
RANGE = 'quoted "é" \\ 名' if HAS_EXACT else "a range"


def events_of(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]


def again(profile: perfnb.Profile, path: Path) -> perfnb.Profile:
    loaded = perfnb.load(profile.save_trace(path))
    assert isinstance(loaded, perfnb.Profile)
    return loaded


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what a trace alone tells: no shares, which are corrected for tracing, and nothing of other passes."""
    others = ("flops", "bytes", "share")
    kept = frame[[name for name in frame.columns if not any(word in name for word in others)]]
    return kept.sort_values(list(kept.columns), kind="stable") if "op" in kept else kept.sort_index(kind="stable")


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function(RANGE):
            return self.second(torch.relu(self.first(x)))


@pytest.fixture(scope="module")
def profile() -> perfnb.Profile:
    torch.manual_seed(0)
    net = Wide()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y, loss_fn = torch.randn(4, 8), torch.randn(4, 2), nn.MSELoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_fn(net(x), y).backward()
        optimizer.step()

    return perfnb.profile_step(step, warmup=2, steps=2, traced=2, flops=False)


@pytest.mark.slow
def test_a_live_profile_comes_back_with_its_layers_and_times(profile: perfnb.Profile, tmp_path: Path) -> None:
    loaded = again(profile, tmp_path / "trace.json.gz")

    assert loaded.layers.index.tolist() == profile.layers.index.tolist()
    assert loaded.layers["module"].tolist()[:3] == ["Wide", "Linear", "Linear"]
    for table in TABLES:
        pd.testing.assert_frame_equal(
            measured(getattr(loaded, table)), measured(getattr(profile, table)), check_dtype=False
        )
    columns = ["start_ns", "duration_ns", "thread", "layer", "phase"]
    of_both = [one.events[columns].astype({"layer": "str", "phase": "str"}) for one in (loaded, profile)]
    pd.testing.assert_frame_equal(*of_both)
    assert not [note for note in loaded._summary.notes if "do not name modules" in note]


@pytest.mark.slow
def test_all_of_a_live_profile_is_on_its_timeline(profile: perfnb.Profile) -> None:
    line = profile._timeline()

    assert line is not None
    on_tracks = sum(track.count for track in line.tracks if track.kind in ("thread", "stream"))
    assert on_tracks == len(profile.events)
    (phases,) = line.of("phases")
    rows = line.rows_on(phases)
    sums = rows.groupby([line.kinds[code] for code in rows["kind"]])["duration"].sum() / 2e6
    assert sums.to_dict() == pytest.approx(profile.phases.loc[profile.phases["ms"] > 0, "ms"].to_dict())
    (curve,) = line.memory
    assert curve.note.endswith("aligned by op")


def test_layers_and_phases_are_tracks_with_readable_names(profile: perfnb.Profile, tmp_path: Path) -> None:
    events = events_of(profile.save_trace(tmp_path / "trace.json"))

    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    derived = [event for event in events if event.get("cat") == "perfnb"]
    by_track: dict[str, set[str]] = {}
    for event in derived:
        by_track.setdefault(named[event["pid"], event["tid"]], set()).add(event["name"])
    assert by_track["Steps"] == {"step 0", "step 1"}
    assert {"forward", "loss", "backward", "optimizer"} <= by_track["Phases"]
    assert {"net", "first", "second"} <= by_track["Layers"]
    assert {e["args"]["layer"] for e in derived if e["name"] == "second"} == {"net.second"}
    curves = [event for event in events if event["ph"] == "C"]
    assert len(curves) == 2 * len(profile.memory)
    assert {event["name"] for event in curves} == {"Memory, CPU"}


def test_marks_of_perfnb_have_readable_names_and_are_found_again(profile: perfnb.Profile, tmp_path: Path) -> None:
    path = profile.save_trace(tmp_path / "trace.json")

    events = events_of(path)
    names = {event["name"] for event in events}
    assert not [name for name in names if name.startswith("pf")]
    assert RANGE in names
    assert {"step 0", "step 1", "net.first"} <= {event["name"] for event in events if event.get("cat") == "cpu_op"}
    loaded = perfnb.load(path)
    assert isinstance(loaded, perfnb.Profile)
    assert loaded.steps["step"].tolist() == [0, 1]
    twice = again(loaded, tmp_path / "twice.json")
    pd.testing.assert_frame_equal(twice.events, loaded.events, check_categorical=False)
    again_named = {event["name"] for event in events_of(tmp_path / "twice.json") if event["ph"] == "X"}
    assert again_named == {event["name"] for event in events if event["ph"] == "X"}


def test_what_processes_and_old_streams_are_is_kept_and_all_events_have_a_thread(tmp_path: Path) -> None:
    trace = training(1)
    for pid, labels in ((MAIN, "CPU"), (0, "GPU 0")):
        trace.events.append({"ph": "M", "name": "process_labels", "pid": pid, "args": {"labels": labels}})
    trace.event("Context Sync", 10, 20, "cuda_sync", -1, 0)
    for event in trace.events:
        event["tid"] = "stream 7" if event.get("cat") == "kernel" else event.get("tid")
    profile = perfnb.load(trace.write(tmp_path / "original.json"))
    assert isinstance(profile, perfnb.Profile)

    events = events_of(profile.save_trace(tmp_path / "trace.json"))

    assert [(e["pid"], e["args"]["labels"]) for e in events if e["name"] == "process_labels"] == [
        (MAIN, "CPU"), (0, "GPU 0")
    ]  # fmt: skip
    assert all("tid" in event for event in events if event["ph"] == "X")
    (kernels,) = {event["tid"] for event in events if event.get("cat") == "kernel"}
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named[0, kernels] == "GPU 0, stream 7"


def test_what_is_known_of_an_event_is_written_as_it_was(tmp_path: Path) -> None:
    trace = training(1)
    trace.event("aten::shaped", 90, 91, **{"Input Dims": [[4, 8], []], "External id": 5})
    group = {"Process Group Name": "0", "Collective name": "x"}
    trace.event("nccl:all_reduce", 92, 93, "user_annotation", **group)
    profile = perfnb.load(trace.write(tmp_path / "original.json"))
    assert isinstance(profile, perfnb.Profile)

    args = {
        event["name"]: event["args"] for event in events_of(profile.save_trace(tmp_path / "t.json")) if "args" in event
    }

    assert (args["aten::shaped"]["Input Dims"], args["aten::shaped"]["External id"]) == ([[4, 8], []], 5)
    assert {name: args["nccl:all_reduce"][name] for name in group} == group


def test_events_tell_their_layer_phase_and_step_and_layers_that_cross_have_lines_of_their_own(tmp_path: Path) -> None:
    made = by_hand().kernel("late", 1100, 2100, 2200).step(2000, 2500).op("aten::after", 2600, 2610)
    one, two = made.layer("one"), made.layer("two")
    made.call(one, 2010, 2100).op("aten::a", 2020, 2030, 11).call(two, 2110, 2150).op("aten::b", 2120, 2130, 12)
    made.node("A", 2200, 2300, 11, thread=5).node("B", 2250, 2350, 12, thread=6)

    events = events_of(perfnb.Profile(made.recording()).save_trace(tmp_path / "trace.json"))

    told = {
        event["name"]: tuple(event["args"].get(name) for name in ("layer", "phase", "step"))
        for event in events
        if event["ph"] == "X" and event["cat"] != "perfnb"
    }
    assert told["late"] == ("net.first", "forward", "step 0")  # the step that launched it
    assert told["aten::mse_loss"] == (None, "loss", "step 0")
    assert told["Optimizer.step#SGD.step"] == (None, "optimizer", "step 0")
    assert (told["one"], told["aten::after"]) == (("one", "forward", "step 1"), (None, "other", None))
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lines = {event["name"]: named[event["pid"], event["tid"]] for event in events if event.get("cat") == "perfnb"}
    assert {name: lines[name] for name in ("step 1", "forward", "one", "two")} == {
        **{"step 1": "Steps", "forward": "Phases", "one": "Layers 0", "two": "Layers 1"}
    }


@pytest.mark.parametrize(("process", "own"), [(MAIN, 10**9), (10**9, 10**9 + 1)])
def test_what_is_known_of_the_machine_is_kept_and_the_own_tracks_have_a_free_number(
    process: int, own: int, tmp_path: Path
) -> None:
    facts: dict[str, Any] = {"deviceProperties": [{"id": 0, "name": "A GPU"}], "distributedInfo": {"rank": 3}}
    trace = Written(process, **facts if process == MAIN else {}).step(1, 0, 100, tid=process)
    trace.op("aten::mm", 10, 20, tid=process)
    profile = perfnb.load(trace.write(tmp_path / "original.json"))
    assert isinstance(profile, perfnb.Profile)

    written = json.loads(profile.save_trace(tmp_path / "trace.json").read_bytes())

    assert {name: written[name] for name in facts if name in written} == (facts if process == MAIN else {})
    assert {event["pid"] for event in written["traceEvents"] if event.get("cat") == "perfnb"} == {own}


def test_arrows_lead_from_launch_to_kernel_and_from_forward_to_backward(tmp_path: Path) -> None:
    profile = perfnb.Profile(by_hand().kernel("gemm", 1100, 1500, 1600).recording())

    events = events_of(profile.save_trace(tmp_path / "trace.json"))

    begins, ends = ({e["id"]: e for e in events if e["ph"] == kind} for kind in "sf")
    assert begins.keys() == ends.keys()
    (launch,) = [number for number, event in begins.items() if event["cat"] == "ac2g"]
    assert (begins[launch]["ts"], ends[launch]["ts"]) == (1100, 1500)
    pairs = {(begins[n]["ts"], ends[n]["ts"]) for n, event in begins.items() if event["cat"] == "fwdbwd"}
    assert {(1365, 1450), (1240, 1480), (1190, 1550), (1070, 1600)} <= pairs


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    made = ByHand().step(0, 1000)
    starts = [0.001, 0.25, 10.999, 123.456]
    for start in starts:
        made.op("aten::a", start, start + 0.007)

    path = perfnb.Profile(made.recording(base_ns=1_700_000_000_123_456_789)).save_trace(tmp_path / "trace.json")

    text = path.read_text("utf-8")
    assert '"baseTimeNanoseconds":1700000000123456789' in text
    for start in starts:
        assert f'"ts":{start:.3f},"dur":0.007' in text
    loaded = perfnb.load(path)
    assert isinstance(loaded, perfnb.Profile)
    ops = loaded.events[loaded.events["name"] == "aten::a"]
    assert ops["start_ns"].tolist() == [1, 250, 10_999, 123_456]


def test_a_loaded_trace_comes_back_as_it_was(tmp_path: Path) -> None:
    trace = training().kernel("late", 1500, 1510, 1530)
    trace.event("aten::shaped", 90, 91, **{"Input Dims": [[4, 8], []], "External id": 5})
    trace.event("nccl:all_reduce", 92, 93, "user_annotation", **{"Process Group Name": "0", "Collective name": "x"})
    profile = perfnb.load(trace.write(tmp_path / "original.json"))
    assert isinstance(profile, perfnb.Profile)

    loaded = again(profile, tmp_path / "trace.json")

    for table in (*TABLES, "steps", "events"):
        pd.testing.assert_frame_equal(getattr(loaded, table), getattr(profile, table), check_categorical=False)


def test_the_memory_of_a_loaded_trace_comes_back_and_is_a_counter(tmp_path: Path) -> None:
    trace = training().memory(-5, 8, 8).memory(100.25, 2**40, 2**40, 1, 0, reserved=2**41).memory(700, -1, 7)
    profile = perfnb.load(trace.memory(2100, 512, None, 1, 0).write(tmp_path / "original.json"))
    assert isinstance(profile, perfnb.Profile)

    loaded = again(profile, tmp_path / "trace.json")

    assert profile._recording.trace_memory is not None
    assert profile._recording.trace_memory[["process", "thread"]].values.tolist() == [[MAIN, BACKWARD]] * 4
    pd.testing.assert_frame_equal(loaded._recording.trace_memory, profile._recording.trace_memory)
    pd.testing.assert_frame_equal(loaded.memory, profile.memory)
    curves = [event for event in events_of(tmp_path / "trace.json") if event["ph"] == "C"]
    assert [(event["name"], event["ts"], event["args"]["bytes"]) for event in curves] == [
        ("Memory, CPU", -5, 8),
        ("Memory, CPU", 700, 7),
        ("Memory, cuda:0", 0, 0),
        ("Memory, cuda:0", 100.25, 2**40),
    ]


def test_the_counter_of_a_profiled_step_is_its_curve_and_no_table_when_loaded(
    profile: perfnb.Profile, tmp_path: Path
) -> None:
    loaded = again(profile, tmp_path / "trace.json")

    line = profile._timeline()
    assert line is not None
    (curve,) = line.memory
    exact = json.loads((tmp_path / "trace.json").read_text("utf-8"), parse_float=Decimal)
    told = [event for event in exact["traceEvents"] if event["ph"] == "C"]
    assert [event["args"]["bytes"] for event in told] == curve.bytes.tolist()
    assert [1000 * event["ts"] for event in told] == (curve.times_ns + line.zero_ns).tolist()
    assert loaded.memory.empty


def test_without_a_traced_step_there_is_no_trace(tmp_path: Path) -> None:
    profile = perfnb.load(Written().write(tmp_path / "empty.json"))
    assert isinstance(profile, perfnb.Profile)
    with pytest.raises(RecordingError, match="no step was traced"):
        profile.save_trace(tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    profile: perfnb.Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")

    def broken(*_: Any) -> Any:
        yield b"{"
        raise OSError("the disk is full")

    monkeypatch.setattr("perfnb.profile.profile.trace_text", broken)
    with pytest.raises(RecordingError, match="the disk is full"):
        profile.save_trace(path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


DAMAGED: dict[str, Any] = {
    "none": None,
    "a list": [],
    "a newer one": {"version": 99},
    "no spans": {"modules": {}},
}


def test_the_layers_in_a_file_are_read_only_if_they_are_valid() -> None:
    made = by_hand().recording()
    written = json.loads(json.dumps(layers_written(made)))
    read = layers_read(written)
    assert read is not None
    pd.testing.assert_frame_equal(read[0], made.modules, check_dtype=False)
    pd.testing.assert_frame_equal(read[1], made.spans, check_dtype=False)
    for damaged in DAMAGED.values():
        assert layers_read(damaged) is None
    for table, column, value in (
        ("modules", "name", [1, 2, 3]),
        ("modules", "name", ["one"]),
        ("modules", "parent", [0, 0, 0]),
        ("modules", "parent", [-1, 5, 0]),
        ("modules", "parameters", [10**30, 1, 1]),
        ("modules", "compiled", [0, 1, 2]),
        ("spans", "layer", [9, 0, 0, 0]),
        ("spans", "span", [1, 1, 1, 1]),
        ("spans", "span", "0123"),
        ("spans", "loss", [None] * 4),
        ("spans", "loss", [False] * 3),
        ("spans", "layer", [0, 0, 0]),
    ):
        bent = {**written, table: {**written[table], column: value}}
        assert layers_read(bent) is None, (table, column)
