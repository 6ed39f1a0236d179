"""Traces with work on GPUs, for the tests of how that is shown."""

from __future__ import annotations

from pathlib import Path

import perfnb
from perfnb.gpu.summary import GpuSummary
from perfnb.profile.summary import Summary
from tests.summaries import HOSTILE
from tests.written_traces import Written


def two_gpus() -> Written:
    """Return three steps on two GPUs: computing, communicating, copying, and idle for each reason."""
    trace = Written(deviceProperties=[{"id": n, "name": "Small GPU"} for n in range(2)])
    for t in (0, 1000, 2000):
        trace.step(4 + t // 1000, t, t + 1000)
        trace.module("Net_0", t + 5, t + 500)
        trace.event("aten::mm", t + 10, t + 60, **{"Input Dims": [[16, 4], [4, 8], []]})
        trace.kernel("gemm", t + 20, t + 30, t + 130)
        trace.op("c10d::allreduce_", t + 61, t + 70).kernel(
            "ncclDevKernel_AllReduce", t + 62, t + 80, t + 180, stream=9
        )
        trace.op("aten::relu", t + 110, t + 150).kernel("relu", t + 120, t + 183, t + 190)
        trace.op("aten::copy_", t + 160, t + 170)
        number = 9000 + t
        trace.event("cudaMemcpyAsync", t + 161, t + 165, "cuda_runtime", correlation=number)
        trace.event(
            "Memcpy DtoH (Device -> Pinned)",
            *(t + 250, t + 280, "gpu_memcpy", 7, 0),
            **{"device": 0, "stream": 7, "correlation": number},
        )
        trace.kernel("far", t + 200, t + 210, t + 400 + t // 10, device=1)
        trace.event("cudaDeviceSynchronize", t + 600, t + 900, "cuda_runtime", correlation=number + 1)
    return trace


def hostile() -> Written:
    """Return every hostile name as an op, a kernel, its shapes and a module."""
    trace = Written().step(1, 0, 5000)
    for place, name in enumerate(HOSTILE):
        t = 10 + 100 * place
        trace.module(name, t, t + 90)
        trace.event(name, t + 5, t + 80, **{"Input Dims": [name, [1, name]]})
        trace.kernel(name, t + 10, t + 20, t + 90)
    return trace


def unlaunched() -> Written:
    """Return a kernel whose launch is not in the trace, and no step."""
    return Written().event("gemm", 10, 30, "kernel", 7, 0, device=0, stream=7)


def gpu_of(trace: Written, folder: Path) -> GpuSummary:
    profile = perfnb.load(trace.write(folder / "trace.json"))
    assert isinstance(profile, perfnb.Profile)
    assert profile._analysis.gpu is not None
    return profile._analysis.gpu


def summary_of(trace: Written, folder: Path, name: str = "trace.json") -> Summary:
    profile = perfnb.load(trace.write(folder / name))
    assert isinstance(profile, perfnb.Profile)
    return profile._summary
