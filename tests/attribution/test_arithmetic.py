"""Counted operators joined with a trace made by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from perfnb.attribution.arithmetic import (
    arithmetic_per_span,
    counted_ops,
    main_dtype,
    special_arithmetic,
    time_by_layer,
    time_by_op,
    uncounted_ops,
    work_by,
)
from perfnb.attribution.attribution import attribute
from perfnb.recording.text import TEXT
from tests.recordings import ByHand


def calls_of(*rows: tuple[str, int | None, int, str]) -> pd.DataFrame:
    """Return the counter's frame: op, FLOPs, bytes and dtype of call 0, 1, 2 ..."""
    frame = pd.DataFrame(rows, columns=["op", "flops", "bytes", "dtype"]).rename_axis("number")
    return frame.assign(
        op=pd.Categorical(frame["op"]), flops=frame["flops"].astype("Int64"), dtype=pd.Categorical(frame["dtype"])
    )


def one_layer() -> ByHand:
    """Return a model with one layer inside, and the backward of an op of each."""
    run = ByHand().step(0, 100)
    model = run.layer("model")
    inner = run.layer("model.inner", model)
    run.call(model, 10, 40).call(inner, 12, 20)
    run.op("aten::mm", 13, 19, sequence=0).op("pf_op#0", 14, 18)
    run.op("aten::relu", 22, 26, sequence=1).op("pf_op#1", 23, 25)
    run.op("pf_op#2", 28, 30)
    run.node("ReluBackward0", 50, 60, 1).op("pf_op#3", 52, 58)
    run.node("MmBackward0", 60, 70, 0).op("pf_op#4", 62, 68)
    run.node("AccumulateGrad", 70, 74, -1).op("pf_op#5", 71, 72)
    return run.op("pf_op#6", 90, 95)


CALLS = calls_of(
    ("aten::mm", 100, 10, "float32"),
    ("aten::relu", None, 20, "float32"),
    ("aten::mm", 7, 1000, "bfloat16"),
    ("aten::threshold_backward", None, 30, "float32"),
    ("aten::mm", 200, 40, "float32"),
    ("aten::add_", None, 50, "float32"),
    ("aten::mul", None, 60, "float32"),
    ("aten::lost", 1, 2, "float64"),
)


def test_each_operator_has_its_layer_direction_and_phase() -> None:
    recording = one_layer().recording()
    counted = counted_ops(recording, attribute(recording), CALLS)

    assert counted["layer"].tolist() == [
        *("model.inner", "model", "model", "model", "model.inner", "(gradient accumulation)", "", "")
    ]
    directions = ["forward"] * 3 + ["backward"] * 3 + ["", ""]
    assert counted["direction"].tolist() == directions
    assert counted["phase"].tolist() == [*directions[:6], "other", ""]
    assert counted["block"].iloc[-1] == -1  # its span is in no step: counted, and nobody's
    assert counted["flops"].sum() == CALLS["flops"].sum()
    assert (counted["span"] == -1).tolist() == [False] * 5 + [True] * 3
    assert "layer" not in CALLS


def test_sums_per_span_and_per_row_add_up() -> None:
    recording = one_layer().recording()
    attribution = attribute(recording)
    counted = counted_ops(recording, attribution, CALLS)

    per_span = arithmetic_per_span(attribution, counted)
    assert {name: int(values.sum()) for name, values in per_span.items()} == {
        "forward_flops": 107,
        "backward_flops": 200,
        "recompute_flops": 0,
        "forward_bytes": 1030,
        "backward_bytes": 70,
        "recompute_bytes": 0,
        "forward_uncounted": 1,
        "backward_uncounted": 1,
        "recompute_uncounted": 0,
    }
    inner = int(counted["span"].iloc[0])
    assert (per_span["forward_flops"][inner], per_span["backward_flops"][inner]) == (100, 200)
    assert per_span["forward_flops"].shape == (len(attribution.cells),)
    special = special_arithmetic(counted)
    assert special.index.tolist() == ["(gradient accumulation)"]
    sums = dict.fromkeys(per_span, 0) | {"backward_bytes": 50, "backward_uncounted": 1}
    assert special.loc["(gradient accumulation)"].to_dict() == sums


def test_work_of_layers_and_operators() -> None:
    recording = one_layer().recording()
    counted = counted_ops(recording, attribute(recording), CALLS)

    layers = work_by(counted, "layer")
    assert layers.loc["model.inner", ["calls", "uncounted", "flops", "bytes"]].tolist() == [2, 0, 300, 50]
    assert layers.loc["model", ["calls", "uncounted", "flops", "bytes"]].tolist() == [3, 2, 7, 1050]
    assert pd.isna(layers.loc["(gradient accumulation)", "flops"])
    assert layers["dtype"].to_dict() == {
        "model.inner": "float32",
        "model": "bfloat16",  # that of its only arithmetic
        "(gradient accumulation)": "float32",
    }
    ops = work_by(counted, "op")
    assert ops.loc["aten::mm", ["calls", "flops", "bytes"]].tolist() == [3, 307, 1050]
    assert ops.loc["aten::mm", "dtype"] == "float32"
    assert pd.isna(ops.loc["aten::relu", "flops"])
    assert main_dtype(counted) == "float32"
    assert main_dtype(counted[counted["flops"].isna()]) is None


def test_a_users_range_does_not_pass_for_an_operator() -> None:
    run = ByHand().step(0, 100)
    model = run.layer("model")
    run.call(model, 10, 40).event("pf_op#1", 20, 30, "user_annotation")
    run.op("pf_op#0", 50, 60).op("pf_op#1x", 61, 62).op("pf_op#" + "9" * 30, 63, 64)
    recording = run.recording()

    counted = counted_ops(recording, attribute(recording), CALLS.iloc[:2])

    assert counted["layer"].tolist() == ["", ""]
    assert counted["phase"].tolist() == ["other", ""]


