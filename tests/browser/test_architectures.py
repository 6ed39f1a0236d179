"""The comparison of architectures in a browser: what is drawn, and what pointer and keys find there."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Page, expect

from perfnb import quantities as fmt
from perfnb.draw import assets, escape
from perfnb.draw.palette import KINDS
from perfnb.models.architectures_view import architectures_data, part_times
from tests.browser.conftest import OpenPage
from tests.browser.test_report import CONTRAST
from tests.models import architecture_samples as samples
from tests.summaries import HOSTILE
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

START = """
const data = document.getElementById("data").textContent;
architectures.render({ model: { get: () => data }, el: document.querySelector("main") });
"""

STYLE = assets.style("models/js/architectures.css")
Open = Callable[..., Page]


def standalone(made: samples.ArchitectureFigures) -> str:
    """A page with the comparison and nothing else, under the policy that a report has."""
    script = assets.script("models/js/architectures.js") + START
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<title>architectures</title><style>:root{color-scheme:light dark}body{margin:0}"
        f'{STYLE}</style><div class="perfnb-static-twin">twin</div><main></main>'
        f'<script type="application/json" id="data">{escape.json_in_script(architectures_data(made, "twin"))}</script>'
        f'<script type="module">{script}</script>'
    )


@pytest.fixture
def opened(open_page: OpenPage) -> Open:
    """Opens a comparison on a page of its own."""

    def open_(made: samples.ArchitectureFigures, width: int = 1300, scheme: Any = "light") -> Page:
        page = open_page(standalone(made), viewport={"width": width, "height": 900}, color_scheme=scheme)
        expect(page.locator("article")).to_be_visible()
        expect(page.locator(".pf-share-row")).to_have_count(len(made.table))
        return page

    return open_


def segments(page: Page, row: int) -> list[float]:
    """Widths of the parts of a bar."""
    parts = page.locator(".pf-share-row").nth(row).locator(".pf-share-bar i")
    return parts.evaluate_all("(parts) => parts.map((part) => part.getBoundingClientRect().width)")


@pytest.mark.smoke
def test_bars_are_as_long_as_the_times(opened):
    made = samples.three()
    page = opened(made)
    kinds = part_times(made, "kind")
    longest = sum(segments(page, 2))
    for row in range(3):
        wanted = [times[row][0] for times in kinds.values() if times[row][0]]
        scale = longest / float(made.table["median_ms"].max())
        assert segments(page, row) == pytest.approx([ms * scale for ms in wanted], abs=1.1)
    page.get_by_role("radio", name="share").check()
    assert sum(segments(page, 0)) == pytest.approx(longest, abs=1.5)
    linear = kinds["linear"][0][1]
    assert segments(page, 0)[0] == pytest.approx(linear * longest, abs=1.5)


def test_parts_have_words_and_patterns_and_phases_can_be_shown(opened):
    page = opened(samples.three())
    row = page.locator(".pf-share-row", has_text="transformer")
    expect(row.locator(".pf-share-words")).to_contain_text("attention 42 %")
    expect(row.get_by_role("img")).to_have_attribute("aria-label", re.compile("attention 7.32 ms, 42 %; linear"))
    assert row.locator("i").first.get_attribute("class") == f"pf-{KINDS['attention'].pattern}"
    page.get_by_role("radio", name="by kind of layer").focus()
    page.keyboard.press("ArrowRight")
    expect(row.locator(".pf-share-words")).to_contain_text("backward 62 %")
    expect(page.locator(".pf-chip")).to_have_count(5)


def test_why_one_is_slower_stands_on_one_screen(opened):
    made = samples.three()
    page = opened(made)
    kinds = part_times(made, "kind")
    question = page.locator(".pf-why")
    more = sum(times[2][0] - times[0][0] for times in kinds.values())
    assert question.evaluate("(p) => [...p.children].slice(0, 3).map((part) => part.value ?? part.textContent)") == [
        *("Why is", "2", "slower than"),
    ]
    expect(question.locator(".pf-answer")).to_have_text(f"{fmt.duration(more)} more per step:")
    chips = page.locator(".pf-chip").all_inner_texts()
    attention = kinds["attention"][2][0]
    assert re.sub(r"\s+", " ", chips[0]) == f"attention +{fmt.duration(attention)}"
    assert chips[-1] == "convolution"
    box = page.locator(".pf-forest").bounding_box()
    assert box["y"] + box["height"] <= 900
    page.get_by_label("This architecture").select_option("mlp")
    page.get_by_label("Compared with").select_option("cnn")
    expect(question).to_contain_text("faster than")
    expect(question).to_contain_text("less per step")
    assert page.locator(".pf-chip").first.inner_text().startswith("convolution")


def test_no_detectable_difference_is_an_answer(opened):
    page = opened(samples.alike())
    expect(page.locator(".pf-why")).to_contain_text("No overall difference is detectable.")
    expect(page.locator(".pf-answer")).to_be_empty()
    assert page.locator(".pf-chip b").count() == 0
    pairs = page.locator(".pf-pairs li")
    expect(pairs.nth(0)).to_have_text("mlp again takes 1.00 × [0.988, 1.01] the time of mlp: the same within 2.0 %")
    expect(pairs.nth(1)).to_contain_text("no detectable difference, but one of up to 5.0 % is possible")
    expect(pairs.nth(1)).to_have_class("pf-not-told")
    expect(pairs.nth(1)).to_have_attribute("title", re.compile(r"can detect: 5\.0 %$"))


def test_many_pairs_are_shown_on_demand(opened):
    page = opened(samples.eight())
    shown = page.locator(".pf-pairs li:visible")
    expect(shown).to_have_count(6)
    expect(shown.first).to_contain_text("transformer, 12 blocks takes")
    page.get_by_role("button", name="All 28 pairs").click()
    expect(shown).to_have_count(28)
    page.get_by_role("button", name="Fewer pairs").click()
    expect(shown).to_have_count(6)


def test_parts_say_their_times_to_pointer_and_keys(opened):
    page = opened(samples.three())
    tip = page.get_by_role("status").first
    page.locator(".pf-share-row").nth(2).locator("i").first.hover()
    expect(tip).to_have_text("attention: mlp none; cnn none; transformer 7.32 ms (42 %)")
    assert page.locator(".pf-dimmed .pf-lit").count() == 1
    page.mouse.move(0, 0)
    expect(tip).to_contain_text("Hover over a part")
    page.locator(".pf-chip", has_text="linear").focus()
    expect(tip).to_contain_text("linear: mlp 2.90 ms")
    assert page.locator(".pf-share-bar .pf-lit").count() == 3


def test_a_metric_can_be_picked(opened):
    made = samples.three()
    page = opened(made)
    rows = page.locator(".pf-metric tr")
    low, high = made.table.loc["cnn", ["ci_low_ms", "ci_high_ms"]]
    median = made.table.loc["cnn", "median_ms"]
    expect(rows.nth(1)).to_contain_text(fmt.interval(median, (low, high)))
    whisker, bar = (rows.nth(1).locator(f".pf-amount-bar {tag}").bounding_box() for tag in ("s", "i"))
    per_pixel = median / bar["width"]
    assert whisker["width"] * per_pixel == pytest.approx(high - low, rel=0.15)
    assert whisker["x"] < bar["x"] + bar["width"] < whisker["x"] + whisker["width"]
    page.get_by_label("Metric", exact=True).select_option("peak memory")
    expect(rows.nth(2)).to_contain_text(fmt.size(made.table.loc["transformer", "peak_bytes"]))
    expect(page.locator(".pf-metric s")).to_have_count(0)
    widths = [row.locator("i").bounding_box()["width"] for row in rows.all()]
    sizes = [float(size) for size in made.table["peak_bytes"]]
    assert [width / widths[2] for width in widths] == pytest.approx([size / sizes[2] for size in sizes], rel=0.02)


def test_two_metrics_stand_against_each_other(opened):
    made = samples.three()
    page = opened(made)
    page.get_by_label("Second metric").select_option("parameters")
    svg = page.locator(".pf-plane svg")
    expect(svg).to_have_attribute("aria-label", "step time against parameters")
    dots = {name: page.locator(f'.pf-points [aria-label^="{name}:"]') for name in made.table.index}
    box = {name: dot.bounding_box() for name, dot in dots.items()}
    zero = page.locator(".pf-plane text", has_text=re.compile("^0$")).first.bounding_box()
    x = {name: b["x"] + b["width"] / 2 - (zero["x"] + zero["width"] / 2) for name, b in box.items()}
    table = made.table["parameters"].astype(float)
    assert x["cnn"] / x["mlp"] == pytest.approx(table["cnn"] / table["mlp"], rel=0.02)
    assert box["transformer"]["y"] < box["cnn"]["y"] < box["mlp"]["y"]
    expect(page.locator(".pf-plane .pf-halo")).to_have_count(3)
    expect(page.locator(".pf-plane .pf-whisker")).to_have_count(3)
    dots["cnn"].focus()
    tip = page.locator(".pf-plane + .pf-tip")
    expect(tip).to_contain_text(re.compile(r"^cnn: step time 8.48\sms \[8.35,\s8.65\], parameters 454 k$"))
    dots["mlp"].hover()
    expect(tip).to_contain_text("mlp: step time")


def test_trees_open_and_name_their_layers(opened):
    page = opened(samples.three())
    trees = page.get_by_role("treegrid")
    expect(trees).to_have_count(3)
    tree = page.get_by_role("treegrid", name="Layers of transformer")
    expect(tree.locator("tr[data-row]")).to_have_count(6)
    page.get_by_role("button", name="Heaviest paths").click()
    attention = tree.locator("tr", has_text="attention")
    expect(attention.first).to_be_visible()
    assert attention.first.locator(".pf-name").get_attribute("title") == (
        "transformer.blocks.0.attention\nMultiheadAttention\nattention"
    )
    expect(attention.first.locator(f".pf-key.pf-{KINDS['attention'].pattern}")).to_be_visible()
    attention.first.click()
    tip = page.locator(".pf-trees > .pf-tip")
    expect(tip).to_contain_text(re.compile(r"^transformer.blocks.0.attention in transformer .*forward 0.730\sms"))
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(tip).to_contain_text(re.compile(r"^transformer.blocks.0 in transformer \(Block"))
    page.get_by_role("button", name="Top levels").click()
    expect(tree.locator("tr[data-row]")).to_have_count(6)


@pytest.mark.parametrize(("width", "scheme"), [(700, "light"), (1300, "dark"), (700, "dark"), (1300, "light")])
@pytest.mark.parametrize("kind", ["three", "hostile"])
def test_text_stands_out_in_both_themes(opened, kind, width, scheme):
    nothing_is_faint_or_cut_off(opened(getattr(samples, kind)(), width, scheme))


@pytest.mark.parametrize(("width", "scheme"), [(700, "dark"), (1300, "light")])
@pytest.mark.parametrize("kind", ["eight", "unknown"])
def test_many_and_unknown_have_room(opened, kind, width, scheme):
    nothing_is_faint_or_cut_off(opened(getattr(samples, kind)(), width, scheme))


def nothing_is_faint_or_cut_off(page: Page) -> None:
    low = page.evaluate(CONTRAST)
    assert low["checked"] > 40
    assert low["ratio"] >= 4.5, low
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for scroller in page.locator(".pf-scroll").all():
        assert scroller.evaluate("(element) => element.scrollWidth <= element.clientWidth")
    cut = "(cells) => cells.filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent)"
    assert page.locator("td, .pf-share-total, .pf-answer, .pf-choice, h3").evaluate_all(cut) == []
    outside = """(texts) => texts.map((text) => [text.getBoundingClientRect(), text.textContent])
        .filter(([box]) => box.left < 0 || box.right > innerWidth).map(([, words]) => words)"""
    assert page.locator("svg text").evaluate_all(outside) == []
    words = """(rows) => rows.flatMap((row) => [...row.children])
        .filter((word) => word.scrollWidth > word.clientWidth + 1).map((word) => word.textContent)"""
    assert page.locator(".pf-share-words").evaluate_all(words) == []


def test_hostile_names_are_text(opened):
    page = opened(samples.hostile())
    assert page.evaluate("window.__pwned") is None
    assert page.locator("article :is(script, img[src], iframe)").count() == 0
    expect(page.locator(".pf-share-row .pf-name").first).to_have_text(escape.plain(HOSTILE[0]))
    expect(page.get_by_role("treegrid")).to_have_count(6)


def test_the_unknown_is_said_and_never_drawn_as_nothing(opened):
    page = opened(samples.unknown())
    expect(page.locator(".pf-share-row").nth(1)).to_contain_text("n/a: its time by kind of layer was not measured")
    expect(page.locator(".pf-metric tr").nth(1)).to_contain_text("n/a")
    assert page.locator(".pf-metric tr").nth(1).locator("i").count() == 0
    expect(page.locator(".pf-points circle")).to_have_count(1)
    expect(page.locator(".pf-tree").nth(1)).to_contain_text("n/a: its layers were not measured")
    assert page.get_by_label("Metric", exact=True).locator("option:not(:disabled)").count() == 1
    assert not re.search(r"(?<![\d.])0\s(ms|%|B|FLOP)", page.locator("article").inner_text())


def test_one_architecture_is_shown_without_a_question(opened):
    page = opened(samples.one())
    expect(page.locator(".pf-why")).to_have_count(0)
    expect(page.locator("article")).to_contain_text("Nothing to compare.")
    expect(page.get_by_role("treegrid")).to_have_count(1)


def test_the_twin_gives_way(opened):
    page = opened(samples.three())
    expect(page.locator(".perfnb-static-twin")).to_be_hidden()


def test_bars_follow_the_width(opened):
    page = opened(samples.three())
    before = sum(segments(page, 2))
    page.set_viewport_size({"width": 700, "height": 900})
    expect(page.locator(".pf-plane svg")).to_have_attribute("width", re.compile(r"^6\d\d$"))
    wait_until(lambda: sum(segments(page, 2)) < before)  # they are drawn anew when the browser finds time
