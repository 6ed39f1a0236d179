"""The timeline in a browser: what is drawn where, what pointer and keys do, and what is said of each event."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import Locator, Page, expect

from perfnb.views.assets import report_script
from perfnb.views.palette import MARKS
from tests.browser.conftest import OpenPage
from tests.browser.test_report import CONTRAST
from tests.views import timeline_samples as samples
from tests.views.summaries import HOSTILE
from tests.views.timeline_pages import page_with
from tests.views.timeline_samples import Event, Track

pytestmark = pytest.mark.browser

ROW = 18
OPS = "Thread 1 (main)"
NODES = "Thread 2 (autograd)"
GPU = "GPU 0, stream 7"


#: Pixels of a part of a canvas, read from a copy.
READ = """(canvas, [x, y, width, height, onPage]) => {
  const box = canvas.getBoundingClientRect();
  if (onPage) [x, y] = [Math.round(x - box.left), Math.round(y - box.top)];
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [width, height];
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, x, y, width, height, 0, 0, width, height);
  return [...context.getImageData(0, 0, width, height).data];
}"""

#: The time shown, where the picture begins, and where each track does.
MEASURE = """(canvas) => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
  const { x, y, width } = canvas.getBoundingClientRect();
  const tops = (title) => [title.textContent, title.getBoundingClientRect().y];
  const titles = [...document.querySelectorAll(".pf-tl-title")].map(tops);
  done({ window: [Number(canvas.dataset.from), Number(canvas.dataset.to)], x, y, width, titles });
})))"""


class Timeline:
    """The tab, and where on the page a time of a track lies."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.canvas = page.locator(".pf-tl-canvas")
        self.search = page.get_by_role("searchbox", name="Search events and layers")
        self.status = page.locator(".pf-timeline .pf-search [role=status]")
        self.details = page.get_by_role("complementary", name="Details of the timeline")

    def measured(self) -> dict[str, Any]:
        """Where things are once what was asked for is drawn."""
        return self.canvas.evaluate(MEASURE)

    def window_us(self) -> tuple[float, float]:
        first, last = self.measured()["window"]
        return first / 1e3, last / 1e3

    def at(self, track: str, us: float, depth: int = 0) -> tuple[float, float]:
        now = self.measured()
        first, last = now["window"]
        (top,) = [y for title, y in now["titles"] if title.startswith(track)]
        return now["x"] + (us * 1e3 - first) / (last - first) * now["width"], top + (depth + 0.5) * ROW

    def click(self, track: str, us: float, depth: int = 0) -> None:
        self.page.mouse.click(*self.at(track, us, depth))

    def pixel(self, track: str, us: float, depth: int = 0) -> tuple[int, ...]:
        """The colour at a place, away from words."""
        x, y = self.at(track, us, depth)
        return tuple(self.canvas.evaluate(READ, [round(x), round(y - 7), 1, 1, True])[:3])

    def fact(self, word: str) -> Locator:
        return self.details.locator("dl > div").filter(has=self.page.locator(f"dt:text-is('{word}')")).locator("dd")


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def hue_of(pixel: tuple[int, ...], kind: str) -> bool:
    """Whether a pixel is one of the shades of a kind's colour, lighter or darker."""
    plain = np.array(rgb(MARKS[kind].colour), float)
    shades = [plain * 0.84, plain * 0.93, plain, plain + (255 - plain) * 0.12, plain + (255 - plain) * 0.24]
    return any(np.abs(shade - pixel).max() < 3 for shade in shades)


Open = Callable[..., Timeline]


@pytest.fixture
def opened(open_page: OpenPage) -> Open:
    """Opens a timeline in its report, without movement between two views."""

    def open_(data: bytes | None = None, whole: bytes = b"", before: str = "", **options: Any) -> Timeline:
        html = page_with(samples.step() if data is None else data, whole, before=before)
        page = open_page(html, **{"viewport": {"width": 1400, "height": 1000}, "reduced_motion": "reduce", **options})
        page.get_by_role("tab", name="Timeline").click()
        expect(page.locator(".pf-tl-canvas[data-from]")).to_be_visible()
        return Timeline(page)

    return open_


