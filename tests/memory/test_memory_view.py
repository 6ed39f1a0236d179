"""The memory of a step as a document, and as data for the browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from perfnb.draw import escape
from perfnb.draw.document import Bars, Picture, Table
from perfnb.draw.palette import CATEGORIES
from perfnb.memory.tab import curve_data, memory_document, stacked
from tests.memory import memory_samples as samples
from tests.samples import texts
from tests.samples.memory import DOCUMENTS
from tests.summaries import HOSTILE


def test_the_peak_is_reported_with_its_tensors_and_their_owners() -> None:
    made = samples.transformer(gpu=True)
    shown = memory_document(made)
    picture, owners, fits = shown.sections

    assert shown.verdict.sentence == "The peak is 1.24 GiB at 173 ms in backward, 48 % of it activations"
    assert [figure.label for figure in shown.figures] == ["peak", "reserved", "largest free block"]
    assert shown.facts == ("1 retry of the allocator",)
    assert isinstance(picture, Picture)
    held = picture.static[-1]
    assert isinstance(held, Bars)
    assert {part.mark: part.value for part in held.bars[0].parts} == {
        CATEGORIES[name]: size for name, size in made.by_category.items()
    }
    assert held.bars[0].total == made.peak_bytes
    assert isinstance(owners, Table)
    assert [row[2] for row in owners.rows] == made.owners["bytes"].tolist()
    assert isinstance(fits, Table)
    assert [row[1] + row[2] for row in fits.rows] == [made.peak_bytes] * len(made.fits)


def test_a_failed_step_says_so() -> None:
    shown = memory_document(samples.out_of_memory())
    assert (shown.verdict.state, shown.figures[0].label) == ("bad", "failure")
    assert shown.verdict.sentence.startswith("Incomplete: the step failed with 1.02 GiB alive")
    assert "Tried to allocate 2.00 GiB" in shown.verdict.why
    assert "out of memory once" in shown.facts
    assert "perfnb.estimate_memory predicts the peak" in shown.verdict.next
    assert shown.sections[-1].title.startswith("What would have freed memory at the failure?")


def test_amounts_last_until_the_next_instant_and_what_is_nothing_is_left_out() -> None:
    blue, grey, none = (CATEGORIES[name] for name in ("activations", "other", "inputs"))
    parts = [(blue, [10.0, 20.0]), (none, [0.0, 0.0]), (grey, [0.0, 20.0])]
    shown = stacked("", [0.0, 1.0], 2.0, parts, {})
    assert shown.at == [0.0, 1.0, 1.0, 2.0]
    assert [(line.mark, line.values) for line in shown.lines] == [(blue, [10, 10, 20, 20]), (grey, [0, 0, 20, 20])]


def test_without_a_script_the_curve_is_areas_with_the_phases_below() -> None:
    picture = memory_document(samples.transformer()).sections[0]
    areas, _ = picture.static
    assert max(map(sum, zip(*(line.values for line in areas.lines), strict=True))) == samples.transformer().peak_bytes
    assert [mark.word for mark, *_ in areas.spans][:3] == ["data", "host to device", "forward"]


EXAMPLES = (samples.transformer, samples.out_of_memory, samples.hostile, samples.unknown, samples.empty)


@pytest.mark.parametrize("make", EXAMPLES)
def test_it_is_json_without_nan(make) -> None:
    data = curve_data(make())
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_curve_s_data_are_the_frame_s() -> None:
    made = samples.transformer(gpu=True)
    data = curve_data(made)
    assert data["t"] == pytest.approx(list(made.timeline["t_ms"]), abs=1e-6)
    lines = {line["mark"]["word"]: line["values"] for line in data["lines"]}
    assert lines == {mark.word: list(made.timeline[name]) for name, mark in CATEGORIES.items()}
    assert data["peak_ms"] in data["t"]


def test_what_is_unknown_stays_unknown() -> None:
    made = samples.transformer(1)
    inputs = pd.array([100, pd.NA, 130, *[130] * (len(made.timeline) - 3)], dtype="Int64")
    lines = curve_data(replace(made, timeline=made.timeline.assign(inputs=inputs)))["lines"]
    assert [line["values"][:3] for line in lines if line["mark"]["word"] == "inputs"] == [[100, None, 130]]


def test_allocations_keep_their_figures_and_names() -> None:
    made = samples.transformer()
    data = curve_data(made)
    largest, names = data["largest"], data["names"]
    by_hand = made.largest.sort_values("start_ms", kind="stable").reset_index(drop=True)
    assert largest["start"] == pytest.approx(list(by_hand["start_ms"]), abs=1e-6)
    assert largest["end"] == pytest.approx(list(by_hand["end_ms"]), abs=1e-6)
    found = [None if layer == -1 else names[layer] for layer in largest["layer"]]
    assert list(zip(largest["bytes"], found, strict=True)) == [
        (row.bytes, None if pd.isna(row.layer) else row.layer) for row in by_hand.itertuples()
    ]


@pytest.mark.slow
def test_a_hundred_thousand_allocations_take_less_than_a_megabyte() -> None:
    data = curve_data(samples.many(100_000))
    assert len(data["t"]) > 1400
    assert len(json.dumps(data, separators=(",", ":")).encode()) < 2**20


def test_hostile_names_are_plain() -> None:
    data = curve_data(samples.hostile())
    texts = [*data["names"], *(mark["word"] for mark, _, _ in data["spans"])]
    assert all(escape.plain(text) == text for text in texts)
    assert {escape.plain(name) for name in HOSTILE} <= set(data["names"])


def test_no_two_categories_look_alike():
    assert len({mark.glyph for mark in CATEGORIES.values()}) == len(CATEGORIES)
    assert len({(mark.colour, mark.pattern) for mark in CATEGORIES.values()}) == len(CATEGORIES)
    assert len({mark.pattern for mark in CATEGORIES.values()}) == len(CATEGORIES)


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
