"""Traces that other people's programs wrote, read and compared with facts computed by plain means.

The files are not part of the project; see CONTRIBUTING.md and the README next to them.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    categories = [TODAYS_NAME.get(event.get("cat", ""), event.get("cat", "")) for event in timed]
    assert categories_of(trace).tolist() == categories
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
    for op in facts["top_cpu_ops_by_total"]:
        if op["name"] in trace.names:
            same = (categories == "cpu_op") & (trace.name == trace.names.index(op["name"]))
            assert same.sum() == op["calls"], op
    assert (trace.duration_ns >= 0).all()
    assert trace.negative_durations == 0


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
