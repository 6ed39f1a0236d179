"""A data set whose rows take their time, as if they were read from a slow disk."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import Dataset

#: Milliseconds to read a row; rows of a batch, and batches of a step.
ROW_MS, ROWS, ACCUMULATED = 2.0, 6, 4


class Slow(Dataset[Any]):
    """Token ids and their class."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        time.sleep(ROW_MS / 1000)
        return {"input_ids": torch.full((32,), place % 100), "labels": torch.tensor(place % 2)}
