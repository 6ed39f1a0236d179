"""Stand-ins for models: outputs of the right kind, backward without work; everything is restored afterwards."""

from __future__ import annotations

import sys
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perfnb.bench.input_trial import StandIn
from perfnb.bench.restored import Restored

pytestmark = pytest.mark.usefixtures("nothing_left")

Pair = namedtuple("Pair", "logits loss")


@dataclass
class Output:
    logits: Tensor
    hidden: list[Tensor]
    name: str = "x"


class Counting(nn.Linear):
    """Counts its true calls."""

    def __init__(self, width: int = 3) -> None:
        super().__init__(4, width)
        self.true_calls = 0

    def forward(self, x: Tensor) -> Any:
        self.true_calls += 1
        return super().forward(x)


class Shaped(nn.Module):
    """Gives its layer's output in some shape."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.layer, self.shape = Counting(), shape

    def forward(self, x: Tensor) -> Any:
        return self.shape(self.layer(x))


def fails(*_: Any) -> None:
    raise ZeroDivisionError


def learned(model: nn.Module, *calls: Tensor) -> tuple[StandIn, list[Any]]:
    stand_in = StandIn([model])
    with stand_in.learning():
        outputs = [model(x) for x in calls]
    return stand_in, outputs


SHAPES: list[Any] = [
    lambda y: y,
    lambda y: (y, y.detach(), 7),
    lambda y: {"a": [y], "b": None},
    lambda y: Pair(y, y.sum()),
    lambda y: Output(y, [y * 2]),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_have_the_values_and_gradients_of_the_true_ones(shape: Any) -> None:
    from torch.utils._pytree import tree_leaves

    model, x = Shaped(shape), torch.randn(2, 4)
    stand_in, (true,) = learned(model, x)
    with stand_in.standing_in():
        stand_in.step_starts()
        first, second = model(x), model(x)

    assert model.layer.true_calls == 1
    assert type(first) is type(true)
    parts = [tree_leaves(vars(each) if isinstance(each, Output) else each) for each in (first, second, true)]
    for one, two, expected in zip(*parts, strict=True):
        if isinstance(expected, Tensor):
            assert torch.equal(one, expected)
            assert one.requires_grad == expected.requires_grad
            one.detach().zero_()  # each call gives a copy of its own
            assert torch.equal(two, expected)
        else:
            assert one == two == expected


def test_outputs_are_kept_as_they_were_before_the_step_changes_them() -> None:
    model, x = Shaped(lambda y: (y.detach(), np.ones(2))), torch.randn(2, 4)
    stand_in, ((true, array),) = learned(model, x)
    before = true.clone()
    true.zero_()
    with stand_in.standing_in():
        found, same = model(x)
    assert torch.equal(found, before)
    assert same.tolist() == array.tolist()


def test_backward_and_optimizer_touch_the_smallest_parameter_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False))
    x = torch.randn(5, 4)
    stand_in, _ = learned(model, x)
    model(x).sum().backward()
    with stand_in.standing_in():
        assert all(each.grad is None for each in model.parameters())
        loss = model(x).square().sum()
        loss.backward()
    grads = {name: each.grad for name, each in model.named_parameters()}

    assert {name for name, grad in grads.items() if grad is not None} == {"0.bias"}
    assert torch.equal(grads["0.bias"], torch.zeros(3))


def test_no_gradient_where_none_is_asked_for() -> None:
    model, x = Counting(), torch.randn(2, 4)
    stand_in, _ = learned(model, x)
    with stand_in.standing_in(), torch.no_grad():
        assert not model(x).requires_grad
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    stand_in, _ = learned(model, x)
    with stand_in.standing_in():
        assert not model(x).requires_grad


def test_each_call_of_a_step_has_its_own_output_and_new_shapes_are_learned() -> None:
    model = Counting()
    x, y, longer = torch.randn(2, 4), torch.randn(2, 4), torch.randn(3, 4)
    stand_in, true = learned(model, x, y)
    with stand_in.standing_in():
        for _ in range(2):
            stand_in.step_starts()
            assert torch.equal(model(x), true[0])
            assert torch.equal(model(x), true[1])
        assert stand_in.real_ns == 0
        assert model(longer).shape == (3, 3)
        assert model(longer).shape == (3, 3)
    assert model.true_calls == 3
    assert stand_in.called == [model]
    assert stand_in.real_ns > 0


def test_of_too_many_kinds_of_inputs_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.bench.input_trial._MOST_KINDS", 2)
    stand_in = StandIn([])
    for place, kind in enumerate("abacbc"):
        stand_in._keep(kind, place)
    assert stand_in._outputs == {"b": [1, 4], "c": [3, 5]}


def test_modules_inside_stand_in_where_the_model_itself_is_not_called() -> None:
    model, x = nn.ModuleDict({"encoder": Counting(4), "unused": nn.Linear(1, 1)}), torch.randn(2, 4)
    stand_in = StandIn([model])
    with stand_in.learning():
        model["encoder"](x)
    assert stand_in.uncalled
    with stand_in.learning(inside=True):
        model["encoder"](x)

    assert stand_in.called == [model["encoder"]]


def test_a_module_gets_back_what_it_is_called_by() -> None:
    plain, own = nn.Linear(2, 2), nn.Linear(2, 2)
    own.forward = lambda x: x + 1  # type: ignore[method-assign]
    before = own.forward
    x = torch.ones(1, 2)
    for module in (plain, own):
        stand_in, _ = learned(module, x)
        with pytest.raises(ZeroDivisionError), stand_in.standing_in():
            fails(module(x))
    assert "forward" not in plain.__dict__
    assert own.forward is before


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_is_stood_in_for_and_is_compiled_again_after(in_place: bool) -> None:
    model: Any = Counting()
    if in_place:
        model.compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")
    called_by = dict(model.__dict__)
    x = torch.randn(2, 4)
    true = model(x)
    stand_in, _ = learned(model, x)
    count = model.true_calls
    with stand_in.standing_in():
        given = model(x)
    assert torch.equal(given, true)
    assert model.true_calls == count
    for name in ("forward", "_compiled_call_impl"):
        assert model.__dict__.get(name) is called_by.get(name)
    assert torch.equal(model(x), true)


class Sparse(nn.Module):
    """Its output is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).to_sparse()


