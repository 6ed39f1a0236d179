"""Attention in separate ops with its backward pass, and chains of elementwise ops, on recordings made by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.attribution import attribute
from perfnb.findings.facts import Facts
from perfnb.findings.gpu_facts import gpu_facts
from perfnb.findings.rules import fusion
from perfnb.findings.rules.fusion import _on_gpu_ms, _segments, elementwise_chains, unfused_attention
from tests.findings.findings_recordings import facts as facts_from
from tests.findings.findings_recordings import found, one_layer
from tests.findings.test_findings import STEPS
from tests.findings.test_gpu import two_kernels
from tests.recordings import ByHand


def facts(hand: ByHand) -> Facts:
    return facts_from(hand.recording())


def trained(elsewhere: bool = False) -> ByHand:
    """Attention of 1 ms, and 3 ms of backward nodes of its ops, or of an op before it."""
    hand, model = one_layer()
    for number in range(STEPS):
        t = 10_000 * number
        hand.step(t - 1, t + 4001)
        hand.call(model, t - 0.5, t + 1000)
        first = 10 * number
        hand.op("aten::mul", t - 0.4, t - 0.1, first)
        hand.op("aten::matmul", t, t + 300, first + 1).op("aten::bmm", t + 50, t + 290, first + 1)
        hand.op("aten::softmax", t + 300, t + 700, first + 2).op("aten::_softmax", t + 310, t + 690, first + 2)
        hand.op("aten::matmul", t + 700, t + 1000, first + 3).op("aten::bmm", t + 710, t + 970, first + 3)
        of = [first] * 3 if elsewhere else [first + 3, first + 2, first + 1]
        hand.node("BmmBackward0", t + 1000, t + 2000, of[0]).event("aten::bmm", t + 1002, t + 1902)
        hand.node("SoftmaxBackward0", t + 2000, t + 3000, of[1])
        hand.event("aten::_softmax_backward_data", t + 2002, t + 2998)
        hand.node("BmmBackward0", t + 3000, t + 4000, of[2]).event("aten::bmm", t + 3002, t + 3902)
    return hand


def test_attention_counts_its_backward_nodes_less_what_the_fused_one_computes() -> None:
    (both,) = unfused_attention(facts(trained()))
    (forward,) = unfused_attention(facts(trained(elsewhere=True)))

    assert forward.bound_ms == pytest.approx(1.0 - 0.24 - 0.26, rel=0.01)
    assert [tuple(row) for row in forward.rows] == [("layer", "model"), ("op", "aten::_softmax")]
    # Of the products 1.8 ms lie in the backward pass, where the fused op computes one of forward's again.
    assert both.bound_ms == pytest.approx(4.0 - 0.24 - 0.26 - 1.25 * 1.8, rel=0.01)


def test_on_a_gpu_operators_take_the_time_of_what_they_launched() -> None:
    hand = two_kernels(500)  # launched 5 and 600 µs after the begin of a step, for 100 µs each
    recording = hand.recording()
    gpu = gpu_facts(recording, attribute(recording))
    assert gpu is not None

    def ms(*spans: tuple[float, float]) -> float:
        steps = [(1000 * (20_000 * n + begin), 1000 * (20_000 * n + end)) for n in range(STEPS) for begin, end in spans]
        return _on_gpu_ms(gpu, pd.DataFrame(steps, columns=["start", "end"]))

    assert ms((5, 6)) == pytest.approx(0.1)
    assert ms((0, 700), (5, 6)) == pytest.approx(0.2)
    assert ms((0, 5), (6, 600)) == 0.0


def test_on_a_gpu_attention_takes_the_time_of_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "_with_inside", lambda facts, used: pd.Series(True, index=facts.ops.index))
    monkeypatch.setattr(fusion, "_on_gpu_ms", lambda gpu, ops: float(len(ops)))
    ops = pd.DataFrame({"op": pd.Categorical(["aten::bmm", "aten::softmax", "aten::baddbmm"])})
    known: Any = SimpleNamespace(ops=ops, gpu=object())
    assert fusion._times(known, ops) == (3.0, 2.0)


def test_short_attention_is_not_a_finding() -> None:
    hand = trained()
    for number in range(STEPS):
        t = 10_000 * number
        next(row for row in hand.rows if row["name"] == f"pf_step#{number}")["duration_ns"] = 9_000_000
        hand.op("aten::mm", t + 4002, t + 8998)
    assert found(hand.recording(), "attention unfused").index.tolist() == ["attention unfused"]
    known = facts(hand)
    assert list(unfused_attention.search(replace(known, step_ms=999.0))) == []


def test_with_a_known_peak_the_fused_op_takes_the_time_of_its_arithmetic() -> None:
    def bound_ms(hand: ByHand, flops: list[int | None]) -> float:
        points = pd.DataFrame({"kind": ["op", "op", "op", "layer"], "name": ["aten::bmm"] * 2 + ["aten::mm", "model"]})
        points = points.assign(flops=pd.array([*flops, 10**9, 10**9], dtype="Int64"), dtype="float32")
        roofline: Any = SimpleNamespace(points=points, peaks={"float32": 1e12})
        known = facts(hand)
        (finding,) = unfused_attention(replace(known, figures=replace(known.figures, roofline=roofline)))
        assert finding.bound_ms is not None
        return finding.bound_ms

    forward = trained(elsewhere=True)
    assert bound_ms(forward, [10**8, 4 * 10**7]) == pytest.approx(1.0 - 0.14 / 0.7, rel=0.01)
    assert bound_ms(forward, [10**9, 10**9]) == pytest.approx(1.0 - 0.5, rel=0.01)  # the products take no longer
    assert bound_ms(forward, [None, None]) == pytest.approx(1.0 - 0.5, rel=0.01)
    # A third of the arithmetic is that of forward.
    assert bound_ms(trained(), [10**8, 5 * 10**8]) == pytest.approx(4.0 - 0.2 / 0.7 - 0.4 / 0.5, rel=0.01)


def chain(nodes: bool = False) -> ByHand:
    """Return a product of 1 ms, then mul, add and tanh of 1, 2 and 3 ms, or their backward nodes."""
    hand, model = one_layer()
    for number in range(STEPS):
        t = 20_000 * number
        hand.step(t - 1, t + 7001)
        hand.call(model, t, t + (1000 if nodes else 7000)).op("aten::mm", t + 1, t + 999, number)
        for name, begin, end in (("mul", 1000, 2000), ("add", 2000, 4000), ("tanh", 4000, 7000)):
            if nodes:
                hand.node(f"{name.title()}Backward0", t + begin, t + end, number)
            else:
                hand.op(f"aten::{name}", t + begin, t + end)
    return hand


@pytest.mark.parametrize("nodes", [False, True])
def test_of_a_chain_of_elementwise_ops_one_pass_stays(nodes: bool) -> None:
    finding = found(chain(nodes=nodes).recording(), "memory bandwidth").loc["memory bandwidth"]

    assert finding["bound_ms"] == pytest.approx(6 - 3, rel=0.01)
    assert "torch.compile" in finding["advice"]
    assert "3 elementwise ops per step" in finding["evidence"]
    assert finding["rows"][0] == {"kind": "layer", "name": "model"}


def test_memory_freed_in_a_chain_is_not_host_code() -> None:
    hand = ByHand()
    for t in range(0, 100_000 * STEPS, 100_000):
        hand.step(t - 1, t + 15_001)
        for place in range(10):
            hand.op("aten::mul", t + 1500 * place, t + 1500 * place + 1000)

    table = found(hand.recording())

    assert table.index.tolist() == ["memory bandwidth"]
    assert table["bound_ms"].iloc[0] == pytest.approx(10 + 9 * 0.5 - 1, rel=0.01)
    assert table["code"].iloc[0] == ""
    assert "compile the function that computes it" in table["advice"].iloc[0]


def test_an_update_by_hand_is_not_a_chain() -> None:
    hand, model = one_layer()
    for number in range(STEPS):
        t = 20_000 * number
        hand.step(t - 1, t + 7001)
        hand.call(model, t, t + 1000).op("aten::mm", t, t + 1000, number)
        hand.node("MmBackward0", t + 1000, t + 2000, number)
        for place in range(5):
            hand.op("aten::add_", t + 2000 + 1000 * place, t + 3000 + 1000 * place)

    assert "memory bandwidth" not in found(hand.recording(), "memory bandwidth").index


def test_attention_is_not_reported_again_as_memory_traffic() -> None:
    hand, model = one_layer()
    for t in range(0, 4000 * STEPS, 4000):
        hand.step(t - 1, t + 1901)
        hand.call(model, t, t + 1900)
        hand.op("aten::matmul", t, t + 300).event("aten::bmm", t + 50, t + 290)
        for place, name in enumerate(("div", "add", "masked_fill")):
            hand.op(f"aten::{name}", t + 300 + 300 * place, t + 600 + 300 * place)
        hand.op("aten::softmax", t + 1200, t + 1600).op("aten::matmul", t + 1600, t + 1900)
        hand.event("aten::bmm", t + 1610, t + 1870)
    known = facts(hand)

    assert len(unfused_attention(known)) == 1
    assert elementwise_chains(known) == []


def attentions(names: list[str], steps: list[int] | None = None, threads: list[int] | None = None) -> tuple[Any, int]:
    """Return the rows of attention among these ops, and the number of attentions."""
    count = len(names)
    ops = pd.DataFrame({"op": pd.Categorical([f"aten::{name}" for name in names]), "outer": True, "phase": "forward"})
    ops = ops.assign(step=steps or [0] * count, thread=threads or [0] * count, around=-1)
    facts: Any = SimpleNamespace(ops=ops, known={})
    rows, found_count = _segments(facts)
    return rows.tolist(), found_count


@pytest.mark.parametrize(("before", "after", "count"), [(11, 11, 1), (12, 11, 0), (11, 12, 0)])
def test_products_of_attention_are_at_most_twelve_ops_from_the_softmax(before: int, after: int, count: int) -> None:
    names = ["bmm", *["mul"] * before, "softmax", *["mul"] * after, "bmm"]
    assert attentions(["relu", *names, "relu"]) == ([*range(1, len(names) + 1)] * count, count)


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["bmm", "softmax", "bmm"], [0, 1, 2]),
        (["bmm", "bitwise_not", "rsub", "ne", "tanh", "softmax", "bmm"], [0, 1, 2, 3, 4, 5, 6]),
        (["bmm", "div", "softmax", "dropout", "bmm", "softmax", "bmm"], [0, 1, 2, 3, 4, 5, 6]),
        (["bmm", "softmax", "mm", "bmm"], []),
        (["bmm", "linear", "softmax", "bmm"], []),
        (["matmul", "softmax", "bmm"], []),  # it called no batched product
        (["bmm", "softmax"], []),
        (["softmax", "bmm"], []),
        (["softmax", "bmm", "bmm"], []),
        (["mul", "mul"], []),
    ],
)
def test_attention_is_a_softmax_between_batched_products(names: list[str], rows: list[int]) -> None:
    assert attentions(names)[0] == rows


def test_attention_is_within_a_step_and_a_thread() -> None:
    names = ["bmm", "softmax", "bmm"]
    assert attentions(names * 2, [0, 0, 0, 1, 1, 1], [0, 0, 0, 5, 5, 5])[1] == 2
    for differ in ([0, 1, 1], [0, 0, 1]):
        assert attentions(names, steps=differ)[1] == 0
        assert attentions(names, threads=differ)[1] == 0


@pytest.mark.parametrize("worth", [True, False])
def test_layers_with_attention_are_those_of_its_ops_if_it_is_worth_a_finding(
    worth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusion, "_segments", lambda facts: (np.array([0, 1, 3, 4]), 2))
    monkeypatch.setattr(fusion, "unfused_attention", lambda facts: ["a finding"] * worth)
    facts: Any = SimpleNamespace(ops=pd.DataFrame({"layer": ["b", "", "x", "a", "b"]}), known={})
    assert fusion.attention_layers(facts) == (["b", "a"] if worth else [])


MUL, ADD = ("mul", 0, 30), ("add", 40, 20)  # a gap of 10 ns is no longer than the op before it


@pytest.mark.parametrize(
    ("ops", "members", "whole_ns", "one_pass_ns", "gaps_ns"),
    [
        ([MUL, ADD], [0, 1], 60, 30, [10, 0, 0]),
        ([MUL, ("add", 60, 20)], [0, 1], 80, 30, [30, 0, 0]),
        ([MUL, ("add", 61, 20)], [], 0, 0, [0, 0, 0]),  # other code runs for longer
        ([MUL, ("add", 40, 10)], [0, 1], 50, 30, [10, 0, 0]),
        ([MUL, ("add", 40, 9)], [], 0, 0, [0, 0, 0]),  # a tiny op ends the chain
        ([MUL, ("view", 30, 5), ADD], [0, 2], 60, 30, [10, 0, 0]),
        ([MUL, ("mm", 30, 5), ADD], [], 0, 0, [0, 0, 0]),
        ([MUL, ("sum", 40, 20), ("add", 60, 40), ("exp", 100, 50)], [0, 1, 2, 3], 150, 80, [10, 0, 0]),
        ([ADD, MUL], [0, 1], 60, 30, [10, 0, 0]),  # in order of time
        ([MUL, (*ADD, {"thread": 5})], [], 0, 0, [0, 0, 0]),
        ([MUL, (*ADD, {"step": 1})], [], 0, 0, [0, 0, 0]),
        ([MUL, (*ADD, {"outer": False})], [], 0, 0, [0, 0, 0]),
        ([MUL, (*ADD, {"phase": "other"})], [0, 1], 60, 30, [10, 0, 0]),
        ([MUL, (*ADD, {"phase": "other"}), ("mm", 900, 9, {"direction": "backward"})], [], 0, 0, [0, 0, 0]),
        ([(*MUL, {"block": 1}), (*ADD, {"block": 2})], [0, 1], 60, 30, [10, 0, 0]),  # both are in the first block
        ([(*MUL, {"block": 0}), (*ADD, {"block": 2})], [0, 1], 50, 30, [0, 0, 0]),
        ([(*MUL, {"block": 1}), (*ADD, {"block": 1})], [0, 1], 57, 30, [0, 7, 0]),  # which has 7 ns outside ops
    ],
)
def test_a_chain_is_of_long_elementwise_ops_back_to_back_in_a_thread_of_a_step(
    ops: list[Any], members: list[int], whole_ns: float, one_pass_ns: float, gaps_ns: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    usual = {"thread": 0, "step": 0, "outer": True, "phase": "forward", "direction": "forward", "block": 0}
    rows = [{"op": f"aten::{op[0]}", "start": op[1], "whole_ns": op[2], **usual, **dict(*op[3:])} for op in ops]
    table = pd.DataFrame(rows).astype({"op": "category"})
    monkeypatch.setattr(fusion, "attention_ops", lambda facts: np.zeros(len(ops), dtype=bool))
    forest = SimpleNamespace(parent=np.array([-1, 0, 0]))
    facts: Any = SimpleNamespace(
        attribution=SimpleNamespace(cells=[0, 1, 2], host=SimpleNamespace(forest=forest)),
        **{"ops": table.assign(end=table["start"] + table["whole_ns"]), "known": {}, "tiny_ns": 10},
        **{"lines": np.arange(3), "left_ns": np.array([99.0, 7.0, 99.0])},
    )
    chains = fusion.chains_of(facts)
    assert np.flatnonzero(chains.members).tolist() == members
    assert (chains.whole_ns, chains.one_pass_ns, chains.gaps_ns.tolist()) == (whole_ns, one_pass_ns, gaps_ns)
    assert chains.count == (0 if not members else 2 if len(members) == 4 else 1)
