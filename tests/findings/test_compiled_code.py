"""Graph breaks, recompilations and small compiled regions, in recordings whose figures are known beforehand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from perfnb.findings.doubts import doubt_of
from perfnb.findings.finding import Finding
from perfnb.findings.rules import compiled
from perfnb.findings.rules.host import dispatch_overhead
from perfnb.recording.compiled_layers import CompiledCode, with_compiled_regions
from perfnb.recording.raw_frames import frame_of_rows
from perfnb.recording.recording import Recording
from tests.findings.findings_recordings import SMALL, compiled_cpu, facts, small_region
from tests.findings.findings_recordings import found as tabulated
from tests.recording.test_compiled_layers import (
    BACK,
    BLOCK,
    FORWARD,
    SHARED,
    graph,
    net,
    of_one_step,
    one_region,
    operation,
    region,
)
from tests.recordings import ByHand


def only(found: list[Finding]) -> Finding:
    (one,) = found
    return one


def test_a_graph_break_costs_the_code_around_it_an_entry_and_what_could_be_fused_across_it() -> None:
    found = only(compiled.graph_breaks(facts(compiled_cpu())))

    assert found.bound_ms == pytest.approx((48 + 38 + 30 + 21 + 30 + 80) / 1000)
    assert found.evidence == (
        "Graphs break at model.py:9 (Failed to trace builtin operator: print(h)). Therefore 2 compiled regions per "
        "step run in place of 1, which costs up to 0.247 ms (41 % of the step) in entering them, in the code between "
        "them, and in generated kernels that could be fused across it."
    )
    assert found.advice == "At model.py:9: print or log outside the compiled code."
    assert [row.name for row in found.rows] == ["Torch-Compiled Region: 0/0"]


def test_without_a_graph_break_there_is_no_finding_of_one() -> None:
    assert compiled.graph_breaks(facts(compiled_cpu(broke=""))) == []
    assert compiled.graph_breaks(facts(of_one_step())) == []
    on_gpu = replace(facts(compiled_cpu()), gpu=object())  # type: ignore[arg-type]
    assert compiled.graph_breaks(on_gpu) == compiled.small_regions(on_gpu) == []


def test_one_disturbed_step_does_not_change_what_a_break_costs() -> None:
    found = only(compiled.graph_breaks(facts(compiled_cpu(3, late=50))))

    assert found.bound_ms == pytest.approx((48 + 38 + 30 + 21 + 30 + 80) / 1000)


def test_kernels_fuse_only_where_a_break_has_them_on_both_sides() -> None:
    recording = compiled_cpu()
    record = recording.compiled
    assert record is not None
    # Of the kernels after the break, the first is one of a library now.
    kernels = record.kernels.assign(
        kernel=record.kernels["kernel"].mask(record.kernels["direction"] == "forward", "a.b")
    )
    found = only(compiled.graph_breaks(facts(replace(recording, compiled=replace(record, kernels=kernels)))))

    assert found.bound_ms == pytest.approx((48 + 38 + 30 + 21 + 80) / 1000)


def test_regions_of_one_call_belong_together_if_torch_left_the_function_around_them_uncompiled() -> None:
    hand = ByHand().step(0, 600)
    root, *_ = net(hand)
    hand.call(root, 8, 590)
    region(hand, 10, name="0/0")
    region(hand, 410, sequence=6, name="1/0")  # far away, and in the same call
    recording = hand.recording()
    code = [CompiledCode(name, "forward", broke="Failed: print(h)", broke_at="model.py:9") for name in ("0/0", "1/0")]
    found = only(compiled.graph_breaks(facts(with_compiled_regions(recording, [SHARED, BACK], code))))

    assert "2 compiled regions per step run in place of 1" in found.evidence
    # Until the second region, and after its graph; its entry; the last kernel of one, and the first of the other.
    assert found.bound_ms == pytest.approx((412 - 104 + 6 + 10 + 10 + 20) / 1000)


@pytest.mark.parametrize(("breaks", "more"), [(3, ""), (4, "; and at 1 more place."), (5, "; and at 2 more places.")])
def test_three_places_of_breaks_are_named_and_the_others_counted(breaks: int, more: str) -> None:
    hand = ByHand().step(0, 900)
    hand.call(net(hand)[0], 8, 890)
    for number in range(breaks):
        region(hand, 10 + 140 * number, sequence=5 + number, name=f"{number}/0")
    code = [
        CompiledCode(f"{number}/0", "forward", broke=f"Failed: print({number})", broke_at=f"model.py:{number}")
        for number in range(breaks)
    ]
    found = only(compiled.graph_breaks(facts(with_compiled_regions(hand.recording(), [SHARED], code))))

    named = found.evidence.partition(" Therefore ")[0]
    assert named.count("model.py:") == found.advice.count("At model.py:") == len(found.rows) == 3
    assert named.endswith(more or ").")
    assert ("more place" in named) == bool(more)
    assert f"Therefore {breaks} compiled regions per step run in place of 1" in found.evidence


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        ("Call to `torch._dynamo.graph_break()`: torch._dynamo.graph_break()", "remove this call"),
        ("Failed to trace builtin operator: print(x)", "print or log"),
        ("Attempted to call function marked as skipped: logger.info(x)", "print or log"),
        ("Data-dependent branching: if x.sum() > 0:", "torch.where"),
        ("Unsupported Tensor.item() call with capture_scalar_outputs=False: x.item()", "in a tensor"),
        ("attempted to trace numpy function unsupported by PyTorch: np.save(f, x.numpy())", "custom_op"),
        ("Attempted to call function marked as skipped: time.sleep(1)", "custom_op"),
        ("Something new", "fullgraph=True"),
    ],
)
def test_the_remedy_follows_from_the_reason(reason: str, cure: str) -> None:
    cures = compiled._cures([("a.py:1", reason), ("b.py:2", "")])
    assert cure in cures.partition("At b.py:2: ")[0]


def test_of_kernels_that_are_not_known_the_cost_of_a_break_is_not_known_either() -> None:
    recording = one_region().recording()
    code = [CompiledCode("0/0", "forward", "model.py:7", 1, 1.0, "", "Failed: print(x)", "model.py:9")]
    found = only(compiled.graph_breaks(facts(with_compiled_regions(recording, [], code))))

    assert found.bound_ms is None
    assert "Graphs break at model.py:9" in found.evidence
    assert "call perfnb.compile_for_profiling() before" in found.advice
    assert compiled.small_regions(facts(with_compiled_regions(recording, [], code))) == []


def test_small_regions_cost_their_entry_what_is_between_them_and_what_could_be_fused() -> None:
    found = only(compiled.small_regions(facts(compiled_cpu())))

    assert found.bound_ms == pytest.approx((52 + 18 + 8) / 1000)
    assert found.evidence == (
        "2 compiled regions per step (scaled) run kernels for 8.00 µs, forward and backward, but cost up to 78.0 µs in "
        "entering them, in the code between them, and in generated kernels that could be fused across it."
    )
    assert found.advice.startswith("Compile the code that calls these regions")


def test_small_regions_inside_a_function_that_a_break_leaves_uncompiled_are_put_down_to_the_break() -> None:
    recording = compiled_cpu(broke="")
    left = CompiledCode("3/0", "run", "/home/model.py:30", broke="Call to print: print(h)", broke_at="/home/run.py:32")
    assert recording.compiled is not None
    code = pd.concat([recording.compiled.code, frame_of_rows("compiled_code", [left])], ignore_index=True)
    known = facts(replace(recording, compiled=replace(recording.compiled, code=code)))

    found = only(compiled.graph_breaks(known))

    assert compiled.small_regions(known) == []
    assert found.bound_ms == pytest.approx((52 + 18 + 8) / 1000)
    assert "run (model.py:30), because its graph breaks at run.py:32 (Call to print: print(h))" in found.evidence
    assert "compiled in parts: 2 compiled regions per step (scaled)" in found.evidence
    assert found.advice == "At run.py:32: print or log outside the compiled code."


def test_a_single_small_region_is_not_said_to_be_several() -> None:
    hand = ByHand().step(0, 600)
    hand.call(net(hand)[0], 9, 53)
    small_region(hand, 10)
    code = [CompiledCode("2/0", "scaled", "model.py:20", 4, 0.5)]
    known = facts(with_compiled_regions(hand.recording(), [SMALL], code))

    assert only(list(compiled.small_regions.search(known))).evidence.startswith("1 compiled region per step (scaled)")


def test_regions_with_long_kernels_are_not_small() -> None:
    assert list(compiled.small_regions.search(facts(of_one_step()))) == []


def test_recompilations_in_timed_steps_are_found_with_their_guard() -> None:
    known = facts(compiled_cpu())
    found = only(compiled.recompilation(known))

    assert found.bound_ms == pytest.approx((0.3 + 0.4) / 6)
    assert found.evidence == (
        "In 2 of 6 timed steps, torch.compile compiled forward (model.py:7) again, because a guard failed: k == 1 "
        "(h = h * k, model.py:8). On average over all steps, compiling took 0.117 ms."
    )
    assert found.advice == "Keep the changing value in a tensor, or outside the compiled code."
    assert (found.confidence, [row.name for row in found.rows]) == ("high", ["1", "3"])


def with_compilations(*rows: list[Any], wall_ms: list[float] | None = None) -> Recording:
    recording = compiled_cpu()
    steps = recording.steps
    if wall_ms is not None:
        timed, traced = steps[steps["pass"] == "timed"], steps[steps["pass"] == "traced"]
        steps = pd.concat([timed.iloc[[0] * len(wall_ms)].assign(wall_ms=wall_ms), traced], ignore_index=True)
    return replace(recording, steps=steps, meta={**recording.meta, "compilations": list(rows)})


def test_one_step_with_a_compilation_gives_no_bound_and_no_verdict() -> None:
    row = [2, "forward", "model.py:7", "0/0: k == 1", 900.0]
    slow = with_compilations(row, wall_ms=[0.6, 0.6, 1000.0, *[0.6] * 9])
    found = only(compiled.recompilation(facts(slow)))

    assert found.bound_ms is None
    assert found.confidence == "low"
    assert "because a guard failed: k == 1. This took 999 ms." in found.evidence
    table = tabulated(slow, "graph breaks", "uneven steps")
    assert list(table.index) == ["graph breaks"]
    assert "own work takes" not in table.loc["graph breaks", "why"]  # the slow step casts no doubt on this bound


def test_what_a_step_takes_longer_because_it_compiled_counts_as_compiling() -> None:
    rows = [[step, "forward", "model.py:7", "", 2.0] for step in (1, 4)]
    known = facts(with_compilations(*rows, wall_ms=[0.6, 3.6, 0.6, 0.6, 2.0, 0.6]))

    assert known.compiling_ms.tolist() == pytest.approx([0, 3, 0, 0, 2, 0])
    found = only(compiled.recompilation(known))
    assert "for the first time" in found.evidence
    assert "Run more steps" in found.advice


def test_longer_warm_up_is_not_the_only_remedy_for_steps_that_all_compile() -> None:
    rows = [[step, "forward", "model.py:7", "", 0.3] for step in range(6)]
    advice = only(compiled.recompilation(facts(with_compilations(*rows)))).advice
    assert "If every step compiles code, call torch.compile only once, before the steps" in advice


@pytest.mark.parametrize(
    ("guard", "cure"),
    [
        ("0/0: tensor 'x' size mismatch at index 0. expected 32, actual 7", "same shape"),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0", "same mode"),
        ("0/1: self.calls == 3 # self.calls += 1 # a.py:1 in f", "in a tensor"),
        ("0/1: ___check_obj_id(f, 12)", "the same in every step"),
    ],
)
def test_the_remedy_follows_from_the_guard(guard: str, cure: str) -> None:
    rows = [[step, "forward", "model.py:7", guard, 0.3] for step in (1, 4)]
    assert cure in only(compiled.recompilation(facts(with_compilations(*rows)))).advice


def test_steps_that_are_unknown_compile_nothing() -> None:
    known = facts(with_compilations([7, "forward", "", "", 1.0], [-1, "forward", "", "", 1.0]))

    assert known.compiling_ms.tolist() == [0.0] * 6
    assert compiled.recompilation(known) == []
    assert isinstance(known.compilations, pd.DataFrame)


def test_compilation_in_the_traced_steps_explains_why_they_do_not_fit_the_others() -> None:
    recording = compiled_cpu()
    row = [0, "forward", "/home/model.py:7", "0/0: k == 1", 300.0]
    meta = {**recording.meta, "traced_compilations": [row, [0, "", "", "", 20.0]]}
    known = facts(replace(recording, meta=meta))

    doubt = doubt_of(known)

    assert doubt.startswith("Low confidence: torch.compile compiled forward (model.py:7) in 1 of 1 traced steps")
    assert "Run more steps before profiling" in doubt
    assert "mark_dynamic" in doubt
    assert "other work" not in doubt
    assert doubt_of(facts(recording)) == ""


@pytest.mark.parametrize("eager", [0, 40])
def test_kernels_of_compiled_regions_are_no_dispatch_overhead(eager: int) -> None:
    hand = ByHand().step(0, 900)
    root, *_ = net(hand)
    hand.call(root, 8, 890)
    hand.op("Torch-Compiled Region: 0/0", 10, 450)
    hand.op(f"## Call CompiledFxGraph {FORWARD} ##", 12, 445)
    for number in range(40):
        hand.op(f"graph_0_cpp_fused_mul_{number}", 20 + 10 * number, 28 + 10 * number)
    for number in range(eager):
        hand.op("aten::add", 460 + 10 * number, 468 + 10 * number)
    kernels = {f"cpp_fused_mul_{number}": [operation(f"m{number}", BLOCK, ("x",))] for number in range(40)}
    recording = with_compiled_regions(
        hand.recording(), [graph(FORWARD, kernels, operation("x"))], [CompiledCode("0/0", "forward", "model.py:7")]
    )

    found = dispatch_overhead(facts(recording))

    assert [finding.evidence.partition(" are shorter")[0] for finding in found] == (
        ["40 of 40 ops in forward and backward (in 2 layers)"] if eager else []
    )
    if eager:
        assert only(found).bound_ms < 0.5
