"""What a panel keeps in the browser: all of the history, once, in bounded memory."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.watching import watch_samples as samples
from tests.watching.watch_pages import Open, chart, opener, points, settled

pytestmark = pytest.mark.browser


@pytest.fixture
def panel(open_page: OpenPage) -> Open:
    """Open a panel."""
    return opener(open_page)


def test_pushed_readings_are_drawn_as_those_that_were_there_before(panel):
    whole = panel(samples.laptop(30.0, running=True)).page
    opened = panel(samples.laptop(0, running=True))
    opened.push(samples.rows_of(12.0))
    opened.push(samples.rows_of(18.0, start_s=12.0))
    settled(opened.page)
    settled(whole)
    for key in ("cpu", "memory", "disk", "network"):
        for line in range(2):
            pairs = zip(points(opened.page, key, line), points(whole, key, line), strict=True)
            assert all(a == pytest.approx(b, abs=0.15) for a, b in pairs)


def test_repeated_and_lost_chunks(panel):
    opened = panel(samples.laptop(0, running=True))
    page = opened.page
    for start in range(0, 30, 5):
        opened.widget.push(samples.rows_of(5.0, start_s=float(start)))
    page.evaluate("(chunk) => arrived({ chunk })", opened.widget.chunk)  # the page was late: it hears of all
    page.evaluate("(chunk) => arrived({ chunk })", opened.widget.chunk)
    settled(page)
    assert page.evaluate("sizes()") == [60, 60]
    assert len(points(page, "memory")) == 60
    for start in range(30, 300, 5):
        opened.widget.push(samples.rows_of(5.0, start_s=float(start)))
    page.evaluate("(chunk) => arrived({ chunk })", opened.widget.chunk)
    settled(page)
    assert page.evaluate("sizes()") == [60 + 4 * 10] * 2  # most were lost: that is a gap
    page.get_by_role("slider", name="Time shown").focus()
    for _ in range(4):
        page.keyboard.press("-")
    settled(page)
    assert chart(page, "memory").locator("path.pf-watch-line").first.get_attribute("d").count("M") == 2


def test_what_the_history_holds_already_is_not_drawn_again(panel):
    opened = panel(samples.laptop(30.0, running=True))
    opened.push(samples.rows_of(10.0, start_s=25.0))
    settled(opened.page)
    assert opened.page.evaluate("sizes()") == [70, 70]


def test_a_second_view_shows_the_whole_history(panel):
    opened = panel(samples.laptop(0, running=True))
    opened.push(samples.rows_of(20.0))
    opened.push(samples.rows_of(20.0, start_s=20.0))
    page = opened.page
    page.evaluate("window.leave = another(), 1")
    settled(page)
    first, second = (page.locator(f"article >> nth={i} >> [data-chart=cpu] path.pf-watch-line").first for i in (0, 1))
    assert first.get_attribute("d") == second.get_attribute("d") != ""
    page.locator("article").nth(1).get_by_role("button", name="Pause").click()
    expect(page.locator("article").nth(0).get_by_role("status")).to_have_text("watching")
    page.evaluate("leave()")
    opened.push(samples.rows_of(5.0, start_s=40.0))
    settled(page)
    assert len(points(page, "cpu")) == 89
    page.evaluate("first()")
    opened.push(samples.rows_of(5.0, start_s=45.0))
    page.evaluate("another(), 1")  # the panel continues to collect while it is not shown
    settled(page)
    assert len(points(page, "cpu")) == 99
    expect(page.locator(".perfnb-static")).to_be_hidden()
    assert page.evaluate("destroy(), stores_left()") == 0


def test_it_never_grows(panel):
    opened = panel(samples.laptop(0, running=True))
    page = opened.page
    push = """() => {
      for (let push = 1; push <= 1000; push += 1) {
        const rows = [];
        for (let i = 0; i < 50; i += 1) {
          const t = 0.5 * (50 * push + i);
          const values = { cpu_percent: i % 2 ? 100 : 50, memory_bytes: 1e9 };
          const span = i % 2 ? 0.9 : 0.1;
          rows.push(["process", t, span, values], ["host", t, span, values]);
        }
        arrived({ chunk: JSON.stringify([[push, rows, [[`epoch ${push}`, 0, 25 * push, 25 * push + 20]], null]]) });
      }
    }"""
    page.evaluate(push)  # 100,000 rows
    settled(page)
    assert all(2000 <= size <= 4000 for size in page.evaluate("sizes()"))
    kept = page.evaluate("""() => [...store().devices.values()].map((own) => {
      let [sum, weight] = [0, 0];
      for (let i = 0; i < own.size; i += 1) {
        sum += own.span[i] * own.values.get("cpu_percent")[i];
        weight += own.span[i];
      }
      const ordered = own.t.subarray(0, own.size).every((t, i) => !i || t > own.t[i - 1]);
      const longest = Math.max(...own.span.subarray(0, own.size));
      return [sum / weight, weight, own.t.length, own.t[0], ordered, longest];
    })""")
    for mean, weight, room, first, ordered, longest in kept:
        assert weight == pytest.approx(25_000)
        assert mean == pytest.approx(95, rel=1e-6)
        assert room == 4000
        assert first < 50
        assert longest < 40  # the past is equally fine everywhere
        assert ordered
    assert page.evaluate("store().marks.size") == 500
    assert page.locator("svg *").count() < 1500


def test_lines_that_get_values_later_are_drawn_then(panel):
    made = samples.summary(samples.rows_of(10.0, devices=("process", "gpu0")), running=True)
    silent = made.samples.assign(torch_allocated_bytes=None, torch_reserved_bytes=None, busy_percent=None)
    opened = panel(samples.replace(made, samples=samples.conform(silent, "samples")))
    page = opened.page
    expect(chart(page, "gpu")).to_be_hidden()
    expect(chart(page, "gpu-memory").locator("li:visible")).to_have_count(1)
    opened.push(samples.rows_of(5.0, devices=("process", "gpu0"), start_s=10.0))
    expect(chart(page, "gpu")).to_be_visible()
    expect(chart(page, "gpu-memory").locator("li:visible")).to_have_count(3)
