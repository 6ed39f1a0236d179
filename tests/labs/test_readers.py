"""Exercises 9.6 and 11.3 by small models, without torch.compile: what is followed, and what the judges say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from perfnb.labs import lab_11
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import changed, expect, expect_of


class Reader(nn.Module):
    """Scores each image by the mean of all images up to it, which the cache keeps."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.printed = torch.rand(10, 4, generator=generator)
        self.weights = nn.Parameter(torch.randn(4, 10, generator=generator))

    def forward(self, images: torch.Tensor, cache: Any = None) -> tuple[torch.Tensor, Any]:
        every = images if cache is None else torch.cat([cache[0][0][:, 0], images], 1)
        means = every.cumsum(1) / torch.arange(1, every.shape[1] + 1)[None, :, None]
        return (means @ self.weights)[:, -images.shape[1] :], [(every[:, None], every[:, None])]


def answer(reader: Any, card: Any, count: int, passes: int = 0, graded: bool = False) -> Iterator[int]:
    """The right one, with a number of passes after the last character."""
    images, cache = card, None
    for place in range(count + passes):
        with torch.inference_mode(not graded):
            scores, cache = reader(images, cache)
        digit = int(scores[0, -1].argmax())
        images = reader.printed[digit][None, None]
        if place < count:
            yield digit


def anew(reader: Any, card: Any, count: int) -> Iterator[int]:
    for _ in range(count):
        with torch.inference_mode():
            digit = int(reader(card)[0][0, -1].argmax())
        yield digit
        card = torch.cat([card, reader.printed[digit][None, None]], 1)


def with_card_and_cache(reader: Any, card: Any, count: int) -> Iterator[int]:
    with torch.inference_mode():
        _, cache = reader(card)
        scores, _ = reader(card[:, :2], cache)
    yield int(scores[0, -1].argmax())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (answer, ""),
        (lambda reader, card, count: (float(digit) for digit in answer(reader, card, count)), ""),
        (lambda *given: answer(*given, graded=True), "gradients are recorded"),
        (lambda *given: answer(*given, passes=1), "the Reader ran 6 times, including once after"),
        (lambda *given: list(answer(*given, passes=1)), "the first character comes after 6 passes"),
        (lambda *given: list(answer(*given)), "the first character comes after 5 passes"),
        (anew, "the passes compute 12, 13, 14 ... images, all of them anew"),
        (with_card_and_cache, "A pass gets 2 images, but its cache already has 12"),
        (lambda reader, card, count: answer(reader, card, count - 1), "you yield 4, not 5"),
        (lambda reader, card, count: answer(reader, card, count + 1), "you yield more, not 5"),
        (lambda *given: ((digit + 1) % 10 for digit in answer(*given)), "the characters differ"),
        (lambda *given: (digit + 0.5 for digit in answer(*given)), "A character is a whole number"),
        (lambda reader, card, count: iter([reader(card[0])]), "got images of shape (12, 4)"),
        (lambda reader, card, count: iter([reader(torch.cat([card, card]))]), "got images of shape (2, 12, 4)"),
        (lambda reader, card, count: iter([reader(card[:, :, :3])]), "got images of shape (1, 12, 3)"),
        (lambda *given: None, "yields nothing yet"),
        (lambda *given: 3, "Yield the characters"),
    ],
)
def test_an_answer_is_followed(function: Callable[..., Any], words: str) -> None:
    expect("9.6", words, function, reader=Reader())


def test_each_pass_is_recorded() -> None:
    case = exercise_of("9.6").measure(answer, reader=Reader())["cases"][0]

    assert case["passes"] == [[12, 0], [1, 12], [1, 13], [1, 14], [1, 15]]
    assert case["after"] == [1, 2, 3, 4, 5]
    assert case["said"] == case["wanted"]
    assert (case["length"], case["count"], case["graded"]) == (12, 5, False)


def test_the_reader_is_needed() -> None:
    without = Reader()
    without.printed = None  # type: ignore[assignment]
    for reader in (None, nn.Linear(1, 1), without):
        expect("9.6", "yet" if reader is None else "reader=reader", answer, reader=reader)


def followed(length: int, count: int) -> dict[str, Any]:
    said = [place % 10 for place in range(count)]
    passes = [[length, 0], *([1, length + place] for place in range(count - 1))]
    after = list(range(1, count + 1))
    given = {"length": length, "count": count, "said": said, "wanted": said}
    return {**given, "passes": passes, "after": after, "graded": False}