def test_no_calls_at_all() -> None:
    recording = one_layer().recording()
    attribution = attribute(recording)

    counted = counted_ops(recording, attribution, CALLS.iloc[:0])

    assert all(values.sum() == 0 for values in arithmetic_per_span(attribution, counted).values())
    assert special_arithmetic(counted).empty
    assert work_by(counted, "layer").empty
    assert work_by(counted, "op").empty
    assert main_dtype(counted) is None
    times = time_by_op(recording, attribution, [])
    assert uncounted_ops(counted, times, 1.0).columns.tolist() == ["op", "calls", "ms", "share"]


def test_time_goes_to_the_outermost_operator_that_was_counted() -> None:
    run = ByHand()
    for begin in (0, 1000):
        run.step(begin, begin + 100)
        run.op("aten::linear", begin + 10, begin + 40)  # takes itself apart: not counted
        run.op("aten::addmm", begin + 12, begin + 32)
        run.op("aten::copy_", begin + 14, begin + 18)
        run.op("aten::copy_", begin + 50, begin + 51)
        run.op("aten::relu", begin + 60, begin + 70).op("aten::clamp_min", begin + 61, begin + 69)
        run.kernel("gemm", begin + 20, begin + 21, begin + 29)
    recording = run.recording()
    attribution = attribute(recording)

    times = time_by_op(recording, attribution, ["aten::addmm", "aten::copy_", "aten::relu", "aten::absent"])

    assert times["ms"].to_dict() == pytest.approx({"aten::addmm": 0.020, "aten::copy_": 0.001, "aten::relu": 0.010})
    assert times["gpu_ms"].to_dict() == pytest.approx({"aten::addmm": 0.008, "aten::copy_": 0, "aten::relu": 0})


def test_operators_without_formula_are_listed_with_their_share() -> None:
    counted = pd.DataFrame(
        {
            "op": ["aten::relu", "aten::relu", "aten::mm", "aten::_to_copy", "aten::odd", "aten::odd", "aten::gone"],
            "flops": pd.array([None, None, 5, 0, None, 4, None], dtype="Int64"),
        }
    )
    times = pd.DataFrame(
        {"ms": [1.0, 6.0, 7.0, 8.0], "gpu_ms": [4.0, 1.0, 0.0, 0.0]},
        index=["aten::relu", "aten::odd", "aten::mm", "aten::_to_copy"],
    )

    table = uncounted_ops(counted, times, 20.0)
    assert table["op"].tolist() == ["aten::odd", "aten::relu", "aten::gone"]
    assert table["calls"].tolist() == [1, 2, 1]
    assert table["ms"].tolist()[:2] == [3.0, 1.0]  # of `odd` half the calls were counted
    assert table["share"].tolist()[:2] == pytest.approx([0.15, 0.05])
    assert pd.isna(table["ms"].iloc[2])
    assert pd.isna(table["share"].iloc[2])

    assert uncounted_ops(counted, times, 0.0)["share"].isna().all()  # a step without time
    on_gpu = uncounted_ops(counted, times, 10.0, on_gpu=True)
    assert on_gpu["op"].tolist() == ["aten::relu", "aten::odd", "aten::gone"]
    assert on_gpu["share"].tolist()[:2] == pytest.approx([0.4, 0.05])


@pytest.mark.parametrize(
    ("calls", "dtype", "flops"),
    [
        ([(6, 1, "float32"), (5, 9, "float16"), (2, 9, "float16")], "float16", 13),  # of most FLOPs
        ([(6, 1, "float32"), (6, 2, "float64")], "float64", 12),  # then of most bytes
        ([(None, 1, "float32"), (None, 2, "float64")], "float64", None),
        ([(6, 2, "float64"), (6, 2, "float32")], "float32", 12),  # then by name
        ([(0, 1, "float32"), (0, 1, "float32")], "float32", 0),
        ([(0, 1, "float32"), (None, 1, "float32")], "float32", None),  # only calls without arithmetic were counted
        ([(1, 1, "float32"), (None, 1, "float32")], "float32", 1),
    ],
)
def test_a_layer_has_a_main_dtype_and_the_flops_of_its_arithmetic(
    calls: list[tuple[int | None, int, str]], dtype: str, flops: int | None
) -> None:
    counted = calls_of(*(("aten::mm", *call) for call in calls)).astype({"dtype": TEXT}).assign(layer="net")
    work = work_by(counted, "layer").loc["net"]
    assert (work["dtype"], None if pd.isna(work["flops"]) else work["flops"]) == (dtype, flops)


def test_the_time_of_a_layer_is_its_own_per_step() -> None:
    run = ByHand()
    model = run.layer("model")
    inner = run.layer("model.inner", model)
    for begin in (0, 1000):
        run.step(begin, begin + 500).call(model, begin + 10, begin + 110).call(inner, begin + 20, begin + 50)
        run.op("aten::mm", begin + 30, begin + 40).kernel("gemm", begin + 31, begin + 40, begin + 60)
    recording = run.recording(cost={"op_ns": 1000})

    times = time_by_layer(recording, attribute(recording))

    assert times.loc["model", ["ms", "gpu_ms"]].tolist() == pytest.approx([0.070, 0])
    assert times.loc["model.inner", ["ms", "gpu_ms"]].tolist() == pytest.approx([0.029, 0.020])
