"""Measure pages in a headless browser: the time until they are painted, and the time for drawing each frame."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NOT_INSTALLED = "n/a (Chromium is not installed)"
_HEIGHT = 900

#: A script that records when drawing each frame of a canvas starts and how long it takes, and when the first one ends.
_WATCH = """
window.frames_ = [];
const ask = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (draw) => ask((now) => {
  const begin = performance.now();
  draw(now);
  const end = performance.now();
  if (!document.querySelector("CANVAS")) return;
  window.first_ ??= end;
  window.frames_.push([now, end - begin]);
});
window.moved_ = (frames, move) => new Promise((done) => {
  window.frames_.length = 0;
  let n = 0;
  const next = () => {
    if (n === frames) return setTimeout(() => done(window.frames_), 300);
    move(n, n < frames / 2 ? -1 : 1);
    n += 1;
    ask(next);
  };
  next();
});
"""


@contextmanager
def page_in_browser(path: Path, width: int = 1400, canvas: str | None = None) -> Iterator[Any]:
    """Open a page in Chromium. If `canvas` is the selector of a canvas, record its frames."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": width, "height": _HEIGHT})
        if canvas is not None:
            page.add_init_script(_WATCH.replace("CANVAS", canvas))
        page.goto(path.as_uri())
        yield page
        browser.close()


def frames_of(page: Any, frames: int, move: str) -> npt.NDArray[np.float64]:
    """Call the function `move` in each of a number of frames, with the frame's number and direction.

    Returns
    -------
    ndarray
        One row per frame that was drawn: the time of the frame, and how long drawing it took, in milliseconds.
    """
    return np.array(page.evaluate(f"(frames) => moved_(frames, {move})", frames), dtype=np.float64)


def spread(what: str, values: npt.NDArray[np.float64]) -> str:
    """Return a phrase with the median and 95th percentile of frame times in milliseconds."""
    middle, high = np.percentile(values, [50, 95])
    return f"{what}: median {middle:.1f} ms, 95th percentile {high:.1f} ms ({len(values)} frames)"


def first_paint_ms(page: Any) -> float:
    """Return the time from requesting the page until the browser first painted it, in milliseconds."""
    entries = 'performance.getEntriesByType("paint").map((each) => each.startTime)'
    page.wait_for_function(f"{entries}.length > 0")
    return float(page.evaluate(f"Math.max(...{entries})"))
