"""Training steps as the examples of transformers, Lightning and accelerate write them, profiled as steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import perfnb

pytestmark = pytest.mark.usefixtures("nothing_left")

#: What would be wrong to say of an ordinary training step.
FALSE = ("whole loop", "no layers", "incomplete", "in threads", "mistimed", "any of the chosen")


def profiled(step: Callable[..., Any], batches: Any = None, **options: Any) -> perfnb.Profile:
    """Return a profile as short as can be, and what holds of that of any training step."""
    p = perfnb.profile_step(step, batches, **{"warmup": 2, "steps": 1, "traced": 1} | options)
    phases, layers, text = p.phases, p.layers, str(p)
    assert phases["share"].sum() == pytest.approx(1)
    assert (phases["ms"].dropna() >= 0).all()
    assert (phases.loc[["forward", "backward", "optimizer"], "ms"] > 0).all()
    both = phases.loc[["forward", "backward"], "ms"].sum()
    assert layers["self_ms"].sum() == pytest.approx(both, rel=1e-3)
    assert [words for words in FALSE if words in text] == []
    assert not p.findings["bottleneck"].str.contains("memory may grow").any()
    assert [each["class"] for each in p.meta["parts"]["optimizers"]]
    return p


def trained(p: perfnb.Profile, *layers: str) -> bool:
    """Return whether these layers are there, and have a forward and a backward."""
    return bool((p.layers.loc[list(layers), ["forward_ms", "backward_ms"]] > 0).all(axis=None))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU())
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(32, 16), torch.randint(4, (32,))) for _ in range(count)]


@pytest.mark.slow
def test_gradient_accumulation() -> None:
    model, data = Net(), batches()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)

    def step() -> None:
        for x, y in data:
            loss = F.cross_entropy(model(x), y) / len(data)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    p = profiled(step)

    assert trained(p, "model", "model.body.0", "model.head")
    assert p.layers.loc["model.head", "calls"] == len(data)
    assert p.phases.loc["loss", "ms"] > 0
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert p.memory["gradients"].max() == weights
    assert p.memory["optimizer_state"].max() == 2 * weights + 4 * len(list(model.parameters()))


@pytest.mark.deep
def test_a_loop_of_accelerate() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerate = pytest.importorskip("accelerate")
    data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randint(4, (96,)))
    plain = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer, loader, scheduler = accelerator.prepare(
            plain,
            sgd := torch.optim.SGD(plain.parameters(), lr=0.1),
            torch.utils.data.DataLoader(data, batch_size=32),
            torch.optim.lr_scheduler.StepLR(sgd, 10),
        )

    def step(batch: Any) -> None:
        inputs, targets = batch
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    p = profiled(step, loader)

    assert trained(p, "model", "model.body.0", "model.head")
    assert p.phases.loc["loss", "ms"] > 0
    estimate = perfnb.estimate_memory(step=step, batch=loader)
    assert (estimate.batch_size, estimate.model) == (32, "Net")
    assert estimate.gradients == estimate.parameters
    accelerator.free_memory()
