"""What axe-core finds in what perfnb writes as pages, and in the documentation where that is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("playwright", reason="needs playwright")
pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

import perfnb
from perfnb.bench.ab_view import ab_html
from perfnb.diff.layers import diff_profiles
from perfnb.diff.view import diff_html
from perfnb.draw.frame import static_page
from perfnb.experiments.journal_view import journal_html
from perfnb.experiments.report_view import report_page
from perfnb.memory.leaks.find import leaks_html
from perfnb.models.architectures_view import architectures_html
from perfnb.profile.display import standalone_page
from perfnb.profile.report import summary_html
from perfnb.profile.summary import Summary
from perfnb.profile.timing import timing_html
from perfnb.stats.step_times import StepTimes
from perfnb.system.system import COLUMNS
from perfnb.system.view import system_html
from perfnb.watching.view import watch_html
from tests import summaries
from tests.browser.conftest import OpenPage
from tests.browser.timeline_driver import Timeline
from tests.experiments import ab_samples as performance_samples
from tests.experiments import test_journal_view as test_journal
from tests.experiments import test_measurements
from tests.findings import findings_samples
from tests.gpu import gpu_samples
from tests.memory import memory_samples
from tests.memory import test_leaks_view as test_leaks
from tests.models import architecture_samples
from tests.ranks.rank_traces import rank_trace
from tests.roofline import roofline_samples
from tests.watching import watch_samples as machines

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
    """A report with every tab but the timeline, which has a page of its own."""
    gpu = gpu_samples.summary_of(gpu_samples.two_gpus(), tmp_path_factory.mktemp("trace")).gpu
    return replace(
        findings_samples.with_findings(),
        memory=memory_samples.transformer(),
        roofline=roofline_samples.roofline(),
        parts={"machine": machines.profiled()},
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
    figures = performance_samples.figures(0.8)
    for html in (static_page("A step", summary_html(summary)), report_page(figures)):
        assert violations(open_page(html, viewport={"width": 700, "height": 900})) == []


def test_the_timeline(opened: Callable[..., Timeline]) -> None:
    page = opened().page
    assert page.get_by_role("tab", selected=True).inner_text().startswith("Timeline")
    assert violations(page, ("page-has-heading-one",)) == []  # the test's own page


def test_the_page_of_ranks(open_page: OpenPage, tmp_path: Path) -> None:
    paths = [rank_trace(late).write(tmp_path / f"rank{rank}.json") for rank, late in enumerate((0, 150))]
    html = perfnb.load(paths).to_html(tmp_path / "ranks.html").read_text("utf-8")
    assert violations(open_page(html, viewport={"width": 700, "height": 900})) == []


def test_what_other_objects_show_of_themselves(open_page: OpenPage) -> None:
    """Static HTML of many on one narrow page, which is looked at once."""
    check = (
        "disk scheduler",
        "bfq for nvme0",
        "none",
        "attention",
        "An NVMe disk sorts its requests itself.",
        "Set it.",
    )
    shown = {
        "a timing": timing_html(StepTimes(tuple(10 + n % 7 / 10 for n in range(60)), noise=test_measurements.NOISE)),
        "an experiment": ab_html(test_measurements.experiment(0.8)),
        "profiles": diff_html(diff_profiles(summaries.small_cnn(), summaries.gan())),
        "architectures": architectures_html(architecture_samples.three()),
        "a journal": journal_html(test_journal.EXAMPLES["tried"], test_journal.DAMAGED, "experiments"),
        "leaks": leaks_html(test_leaks.report("leak", "kept", test_leaks.KEPT, None, survivors=test_leaks.TWO)),
        "the machine": system_html(pd.DataFrame([check], columns=list(COLUMNS))),
        "a watch": watch_html(machines.laptop()),
    }
    body = "".join(f"<section><h2>{name}</h2>{html}</section>" for name, html in shown.items())
    assert violations(open_page(static_page("Objects", body), viewport={"width": 700, "height": 900})) == []


@pytest.mark.skipif(not DOCS.is_dir(), reason="the documentation is not built: make docs")
def test_the_documentation(chromium: Browser) -> None:
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    for path in sorted(DOCS.glob("*.html")):
        page.goto(path.as_uri())
        assert violations(page, OF_THE_THEME) == [], path.name
    page.close()
