"""Find out how small a difference this machine can detect, and what disturbs it, by comparing a step with itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfnb.bench.paired_times import PairedTimes
from perfnb.bench.pairs import time_pairs
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.stats.step_times import Outliers
from perfnb.system.view import resolution_document


class Resolution(PairedTimes, Documented):
    """A comparison of a step with itself, whose verdict should be ``same``. Notebooks display it."""

    @property
    def noise_floor(self) -> float:
        """How much the ratio of two equal steps varies: half of all pairs differ by at most this. 0.01 means 1 %."""
        return float(self.pairs["ratio"].sub(1).abs().median())

    @property
    def outliers(self) -> Outliers:
        """Outliers among the steps, by class."""
        return self.a.outliers

    def _document(self) -> Document:
        return resolution_document(self)


def find_resolution(step: Callable[[], Any] | None, budget_s: float) -> Resolution:
    """Compare a step with itself.

    The default is a training step of a small model, which takes a few milliseconds.
    """
    __tracebackhide__ = True
    chosen = _small_step() if step is None else step
    return Resolution(**vars(time_pairs(chosen, chosen, None, ("a step", "itself"), budget_s=budget_s)))


def _small_step() -> Callable[[], None]:
    """Return a training step for an MLP."""
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
