"""The timeline with more events than pixels, hostile names, and in a browser that cannot unpack it."""

from __future__ import annotations

import base64
import re

import numpy as np
import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import expect

from perfnb.draw.palette import MARKS
from tests.browser.timeline_driver import hue_of, rgb
from tests.summaries import HOSTILE
from tests.timeline import timeline_samples as samples
from tests.timeline.timeline_pages import page_with
from tests.timeline.timeline_samples import Event, Track

pytestmark = pytest.mark.browser


def test_the_whole_takes_the_place_of_a_coarser_level(opened):
    whole = samples.step()
    coarse = samples.encoded(
        [Track("steps", "Steps", [Event("step 1", 0, 1000, "other"), Event("step 2", 1000, 1000, "other")])],
        total_events=158,
        shortest_ns=12_000,
        layers=samples.LAYERS,
    )
    t = opened(coarse, whole)
    note = t.page.get_by_text("Showing events of")
    expect(note).to_have_text("Showing events of 12.0 µs and longer: 2 of 158.")
    t.click("Steps", 1500)
    t.canvas.focus()
    t.page.keyboard.press("w")
    t.search.fill("step")
    before = t.window_us()
    assert t.page.evaluate("sent") == [{"timeline": "whole"}]
    t.page.evaluate("answer()")
    expect(note).to_be_hidden()
    expect(t.canvas).to_have_attribute("aria-label", "Timeline of 158 events in 6 tracks")
    expect(t.details.locator("h3")).to_have_text("step 2")
    expect(t.status).to_have_text("4 of 158 events")
    assert t.window_us() == before
    t.page.evaluate("again()")  # a second view of the same model
    t.page.get_by_role("tab", name="Timeline").last.click()
    expect(t.canvas.last).to_have_attribute("aria-label", "Timeline of 158 events in 6 tracks")
    assert len(t.page.evaluate("sent")) == 1


def test_ten_thousand_events_in_a_pixel_are_one_pixel(opened):
    rng = np.random.default_rng(0)
    start = np.sort(rng.choice(20_000_000, 200_000, replace=False)).astype(float) * 100
    start = start[(start < 1.6e9) | (start > 1.62e9)]  # the last before the gap will fill it
    n = len(start)
    length = np.minimum(np.diff(start, append=2e9), 50.0)
    planted = int(np.argmin(np.abs(start - 1.2e9)))
    length[planted] = start[planted + 1] - start[planted]
    wide = int(np.searchsorted(start, 1.6e9)) - 1
    length[wide] = start[wide + 1] - start[wide]
    none = np.full(n, -1)
    columns = {name: np.zeros(n) for name in ("name", "depth", "kind", "category")}
    columns |= {"start": start, "duration": length} | dict.fromkeys(("layer", "launch", "forward", "detail"), none)
    columns["kind"] = np.full(n, samples.KINDS.index("forward"))
    columns["name"][planted], columns["name"][wide] = 1, 2
    header = {
        "start_ns": 0, "end_ns": 2e9, "total_events": n, "shortest_ns": 0, "details": [],
        "names": ["tiny", "planted", "wide"],
        "categories": ["cpu_op"], "layers": [], "layer_rows": [], "memory": [],
        "tracks": [{"kind": "thread", "title": "Thread 1", "note": "", "first": 0, "count": n, "depth": 1}],
    }  # fmt: skip
    t = opened(samples.packed(header, {**columns, "memory_t": [], "memory_bytes": []}))
    blue, pixel = rgb(MARKS["forward"].colour), t.pixel("Thread 1", 5e5)
    assert pixel != blue
    assert pixel[0] < pixel[2]
    assert hue_of(t.pixel("Thread 1", 1.61e6), "forward")
    assert not hue_of(t.pixel("Thread 1", 1.58e6), "forward")
    t.page.mouse.move(*t.at("Thread 1", 5e5))
    expect(t.page.locator(".pf-tip")).to_contain_text(re.compile(r"tiny.*the longest of [45]\d\d at this pixel"))
    t.page.mouse.move(2, 2)
    assert t.pixel("Thread 1", 5e5) == pixel
    t.search.fill("planted")
    expect(t.status).to_have_text(f"1 of {n:,} events")
    assert t.pixel("Thread 1", 5e5) != pixel
    t.search.press("Enter")
    expect(t.details.locator("h3")).to_have_text("planted")
    t.search.fill("")
    middle = (start[planted] + length[planted] / 2) / 1e3
    assert t.pixel("Thread 1", middle)[2] > t.pixel("Thread 1", middle)[0]
    t.click("Thread 1", middle)
    expect(t.details.locator("h3")).to_have_text("planted")


def test_hostile_names_are_text(opened):
    names = [*HOSTILE, "שלום עולם", "🦆" * 20, "a" * 5000]
    events = [Event(n, 10 * k, 9, layer=n, detail=n, category=n[:50]) for k, n in enumerate(names)]
    tracks = [Track("thread", names[0], events, note=names[1]), Track("stream", names[2], [Event(names[0], 0, 5)])]
    data = samples.encoded(tracks, [(names[0], [0, 50], [1.0, 2.0])], layers=names)
    t = opened(data)
    t.canvas.focus()
    for _ in range(3):
        t.page.keyboard.press("w")
    t.page.keyboard.press("0")
    t.page.get_by_role("button", name="Table").click()
    rows = t.page.locator(".pf-tl-table tbody tr")
    expect(rows).to_have_count(len(events) + 1)
    for at in (0, 6, len(events) - 1):
        rows.nth(at).get_by_role("button").click()
        expect(t.details.locator("h3")).not_to_be_empty()
        box = t.canvas.bounding_box()
        t.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 9)
    t.search.fill("layer:__proto__")
    expect(t.status).to_have_text(f"1 of {len(events) + 1} events")
    assert t.page.evaluate("window.__pwned") is None
    assert t.page.locator("main img, main svg [onload], main script").count() == 0
    assert t.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(
    ("data", "before", "words"),
    [
        (None, "delete window.DecompressionStream", "DecompressionStream is not defined"),
        (b"none of it", "", "The timeline cannot be read"),
    ],
)
def test_data_that_cannot_be_unpacked_is_reported(open_page, data, before, words):
    html = page_with(samples.step(), before=before)
    if data:
        html = html.replace(base64.b64encode(samples.step()).decode(), base64.b64encode(data).decode())
    page = open_page(html)
    page.get_by_role("tab", name="Timeline").click()
    expect(page.locator(".pf-timeline [role=status]")).to_contain_text(words)


def test_a_marked_time_stays_when_the_whole_comes(opened):
    coarse = samples.encoded([Track("steps", "Steps", [Event("step 1", 0, 2000, "other")])], total_events=158)
    t = opened(coarse, samples.step())
    (x0, y), (x1, _) = t.at("Steps", 380), t.at("Steps", 820)
    t.page.keyboard.down("Shift")
    t.page.mouse.move(x0, y)
    t.page.mouse.down()
    t.page.mouse.move(x1, y, steps=4)
    t.page.mouse.up()
    t.page.keyboard.up("Shift")
    expect(t.details.get_by_role("row")).to_have_count(2)
    marked = t.details.locator("h3").inner_text()
    t.page.evaluate("answer()")
    expect(t.details.get_by_role("row")).to_have_count(6)
    expect(t.details.locator("h3")).to_have_text(marked)
