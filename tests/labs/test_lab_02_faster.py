"""Lab 2, the layer made faster: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from torch import nn

from tests.labs.judging import an_ab_test, expect, hint
from tests.labs.lab_02_answers import Rescale
from tests.labs.planted import plant


def at_once(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-3)


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(1, keepdim=True)


def remembering() -> Callable[[torch.Tensor], torch.Tensor]:
    known: dict[Any, torch.Tensor] = {}

    def layer(x: torch.Tensor) -> torch.Tensor:
        if x.shape not in known:
            known[x.shape] = at_once(x).detach()
        return known[x.shape] + 0 * x

    return layer


def remembering_with_gradient() -> Callable[[torch.Tensor], torch.Tensor]:
    """Right the first time that it sees a shape, and its gradient always."""
    known: dict[Any, torch.Tensor] = {}

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = at_once(x)
        return y + (known.setdefault(x.shape, y.detach()) - y).detach()

    return layer


def in_place(x: torch.Tensor) -> torch.Tensor:
    return x.sub_(x.mean(1, keepdim=True)).div_(x.std(1, keepdim=True) + 1e-3)


@pytest.fixture
def _a_fifth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer that was written anew takes a fifth of the time."""
    plant(monkeypatch, 10.0, 2.0)


@pytest.mark.usefixtures("_a_fifth")
def test_a_layer_rewritten() -> None:
    assert hint("2.7", at_once, slow=Rescale()) == ""


class WithParameter(nn.Module):
    """Right, with a parameter that the original does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return at_once(x) * self.one


class WithSettings:
    """Right, with an attribute named as a module's method."""

    parameters: ClassVar = {"eps": 1e-3}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return at_once(x)


@pytest.mark.usefixtures("_a_fifth")
@pytest.mark.parametrize("answer", [WithParameter(), WithSettings()])
def test_a_layer_may_have_parameters_of_its_own(answer: Any) -> None:
    assert hint("2.7", answer, slow=Rescale()) == ""


@pytest.mark.parametrize(("new_ms", "says"), [(4.9, ""), (5.1, "take 51 % of the original time; get below 50 %")])
def test_a_layer_that_is_not_faster(monkeypatch: pytest.MonkeyPatch, new_ms: float, says: str) -> None:
    plant(monkeypatch, 10.0, new_ms)
    expect("2.7", says, Rescale(), slow=Rescale())


@pytest.mark.slow
@pytest.mark.usefixtures("_a_fifth")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda x: x, r"means are off by up to [\d.]+, their standard deviations off by"),
        (centred, r"means are right, their standard deviations off by up to [\d.e+]+ %"),
        (lambda x: at_once(x) + 0.25, r"difference is 0\.25: .* off by up to 0\.25, their standard deviations right"),
        (lambda x: (x - x.mean()) / (x.std() + 1e-3), "means are off"),
        (lambda x: centred(x) / (x.std(1, keepdim=True, correction=0) + 1e-3), r"deviations off by up to 1\.6 %"),
        (lambda x: centred(x) / x.std(1, keepdim=True), r"deviations off by up to 0\.0\d+ %"),
        (lambda x: at_once(x).flip(1), "right, .* right. Is every value in its place"),
        (lambda x: at_once(x) / 0, "infinities"),
        (lambda x: at_once(x)[:1], "returns shape 1 x 32 on an input of 5 x 32"),
        (lambda x: list(at_once(x)), "returns a list"),
        (lambda x: at_once(x).detach(), "gradient"),
        (lambda x: centred(x) / (x.std(1, keepdim=True).detach() + 1e-3), "gradient"),
        (remembering(), "gradient"),
        (remembering_with_gradient(), "computed from this input"),
        (in_place, "changes its input"),
        (lambda x: None, "nothing yet"),
        (lambda x: x.mean(7), "IndexError"),
        (3, "function itself"),
    ],
)
def test_a_layer_that_is_not_the_same(answer: Any, says: str) -> None:
    assert re.search(says, hint("2.7", answer, slow=Rescale()))


def a_test(**facts: Any) -> Any:
    return an_ab_test(**{"ratio": 0.5, "ratio_ci": (0.48, 0.53), "verdict": "faster"} | facts)


MADE_UP = SimpleNamespace(
    ratio=0.5, ratio_ci=(0.48, 0.53), verdict="faster", check="", pairs=pd.DataFrame({"a_ms": [4.0], "b_ms": [2.0]})
)


@pytest.mark.parametrize(
    ("speedup", "test", "says"),
    [
        (2.0, a_test(), ""),
        (0.5, a_test(), "inverse"),
        (4.0, a_test(), "twice"),
        (200.0, a_test(), "percent"),
        (1.5, a_test(), "what the question asks"),
        (2.0, a_test(check=None), "check=1e-3"),
        (2.0, a_test(check="they differ by 3 %."), "return different results"),
        (0.5, a_test(ratio=2.0, ratio_ci=(1.9, 2.1), verdict="slower"), "is slower"),
        (1.0, a_test(ratio=1.0, ratio_ci=(0.9, 1.1), verdict="inconclusive"), "no difference"),
        (2.0, a_test(ratio_ci=None), "too few pairs"),
        (2.0, 0.5, "Pass the test"),
        (2.0, MADE_UP, "Pass the test"),
        (2.0, a_test(a_ms=(1.5, 9.0), b_ms=(0.75, 9.0)), "whole training steps"),  # forward only
        (2.0, a_test(b_ms=(0.5, 9.0)), "8 times as fast"),  # another layer, or the layers alone
    ],
)
def test_a_speed_up_verified(monkeypatch: pytest.MonkeyPatch, speedup: float, test: Any, says: str) -> None:
    plant(monkeypatch, 4.0, 2.0)
    expect("2.8", says, speedup, test=test, steps=[lambda: None, lambda: None])
