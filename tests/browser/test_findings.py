"""The verdict and the tab of findings in a browser."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

from perfnb.profile.display import standalone_page
from tests import summaries
from tests.browser.conftest import OpenPage
from tests.findings import findings_samples as samples
from tests.memory import memory_samples

pytestmark = pytest.mark.browser


def opened(open_page: OpenPage, findings: samples.Findings | None = None) -> Page:
    return open_page(standalone_page(samples.with_findings(findings)), viewport={"width": 1300, "height": 900})


@pytest.mark.smoke
def test_the_verdict_stands_above_the_figures_and_leads_to_its_finding(open_page: OpenPage) -> None:
    page = opened(open_page)
    verdict = page.get_by_role("region", name="Verdict")
    expect(verdict).to_contain_text("Bound by waiting for data.")
    expect(verdict).to_contain_text("Use 2 workers.")
    assert verdict.bounding_box()["y"] < page.locator(".pf-facts").bounding_box()["y"]

    page.get_by_role("button", name="Show the findings").click()

    expect(page.get_by_role("tab", name=re.compile("^Findings"))).to_have_attribute("aria-selected", "true")
    first = page.locator(".pf-finding").first
    expect(first).to_be_focused()
    expect(first).to_contain_text("high confidence")


def test_evidence_leads_to_its_layer_and_its_op(open_page: OpenPage) -> None:
    page = opened(open_page)
    page.get_by_role("tab", name=re.compile("^Findings")).click()
    page.get_by_role("button", name="layer model.features.1").click()
    expect(page.get_by_role("tab", name=re.compile("^Layers"))).to_have_attribute("aria-selected", "true")
    expect(page.locator(".pf-details:visible h3")).to_have_text("model.features.1")

    page.get_by_role("tab", name=re.compile("^Findings")).click()
    page.get_by_role("button", name="op aten::relu").click()
    expect(page.get_by_role("tab", name=re.compile("^Ops"))).to_have_attribute("aria-selected", "true")
    expect(page.locator(".pf-details:visible h3")).to_have_text("aten::relu")


def test_evidence_leads_to_its_instant_of_memory(open_page: OpenPage) -> None:
    memory = memory_samples.transformer()
    instant = f"{memory.timeline['t_ms'].iloc[100]:.6g}"
    found = replace(samples.with_findings(samples.at_instant(instant)), memory=memory)
    page = open_page(standalone_page(found), viewport={"width": 1300, "height": 900})
    page.get_by_role("tab", name=re.compile("^Findings")).click()
    page.get_by_role("button", name="memory at").press("Enter")

    expect(page.get_by_role("tab", name=re.compile("^Memory"))).to_have_attribute("aria-selected", "true")
    slider = page.get_by_role("slider", name="Instant of the step")
    expect(slider).to_be_focused()
    assert abs(int(slider.get_attribute("aria-valuenow")) - 100) <= 1  # the name is rounded


def test_names_that_are_in_no_table_are_not_links(open_page: OpenPage) -> None:
    page = opened(open_page)
    page.get_by_role("tab", name=re.compile("^Findings")).click()
    expect(page.get_by_role("button", name="no such layer")).to_have_count(0)
    expect(page.locator(".pf-links")).to_contain_text(["phase data", "no such layer", "memory at 1.50 ms"])


def test_a_step_with_nothing_wrong_says_so(open_page: OpenPage) -> None:
    page = opened(open_page, samples.none())
    expect(page.get_by_role("region", name="Verdict")).to_contain_text("Nothing stands out")
    expect(page.get_by_role("tab", name=re.compile("^Findings"))).to_have_count(0)


@pytest.mark.parametrize("name", summaries.HOSTILE[:8])
def test_hostile_names_are_shown_and_do_nothing(open_page: OpenPage, name: str) -> None:
    page = opened(open_page, samples.hostile(name))
    page.get_by_role("tab", name=re.compile("^Findings")).click()
    expect(page.locator(".pf-finding")).to_have_count(1)
    assert page.evaluate("window.__pwned") is None
