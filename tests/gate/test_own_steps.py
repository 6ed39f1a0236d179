"""Two steps of the demo's transformer, gated by the plugin: counts in `make test`, times in `make accuracy`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from perfnb.demo import BYTES, LENGTH, ByteGPT


def batches(rows: int) -> list[torch.Tensor]:
    return [torch.randint(BYTES, (rows, LENGTH)) for _ in range(2)]


def trains(model: nn.Module) -> Callable[[torch.Tensor], Any]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten()).backward()
        optimizer.step()

    return step


@pytest.mark.slow
def test_a_training_step(perf: Any) -> None:
    perf.step(trains(ByteGPT()), batches(4))


@pytest.mark.slow
def test_an_inference_step(perf: Any) -> None:
    model = ByteGPT().eval()

    def step(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(batch).argmax(-1)

    perf.step(step, batches(8))
