"""Compare the counted steps and their tables with ``key_averages()`` of torch.profiler with memory and shapes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from torch.profiler import ProfilerActivity, profile

from benchmarks.models import STEPS
from perfnb.attribution.arithmetic import counted_ops
from perfnb.attribution.attribution import attribute
from perfnb.memory.allocations import allocation_table, watched_memory
from perfnb.memory.table import memory_summary, memory_table
from perfnb.step.budget import Plan
from perfnb.step.capture import Capture
from perfnb.step.session import Session
from perfnb.step.steps import Passes, StepRunner
from perfnb.step.to_recording import recording_of

_RUNS = 5


def run() -> Iterator[str]:
    """Yield one line per model, with medians of interleaved runs."""
    for name, make in STEPS.items():
        step = make()
        for _ in range(5):
            step()
        _ours(step)
        pairs = [(_ours(step), _torch(step)) for _ in range(_RUNS)]
        ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
        yield (
            f"counted: {name}: counted steps and their tables / torch's step with memory and shapes and "
            f"key_averages(): {ours / theirs:.2f} ({ours * 1e3:.0f} ms / {theirs * 1e3:.0f} ms)"
        )


def _ours(step: Callable[[], None]) -> float:
    """Return the time for three steps (lead-in, memory, arithmetic) and for the tables in their report."""
    begin = time.perf_counter()
    capture = StepRunner(step, None).drive(_passes())
    capture.meta["environment"] = {}
    recording = recording_of(capture, "benchmark")
    watched = watched_memory(recording)
    assert watched is not None
    memory_summary(watched, memory_table(watched))
    allocation_table(watched)
    record = recording.arithmetic
    assert record is not None
    view = recording.with_events(record.events)
    counted_ops(view, attribute(view), record.calls)
    return time.perf_counter() - begin


def _passes() -> Passes[Capture]:
    with Session(Plan()) as session:
        yield from session.watch_memory(lead_in=True)
        yield from session.count_arithmetic()
        return session.capture


def _torch(step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as prof:
        step()
    prof.key_averages()
    return time.perf_counter() - begin
