"""Define the steps that the benchmarks run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from perfnb.demo import ByteGPT


def gpt() -> Callable[[], None]:
    """Return a step of the demo's transformer, with 38 module calls and ops of about 100 µs."""
    model = ByteGPT()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(256, (16, 128))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    return step


def bert() -> Callable[[], None]:
    """Return a step of a small BERT from transformers, with 4 layers of width 128 and sequences of length 64."""
    from transformers import BertConfig, BertModel  # type: ignore[attr-defined]

    config = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
    model = BertModel(config)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(config.vocab_size, (8, 64))

    def step() -> None:
        optimizer.zero_grad()
        model(tokens).last_hidden_state.pow(2).mean().backward()
        optimizer.step()

    return step


def tiny() -> Callable[[], None]:
    """Return the worst case for layer spans: a step of 300 modules that do almost nothing."""
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(100)]
    model = nn.Sequential(*blocks)
    batch = torch.randn(4, 16)

    def step() -> None:
        model(batch).sum().backward()

    return step


STEPS = {"ByteGPT": gpt, "BERT (small)": bert, "300 tiny modules": tiny}
