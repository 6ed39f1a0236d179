"""Phases and layers of a step built by hand, where every figure is known."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from perfnb.attribution.attribution import attribute
from perfnb.attribution.tables import phase_stretches
from perfnb.profile.profile import Profile
from perfnb.recording.recording import CompiledRecord
from perfnb.recording.schema import PHASES
from tests.recordings import ByHand


def training_step(steps: int = 1) -> ByHand:
    """Return a model of two layers, in microseconds from the start of each step, which contains everything that can be
    distinguished.
    """
    hand = ByHand()
    model = hand.layer("model")
    a, b = hand.layer("model.a", model), hand.layer("model.b", model)
    for number in range(steps):
        t, n = 2000 * number, 10 * number
        hand.step(t, t + 1000)
        hand.event("pf_data", t, t + 100)
        hand.call(model, t + 100, t + 400)
        hand.call(a, t + 110, t + 200).op("aten::mm", t + 120, t + 180, n + 1)
        hand.call(b, t + 200, t + 390).op("aten::relu", t + 210, t + 230, n + 2).op("aten::mm", t + 240, t + 380, n + 3)
        hand.op("aten::mse_loss", t + 410, t + 440, n + 4)
        hand.node("MseLossBackward0", t + 450, t + 500, n + 4)
        hand.node("MmBackward0", t + 500, t + 620, n + 3)
        hand.node("ReluBackward0", t + 630, t + 650, n + 2)
        hand.node("MmBackward0", t + 650, t + 750, n + 1)
        hand.node("torch::autograd::AccumulateGrad", t + 750, t + 760, -1)
        hand.event("Optimizer.step#SGD.step", t + 800, t + 950, "user_annotation")
        hand.op("aten::_foreach_add_", t + 810, t + 940)
    return hand


def in_us(column: pd.Series) -> dict[str, int | None]:
    """Whole microseconds by row; ``None`` for what is unknown."""
    return {str(name): None if pd.isna(value) else round(value * 1000) for name, value in column.items()}


def test_a_layer_that_is_never_called_takes_no_time_and_one_called_only_as_a_loss_has_none_of_its_own() -> None:
    hand = ByHand().step(0, 1000)
    model = hand.layer("model")
    hand.layer("model.unused", model)
    hand.call(model, 100, 200).call(hand.layer("criterion"), 300, 400, loss=True)

    layers = Profile(hand.recording()).layers

    assert layers.loc["model.unused", ["calls", "total_ms", "self_ms"]].tolist() == [0, 0, 0]
    assert layers.loc["criterion", "calls"] == 1
    assert layers.loc["criterion", ["total_ms", "self_ms"]].isna().all()


def test_every_microsecond_is_in_its_phase() -> None:
    p = Profile(training_step(3).recording())

    assert in_us(p.phases["ms"]) == {
        "data": 100,
        "host_to_device": 0,
        "forward": 300,
        "loss": 50,
        "backward": 310,
        "optimizer": 150,
        "communication": 0,
        "other": 90,
    }
    assert p.phases["share"].sum() == pytest.approx(1)
    assert tuple(p.phases.index) == PHASES


def test_every_microsecond_of_forward_and_backward_is_in_its_layer() -> None:
    layers = Profile(training_step(3).recording()).layers

    rows = ["model", "model.a", "model.b", "(loss)", "(gradient accumulation)", "(autograd engine)"]
    assert layers.index.tolist() == rows
    columns = {
        "forward_ms": [300, 90, 190, None, None, None],
        "backward_ms": [240, 100, 140, 50, 10, 10],
        "self_forward_ms": [20, 90, 190, None, None, None],
        "self_backward_ms": [0, 100, 140, 50, 10, 10],
        "self_ms": [20, 190, 330, 50, 10, 10],
        "total_ms": [540, 190, 330, 50, 10, 10],
        "recompute_ms": [0, 0, 0, None, None, None],
    }
    for name, values in columns.items():
        assert in_us(layers[name]) == dict(zip(rows, values, strict=True)), name
    assert layers["share"].tolist() == pytest.approx([0.54, 0.19, 0.33, 0.05, 0.01, 0.01])
    assert layers["calls"].tolist()[:3] == [1, 1, 1]
    assert layers["calls"].isna().tolist()[3:] == [True] * 3
    assert layers["ops"].tolist()[:3] == [6, 2, 4]  # forward ops, and the op in each backward node
    assert layers["gpu_ms"].isna().all()
    assert layers["kernels"].isna().all()


def test_an_op_in_another_counts_once_in_the_total_and_apart_in_the_own_time() -> None:
    hand = ByHand()
    hand.step(0, 100)
    hand.op("aten::to", 10, 90).op("aten::to", 20, 80).op("aten::copy_", 30, 60)

    ops = Profile(hand.recording()).ops

    assert in_us(ops["self_cpu_ms"]) == {"aten::to": 50, "aten::copy_": 30}
    assert in_us(ops["total_cpu_ms"]) == {"aten::to": 80, "aten::copy_": 30}
    assert ops.loc["aten::to", "calls"] == 2


def test_events_are_in_order_with_layer_phase_and_step() -> None:
    events = Profile(training_step(2).recording()).events

    assert events["start_ns"].is_monotonic_increasing
    assert events["start_ns"].iloc[0] == 0
    assert events["step"].tolist().count(1) == len(events) / 2
    spans = events[events["category"] == "layer"]
    assert spans["name"].tolist() == ["model", "model.a", "model.b"] * 2
    assert (spans["layer"].astype(str) == spans["name"].astype(str)).all()
    by_name = events.drop_duplicates("name").set_index("name")
    assert by_name.loc["step", "category"] == "step"
    assert by_name.loc["data", "phase"] == "data"
    assert by_name.loc["aten::mse_loss", "phase"] == "loss"
    assert by_name.loc["aten::relu", "layer"] == "model.b"
    assert by_name.loc["ReluBackward0", "layer"] == "model.b"
    assert by_name.loc["aten::_foreach_add_", "phase"] == "optimizer"
    assert events["stream"].isna().all()


def test_a_node_belongs_to_the_op_that_made_it() -> None:
    def backward_us(*events: tuple[str, str, float, float, int]) -> list[int | None]:
        hand = ByHand()
        layers = {name: hand.layer(name) for name in "ab"}
        hand.step(0, 1000).step(1000, 2000)
        for where, name, begin, end, sequence in events:
            if where in layers:
                hand.call(layers[where], begin - 10, end + 10).op(name, begin, end, sequence=sequence)
            else:
                hand.node(name, begin, end, sequence=sequence)
        return [*in_us(Profile(hand.recording()).layers["backward_ms"]).values()]

    # Ops that make no node carry the number that the next node gets: the one that started last counts.
    view, mm = ("a", "aten::view", 20, 30, 5), ("b", "aten::mm", 120, 180, 5)
    assert backward_us(view, mm, ("", "MmBackward0", 300, 400, 5)) == [0, 50]
    # An in-place op on a view makes several nodes and carries the first one's number.
    nodes = ("", "AsStridedBackward0", 300, 350, 7), ("", "ReluBackward0", 350, 400, 5)
    assert backward_us(("a", "aten::relu_", 20, 90, 5), ("b", "aten::mm", 120, 180, 8), *nodes) == [50, 0]
    # A number used again in the next step means the op of that step.
    later = ("b", "aten::mm", 1020, 1090, 5), ("", "MmBackward0", 1200, 1300, 5)
    assert backward_us(("a", "aten::mm", 20, 90, 5), ("", "MmBackward0", 200, 320, 5), *later) == [60, 50]


def test_a_layer_that_runs_inside_backward_is_recomputed() -> None:
    hand = ByHand()
    model = hand.layer("model")
    inner = hand.layer("model.inner", model)
    hand.step(0, 1000)
    hand.call(model, 0, 300).call(inner, 100, 200).op("aten::mm", 110, 190, sequence=1)
    hand.node("CheckpointBackward", 400, 800, sequence=1)
    hand.call(inner, 450, 550).op("aten::mm", 460, 540, sequence=2)
    hand.node("MmBackward0", 600, 700, sequence=2)

    p = Profile(hand.recording())

    assert in_us(p.layers["recompute_ms"])["model.inner"] == 100
    assert in_us(p.layers["backward_ms"])["model.inner"] == 300
    assert in_us(p.layers["forward_ms"]) == {"model": 300, "model.inner": 100}
    assert p.layers["calls"].tolist() == [1, 1]
    assert in_us(p.phases["ms"])["backward"] == 400
    assert in_us(p.layers["total_ms"])["model"] == 700


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_of_a_shared_layer_counts_in_the_parent_that_checkpoints_it(reentrant: bool) -> None:
    hand = ByHand()
    model = hand.layer("model")
    saving, plain = hand.layer("saving", model), hand.layer("plain", model)
    between, shared = hand.layer("plain.between", plain), hand.layer("saving.shared", saving)
    deeper = hand.layer("plain.between.deeper", between)
    hand.step(0, 1000).call(model, 0, 400)
    hand.call(saving, 0, 200).call(shared, 100, 200).op("aten::mm", 110, 190, sequence=1)
    if reentrant:
        hand.op("CheckpointFunction", 50, 200, sequence=1)
        hand.rows[-2]["sequence"] = -1  # its first forward runs without a graph
    # the last and the deepest call of the shared layer is the one without a checkpoint
    hand.call(plain, 200, 400).call(between, 250, 400).call(deeper, 260, 400)
    hand.call(shared, 300, 400).op("aten::mm", 310, 390, sequence=2)
    hand.node("MmBackward0", 450, 500, sequence=2)
    hand.node("CheckpointFunctionBackward" if reentrant else "MmBackward0", 500, 700, sequence=1)
    hand.call(shared, 510, 610).op("aten::mm", 520, 600, sequence=3 if reentrant else -1)
    if reentrant:
        hand.node("MmBackward0", 620, 690, sequence=3)

    layers = Profile(hand.recording()).layers

    assert in_us(layers["recompute_ms"]) == {
        "model": 100,
        "saving": 100,
        "plain": 0,
        "plain.between": 0,
        "plain.between.deeper": 0,
        "saving.shared": 100,
    }
    assert in_us(layers["backward_ms"])["saving"] == 100
    assert in_us(layers["backward_ms"])["plain"] == 50
    assert in_us(layers["backward_ms"])["model"] == 150


def test_a_layer_used_twice_in_one_checkpoint_is_recomputed_in_both_places() -> None:
    hand = ByHand()
    model = hand.layer("model")
    act, inner = hand.layer("model.act", model), hand.layer("model.inner", model)
    hand.step(0, 1000).call(model, 0, 300)
    hand.call(act, 100, 150).op("aten::tanh", 110, 140, sequence=1)
    hand.call(inner, 150, 250).call(act, 160, 240).op("aten::tanh", 170, 230, sequence=2)
    hand.node("TanhBackward0", 400, 900, sequence=2)
    hand.call(act, 410, 460).op("aten::tanh", 420, 450)
    hand.call(inner, 500, 600).call(act, 510, 590).op("aten::tanh", 520, 580)

    layers = Profile(hand.recording()).layers

    assert in_us(layers["recompute_ms"]) == {"model": 150, "model.act": 130, "model.inner": 100}


def test_a_checkpoint_recomputed_inside_another_finds_its_parent() -> None:
    hand = ByHand()
    model = hand.layer("model")
    one, other = hand.layer("model.one", model), hand.layer("model.other", model)
    hand.step(0, 1000).call(model, 0, 300)
    hand.op("CheckpointFunction", 10, 200, sequence=1)
    hand.call(one, 20, 90).op("aten::mm", 30, 80)
    hand.call(other, 100, 190).op("aten::mm", 110, 180)
    hand.node("CheckpointFunctionBackward", 400, 900, sequence=1)
    hand.call(one, 410, 460).op("aten::mm", 420, 450, sequence=2)
    hand.node("MmBackward0", 500, 800, sequence=2)
    hand.call(other, 510, 560).op("aten::mm", 520, 550)

    layers = Profile(hand.recording()).layers

    assert in_us(layers["recompute_ms"]) == {"model": 100, "model.one": 50, "model.other": 50}


def test_analysis_changes_nothing_in_the_recording() -> None:
    recording = training_step(2).recording()
    before = {name: frame.copy(deep=True) for name, frame in recording.frames().items()}
    p = Profile(recording)

    for table in (p.layers, p.phases, p.ops, p.layer_ops, p.kernels, p.events, p.steps):
        table.iloc[:0]
    assert str(p)
    layers, steps = p.layers, p.steps
    layers.loc[:, "forward_ms"] = 0.0
    steps.loc[:, "wall_ms"] = 0.0

    for name, frame in recording.frames().items():
        pd.testing.assert_frame_equal(frame, before[name])


def test_the_kernels_of_compiled_code_are_divided_among_its_layers_as_its_time_is() -> None:
    hand = ByHand()
    model = hand.layer("net", compiled=True)
    first, second = (hand.layer(f"net.{place}", model) for place in range(2))
    for t in (0.0, 1000.0):
        hand.step(t, t + 900).call(model, t + 10, t + 500).call(first, t + 100, t + 160).call(second, t + 160, t + 200)
        hand.kernel("triton", t + 150, t + 300, t + 310)  # launched in the first of both layers
        hand.kernel("copy", t + 400, t + 410, t + 413)  # launched outside the compiled kernel's call
    recording = hand.recording()
    empty = pd.DataFrame()
    calls = pd.DataFrame({"kernel": 0, "start_ns": [100_000, 1_100_000], "duration_ns": 100_000})
    spans = recording.spans.assign(derived=recording.spans["layer"] != model)
    recording = replace(recording, spans=spans, compiled=CompiledRecord(empty, empty, calls, empty))

    gpu_ms = Profile(recording).layers["gpu_ms"]

    assert gpu_ms["net.0"] == pytest.approx(0.010 * 0.6)
    assert gpu_ms["net.1"] == pytest.approx(0.010 * 0.4)
    assert gpu_ms["net"] == pytest.approx(0.010 + 0.003)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("autograd::engine::evaluate_function: MmBackward0", "backward"),
        ("jit(train)/transpose(jvp(net))/dot", "backward"),
        ("gradient_tape/net/MatMul", "backward"),
        ("jit(train)/jvp(net)/dot", "forward"),
        ("pf_data", "data"),
    ],
)
def test_a_users_range_with_the_name_of_an_op_does_not_count_as_one(name: str, phase: str) -> None:
    def phases(category: str) -> dict[str, int | None]:
        table = Profile(ByHand().step(0, 1000).event(name, 100, 300, category).recording()).phases
        return {row: us for row, us in in_us(table["ms"]).items() if us}

    assert phases("cpu_op")[phase] == 200
    assert phases("user_annotation") == {"other": 1000}


def test_kernels_have_totals_per_step_and_means_and_maxima_per_call() -> None:
    hand = ByHand()
    for t in (0, 1000):
        hand.step(t, t + 900).op("aten::mm", t + 10, t + 100)
        hand.kernel("short", t + 20, t + 30, t + 32).kernel("gemm", t + 40, t + 50, t + 60)
    hand.kernel("gemm", 1060, 1200, 1240).kernel("set", 1070, 1300, 1301, category="gpu_memset")

    kernels = Profile(hand.recording()).kernels

    assert kernels.index.tolist() == ["gemm", "short", "set"]  # the longest first
    assert kernels["calls"].tolist() == [1.5, 1, 0.5]
    assert kernels["total_ms"].tolist() == pytest.approx([0.030, 0.002, 0.0005])
    assert kernels["mean_us"].tolist() == pytest.approx([20, 2, 1])
    assert kernels["max_us"].tolist() == pytest.approx([40, 2, 1])


def test_ops_of_a_layer_have_calls_and_times_per_step_in_descending_order() -> None:
    hand = ByHand()
    a, b = hand.layer("a"), hand.layer("b")
    for number in range(4):
        t = 1000 * number
        hand.step(t, t + 900)
        hand.call(a, t + 10, t + 200).op("aten::relu", t + 20, t + 60).op("aten::mm", t + 70, t + 170)
        hand.op("aten::mm", t + 170, t + 190)
        hand.call(b, t + 200, t + 300).op("aten::mm", t + 210, t + 290).kernel("gemm", t + 220, t + 300, t + 330)
        hand.op("aten::neg", t + 300, t + 400)

    p = Profile(hand.recording())

    rows = p.layer_ops
    assert list(zip(rows["layer"], rows["op"], rows["direction"], strict=True)) == [
        ("a", "aten::mm", "forward"),
        ("b", "aten::mm", "forward"),
        ("a", "aten::relu", "forward"),
    ]
    assert rows["calls"].tolist() == [2, 1, 1]
    assert rows["self_cpu_ms"].tolist() == pytest.approx([0.120, 0.080, 0.040])
    assert rows["gpu_ms"].tolist() == pytest.approx([0, 0.030, 0])
    assert p.ops.index.tolist() == ["aten::mm", "aten::neg", "aten::relu"]
    assert in_us(p.ops["gpu_ms"]) == {"aten::mm": 30, "aten::neg": 0, "aten::relu": 0}
    assert in_us(p.ops["self_cpu_ms"]) == {"aten::mm": 200, "aten::neg": 100, "aten::relu": 40}


def test_ops_are_listed_by_their_time_on_the_device_where_there_is_one() -> None:
    hand = ByHand().step(0, 1000)
    hand.op("aten::slow_on_host", 0, 500).kernel("k", 10, 20, 30)
    hand.op("aten::slow_on_device", 500, 510).kernel("k", 502, 510, 610)
    hand.op("aten::host_alone", 600, 700).op("aten::host_longer", 700, 900)

    assert Profile(hand.recording()).ops.index.tolist() == [
        *("aten::slow_on_device", "aten::slow_on_host", "aten::host_longer", "aten::host_alone")
    ]


def test_times_on_the_device_are_unknown_without_one() -> None:
    p = Profile(training_step().recording())
    assert p.ops["gpu_ms"].isna().all()
    assert p.layer_ops["gpu_ms"].isna().all()
    assert p.kernels.empty


def test_the_cost_of_tracing_is_taken_from_what_contains_the_traced_calls() -> None:
    hand = ByHand().step(0, 1000)
    model = hand.layer("model")
    inner = hand.layer("model.inner", model)
    hand.call(model, 100, 500).op("aten::add", 110, 140)
    hand.call(inner, 150, 350).op("aten::mm", 160, 250, 1).op("aten::relu", 260, 340)
    hand.node("MmBackward0", 600, 800, 1)

    p = Profile(hand.recording(cost={"op_ns": 10_000, "call_ns": 20_000}))

    # An op costs 10 µs where it runs, and a call 20 µs around it: the first gap loses what calling the model costs.
    corrected = {"gap": 80, "model": 200 - 10 - 20, "inner": 200 - 20, "loss": 100, "node": 200 - 10, "rest": 200}
    whole = sum(corrected.values())
    shares = p.layers["self_share"] * whole
    assert shares["model"] == pytest.approx(corrected["model"])
    assert shares["model.inner"] == pytest.approx(corrected["inner"] + corrected["node"])
    phases = p.phases["share"] * whole
    assert phases["other"] == pytest.approx(corrected["gap"] + corrected["rest"])
    assert phases["loss"] == pytest.approx(corrected["loss"])
    assert p.phases["ms"].sum() == pytest.approx(1.0)


def test_no_share_is_negative_where_tracing_costs_more_than_all_the_time() -> None:
    hand = ByHand().step(0, 1000)
    hand.call(hand.layer("model"), 100, 110).op("aten::mm", 101, 102).op("aten::mm", 103, 104)

    p = Profile(hand.recording(cost={"op_ns": 8_000}))

    assert p.layers.loc["model", "share"] == 0
    assert p.phases.loc["other", "share"] == 1


def test_a_layer_that_calls_itself_counts_once() -> None:
    hand = ByHand()
    a, b = hand.layer("a"), hand.layer("b")
    hand.step(0, 1000).call(a, 100, 500).call(a, 200, 400)
    hand.call(b, 500, 900).call(a, 600, 800).call(b, 650, 750)

    layers = Profile(hand.recording()).layers

    assert layers["calls"].to_dict() == {"a": 2, "b": 2}  # b is inside itself, but a is between
    assert in_us(layers["forward_ms"]) == {"a": 600, "b": 400}
    assert in_us(layers["self_ms"]) == {"a": 500, "b": 300}


def test_a_container_that_is_never_called_has_the_sum_of_the_outermost_calls_below_it() -> None:
    hand = ByHand()
    model = hand.layer("model")
    blocks = hand.layer("model.blocks", model)
    first, second = hand.layer("model.blocks.0", blocks), hand.layer("model.blocks.1", blocks)
    hand.layer("model.unused", model)
    hand.step(0, 1000).call(model, 100, 900).call(first, 200, 400).call(second, 250, 300).call(second, 500, 600)

    layers = Profile(hand.recording()).layers

    assert in_us(layers["forward_ms"]) == {
        "model": 800,
        "model.blocks": 200 + 100,
        "model.blocks.0": 200,
        "model.blocks.1": 50 + 100,
        "model.unused": 0,
    }
    assert layers["calls"].tolist() == [1, 0, 1, 2, 0]
    assert in_us(layers["self_ms"])["model.blocks"] == 0


def test_the_phases_of_a_step_follow_each_other_without_repetition() -> None:
    attribution = attribute(training_step(2).recording())

    def stretches(begin: int, end: int) -> list[tuple[str, int, int]]:
        found = phase_stretches(attribution, begin * 1000, end * 1000)
        return [(phase, start // 1000 - begin, stop // 1000 - begin) for phase, start, stop in found]

    expected = [
        ("data", 0, 100),
        ("forward", 100, 400),
        ("loss", 400, 450),
        ("backward", 450, 760),
        ("other", 760, 800),
        ("optimizer", 800, 950),
        ("other", 950, 1000),
    ]
    assert stretches(0, 1000) == stretches(2000, 3000) == expected
    assert stretches(1000, 2000) == []
