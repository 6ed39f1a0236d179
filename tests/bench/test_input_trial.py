"""Blocks of a trial, with a loader that prepares batches ahead by plan."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from perfnb.bench.input_figures import KINDS
from perfnb.bench.input_trial import InputTrial

pytestmark = pytest.mark.usefixtures("nothing_left", "clock")


class Ahead:
    """Batches of which one is made at a time, each in `pace_ms`, and up to `depth` lie prepared."""

    def __init__(self, pace_ms: float, depth: int) -> None:
        self._pace_s, self._depth = pace_ms / 1e3, depth
        self._ready = time.perf_counter()
        self._taken: list[float] = []

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Tensor:
        room = self._taken[-self._depth] if len(self._taken) >= self._depth else 0.0
        self._ready = max(self._ready, room) + self._pace_s
        time.sleep(max(0.0, self._ready - time.perf_counter()))
        self._taken.append(time.perf_counter())
        return torch.ones(2, 4)


class Slow(nn.Linear):
    """A layer that takes a while."""

    def __init__(self, ms: float) -> None:
        super().__init__(4, 1)
        self.ms = ms

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.ms / 1e3)
        return super().forward(x)


def medians(loader: Ahead, model: nn.Module, kinds: list[str], steps: int, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    with InputTrial(lambda x: model(x).sum().backward(), loader, [model], {}) as trial:
        trial.learn()
        trial.find_pace(time.perf_counter() + 0.3)
        for _ in range(rounds):
            for kind in kinds:
                times[kind].append(trial.block(kind, steps))
    return {kind: statistics.median(values) for kind, values in times.items()}


def test_what_lies_prepared_is_no_merit_of_the_loader() -> None:
    # Each block of the model leaves 8 batches prepared: more than the block after it takes.
    times = medians(Ahead(20, 8), Slow(60), ["model", "loader", "model", "iteration"], 4, 3)

    assert times["loader"] == pytest.approx(20, rel=0.01)
    assert times["iteration"] == pytest.approx(20, rel=0.01)


def test_a_loader_that_prefetches_hides_the_model_also_in_blocks_of_one_step() -> None:
    times = medians(Ahead(40, 2), Slow(30), ["together", "rest"], 1, 7)

    assert times["together"] == pytest.approx(40, rel=0.01)  # one after the other they take 70
    assert times["rest"] < 30


def test_each_kind_of_block_runs_what_it_says() -> None:
    model, taken, called = Slow(0), [0], [0]

    def batches() -> list[Tensor]:
        taken[0] += 1
        return [torch.ones(2, 4)]

    def step(x: Tensor) -> None:
        called[0] += 1
        model(x)

    with InputTrial(step, batches, [model], {}) as trial:
        trial.learn()
        seen = {}
        for kind in KINDS:
            before = taken[0], called[0]
            trial.block(kind, 3)
            seen[kind] = taken[0] - before[0], called[0] - before[1]
    assert seen == {"together": (3, 3), "loader": (3, 3), "model": (0, 3), "rest": (0, 3), "iteration": (3, 0)}
    assert trial.conditions.step == called[0]


class Told:
    """Batches of a loader that tells the number of its workers."""

    def __init__(self, workers: Any) -> None:
        self.num_workers = workers

    def __iter__(self) -> Iterator[Tensor]:
        return iter([torch.ones(2, 4)])


def loading(workers: int) -> DataLoader[Tensor]:
    """Return a loader whose workers never start. torch warns where they are more than the machine has cores."""
    loader: DataLoader[Tensor] = DataLoader([torch.ones(4)])  # type: ignore[arg-type]
    loader.num_workers = workers
    return loader


def through_a_function(loader: DataLoader[Tensor]) -> Callable[[], Iterator[Tensor]]:
    return lambda: iter(loader)


@pytest.mark.parametrize(
    ("batches", "workers"),
    [
        (Told(3), 3),
        (Told(True), 0),  # a setting of the same name
        (Told("3"), 0),
        (Told(None), 0),
        (Told(2.5), 0),
        ([torch.ones(2, 4)], 0),
        (loading(0), 0),
        (loading(2), 2),
        ((loading(1), loading(4), loading(2)), 4),
        (through_a_function(loading(2)), 2),
    ],
)
def test_workers_are_those_that_a_loader_tells_of_itself(batches: Any, workers: int) -> None:
    model = Slow(0)

    assert InputTrial(model, batches, [model], {}).workers == workers


def endless() -> Iterator[Tensor]:
    while True:
        yield torch.ones(2, 4)


@pytest.mark.parametrize(
    ("batches", "parallel"),
    [
        (lambda: [torch.ones(2, 4)], False),
        (lambda: (torch.ones(2, 4),), False),
        (lambda: loading(0), False),
        (lambda: Told(1), True),
        (endless, True),  # its effects are unknown
    ],
)
def test_lists_and_loaders_without_workers_load_nothing_while_the_model_runs(
    batches: Callable[[], Any], parallel: bool
) -> None:
    model = Slow(0)

    with InputTrial(model, batches(), [model], {}) as trial:
        trial.learn()
        assert trial.parallel == parallel
