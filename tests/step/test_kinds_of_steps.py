"""Steps of several kinds, each profiled unmodified; tests/attribution has more of them, made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

import perfnb
from tests.step.models import three_linears

pytestmark = pytest.mark.usefixtures("nothing_left")


def profile_of(step: Callable[[], object]) -> perfnb.Profile:
    return perfnb.profile_step(step, warmup=1, steps=1, traced=2, memory=False, flops=False)


def modules(p: perfnb.Profile) -> pd.DataFrame:
    """Return the rows of the layers' table that are modules."""
    return p.layers[~p.layers.index.str.startswith("(")]


def products(p: perfnb.Profile) -> dict[str, float]:
    """Backward matrix products per layer."""
    rows = p.layer_ops[(p.layer_ops["op"] == "aten::mm") & (p.layer_ops["direction"] == "backward")]
    return dict(zip(rows["layer"], rows["calls"], strict=True))


@pytest.mark.slow
def test_two_models_that_train_against_each_other() -> None:
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    real, noise, one, zero = torch.randn(4, 8), torch.randn(4, 4), torch.ones(4, 1), torch.zeros(4, 1)

    def step() -> None:
        of_critic.zero_grad()
        fake = generator(noise)
        right = binary_cross_entropy_with_logits(critic(real), one)
        wrong = binary_cross_entropy_with_logits(critic(fake.detach()), zero)
        (right + wrong).backward()
        of_critic.step()
        of_generator.zero_grad()
        binary_cross_entropy_with_logits(critic(fake), one).backward()
        of_generator.step()

    p = profile_of(step)

    assert list(modules(p).index) == [
        *("generator", "generator.0", "generator.1", "generator.2"),
        *("critic", "critic.0", "critic.1", "critic.2"),
    ]
    assert modules(p)["calls"].tolist() == [1] * 4 + [3] * 4
    # The critic's first layer: no gradient for real data and for detached fakes, one for the generator's sake.
    assert products(p) == {"generator.0": 1, "generator.2": 2, "critic.0": 4, "critic.2": 6}
    assert (p.phases["ms"][["forward", "loss", "backward", "optimizer"]] > 0).all()


@pytest.mark.slow
def test_mixed_precision_with_a_gradient_scaler() -> None:
    model = three_linears()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    x = torch.randn(4, 8)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse_loss(model(x), x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    p = profile_of(step)

    assert modules(p)["calls"].tolist() == [1, 1, 1, 1]
    assert products(p) == {"model.0": 1, "model.2": 2}
    unscaling = p.events[p.events["name"] == "aten::_amp_foreach_non_finite_check_and_unscale_"]
    assert set(unscaling["phase"]) == {"optimizer"}


@pytest.mark.deep
def test_a_penalty_on_gradients_is_loss_and_its_products_are_the_layers() -> None:
    model = nn.Linear(8, 1)
    x = torch.randn(4, 8, requires_grad=True)

    def step() -> None:
        model.zero_grad()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()

    p = profile_of(step)

    # The gradient for x is one product, and its own backward one for the weight.
    assert products(p) == {"model": 2}
    assert p.layer_ops.loc[p.layer_ops["op"] == "aten::pow", "layer"].tolist() == ["(loss)"]
    penalty = p.events[p.events["name"] == "aten::square"]
    assert penalty["phase"].tolist() == ["loss", "loss"]
    assert "(unattributed)" not in p.layers.index
