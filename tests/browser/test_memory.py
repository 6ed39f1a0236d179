"""The memory view in a browser: what is drawn, and what pointer and keys find there."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

from perfnb import quantities as fmt
from perfnb.draw import assets, escape
from perfnb.draw.palette import CATEGORIES
from perfnb.memory.tab import curve_data
from tests.browser.conftest import OpenPage
from tests.memory import memory_samples
from tests.pages import spaced
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

START = """
const data = JSON.parse(document.getElementById("data").textContent);
const began = performance.now();
const tab = KIND(data);
document.querySelector("main").append(h("article", { class: "perfnb" }, tab.element));
document.body.getBoundingClientRect();
document.body.dataset.drawnMs = performance.now() - began;
"""

#: The area of a category.
AREA = ".pf-plot path[fill]:not(pattern path)"
#: Where a shape lies on the page, its stroke not counted.
SHAPE = """(shape) => {
  const [{ x, y, width, height }, page] = [shape.getBBox(), shape.ownerSVGElement.getBoundingClientRect()];
  return { x: x + page.left, y: y + page.top, width, height };
}"""

Open = Callable[..., Page]


def standalone(kind: str, data: dict[str, Any]) -> str:
    """Return a page with one tab and nothing else, under the policy that a report has."""
    script = assets.script("memory/js/memory.js") + START.replace("KIND", kind)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{kind}</title><style>:root{{color-scheme:light dark}}body{{margin:0}}{assets.style()}</style>"
        "<main></main>"
        f'<script type="application/json" id="data">{escape.json_in_script(data)}</script>'
        f'<script type="module">{script}</script>'
    )


@pytest.fixture
def opened(open_page: OpenPage) -> Open:
    """Open a tab on a separate page."""

    def open_(kind: str, data: dict[str, Any], **options: Any) -> Page:
        page = open_page(standalone(kind, data), **{"viewport": {"width": 1300, "height": 900}, **options})
        expect(page.locator("article")).to_be_visible()
        return page

    return open_


def memory(opened: Open, made: memory_samples.Memory, **options: Any) -> Page:
    return opened("memoryCurve", curve_data(made), **options)


def alive(page: Page) -> list[tuple[str, str]]:
    """Return the listed allocations: name and size."""
    rows = page.get_by_role("table", name="Largest allocations alive").locator("tbody tr").all()
    return [(row.locator(".pf-name").inner_text(), spaced(row.locator("td").last.inner_text())) for row in rows]


def alive_at(made: memory_samples.Memory, ms: float) -> list[tuple[str, str]]:
    """Return what must be listed at an instant, by hand."""
    rows = made.largest
    rows = rows[(rows["start_ms"] <= ms) & ((rows["end_ms"] > ms) | (rows["end_ms"] >= made.step_ms))]
    rows = rows.sort_values("bytes", ascending=False).head(8)
    names = rows["name"].fillna(rows["layer"]).fillna("no layer")
    return list(zip(names, map(fmt.size, rows["bytes"]), strict=True))


@pytest.mark.smoke
def test_an_area_for_each_category_reaches_the_peak(opened):
    made = memory_samples.transformer()
    page = memory(opened, made)
    areas = page.locator(AREA)
    expect(page.locator(".pf-legend").first.locator("li")).to_have_text([mark.word for mark in CATEGORIES.values()])
    boxes = {name: area.evaluate(SHAPE) for name, area in zip(CATEGORIES, areas.all(), strict=True)}
    per_pixel = made.timeline["parameters"].max() / boxes["parameters"]["height"]
    bottom = boxes["parameters"]["y"] + boxes["parameters"]["height"]
    top = min(box["y"] for box in boxes.values())
    assert (bottom - top) * per_pixel == pytest.approx(made.peak_bytes, rel=0.002)
    expect(page.locator(".pf-halo")).to_have_text("peak at 173 ms")


def test_patterns_and_words_tell_the_categories_apart(opened):
    page = memory(opened, memory_samples.transformer())
    fills = page.locator(AREA).evaluate_all("(paths) => paths.map((path) => path.getAttribute('fill'))")
    assert len(set(fills)) == len(CATEGORIES)
    assert sum(fill.startswith("url(#") for fill in fills) == 5
    for fill in filter(lambda fill: fill.startswith("url"), fills):
        assert page.locator(f"pattern{fill[4:-1]}").count() == 1
    expect(page.locator(".pf-legend").first).to_contain_text(re.compile("parameters.*gradients.*optimizer state"))


def test_phases_stand_below(opened):
    made = memory_samples.transformer()
    page = memory(opened, made)
    strips = page.locator(".pf-span rect")
    expect(strips).to_have_count(len(made.phases))
    expect(page.locator(".pf-span text")).to_have_text(["data", "forward", "backward", "optimizer"])
    forward = made.phases[made.phases["phase"] == "forward"].iloc[0]
    plot = page.locator(AREA).first.evaluate(SHAPE)
    box = strips.nth(2).bounding_box()
    assert box["x"] - plot["x"] == pytest.approx(forward["start_ms"] / made.step_ms * plot["width"], abs=2)


def test_what_is_alive_at_the_peak_is_shown_first(opened):
    made = memory_samples.transformer()
    page = memory(opened, made)
    expect(page.locator(".pf-alive h3")).to_have_text("At the peak")
    assert alive(page) == alive_at(made, made.peak_ms)


@pytest.mark.parametrize("part", [0.03, 0.2, 0.55, 0.97])
def test_a_press_lists_the_largest_of_that_instant(opened, part):
    made = memory_samples.transformer()
    page = memory(opened, made)
    plot = page.locator(AREA).first.evaluate(SHAPE)
    x = plot["x"] + part * plot["width"]
    page.mouse.click(x, plot["y"] - 60)
    expect(page.locator(".pf-alive h3")).to_have_text("At this instant")
    at = int(page.get_by_role("slider").get_attribute("aria-valuenow"))
    times = list(made.timeline["t_ms"])
    assert times[at] <= (x - plot["x"]) / plot["width"] * made.step_ms + 1e-6
    assert alive(page) == alive_at(made, times[at])
    shown = [spaced(entry.inner_text()) for entry in page.locator(".pf-alive .pf-legend li > .pf-quiet").all()]
    amounts = [made.timeline[name].iloc[at] for name in CATEGORIES]
    assert shown == [fmt.size(amount) for amount in amounts if amount]
    page.get_by_role("button", name="back to the peak").click()
    expect(page.locator(".pf-alive h3")).to_have_text("At the peak")
    expect(page.get_by_role("slider")).to_be_focused()


def test_dragging_moves_the_instant_and_a_passing_pointer_does_not(opened):
    page = memory(opened, memory_samples.transformer())
    plot = page.locator(AREA).first.evaluate(SHAPE)
    now = lambda: int(page.get_by_role("slider").get_attribute("aria-valuenow"))  # noqa: E731
    page.mouse.move(plot["x"] + 0.3 * plot["width"], plot["y"])
    page.mouse.down()
    pressed = now()
    page.mouse.move(plot["x"] + 0.8 * plot["width"], plot["y"])
    page.mouse.up()
    dragged = now()
    assert dragged > pressed
    page.mouse.move(plot["x"] + 0.1 * plot["width"], plot["y"])
    assert now() == dragged


def test_keys_move_the_instant(opened):
    made = memory_samples.transformer()
    page = memory(opened, made)
    slider = page.get_by_role("slider", name="Instant of the step")
    peak, last = list(made.timeline["t_ms"]).index(made.peak_ms), len(made.timeline) - 1
    slider.focus()
    leap = round(last / 20)
    for key, at in (
        ("ArrowRight", peak + 1),
        ("ArrowLeft", peak),
        ("ArrowLeft", peak - 1),
        ("PageUp", peak - 1 + leap),
        ("PageDown", peak - 1),
        ("Home", 0),
        ("ArrowLeft", 0),
        ("End", last),
        ("Escape", peak),
    ):
        page.keyboard.press(key)
        expect(slider).to_have_attribute("aria-valuenow", str(at))
        assert alive(page) == alive_at(made, made.timeline["t_ms"].iloc[at])
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"^173 ms, backward, 1\.24 GiB alive$"))


def test_a_failed_step_says_so(opened):
    page = memory(opened, memory_samples.out_of_memory())
    expect(page.locator(".pf-alive h3")).to_have_text("At the failure")
    expect(page.locator(".pf-halo")).to_have_text("failure at 133 ms")


def test_a_hundred_thousand_allocations_are_drawn(opened):
    for life_ms in (60.0, 0.3):
        page = memory(opened, memory_samples.many(100_000, life_ms))
        expect(page.locator(AREA)).to_have_count(len(CATEGORIES))
        expect(page.locator(".pf-alive tbody tr")).to_have_count(8)
        print(f"drawn in {float(page.evaluate('document.body.dataset.drawnMs')):.0f} ms")


def test_the_chart_follows_its_width(opened):
    page = memory(opened, memory_samples.transformer())
    before = page.locator(".pf-plot svg").bounding_box()["width"]
    page.set_viewport_size({"width": 700, "height": 900})
    expect(page.locator(".pf-plot svg")).to_have_attribute("width", re.compile(r"^6\d\d$"))
    wait_until(lambda: page.locator(".pf-plot svg").bounding_box()["width"] < before)
    page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")


def test_the_last_instant_has_its_total(opened):
    made = memory_samples.transformer()
    page = memory(opened, made)
    slider = page.get_by_role("slider")
    slider.focus()
    page.keyboard.press("End")
    last = made.timeline["total"].iloc[-1]
    expect(slider).to_have_attribute("aria-valuetext", re.compile(f"{fmt.size(last)} alive$"))