ANSWERED = {"cases": [followed(12, 5), followed(40, 8), followed(1, 3)]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"cases/0/passes/1": [1, 0]}, "a pass gets one image and no cache"),
        ({"cases/0/passes/4": [1, 0]}, "a pass gets one image and no cache"),
        ({"cases/0": {**followed(2, 3), "passes": [[2, 0], [1, 0], [1, 3]]}}, "a pass gets one image and no cache"),
        ({"cases/0": {**followed(12, 2), "passes": [[12, 0], [13, 0]]}}, "the passes compute 12, 13 ... images"),
        ({"cases/0": followed(12, 1)}, ""),
        ({"cases/0/passes/2": [1, 12]}, "the cache stays at 12 places"),
        ({"cases/0/passes/4": [1, 12]}, "the cache stays at 12 places"),
        ({"cases/2/passes": [[1, 0], [1, 0], [1, 0]]}, "compute 1, 1, 1 ... images, all of them anew"),
        ({"cases/0/passes/0": [6, 0]}, "the first pass computes only 6 of them"),
        ({"cases/0/passes/0": [1, 0]}, "the first pass computes only 1 of them"),
        ({"cases/0/after": [5] * 5}, "the first character comes after 5 passes"),
        ({"cases/0/after": [1, 2, 3, 4, 6]}, "the first character comes after 1 passes"),
        ({"cases/0/passes": [*followed(12, 5)["passes"], [1, 16]]}, "the Reader ran 6 times, including once after"),
        ({"cases/0/said": [0, 1, 2, 3, 5]}, "For a card of 12 images and 5 characters: the characters differ"),
        ({"cases/1/graded": True}, "gradients are recorded"),
        ({"cases/1/passes": []}, "incomplete"),
    ],
)
def test_what_was_followed_is_judged(changes: dict[str, Any], words: str) -> None:
    expect_of("9.6", words, changed(ANSWERED, changes))


CARD = {"returned": "", "same": True, "said": 5.0, "wanted": 5.0, "signed": 4.0, "mean": 1.0, "of_scores": 3.0}
WHOLE = {"cases": [CARD] * 6, "operators": 50, "graphs": 1}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"cases/3/returned": "nothing"}, "forward returns nothing yet"),
        ({"cases/3/returned": "a single tensor"}, "forward returns a single tensor. Return two tensors"),
        ({"cases/3/returned": "a float instead of a tensor"}, "Converting a tensor to a Python number has to wait"),
        ({"cases/3/same": False}, "The scores differ from those of Checked"),
        ({"cases/3/said": 5.0004}, ""),
        ({"cases/3/said": 5.0006}, "not the largest absolute number of x"),
        ({"cases": [CARD | {"said": 4.0}] * 6}, "misses negative numbers"),
        ({"cases": [CARD | {"said": 1.0}] * 6}, "largest is a mean"),
        ({"cases": [CARD | {"said": 3.0}] * 6}, "largest is the largest score"),
        ({"operators": 500}, ""),
        ({"operators": 501, "graphs": None}, "forward runs 501 operators"),
        ({"graphs": 0}, "torch compiles none of it"),
        ({"graphs": 2}, "torch splits it into 2 graphs"),
    ],
)
def test_a_forward_in_one_graph(changes: dict[str, Any], words: str) -> None:
    expect_of("11.3", words, changed(WHOLE, changes))


@pytest.mark.parametrize(
    ("got", "says"),
    [
        ((torch.ones(3), torch.ones(())), ""),
        ([torch.ones(3), torch.ones(1)], ""),
        ((torch.ones(3), torch.ones(2)), "2 numbers instead of the largest one"),
        ((torch.ones(3), 1.0), "a float instead of a tensor with the largest number"),
        ((1.0, torch.ones(())), "a float instead of the scores"),
        (torch.ones(2), "a single tensor"),
        ((torch.ones(3),), "a tuple"),
        ((torch.ones(3), torch.ones(()), 1), "a tuple"),
        (None, "nothing"),
        ({}, "a dict"),
    ],
)
def test_what_forward_returns(got: Any, says: str) -> None:
    assert lab_11._not_a_pair(got) == says


class Headed(nn.Module):
    """Doubles a card, and its head adds up each row."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1, bias=False)
        nn.init.ones_(self.head.weight)

    def forward(self, card: torch.Tensor) -> Any:
        return self.head(2.0 * card)


class WithLargest(Headed):
    def forward(self, card: torch.Tensor) -> Any:
        x = 2.0 * card
        return self.head(x), x.abs().max()


def test_the_values_before_the_head_are_kept() -> None:
    card = torch.tensor([[1.0, -3.0, 2.0, 0.0], [0.5, 0.5, 0.5, 0.5]])
    old = Headed()
    with torch.no_grad():
        case = lab_11._whole_case(old, WithLargest(), card)
        other = lab_11._whole_case(Headed(), Headed(), card)

    assert case == {
        "returned": "",
        "same": True,
        "said": 6.0,
        "wanted": 6.0,
        "signed": 4.0,
        "mean": 2.0,
        "of_scores": 4.0,
    }
    assert other == {"returned": "a single tensor"}
    assert not old.head._forward_pre_hooks


def test_operators_are_counted() -> None:
    with lab_11._Operators() as operators:
        x = torch.ones(3, dtype=torch.float64)
        (x * 2 + x).relu()

    assert (operators.count, x.dtype) == (4, torch.float64)


def test_tensors_with_a_number_for_each_pair_are_counted() -> None:
    with lab_11._Squares(5) as squares:
        x = torch.ones(2, 5, 4, dtype=torch.float64)
        scores = torch.bmm(x, x.transpose(1, 2))
        scores[0].exp()
        torch.ones(5).expand(5, 5)
        torch.ones(5, 4)

    assert (squares.largest, squares.count, x.dtype) == (2 * 5 * 5, 3, torch.float64)
    with lab_11._Squares(6) as none:
        x = torch.ones(2, 5, 4)
        (x @ x.transpose(1, 2)).exp()
    assert (none.count, none.largest) == (0, 0)
