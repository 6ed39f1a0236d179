"""Steps with a planted problem, and the same steps without the problem."""

from __future__ import annotations

import gc
import io
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Planted:
    """A step with a planted problem.

    If `wall` is true, the saving is measured in wall time, because the step waits. Otherwise, it is measured in the
    CPU time of the process, which is hardly affected by other work on the machine.
    """

    bottleneck: str
    step: Callable[..., Any]
    without: Callable[..., Any]
    batches: Iterable[Any] | None = None
    without_batches: Iterable[Any] | None = None
    wall: bool = False
    options: dict[str, Any] = field(default_factory=dict)


class Sleeping(Dataset[torch.Tensor]):
    """A dataset that takes 30 ms to create a batch of four."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, place: int) -> torch.Tensor:
        if place % 4 == 0:
            time.sleep(0.03)
        return torch.zeros(64)


def loader(workers: int) -> Planted:
    model = nn.Linear(64, 64)

    def step(batch: torch.Tensor) -> None:
        model(batch).sum().backward()

    batches = DataLoader(Sleeping(), batch_size=4, num_workers=workers)
    return Planted("input pipeline", step, step, batches, [torch.zeros(4, 64)], True, {"warmup": 4, "steps": 30})


def tiny_layers() -> Planted:
    deep = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(150)])
    one, x = nn.Linear(16, 16, bias=False), torch.randn(8, 16)
    return Planted("dispatch overhead", lambda: deep(x).sum().backward(), lambda: one(x).sum().backward())


class Terminal(io.StringIO):
    """A terminal that takes 2 ms to print a line."""

    def write(self, text: str) -> int:
        until = time.process_time() + 1e-3
        while time.process_time() < until:
            pass
        return len(text)


def printing() -> Planted:
    model, x, terminal = nn.Sequential(nn.Linear(256, 256), nn.ReLU()), torch.randn(64, 256), Terminal()

    def step(loud: bool = True) -> None:
        loss = model(x).square().mean()
        loss.backward()
        if loud:
            print(loss.item(), file=terminal)

    return Planted("synchronisation", step, lambda: step(False))


def loop_optimizer(fused: bool = False) -> Planted:
    def parameters() -> list[nn.Parameter]:
        made = [nn.Parameter(torch.randn(4, 3)) for _ in range(2000)]
        for parameter in made:
            parameter.grad = torch.ones_like(parameter)
        return made

    loop = torch.optim.SGD(parameters(), lr=1e-6, foreach=False)
    at_once = torch.optim.SGD(parameters(), lr=1e-6, fused=True)
    return Planted("optimizer", lambda: loop.step(), lambda: at_once.step())


class Attention(nn.Module):
    """Self-attention in a single op or in several ops."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.project = fused, nn.Linear(64, 3 * 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        q, k, v = (part.contiguous() for part in heads)
        if self.fused:
            return nn.functional.scaled_dot_product_attention(q, k, v)
        return torch.softmax(q @ k.transpose(-2, -1) / 4, dim=-1) @ v


def attention() -> Planted:
    apart, fused, x = Attention(False), Attention(True), torch.randn(4, 512, 64)
    fused.load_state_dict(apart.state_dict())

    def step(model: nn.Module) -> None:
        with torch.no_grad():
            model(x)

    return Planted("attention unfused", lambda: step(apart), lambda: step(fused), options={"flops": True})


def collecting() -> Planted:
    model, x, held, count = nn.Linear(64, 64), torch.randn(16, 64), [[place] for place in range(100_000)], [0]

    def step(collect: bool = True) -> None:
        count[0] += 1
        model(x).sum().backward()
        if collect and count[0] % 5 == 0:
            gc.collect()
            held[0] = []

    return Planted("garbage collection", step, lambda: step(False), options={"warmup": 5, "steps": 50})


def saved_share(planted: Planted, rounds: int = 9, steps: int = 5) -> float:
    """Return the share of the step that is saved without the problem, using the medians of alternating measurements."""
    clock = time.perf_counter if planted.wall else time.process_time
    pair = [(planted.step, planted.batches), (planted.without, planted.without_batches)]
    sources = [None if batches is None else _endless(batches) for _, batches in pair]
    times: list[list[float]] = [[], []]
    for turn in range(rounds + 1):
        for place, (step, _) in enumerate(pair):
            begin = clock()
            for _ in range(steps):
                step() if sources[place] is None else step(next(sources[place]))
            if turn:
                times[place].append(clock() - begin)
    slow, fast = (sorted(series)[len(series) // 2] for series in times)
    return 1 - fast / slow


def _endless(batches: Iterable[Any]) -> Any:
    while True:
        yield from batches
