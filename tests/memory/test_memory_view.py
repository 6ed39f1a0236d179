"""The memory view without scripts, and as data for the browser."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate

import pandas as pd
import pytest

from perfnb import quantities as fmt
from perfnb.draw import bars, escape
from perfnb.draw.palette import CATEGORIES, MARKS
from perfnb.memory.tab import memory_data, memory_html, memory_text
from tests.memory import memory_samples as samples
from tests.pages import check, picture_bytes, spaced
from tests.summaries import HOSTILE

EXAMPLES = {
    "transformer": samples.transformer,
    "out_of_memory": samples.out_of_memory,
    "hostile": samples.hostile,
    "unknown": samples.unknown,
    "empty": samples.empty,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden(name, golden):
    golden(f"memory_{name}.txt", "\n".join(memory_text(EXAMPLES[name]())) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_asked(name, width):
    for line in memory_text(EXAMPLES[name](), width):
        assert escape.cells(line) <= width, line


def test_the_curve_in_text_is_as_high_as_the_memory():
    made = samples.transformer()
    times, ends = [0.0, 100.0, 200.0, 300.0], 400.0
    totals = pd.array([400, 800, 100, 0], dtype="Int64")
    timeline = made.timeline.head(4).assign(t_ms=times, total=totals)
    lines = memory_text(replace(made, timeline=timeline, step_ms=ends, peak_bytes=800, peak_ms=100.0), 80)
    (curve,) = [line for line in lines if line.startswith("▄")]
    assert curve == "▄" * 20 + "█" * 20 + "▁" * 20


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_html_holds_only_known_elements(name):
    check(memory_html(EXAMPLES[name]()))


def test_html_says_everything_in_words():
    made = samples.transformer()
    page = spaced(memory_html(made))
    for name, size in made.by_category.items():
        if size:
            assert f"{CATEGORIES[name].word}</th><td" in page
            assert f">{fmt.size(size)}</td>" in page
    for option in made.fits["option"]:
        assert option in page
    assert page.count("estimated") == 3
    assert page.count("computed") == 1
    assert f"peak {fmt.size(made.peak_bytes)}" in page
    assert "smaller ones not listed" in page


def test_a_failed_step_says_so():
    for text in (spaced(memory_html(samples.out_of_memory())), "\n".join(memory_text(samples.out_of_memory()))):
        assert "Incomplete" in text
        assert "Tried to allocate 2.00 GiB" in text.replace("\n", " ")
        assert "out of memory once" in text
    assert "Incomplete" not in memory_html(samples.transformer())


@pytest.mark.slow
@pytest.mark.parametrize("make", [samples.transformer, samples.out_of_memory, samples.hostile, samples.many])
def test_the_picture_is_small_and_has_words(make):
    page = memory_html(make())
    picture = picture_bytes(page)
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 40_000
    (image,) = [attributes for tag, attributes in check(page).tags if tag == "img"]
    assert "temporaries" in image["alt"]


def test_nothing_is_drawn_of_nothing():
    assert "<img" not in memory_html(samples.empty())


@pytest.mark.slow
def test_matplotlib_is_loaded_only_to_draw_and_pyplot_never():
    code = (
        "import sys; from perfnb.memory import tab as memory; assert 'matplotlib' not in sys.modules\n"
        "from tests.memory import memory_samples as s; memory.memory_text(s.transformer(2)); "
        "assert 'matplotlib' not in sys.modules\n"
        "memory.memory_html(s.transformer(2)); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_the_settings_of_a_user_s_own_plots_are_left_alone():
    import matplotlib

    with matplotlib.rc_context({"text.usetex": True, "font.size": 31.0}):
        before = dict(matplotlib.rcParams)
        drawn = memory_html(samples.transformer(2))
        assert dict(matplotlib.rcParams) == before
    assert picture_bytes(drawn) == picture_bytes(memory_html(samples.transformer(2)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_json_without_nan(name):
    data = memory_data(EXAMPLES[name]())
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_differences_add_up_to_the_frame():
    made = samples.transformer(gpu=True)
    data = memory_data(made)
    instants = data["instants"]
    assert [t / 1e6 for t in accumulate(instants["t"])] == pytest.approx(list(made.timeline["t_ms"]), abs=1e-6)
    for place, name in enumerate(CATEGORIES):
        assert list(accumulate(instants["categories"][place])) == list(made.timeline[name])
    assert list(accumulate(instants["total"])) == list(made.timeline["total"])
    assert list(accumulate(instants["reserved"])) == list(made.timeline["reserved"])
    assert instants["process"] is None
    times = list(accumulate(instants["t"]))
    assert times[data["peak"]["at"]] == round(1e6 * made.peak_ms)


def test_the_unknown_between_two_known_figures_stays_unknown():
    made = samples.transformer(1)
    process = pd.array([100, pd.NA, 130, *[130] * (len(made.timeline) - 3)], dtype="Int64")
    data = memory_data(replace(made, timeline=made.timeline.assign(process=process)))
    assert data["instants"]["process"][:4] == [100, None, 30, 0]


def test_allocations_keep_their_figures_and_names():
    made = samples.transformer()
    data = memory_data(made)
    largest, names = data["largest"], data["names"]
    starts = list(accumulate(largest["start"]))
    by_hand = made.largest.sort_values("start_ms", kind="stable").reset_index(drop=True)
    assert starts == [round(1e6 * t) for t in by_hand["start_ms"]]
    assert [a + b for a, b in zip(starts, largest["end"], strict=True)] == [round(1e6 * t) for t in by_hand["end_ms"]]
    found = sorted(
        (size, names[layer] if layer >= 0 else None)
        for size, layer in zip(largest["bytes"], largest["layer"], strict=True)
    )
    expected = sorted((row.bytes, None if pd.isna(row.layer) else row.layer) for row in made.largest.itertuples())
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("life_ms", [60.0, 0.3])
def test_a_hundred_thousand_allocations_take_less_than_a_megabyte(life_ms):
    made = samples.many(100_000, life_ms)
    data = memory_data(made)
    assert len(data["instants"]["t"]) > 1400
    assert len(json.dumps(data, separators=(",", ":")).encode()) < 2**20


def test_hostile_names_are_plain():
    data = memory_data(samples.hostile())
    texts = [*data["names"], data["device"], data["incomplete"], *(fit["option"] for fit in data["fits"])]
    texts += [phase["word"] for phase in data["phases"]]
    assert all(escape.plain(text, 600) == text for text in texts)
    assert {escape.plain(name) for name in HOSTILE} <= set(data["names"])
    page = "".join(check(memory_html(samples.hostile())).text)
    assert all(escape.plain(name, 60) in page for name in HOSTILE)


def test_no_two_categories_look_alike():
    assert len({mark.glyph for mark in CATEGORIES.values()}) == len(CATEGORIES)
    assert len({(mark.colour, mark.pattern) for mark in CATEGORIES.values()}) == len(CATEGORIES)
    assert len({mark.pattern for mark in CATEGORIES.values()}) == len(CATEGORIES)


def test_a_colour_of_a_phase_means_what_that_phase_makes():
    makers = {
        "gradients": "backward",
        "optimizer_state": "optimizer",
        "activations": "forward",
        "inputs": "data",
        "other": "other",
    }
    phases = {mark.colour for mark in MARKS.values()}
    for name, mark in CATEGORIES.items():
        if name in makers:
            assert mark.colour == MARKS[makers[name]].colour
        else:
            assert mark.colour not in phases


def test_bars_of_characters():
    assert bars.cells_of([1, 1, 2], 8) == [2, 2, 4]
    assert sum(bars.cells_of([1, 1, 1], 100)) == 100
    assert bars.heights([0, 0.001, 4, 8], 8) == " ▁▄█"
