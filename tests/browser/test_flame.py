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
from tests.stacks.test_host_profiles import SPEEDSCOPE

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
    expect(canvas).to_have_attribute("data-boxes", "7")
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
    page.get_by_role("searchbox", name="Search functions and files").fill("relu")
    expect(page.get_by_text("2 calls, 50 samples, 50 %")).to_be_visible()
    details(page).get_by_role("button", name="Callers and callees").click()
    expect(page.get_by_text("50 samples in 2 places")).to_be_visible()
    canvas.press("Escape")
    expect(page.get_by_text("50 samples in 2 places")).to_be_hidden()
    page.get_by_role("row").nth(2).click()
    page.get_by_role("complementary").get_by_role("button", name="Callers and callees").last.click()
    expect(page.get_by_text("30 samples in 1 place")).to_be_visible()


@pytest.mark.deep
def test_calls_in_the_order_of_time(open_page: OpenPage, tmp_path: Path) -> None:
    samples = {"type": "sampled", "unit": "seconds", "samples": [[0, 1], [0, 2], [0, 1]], "weights": [1, 5, 2]}
    names = [{"name": name} for name in ("main", "first", "wide")]
    page = open_page(page_of(tmp_path, json.dumps(SPEEDSCOPE | {"shared": {"frames": names}, "profiles": [samples]})))
    canvas = page.get_by_role("application", name="Flame graph")
    for order, name in (("Time order", "first"), ("Heaviest first", "wide")):
        page.get_by_role("button", name=order).click()
        canvas.click(position={"x": 20, "y": 18 * 1.5})
        expect(details(page).get_by_role("heading")).to_have_text(name)
        canvas.press("0")


@pytest.mark.deep
def test_nothing_for_axe_to_find(open_page: OpenPage, tmp_path: Path) -> None:
    from tests.browser.test_accessibility import violations

    page = open_page(page_of(tmp_path))
    drawn(page).click(position={"x": 20, "y": 10})
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
    expect(page.get_by_text("+ takes more in the candidate")).to_be_visible()
    data = json.loads(str(page.locator("#perfnb-data").text_content()))
    assert "before" in data["sections"][0]["data"]
