"""The tab of the GPU in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

from perfnb.profile.display import standalone_page
from tests import summaries
from tests.browser.conftest import OpenPage
from tests.gpu import gpu_samples as samples
from tests.written_traces import Written

pytestmark = pytest.mark.browser


@pytest.fixture
def tab(open_page: OpenPage, tmp_path: Path):
    """Opens the tab of the GPU of a trace."""

    def open_(trace: Written, **options: object) -> Page:
        page = open_page(standalone_page(samples.summary_of(trace, tmp_path)), **options)
        page.get_by_role("tab", name="GPU").click()
        return page

    return open_


@pytest.mark.smoke
def test_the_tab_shows_what_the_gpus_did(tab):
    page = tab(samples.two_gpus(), viewport={"width": 1400, "height": 900})

    did = page.get_by_role("region", name="GPU time")
    # From 30 to 2280: computing 107 in each of three steps.
    expect(
        did.get_by_role("img", name="GPU 0: computation 0.321 ms, 14 %; communication 0.150 ms, 6.7 %")
    ).to_be_visible()
    expect(did.get_by_role("img", name="GPU 1: computation 0.870 ms, 36 %")).to_be_visible()
    expect(did.get_by_role("img", name="step 5, GPU 1: computation 0.290 ms")).to_be_visible()
    path = page.get_by_role("region", name="Critical path")
    expect(path.locator("h3")).to_have_text("Critical path of step 5, the median of 3 steps: 1.00\xa0ms")
    expect(path.get_by_role("table", name="Critical path by kind")).to_contain_text("host between ops")
    expect(page.get_by_role("region", name="Launches")).to_contain_text("Launch to start")
    chart = page.get_by_role("img", name="Length of the queue of GPU 0")
    box = chart.bounding_box()
    assert box is not None
    assert box["width"] > 800
    chart.hover(position={"x": 50, "y": 40})
    expect(page.locator(".pf-gpu-tip").first).to_contain_text(" queued on average, 1 at most, 0 ms to")


def test_kernels_are_searched_and_told_in_full(tab):
    page = tab(samples.two_gpus())
    rows = page.locator("[aria-label=Kernels] tr[data-row]")
    everything = rows.count()

    page.get_by_placeholder("Search kernels").fill("16 × 4")

    expect(rows).to_have_count(1)
    assert everything > 3
    rows.first.click()
    details = page.locator("[aria-label=Kernels] [aria-label=Details]")
    expect(details).to_contain_text("Input shapes 16 × 4, 4 × 8")
    expect(details).to_contain_text("Kernel: gemm")


def test_hostile_names_do_nothing(tab):
    page = tab(samples.hostile(), viewport={"width": 800, "height": 900}, color_scheme="dark")

    assert page.evaluate("window.__pwned") is None
    for row in page.locator("[aria-label=Kernels] tr[data-row]").all()[:4]:
        row.click()
    assert page.locator("article img, article svg[onload], article script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 800


def test_without_a_gpu_there_is_no_tab(open_page: OpenPage):
    page = open_page(standalone_page(summaries.small_cnn()))

    expect(page.get_by_role("tab", name="Layers")).to_be_visible()
    expect(page.get_by_role("tab", name="GPU")).to_have_count(0)
