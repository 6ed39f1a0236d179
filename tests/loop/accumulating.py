"""A loop that accumulates gradients over batches that take a known time to make."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

#: Batches of a step and their rows; milliseconds to make a batch, and to work on one.
BATCHES, ROWS, MAKING_MS, WORK_MS = 4, 5, 10, 5


class Slow(Dataset[Tensor]):
    """Rows that take their time."""

    def __init__(self, steps: int) -> None:
        self._rows = steps * BATCHES * ROWS

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, place: int) -> Tensor:
        time.sleep(MAKING_MS / ROWS / 1000)
        return torch.full((8,), float(place % 7))


class Accumulating:
    """A model, its optimizer, and a loader whose batches are made in this process."""

    def __init__(self, steps: int = 60) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

        class Descent(torch.optim.SGD):  # of a class of its own, whose steps a script's profiler can see
            def step(self, closure: Any = None) -> Any:
                return super().step(closure)

        self.optimizer = Descent(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(Slow(steps), batch_size=ROWS)

    def loop(self, batches: Iterable[Any]) -> None:
        """Train on all batches; the optimizer steps after every fourth."""
        for place, batch in enumerate(batches, start=1):
            self.work(batch)
            if place % BATCHES == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()

    def work(self, batch: Tensor) -> None:
        """Use one batch."""
        self.model(batch).square().mean().backward()
        time.sleep(WORK_MS / 1000)

    @property
    def namespace(self) -> dict[str, Any]:
        """The variables of the loop."""
        return {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}
