"""A comparison of architectures in a browser: a metric is chosen, and layers open."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

from perfnb.draw.live import document_page
from tests.browser.conftest import OpenPage
from tests.models import architecture_samples as samples

pytestmark = pytest.mark.browser


@pytest.fixture
def compared(open_page: OpenPage) -> Page:
    return open_page(document_page(samples.three()._document()), viewport={"width": 900, "height": 900})


@pytest.mark.smoke
def test_a_metric_orders_anew(compared: Page) -> None:
    labels = compared.locator(".pf-bar-label")
    expect(labels).to_have_text(["mlp", "cnn", "transformer"] * 2)
    lengths = compared.locator(".pf-bar-track .pf-phases").evaluate_all(
        "(bars) => bars.slice(0, 3).map((bar) => bar.getBoundingClientRect().width)"
    )
    times = samples.three().table["median_ms"].astype(float)
    assert [length / lengths[2] for length in lengths] == pytest.approx(list(times / times.iloc[2]), rel=0.02)

    compared.get_by_role("button", name="FLOPs per step").click()

    expect(labels).to_have_text(["cnn", "mlp", "transformer"])
    ratios = compared.get_by_role("table", name="FLOPs per step against cnn")
    expect(ratios.get_by_role("row").nth(2)).to_contain_text("3.00 ×")


def test_layers_of_all_architectures_open(compared: Page) -> None:
    tree = compared.get_by_role("treegrid", name="Layers side by side: time")
    expect(tree.locator("tbody")).to_contain_text("blocks")
    expect(tree.locator("tbody")).not_to_contain_text("attention")
    compared.get_by_role("button", name="Open all").click()
    expect(tree.locator("tbody")).to_contain_text("attention")
