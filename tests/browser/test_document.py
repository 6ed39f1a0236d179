"""What every live view does, whatever its result: charts, tools, links, and what is kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

from perfnb.draw import escape
from perfnb.draw.live import assets_of, document_page, widget_data
from perfnb.profile.report import report_document
from tests import summaries
from tests.browser.conftest import OpenPage
from tests.draw.document_samples import DOCUMENTS, everything
from tests.timeline import timeline_samples

pytestmark = pytest.mark.browser

#: A notebook's model, as anywidget gives it to a view.
WIDGET = """
const held = (name) => document.getElementById(name)?.textContent;
documentWidget.render({ model: { get: held }, el: document.querySelector("main") });
"""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_result_is_drawn_and_runs_nothing(open_page: OpenPage, name: str) -> None:
    page = open_page(document_page(DOCUMENTS[name]()), viewport={"width": 1000, "height": 800})
    expect(page.locator("article.perfnb")).to_be_visible()
    for tab in page.get_by_role("tab").all():
        tab.click()
    expect(page.locator(".perfnb-static-page")).to_be_hidden()
    assert page.locator("article img[onerror], article script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def opened(open_page: OpenPage) -> Page:
    return open_page(document_page(everything()), viewport={"width": 1200, "height": 900})


@pytest.mark.smoke
def test_every_kind_of_section_has_its_figures(open_page: OpenPage) -> None:
    page = opened(open_page)
    expect(page.get_by_role("region", name="Verdict")).to_contain_text("Bound by block.0: up to 1.5 ms")
    expect(page.locator("header .pf-main")).to_contain_text("12.3 ms")
    expect(page.locator("header .pf-main")).to_contain_text("[12.1, 12.6]")
    region = {
        name: page.get_by_role("region", name=name) for name in ("Two sides on one scale", "Time of a step", "Traffic")
    }
    expect(region["Two sides on one scale"]).to_contain_text("2.50 ms")
    expect(region["Time of a step"].get_by_role("row", name="block.0").first).to_contain_text("0.540 × [0.510, 0.570]")
    expect(region["Traffic"]).to_contain_text("1.86 GiB/s")
    expect(page.get_by_role("img", name="Memory over steps")).to_be_visible()
    expect(page.get_by_role("region", name="Pairs").locator("circle")).to_have_count(3)
    longer, shorter = (
        bar.bounding_box()["width"] for bar in region["Two sides on one scale"].locator(".pf-phases").all()
    )
    assert shorter / longer == pytest.approx(2.5 / 12.3, abs=0.01)


def test_a_row_leads_to_its_row_in_another_section(open_page: OpenPage) -> None:
    page = opened(open_page)
    kernels = page.get_by_role("region", name="Kernels")
    kernels.locator("tr[data-row]").first.click()
    kernels.get_by_role("button", name="block.0").last.click()
    layers = page.get_by_role("region", name="Layers", exact=True)
    expect(layers.locator("tr[aria-selected=true]")).to_contain_text("block.0")


def test_an_alternative_takes_the_place_of_another(open_page: OpenPage) -> None:
    page = opened(open_page)
    choice = page.get_by_role("region", name="By metric")
    expect(choice.locator("code")).to_have_text("by = 1.5")
    choice.get_by_role("button", name="block.0").click()
    expect(choice.locator("code")).to_have_text("by = 2.5")
    expect(choice.get_by_role("button", name="block.0")).to_have_attribute("aria-pressed", "true")


def test_code_is_copied_with_its_lines(open_page: OpenPage) -> None:
    page = open_page(document_page(everything()), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("region", name="Lines to copy").get_by_role("button", name="Copy the code").click()
    expect(page.get_by_text("copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "for x in loader:\n    train(x)  # block.0"


def test_a_phase_sorts_the_layers(open_page: OpenPage) -> None:
    page = open_page(document_page(report_document(summaries.small_cnn())), viewport={"width": 1400, "height": 900})
    page.get_by_role("tab", name=re.compile("^Ops")).click()
    page.locator(".pf-legend").get_by_role("button", name="backward").click()
    expect(page.get_by_role("tab", name=re.compile("^Layers"))).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("columnheader", name="backward")).to_have_attribute("aria-sort", "descending")


def test_a_page_that_is_loaded_again_shows_the_same_tab(open_page: OpenPage) -> None:
    page = open_page(document_page(report_document(summaries.small_cnn())), viewport={"width": 1400, "height": 900})
    page.get_by_role("tab", name=re.compile("^Ops")).click()
    page.reload()
    expect(page.get_by_role("tab", name=re.compile("^Ops"))).to_have_attribute("aria-selected", "true")


def test_a_widget_is_saved_as_a_page_that_works_alone(open_page: OpenPage, tmp_path: Path) -> None:
    document = report_document(summaries.small_cnn())
    module, css = assets_of(document)
    parts = {"data": escape.json_in_script(widget_data(document, "a1")), "_esm": module, "_css": css}
    held = "".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in parts.items())
    script = module.replace("export default documentWidget;\n", WIDGET)
    twin = '<div class="perfnb-static-a1"><p>the static twin</p></div>'
    page = open_page(f"<!DOCTYPE html><title>a</title>{twin}<main></main>{held}<script type=module>{script}</script>")

    with page.expect_download() as download:
        page.get_by_role("button", name="Save this view").click()

    saved = download.value.path().read_text("utf-8")
    assert "the static twin" in saved
    again = open_page(saved, viewport={"width": 1400, "height": 900})
    expect(again.locator("article.perfnb")).to_contain_text("small CNN")
    expect(again.get_by_role("button", name="Save this view")).to_have_count(0)
    expect(again.get_by_text("the static twin")).to_be_hidden()


def test_a_timeline_travels_with_a_page(open_page: OpenPage) -> None:
    packed = timeline_samples.step()
    document = report_document(summaries.small_cnn(), None, timeline_samples.facts_of(packed))
    page = open_page(document_page(document, packed), viewport={"width": 1400, "height": 900})
    page.get_by_role("tab", name=re.compile("^Timeline")).click()
    expect(page.locator(".pf-canvas")).to_be_visible()
