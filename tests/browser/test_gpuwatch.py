"""``%gpuwatch`` in JupyterLab: it draws while a cell runs, and a saved notebook shows the history without a kernel."""

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
START_MS = 120_000
CELLS = [
    f"import sys, time\nsys.path.insert(0, {str(REPOSITORY)!r})\n%load_ext perfnb\n%gpuwatch --interval 0.1 --into w",
    # Goes on until the test has seen it drawn.
    "import os\nwhile not os.path.exists('seen'):\n    time.sleep(0.05)\n    sum(range(300_000))",
    "time.sleep(1.0)",
]


@pytest.mark.smoke
def test_the_panel_draws_while_a_cell_runs_and_leaves_its_history(page: Page, jupyterlab: JupyterLab) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    path = jupyterlab.root / "watching.ipynb"
    kernel = {"name": "python3", "display_name": "Python 3"}
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)

    page.goto(jupyterlab.page_of(path.name))
    expect(page.get_by_text("| Idle")).to_be_visible(timeout=START_MS)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).first.click()
    panel, twin = page.locator("article.perfnb"), page.locator(".perfnb-static")
    expect(panel).to_be_visible(timeout=START_MS)
    expect(twin).to_be_hidden()
    line = panel.locator('[data-chart="cpu"] path.pf-watch-line').first
    expect(line).to_have_attribute("d", _longer_than(60), timeout=START_MS)
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")  # the status bar may say Idle for the messages in between
    expect(prompts.nth(1)).to_have_text("[*]:")  # it drew while the cell ran
    before = line.get_attribute("d") or ""
    expect(line).to_have_attribute("d", _longer_than(len(before) + 20))
    panel.get_by_role("button", name="Pause").click()
    expect(panel.get_by_role("status")).to_have_text("paused")
    (jupyterlab.root / "seen").touch()
    expect(prompts.nth(2)).to_have_text(re.compile(r"\[\d+\]:"), timeout=START_MS)
    panel.get_by_role("button", name="Resume").click()
    expect(panel.get_by_role("status")).to_have_text("watching")

    _save(page)
    page.reload()  # the kernel continues: a page that is opened anew shows the history
    expect(panel).to_be_visible(timeout=START_MS)
    expect(line).to_have_attribute("d", _longer_than(len(before)))

    _run_in_last_cell(page, "w.stop()")
    expect(panel.get_by_role("region", name="Verdict")).to_be_visible(timeout=START_MS)
    _run_in_last_cell(page, "w  # JupyterLab no longer knows where the output was that is to be brought up to date")
    expect(panel).to_have_count(2, timeout=START_MS)
    _save(page)
    outputs = json.loads(path.read_text("utf-8"))["cells"][-1]["outputs"]
    static = "".join(outputs[0]["data"]["text/html"])
    assert "<svg" in static
    assert "cell 2" in static

    end_kernels(jupyterlab.url)
    page.reload()
    expect(twin.last).to_be_visible(timeout=START_MS)
    expect(twin.last.get_by_role("img").first).to_be_visible()
    expect(panel).to_have_count(0)


def _save(page: Page) -> None:
    page.keyboard.press("Control+s")
    expect(page.locator(".jp-mod-current.jp-mod-dirty")).to_have_count(0)


def _longer_than(length: int) -> re.Pattern[str]:
    return re.compile(f"^.{{{length},}}$")


def _run_in_last_cell(page: Page, code: str) -> None:
    cell = page.locator(".jp-CodeCell").last
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+End")
    page.keyboard.press("Enter")
    page.keyboard.type(code)
    page.keyboard.press("Control+Enter")
