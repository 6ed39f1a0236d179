"""Small models to serve, the same each time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Convolutions with batch normalisation, and a linear layer that is wide enough to quantise."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Linear(8 * 8 * 8, 32)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.last(torch.relu(self.norm(self.first(x))).flatten(1))
        return scores


def small_cnn() -> tuple[nn.Module, Tensor]:
    """In training mode, as most are after training, with statistics that are not those of a new one."""
    torch.manual_seed(0)
    model = SmallCNN()
    model(torch.randn(16, 3, 8, 8))
    return model, torch.randn(4, 3, 8, 8)


def small_bert() -> tuple[nn.Module, dict[str, Any]]:
    """Return a BertModel with two layers; its inputs in another order than the model's own."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    options = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertModel(BertConfig(vocab_size=100, **options))
    return model, {"attention_mask": torch.ones(2, 8, dtype=torch.long), "input_ids": torch.randint(0, 100, (2, 8))}


def small_gpt2(layers: int = 1, seed: int = 0) -> Any:
    """Return a random GPT-2 that never ends an answer by itself."""
    import pytest

    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    options = {"n_head": 2, "n_embd": 16, "vocab_size": 32, "bos_token_id": 1, "eos_token_id": None}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers, **options)).eval()
