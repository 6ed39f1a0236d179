"""Points under a roofline whose two ceilings are round numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from perfnb.recording.nesting import NONE
from perfnb.recording.samples import watch_record
from perfnb.roofline import levels
from perfnb.roofline.levels import COUNTERS, POINTS, RooflineLevels, counters_read, roofline_of
from perfnb.roofline.tab import roofline_document

CEILINGS = {"device": "made up", "flops_per_s": {"float32": 1000.0, "bfloat16": 4000.0}, "bytes_per_s": 100.0}
NOTHING = pd.DataFrame({"op": [], "calls": [], "ms": [], "share": []})


def work(*rows: tuple[str, int | None, int, float | None, str, int]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["name", "flops", "bytes", "ms", "dtype", "uncounted"]).set_index("name")
    return frame.astype({"flops": "Int64", "bytes": "Int64", "ms": "Float64"})


LAYERS = work(
    ("dense", 100_000, 1_000, 200_000.0, "float32", 0),  # 100 FLOP/byte: above the ridge of 10
    ("ridge", 1_000, 100, 2_000.0, "float32", 0),
    ("thin", 500, 100, 2_000.0, "float32", 1),
    ("half", 2_000, 100, 2_000.0, "bfloat16", 0),  # 20 FLOP/byte, where bfloat16's ridge is at 40
    ("odd", 100, 10, 1.0, "float64", 0),  # no ceiling known
    ("moves", 0, 10, 1_000.0, "float32", 0),
    ("norm", 0, 10, 1_000.0, "float32", 3),
    ("container", 0, 0, 1.0, "", 0),
    ("instant", 100, 10, 0.0, "float32", 0),
    ("untimed", 100, 10, None, "float32", 0),
)
OPS = work(("aten::mm", 100, 10, 1_000.0, "float32", 0), ("aten::relu", None, 10, 1_000.0, "float32", 2))


def made(**changes: Any) -> RooflineLevels:
    given: dict[str, Any] = {"ceilings": CEILINGS, "flops": 3_000, "main_dtype": "float32", "step_ms": 10_000.0}
    return roofline_of(LAYERS, OPS, NOTHING, **(given | changes))


def points(roofline: RooflineLevels, kind: str = "layer") -> pd.DataFrame:
    return roofline.points[roofline.points["kind"] == kind].set_index("name")


def test_intensity_rate_and_roof() -> None:
    dense, thin, half = (points(made()).loc[name] for name in ("dense", "thin", "half"))

    assert (dense["intensity"], dense["achieved_flops_per_s"], dense["attainable_flops_per_s"]) == (100, 500, 1_000)
    assert dense["efficiency"] == pytest.approx(0.5)
    assert (thin["intensity"], thin["achieved_flops_per_s"], thin["attainable_flops_per_s"]) == (5, 250, 500)
    assert (half["attainable_flops_per_s"], half["efficiency"]) == (2_000, 0.5)


def test_what_holds_each_back_in_a_word() -> None:
    bound = points(made())["bound"]

    assert bound.dropna().to_dict() == {
        "dense": "compute",
        "ridge": "compute",
        "thin": "memory",
        "half": "memory",
        "moves": "memory",
        "instant": "compute",
        "untimed": "compute",
    }


def test_what_is_not_known_is_missing_never_zero() -> None:
    known = points(made())

    assert "container" not in known.index
    for name in ("instant", "untimed"):
        assert known.loc[name, ["achieved_flops_per_s", "efficiency"]].isna().all()
    assert known.loc["odd", ["attainable_flops_per_s", "efficiency", "bound"]].isna().all()
    assert known.loc["odd", "achieved_flops_per_s"] == 100_000
    assert known.loc[["moves", "norm"], "efficiency"].tolist() == [pd.NA, pd.NA]  # under a roof of zero
    relu = points(made(), "op").loc["aten::relu"]
    assert relu[["flops", "intensity", "achieved_flops_per_s", "attainable_flops_per_s", "bound"]].isna().all()
    assert relu["bytes"] == 10


def test_without_ceilings_there_are_points_and_no_roof() -> None:
    bare = made(ceilings=None)

    assert (bare.device, bare.peaks, bare.bandwidth, bare.utilisation) == ("", {}, None, None)
    assert points(bare).loc["dense", "achieved_flops_per_s"] == 500
    assert bare.points[["attainable_flops_per_s", "efficiency"]].isna().all().all()
    assert points(bare)["bound"].dropna().index.tolist() == []
    no_copy = made(ceilings=CEILINGS | {"bytes_per_s": None})
    assert no_copy.bandwidth is None
    assert no_copy.utilisation == pytest.approx(0.3)
    assert no_copy.points["bound"].isna().all()


def test_utilisation_leaves_out_what_was_computed_twice() -> None:
    assert made().utilisation == pytest.approx(3_000 / (10 * 1_000))
    assert made(recompute_flops=1_000).utilisation == pytest.approx(0.2)
    assert made(recompute_flops=1_000).flops == 3_000
    assert made(main_dtype="bfloat16").utilisation == pytest.approx(0.075)
    for unknown in ({"main_dtype": None}, {"main_dtype": "float64"}, {"step_ms": None}, {"flops": None}):
        assert made(**unknown).utilisation is None


def test_no_utilisation_above_the_peak() -> None:
    assert made(step_ms=3_000.0).utilisation == pytest.approx(1.0)
    beyond = made(step_ms=2_900.0)
    assert (beyond.utilisation, beyond.dtype) == (None, None)


def test_columns_and_types() -> None:
    for roofline in (made(), made(ceilings=None), roofline_of(LAYERS[:0], OPS[:0], NOTHING, ceilings=None, flops=None)):
        assert {name: str(dtype) for name, dtype in roofline.points.dtypes.items()} == {
            name: str(pd.Series([], dtype=dtype).dtype) for name, dtype in POINTS.items()
        }
    assert LAYERS.columns.tolist() == ["flops", "bytes", "ms", "dtype", "uncounted"]


def test_what_computed_faster_than_a_ceiling_is_the_ceiling() -> None:
    fast = work(
        ("fast", 20_000, 1_000, 2_000.0, "float32", 0),  # 10,000 FLOP/s
        ("slow", 3_000, 100, 3_000.0, "float32", 0),  # 1,000 FLOP/s
        ("short", 5_000, 100, 1.0, "bfloat16", 0),  # too short to be sure
    )
    lifted = roofline_of(fast, fast.iloc[:0], NOTHING, ceilings=CEILINGS, flops=23_000)

    assert lifted.refuted == {"float32": 1_000}
    assert lifted.peaks == {"float32": 10_000, "bfloat16": 4_000}
    known = points(lifted)
    assert known.loc["fast", "efficiency"] == pytest.approx(10_000 / 2_000)  # its bytes come from a cache
    assert known.loc["slow", "attainable_flops_per_s"] == 3_000
    assert known.loc["fast", "bound"] == "memory"
    assert made().refuted == {}
    assert roofline_document(lifted).notes[0] == (
        "The measured float32 ceiling (1.00 kFLOP/s) was too low. Part of this step ran faster, so its rate is used "
        "instead."
    )


def watched(**devices: dict[str, list[float]]) -> Any:
    """Return a recording of four steps of a second each, the second and third timed, watched once a second."""
    steps = pd.DataFrame(
        {"pass": ["warmup", "timed", "timed", "traced"], "wall_ms": 1000.0, "start_s": [0.0, 1.0, 2.0, 3.0]}
    )
    columns: dict[str, Any] = {
        device: {"t_s": np.array([0.5, 1.5, 2.5, 3.5]), "missed_ticks": np.zeros(4), "readings": np.ones(4)}
        | {name: np.array(values) for name, values in own.items()}
        for device, own in devices.items()
    }
    return SimpleNamespace(steps=steps, watch=watch_record(columns, []))


def test_hardware_counters_are_means_over_the_timed_steps_of_the_busiest_gpu() -> None:
    busy = {name: [0.0, 40.0 + 10 * place, 60.0 + 10 * place, 100.0] for place, name in enumerate(COUNTERS)}
    quiet = {key: [0.0, 1.0, 1.0, 1.0] for key in COUNTERS}
    found = counters_read(watched(gpu0=quiet, gpu1=busy, host={"cpu_percent": [1.0] * 4}))
    assert found == {COUNTERS[0]: 0.5, COUNTERS[1]: 0.6, COUNTERS[2]: 0.7}
    shown = replace(made(), counters=found)
    said = "multiprocessors active 50 %, Tensor Cores active 60 %, memory bandwidth in use 70 %"
    assert roofline_document(shown).facts == (f"the GPU's hardware counters over the timed steps: {said}",)


def test_without_counters_there_is_no_note() -> None:
    assert counters_read(watched(gpu0={"busy_percent": [50.0] * 4})) == {}
    unwatched = watched(gpu0={})
    unwatched.watch = None
    assert counters_read(unwatched) == {}
    assert roofline_document(made()).facts == ()


@pytest.mark.parametrize(
    ("flops", "refuted"), [(1_000, {}), (1_020, {}), (1_021, {"float32": 1_000}), (1_100, {"float32": 1_000})]
)
def test_a_ceiling_is_kept_unless_it_is_exceeded_by_more_than_measurements_vary(
    flops: int, refuted: dict[str, float]
) -> None:
    fast = work(("fast", flops, 10, 1_000.0, "float32", 0))
    found = roofline_of(fast, fast[:0], NOTHING, ceilings=CEILINGS, flops=flops)
    assert found.refuted == refuted
    assert found.peaks["float32"] == (flops if refuted else 1_000)


@pytest.mark.parametrize(("short_ms", "sure"), [(100.0, True), (99.0, False)])
def test_a_part_refutes_a_ceiling_from_a_hundredth_of_its_kind_s_time_on(short_ms: float, sure: bool) -> None:
    layers = work(("long", 100, 10, 10_000.0 - short_ms, "float32", 0), ("short", 500, 10, short_ms, "float32", 0))
    ops = work(("op", 100, 10, 90_000.0, "float32", 0))  # the time of ops is counted apart
    assert (roofline_of(layers, ops, NOTHING, ceilings=CEILINGS, flops=1).refuted != {}) == sure


def test_counters_are_read_from_the_begin_to_the_end_of_the_timed_steps() -> None:
    readings = {"sm_active_percent": [90.0, 20.0, 40.0, 90.0]}
    recording = watched(gpu0=readings)
    recording.steps = pd.DataFrame({"pass": "timed", "wall_ms": [500.0, 500.0], "start_s": [0.5, 2.0]})
    assert counters_read(recording) == {"sm_active_percent": 0.3}  # not that at 0.5 s, but that at 2.5 s
    recording.steps = recording.steps.assign(**{"pass": "traced"})
    assert counters_read(recording) == {}


def test_where_the_first_counter_is_unknown_the_gpu_with_others_is_read() -> None:
    recording = watched(gpu0={"dram_active_percent": [0.0, 10.0, 30.0, 0.0]}, gpu1={"busy_percent": [9.0] * 4})
    assert counters_read(recording) == {"dram_active_percent": 0.2}


@pytest.mark.parametrize(
    ("kernels", "on", "ms", "peaks"),
    [
        (0, "cpu", 4_000.0, {"float32": 1000.0}),
        (0, "cuda", 4_000.0, {}),  # the machine has a GPU that the step does not use
        (3, "cuda", 1_000.0, {"float32": 1000.0}),
        (3, "cpu", 1_000.0, {}),
        (3, None, 1_000.0, {}),
    ],
)
def test_times_and_ceilings_are_those_of_the_device_that_computes(
    kernels: int, on: str | None, ms: float, peaks: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = work(("it", 1_000, 100, None, "float32", 0)).drop(columns="ms")
    times = pd.DataFrame({"ms": [4_000.0], "gpu_ms": [1_000.0]}, index=["it"]).astype("Float64")
    told = Mock(return_value=NOTHING)
    for name, given in {
        "work_by": lambda counted, by: one,
        "time_by_layer": lambda *_: times,
        "time_by_op": lambda *_: times,
        "main_dtype": lambda counted: "float32",
        "uncounted_ops": told,
    }.items():
        monkeypatch.setattr(levels, name, given)
    cells = pd.DataFrame({"kernels": [kernels, 0], "gpu_ns": [3e6, 5e6], "ns": [20e6, 30e6]})
    counted = pd.DataFrame(
        {"block": [NONE, 0, 1], "flops": [7_000, 600, 400], "direction": ["forward", "forward", "recompute"]}
    )
    recording: Any = watched(gpu0={})
    recording.meta = {"ceilings": on and {"on": on, "flops_per_s": {"float32": 1000.0}, "bytes_per_s": 100.0}}
    attribution: Any = SimpleNamespace(cells=cells, steps=2)

    found = levels.step_roofline(recording, attribution, counted, 1_200.0)

    assert found.peaks == peaks
    assert found.points["ms"].tolist() == [ms] * 2
    assert found.flops == 1_000
    assert found.utilisation == (pytest.approx(0.5) if peaks else None)
    assert told.call_args.args[2] == (4.0 if kernels else 25.0)
    assert told.call_args.kwargs == {"on_gpu": kernels > 0}
    attribution.steps = 0
    levels.step_roofline(recording, attribution, counted, None)
    assert told.call_args.args[2] == (8.0 if kernels else 50.0)


def test_what_is_reached_is_weighted_by_time_over_layers_or_else_over_ops() -> None:
    layers = work(("a", 1_000, 10, 4_000.0, "float32", 0), ("b", 500, 10, 1_000.0, "float32", 0))
    ops = work(("op", 1_000, 10, 10_000.0, "float32", 0))
    found = roofline_of(layers, ops, NOTHING, ceilings=CEILINGS, flops=1)
    assert found.reached == pytest.approx((0.25 * 4 + 0.5 * 1) / 5)
    assert found.parts["name"].tolist() == ["a", "b"]
    only_ops = roofline_of(layers.assign(dtype="float64"), ops, NOTHING, ceilings=CEILINGS, flops=1)
    assert (only_ops.parts["name"].tolist(), only_ops.reached) == (["op"], pytest.approx(0.1))
    assert roofline_of(layers, ops, NOTHING, ceilings=None, flops=1).reached is None


@pytest.mark.parametrize(("others", "doubted"), [(None, False), (0.1, False), (0.11, True)])
def test_ceilings_are_doubted_if_other_programs_ran(others: float | None, doubted: bool) -> None:
    found = made(ceilings=CEILINGS | {"others": others})
    assert found.ceilings_doubted is doubted
    said = "Other programs used 11 % of the CPUs while the ceilings were measured. The ceilings may be too low."
    assert list(roofline_document(found).notes[:1]) == [said] * doubted
