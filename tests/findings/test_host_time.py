"""The host's own time on recordings made by hand: what a bound covers, which lines are named, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.findings.rules import repeated, synchronisation
from perfnb.findings.rules.host import unnamed_share
from perfnb.recording.recording import ArithmeticRecord, PythonRecord, Recording
from perfnb.recording.text import TEXT
from tests.findings.findings_recordings import facts, found, one_layer
from tests.findings.test_findings import STEPS, one_long_op
from tests.findings.test_host import with_pause
from tests.recordings import ByHand


def trained(hand: ByHand, model: int, t: float) -> None:
    """A forward and a backward pass of 500 µs each."""
    hand.call(model, t, t + 500).op("aten::mm", t + 1, t + 499, 1)
    hand.node("MmBackward0", t + 500, t + 1000, 1)


def optimized(hand: ByHand, t: float) -> None:
    """An optimizer that updates all parameters at once, in 100 µs."""
    hand.event("Optimizer.step#SGD.step", t, t + 100, "user_annotation").op("aten::_fused_sgd_", t + 1, t + 99)


def metric(rounds: int, reads: bool) -> Recording:
    """After each step, a loop over samples: a round takes 60 µs, 45 of them in Python."""
    hand, model = one_layer()
    for t in range(0, 100_000 * STEPS, 100_000):
        hand.step(t, t + 1100 + 60 * rounds)
        trained(hand, model, t)
        optimized(hand, t + 1000)
        for place in range(rounds):
            begin = t + 1100 + 60 * place
            hand.op("aten::argmax", begin + 5, begin + 12)
            hand.op("aten::item" if reads else "aten::eq", begin + 40, begin + 48)
    return hand.recording()


def sampled(recording: Recording, *calls: tuple[int, str, str, str, int, str, int]) -> Recording:
    """Return the recording with sampled calls: parent, kind, name, file, line, code, milliseconds of its own."""
    rows = [(*call[:6], call[6] * 10**6, call[6]) for call in calls]
    names = ["parent", "kind", "name", "file", "line", "code", "self_ns", "samples"]
    tree = pd.DataFrame(rows, columns=names)
    tree = tree.astype({"kind": "category", **dict.fromkeys(("name", "file", "code"), TEXT)})
    meta = {**recording.meta, "python": {"steps": 1, "samples": int(tree["samples"].sum())}}
    return replace(recording, python=PythonRecord(tree), meta=meta)


METRIC = (
    (-1, "phase", "other", "", -1, "", 0),
    (0, "own", "train", "/code/train.py", 12, "score = accuracy(out, y)", 0),
    (1, "own", "accuracy", "/code/metric.py", 3, "if row.argmax() == label:", 4),
    (1, "own", "accuracy", "/code/metric.py", 2, "for row, label in zip(out, y):", 2),
    (-1, "phase", "backward", "", -1, "", 0),
    (4, "own", "train", "/code/train.py", 9, "loss.backward()", 9),
)
NAMED = " Sampled: 40 % of the step in accuracy (metric.py:3: if row.argmax() == label:)."


def test_a_loop_of_reads_counts_as_a_whole_and_once() -> None:
    table = found(metric(100, reads=True), "synchronisation", "host code", "dispatch overhead")

    read = table.loc["synchronisation"]
    assert read["bound_ms"] == pytest.approx(6.0, rel=0.02)
    assert "100 reads of results per step (.item()): at least 0.800 ms in the reads" in read["evidence"]
    assert "up to 5.99 ms (84 % of the step)" in read["evidence"]
    assert "host code" not in table.index
    assert "dispatch overhead" not in table.index


def test_a_few_reads_are_no_loop() -> None:
    assert found(metric(9, reads=True), "synchronisation").loc["synchronisation", "bound_ms"] < 9 * 0.03


def test_a_loop_of_reads_begins_one_round_before_its_first_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten reads from 560 to 1469 ns, in a block from 100 to 2100; the round before them begins at 459."""
    ops = [
        *((400, 40, 30.0), (450, 1, 1.0), (459, 1, 1.0)),  # the last is in the first round, and costs what any op does
        *((700, 5, 60.0), (801, 5, 50.0), (810, 5, 49.0), (820, 40, 55.0)),  # long, or not; two are followed by a read
        *((560 + 100 * place, 9, 90.0 if place == 5 else 10.0) for place in range(10)),
        (1469, 5, 77.0),
    ]
    table = pd.DataFrame(sorted(ops), columns=["start", "lasts", "whole_ns"]).assign(block=0)
    rows = [table, pd.DataFrame({"start": [5000, 5100], "lasts": 9, "whole_ns": 10.0, "block": 1})]  # no loop
    table = pd.concat(rows, ignore_index=True)
    table = table.assign(outer=True, end=table["start"] + table["lasts"], place=7 * table.index)
    known: Any = SimpleNamespace(
        attribution=SimpleNamespace(
            host=SimpleNamespace(blocks=pd.DataFrame({"start": [100, 0], "end": [2100, 9000]}))
        ),
        **{"cells_ns": np.zeros(2), "lines": np.arange(2), "left_ns": np.array([1000.0, 500.0]), "ops": table},
        **{"tiny_ns": 50.0, "bare_op_ns": 20.0},
    )

    def loops(inside: int, after_backward: bool) -> list[list[float]]:
        known.blocks_inside = np.array([inside, 0])
        monkeypatch.setattr(synchronisation, "gaps_after_backward", lambda facts: np.array([after_backward, False]))
        return [part.tolist() for part in synchronisation._loops(known, table[table["lasts"] == 9])]

    python_ns = 1000 * (1469 - 459 - 151) / (2000 - 192)  # 192 ns are in ops, and 151 of them in the loop
    assert loops(0, False) == [[pytest.approx(python_ns), 0.0], [20.0 + 60 + 49 + 55 + 9 * 20 + 90, 0.0]]
    assert loops(0, True)[1] == [454.0 + 50 + 77, 0.0]
    assert loops(1, True) == [[0.0, 0.0]] * 2


