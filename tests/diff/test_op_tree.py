"""The tree of operators: what lies in what, for how long, and what it launched."""

from __future__ import annotations

import numpy as np

from perfnb.diff.op_tree import OpTree, _of_blocks, op_tree
from tests.recordings import ByHand


def training() -> ByHand:
    """Return a step of 400 µs: one layer with a convolution, its backward on another thread, an optimizer."""
    hand = ByHand().step(0, 400)
    hand.call(hand.layer("net"), 10, 110)
    hand.op("aten::conv2d", 20, 100, 1).op("aten::convolution", 30, 90, 1).op("aten::lib_convolution", 40, 80, 1)
    hand.kernel("conv", 50, 60, 160)
    hand.node("LibBackward0", 130, 200, 1, thread=2).kernel("wgrad", 150, 160, 260, thread=2)
    hand.event("Optimizer.step#SGD.step", 220, 300, "user_annotation").op("aten::add_", 230, 250)
    hand.kernel("add", 260, 261, 264)  # in the range, in no operator
    return hand.kernel("lost", 350, 360, 390)


def by_name(tree: OpTree, column: str) -> dict[str, object]:
    return dict(zip(tree.nodes["name"].astype(str), tree.nodes[column], strict=True))


def test_nodes_lie_in_each_other_and_know_layer_phase_and_maker() -> None:
    tree = op_tree(training().recording())

    names = tree.nodes["name"].astype(str).to_numpy()
    around = {name: None if at == -1 else names[at] for name, at in zip(names, tree.forest.parent, strict=True)}
    mark = "autograd::engine::evaluate_function: LibBackward0"
    assert around == {
        "aten::conv2d": None,
        "aten::convolution": "aten::conv2d",
        "aten::lib_convolution": "aten::convolution",
        mark: None,
        "LibBackward0": mark,
        "Optimizer.step#SGD.step": None,
        "aten::add_": "Optimizer.step#SGD.step",
    }
    assert [name for name, is_range in by_name(tree, "is_range").items() if is_range] == ["Optimizer.step#SGD.step"]
    assert [name for name, is_mark in by_name(tree, "is_engine").items() if is_mark] == [mark]
    assert by_name(tree, "layer")["aten::lib_convolution"] == by_name(tree, "layer")["LibBackward0"] == "net"
    assert tree.nodes["layer"].isna().sum() == 2
    phases = by_name(tree, "phase")
    assert (phases["aten::conv2d"], phases["LibBackward0"], phases["aten::add_"]) == (
        "forward",
        "backward",
        "optimizer",
    )
    made_by = by_name(tree, "forward_op")
    assert made_by["LibBackward0"] == made_by[mark] == "aten::conv2d"
    assert tree.nodes["forward_op"].notna().sum() == 2


def test_time_on_the_host_is_counted_once_and_work_has_its_launcher() -> None:
    tree = op_tree(training().recording())

    assert by_name(tree, "self_ns") == {
        "aten::conv2d": 20_000,
        "aten::convolution": 20_000,
        "aten::lib_convolution": 40_000,
        "autograd::engine::evaluate_function: LibBackward0": 2_000,
        "LibBackward0": 68_000,
        "Optimizer.step#SGD.step": 60_000,
        "aten::add_": 20_000,
    }
    names = [*tree.nodes["name"].astype(str), None]
    launched = {name: names[node] for name, node in zip(tree.work["name"], tree.work["node"], strict=True)}
    assert launched == {
        "conv": "aten::lib_convolution",
        "wgrad": "LibBackward0",
        "add": "Optimizer.step#SGD.step",
        "lost": None,
    }
    assert tree.work["duration_ns"].sum() == (100 + 100 + 3 + 30) * 1000
    assert tree.steps == 1


def test_work_without_a_call_belongs_to_the_operator_of_its_external_id() -> None:
    hand = ByHand().step(0, 100).op("aten::mm", 10, 20, external_id=7)
    hand.event("gemm", 30, 60, "kernel", thread=-1, device=0, stream=7, correlation=99, external_id=7)
    events = hand.recording()
    events.events["external_id"] = events.events["external_id"].fillna(-1).astype("int64")

    tree = op_tree(events)

    assert tree.work["node"].tolist() == [0]


def test_a_step_without_operators_has_none() -> None:
    tree = op_tree(ByHand().step(0, 100).recording())

    assert len(tree.nodes) == len(tree.work) == 0


def test_work_outside_the_steps_counts_only_in_traces_from_elsewhere() -> None:
    def names(**meta: object) -> list[str]:
        hand = ByHand().op("aten::before", 0, 20).step(100, 200).op("aten::mm", 110, 120).op("aten::after", 300, 310)
        hand.op("aten::other", 130, 140, thread=9)
        return list(op_tree(hand.recording(**meta)).nodes["name"].astype(str))

    assert names() == ["aten::mm"]
    assert set(names(trace={})) > {"aten::mm", "aten::other"}


def test_a_node_has_the_text_of_its_block_if_there_is_one() -> None:
    for texts in (["a", "", "b", "a"], ["", "a", "b", "a"], ["a", "a", "b", ""]):
        of_nodes = _of_blocks(np.array(texts, dtype=object), np.array([3, 2, 1, 0, 0]))

        assert [None if text != text else text for text in of_nodes] == [
            text or None for text in (texts[3], texts[2], texts[1], texts[0], texts[0])
        ]
        assert set(of_nodes.categories) == {"a", "b"}
