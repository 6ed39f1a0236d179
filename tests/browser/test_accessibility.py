"""What axe-core finds in every kind of result, live and static, and in the documentation where that is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright")
pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from perfnb.draw.as_html import document_html
from perfnb.draw.live import document_page
from tests.browser.conftest import OpenPage
from tests.browser.timeline_driver import Timeline
from tests.draw.document_samples import DOCUMENTS
from tests.pages import static_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DOCS = Path(__file__).parents[2] / "docs" / "_build" / "html"
#: Those of Sphinx's theme, none of them serious: what lies outside of landmarks, two landmarks of one kind, and a page
#: to search whose heading a script makes.
OF_THE_THEME = ("region", "landmark-unique", "page-has-heading-one")
#: Samples whose every name is hostile say nothing more about accessibility.
SAMPLES = [name for name in DOCUMENTS if "hostile" not in name]


def violations(page: Page, but: tuple[str, ...] = ()) -> list[str]:
    """Return each rule that is broken, and where: in the light theme, then, where only colours differ, in the dark
    one.
    """
    found = []
    for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)
        broken = Axe().run(page, options={"resultTypes": ["violations"], **rules}).response["violations"]
        found += [
            f"{rule['id']}, {scheme}: {rule['nodes'][0]['html'][:200]}" for rule in broken if rule["id"] not in but
        ]
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_every_result_live(open_page: OpenPage, name: str) -> None:
    page = open_page(document_page(DOCUMENTS[name]()), viewport={"width": 1200, "height": 900})
    assert violations(page) == []
    for tab in page.get_by_role("tab").all()[1:]:
        tab.click()
        assert violations(page) == [], tab.inner_text()


def test_every_result_without_scripts_on_one_narrow_page(open_page: OpenPage) -> None:
    body = "".join(f"<section><h2>{name}</h2>{document_html(DOCUMENTS[name]())}</section>" for name in SAMPLES)
    assert violations(open_page(static_page("Results", body), viewport={"width": 700, "height": 900})) == []


def test_the_timeline(opened: Callable[..., Timeline]) -> None:
    page = opened().page
    assert page.get_by_role("tab", selected=True).inner_text().startswith("Timeline")
    assert violations(page, ("page-has-heading-one",)) == []  # the test's own page


@pytest.mark.skipif(not DOCS.is_dir(), reason="the documentation is not built: make docs")
def test_the_documentation(chromium: Browser) -> None:
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    for path in sorted(DOCS.glob("*.html")):
        page.goto(path.as_uri())
        assert violations(page, OF_THE_THEME) == [], path.name
    page.close()
