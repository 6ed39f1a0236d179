"""The answer of a comparison, and where the change is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from perfnb.diff.comparison import not_comparable
from perfnb.diff.layers import diff_profiles, layer_tree
from perfnb.diff.step_times import slower_by_more_than, step_change, step_change_of
from perfnb.diff.view import _changed, _notes, _short_kernel, comparison_document, step_verdict
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


@pytest.mark.parametrize(("ratio_ci", "slower"), [(None, None), ((1.05, 2.0), False), ((1.0501, 2.0), True)])
def test_a_step_is_slower_than_allowed_if_its_whole_interval_is(
    ratio_ci: tuple[float, float] | None, slower: bool | None
) -> None:
    assert slower_by_more_than(ratio_ci, 5) is slower


def steps(**passes: int) -> pd.DataFrame:
    return pd.DataFrame([{"pass": name, "wall_ms": 10.0} for name, count in passes.items() for _ in range(count)])


@pytest.mark.parametrize(
    ("a", "b", "kind", "counts"),
    [
        (steps(timed=2, traced=3), steps(timed=7, traced=1), "timed", (2, 7)),
        (steps(timed=2, traced=3), steps(traced=1), "traced", (3, 1)),
        (steps(traced=3), steps(timed=2), "traced", (3, 0)),
    ],
)
def test_timed_steps_are_compared_if_both_have_them(
    a: pd.DataFrame, b: pd.DataFrame, kind: str, counts: tuple[int, int]
) -> None:
    change = step_change_of(a, b)
    assert (change.kind, change.a.steps, change.b.steps) == (kind, *counts)
    assert (change.found is None) == (0 in counts)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, []),
        ({"alike": (0.5, None)}, []),
        ({"alike": (0.4, None)}, ["Only 40 % of the baseline's and "]),
        ({"alike": (0.9, 0.4)}, ["Only 90 % of the baseline's and 40 % of the candidate's time is in ops"]),
        ({"on_gpu": True, "kernels": [1]}, ["Op times are GPU times"]),
        ({"kernels": [1]}, ["Op times are host times, because only one"]),
        ({"unmarked": (True, False)}, ["The baseline has no marked steps: such a trace counts as one step."]),
        ({"without_shapes": (False, True)}, ["The candidate has no input shapes: ops are matched by name, layer and"]),
        ({"without_layers": (True, True)}, ["Neither has layers: ops are matched by name, shapes and order."]),
    ],
)
def test_a_note_says_what_makes_traces_hard_to_compare(facts: dict[str, Any], said: list[str]) -> None:
    usual = dict.fromkeys(("unmarked", "without_shapes", "without_layers"), (False, False))
    traces: Any = SimpleNamespace(**{"alike": (0.9, 0.8), "on_gpu": False, "kernels": [], **usual, **facts})
    notes = list(_notes(traces))
    assert [note[: len(words)] for note, words in zip(notes, said, strict=True)] == said


def test_peak_memory_is_shown_if_both_are_known() -> None:
    whole = diff_profiles(summaries.small_cnn(), summaries.gan(), CHANGE)
    for a, b in ((2**20, 2**21), (0, 5), (None, 5), (5, None)):
        figures = comparison_document(replace(whole, a_peak_bytes=a, b_peak_bytes=b)).figures
        peaks = [(figure.label, figure.value) for figure in figures if "peak" in figure.label]
        assert peaks == ([] if a is None or b is None else [("baseline peak memory", a), ("candidate peak memory", b)])


@pytest.mark.parametrize(
    ("a", "b", "lacking", "cells"),
    [
        (2.0, 3.0, "", (2.0, 3.0, 1.0, 1.5)),
        (0.0, 3.0, "", (0.0, 3.0, 3.0, "")),
        (None, 3.0, "", (None, 3.0, 3.0, "")),
        (None, 3.0, "a", ("none", 3.0, 3.0, "")),
        (2.0, None, "b", (2.0, "none", -2.0, "")),
        (None, None, "", (None, None, None, "")),
    ],
)
def test_what_one_side_lacks_took_no_time_there(
    a: float | None, b: float | None, lacking: str, cells: tuple[Any, ...]
) -> None:
    assert _changed(a, b, lacking) == cells


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, float>(int)", "vectorized_elementwise_kernel"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>(Params)", "cutlass_80_tensorop"),
        ("void (anonymous namespace)::softmax_warp_forward<float>(float*)", "softmax_warp_forward"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD"),
        ("<lambda>", "<lambda>"),
        ("x" * 50, "x" * 40),
    ],
)
def test_a_kernel_is_named_without_its_namespaces_and_arguments(name: str, short: str) -> None:
    assert _short_kernel(name) == short


def test_only_another_profile_can_be_compared() -> None:
    class Ranks:
        """Profiles of several ranks."""

    assert not_comparable(3) == "compare requires another profile, not int."
    assert not_comparable(Ranks()).endswith("not Ranks. Compare individual ranks: a[0].compare(b[0]).")


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
