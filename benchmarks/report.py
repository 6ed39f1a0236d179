"""From the end of the traced pass to the displayed report, against ``prof.key_averages()`` on the same trace.

Also the page of a report with 1,500 layers: the time to write it, and the first paint in a browser.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.browser import CHROMIUM, NOT_INSTALLED, first_paint_ms, page_in_browser
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

_LAYERS, _PAGES = 1_500, 5


def run() -> Iterator[str]:
    """One line per model; a first run, which includes imports, is not counted."""
    _measure(STEPS["ByteGPT"])
    for name, make in STEPS.items():
        report_s, averages_s, events = _measure(make)
        yield (
            f"report: {name}: report / key_averages(): {report_s / averages_s:.3f} "
            f"({report_s * 1e3:.0f} ms / {averages_s * 1e3:.0f} ms, {events:,} events)"
        )
    yield from _page()


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


def _page() -> Iterator[str]:
    model, x = (
        nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(_LAYERS // 3))),
        torch.ones(4, 8),
    )

    def step() -> None:
        model(x).sum().backward()

    capture = capture_step(step, plan=Plan(warmup=1, steps=3, traced=3), namespace=namespace_of(step))
    profile = Profile(recording_of(capture, "benchmark"))
    layers = len(profile.layers)
    with tempfile.TemporaryDirectory() as folder:
        path, seconds = Path(folder) / "page.html", []
        for _ in range(_PAGES):
            begin = time.process_time()
            profile.to_html(path)
            seconds.append(time.process_time() - begin)
        yield (
            f"report: {layers:,} layers, {len(profile.events):,} events: page written in {min(seconds):.2f} s of CPU, "
            f"{seconds[0]:.2f} s the first time (limit 1; {path.stat().st_size / 1e6:.1f} MB)"
        )
        if CHROMIUM is None:
            yield f"report: {layers:,} layers: first paint {NOT_INSTALLED}"
            return
        with page_in_browser(path) as page:
            yield f"report: {layers:,} layers: first paint after {first_paint_ms(page):.0f} ms (limit 1000)"


def _report(capture: Any) -> int:
    """Do what happens between the traced pass and the display of both outputs."""
    profile = Profile(recording_of(capture, "benchmark"))
    summary = profile._summary
    static_bundle(summary)
    live_bundle(lambda view_id: ReportWidget(report_data(summary, view_id)), "benchmark")
    return len(profile._recording.events)
