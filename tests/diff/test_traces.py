"""Operators of two traces, matched through the tree: planted truths, and laws that hold for any two trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st

from perfnb.diff.op_matching import Matched, _place_among_equals, _rows, _without_maker, match_nodes
from perfnb.diff.traces import TraceDiff, _alike, _changed_most, _grown, _ops_around, diff_traces
from perfnb.diff.view import _operators
from perfnb.recording.nesting import forest_of
from perfnb.recording.recording import Recording
from perfnb.recording.schema import NO_OP_ROW
from perfnb.trace_names import DEVICE_WORK
from tests.laws import holds_of
from tests.recordings import ByHand

SIDES = ("a", "b")


def diff(a: Recording, b: Recording) -> TraceDiff:
    """Compare two recordings, and match layers that have the same name."""
    names = sorted(set(a.modules["name"]) & set(b.modules["name"]))
    found = diff_traces(a, b, pd.DataFrame({"a": names, "b": names}, dtype="str"))
    assert found is not None
    return found


def gpu_ms(recording: Recording) -> float:
    """Work of a step, by plain means."""
    work = recording.events[recording.events["category"].isin(DEVICE_WORK)]
    return float(work["duration_ns"].sum()) / 1e6 / recording.traced_steps


def adds_up(found: TraceDiff, a: Recording, b: Recording) -> None:
    for side, recording in zip(SIDES, (a, b), strict=True):
        whole = pytest.approx(gpu_ms(recording), abs=1e-9)
        assert found.ops[f"self_gpu_ms_{side}"].sum() == whole
        assert found.operators[f"gpu_ms_{side}"].sum() == whole
        assert found.kernels[f"gpu_ms_{side}"].sum() == whole
        top = found.ops[(found.ops["depth"] == 0) & ~found.ops["is_range"]]
        ranges = found.ops[found.ops["is_range"]]
        assert top[f"gpu_ms_{side}"].sum() + ranges.loc[
            ranges["depth"] == 0, f"self_gpu_ms_{side}"
        ].sum() == pytest.approx(gpu_ms(recording), abs=1e-9)


def row(table: pd.DataFrame, op: str) -> dict[str, Any]:
    (found,) = table[table["op"] == op].to_dict("records")
    return {str(key): value for key, value in found.items()}


def cells(table: pd.DataFrame, *columns: str) -> list[list[Any]]:
    return [
        [None if pd.isna(cell) else cell for cell in line] for line in zip(*(table[c] for c in columns), strict=True)
    ]


def conv(library: str, kernels: list[str], us: float, helper: bool = False, steps: int = 1) -> Recording:
    """Return a step with a convolution in a layer; what the library's operator launches takes `us` each."""
    hand = ByHand()
    layer = hand.layer("net.conv", hand.layer("net"))
    for t in (1000.0 * step for step in range(steps)):
        hand.step(t, t + 1000).call(0, t + 5, t + 500).call(layer, t + 10, t + 400)
        for depth, name in enumerate(("aten::conv2d", "aten::convolution", "aten::_convolution", library)):
            hand.event(name, t + 20 + depth, t + 390 - depth, shapes="[[2, 3, 8, 8], [4, 3, 3, 3]]")
        if helper:
            hand.op("aten::resize_", t + 30, t + 35)
        for place, kernel in enumerate(kernels):
            hand.kernel(kernel, t + 40 + 10 * place, t + 400 + us * place, t + 400 + us * (place + 1))
        hand.op("aten::relu", t + 420, t + 440).kernel("relu", t + 425, t + 900, t + 905)
        hand.kernel("lost", t + 600, t + 910, t + 911)
    return hand.recording()


