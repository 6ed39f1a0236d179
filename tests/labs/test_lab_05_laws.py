"""Lab 5, attention and laws of growth: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import nnls

from perfnb import Timing, labs
from perfnb.labs import lab_05
from perfnb.labs.ledger import exercise_of, judged
from perfnb.models.size_laws import measured_sizes
from perfnb.results import ArchitectureComparison, ScalingStudy
from tests.labs.judging import expect, hint
from tests.labs.lab_05_answers import RATIO, SHARES, USES, figures_of

LENGTH, WIDTH = 512, 64


LINEAR, PRODUCTS = 24 * LENGTH * WIDTH**2, 4 * LENGTH**2 * WIDTH


def layers(name: str, length: int) -> pd.DataFrame:
    """A block's frame of layers: whole, attention and what lies in it, MLP."""
    width = length * WIDTH**2
    forward = {
        name: 24 * width + 4 * length**2 * WIDTH,
        f"{name}.norm1": None,
        f"{name}.attention": 8 * width + 4 * length**2 * WIDTH,
        f"{name}.attention.qkv": 6 * width,
        f"{name}.attention.out": 2 * width,
        f"{name}.mlp": 16 * width,
        "(loss)": None,
    }
    frame = pd.DataFrame({"forward_flops": pd.Series(forward, dtype="Int64")}).rename_axis("layer")
    return frame.assign(backward_flops=2 * frame["forward_flops"])


@pytest.fixture(scope="module")
def at_lengths() -> ArchitectureComparison:
    profiles: Any = {name: SimpleNamespace(layers=layers(name, int(name))) for name in SHARES}
    return replace(figures_of(), profiles=profiles)


@pytest.mark.parametrize("number", ["5.1", "5.2", "5.4", "5.5"])
def test_a_comparison_is_needed(number: str) -> None:
    evidence: dict[str, Any] = {"comparison": 3.0} | ({"images": 64} if number == "5.1" else {})

    assert "Pass a comparison" in hint(number, {"time": 1.0}, **evidence)


def parts(length: int, width: int) -> tuple[int, int]:
    return 24 * length * width**2, 4 * length**2 * width


ARITHMETIC = (LINEAR / 3 + PRODUCTS) / (LINEAR + PRODUCTS)


PER_FLOP = (0.83 / 0.17) / (ARITHMETIC / (1 - ARITHMETIC))


@pytest.mark.parametrize(
    ("time", "arithmetic", "per_flop", "words"),
    [
        (0.83, ARITHMETIC, PER_FLOP, ""),
        (0.56, ARITHMETIC, PER_FLOP, "at length 64"),
        (0.83, PRODUCTS / (LINEAR + PRODUCTS), PER_FLOP, "only the two products"),
    ],
)
def test_attention_s_share(
    at_lengths: ArchitectureComparison, time: float, arithmetic: float, per_flop: float, words: str
) -> None:
    answer = {"time": time, "arithmetic": arithmetic, "per_flop": per_flop}

    expect("5.4", words, answer, comparison=at_lengths)


@pytest.mark.parametrize(
    ("shares", "inconclusive"),
    [
        ({"64": 0.74, "128": 0.29, "256": 0.53, "512": 0.95}, True),
        ({"64": 0.55, "128": 0.61, "256": 0.72, "512": 0.83}, False),
    ],
)
def test_shares_that_do_not_rise_are_inconclusive(
    at_lengths: ArchitectureComparison,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shares: dict[str, float],
    inconclusive: bool,
) -> None:
    """The answer follows from them and is right, but they cannot be: by the lab's own conclusion they rise."""
    measured = exercise_of("5.4").measure

    def measure(*given: Any, **evidence: Any) -> Any:
        return measured(*given, **evidence) | {"shares": shares}

    changed = replace(exercise_of("5.4"), measure=measure)
    monkeypatch.setattr(lab_05, "EXERCISES", tuple(changed if e.number == "5.4" else e for e in lab_05.EXERCISES))
    time = shares["512"]
    per_flop = (time / (1 - time)) / (ARITHMETIC / (1 - ARITHMETIC))

    labs.check("5.4", {"time": time, "arithmetic": ARITHMETIC, "per_flop": per_flop}, comparison=at_lengths)

    told = capsys.readouterr().out
    assert "5.4 Attention's share: right" in told
    assert ("inconclusive" in told) == inconclusive
    assert ("74 %, 29 %, 53 %, 95 %" in told) == (shares["64"] == 0.74)


def test_the_comparison_of_lengths_is_needed(comparison: ArchitectureComparison) -> None:
    answer = {"time": 0.8, "arithmetic": 0.7, "per_flop": 2.0}

    assert "comparison=at_lengths" in hint("5.4", answer, comparison=comparison)


#: Where the line from 0.56 at 64 to 0.83 at 512 passes 0.73.
AT_TIME = 64 + 448 * (0.73 - 0.56) / (0.83 - 0.56)


@pytest.mark.parametrize(
    ("flops", "time", "words"),
    [(565, AT_TIME, ""), (1039, AT_TIME, "two products alone"), (565, 512, "time is a measured length")],
)
def test_the_length_for_73_percent(at_lengths: ArchitectureComparison, flops: Any, time: Any, words: str) -> None:
    expect("5.5", words, {"flops": flops, "time": time}, comparison=at_lengths)


def test_the_length_by_flops_is_that_of_a_counted_block() -> None:
    """By the layers' frames of a block, of which the exercise's answer is a constant."""

    def share(length: int) -> float:
        flops = layers("block", length)["forward_flops"]
        return float(flops["block.attention"] / flops["block"])

    assert share(lab_05.AT_FLOPS - 1) < lab_05.REACHED <= share(lab_05.AT_FLOPS)


