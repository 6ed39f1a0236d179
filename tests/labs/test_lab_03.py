"""Lab 3: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from perfnb import Profile, Timing, profile_step
from tests.labs.judging import expect, hint
from tests.labs.planted import plant

Count = Callable[..., Any]


def linear(batch: int, inputs: int, outputs: int) -> int:
    return 2 * batch * inputs * outputs


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (linear, ""),
        (lambda b, i, o: b * i * o, "each product is also added to a sum"),
        (lambda b, i, o: 3 * linear(b, i, o), "three times"),
        (lambda b, i, o: linear(b, i, o) + o, "It includes the bias"),
        (lambda b, i, o: linear(b, i + 1, o), "It includes the bias"),
        (lambda b, i, o: linear(b, i, o) - b * o, "one addition less"),
        (lambda b, i, o: 2 * 7 * 14 * 29, "does not match"),
        (lambda b, i, o: linear(b, i, o) + b * o, "bias"),
    ],
)
def test_arithmetic_of_a_linear_layer(answer: Count, says: str) -> None:
    expect("3.1", says, answer)


def conv(batch: int, inputs: int, outputs: int, kernel: int, height: int, width: int) -> int:
    return 2 * batch * height * width * inputs * outputs * kernel**2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (conv, ""),
        (lambda *sizes: conv(*sizes) // 2, "each product is also added to a sum"),
        (lambda *sizes: 3 * conv(*sizes), "three times"),
        (lambda b, i, o, k, h, w: conv(b, i, o, 1, h, w), "does not match"),
        (lambda b, i, o, k, h, w: conv(b, i, o, k, h - k + 1, w - k + 1), "does not match"),
    ],
)
def test_arithmetic_of_a_convolution(answer: Count, says: str) -> None:
    expect("3.2", says, answer)


@pytest.mark.parametrize(("number", "of"), [("3.1", linear), ("3.2", conv)])
@pytest.mark.parametrize("factor", [0.5, 3])
def test_of_a_forward_pass_no_direction_is_spoken(number: str, of: Count, factor: float) -> None:
    found = hint(number, lambda *sizes: factor * of(*sizes))

    assert found
    assert not [word for word in ("direction", "backward", "training", "forward") if word in found]


def forward(batch: int, widths: Sequence[int]) -> int:
    return sum(linear(batch, *pair) for pair in itertools.pairwise(widths))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda b, widths: 3 * forward(b, widths) - linear(b, *widths[:2]), ""),
        (lambda b, widths: 3 * forward(b, widths), "too many"),
        (forward, "only the forward pass"),
        (lambda b, widths: 2 * forward(b, widths), "does not match"),
        (lambda b, widths: (3 * forward(b, widths) - linear(b, *widths[:2])) / 2, "is something left out"),
        (lambda b, widths: forward(b, widths) - linear(b, *widths[:2]) / 3, "a factor of three"),
        (lambda b, widths: 9 * forward(b, widths) - 3 * linear(b, *widths[:2]), "a factor of three"),
        (lambda b, widths: 2 * forward(b, widths) - linear(b, *widths[:2]) / 1.5, "a factor of 1.5"),
        (lambda b, widths: 4.5 * forward(b, widths) - 1.5 * linear(b, *widths[:2]), "a factor of 1.5"),
        (lambda b, widths: 3 * forward(b, widths) - linear(b, *widths[-2:]), "does not match"),
    ],
)
def test_arithmetic_of_training(answer: Count, says: str) -> None:
    found = hint("3.3", answer)

    assert says in found
    assert bool(says) == bool(found)


def moved(batch: int, inputs: int, outputs: int) -> int:
    return 4 * (batch * inputs + inputs * outputs + batch * outputs)


@pytest.mark.slow
def test_bytes_of_a_profile() -> None:
    """What the judge adds to the products is what a profile counts of a layer with a bias, to the last byte."""
    profile = profiled()
    assert hint("3.4", moved, profile=profile, network=NETWORK) == ""
    batch, widths = NETWORK
    counted = profile.layers.loc[["net.0", "net.2"], "moved_bytes"]

    for products, sizes, found in zip((2, 3), itertools.pairwise(widths), counted, strict=True):
        gradient_of_bias = 4 * (batch * sizes[1] + sizes[1])
        assert found == products * moved(batch, *sizes) + 4 * sizes[1] + gradient_of_bias


NETWORK = (8, (32, 16, 4))


def profiled() -> Profile:
    net, x = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(8, 32)

    def step() -> None:
        net(x).square().mean().backward()

    return profile_step(step, model={"net": net}, warmup=1, steps=1, traced=1, memory=False)


def test_a_roofline_is_needed() -> None:
    assert "roofline=p.roofline" in hint("3.5", max, roofline=3)


def step_of(rows: int, columns: int) -> Callable[[], None]:
    """A step of so many times 20 FLOPs."""
    a, b = torch.ones(rows, 10), torch.ones(10, columns)

    def step() -> None:
        a @ b

    return step


@pytest.fixture
def _timed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, 5.0, 0.2)


BIG, SMALL = Timing((5.0,)), Timing((0.2,))
STEPS = step_of(10, 10), step_of(1, 1)
RIGHT = {"arithmetic": 100, "time": 25.0, "not_arithmetic": 0.75}


@pytest.mark.parametrize(("change", "says"), [({}, ""), ({"not_arithmetic": ...}, "no value")])
@pytest.mark.usefixtures("_timed")
def test_a_hundred_times_smaller(change: dict[str, Any], says: str) -> None:
    expect("3.6", says, RIGHT | change, big=BIG, small=SMALL, steps=STEPS)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"big": SMALL, "small": BIG}, "big_step and small_step"),
        ({"steps": (STEPS[0], STEPS[0])}, "The steps need 2,000 and 2,000 FLOPs"),
        ({"steps": ()}, "two steps"),
        ({"big": SimpleNamespace(median_ms=5.0)}, "perfnb.time_step"),
    ],
)
@pytest.mark.usefixtures("_timed")
def test_timings_of_other_steps(given: dict[str, Any], says: str) -> None:
    evidence = {"big": BIG, "small": SMALL, "steps": STEPS} | given
    ratio = evidence["big"].median_ms / evidence["small"].median_ms

    assert says in hint("3.6", {"arithmetic": 100, "time": ratio, "not_arithmetic": 1 - ratio / 100}, **evidence)


@pytest.mark.usefixtures("_timed")
def test_arithmetic_is_counted() -> None:
    """Not taken for a hundred: of layers of other sizes it is another."""
    steps = step_of(10, 5), STEPS[1]

    assert hint("3.6", {"arithmetic": 50, "time": 25.0, "not_arithmetic": 0.5}, big=BIG, small=SMALL, steps=steps) == ""
    assert "arithmetic is not" in hint("3.6", RIGHT, big=BIG, small=SMALL, steps=steps)