def test_one_convolution_through_two_libraries_is_one_operator() -> None:
    a = conv("aten::cudnn_convolution", ["volta_scudnn"], 60, steps=3)
    b = conv("aten::miopen_convolution", ["transpose", "igemm_fwd"], 50, helper=True)

    found = diff(a, b)

    assert found.ops["op"].tolist() == [
        "aten::conv2d", "aten::convolution", "aten::_convolution", "aten::relu", NO_OP_ROW,
    ]  # fmt: skip
    assert found.ops["matched"].tolist()[:4] == ["layer"] * 4
    of_conv = row(found.ops, "aten::conv2d")
    assert (of_conv["layer"], of_conv["phase"], of_conv["calls_a"], of_conv["calls_b"]) == ("net.conv", "forward", 1, 1)
    assert (of_conv["gpu_ms_a"], of_conv["gpu_ms_b"]) == (pytest.approx(0.06), pytest.approx(0.1))
    assert (of_conv["grew_ms"], of_conv["ratio"]) == (pytest.approx(0.04), pytest.approx(5 / 3))
    assert of_conv["host_ms_a"] == pytest.approx(0.37)
    kernels = row(found.kernels, "aten::_convolution")
    assert (kernels["kernels_a"], kernels["kernels_b"]) == (["volta_scudnn"], ["igemm_fwd", "transpose"])
    assert (kernels["calls_a"], kernels["calls_b"]) == (1, 2)
    assert kernels["inside"] == "aten::conv2d"
    assert found.ops["op"][kernels["row"]] == "aten::_convolution"
    first = found.operators.iloc[0]
    assert (first["op"], first["kernels_a"]) == ("aten::conv2d", ["volta_scudnn"])
    assert found.operators["op"].tolist()[1:] == ["aten::relu", NO_OP_ROW]
    lost = found.kernels[found.kernels["op"].isna()].to_dict("records")
    assert [(one["kernels_a"], one["matched"], one["grew_ms"]) for one in lost] == [(["lost"], "name", 0)]
    assert found.alike == (1.0, 1.0)
    assert found.steps == (3, 1)
    assert found.gpu_time is not None
    assert found.gpu_time.loc["busy"].tolist() == pytest.approx([0.066, 0.106, 0.04])
    assert found.gpu_time.loc["total"].tolist() == pytest.approx([0.511, 0.511, 0])
    assert found.gpu_time.loc["idle"].tolist() == pytest.approx([0.445, 0.405, -0.04])
    adds_up(found, a, b)


def attention(name: str, kernel: str, us: float) -> Recording:
    """Attention with the backward node of its library."""
    hand = ByHand().step(0, 1000)
    hand.call(hand.layer("net"), 5, 300)
    hand.op("aten::scaled_dot_product_attention", 10, 200, 5).op(f"aten::_{name}_attention", 20, 190, 5)
    hand.kernel(f"{kernel}_fwd", 30, 40, 60)
    hand.node(f"{name.title()}Backward0", 400, 500, 5, thread=2).kernel(f"{kernel}_bwd", 410, 420, 420 + us, thread=2)
    return hand.recording()


def test_a_backward_node_of_the_makers_own_goes_by_the_operator_that_made_it() -> None:
    a, b = attention("flash", "fa", 50), attention("efficient", "ck", 80)

    found = diff(a, b)

    assert "only a" not in found.ops["matched"].tolist()
    mark = row(found.ops, "autograd::engine::evaluate_function: FlashBackward0")
    assert mark["op_b"] == "autograd::engine::evaluate_function: EfficientBackward0"
    assert (mark["phase"], mark["layer"], mark["grew_ms"]) == ("backward", "net", pytest.approx(0.03))
    assert row(found.kernels, "FlashBackward0")["kernels_b"] == ["ck_bwd"]
    adds_up(found, a, b)


def test_an_old_trace_has_no_ranges_of_the_engine_around_its_backward_nodes() -> None:
    a = ByHand().step(0, 1000).op("CudnnBatchNormBackward", 410, 490).kernel("k", 420, 430, 440)
    b = ByHand().step(0, 1000).node("NativeBatchNormBackward0", 400, 500, -1).kernel("l", 420, 430, 450)

    (found,) = diff(a.recording(), b.recording()).ops.to_dict("records")

    assert (found["op"], found["op_b"]) == ("CudnnBatchNormBackward", "NativeBatchNormBackward0")
    assert found["grew_ms"] == pytest.approx(0.01)


