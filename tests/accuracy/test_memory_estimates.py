"""`estimate_memory` against the peak of a real step, by kind of numbers and layers. The table in docs/memory.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfnb.memory.estimate.estimate import estimate_memory
from tests.accuracy.judging import Figures
from tests.step.allocated import measured_peak, state_of

pytestmark = pytest.mark.usefixtures("nothing_left")


def peak_of_training(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, loss: Callable[..., Tensor]
) -> int:
    """Return the measured peak of the second training step, in bytes."""

    def step() -> None:
        optimizer.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        optimizer.step()

    step()
    return measured_peak(step, [*model.parameters(), *model.buffers(), *state_of(optimizer), *batch])


class Tokens(nn.Module):
    """A transformer's encoder layer, and the mean over its positions."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.block(x)).mean(1)
        return y


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(32, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layer(x)[0][:, -1])
        return y


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def cnn() -> nn.Module:
    first = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64, 10))


#: Models, and the shape of a sample.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (mlp, (256,)),
    "convolution": (cnn, (3, 32, 32)),
    "transformer": (Tokens, (64, 256)),
    "GRU": (lambda: Recurrent("GRU"), (50, 32)),
    "LSTM": (lambda: Recurrent("LSTM"), (50, 32)),
}
#: How far estimate / measured may be from 1, by what is left out of it.
EXACT, SCRATCH, LSTM = (0.98, 1.02), (0.9, 1.02), (0.93, 1.02)


@pytest.mark.parametrize(
    ("kind", "dtype", "limits"),
    [
        *((kind, torch.float32, EXACT) for kind in ("linear", "convolution", "transformer", "GRU")),
        ("LSTM", torch.float32, LSTM),
        *((kind, torch.bfloat16, EXACT) for kind in ("linear", "convolution")),
        ("transformer", torch.bfloat16, SCRATCH),
    ],
)
def test_estimates_are_the_measured_peak(
    kind: str, dtype: torch.dtype, limits: tuple[float, float], figure: Figures
) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[kind]
    for batch_size in (16, 64):
        batch = torch.randn(batch_size, *shape).to(dtype), torch.randint(10, (batch_size,))
        model = make().to(dtype)
        estimate = estimate_memory(model, batch, torch.optim.AdamW, loss=F.cross_entropy)
        measured = peak_of_training(model, torch.optim.AdamW(model.parameters()), batch, F.cross_entropy)
        name = f"estimate_memory on the CPU: {str(dtype).removeprefix('torch.')}, {kind}, batch of {batch_size}"
        figure(f"{name}: estimate / measured peak", estimate.peak_bytes / measured, within=limits)