def test_events_are_drawn_at_their_places_in_their_colours(opened):
    t = opened()
    for name, (begin, length) in samples.PHASES.items():
        for step in range(2):
            assert t.pixel("Phases", 1000 * step + begin + 0.8 * length) == rgb(MARKS[name].colour)
    assert hue_of(t.pixel(OPS, 62 + 45), "forward")
    assert hue_of(t.pixel(NODES, 380 + 65), "backward")
    assert hue_of(t.pixel(GPU, 60 + 105), "forward")
    assert hue_of(t.pixel(OPS, 960), "optimizer")
    ground = t.pixel(GPU, 20)
    assert min(ground) > 235
    for track, us in ((OPS, 600), (NODES, 200), (GPU, 900)):
        assert t.pixel(track, us) == ground
    assert t.pixel("Layers", 350, 2) == ground
    assert t.pixel("Layers", 100, 2) == rgb(MARKS["forward"].colour)
    assert t.pixel("Memory, CPU", 700, 3) != ground
    assert t.pixel("Memory, CPU", 20, 3) == ground
    strip = t.page.locator(".pf-tl-top").evaluate(READ, [250, 0, 800, 34])
    assert len(set(zip(*[iter(strip)] * 4, strict=True))) > 8


def test_keys_zoom_about_the_pointer_and_pan(opened):
    t = opened()
    first, last = t.window_us()
    assert first < 0
    assert last > 2000
    t.canvas.focus()
    place = t.at(OPS, 500)
    t.page.mouse.move(*place)
    for _ in range(6):
        t.page.keyboard.press("w")
    near, far = t.window_us()
    assert far - near == pytest.approx((last - first) / 1.4**6, rel=1e-6)
    assert t.at(OPS, 500)[0] == pytest.approx(place[0], abs=1.5)
    t.page.keyboard.press("d")
    assert t.window_us()[0] == pytest.approx(near + 0.15 * (far - near))
    t.page.keyboard.press("a")
    t.page.keyboard.press("s")
    assert t.window_us()[1] - t.window_us()[0] == pytest.approx(1.4 * (far - near), rel=1e-6)
    t.page.keyboard.press("0")
    assert t.window_us() == pytest.approx((first, last))
    for _ in range(80):
        t.page.keyboard.press("w")
    assert t.window_us()[1] - t.window_us()[0] == pytest.approx(0.02, rel=1e-6)


def test_the_wheel_is_the_pages_until_the_timeline_is_clicked(opened):
    t = opened(viewport={"width": 1400, "height": 420})
    whole = t.window_us()
    t.canvas.evaluate("(canvas) => canvas.closest('.pf-tl').scrollIntoView({ block: 'center' })")
    t.page.mouse.move(*t.at("Phases", 900))
    top = t.page.evaluate("scrollY")
    t.page.mouse.wheel(0, -100)
    t.page.wait_for_function("(top) => scrollY < top", arg=top)
    assert t.window_us() == whole
    t.page.mouse.move(*t.at("Phases", 900))
    t.page.keyboard.down("Control")
    t.page.mouse.wheel(0, -100)
    t.page.keyboard.up("Control")
    t.page.wait_for_function(
        "(to) => Number(document.querySelector('.pf-tl-canvas').dataset.to) < to", arg=whole[1] * 999
    )
    near = t.window_us()
    t.click("Phases", 990)
    top = t.page.evaluate("scrollY")
    t.page.mouse.wheel(0, -200)
    t.page.wait_for_function(
        "(to) => Number(document.querySelector('.pf-tl-canvas').dataset.to) < to", arg=near[1] * 999
    )
    assert t.page.evaluate("scrollY") == top
    assert t.window_us()[1] - t.window_us()[0] < near[1] - near[0]


