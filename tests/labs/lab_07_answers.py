"""Lab 7: what its tests share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from perfnb.labs.exercise import Facts


class Script:
    rate = 1e-2

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.model = self.make_model(self.net)
        self.optimizer = self.make_optimizer()

    def make_model(self, net: Any) -> Any:
        return net

    def make_optimizer(self) -> Any:
        return torch.optim.AdamW(self.net.parameters(), lr=self.rate)

    def predict(self, x: torch.Tensor) -> Any:
        return self.model(x)

    def step(self, batch: Any) -> Any:
        x, y = batch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.predict(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Fused(Script):
    def make_optimizer(self) -> Any:
        return torch.optim.AdamW(self.net.parameters(), lr=self.rate, fused=True)


class FusedAndQuicker(Fused):
    rate = 2e-2


class Bf16(Script):
    kind = torch.bfloat16

    def predict(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=self.kind):
            return self.model(x).float()


class FusedBf16(Bf16, Fused):
    pass


class Idle(Fused):
    def step(self, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.predict(batch[0]), batch[1]).detach()


BATCHES = [
    (torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator))
    for generator in map(torch.Generator().manual_seed, range(4))
]


GIVEN: dict[str, Any] = {"script": Script, "batches": BATCHES}


REPORT: Facts = {"ratio": 0.8, "ratio_ci": [0.75, 0.85], "decision": "accept", "quality": True}
