"""What a callback costs each step of a trainer before its window, and after it: pairs of runs with and without it."""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning
from transformers import TrainerCallback

from perfnb.integrations import lightning as for_lightning
from perfnb.integrations import transformers as for_transformers
from tests.integrations.trainings import fitted, trained

_PAIRS, _STEPS, _NEVER, _WINDOW = 15, 300, 10**9, 100
#: Steps that are not counted at the start, and after a window.
_LEFT_OUT = 20


class _LightningTimes(lightning.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.ns: list[int] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.ns.append(time.perf_counter_ns())


class _TransformersTimes(TrainerCallback):
    def __init__(self) -> None:
        self.ns: list[int] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.ns.append(time.perf_counter_ns())


def run() -> Iterator[str]:
    """Two lines per trainer."""
    for name, callback, times, train in (
        ("Lightning", for_lightning.ProfileCallback, _LightningTimes, fitted),
        ("transformers", for_transformers.ProfileCallback, _TransformersTimes, trained),
    ):
        for words, at in (("before the window", _NEVER), ("after it", _WINDOW)):
            ratios = [_ratio(callback, times, train, at, first=place % 2 == 0) for place in range(_PAIRS)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            yield (
                f"trainers: {name}: median step {words}, with / without the callback: {middle:.4f} "
                f"(median of {_PAIRS} pairs of runs of {_STEPS} steps; quartiles {low:.4f} to {high:.4f})"
            )


def _ratio(callback: Any, times: Any, train: Callable[..., Any], at: int, first: bool) -> float:
    profiler = callback(at=at, steps=5)
    after = _WINDOW + profiler._steps.driver.length + _LEFT_OUT if at == _WINDOW else _LEFT_OUT
    found = {}
    for with_it in (first, not first):
        clock = times()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the callback's, that there was no profile
            train(Path(folder), *([profiler] if with_it else []), clock, steps=_STEPS)
        found[with_it] = statistics.median(end - begin for begin, end in pairwise(clock.ns[after:]))
    return found[True] / found[False]
