"""What the roofline's document says of how close a step comes to the machine's limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perfnb.draw.document import Document, Mark, Scatter, Table
from perfnb.roofline.roofline import roofline_result
from perfnb.roofline.tab import MOST_LAYERS, roofline_document, roofline_verdict
from tests.roofline import roofline_samples as samples
from tests.samples import texts
from tests.samples.roofline import DOCUMENTS


def parts(document: Document) -> tuple[Scatter, Table, Table, Table]:
    scatter, layers, ops, uncounted = document.sections
    assert isinstance(scatter, Scatter)
    assert isinstance(layers, Table)
    assert isinstance(ops, Table)
    assert isinstance(uncounted, Table)
    return scatter, layers, ops, uncounted


@pytest.mark.parametrize(
    ("factor", "state", "words"),
    [
        (1.0, "good", "Close to the roofs: the layers reach 82 % of what the machine allows."),
        (0.4, "none", "Below the roofs: the layers reach 33 % of what the machine allows."),
        (0.011, "bad", "Far below both roofs: the layers reach 0.9 % of what the machine allows."),
    ],
)
def test_the_verdict_says_how_close_the_layers_come(factor: float, state: str, words: str) -> None:
    made = samples.roofline()
    points = made.points.assign(efficiency=made.points["efficiency"] * factor)
    verdict = roofline_verdict(replace(made, points=points))
    assert (verdict.state, verdict.sentence) == (state, words)


def test_the_verdict_weighs_layers_by_their_time_and_leaves_out_ops() -> None:
    made = samples.roofline(1)
    points = made.points.tail(6).assign(efficiency=[1.0, 0.5, 0.9, 0.9, 0.9, 0.9], ms=[1.0, 3.0, 99, 99, 99, 99])
    assert replace(made, points=points.assign(kind=["layer"] * 2 + ["op"] * 4)).reached == pytest.approx(0.625)
    assert replace(made, points=points.tail(4)).reached == pytest.approx(0.9)
    assert roofline_verdict(replace(made, points=points.tail(4))).sentence.startswith(
        "Close to the roofs: the ops reach"
    )
    assert replace(made, points=points.head(0)).reached is None


def test_without_ceilings_nothing_is_decided() -> None:
    shown = roofline_document(samples.unknown_roofline())
    assert shown.verdict.state == "open"
    assert "ceilings are unknown" in shown.verdict.sentence
    scatter, layers, _, _ = parts(shown)
    assert scatter.lines == ()
    assert len(scatter.dots) == len(layers.rows) - 1  # one layer has no intensity
    assert {row[1] for row in layers.rows} == {""}


def test_each_layer_has_its_bound_and_its_share_of_the_roof() -> None:
    scatter, layers, ops, uncounted = parts(roofline_document(samples.roofline()))
    head = next(row for row in layers.rows if row[0] == "model.head")
    assert isinstance(head[1], Mark)
    assert (head[1].word, head[-1]) == ("compute", 0.9)
    gelu = next(row for row in ops.rows if row[0] == "aten::gelu")
    assert isinstance(gelu[1], Mark)
    assert gelu[1].word == "memory"
    assert scatter.selects == layers.key
    assert layers.selects[0][0] == "layers"
    assert len(uncounted.rows) == 2
    times = [row[3] for row in layers.rows]
    assert times == sorted(times, reverse=True)


def test_a_roof_is_a_slope_up_to_the_ceiling_of_each_dtype() -> None:
    made = samples.two_roofs()
    scatter, *_ = parts(roofline_document(made))
    assert [mark.word for mark, _ in scatter.lines] == ["bfloat16: 612 TFLOP/s", "float32: 51.0 TFLOP/s"]
    for (_, line), peak in zip(scatter.lines, made.peaks.values(), strict=True):
        (left, low), (ridge, top), (right, end) = line
        assert low / left == pytest.approx(made.bandwidth)
        assert (top, end) == (peak, peak)
        assert ridge == pytest.approx(peak / made.bandwidth)
        assert left < min(dot.x for dot in scatter.dots)
        assert right > max(dot.x for dot in scatter.dots)


def test_lighter_layers_are_counted() -> None:
    made = samples.roofline(100)
    _, layers, _, _ = parts(roofline_document(made))
    assert len(layers.rows) == MOST_LAYERS
    left = int((made.points["kind"] == "layer").sum()) - MOST_LAYERS
    assert f"{left:,} shorter ones" in layers.title


def test_changing_a_result_changes_nothing_else() -> None:
    made = samples.roofline()
    result = roofline_result(made)
    assert repr(result).startswith("<perfnb.Roofline: roofline: Close to the roofs")
    result.points.loc[:, "ms"] = 0.0
    result.peaks.clear()
    assert made.points["ms"].gt(0).all()
    assert made.peaks


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