def test_dragging_pans_and_the_strip_moves_the_window(opened):
    t = opened()
    t.canvas.focus()
    for _ in range(4):
        t.page.keyboard.press("w")
    begin = t.window_us()
    x, y = t.at(OPS, 1100)
    t.page.mouse.move(x, y)
    t.page.mouse.down()
    t.page.mouse.move(x + 100, y, steps=4)
    t.page.mouse.up()
    assert t.at(OPS, 1100)[0] == pytest.approx(x + 100, abs=1.5)
    expect(t.details).to_contain_text("Click an event")
    box, top = t.canvas.bounding_box(), t.page.locator(".pf-tl-top").bounding_box()
    t.page.mouse.click(box["x"] + 0.75 * box["width"], top["y"] + 15)
    first, last = t.window_us()
    assert (first + last) / 2 == pytest.approx(1500, abs=3)
    assert last - first == pytest.approx(begin[1] - begin[0])
    edge = box["x"] + box["width"] * first / 2000
    t.page.mouse.move(edge, top["y"] + 15)
    t.page.mouse.down()
    t.page.mouse.move(box["x"] + 0.5 * box["width"], top["y"] + 15, steps=4)
    t.page.mouse.up()
    assert t.window_us() == pytest.approx((1000, last), abs=3)


def test_a_click_tells_of_an_event_and_its_partners_lead_on(opened):
    t = opened()
    t.click(OPS, 62 + 60 + 25)
    expect(t.details.locator("h3")).to_have_text("aten::conv2d")
    for word, text in (
        ("duration", "50.0 µs"), ("start", "0.122 ms into step 1"), ("self", "4.00 µs"), ("kind", "forward"),
        ("category", "cpu_op"), ("on", OPS), ("shapes", "[[8, 1, 32, 32]]"),
    ):  # fmt: skip
        expect(t.fact(word)).to_have_text(text)
    expect(t.details.locator("h4")).to_have_text(["Launched on the device 1, 55.0 µs", "Backward ops"])
    expect(t.page.locator(".pf-tl-spoken")).to_contain_text("aten::conv2d, 50.0 µs, forward, Thread 1 (main)")
    dark = max(t.page.evaluate("getComputedStyle(document.querySelector('.perfnb')).color.match(/\\d+/g).map(Number)"))
    x, y = t.at(GPU, 120 + 55)
    dot = t.canvas.evaluate(READ, [x + 1, y - ROW / 2, 1, 1, True])
    assert max(dot[:3]) <= dark + 3
    t.details.get_by_role("button", name="fprop").click()
    expect(t.details.locator("h3")).to_have_text("fprop")
    expect(t.fact("on")).to_have_text(GPU)
    t.details.get_by_role("button", name="cudaLaunchKernel").click()
    expect(t.fact("start")).to_have_text("0.150 ms into step 1")
    t.details.get_by_role("button", name="aten::convolution").click()
    t.details.get_by_role("button", name="aten::conv2d").click()
    t.details.get_by_role("button", name="ConvolutionBackward0").click()
    expect(t.fact("start")).to_have_text("0.620 ms into step 1")
    t.details.get_by_role("button", name="aten::conv2d").click()
    expect(t.fact("start")).to_have_text("0.122 ms into step 1")
    t.click(OPS, 600)
    expect(t.details).to_contain_text("Click an event")


def test_the_pointer_is_told_what_lies_under_it(opened):
    t = opened()
    tip = t.page.locator(".pf-tl-tip")
    t.page.mouse.move(*t.at(GPU, 1000 + 60 + 80))
    expect(tip).to_contain_text(re.compile(r"fprop.*55.0 µs.*0.115 ms into step 2.*forward.*kernel.*model.features.0"))
    t.page.mouse.move(*t.at("Memory, CPU", 500, 2))
    expect(tip).to_contain_text(re.compile(r"8\.00 MiB alive.*Memory, CPU.*0\.500 ms into step 1"))
    t.page.mouse.move(*t.at(GPU, 20))
    expect(tip).to_be_hidden()


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
        seen.append((t.fact("start").inner_text(), t.fact("on").inner_text()))
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
    page.get_by_role("button", name="Show in timeline").click()
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
    page.get_by_role("button", name="Show in timeline").click()
    expect(Timeline(page).details.locator("h3")).to_have_text("model.head")


