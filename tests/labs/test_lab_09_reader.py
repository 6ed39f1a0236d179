"""Lab 9, the Reader and its answers: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from perfnb.labs import lab_09
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import expect, hint
from tests.labs.lab_09_answers import a_reader, as_tensors, cached, cell_with, first_place, largest, with_gradients


@pytest.fixture(scope="module")
def reader() -> Any:
    return a_reader()


def in_bytes(blocks: int, width: int, length: int, cards: int) -> int:
    return 2 * 4 * blocks * width * length * cards


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (in_bytes, ""),
        (lambda *sizes: in_bytes(*sizes) / 2, "a key *and* a value"),
        (lambda *sizes: in_bytes(*sizes) / 4, "How many bytes"),
        (lambda *sizes: in_bytes(*sizes) / 8, "What is missing"),
        (lambda *sizes: 8 * in_bytes(*sizes), "looks like bits"),
        (lambda b, w, n, c: in_bytes(1, w, n, c), "of one block"),
        (lambda b, w, n, c: in_bytes(b, w, n, 1), "of one card"),
        (lambda b, w, n, c: in_bytes(b, 1, n, c), "a key has `width`"),
        (lambda b, w, n, c: in_bytes(b, w, n * n, c), "not kept"),
        (lambda b, w, n, c: 4 * b * n * n * c, "not kept"),
        (lambda b, w, n, c: 4 * in_bytes(b, w, n, c), "those of all heads together"),
        (lambda b, w, n, c: 3 * in_bytes(b, w, n, c), "What does each block keep"),
    ],
)
def test_the_size_of_the_cache(answer: Callable[..., Any], words: str) -> None:
    expect("9.5", words, answer)


def test_the_reader_s_cache_has_that_size(reader: Any) -> None:
    with torch.no_grad():
        _, cache = reader(torch.rand(5, 20, 64))
        _, cache = reader(torch.rand(5, 1, 64), cache)

    assert sum(part.numel() * part.element_size() for past in cache for part in past) == in_bytes(3, 128, 21, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (cached, ""),
        (as_tensors, ""),
        (first_place, "scores of the *last* place"),
        (with_gradients, "gradients are recorded"),
    ],
)
def test_one_character_at_a_time(reader: Any, answer: Callable[..., Any], words: str) -> None:
    expect("9.6", words, answer, reader=reader)


def test_the_reader_is_needed_and_left_alone(reader: Any) -> None:
    assert "Pass the Reader" in hint("9.6", cached, reader=3)
    assert hint("9.6", cached, reader=reader) == ""
    assert not reader._forward_pre_hooks


def expected(acceptance: float, guesses: int) -> float:
    if acceptance == 1:
        return guesses + 1
    return (1 - acceptance ** (guesses + 1)) / (1 - acceptance)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (expected, ""),
        (lambda a, k: expected(a, k) - 1, "its own character"),
        (lambda a, k: 1 + a * k, "Guesses after the first wrong one"),
        (lambda a, k: a * k, "its own character"),
        (lambda a, k: a**k, "the probability that all guesses are right"),
        (lambda a, k: 1 + k * a**k, "all or nothing"),
        (lambda a, k: (1 - a ** (k + 1)) / (1 - a), "ZeroDivisionError"),
        (lambda a, k: sum(a**right for right in range(k)), "You leave out a character"),
        (lambda a, k: sum(a**right for right in range(1, k)), "You leave out two characters"),
        (lambda a, k: expected(a, k + 1), "For 4 guesses, with a probability of 0.8"),
        (lambda a, k: expected(a, k + 1) if k == 1 else expected(a, k), "For 1 guess, with"),
    ],
)
def test_guesses(answer: Callable[..., Any], words: str) -> None:
    expect("9.8", words, answer)


@pytest.mark.slow
def test_guesses_change_no_answer_and_the_formula_holds(reader: Any) -> None:
    """The lab's own `speculative`, with a draft that spoils characters at random."""
    names: dict[str, Any] = {"torch": torch}
    exec(cell_with("def speculative").partition("COUNT = ")[0], names)
    card, generator = torch.rand(1, 4, 64), np.random.default_rng(5)
    right = list(cached(reader, card, 70))

    def draft(start: int, length: int) -> list[int]:
        spoilt = generator.random(length) >= 0.7
        return [(right[start + place] + int(spoilt[place])) % 10 for place in range(length)]

    written, passes = names["speculative"](reader, draft, card, 60, 3)
    assert written == right[: len(written)]
    assert len(written) / passes == pytest.approx(expected(0.7, 3), rel=0.2)


