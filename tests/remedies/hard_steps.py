"""Training steps that are hard to leave unchanged, and levers that break the rules."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from perfnb.remedies import levers
from perfnb.remedies.lever import Lever
from perfnb.remedies.subject import Subject, find_subject
from perfnb.step.namespace import namespace_of


def pause() -> None:
    """What a step waits for; tests on the fake clock put a wait in its place."""


@dataclass
class Hard:
    """A step, what feeds it, and all that it may change."""

    step: Callable[..., Any]
    models: list[nn.Module]
    loader: Any = None

    def train(self, steps: int) -> list[float]:
        """Return the losses of the next steps, bit by bit."""
        batches = self._batches()
        return [float(self.step(*next(batches))) for _ in range(steps)]

    def _batches(self) -> Iterator[tuple[Any, ...]]:
        while True:
            yield from [()] if self.loader is None else ((batch,) for batch in self.loader)

    def subject(self) -> Subject:
        """Return the step with what it uses."""
        return find_subject(self.step, self.loader, namespace_of(self.step))


def _trained(model: nn.Module, data: DataLoader[Any], opt: torch.optim.Optimizer, loss_fn: Callable[..., Any]) -> Hard:
    def step(batch: tuple[Tensor, Tensor]) -> float:
        x, y = batch
        pause()
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return Hard(step, [model], data)


def _images(classes: int = 4, rows: int = 16) -> DataLoader[Any]:
    data = TensorDataset(torch.randn(rows, 3, 8, 8), torch.randint(0, classes, (rows,)))
    return DataLoader(data, batch_size=4, shuffle=True)


def _vectors(rows: int = 24) -> DataLoader[Any]:
    data = TensorDataset(torch.randn(rows, 16), torch.randint(0, 4, (rows,)))
    return DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))


def batch_norm() -> Hard:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return _trained(model, _images(), opt, nn.CrossEntropyLoss())


class Viewing(nn.Module):
    """Its view needs the channels before height and width in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).view(len(x), -1))


def view() -> Hard:
    model = Viewing()
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    return _trained(model, _images(), opt, nn.CrossEntropyLoss())


def overflow() -> Hard:
    """``log(1 - sigmoid(6))`` is finite in float32; in bfloat16 the sigmoid rounds to 1."""
    model = nn.Linear(16, 1)
    with torch.no_grad():
        model.weight.mul_(1e-3)
        model.bias.fill_(6.5)
    opt = torch.optim.SGD(model.parameters(), lr=1e-6)
    return _trained(model, _vectors(), opt, lambda out, _: -torch.log(1 - torch.sigmoid(out)).mean())


def sparse() -> Hard:
    """Run a layer that is not an `nn.Embedding`, so only its gradient shows that it is sparse."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.head = nn.Parameter(torch.randn(10, 4)), nn.Linear(4, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(nn.functional.embedding(ids, self.rows, sparse=True))

    model = Table()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randint(0, 10, (24,)), torch.randint(0, 4, (24,)))
    return _trained(model, DataLoader(data, batch_size=4), opt, nn.CrossEntropyLoss())


class Counting(nn.Module):
    """Counts its calls in place, and keeps a running mean in a buffer that it binds anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 4)
        self.calls: Tensor
        self.mean: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.inner(x - self.mean) / (1 + 0.01 * self.calls)


def buffers() -> Hard:
    model = Counting()
    opt = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
    return _trained(model, _vectors(), opt, nn.CrossEntropyLoss())


def chance() -> Hard:
    """Dropout, and noise from Python's and NumPy's generators and from a generator that the user made."""
    model, own = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 4)), np.random.default_rng(3)
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)
    loss_fn = nn.CrossEntropyLoss()
    loader = _vectors()

    def step(batch: tuple[Tensor, Tensor]) -> float:
        x, y = batch
        pause()
        x = x + 0.1 * random.random() + 0.1 * float(np.random.rand()) + 0.1 * float(own.random())
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        scheduler.step()
        return loss.item()

    return Hard(step, [model], loader)


class Lambdas(torch.utils.data.Dataset[Tensor]):
    """Holds a function that no other process can be sent."""

    def __init__(self) -> None:
        self.rows, self.change = torch.randn(24, 16), lambda row: row * 2

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Tensor:
        return self.change(self.rows[place])


def not_pickled() -> Hard:
    model = nn.Linear(16, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Tensor) -> float:
        pause()
        opt.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        opt.step()
        return loss.item()

    return Hard(step, [model], DataLoader(Lambdas(), batch_size=4, shuffle=True))


HARD: dict[str, Callable[[], Hard]] = {
    "batch norm": batch_norm,
    "a view that wants contiguous images": view,
    "a loss that overflows in bfloat16": overflow,
    "a sparse gradient": sparse,
    "buffers changed and rebound": buffers,
    "random numbers everywhere": chance,
    "a dataset that cannot be pickled": not_pickled,
}


# Levers that do what none may


Switch = Callable[[], AbstractContextManager[Any]]
Prepare = Callable[[Subject], AbstractContextManager[Switch]]


def lever(name: str, prepared: Prepare, **options: Any) -> Lever:
    """Return a lever that says nothing of itself."""
    return Lever(name, "planted by a test", lambda _: "", prepared, lambda _: [], **options)


def switched(name: str, on: Callable[[Subject], AbstractContextManager[Any]], **options: Any) -> Lever:
    """Return a lever without anything to prepare."""

    @contextmanager
    def prepared(subject: Subject) -> Iterator[Switch]:
        yield lambda: on(subject)

    return lever(name, prepared, **options)


def forward(name: str, change: Callable[[nn.Module], Callable[..., Any]], **options: Any) -> Lever:
    """Return a lever that puts `change(model)` in the place of each model's forward."""

    @contextmanager
    def prepared(subject: Subject) -> Iterator[Switch]:
        fresh = {key: change(model) for key, model in subject.models.items()}

        @contextmanager
        def on() -> Iterator[None]:
            for key, model in subject.models.items():
                vars(model)["forward"] = fresh[key]
            try:
                yield
            finally:
                for model in subject.models.values():
                    vars(model).pop("forward", None)

        yield on

    return lever(name, prepared, **options)


def plant(monkeypatch: pytest.MonkeyPatch, *planted: Lever) -> None:
    """Put levers next to the real ones until the test is over."""
    monkeypatch.setattr(levers, "LEVERS", (*levers.LEVERS, *planted))
