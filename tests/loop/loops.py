"""A small training run, and ways to drive `LoopProfiler` over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from perfnb.loop.driver import LoopProfiler

Batch = tuple[torch.Tensor, torch.Tensor]


class Training:
    """A model, its optimizer and batches, always the same; calling it trains on a batch."""

    def __init__(self, batches: int = 60) -> None:
        made = torch.Generator().manual_seed(7)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.batches = [
            (torch.randn(32, 8, generator=made), torch.randint(4, (32,), generator=made)) for _ in range(batches)
        ]

    def __call__(self, batch: Batch) -> None:
        x, y = batch
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def namespace(self) -> dict[str, Any]:
        """The variables of a loop over it."""
        return {"model": self.model, "optimizer": self.optimizer}

    def weights(self) -> list[torch.Tensor]:
        """Return copies of the parameters."""
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def driven(profiler: LoopProfiler, batches: Iterable[Any], *, waits: bool = True) -> Iterator[Any]:
    """Drive a profiler as a loop's owner does, by its marks alone."""
    source = iter(batches)
    while True:
        if waits:
            profiler.wait()
        try:
            batch = next(source)
        except StopIteration:
            profiler.skip()
            return
        profiler.begin(batch)
        yield batch
        profiler.end()