def test_python_after_a_read_ends_with_the_next_op_or_block_of_its_thread_or_with_its_block() -> None:
    blocks = pd.DataFrame({"thread": [1, 1, 2], "start": [0, 300, 0], "end": [250, 400, 900]})
    ops = pd.DataFrame({"thread": [1, 1, 2, 2], "start": [20, 100, 110, 500]})
    reads = [(1, 20, 30, 0), (1, 100, 240, 0), (1, 310, 350, 1), (2, 110, 500, 2), (2, 400, 410, 2), (1, 260, 280, 0)]
    known: Any = SimpleNamespace(attribution=SimpleNamespace(host=SimpleNamespace(blocks=blocks)), ops=ops)
    table = pd.DataFrame(reads, columns=["thread", "start", "end", "block"])
    after, last = synchronisation._until_next(known, table)
    assert after.tolist() == [70, 10, 50, 0, 90, 0]
    assert last.tolist() == [False, True, True, False, False, True]


@pytest.mark.parametrize(
    ("after", "advice"), [(415, "Read results less often"), (425, "Most of the time is spent on using the results")]
)
def test_the_advice_on_a_read_follows_from_what_takes_longer(after: int, advice: str) -> None:
    """A read of 400 µs, and Python after it until the next op, of which 20 are usual."""
    hand, model = one_layer()
    for t in range(0, 100_000 * STEPS, 100_000):
        hand.step(t, t + 3000)
        trained(hand, model, t)
        optimized(hand, t + 1000)
        hand.op("aten::item", t + 1200, t + 1600).event("aten::_local_scalar_dense", t + 1300, t + 1400)
        hand.op("aten::eq", t + 1600 + after, t + 2900)

    read = found(hand.recording(), "synchronisation").loc["synchronisation"]

    assert read["bound_ms"] == pytest.approx(0.4 + (after - 20) / 1000)
    assert read["advice"].startswith(advice)
    assert read["evidence"].startswith("1 read of results per step (.item()): ")
    assert read["rows"] == [{"kind": "op", "name": "aten::item"}]
    assert (
        f"0.400 ms in the reads, followed by 0.{after - 20} ms of Python before the next op starts" in read["evidence"]
    )


def test_reads_inside_an_operator_are_torchs_own() -> None:
    """``aten::std`` of a small tensor calls ``aten::item``, which no line of the user asks for."""
    own, others = metric(100, reads=True), metric(100, reads=True)
    around = others.events["name"] == "aten::argmax"
    others.events.loc[around, "duration_ns"] = 45_000  # it now contains the read

    assert "synchronisation" in found(own, "synchronisation").index
    assert "synchronisation" not in found(others, "synchronisation").index


def test_a_loop_of_small_ops_outside_the_model_is_host_code_with_its_ops() -> None:
    code = found(metric(100, reads=False), "host code").loc["host code"]

    assert code["bound_ms"] == pytest.approx(6.0, rel=0.02)
    assert "1.50 ms of it in ops" in code["evidence"]
    assert "stacks=True" in code["advice"]
    assert code["rows"] == [{"kind": "phase", "name": "other"}]


@pytest.mark.parametrize("reads", [True, False])
def test_sampled_stacks_name_the_function_and_its_line(reads: bool) -> None:
    name = "synchronisation" if reads else "host code"
    code = found(sampled(metric(100, reads), *METRIC), name).loc[name]
    assert NAMED in code["evidence"]
    assert "stacks=True" not in code["advice"]


