"""The report in a browser: what a reader can do with it, and what a hostile name cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Locator, Page, expect

from perfnb.draw import escape
from perfnb.profile.display import standalone_page
from perfnb.profile.summary import Summary
from tests import summaries
from tests.browser.conftest import OpenPage
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

Open = Callable[..., Page]


@pytest.fixture
def report(open_page: OpenPage) -> Open:
    """Open a report from a file."""

    def open_(summary: Summary, **options: object) -> Page:
        return open_page(standalone_page(summary), **{"viewport": {"width": 1400, "height": 900}, **options})

    return open_


def row(page: Page, name: str) -> Locator:
    """Return the first visible row whose name is `name`."""
    exactly = page.locator(".pf-name").filter(has_text=re.compile(f"^{re.escape(name)}$"))
    return page.locator("tr[data-row]:visible").filter(has=exactly).first


def names(page: Page) -> list[str]:
    return page.locator("tr[data-row]:visible > th .pf-name").all_inner_texts()


@pytest.mark.smoke
def test_the_live_report_takes_the_place_of_its_static_twin(report):
    page = report(summaries.small_cnn())
    expect(page.locator("article.perfnb")).to_be_visible()
    expect(page.locator(".perfnb-static")).to_be_hidden()
    for text in ("12.3 ms", "[12.1, 12.4]", "2,600 samples/s", "1.31 × the timed step", "5 warm-up, 20 timed"):
        expect(page.locator("header")).to_contain_text(text)


def test_inference_shows_its_tokens(report):
    made = summaries.small_cnn()
    phases = made.phases.copy()
    phases.loc[phases.index.isin(["backward", "optimizer"]), "ms"] = 0.0
    page = report(replace(made, phases=phases, tokens_per_s=83_200.0, mfu=0.34))
    for text in ("inference step", "2,600 samples/s", "83,200 tokens/s", "34 %", "of the measured peak"):
        expect(page.locator("header")).to_contain_text(text)


def test_without_scripts_the_static_twin_shows(report):
    page = report(summaries.small_cnn(), java_script_enabled=False)
    expect(page.locator(".perfnb-static")).to_be_visible()
    expect(page.locator(".perfnb-static")).to_contain_text("Conv2d")


def test_phases_are_named(report):
    page = report(summaries.small_cnn())
    bar = page.get_by_role("img", name=re.compile("^data "))
    expect(bar).to_have_attribute("aria-label", re.compile(r"forward 3.37 ms, 27 %; .*optimizer"))
    expect(page.locator(".pf-legend li")).to_have_count(7)


def test_the_heaviest_path_is_open_at_first(report):
    page = report(summaries.gpt())
    assert "c_fc" in names(page)
    assert names(page).count("attn") == 1
    assert names(page)[-4:] == ["(loss)", "(gradient accumulation)", "(autograd engine)", "(unattributed)"]


@pytest.mark.smoke
def test_a_branch_opens_and_closes(report):
    page = report(summaries.small_cnn())
    features = row(page, "features")
    expect(features).to_have_attribute("aria-expanded", "true")
    expect(features).to_have_attribute("aria-level", "2")
    features.locator(".pf-twisty").click()
    expect(features).to_have_attribute("aria-expanded", "false")
    assert "2" not in names(page)
    features.locator(".pf-twisty").click()
    assert names(page)[:6] == ["model", "features", "0", "1", "2", "3"]


def test_all_open_and_close_in_one_click(report):
    page = report(summaries.gpt(3))
    page.get_by_role("button", name="Open all").click()
    assert len(names(page)) == 35 + 4
    page.get_by_role("button", name="Close all").click()
    assert names(page)[0] == "model"
    assert len(names(page)) == 1 + 4


def test_the_tree_obeys_the_keyboard(report):
    page = report(summaries.small_cnn())
    row(page, "model").focus()
    for key, focused in (
        ("ArrowDown", "features"),
        ("ArrowRight", "0"),
        ("ArrowLeft", "features"),
        ("End", "(unattributed)"),
        ("Home", "model"),
    ):
        page.keyboard.press(key)
        expect(page.locator(":focus")).to_contain_text(focused)
    page.keyboard.press("ArrowLeft")
    assert len(names(page)) == 1 + 3
    page.keyboard.press("ArrowRight")
    assert "features" in names(page)
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="Details")).to_contain_text("SmallCNN")


def test_sorting_keeps_the_tree_and_ends_in_the_order_of_the_model(report):
    page = report(summaries.small_cnn())
    before = names(page)
    head = page.get_by_role("columnheader", name="total")
    expect(head).to_have_attribute("aria-sort", "none")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert names(page) == ["model", "features", "2", "0", "3", "1", "head", *before[7:]]
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert names(page) == ["model", "head", "features", "1", "3", "0", "2", *before[7:]]
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "none")
    assert names(page) == before


def test_search_keeps_what_leads_to_a_match_and_counts(report):
    page = report(summaries.gpt())
    box = page.get_by_role("searchbox", name="Search layers")
    box.fill("GELU")
    expect(page.get_by_role("status").first).to_have_text("12 of 125 layers")
    assert names(page)[:6] == ["model", "transformer", "h", "0", "mlp", "gelu"]
    assert set(names(page)) == {"model", "transformer", "h", "mlp", "gelu", *map(str, range(12))}
    box.fill("h.3.mlp")
    assert names(page)[:5] == ["model", "transformer", "h", "3", "mlp"]
    box.fill("nothing has this name")
    expect(page.get_by_text("No matches.")).to_be_visible()
    box.fill("")
    assert names(page)[:3] == ["model", "transformer", "wte"]


def test_a_layer_shows_its_ops(report):
    page = report(summaries.gpt(3, recompute=True))
    row(page, "c_fc").click()
    details = page.get_by_role("complementary", name="Details")
    expect(details).to_contain_text(re.compile(r"model\.transformer\.h\.\d\.mlp\.c_fc"))
    expect(details.locator("tbody tr")).to_have_count(6)
    expect(details).to_contain_text("parameter memory")
    expect(details.locator("tbody tr").first).to_contain_text(re.compile("aten::addmm_backward.*backward"))
    row(page, "mlp").click()
    switch = details.get_by_label("including layers inside")
    assert switch.is_checked()
    with_inside = details.locator("tbody tr").count()
    switch.uncheck()
    wait_until(lambda: 0 < details.locator("tbody tr").count() < with_inside)
    details.get_by_role("button", name="Close").click()
    expect(details).to_be_hidden()


def test_tabs_obey_the_keyboard_and_ops_lead_back_to_layers(report):
    page = report(summaries.gpt(3))
    page.get_by_role("tab", name="Layers").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Ops")).to_have_attribute("aria-selected", "true")
    wait_until(lambda: names(page)[:1] == ["aten::addmm_backward"])
    page.get_by_role("columnheader", name="op", exact=True).get_by_role("button").click()
    wait_until(lambda: names(page) == sorted(names(page)))
    page.get_by_role("searchbox", name="Search ops").fill("embed")
    wait_until(lambda: len(names(page)) == 2)
    row(page, "aten::embedding").click()
    page.get_by_role("button", name="model.transformer.wte").click()
    expect(page.get_by_role("tab", name="Layers")).to_have_attribute("aria-selected", "true")
    expect(row(page, "wte")).to_have_attribute("aria-selected", "true")


def test_without_layers_the_first_tab_with_something_is_open(report):
    made = summaries.gpt(1)
    page = report(replace(made, layers=made.layers.iloc[:0], layer_ops=made.layer_ops.iloc[:0], hot_path=()))
    expect(page.get_by_role("tab", name="Layers")).to_have_count(0)
    expect(page.get_by_role("tab", name="Ops")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("columnheader", name="op", exact=True)).to_be_visible()
    expect(page.get_by_role("columnheader", name="layers")).to_have_count(0)
    row(page, "aten::embedding").click()
    expect(page.get_by_role("heading", name="aten::embedding")).to_be_visible()


def test_the_unknown_says_why(report):
    page = report(summaries.unknown_figures())
    page.locator("tr[data-row]").first.click()
    expect(page.locator("header")).to_contain_text("too few for a 95 % interval")
    expect(page.get_by_role("columnheader", name="forward")).to_have_count(0)
    page = report(summaries.small_cnn())
    unknown = row(page, "(loss)").locator(".pf-unknown").first
    expect(unknown).to_have_text("n/a")
    expect(unknown).to_have_attribute("title", re.compile("^not measured"))


def test_a_table_is_copied_and_saved(report):
    page = report(summaries.small_cnn(), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the rows").click()
    expect(page.get_by_role("button", name="Copy the rows")).to_have_text("copied")
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0].split("\t")[:3] == ["layer", "module", "total"]
    assert lines[3].split("\t")[:3] == ["model.features.0", "Conv2d", "3.73 ms"]
    with page.expect_download() as download:
        page.get_by_role("button", name="Save all rows").click()
    rows = download.value.path().read_text("utf-8").splitlines()
    assert download.value.suggested_filename == "layers.csv"
    assert rows[3].split(",")[:3] == ["model.features.0", "Conv2d", "3.73"]


@pytest.mark.parametrize("make", [summaries.empty, summaries.gan, summaries.unknown_figures])
def test_odd_summaries_are_drawn(report, make):
    expect(report(make()).locator("article.perfnb")).to_be_visible()


def test_two_thousand_layers_scroll_and_only_those_in_sight_are_drawn(report):
    page = report(summaries.big())
    page.get_by_role("button", name="Open all").click()
    grid = page.get_by_role("treegrid")
    expect(grid).to_have_attribute("aria-rowcount", "1910")
    drawn = page.locator("tr[data-row]:visible")
    wait_until(lambda: drawn.count() < 100)
    scroller = page.locator(".pf-scroll:visible")
    for _ in range(3):
        scroller.evaluate("(element) => { element.scrollTop = element.scrollHeight / 2; }")
        expect(row(page, "95")).to_be_attached()
    row(page, "95").click()
    page.keyboard.press("End")
    expect(page.locator(":focus")).to_contain_text("(unattributed)")
    expect(page.locator(":focus")).to_be_in_viewport()
    wait_until(lambda: drawn.count() < 100)
    page.get_by_role("searchbox").first.fill("gelu")
    expect(page.get_by_role("status").first).to_have_text("190 of 1,905 layers")


def test_hostile_names_are_text(report):
    page = report(summaries.hostile())
    page.get_by_role("button", name="Open all").click()
    shown = names(page)
    for name in summaries.HOSTILE:
        assert escape.plain(name) in shown
    for name in ("<script>window.__pwned=2</script>", "__proto__", "constructor"):
        page.get_by_role("searchbox").first.fill(name)
        row(page, name).click()
        expect(page.get_by_role("complementary", name="Details").locator("h3")).to_contain_text(name)
    page.get_by_role("tab", name="Ops").click()
    page.locator("tr[data-row]:visible").first.click()
    assert page.evaluate("window.__pwned") is None
    assert page.locator("main img, main svg [onload], main script").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [800, 1400])
def test_text_stands_out_and_nothing_is_cut_off(report, scheme, width):
    page = report(summaries.small_cnn(), color_scheme=scheme, viewport={"width": width, "height": 900})
    row(page, "features").click()
    page.mouse.move(0, 0)
    low = page.evaluate(CONTRAST)
    assert low["checked"] > 60
    assert low["ratio"] >= 4.5, low
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    scroller = page.locator(".pf-scroll:visible")
    assert scroller.evaluate("(element) => element.scrollWidth <= element.clientWidth")
    cut = "(cells) => cells.filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent)"
    assert page.locator("tr[data-row]:visible td:not(.pf-text)").evaluate_all(cut) == []


#: The lowest contrast of text in the report against what lies behind it.
CONTRAST = """() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    context.fillStyle = "white";
    context.fillRect(0, 0, 1, 1);
    for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((c) => {
      const x = c / 255;
      return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let worst = { ratio: Infinity, checked: 0 };
  const texts = document.createTreeWalker(document.querySelector("article.perfnb"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !element.getClientRects().length || element.closest("svg")) continue;
    const grounds = [];
    for (let up = element; up; up = up.parentElement) grounds.unshift(getComputedStyle(up).backgroundColor);
    const [text, ground] = [paint([...grounds, getComputedStyle(element).color]), paint(grounds)];
    const ratio = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
    worst.checked += 1;
    if (ratio < worst.ratio) worst = { ...worst, ratio, text: texts.currentNode.textContent };
  }
  return worst;
}"""
