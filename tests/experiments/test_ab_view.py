"""What an A/B test says first, and which figures stand where, for planted inputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from perfnb.bench.quality import Loss
from perfnb.draw.as_text import document_text
from perfnb.draw.document import Document, Effects, Strip, Table
from perfnb.experiments.ab_test import ABTest
from perfnb.experiments.compared_figures import NOT_COMPARED, Quality
from tests.experiments.ab_samples import EXAMPLES, JUDGED, SILENT, experiment, figures
from tests.samples import texts
from tests.samples.experiments import DOCUMENTS

RATIO = r"\d\.\d+ × \[\d\.\d+, \d\.\d+\]"
#: By example, the beginning of its verdict, and its advice.
SAID = {
    "accept": (f"Accept: the candidate is faster \\({RATIO}, 9.9 % less time\\), and its results agree", ""),
    "judged": (f"Accept: .*{RATIO}, .*, and its losses are within the limits \\(val_loss, 1 - F1\\)", ""),
    "wrong": ("Reject: the results are not good enough, .*: the result differs by .* \\(limit 0.0001\\)", ""),
    "worse": ("Reject: the results are not good enough, .*: val_loss 0.3201 \\(limit 0.32\\)", ""),
    "worse than the baseline": ("Reject: the results are not good enough, .*: val_loss 1.38 \\(limit 1.24\\)", ""),
    "over": ("Reject: the candidate exceeds a limit: median step 9.01 ms \\(limit 8.00 ms\\)", ""),
    "near a limit": (f"Inconclusive: .*{RATIO}, .*, but .* may exceed the limit of 9.01 ms", "Raise budget_s."),
    "of another form": ("Reject: .*: the result has different keys$", ""),
    "nan": ("Inconclusive: .*, but loss of the baseline is nan; limits names 'accuracy'", "Pass limits={'loss': ...}."),
    "slower": (f"Reject: the candidate is slower: {RATIO}, 30 % more time", ""),
    "no gain": (f"Reject: baseline and candidate take the same time within 2.0 %: {RATIO}", ""),
    "cannot tell": (
        f"Inconclusive: neither a difference nor equality within 2.0 % was shown: {RATIO}",
        "Raise budget_s, ",
    ),
    "too few": ("Inconclusive: too few pairs for a verdict: 4 of the 6", "Raise budget_s."),
    "wide": ("Inconclusive: neither a difference nor equality", "Raise budget_s, or use a quieter machine."),
    "silent": ("Inconclusive: .* could not be checked: a step returns no tensor", "Return the loss from both steps"),
    "unlimited": ("Inconclusive: .*, but no limit on quality loss was given", "Pass limits={'val_loss': ...}."),
    "unchecked": ("Inconclusive: .* p95 step could not be measured; quality returned no loss 'vall_oss', only", ""),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_decision_and_its_reason_come_first(name: str) -> None:
    example, (sentence, advice) = EXAMPLES[name], SAID[name]
    verdict = example._document().verdict

    assert re.match(sentence, verdict.sentence), verdict.sentence
    assert verdict.next.startswith(advice)
    assert bool(advice) == bool(verdict.next)
    assert verdict.state == {"accept": "good", "reject": "bad", "inconclusive": "open"}[example.decision]
    assert example.reason.startswith(verdict.sentence.partition(": ")[2].capitalize()[:10])
    assert example.reason.endswith(verdict.next or ".")
    assert example.to_markdown().startswith(f"**{'✓▲?'[('good', 'bad', 'open').index(verdict.state)]} ")


@pytest.mark.parametrize(
    ("ratio", "pairs", "noise", "state", "words"),
    [
        (0.8, 60, 0.01, "good", "The candidate is faster: 0.8"),
        (1.0, 60, 0.01, "none", "Baseline and candidate take the same time within 2.0 %: "),
        (0.5, 5, 0.01, "open", "Too few pairs for a verdict: 5 of the 6 that an interval requires"),
    ],
)
def test_without_a_decision_the_verdict_comes_first(
    ratio: float, pairs: int, noise: float, state: str, words: str
) -> None:
    verdict = timed(ratio, pairs, noise).verdict
    assert (verdict.state, verdict.sentence[: len(words)]) == (state, words)


def timed(ratio: float, pairs: int = 60, noise: float = 0.01) -> Document:
    """Return a test of which only the time is known."""
    return ABTest(**vars(experiment(ratio, pairs, noise)), quality=NOT_COMPARED)._document()


def test_below_six_pairs_there_are_only_the_dots() -> None:
    document = timed(0.5, 4)
    (strip,) = document.sections
    assert isinstance(strip, Strip)
    assert len(strip.groups[0][1]) == 4
    assert "detect" not in document_text(document)
    judged = EXAMPLES["too few"]._document()
    assert not next(section for section in judged.sections if isinstance(section, Effects)).rows
    assert "ratio" not in document_text(judged).partition("Baseline and candidate")[2].splitlines()[1]


def test_every_pair_is_a_dot_at_its_own_ratio() -> None:
    times = replace(experiment(1.0, 20), a_ms=(10.0,) * 20, b_ms=(10.0,) * 19 + (900.0,))
    document = ABTest(**vars(times))._document()
    strip = next(section for section in document.sections if isinstance(section, Strip))
    assert list(strip.groups[0][1]) == [1.0] * 19 + [90.0]


def test_effects_and_table_have_the_same_ratio_and_say_where_the_medians_differ() -> None:
    example = EXAMPLES["cannot tell"]
    document = example._document()
    effects = next(section for section in document.sections if isinstance(section, Effects))
    table = next(section for section in document.sections if isinstance(section, Table))

    assert effects.rows[0].ratio == example.ratio
    median = {row[0]: row for row in table.rows}["median step"]
    assert median[3].number == example.ratio
    apart = f"{example.candidate.median_ms / example.baseline.median_ms:.3g} ×"
    assert (table.details or [])[0].endswith(f"the medians alone would give {apart}.")
    assert not any(EXAMPLES["accept"]._document().sections[2].details)  # type: ignore[union-attr]


def test_no_effect_is_drawn_of_what_is_better_if_larger_or_has_no_ratio() -> None:
    losses = Loss("val_loss", 0.312, 0.310, 0.32), Loss("1 - F1", 0.0, 0.09)  # no axis of ratios has a 0
    for quality, drawn in (
        (JUDGED, ["loss: val_loss", "loss: 1 - F1"]),
        (Quality(losses, "function"), ["loss: val_loss"]),
    ):
        effects = figures(quality=quality)._document().sections[0]
        assert isinstance(effects, Effects)
        assert [row.label for row in effects.rows] == ["step time", "p95 step", *drawn]


@pytest.mark.parametrize(
    ("name", "metric", "verdict"),
    [
        ("accept", "step time", "faster"),
        ("over", "step time", "faster, over its limit"),
        ("near a limit", "step time", "faster, near its limit"),
        ("judged", "loss: val_loss", "within its limit"),
        ("worse", "loss: val_loss", "over its limit"),
    ],
)
def test_effects_say_what_is_over_a_limit(name: str, metric: str, verdict: str) -> None:
    effects = EXAMPLES[name]._document().sections[0]
    assert isinstance(effects, Effects)
    assert {row.label: row.verdict for row in effects.rows}[metric] == verdict


COMPARED = (
    "The results of both steps after the warm-up were compared. The accepted difference is 0.0001 times the largest "
    "value, which rounding in float32 can explain."
)
ALLOW = (
    "Two training steps need separate models with equal weights.",
    "To accept a larger difference, pass limits={'difference': ...} or a quality function.",
)
FREE = "A loss without a limit may exceed the baseline's by 0.1 %."
ROUNDING = "Rounding alone can make two training runs diverge by more than that. To allow for this, pass limits."
UNSTEADY = "The steps had not reached a steady state when the warm-up ended."
UNCHECKED = "The results could not be checked: a step returns no tensor and no number."
MEASURED = "Measured with torch 2.13.0 on lab-3, commit 0123456789 with uncommitted changes."


@pytest.mark.parametrize(
    ("example", "notes"),
    [
        (EXAMPLES["accept"], [COMPARED, MEASURED]),
        (EXAMPLES["over"], [COMPARED, "The results agree.", MEASURED]),
        (EXAMPLES["wrong"], [COMPARED, *ALLOW, MEASURED]),
        (EXAMPLES["judged"], [FREE, MEASURED]),
        (EXAMPLES["worse than the baseline"], [FREE, ROUNDING, MEASURED]),
        (EXAMPLES["worse"], [MEASURED]),
        (EXAMPLES["nan"], [MEASURED]),
        (EXAMPLES["silent"], [MEASURED]),
        (figures(1.3, SILENT), [UNCHECKED, MEASURED]),
        (figures(times=replace(experiment(0.9), steady=False)), [COMPARED, UNSTEADY, MEASURED]),
        (replace(EXAMPLES["worse"], environment={}), []),
        (replace(EXAMPLES["worse"], environment={"torch": "2.9", "host": "a"}), ["Measured with torch 2.9 on a."]),
        (
            replace(EXAMPLES["worse"], environment={"torch": "2.9", "commit": "0123456789ab"}),
            ["Measured with torch 2.9, commit 0123456789."],
        ),
    ],
)
def test_notes_say_what_a_reader_must_know(example: ABTest, notes: list[str]) -> None:
    assert list(example._document().notes) == notes


def test_profiles_of_both_sides_are_compared_in_a_tab() -> None:
    (tab,) = EXAMPLES["accept"]._document().tabs
    assert "layers" in {section.key for section in tab.sections}
    assert not tab.verdict.sentence
    assert EXAMPLES["unchecked"]._document().tabs == ()


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