TIMES = {8: 1.08, 16: 1.14, 24: 1.2, 32: 1.28, 64: 1.56, 128: 2.42, 192: 3.4, 256: 4.47, 384: 7.6, 512: 12.2}


def study_of(*sizes: int) -> ScalingStudy:
    """Of times that were measured, each with 1 % of noise."""
    noise = np.array([0.99, 1.0, 1.01] * 4)
    samples = {size: (TIMES[size] * noise).tolist() for size in sizes}
    return ScalingStudy(**measured_sizes(samples, {}, {}), device="CPU")


STUDY = study_of(32, 64, 128, 192, 256)


FORETOLD = STUDY.predict(512)


TIMED = Timing((12.0, 12.2, 12.4) * 5)


OFF_BY = 12.2 / FORETOLD.median_ms - 1


INSIDE = FORETOLD.ci_ms[0] <= 12.2 <= FORETOLD.ci_ms[1]


@pytest.mark.parametrize(
    ("off_by", "words"),
    [(OFF_BY, ""), (float(STUDY.fit["residual"].iloc[-1]), "it was fitted to"), (100 * OFF_BY, "percent")],
)
def test_a_size_held_out(off_by: float, words: str) -> None:
    expect("5.6", words, {"off_by": off_by, "inside": INSIDE}, study=STUDY, held_out=TIMED)


@pytest.mark.parametrize(
    ("study", "held_out", "words"),
    [
        (STUDY, Timing((4.4,) * 9), "is it the step of make_step(512)"),
        (study_of(64, 128, 256), TIMED, "fitted to only 3 sizes"),
        (FORETOLD, TIMED, "Pass the study"),
        (STUDY, 12.2, "Pass the timing"),
    ],
)
def test_what_does_not_test_a_law(study: Any, held_out: Any, words: str) -> None:
    assert words in hint("5.6", {"off_by": OFF_BY, "inside": INSIDE}, study=study, held_out=held_out)


def fitted(*powers: int, relative: bool = True) -> Callable[..., float]:
    """A sum of these powers of the length."""

    def predict(lengths: Any, times: Any, length: float) -> float:
        rows = np.column_stack([lengths**power for power in powers])
        weights = 1 / times if relative else np.ones_like(times)
        found = nnls(rows * weights[:, None], times * weights)[0]
        return float(found @ [float(length) ** power for power in powers])

    return predict


def one_power(lengths: Any, times: Any, length: float) -> float:
    slope, level = np.polyfit(np.log(lengths), np.log(times), 1)
    return float(np.exp(level + slope * np.log(length)))


def of_the_first_call() -> Callable[..., float]:
    known: dict[float, float] = {}

    def predict(lengths: Any, times: Any, length: float) -> float:
        return known.setdefault(length, fitted(0, 1, 2)(lengths, times, length))

    return predict


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (fitted(0, 1, 2), ""),
        (lambda lengths, times, length: np.polyval(np.polyfit(lengths, times, 2, w=1 / times), length), ""),
        (one_power, "single power of the length"),
        (fitted(0, 1), "made-up step takes"),
        (fitted(1, 2), "made-up step takes"),
        (fitted(0, 1, 2, relative=False), "relative error"),
        (of_the_first_call(), "made-up step takes"),
    ],
)
def test_a_law_that_knows_more(answer: Any, words: str) -> None:
    expect("5.7", words, answer)


def test_a_law_gets_exact_times_and_then_noisy_ones_in_another_order() -> None:
    seen: list[tuple[Any, Any]] = []
    exercise_of("5.7").measure(lambda lengths, times, _: seen.append((lengths, times)) or 1.0)

    for place, order, noise in ((3, 1, [1.0] * 6), (4, -1, [1.03, 0.97, 1.02, 0.98, 1.03, 0.97])):
        lengths = np.array([32.0, 64.0, 128.0, 192.0, 256.0, 512.0])[::order]
        assert seen[place][0].tolist() == lengths.tolist()
        assert seen[place][1] == pytest.approx((0.9 + 0.012 * lengths + 2e-5 * lengths**2) * noise)


@pytest.mark.parametrize(
    ("number", "answer", "evidence"),
    [
        ("5.3", parts, {}),
        ("5.6", {"off_by": OFF_BY, "inside": INSIDE}, {"study": STUDY, "held_out": TIMED}),
        ("5.7", fitted(0, 1, 2), {}),
    ],
)
def test_a_teacher_can_judge_the_facts_again(number: str, answer: Any, evidence: dict[str, Any]) -> None:
    facts, found = judged(exercise_of(number), answer, evidence)

    assert found == ""
    exercise_of(number).judge(json.loads(json.dumps(facts)))


def test_a_teacher_can_judge_comparisons_again(
    comparison: ArchitectureComparison, at_lengths: ArchitectureComparison
) -> None:
    numbers = {"time": 1.5, "arithmetic": RATIO, "per_flop": 1.5 / RATIO}
    shares = {"time": 0.83, "arithmetic": ARITHMETIC, "per_flop": PER_FLOP}
    lengths = {"flops": 565, "time": AT_TIME}
    for number, answer, evidence in (
        ("5.1", USES, {"comparison": comparison, "images": 64}),
        ("5.2", numbers, {"comparison": comparison}),
        ("5.4", shares, {"comparison": at_lengths}),
        ("5.5", lengths, {"comparison": at_lengths}),
    ):
        facts, found = judged(exercise_of(number), answer, evidence)
        assert found == ""
        exercise_of(number).judge(json.loads(json.dumps(facts)))
