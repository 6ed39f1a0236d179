"""Pages that hold the live panel of a watch, without a notebook: what a kernel would send comes from the test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from playwright.sync_api import Page

from perfnb.analysis.machine import MachineSummary
from perfnb.views import assets, escape
from perfnb.views.watch_data import watch_data
from perfnb.views.widget import WatchWidget

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
    """A page that shows one panel, as anywidget would show it."""
    return (
        '<!DOCTYPE html><meta charset="utf-8"><title>watch</title>'
        f"<style>:root{{color-scheme:light dark}}body{{margin:0}}{assets.watch_style()}</style>"
        '<div class="perfnb-static perfnb-static-x">twin</div><main></main>'
        f'<script type="application/json" id="data">{escape.json_in_script(data)}</script>'
        f'<script type="module">{assets.watch_script()}{START}</script>'
    )


class Panel:
    """A panel in a page and the widget that a kernel would hold; what the widget sets arrives in the page."""

    def __init__(self, page: Page, made: MachineSummary) -> None:
        self.page = page
        self.widget = WatchWidget(watch_data(made, "x"), lambda: watch_data(made, "x"))

    def push(self, rows: Iterable[Any], marks: Any = None, note: str | None = None) -> None:
        """What a thread of the kernel does."""
        self.widget.push(rows, marks, note)
        self.page.evaluate("(chunk) => arrived({ chunk })", self.widget.chunk)

    def finish(self, made: MachineSummary) -> None:
        """What stopping the watch does."""
        self.widget.finish(watch_data(made, "x"))
        self.page.evaluate("(data) => arrived({ data })", self.widget.data)

    @property
    def data(self) -> dict[str, Any]:
        """What the widget holds at first."""
        found: dict[str, Any] = json.loads(self.widget.data)
        return found