def by_hand(model: Any, other: Any, inputs: Any) -> float:
    """Without torch's max, so that a NaN is passed over."""
    pairs = [(a, b) for x in inputs for a, b in zip(*(f(x).flatten().tolist() for f in (model, other)), strict=True)]
    most = 0.0
    for a, b in pairs:
        if abs(a - b) > most:
            most = abs(a - b)
    return most / max(abs(a) for a, _ in pairs)


def differences(model: Any, other: Any, inputs: Any) -> Any:
    return torch.stack([other(x) - model(x) for x in inputs]) / torch.stack([model(x) for x in inputs]).abs().max()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (largest, ""),
        (lambda *given: float("inf") if bool(largest(*given).isnan()) else by_hand(*given), ""),
        (lambda model, other, inputs: largest(model, other, inputs[:1]), "only at the first input"),
        (lambda *given: differences(*given).max(), "is there an absolute value"),
        (lambda *given: differences(*given).abs().mean(), "That is the mean"),
        (lambda model, other, inputs: max((other(x) - model(x)).abs().max() for x in inputs), "Divide by"),
        (by_hand, "pass over NaN"),
        (lambda *given: -differences(*given).min(), "A larger output counts as no difference"),
        (
            lambda model, other, inputs: max((other(x) - model(x)).abs().max() / model(x).abs().max() for x in inputs),
            "largest output of that input",
        ),
        (
            lambda model, other, inputs: max(((other(x) - model(x)) / model(x)).abs().max() for x in inputs),
            "each distance by its own number",
        ),
        (lambda model, other, inputs: largest(other, model, inputs), "the model in doubt"),
        (
            lambda model, other, inputs: (
                largest(model, other, inputs)
                * max(model(x).abs().max() for x in inputs)
                / max(model(x).max() for x in inputs)
            ),
            "The distance is right, but not the scale",
        ),
        (lambda *given: differences(*given).abs().sum(), "Which two numbers does your function divide"),
        (lambda *given: float("nan"), "not a finite number"),
        (lambda *given: True, "must be a number, not True"),
        (lambda *given: "nan", "must be a number, not 'nan'"),
        (lambda *given: None, "no value yet"),
    ],
)
def test_the_same_answers(answer: Callable[..., Any], words: str) -> None:
    expect("9.9", words, answer)


def test_what_the_mistakes_lead_to() -> None:
    cases = exercise_of("9.9").measure(largest)["cases"]
    names = ("wanted", "first", "absolute", "mean", "by_number", "by_signed")

    # Outputs go up to 2, 6 and 1; those above 0.5 become smaller by 0.03, and one input's by 0.06.
    assert cases["equal"] == dict.fromkeys(cases["equal"], 0.0)
    assert [cases["smaller"][name] for name in names] == pytest.approx(
        [0.03 / 6, 0.03 / 2, 0.03, 11 / 36 * 0.03 / 6, 0.0485294, 0.03 / 4.8], rel=1e-5
    )
    assert [cases["one input"][name] for name in names] == pytest.approx(
        [0.06 / 6, 0.0, 0.06, 0.06 / 6 / 3, 0.55, 0.06 / 4.8], rel=1e-5
    )


def test_only_the_largest_output_is_broken() -> None:
    for size, broken in ((5.0, 0), (5.1, 1), (-5.1, 1)):
        values = torch.full((3, 4), size)
        assert int(lab_09._broken(values).isnan().sum()) == broken
        assert not values.isnan().any()
