"""FLOPs by layer and direction: by hand, and right where torch's own figures by module are wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from perfnb.attribution.arithmetic import main_dtype, special_arithmetic
from tests.step.counted import count
from tests.step.models import training_step

pytestmark = pytest.mark.usefixtures("nothing_left")

ROWS = 6
LINEAR = 2 * ROWS * 16 * 16


class Branches(nn.Module):
    """A layer used twice, and a branch next to the others, whose input needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(16, 16), nn.Linear(16, 16)
        self.side, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.twice(torch.tanh(self.twice(self.first(x))))
        return self.out(y + self.side(x))


def test_a_layer_used_twice_and_a_side_branch() -> None:
    model, x = Branches(), torch.randn(ROWS, 16)

    counted = count(training_step(model, x), model=model)

    assert counted.by_layer() == {
        "model.first": {"forward": LINEAR, "backward": LINEAR},
        "model.twice": {"forward": 2 * LINEAR, "backward": 4 * LINEAR},
        "model.side": {"forward": LINEAR, "backward": LINEAR},
        "model.out": {"forward": LINEAR, "backward": 2 * LINEAR},
    }
    assert counted.with_children("model", "forward_flops") == 5 * LINEAR
    assert counted.with_children("model", "backward_flops") == 8 * LINEAR
    with FlopCounterMode(display=False) as theirs:
        training_step(model, x)()
    assert theirs.get_total_flops() == counted.ops["flops"].sum() == 13 * LINEAR
    by_module = {name: sum(ops.values()) for name, ops in theirs.get_flop_counts().items()}
    assert by_module["Branches.side"] > 2 * LINEAR  # what perfnb is for: torch gives the branch others' backward too


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 16)
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.after(checkpoint(self.inner, self.before(x), use_reentrant=False))


def test_recomputation_is_a_direction_of_its_own() -> None:
    model = Checkpointed()

    counted = count(training_step(model, torch.randn(ROWS, 16)), model=model)

    inner = {"forward": LINEAR, "backward": 2 * LINEAR, "recompute": LINEAR}
    assert counted.by_layer() == {
        "model.before": {"forward": LINEAR, "backward": LINEAR},
        "model.inner.0": inner,
        "model.inner.2": inner,
        "model.after": {"forward": LINEAR, "backward": 2 * LINEAR},
    }
    assert counted.with_children("model.inner", "recompute_flops") == 2 * LINEAR
    assert counted.with_children("model", "recompute_flops") == 2 * LINEAR
    assert counted.with_children("model", "backward_flops") == 7 * LINEAR


class Caller(nn.Module):
    """Calls a layer, in a checkpoint or not."""

    def __init__(self, layer: nn.Module, reentrant: bool | None = None) -> None:
        super().__init__()
        self.layer, self.reentrant = layer, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if self.reentrant is None else checkpoint(self.layer, x, use_reentrant=self.reentrant)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointed", [1, 2])
def test_the_parent_that_checkpoints_a_shared_layer_gets_its_recomputation(checkpointed: int) -> None:
    shared = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
    callers = [Caller(Caller(Caller(shared))), Caller(shared, checkpointed == 2)]  # the plain call is the deepest
    if checkpointed == 1:
        callers.reverse()
    model = nn.Sequential(nn.Linear(16, 16), *callers)

    counted = count(training_step(model, torch.randn(ROWS, 16)), model=model)

    both = {f"model.{checkpointed}", f"model.{3 - checkpointed}"}
    recomputed = {name: counted.with_children(name, "recompute_flops") for name in both}
    assert recomputed == {f"model.{checkpointed}": 2 * LINEAR, f"model.{3 - checkpointed}": 0}
    assert {counted.with_children(name, "forward_flops") for name in both} == {2 * LINEAR}
    assert {counted.with_children(name, "backward_flops") for name in both} == {4 * LINEAR}
    assert counted.with_children("model", "recompute_flops") == 2 * LINEAR


def test_bytes_of_a_linear_layer_and_rows_that_are_no_layer() -> None:
    model = nn.Sequential(nn.Linear(16, 16, bias=False))

    counted = count(training_step(model, torch.randn(ROWS, 16)), model=model)

    rows, weight = 4 * ROWS * 16, 4 * 16 * 16
    assert counted.by_layer("bytes")["model.0"] == {"forward": 2 * rows + weight, "backward": 2 * rows + weight}
    special = special_arithmetic(counted.ops)
    assert special.loc["(loss)", "backward_bytes"] >= 4 * rows
    assert (special["recompute_bytes"] == 0).all()
    assert main_dtype(counted.ops) == "float32"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_layers_of_a_compiled_model_are_counted_each() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    compiled = torch.compile(model, backend="eager", fullgraph=True)

    counted = count(training_step(compiled, torch.randn(ROWS, 16)), model=compiled)

    assert counted.ops["flops"].sum() == 5 * LINEAR
    assert counted.by_layer() == {
        "model.0": {"forward": LINEAR, "backward": LINEAR},
        "model.2": {"forward": LINEAR, "backward": 2 * LINEAR},
    }


class Product(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.right = torch.rand(size, size)

    def forward(self, left: Tensor) -> Tensor:
        return left @ self.right
