"""Profile a training step of a small transformer that learns to write Python: ``python -m perfnb.demo``.

The model predicts the next byte of the standard library's source code, so the step is realistic and nothing needs to be
downloaded.
"""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import perfnb

BYTES, WIDTH, HEADS, BLOCKS, LENGTH, BATCH = 256, 128, 4, 4, 128, 16


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return result


class Block(nn.Module):
    """A transformer block: attention and a feed-forward network, each with pre-normalisation and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class ByteGPT(nn.Module):
    """A transformer that predicts the next byte of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTES, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, BYTES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x))
        return result


def windows(text: str, batches: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Cut the text into windows, and return batches of inputs and targets. Each target is the byte after its input."""
    data = torch.tensor(list(text.encode()))
    starts = torch.randint(len(data) - LENGTH - 1, (batches, BATCH))
    index = starts[..., None] + torch.arange(LENGTH + 1)
    return [(window[:, :-1], window[:, 1:]) for window in data[index]]


def main(page: Path = Path("demo.html")) -> None:
    """Profile the model, print its layer table, and write an HTML page."""
    torch.manual_seed(0)
    model = ByteGPT()
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()

    print(f"Profiling a training step of a transformer with {sum(p.numel() for p in model.parameters()):,} parameters.")
    profile = perfnb.profile_step(train_step, windows(inspect.getsource(argparse)), budget_s=15, name="ByteGPT")
    print(f"\n{profile}\n")
    path = profile.to_html(page)
    print(f"To see the report in a browser, open {path.resolve()}")


if __name__ == "__main__":
    main()
