"""Memory and FLOPs of models of many kinds, to the byte and to the operation as they follow from the shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.known_steps import (
    BATCH,
    INPUTS,
    LAST,
    WHOLE,
    at_end,
    batches,
    bytes_of,
    flops,
    linear,
    mlp,
    profile,
    saved,
    sgd,
    training,
)


@pytest.mark.slow
def test_two_models_with_two_optimizers() -> None:
    """A generator and a discriminator, which sees the batch, what was generated without its graph, and with it."""
    rows = 64
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
    judge = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    adam, momentum = torch.optim.Adam(generator.parameters()), torch.optim.SGD(judge.parameters(), momentum=0.9)
    loss, real, unreal = nn.BCEWithLogitsLoss(), torch.ones(rows, 1), torch.zeros(rows, 1)

    def step(batch: dict[str, Tensor]) -> None:
        fake = generator(torch.randn(rows, 8))
        momentum.zero_grad()
        (loss(judge(batch["x"]), real) + loss(judge(fake.detach()), unreal)).backward()
        momentum.step()
        adam.zero_grad()
        loss(judge(fake), real).backward()
        adam.step()

    p = profile(step, [{"x": torch.randn(rows, 16)}])

    made, judging = 4 * (8 * 32 + 32 + 32 * 16 + 16), 4 * (16 * 32 + 32 + 32 + 1)
    assert at_end(p) == {
        "parameters": made + judging,
        "gradients": made + judging,
        "optimizer_state": 2 * made + 4 * 4 + judging,
        "inputs": 4 * rows * (16 + 1 + 1),  # of the loss too; the noise is gone
    }
    assert saved(p) == {
        "generator": 4 * rows * (32 + 16),
        "generator.0": 0,
        "generator.1": 4 * rows * 32,
        "generator.2": 4 * rows * 16,
        "judge": 3 * 4 * rows * (32 + 1),
        "judge.0": 0,
        "judge.1": 3 * 4 * rows * 32,
        "judge.2": 3 * 4 * rows,
    }
    first, second = linear(rows, 8, 32), linear(rows, 32, 16)
    third, fourth = linear(rows, 16, 32), linear(rows, 32, 1)
    assert flops(p) == {
        "generator": [first + second, first + 2 * second, 0],
        "generator.0": [first, first, 0],
        "generator.2": [second, 2 * second, 0],
        "judge": [3 * (third + fourth), 4 * third + 6 * fourth, 0],
        "judge.0": [3 * third, 4 * third, 0],  # of three inputs one needs a gradient
        "judge.2": [3 * fourth, 6 * fourth, 0],
    }


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
        self.blocks = nn.ModuleList([block, nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))])
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


@pytest.mark.slow
def test_checkpointing_saves_the_blocks_outputs_and_makes_the_rest_again() -> None:
    model = Checkpointed()

    p = profile(training(model, sgd(model)), batches())

    size = 4 * (2 * (16 * 64 + 64 + 64 * 16 + 16) + 16 * 4 + 4)
    assert at_end(p) == {"parameters": size, "gradients": size, "inputs": INPUTS}
    out, kept = 4 * BATCH * 16, saved(p)
    generator = torch.get_rng_state().nbytes  # so that dropout is the same again
    assert kept["model"] == 2 * generator + 2 * out + 4 * BATCH * 4
    assert {layer: value for layer, value in kept.items() if value and layer != "model"} == {
        "model.blocks": 2 * out,
        "model.blocks.0": out,
        "model.blocks.0.2": out,
        "model.blocks.1": out,
        "model.blocks.1.2": out,
        "model.head": 4 * BATCH * 4,
    }
    for block in ("model.blocks.0", "model.blocks.1"):
        assert bytes_of(p, "activations", layer=f"{block}.1", direction="recompute") == 4 * BATCH * 64
        assert bytes_of(p, "temporaries", layer=f"{block}.0", direction="forward") == 4 * BATCH * 64
    one, head = linear(BATCH, 16, 64), linear(BATCH, 16, 4)
    found = flops(p)
    assert found["model"] == [4 * one + head, 7 * one + 2 * head, 2 * one]  # the last layer is not run again
    assert found["model.blocks.0"] == [2 * one, 3 * one, one]
    assert found["model.blocks.1"] == [2 * one, 4 * one, one]
    assert found["model.blocks.1.0"] == [one, 2 * one, one]


@pytest.mark.slow
def test_inference_saves_nothing() -> None:
    model = mlp()

    def step(batch: Tensor) -> None:
        with torch.no_grad():
            model(batch)

    p = profile(step, batches())

    assert at_end(p) == {"parameters": WHOLE, "inputs": INPUTS}
    assert p.memory[["activations", "gradients", "optimizer_state"]].to_numpy().sum() == 0
    assert set(saved(p).values()) == {0}
    assert bytes_of(p, "temporaries") == 4 * BATCH * (32 + 32 + 4)
    base = int(p.memory["total"].iloc[0])
    peaks = {layer: int(size) - base for layer, size in p.layers["peak_bytes"].items()}
    hidden = 4 * BATCH * 32
    assert peaks == {"model": 2 * hidden, "model.0": hidden, "model.1": 2 * hidden, "model.2": hidden + 4 * BATCH * 4}
    first, last = linear(BATCH, 16, 32), linear(BATCH, 32, 4)
    assert flops(p) == {
        "model": [first + last, 0, 0],
        "model.0": [first, 0, 0],
        "model.2": [last, 0, 0],
    }


@pytest.mark.slow
def test_frozen_layers_have_no_gradient_and_no_state() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.01, momentum=0.9)

    p = profile(training(model, optimizer), batches())

    assert at_end(p) == {"parameters": WHOLE, "gradients": LAST, "optimizer_state": LAST, "inputs": INPUTS}
    assert bytes_of(p, "gradients", layer="model.0") == 0
    assert saved(p) == {"model": 4 * BATCH * 36, "model.0": 0, "model.1": 4 * BATCH * 32, "model.2": 4 * BATCH * 4}
    first, last = linear(BATCH, 16, 32), linear(BATCH, 32, 4)
    assert flops(p) == {
        "model": [first + last, last, 0],
        "model.0": [first, 0, 0],
        "model.2": [last, last, 0],  # its input needs no gradient
    }
