"""Measure the memory view of a step with 100,000 allocations: the time for drawing it, and its size when saved."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import perfnb
from benchmarks.browser import CHROMIUM, NOT_INSTALLED, page_in_browser
from perfnb.draw.as_html import document_html
from perfnb.draw.as_json import document_data
from perfnb.draw.as_text import document_text
from perfnb.memory.tab import memory_document
from perfnb.profile.profile import Profile

#: The number of rounds, each of which makes about 4.5 allocations.
_ROUNDS = 22_200

#: A script that opens the tab and waits until the browser has painted it.
_OPEN = """() => new Promise((done) => {
  const tab = [...document.querySelectorAll("[role=tab]")].find((each) => each.textContent.startsWith("Memory"));
  const begin = performance.now();
  tab.click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)));
})"""


class ManySmallOps(nn.Module):
    """A module with many small ops, half of whose results are kept, so that there is a lot to draw."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for place in range(_ROUNDS):
            x = x * 1.0001
            if place % 2:
                kept.append(x + 1)
        return x + torch.stack(kept[::100]).sum()


def run() -> Iterator[str]:
    """Yield one line for the kernel and one for the browser."""
    model, x = ManySmallOps(), torch.ones(64)
    with torch.no_grad():
        p = perfnb.profile_step(lambda: model(x), steps=1, warmup=1, traced=1, flops=False, budget_s=5)
    assert isinstance(p, Profile)
    made = len(p.allocations)
    summary = p._summary.memory
    assert summary is not None
    begin = time.perf_counter()
    shown = memory_document(summary)
    page, text, data = document_html(shown), document_text(shown), json.dumps(document_data(shown))
    views_s = time.perf_counter() - begin
    saved = sum(len(part.encode()) for part in (page, text, data))
    yield (
        f"memory view: {made:,} allocations: static and live view built in {views_s * 1e3:.0f} ms; "
        f"saved size {saved / 1e6:.2f} MB, {len(data) / 1e6:.2f} MB of it for the live view"
    )
    yield f"memory view: {made:,} allocations: drawn in the browser in {_drawn(p)}"


def _drawn(p: Profile) -> str:
    if CHROMIUM is None:
        return NOT_INSTALLED
    with (
        tempfile.TemporaryDirectory() as folder,
        page_in_browser(p.to_html(Path(folder) / "page.html"), width=1300) as page,
    ):
        return f"{page.evaluate(_OPEN):.0f} ms"
