"""What real GPU traces of other people's programs are bound by, argued from figures computed apart from the rules."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import pytest

import perfnb
from tests.public_profiles import profile_of as load
from tests.trace.test_public_traces import FOLDER, expected, pytestmark

__all__ = ["pytestmark"]


def first(name: str) -> dict[str, object]:
    return dict(load(name).findings.iloc[0])


def verdict(name: str) -> str:
    found = load(name)._summary.findings
    assert found is not None
    return found.verdict.verdict


def calls_ms(name: str, *calls: str) -> float:
    events = load(name).events
    return float(events.loc[events["name"].isin(calls), "duration_ns"].sum()) / 1e6


def covered_ms(spans: Iterable[tuple[int, int]]) -> float:
    """Return milliseconds in at least one of the spans."""
    total, reached = 0, None
    for start, end in sorted(spans):
        total += max(0, end - (start if reached is None else max(start, reached)))
        reached = end if reached is None else max(reached, end)
    return total / 1e6


def spans_of(events: pd.DataFrame) -> list[tuple[int, int]]:
    start = events["start_ns"].astype("int64")
    return list(zip(start, start + events["duration_ns"].astype("int64"), strict=True))


def on_device(name: str) -> list[tuple[int, int]]:
    events = load(name).events
    return spans_of(events[events["category"].isin(["kernel", "gpu_memcpy", "gpu_memset"])])


def steps_of(name: str) -> list[tuple[int, int]]:
    events = load(name).events
    on_host = ~events["category"].isin(["gpu_user_annotation"])
    marked = spans_of(events[on_host & events["name"].astype(str).str.match(r"ProfilerStep#\d+$")])
    if marked:
        return marked
    host = spans_of(events[events["category"].isin(["cpu_op", "cuda_runtime", "cuda_driver", "user_annotation"])])
    return [(min(start for start, _ in host), max(end for _, end in host))]


def busy_ms(name: str) -> float:
    """Return how long the GPU works within the host's steps."""
    return covered_ms(
        (max(a, start), min(b, end))
        for start, end in steps_of(name)
        for a, b in on_device(name)
        if a < end and b > start
    )


#: For every trace: length of its steps in ms and the share of it when the GPU works, both computed in these tests;
#: then what holds the step back most, and the verdict's first words.
GPU_WAITS, HOST = "Bound by launch overhead", "Host-bound (the GPU waits"
SENDS, COUNTS = "Communication-bound: ", "Compute-bound: doing this work faster"
ARGUED = {
    "h100_bert_small": (4.426, 0.070, "launch overhead", GPU_WAITS),
    "h100_vit": (7.894, 0.155, "launch overhead", GPU_WAITS),
    "mi300_vit": (7.453, 0.230, "launch overhead", GPU_WAITS),
    "gpu_metrics_2021": (13.41, 0.004, "launch overhead", GPU_WAITS),
    "a100_alexnet": (43425.4, 0.002, "host work", HOST),
    "a100_event_sync_multi_stream": (19.93, 0.019, "host work", HOST),
    "a100_triton_example": (13336.3, 0.000, "host work", HOST),
    "backward_thread": (413.451, 0.000, "host work", HOST),
    "mi250_toy_train": (9.337, 0.016, "host work", HOST),
    "mi300_owlv2_large": (1096.36, 0.303, "input pipeline", "Input-bound: "),
    "mi300_ddp_resnet18": (3392.29, 0.106, "allocator", "Bound by memory allocation: "),
    "mi300_sglang_decode": (465.72, 0.004, "host-device copies", "The GPU is idle for 98 % of the step"),
    "mi300_compile_triton": (12.94, 0.970, "compute", COUNTS),
    "mi300_vllm_decode_graph": (2.409, 0.0, "compute", COUNTS),  # the GPU works after the host has returned
    "v100_resnet50_2021": (769.48, 0.870, "compute", COUNTS),
    "mi210_gpu_only": (6.025, 0.887, "memory bandwidth", "Memory-bound: doing this work faster"),
    "large_integer_arg": (0.1, 0.0, "collectives", SENDS),  # its one kernel ends as its one op begins
    "sampled_rank_0": (1230.24, 0.445, "unexplained idle time", SENDS),
    "sampled_rank_1": (1238.54, 0.468, "unexplained idle time", SENDS),
    "compare_base": (222.447, 0.008, "unexplained idle time", "The GPU is idle for 99 % of the step"),
    "compare_test": (222.447, 0.008, "unexplained idle time", "The GPU is idle for 99 % of the step"),
    "rank_not_found": (75.473, 0.0, "synchronisation", "Nothing stands out. The step is bound by the host's work"),
}
#: Bounds that cannot exceed the time when the GPU does not work.
WAITS = {"launch overhead", "host work", "input pipeline", "allocator", "synchronisation", "unexplained idle time"}


