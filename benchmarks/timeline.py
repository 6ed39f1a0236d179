"""Measure a timeline of a million events: its size, and the time for drawing it and for zooming and panning."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.browser import CHROMIUM, NOT_INSTALLED, frames_of, page_in_browser, spread
from perfnb.profile.display import standalone_page
from perfnb.profile.profiling import profile_step
from perfnb.profile.summary import summarize
from perfnb.timeline.data import NOTEBOOK_BYTES, PAGE_BYTES, timeline_bytes
from perfnb.timeline.memory import MemoryCurve
from perfnb.timeline.timeline import KINDS, Timeline, Track

EVENTS, STEPS, LAYERS = 1_000_000, 20, 200
_FRAMES = 120

#: A script that opens the tab and waits until it has been drawn and painted.
_OPEN = """() => new Promise((done) => {
  const tab = [...document.querySelectorAll("[role=tab]")].find((each) => each.textContent.startsWith("Timeline"));
  const begin = performance.now();
  tab.click();
  const look = () => {
    if (document.querySelector("canvas[data-from]")) setTimeout(() => done(performance.now() - begin));
    else requestAnimationFrame(look);
  };
  look();
})"""

#: A script that zooms or pans with one wheel event per frame.
_MOVE = """(n, sign) => {
  const canvas = document.querySelector(".pf-canvas");
  const { left, top, width } = canvas.getBoundingClientRect();
  const about = { clientX: left + width * 0.5, clientY: top + 100, bubbles: true, cancelable: true };
  canvas.dispatchEvent(new WheelEvent("wheel", { ...about, ...WHEEL }));
}"""
_WHEELS = {"zoom": "{ deltaY: 45 * sign, ctrlKey: true }", "pan": "{ deltaX: 30 * sign }"}


def made(events: int = EVENTS) -> Timeline:
    """Create steps, phases, layers, two threads with nested ops, four streams with the work they launch, and memory."""
    rng = np.random.default_rng(0)
    ops = events // 6
    step_ns = ops / STEPS * 10_000.0
    length = STEPS * step_ns
    kernels = [f"void at::native::kernel_{k}<float, 4>(int, float*)" for k in range(300)]
    names = [*(f"step {n}" for n in range(STEPS)), *KINDS, *(f"aten::op_{k}" for k in range(150)), *kernels]
    kind_of = {name: place for place, name in enumerate(KINDS)}
    parts: list[dict[str, Any]] = []
    tracks: list[Track] = []

    def add(kind: str, title: str, *rows: dict[str, Any]) -> int:
        first = sum(len(part["start"]) for part in parts)
        for depth, row in enumerate(rows):
            none = {"depth": depth, "layer": -1, "launch": -1, "forward": -1, "detail": -1, "category": 0, "event": -1}
            parts.append({**none, **row})
        count = sum(len(row["start"]) for row in rows)
        tracks.append(Track(kind, title, first, count, len(rows)))
        return first

    grid = np.arange(STEPS) * step_ns
    add("steps", "Steps", {"start": grid, "duration": step_ns, "kind": kind_of["other"], "name": np.arange(STEPS)})
    words, edges = ["data", "forward", "loss", "backward", "optimizer"], np.array([0, 0.04, 0.38, 0.4, 0.9, 1.0])
    codes = np.tile([kind_of[word] for word in words], STEPS)
    begins = (grid[:, None] + edges[:-1] * step_ns).ravel()
    phases = {"start": begins, "duration": np.tile(np.diff(edges) * step_ns, STEPS)}
    add("phases", "Phases", {**phases, "kind": codes, "name": STEPS + codes})
    spans = (grid[:, None] + (0.04 + 0.34 * np.arange(LAYERS) / LAYERS) * step_ns).ravel()
    layer = np.tile(np.arange(LAYERS), STEPS)
    forward = {"kind": kind_of["forward"], "name": STEPS + kind_of["forward"]}
    add("layers", "Layers", {"start": spans, "duration": 0.33 * step_ns / LAYERS, "layer": layer, **forward})
    calls: list[tuple[int, Any]] = []
    for title, word in (("Thread 1 (main)", "forward"), ("Thread 2 (autograd)", "backward")):
        start = np.sort(rng.uniform(0, length, ops))
        lengths = np.diff(start, append=length) * rng.uniform(0.2, 0.98, ops)
        rows = [
            {
                "start": (start + 0.1 * depth * lengths)[: ops // (2 if depth == 2 else 1)],
                "duration": (lengths * (1 - 0.3 * depth))[: ops // (2 if depth == 2 else 1)],
                "kind": kind_of[word],
                "layer": (np.arange(ops) * LAYERS // ops)[: ops // (2 if depth == 2 else 1)],
                "name": STEPS + len(KINDS) + rng.integers(0, 150, ops)[: ops // (2 if depth == 2 else 1)],
            }
            for depth in range(3)
        ]
        calls.append((add("thread", title, *rows) + 2 * ops, rows[2]["start"]))
    for stream in range(4):
        first, launched = calls[stream % 2]
        picked = np.arange(stream // 2, len(launched), 2)
        start = launched[picked] + 20_000
        lengths = np.diff(start, append=start[-1] + 9_000) * rng.uniform(0.3, 1.0, len(start))
        name = STEPS + len(KINDS) + 150 + rng.integers(0, 300, len(start))
        work = {"start": start, "duration": lengths, "name": name, "launch": first + picked, "category": 1}
        add(
            "stream",
            f"GPU 0, stream {7 + stream}",
            {**work, "kind": kind_of["forward" if stream % 2 == 0 else "backward"]},
        )
    columns = {
        column: np.concatenate([np.broadcast_to(part[column], len(part["start"])) for part in parts]).astype(np.int64)
        for column in parts[0]
    }
    instants = np.sort(rng.uniform(0, length, events // 10)).astype(np.int64)
    alive = (2**30 * (1 + np.abs(np.sin(instants / step_ns * np.pi)))).astype(np.int64)
    return Timeline(
        tracks=tuple(tracks),
        rows=pd.DataFrame(columns),
        names=tuple(names),
        categories=("cpu_op", "kernel"),
        kinds=tuple(KINDS),
        layers=tuple(f"model.blocks.{k // 4}.part_{k % 4}" for k in range(LAYERS)),
        details=(),
        memory=(MemoryCurve("cuda:0", "", instants, alive),),
    )


def run() -> Iterator[str]:
    """Yield lines for the size and for the browser."""
    timeline = made()
    for word, limit in (("a page", PAGE_BYTES), ("a notebook", NOTEBOOK_BYTES)):
        begin = time.perf_counter()
        packed, facts = timeline_bytes(timeline, [-1] * LAYERS, limit)
        seconds = time.perf_counter() - begin
        yield (
            f"timeline: {len(timeline):,} events for {word}: {facts['events']:,} events in {len(packed) / 1e6:.2f} MB, "
            f"{len(packed) / facts['events']:.1f} bytes per event, packed in {seconds:.2f} s"
        )
    yield from _in_browser(timeline)


def _in_browser(timeline: Timeline) -> Iterator[str]:
    if CHROMIUM is None:
        yield f"timeline: {NOT_INSTALLED}"
        return
    summary = summarize(profile_step(lambda: None, steps=1, warmup=1, traced=1, budget_s=2)._recording)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(standalone_page(summary, timeline), encoding="utf-8")
        with page_in_browser(path, canvas="canvas[data-from]") as page:
            first = page.evaluate(_OPEN)
            yield f"timeline: {len(timeline):,} events: first drawn after {first:.0f} ms"
            for kind, wheel in _WHEELS.items():
                frames = frames_of(page, _FRAMES, _MOVE.replace("WHEEL", wheel))
                yield f"timeline: {kind}: {spread('drawing', frames[:, 1])}"
                yield f"timeline: {kind}: {spread('frame interval', np.diff(frames[:, 0]))}"
            began = time.perf_counter()
            page.get_by_role("searchbox", name="Search events and layers").fill("kernel_12")
            yield f"timeline: {len(timeline):,} events searched in {(time.perf_counter() - began) * 1e3:.0f} ms"
