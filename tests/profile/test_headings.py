"""A heading of the report is the name of its column without the unit, so that it can be typed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import perfnb
from perfnb.profile.tab import layers_html, layers_text, ops_html
from perfnb.recording.schema import SCHEMA
from tests.summaries import make_summary

_UNIT = re.compile(r"_(ms|us|bytes|flops_per_s)$")
#: What is in no frame, or whose column is named after nothing but its unit.
_BESIDE = {"layer", "op", "name", "layer or op", "time", "layers", "heaviest kernel", "share", "dtype"}
_POINTS = {"kind", "name", "flops", "bytes", "ms", "intensity", "achieved_flops_per_s", "efficiency", "bound", "dtype"}


def unknown(headings: Sequence[str], columns: Sequence[str] | set[str]) -> set[str]:
    """The headings that are no column."""
    named = {*columns, *(_UNIT.sub("", column) for column in columns)}
    return {head for head in map(str.lower, headings) if head not in _BESIDE and head.replace(" ", "_") not in named}


def heads(html: str) -> list[str]:
    row = re.search(r"<thead>(.*?)</thead>", html, re.DOTALL)
    assert row is not None
    return [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<th[^>]*>(.*?)</th>", row[1], re.DOTALL)]


LEAVES = [("m", "Model", 1, 1.0, 1.0, 0.5, 10), ("m.fc", "Linear", 1, 1.0, 1.0, 0, 10)]


def test_headings_of_layers_are_columns() -> None:
    summary = make_summary(LEAVES)

    shown = heads(layers_html(summary))
    text = next(line for line in layers_text(summary, 120) if line.startswith("layer "))

    assert {"module", "forward", "recompute"} <= set(shown)
    assert unknown(shown, SCHEMA["layers"]) == set()
    assert unknown(text.split(), SCHEMA["layers"]) == set()
    assert summary.layers[shown[1]].tolist()[:2] == ["Model", "Linear"]


def test_headings_of_ops_are_columns() -> None:
    summary = replace(make_summary(LEAVES), layers=make_summary(LEAVES).layers.iloc[:0])

    assert unknown(heads(ops_html(summary)), SCHEMA["ops"]) == set()


@pytest.mark.parametrize(
    ("script", "columns"),
    [
        ("profile/js/layers.js", {*SCHEMA["layers"]}),
        ("profile/js/ops.js", {*SCHEMA["ops"]}),
        ("gpu/js/gpu.js", {*SCHEMA["kernel_ops"]}),
        ("roofline/js/roofline.js", _POINTS),
    ],
)
def test_headings_in_the_browser_are_columns(script: str, columns: set[str]) -> None:
    text = (Path(perfnb.__file__).parent / script).read_text("utf-8")
    named = re.findall(r'(?:number|always|column|named)\("(\w+)", "([^"]+)"|key: "(\w+)", head: "([^"]+)"', text)
    shown = [first or second for _, first, key, second in named if key not in ("bar", "layers")]

    assert len(shown) > 3
    assert unknown(shown, columns) == set()