def test_every_trace_is_argued() -> None:
    assert {f"kineto/{name}" for name in ARGUED} == {
        name.removesuffix(".gz").removesuffix(".json") for name in expected()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argued"), ARGUED.items(), ids=list(ARGUED))
def test_the_verdict_follows_from_the_length_of_the_steps_and_the_gpu_s_work(
    name: str, argued: tuple[float, float, str, str]
) -> None:
    step_ms, share, bottleneck, words = argued
    length = sum(end - start for start, end in steps_of(name)) / 1e6
    assert length == pytest.approx(step_ms, rel=1e-3)
    assert busy_ms(name) / length == pytest.approx(share, abs=1e-3)

    found, said = load(name).findings, verdict(name)

    assert found["bottleneck"].iloc[0] == bottleneck
    assert said.startswith(words)
    if share < 0.5 and name not in ("mi300_vllm_decode_graph",):
        assert not any(work in said for work in ("work on the GPU", "Compute-bound", "Memory-bound"))
    elif name != "mi300_vllm_decode_graph":
        assert any(work in said for work in ("Compute-bound", "Memory-bound"))
    waits = found[found["bottleneck"].isin(WAITS)]["bound_ms"].sum() * len(steps_of(name))
    assert waits <= (length - busy_ms(name)) * 1.001


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "idle_pct", "launches"),
    [("h100_bert_small", 92.1, 61), ("h100_vit", 83.8, 156), ("mi300_vit", 75.0, 155), ("gpu_metrics_2021", 99.6, 32)],
)
def test_a_step_is_bound_by_launches_if_they_share_the_idle_time(name: str, idle_pct: float, launches: int) -> None:
    profile = load(name)
    assert profile.gpu_time["idle_pct"].iloc[0] == pytest.approx(idle_pct, abs=0.1)
    work = sorted(on_device(name))
    assert len(work) == launches
    reach = np.maximum.accumulate([end for _, end in work])
    gaps = np.array([start for start, _ in work[1:]]) - reach[:-1]
    assert gaps.max() < 1e6  # no single gap explains the idle time
    rare = np.sort(gaps)[-3:].sum() / gaps.sum()
    assert rare < 0.25

    found = first(name)

    assert found["bottleneck"] == "launch overhead"
    idle = steps_of(name)[0][1] - steps_of(name)[0][0] - busy_ms(name) * 1e6
    assert 0.8 * idle <= float(str(found["bound_ms"])) * 1e6 <= idle
    one = len(steps_of(name)) == 1
    assert found["confidence"] == ("medium" if one else "high")
    assert ("The trace contains only one step" in str(found["why"])) == one


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "held", "held_ms"),
    [
        ("a100_alexnet", "cudaDeviceGetStreamPriorityRange", 29_927.4),  # the first call to the GPU
        ("mi250_toy_train", "hipLaunchKernel", 6.54),  # the first launch of one kernel
        ("a100_event_sync_multi_stream", None, 18.4),
        ("a100_triton_example", None, 13_335),
        ("backward_thread", None, 349),
    ],
)
def test_host_work_other_than_launches_is_a_finding_of_its_own(name: str, held: str | None, held_ms: float) -> None:
    launching = load(name).events["name"].astype(str).str.match(r"(?:cu|cuda|hip)(?:LaunchKernel|MemsetAsync|Memcpy)")
    lengths = load(name).events.loc[launching, "duration_ns"]
    assert lengths.median() * len(lengths) / 1e6 < 0.02 * held_ms  # launches do not explain it
    if held is not None:
        calls = load(name).events.query("name == @held")["duration_ns"]
        assert calls.max() / 1e6 == pytest.approx(held_ms, rel=1e-3)

    found = first(name)

    assert found["bottleneck"] == "host work"
    steps = len(steps_of(name))
    assert float(str(found["bound_ms"])) * steps >= held_ms
    assert ("The trace does not show its work." in str(found["evidence"])) == (held is None)
    assert found["confidence"] == ("medium" if held is None or steps == 1 else "high")
    if held is not None:
        assert f"most in {held}" in str(found["evidence"])


