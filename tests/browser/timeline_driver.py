"""A timeline that a test steers: where things are on the page, and what is said."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from playwright.sync_api import Locator, Page, expect

from perfnb.draw.palette import MARKS
from tests.browser.conftest import OpenPage
from tests.timeline import timeline_samples as samples
from tests.timeline.timeline_pages import page_with

ROW = 18
OPS = "Thread 1 (main)"
NODES = "Thread 2 (autograd)"
GPU = "GPU 0, stream 7"


#: Pixels of a part of a canvas, read from a copy.
READ = """(canvas, [x, y, width, height, onPage]) => {
  const box = canvas.getBoundingClientRect();
  if (onPage) [x, y] = [Math.round(x - box.left), Math.round(y - box.top)];
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [width, height];
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, x, y, width, height, 0, 0, width, height);
  return [...context.getImageData(0, 0, width, height).data];
}"""

#: The time shown, where the picture begins, and where each track does.
MEASURE = """(canvas) => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
  const { x, y, width } = canvas.getBoundingClientRect();
  const tops = (title) => [title.textContent, title.getBoundingClientRect().y];
  const titles = [...document.querySelectorAll(".pf-tl-title")].map(tops);
  done({ window: [Number(canvas.dataset.from), Number(canvas.dataset.to)], x, y, width, titles });
})))"""


class Timeline:
    """The tab, and where on the page a time of a track lies."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.canvas = page.locator(".pf-canvas")
        self.search = page.get_by_role("searchbox", name="Search events and layers")
        self.status = page.locator(".pf-timeline .pf-search [role=status]")
        self.details = page.get_by_role("complementary", name="Timeline details")

    def measured(self) -> dict[str, Any]:
        """Return where things are once what was asked for is drawn."""
        return self.canvas.evaluate(MEASURE)

    def window_us(self) -> tuple[float, float]:
        first, last = self.measured()["window"]
        return first / 1e3, last / 1e3

    def at(self, track: str, us: float, depth: int = 0) -> tuple[float, float]:
        now = self.measured()
        first, last = now["window"]
        (top,) = [y for title, y in now["titles"] if title.startswith(track)]
        return now["x"] + (us * 1e3 - first) / (last - first) * now["width"], top + (depth + 0.5) * ROW

    def click(self, track: str, us: float, depth: int = 0) -> None:
        self.page.mouse.click(*self.at(track, us, depth))

    def pixel(self, track: str, us: float, depth: int = 0) -> tuple[int, ...]:
        """Return the colour at a place, away from words."""
        x, y = self.at(track, us, depth)
        return tuple(self.canvas.evaluate(READ, [round(x), round(y - 7), 1, 1, True])[:3])

    def partners(self, word: str) -> Locator:
        """Return the events that are listed under a heading."""
        heading = self.page.locator("h4").filter(has_text=re.compile(rf"^{word}(?: \d.*)?$"))
        return self.details.locator("section").filter(has=heading).locator("li")

    def fact(self, word: str) -> Locator:
        return self.details.locator("dl > div").filter(has=self.page.locator(f"dt:text-is('{word}')")).locator("dd")


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def hue_of(pixel: tuple[int, ...], kind: str) -> bool:
    """Return whether a pixel is one of the shades of a kind's colour, lighter or darker."""
    plain = np.array(rgb(MARKS[kind].colour), float)
    shades = [plain * 0.84, plain * 0.93, plain, plain + (255 - plain) * 0.12, plain + (255 - plain) * 0.24]
    return any(np.abs(shade - pixel).max() < 3 for shade in shades)


def opened_timeline(
    open_page: OpenPage, data: bytes | None = None, whole: bytes = b"", before: str = "", **options: Any
) -> Timeline:
    """Return a timeline in its report, without movement between two views."""
    html = page_with(samples.step() if data is None else data, whole, before=before)
    page = open_page(html, **{"viewport": {"width": 1400, "height": 1000}, "reduced_motion": "reduce", **options})
    page.get_by_role("tab", name="Timeline").click()
    expect(page.locator(".pf-canvas[data-from]")).to_be_visible()
    return Timeline(page)
