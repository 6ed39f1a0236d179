"""The roofline in a browser."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import expect

from perfnb.draw.live import document_page
from perfnb.roofline.tab import roofline_document
from tests.browser.conftest import OpenPage
from tests.roofline import roofline_samples

pytestmark = pytest.mark.browser


@pytest.mark.smoke
def test_points_lie_under_their_roof_and_select_their_layer(open_page: OpenPage) -> None:
    made = roofline_samples.two_roofs()
    page = open_page(document_page(roofline_document(made)), viewport={"width": 1200, "height": 900})
    by_name = made.points.set_index("name")

    def place(name: str) -> tuple[float, float]:
        box = page.locator(f'circle.pf-point:has(title:text-matches("^{name}:"))').first.bounding_box()
        assert box is not None
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    names = ("model.head", "model.blocks.0.ln_1", "model.blocks.1.mlp.gelu")
    (x0, y0), (x1, y1), (x2, y2) = map(place, names)
    logs = [[math.log10(by_name.loc[name, c]) for c in ("intensity", "achieved_flops_per_s")] for name in names]
    (a0, b0), (a1, b1), (a2, b2) = logs
    assert (x1 - x0) / (a1 - a0) == pytest.approx((x2 - x0) / (a2 - a0), rel=0.02)
    assert (y1 - y0) / (b1 - b0) == pytest.approx((y2 - y0) / (b2 - b0), rel=0.02)
    lines = page.locator(".pf-roof-line")
    expect(lines).to_have_count(2)
    dashes = lines.evaluate_all("(lines) => lines.map((line) => line.getAttribute('stroke-dasharray'))")
    assert len(set(dashes)) == 2
    expect(page.get_by_role("article").get_by_text("bfloat16: 612 TFLOP/s")).to_be_visible()
    page.locator('circle.pf-point:has(title:text-matches("^model.head:"))').click()
    expect(page.get_by_role("row", name="model.head")).to_have_attribute("aria-selected", "true")
