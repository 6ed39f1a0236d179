"""A training step with gradient accumulation, a schedule and clipping, profiled as one step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import perfnb

pytestmark = pytest.mark.usefixtures("nothing_left")

#: What would be wrong to say of an ordinary training step.
FALSE = ("whole loop", "no layers", "incomplete", "in threads", "mistimed", "any of the chosen")


@pytest.mark.slow
def test_gradient_accumulation() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(16, 64), nn.ReLU()), nn.Linear(64, 4))
    data = [(torch.randn(32, 16), torch.randint(4, (32,))) for _ in range(3)]
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

    p = perfnb.profile_step(step, warmup=2, steps=1, traced=1)

    assert p.phases["share"].sum() == pytest.approx(1)
    assert (p.phases["ms"].dropna() >= 0).all()
    assert (p.phases.loc[["forward", "loss", "backward", "optimizer"], "ms"] > 0).all()
    both = p.phases.loc[["forward", "backward"], "ms"].sum()
    assert p.layers["self_ms"].sum() == pytest.approx(both, rel=1e-3)
    assert (p.layers.loc[["model", "model.0.0", "model.1"], ["forward_ms", "backward_ms"]] > 0).all(axis=None)
    assert p.layers.loc["model.1", "calls"] == len(data)
    assert [words for words in FALSE if words in str(p)] == []
    assert not p.findings["bottleneck"].str.contains("memory may grow").any()
    assert [each["class"] for each in p.meta["parts"]["optimizers"]] == ["AdamW"]
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert p.memory["gradients"].max() == weights
    assert p.memory["optimizer_state"].max() == 2 * weights + 4 * len(list(model.parameters()))