def test_backward_nodes_are_matched_by_name_if_one_trace_does_not_know_what_made_them() -> None:
    a, b = (ByHand().step(0, 1000).op("aten::batch_norm", 10, 50, number) for number in (5, -1))
    a.node("CudnnBatchNormBackward0", 400, 500, 5)
    b.node("NativeBatchNormBackward0", 400, 500, -1)
    recordings = a.recording(), b.recording()
    for first, second, names in ((0, 1, ("Cudnn", "Native")), (1, 0, ("Native", "Cudnn"))):
        ops = diff(recordings[first], recordings[second]).ops
        one, other = (f"{name}BatchNormBackward0" for name in names)
        assert row(ops, one)["op_b"] == other


def flat(*ops: tuple[str, str | None, float], layers: bool = False) -> Recording:
    """Operators one after another, with shapes, each with a kernel that takes some µs; each in a layer if wanted."""
    hand = ByHand().step(0, 1000)
    for place, (name, shapes, us) in enumerate(ops):
        t = 10.0 + 20 * place
        if layers:
            hand.call(hand.layer(f"layer{place}"), t - 1, t + 16)
        hand.event(name, t, t + 15, **({} if shapes is None else {"shapes": shapes}))  # type: ignore[arg-type]
        hand.kernel(f"k{place}", t + 2, 500 + 20 * place, 500 + 20 * place + us)
    return hand.recording()


def test_shapes_tell_operators_apart_and_then_their_order() -> None:
    a = flat(("aten::mm", "[[1, 2]]", 1), ("aten::mm", "[[3, 4]]", 2), ("aten::mm", "[[9, 9]]", 3))
    b = flat(("aten::mm", "[[3, 4]]", 5), ("aten::mm", "[[8, 8]]", 7), ("aten::mm", "[[7, 7]]", 9))

    whole = diff(a, b)
    found = whole.ops

    assert whole.alike == (pytest.approx(2 / 6), pytest.approx(5 / 21))  # operators that differ in their shapes are not
    without = diff(a, flat(("aten::mm", None, 5)))
    assert (without.alike, without.without_shapes) == ((1.0, 1.0), (False, True))  # the name is enough
    assert found["shapes_a"].tolist() == ["[[1, 2]]", "[[3, 4]]", "[[9, 9]]"]
    assert found["shapes_b"].tolist() == ["[[8, 8]]", "[[3, 4]]", "[[7, 7]]"]
    assert found["matched"].tolist() == ["name", "shapes", "name"]
    assert found["grew_ms"].tolist() == pytest.approx([0.006, 0.003, 0.006])


def test_an_operator_around_that_only_one_has_does_not_part_what_is_inside() -> None:
    b = ByHand().step(0, 1000)
    b.event("mine", 5, 100, "user_annotation").op("aten::matmul", 10, 60).op("aten::mm", 20, 50)
    b.kernel("k", 30, 500, 540).kernel("k", 80, 550, 551)
    a = ByHand().step(0, 1000).op("aten::mm", 20, 50).kernel("k", 30, 500, 530).recording()

    found = diff(a, b.recording())

    assert row(found.ops, "aten::mm")["grew_ms"] == pytest.approx(0.01)
    assert row(found.ops, "aten::matmul")["matched"] == "only b"
    assert row(found.ops, NO_OP_ROW)["gpu_ms_b"] == pytest.approx(0.001)
    adds_up(found, a, b.recording())


def test_what_lies_deeper_in_one_is_found_inside_the_same_operator() -> None:
    """As the addition of a bias, which one maker's operator does itself."""
    a = ByHand().step(0, 1000).op("aten::conv2d", 10, 90).op("aten::lib_a", 20, 50).op("aten::add_", 60, 80)
    b = ByHand().step(0, 1000).op("aten::conv2d", 10, 90).op("aten::lib_b", 20, 85).op("aten::add_", 60, 80)
    a.kernel("add", 65, 500, 510).kernel("conv", 25, 400, 450)
    b.kernel("bias", 65, 500, 530).kernel("gemm", 25, 400, 460)

    found = diff(a.recording(), b.recording())

    assert found.ops["op"].tolist() == ["aten::conv2d", "aten::add_"]
    assert row(found.ops, "aten::add_")["around"] == 0
    assert row(found.ops, "aten::add_")["grew_ms"] == pytest.approx(0.02)
    assert found.ops["self_gpu_ms_b"].tolist() == pytest.approx([0.06, 0.03])


