"""Traces that other people's programs wrote, read and compared with facts computed by plain means.

The files are not part of the project; see CONTRIBUTING.md and the README next to them.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfnb.errors import TraceError
from perfnb.trace.columns import MISSING, TraceColumns
from perfnb.trace.kineto import read

FOLDER = Path(os.environ.get("PERFNB_TRACES", Path(__file__).parents[3] / "shared" / "traces"))

pytestmark = pytest.mark.skipif(
    not (FOLDER / "expected.json").is_file(), reason=f"no folder of public traces at {FOLDER}; set PERFNB_TRACES"
)


def expected() -> dict[str, dict[str, Any]]:
    path = FOLDER / "expected.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


#: What categories were called in 2021.
TODAYS_NAME = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}
#: The span of the trace itself and allocations are no timed events.
LEFT_OUT = ("Trace", "cpu_instant_event")


def text_of(name: str) -> bytes:
    data = (FOLDER / name).read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def categories_of(trace: TraceColumns) -> np.ndarray:
    return np.array(trace.categories, dtype=object)[trace.category]


def covered_us(trace: TraceColumns, rows: np.ndarray) -> float:
    """Return the time when at least one of the events ran."""
    covered, reached = 0, None
    for start, end in sorted(zip(trace.start_ns[rows], (trace.start_ns + trace.duration_ns)[rows], strict=True)):
        covered += max(0, end - (start if reached is None else max(start, reached)))
        reached = end if reached is None else max(reached, end)
    return covered / 1e3


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(expected()))
def test_a_public_trace_holds_what_is_known_of_it(name: str) -> None:
    facts = expected()[name]

    trace = read(FOLDER / name)

    categories = categories_of(trace)
    counts = {TODAYS_NAME.get(cat, cat): count for cat, count in facts["by_category"].items() if cat not in LEFT_OUT}
    assert Counter(categories) == counts
    kernels = categories == "kernel"
    if gpu := facts.get("gpu"):
        assert kernels.sum() == gpu["kernels"]
        names = np.array(trace.names, dtype=object)[trace.name]
        assert len(set(names[kernels])) == gpu["distinct_kernels"]
        assert trace.duration_ns[kernels].sum() / 1e3 == pytest.approx(gpu["kernel_sum_us"], abs=1e-3)
        for kernel in gpu["top_kernels"]:
            same = kernels & np.array([text.startswith(kernel["name"]) for text in names])
            assert same.sum() >= kernel["calls"]
        on_device = np.isin(categories, ["kernel", "gpu_memcpy", "gpu_memset"])
        start, end = trace.start_ns[on_device], (trace.start_ns + trace.duration_ns)[on_device]
        # The figures were made with float64: within 1 ns for a difference, and for a sum of many within 0.1 µs, unless
        # all times are whole microseconds, which float64 holds exactly.
        assert (end.max() - start.min()) / 1e3 == pytest.approx(gpu["total_us"], abs=1.001e-3)
        exact = trace.unit_ns == 1000
        assert covered_us(trace, on_device) == pytest.approx(gpu["busy_us"], abs=1e-6 if exact else 0.1)
    for op in facts["top_cpu_ops_by_total"]:
        if op["name"] in trace.names:
            same = (categories == "cpu_op") & (trace.name == trace.names.index(op["name"]))
            assert same.sum() == op["calls"], op
    assert (trace.duration_ns >= 0).all()
    assert trace.negative_durations == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(expected()))
def test_every_time_and_argument_of_a_public_trace_is_what_its_text_says(name: str) -> None:
    trace = read(FOLDER / name)

    value = json.loads(text_of(name), parse_float=Decimal)
    events = value["traceEvents"] if isinstance(value, dict) else value
    timed = [event for event in events if event.get("ph") == "X" and event.get("cat") not in LEFT_OUT]
    assert len(trace) == len(timed)
    assert trace.start_ns.tolist() == [event["ts"] * 1000 for event in timed]
    assert trace.duration_ns.tolist() == [event["dur"] * 1000 for event in timed]
    assert [trace.names[code] for code in trace.name] == [event["name"] for event in timed]
    args = [event.get("args", {}) for event in timed]
    for column, keys in {
        "device": ["device"],
        "correlation": ["correlation"],
        "sequence": ["Sequence number"],
        "forward_thread": ["Fwd thread id"],
        "external_id": ["External id", "external id"],
        "python_id": ["Python id"],
        "python_parent": ["Python parent id"],
    }.items():
        found = [next((arg[key] for key in keys if arg.get(key) is not None), MISSING) for arg in args]
        assert getattr(trace, column).tolist() == found, column
    shapes = [arg.get("Input Dims", arg.get("Input dims")) for arg in args]
    assert [json.loads(trace.shape_texts[code]) if code >= 0 else None for code in trace.shapes] == shapes
    threads: dict[Any, set[int]] = {}
    for event, thread in zip(timed, trace.thread.tolist(), strict=True):
        threads.setdefault(event["tid"], set()).add(thread)
    assert all(len(numbers) == 1 for numbers in threads.values())
    assert all(numbers == {int(tid)} for tid, numbers in threads.items() if str(tid).lstrip("-").isdecimal())
    assert trace.unit_ns == (1 if any(isinstance(e["ts"], Decimal) and e["ts"] % 1 for e in timed) else 1000)


@pytest.mark.parametrize("name", ["kineto/h100_vit.json.gz", "kineto/mi300_ddp_resnet18.json.gz"])
def test_kernels_of_a_public_trace_have_a_device_a_stream_and_the_call_that_launched_them(name: str) -> None:
    trace = read(FOLDER / name)

    categories = categories_of(trace)
    kernels, calls = categories == "kernel", np.isin(categories, ["cuda_runtime", "cuda_driver"])
    for column in (trace.device, trace.stream, trace.correlation):
        assert (column[kernels] != MISSING).all()
    launched = np.isin(trace.correlation[kernels], trace.correlation[calls])
    assert launched.mean() > 0.95


def test_a_kernel_without_correlation_or_stream_is_read_and_so_is_the_argument_above_int64_beside_it() -> None:
    trace = read(FOLDER / "kineto" / "large_integer_arg.json.gz")

    assert categories_of(trace).tolist() == ["kernel", "cpu_op"]
    assert (trace.correlation == MISSING).all()
    assert (trace.stream == MISSING).all()
    assert trace.start_ns.tolist() == [100_000, 200_000]


@pytest.mark.parametrize(
    ("name", "rank", "size"),
    [
        ("sampled_rank_0.json.gz", 0, 128),
        ("sampled_rank_1.json.gz", 1, 128),
        ("compare_test.json.gz", 1, None),
        ("mi300_vllm_decode_graph.json.gz", 0, 1),
        ("rank_not_found.json.gz", None, None),
        ("h100_vit.json.gz", None, None),
    ],
)
def test_the_rank_of_a_public_trace(name: str, rank: int | None, size: int | None) -> None:
    trace = read(FOLDER / "kineto" / name)

    assert (trace.rank, trace.world_size) == (rank, size)


def test_a_public_trace_names_its_devices_processes_and_threads() -> None:
    trace = read(FOLDER / "kineto" / "h100_vit.json.gz")
    old = read(FOLDER / "kineto" / "gpu_metrics_2021.json")
    bare = read(FOLDER / "kineto" / "mi300_vllm_decode_graph.json.gz")

    assert trace.devices[0]["name"] == "NVIDIA H100 80GB HBM3"
    assert len(old.devices) == 4
    assert bare.devices[0]["name"] == ""
    assert bare.process_names == bare.thread_names == {}
    assert trace.process_names[5617] == "python3"
    assert trace.thread_names[0, 7] == "stream 7"
    assert trace.base_ns == 1751410836000000000


def test_what_waits_for_what_in_a_public_trace() -> None:
    trace = read(FOLDER / "kineto" / "a100_event_sync_multi_stream.json.gz")

    waits = trace.wait_stream != MISSING
    assert set(categories_of(trace)[waits]) == {"cuda_sync"}
    assert {trace.names[code] for code in trace.name[waits]} == {"Stream Wait Event", "Event Sync"}
    assert waits.sum() == 3
    assert np.isin(trace.wait_correlation[waits], trace.correlation).all()
    context_sync = read(FOLDER / "kineto" / "a100_alexnet.json.gz")
    assert context_sync.stream.max() < 1000  # and not 2**32 - 1


@pytest.mark.parametrize("name", ["backward_thread.json", "a100_alexnet.json.gz", "mi300_compile_triton.json.gz"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_public_trace_cut_off_at_any_percent_is_the_one_error(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    whole = pack(text_of(f"kineto/{name}").rstrip())
    path = tmp_path / "cut.json"
    for percent in range(100):
        path.write_bytes(whole[: len(whole) * percent // 100])
        with pytest.raises(TraceError, match=r"cut\.json .*(cut off|empty)"):
            read(path)
