"""The roofline without scripts, and as data for the browser."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from perfnb.draw import escape
from perfnb.roofline.tab import MOST_LAYERS, byte_rate, roofline_data, roofline_html, roofline_text
from tests.pages import check, picture_bytes, spaced
from tests.roofline import roofline_samples as samples
from tests.summaries import HOSTILE

EXAMPLES = {
    "one_roof": samples.roofline,
    "two_roofs": samples.two_roofs,
    "hostile": samples.hostile_roofline,
    "unknown": samples.unknown_roofline,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden(name, golden):
    golden(f"roofline_{name}.txt", "\n".join(roofline_text(EXAMPLES[name]())) + "\n")


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_asked(name, width):
    for line in roofline_text(EXAMPLES[name](), width):
        assert escape.cells(line) <= width, line


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_html_holds_only_known_elements_and_a_small_picture(name):
    page = roofline_html(EXAMPLES[name]())
    check(page)
    assert len(picture_bytes(page)) < 40_000


def test_html_says_in_words_what_holds_a_layer_back():
    made = samples.roofline()
    page = spaced(roofline_html(made))
    rows = {row.split("</bdi>")[0].rsplit(">", 1)[1]: row for row in page.split("<tr>") if "</bdi>" in row}
    assert "compute-bound" in rows["model.head"]
    assert "90 %" in rows["model.head"]
    assert "memory-bound" in rows["aten::gelu"]
    assert "utilisation: 62 %" in page
    assert "3.4 % of the traced step" in page
    assert "17 compute-bound, 12 memory-bound" in page


def test_nothing_is_drawn_where_nothing_has_a_place():
    made = samples.roofline()
    page = roofline_html(replace(made, points=made.points.iloc[:0], uncounted=made.uncounted.iloc[:0]))
    assert "<img" not in page
    assert "<table" not in page


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_json_without_nan(name):
    data = roofline_data(EXAMPLES[name]())
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_heaviest_layers_come_first_and_the_rest_is_counted():
    made = samples.roofline(100)
    data = roofline_data(made)["points"]
    layers = [ms for ms, op in zip(data["ms"], data["op"], strict=True) if not op]
    assert len(layers) == MOST_LAYERS
    assert layers == sorted(layers, reverse=True)
    assert data["left_out"] == len(made.points) - len(data["ms"])


def test_the_unknown_is_null():
    data = roofline_data(samples.unknown_roofline())
    assert data["bandwidth"] is None
    assert data["utilisation"] is None
    assert set(data["points"]["bound"]) == {None}
    assert None in data["points"]["intensity"]
    assert data["uncounted"]["total_share"] is None


def test_hostile_names_are_plain():
    data = roofline_data(samples.hostile_roofline())
    for text in (*data["points"]["name"], *data["uncounted"]["op"], data["device"], data["peaks"][0][0]):
        assert escape.plain(text) == text
    page = "".join(check(roofline_html(samples.hostile_roofline())).text)
    assert all(escape.plain(name, 60) in page for name in (HOSTILE[0], HOSTILE[3], HOSTILE[7]))


def test_rates_of_bytes_go_in_powers_of_a_thousand():
    assert byte_rate(21e9) == "21.0 GB/s"
    assert byte_rate(900) == "900 B/s"
    assert byte_rate(pd.NA) == "n/a"
