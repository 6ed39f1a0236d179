"""What the counted steps add to the tables of layers and ops, in recordings made by hand."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from perfnb.profile.analysis import Analysis
from perfnb.profile.layers import with_fused
from perfnb.recording.recording import ArithmeticRecord, Recording
from perfnb.recording.schema import SCHEMA
from tests.attribution.test_arithmetic import calls_of
from tests.recording.test_compiled_layers import of_one_step
from tests.recordings import ByHand

FLOPS = ["forward_flops", "backward_flops", "recompute_flops"]


def step_of_two(*, with_ops: bool = True) -> ByHand:
    """Return a model with a list of two layers, one of them called twice and again in backward; then the loss and its
    node.
    """
    hand = ByHand().step(0, 1000)
    model = hand.layer("model")
    parts = hand.layer("model.parts", model)
    a, b = hand.layer("model.parts.0", parts), hand.layer("model.parts.1", parts)
    hand.layer("model.idle", model)
    hand.call(model, 100, 400)
    hand.call(a, 110, 150).op("aten::mm", 111, 149, 1)
    hand.call(b, 150, 200).op("aten::relu", 151, 199, 2)
    hand.call(a, 200, 250).op("aten::mm", 201, 249, 3)
    hand.op("aten::mm", 260, 300, 4)
    hand.op("aten::mse_loss", 410, 440, 5)
    hand.node("MseLossBackward0", 450, 500, 5)
    hand.node("MmBackward0", 500, 550, 4)
    hand.node("CheckpointBackward", 550, 700, 3)
    hand.call(a, 560, 600).op("aten::mm", 561, 599, 6)
    hand.node("ReluBackward0", 705, 750, 2).node("MmBackward0", 750, 800, 1)
    hand.node("torch::autograd::AccumulateGrad", 800, 810, -1)
    hand.event("Optimizer.step#SGD.step", 850, 950, "user_annotation")
    if with_ops:
        starts = (120, 160, 210, 270, 420, 460, 510, 570, 610, 710, 760, 802, 860)
        for number, start in enumerate(starts):
            hand.op(f"pf_op#{number}", start, start + 2)
    return hand


CALLS = calls_of(
    ("aten::mm", 1, 10, "float32"),  # first call of a
    ("aten::relu", None, 20, "float32"),  # b
    ("aten::mm", 4, 30, "float32"),  # second call of a
    ("aten::mm", 8, 40, "float32"),  # of the model itself
    ("aten::mse_loss", 16, 50, "float32"),  # in the loss: no layer's
    ("aten::mse_loss_backward", 32, 60, "float32"),
    ("aten::mm", 64, 70, "float32"),
    ("aten::mm", 128, 80, "float32"),  # a again, recomputed
    ("aten::mm", 256, 90, "float32"),  # backward of a, in the node around its recomputation
    ("aten::threshold_backward", None, 100, "float32"),
    ("aten::mm", 512, 110, "float32"),
    ("aten::add_", None, 120, "float32"),  # accumulation
    ("aten::add_", None, 130, "float32"),  # optimizer
)


def tables(hand: ByHand, calls: pd.DataFrame = CALLS) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return layers and ops with the arithmetic of the counted step, which is traced apart from the others."""
    recording: Recording = step_of_two(with_ops=False).recording()
    recording = replace(recording, arithmetic=ArithmeticRecord(hand.recording().events, calls))
    analysis = Analysis(recording)
    return analysis.layers, analysis.ops


def rows_of(table: pd.DataFrame, columns: list[str]) -> dict[str, list[int | None]]:
    values = table[columns].astype(object)
    return {str(name): [None if pd.isna(value) else int(value) for value in row] for name, row in values.iterrows()}


def test_layers_sum_what_ran_inside_them_in_each_direction() -> None:
    layers, _ = tables(step_of_two())

    assert rows_of(layers, [*FLOPS, "moved_bytes"]) == {
        "model": [1 + 4 + 8, 64 + 256 + 512, 128, 550],
        "model.parts": [1 + 4, 256 + 512, 128, 440],  # never called: what ran in the layers of the list
        "model.parts.0": [1 + 4, 256 + 512, 128, 320],
        "model.parts.1": [None, None, 0, 120],  # no formula: not 0
        "model.idle": [None, None, None, None],
        "(loss)": [None, 32, None, 60],
        "(gradient accumulation)": [None, None, None, 120],
        "(autograd engine)": [None, None, None, None],
    }
    assert layers.columns.tolist() == list(SCHEMA["layers"])
    assert layers["total_ms"].notna().sum() == 8  # and what was there stays


def test_models_and_special_rows_add_up_to_what_was_counted_in_forward_and_backward() -> None:
    layers, _ = tables(step_of_two())

    roots = layers[layers["depth"] == 0]
    outside = 16  # the loss's forward is no row's
    assert roots[FLOPS].sum().sum() == CALLS["flops"].sum() - outside
    assert roots["moved_bytes"].sum() == CALLS["bytes"].sum() - 50 - 130  # nor is the optimizer


def test_work_in_forward_outside_of_all_layers_is_unattributed_and_forward() -> None:
    hand = ByHand().step(0, 1000)
    layer = hand.layer("model")
    hand.spans.append((-1, False))  # of a module that is not a layer
    hand.event("pf#", 100, 200, span=0).op("aten::mm", 110, 190, 1).call(layer, 200, 300)
    hand.node("MmBackward0", 400, 500, 1)
    recording = hand.recording()
    hand.op("pf_op#0", 120, 130).op("pf_op#1", 420, 430)
    recording = replace(recording, arithmetic=ArithmeticRecord(hand.recording().events, CALLS.iloc[[0, 2]]))
    recording.arithmetic.calls.index = pd.RangeIndex(2, name="number")

    layers = Analysis(recording).layers

    assert rows_of(layers, [*FLOPS, "moved_bytes"]) == {"model": [0, 0, 0, 0], "(unattributed)": [1, 4, None, 40]}


