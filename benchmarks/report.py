"""From the end of the traced pass to the displayed report, against ``prof.key_averages()`` on the same trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.models import STEPS
from perfnb.draw.shown import live_bundle
from perfnb.profile.display import static_bundle
from perfnb.profile.profile import Profile
from perfnb.profile.report import report_data
from perfnb.profile.widget import ReportWidget
from perfnb.step.budget import Plan
from perfnb.step.capture import capture_step
from perfnb.step.namespace import namespace_of
from perfnb.step.to_recording import recording_of


def run() -> Iterator[str]:
    """One line per model; a first run, which includes imports, is not counted."""
    _measure(STEPS["ByteGPT"])
    for name, make in STEPS.items():
        report_s, averages_s, events = _measure(make)
        yield (
            f"report: {name}: report / key_averages(): {report_s / averages_s:.3f} "
            f"({report_s * 1e3:.0f} ms / {averages_s * 1e3:.0f} ms, {events:,} events)"
        )


def _measure(make: Callable[[], Callable[[], None]]) -> tuple[float, float, int]:
    """Return seconds from trace to report, seconds of ``key_averages()``, and the number of events."""
    step = make()
    capture = capture_step(step, plan=Plan(warmup=3, steps=3, traced=10), namespace=namespace_of(step))
    profiler: Any = capture.tracer._profile
    begin = time.perf_counter()
    events = _report(capture)
    middle = time.perf_counter()
    profiler.key_averages()
    return middle - begin, time.perf_counter() - middle, events


def _report(capture: Any) -> int:
    """Do what happens between the traced pass and the display of both outputs."""
    profile = Profile(recording_of(capture, "benchmark"))
    summary = profile._summary
    static_bundle(summary)
    live_bundle(lambda view_id: ReportWidget(report_data(summary, view_id)), "benchmark")
    return len(profile._recording.events)
