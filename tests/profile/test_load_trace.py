"""Traces from elsewhere become profiles: figures known by hand, and what a trace tells of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import perfnb
from tests.written_traces import BACKWARD, MAIN, Written, training

TABLES = ("events", "steps", "layers", "layer_ops", "ops", "phases", "kernels", "gpu_time")


def loaded(trace: Written, tmp_path: Path, name: str = "trace.json") -> perfnb.Profile:
    profile = perfnb.load(trace.write(tmp_path / name))
    assert isinstance(profile, perfnb.Profile)
    return profile


def in_us(column: pd.Series) -> dict[str, float | None]:
    return {str(key): None if pd.isna(value) else round(1e3 * value, 6) for key, value in column.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "name"), [(1, "trace.json"), (4, "a.pt.trace.json"), (2, "trace.json.gz")])
def test_the_phases_of_a_training_step(steps: int, name: str, tmp_path: Path) -> None:
    profile = loaded(training(steps), tmp_path, name)

    assert in_us(profile.phases["ms"]) == {
        "data": 40,
        "host_to_device": 0,
        "communication": 0,
        "forward": 500,
        "loss": 40,
        "backward": 220,
        "optimizer": 150,
        "other": 50,
    }
    assert profile.steps["step"].tolist() == list(range(9, 9 + steps))
    assert profile.steps["wall_ms"].tolist() == [1.0] * steps
    assert profile.steps["data_ms"].tolist() == [0.04] * steps
    assert set(profile.steps["pass"]) == {"traced"}
    assert set(profile.steps["rank"]) == {3}


def test_the_layers_are_those_that_the_modules_tell(tmp_path: Path) -> None:
    layers = loaded(training(), tmp_path).layers

    names = ["Net_0", "Net_0.Linear_0", "Net_0.ReLU_0", "Net_0.Linear_1"]
    modules = layers.iloc[:4]
    assert modules.index.tolist() == names
    assert modules["module"].tolist() == ["Net", "Linear", "ReLU", "Linear"]
    assert modules["depth"].tolist() == [0, 1, 1, 1]
    assert modules["calls"].tolist() == [1, 1, 1, 1]
    assert in_us(modules["forward_ms"]) == dict(zip(names, [500, 230, 50, 200], strict=True))
    assert in_us(modules["backward_ms"]) == dict(zip(names, [180, 60, 20, 100], strict=True))
    assert in_us(modules["self_ms"]) == dict(zip(names, [20, 290, 70, 300], strict=True))
    assert in_us(modules["gpu_ms"]) == dict(zip(names, [560, 340, 20, 200], strict=True))
    assert modules["parameters"].isna().all()
    special = in_us(layers["backward_ms"].iloc[4:])
    assert special == {"(loss)": 20, "(gradient accumulation)": 20}


def test_events_have_their_layer_phase_step_and_rank(tmp_path: Path) -> None:
    trace = training()
    trace.kernel("late", 1500, 1510, 1530).op("aten::outside", 1600, 1610)

    events = loaded(trace, tmp_path).events

    assert len(events) == len(trace.events)
    assert events["start_ns"].iloc[0] == 0
    assert (events["rank"] == 3).all()
    gemm_t = events[events["name"] == "gemm_t"]
    assert gemm_t["layer"].tolist() == ["Net_0.Linear_1", "Net_0.Linear_0"] * 2
    assert gemm_t["phase"].tolist() == ["backward"] * 4
    assert gemm_t["step"].tolist() == [9, 9, 10, 10]
    for name in ("late", "aten::outside"):
        (row,) = events[events["name"] == name].to_dict("records")
        assert pd.isna([row["layer"], row["phase"], row["step"]]).all()
    (module,) = events[(events["name"] == "nn.Module: ReLU_0") & (events["step"] == 10)].to_dict("records")
    assert (module["category"], module["layer"], module["phase"]) == ("python_function", "Net_0.ReLU_0", "forward")


def test_work_outside_the_steps_is_the_gpus_and_no_steps(tmp_path: Path) -> None:
    trace = training(1).kernel("late", 1500, 1510, 1530)

    profile = loaded(trace, tmp_path)

    (row,) = profile.gpu_time.to_dict("records")
    assert (row["rank"], row["device"], row["kernels"]) == (3, 0, 6)
    assert row["total_ms"] == pytest.approx(1.43)
    assert row["busy_ms"] == pytest.approx(0.3 + 0.02 + 0.1 + 0.1 + 0.04 + 0.02)
    assert in_us(profile.kernels["total_ms"]) == {"gemm": 400, "gemm_t": 140, "relu": 20}


def test_a_range_on_a_device_belongs_to_the_stream_of_its_work(tmp_path: Path) -> None:
    trace = training(1).kernel("odd", 855, 860, 870, stream=9, device=2)
    trace.event("ProfilerStep#9", 100, 900, "gpu_user_annotation", 7, 0, **{"External id": 1})
    trace.event("elsewhere", 100, 900, "gpu_user_annotation", 8, 0)

    profile = loaded(trace, tmp_path)

    events = profile.events[profile.events["category"] == "gpu_user_annotation"].set_index("name")
    assert events.loc["ProfilerStep#9", ["device", "stream"]].tolist() == [0, 7]
    assert events.loc["elsewhere", ["device", "stream"]].isna().all()
    timeline = profile._timeline()
    assert timeline is not None
    titles = [track.title for track in timeline.of("stream")]
    assert titles == ["GPU 0, stream 7", "GPU 2, stream 9", "Device without a number, no stream"]


def test_the_text_of_a_trace(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    golden("trace.txt", f"{loaded(training(), tmp_path)}\n")


def test_memory_in_a_trace_is_the_total_after_every_change(tmp_path: Path) -> None:
    trace = training(1).memory(100, 64, 64).memory(200, 36, 100).memory(300, -64, 36)
    memory = loaded(trace, tmp_path).memory
    assert memory["total"].tolist() == [0, 64, 100, 36]
    assert memory["t_ms"].tolist()[1:] == pytest.approx([0.1, 0.2, 0.3])


def test_a_trace_without_modules_has_ops(tmp_path: Path) -> None:
    trace = training()
    trace.events = [event for event in trace.events if event["cat"] != "python_function"]

    profile = loaded(trace, tmp_path)

    assert not profile.layers["module"].notna().any()
    assert profile.ops.loc["aten::mm", "calls"] == 2
    assert in_us(profile.ops["self_cpu_ms"])["aten::mm"] == 380
    assert in_us(profile.phases["ms"])["backward"] == 220


def test_without_steps_the_whole_trace_is_one(tmp_path: Path) -> None:
    trace = training(1)
    trace.events = [event for event in trace.events if not event["name"].startswith("ProfilerStep")]
    for place in range(100):  # more events than the main thread has, but all inside a node of the backward pass
        trace.op("aten::busy", 621 + place / 2, 621.4 + place / 2, tid=BACKWARD)

    profile = loaded(trace, tmp_path)

    assert profile.steps["wall_ms"].tolist() == [0.98]
    assert in_us(profile.phases["ms"])["forward"] == 500
    assert in_us(profile.phases["ms"])["backward"] == 220
    assert profile.layers.loc["Net_0", "forward_ms"] == 0.5
    assert len(profile.events) == len(trace.events)
    assert (profile.events["step"] == 0).all()


def test_steps_are_ordered_by_time_and_those_of_one_thread_count(tmp_path: Path) -> None:
    trace = Written()
    for number in (8, 9, 10, 11):
        trace.step(number, 100 * number, 100 * number + 100).op(
            "aten::mm", 100 * number + 10, 100 * number + 20 + number
        )
    trace.step(10, 850, 1450, tid=BACKWARD)  # another thread's
    trace.step(99, 1010, 1030)  # inside another
    trace.event("ProfilerStep#9", 870, 1200, "gpu_user_annotation", 7, 0)

    profile = loaded(trace, tmp_path)

    assert profile.steps["step"].tolist() == [8, 9, 10, 11]
    assert profile.steps["wall_ms"].tolist() == [0.1] * 4
    assert profile.ops.loc["aten::mm", "self_cpu_ms"] == pytest.approx((18 + 19 + 20 + 21) / 4e3)


def test_an_event_that_ends_after_the_one_around_it_counts_as_inside(tmp_path: Path) -> None:
    """As times rounded to quarters of a microsecond do."""
    trace = Written().step(1, 0, 100).step(2, 100, 200)
    trace.module("Net_0", 10, 50).op("aten::a", 20, 50.25).op("aten::b", 50, 60)
    trace.module("Net_0", 110, 150).op("aten::a", 120, 150.25).op("aten::b", 150, 200.25)

    profile = loaded(trace, tmp_path)

    assert in_us(profile.ops["self_cpu_ms"]) == {"aten::a": 30, "aten::b": 30}
    assert in_us(profile.layers["forward_ms"])["Net_0"] == 40
    assert profile.layer_ops["op"].tolist() == ["aten::a"]
    assert profile.phases["ms"].sum() == pytest.approx(0.1)


def test_a_module_lies_where_it_was_called_first(tmp_path: Path) -> None:
    trace = Written().step(1, 0, 1000)
    trace.module("A_0", 10, 100).module("Shared_0", 20, 30).module("Shared_0", 40, 50)
    trace.module("B_0", 100, 200).module("Shared_0", 110, 150).module("Late_0", 160, 170)
    trace.module("A_0", 300, 400).module("Late_0", 310, 320).module("A_0", 330, 390)

    layers = loaded(trace, tmp_path).layers

    assert layers["calls"].to_dict() == {"A_0": 2, "A_0.Shared_0": 3, "B_0": 1, "B_0.Late_0": 2}
    assert in_us(layers["forward_ms"]) == {"A_0": 190, "A_0.Shared_0": 60, "B_0": 100, "B_0.Late_0": 20}


def test_threads_of_two_processes_may_have_one_number(tmp_path: Path) -> None:
    trace = Written().step(1, 0, 1000).module("Net_0", 100, 500).op("aten::mm", 150, 250)
    trace.event("aten::mm", 200, 450, pid=555).event("nn.Module: Net_0", 190, 460, "python_function", pid=555)

    profile = loaded(trace, tmp_path)

    assert profile.ops.loc["aten::mm", "self_cpu_ms"] == pytest.approx(0.35)
    assert profile.layers.index.tolist() == ["Net_0", "Net_0 (2)"]
    assert in_us(profile.layers["forward_ms"]) == {"Net_0": 400, "Net_0 (2)": None}  # the step's process calls one
    assert set(profile.events["process"]) == {MAIN, 555}


@pytest.mark.slow
def test_what_a_trace_cannot_tell_is_missing(tmp_path: Path) -> None:
    profile = loaded(training(), tmp_path)

    assert profile.timing.steps == 0
    assert profile.timing.median_ms is None
    assert profile.timing.ci_ms is None
    assert profile.roofline is None
    assert profile.memory.empty
    assert profile.allocations.empty
    assert profile.samples.empty
    assert profile.ops["flops"].isna().all()
    compared = str(profile.compare(profile))
    assert "a traced step takes" in compared
    assert "peak memory" not in compared


@pytest.mark.slow
def test_profiles_saved_before_there_were_traces_still_load(tmp_path: Path) -> None:
    import torch

    from tests.step.models import three_linears, training_step

    profile = perfnb.profile_step(
        training_step(three_linears(), torch.ones(4, 8)), warmup=1, steps=2, traced=2, flops=False
    )
    saved = profile.save(tmp_path / "old")
    for file in saved.glob("table_*"):
        file.unlink()
    new = ["process", "external_id", "wait_stream", "wait_correlation", "shapes", "collective", "group"]
    for file in ("events", "memory_events"):
        pd.read_parquet(saved / f"{file}.parquet").drop(columns=new).to_parquet(saved / f"{file}.parquet")
    steps = pd.read_parquet(saved / "steps.parquet")
    steps.drop(columns=["step", "start_s"]).to_parquet(saved / "steps.parquet")

    old = perfnb.load(saved)

    assert isinstance(old, perfnb.Profile)
    for table in ("layers", "phases", "ops", "kernels", "gpu_time", "allocations"):
        pd.testing.assert_frame_equal(getattr(old, table), getattr(profile, table))
    assert old.events["process"].isna().all()
    assert str(old) == str(profile)


def test_facts_of_a_trace_are_in_meta(tmp_path: Path) -> None:
    trace = training()
    trace.facts["baseTimeNanoseconds"] = 10**18
    name = {"ph": "M", "name": "thread_name", "pid": MAIN, "tid": BACKWARD, "args": {"name": "pt_autograd_0"}}
    trace.events.append(name)

    meta = loaded(trace, tmp_path).meta

    assert (meta["rank"], meta["trace"]["world_size"], meta["base_ns"]) == (3, 8, 10**18)
    assert meta["trace"]["thread_names"] == [[MAIN, BACKWARD, "pt_autograd_0"]]
    assert meta["environment"]["gpus"] == ["Small GPU"]
    json.dumps(meta)


@pytest.mark.parametrize(
    ("listed", "name"),
    [
        ([(0, "Small GPU")], "Small GPU"),  # numbers differ, but there is one kind
        ([(0, "Small GPU"), (1, "Small GPU")], "Small GPU"),
        ([(0, "Small GPU"), (1, "Large GPU")], "GPU 9"),
        ([(0, "Small GPU"), (9, "Large GPU")], "Large GPU"),
        ([(0, "")], "GPU 9"),
        ([], "GPU 9"),
    ],
)
def test_a_gpu_is_named_if_only_one_kind_is_listed(listed: list[tuple[int, str]], name: str, tmp_path: Path) -> None:
    trace = Written(deviceProperties=[{"id": number, "name": word} for number, word in listed])
    trace.op("aten::mm", 5, 10).kernel("k", 6, 20, 30, device=9)

    assert loaded(trace, tmp_path).meta["environment"]["gpus"] == [name]
