"""Traces of ranks of one job, written by hand, and the tables of several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.written_traces import Written

TABLES = (
    "events",
    "steps",
    "layers",
    "ops",
    "phases",
    "kernels",
    "gpu_time",
    "gpu_steps",
    "gpu_idle",
    "times",
    "clocks",
)


def rank_trace(late: float, clock: float = 0.0, steps: int = 3, lost: tuple[int, ...] = (), **facts: Any) -> Written:
    """Return a rank that comes to each collective `late` µs after its begin; each ends for all 200 µs after its
    begin.
    """
    group = {name: facts.pop(name) for name in ("Process Group Ranks",) if name in facts}
    trace, count = Written(**facts), 0
    for number in range(steps):
        t = 10_000.0 * number + clock
        trace.step(number, t, t + 5000)
        for place in range(4):
            begin = t + 1000 * place + 137 * place * place  # unevenly, so that no wrong shift fits all
            trace.op("aten::mm", begin + 2, begin + 8).kernel("gemm", begin + 5, begin + 20, begin + 20 + late)
            if count not in lost:
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                told = {"Collective name": "allreduce", **group}
                trace.kernel(name, begin + 10, begin + 100 + late, begin + 300, **told)
            count += 1
    return trace


def written(tmp_path: Path, traces: list[Written], names: str = "rank{}.json") -> list[Path]:
    return [trace.write(tmp_path / names.format(place)) for place, trace in enumerate(traces)]
