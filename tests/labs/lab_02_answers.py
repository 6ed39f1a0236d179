"""Lab 2: what its tests share."""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn


class Rescale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([(row - row.mean()) / (row.std() + 1e-3) for row in x])


def children_off(layers: pd.DataFrame) -> dict[str, float]:
    own: dict[str, float] = layers["total_ms"].to_dict()
    for name, ms in layers["total_ms"].items():
        outer = str(name).rpartition(".")[0]
        if outer in own:
            own[outer] -= ms
    return own


def all_inside_off(layers: pd.DataFrame) -> dict[str, float]:
    totals = layers["total_ms"]
    return {name: ms - totals[layers.index.str.startswith(f"{name}.")].sum() for name, ms in totals.items()}