def test_the_table_says_what_the_picture_shows(opened):
    t = opened()
    t.page.get_by_role("button", name="Table").click()
    rows = t.page.locator(".pf-tl-table tbody tr")
    expect(rows).to_have_count(158)
    expect(rows.nth(0)).to_have_text(re.compile(r"step 1–otherSteps0 ms1\.00 ms"))
    expect(rows.nth(2)).to_have_text(re.compile(r"backward–backwardPhases0\.380 ms0\.420 ms"))
    t.search.fill("dgrad")
    expect(rows).to_have_count(10)
    expect(rows.first).to_have_text(re.compile(r"dgradmodel.head.*backwardGPU 0, stream 70\.425 ms65\.0 µs"))
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


def test_a_track_folds_to_one_line_and_opens_for_a_jump(opened):
    t = opened()
    title = t.page.get_by_role("button", name=OPS)
    expect(title).to_have_attribute("aria-expanded", "true")
    below = t.page.locator(".pf-tl-title").filter(has_text=GPU)
    before = below.bounding_box()["y"]
    title.press("Enter")
    expect(title).to_have_attribute("aria-expanded", "false")
    assert below.bounding_box()["y"] == before - 2 * ROW
    expect(title).to_be_focused()
    t.click(GPU, 60 + 80)
    t.details.get_by_role("button", name="cudaLaunchKernel").click()
    expect(title).to_have_attribute("aria-expanded", "true")
    assert below.bounding_box()["y"] == before


def test_a_marked_time_is_measured(opened):
    t = opened()
    (x0, y), (x1, _) = t.at("Phases", 380), t.at("Phases", 800)
    t.page.keyboard.down("Shift")
    t.page.mouse.move(x0, y)
    t.page.mouse.down()
    t.page.mouse.move(x1, y, steps=4)
    t.page.mouse.up()
    t.page.keyboard.up("Shift")
    expect(t.details.locator("h3")).to_have_text(re.compile(r"^Marked: 0\.4(19|2\d) ms$"))
    row = t.details.get_by_role("row").filter(has_text=GPU)
    expect(row.locator("td").nth(1)).to_have_text(re.compile(r"^0\.34\d ms$"))  # 30 of one, four times 65, 55
    expect(t.details.get_by_role("row").filter(has_text=NODES).locator("td").first).to_have_text("10")
    t.canvas.focus()
    t.page.keyboard.press("f")
    assert t.window_us() == pytest.approx((380, 800), abs=3)
    t.page.keyboard.press("Escape")
    expect(t.details).to_contain_text("Click an event")


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
    expect(t.page.locator(".pf-tl-tip")).to_contain_text(re.compile(r"tiny.*the longest of [45]\d\d at this pixel"))
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
        (None, "delete window.DecompressionStream", "cannot unpack the timeline"),
        (b"none of it", "", "The timeline cannot be read"),
    ],
)
def test_what_cannot_be_unpacked_is_said(open_page, data, before, words):
    html = page_with(samples.step(), before=before)
    if data:
        html = html.replace(base64.b64encode(samples.step()).decode(), base64.b64encode(data).decode())
    page = open_page(html)
    page.get_by_role("tab", name="Timeline").click()
    expect(page.locator(".pf-timeline [role=status]")).to_contain_text(words)


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


#: Answers of the store to questions about random events.
_ASK = """async ([script, packed, asked]) => {
  const ask = new Function(script.replace("export default report;", "") + "return unpackTimeline;")();
  const store = await ask(Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)));
  const found = store.search(asked.query);
  const steps = [];
  for (let at = store.match(-1, -Infinity, 1); at >= 0; at = store.match(at, store.start[at], 1)) {
    steps.push([at, store.rank(at)]);
  }
  const back = [];
  for (let at = store.match(-1, Infinity, -1); at >= 0; at = store.match(at, store.start[at], -1)) back.push(at);
  const events = [...store.start.keys()];
  return {
    found, steps, back,
    parent: events.map((i) => store.parent(i)), self: events.map((i) => store.self(i)),
    launched: events.map((i) => store.launched(i).events.sort((a, b) => a - b)),
    busy: store.rows.map((row) => store.inside(row, asked.t0, asked.t1).busy),
    longest: asked.ranges.map(([from, to]) => store.duration[store.longest(from, to)]),
    table: store.longestIn(asked.t0, asked.t1, 15).map((i) => store.duration[i]),
  };
}"""


