"""Measure how long it takes to draw a flame graph of 100,000 stacks, and the cost of sampling a step."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import perfnb
from benchmarks.browser import CHROMIUM, NOT_INSTALLED, frames_of, page_in_browser, spread
from perfnb.step.stack_sampler import StackSampler
from perfnb.step.steps import StepRunner, Turn

STACKS, DEPTH = 100_000, 24
_FRAMES, _ROUNDS, _STEPS = 120, 20, 100

#: Scripts that zoom, or that scroll while pointing, once per frame.
_ABOUT = """
  const canvas = document.querySelector(".pf-canvas");
  const { left, top, width } = canvas.getBoundingClientRect();
  const about = { clientX: left + width * 0.37, clientY: top + 200, bubbles: true, cancelable: true };
"""
_MOVES = {
    "zoom": _ABOUT
    + """
  canvas.dispatchEvent(new WheelEvent("wheel", { ...about, deltaY: 30 * sign, ctrlKey: true }));
""",
    "scroll": _ABOUT
    + """
  canvas.parentElement.parentElement.scrollTop += 6 * -sign;
  canvas.dispatchEvent(new PointerEvent("pointermove", { ...about, clientX: left + (width * n) / frames }));
""",
}


def made(stacks: int = STACKS) -> str:
    """Return collapsed stacks of up to `DEPTH` calls, all of which are different."""
    chance = random.Random(0)
    lines = set[str]()
    while len(lines) < stacks:
        depth = chance.randrange(6, DEPTH)
        lines.add(";".join(f"function_{min(int(chance.expovariate(0.4)), 40)}_{level}" for level in range(depth)))
    return "".join(f"{line} {chance.randrange(1, 50)}\n" for line in sorted(lines))


def run() -> Iterator[str]:
    """Yield lines for the browser and for sampling."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stacks.txt"
        source.write_text(made(), encoding="utf-8")
        begin = time.perf_counter()
        profile: Any = perfnb.load(source)
        page = profile.to_html(Path(folder) / "page.html")
        seconds = time.perf_counter() - begin
        calls = len(profile._record.tree)
        yield f"flame graph: {STACKS:,} stacks, {calls:,} calls: loaded and written as a page in {seconds:.1f} s"
        yield from _in_browser(page)
    yield _sampling()


def _in_browser(path: Path) -> Iterator[str]:
    if CHROMIUM is None:
        yield f"flame graph: {NOT_INSTALLED}"
        return
    with page_in_browser(path, canvas=".pf-canvas[data-boxes]") as page:
        page.wait_for_function("window.first_")
        first = page.evaluate("window.first_")
        yield f"flame graph: first picture {first:.0f} ms after the page was requested (limit 500)"
        for kind, move in _MOVES.items():
            drawing = frames_of(page, _FRAMES, f"(n, sign) => {{{move}}}")[:, 1]
            yield f"flame graph: {kind}: {spread('drawing a frame (limit 17)', drawing)}"
        begin = time.perf_counter()
        page.get_by_role("searchbox", name="Search functions and files").fill("function_3_")
        yield f"flame graph: searched in {(time.perf_counter() - begin) * 1e3:.0f} ms"


def _sampling() -> str:
    """Return the ratio of steps with and without the sampler, measured in pairs of neighbouring blocks."""
    layers = [layer for _ in range(12) for layer in (nn.Linear(96, 96), nn.ReLU())]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(64, 96)

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    def block() -> float:
        times = []
        for _ in range(_STEPS):
            begin = time.perf_counter()
            runner._run(turn)
            times.append(time.perf_counter() - begin)
        return sum(times)

    def sampled() -> float:
        times = []
        with StackSampler([(net, False)]) as sampler:
            for _ in range(_STEPS):
                with sampler.step():
                    begin = time.perf_counter()
                    runner._run(turn)
                    times.append(time.perf_counter() - begin)
        assert sampler.count
        return sum(times)

    runner, turn = StepRunner(step, None), Turn("sampled", nullcontext, nullcontext, None, False)
    block()
    ratios, bare = [], []
    for place in range(_ROUNDS):
        first, second = (block, sampled) if place % 2 else (sampled, block)
        a, b = first(), second()
        without, with_sampler = (a, b) if place % 2 else (b, a)
        ratios.append(with_sampler / without)
        bare.append(without)
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return (
        f"sampling stacks: a step of {1e3 * statistics.median(bare) / _STEPS:.2f} ms takes {middle:.3f} times as "
        f"long while sampled (quartiles {low:.3f} to {high:.3f} of {_ROUNDS} pairs; limit 1.03)"
    )
