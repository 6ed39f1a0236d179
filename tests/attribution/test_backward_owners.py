"""Each backward op is counted in the layer whose forward made it: as many `mm` as the mathematics asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import perfnb
from perfnb.attribution.backward_links import owning_blocks
from perfnb.attribution.blocks import Kind, host_blocks
from perfnb.profile.profile import Profile
from tests.recordings import ByHand
from tests.step.models import training_step

pytestmark = pytest.mark.usefixtures("nothing_left")


def profile_of(step: Callable[[], None]) -> perfnb.Profile:
    return perfnb.profile_step(step, warmup=1, steps=1, traced=2)


def calls(p: perfnb.Profile, op: str, direction: str = "backward") -> dict[str, float]:
    """Return how often an op ran in each layer, in one direction."""
    rows = p.layer_ops[(p.layer_ops["op"] == op) & (p.layer_ops["direction"] == direction)]
    return dict(zip(rows["layer"], rows["calls"], strict=True))


class ManyWays(nn.Module):
    """What has misled other tools: in-place ops, also on views, a layer used twice, a branch without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.first, self.twice, self.flat = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.relu = nn.ReLU(inplace=True)
        self.side = nn.Linear(16, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens, beside = batch
        x = self.relu(self.first(self.words(tokens)))  # 3-D: the linear layer returns a view
        x = self.twice(torch.tanh(self.twice(x)))
        x = self.relu(self.flat(x.mean(1)))
        return self.out(x + self.side(beside))


@pytest.mark.slow
def test_backward_matrix_products_per_layer_are_what_the_mathematics_says() -> None:
    model = ManyWays()
    step = training_step(model, (torch.randint(0, 50, (4, 5)), torch.randn(4, 16)))

    p = profile_of(step)

    # A linear layer's backward is one product for its weight and one for its input, if that needs a gradient.
    assert calls(p, "aten::mm") == {
        "model.first": 2,
        "model.twice": 4,
        "model.flat": 2,
        "model.side": 1,
        "model.out": 2,
    }
    assert calls(p, "aten::addmm", "forward") == {
        "model.first": 1,
        "model.twice": 2,
        "model.flat": 1,
        "model.side": 1,
        "model.out": 1,
    }
    assert calls(p, "aten::embedding_dense_backward") == {"model.words": 1}
    assert calls(p, "aten::threshold_backward") == {"model.relu": 2}
    assert calls(p, "aten::tanh_backward") == {"model": 1}
    assert dict(p.layers["calls"].dropna()) == {
        "model": 1,
        "model.words": 1,
        "model.first": 1,
        "model.twice": 2,
        "model.flat": 1,
        "model.relu": 2,
        "model.side": 1,
        "model.out": 1,
    }
    assert "(unattributed)" not in p.layers.index


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 16)
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return self.after(checkpoint(self.inner, x, use_reentrant=self.reentrant))


@pytest.mark.slow
def test_checkpointed_layers_have_one_call_their_own_backward_and_the_recomputation() -> None:
    model = Checkpointed(reentrant=True)

    p = profile_of(training_step(model, torch.randn(4, 16)))

    assert calls(p, "aten::mm") == {"model.before": 1, "model.inner.0": 2, "model.inner.2": 2, "model.after": 2}
    assert calls(p, "aten::addmm", "recompute") == {"model.inner.0": 1, "model.inner.2": 1}
    assert calls(p, "aten::addmm", "forward").keys() == calls(p, "aten::mm").keys()
    layers = p.layers.loc[[name for name in p.layers.index if not name.startswith("(")]]
    assert (layers["calls"] == 1).all()
    again = set(layers.index[layers["recompute_ms"] > 0])
    assert again == {"model", "model.inner", *(f"model.inner.{place}" for place in range(4))}
    assert layers.loc["model.inner", "recompute_ms"] >= layers.loc["model.inner.2", "recompute_ms"]
    assert layers.loc["model", "recompute_ms"] == pytest.approx(layers.loc["model.inner", "recompute_ms"])
    assert "checkpointing" in str(p)


@pytest.mark.slow
def test_checkpoints_inside_a_checkpoint_are_attributed() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.inner = nn.Linear(16, 16), Checkpointed(reentrant=False)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, self.before(x), use_reentrant=False)

    model = Nested()
    p = profile_of(training_step(model, torch.randn(4, 16)))

    names = [f"model.inner.{name}" for name in ("before", "inner.0", "inner.2", "after")]
    assert calls(p, "aten::mm") == {"model.before": 1, **dict.fromkeys(names, 2)}
    assert p.layers.loc["model.inner", "calls"] == 1
    assert p.layers.loc["model.before", "recompute_ms"] == 0


@pytest.mark.slow
def test_hooks_leave_a_layers_backward_where_it_was() -> None:
    """What a hook runs stands before the node's own op, where torch looks for the sequence number."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].register_full_backward_hook(lambda module, into, out: None)
    model[2].weight.register_hook(lambda gradient: gradient * 2)

    def step() -> None:
        out = model(torch.ones(4, 8))
        out.register_hook(lambda gradient: gradient * 2)
        out.sum().backward()

    p = profile_of(step)

    assert calls(p, "aten::mm") == {"model.0": 1, "model.2": 2}
    assert list(p.layers.loc[["model.0", "model.2"], "backward_flops"]) == [512, 1024]


def test_a_node_made_by_another_node_belongs_to_the_forward_op_of_that_one() -> None:
    """A double backward, by hand: the op `b` ran in the node of `a`, and `b` has a node of its own."""
    hand = ByHand()
    model = hand.layer("model")
    hand.step(0, 1000)
    hand.call(model, 10, 100).op("a", 20, 30, 1)
    hand.node("ABackward", 200, 300, 1).op("b", 210, 250, 2)
    hand.node("BBackward", 400, 450, 2)
    p = Profile(hand.recording())
    assert p.layers.loc["model", "backward_ms"] == pytest.approx(0.1 + 0.05)


def test_blocks_that_are_no_nodes_have_no_owner() -> None:
    events = ByHand().step(0, 1000).op("a", 20, 30, 1).node("ABackward", 200, 300, 1).recording().events
    host = host_blocks(events)

    assert host.blocks["kind"].tolist() == [Kind.STEP, Kind.ENGINE, Kind.NODE]
    assert owning_blocks(events, host).tolist() == [-1, -1, 0]
