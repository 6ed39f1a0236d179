"""The quickstart in JupyterLab, as a new user runs it: the report that it makes can be read and handled."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import JupyterLab
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1200)]

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
START_MS, RUN_MS = 120_000, 600_000
#: Where to keep pictures to look at, if anywhere.
PICTURES = os.environ.get("PERFNB_PICTURES")


@pytest.fixture
def notebook(page: Page, jupyterlab: JupyterLab) -> Page:
    """Return the quickstart, without its saved outputs, run from top to bottom."""
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    book = nbformat.read(QUICKSTART, 4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.source = cell.source.replace("budget_s=6", "budget_s=2")  # a wider interval will do here
    nbformat.write(book, jupyterlab.root / "quickstart.ipynb")
    page.goto(jupyterlab.page_of("quickstart.ipynb"))
    expect(page.get_by_text("| Idle")).to_be_visible(timeout=START_MS)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).first.click()
    return page


def test_the_quickstart_shows_a_report_that_can_be_handled(notebook: Page) -> None:
    report = notebook.locator("article.perfnb").first
    expect(report).to_be_visible(timeout=RUN_MS)
    expect(report).to_contain_text("digits, cleaned each time")
    expect(report).to_contain_text("backward")
    for theme in ("Light", "Dark"):
        _choose_theme(notebook, theme)
        report.scroll_into_view_if_needed()
        _opens_and_closes(report)
        _sorts(report)
        _searches(report)
        _switches_tabs(report)
        _is_readable(report)
        if PICTURES:
            report.screenshot(path=f"{PICTURES}/quickstart-{theme.lower()}.png")
    # The whole notebook ran: its last cell states that a saved profile came back unchanged.
    last = notebook.locator(".jp-Notebook .jp-CodeCell").last
    last.scroll_into_view_if_needed()
    expect(last.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]"), timeout=RUN_MS)  # it has run
    expect(last.locator(".jp-OutputArea-executeResult")).to_contain_text("True")
    expect(notebook.locator('[data-mime-type="application/vnd.jupyter.error"]')).to_have_count(0)


def _choose_theme(page: Page, theme: str) -> None:
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.locator(".lm-Menu-item", has_text=re.compile("^Theme$")).hover()
    page.locator(".lm-Menu-item", has_text=re.compile(f"^JupyterLab {theme}$")).click()
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", str(theme == "Light").lower())
    page.keyboard.press("Escape")


def _row(report: Locator, name: str) -> Locator:
    return report.get_by_role("treegrid").locator(f'tr:has(th[title^="{name}"], td[title^="{name}"])').first


def _opens_and_closes(report: Locator) -> None:
    rows = report.get_by_role("treegrid").get_by_role("row")
    report.get_by_role("button", name="Close all").click()
    closed = rows.count()
    report.get_by_role("button", name="Open all").click()
    wait_until(lambda: rows.count() > closed + 8)
    model = report.locator('tr[aria-level="1"]').first
    expect(model).to_have_attribute("aria-expanded", "true")
    model.locator("[class*=twist]").first.click()
    expect(model).to_have_attribute("aria-expanded", "false")
    expect(rows).to_have_count(closed)
    report.get_by_role("button", name="Open all").click()


def _sorts(report: Locator) -> None:
    header = report.get_by_role("columnheader", name="backward", exact=True)
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", re.compile("ascending|descending"))
    header.get_by_role("button").click()
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "none")


def _searches(report: Locator) -> None:
    box = report.get_by_role("searchbox").first
    box.fill("BatchNorm")
    expect(report.get_by_role("treegrid")).to_contain_text("BatchNorm2d")
    expect(report.get_by_role("treegrid")).not_to_contain_text("MaxPool2d")
    box.fill("")
    expect(report.get_by_role("treegrid")).to_contain_text("MaxPool2d")


def _switches_tabs(report: Locator) -> None:
    report.get_by_role("tab", name=re.compile("^Ops")).click()
    expect(report.get_by_role("tabpanel")).to_contain_text("aten::")
    report.get_by_role("tab", name=re.compile("^Layers")).click()
    expect(report.get_by_role("treegrid")).to_be_visible()


def _is_readable(report: Locator) -> None:
    """Text stands out from its ground by at least 4.5 to 1 (WCAG 2.2, 1.4.3)."""
    ratios = report.evaluate(
        """(root) => {
          const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
          const parts = (text) => {
            const numbers = text.match(/-?[\\d.]+(e-?\\d+)?/g).map(Number);
            return text.startsWith("color(") ? numbers.map((v, i) => i < 3 ? v * 255 : v) : numbers;
          };
          const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
          const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
          const ground = (e) => {
            for (; e; e = e.parentElement) {
              const c = parts(getComputedStyle(e).backgroundColor);
              if (c.length < 4 || c[3] === 1) return c;
            }
            return [255, 255, 255];
          };
          return [...root.querySelectorAll("*")]
            .filter((e) => hasText(e) && e.offsetParent)
            .map((e) => {
              const [a, b] = [light(parts(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
              return [(a + 0.05) / (b + 0.05), e.textContent.slice(0, 40)];
            });
        }"""
    )
    assert len(ratios) > 50
    assert min(ratios)[0] >= 4.5, min(ratios)
