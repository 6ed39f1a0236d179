"""What the browser gets: small, complete, nothing but JSON."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb.draw import escape
from perfnb.profile.report import report_data
from tests import summaries


@pytest.mark.parametrize(
    "make",
    [summaries.small_cnn, summaries.gan, summaries.hostile, summaries.unknown_figures, summaries.empty],
)
def test_it_is_json_without_nan(make):
    data = report_data(make())
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_two_thousand_layers_stay_well_under_a_megabyte():
    data = report_data(summaries.big())
    assert data["layers"]["modules"] > 1900
    assert len(json.dumps(data).encode()) < 600_000


def test_columns_have_one_entry_a_row():
    data = report_data(summaries.gpt(3, recompute=True, gpu=True))
    for table, first in (("layers", "label"), ("ops", "label"), ("layer_ops", "layer")):
        lengths = {len(column) for column in data[table].values() if isinstance(column, list)}
        assert lengths == {len(data[table][first])}


def test_figures_have_six_digits_and_the_unknown_is_null():
    made = summaries.small_cnn()
    made.layers.loc["model", "forward_ms"] = 1.23456789
    made.layers.loc["model.head", "forward_ms"] = None
    layers = report_data(made)["layers"]
    assert layers["forward_ms"][layers["label"].index("model")] == 1.23457
    assert layers["forward_ms"][layers["label"].index("head")] is None
    assert layers["gpu_ms"] is None


def test_parents_come_first_and_special_rows_last():
    layers = report_data(summaries.gpt(2))["layers"]
    assert all(parent < position for position, parent in enumerate(layers["parent"]))
    assert layers["label"][layers["modules"] :] == [
        "(loss)", "(gradient accumulation)", "(autograd engine)", "(unattributed)",
    ]  # fmt: skip


def test_the_hot_path_leads_from_a_root_downwards():
    data = report_data(summaries.gpt(3))
    path, parents = data["hot_path"], data["layers"]["parent"]
    assert parents[path[0]] == -1
    assert [parents[i] for i in path[1:]] == path[:-1]


def test_ops_of_layers_point_at_their_layer_and_op():
    made = summaries.small_cnn()
    data = report_data(made)
    used = data["layer_ops"]
    conv = made.layer_ops.index[made.layer_ops["layer"] == "model.features.2"][0]
    assert data["layers"]["label"][used["layer"][conv]] == "2"
    assert data["ops"]["label"][used["op"][conv]] == "aten::convolution"


def test_names_are_short_and_visible():
    data = report_data(summaries.hostile())
    names = chain(data["layers"]["label"], filter(None, data["layers"]["module"]), data["ops"]["label"])
    for name in names:
        assert escape.plain(name) == name
        assert len(name) <= escape.MAX_NAME


def loaded_report(folder: Path, *events: dict[str, Any]) -> dict[str, Any]:
    path = folder / "trace.json"
    path.write_text(json.dumps([{"pid": 1, "tid": 1, "ph": "X", "ts": 0, "dur": 9, **event} for event in events]))
    found = perfnb.load(path)
    assert isinstance(found, perfnb.Profile)
    return report_data(found._summary, timeline={})


def test_tabs_without_anything_to_show_are_left_out(tmp_path: Path) -> None:
    kernel = {"name": "k", "cat": "kernel", "args": {"device": 0, "stream": 7}}
    only_ops = loaded_report(tmp_path, {"name": "ALLREDUCE"})
    assert [key for key, _ in only_ops["tabs"]][:1] == ["ops"]
    assert only_ops["layers"]["label"] == []  # other tabs still ask for it
    only_kernels = loaded_report(tmp_path, kernel)
    assert "gpu" in {key for key, _ in only_kernels["tabs"]}
    assert not {"layers", "ops"} & {key for key, _ in only_kernels["tabs"]}
    assert only_kernels["ops"]["label"] == []
