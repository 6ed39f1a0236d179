"""What the report says of planted figures, and which parts it has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfnb
from perfnb.draw.as_json import document_data
from perfnb.draw.as_text import document_text
from perfnb.draw.document import Bars, Document, Inner, Split, Table
from perfnb.draw.live import document_page
from perfnb.profile.report import _figures, report_document
from perfnb.profile.summary import Summary
from perfnb.profile.tab import layers_document
from perfnb.recording.schema import SCHEMA
from perfnb.stats.step_times import StepTimes
from tests import summaries


def table_of(summary: Summary, tab: str) -> Table:
    (section,) = next(part for part in report_document(summary).tabs if part.kind == tab).sections
    assert isinstance(section, Table)
    return section


def headline(summary: Summary) -> dict[str, tuple[float | None, str]]:
    return {figure.label: (figure.value, figure.basis) for figure in report_document(summary).figures}


def test_the_headline_says_how_well_the_step_is_known() -> None:
    made = summaries.small_cnn()
    text = document_text(report_document(made))
    assert "step 12.3 ms [12.1, 12.4] (95 % interval, median of 20 timed steps)" in text
    assert headline(made)["throughput"][1] == "batch of 32"
    few = headline(replace(made, timing=StepTimes((12.0, 12.5, 13.0))))
    assert few["step"] == (12.5, "median of 3 timed steps: too few for a 95 % interval")
    assert "throughput" not in headline(replace(made, timing=replace(made.timing, batch_size=None)))
    assert headline(summaries.empty())["step"] == (None, "no timed step")
    assert "step per batch" in headline(replace(made, by_batch=True))


def test_phases_are_on_the_scale_of_the_timed_step() -> None:
    made = summaries.small_cnn()
    (bars,) = (section for section in report_document(made).sections if isinstance(section, Bars))
    (bar,) = bars.bars
    assert bar.total == made.timing.median_ms
    shares = {part.mark.word: part.value / bar.total for part in bar.parts}
    assert shares["forward"] == pytest.approx(made.phases.loc["forward", "share"])
    assert shares["host to device"] == pytest.approx(made.phases.loc["host_to_device", "share"])
    (bars,) = (section for section in report_document(replace(made, timing=StepTimes(()))).sections)
    assert isinstance(bars, Bars)
    assert bars.title == "Phases of a traced step"
    assert bars.bars[0].total == made.traced_ms


def test_layers_are_a_tree_with_the_special_rows_at_its_end() -> None:
    made = summaries.gpt(3)
    table = table_of(made, "layers")
    assert [row[0] for row in table.rows[-table.tail :]] == [
        "(loss)",
        "(gradient accumulation)",
        "(autograd engine)",
        "(unattributed)",
    ]
    assert table.nesting is not None
    assert table.names is not None
    path = [table.names[place] for place in table.nesting.path]
    assert path == list(made.hot_path)
    assert table.nesting.parents[table.nesting.path[0]] == -1
    assert [table.nesting.parents[place] for place in table.nesting.path[1:]] == list(table.nesting.path[:-1])
    row = table.rows[table.names.index("model.lm_head")]
    assert row[2] == Split(36.0, (11.0, 25.0, 0.0))


def test_recomputation_is_a_column_only_where_something_is_recomputed() -> None:
    assert "recompute" not in document_text(report_document(summaries.gpt(2)), 160)
    assert "recompute" in document_text(report_document(summaries.gpt(2, recompute=True)), 160)


def test_a_large_model_stays_on_a_page_and_well_under_a_megabyte() -> None:
    made = report_document(summaries.big())
    text = document_text(made)
    assert len(text.splitlines()) <= 46
    assert "more layers" in text
    assert len(json.dumps(document_data(made), separators=(",", ":")).encode()) < 1_000_000


def test_ops_of_layers_and_layers_of_ops_lead_to_each_other() -> None:
    made = summaries.small_cnn()
    layers, ops = table_of(made, "layers"), table_of(made, "ops")
    assert isinstance(layers.inner, Inner)
    assert isinstance(ops.inner, Inner)
    assert (layers.inner.selects, ops.inner.selects) == (ops.key, layers.key)
    assert layers.names is not None
    conv = layers.names.index("model.features.2")
    inside = [row[0] for row, owner in zip(layers.inner.rows, layers.inner.owner, strict=True) if owner == conv]
    assert inside[0] == "aten::convolution"
    place = [row[0] for row in ops.rows].index("aten::convolution")
    users = {row[0] for row, owner in zip(ops.inner.rows, ops.inner.owner, strict=True) if owner == place}
    assert users == {"model.features.0", "model.features.2"}


def test_ops_stand_in_text_only_where_there_are_no_layers() -> None:
    made = summaries.small_cnn()
    assert "aten::convolution" not in document_text(report_document(made))
    bare = replace(made, layers=made.layers.iloc[:0])
    assert "aten::convolution" in document_text(report_document(bare))


@pytest.mark.parametrize("tab", ["layers", "ops"])
def test_headings_are_columns_of_the_frame_without_their_units(tab: str) -> None:
    named = {name for frame in ("layers", "ops") for name in SCHEMA[frame]}
    without = {name.rsplit("_", 1)[0] for name in named if name.endswith(("_ms", "_bytes"))} | named
    heads = [column.head.lower().replace(" ", "_") for column in table_of(summaries.gpt(1), tab).columns]
    assert not {*heads} - without - {"layer", "op", "layers", "parameter_memory", "least_bytes_moved", "peak_memory"}


def loaded(folder: Path, *events: dict[str, Any]) -> Document:
    path = folder / "trace.json"
    path.write_text(json.dumps([{"pid": 1, "tid": 1, "ph": "X", "ts": 0, "dur": 9, **event} for event in events]))
    profile = perfnb.load(path)
    assert isinstance(profile, perfnb.Profile)
    return report_document(profile._summary)


def test_tabs_without_anything_to_show_are_left_out(tmp_path: Path) -> None:
    kernel = {"name": "k", "cat": "kernel", "args": {"device": 0, "stream": 7}}
    assert [tab.kind for tab in loaded(tmp_path, {"name": "ALLREDUCE"}).tabs] == ["ops"]
    kinds = {tab.kind for tab in loaded(tmp_path, kernel).tabs}
    assert "GPU" in kinds
    assert not {"layers", "ops"} & kinds


def test_a_loaded_trace_begins_with_what_it_measured(tmp_path: Path) -> None:
    kernel = {"name": "k", "cat": "kernel", "args": {"device": 0, "stream": 7}}
    first, *others = loaded(tmp_path, {"name": "ALLREDUCE"}, kernel).figures
    assert first.label == "traced step"
    assert [figure.label for figure in others] == ["GPU busy"]


def test_nothing_of_a_profile_is_asked_for_outside_its_page() -> None:
    page = document_page(report_document(summaries.hostile()))
    assert "https:" not in page
    assert page.count('<script type="module">') == 1
    assert '__pwned=1">' not in page.replace("\\u003e", ">").split("perfnb-data")[0]


def test_a_tab_describes_itself_from_the_report_alone() -> None:
    from perfnb.profile.report import Report

    assert layers_document(Report(summaries.gan())).kind == "layers"


def test_the_headline_has_the_gpus_busy_share_and_when_they_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    made = summaries.small_cnn()
    assert "GPU busy" not in headline(made)
    gpu: Any = SimpleNamespace(busy=0.625)
    (busy,) = (each for each in _figures(replace(made, gpu=gpu)) if each.label == "GPU busy")
    assert (busy.value, busy.unit, busy.basis) == (0.625, "share", "of the traced steps")
    monkeypatch.setattr(Summary, "until_gpu_ms", 12.5)
    assert headline(made)["traced step"][1].startswith("GPU work continues after it: findings use 12.5 ms")
