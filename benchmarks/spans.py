"""Compare a traced step with layer spans with torch.profiler alone, using the same options."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from benchmarks.models import STEPS
from perfnb.step.layers import LayerSpans
from perfnb.step.tracer import Tracer

_SESSIONS, _STEPS = 12, 5


def run() -> Iterator[str]:
    """Yield one line per model with the ratio of the median steps over all sessions."""
    for name, make in STEPS.items():
        step = make()
        for _ in range(5):
            step()
        ratios, bare_ms = [], []
        for session in range(_SESSIONS):
            # Alternate between the two, so that drift affects both.
            if session % 2:
                bare, spans = _session(step, nullcontext()), _session(step, LayerSpans())
            else:
                spans, bare = _session(step, LayerSpans()), _session(step, nullcontext())
            ratios.append(spans / bare)
            bare_ms.append(bare / 1e6)
        low, middle, high = statistics.quantiles(ratios, n=4)
        yield (
            f"spans: {name}: traced step with layer spans / without: {middle:.3f} "
            f"(quartiles {low:.3f} to {high:.3f}; {statistics.median(bare_ms):.2f} ms without)"
        )


def _session(step: Callable[[], None], spans: AbstractContextManager[object]) -> float:
    """Return the median step time of one profiler session in nanoseconds, excluding the first step."""
    tracer = Tracer()
    times = []
    with tracer, spans:
        for _ in range(_STEPS + 1):
            begin = time.perf_counter_ns()
            step()
            times.append(time.perf_counter_ns() - begin)
    tracer.close()
    return statistics.median(times[1:])
