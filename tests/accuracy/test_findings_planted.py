"""Bottlenecks planted into real steps: each is found, and its bound holds what removing it saves.

Shares of the step are compared: a machine that others use too stretches a step and its parts alike, and what is saved
is measured in the process's own time where it is no waiting.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import nn

import perfnb
from tests.accuracy.judging import Figures
from tests.planted_steps import (
    Planted,
    attention,
    collecting,
    loader,
    loop_optimizer,
    printing,
    saved_share,
    tiny_layers,
)

PLANTED: dict[str, Callable[[], Planted]] = {
    "a loader that sleeps": lambda: loader(0),
    "a loader that sleeps, two workers": lambda: loader(2),
    "150 tiny layers": tiny_layers,
    "a print per step": printing,
    "a loop optimizer over 2,000 parameters": loop_optimizer,
    "attention in separate ops": attention,
    "a garbage collection every fifth step": collecting,
}
#: A bound by what is saved. It is the most that removing the cause could save, so it may be larger but hardly smaller.
BAND = (0.8, 1.5)


def bound_and_saved(planted: Planted) -> tuple[int, float, float]:
    """Return the rank of what was planted among the findings, its bound, and what removing it saves: shares of a
    step.
    """
    options = {"warmup": 3, "steps": 20, "memory": False, "flops": False} | planted.options
    table = perfnb.profile_step(planted.step, planted.batches, **options).findings
    if planted.bottleneck not in set(table["bottleneck"]):
        return len(table), 0.0, saved_share(planted)
    rank = table["bottleneck"].tolist().index(planted.bottleneck)
    return rank, float(table["bound_share"].iloc[rank]), saved_share(planted)


@pytest.mark.parametrize("name", PLANTED)
def test_bounds_hold_what_is_saved(name: str, figure: Figures) -> None:
    results = [bound_and_saved(PLANTED[name]()) for _ in range(3)]

    print(name, results)
    rank, bound, saved = sorted(results, key=lambda result: result[1] / result[2])[1]
    figure(f"planted: {name}: rank among the findings", rank + 1, at_most=2)
    figure(f"planted: {name}: bound / actual saving", bound / saved, within=BAND)


def test_too_many_threads_are_found_with_what_fewer_save(figure: Figures) -> None:
    model, x = nn.Sequential(*[nn.Linear(128, 128) for _ in range(10)]), torch.randn(128, 128)
    torch.set_num_threads(64)
    p = perfnb.profile_step(lambda: model(x).sum().backward(), memory=False, flops=False)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    right = perfnb.time_step(lambda: model(x).sum().backward(), budget_s=5)

    first = p.findings.iloc[0]
    found = first["bottleneck"] == "threads and cores"
    figure("planted: 64 threads: first among the findings (1 = yes)", found, at_least=1)
    ratio = float(first["bound_ms"] / (p.timing.median_ms - right.median_ms))
    figure("planted: 64 threads: bound / actual saving", ratio, within=BAND)
