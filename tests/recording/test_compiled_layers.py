"""Layers inside compiled regions, in recordings whose figures are known beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import perfnb
from perfnb.compiled.tables import compiled_kernel_table, fused_ms, region_table
from perfnb.profile.profile import Profile
from perfnb.recording.compiled_layers import (
    OVERHEAD,
    UNCACHED,
    CompiledCode,
    Graph,
    HostEvents,
    _below,
    _called,
    _head,
    _is_below,
    _Layers,
    _planned,
    common_prefix,
    graph_keys,
    matched,
    region_ids,
    with_compiled_regions,
)
from perfnb.recording.kernel_work import Kernel, Operation
from perfnb.recording.recording import Recording
from tests.recordings import NODE, ByHand

FORWARD, BACKWARD = "fkey", "bkey"
BLOCK = (("L['self'].block", "Net.Block"),)
INNER = (*BLOCK, ("L['self'].block.inner", "Net.Block.Inner"))


def operation(
    name: str, modules: tuple[tuple[str, str], ...] = (), inputs: tuple[str, ...] = (), *, op: str = "aten::mul"
) -> Operation:
    """Return an operation whose result has 100 bytes, and which computes nothing that counts."""
    return Operation(name, op if modules or inputs else "", modules, inputs, 100, 0, ("model.py", 7, "x * 2"))


def graph(key: str, kernels: dict[str, list[Operation]], *others: Operation, extern: tuple[str, ...] = ()) -> Graph:
    inside = [each for operations in kernels.values() for each in operations]
    named = [Kernel(name, name in extern, tuple(each.name for each in own)) for name, own in kernels.items()]
    return Graph(key, tuple(named), {each.name: each for each in (*others, *inside)})


#: Its first kernel is the block's own and the inner layer's: two reads against one write and a read.
SHARED = graph(
    FORWARD,
    {
        "cpp_fused_mul_0": [
            operation("a", BLOCK, ("x", "y")),  # reads 200 bytes; what it computes stays inside
            operation("b", INNER, ("a", "w")),  # reads 100 and writes 100
        ],
        "extern_kernels.mm": [operation("c", INNER, ("b", "v"), op="aten::mm")],
        "cpp_fused_sum_1": [operation("loss", (), ("c",), op="aten::sum")],
    },
    *map(operation, "xywv"),
    extern=("extern_kernels.mm",),
)
BACK = graph(
    BACKWARD,
    {
        "cpp_fused_mul_0": [operation("g", INNER, ("t",))],
        "cpp_fused_add_1": [
            operation("p", BLOCK, ("t",)),
            operation("sum", (), ("g", "p"), op="aten::add"),
        ],
    },
    operation("t"),
)


def net(hand: ByHand) -> tuple[int, int, int]:
    root = hand.layer("net", compiled=True)
    block = hand.layer("net.block", root)
    return root, block, hand.layer("net.block.inner", block)


def region(hand: ByHand, begin: float, sequence: int = 5, name: str = "0/0") -> None:
    """A lookup of 2 µs, and a region of 98: 10 before its graph, kernels of 20, 30 and 10, 5 apart, and 13 after."""
    hand.op("TorchDynamo Cache Lookup", begin, begin + 2)
    hand.op(f"Torch-Compiled Region: {name}", begin + 2, begin + 100)
    hand.op("CompiledFunction", begin + 5, begin + 95, sequence)
    hand.op(f"## Call CompiledFxGraph {FORWARD} ##", begin + 6, begin + 94)
    hand.op("graph_0_cpp_fused_mul_0", begin + 12, begin + 32)
    hand.op("aten::mm", begin + 37, begin + 67)
    hand.op("aten::resolve_conj", begin + 40, begin + 41)
    hand.op("graph_0_cpp_fused_sum_1", begin + 72, begin + 82)


def backward(hand: ByHand, begin: float, sequence: int = 5) -> None:
    """A node of 60 µs with two kernels of 20."""
    hand.node("CompiledFunctionBackward", begin, begin + 60, sequence)
    hand.op(f"## Call CompiledFxGraph {BACKWARD} ##", begin + 5, begin + 55)
    hand.op("graph_0_cpp_fused_mul_0", begin + 6, begin + 26)
    hand.op("graph_0_cpp_fused_add_1", begin + 30, begin + 50)


def one_region() -> ByHand:
    """Return a step that calls the model, whose forward pass is one region."""
    hand = ByHand().step(0, 300)
    root, *_ = net(hand)
    hand.call(root, 8, 112)
    region(hand, 10)
    return hand


def of_one_step(*, around: bool = True) -> Recording:
    hand = ByHand().step(0, 300)
    root, *_ = net(hand)
    if around:
        hand.call(root, 8, 112)
    region(hand, 10)
    backward(hand, 200)
    return told(hand.recording(), [SHARED, BACK])


def told(recording: Recording, graphs: list[Graph], **code: str) -> Recording:
    regions = [CompiledCode(name, **code) for name in region_ids(recording.events)]
    return with_compiled_regions(recording, graphs, regions)


def us(recording: Recording, column: str = "self_ms") -> dict[str, float]:
    values = Profile(recording).layers[column].dropna() * 1000
    return {str(name): round(float(value), 3) for name, value in values.items()}


def test_the_time_of_kernels_is_that_of_the_layers_whose_operations_they_compute() -> None:
    recording = of_one_step()

    # Of the 20 µs of the first kernel the block has 200 of 400 bytes; the sum is in no module, so it is the model's.
    forward = {"net": 4 + 10, "net.block": 10, "net.block.inner": 10 + 30, f"net.{OVERHEAD}": 100 - 60}
    assert us(recording, "self_forward_ms") == {**forward}
    # The addition joins the gradients of the block and of its inner layer: it is the block's.
    back = {"net": 0, "net.block": 20, "net.block.inner": 20, f"net.{OVERHEAD}": 20}
    assert {name: value for name, value in us(recording, "self_backward_ms").items() if name in back} == back


def test_rows_add_up_to_the_region_and_to_the_phases() -> None:
    p = Profile(of_one_step())

    layers = p.layers
    assert layers.loc["net", "total_ms"] == pytest.approx(0.104 + 0.060)
    assert layers.loc["net.block", "total_ms"] == pytest.approx(0.050 + 0.040)
    own = layers["self_ms"].sum()
    assert own == pytest.approx(p.phases.loc[["forward", "backward"], "ms"].sum())
    assert layers.loc[["net", "net.block", "net.block.inner"], "calls"].tolist() == [1, 1, 1]


def test_the_phases_and_the_ops_stay_what_they_are() -> None:
    hand = one_region()
    backward(hand, 200)
    plain, known = Profile(hand.recording()), Profile(of_one_step())

    assert known.phases["ms"].tolist() == pytest.approx(plain.phases["ms"].tolist())
    assert known.ops["calls"].to_dict() == plain.ops["calls"].to_dict()
    assert known.ops["self_cpu_ms"].to_dict() == plain.ops["self_cpu_ms"].to_dict()
    assert known.layers["ops"].iloc[0] == plain.layers["ops"].iloc[0]


def test_a_compiled_function_has_the_layers_of_the_model_that_it_calls() -> None:
    recording = of_one_step(around=False)

    p = Profile(recording)
    assert p.phases.loc["forward", "ms"] == pytest.approx(0.1)
    assert p.layers.loc["net", "total_ms"] == pytest.approx(0.1 + 0.06)
    assert us(recording, "self_forward_ms")["net.block.inner"] == 40


def test_tracing_costs_nothing_for_what_is_added_to_the_trace() -> None:
    recording = of_one_step()
    costly = {**recording.meta, "cost": {"op_ns": 0.0, "call_ns": 1000.0}}

    p = Profile(Recording(**{**vars(recording), "meta": costly}))

    # One call of a module was traced, which the gap before it pays for.
    assert p.layers.loc["net", "share"] == pytest.approx(0.164 / 0.299)


def test_the_kernels_have_their_layers_ops_and_lines() -> None:
    recording = of_one_step()
    kernels = compiled_kernel_table(recording)

    first = kernels[kernels["kernel"] == "cpp_fused_mul_0"].set_index("direction").loc["forward"]
    assert (first["layers"], first["ops"], first["source"]) == (
        "net.block, net.block.inner",
        "aten::mul",
        "model.py:7: x * 2",
    )
    assert (first["calls"], first["ms"], first["bytes"]) == (1, pytest.approx(0.02), 400)
    assert first["bytes_per_s"] == pytest.approx(400 / 20e-6)
    assert kernels["ms"].is_monotonic_decreasing
    assert kernels["ms"].sum() == pytest.approx(0.100)
    nowhere = kernels.set_index("kernel").loc["cpp_fused_sum_1", "layers"]
    assert nowhere is None or nowhere != nowhere  # missing
    # The inner layer has 10 µs from a kernel that it shares with the block, which for the block is no sharing.
    assert dict(zip(["net", "net.block", "net.block.inner", OVERHEAD], fused_ms(recording), strict=True)) == {
        "net": 0,
        "net.block": 0,
        "net.block.inner": pytest.approx(0.010),
        OVERHEAD: 0,
    }


def test_an_external_kernel_belongs_to_one_layer() -> None:
    hand = ByHand().step(0, 200)
    root, *_ = net(hand)
    hand.call(root, 8, 112)
    hand.op(f"## Call CompiledFxGraph {FORWARD} ##", 10, 60)
    hand.op("aten::mm", 20, 50)
    both = [operation("a", BLOCK, ("x", "y"), op="aten::mm"), operation("b", INNER, ("a",), op="aten::mm")]
    made = graph(FORWARD, {"extern_kernels.mm": both}, *map(operation, "xy"), extern=("extern_kernels.mm",))

    recording = with_compiled_regions(hand.recording(), [made], [CompiledCode("0/0")])

    assert us(recording)["net.block"] == 30  # it reads twice as much as the other writes


def test_kernels_that_fill_their_graphs_call_leave_no_overhead() -> None:
    hand = ByHand().step(0, 200)
    root, *_ = net(hand)
    hand.call(root, 8, 112).op(f"## Call CompiledFxGraph {FORWARD} ##", 10, 60)
    hand.op("graph_0_cpp_fused_mul_0", 10, 30).op("aten::mm", 30, 60)

    recording = with_compiled_regions(hand.recording(), [SHARED], [CompiledCode("0/0")])

    assert us(recording) == {"net": 104 - 50, "net.block": 10, "net.block.inner": 40}
    assert recording.modules["name"].tolist() == ["net", "net.block", "net.block.inner"]


def test_a_kernel_of_layers_in_different_places_is_inside_all_layers_around_them() -> None:
    hand = ByHand().step(0, 200)
    root, *_ = net(hand)
    hand.layer("net.other", root)
    hand.call(root, 8, 112).op(f"## Call CompiledFxGraph {FORWARD} ##", 10, 60)
    hand.op("graph_0_cpp_fused_mul_0", 10, 40).op("graph_0_cpp_fused_mul_1", 40, 40)
    hand.op("## Call CompiledFxGraph x ##", 70, 80)
    apart = [operation("a", INNER, ("x", "y")), operation("b", (("L['self'].other", "Net.Other"),), ("z",))]
    empty = [operation("c", BLOCK, ("b",))]
    made = graph(FORWARD, {"cpp_fused_mul_0": apart, "cpp_fused_mul_1": empty}, *map(operation, "xyz"))

    recording = with_compiled_regions(hand.recording(), [made], [CompiledCode("0/0")])

    assert us(recording, "total_ms") == {
        **{"net": 104, "net.block": 18, "net.block.inner": 18, "net.other": 12, f"net.{OVERHEAD}": 20}
    }
    assert Profile(recording).layers["calls"].tolist() == [1] * 5


def test_a_kernel_is_shared_by_bytes_and_flops() -> None:
    inside = [operation("a", BLOCK, ("x", "y"))._replace(flops=40), operation("c", (("L['self']", "Net"),), ("a",))]
    inside.append(operation("b", INNER, ("c", "w"))._replace(flops=60))
    view = operation("v", BLOCK, ("x",))._replace(view=True, flops=5)
    made = graph(FORWARD, {"fused": inside, "turning": [view]}, *map(operation, "xyw"))
    rows = {"L['self']": 0, "L['self'].block": 1, "L['self'].block.inner": 2}

    fused, turning = (_planned(made, at, rows, 0) for at in range(2))

    assert fused.shares == [((1,), 240 / 500), ((1, 2), 260 / 500)]
    assert fused.facts == (FORWARD, "fused", "aten::mul", "model.py:7: x * 2", 400, 100, True)
    assert turning.shares == [((1,), 1.0)]
    assert turning.facts[4:6] == (0, 0)  # what a kernel moves that only arranges memory is unknown


MODULES = {
    **{"net": ("Net", -1), "net.a": ("Block", 0), "net.a.inner": ("Inner", 1)},
    **{"net.b": ("Block", 0), "net.b.inner": ("Inner", 3), "other": ("Net", -1), "models.0": ("Other", -1)},
    "models['x']": ("Other", -1),
}


def layers() -> _Layers:
    frame = pd.DataFrame({"name": [*MODULES], "module": [kind for kind, _ in MODULES.values()]})
    frame = frame.assign(parent=[parent for _, parent in MODULES.values()], depth=0, compiled=False)
    return _Layers(frame.assign(parameters=7, parameter_bytes=28), None)


@pytest.mark.parametrize(
    ("classes", "around", "heads"),
    [
        ({"L['self'].a": "Block"}, 0, {"L['self']": [0]}),
        ({"L['self'].a": ""}, 0, {"L['self']": [0]}),  # of any class
        ({"L['m']": "Net"}, -1, {"L['m']": [0, 5]}),
        ({"L['m']": "Block"}, -1, {"L['m']": [1, 3]}),  # none of them is a model of its own
        ({"L['m']": "Inner"}, 1, {"L['m']": [2]}),
        ({"L['m'].inner": "Inner", "L['m'].x": "X"}, 0, {"L['m'].inner": [2, 4]}),  # half of the classes are not enough
        ({"L['m'].inner": "Inner", "L['m']": "Block", "L['m'].x": "X"}, 0, {"L['m']": [1, 3]}),
        ({"L['m'][1]": "Block", "L['m'][2]": "Net"}, -1, {"L['m'][1]": [1, 3], "L['m'][2]": [0, 5]}),
    ],
)
def test_the_models_of_a_graph_are_the_layers_with_most_of_their_classes(
    classes: dict[str, str], around: int, heads: dict[str, list[int]]
) -> None:
    found = layers().heads(classes, around)

    assert {head: rows for head, rows in found.items() if rows} == heads


def test_a_layer_is_found_by_the_name_of_a_variable_and_new_layers_are_added_once() -> None:
    known = layers()

    heads = ("L['net'].a", "G['models'][0]", "G['models']['x']", "L['x']")
    assert [known.named(head, range(8)) for head in heads] == [1, 6, 7, -1]
    assert known.named("L['net'].a", [0, 2]) == -1
    assert [known.nearest(row, rows) for row, rows in ((2, (1, 0)), (2, (0,)), (2, (2,)), (2, (5,)))] == [1, 0, 2, -1]
    assert [known.overhead(0), known.overhead(0), known.add("new", 4, "Kind"), known.at(0, ".b")] == [8, 8, 9, 3]
    added = known.frame().iloc[[0, 1, 8, 9]]
    assert added["name"].tolist() == ["net", "net.a", f"net.{OVERHEAD}", "new"]
    assert added["compiled"].tolist() == [True, False, False, False]
    assert added[["parent", "depth", "parameters"]].to_numpy().tolist() == [[-1, 0, 7], [0, 0, 7], [0, 1, 0], [4, 3, 0]]
    assert added["module"].iloc[3] == "Kind"


def host_of(hand: ByHand) -> HostEvents:
    events = hand.recording().events
    return HostEvents(events, np.ones(len(events), dtype=bool))


def test_events_around_and_inside_an_event_are_found() -> None:
    hand = ByHand().op("Torch-Compiled Region: 0/0", 2, 100, 4).op("CompiledFunction", 5, 55, 5)
    hand.op("## Call CompiledFxGraph k ##", 6, 50).op("aten::mm", 10, 20).op("aten::mul", 20, 30)
    hand.op("aten::add", 55, 70).op("TorchDynamo Cache Lookup", 72, 74).op("Torch-Compiled Region: 1/0", 75, 80, 7)
    hand.event(f"{NODE}X", 110, 150, sequence=8, forward_thread=1).op("y", 115, 145, 6, forward_thread=0)
    hand.op("z", 120, 125).op("TorchDynamo Cache Lookup", 160, 161)
    host = host_of(hand)
    region, function, call, mm, mul, add, lookup, second, node, y, z, _ = range(12)

    assert [host.children(place) for place in (region, call, mm)] == [[function, add, lookup, second], [mm, mul], []]
    assert list(host.all_above(mul)) == [call, function, region]
    assert [host.above(place, host.is_region) for place in (mul, second, region, z)] == [region, region, -1, -1]
    assert host.above(z, host.is_node) == node
    assert [host.looked_up(place) for place in (second, region, add)] == [lookup, region, add]
    # From the end of the graph, other code of the region begins with the addition, at 55 even if the graph ends there.
    assert [host.until_next(place, region) // 1000 for place in (call, function, add)] == [55, 55, 72]
    assert [host.until_next(mm, call) // 1000, host.until_next(mul, call) // 1000] == [20, 50]
    assert [host.numbers(place) for place in (mul, second, z, y)] == [[5, 4], [4], [6], []]


def test_the_kernels_of_a_graph_are_matched_in_their_order() -> None:
    mul, mm, bias = Kernel("mul", False, ()), Kernel("extern_kernels.mm", True, ()), Kernel("bias", False, ())
    hand = ByHand().op("call", 0, 100).op("graph_0_mul", 1, 9).op("aten::linear", 10, 30).op("aten::mm", 11, 29)
    hand.op("aten::mm", 12, 20).op("aten::mm", 31, 39).op("graph_0_mul", 40, 49).op("aten::mm", 50, 59)
    hand.op("extern", 60, 69).op("graph_0_bias", 70, 79).op("graph_0_bias", 101, 110)

    def kernels(*given: Kernel) -> list[tuple[int, int]]:
        return list(matched(host_of(hand), 0, given))

    assert kernels(mul, mm, mm, mul, bias) == [(1, 0), (3, 1), (5, 2), (6, 3), (9, 4)]
    assert kernels(mm, mul, bias) == [(1, 1), (9, 2)]  # the product before the first event was not recorded
    assert kernels(mul) == [(1, 0)]
    assert kernels() == []


def test_regions_cost_what_is_not_in_kernels_and_graphs_break_until_the_next() -> None:
    hand = ByHand().step(0, 400)
    root, *_ = net(hand)
    hand.call(root, 8, 290)
    region(hand, 10, name="0/0")
    hand.op("aten::item", 120, 130)
    region(hand, 150, sequence=6, name="1/0")
    recording = told(hand.recording(), [SHARED, BACK], broke="print", broke_at="model.py:9")

    table = region_table(recording)

    assert table.index.tolist() == ["0/0", "1/0"]
    assert table["ms"].tolist() == pytest.approx([0.098, 0.098])
    assert table["kernel_ms"].tolist() == pytest.approx([0.060, 0.060])
    assert table["overhead_ms"].tolist() == pytest.approx([0.038, 0.038])
    assert table["lookup_ms"].tolist() == pytest.approx([0.002, 0.002])
    assert table.loc["0/0", "gap_ms"] == pytest.approx(0.152 - 0.104)  # from the end of its graph
    assert table["gap_ms"].isna().tolist() == [False, True]
    assert table.loc["0/0", "broke_at"] == "model.py:9"


def test_a_region_inside_another_counts_once() -> None:
    hand = ByHand().step(0, 400)
    root, *_ = net(hand)
    hand.call(root, 8, 390)
    region(hand, 10, name="0/0")
    hand.rows[-7]["duration_ns"] = 300_000  # the first region, which calls the rest of its function at its end
    region(hand, 150, sequence=6, name="1/0")
    recording = told(hand.recording(), [SHARED, BACK])

    table = region_table(recording)
    assert table["ms"].to_dict() == {"0/0": pytest.approx(0.202), "1/0": pytest.approx(0.098)}
    assert table["kernel_ms"].to_dict() == {"0/0": pytest.approx(0.060), "1/0": pytest.approx(0.060)}
    # The first region's overhead ends where other code begins.
    layers = Profile(recording).layers
    assert layers.loc[f"net.{OVERHEAD}", "total_ms"] == layers.loc[f"net.{OVERHEAD}", "self_ms"]
    assert layers["self_ms"].sum() == pytest.approx(layers.loc["net", "total_ms"])


def test_the_time_of_a_layer_that_could_be_several_is_the_layers_around_them() -> None:
    hand = ByHand().step(0, 500)
    root = hand.layer("net")
    blocks = [hand.layer(f"net.{name}", root) for name in "ab"]
    for block in blocks:
        hand.layer(f"{hand.modules[block]['name']}.inner", block)
        hand.modules[-1]["module"] = "Inner"
    hand.call(root, 5, 480)
    region(hand, 10)
    path = (("L['self'].inner", "Inner"),)
    made = graph(FORWARD, {"cpp_fused_mul_0": [operation("a", path, ("x",))]}, operation("x"))

    recording = told(hand.recording(), [made])

    assert us(recording)["net"] == 475
    assert compiled_kernel_table(recording)["layers"].isna().all()


def of_a_function(paths: dict[str, str], names: dict[str, str], **code: str) -> Recording:
    """Return a step that calls a compiled function: kernels of 20, 30 and 10 µs for modules at these paths, of these
    classes.

    The layers have these names and classes.
    """
    hand = ByHand().step(0, 300)
    for name, kind in names.items():
        hand.layer(name, compiled=True)
        hand.modules[-1]["module"] = kind
    region(hand, 10)
    operations = [operation(f"op{at}", ((path, kind),), ("x",)) for at, (path, kind) in enumerate(paths.items())]
    kernels = dict(zip(["cpp_fused_mul_0", "extern_kernels.mm", "cpp_fused_sum_1"], operations, strict=False))
    kernels_of = {name: [each] for name, each in kernels.items()}
    return told(hand.recording(), [graph(FORWARD, kernels_of, operation("x"), extern=("extern_kernels.mm",))], **code)


def test_a_function_that_calls_several_models_is_a_layer_of_its_own() -> None:
    recording = of_a_function(
        {"L['encoder']": "Encoder", "G['decoder']": "Decoder", "L['criterion']": "Loss"},
        {"encoder": "Encoder", "decoder": "Decoder"},
        function="torch_dynamo_resume_in_train_at_7",
    )

    # The loss is not a layer, so it belongs to the function, like the work outside kernels.
    own = {"encoder": 20, "decoder": 30, "train()": 10, f"train().{OVERHEAD}": 100 - 60}
    assert us(recording) == own
    p = Profile(recording)
    assert p.layers["self_ms"].sum() == pytest.approx(p.phases.loc[["forward", "backward"], "ms"].sum())
    assert p.layers["calls"].tolist() == [1, 1, 1, 1]
    text = " ".join(str(p).split())
    assert "hides the layers" not in text
    assert "other threads" not in text


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (("L['first']", "G['second']"), ("first", "second")),
        (("L['models']['a']", "L['models'][0]"), ("models['a']", "models[0]")),
        (("G['trainer'].student", "G['trainer'].teacher"), ("trainer.student", "trainer.teacher")),
    ],
)
def test_alike_models_in_a_function_are_distinguished_by_their_variables(
    paths: tuple[str, ...], names: tuple[str, ...]
) -> None:
    recording = of_a_function(dict.fromkeys(paths, "Model"), dict.fromkeys(names, "Model"))

    assert [us(recording)[name] for name in names] == [20, 30]


def test_the_time_of_a_model_that_could_be_several_is_the_functions() -> None:
    paths = {"L['encoder']": "Encoder", "L['model']": "Model"}
    recording = of_a_function(paths, {"encoder": "Encoder", "a": "Model", "b": "Model"}, function="train")

    assert us(recording) == {"encoder": 20, "train()": 30, f"train().{OVERHEAD}": 50}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ('._modules["it\'s"]', "it's"),
        (".two words", "two words"),
    ],
)
def test_unusual_names_of_modules_are_found(path: str, name: str) -> None:
    hand = ByHand().step(0, 300)
    root = hand.layer("net", compiled=True)
    hand.layer(f"net.{name}", root)
    hand.modules[-1]["module"] = "Inner"
    hand.call(root, 8, 112)
    region(hand, 10)
    inner = operation("a", ((f"L['self']{path}", "Inner"),), ("x",))

    recording = told(hand.recording(), [graph(FORWARD, {"cpp_fused_mul_0": [inner]}, operation("x"))])

    assert us(recording)[f"net.{name}"] == 20


def test_layers_called_in_compiled_code_that_tells_none_are_not_said_to_run_on_other_threads() -> None:
    hand = ByHand().step(0, 300)
    root = hand.layer("net")
    inside = [hand.layer(f"net.{name}", root) for name in "ab"]
    hand.layer("hidden", compiled=True)
    hand.call(root, 8, 112)
    hand.spans += [(layer, False) for layer in inside]  # of a pass that ran uncompiled
    region(hand, 10)

    text = " ".join(str(Profile(told(hand.recording(), []))).split())

    assert "Called only in compiled code that does not report its layers, or from other threads: net.a, net.b." in text
    assert "which torch's profiler does not record" not in text


def test_graphs_that_were_not_cached_are_not_known() -> None:
    hand = ByHand().step(0, 300)
    root, *_ = net(hand)
    hand.call(root, 8, 112)
    hand.op("Torch-Compiled Region: 0/0", 10, 100)
    hand.op(f"## Call CompiledFxGraph {UNCACHED} ##", 12, 90)

    text = " ".join(str(Profile(told(hand.recording(), []))).split())

    assert "hides the layers inside net: they are known only for graphs that Inductor can cache" in text
    assert "compile_for_profiling" not in text


def test_without_a_graph_that_tells_nothing_changes_but_the_regions_are_known() -> None:
    hand = one_region()
    plain = hand.recording()
    assert graph_keys(plain.events) == [FORWARD]
    assert with_compiled_regions(plain, [SHARED], []) is plain

    known = told(plain, [])

    assert known.events is plain.events
    assert Profile(known).compiled.empty
    regions = Profile(known).compiled_regions
    assert regions["ms"].tolist() == pytest.approx([0.098])
    assert regions[["kernel_ms", "overhead_ms", "guards", "compile_s"]].isna().all(axis=None)
    assert "call perfnb.compile_for_profiling() before" in " ".join(str(Profile(known)).split())


def test_what_was_found_is_saved_and_loaded(tmp_path: Path) -> None:
    p = Profile(of_one_step())
    p.save(tmp_path / "p")

    again = perfnb.load(tmp_path / "p")

    for name in ("layers", "compiled", "compiled_regions", "phases"):
        left, right = getattr(p, name), getattr(again, name)
        assert left.equals(right) or left.to_dict() == right.to_dict(), name


def test_what_was_found_goes_into_a_trace_and_back(tmp_path: Path) -> None:
    p = Profile(of_one_step())
    p.save_trace(tmp_path / "trace.json.gz")

    again = perfnb.load(tmp_path / "trace.json.gz")

    for column in ("calls", "forward_ms", "backward_ms", "self_ms"):
        assert again.layers[column].to_dict() == pytest.approx(p.layers[column].to_dict(), nan_ok=True), column


def test_the_regions_of_a_loaded_trace_are_known_without_their_kernels(tmp_path: Path) -> None:
    hand = one_region()
    Profile(hand.recording()).save_trace(tmp_path / "trace.json.gz")

    p = perfnb.load(tmp_path / "trace.json.gz")

    assert p.compiled.empty
    regions = p.compiled_regions
    assert regions["ms"].to_dict() == {"0/0": pytest.approx(0.098)}
    assert regions["lookup_ms"].tolist() == pytest.approx([0.002])
    assert regions["overhead_ms"].isna().all()
    assert "The trace does not record which kernels compute which layers" in " ".join(str(p).split())


def test_no_view_takes_the_pieces_for_ops(tmp_path: Path) -> None:
    hand = one_region()
    backward(hand, 200)
    plain, known = Profile(hand.recording()), Profile(of_one_step())

    compared = plain.compare(known)

    assert "pf_piece" not in str(known)
    assert "pf_piece" not in str(compared)
    assert not compared.ops["op_b"].astype(str).str.startswith("pf").any()
    events = known.events
    assert not events["name"].astype(str).str.startswith("pf").any()
    pieces = events[(events["category"] == "layer") & (events["phase"] == "backward")]
    assert set(pieces["name"]) == {"net.block", "net.block.inner", f"net.{OVERHEAD}"}


def test_the_gpu_time_of_a_shared_kernel_is_divided_among_its_layers() -> None:
    hand = one_region()
    backward(hand, 200)
    hand.kernel("triton_poi_fused_mul_0", 23, 120, 160)  # launched in the block's part of the kernel's 20 µs
    hand.kernel("gemm", 50, 160, 170)
    hand.kernel("triton_poi_fused_add_1", 245, 260, 268)
    hand.kernel("of the overhead", 16, 290, 295)

    recording = told(hand.recording(), [SHARED, BACK])

    of_gpu = {"net": 0, "net.block": 20 + 8, "net.block.inner": 20 + 10, f"net.{OVERHEAD}": 5}
    assert us(recording, "self_gpu_ms") == of_gpu
    counts = Profile(recording).layers["kernels"]
    assert counts["net"] == 4
    assert counts[f"net.{OVERHEAD}"] == 1
    assert us(recording, "gpu_ms")["net"] == 63


def test_frozen_objects_are_named_as_the_reason_for_hidden_layers() -> None:
    hidden = told(one_region().recording(frozen=True), [])

    assert "gc.freeze() hides compiled code from perfnb" in " ".join(str(Profile(hidden)).split())


@pytest.mark.parametrize(
    ("chains", "prefix"),
    [
        ([], ()),
        ([()], ()),
        ([(1, 2)], (1, 2)),
        ([(1, 2), (1, 2)], (1, 2)),
        ([(1, 2, 3), (1, 2)], (1, 2)),
        ([(1, 2, 3), (1, 4, 3)], (1,)),
        ([(1, 2), (2, 2)], ()),
        ([(1, 2), ()], ()),
    ],
)
def test_layers_have_in_common_those_around_all(chains: list[tuple[int, ...]], prefix: tuple[int, ...]) -> None:
    assert common_prefix(chains) == prefix


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("L['self']", ""),
        ("L['self'].blocks[0]._modules['up']", ".blocks.0.up"),
        ("L['self']._orig_mod.net[\"a.b\"]", ".net.a.b"),
        ("L['self'][''].net", ".net"),
        ("L['self'].a[12][x]", ".a.12"),
        ("L['self']._modules['say \"hi\"'].ü", '.say "hi".ü'),
        ("L['self']._modules['a[0]']['key']", ".a[0].key"),
        ("L['self']._modules[\"it's\"].two words", ".it's.two words"),
    ],
)
def test_a_path_below_a_variable_is_written_as_the_name_of_a_layer(path: str, below: str) -> None:
    assert _head(path) == "L['self']"
    assert _below("L['self']", path) == below


def test_a_path_is_below_another_only_at_the_end_of_a_part() -> None:
    assert _head("self.a") == ""
    assert _head("G['net'].a") == "G['net']"
    for path, is_below in ((".a", True), (".a.b", True), (".a[0]", True), (".ab", False), (".b.a", False), ("", False)):
        assert _is_below("L['x'].a", f"L['x']{path}") is is_below


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("aten::mm", "::mm"),
        ("a::b::mm", "::mm"),
        ("graph_12_cpp_fused_0", "cpp_fused_0"),
        ("my_graph_12_x", "my_graph_12_x"),
        ("graph__x", "graph__x"),
    ],
)
def test_an_event_is_named_like_the_kernel_that_it_calls(event: str, name: str) -> None:
    assert _called(event) == name
