"""Lab 3: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from perfnb import Roofline, profile_step
from tests.labs.judging import hint

Count = Callable[..., Any]


def linear(batch: int, inputs: int, outputs: int) -> int:
    return 2 * batch * inputs * outputs


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (linear, ""),
        (lambda b, i, o: float(linear(b, i, o)), ""),
        (lambda b, i, o: b * i * o, "half"),
        (lambda b, i, o: 2 * linear(b, i, o), "twice"),
        (lambda b, i, o: 3 * linear(b, i, o), "factor of three"),
        (lambda b, i, o: linear(b, i, o) + b * o, "bias"),
        (lambda b, i, o: 2 * i * o, "does not agree"),
        (lambda b, i, o: linear(b, i, o) / 1e6, "units"),
        (lambda b, i, o: linear(32, 784, 10), "does not agree"),
        (lambda b, i, o: None, "no value"),
    ],
)
def test_arithmetic_of_a_linear_layer(answer: Count, says: str) -> None:
    found = hint("3.1", answer)

    assert says in found
    assert bool(says) == bool(found)


def conv(batch: int, inputs: int, outputs: int, kernel: int, height: int, width: int) -> int:
    return 2 * batch * height * width * inputs * outputs * kernel**2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (conv, ""),
        (lambda *sizes: conv(*sizes) // 2, "half"),
        (lambda *sizes: 3 * conv(*sizes), "factor of three"),
        (lambda b, i, o, k, h, w: conv(b, i, o, 1, h, w), "does not agree"),
        (lambda b, i, o, k, h, w: 2 * b * h * w * i * o * k, "does not agree"),
        (lambda b, i, o, k, h, w: conv(b, 1, o, k, h, w), "does not agree"),
        (lambda b, i, o, k, h, w: conv(b, i, o, k, h - k + 1, w - k + 1), "does not agree"),
    ],
)
def test_arithmetic_of_a_convolution(answer: Count, says: str) -> None:
    found = hint("3.2", answer)

    assert says in found
    assert bool(says) == bool(found)


def forward(batch: int, widths: Sequence[int]) -> int:
    return sum(linear(batch, *pair) for pair in itertools.pairwise(widths))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda b, widths: 3 * forward(b, widths) - linear(b, *widths[:2]), ""),
        (lambda b, widths: 3 * forward(b, widths), "too many"),
        (forward, "forward pass alone"),
        (lambda b, widths: 2 * forward(b, widths), "does not agree"),
        (lambda b, widths: (3 * forward(b, widths) - linear(b, *widths[:2])) / 2, "half"),
        (lambda b, widths: 3 * forward(b, widths) - linear(b, *widths[-2:]), "does not agree"),
    ],
)
def test_arithmetic_of_training(answer: Count, says: str) -> None:
    found = hint("3.3", answer)

    assert says in found
    assert bool(says) == bool(found)


def moved(batch: int, inputs: int, outputs: int) -> int:
    return 4 * (batch * inputs + inputs * outputs + batch * outputs)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (moved, ""),
        (lambda *sizes: moved(*sizes) // 4, "how many bytes"),
        (lambda *sizes: moved(*sizes) * 8, "bits"),
        (lambda *sizes: moved(*sizes) * 2, "twice"),
        (lambda b, i, o: moved(b, i, o) - 4 * b * o, "The output is left out"),
        (lambda b, i, o: moved(b, i, o) - 4 * b * i, "The input is left out"),
        (lambda b, i, o: 4 * i * o, "does not agree"),
    ],
)
def test_bytes_of_a_linear_layer(answer: Count, says: str) -> None:
    found = hint("3.4", answer)

    assert says in found
    assert bool(says) == bool(found)


@pytest.fixture(scope="module")
def roofline() -> Roofline:
    model, x = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(8, 32)

    def step() -> None:
        model(x).sum().backward()

    found = profile_step(step, model={"model": model}, warmup=1, steps=1, traced=1, memory=False).roofline
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda f, b, peak, bandwidth: max(f / peak, b / bandwidth), ""),
        (lambda f, b, peak, bandwidth: f / min(peak, f / b * bandwidth), ""),
        (lambda f, b, peak, bandwidth: f / peak + b / bandwidth, "add"),
        (lambda f, b, peak, bandwidth: min(f / peak, b / bandwidth), "shorter"),
        (lambda f, b, peak, bandwidth: f / peak, "shorter"),
        (lambda f, b, peak, bandwidth: 1e3 * max(f / peak, b / bandwidth), "milliseconds"),
        (lambda f, b, peak, bandwidth: 2 * max(f / peak, b / bandwidth), "not the least"),
        (lambda f, b, peak, bandwidth: f / b, "not the least"),
    ],
)
def test_the_least_time(roofline: Roofline, answer: Count, says: str) -> None:
    found = hint("3.5", answer, roofline=roofline)

    assert says in found
    assert bool(says) == bool(found)


def test_a_roofline_is_needed() -> None:
    assert "roofline=p.roofline" in hint("3.5", max, roofline=3)


BIG, SMALL = SimpleNamespace(median_ms=5.0), SimpleNamespace(median_ms=0.2)
RIGHT = {"arithmetic": 100, "time": 25.0, "not_arithmetic": 0.75}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"time": 25.4}, ""),
        ({"arithmetic": 10}, "arithmetic is not"),
        ({"arithmetic": 0.01}, "arithmetic is not"),
        ({"time": 0.04}, "inverse"),
        ({"time": 50.0}, "twice"),
        ({"time": 100.0}, "time is not"),
        ({"not_arithmetic": 0.25}, "not_arithmetic"),
        ({"not_arithmetic": 75}, "percent"),
        ({"not_arithmetic": 0.375}, "half"),
        ({"not_arithmetic": ...}, "no value"),
    ],
)
def test_a_hundred_times_smaller(change: dict[str, Any], says: str) -> None:
    found = hint("3.6", RIGHT | change, big=BIG, small=SMALL)

    assert says in found
    assert bool(says) == bool(found)


Matrix = list[list[float]]


def matmul(a: Matrix, b: Matrix) -> Matrix:
    return [[sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))] for i in range(len(a))]


def remembering() -> Callable[[Matrix, Matrix], Matrix]:
    known: dict[Any, Matrix] = {}
    return lambda a, b: known.setdefault((len(a), len(b), len(b[0])), matmul(a, b))


def in_place(a: Matrix, b: Matrix) -> Matrix:
    a[:] = matmul(a, b)
    return a


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (matmul, ""),
        (lambda a, b: (torch.tensor(a) @ torch.tensor(b)).tolist(), "only"),
        (lambda a, b: torch.tensor(a) @ torch.tensor(b), "wrong"),
        (lambda a, b: [list(row) for row in zip(*matmul(a, b), strict=True)], "wrong"),
        (lambda a, b: [row[:-1] for row in matmul(a, b)], "wrong"),
        (lambda a, b: [[x * y for x, y in zip(r, s, strict=False)] for r, s in zip(a, b, strict=False)], "wrong"),
        (lambda a, b: [[2 * value for value in row] for row in matmul(a, b)], "wrong"),
        (remembering(), "wrong"),
        (in_place, "changes"),
        (lambda a, b: None, "nothing yet"),
        (lambda a, b: b[len(b)], "IndexError"),
    ],
)
def test_loops(answer: Count, says: str) -> None:
    found = hint("3.7", answer)

    assert says in found
    assert bool(says) == bool(found)
