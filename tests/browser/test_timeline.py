"""The timeline in a browser: what is drawn where, what pointer and keys do, and what is said of each event."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright", reason="needs playwright")
from playwright.sync_api import expect

from perfnb.draw.palette import MARKS
from tests.browser.timeline_driver import GPU, NODES, OPS, READ, ROW, Timeline, hue_of, rgb
from tests.timeline import timeline_samples as samples
from tests.timeline.timeline_samples import Event, Track

pytestmark = pytest.mark.browser


def patterned(t: Timeline, begin: float, end: float) -> bool:
    """Return whether the end of a phase, away from its word, has more than its colour."""
    (left, y), (right, _) = t.at("Phases", begin), t.at("Phases", end)
    seen = t.canvas.evaluate(READ, [round(right - min(14, (right - left) / 3)), round(y - 3), 8, 6, True])
    return len(set(zip(*[iter(seen)] * 4, strict=True))) > 1


@pytest.mark.smoke
def test_events_are_drawn_at_their_places_in_their_colours(opened):
    t = opened()
    for name, (begin, length) in samples.PHASES.items():
        for step in range(2):
            assert t.pixel("Phases", 1000 * step + begin + 0.8 * length) == rgb(MARKS[name].colour)
    wide = {name: place for name, place in samples.PHASES.items() if name != "loss"}
    drawn = {name for name, (begin, length) in wide.items() if patterned(t, 1000 + begin, 1000 + begin + length)}
    assert drawn == {"data", "backward", "optimizer"}
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
    t.canvas.evaluate("(canvas) => canvas.closest('.pf-canvas-shell').scrollIntoView({ block: 'center' })")
    t.page.mouse.move(*t.at("Phases", 900))
    top = t.page.evaluate("scrollY")
    t.page.mouse.wheel(0, -100)
    t.page.wait_for_function("(top) => scrollY < top", arg=top)
    assert t.window_us() == whole
    t.page.mouse.move(*t.at("Phases", 900))
    t.page.keyboard.down("Control")
    t.page.mouse.wheel(0, -100)
    t.page.keyboard.up("Control")
    t.page.wait_for_function("(to) => Number(document.querySelector('.pf-canvas').dataset.to) < to", arg=whole[1] * 999)
    near = t.window_us()
    t.click("Phases", 990)
    top = t.page.evaluate("scrollY")
    t.page.mouse.wheel(0, -200)
    t.page.wait_for_function("(to) => Number(document.querySelector('.pf-canvas').dataset.to) < to", arg=near[1] * 999)
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
    t.page.mouse.down()
    t.page.mouse.move(box["x"] + 0.5 * box["width"], top["y"] + 15, steps=4)
    t.page.mouse.up()
    assert t.window_us() == pytest.approx((first - 500, last - 500), abs=3)


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
    expect(t.page.locator(".pf-spoken")).to_contain_text("aten::conv2d, 50.0 µs, forward, Thread 1 (main)")
    dark = max(t.page.evaluate("getComputedStyle(document.querySelector('.perfnb')).color.match(/\\d+/g).map(Number)"))
    x, y = t.at(GPU, 120 + 55)
    dot = t.canvas.evaluate(READ, [x + 1, y - ROW / 2, 1, 1, True])
    assert max(dot[:3]) <= dark + 3
    t.details.get_by_role("button", name="fprop").click()
    expect(t.details.locator("h3")).to_have_text("fprop")
    expect(t.fact("on")).to_have_text(GPU)
    expect(t.partners("Launched by")).to_have_text(["aten::conv2d (cudaLaunchKernel)50.0 µs · Thread 1 (main)"])
    t.details.get_by_role("button", name="cudaLaunchKernel").click()
    expect(t.fact("start")).to_have_text("0.150 ms into step 1")
    t.details.get_by_role("button", name="aten::convolution").click()
    t.details.get_by_role("button", name="aten::conv2d").click()
    t.details.get_by_role("button", name="ConvolutionBackward0").click()
    expect(t.fact("start")).to_have_text("0.620 ms into step 1")
    expect(t.partners("Forward op")).to_have_text([re.compile("^aten::conv2d"), re.compile("^aten::convolution")])
    t.details.get_by_role("button", name="aten::conv2d").click()
    expect(t.fact("start")).to_have_text("0.122 ms into step 1")
    t.click(OPS, 600)
    expect(t.details).to_contain_text("Click an event")


def test_a_layer_leads_to_its_kernels_and_its_backward(opened):
    t = opened(samples.step(backward_layers=True))
    t.click("Layers", 1000 + 60 + 60 + 20, 2)
    expect(t.details.locator("h3")).to_have_text("model.features.1")
    expect(t.partners("Launched on the device")).to_have_text([re.compile(r"^fprop55.0\sµs")])
    expect(t.partners("Backward ops")).to_have_text([re.compile("^ConvolutionBackward0")])
    expect(t.partners("Backward")).to_have_text([re.compile(r"^model.features.1.*70.0\sµs · Layers")])
    dark = max(t.page.evaluate("getComputedStyle(document.querySelector('.perfnb')).color.match(/\\d+/g).map(Number)"))
    for track, us, depth in ((GPU, 1000 + 120 + 55, 0), ("Layers", 1000 + 380 + 80 * 3, 2)):
        x, y = t.at(track, us, depth)
        seen = t.canvas.evaluate(READ, [x - 2, y - ROW / 2 - 2, 6, 5, True])
        assert min(max(seen[k : k + 3]) for k in range(0, len(seen), 4)) <= dark + 3  # where a line ends
    t.partners("Backward").get_by_role("button").click()
    expect(t.fact("start")).to_have_text("0.620 ms into step 2")
    expect(t.fact("kind")).to_have_text("backward")
    expect(t.partners("Launched on the device")).to_have_text([re.compile(r"^dgrad65.0\sµs")])
    expect(t.partners("Forward")).to_have_text([re.compile(r"^model.features.1.*58.0\sµs · Layers")])


def test_what_overlaps_on_a_stream_calls_nothing(opened):
    copies = [Event("Memcpy HtoD", 0, 8, category="gpu_memcpy"), Event("Stream Sync", 1, 7, depth=1)]
    t = opened(samples.encoded([Track("steps", "Steps", [Event("step 1", 0, 10)]), Track("stream", GPU, copies)]))
    for depth, name in enumerate(("Memcpy HtoD", "Stream Sync")):
        t.click(GPU, 4, depth)
        expect(t.details.locator("h3")).to_have_text(name)
        expect(t.fact("self")).to_have_count(0)
        expect(t.details.locator("h4")).to_have_count(0)


def test_the_tooltip_describes_what_is_under_the_pointer(opened):
    t = opened()
    tip = t.page.locator(".pf-tip")
    t.page.mouse.move(*t.at(GPU, 1000 + 60 + 80))
    expect(tip).to_contain_text(
        re.compile(r"fprop.*55.0\sµs.*0.115\sms into step 2.*forward.*kernel.*model.features.0")
    )
    t.page.mouse.move(*t.at("Memory, CPU", 500, 2))
    expect(tip).to_contain_text(re.compile(r"8\.00\sMiB alive.*Memory, CPU.*0\.500\sms into step 1"))
    t.page.mouse.move(*t.at(GPU, 20))
    expect(tip).to_be_hidden()
