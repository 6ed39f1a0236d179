"""Measure the time from the end of the traced pass to the report, compared with ``prof.key_averages()``.

Both use the same trace. For a report with 1,500 layers, the time for writing its page and the first paint in a browser
are also measured.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.browser import CHROMIUM, NOT_INSTALLED, first_paint_ms, page_in_browser
from benchmarks.models import STEPS
from perfnb.draw import escape
from perfnb.draw.as_html import document_html
from perfnb.draw.as_text import document_text
from perfnb.draw.shown import live_bundle
from perfnb.profile.profile import Profile
from perfnb.profile.report import report_document
from perfnb.profile.widget import ReportWidget
from perfnb.step.budget import Plan
from perfnb.step.namespace import namespace_of
from perfnb.step.pass_order import capture_step
from perfnb.step.to_recording import recording_of

_LAYERS, _PAGES, _PAINTS = 1_500, 5, 20


def run() -> Iterator[str]:
    """Yield one line per model. The first run is not counted, because it includes imports."""
    _measure(STEPS["ByteGPT"])
    for name, make in {**STEPS, "1,500 layers": _many_layers}.items():
        report_s, averages_s, events = _measure(make)
        yield (
            f"report: {name}: CPU of report / key_averages(): {report_s / averages_s:.3f} "
            f"({report_s * 1e3:.0f} ms / {averages_s * 1e3:.0f} ms, {events:,} events; limit 0.2)"
        )
    yield from _page()


def _measure(make: Callable[[], Callable[[], None]]) -> tuple[float, float, int]:
    """Return the CPU seconds from the trace to the report, those of ``key_averages()``, and the number of events."""
    step = make()
    capture = capture_step(step, plan=Plan(warmup=3, steps=3, traced=10), namespace=namespace_of(step))
    assert capture.tracer is not None
    profiler: Any = capture.tracer._profile
    begin = time.process_time()
    events = _report(capture)
    middle = time.process_time()
    profiler.key_averages()
    return middle - begin, time.process_time() - middle, events


def _many_layers() -> Callable[[], None]:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(_LAYERS // 3)))
    x = torch.ones(4, 8)

    def step() -> None:
        model(x).sum().backward()

    return step


def _page() -> Iterator[str]:
    step = _many_layers()
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
        table = Path(folder) / "table.html"
        table.write_text(_plain_table(profile), encoding="utf-8")
        report_ms, table_ms = (statistics.median(_paints(each)) for each in (path, table))
        yield (
            f"report: {layers:,} layers: first paint after {report_ms:.0f} ms, of a plain table of the same rows after "
            f"{table_ms:.0f} ms (median of {_PAINTS}; limit twice that)"
        )


def _paints(path: Path) -> Iterator[float]:
    for _ in range(_PAINTS):
        with page_in_browser(path) as page:
            yield first_paint_ms(page)


def _plain_table(profile: Profile) -> str:
    rows = (
        "".join(f"<td>{escape.html(value)}</td>" for value in (name, *row))
        for name, *row in profile.layers.itertuples(name=None)
    )
    return f"<!DOCTYPE html><title>layers</title><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _report(capture: Any) -> int:
    """Do the work between the end of the traced pass and the display of both outputs."""
    profile = Profile(recording_of(capture, "benchmark"))
    document = report_document(profile._summary)
    document_text(document)
    document_html(document)
    live_bundle(lambda view_id: ReportWidget(document, view_id), "benchmark")
    return len(profile._recording.events)
