"""The answer of a comparison, and where the change is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from perfnb.diff.layers import diff_profiles, layer_tree
from perfnb.diff.step_times import step_change
from perfnb.diff.view import comparison_document, step_verdict
from perfnb.draw.document import Bars, Effects, Table
from perfnb.findings.finding import Conclusion, Findings
from perfnb.stats.step_times import StepTimes
from tests import summaries
from tests.samples import texts
from tests.samples.diff import CHANGE, DOCUMENTS, TIMES


def times(factor: float, steps: int = 21) -> StepTimes:
    return StepTimes(tuple(factor * ms for ms in TIMES.samples_ms[:steps]))


@pytest.mark.parametrize(
    ("candidate", "state", "says"),
    [
        (
            times(0.145),
            "good",
            "Faster: a step takes 0.145 × [0.126, 0.167] the baseline's time, 86 % less, not measured in",
        ),
        (
            times(6.9),
            "bad",
            "Slower: a step takes 6.90 × [5.99, 7.95] the baseline's time, 590 % more, not measured in",
        ),
        (times(1.0), "open", "No clear difference: a step takes 1.00 × [0.87, 1.15] the baseline's time, 0 % more"),
        (times(2.0, 3), "open", "No verdict: a step takes 1.82 × the baseline's time, 82 % more"),
        (StepTimes(()), "none", "Nothing to compare"),
    ],
)
def test_the_verdict_has_the_ratio_once_and_the_percentage_once(candidate: StepTimes, state: str, says: str) -> None:
    verdict = step_verdict(step_change(TIMES, candidate))
    assert (verdict.state, verdict.sentence[: len(says)]) == (state, says)


def test_nothing_that_matters_is_the_same() -> None:
    steady = StepTimes((10.0, 10.01) * 50)
    assert step_verdict(step_change(steady, steady)).state == "none"
    assert step_verdict(step_change(steady, steady)).sentence.startswith(
        "No difference that matters: a step takes 1.00 ×"
    )
    assert "a traced step takes" in step_verdict(step_change(steady, steady, "traced")).sentence


def test_phases_are_on_one_scale_and_the_one_that_changed_most_is_named() -> None:
    document = comparison_document(diff_profiles(summaries.small_cnn(), summaries.gan(), CHANGE))
    (bars,) = (section for section in document.sections if isinstance(section, Bars))
    assert [bar.label for bar in bars.bars] == ["baseline", "candidate"]
    assert sum(part.value for part in bars.bars[0].parts) == pytest.approx(summaries.small_cnn().phases["ms"].sum())
    assert "The phase that changed most is backward: 8.01 ms → 13.3 ms." in document.verdict.why
    (effects,) = (section for section in document.sections if isinstance(section, Effects))
    assert (effects.rows[0].label, effects.rows[0].verdict) == ("step time", "faster")


def test_a_layer_that_only_one_has_stands_below_its_parent() -> None:
    a = summaries.small_cnn()
    layers = a.layers.drop("model.features.1").rename(index={"model.features.3": "model.features.new"})
    diff = diff_profiles(
        a, replace(a, layers=layers.assign(module=layers["module"].where(layers.index != "model.features.new", "New")))
    )
    parents, weights = layer_tree(diff)
    table = diff.layers
    place = int(table.index[table["b"].eq("model.features.new") & table["a"].isna()][0])
    assert table["a"][parents[place]] == "model.features"
    assert weights[parents[place]] == pytest.approx(table["grew_ms"].abs().sum())
    document = comparison_document(diff)
    (tree,) = (section for section in document.sections if isinstance(section, Table) and section.key == "layers")
    assert tree.rows[place][0] == "new"
    assert tree.rows[place][1] == "none"


def test_findings_are_gained_and_lost() -> None:
    def with_findings(**bounds: float | None) -> object:
        table = pd.DataFrame({"bottleneck": list(bounds), "bound_ms": pd.array(list(bounds.values()), dtype="Float64")})
        return replace(summaries.small_cnn(), findings=Findings(table, Conclusion("", "", ""), 10.0))

    a, b = with_findings(input_bound=3.0, small_batch=1.0), with_findings(small_batch=2.0, leak=None)
    document = comparison_document(diff_profiles(a, b))  # type: ignore[arg-type]
    (table,) = (section for section in document.sections if isinstance(section, Table) and section.key == "findings")
    assert list(table.rows) == [
        ("input_bound", "gone", 3.0, None),
        ("small_batch", "in both", 1.0, 2.0),
        ("leak", "new", None, None),
    ]


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
