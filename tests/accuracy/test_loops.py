"""What profiling a running loop costs outside its windows, and whether its figures are those of `profile_step`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from tests.accuracy.judging import Figures

pytestmark = pytest.mark.usefixtures("nothing_left")

#: A step of 10 ms, in microseconds, and how many steps are counted at a time.
_STEP_US, _STEPS = 10_000, 100_000


def per_step_us(batches: Iterable[Any]) -> float:
    """Return microseconds per step of an empty loop."""
    begin = time.perf_counter()
    for _ in batches:
        pass
    return (time.perf_counter() - begin) / _STEPS * 1e6


def test_a_step_outside_the_windows_costs_a_counter(figure: Figures) -> None:
    costs = []
    for _ in range(7):
        plain = per_step_us(range(_STEPS))
        costs.append(per_step_us(perfnb.profiled(range(_STEPS), at=10**8)) - plain)
    figure("a step of a profiled loop outside its windows, of a 10 ms step", min(costs) / _STEP_US, at_most=0.001)


def test_phases_are_those_of_profile_step(figure: Figures) -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches = [torch.randn(128, 512) for _ in range(60)]

    def step(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def shares(profile: perfnb.Profile) -> tuple[dict[str, float], dict[str, float]]:
        return (
            profile.phases["share"].fillna(0.0).to_dict(),
            profile.layers["share"].fillna(0.0).to_dict(),
        )

    pairs = []
    for _ in range(5):
        loop = perfnb.profiled(batches, at=10, traced=10, memory=False, flops=False)
        for batch in loop:
            step(batch)
        alone = perfnb.profile_step(step, batches, warmup=10, steps=20, traced=10, memory=False, flops=False)
        pairs.append((shares(loop.profiles[0]), shares(alone)))
    for place, what in enumerate(("phase", "layer")):
        names = pairs[0][0][place]
        apart = [
            abs(statistics.median(one[place][name] - other[place][name] for one, other in pairs)) for name in names
        ]
        figure(f"share of a {what} in a loop and in profile_step, apart", max(apart), at_most=0.05)
