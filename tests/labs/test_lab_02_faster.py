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

from perfnb.labs.lab_02 import ROUNDS, SHAPES
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import an_ab_test, expect, hint, said_of
from tests.labs.lab_02_answers import Rescale
from tests.labs.planted import plant


def at_once(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-3)


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(1, keepdim=True)


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


def test_a_layer_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    given = plant(monkeypatch, 10.0, 2.0)
    facts = exercise_of("2.7").measure(at_once, slow=Rescale())

    assert said_of("2.7", facts) == ""
    assert [case["shape"] for case in facts["cases"]] == [*map(list, SHAPES), list(SHAPES[-1])]
    assert [[x.shape for x, _ in rounds] for rounds in given] == [[SHAPES[-1]] * ROUNDS]


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


@pytest.mark.usefixtures("_a_fifth")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (centred, r"means are right, their standard deviations off by up to [\d.e+]+ %"),
        (lambda x: at_once(x) + 0.25, r"difference is 0\.25: .* off by up to 0\.25, their standard deviations right"),
        (lambda x: centred(x) / (x.std(1, keepdim=True, correction=0) + 1e-3), r"deviations off by up to 1\.6 %"),
        (lambda x: at_once(x).flip(1), "right, .* right. Is every value in its place"),
        (lambda x: at_once(x)[:1], "returns shape 1 x 32 on an input of 5 x 32"),
        (lambda x: at_once(x).detach(), "gradient"),
        (remembering_with_gradient(), "computed from this input"),
        (in_place, "changes its input"),
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
        (2.0, MADE_UP, "Pass the test"),
        (2.0, a_test(a_ms=(1.5, 9.0), b_ms=(0.75, 9.0)), "whole training steps"),  # forward only
        (2.0, a_test(b_ms=(0.5, 9.0)), "8 times as fast"),  # another layer, or the layers alone
    ],
)
def test_a_speed_up_verified(monkeypatch: pytest.MonkeyPatch, speedup: float, test: Any, says: str) -> None:
    plant(monkeypatch, 4.0, 2.0)
    expect("2.8", says, speedup, test=test, steps=[lambda: None, lambda: None])
