"""Steps of many kinds, each profiled unmodified: adversarial, accumulating, mixed precision, without a model."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

import perfnb
from tests.step.models import three_linears
from tests.step.timed import traced_ms

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def profile_of(step: Callable[[], object]) -> perfnb.Profile:
    p = perfnb.profile_step(step, warmup=1, steps=1, traced=2)
    assert str(p)  # asks every rule and fills every table, whatever the test looks at
    return p


def modules(p: perfnb.Profile) -> pd.DataFrame:
    """Return the rows of the layers' table that are modules."""
    return p.layers[~p.layers.index.str.startswith("(")]


def products(p: perfnb.Profile) -> dict[str, float]:
    """Backward matrix products per layer."""
    rows = p.layer_ops[(p.layer_ops["op"] == "aten::mm") & (p.layer_ops["direction"] == "backward")]
    return dict(zip(rows["layer"], rows["calls"], strict=True))


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


def test_accumulated_gradients() -> None:
    model = three_linears()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        for part in torch.randn(12, 8).split(4):
            (model(part).square().mean() / 3).backward()
        optimizer.step()

    p = profile_of(step)

    assert modules(p)["calls"].tolist() == [3, 3, 3, 3]
    assert products(p) == {"model.0": 3, "model.2": 6}


def test_an_optimizer_that_calls_the_step_itself() -> None:
    model = three_linears()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    x = torch.randn(4, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = mse_loss(model(x), x)
        loss.backward()
        return loss

    p = profile_of(lambda: optimizer.step(closure))

    called = modules(p)["calls"]
    assert called.nunique() == 1
    assert called.iloc[0] >= 1
    assert products(p) == {"model.0": called.iloc[0], "model.2": 2 * called.iloc[0]}
    assert (p.phases["ms"][["forward", "backward", "optimizer"]] > 0).all()
    assert p.phases["ms"].sum() == pytest.approx(traced_ms(p))


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


def test_inference_has_no_backward_and_no_loss() -> None:
    model = three_linears().eval()

    def step() -> None:
        with torch.no_grad():
            model(torch.randn(4, 8)).argmax(1)

    p = profile_of(step)

    assert p.phases["ms"][["backward", "loss", "optimizer", "data"]].tolist() == [0, 0, 0, 0]
    assert p.phases.loc["forward", "ms"] > 0
    assert modules(p)["backward_ms"].tolist() == [0, 0, 0, 0]
    assert modules(p)["calls"].tolist() == [1, 1, 1, 1]
    assert "(loss)" not in p.layers.index


def test_frozen_layers_have_no_backward() -> None:
    model = three_linears()
    model[0].requires_grad_(False)
    head = torch.optim.SGD(model[2].parameters(), lr=0.1)

    def step() -> None:
        head.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        head.step()

    p = profile_of(step)

    assert p.layers.loc["model.0", "backward_ms"] == 0
    assert p.layers.loc["model.1", "backward_ms"] == 0
    assert products(p) == {"model.2": 1}


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


class OwnLoss(nn.Module):
    """A custom loss around one of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.L1Loss()

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.inner(output, target).square()


class WithLosses(nn.Module):
    """A module in Lightning's style, which holds its losses and is trained by a method."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.loss = nn.MSELoss()
        self.more = nn.ModuleList([OwnLoss()])

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    def training_step(self, x: Tensor) -> Tensor:
        output = self(x)
        return self.loss(output, x) + self.loss(output, -x) + self.more[0](output, x)


def test_a_loss_that_the_model_holds_has_calls_and_its_time_is_the_loss_s() -> None:
    lit = WithLosses()

    p = profile_of(lambda: lit.training_step(torch.randn(4, 8)).backward())

    losses = ["lit.loss", "lit.more", "lit.more.0", "lit.more.0.inner"]
    assert modules(p)["calls"].to_dict() == {"lit": 1, "lit.body": 1, **dict(zip(losses, [2, 0, 1, 1], strict=True))}
    unknown = p.layers.loc[losses].drop(columns=["module", "depth", "calls", "parameters", "parameter_bytes"])
    assert unknown.isna().all(axis=None)
    assert modules(p).drop(index=losses)[["forward_ms", "backward_ms", "self_ms", "share"]].notna().all(axis=None)
    both = p.phases["ms"]["forward"] + p.phases["ms"]["backward"]
    assert p.layers["self_ms"].sum() == pytest.approx(both)
    ran = p.events[p.events["name"].isin(["aten::mse_loss", "aten::l1_loss", "aten::square"])]
    assert len(ran) == 2 * 4
    assert set(ran["phase"]) == {"loss"}
    assert "Called as a loss: lit.loss, lit.more.0, lit.more.0.inner." in str(p)


def test_a_layer_whose_error_the_model_handles_is_closed_where_it_failed() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError

    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Sequential(nn.Linear(8, 8), Fails()), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.first(x)
            except ValueError:
                return self.second(x)

    model = Tries()

    p = profile_of(lambda: model(torch.randn(4, 8)).sum().backward())

    layers = modules(p)
    assert layers["calls"].tolist() == [1] * 5
    assert products(p) == {"model.second": 1}
    assert layers.loc["model.first", "backward_ms"] == 0
    below = layers.loc[["model.first.0", "model.first.1"], "forward_ms"].sum()
    own = layers.loc["model.first", "self_ms"]
    assert layers.loc["model.first", "forward_ms"] == pytest.approx(own + below)
    parts = layers.loc[["model.first", "model.second"], "total_ms"].sum()
    assert layers.loc["model", "total_ms"] == pytest.approx(layers.loc["model", "self_ms"] + parts)


def test_a_step_without_any_module() -> None:
    weight = torch.randn(8, 8, requires_grad=True)

    def step() -> None:
        weight.grad = None
        (torch.randn(4, 8) @ weight).square().mean().backward()

    p = profile_of(step)

    assert modules(p).empty
    assert p.phases.loc["backward", "ms"] > 0
    assert p.phases.loc["other", "ms"] > 0
    assert p.layers["self_ms"].sum() == pytest.approx(p.phases.loc["backward", "ms"])
    assert "the step did not call any module" in " ".join(str(p).split())
    assert p.ops.loc["aten::mm", "calls"] == 2


def test_a_step_that_does_nothing_with_torch() -> None:
    p = profile_of(lambda: sum(range(1000)))

    assert p.layers.empty
    assert p.ops.empty
    assert p.phases["share"].drop("communication").tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert str(p)
