"""Lab 2: what its tests share."""

from __future__ import annotations

import torch
from torch import nn


class Rescale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([(row - row.mean()) / (row.std() + 1e-3) for row in x])
