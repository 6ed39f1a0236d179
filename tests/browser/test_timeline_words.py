"""What the timeline says in a browser: search, keys, table, and details of an event, a layer and a time."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import expect

from tests.browser.test_report import CONTRAST
from tests.browser.timeline_driver import GPU, NODES, OPS, ROW, Timeline, hue_of
from tests.pages import spaced
from tests.timeline import timeline_samples as samples
from tests.timeline.timeline_pages import page_with
from tests.timeline.timeline_samples import Event, Track
from tests.waiting import wait_until

pytestmark = pytest.mark.browser


def test_search_counts_dims_the_rest_and_steps_in_order_of_time(opened):
    t = opened()
    phase = t.pixel("Phases", 700)
    t.search.fill("CUDALAUNCH")
    expect(t.status).to_have_text("20 of 158 events")
    assert t.pixel("Phases", 700) != phase
    assert hue_of(t.pixel(OPS, 60 + 33, 2), "forward")
    seen = []
    for _ in range(11):
        t.search.press("Enter")
        seen.append((spaced(t.fact("start").inner_text()), t.fact("on").inner_text()))
    own = [(90 + 60 * b, OPS) for b in range(5)] + [(400 + 80 * b, NODES) for b in range(5)] + [(1090, OPS)]
    assert seen[:5] == [
        (f"{us / 1e3:.3f} ms into step 1" if us >= 100 else f"{us:.1f} µs into step 1", on) for us, on in own[:5]
    ]
    assert [on for _, on in seen] == [on for _, on in own]
    expect(t.status).to_have_text("11 of 20")
    t.page.get_by_role("button", name="Previous match").click()
    expect(t.status).to_have_text("10 of 20")
    t.search.fill("features.1")
    expect(t.status).to_have_text("16 of 158 events")
    t.search.fill("nothing has this name")
    expect(t.status).to_have_text("0 of 158 events")
    expect(t.page.get_by_role("button", name="Next match")).to_be_disabled()
    t.search.press("Escape")
    expect(t.search).to_have_value("")
    expect(t.canvas).to_be_focused()
    assert t.pixel("Phases", 700) == phase


def test_from_a_layer_to_its_events_and_back(opened):
    t = opened()
    page = t.page
    page.get_by_role("tab", name="Layers").click()
    page.locator("tr[data-row]:visible").filter(has_text="Conv2d").first.click()
    page.get_by_role("button", name="Show in the timeline").click()
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    expect(t.status).to_have_text("1 of 2")
    expect(t.details.locator("h3")).to_have_text("model.features.0")
    first, last = t.window_us()
    assert first < 60 < 118 < last
    assert last - first < 200
    expect(t.canvas).to_be_focused()
    page.keyboard.press("n")
    expect(t.status).to_have_text("2 of 2")
    expect(t.fact("start")).to_have_text("60.0 µs into step 2")
    t.details.get_by_role("button", name="model.features.0", exact=True).click()
    expect(page.get_by_role("tab", name="Layers")).to_have_attribute("aria-selected", "true")
    expect(page.locator("tr[aria-selected=true]:visible")).to_contain_text("Conv2d")


def test_a_layer_is_reached_before_the_timeline_was_ever_opened(open_page):
    page = open_page(page_with(samples.step()), viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    page.locator("tr[data-row]:visible").filter(has_text="Linear").first.click()
    page.get_by_role("button", name="Show in the timeline").click()
    expect(Timeline(page).details.locator("h3")).to_have_text("model.head")


def test_the_table_says_what_the_picture_shows(opened):
    t = opened()
    t.page.get_by_role("button", name="Table").click()
    rows = t.page.locator(".pf-tl-table tbody tr")
    expect(rows).to_have_count(158)
    expect(rows.nth(0)).to_have_text(re.compile(r"step 1–otherSteps0\sms1\.00\sms"))
    expect(rows.nth(2)).to_have_text(re.compile(r"backward–backwardPhases0\.380\sms0\.420\sms"))
    t.search.fill("dgrad")
    expect(rows).to_have_count(10)
    expect(rows.first).to_have_text(re.compile(r"dgradmodel.head.*backwardGPU 0, stream 70\.425\sms65\.0\sµs"))
    rows.nth(1).get_by_role("button").press("Enter")
    expect(t.details.locator("h3")).to_have_text("dgrad")
    expect(rows.locator("[aria-pressed=true]")).to_have_count(1)
    t.search.fill("")
    expect(rows).to_have_count(158)
    t.canvas.focus()
    t.page.keyboard.press("f")
    expect(rows).not_to_have_count(158)
    first, last = t.window_us()
    for name in rows.locator("td:nth-child(5)").all_inner_texts():
        value, unit = name.split()
        assert float(value) * {"ms": 1e3, "µs": 1}[unit] < last
    assert first > 0


def test_keys_alone_reach_everything(opened):
    t = opened()
    page = t.page
    t.search.focus()
    for _ in range(30):
        page.keyboard.press("Tab")
        if t.canvas.evaluate("(canvas) => document.activeElement === canvas"):
            break
    expect(t.canvas).to_be_focused()
    page.keyboard.press("Enter")
    expect(t.details.locator("h3")).to_have_text("model")
    for key, name in (
        ("ArrowDown", "model.features"), ("ArrowDown", "model.features.0"), ("ArrowRight", "model.features.1"),
        ("ArrowLeft", "model.features.0"), ("ArrowUp", "model.features"), ("ArrowUp", "model"), ("ArrowUp", "model"),
    ):  # fmt: skip
        page.keyboard.press(key)
        expect(t.details.locator("h3")).to_have_text(name)
    page.keyboard.press("f")
    first, last = t.window_us()
    assert first == pytest.approx(-30)  # no more than a little before the whole
    assert last - first == pytest.approx(1.7 * 300)
    page.keyboard.press("Escape")
    expect(t.details).to_contain_text("Click an event")
    page.keyboard.press("/")
    expect(t.search).to_be_focused()
    page.keyboard.type("optimizer")
    page.keyboard.press("Enter")
    expect(t.details.locator("h3")).to_have_text("optimizer")
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    expect(t.canvas).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(t.canvas).not_to_be_focused()


def test_f_zooms_to_what_the_pointer_is_on_or_selects_a_layer(opened):
    t = opened()
    before = t.window_us()
    t.canvas.focus()
    t.page.mouse.move(*t.at(GPU, 1000 + 60 + 80))
    t.page.keyboard.press("f")
    first, last = t.window_us()
    assert last - first == pytest.approx(1.7 * 55)
    expect(t.details.locator("h3")).to_have_count(0)
    t.page.keyboard.press("0")
    t.page.mouse.move(2, 2)
    t.page.keyboard.press("f")
    expect(t.details.locator("h3")).to_have_text("model")
    assert t.window_us() == before


def test_a_layer_is_named_in_full_among_its_partners(opened):
    t = opened()
    t.search.fill("model.features.1")
    t.search.press("Enter")
    t.click("Layers", 150, 2)
    inside = t.details.locator("section", has=t.page.locator("h4", has_text="Inside"))
    expect(inside.get_by_role("button", name="model.features", exact=True)).to_be_visible()


def test_times_count_from_the_first_step(opened):
    ops = Track("thread", OPS, [Event("early", -200, 50, "other"), Event("late", 30, 20, "other")])
    steps = Track("steps", "Steps", [Event("step 1", 0, 100, "other")])
    t = opened(samples.encoded([steps, ops]))
    t.page.get_by_role("button", name="Table").click()
    t.search.fill("early")
    table = t.page.locator(".pf-tl-table")
    expect(table.locator("p")).to_have_text("Matches in the visible range, longest first")
    expect(table.locator("th").nth(4)).to_have_text("Start")
    expect(table.locator("tbody tr td").nth(3)).to_have_text("−0.200 ms")
    t.click(OPS, -180)
    expect(t.fact("start")).to_have_text("−0.200 ms from the start of the first step")
    t.search.fill("late")
    expect(table.locator("tbody tr td").nth(3)).to_have_text("30.0 µs")
    t.click(OPS, 40)
    expect(t.fact("start")).to_have_text("30.0 µs into step 1")


def test_python_calls_are_folded_at_first_and_tell_what_they_launched(opened):
    calls = Track(
        "python",
        "Python calls of thread 1 (main)",
        [Event("outer", 0, 100), Event("inner", 10, 80, depth=1)],
        thread=OPS,
    )
    op = Event("cudaLaunchKernel", 20, 5, key="call")
    ops = Track("thread", OPS, [op, Event("cudaLaunchKernel", 95, 2, key="late")])
    gpu = Track("stream", GPU, [Event("gemm", 30, 20, launch="call"), Event("relu", 120, 20, launch="late")])
    t = opened(samples.encoded([Track("steps", "Steps", [Event("step 1", 0, 150)]), ops, gpu, calls]))
    title = t.page.get_by_role("button", name=calls.title)
    expect(title).to_have_attribute("aria-expanded", "false")
    title.click()
    t.click(calls.title, 50, 1)
    expect(t.details.locator("h3")).to_have_text("inner")
    expect(t.details.locator("h4")).to_have_text(["Launched on the device 1, 20.0 µs", "Called by"])
    t.click(calls.title, 50, 0)
    expect(t.details.locator("h4")).to_have_text(["Launched on the device 2, 40.0 µs"])


def test_a_track_folds_to_one_line_and_opens_for_a_jump(opened):
    t = opened()
    title = t.page.get_by_role("button", name=OPS)
    expect(title).to_have_attribute("aria-expanded", "true")
    below = t.page.locator(".pf-tl-title").filter(has_text=GPU)
    before = below.bounding_box()["y"]
    title.press("Enter")
    expect(title).to_have_attribute("aria-expanded", "false")
    wait_until(lambda: below.bounding_box()["y"] == before - 2 * ROW)
    expect(title).to_be_focused()
    t.click(GPU, 60 + 80)
    t.details.get_by_role("button", name="cudaLaunchKernel").click()
    expect(title).to_have_attribute("aria-expanded", "true")
    wait_until(lambda: below.bounding_box()["y"] == before)


def test_a_marked_time_is_measured(opened):
    t = opened()
    (x0, y), (x1, _) = t.at("Phases", 380), t.at("Phases", 800)
    t.page.keyboard.down("Shift")
    t.page.mouse.move(x0, y)
    t.page.mouse.down()
    t.page.mouse.move(x1, y, steps=4)
    t.page.mouse.up()
    t.page.keyboard.up("Shift")
    expect(t.details.locator("h3")).to_have_text(re.compile(r"^Marked: 0\.4(19|2\d)\sms$"))
    row = t.details.get_by_role("row").filter(has_text=GPU)
    expect(row.locator("td").nth(1)).to_have_text(re.compile(r"^0\.34\d\sms$"))  # 30 of one, four times 65, 55
    expect(t.details.get_by_role("row").filter(has_text=NODES).locator("td").first).to_have_text("10")
    t.canvas.focus()
    t.page.keyboard.press("f")
    assert t.window_us() == pytest.approx((380, 800), abs=3)
    t.page.keyboard.press("Escape")
    expect(t.details).to_contain_text("Click an event")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [800, 1400])
def test_text_stands_out_and_nothing_is_cut_off(opened, scheme, width):
    t = opened(color_scheme=scheme, viewport={"width": width, "height": 900})
    t.click(OPS, 62 + 25)
    t.page.get_by_role("button", name="Table").click()
    expect(t.page.locator(".pf-tl-table tbody tr")).to_have_count(158)
    t.page.mouse.move(0, 0)
    low = t.page.evaluate(CONTRAST)
    assert low["checked"] > 200
    assert low["ratio"] >= 4.5, low
    assert t.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ground = t.pixel(GPU, 20)
    assert (min(ground) > 200) == (scheme == "light")
    t.page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    assert (min(t.pixel(GPU, 20)) > 200) == (scheme == "dark")
