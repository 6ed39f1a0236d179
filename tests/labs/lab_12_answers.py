"""Lab 12: what its tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import perfnb
from perfnb.bench.quality import Loss
from perfnb.labs.made_night import Archive
from perfnb.results import ABTest, Journal
from tests.labs import solved
from tests.labs.judging import an_ab_test

cell_with = partial(solved.cell_with, lab=12)


def _cells() -> dict[str, Any]:
    """The names of the notebook's script and of its cures."""
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "np": np, "CARDS": 2, "__name__": __name__}
    exec(cell_with("class Nightly:").partition("archive = Archive(400)")[0], names)
    exec(cell_with("class Once("), names)
    return names


NAMES = _cells()
Nightly: Any = NAMES["Nightly"]
Once: Any = NAMES["Once"]
Single: Any = NAMES["Single"]
OnePass: Any = NAMES["OnePass"]
Cured: Any = NAMES["Cured"]
Reader: Any = NAMES["Reader"]


def a_profile(make: Any = Nightly, **options: Any) -> perfnb.Profile:
    """A short profile of a script, on a small archive."""
    night = make(Archive(4))
    options = {"model": night.reader, "steps": 3, "warmup": 1, "traced": 1, "memory": False, "flops": False} | options
    return perfnb.profile_step(night.step, stacks=False, **options)


def a_test(
    change: str = "a cure", faster: float = 0.5, check: str | None = "", pairs: int = 12, seed: int = 0
) -> ABTest:
    """A test with planted times."""
    a_ms = np.random.default_rng(seed).uniform(9.9, 10.1, pairs)
    test = an_ab_test(a_ms=a_ms.tolist(), b_ms=(faster * a_ms[::-1]).tolist(), check=check)
    losses = () if check is None else (Loss("difference", 1.0 if check else 0.0, limit=1e-4),)
    return replace(test, change=change, quality=replace(test.quality, losses=losses))


HYPOTHESES = ("a third of it is gone", "half the bytes, half the time", "one pass of two less", "half of the boxes go")


def a_journal(path: Any, tests: Sequence[ABTest] = (), **options: Any) -> Journal:
    """A journal with these tests, each with its hypothesis."""
    journal = perfnb.journal(path)
    for place, test in enumerate(tests):
        journal.add(test, **{"hypothesis": HYPOTHESES[place % 4], "name": "nightly"} | options)
    return journal
