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


@pytest.mark.parametrize(
    ("reached", "state"), [(0.09, "bad"), (0.1, "none"), (0.49, "none"), (0.5, "good"), (0.51, "good")]
)
def test_from_which_share_of_the_roof_on_a_step_is_close_to_it(reached: float, state: str) -> None:
    made = samples.roofline()
    one = made.points.head(1).assign(efficiency=reached, ms=4.0)
    assert roofline_verdict(replace(made, points=one)).state == state


def test_the_verdict_says_what_limits_which_part_of_the_time() -> None:
    made = samples.roofline()
    two = made.points.head(2).assign(efficiency=0.5, ms=[3.0, 1.0], bound=["compute", "memory"])
    why = "By time, the layers are 75 % compute-bound and 25 % memory-bound."
    assert roofline_verdict(replace(made, points=two)).why == why
    one = replace(made, points=two.assign(bound="memory"))
    assert roofline_verdict(one).why == "By time, the layers are 100 % memory-bound."


def test_a_roof_extends_beyond_points_and_ridges() -> None:
    made = replace(samples.roofline(1), peaks={"float32": 100.0}, bandwidth=10.0)

    def across(*places: float) -> list[tuple[float, float]]:
        points = made.points.head(len(places)).assign(intensity=list(places), achieved_flops_per_s=1.0)
        ((_, line),) = parts(roofline_document(replace(made, points=points)))[0].lines
        return list(line)

    assert across(4.0, 80.0) == [(2.0, 20.0), (10.0, 100.0), (160.0, 100.0)]
    assert across(20.0, 30.0) == [(5.0, 50.0), (10.0, 100.0), (60.0, 100.0)]
    assert across(4.0, 5.0) == [(2.0, 20.0), (10.0, 100.0), (20.0, 100.0)]


def test_there_is_no_roof_without_bandwidth_or_a_ceiling_above_zero() -> None:
    made = samples.roofline()
    for unknown in (replace(made, bandwidth=None), replace(made, peaks={"float32": 0.0}), replace(made, peaks={})):
        assert parts(roofline_document(unknown))[0].lines == ()


def test_a_point_is_drawn_if_both_its_places_are_known_and_above_zero() -> None:
    made = samples.roofline()
    some = made.points.head(4).assign(intensity=[1.0, 0.0, None, 2.0], achieved_flops_per_s=[1.0, 1.0, 1.0, 0.0])
    scatter, layers, *_ = parts(roofline_document(replace(made, points=some)))
    assert [(dot.x, dot.y) for dot in scatter.dots] == [(1.0, 1.0)]
    assert len(layers.rows) == 4


def test_a_step_without_layers_has_points_of_ops() -> None:
    made = samples.roofline()
    ops = made.points[made.points["kind"] == "op"]
    shown = roofline_document(replace(made, points=ops, uncounted=made.uncounted.iloc[:0]))
    scatter, table, _ = shown.sections
    assert isinstance(scatter, Scatter)
    assert isinstance(table, Table)
    assert (scatter.title, len(scatter.dots), table.noun, table.key) == ("Ops under the roof", 4, "op", "roofline")
    assert shown.notes == ()


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