@pytest.mark.parametrize(("name", "known"), [("compare_base", 2), ("compare_test", 1)])
def test_idle_time_is_unexplained_if_the_trace_contains_no_launches(name: str, known: int) -> None:
    events = load(name).events
    work = events[events["category"].isin(["kernel", "gpu_memcpy", "gpu_memset"])]
    calls = events[events["category"] == "cuda_runtime"]
    assert work["correlation"].isin(calls["correlation"]).sum() == known

    found = first(name)

    idle = (sum(end - start for start, end in steps_of(name)) / 1e6 - busy_ms(name)) / 2
    assert found["bound_ms"] == pytest.approx(idle, rel=1e-3)
    assert found["confidence"] == "low"
    assert "and the trace does not show why" in verdict(name)
    assert "with_stack=True" in str(found["code"])


def test_a_trace_without_gpu_work_says_so() -> None:
    found = load("rank_not_found")._summary.findings

    assert load("rank_not_found").kernels.empty
    assert found is not None
    assert "The trace contains no GPU work." in found.verdict.why
    assert "0.00 µs" not in " ".join(found.table["evidence"])


def test_a_decoding_step_is_bound_by_a_blocking_copy() -> None:
    # The GPU is idle for 98 % of the time, and a single call explains it: 463 of 474 ms in hipMemcpyWithStream.
    held = calls_ms("mi300_sglang_decode", "hipMemcpyWithStream")
    assert held == pytest.approx(463.06, abs=0.01)
    assert load("mi300_sglang_decode").gpu_time["idle_pct"].iloc[0] == pytest.approx(97.94, abs=0.01)

    found = first("mi300_sglang_decode")

    assert found["bottleneck"] == "host-device copies"
    assert found["bound_ms"] == pytest.approx(held, rel=0.02)
    # The next work had been launched before the call, and waited for an event recorded before the trace began.
    assert found["confidence"] == "low"
    assert "had already been launched" in str(found["evidence"])
    assert "before the trace began" in str(found["blind"])
    # A single copy of 256 bytes to the host would not benefit from pinned memory, so no saving is promised.
    assert "1 copy to the host of 256 B" in str(found["evidence"])
    assert "pinned memory would not help" in str(found["advice"])
    assert "save" not in verdict("mi300_sglang_decode")
    assert "while the host is blocked by copies between host and device" in verdict("mi300_sglang_decode")


def test_a_graph_that_keeps_the_gpu_busy_is_bound_by_its_kernels() -> None:
    gpu = load("mi300_vllm_decode_graph").gpu_time.iloc[0]
    assert gpu["idle_pct"] < 0.3
    found = load("mi300_vllm_decode_graph").findings

    assert list(found["bottleneck"]) == ["compute"]
    assert found["bound_ms"].iloc[0] <= gpu["busy_ms"]
    verdict = load("mi300_vllm_decode_graph")._summary.findings.verdict
    assert verdict.verdict.startswith("Compute-bound")
    assert "busy for 100 %" in verdict.why


def test_a_compiled_step_that_keeps_the_gpu_busy_is_bound_by_its_kernels() -> None:
    found = first("mi300_compile_triton")
    kernels = load("mi300_compile_triton").kernels
    products = kernels[kernels.index.str.contains("Cijk_|attn_fwd")]["total_ms"].sum()

    assert found["bottleneck"] == "compute"
    assert found["bound_ms"] == pytest.approx(products, rel=0.01)


@pytest.mark.slow
def test_memory_that_each_step_allocates_and_frees_is_a_finding_of_the_allocator() -> None:
    # 3.35 of 3.39 s are spent in hipFree, which frees a library's workspace once for each convolution.
    assert calls_ms("mi300_ddp_resnet18", "hipFree") == pytest.approx(3346.15, abs=0.01)
    found = load("mi300_ddp_resnet18").findings

    assert found["bottleneck"].iloc[0] == "allocator"
    assert 0.85 < found["bound_share"].iloc[0] < 0.95
    assert found["bound_ms"].iloc[0] <= load("mi300_ddp_resnet18").gpu_time["idle_ms"].iloc[0]


