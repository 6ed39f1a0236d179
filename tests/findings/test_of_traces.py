"""What real GPU traces of other people's programs are bound by, argued from figures computed apart from the rules."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import pytest

from tests.public_profiles import profile_of as load
from tests.trace.test_public_traces import expected, pytestmark

__all__ = ["pytestmark"]


def verdict(name: str) -> str:
    found = load(name)._summary.findings
    assert found is not None
    return found.verdict.verdict


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


def test_a_trace_of_the_host_alone_says_that_no_gpu_is_in_it() -> None:
    found = load("rank_not_found")._summary.findings

    assert load("rank_not_found").kernels.empty
    assert found is not None
    assert "The trace contains no GPU work." in found.verdict.why
    assert "0.00 µs" not in " ".join(found.table["evidence"])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(expected()))
def test_no_bound_exceeds_the_step_and_all_rows_are_found(name: str) -> None:
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
