"""The slider of a study of sizes in a browser: it reads off time and memory at any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

from perfnb.draw import assets, escape
from perfnb.models.scaling_view import scaling_data
from perfnb.models.size_laws import scaling_figures

pytestmark = pytest.mark.browser

START = """
const model = { get: () => document.getElementById("data").textContent };
scaling.render({ model, el: document.querySelector("main") });
"""


@pytest.mark.smoke
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_slider_reads_off_a_size(page: Page, tmp_path: Path, scheme: str) -> None:
    rng = np.random.default_rng(0)
    sizes = (64, 128, 256, 512, 1024)
    samples = {size: (1e-4 * size**2 * np.exp(rng.normal(0, 0.01, 20))).tolist() for size in sizes}
    figures = scaling_figures(samples, {s: 4 * s * s for s in sizes}, dict.fromkeys(sizes), device="<b>CPU</b>")
    data = escape.json_in_script({"id": "x", **scaling_data(figures)})
    script, style = assets.script("models/js/scaling.js"), assets.style("models/js/scaling.css")
    path = tmp_path / "page.html"
    path.write_text(
        "<!DOCTYPE html><meta charset=utf-8>"
        f"<style>:root{{color-scheme:light dark}}{style}</style><main></main>"
        f'<script type="application/json" id="data">{data}</script>'
        f'<script type="module">{script}{START}</script>',
        encoding="utf-8",
    )
    said: list[str] = []
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())

    status = page.get_by_role("status")
    expect(status).to_contain_text("size 1,020: step 10")  # nearest to the largest size on the grid
    slider = page.get_by_role("slider", name="Size")
    slider.focus()
    page.keyboard.press("End")
    expect(status).to_contain_text("size 2,050: step 41")
    expect(status).to_contain_text("outside the measured sizes")
    expect(status).to_contain_text("peak memory 16.")
    expect(page.locator(".pf-scaling-point")).to_have_count(5)
    assert page.locator("main b", has_text="CPU").count() == 0
    assert said == []
