"""What axe-core finds in what perfnb writes as pages, and in the documentation where that is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright")
pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from perfnb.analysis.summary import Summary
from perfnb.views.html import summary_html
from perfnb.views.page import standalone_page, static_page
from perfnb.views.performance_report import report_page
from tests.browser.conftest import OpenPage
from tests.views import findings_samples, gpu_samples, memory_samples, performance_samples, roofline_samples
from tests.views import watch_samples as machines

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DOCS = Path(__file__).parents[2] / "docs" / "_build" / "html"
#: Those of Sphinx's theme, none of them serious: what lies outside of landmarks, two landmarks of one kind, and a page
#: to search whose heading a script makes.
OF_THE_THEME = ("region", "landmark-unique", "page-has-heading-one")


def violations(page: Page, but: tuple[str, ...] = ()) -> list[str]:
    """Each rule that is broken, and where: in the light theme, then, where only colours differ, in the dark one."""
    found = []
    for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)
        broken = Axe().run(page, options={"resultTypes": ["violations"], **rules}).response["violations"]
        found += [
            f"{rule['id']}, {scheme}: {rule['nodes'][0]['html'][:200]}" for rule in broken if rule["id"] not in but
        ]
    return found


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A report with every tab but the timeline."""
    gpu = gpu_samples.summary_of(gpu_samples.two_gpus(), tmp_path_factory.mktemp("trace")).gpu
    return replace(
        findings_samples.with_findings(),
        memory=memory_samples.transformer(),
        roofline=roofline_samples.roofline(),
        machine=machines.profiled(),
        gpu=gpu,
    )


def test_every_tab_of_the_report(open_page: OpenPage, summary: Summary) -> None:
    page = open_page(standalone_page(summary), viewport={"width": 1400, "height": 900})
    tabs = page.get_by_role("tab").all()
    assert len(tabs) == 7
    for tab in tabs:
        tab.click()
        assert violations(page) == [], tab.inner_text()


def test_narrow_pages_without_scripts(open_page: OpenPage, summary: Summary) -> None:
    figures = performance_samples.figures(ab=performance_samples.experiment(0.8))
    for html in (static_page("A step", summary_html(summary)), report_page(figures)):
        assert violations(open_page(html, viewport={"width": 700, "height": 900})) == []


@pytest.mark.skipif(not DOCS.is_dir(), reason="the documentation is not built: make docs")
def test_the_documentation(chromium: Browser) -> None:
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    for path in sorted(DOCS.glob("*.html")):
        page.goto(path.as_uri())
        assert violations(page, OF_THE_THEME) == [], path.name
    page.close()
