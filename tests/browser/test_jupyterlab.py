"""A report in JupyterLab: live while its kernel runs, static when the saved notebook is opened again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

from tests.browser.conftest import JupyterLab, end_kernels

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).parents[2]
SOURCE = f"""\
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from perfnb.profile.display import show
from perfnb.draw.progress import Progress
from tests import summaries
with Progress() as advance:
    advance("timed", 1, 2)
show(summaries.small_cnn())
"""
START_MS = 120_000


@pytest.mark.smoke
def test_the_live_report_hides_its_twin_and_the_twin_survives_it(page: Page, jupyterlab: JupyterLab) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    path = jupyterlab.root / "report.ipynb"
    kernel = {"name": "python3", "display_name": "Python 3"}
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SOURCE)], metadata={"kernelspec": kernel})
    nbformat.write(book, path)

    page.goto(jupyterlab.page_of(path.name))
    expect(page.get_by_text("| Idle")).to_be_visible(timeout=START_MS)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).first.click()
    live, twin = page.locator("article.perfnb"), page.locator(".perfnb-static")
    expect(live).to_be_visible(timeout=START_MS)
    expect(twin).to_be_hidden()

    live.get_by_role("row").nth(2).click()
    page.keyboard.press("ArrowDown")
    expect(live.locator("tr:focus")).to_have_attribute("aria-level", "3")
    page.keyboard.type("dd")  # on a cell, the notebook's command to delete it
    live.get_by_role("searchbox").first.press_sequentially("dd")
    expect(page.locator(".jp-CodeCell .jp-InputArea-editor")).to_contain_text("show")
    expect(live.get_by_role("searchbox").first).to_have_value("dd")

    page.keyboard.press("Control+s")
    expect(page.locator(".jp-mod-current.jp-mod-dirty")).to_have_count(0)
    outputs = json.loads(path.read_text("utf-8"))["cells"][0]["outputs"]
    assert [set(output["data"]) for output in outputs] == [
        {"text/plain", "text/html"},
        {"text/plain", "text/html"},
        {"application/vnd.jupyter.widget-view+json"},
    ]
    assert "".join(outputs[0]["data"]["text/html"]) == ""  # the progress line

    end_kernels(jupyterlab.url)
    page.reload()
    expect(twin).to_be_visible(timeout=START_MS)
    expect(page.get_by_text(re.compile("Error displaying widget|Loading widget"))).to_be_hidden(timeout=START_MS)
    expect(live).to_have_count(0)
