"""Rules that rest on the roofline and on memory, on figures made by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.attribution import attribute
from perfnb.attribution.device_work import SORTS
from perfnb.findings.facts import Facts, facts_of
from perfnb.findings.finding import Finding, in_order
from perfnb.findings.gpu_facts import Runs
from perfnb.findings.proposed_code import EXPANDABLE
from perfnb.findings.rules import bound
from perfnb.findings.rules.bound import compute, low_precision, memory_bandwidth, work_under
from perfnb.findings.rules.memory import activation_memory, allocator, growth
from perfnb.findings.verdict import verdict_of
from perfnb.memory.table import MemorySummary
from perfnb.profile.summary import summarize
from perfnb.recording.recording import MemoryRecord
from perfnb.roofline.levels import MEMORY, RooflineLevels, roofline_of
from tests.findings.findings_recordings import facts as facts_from
from tests.findings.findings_recordings import one_layer
from tests.findings.test_findings import one_long_op

MIB = 2**20


def roofline(flops: int, moved: int, ms: float, **peaks: float) -> RooflineLevels:
    """Return one layer; by default the machine does 1 GFLOP and moves 1 GB in a millisecond."""
    work = pd.DataFrame(
        {"flops": [flops], "bytes": [moved], "uncounted": [0], "dtype": ["float32"], "ms": [ms]}, index=["model"]
    ).astype({"flops": "Int64", "bytes": "Int64", "ms": "Float64"})
    ceilings = {"flops_per_s": {"float32": 1e12} | peaks, "bytes_per_s": 1e12, "device": "made up"}
    nothing = pd.DataFrame({"op": [], "calls": [], "ms": [], "share": []})
    return roofline_of(work, work.iloc[:0], nothing, ceilings=ceilings, flops=flops)


LONG_OP = one_long_op().recording()
ATTRIBUTION, SUMMARY = attribute(LONG_OP), summarize(LONG_OP)


def facts(**parts: Any) -> Facts:
    """Of steps of 1 ms."""
    empty = pd.DataFrame()
    recorded = {"memory": MemoryRecord(empty, empty, empty, empty)} if "memory" in parts else {}
    return facts_of(replace(LONG_OP, **recorded), ATTRIBUTION, replace(SUMMARY, **parts))


@pytest.mark.parametrize(("gflop", "near"), [(0.8, True), (0.4, False)])
def test_arithmetic_is_bound_by_what_the_roof_still_leaves(gflop: float, near: bool) -> None:
    (found,) = compute(facts(roofline=roofline(int(gflop * 1e9), 1000, 1.0)))

    assert found.bound_ms == pytest.approx(1 - gflop, rel=0.01)
    assert ("close to the machine's limit" in found.advice) == near
    assert [row.name for row in found.rows] == ["model"]


@pytest.mark.parametrize(("gflop", "noted"), [(0.8, True), (0.4, False)])
def test_time_that_other_programs_took_is_not_blamed_on_small_products(gflop: float, noted: bool) -> None:
    known = facts(roofline=roofline(int(gflop * 1e9), 1000, 1.0))
    noise = {"noise": {"load_after": 5.0, "cpus": 2}}
    busy = replace(known, recording=replace(known.recording, meta={**known.meta, **noise}))

    assert bool(compute(busy)) == noted


@pytest.mark.parametrize("gflop", [0.99, 0.2])
def test_work_at_the_roof_or_far_from_it_is_not_a_finding_of_arithmetic(gflop: float) -> None:
    assert compute(facts(roofline=roofline(int(gflop * 1e9), 1000, 1.0))) == []


@pytest.mark.parametrize(
    ("flops", "moved", "bound_by"),
    [
        (10**6, 29 * 10**7, "the forward pass"),
        (10**6, 6 * 10**8, "memory traffic"),
        (29 * 10**7, 1000, "the forward pass"),
        (6 * 10**8, 1000, "arithmetic"),
    ],
)
def test_a_step_is_bound_by_a_roof_only_if_most_of_it_is_near(flops: int, moved: int, bound_by: str) -> None:
    known = facts(roofline=roofline(flops, moved, 1.0))

    verdict = verdict_of(known, [])

    assert verdict.verdict == f"Nothing stands out. The step is bound by {bound_by}."
    assert ("at 60 % of the machine's" in verdict.why) == (bound_by != "the forward pass")


def with_weights(known: Facts, parameter_bytes: int) -> Facts:
    modules = known.recording.modules.assign(parameter_bytes=parameter_bytes)
    return replace(known, recording=replace(known.recording, modules=modules))


def test_reading_weights_counts_less_the_arithmetic_that_stays() -> None:
    # 0.6 GB take 0.6 of 1 ms, and the arithmetic in them 0.1.
    reading = facts(roofline=roofline(10**8, 6 * 10**8, 1.0))
    (found,) = memory_bandwidth(with_weights(reading, 5 * 10**8))

    assert found.bound_ms == pytest.approx(0.9, rel=0.01)
    assert "larger batch" in found.advice
    assert memory_bandwidth(with_weights(reading, 10**8)) == []  # it reads its samples, as any other layer would
    slow = facts(roofline=roofline(10**7, 10**8, 1.0))
    assert memory_bandwidth(with_weights(slow, 10**8)) == []  # far from the bandwidth


@pytest.mark.parametrize(("half", "saves"), [(4e12, 0.8 * 0.75), (1.1e12, None)])
def test_lower_precision_counts_by_the_rates_that_were_measured(half: float, saves: float | None) -> None:
    found = low_precision(facts(roofline=roofline(8 * 10**8, 1000, 1.0, bfloat16=half)))

    assert [one.bound_ms for one in found] == ([] if saves is None else [pytest.approx(saves, rel=0.01)])
    # Small products gain less than the large ones that the rates were measured with.
    assert {one.confidence for one in found} <= {"low"}


@pytest.mark.parametrize("half", [4e12, 6e13])
def test_no_finding_rests_on_a_ceiling_that_the_step_itself_exceeds(half: float) -> None:
    # 10 GFLOP in 1 ms, where 1 GFLOP a millisecond was measured.
    made = roofline(10**10, 1000, 1.0, bfloat16=half)
    known = facts(roofline=made)

    assert made.refuted == {"float32": 1e12}
    assert made.points["efficiency"].tolist() == [1.0]
    assert compute(known) == []
    assert low_precision(known) == []
    assert "arithmetic" not in verdict_of(known, []).verdict


def test_lower_precision_is_not_compared_with_a_rate_that_the_step_exceeds() -> None:
    made = roofline(8 * 10**8, 1000, 1.0, bfloat16=4e12)

    assert low_precision(facts(roofline=replace(made, refuted={"bfloat16": 1e12}))) == []


def test_ceilings_measured_while_other_programs_ran_give_low_confidence() -> None:
    made = replace(roofline(8 * 10**8, 1000, 1.0, bfloat16=4e12), others=0.6)
    known = facts(roofline=made)

    for found in (*compute(known), *low_precision(known)):
        assert found.confidence == "low"
        assert "other programs used 60 % of the CPUs while the roof was measured" in found.why
    assert len(compute(known)) == len(low_precision(known)) == 1


def memory(**known: Any) -> MemorySummary:
    line = pd.DataFrame({"t_ms": [0.0, 1.0], "activations": [0, 0], "other": [0, 0], "total": [0, 0]})
    empty = pd.DataFrame(columns=["option", "frees_bytes", "category", "layer", "bytes"])
    base: dict[str, Any] = {"device": "cuda:0", "timeline": line, "phases": empty, "step_ms": 1.0, "peak_ms": 0.5}
    base |= {"peak_bytes": 100 * MIB, "by_category": {}, "owners": empty, "largest": empty, "fits": empty}
    return MemorySummary(**base | known)


def remembering(**known: Any) -> Any:
    """Return the facts of a step of which only its memory is known."""
    return SimpleNamespace(
        gpu=None, figures=SimpleNamespace(memory=memory(**known)), recording=None, trains=True, uses_torch=True
    )


@pytest.mark.parametrize(
    ("held", "peak", "noted"),
    [
        (90, 100, True),
        (64, 128, True),
        (64, 129, False),  # less than half of the peak
        (63, 70, False),  # less than 64 MiB
        (0, 0, False),
    ],
)
def test_activations_dominate_from_half_of_the_peak_on(held: int, peak: int, noted: bool) -> None:
    known = remembering(by_category={"activations": held * MIB}, peak_bytes=peak * MIB)
    found = list(activation_memory.search(known))

    assert [(one.bound_bytes, one.bound_ms) for one in found] == ([(held * MIB, None)] if noted else [])
    known.figures.memory = None
    assert list(activation_memory.search(known)) == []


def test_ways_to_keep_fewer_activations_are_named_with_what_they_free() -> None:
    held = memory(by_category={"activations": 90 * MIB})
    fits = pd.DataFrame(
        {
            "option": ["checkpointing", "half the batch", "foreach=False"],
            "frees_bytes": [60 * MIB, 45 * MIB, 5 * MIB],
            "detail": ["Checkpoint the blocks.", "Halve it.", "One by one."],
        }
    )
    (plain,) = activation_memory(facts(memory=held))
    (told,) = activation_memory(facts(memory=replace(held, fits=fits)))

    assert (plain.confidence, told.confidence) == ("high", "medium")
    assert told.advice == f"{plain.advice} Checkpoint the blocks."
    assert plain.why == "The bytes were counted."
    assert told.why == "The bytes were counted; the savings are estimates."
    assert "checkpointing would free" in told.evidence
    assert "foreach" not in told.evidence


def test_a_step_that_ran_out_of_memory_is_reported_first() -> None:
    known = facts(memory=memory(by_category={"activations": 90 * MIB}, incomplete="OutOfMemoryError"))
    (held,) = activation_memory(known)
    slow = Finding("It is slow.", 1.0, "Do less.", "high", "Why.", "Blind.", bottleneck="compute")

    verdict = verdict_of(known, in_order([slow, held]))

    assert (verdict.verdict, verdict.finding) == ("Out of memory: activations take most of it.", 0)
    assert "MiB that were alive when memory ran out (" in held.evidence


@pytest.mark.parametrize(("without", "ms"), [(frozenset(), 0.1), (frozenset({"model"}), 0.0)])
def test_on_a_gpu_layers_take_the_time_of_their_kernels_together(without: frozenset[str], ms: float) -> None:
    """Two kernels of 80 µs run for 100 µs in all; one by one they would take 160."""
    hand, model = one_layer()
    for t in range(0, 10_000 * 3, 10_000):
        hand.step(t, t + 1000).call(model, t + 1, t + 90).op("aten::mul", t + 2, t + 80)
        hand.kernel("one", t + 3, t + 10, t + 90).kernel("other", t + 5, t + 30, t + 110)
        hand.kernel("of no layer", t + 200, t + 210, t + 500)
    recording = hand.recording()
    levels = roofline(20_000_000, 128_000_000, 0.16)  # 0.128 ms of moving, and 0.02 of arithmetic
    known = facts_from(recording)
    known = replace(known, figures=replace(known.figures, roofline=levels))

    work = work_under(known, MEMORY, 0.3, without=without)

    assert (work.ms, work.least_ms, work.arithmetic_ms) == pytest.approx((ms, 0.8 * ms, 0.125 * ms))
    found = list(memory_bandwidth.search(known))
    assert [one.bound_ms for one in found] == pytest.approx([0.0875])
    assert "Memory-bound layers take 0.100 ms" in found[0].evidence
    assert "Moving their data takes 80.0 µs" in found[0].evidence


@pytest.mark.parametrize(
    ("retries", "reserved", "unused", "said"),
    [
        (3, 1000, 0.4, "3 allocations were retried after emptying the cache; 400 MiB of 1,000 MiB"),
        (1, 1000, 0.1, "1 allocation was retried after emptying the cache; 100 MiB of 1,000 MiB"),
        (2, None, None, "2 allocations were retried after emptying the cache; 0 B of 0 B"),
        (0, 1000, 0.31, "310 MiB of 1,000 MiB"),
        (None, 1000, 0.31, "310 MiB of 1,000 MiB"),
        (0, 1000, 0.3, ""),  # no more than 30 %
        (0, 512, 0.5, ""),  # no more than 256 MiB
        (0, 514, 0.5, "257 MiB of 514 MiB"),
        (0, 1000, None, ""),
    ],
)
def test_retries_and_gaps_between_blocks_are_reported(
    retries: int | None, reserved: int | None, unused: float | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = remembering(retries=retries, reserved_peak_bytes=reserved and reserved * MIB, fragmentation=unused)
    for amd, code in ((False, EXPANDABLE), (True, "")):
        monkeypatch.setattr("perfnb.findings.rules.memory.is_amd", lambda recording, amd=amd: amd)
        found = list(allocator.search(known))

        assert len(found) == bool(said)
        for one in found:
            assert one.evidence.startswith(f"{said} of reserved memory was unused")
            assert one.bound_bytes == int((reserved or 0) * MIB * (unused or 0.0))
            assert one.confidence == ("high" if retries else "medium")
            assert one.code == code


@pytest.mark.parametrize(
    ("left", "peak", "noted"),
    [
        (5 * MIB, 100 * MIB, True),
        (MIB // 4, 100 * MIB, True),
        (MIB // 4 - 1, 100 * MIB, False),
        (1000, 500 * 1000, False),
        (1_000_000, 500_000_000, True),  # 0.2 % of the peak
        (1_000_000, 500_000_001, False),
        (0, 100 * MIB, False),
        (None, 100 * MIB, False),
    ],
)
def test_memory_may_grow_where_every_watched_step_left_something(left: int | None, peak: int, noted: bool) -> None:
    line = pd.DataFrame({"t_ms": [0.0, 1.0], "activations": [0, 9 * MIB], "other": [5, 5], "total": [5, 9 * MIB + 5]})
    known = remembering(timeline=line, kept_bytes=left, kept_by="encoder, aten::mm", peak_bytes=peak)
    found = list(growth.search(known))

    assert [(one.bound_bytes, one.confidence) for one in found] == ([(left, "low")] if noted else [])
    for one in found:
        assert "that was never freed, most of it allocated by encoder, aten::mm." in one.evidence
        assert "perfnb.find_leaks" in one.advice
        assert [row.name for row in one.rows] == ["1"]
    known.figures.memory = replace(known.figures.memory, incomplete="OutOfMemoryError", kept_by="")
    assert list(growth.search(known)) == []


@pytest.mark.parametrize(
    ("single", "part", "code", "remedy"),
    [
        (5, "5.00 ms of that is in float32", "", "autocast"),
        (4, "none of them is in float32", "net.compile()", "compile_max_autotune"),
        (4, "none of them is in float32", "", ""),
    ],
)
def test_lower_precision_needs_a_twentieth_of_the_products_in_float32(
    monkeypatch: pytest.MonkeyPatch, single: int, part: str, code: str, remedy: str
) -> None:
    monkeypatch.setattr(bound, "_lower_precision", lambda facts: "Use lower precision.")
    monkeypatch.setattr(bound, "compiling", lambda facts, layers, lever: (" Compile it.", code))
    start = np.array([0, 100 - single, 100])
    names = pd.Categorical(["ampere_fp16_s16816gemm_fp16_128x128", "ampere_sgemm_128x64", "relu"])
    runs = Runs(names, np.full(3, SORTS.index("computation")), start, np.append(start[1:], 300), start, start)
    gpu: Any = SimpleNamespace(runs=runs, idle_share=0.25, ran_ms=lambda chosen: float(runs.time(chosen).length))
    facts: Any = SimpleNamespace(
        share=lambda ms: 1.0, of_step=lambda ms: f"{ms:g} ms", heaviest_layers=lambda ops: [], ops=None, for_torch=str
    )

    (found,) = bound._products_of_trace(facts, gpu)

    assert found.bound_ms == 100
    assert found.evidence.startswith("Matrix kernels run for 100 ms; the GPU is busy for 75 % of the step. ")
    assert part in found.evidence
    assert ("Use lower precision." in found.advice, found.code) == (remedy == "autocast", code)
    assert found.remedy == remedy


@pytest.mark.parametrize(
    ("kernel", "product", "single"),
    [
        ("void gemmk1_kernel<float, 256, 5, false>(float)", True, True),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128>(float)", True, True),
        ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128>(float)", True, False),
        ("void cutlass::gemm_kernel<__nv_bfloat16, float>(float)", True, False),
        ("ampere_sgemm_128x64", True, True),
        ("ampere_bf16_s16816gemm", True, False),
        ("relu", False, False),
    ],
)
def test_kernels_of_products_and_in_float32_are_known_by_their_names(kernel: str, product: bool, single: bool) -> None:
    one = np.array([1])
    runs = Runs(pd.Categorical([kernel]), np.array([SORTS.index("computation")]), one, one + 1, one, one)
    products, others = bound._kernels(SimpleNamespace(runs=runs))  # type: ignore[arg-type]

    assert (products.tolist(), others.tolist()) == ([product], [not product])
    assert runs.named(bound._FLOAT32).tolist() == [single]
