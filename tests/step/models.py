"""Small models with the structures of large ones, and the training steps that run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class Residual(nn.Module):
    """Two convolutions with batch norm and a way around them, with in-place ReLUs as in ResNet."""

    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        out = channels * stride
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Conv2d(channels, out, 1, stride, bias=False) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += around
        return self.relu(y)


class SmallResNet(nn.Module):
    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, 1, 1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(Residual(channels), Residual(channels, 2), Residual(2 * channels, 2))
        self.head = nn.Linear(4 * channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Block(nn.Module):
    """A layer of a GPT: attention and a feed-forward part, each after a norm and inside a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.ln2(x))


class SmallGPT(nn.Module):
    """A GPT whose head shares its weight with the token embedding."""

    def __init__(self, words: int = 500, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def training_step(model: nn.Module, batch: Any, loss: Callable[[Any], Tensor] | None = None) -> Callable[[], None]:
    """Return a whole training step of `model` on one batch; the loss is the mean square of the output unless given."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss_of = loss or (lambda output: output.square().mean())

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(batch)).backward()
        optimizer.step()

    return step


def next_word_loss(tokens: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda logits: cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def three_linears(middle: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), middle or nn.ReLU(), nn.Linear(8, 8))


#: The passes of ``warmup=1, steps=1, traced=2``, step by step.
EVERY_PASS = ["warmup", "timed", "lead_in", "traced", "traced", "lead_in", "counted", "counted"]
