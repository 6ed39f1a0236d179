"""Findings of a loop under Hugging Face's Accelerate name the arguments of its ``Accelerator``."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import perfnb

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]


class Slow(Dataset[Tensor]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, place: int) -> Tensor:
        time.sleep(0.005)
        return torch.ones(4)


def test_a_loop_whose_optimizer_an_accelerator_prepared_gets_its_words() -> None:
    from accelerate import Accelerator

    try:
        accelerator = Accelerator(cpu=True)
        model: Any = nn.Linear(4, 4)
        own, batches = torch.optim.AdamW(model.parameters()), DataLoader(Slow(), batch_size=2)
        model, optimizer, loader = accelerator.prepare(model, own, batches)
        loop = perfnb.profiled(loader, at=3, steps=6)
        for batch in loop:
            optimizer.zero_grad()
            accelerator.backward(model(batch).sum())
            optimizer.step()
    finally:
        state: Any = sys.modules["accelerate.state"]
        state.AcceleratorState._reset_state(reset_partial_state=True)
    [profile] = loop.profiles
    advice = profile.findings.set_index("bottleneck")["advice"]["input pipeline"]
    assert advice.endswith("num_workers=N, where the DataLoader for accelerator.prepare is made.")
