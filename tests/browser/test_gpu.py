"""The tab of the GPU in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import expect

from perfnb.profile.display import standalone_page
from tests.browser.conftest import OpenPage
from tests.gpu import gpu_samples as samples

pytestmark = pytest.mark.browser


@pytest.mark.smoke
def test_a_kernel_leads_to_the_layers_that_launch_it(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(standalone_page(samples.summary_of(samples.two_gpus(), tmp_path)))
    page.get_by_role("tab", name="GPU").click()
    kernels = page.get_by_role("region", name="Kernels, copies and fills")
    kernels.get_by_role("row", name="aten::mm 16").click()

    details = kernels.get_by_role("complementary", name="Details")
    expect(details).to_contain_text("16 × 4, 4 × 8")
    expect(details.get_by_role("table", name="Layers that launch it")).to_contain_text("0.100 ms")
    details.get_by_role("button", name="Net_0").click()

    expect(page.get_by_role("tab", name="Layers")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("row", name="Net_0")).to_have_attribute("aria-selected", "true")