class Complex(nn.Module):
    """Its smallest parameter is complex, its output real."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(1, dtype=torch.complex64))
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * self.phase.abs()


@pytest.mark.parametrize("module", [Sparse, Complex])
def test_a_parameter_gets_its_gradient_whatever_the_layout_or_dtype(module: type[nn.Module]) -> None:
    model = module()
    stand_in = StandIn([model])
    x = torch.ones(3, 3)
    with stand_in.learning():
        model(x)
    with stand_in.standing_in():
        stand_in.step_starts()
        output = model(x)
        (torch.sparse.sum(output) if output.is_sparse else output.sum()).backward()

        assert any(parameter.grad is not None for parameter in model.parameters())


def test_training_is_put_back_bit_by_bit() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1))
    other = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()], lr=0.1)
    fresh = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def train() -> None:
        optimizer.zero_grad()
        other(model(torch.randn(8, 4))).sum().backward()
        optimizer.step()
        fresh.step()
        schedule.step()
        model.train(not model.training)
        model[1].running_mean = torch.ones(4)

    optimizer.zero_grad()
    other(model(torch.randn(8, 4))).sum().backward()
    optimizer.step()

    def state() -> Any:
        from copy import deepcopy

        grads = [each.grad for each in (*model.parameters(), *other.parameters())]
        return deepcopy(
            (model.state_dict(), other.state_dict(), optimizer.state_dict(), fresh.state_dict(), grads,
             schedule.state_dict(), [each.training for each in model.modules()], torch.get_rng_state())
        )  # fmt: skip

    before, mean = state(), model[1].running_mean

    def trains_and_fails() -> None:
        train()
        train()
        assert not torch.equal(model[0].weight, before[0]["0.weight"])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Restored([model], [optimizer, schedule]):
        trains_and_fails()

    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    assert model[1].running_mean is mean
    assert not sys.modules[Optimizer.__module__]._global_optimizer_pre_hooks
