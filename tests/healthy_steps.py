"""Steps without problems, as users would write them: inference and training of small and medium models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

Step = Callable[..., Any]


def models() -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """Yield ten models by name, each with a batch."""
    for width in (64, 256, 768):
        layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
        yield f"mlp {width}", nn.Sequential(*layers), torch.randn(128, width)
    for channels in (8, 32):
        convolutions = [
            *(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        ]
        yield f"cnn {channels}", nn.Sequential(*convolutions, nn.Linear(channels, 10)), torch.randn(16, 3, 32, 32)
    for width, length in ((64, 32), (128, 64), (256, 32)):
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
        body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        yield f"transformer {width}", nn.Sequential(body, nn.Linear(width, 10)), torch.randn(8, length, width)
    yield "lstm", Last(nn.LSTM(32, 64, batch_first=True)), torch.randn(16, 20, 32)
    yield "residual", Residual(nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU())), torch.randn(64, 128)


class Last(nn.Module):
    """A module that returns the last output of a recurrent layer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0][:, -1]


class Residual(nn.Module):
    """A residual module, which adds its input to the output of its inner layers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def inference(model: nn.Module) -> Step:
    """Return a step that computes and returns the model's output."""
    model = model.eval()

    def step(batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model(batch)

    return step


def training(model: nn.Module) -> Step:
    """Return a training step that reads its loss once, like most training steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(batch: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
