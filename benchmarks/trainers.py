"""Measure the cost of a trainer's callback per step, before and after its window, in runs with and without it."""

from __future__ import annotations

import contextlib
import io
import logging
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback  # type: ignore[attr-defined]

from perfnb.integrations import lightning as for_lightning
from perfnb.integrations import transformers as for_transformers
from tests.integrations.trainings import ROWS, classifier, fitted, trained

_RUNS, _PAIRS, _STEPS = 6, 15, 300
_BATCH, _TOKENS = 128, 32
#: The number of steps before a window that never opens, and before a window that opens.
_NEVER, _WINDOW = 10**9, 100
#: The number of steps that are not counted at the start and after a window.
_LEFT_OUT = 20


class _Turns:
    """Two trainings in separate threads that alternate after each step.

    The speed of a machine drifts by tens of percent between runs that take a few seconds, but hardly at all between two
    steps.
    """

    def __init__(self) -> None:
        self._may = (threading.Semaphore(1), threading.Semaphore(0))

    def passed_on(self, me: int) -> None:
        """Let the other training continue, and wait until it has done a step."""
        self._may[not me].release()
        self._may[me].acquire()

    def begun(self, me: int) -> None:
        self._may[me].acquire()

    def ended(self, me: int) -> None:
        self._may[not me].release(_STEPS)


class _Times:
    """Records when each step started and ended."""

    def __init__(self, turns: _Turns | None = None, me: int = 0) -> None:
        super().__init__()
        self._turns, self._me = turns, me
        self._began: int | None = None
        self.ns: list[int] = []

    def next(self, *_: Any, **__: Any) -> None:
        now = time.perf_counter_ns()
        if self._began is not None:
            self.ns.append(now - self._began)
        if self._turns is not None:
            self._turns.passed_on(self._me)
        self._began = time.perf_counter_ns()


class _LightningTimes(_Times, lightning.Callback):
    on_train_batch_start = _Times.next


class _TransformersTimes(_Times, TrainerCallback):
    on_step_begin = _Times.next


class _Perceptron(classifier()):  # type: ignore[misc]
    """A model whose steps take a few milliseconds. In steps of 1 ms, an empty Lightning callback would cost 1 %."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(16, 256)]
        for _ in range(6):
            layers += [nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256)]
        self.net = nn.Sequential(*layers, nn.Linear(256, 4))


class _Texts(Dataset[dict[str, Tensor]]):
    """A dataset of random tokens."""

    def __init__(self, count: int) -> None:
        self._tokens = torch.randint(0, 200, (count, _TOKENS), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"input_ids": self._tokens[place], "labels": self._tokens[place]}


def _gpt() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=200,
            n_positions=_TOKENS,
            n_embd=64,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
            loss_type="ForCausalLM",
        )
    )


def _in_lightning(folder: Path, *callbacks: Any, steps: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    count = _BATCH * steps
    points = TensorDataset(
        torch.randn(count, 16, generator=generator), torch.randint(0, 4, (count,), generator=generator)
    )
    loader = DataLoader(points, batch_size=_BATCH)
    return fitted(folder, *callbacks, steps=steps, module=_Perceptron, loader=loader)


def _in_transformers(folder: Path, *callbacks: Any, steps: int) -> Any:
    return trained(folder, *callbacks, steps=steps, model=_gpt, batches=_Texts(steps * ROWS))


#: For each trainer: its name, the callback, the callback that records the start of each step, and a training.
TRAINERS: tuple[tuple[str, Any, Any, Callable[..., Any]], ...] = (
    ("Lightning", for_lightning.ProfileCallback, _LightningTimes, _in_lightning),
    ("transformers", for_transformers.ProfileCallback, _TransformersTimes, _in_transformers),
)


def run() -> Iterator[str]:
    """Yield two lines per trainer."""
    for trainer in TRAINERS:
        for words, pairs, runs in (
            ("before the window", before_window(*trainer[1:]), "taken in turn, in one thread each"),
            ("after it", after_window(*trainer[1:], _PAIRS), "one after the other"),
        ):
            low, middle, high = statistics.quantiles([one / other for one, other in pairs], n=4)
            more_us = statistics.median((one - other) / 1e3 for one, other in pairs)
            step_ms = statistics.median(other for _, other in pairs) / 1e6
            yield (
                f"trainers: {trainer[0]}: step {words}, with / without the callback: {middle:.4f} "
                f"(median of {len(pairs)} pairs, runs of {_STEPS} steps {runs}; quartiles {low:.4f} to {high:.4f}), "
                f"{more_us:+.0f} us of {step_ms:.2f} ms"
            )


def before_window(callback: Any, times: Any, train: Callable[..., Any], runs: int = _RUNS) -> list[tuple[int, int]]:
    """Return pairs of step times with and without the callback in nanoseconds, from runs that alternate."""
    found: list[tuple[int, int]] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the pools of two threads would wait for each other
    try:
        for place in range(runs):
            found += _in_turn(callback, times, train, first=place % 2)
    finally:
        torch.set_num_threads(threads)
    return found


def _in_turn(callback: Any, times: Any, train: Callable[..., Any], first: int) -> list[tuple[int, int]]:
    turns = _Turns()
    clocks = [times(turns, me) for me in (0, 1)]

    def run(me: int) -> None:
        turns.begun(me)
        try:
            with tempfile.TemporaryDirectory() as folder:
                train(Path(folder), *([callback(at=_NEVER)] if me == first else []), clocks[me], steps=_STEPS)
        finally:
            turns.ended(me)

    with _quiet(), ThreadPoolExecutor(2) as both:
        for done in [both.submit(run, me) for me in (0, 1)]:
            done.result()
    with_it, without = clocks[first].ns[_LEFT_OUT:], clocks[not first].ns[_LEFT_OUT:]
    return list(zip(with_it, without, strict=True))


def after_window(callback: Any, times: Any, train: Callable[..., Any], pairs: int) -> list[tuple[float, float]]:
    """Return median step times with and without the callback in nanoseconds, from pairs of consecutive runs."""
    return [_one_after_the_other(callback, times, train, first=place % 2 == 0) for place in range(pairs)]


def _one_after_the_other(callback: Any, times: Any, train: Callable[..., Any], first: bool) -> tuple[float, float]:
    profiler = callback(at=_WINDOW, steps=5)
    after = _WINDOW + profiler._steps.driver.length + _LEFT_OUT
    found = {}
    for with_it in (first, not first):
        clock = times()
        with tempfile.TemporaryDirectory() as folder, _quiet():
            train(Path(folder), *([profiler] if with_it else []), clock, steps=_STEPS)
        found[with_it] = statistics.median(clock.ns[after:])
    return found[True], found[False]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the messages of the trainers and of the callback in this context."""
    log = logging.getLogger("lightning.pytorch")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the callback warns if there was no profile
            yield
    finally:
        log.setLevel(before)
