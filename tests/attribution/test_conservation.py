"""Every table adds up to the traced step; tests/accuracy measures what is left unattributed, and compares with the
clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from tests.step.models import SmallGPT, SmallResNet, next_word_loss, training_step
from tests.step.timed import traced_ms

pytestmark = pytest.mark.usefixtures("nothing_left")


def resnet() -> Callable[[], None]:
    model = SmallResNet()
    labels = torch.randint(0, 10, (8,))
    return training_step(model, torch.randn(8, 3, 24, 24), lambda out: nn.functional.cross_entropy(out, labels))


def gpt() -> Callable[[], None]:
    tokens = torch.randint(0, 500, (4, 32))
    return training_step(SmallGPT(), tokens, next_word_loss(tokens))


def huggingface(kind: str) -> Callable[[], None]:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    tokens = torch.randint(0, 300, (4, 32))
    if kind == "bert":
        model: Any = transformers.BertModel(transformers.BertConfig(vocab_size=300, **small))
        inputs = {"input_ids": tokens}
    elif kind == "gpt2":
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=300, n_embd=64, n_layer=2, n_head=4, n_positions=64)
        )
        inputs = {"input_ids": tokens, "labels": tokens}
    else:
        model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **small))
        inputs = {"pixel_values": torch.randn(4, 3, 32, 32)}
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        out = model(**inputs)
        loss = out.loss if kind == "gpt2" else out.last_hidden_state.square().mean()
        loss.backward()
        optimizer.step()

    return step


STEPS = {
    "resnet": resnet,
    "gpt": gpt,
    "BertModel": lambda: huggingface("bert"),
    "GPT2LMHeadModel": lambda: huggingface("gpt2"),
    "ViTModel": lambda: huggingface("vit"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [name if name == "gpt" else pytest.param(name, marks=pytest.mark.deep) for name in STEPS]
)
def test_the_tables_add_up(kind: str) -> None:
    p = perfnb.profile_step(STEPS[kind](), warmup=1, steps=1, traced=2)

    layers, phases = p.layers, p.phases
    assert phases["ms"].sum() == pytest.approx(traced_ms(p))
    assert phases["share"].sum() == pytest.approx(1)
    both = phases.loc[["forward", "backward"], "ms"].sum()
    assert layers["self_ms"].sum() == pytest.approx(both, rel=1e-4)
    layers = layers[~layers.index.str.startswith("(")]
    columns = ["forward_ms", "backward_ms", "recompute_ms"]
    assert layers["total_ms"].to_numpy(float) == pytest.approx(layers[columns].sum(axis=1).to_numpy(float))
    for name, row in layers.iterrows():
        below = layers[layers.index.str.startswith(f"{name}.") & (layers["depth"] == row["depth"] + 1)]
        assert row["total_ms"] == pytest.approx(row["self_ms"] + below["total_ms"].sum(), rel=1e-6), name


@pytest.mark.slow
def test_parameters_and_classes_of_the_layers_are_those_of_the_modules() -> None:
    model = SmallGPT()
    tokens = torch.randint(0, 500, (4, 32))
    step = training_step(model, tokens, next_word_loss(tokens))

    layers = perfnb.profile_step(step, warmup=0, steps=1, traced=1).layers

    for path, module in model.named_modules():
        row = layers.loc[f"model.{path}" if path else "model"]
        parameters = list(module.parameters())
        assert row["parameters"] == sum(parameter.numel() for parameter in parameters)
        assert row["parameter_bytes"] == sum(parameter.nbytes for parameter in parameters)
        assert row["module"] == type(module).__name__
        assert row["depth"] == (path.count(".") + 1 if path else 0)