def test_a_cell_is_named_without_its_made_up_file() -> None:
    calls = [METRIC[0], (0, "own", "<module>", "/tmp" + "/ipykernel_7/1.py", 4, "plot(x)", 5)]

    evidence = found(sampled(metric(100, False), *calls), "host code").loc["host code", "evidence"]
    assert " Sampled: 100 % of the step in <module> (line 4 of a cell: plot(x))." in evidence


@pytest.mark.parametrize("named", [True, False])
def test_python_in_the_model_is_host_code_only_where_samples_name_it(named: bool) -> None:
    recording = with_pause("op").recording()
    calls = [(-1, "phase", "forward", "", -1, "", 0), (0, "own", "Net.forward", "net.py", 7, "sort(x)", 3)]

    table = found(sampled(recording, *calls) if named else recording, "host code")

    assert ("host code" in table.index) == named
    if named:
        assert table.loc["host code", "bound_ms"] == pytest.approx(2.0, rel=0.06)
        # All samples of forward met it, but no line can take more than the finding says.
        most = f"Sampled: {100 * table.loc['host code', 'bound_share']:.0f} % of the step"
        assert f"{most} in Net.forward (net.py:7: sort(x))" in table.loc["host code", "evidence"]


@pytest.mark.parametrize(
    ("recording", "share"),
    [
        (lambda: one_long_op().recording(), 0.0),
        (lambda: metric(9, reads=True), 0.33),
        (lambda: metric(100, reads=True), 0.85),
        (lambda: metric(100, reads=False), 0.85),
        (lambda: with_pause("op").recording(), 0.5),
    ],
)
def test_what_samples_could_name_is_known_from_the_trace(recording: Callable[[], Recording], share: float) -> None:
    assert unnamed_share(facts(recording())) == pytest.approx(share, abs=0.03)


def test_an_interruption_of_one_step_is_not_worth_sampling() -> None:
    hand, model = one_layer()
    for number, late in enumerate((0, 9000)):
        t = 100_000 * number
        hand.step(t, t + 1000 + late).call(model, t, t + 999).op("aten::mm", t + 1, t + 998)

    assert unnamed_share(facts(hand.recording())) == 0.0


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_long_op_outside_the_model_counts_after_the_backward_pass(where: str) -> None:
    hand, model = one_layer()
    for t in range(0, 100_000 * STEPS, 100_000):
        hand.step(t, t + 2100)
        if where == "before":
            hand.op("aten::mm", t, t + 1000)
        trained(hand, model, t + 1000 * (where == "before"))
        if where == "after":
            hand.op("aten::clone", t + 1000, t + 2000)
        optimized(hand, t + 2000)

    table = found(hand.recording(), "host code")

    assert ("host code" in table.index) == (where == "after")
    if where == "after":
        assert table.loc["host code", "bound_ms"] == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("gradients", [40, 10])
def test_gradients_that_are_clipped_one_by_one_are_no_host_code(gradients: int) -> None:
    hand, model = one_layer()
    for t in range(0, 100_000 * STEPS, 100_000):
        hand.step(t, t + 1100 + 40 * gradients)
        trained(hand, model, t)
        for place in range(gradients):
            begin = t + 1000 + 20 * place
            hand.op("aten::linalg_vector_norm", begin, begin + 5)
            hand.op("aten::mul_", begin + 20 * gradients, begin + 20 * gradients + 5)
        optimized(hand, t + 1000 + 40 * gradients)

    table = found(hand.recording(bare_cost={"op_ns": 500.0}), "gradient clipping", "host code", "dispatch overhead")

    assert ("gradient clipping" in table.index) == (gradients == 40)
    assert ("host code" in table.index) == (gradients == 10)
    if gradients == 40:
        clipping = table.loc["gradient clipping"]
        assert clipping["bound_ms"] == pytest.approx(1.6 - 2 * 40 * 1.2 * 0.5e-3, rel=0.02)
        assert "clip_grad_norm_" in clipping["advice"]
        assert "dispatch overhead" not in table.index


@pytest.mark.parametrize("again", [True, False])
def test_a_forward_pass_that_nothing_trains_next_to_one_that_is_trained_is_repeated(again: bool) -> None:
    hand = ByHand()
    model, teacher = hand.layer("model"), hand.layer("teacher")
    for t in range(0, 100_000 * STEPS, 100_000):
        hand.step(t, t + 1500)
        hand.call(model if again else teacher, t, t + 500).op("aten::mm", t + 1, t + 499, 7)
        trained(hand, model, t + 500)

    table = found(hand.recording(), "repeated forward")

    assert ("repeated forward" in table.index) == again
    if again:
        assert table.loc["repeated forward", "bound_ms"] == pytest.approx(0.5)
        assert table.loc["repeated forward", "rows"] == [{"kind": "layer", "name": "model"}]


