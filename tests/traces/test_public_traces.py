"""Traces that other people's programs wrote, read and compared with facts computed by plain means.

The files are not part of the project; see CONTRIBUTING.md and the README beside them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfnb.traces.kineto import MISSING, read

FOLDER = Path(os.environ.get("PERFNB_TRACES", Path(__file__).parents[3] / "shared" / "traces"))

pytestmark = pytest.mark.skipif(
    not (FOLDER / "expected.json").is_file(), reason=f"no folder of public traces at {FOLDER}; set PERFNB_TRACES"
)


def expected() -> dict[str, dict[str, Any]]:
    path = FOLDER / "expected.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


#: Categories had other names in 2021.
GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}


@pytest.mark.parametrize("name", sorted(expected()))
def test_a_public_trace_holds_what_is_known_of_it(name: str) -> None:
    facts = expected()[name]

    trace = read(FOLDER / name)

    categories = np.array(trace.categories, dtype=object)[trace.category]
    counts = dict(facts["by_category"])
    counts.pop("Trace", None)  # the span of the trace itself, which the reader leaves out
    assert Counter(categories) == counts
    kernels = np.isin(categories, ["kernel", "Kernel"])
    if gpu := facts.get("gpu"):
        assert kernels.sum() == gpu["kernels"]
        names = np.array(trace.names, dtype=object)[trace.name]
        assert len(set(names[kernels])) == gpu["distinct_kernels"]
        assert trace.duration_ns[kernels].sum() / 1e3 == pytest.approx(gpu["kernel_sum_us"], rel=1e-9)
        for kernel in gpu["top_kernels"]:
            same = kernels & np.array([text.startswith(kernel["name"]) for text in names])
            assert same.sum() >= kernel["calls"]
        on_device = np.isin(categories, list(GPU))
        start, end = trace.start_ns[on_device], (trace.start_ns + trace.duration_ns)[on_device]
        # A time since 1970 in microseconds is exact to a quarter of one only.
        assert (end.max() - start.min()) / 1e3 == pytest.approx(gpu["total_us"], abs=1, rel=1e-6)
    ops = facts["top_cpu_ops_by_total"]
    on_host = np.isin(categories, ["cpu_op", "Operator"])
    for op in ops:
        if op["name"] in trace.names:
            same = on_host & (trace.name == trace.names.index(op["name"]))
            assert same.sum() == op["calls"], op
    assert (trace.duration_ns >= 0).all()


@pytest.mark.parametrize("name", ["kineto/h100_vit.json.gz", "kineto/mi300_ddp_resnet18.json.gz"])
def test_kernels_of_a_public_trace_have_a_device_a_stream_and_the_call_that_launched_them(name: str) -> None:
    trace = read(FOLDER / name)

    categories = np.array(trace.categories, dtype=object)[trace.category]
    kernels, calls = categories == "kernel", np.isin(categories, ["cuda_runtime", "cuda_driver"])
    for column in (trace.device, trace.stream, trace.correlation):
        assert (column[kernels] != MISSING).all()
    launched = np.isin(trace.correlation[kernels], trace.correlation[calls])
    assert launched.mean() > 0.95


def test_the_argument_above_int64_is_missing_and_the_rest_is_there() -> None:
    trace = read(FOLDER / "kineto" / "large_integer_arg.json.gz")

    assert len(trace) == 2
    assert MISSING in trace.correlation
