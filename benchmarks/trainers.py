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
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

from perfnb.integrations import lightning as for_lightning
from perfnb.integrations import transformers as for_transformers
from tests.integrations.trainings import ROWS, Classifier, fitted, trained

_PAIRS, _STEPS = 15, 300
_BATCH, _TOKENS = 128, 32
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


class _Perceptron(Classifier):
    """Steps of some milliseconds: calling a callback that does nothing costs Lightning 1 % of one millisecond."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(16, 256)]
        for _ in range(6):
            layers += [nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256)]
        self.net = nn.Sequential(*layers, nn.Linear(256, 4))


class _Texts(Dataset[dict[str, Tensor]]):
    """Random tokens."""

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


#: Of each trainer: its name, the callback, what notes when its steps begin, and a training.
TRAINERS: tuple[tuple[str, Any, Any, Callable[..., Any]], ...] = (
    ("Lightning", for_lightning.ProfileCallback, _LightningTimes, _in_lightning),
    ("transformers", for_transformers.ProfileCallback, _TransformersTimes, _in_transformers),
)


def run() -> Iterator[str]:
    """Two lines per trainer."""
    for name, callback, times, train in TRAINERS:
        for words, at in (("before the window", NEVER), ("after it", WINDOW)):
            pairs = medians(callback, times, train, at, _PAIRS)
            low, middle, high = statistics.quantiles([one / other for one, other in pairs], n=4)
            more_us = statistics.median((one - other) / 1e3 for one, other in pairs)
            step_ms = statistics.median(other for _, other in pairs) / 1e6
            yield (
                f"trainers: {name}: median step {words}, with / without the callback: {middle:.4f} "
                f"(median of {_PAIRS} pairs of runs of {_STEPS} steps; quartiles {low:.4f} to {high:.4f}), "
                f"{more_us:+.0f} us of {step_ms:.2f} ms"
            )


def medians(callback: Any, times: Any, train: Callable[..., Any], at: int, pairs: int) -> list[tuple[float, float]]:
    """Median steps, in nanoseconds, of pairs of runs: with the callback, and without it."""
    return [_pair(callback, times, train, at, first=place % 2 == 0) for place in range(pairs)]


def _pair(callback: Any, times: Any, train: Callable[..., Any], at: int, first: bool) -> tuple[float, float]:
    profiler = callback(at=at, steps=5)
    after = WINDOW + profiler._steps.driver.length + _LEFT_OUT if at == WINDOW else _LEFT_OUT
    found = {}
    for with_it in (first, not first):
        clock = times()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")  # the callback's, that there was no profile
            train(Path(folder), *([profiler] if with_it else []), clock, steps=_STEPS)
        found[with_it] = statistics.median(end - begin for begin, end in pairwise(clock.ns[after:]))
    return found[True], found[False]


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
