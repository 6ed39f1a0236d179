"""The tab of the machine in a report: charts over passes and phases, and the numbers as Python writes them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

from perfnb.profile.display import standalone_page
from perfnb.watching.summary import MachineSummary
from tests import summaries
from tests.browser.conftest import OpenPage
from tests.browser.test_report import CONTRAST
from tests.watching import watch_samples as samples

pytestmark = pytest.mark.browser

Open = Callable[..., Page]


def page_of(machine: MachineSummary) -> str:
    parts = {"machine": machine}
    analysis: Any = SimpleNamespace(part=lambda key, compute: parts.get(key))
    return standalone_page(replace(summaries.small_cnn(), analysis=analysis))


@functools.cache
def usual_page() -> str:
    """Made once for all tests."""
    return page_of(samples.profiled())


@pytest.fixture
def tab(open_page: OpenPage) -> Open:
    """Open the tab in a report."""

    def open_(made=None, **options) -> Page:
        html = page_of(made) if made else usual_page()
        page = open_page(html, **{"viewport": {"width": 1300, "height": 1200}, **options})
        page.get_by_role("tab", name="Machine").click()
        return page

    return open_


def zoomed(page: Page) -> None:
    """From 0:31 on, when the traced steps ran."""
    page.get_by_role("slider", name="Time shown").focus()
    for key in ("+", "+", "+", "+", *["PageUp"] * 9):
        page.keyboard.press(key)


@pytest.mark.smoke
def test_the_whole_capture_is_shown_with_its_passes(tab):
    page = tab()
    expect(page.locator(".pf-watch-chart:visible")).to_have_count(11)
    bands = page.locator(".pf-watch-band:visible")
    expect(bands.locator("text")).to_have_text(["warm-up", "timed", "traced", "counted"])
    expect(bands.nth(1).locator("title")).to_have_text("timed: 0:06.2 to 0:30.0, 30 steps")
    expect(page.get_by_role("slider", name="Time shown")).to_have_attribute("aria-valuetext", re.compile("the whole$"))
    expect(page.get_by_role("button", name="Reset zoom")).to_be_disabled()


def test_phases_show_where_zoomed_in(tab):
    page = tab()
    strips = page.locator("[data-chart=cpu] svg rect:visible")
    expect(strips).to_have_count(0)
    expect(page.locator(".pf-machine > .pf-legend")).to_contain_text("zoom in on the strip below")
    zoomed(page)
    expect(page.locator(".pf-machine > .pf-legend")).to_contain_text("lighter: estimated from the traced steps")
    # The strips follow one after the other as the window moves.
    page.wait_for_function(
        """() => {
          const shown = (one) => one.checkVisibility() && one.getBoundingClientRect().width > 0;
          const rects = [...document.querySelectorAll("[data-chart=cpu] svg rect")].filter(shown);
          const looks = (name) => new Set(rects.map((one) => one.getAttribute(name)));
          const opacities = [...looks("opacity")].sort().join(" ");
          return rects.length > 8 && opacities === "0.5 1" && looks("fill").size === 6;
        }"""
    )
    plot = page.locator("[data-chart=cpu] .pf-plot")
    plot.focus()
    page.keyboard.press("End")
    expect(page.locator(".pf-watch-at")).to_have_text(re.compile(r"^at 0:3\d\.\d · traced · \w+"))
    page.get_by_role("button", name="Reset zoom").click()
    expect(strips).to_have_count(0)


def test_means_in_each_phase(tab):
    page = tab()
    table = page.get_by_role("region", name="Mean in each phase")
    heads = ["data", "host to device", "forward", "loss", "backward", "optimizer"]
    found = [head.strip() for head in table.locator("thead th").all_inner_texts()]
    assert found == ["device", "metric", *heads]
    row = table.get_by_role("row").filter(has_text="power")
    for figure in ("612 W", "575 W", "539 W", "520 W"):
        expect(row).to_contain_text(figure)
    expect(row.locator(".pf-unknown")).to_have_count(2)


def test_charts_below_the_window_are_drawn(tab):
    page = tab(viewport={"width": 420, "height": 300})
    lines = page.locator("[data-chart=network] path.pf-watch-line")
    expect(lines.first).to_have_attribute("d", re.compile("L"))
    assert lines.first.bounding_box()["y"] > 300
    expect(page.get_by_text("No readings yet.")).to_be_hidden()


def test_a_watch_without_steps_is_drawn(tab):
    page = tab(replace(samples.profiled(), steps=None))
    expect(page.locator(".pf-watch-chart:visible")).to_have_count(11)
    expect(page.get_by_text("Mean in each phase")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1300])
def test_text_stands_out_and_nothing_is_cut_off(tab, width, scheme):
    page = tab(color_scheme=scheme, viewport={"width": width, "height": 900})
    zoomed(page)
    low = page.evaluate(CONTRAST)
    assert low["checked"] > 60
    assert low["ratio"] >= 4.5, low
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = """(texts) => texts.map((text) => [text.getBoundingClientRect(), text.textContent])
        .filter(([box]) => box.left < 0 || box.right > innerWidth).map(([, words]) => words)"""
    assert page.locator(".pf-machine svg text").evaluate_all(outside) == []
