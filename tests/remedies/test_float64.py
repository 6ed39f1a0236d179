"""The yardstick: the same step in float64, with the same random numbers, and what is nothing but rounding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from perfnb.bench.values import DIFFERENT, NOISE, SAME, judge_values
from perfnb.remedies.dtypes import in_float64
from perfnb.remedies.lever import Lever, prepared
from perfnb.remedies.levers import by_name
from perfnb.remedies.subject import Subject, find_subject
from perfnb.remedies.values import errors_of, measure_yardstick
from perfnb.step.namespace import namespace_of
from tests.remedies.hard_steps import forward


def training(model: nn.Module, make: Callable[[], Tensor]) -> Subject:
    """Return a step that trains a model on numbers that it makes anew."""
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        opt.zero_grad()
        model(make()).abs().square().mean().backward()
        opt.step()

    step()
    return find_subject(step, None, namespace_of(step))


def verdict(subject: Subject, lever: Lever) -> str:
    yardstick = measure_yardstick(subject)
    assert yardstick.exact
    with prepared(lever, subject, 0.0) as one:
        return judge_values(errors_of(subject, one.switch, yardstick)).verdict


GENERATOR = torch.Generator()
SCALED = forward("scaled", lambda model: lambda *args, f=model.forward: f(*args) * 1.001)

DRAWS: dict[str, Callable[[], Tensor]] = {
    "randn": lambda: torch.randn(64, 16),
    "rand": lambda: torch.rand(64, 16),
    "rand_like": lambda: torch.rand_like(torch.ones(64, 16)),
    "normal_": lambda: torch.empty(64, 16).normal_(),
    "uniform_ of a part": lambda: torch.zeros(64, 32)[:, ::2].uniform_(),
    "bernoulli": lambda: torch.bernoulli(torch.full((64, 16), 0.3)),
    "dropout": lambda: nn.functional.dropout(torch.ones(64, 16), 0.3),
    "normal": lambda: torch.normal(torch.zeros(64, 16), torch.ones(64, 16)),
    "in float32, as the user says": lambda: torch.randn(64, 16, dtype=torch.float32),
    "in float64, as the user says": lambda: torch.randn(64, 16, dtype=torch.float64).float(),
    "a generator": lambda: torch.randn(64, 16, generator=GENERATOR),
    "whole numbers": lambda: torch.randint(0, 5, (64, 16)).to(torch.get_default_dtype()),
}


@pytest.mark.parametrize(
    ("draw", "dtype"),
    [
        (lambda: torch.rand(8), torch.float64),
        (lambda: torch.rand(8, dtype=torch.float32), torch.float32),
        (lambda: torch.rand_like(torch.ones(8, dtype=torch.float64), dtype=torch.float32), torch.float32),
        (lambda: torch.empty(8, dtype=torch.float64).uniform_(), torch.float64),
    ],
)
def test_draws_are_those_of_float32_in_the_dtype_asked_for(draw: Callable[[], Tensor], dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    expected = torch.rand(8)
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    subject = find_subject(lambda: net(x).sum().backward(), None, {"net": net})
    torch.manual_seed(3)
    with in_float64(subject):
        drawn = draw()

    assert drawn.dtype == dtype
    assert drawn.float().tolist() == expected.tolist()


@pytest.mark.parametrize("draw", DRAWS)
def test_random_numbers_are_the_same_in_float64(draw: str) -> None:
    subject = training(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.Linear(16, 4)), DRAWS[draw])
    yardstick = measure_yardstick(subject)
    assert yardstick.exact
    assert yardstick.random
    assert max(errors_of(subject, nullcontext, yardstick).own.values()) < 1e-5
    assert verdict(subject, SCALED) == DIFFERENT


def test_complex_parameters_are_compared_too(recwarn: pytest.WarningsRecorder) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn, self.linear = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64)), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).to(self.turn.dtype) @ self.turn

    x = torch.randn(8, 4)
    subject = training(Turned(), lambda: x)
    assert verdict(subject, by_name()["gc_freeze"]) == SAME
    assert verdict(subject, SCALED) == DIFFERENT
    assert not recwarn


def test_a_gradient_that_is_nothing_but_rounding_condemns_no_lever() -> None:
    """A batch norm takes away the bias before it, whose gradient is therefore zero."""
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(64, 16)
    subject = training(model, lambda: x)

    def in_another_order(model: nn.Module) -> Callable[[Tensor], Tensor]:
        own = model.forward
        return lambda x: own(x.flip(0)).flip(0)

    assert verdict(subject, forward("flipped", in_another_order)) in (SAME, NOISE)
    assert verdict(subject, SCALED) == DIFFERENT
