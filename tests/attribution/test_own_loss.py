"""A model computes its own loss, by operators whose names do not mention a loss: a note gives the place of its time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import perfnb
from perfnb.profile.profile import Profile
from tests.attribution.test_attribution import training_step
from tests.recordings import ByHand
from tests.written_traces import Written


def told(profile: object) -> str:
    """Return the models that the note names; empty without the note."""
    text = " ".join(str(profile).split())
    if "The backward pass starts from a result that " not in text:
        return ""
    assert "A loss that the model computes itself counts as forward" in text
    return text.partition("The backward pass starts from a result that ")[2].partition(" computed in forward")[0]


def step_of(made_by: str, loss_op: str = "aten::mean", second: bool = False) -> ByHand:
    """Return a model with one layer; backward starts from an op of the layer, of the model, or of neither."""
    hand = ByHand()
    model = hand.layer("model")
    layer = hand.layer("model.layer", model)
    hand.step(0, 1000).call(model, 100, 400).call(layer, 110, 200).op("aten::mm", 120, 180, 1)
    begin = {"layer": 190, "model": 300, "neither": 410}[made_by]
    hand.op(loss_op, begin, begin + 5, 2).node("MeanBackward0", 500, 550, 2).node("MmBackward0", 550, 600, 1)
    hand.node("torch::autograd::AccumulateGrad", 600, 620, -1)
    if second:
        hand.op("aten::mean", 700, 720, 3).node("MeanBackward0", 730, 750, 3).node("MmBackward0", 750, 800, 1)
    return hand


FORWARD_ONLY = ByHand().step(0, 100)
FORWARD_ONLY.call(FORWARD_ONLY.layer("model"), 10, 90).op("aten::mm", 20, 80, 1)


@pytest.mark.parametrize(
    ("hand", "model"),
    [
        (step_of("layer"), "model"),
        (step_of("model"), "model"),
        (step_of("neither"), ""),
        (step_of("model", "aten::mse_loss"), ""),  # its op tells the loss
        (step_of("model").op("aten::mse_loss", 250, 260, 5), ""),  # a sum of two losses
        (step_of("model", second=True), ""),
        (training_step(2), ""),
        (FORWARD_ONLY, ""),
    ],
)
def test_the_model_in_whose_call_the_loss_was_made_is_named(hand: ByHand, model: str) -> None:
    assert told(Profile(hand.recording())) == model


def test_a_loaded_trace_tells_it_too(tmp_path: Path) -> None:
    trace = Written().step(1, 0, 1000)
    trace.module("Own_0", 100, 400).module("Linear_0", 110, 200).op("aten::mm", 120, 180, 1).op(
        "aten::mean", 300, 310, 2
    )
    trace.node("MeanBackward0", 500, 550, 2).node("MmBackward0", 550, 600, 1)

    assert told(perfnb.load(trace.write(tmp_path / "trace.json"))) == "Own_0"


@pytest.mark.slow
def test_a_profiled_step_tells_it() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return ((super().forward(x) - x) ** 2).mean()

    model, x = Own(8, 8), torch.randn(4, 8)
    p = perfnb.profile_step(lambda: model(x).backward(), warmup=1, steps=1, traced=2, flops=False, memory=False)
    assert told(p) == "model"
