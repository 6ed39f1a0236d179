"""Steps whose bytes and operations can all be computed from the shapes, and their profiles."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import perfnb
from perfnb.recording.schema import CATEGORIES
from perfnb.step.memory import everything

FLOPS = ["forward_flops", "backward_flops", "recompute_flops"]
BATCH = 8
#: The bytes of the parameters of `mlp`, layer by layer, and of a batch.
FIRST, LAST = 4 * (16 * 32 + 32), 4 * (32 * 4 + 4)
WHOLE, INPUTS = FIRST + LAST, 4 * BATCH * 16


def mlp(middle: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), middle or nn.ReLU(), nn.Linear(32, 4))


def linear(rows: int, inputs: int, outputs: int) -> int:
    """Return a linear layer's forward FLOPs. Backward takes as many for the weights, and as many for the input."""
    return 2 * rows * inputs * outputs


def profile(
    step: Callable[..., object], batches: Iterable[Any] | None = None, *, all_seen: bool = True
) -> perfnb.Profile:
    """Of a step that leaves what it found: at its end, as much was alive as all tensors take that are alive now."""
    gc.collect()  # because objects left by other tests are not part of the step
    p = perfnb.profile_step(step, batches, warmup=1, steps=1, traced=1)
    gc.collect()
    alive = sum({(block.device, block.address): block.bytes for block in everything()}.values())
    assert not all_seen or p.memory["total"].iloc[-1] == alive
    return p


def batches() -> list[Tensor]:
    return [torch.randn(BATCH, 16)]


def at_end(p: perfnb.Profile) -> dict[str, int]:
    """Return the bytes by category at the end of the step, without ``other`` and without zeros."""
    memory = p.memory
    assert (memory[list(CATEGORIES)].sum(axis=1) == memory["total"]).all()
    return {name: int(size) for name, size in memory.iloc[-1][list(CATEGORIES[:-1])].items() if size}


def flops(p: perfnb.Profile) -> dict[str, list[int]]:
    """Return the forward, backward and recomputation FLOPs of each layer that has any, after checking their sum."""
    roots = p.layers[p.layers["depth"] == 0]
    assert roots[FLOPS].sum().sum() == p.ops["flops"].sum()
    rows = {str(layer): [int(value) for value in row] for layer, row in p.layers[FLOPS].fillna(0).iterrows()}
    return {layer: row for layer, row in rows.items() if any(row)}


def saved(p: perfnb.Profile) -> dict[str, int]:
    column = p.layers["activation_bytes"].dropna()
    return {str(layer): int(size) for layer, size in column.items()}


def bytes_of(p: perfnb.Profile, category: str, **columns: str) -> int:
    """Return the total size of the step's allocations in a category, optionally restricted by other columns."""
    table = p.allocations
    table = table[(table["category"] == category) & (table["start_ns"] >= 0).fillna(False)]
    for name, value in columns.items():
        table = table[table[name] == value]
    return int(table["bytes"].sum())


def training(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)
