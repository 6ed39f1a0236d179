"""The live panel of a watch in a browser: it draws while readings come, and pointer and keys find their way."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.browser.test_report import CONTRAST
from tests.watching import watch_samples as samples
from tests.watching.watch_pages import Open, chart, opener, points, settled, shown, value

pytestmark = pytest.mark.browser


@pytest.fixture
def panel(open_page: OpenPage) -> Open:
    """Open a panel."""
    return opener(open_page)


@pytest.mark.smoke
def test_it_draws_while_readings_come(panel):
    opened = panel(samples.laptop(0, running=True))
    page = opened.page
    expect(page.get_by_text("No readings yet.")).to_be_visible()
    expect(page.locator(".perfnb-static")).to_be_hidden()
    drawn = []
    for start in (0.0, 5.0, 10.0):
        opened.push(samples.rows_of(5.0, start_s=start))
        settled(page)
        drawn.append(len(points(page, "cpu")))
        assert shown(page) == (0, 10 if start < 10 else 14.5)
    assert drawn == [9, 19, 29]  # a rate is not known at first
    last = {row[0]: row[3] for row in samples.rows_of(5.0, start_s=10.0)[-2:]}
    assert value(page, "cpu", "process") == f"{last['process']['cpu_percent']:.0f} %"
    expect(page.locator(".pf-watch-elapsed")).to_have_text("0:15")
    expect(page.get_by_role("status")).to_have_text("watching")


def test_a_gap_is_a_gap_and_a_lone_reading_a_dot(panel):
    page = panel(samples.laptop()).page  # nothing from 0:40 to 0:46
    path = chart(page, "cpu").locator("path.pf-watch-line").first.get_attribute("d")
    assert path.count("M") == 2
    lone = panel(samples.unknown()).page
    path = chart(lone, "temperature").locator("path.pf-watch-line").first.get_attribute("d")
    assert path.count("M") == path.count("h0.01") == 6
    assert chart(lone, "gpu").count() == 0


def test_it_follows_the_last_minute(panel):
    opened = panel(samples.laptop(90.0, running=True))
    page = opened.page
    settled(page)
    assert shown(page) == pytest.approx((29.5, 89.5), abs=0.1)
    opened.push(samples.rows_of(5.0, start_s=90.0))
    settled(page)
    assert shown(page) == pytest.approx((34.5, 94.5), abs=0.1)


def test_the_brush_zooms_moves_and_lets_go(panel):
    opened = panel(samples.laptop(200.0, running=True))
    page = opened.page
    strip = page.get_by_role("slider", name="Time shown")
    box = strip.bounding_box()
    reset = page.get_by_role("button", name="Follow")
    expect(reset).to_be_disabled()

    def drag(start: float, end: float) -> None:
        y = box["y"] + box["height"] - 35
        page.mouse.move(box["x"] + start * box["width"], y)
        page.mouse.down()
        for part in (0.3, 0.7, 1.0):
            page.mouse.move(box["x"] + (start + part * (end - start)) * box["width"], y)
        page.mouse.up()
        settled(page)

    drag(0.1, 0.3)
    assert shown(page) == pytest.approx((20, 60), abs=2)
    before = points(page, "cpu")
    drag(0.2, 0.5)
    assert shown(page) == pytest.approx((80, 120), abs=2)
    assert points(page, "cpu") != before
    opened.push(samples.rows_of(5.0, start_s=200.0))
    settled(page)
    assert shown(page) == pytest.approx((80, 120), abs=2)  # who has zoomed is left alone
    reset.click()
    settled(page)
    assert shown(page)[1] == pytest.approx(204.5, abs=0.1)


def test_keys_move_and_zoom_the_window(panel):
    page = panel(samples.laptop(200.0, running=True)).page
    strip = page.get_by_role("slider", name="Time shown")
    strip.focus()
    for key, start, end in (
        ("Home", 0, 60),
        ("ArrowRight", 6, 66),
        ("PageUp", 36, 96),
        ("+", 51, 81),
        ("ArrowLeft", 48, 78),
        ("-", 33, 93),
        ("End", 139.5, 199.5),
        ("ArrowRight", 139.5, 199.5),
    ):
        page.keyboard.press(key)
        settled(page)
        assert shown(page) == pytest.approx((start, end), abs=0.15), key
    expect(page.get_by_role("button", name="Follow")).to_be_enabled()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Follow")).to_be_disabled()
    expect(strip).to_have_attribute("aria-valuetext", re.compile("following$"))


def test_tooltips_are_in_step(panel):
    made = samples.server(100.0, running=True)
    page = panel(made).page
    settled(page)
    plot = chart(page, "power").locator(".pf-plot")
    plot.hover(position={"x": 150, "y": 50})
    settled(page)
    said = plot.get_attribute("aria-valuetext")
    at = float(re.match(r"at 1:([\d.]+): ", said).group(1)) + 60
    cursors = page.locator(".pf-watch-cursor").evaluate_all(
        "(lines) => lines.filter((line) => !line.closest('[hidden]'))"
        ".map((line) => [line.getAttribute('x1'), line.style.display])"
    )
    assert len(cursors) == 11, "a chart without readings is hidden"
    assert len({tuple(cursor) for cursor in cursors}) == 1
    assert cursors[0][1] == ""
    row = made.samples[(made.samples["t_s"] == at)].set_index("device")
    assert value(page, "power", "GPU 0") == f"{row.loc['gpu0', 'power_w']:.0f} W"
    assert value(page, "cpu", "process") == f"{row.loc['process', 'cpu_percent']:.0f} %"
    assert value(page, "memory", "host") == f"{row.loc['host', 'memory_bytes'] / 2**30:.3g} GiB"
    expect(page.locator(".pf-watch-at")).to_have_text(re.compile(rf"at 1:{at - 60:04.1f} · cell 5 . epoch"))
    page.mouse.move(500, 5)
    expect(page.locator(".pf-watch-at")).to_have_text("")
    plot.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    settled(page)
    expect(page.locator(".pf-watch-at")).to_have_text(re.compile(r"^at 0:40\.5"))
    expect(plot).to_have_attribute("aria-valuetext", re.compile(r"^at 0:40\.5: GPU 0 \d+ W$"))
    page.keyboard.press("Escape")
    expect(page.locator(".pf-watch-at")).to_have_text("")


def test_pause_freezes_what_is_shown(panel):
    opened = panel(samples.laptop(30.0, running=True))
    page = opened.page
    settled(page)
    before = points(page, "cpu")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_have_text("paused")
    opened.push(samples.rows_of(20.0, start_s=30.0))
    settled(page)
    assert points(page, "cpu") == before
    expect(page.locator(".pf-watch-elapsed")).to_have_text("0:30")
    page.get_by_role("button", name="Resume").click()
    settled(page)
    assert len(points(page, "cpu")) == len(before) + 40
    expect(page.locator(".pf-watch-elapsed")).to_have_text("0:50")


def test_when_it_stops_it_is_a_document(panel):
    opened = panel(samples.laptop(60.0, running=True))
    opened.finish(samples.laptop(90.0))
    page = opened.page
    verdict = page.get_by_role("region", name="Verdict")
    expect(verdict).to_contain_text("Nothing saturated: CPU 235 % of 800 %")
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    assert shown(page) == pytest.approx((0, 89.5), abs=0.1)
    expect(page.locator("article")).to_contain_text("169 readings, 1 missed")
    row = page.get_by_role("row").filter(has_text="disk written").first
    expect(row).to_contain_text("180 MiB/s")
    opened.push(samples.rows_of(5.0, start_s=90.0))
    settled(page)
    assert shown(page) == pytest.approx((0, 89.5), abs=0.1)


def test_missing_readings_are_reported(panel):
    opened = panel(samples.laptop(10.0, running=True))
    notes = opened.page.locator(".pf-notes")
    expect(notes).to_contain_text("no NVIDIA driver on this machine")
    opened.push(samples.rows_of(1.0, start_s=10.0), note="GPU 0 was <b>lost</b>")
    expect(notes).to_contain_text("GPU 0 was <b>lost</b>")


def test_marks_stand_in_the_strip(panel):
    opened = panel(samples.laptop(60.0, running=True))
    bands = opened.page.locator(".pf-watch-band:visible")
    settled(opened.page)
    names = bands.locator("text").all_text_contents()
    assert {"cell 4", "cell 5", "epoch 1", "epoch 2"} <= set(names)
    opened.push([], [["cell 9", 0, 50.0, None]])
    expect(bands.locator("title", has_text="cell 9: 0:50.0 to now")).to_have_count(1)
    opened.push([], [["cell 9", 0, 50.0, 55.0]])
    expect(bands.locator("title", has_text="cell 9: 0:50.0 to 0:55.0")).to_have_count(1)


def test_hostile_names_are_text(panel):
    opened = panel(samples.hostile())
    page = opened.page
    settled(page)
    assert page.evaluate("window.__pwned") is None
    assert page.locator("main img, main [onload], main [onerror], main script").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1000])
@pytest.mark.parametrize("make", [samples.laptop, samples.server])
def test_text_stands_out_and_nothing_is_cut_off(panel, make, width, scheme):
    for running in (True, False):
        page = panel(make(running=running), color_scheme=scheme, viewport={"width": width, "height": 900}).page
        settled(page)
        low = page.evaluate(CONTRAST)
        assert low["checked"] > 15
        assert low["ratio"] >= 4.5, low
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        outside = """(texts) => texts.map((text) => [text.getBoundingClientRect(), text.textContent])
            .filter(([box]) => box.left < 0 || box.right > innerWidth).map(([, words]) => words)"""
        assert page.locator("svg text").evaluate_all(outside) == []
        columns = page.locator(".pf-watch-grid").evaluate("(grid) => getComputedStyle(grid).gridTemplateColumns")
        assert len(columns.split()) == (3 if width == 1000 else 1)


def test_what_cannot_be_seen_is_not_drawn_until_it_can(panel):
    opened = panel(samples.laptop(30.0, running=True))
    page = opened.page
    settled(page)
    before = points(page, "cpu")
    page.evaluate("() => { document.querySelector('main').style.marginTop = '4000px'; }")
    settled(page)
    settled(page)
    opened.push(samples.rows_of(10.0, start_s=30.0))
    settled(page)
    assert points(page, "cpu") == before
    page.evaluate("() => { document.querySelector('main').style.marginTop = 0; }")
    expect(page.locator(".pf-watch-elapsed")).to_have_text("0:40")
    assert len(points(page, "cpu")) == len(before) + 20