@pytest.mark.parametrize(
    ("change", "bound_ms"),
    [
        ({}, 0.4 + 0.04),  # and no more than a tenth of it for using the results
        ({"after_ns": [0, 30_000, 0]}, 0.4 + 0.03),
        ({"ops": [10, 5, 1]}, 0.4 + 0.04),
        ({"ops": [10, 4, 1]}, None),  # less than half of the ops
        ({"ops": [1, 8, 3]}, 0.4 + 0.04),
        ({"trained": [True, True, False]}, None),
        ({"trained": [False, False, False]}, None),
        ({"step": [0, 1, 0]}, None),  # trained in another step
        ({"layer": [1, 0, 1]}, None),  # another model is trained
        ({"ops": [10, 10, 10]}, 0.4 + 0.04 + 0.2),
    ],
)
def test_calls_without_a_backward_pass_are_repeated_where_the_model_is_trained(
    change: dict[str, list[Any]], bound_ms: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pd.DataFrame(
        {"step": 0, "layer": 1, "ops": [10, 10, 1], "ns": [900_000, 400_000, 200_000], "after_ns": [0, 70_000, 0]}
    ).assign(trained=[True, False, False])
    monkeypatch.setattr(repeated, "model_calls", lambda facts: calls.assign(**change))
    known: Any = SimpleNamespace(
        gpu=None,
        per_step=lambda ns: ns / 1e6,
        steps=1,
        of_step=lambda ms: f"{ms:.3g} ms",
        recording=SimpleNamespace(modules=pd.DataFrame({"name": ["other", "model"]})),
    )

    found = list(repeated.repeated_forward.search(known))

    assert [one.bound_ms for one in found] == ([] if bound_ms is None else [pytest.approx(bound_ms)])
    for one in found:
        calls_of_it = 2 if bound_ms == 0.4 + 0.04 + 0.2 else 1
        assert one.evidence.startswith(f"model is called 3 times per step, including {calls_of_it} call")
        assert [row.name for row in one.rows] == ["model"]
    known.gpu = object()
    assert list(repeated.repeated_forward.search(known)) == []


def test_a_loop_around_the_model_could_save_all_but_one_call() -> None:
    hand, model = one_layer()
    for t in range(0, 100_000 * STEPS, 100_000):
        hand.step(t, t + 4000)
        for place in range(20):
            begin = t + 200 * place
            hand.op("aten::select", begin, begin + 4)
            hand.call(model, begin + 20, begin + 200)
            for op in range(4):
                hand.op("aten::add", begin + 30 + 40 * op, begin + 34 + 40 * op)

    overhead = found(hand.recording(), "dispatch overhead").loc["dispatch overhead"]

    assert overhead["bound_ms"] == pytest.approx(4 * 19 / 20, rel=0.01)
    assert "The model is called 20 times per step" in overhead["evidence"]
    assert "in one batch" in overhead["advice"]
    assert overhead["code"] == ""


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_ops_in_float64_take_at_least_twice_as_long_inside_the_model_and_outside(where: str) -> None:
    hand, counted = ByHand(), ByHand()
    for each in (hand, counted):
        each.layer("model")
    for t in range(0, 10_000 * STEPS, 10_000):
        hand.step(t, t + 2000)
        hand.call(0, t + 1000, t + 2000).op("aten::addmm", t + 1001, t + 1999)
        hand.op("aten::mm", t, t + 800).op("aten::sub", t + 800, t + 1000)
    counted.step(0, 100).op("pf_op#0", 2, 40).op("pf_op#1", 40, 45).call(0, 50, 90).op("pf_op#2", 55, 80)
    dtypes = ["float64", "float64", "float32"] if where == "outside" else ["float32", "float32", "float64"]
    calls = pd.DataFrame(
        {
            "op": pd.Categorical(["aten::mm", "aten::sub", "aten::addmm"]),
            "flops": pd.array([2_000_000, None, 2_000_000], dtype="Int64"),
            "bytes": [4000, 8000, 4000],
            "dtype": pd.Categorical(dtypes),
        },
        index=pd.Index([0, 1, 2], name="number"),
    )
    ceilings = {"on": "cpu", "device": "made up", "bytes_per_s": 1e9, "others": 0.0}
    ceilings |= {"flops_per_s": {"float32": 4e10, "float64": 1e10}}
    recording = replace(
        hand.recording(ceilings=ceilings), arithmetic=ArithmeticRecord(counted.recording().events, calls)
    )

    double = found(recording, "float64").loc["float64"]

    saved = 0.8 * 5 / 6 + 0.2 * 2 / 3 if where == "outside" else 1.0 * 5 / 6
    assert double["bound_ms"] == pytest.approx(saved, rel=0.02)
    assert ("All of these ops are outside the model." in double["evidence"]) == (where == "outside")
