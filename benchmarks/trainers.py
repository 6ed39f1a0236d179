"""What a callback costs each step of a trainer before its window, and after it: pairs of runs with and without it."""

from __future__ import annotations

import contextlib
import io
import logging
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

_PAIRS, _STEPS = 15, 300
#: Steps before a window that never comes, and before one that does.
NEVER, WINDOW = 10**9, 100
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


#: Of each trainer: its name, the callback, what notes when its steps begin, and a training.
TRAINERS: tuple[tuple[str, Any, Any, Callable[..., Any]], ...] = (
    ("Lightning", for_lightning.ProfileCallback, _LightningTimes, fitted),
    ("transformers", for_transformers.ProfileCallback, _TransformersTimes, trained),
)


def run() -> Iterator[str]:
    """Two lines per trainer."""
    for name, callback, times, train in TRAINERS:
        for words, at in (("before the window", NEVER), ("after it", WINDOW)):
            low, middle, high = statistics.quantiles(ratios(callback, times, train, at, _PAIRS), n=4)
            yield (
                f"trainers: {name}: median step {words}, with / without the callback: {middle:.4f} "
                f"(median of {_PAIRS} pairs of runs of {_STEPS} steps; quartiles {low:.4f} to {high:.4f})"
            )


def ratios(callback: Any, times: Any, train: Callable[..., Any], at: int, pairs: int) -> list[float]:
    """Median step of a run with the callback to that of a run without it, for each pair of runs."""
    return [_ratio(callback, times, train, at, first=place % 2 == 0) for place in range(pairs)]


def _ratio(callback: Any, times: Any, train: Callable[..., Any], at: int, first: bool) -> float:
    profiler = callback(at=at, steps=5)
    after = WINDOW + profiler._steps.driver.length + _LEFT_OUT if at == WINDOW else _LEFT_OUT
    found = {}
    for with_it in (first, not first):
        clock = times()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")  # the callback's, that there was no profile
            train(Path(folder), *([profiler] if with_it else []), clock, steps=_STEPS)
        found[with_it] = statistics.median(end - begin for begin, end in pairwise(clock.ns[after:]))
    return found[True] / found[False]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the trainers say of themselves."""
    log = logging.getLogger("lightning.pytorch")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        log.setLevel(before)
