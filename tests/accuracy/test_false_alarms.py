"""A real step against itself, on a machine with whatever else it does: how often is it called different?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import perfnb
from tests.accuracy.judging import Figures

#: Keeps a core busy for three seconds and lets it be for three, again and again.
LOAD = """
import time
while True:
    until = time.time() + 3
    while time.time() < until:
        pass
    time.sleep(3)
"""


def step_of_5_ms() -> Callable[[], torch.Tensor]:
    size = 768
    left, right = torch.randn(size, size), torch.randn(size, size)
    return lambda: left @ right


@contextmanager
def loaded(by: str | None) -> Iterator[None]:
    if by is None:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", by]) as process:
        yield
        process.kill()


def false_alarms(count: int, budget_s: float, load: str | None) -> int:
    step = step_of_5_ms()
    with loaded(load):
        verdicts = [perfnb.ab_test(step, step, budget_s=budget_s).verdict for _ in range(count)]
    print({verdict: verdicts.count(verdict) for verdict in set(verdicts)})
    return sum(verdict in ("faster", "slower") for verdict in verdicts)


@pytest.mark.parametrize("load", [None, LOAD], ids=["no load", "loaded half the time"])
def test_a_step_is_seldom_called_different_from_itself(load: str | None, figure: Figures) -> None:
    """Each is a false alarm once in 20: more than 18 of 200 come by chance once in 400 runs."""
    name = "200 comparisons of a step with itself, " + ("no load" if load is None else "a core loaded half the time")
    figure(f"{name}: called different", false_alarms(200, 1.0, load), at_most=18)