@pytest.mark.parametrize("seed", range(3))
def test_the_store_answers_as_a_search_through_all_events(page, seed):
    rng = random.Random(seed)
    threads, kernels = [Track("thread", f"Thread {n}") for n in range(2)], Track("stream", "GPU")

    def nest(track: Track, begin: float, end: float, depth: int) -> None:
        at = begin
        while at < end and depth < 4:
            length = min(end - at, rng.choice([0, 1, 2, 5, 30]))
            track.events.append(
                Event(rng.choice("abc"), at, length, depth=depth, key=f"{id(track)}{len(track.events)}")
            )
            if length > 2:
                nest(track, at, at + length, depth + 1)
            at += length + rng.choice([0, 0.5, 3])

    for track in threads:
        nest(track, 0, 200, 0)
    hosts = [event.key for track in threads for event in track.events]
    kernels.events += [
        Event(rng.choice("ak"), 5 * k, rng.randint(1, 5), launch=rng.choice([*hosts, ""])) for k in range(60)
    ]
    data = samples.encoded([*threads, kernels])
    ordered = [e for track in [*threads, kernels] for e in sorted(track.events, key=lambda e: (e.depth, e.start_us))]
    of = {id(e): track for track in [*threads, kernels] for e in track.events}
    places = {e.key: i for i, e in enumerate(ordered) if e.key}
    n, t0, t1 = len(ordered), 40.0, 90.25
    ranges = [sorted(rng.sample(range(n + 1), 2)) for _ in range(200)]
    asked = {"query": "a", "t0": t0 * 1e3, "t1": t1 * 1e3, "ranges": ranges}
    page.set_content("<p></p>")
    given = page.evaluate(_ASK, [report_script(), base64.b64encode(data).decode(), asked])

    def within(inner: Event, outer: Event) -> bool:
        same = of[id(inner)] is of[id(outer)] and inner.depth > outer.depth
        return same and outer.start_us <= inner.start_us < outer.start_us + outer.duration_us

    def parent(e: Event) -> list[int]:
        return [i for i, o in enumerate(ordered) if within(e, o) and o.depth == e.depth - 1]

    hits = sorted((i for i, e in enumerate(ordered) if e.name == "a"), key=lambda i: (ordered[i].start_us, i))
    assert given["found"] == len(hits)
    assert given["steps"] == [[i, k] for k, i in enumerate(hits)]
    assert given["back"] == hits[::-1]
    for i, e in enumerate(ordered):
        if e.duration_us:
            assert [given["parent"][i]] == (parent(e) or [-1])
        inside = sum(o.duration_us for o in ordered if within(o, e) and o.depth == e.depth + 1)
        assert given["self"][i] == pytest.approx(1e3 * (e.duration_us - inside))
        work = [
            k for k, o in enumerate(ordered) if o.launch and (o.launch == e.key or within(ordered[places[o.launch]], e))
        ]
        assert given["launched"][i] == (work if e.key else [])
    rows: dict[tuple[int, int], float] = {}
    for e in ordered:
        key = (id(of[id(e)]), e.depth)
        rows[key] = rows.get(key, 0) + max(0, min(t1, e.start_us + e.duration_us) - max(t0, e.start_us))
    assert given["busy"] == pytest.approx([1e3 * busy for busy in rows.values()])
    lengths = [1e3 * e.duration_us for e in ordered]
    assert given["longest"] == [max(lengths[a:b]) for a, b in ranges]
    shown = [e for e in ordered if e.name == "a" and e.start_us < t1 and e.start_us + e.duration_us >= t0]
    assert given["table"] == sorted((1e3 * e.duration_us for e in shown), reverse=True)[:15]