def test_without_a_gpu_in_one_of_them_the_host_counts() -> None:
    cpu = ByHand().step(0, 1000).op("aten::mm", 20, 50).op("aten::add", 30, 40).recording()

    found = diff(cpu, flat(("aten::mm", "[[1]]", 9)))

    assert not found.on_gpu
    assert found.gpu_time is None
    assert row(found.ops, "aten::mm")["grew_ms"] == pytest.approx(0.015 - 0.03)
    assert pd.isna(row(found.ops, "aten::mm")["gpu_ms_a"])
    assert found.ops["self_host_ms_a"].sum() == pytest.approx(0.03)
    assert cells(found.kernels, "op", "gpu_ms_a", "gpu_ms_b") == [["aten::mm", None, 0.009]]
    launches = ByHand().step(0, 1000).op("aten::mm", 20, 50).op("aten::add", 60, 70).kernel("k", 65, 500, 504)
    found = diff(launches.recording(), flat(("aten::mm", None, 9)))  # it launches nothing in one of them
    times = cells(found.kernels, "op", "gpu_ms_a", "gpu_ms_b")
    assert times == [["aten::mm", 0.0, 0.009], ["aten::add", 0.004, None]]


def test_what_is_not_called_equally_often_is_listed() -> None:
    a = ByHand().step(0, 1000).op("aten::mm", 20, 50).op("aten::mm", 60, 80).op("gone", 90, 95)
    b = ByHand().step(0, 1000).op("aten::mm", 20, 50).op("new", 100, 140).op("newer", 110, 120).op("other", 200, 205)
    a.op("aten::add", 100, 110).kernel("k", 30, 500, 510)
    b.op("aten::add", 300, 310).kernel("k", 30, 500, 510).kernel("k2", 130, 520, 527)

    found = diff(a.recording(), b.recording())

    listed = _operators(found)
    assert list(zip((row[0] for row in listed.rows), listed.details or (), strict=True)) == [
        ("new", "1 call · none → k2"),
        ("aten::mm", "2 → 1 calls · k"),
        ("gone", "1 call"),
        ("other", "1 call"),
    ]
    assert [[cell == "none" for cell in row[1:3]] for row in listed.rows] == [
        *([True, False], [False, False], [False, True], [True, False]),
    ]  # fmt: skip
    grew = ["grew_ms", "grew_host_ms", "grew_gpu_ms"]
    assert [row(found.ops, "new")[name] for name in grew] == pytest.approx([0.007, 0.04, 0.007])
    gone = row(found.ops, "gone")
    assert pd.isna(gone["grew_ms"])
    assert (gone["grew_host_ms"], gone["grew_gpu_ms"]) == (pytest.approx(-0.005), 0)


def test_an_op_in_another_layer_than_the_op_around_it_has_a_row_of_its_own() -> None:
    a, b = (ByHand().step(0, 1000).op("aten::outer", 10, 90) for _ in SIDES)
    a.call(a.layer("first"), 100, 200).op("aten::mm", 110, 120)
    b.call(b.layer("last"), 20, 80).op("aten::own", 30, 40).op("aten::mm", 110, 120)

    found = diff(a.recording(), b.recording()).ops

    assert cells(found, "op", "layer", "matched") == [
        ["aten::outer", None, "name"], ["aten::mm", "first", "name"], ["aten::own", "last", "only b"],
    ]  # fmt: skip


