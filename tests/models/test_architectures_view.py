"""The comparison of architectures without scripts, and as data for the browser."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.draw.assets import in_order, script, style
from perfnb.draw.palette import KINDS
from perfnb.models.architectures_view import (
    METRICS,
    architectures_data,
    architectures_html,
    architectures_text,
    part_times,
    ratio_words,
    why_words,
)
from perfnb.models.widget import ArchitecturesWidget
from perfnb.profile.report import report_script
from tests.models import architecture_samples as samples
from tests.pages import ATTRIBUTES, Seen, spaced
from tests.summaries import HOSTILE

EXAMPLES = {
    "three": samples.three,
    "inference": samples.inference,
    "one": samples.one,
    "eight": samples.eight,
    "alike": samples.alike,
    "hostile": samples.hostile,
    "unknown": samples.unknown,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_golden(name, golden):
    golden(f"architectures_{name}.txt", architectures_text(EXAMPLES[name]()) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_asked(name, width):
    for line in architectures_text(EXAMPLES[name](), width).splitlines():
        assert escape.cells(line) <= width, line


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_html_holds_only_known_elements_and_a_small_picture(name):
    page = architectures_html(EXAMPLES[name]())
    body = re.sub(r"<style>.*?</style>", "", page)
    seen = Seen(body)
    known = {"div", "p", "strong", "br", "i", "img", "table", "caption", "thead", "tbody", "tr", "th", "td", "bdi"}
    assert {tag for tag, _ in seen.tags} <= known
    assert {key for _, attributes in seen.tags for key in attributes} <= ATTRIBUTES | {"aria-hidden"}
    assert not re.search(r"https?:|url\(|@import", page)
    assert page.count("pf-bar") >= 1 or not len(EXAMPLES[name]().shares)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_json_without_nan_and_plain(name):
    data = architectures_data(EXAMPLES[name]())
    assert json.loads(json.dumps(data, allow_nan=False)) == json.loads(json.dumps(data))

    def texts(value):
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list | tuple):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from texts(inner)

    assert all(escape.plain(text, 2000) == text for text in texts(data))


def test_the_slowest_is_explained():
    made = samples.three()
    first, second = why_words(made)
    kinds = part_times(made, "kind")
    more = {kind: times[2][0] - times[0][0] for kind, times in kinds.items()}
    assert first == f"transformer takes {fmt.duration(sum(more.values()))} more per step than mlp."
    assert second.startswith(f"By kind of layer: attention +{fmt.duration(more['attention'])}, linear +")
    assert "convolution" not in second
    assert first in spaced(architectures_html(made))
    assert why_words(samples.one()) == ()
    assert why_words(samples.unknown()) == ()
    assert why_words(samples.alike()) == ("mlp, noisy and mlp show no detectable difference in time.",)


def test_less_time_in_one_kind_is_told_with_its_sign():
    _, words = why_words(samples.inference())
    assert "linear −1.04 ms" in words


def test_pairs_are_sentences():
    three = samples.three()
    words = [" ".join(ratio_words(row, three.equal_within)) for row in three.ratios.itertuples()]
    assert words[1] == "transformer takes 4.52 × [4.47, 4.58] the time of mlp: slower"
    alike = samples.alike()
    words = [" ".join(ratio_words(row, alike.equal_within)) for row in alike.ratios.itertuples()]
    assert words[0] == "mlp again takes 1.00 × [0.988, 1.01] the time of mlp: the same within 2.0 %"
    assert words[1].endswith("the time of mlp: no detectable difference, but one of up to 5.0 % is possible")
    torn = three.ratios.assign(verdict="inconclusive")
    words = [" ".join(ratio_words(row, 0.02)) for row in torn.itertuples()]
    assert words[2].endswith("the time of cnn: likely slower, but not significant after correction")
    few = three.ratios.assign(ci_low=pd.NA, ci_high=pd.NA)
    words = [" ".join(ratio_words(row, 0.02)) for row in few.itertuples()]
    assert words[0] == "cnn takes 2.18 × the time of mlp: too few measurements for an interval"


def test_a_part_that_a_model_lacks_takes_nothing_and_the_unmeasured_is_unknown():
    assert part_times(samples.three(), "kind")["attention"][:2] == [(0.0, 0.0), (0.0, 0.0)]
    made = samples.unknown()
    assert {times[1] for times in part_times(made, "kind").values()} == {(None, None)}
    data = architectures_data(made)
    for metric in data["metrics"]:
        assert metric["values"][1] is None
        assert metric["values"][0] is None or metric["key"] == "median_ms"
    assert data["trees"][1] is None
    assert {ms for shared in data["shares"] for part in shared["parts"] for ms in [part["ms"][1]]} == {None}
    rows = [row for row in architectures_html(made).split("<tr>") if ">cnn</bdi>" in row]
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]
    assert {cell for row in cells for cell in row} == {"n/a"}
    assert len(cells[-2]) + len(cells[-1]) == len(METRICS) + 1  # the time stands in both
    assert not re.search(r"(?<![\d.,])0 (ms|FLOP|B|%|samples)", architectures_text(made))


def test_arithmetic_of_a_step_is_both_passes_or_unknown():
    made = samples.three()
    values = {m["key"]: m["values"] for m in architectures_data(made)["metrics"]}
    assert values["step_flops"][0] == pytest.approx(3 * values["forward_flops"][0], rel=1e-5)
    made.table.loc["cnn", "backward_flops"] = pd.NA
    values = {m["key"]: m["values"] for m in architectures_data(made)["metrics"]}
    assert values["step_flops"][1] is None
    values = {m["key"]: m["values"] for m in architectures_data(samples.inference())["metrics"]}
    assert values["step_flops"] == values["forward_flops"]


@pytest.mark.slow
def test_hostile_names_are_plain():
    page = "".join(Seen(re.sub(r"<style>.*?</style>", "", architectures_html(samples.hostile()))).text)
    assert all(escape.plain(name, 60) in page for name in (HOSTILE[0], HOSTILE[1], HOSTILE[3], HOSTILE[7]))
    assert "\x1b" not in architectures_text(samples.hostile())


def test_kinds_are_told_apart_and_none_looks_like_a_pass():
    marks = [*KINDS.values()]
    assert len({mark.colour for mark in marks}) == len({mark.pattern for mark in marks}) == len(marks)
    assert len({mark.glyph for mark in marks}) == len(marks)
    passes = {palette.MARKS[name].colour for name in ("forward", "backward")}
    assert not passes & {mark.colour for mark in marks}
    phases = {(mark.colour, mark.pattern) for name, mark in palette.MARKS.items() if name != "other"}
    assert not phases & {(mark.colour, mark.pattern) for mark in marks}


def test_the_widget_holds_its_data_and_says_what_it_is():
    made = architectures_data(samples.three(), "id-1")
    widget = ArchitecturesWidget(made)
    assert json.loads(widget.data)["names"] == ["mlp", "cnn", "transformer"]
    assert repr(widget) == "ArchitecturesWidget(3 architectures)"
    bundle, _ = widget._repr_mimebundle_()
    assert bundle["text/plain"] == repr(widget)
    assert "architecturesView" in str(widget._esm)


def test_the_scripts_share_parts_and_nothing_more():
    assert "architectureShares" not in report_script()
    paths = in_order("models/js/architectures.js")
    assert {path.split("/")[0] for path in paths} == {"draw", "models", "profile"}
    assert script("models/js/architectures.js").count("export default") == 1
    assert ".pf-share-row" in style("models/js/architectures.css")
