"""Memory of a step that depends on what is around it: what is old goes, and what is shared or tied counts once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.known_steps import BATCH, INPUTS, WHOLE, at_end, linear, mlp, profile

pytestmark = pytest.mark.usefixtures("nothing_left")

#: The counted step, of one warm-up, one timed, two that lead in and one traced.
COUNTED = 6
WIDE = 16


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, 5])
def test_gradients_of_several_steps_go_in_one_of_them_and_are_made_again(every: int) -> None:
    """Where the counted step lets go of them, they were made before anything was watched, and torch tells no free."""
    model, x, begun = mlp(), torch.randn(BATCH, WIDE), 0

    def step() -> None:
        nonlocal begun
        begun += 1
        if begun % every == 0:
            model.zero_grad()
        model(x).square().mean().backward()

    p = profile(step)

    assert p.steps["pass"].tolist().index("counted") == COUNTED - 1
    assert at_end(p) == {"parameters": WHOLE, "gradients": WHOLE, "inputs": INPUTS}
    assert p.memory["gradients"].iloc[0] == WHOLE
    assert p.memory["gradients"].min() == (WHOLE if COUNTED % every else 0)
    assert p.memory["gradients"].max() == WHOLE
    gradients = p.allocations[p.allocations["category"] == "gradients"]
    assert gradients["end_ns"].notna().sum() == (0 if COUNTED % every else 4)


@pytest.mark.slow
def test_optimizer_state_of_the_counted_step_alone() -> None:
    """An optimizer that first steps there: its state is new, and the parameters' are the blocks of the model."""
    model, x, begun = mlp(), torch.randn(BATCH, WIDE), 0
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        nonlocal begun
        begun += 1
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if begun == COUNTED:
            optimizer.step()

    p = profile(step)

    state = 2 * WHOLE + 4 * 4
    assert at_end(p) == {"parameters": WHOLE, "gradients": WHOLE, "optimizer_state": state, "inputs": INPUTS}
    assert p.memory["optimizer_state"].iloc[0] == 0
    made = p.allocations[p.allocations["category"] == "optimizer_state"]
    assert made["phase"].unique().tolist() == ["optimizer"]
    assert made["bytes"].sum() == state


class Tied(nn.Module):
    """Two layers of one weight, two parameters that are parts of one block, and a norm's buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.tied = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE, bias=False)
        self.tied.weight = self.layer.weight
        flat = torch.randn(2 * WIDE)
        self.scale, self.shift = nn.Parameter(flat[:WIDE]), nn.Parameter(flat[WIDE:])
        self.norm = nn.BatchNorm1d(WIDE, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(torch.tanh(self.layer(self.norm(x)))) * self.scale + self.shift


@pytest.mark.slow
def test_what_shares_memory_counts_once() -> None:
    model, x = Tied(), torch.randn(BATCH, WIDE)

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    p = profile(step)

    weights = 4 * (WIDE * WIDE + WIDE + 2 * WIDE)
    assert at_end(p) == {"parameters": weights + 4 * 2 * WIDE + 8, "gradients": weights, "inputs": INPUTS}
    product = linear(BATCH, WIDE, WIDE)
    assert p.layers.loc[["model.layer", "model.tied"], "forward_flops"].tolist() == [product, product]
    assert p.layers.loc[["model.layer", "model.tied"], "backward_flops"].tolist() == [product, 2 * product]
    assert p.layers.loc["model", ["forward_flops", "backward_flops"]].tolist() == [2 * product, 3 * product]