def test_what_has_no_partner_is_a_part_of_the_op_around_it_or_has_a_row_of_its_own() -> None:
    group = np.array([-1, 0, -1, -1, -1, 1, -1, -1])
    forest = forest_of(np.array([-1, -1, 1, 1, 1, -1, 5, 6]))
    is_range = np.array([False, False, False, True, False, True, False, False])
    layer = np.array([7, 7, 7, 7, 8, 7, 7, 7])

    row, is_head = _rows(Matched(group, np.arange(8), group), forest, is_range, layer)

    assert row.tolist() == [2, 0, 0, 5, 6, 1, 8, 8]
    assert is_head.tolist() == [True, True, False, True, True, True, True, False]


def test_the_time_alike_is_in_ops_of_one_layer_or_shapes_or_of_one_name_if_shapes_are_unknown() -> None:
    rows = [
        *(("layer", "s", "t", 1), ("shapes", "s", "s", 2), ("name", "s", "t", 4), ("name", None, "t", 8)),
        *(("name", "s", None, 16), ("only a", "s", None, 32), ("only b", None, "s", None)),
    ]
    table = pd.DataFrame(rows, columns=["matched", "shapes_a", "shapes_b", "self_ms"])
    assert _alike(table, "self_ms") == (1 + 2 + 8 + 16) / 63
    assert _alike(table.assign(self_ms=0.0), "self_ms") is None


def test_work_of_unknown_ops_has_a_row_for_each_kernel() -> None:
    a = ByHand().step(0, 1000).op("aten::mm", 10, 20).kernel("k", 15, 100, 110)
    known = a.kernel("x", 50, 120, 121).kernel("y", 60, 130, 132).recording()
    assert sorted(diff(known, known).kernels["kernels_a"].tolist()) == [["k"], ["x"], ["y"]]


def test_ranges_do_not_count_among_the_ops_around() -> None:
    is_range = np.array([False, True, False, False, True, False])
    assert _ops_around(np.array([-1, 0, 1, 2, -1, 4]), is_range).tolist() == [0, 1, 1, 2, 0, 0]


