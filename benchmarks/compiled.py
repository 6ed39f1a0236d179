"""Compare a step compiled for profiling with the same step compiled without perfnb, before and after a profile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import cast

import torch
from torch import nn

import perfnb
from perfnb.demo import ByteGPT

_PAIRS = 60


def run() -> Iterator[str]:
    """Yield two lines with the ratio of the paired steps, before the first profile and after it."""
    tokens = torch.randint(256, (8, 64))
    with perfnb.compile_for_profiling():
        traced = _step(_own(), tokens)
        traced()
    plain = _step(_own(), tokens)
    plain()
    yield f"compiled: timed step, compiled for profiling / without, before a profile: {_ratio(traced, plain)}"
    perfnb.profile_step(traced, steps=3, traced=1, memory=False, flops=False, stacks=False)
    yield f"compiled: timed step, compiled for profiling / without, after a profile: {_ratio(traced, plain)}"


def _own() -> nn.Module:
    """Return a compiled model with its own code. Otherwise torch would reuse code compiled for another model."""
    forward = ByteGPT.forward
    copied = FunctionType(forward.__code__.replace(), forward.__globals__, "forward")
    kind = type("ByteGPT", (ByteGPT,), {"forward": copied})
    return cast(nn.Module, torch.compile(kind()))


def _step(model: nn.Module, tokens: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

    return step


def _ratio(traced: Callable[[], None], plain: Callable[[], None]) -> str:
    """Return the median ratio of alternating steps, and its quartiles."""
    ratios = []
    for pair in range(_PAIRS + 5):
        first, second = (traced, plain) if pair % 2 else (plain, traced)
        times = {}
        for step in (first, second):
            begin = time.perf_counter()
            step()
            times[step] = time.perf_counter() - begin
        ratios.append(times[traced] / times[plain])
    low, middle, high = statistics.quantiles(ratios[5:], n=4)
    return f"{middle:.3f} (quartiles {low:.3f} to {high:.3f}, {_PAIRS} pairs)"
