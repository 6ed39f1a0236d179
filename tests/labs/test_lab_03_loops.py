"""Lab 3, loops of one's own: what multiplies numbers one by one passes, and what lets a library do it does not."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from perfnb.labs import lab_03
from perfnb.labs.lab_03 import libraries_used
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import expect, hint, said_of
from tests.labs.planted import plant

Count = Callable[..., Any]
Matrix = list[list[float]]


def matmul(a: Matrix, b: Matrix) -> Matrix:
    return [[sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))] for i in range(len(a))]


@pytest.fixture(autouse=True)
def _slow_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops take fifty times as long as torch, and less is computed."""
    plant(monkeypatch, 1.0, 50.0)
    monkeypatch.setattr(lab_03, "TIMED", 2)


def remembering() -> Callable[[Matrix, Matrix], Matrix]:
    known: dict[Any, Matrix] = {}
    return lambda a, b: known.setdefault((len(a), len(b), len(b[0])), matmul(a, b))


def square_only(a: Matrix, b: Matrix) -> Matrix:
    size = len(a)
    product = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(size):
            for k in range(size):
                product[i][j] += a[i][k] * b[k][j]
    return product


def in_place(a: Matrix, b: Matrix) -> Matrix:
    a[:] = matmul(a, b)
    return a


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (matmul, ""),
        (lambda a, b: (torch.tensor(a) @ torch.tensor(b)).tolist(), "uses torch"),
        (lambda a, b: [[float(np.dot(row, column)) for column in zip(*b, strict=True)] for row in a], "uses numpy"),
        (lambda a, b: torch.tensor(a) @ torch.tensor(b), "a list of rows, each a list of numbers; you return a Tensor"),
        (remembering(), "wrong"),
        (square_only, "two 3 x 3 matrices is right, but that of a 3 x 4 and a 4 x 2 matrix is not"),
        (lambda a, b: a[5], "For a 3 x 4 and a 4 x 2 matrix: Your code raised IndexError"),
        (in_place, "changes"),
    ],
)
def test_loops(answer: Count, says: str) -> None:
    expect("3.7", says, answer)


def test_the_last_product_is_tried_twice_and_then_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = plant(monkeypatch, 1.0, 50.0)
    facts = exercise_of("3.7").measure(matmul)

    assert [case["sizes"] for case in facts["cases"]] == [*map(list, lab_03.PRODUCTS), list(lab_03.PRODUCTS[-1])]
    assert ([*map(len, given)], facts["ratio"]) == ([lab_03.ROUNDS], 50.0)


def dot(row: Any, column: Any) -> float:
    return float(np.dot(row, column))


def with_its_import(a: Matrix, b: Matrix) -> Matrix:
    from numpy import dot as product

    return [[float(product(row, column)) for column in zip(*b, strict=True)] for row in a]


def with_a_helper(a: Matrix, b: Matrix) -> Matrix:
    def entry(row: Any, column: Any) -> float:
        return dot(row, column)

    return [[entry(row, column) for column in zip(*b, strict=True)] for row in a]


class Product:
    def __call__(self, a: Matrix, b: Matrix) -> Matrix:
        return self.of(a, b)

    @staticmethod
    def of(a: Matrix, b: Matrix) -> Matrix:
        return with_a_helper(a, b)


def closed_over(product: Any) -> Callable[[Matrix, Matrix], Matrix]:
    return lambda a, b: [[float(product(row, column)) for column in zip(*b, strict=True)] for row in a]


class Attribute:
    product = staticmethod(np.dot)

    def __call__(self, a: Matrix, b: Matrix) -> Matrix:
        return closed_over(self.product)(a, b)


class Inherited(Attribute):
    pass


def with_any_product(a: Matrix, b: Matrix, product: Any) -> Matrix:
    return closed_over(product)(a, b)


def only_if_larger(a: Matrix, b: Matrix) -> Matrix:
    return matmul(a, b) if len(a) < 9 else with_a_helper(a, b)


@functools.cache
def at_once(row: Any, column: Any) -> float:
    return float(np.sum(np.multiply(row, column)))


@pytest.mark.parametrize(
    "answer",
    [
        with_its_import,
        with_a_helper,
        Product(),
        Product().__call__,
        closed_over(np.dot),
        closed_over(np.vdot),
        closed_over(at_once),
        functools.partial(with_a_helper),
        functools.partial(np.matmul),
        functools.partial(with_any_product, product=np.dot),
        Inherited(),
        only_if_larger,
        lambda a, b, product=np.dot: [[product(row, column) for column in b] for row in a],
        np.matmul,
    ],
)
def test_numpy_is_found_wherever_it_hides(answer: Any) -> None:
    assert libraries_used(answer) == ["numpy"]


def in_plain_loops(a: Matrix, b: Matrix) -> Matrix:
    product = [[0.0] * len(b[0]) for _ in a]
    for i in range(len(a)):
        for j in range(len(b[0])):
            for k in range(len(b)):
                product[i][j] += a[i][k] * b[k][j]
    return product


def with_names_like_theirs(a: Matrix, b: Matrix) -> Matrix:
    """What is called as a library is, and is none."""
    np, torch = [list(column) for column in zip(*b, strict=True)], list(a)
    return [[sum(map(operator.mul, row, column)) for column in np] for row in torch]


@functools.cache
def entry(row: tuple[float, ...], column: tuple[float, ...]) -> float:
    return math.fsum(itertools.starmap(operator.mul, zip(row, column, strict=True)))


@pytest.mark.parametrize(
    "answer",
    [
        in_plain_loops,
        with_names_like_theirs,
        closed_over(lambda row, column: entry(tuple(row), tuple(column))),
        functools.partial(in_plain_loops),
    ],
)
def test_loops_are_no_library(answer: Any) -> None:
    assert libraries_used(answer) == []
    assert hint("3.7", answer) == ""
    assert said_of("3.7", exercise_of("3.7").measure(answer)) == ""


LADDER = {"loop": 60.0, "row_product": 20.0, "numpy": 0.05, "torch": 0.02}
GAINS = {"row_product": 3.0, "numpy": 400.0, "torch": 2.5, "all_rungs": 3000.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"row_product": np.int64(3), "numpy": torch.tensor(400), "torch": np.float32(2.5)}, ""),
        ({"numpy": None}, "no value"),
    ],
)
def test_a_ladder(change: dict[str, Any], words: str) -> None:
    expect("3.8", words, GAINS | change, ladder_ms=LADDER)


def test_the_ladder_s_times_are_needed() -> None:
    assert "Pass the times as well" in hint("3.8", GAINS, ladder_ms=3)
    assert "above zero" in hint("3.8", GAINS, ladder_ms=LADDER | {"torch": 0})
