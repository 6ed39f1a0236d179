"""A trainer's step is the same by its callback, by what `perfnb run` sees of it, and by its wrapped loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import perfnb
from perfnb.loop.driver import LoopProfiler
from perfnb.loop.script_steps import ScriptSteps
from tests.fake_clock import FakeClock
from tests.integrations.trainings import (
    ROWS,
    Sentences,
    classifier,
    fitted,
    for_lightning,
    for_transformers,
    points,
    trained,
)

pytestmark = pytest.mark.usefixtures("nothing_left")
BATCHES, MAKING_MS, STEPS = 4, 8, 20
WINDOW: dict[str, Any] = {"at": 6, "steps": 8, "traced": 1, "memory": False, "flops": False}
#: What a trainer gets: callbacks, and what wraps its loader.
Train = Callable[[Path, tuple[Any, ...], Callable[[Any], Any]], None]


class Sleepy:
    """A data set whose rows take their time."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, place: int) -> Any:
        import time

        time.sleep(MAKING_MS / ROWS / 1000)
        return self._data[place]


def descent() -> type[torch.optim.Optimizer]:
    """Return a class of its own, whose steps a script's profiler can see even if torch's were used before."""

    class Descent(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    return Descent


def in_lightning(folder: Path, callbacks: tuple[Any, ...], wrapped: Callable[[Any], Any]) -> None:
    class Model(classifier()):  # type: ignore[misc]
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return descent()(self.parameters(), lr=0.01)  # type: ignore[call-arg]

    loader = DataLoader(Sleepy(points(STEPS * BATCHES)), batch_size=ROWS)  # type: ignore[arg-type]
    fitted(folder, *callbacks, accumulate=BATCHES, module=Model, loader=wrapped(loader))


def in_transformers(folder: Path, callbacks: tuple[Any, ...], wrapped: Callable[[Any], Any]) -> None:
    from transformers import Trainer

    class Wrapping(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return wrapped(super().get_train_dataloader())

        def create_optimizer(self, *args: Any) -> Any:
            self.optimizer = descent()(self.model.parameters(), lr=0.01)  # type: ignore[call-arg]
            return self.optimizer

    data = Sleepy(Sentences(STEPS * BATCHES * ROWS))
    trained(folder, *callbacks, steps=STEPS, accumulate=BATCHES, trainer=Wrapping, batches=data)


@pytest.mark.parametrize(
    ("train", "callback"),
    [(in_lightning, for_lightning), pytest.param(in_transformers, for_transformers, marks=pytest.mark.slow)],
)
def test_every_way_sees_the_same_step(train: Train, callback: Any, clock: FakeClock, tmp_path: Path) -> None:
    profiler = callback(**WINDOW)
    train(tmp_path, (profiler,), lambda loader: loader)

    loops: list[Any] = []
    train(tmp_path, (), lambda loader: loops.append(perfnb.profiled(loader, **WINDOW)) or loops[-1])  # type: ignore[func-returns-value]

    drivers: list[LoopProfiler] = []

    def start(loader: Any) -> LoopProfiler:
        drivers.append(LoopProfiler(**WINDOW, loader=loader))
        return drivers[-1]

    with ScriptSteps(start).installed():
        train(tmp_path, (), lambda loader: loader)
    drivers[0].close()

    for way, profiles in (
        ("callback", profiler.profiles),
        ("profiled", loops[0].profiles),
        ("run", drivers[0].profiles),
    ):
        [profile] = profiles
        steps = profile.steps[profile.steps["pass"] == "timed"]
        assert steps["data_ms"].median() == pytest.approx(BATCHES * MAKING_MS, rel=0.02), way
        assert steps["wall_ms"].median() == pytest.approx(BATCHES * MAKING_MS, rel=0.05), way
        assert set(steps["samples"]) == {BATCHES * ROWS}, way
        named = {"trainer": train.__name__.removeprefix("in_")} if way == "callback" else {}
        assert profile.meta["loop"] == {"step": 6, "batches": BATCHES, **named}, way
        assert profile.findings.iloc[0]["bottleneck"] == "input pipeline", way
        assert profile.findings.iloc[0]["bound_ms"] == pytest.approx(BATCHES * MAKING_MS, rel=0.02), way