def test_what_took_no_time_on_one_side_grew_by_all_of_it() -> None:
    times = {"host_ms_a": [1, None, 2, None], "host_ms_b": [3, 4, None, None]}
    on_gpu = {"gpu_ms_a": [0, None, 2, 5], "gpu_ms_b": [0, None, None, 4]}
    found = _grown(pd.DataFrame(times | on_gpu, dtype="Float64"), "gpu_ms")
    assert cells(found, "grew_host_ms", "grew_gpu_ms", "grew_ms", "ratio") == [
        [2, 0, None, None], [4, None, None, None], [-2, -2, -2, None], [None, -1, -1, 0.8],
    ]  # fmt: skip
    on_host = _grown(pd.DataFrame(times, dtype="Float64"), "host_ms")
    assert cells(on_host, "grew_ms", "ratio") == [[2, 3], [4, None], [-2, None], [None, None]]
    sorted_ = _changed_most(pd.DataFrame({"grew_ms": pd.array([1, None, -3, 3, 0], dtype="Float64"), "n": range(5)}))
    assert sorted_["n"].tolist() == [2, 3, 0, 4, 1]


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Return steps of random trees of few names, on two threads, with and without layers, shapes and kernels."""
    hand = ByHand()
    layers, with_shapes = draw(st.booleans()), draw(st.booleans())
    clock = [0.0]

    def later() -> float:
        clock[0] += draw(st.integers(1, 3))
        return clock[0]

    def grow(depth: int, thread: int) -> None:
        for _ in range(draw(st.integers(0, 3))):
            what = draw(st.sampled_from(["op", "op", "op", "kernel", "range", "call"]))
            begin = later()
            if what == "kernel":
                hand.kernel(
                    draw(st.sampled_from("xyz")), begin, 1e5 + begin, 1e5 + begin + draw(st.integers(0, 9)), thread
                )
                later()
                continue
            if depth < 3:
                grow(depth + 1, thread)
            end = later() + 1
            clock[0] = end
            if what == "call" and layers and hand.modules:
                hand.call(draw(st.integers(0, len(hand.modules) - 1)), begin, end, thread=thread)
            elif what == "range":
                hand.event(draw(st.sampled_from(["r", "s"])), begin, end, "user_annotation", thread=thread)
            else:
                shapes = {"shapes": draw(st.sampled_from(["[[1]]", "[[2]]"]))} if with_shapes else {}
                name = draw(st.sampled_from(["aten::p", "aten::q", "aten::r"]))
                hand.event(name, begin, end, thread=thread, **shapes)  # type: ignore[arg-type]

    for name in draw(st.lists(st.sampled_from("lmn"), unique=True, max_size=3)):
        hand.layer(name)
    for _ in range(draw(st.integers(1, 2))):
        begin = clock[0]
        grow(0, 1)
        grow(0, 2)
        hand.step(begin, later())
    return hand.recording()


@holds_of(recordings(), recordings(), some=18, many=500)
def test_all_work_is_in_one_row_and_the_other_way_round_is_the_opposite(a: Recording, b: Recording) -> None:
    there, back = diff(a, b), diff(b, a)

    adds_up(there, a, b)
    assert sorted(there.ops["grew_ms"].fillna(0)) == pytest.approx(sorted(-back.ops["grew_ms"].fillna(0)), abs=1e-9)
    swapped = {"only a": "only b", "only b": "only a"}
    assert sorted(there.ops["matched"].dropna()) == sorted(swapped.get(x, x) for x in back.ops["matched"].dropna())
    assert there.alike == pytest.approx(back.alike[::-1]) or None in there.alike
    for side, recording in zip(SIDES, (a, b), strict=True):
        by_op = there.operators[f"host_ms_{side}"].sum()
        assert there.ops[f"self_host_ms_{side}"].sum() == pytest.approx(by_op, abs=1e-9)
        assert (there.ops["depth"] >= 0).all()
        assert recording.traced_steps == there.steps[SIDES.index(side)]


@holds_of(recordings(), some=15, many=300)
def test_a_trace_is_like_itself(a: Recording) -> None:
    found = diff(a, a)

    assert (found.ops["grew_ms"].fillna(0) == 0).all()
    assert (found.kernels["grew_ms"] == 0).all()
    assert not found.ops["matched"].isin(["only a", "only b"]).any()
    assert found.ops.loc[found.ops["matched"].isna(), "op"].isin([NO_OP_ROW]).all()
    assert found.alike in ((1.0, 1.0), (None, None))


@pytest.mark.parametrize("known", SIDES)
def test_layers_that_only_one_of_the_traces_has_do_not_part_its_ops(known: str) -> None:
    ops = ("aten::mm", "[[1, 2]]", 1), ("aten::mm", "[[1, 2]]", 2), ("aten::add", "[[1]]", 4)

    found = diff(*(flat(*ops, layers=side == known) for side in SIDES))

    columns = ["op", "matched", "calls_a", "calls_b", "gpu_ms_a", "gpu_ms_b"]
    assert found.ops[columns].to_numpy().tolist() == [
        ["aten::mm", "shapes", 2, 2, *[pytest.approx(0.003)] * 2],
        ["aten::add", "shapes", 1, 1, *[pytest.approx(0.004)] * 2],
    ]
    assert found.without_layers == (known == "b", known == "a")


Node = tuple[int, int, int, int]


def matches(a: list[Node], b: list[Node], parents: tuple[list[int], list[int]] | None = None) -> list[tuple[int, int]]:
    """Return which nodes of two trees, given by name, shapes, layer and phase, are in the same group."""
    of_a, of_b = parents or ([-1] * len(a), [-1] * len(b))
    forest = forest_of(np.array([*of_a, *(parent if parent < 0 else parent + len(a) for parent in of_b)]))
    words = pd.DataFrame([*a, *b], columns=["name", "shapes", "layer", "phase"])
    group = match_nodes(np.repeat([False, True], [len(a), len(b)]), words, forest).group.tolist()
    return [(i, j) for i in range(len(a)) for j in range(len(b)) if group[i] == group[len(a) + j] != -1]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([(1, 1, 1, 0), (1, 2, 2, 0)], [(1, 2, 2, 0), (1, 1, 1, 0)], [(0, 1), (1, 0)]),
        ([(1, 1, 5, 0)], [(1, 1, 6, 0), (1, 2, 5, 0)], [(0, 1)]),  # the layer comes first
        ([(1, 1, 5, 0)], [(1, 1, 5, 1), (1, 2, 5, 0)], [(0, 1)]),
        ([(1, 1, 5, 0)], [(1, 1, 6, 1), (1, 1, 7, 0)], [(0, 1)]),  # then the shapes, in the same phase
        ([(1, 1, 5, 0)], [(1, 2, 6, 0), (1, 1, 6, 1)], [(0, 1)]),  # or in another
        ([(1, 1, 5, 0)], [(1, 2, 6, 1), (1, 2, 6, 0)], [(0, 1)]),  # then the phase
        ([(1, 1, 5, 0)], [(2, 1, 5, 0), (1, 2, 6, 1)], [(0, 1)]),  # and the name at last
        ([(1, 1, 5, 0)], [(2, 1, 5, 0)], []),
        ([(1, 1, 1, 0), (1, 2, 2, 0)], [(1, 3, 3, 0), (1, 4, 4, 0), (1, 5, 5, 0)], [(0, 0), (1, 1)]),  # in order
        ([(1, 1, -1, 0)], [(1, 2, -1, 0), (1, 1, 6, 0)], [(0, 1)]),  # no layer is not a common one
        ([(1, 1, 5, 0)] * 2, [(1, 1, 5, 0)], [(0, 0), (1, 0)]),  # what nothing distinguishes is one
        ([], [(1, 1, 1, 0)], []),
    ],
)
def test_ops_match_by_layer_then_shapes_then_phase_then_name(
    a: list[Node], b: list[Node], expected: list[tuple[int, int]]
) -> None:
    assert matches(a, b) == expected
    assert sorted((i, j) for j, i in matches(b, a)) == expected


def test_ops_match_inside_ops_that_match() -> None:
    outer, other, inner = (1, 1, 1, 0), (2, 1, 1, 0), (3, 1, 1, 0)
    assert matches([outer, inner], [inner, outer, inner], ([-1, 0], [-1, -1, 1])) == [(0, 1), (1, 2)]
    assert matches([outer, inner], [other, inner], ([-1, 0], [-1, 0])) == [(1, 1)]
    assert matches([outer, inner, inner], [inner, outer], ([-1, 0, -1], [-1, -1])) == [(0, 1), (2, 0)]


def test_equal_values_are_counted_in_order() -> None:
    assert _place_among_equals(np.array([5, 3, 5, 5, 3])).tolist() == [0, 0, 1, 2, 1]


def test_backward_nodes_of_several_makers_have_one_name() -> None:
    names = ["MiopenBatchNormBackward0", "aten::mm", "CudnnBatchNormBackward1", "MmBackward0", "Backward"]
    assert _without_maker(pd.Index(names)).tolist() == [0, -1, 0, 1, 2, -1]


def test_by_op_the_layers_are_summed_and_what_differs_between_them_is_left_out() -> None:
    ops = ("aten::mm", "[[1, 2]]", 1), ("aten::mm", "[[1, 2]]", 2)

    found = [diff(flat(*ops, layers=True), flat(*ops[:count], layers=True)).operators for count in (2, 1)]
    both, one = (row(table, "aten::mm") for table in found)

    assert [both[key] for key in ("layers", "matched", "calls_a", "calls_b")] == [2, "layer", 2, 2]
    assert [one[key] for key in ("layers", "op_a", "calls_a", "calls_b")] == [2, "aten::mm", 2, 1]
    assert pd.isna(one["matched"])
    assert (one["gpu_ms_a"], one["gpu_ms_b"]) == (pytest.approx(0.003), pytest.approx(0.001))
    assert (one["kernels_a"], one["kernels_b"]) == (["k0", "k1"], ["k0"])
