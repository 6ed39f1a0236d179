"""Small recordings where most rules find something, and conditions that every finding must meet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

import perfnb
from perfnb.findings.facts import Facts, StepFigures, facts_of
from perfnb.findings.finding import Finding, Rule, finding_table, found_by
from perfnb.findings.proposed_code import _IMPORTS, is_own_line, shown
from perfnb.findings.rules import RULES
from perfnb.findings.verdict import _applied, verdict_of
from perfnb.profile.analysis import Analysis
from perfnb.recording.compiled_layers import CompiledCode, with_compiled_regions
from perfnb.recording.recording import ArithmeticRecord, Recording
from perfnb.remedies.levers import by_name
from tests.recording.test_compiled_layers import BACK, BLOCK, SHARED, backward, graph, net, operation, region
from tests.recordings import ByHand
from tests.written_traces import Written, training

MIB = 2**20
PARTS: dict[str, Any] = {
    "models": [{"name": "net", "called": True}],
    "own_tables": ["net.emb"],
    "imports": ["torch"],
    "optimizers": [
        {"name": "opt", "class": "AdamW", "tensors": 50, "elements": 30, "groups": 1, "at_once": ["fused", "foreach"]}
    ],
    "loader": {
        "name": "loader",
        "class": "DataLoader",
        "dataset": "Rows",
        "num_workers": 0,
        "batch_size": 4,
        "iterable": False,
        "direct": True,
        "same": ["batch_sampler"],
    },
}


def one_layer(name: str = "model") -> tuple[ByHand, int]:
    hand = ByHand()
    return hand, hand.layer(name)


def live_cpu(steps: int = 2) -> Recording:
    """Return a training step on the CPU with most that can be wrong with one."""
    hand, net = one_layer("net")
    emb, body = hand.layer("net.emb", net), hand.layer("net.body", net)
    hand.modules[emb]["module"], hand.modules[body]["module"] = "Embedding", "MultiheadAttention"
    hand.modules[net]["parameters"], hand.modules[emb]["parameters"] = 30, 20
    for number in range(steps):
        t = 100_000 * number
        hand.step(t, t + 20_000)
        hand.event("pf_data", t + 10, t + 1000)
        hand.call(net, t + 1000, t + 8000).call(emb, t + 1010, t + 1200).op("aten::embedding", t + 1020, t + 1190, 1)
        hand.call(body, t + 1200, t + 7900)
        hand.op("aten::matmul", t + 1200, t + 1500).event("aten::bmm", t + 1250, t + 1490)
        hand.op("aten::softmax", t + 1500, t + 1800).event("aten::_softmax", t + 1510, t + 1790)
        hand.op("aten::matmul", t + 1800, t + 2100).event("aten::bmm", t + 1810, t + 2090)
        for place in range(40):
            hand.op("aten::add", t + 2200 + 20 * place, t + 2204 + 20 * place)
        hand.op("aten::relu", t + 4000, t + 5000, 2).op("aten::mul", t + 5000, t + 6000, 3)
        hand.op("aten::item", t + 8010, t + 8020)
        hand.node("MulBackward0", t + 9000, t + 10_000, 3).node("ReluBackward0", t + 10_000, t + 11_000, 2)
        hand.call(body, t + 11_000, t + 12_500).op("aten::mm", t + 11_001, t + 12_499)
        hand.event("Optimizer.step#AdamW.step", t + 13_000, t + 16_000, "user_annotation")
        for place in range(50):
            hand.op("aten::addcdiv_", t + 13_001 + 50 * place, t + 13_040 + 50 * place)
        hand.block(t + 1100, t + 9000, 1000 + number, 100 * MIB).block(t + 1200, None, 5000 + number, 2 * MIB)
        hand.known(t + 1, 1, 40, "parameters", emb, "weight").process(t + 1100, 300 * MIB)
    recording = hand.recording(
        parts=PARTS,
        cost={"op_ns": 1000.0, "call_ns": 2000.0},
        bare_cost={"op_ns": 900.0, "call_ns": 10.0},
        noise={"gc_pauses": [[0, 5.0], [3, 5.0]], "load_after": 0.5, "cpus": 4, "throttled_ms": 3.0},
        ceilings={"on": "cpu", "device": "made up", "flops_per_s": {"float32": 1e9}, "bytes_per_s": 1e9, "others": 0.0},
        threads_tried={"threads": 2, "steps_ms": [10.0, 11.0]},
    )
    calls = pd.DataFrame(
        {
            "op": pd.Categorical(["aten::bmm", "aten::relu"]),
            "flops": pd.array([2_000_000, None], dtype="Int64"),
            "bytes": [4000, 8000],
            "dtype": pd.Categorical(["float32", "float32"]),
        },
        index=pd.Index([0, 1], name="number"),
    )
    counted = ByHand()
    counted.layer("net")
    counted.step(0, 100).call(0, 1, 90).op("pf_op#0", 2, 40).op("pf_op#1", 50, 80)
    passes = pd.DataFrame(
        {
            "pass": ["timed"] * 12,
            "wall_ms": [20.0, 21.0, 19.0, 60.0] * 3,
            "data_ms": [5.0, 6.0, 4.0, 5.0] * 3,
            "samples": pd.array([4] * 12, dtype="Int64"),
        }
    )
    traced = recording.steps[recording.steps["pass"] == "traced"].astype({"pass": "str"})
    steps_frame = pd.concat([passes, traced], ignore_index=True).astype({"pass": "category"})
    return replace(
        recording,
        steps=steps_frame,
        arithmetic=ArithmeticRecord(counted.recording().events, calls),
        meta={**recording.meta, "environment": {**recording.meta["environment"], "threads": 8, "cpus": 4}},
    )


def live_gpu(steps: int = 2) -> Recording:
    """Return a step on a GPU that waits for its host, copies, and communicates."""
    hand, net = one_layer("net")
    for number in range(steps):
        t = 100_000 * number
        hand.step(t, t + 10_000)
        hand.kernel("Memcpy HtoD (Pageable -> Device)", t + 10, t + 20, t + 800, category="gpu_memcpy")
        hand.event("cudaMemcpyAsync", t + 12, t + 900, "cuda_runtime")
        hand.call(net, t + 1000, t + 4000)
        hand.op("aten::mm", t + 1001, t + 1400).kernel("ampere_sgemm_128x64", t + 1010, t + 1020, t + 3000)
        hand.op("aten::mul", t + 3001, t + 3400).kernel("elementwise_kernel", t + 3010, t + 3020, t + 4500)
        hand.event("cudaMalloc", t + 4600, t + 5600, "cuda_runtime")
        hand.kernel("ncclDevKernel_AllReduce", t + 5700, t + 5710, t + 7000)
        hand.op("aten::item", t + 7000, t + 8500).event("cudaStreamSynchronize", t + 7001, t + 8499, "cuda_runtime")
        hand.kernel("gemm_b", t + 8600, t + 8610, t + 9000)
    meta = {
        "parts": PARTS,
        "devices": [{"id": 0, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0}],
        "environment": {"processor": "made up", "threads": 1, "gpus": ["NVIDIA A100"]},
    }
    return hand.recording(**meta)


SMALL = graph("small", {"cpp_fused_mul_0": [operation("a", BLOCK, ("x",))]}, operation("x"))


def small_region(hand: ByHand, begin: float) -> None:
    """A lookup of 2 µs, and a region of 40 with one kernel of 4: 18 before it, and 6 after its graph."""
    hand.op("TorchDynamo Cache Lookup", begin, begin + 2).op("Torch-Compiled Region: 2/0", begin + 2, begin + 42)
    hand.op("## Call CompiledFxGraph small ##", begin + 6, begin + 36)
    hand.op("cpp_fused_mul_0", begin + 20, begin + 24)


def compiled_cpu(
    steps: int = 1, *, late: float = 0, broke: str = "Failed to trace builtin operator: print(h)"
) -> Recording:
    """Return a step of 0.6 ms with a graph break, two small regions after it, and compilations in two timed steps.

    The break costs 116 µs in the code around it: 48 until the next region, 38 at the end, 30 in backward. Entering the
    second region takes 21, and kernels next to the break 30 in forward and 80 in backward. The small regions take 52 to
    enter and leave, are 18 apart, and have kernels of 8. What follows the break comes `late` in the last step.
    """
    hand = ByHand()
    root, *_ = net(hand)
    for number in range(steps):
        t, sequence = 1000 * number, 10 * number
        begin, t = t, t + (late if number == steps - 1 else 0)
        hand.step(begin, t + 600).call(root, begin + 8, t + 290)
        region(hand, begin + 10, sequence=sequence + 5, name="0/0")
        # It calls the rest of its function, which was compiled as well.
        hand.rows[-7]["duration_ns"] = round((t + 282 - begin - 12) * 1000)
        region(hand, t + 150, sequence=sequence + 6, name="1/0")
        backward(hand, t + 310, sequence=sequence + 6)
        backward(hand, t + 400, sequence=sequence + 5)
        for begin in (t + 470, t + 530):
            hand.call(root, begin - 1, begin + 43)
            small_region(hand, begin)
    guard = "0/0: k == 1 # h = h * k # /home/model.py:8 in forward (HINT: torch has much to say here)"
    again = ["forward", "/home/model.py:7", guard, 0.3]
    recording = hand.recording(parts=PARTS, compilations=[[1, *again], [3, *again], [3, "loss", "loss.py:2", "", 0.1]])
    code = [
        CompiledCode("0/0", "forward", "model.py:7", 12, 3.2, "", broke, "/home/model.py:9" if broke else ""),
        CompiledCode("1/0", "torch_dynamo_resume_in_forward_at_9", "model.py:9", 8, 1.1),
        CompiledCode("2/0", "scaled", "model.py:20", 4, 0.5),
    ]
    return with_compiled_regions(recording, [SHARED, BACK, SMALL], code)


def loaded(folder: Path, trace: Written | None = None) -> Recording:
    """Return the recording of a trace that was read from a file, with the layers that it tells."""
    profile = perfnb.load((trace or training(3)).write(folder / "trace.json"))
    assert isinstance(profile, perfnb.Profile)
    return profile._recording


def facts(recording: Recording) -> Facts:
    """Return what the rules are asked about."""
    analysis = Analysis(recording)
    assert analysis.attribution is not None
    figures = StepFigures(analysis.timing, analysis.phases, analysis.slowdown, analysis.roofline, analysis.memory)
    return facts_of(recording, analysis.attribution, figures)


def found(recording: Recording, *names: str) -> pd.DataFrame:
    """Return what the rules of these names find, by bottleneck, as a user sees it; without names, all rules."""
    known = facts(recording)
    asked = [rule for rule in RULES if not names or rule.name in names]
    applied = [_applied(one, known) for one in found_by(asked, known, known.step_ms)]
    return finding_table(applied, known.step_ms).set_index("bottleneck")


def obeys_the_laws(recording: Recording, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Ask the rules, and check what must hold of each finding; what they found."""
    known = facts(recording)
    found = found_by(rules, known, known.step_ms)
    applied = [_applied(one, known) for one in found]
    assert verdict_of(known, applied).verdict
    table = finding_table(applied, known.step_ms)
    for one in found:
        whole = one.of_ms or known.step_ms
        assert one.bound_ms is None or -1e-9 <= one.bound_ms <= whole * (1 + 1e-9), (one, whole)
        for share in re.findall(r"([\d.,]+) %", one.evidence):
            assert float(share.replace(",", "")) <= 100, one.evidence
        said = f"{one.evidence} {one.advice} {one.why} {one.blind}"
        assert not re.search(r"\bnan\b|<NA>|NaT|\bNone\b(?! of them)", said), one
    assert not (table["bound_share"] > 1 + 1e-9).any()
    for code in table["code"]:
        assert shown(_IMPORTS.sub("", code, count=1), known.variables) == code, code
        assert is_own_line(code), code
    assert {*table["remedy"]} - {""} <= by_name().keys()
    return found
