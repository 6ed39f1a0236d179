"""Lab 4: what its tests share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def stepping(model: nn.Module, rows: int, width: int) -> Callable[[], torch.Tensor]:
    x, adam = torch.randn(rows, width), torch.optim.Adam(model.parameters())

    def step() -> torch.Tensor:
        adam.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        adam.step()
        return loss

    return step


outputs: list[torch.Tensor] = []
