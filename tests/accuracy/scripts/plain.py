"""A plain loop that accumulates gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.accuracy.scripts.data import ACCUMULATED, ROWS, Slow


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    """Model, optimizer and loader."""
    torch.manual_seed(0)
    layers = [nn.Embedding(100, 128), nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 2)]
    model = nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters()), DataLoader(Slow(), batch_size=ROWS)


def work(model: nn.Module, batch: Any) -> None:
    """Use one batch."""
    scores = model(batch["input_ids"]).mean(1)
    (nn.functional.cross_entropy(scores, batch["labels"]) / ACCUMULATED).backward()


def main(steps: int, wrapped: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> None:
    """Train for so many steps."""
    model, optimizer, loader = parts()
    for place, batch in enumerate(wrapped(loader), start=1):
        work(model, batch)
        if place % ACCUMULATED == 0:
            optimizer.step()
            optimizer.zero_grad()
        if place == steps * ACCUMULATED:
            return


if __name__ == "__main__":
    main(80)
