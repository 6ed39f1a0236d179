"""The words of comparisons of architectures and of studies of sizes, by planted figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from perfnb.draw import palette
from perfnb.draw.document import Bars, Choice, Document, Effects, Section, Series, Table, Value
from perfnb.draw.palette import KINDS
from perfnb.models.architectures import ArchitectureComparison
from perfnb.models.architectures_view import _listed, _short, part_times
from perfnb.models.scaling import ScalingStudy
from perfnb.models.size_laws import measured_sizes
from tests.models import architecture_samples as samples
from tests.samples import texts
from tests.samples.models import DOCUMENTS, study


def option(made: ArchitectureComparison, metric: str) -> tuple[Section, ...]:
    """Return what the comparison shows by a metric."""
    choice = made._document().sections[0]
    assert isinstance(choice, Choice)
    return choice.options[metric]


def only(kind: type[Any], sections: tuple[Section, ...]) -> Any:
    return next(section for section in sections if isinstance(section, kind))


def test_less_time_in_one_kind_has_its_sign() -> None:
    verdict = samples.inference()._document().verdict
    assert "linear −1.04 ms" in verdict.why
    assert "per inference step" in verdict.sentence


def test_results_that_do_not_differ_clearly_are_not_ranked() -> None:
    verdict = samples.alike()._document().verdict
    names = "mlp, mlp again and mlp, noisy"
    assert (verdict.state, verdict.why) == ("open", "")
    assert verdict.sentence == f"No difference in time is detectable between {names}, about 3.89 ms per training step"

    made = samples.alike()
    same = replace(made, ratios=made.ratios.assign(verdict="same"))._document().verdict
    assert same.sentence == f"{names} take the same time within 2.0 %, 3.89 ms per training step"

    made = samples.eight()
    assert made._document().verdict.sentence.startswith(
        "mlp and mlp again are the fastest at 3.89 ms per training step, with no detectable difference; "
    )


def test_long_names_are_cut_and_names_are_listed() -> None:
    assert (_short("n" * 60), _short("n" * 61)) == ("n" * 60, "n" * 59 + "…")
    assert [_listed(list(names)) for names in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]


def test_the_report_says_how_the_models_were_measured() -> None:
    made = samples.three()
    facts = [replace(made, rounds=rounds)._document().facts for rounds in (1, 2)]
    assert facts == [
        ("training step", f"batch: {made.batch}", f"measured {times}")
        for times in ("once each", "2 times each, interleaved")
    ]
    assert samples.inference()._document().facts[0] == "inference step, forward only"


def test_nothing_is_compared_with_a_cost_of_zero() -> None:
    made = samples.three()
    made.table.loc["cnn", "parameters"] = 0
    assert not only(Effects, option(made, "Parameters")).rows
    assert not any(isinstance(section, Effects) for section in option(samples.one(), "Parameters"))


def test_only_several_pairs_have_a_table_and_a_note() -> None:
    for made, listed in ((samples.three(), True), (samples.inference(), False)):
        document = made._document()
        assert (document.sections[-1].title == "Every pair") == listed
        assert any("hold simultaneously for all" in note for note in document.notes) == listed


def test_ratios_are_against_the_fastest_whichever_way_the_pair_was_measured() -> None:
    backwards = samples.compared(
        {"large": samples.transformer(2), "small": samples.transformer(1)}, training=False, notes=()
    )
    measured = backwards.ratios.iloc[0]

    (row,) = only(Effects, option(backwards, "Step time")).rows

    assert (row.label, row.verdict) == ("large", "slower")
    assert row.ratio == pytest.approx(1 / measured["ratio"])
    assert row.interval == pytest.approx((1 / measured["ci_high"], 1 / measured["ci_low"]))


def test_an_inconclusive_ratio_has_its_reservation() -> None:
    made = samples.three()
    ratios = made.ratios.assign(ratio=1.1, ci_low=0.95, ci_high=1.3, verdict="inconclusive")
    row = only(Effects, option(replace(made, ratios=ratios), "Step time")).rows[0]
    assert (row.label, row.verdict) == ("cnn", "inconclusive")
    assert row.detail == "No difference is detectable, but one of up to 30 % is possible."
    assert not only(Effects, option(made, "Step time")).rows[0].detail


def test_bars_hold_the_times_of_the_parts_the_fastest_first() -> None:
    made = samples.eight()
    bars = only(Bars, option(made, "Step time"))
    assert [bar.label for bar in bars.bars] == made.table["median_ms"].sort_values(kind="stable").index.tolist()
    times = {mark.word: times for mark, times in part_times(made, "kind")}
    assert {part.mark.word: part.value for part in bars.bars[0].parts} == {
        word: of["mlp"] for word, of in times.items()
    }
    assert times["attention"]["mlp"] == 0


def test_another_metric_orders_anew() -> None:
    made = samples.three()
    amounts, ratios = (only(kind, option(made, "FLOPs per step")) for kind in (Bars, Effects))
    forward = made.table["forward_flops"].astype(float)
    assert [bar.label for bar in amounts.bars] == ["cnn", "mlp", "transformer"]
    whole = forward["transformer"]
    assert amounts.bars[2].total == 3 * whole
    assert [(part.mark.word, part.value) for part in amounts.bars[2].parts] == [
        ("forward", whole),
        ("backward", 2 * whole),
    ]
    assert [row.ratio for row in ratios.rows] == pytest.approx(
        [forward[name] / forward["cnn"] for name in ("mlp", "transformer")]
    )
    made.table.loc["cnn", "backward_flops"] = pd.NA
    assert [bar.label for bar in only(Bars, option(made, "FLOPs per step")).bars] == ["mlp", "transformer"]
    (mark,) = {
        part.mark.word for bar in only(Bars, option(samples.inference(), "FLOPs per step")).bars for part in bar.parts
    }
    assert mark == "forward"
    (row,) = only(Bars, option(samples.one(), "Parameters")).bars
    assert row.total == samples.one().table["parameters"].iloc[0]


def test_layers_of_all_architectures_are_one_tree_on_one_scale() -> None:
    made = samples.three()
    tree = only(Table, option(made, "Step time"))
    rows = dict(zip(tree.names or (), tree.rows, strict=True))
    step, whole = made.table.loc["cnn", "median_ms"], made.layers["cnn"]
    assert rows["cnn.features"][-1] == pytest.approx(step * whole.loc["cnn.features", "share"])
    assert rows["cnn: (unattributed)"][-1] == pytest.approx(step * whole.loc["(unattributed)", "share"])
    assert rows["transformer.blocks.0.attention"][:3] == ("attention", KINDS["attention"], "MultiheadAttention")
    above = {tree.names[row]: tree.names[parent] for row, parent in enumerate(tree.nesting.parents) if parent >= 0}
    assert above["transformer.blocks.0.attention"] == "transformer.blocks.0"
    assert not {"mlp", "cnn", "transformer"} & set(above)
    assert len(only(Table, option(made, "Parameters")).rows) == len(rows)


def test_unknown_values_are_not_zero() -> None:
    document = samples.unknown()._document()
    costs = next(section for section in document.sections if isinstance(section, Table))
    name, time, *others = costs.rows[1]
    assert (name, time, set(others)) == ("cnn", Value(None, "ms"), {None})
    assert [bar.label for bar in only(Bars, option(samples.unknown(), "Step time")).bars] == ["mlp"]
    assert list(document.sections[0].options) == ["Step time"]  # type: ignore[union-attr]


def test_kinds_differ_and_none_looks_like_a_pass() -> None:
    marks = [*KINDS.values()]
    assert len({mark.colour for mark in marks}) == len({mark.pattern for mark in marks}) == len(marks)
    assert len({mark.glyph for mark in marks}) == len(marks)
    passes = {palette.MARKS[name].colour for name in ("forward", "backward")}
    assert not passes & {mark.colour for mark in marks}
    phases = {(mark.colour, mark.pattern) for name, mark in palette.MARKS.items() if name != "other"}
    assert not phases & {(mark.colour, mark.pattern) for mark in marks}


def lines_of(document: Document) -> Series:
    return only(Series, document.sections)  # type: ignore[no-any-return]


def test_a_law_is_its_exponent_and_what_it_predicts() -> None:
    made = study(1.98)
    document = made._document()
    low, high = made.exponent_ci or (0, 0)
    assert document.verdict.sentence == f"Time grows as size^1.98 [{low:.2f}, {high:.2f}]"
    twice = made.predict(16384)
    predicted = {figure.label: (figure.value, figure.interval) for figure in document.figures}
    assert predicted["predicted at 16,384"] == (twice.median_ms, twice.ci_ms)
    assert predicted["peak memory at 16,384"] == (twice.peak_bytes, None)
    law, measured = lines_of(document).lines
    at = dict(zip(lines_of(document).at, zip(law.values, measured.values, strict=True), strict=True))
    assert at[512.0] == pytest.approx((made.predict(512).median_ms, made.table["median_ms"][3]))
    assert sum(value is not None for value in measured.values) == 8
    assert law.low is not None


def test_where_no_law_holds_there_are_two() -> None:
    verdict = study(0.83, 1.5)._document().verdict
    assert verdict.sentence == "No single law: time grows as size^0.834 up to 256, then as size^1.50 from 512"
    sizes = (8, 16, 32, 64, 128, 256, 512, 1024)
    jump = {size: [size * (1.0 if size < 100 else 3.0)] * 20 for size in sizes}
    made = ScalingStudy(**measured_sizes(jump, {}, {}), device="CPU")
    assert "There is a jump of 3.00 ×" in made._document().verdict.why
    assert len([section for section in made._document().sections if isinstance(section, Series)]) == 1


def test_a_constant_overhead_is_named() -> None:
    times = {size: [0.5 + 1e-6 * size**2] * 20 for size in (64, 128, 256, 512, 1024, 2048, 4096)}
    made = ScalingStudy(**measured_sizes(times, {}, {}), device="CPU")
    assert made._document().verdict.sentence.endswith(", plus a constant 0.500 ms")


def test_two_sizes_have_no_interval() -> None:
    document = study(2.0, sizes=(8, 16))._document()
    assert document.verdict.state == "open"
    assert document.verdict.sentence == "Time grows as size^2.00 between two sizes, which are too few for an interval"
    assert lines_of(document).lines[0].low is None


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
