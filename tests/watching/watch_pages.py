"""Pages that hold the live panel of a watch, without a notebook: what a kernel would send comes from the test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from playwright.sync_api import Locator, Page, expect

from perfnb.draw import escape
from perfnb.watching.data import panel_data
from perfnb.watching.summary import MachineSummary
from perfnb.watching.view import watch_document
from perfnb.watching.widget import WatchWidget

START = """
const traits = { data: document.getElementById("data").textContent, chunk: "" };
const heard = {};
// Each caller gets a model of its own, as from anywidget; what a view listens to ends with it.
const modelFor = (caller) => ({
  get: (name) => traits[name],
  on: (event, call) => (heard[event] ??= []).push({ caller, call }),
});
window.arrived = (changed) => {
  Object.assign(traits, changed);
  for (const name of Object.keys(changed)) (heard[`change:${name}`] ?? []).forEach(({ call }) => call());
};
window.another = () => {
  const el = document.createElement("div");
  document.querySelector("main").append(el);
  const leave = watch.render({ model: modelFor(el), el });
  return () => {
    leave();
    el.remove();
    for (const event of Object.keys(heard)) heard[event] = heard[event].filter(({ caller }) => caller !== el);
  };
};
window.store = () => stores.get("x");
window.stores_left = () => stores.size;
window.sizes = () => [...store().devices.values()].map((own) => own.size);
window.destroy = watch.initialize({ model: modelFor("initialize") });
window.first = another();
"""


def panel_page(data: dict[str, Any]) -> str:
    """Return a page that shows one panel, as anywidget would show it."""
    script, style = WatchWidget._esm, WatchWidget._css
    return (
        '<!DOCTYPE html><meta charset="utf-8"><title>watch</title>'
        f"<style>:root{{color-scheme:light dark}}body{{margin:0}}{style}</style>"
        '<div class="perfnb-static perfnb-static-x">twin</div><main></main>'
        f'<script type="application/json" id="data">{escape.json_in_script(data)}</script>'
        f'<script type="module">{script}{START}</script>'
    )


class Panel:
    """A panel in a page and the widget that a kernel would hold; what the widget sets arrives in the page."""

    def __init__(self, page: Page, made: MachineSummary) -> None:
        self.page = page
        self.widget = WatchWidget(lambda: panel_data(made, "x"))

    def push(self, rows: Iterable[Any], marks: Any = None, note: str | None = None) -> None:
        """What a thread of the kernel does."""
        self.widget.push(rows, marks, note)
        self.page.evaluate("(chunk) => arrived({ chunk })", self.widget.chunk)

    def finish(self, made: MachineSummary) -> None:
        """What stopping the watch does."""
        self.widget.finish(watch_document(made), "x")
        self.page.evaluate("(data) => arrived({ data })", self.widget.data)


Open = Callable[..., Panel]


def opener(open_page: Callable[..., Page]) -> Open:
    """Open a panel on a separate page."""

    def open_(made, **options) -> Panel:
        page = open_page(panel_page(panel_data(made, "x")), **{"viewport": {"width": 1000, "height": 1300}, **options})
        expect(page.locator("article").first).to_be_visible()
        panel = Panel(page, made)
        if not made.running:
            panel.finish(made)
        return panel

    return open_


def chart(page: Page, key: str) -> Locator:
    return page.locator(f'[data-chart="{key}"]').first


def value(page: Page, key: str, word: str) -> str:
    entry = chart(page, key).locator("li").filter(has_text=re.compile(f"^{word}"))
    return entry.locator("b").inner_text()


def points(page: Page, key: str, line: int = 0) -> list[tuple[float, float]]:
    """Return the points of a line, in the units of the picture."""
    path = chart(page, key).locator("path.pf-watch-line").nth(line).get_attribute("d") or ""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+),([-\d.]+)", path)]


def shown(page: Page) -> tuple[float, float]:
    """Return the time that the charts show, in seconds, from what is said of it."""
    words = page.get_by_role("slider", name="Time shown").get_attribute("aria-valuetext") or ""
    clocks = re.match(r"from ([\d:.]+) to ([\d:.]+) of", words).groups()
    return tuple(sum(float(part) * 60**i for i, part in enumerate(reversed(text.split(":")))) for text in clocks)


def settled(page: Page) -> None:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
