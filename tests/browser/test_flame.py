"""The flame graph in a browser: what pointer, keys and search find in it, and its difference of two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

import perfnb
from tests.browser.conftest import OpenPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: Names as hostile as any, and a function with two callers that also calls itself.
STACKS = "main;load (data.py:3) 30\nmain;step;relu;relu 40\nmain;<img src=x onerror=alert(1)>;relu 10\nmain 20\n"


def page_of(folder: Path, text: str = STACKS) -> str:
    (folder / "stacks.txt").write_text(text)
    profile: Any = perfnb.load(folder / "stacks.txt")
    return str(profile.to_html(folder / "page.html").read_text())


def details(page: Page) -> Any:
    return page.get_by_role("complementary", name="Flame graph details")


def drawn(page: Page) -> Any:
    canvas = page.get_by_role("application", name="Flame graph")
    expect(canvas).to_have_attribute("data-calls", "7")
    return canvas


@pytest.mark.smoke
def test_zoom_search_and_callers(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(page_of(tmp_path))
    canvas = drawn(page)
    # step is the widest call in main, so it comes first: 40 of 100 samples.
    canvas.click(position={"x": 20, "y": 18 * 1.5})
    expect(details(page)).to_contain_text("step")
    expect(details(page)).to_contain_text("40 samples (40 %)")
    canvas.press("ArrowDown")
    expect(details(page)).to_contain_text("relu")
    page.get_by_role("searchbox").fill("relu")
    expect(page.get_by_text("2 calls, 50 samples, 50 %")).to_be_visible()
    details(page).get_by_role("button", name="Callers and callees").click()
    expect(page.get_by_text("50 samples in 2 places")).to_be_visible()
    canvas.press("Escape")
    expect(page.get_by_text("50 samples in 2 places")).to_be_hidden()
    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="Functions").click()
    rows = page.get_by_role("row")
    expect(rows.nth(1)).to_contain_text("relu")
    expect(rows.nth(1)).to_contain_text("50 %")


@pytest.mark.deep
def test_nothing_for_axe_to_find(open_page: OpenPage, tmp_path: Path) -> None:
    from tests.browser.test_accessibility import violations

    page = open_page(page_of(tmp_path))
    drawn(page).click(position={"x": 20, "y": 10})
    page.get_by_role("button", name="Functions").click()
    assert violations(page) == []


@pytest.mark.deep
def test_a_difference_has_signs(open_page: OpenPage, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(STACKS)
    (tmp_path / "b.txt").write_text(STACKS.replace("relu;relu 40", "relu;relu 60"))
    a, b = (perfnb.load(tmp_path / name) for name in ("a.txt", "b.txt"))
    comparison: Any = a.compare(b)  # type: ignore[arg-type, union-attr]
    page = open_page(comparison.to_html(tmp_path / "page.html").read_text())
    drawn(page).click(position={"x": 20, "y": 18 * 1.5})
    # 60 samples of 120, where 40 of 100, scaled to 120, were 48.
    expect(details(page)).to_contain_text("+12 samples")
    expect(page.get_by_text("+ takes more in the second")).to_be_visible()
    data = json.loads(str(page.locator("#perfnb-data").text_content()))
    assert "before" in data["flame"]