def test_ops_have_flops_where_a_formula_and_bytes_where_they_were_counted() -> None:
    _, ops = tables(step_of_two())

    known = rows_of(ops, ["flops", "bytes"])
    assert known["aten::mm"] == [1 + 4 + 8 + 64 + 128 + 256 + 512, 430]
    assert known["aten::relu"] == [None, 20]
    assert known["aten::mse_loss"] == [16, 50]
    assert known["MmBackward0"] == [None, None]  # others do its work
    assert "aten::add_" not in known  # counted, but in no traced step


def test_a_step_that_was_not_counted_changes_nothing() -> None:
    recording = step_of_two().recording()

    assert Analysis(recording).counted is None
    layers = Analysis(recording).layers
    assert layers[[*FLOPS, "moved_bytes"]].isna().all(axis=None)


def test_a_counted_step_without_operators_has_zeros_for_layers_that_ran() -> None:
    layers, ops = tables(step_of_two(with_ops=False), CALLS.iloc[:0])

    found = rows_of(layers, [*FLOPS, "moved_bytes"])
    assert found.pop("model.idle") == [None] * 4
    assert {name: row for name, row in found.items() if "(" in name} == {
        name: [None] * 4 for name in ("(loss)", "(gradient accumulation)", "(autograd engine)")
    }
    assert {tuple(row) for name, row in found.items() if "(" not in name} == {(0, 0, 0, 0)}
    assert ops[["flops", "bytes"]].isna().all(axis=None)


def test_layers_have_the_peak_while_they_or_their_backward_pass_ran_and_what_they_save() -> None:
    hand = ByHand().step(0, 1000)
    model = hand.layer("model")
    inner = hand.layer("model.inner", model)
    leaf = hand.layer("model.inner.leaf", inner)
    other = hand.layer("other")
    hand.layer("idle")
    hand.call(model, 0, 400).call(inner, 100, 300).call(leaf, 120, 200).op("aten::mm", 130, 190, 1)
    hand.node("MmBackward0", 500, 600, 1).call(other, 700, 1000)
    hand.block(450, 460, 1, 1000).block(150, 250, 2, 300).block(550, 560, 3, 700).block(350, 360, 4, 900)
    hand.block(800, None, 5, 20).block(180, 561, 6, 64)

    assert rows_of(Analysis(hand.recording()).layers, ["activation_bytes", "peak_bytes"]) == {
        "model": [64, 964],  # in forward, outside of its layers
        "model.inner": [64, 764],  # in the backward pass of the layer inside
        "model.inner.leaf": [64, 764],
        "other": [0, 20],
        "idle": [None, None],
    }


def test_layers_have_no_peak_from_the_steps_before_the_counted_one() -> None:
    hand = ByHand().step(0, 1000).step(1000, 2000)
    early, late = hand.layer("early"), hand.layer("late")
    hand.call(early, 100, 900).call(late, 100, 900).call(late, 1100, 1900)
    hand.block(200, 300, 1, 5000).block(1200, 1300, 2, 700)

    assert rows_of(Analysis(hand.recording()).layers, ["peak_bytes"]) == {"early": [None], "late": [700]}


def test_a_layer_has_the_peak_of_what_it_calls_of_another_model() -> None:
    hand = ByHand().step(0, 1000)
    owner, caller = hand.layer("owner"), hand.layer("caller")
    shared = hand.layer("owner.shared", owner)
    hand.layer("idle")
    hand.call(caller, 0, 400).call(shared, 100, 200).op("aten::mm", 110, 190, 1).node("MmBackward0", 500, 600, 1)
    hand.block(550, 560, 1, 700).block(150, 160, 2, 300)

    peaks = rows_of(Analysis(hand.recording()).layers, ["peak_bytes"])
    assert peaks == {"owner": [700], "owner.shared": [700], "caller": [700], "idle": [None]}


def test_a_layer_has_the_time_of_kernels_that_it_shares_but_no_more_than_its_own() -> None:
    recording = of_one_step()
    layers = Analysis(recording).layers
    fused = {"net": 0.0, "net.block": 0.0, "net.block.inner": 0.01}
    assert layers["fused_ms"].iloc[:3].to_dict() == pytest.approx(fused)
    short = layers.assign(total_ms=pd.array([0.1, 0.1, 0.004, None], dtype="Float64"))
    again = with_fused(short, recording)["fused_ms"]
    assert again.iloc[:3].tolist() == pytest.approx([0.0, 0.0, 0.004])
    assert pd.isna(again.iloc[3])
    assert with_fused(short, replace(recording, compiled=None)) is short


def test_a_recording_without_traced_steps_has_no_share_of_the_host() -> None:
    recording = ByHand().step(0, 9).recording()
    assert Analysis(replace(recording, events=recording.events.iloc[:0])).host_share == 0.0


def test_a_step_is_on_a_gpu_if_it_launched_work_even_outside_of_ops() -> None:
    assert Analysis(ByHand().step(0, 1000).kernel("k", 30, 40, 50).recording())._on_gpu
    assert not Analysis(ByHand().step(0, 1000).op("aten::mm", 10, 90).recording())._on_gpu