@pytest.mark.deep
@pytest.mark.slow
def test_a_large_detector_waits_for_its_loader_and_has_unfused_attention() -> None:
    profile = load("mi300_owlv2_large")
    assert profile.phases.loc["data", "ms"] == pytest.approx(703.7, abs=0.1)
    found = profile.findings.set_index("bottleneck")

    assert found.index[0] == "input pipeline"
    # The GPU does not work during any of the five waits, the first of which precedes its first work.
    waits = spans_of(profile.events[profile.events["name"].astype(str).str.startswith("enumerate(DataLoader)")])
    worked = ((max(a, start), min(b, end)) for start, end in waits for a, b in on_device("mi300_owlv2_large"))
    assert covered_ms((start, end) for start, end in worked if end > start) < 0.1
    assert found.loc["input pipeline", "bound_ms"] == pytest.approx(covered_ms(waits), rel=1e-3)
    softmax = profile.kernels[profile.kernels.index.str.contains("SoftMax")]["total_ms"].sum()
    assert found.loc["attention unfused", "bound_ms"] == pytest.approx(softmax, rel=0.1)


@pytest.mark.parametrize("rank", [0, 1])
def test_communication_without_computation_has_its_bound(rank: int) -> None:
    profile = load(f"sampled_rank_{rank}")
    gpu, found = profile.gpu_time.iloc[0], profile.findings.set_index("bottleneck")

    exposed = (gpu["communication_ms"] - gpu["overlap_ms"]) / 2  # of two steps
    assert found.loc["collectives", "bound_ms"] == pytest.approx(exposed, rel=0.02)
    # Idle time after a launch has returned is attributed neither to the host nor to another rank.
    unknown = profile.gpu_idle["other_ms"].sum() / 2
    assert found.loc["unexplained idle time", "bound_ms"] == pytest.approx(unknown, rel=0.1)
    length = sum(end - start for start, end in steps_of(f"sampled_rank_{rank}")) / 1e6
    idle = (length - busy_ms(f"sampled_rank_{rank}")) / 2
    assert found.loc[["unexplained idle time", "host work"], "bound_ms"].sum() == pytest.approx(idle, rel=0.1)


@pytest.mark.slow
def test_the_bound_of_an_optimizer_in_a_loop_is_the_idle_time_of_the_gpu() -> None:
    profile = load("v100_resnet50_2021")
    updates = spans_of(profile.events[profile.events["name"].astype(str).str.startswith("Optimizer.")])
    whole = covered_ms(updates) / 6
    overlaps = ((max(a, start), min(b, end)) for start, end in updates for a, b in on_device("v100_resnet50_2021"))
    idle = whole - covered_ms((start, end) for start, end in overlaps if end > start) / 6
    assert (whole, idle) == (pytest.approx(31.3, abs=0.1), pytest.approx(8.2, abs=0.6))

    loop = profile.findings.set_index("bottleneck").loc["optimizer"]

    assert 0.85 * idle <= loop["bound_ms"] <= idle


@pytest.mark.slow
def test_findings_of_ranks_name_the_straggler_and_the_time_that_others_wait() -> None:
    ranks = perfnb.load([FOLDER / f"kineto/sampled_rank_{rank}.json.gz" for rank in (0, 1)])
    assert isinstance(ranks, perfnb.results.Ranks)
    table = ranks.findings

    straggler = table[table["bottleneck"] == "straggler"].iloc[0]
    waiting = ranks.times.groupby("rank")["waiting_ms"].mean()
    assert straggler["rows"] == [{"kind": "rank", "name": str(ranks.straggler)}]
    assert straggler["bound_ms"] == pytest.approx(waiting.drop(ranks.straggler).mean())
    assert len(table) == 1 + sum(len(profile.findings) for profile in ranks)
    assert table["bound_ms"].is_monotonic_decreasing


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(expected()))
def test_no_bound_exceeds_the_step_and_all_rows_exist(name: str) -> None:
    profile = load(name)
    found = profile.findings
    summary = profile._summary

    assert summary.findings is not None
    assert (found["bound_share"].dropna() <= 1).all()
    assert found["bound_ms"].dropna().is_monotonic_decreasing
    tables = {"layer": profile.layers.index, "op": profile.ops.index, "kernel": profile.kernels.index}
    for rows in found["rows"]:
        assert all(row["name"] in tables[row["kind"]] for row in rows if row["kind"] in tables)
    assert all(word.strip() for word in found[["evidence", "advice", "why", "blind"]].to_numpy().ravel())
