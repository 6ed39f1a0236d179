"""What the GPU did, as tables of a profile: a trace whose every figure is derived by hand, and public ones."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import perfnb
from perfnb.recording.schema import SCHEMA
from tests.gpu.test_gpu import gpu_step
from tests.trace.test_public_traces import FOLDER
from tests.written_traces import Written, training

TABLES = ("gpu_steps", "gpu_idle", "launches", "queue", "kernel_ops", "critical_path", "path_savings")
public = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no folder of public traces at {FOLDER}")


def overlapping() -> Written:
    """Return two steps of 1000 µs; the second one's last kernel ends 100 µs after it."""
    trace = Written(deviceProperties=[{"id": 0, "name": "Small GPU"}], distributedInfo={"rank": 1, "world_size": 2})
    for t in (0, 1000):
        trace.step(7 + t // 1000, t, t + 1000)
        trace.event("aten::mm", t + 10, t + 38, **{"Input Dims": [[16, 4], [4, 8]]})
        trace.kernel("gemm", t + 20, t + 30, t + 130)
    trace.op("c10d::allreduce_", 39, 50).kernel("ncclDevKernel_AllReduce_Sum_f32", 40, 60, 160, stream=9)
    trace.op("aten::relu", 110, 150).kernel("relu", 120, 132, 140)
    trace.op("aten::add", 300, 400).kernel("add", 310, 320, 330)
    trace.op("aten::relu", 1110, 1150).kernel("relu", 1120, 1133, 1140)
    return trace.op("aten::late", 1890, 1950).kernel("late", 1900, 1910, 2100)


def loaded(trace: Written, tmp_path: Path) -> perfnb.Profile:
    profile = perfnb.load(trace.write(tmp_path / "trace.json"))
    assert isinstance(profile, perfnb.Profile)
    return profile


def us(value: object) -> float:
    return round(1e3 * float(value), 6)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> perfnb.Profile:
    return loaded(overlapping(), tmp_path_factory.mktemp("overlapping"))


def test_the_time_of_each_step(profile: perfnb.Profile) -> None:
    first, second = profile.gpu_steps.to_dict("records")

    assert (first["rank"], first["device"], first["step"], second["step"]) == (1, 0, 7, 8)
    # From 30 to 330: gemm 30-130, allreduce 60-160, relu 132-140, add 320-330.
    figures = ("total", "busy", "computation", "communication", "memcpy", "idle", "overlap")
    assert [us(first[f"{name}_ms"]) for name in figures] == [300, 140, 118, 100, 0, 160, 78]
    # From 1030 to 2100: 100 of gemm, 7 of relu, 190 of late.
    assert [us(second[f"{name}_ms"]) for name in figures] == [1070, 297, 297, 0, 0, 773, 0]
    assert first["idle_pct"] == pytest.approx(100 * 160 / 300)
    assert pd.isna(second["overlap_pct"])


def test_idle_time_by_reason_adds_up_to_that_of_the_trace(profile: perfnb.Profile) -> None:
    idle = profile.gpu_idle

    # Step 7: 160-320, its add was launched at 310. Step 8: 330-1030 and 1140-1910, both launched late, and 1130-1133,
    # launched at 1120.
    reasons = ("idle", "host", "dependency", "other", "unknown")
    assert [[us(row[f"{name}_ms"]) for name in reasons] for row in idle.to_dict("records")] == [
        [160, 160, 0, 0, 0],
        [1473, 1470, 3, 0, 0],
    ]
    assert idle["gaps"].tolist() == [1, 3]
    assert us(idle["idle_ms"].sum()) == us(profile.gpu_time["idle_ms"].sum()) == 2070 - 437


def test_launches_by_op_per_step(profile: perfnb.Profile) -> None:
    launches = profile.launches

    mm, relu = launches.loc["aten::mm"], launches.loc["aten::relu"]
    assert (mm["calls"], mm["launched"], us(mm["call_ms"]), mm["delay_us"]) == (1, 1, 1, 10)
    assert (relu["delay_us"], us(relu["gpu_ms"]), relu["short"]) == (12.5, 7.5, 0)
    assert launches.loc["aten::add", "calls"] == 0.5
    assert us(launches["gpu_ms"].sum()) == us(profile.kernels["total_ms"].sum()) == (200 + 100 + 15 + 10 + 190) / 2


def test_the_queue_of_each_stream(profile: perfnb.Profile) -> None:
    queue = profile.queue

    other = queue[queue["stream"] == 9]
    assert (other["start_ns"].tolist(), other["length"].tolist()) == ([40_000, 60_000], [1, 0])
    assert queue[queue["length"] == 1]["start_ns"].tolist() == [
        *(20_000, 120_000, 310_000, 1_020_000, 1_120_000, 1_900_000, 40_000)
    ]


def test_kernels_by_op_and_shapes_per_step(profile: perfnb.Profile) -> None:
    heaviest = profile.kernel_ops.iloc[0]

    assert (heaviest["op"], heaviest["shapes"]) == ("aten::mm", "[[16, 4], [4, 8]]")
    assert (heaviest["op_calls"], heaviest["kernels"], heaviest["calls"], us(heaviest["total_ms"])) == (1, 1, 1, 100)
    assert (heaviest["mean_us"], heaviest["min_us"], heaviest["max_us"]) == (100, 100, 100)
    assert us(profile.kernel_ops["total_ms"].sum()) == us(profile.kernels["total_ms"].sum())


def test_the_path_of_a_step_reaches_to_the_end_of_its_work(profile: perfnb.Profile) -> None:
    path = profile.critical_path

    second = path[path["step"] == 8]
    assert second["start_ns"].iloc[0] == 1_000_000
    # late 190, launched 10 before; of 900 before that the ops took 28 + 40 + 10, of these the two launches 2.
    sums = (second.groupby("kind", observed=True)["duration_ns"].sum() // 1000).to_dict()
    assert sums == {"computation": 190, "launch": 10, "call": 2, "operator": 76, "host": 822}
    first = path[path["step"] == 7]
    assert first["duration_ns"].sum() == 1_000_000  # its work ends long before it
    assert set(path["rank"]) == {1}
    ends = path["start_ns"] + path["duration_ns"]
    assert (ends.shift().fillna(0)[second.index[1:]] == second["start_ns"].iloc[1:]).all()
    (late,) = path[path["name"] == "late"].to_dict("records")
    (event,) = profile.events.query("name == 'late'").to_dict("records")
    assert (late["start_ns"], late["op"], late["stream"]) == (event["start_ns"], "aten::late", 7)


def test_what_each_part_of_the_path_would_save(profile: perfnb.Profile) -> None:
    table = profile.path_savings

    second = table[table["step"] == 8]
    kinds = second[second["by"] == "kind"].set_index("part")
    assert kinds["path_ms"].map(us).to_dict() == {
        "host": 822, "computation": 190, "operator": 76, "launch": 10, "call": 2
    }  # fmt: skip
    assert us(kinds.loc["computation", "saves_ms"]) == 190
    assert (kinds["saves_ms"] <= kinds["path_ms"]).all()
    assert kinds["share"].sum() == pytest.approx(1)
    ops = second[second["by"] == "op"].set_index("part")["path_ms"].map(us).to_dict()
    assert ops == {"aten::late": 10 + 10 + 190, "aten::relu": 40, "aten::mm": 28}


def test_the_facts_of_the_tab_are_those_of_the_tables(profile: perfnb.Profile) -> None:
    gpu = profile._analysis.gpu
    assert gpu is not None
    parts = ["total_ms", "computation", "communication", "memcpy", "host", "dependency", "other", "outside"]
    parts.append("overlap_ms")

    assert gpu.busy == pytest.approx(437 / 2100)
    assert [us(value) for value in gpu.devices.iloc[0][parts]] == [2100, 415, 22, 0, 1630, 3, 0, 30, 78]
    assert [us(value) for value in gpu.steps.iloc[0][parts]] == [300, 118, 22, 0, 160, 0, 0, 0, 78]
    assert [us(value) for value in gpu.steps.iloc[1][parts]] == [1070, 297, 0, 0, 770, 3, 0, 0, 0]
    # The 700 before the first work of step 8 are in neither step, as in the frame.
    assert [us(value) for value in gpu.steps["total_ms"]] == [us(value) for value in profile.gpu_steps["total_ms"]]
    assert [us(value) for value in profile.gpu_idle["before_ms"]] == [0, 700]
    facts = gpu.launches
    assert (facts.launched, facts.known, facts.call_us, facts.call_us_95) == (3.5, 3.5, 1, 1)
    assert (facts.delay_us, facts.delay_us_95, facts.short_share, facts.longest_queue) == (10, 20, 0, 1)
    # 12 + 20 + 10 of the first step after its first work began, 10 + 13 + 10 of the second.
    assert facts.empty_share == pytest.approx(1 - 75 / 2070)
    assert gpu.queue is not None
    assert us(gpu.queue.piece_ms * 240) == 2080
    queued = gpu.queue.longest[0]
    assert queued.max() == 1
    assert queued[0] == 1  # 20 to 28.7
    assert (queued[17:33] == 0).all()  # 167 to 306
    assert gpu.path is not None
    assert (gpu.path.step, gpu.path.steps, us(gpu.path.total_ms)) == (8, 2, 1100)
    assert gpu.kernels["share"].sum() == pytest.approx(1)


def test_work_without_a_step_is_in_a_row_of_its_own(tmp_path: Path) -> None:
    profile = loaded(overlapping().kernel("after", 2500, 2510, 2520), tmp_path)

    assert profile.gpu_idle["step"].tolist() == [7, 8, pd.NA]
    assert us(profile.gpu_idle["idle_ms"].iloc[2]) == 410
    assert us(profile.gpu_idle["idle_ms"].sum()) == us(profile.gpu_time["idle_ms"].sum())
    assert profile.gpu_steps["step"].tolist() == [7, 8]
    assert "after" not in set(profile.critical_path["name"])
    assert "1 kernels, copies and fills do not belong to any step" in " ".join(profile._analysis.gpu.notes)  # type: ignore[union-attr]


def test_a_kernel_without_launch_and_step_is_in_no_table_of_the_steps(tmp_path: Path, profile: perfnb.Profile) -> None:
    more = loaded(overlapping().event("gemm", 2510, 2550, "kernel", 7, 0, device=0, stream=7), tmp_path)

    for name in ("kernel_ops", "launches", "gpu_steps"):
        pd.testing.assert_frame_equal(getattr(more, name), getattr(profile, name))
    assert us(more.gpu_time["computation_ms"].sum()) == us(profile.gpu_time["computation_ms"].sum()) + 40
    assert profile._analysis.gpu is not None
    assert "belong" not in " ".join(profile._analysis.gpu.notes)


def test_marks_that_are_no_steps_count_nowhere(tmp_path: Path) -> None:
    profile = loaded(overlapping().step(99, 200, 250).step(8, 900, 1900, tid=555), tmp_path)

    assert profile.gpu_steps["step"].tolist() == [7, 8]
    assert [us(value) for value in profile.gpu_steps["total_ms"]] == [300, 1070]
    sums = profile.critical_path.groupby("step")["duration_ns"].sum()
    assert sums.to_dict() == {7: 1_000_000, 8: 1_100_000}


def test_a_step_that_perfnb_traced_has_the_same_tables() -> None:
    profile = perfnb.Profile(gpu_step(2).recording())

    assert profile.gpu_steps["step"].tolist() == [0, 1]
    path = profile.critical_path
    assert not path["name"].astype("str").str.startswith("pf").any()  # a layer's span is no op
    # The last kernel of a step ends 1200 after its begin, 200 after the host.
    assert path.groupby("step")["duration_ns"].sum().tolist() == [1_200_000] * 2
    assert path.loc[path["name"] == "adds", "duration_ns"].tolist() == [310_000] * 2
    kernels = profile.kernel_ops.set_index("op")
    assert kernels.loc["MmBackward0", ["layers", "layer", "layer_share"]].tolist() == [2, "model.b", 0.75]


def test_without_a_gpu_the_tables_are_empty_and_typed_and_the_path_is_the_hosts(tmp_path: Path) -> None:
    trace = training(2)
    trace.events = [event for event in trace.events if event["cat"] not in ("kernel", "cuda_runtime")]

    profile = loaded(trace, tmp_path)

    for name in TABLES:
        table = getattr(profile, name)
        assert list(table.columns) == list(SCHEMA[name])
        assert len(table) == 0 or name in ("critical_path", "path_savings")
    assert profile._analysis.gpu is None
    assert profile.critical_path.groupby("step")["duration_ns"].sum().tolist() == [1_000_000] * 2
    assert set(profile.critical_path["kind"]) == {"host", "operator", "handover"}


def test_a_trace_of_nothing_has_empty_tables(tmp_path: Path) -> None:
    profile = loaded(Written(), tmp_path)

    for name in TABLES:
        assert len(getattr(profile, name)) == 0
