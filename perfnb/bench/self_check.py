"""`selfcheck`: how small a difference this machine can detect, and what disturbs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfnb.bench.comparison import ABTest, ab_test
from perfnb.bench.pairs import detectable_in
from perfnb.bench.self_check_view import selfcheck_html, selfcheck_text
from perfnb.draw.shown import Shown
from perfnb.quantities import share
from perfnb.stats.step_times import Outliers


class SelfCheck(Shown):
    """A step compared with itself on this machine. Shows itself in a notebook."""

    def __init__(self, test: ABTest) -> None:
        self._test = test

    @property
    def test(self) -> ABTest:
        """The experiment; its verdict should be ``same``."""
        return self._test

    @property
    def noise_floor(self) -> float:
        """Spread of the ratio of two equal steps: half of all pairs are within it; 0.01 is 1 %."""
        percent = self._test.pairs["ratio"].sub(1).abs()
        return float(percent.median())

    def detectable_in(self, seconds: float) -> float | None:
        """Smallest relative difference that a test this long detects in 9 of 10 runs; ``None`` if unknown."""
        return detectable_in(self._test._figures, seconds)

    @property
    def outliers(self) -> Outliers:
        """Outliers among the steps, by class."""
        return self._test.a.outliers

    def _text(self) -> str:
        return selfcheck_text(self)

    def _line(self) -> str:
        return f"{self._test.verdict}, noise floor {share(self.noise_floor)}"

    def _html(self) -> str:
        return selfcheck_html(self)


def selfcheck(step: Callable[[], Any] | None = None, *, budget_s: float = 10.0) -> SelfCheck:
    """Compare a step with itself, to find out how far comparisons on this machine can be trusted.

    Parameters
    ----------
    step : callable, optional
        By default a training step of a small model, which takes a few milliseconds.
    budget_s : float
        Seconds that the check may take.
    """
    from perfnb.step.given import require_steps

    __tracebackhide__ = True
    chosen = _small_step() if step is None else step
    require_steps({"step": chosen}, None, "")
    return SelfCheck(ab_test(_named(chosen, "a step"), _named(chosen, "itself"), budget_s=budget_s))


def _named(step: Callable[[], Any], name: str) -> Callable[[], Any]:
    def run() -> Any:
        __tracebackhide__ = True
        return step()

    run.__name__ = name
    return run


def _small_step() -> Callable[[], None]:
    """A training step of an MLP."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
        batch, target = torch.randn(256, 256), torch.randint(10, (256,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()

    return train
