"""Loader alone, model alone, together: verdicts on times whose truth is known."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.bench.input_figures import KINDS, InputBound
from perfnb.bench.input_view import _overlap_words, _saved, input_bound_document
from perfnb.draw.as_text import document_text
from perfnb.stats.intervals import Centre


def planted(
    loader: float, model: float, rest: float = 0.5, *, overlap: float = 0.0, noise: float = 0.01, rounds: int = 15
) -> InputBound:
    """Blocks of a step whose loader and model take so long; `overlap` of the shorter one is hidden."""
    together = loader + model + rest - overlap * min(loader, model)
    truth = {"together": together, "loader": loader + rest, "model": model + rest, "rest": rest, "iteration": loader}
    generator = np.random.default_rng(7)
    drift = np.exp(np.cumsum(generator.normal(0, noise, rounds)))
    return InputBound(
        {kind: tuple(truth[kind] * drift * np.exp(generator.normal(0, noise, rounds))) for kind in KINDS}, 4, 99
    )


def input_bound_text(figures: InputBound) -> str:
    """Return the test as text, on one line."""
    return " ".join(document_text(input_bound_document(figures)).split())


def test_a_step_that_is_neither_is_bound_by_what_it_computes() -> None:
    figures = planted(0.2, 0.2, rest=30)

    assert figures.verdict == "compute-bound"
    assert figures.mostly_rest
    assert "outside the loader and the model" in input_bound_text(figures)


def test_few_rounds_and_much_noise_are_inconclusive() -> None:
    few = planted(30, 5, rounds=5)
    assert few.verdict == "inconclusive"
    assert few.times["low_ms"].isna().all()
    assert "Only 5 rounds ran" in input_bound_text(few)
    one = input_bound_text(planted(30, 5, rounds=1))
    assert "Only 1 round ran, which is too few" in one
    assert "1 round with one block of 4 steps" in one
    assert "no interval yet" in one
    assert "up to" not in one
    noisy = planted(20, 19, overlap=0.9, noise=1.0, rounds=6)
    assert noisy.verdict == "inconclusive"
    assert "The intervals are too wide for a verdict." in input_bound_text(noisy)


def test_the_table_holds_medians_with_intervals() -> None:
    times = planted(30, 5).times

    assert times.index.tolist() == list(KINDS)
    assert (times["low_ms"] <= times["median_ms"]).all()
    assert (times["median_ms"] <= times["high_ms"]).all()
    assert times.loc["together", ["blocks", "steps"]].tolist() == [15, 60]


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.tuples(*[st.floats(1e-4, 1e4)] * len(KINDS)), min_size=1, max_size=12))
def test_any_times_give_a_verdict_and_a_page(rows: list[tuple[float, ...]]) -> None:
    figures = InputBound({kind: [row[place] for row in rows] for place, kind in enumerate(KINDS)}, 1, 1)

    assert figures.verdict in ("input-bound", "compute-bound", "balanced", "inconclusive")
    assert max(map(len, document_text(input_bound_document(figures)).splitlines())) <= 100


def test_no_saving_hides_behind_the_word_balanced() -> None:
    both, hidden = planted(30, 17.5), planted(20, 20, overlap=1.0)

    assert both.verdict == hidden.verdict == "balanced"
    shown = input_bound_text(both)
    assert shown.startswith(
        "perfnb · input test Loader and model both limit the step: a perfect loader would save up to"
    )
    assert "alanced" not in shown
    parts = [float(part) for part in re.findall(r"(\d+) %", shown.partition("sequence")[0])]
    assert parts == pytest.approx([100 * 30 / 48, 100 * 17.5 / 48], abs=2)
    assert "Balanced, because the loader overlaps with a model that takes equally long: " in input_bound_text(hidden)


def test_no_saving_is_claimed_if_the_interval_contains_nothing() -> None:
    noisy = InputBound({**planted(0.1, 5).rounds_ms, "together": (4.0, 6.0, 7.0) * 5}, 4, 99)
    assert noisy.saved_by_loader.low <= 0 < noisy.saved_by_loader.high

    shown = input_bound_text(noisy)
    assert "would save at most " in shown
    assert "up to" not in shown
    ahead = InputBound({**planted(0.1, 5).rounds_ms, "together": (1.0,) * 15}, 4, 99)
    assert "would not save any measurable time" in input_bound_text(ahead)


@pytest.mark.parametrize(
    ("overlap", "words"), [(0.0, "in sequence"), (0.5, "overlap partly (5"), (1.0, "overlap fully")]
)
def test_how_loader_and_model_overlap_is_reported_only_if_it_is_clear(overlap: float, words: str) -> None:
    clear = planted(30, 10, overlap=overlap)
    assert clear.overlap_bounds is not None
    assert clear.overlap_bounds[0] <= overlap + 0.1
    assert clear.overlap_bounds[1] >= overlap - 0.1
    assert words in input_bound_text(clear)

    noisy = planted(30, 4, overlap=overlap, noise=0.12)
    assert noisy.verdict == "input-bound"
    shown = input_bound_text(noisy)
    noted = [each for each in ("in sequence", "overlap partly", "overlap fully") if each in shown]
    assert noted in ([], [words.removesuffix(" (5")])


def test_no_overlap_is_seen_if_nothing_can_load_meanwhile() -> None:
    seeming = {**planted(30, 5).rounds_ms, "together": (30.0,) * 15}
    assert InputBound(seeming, 4, 99).overlap is not None

    alone = InputBound(seeming, 4, 99, parallel=False)

    assert (alone.overlap, alone.overlap_bounds, alone.hindered) == (0.0, (0.0, 0.0), False)
    assert "Loader and model run in sequence" in input_bound_text(alone)


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({"batches_a_start": 1.0}, "The loader's workers restarted every batch, which"),
        ({"batches_a_start": 19.9}, "The loader's workers restarted every 19.9 batches, which"),
        ({"batches_a_start": 20.0}, ""),
        ({"batches_a_start": None}, ""),
        # In 8 rounds of 4 steps, the steps without a model took 320 ms.
        ({"unforeseen_ms": 32.0}, ""),
        ({"unforeseen_ms": 32.1}, "Batches kept arriving in new shapes, so the real model ran for 32.1 ms instead"),
    ],
)
def test_what_may_have_disturbed_the_blocks_is_noted(options: dict[str, Any], noted: str) -> None:
    rounds_ms = exactly(together=20.0, loader=9.0, model=12.0, rest=1.0).rounds_ms
    ran, *notes = input_bound_document(InputBound(rounds_ms, 4, 1234, **options)).notes

    assert ran.startswith("The step ran 1,234 times.")
    assert [note[: len(noted)] for note in notes] == [noted] * bool(noted)


@pytest.mark.parametrize(
    ("overlap", "bounds", "hindered", "words"),
    [
        (None, None, True, ""),
        (0.5, (0.1, 0.9), True, "Together, they take longer than in sequence"),
        (0.25, (-0.1, 0.49), False, "Loader and model run in sequence."),
        (0.25, (-0.1, 0.5), False, ""),
        (0.26, (-0.1, 0.49), False, ""),
        (0.26, (0.01, 0.49), False, "Loader and model overlap partly (26 % of the shorter one is hidden)."),
        (0.5, (0.0, 0.9), False, ""),
        (0.74, (0.51, 0.99), False, "Loader and model overlap partly (74 % of the shorter one is hidden)."),
        (0.74, (0.51, 1.0), False, ""),
        (0.75, (0.5, 1.1), False, ""),
        (0.75, (0.51, 1.1), False, "Loader and model overlap fully"),
    ],
)
def test_the_overlap_is_reported_if_the_interval_allows_it(
    overlap: float | None, bounds: tuple[float, float] | None, hindered: bool, words: str
) -> None:
    figures: Any = SimpleNamespace(overlap=overlap, overlap_bounds=bounds, hindered=hindered)
    found = _overlap_words(figures)
    assert found.startswith(words)
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("model", "rounds", "words"),
    [
        (6.0, 8, "a perfect loader would save up to 4.00 ms [4.00, 4.00] of 10.0 ms per step, 40 %"),
        (10.0, 8, "a perfect loader would not save any measurable time"),
        (6.0, 5, "so far, a perfect loader would save an estimated 4.00 ms of 10.0 ms per step (no interval yet)"),
        (10.0, 5, "so far, a perfect loader would save an estimated nothing of 10.0 ms per step (no interval yet)"),
    ],
)
def test_what_a_perfect_loader_would_save(model: float, rounds: int, words: str) -> None:
    assert _saved(exactly(together=10.0, loader=9.0, model=model, rounds=rounds)) == words


def test_an_interval_that_contains_nothing_has_only_an_end() -> None:
    figures: Any = SimpleNamespace(saved_by_loader=Centre(1.0, 0.0, 2.0), together_ms=10.0)
    assert _saved(figures) == "a perfect loader would save at most 2.00 ms of 10.0 ms per step, and possibly nothing"


def exactly(*, parallel: bool = True, rounds: int = 8, **ms: float) -> InputBound:
    """Return rounds that are all alike."""
    return InputBound({kind: (ms.get(kind, 1.0),) * rounds for kind in KINDS}, 4, 99, parallel=parallel)


def test_figures_of_rounds_that_are_all_alike() -> None:
    figures = exactly(together=25.0, loader=21.0, model=11.0, rest=1.0)

    assert (figures.saved_ms, figures.saved_ci_ms, figures.saved_share) == (14.0, (14.0, 14.0), 0.56)
    assert figures.saved_by_model.estimate == 4.0
    assert figures.overlap == pytest.approx((31 - 25) / 10)
    assert figures.overlap_bounds == pytest.approx((0.6, 0.6))
    assert figures.rounds.shape == (8, 5)
    alone = exactly(together=25.0, loader=21.0, model=11.0, rest=1.0, parallel=False)
    assert (alone.overlap, alone.overlap_bounds) == (0.0, (0.0, 0.0))
    few = exactly(together=25.0, loader=21.0, model=11.0, rest=1.0, rounds=5)
    assert (few.saved_ms, few.saved_ci_ms, few.overlap_bounds) == (14.0, None, None)


@pytest.mark.parametrize(("model", "known"), [(2.0, False), (2.5, True)])
def test_overlap_is_unknown_where_the_shorter_one_is_below_a_twentieth_of_the_step(model: float, known: bool) -> None:
    figures = exactly(together=20.0, loader=19.0, model=model, rest=1.0)

    assert (figures.overlap is not None) == known
    assert (figures.overlap_bounds is not None) == known


@pytest.mark.parametrize(
    ("together", "parallel", "hindered"),
    [(40.0, True, False), (42.0, True, False), (43.0, True, True), (43.0, False, False)],
)
def test_loader_and_model_hinder_each_other_if_they_take_longer_than_in_sequence(
    together: float, parallel: bool, hindered: bool
) -> None:
    assert exactly(together=together, loader=21.0, model=20.0, rest=1.0, parallel=parallel).hindered == hindered


@pytest.mark.parametrize(("rest", "mostly"), [(89.0, False), (90.0, True), (91.0, True)])
def test_a_step_is_mostly_rest_from_nine_tenths_on(rest: float, mostly: bool) -> None:
    assert exactly(together=100.0, loader=95.0, model=95.0, rest=rest).mostly_rest == mostly


@pytest.mark.parametrize(
    ("loader", "model", "verdict"),
    [
        (80.0, 60.0, "input-bound"),  # a perfect loader saves 40, a model without cost 20
        (79.0, 60.0, "balanced"),
        (60.0, 79.0, "balanced"),
        (60.0, 80.0, "compute-bound"),
        (100.0, 94.0, "input-bound"),  # saves 6 and 0
        (100.0, 95.0, "input-bound"),  # saves 5, which is enough
        (100.0, 96.0, "balanced"),  # saves 4, which is too little
        (95.0, 100.0, "compute-bound"),
        (21.5, 11.0, "input-bound"),  # it takes more than twice as long, though both savings are large
        (21.0, 11.0, "balanced"),
        (11.0, 21.0, "balanced"),
        (11.0, 21.5, "compute-bound"),
    ],
)
def test_the_larger_saving_or_time_decides_if_it_is_twice_the_other(loader: float, model: float, verdict: str) -> None:
    figures = exactly(together=100.0, loader=loader, model=model, rest=1.0)
    assert figures.verdict == verdict
    assert input_bound_document(figures).verdict.next == ""


@pytest.mark.parametrize(
    ("saved", "matters"),
    [
        (Centre(5.0, 0.1, 20.0), True),  # a twentieth of the step
        (Centre(4.9, 0.1, 9.9), False),
        (Centre(4.9, 0.1, 10.0), None),
        (Centre(5.0, 0.0, 9.9), False),
        (Centre(5.0, 0.0, 10.0), None),
        (Centre(50.0, -np.inf, np.inf), None),
    ],
)
def test_a_saving_matters_from_a_twentieth_of_the_step_on(saved: Centre, matters: bool | None) -> None:
    assert exactly(together=100.0)._matters(saved) is matters
