"""What steps change in addition to the named model: second models, nested states, generators, flags and dtypes."""

from __future__ import annotations

import functools
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from perfnb.bench import restored
from perfnb.bench.restored import Restored, kept_attributes, kept_positions
from perfnb.errors import CaptureError
from perfnb.remedies.state import fingerprint
from perfnb.remedies.subject import Subject
from perfnb.step.namespace import reachable

X = torch.randn(8, 4)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def state_of(model: nn.Module) -> dict[str, Any]:
    grads = {f"{name}.grad": None if each.grad is None else each.grad.clone() for name, each in
             model.named_parameters()}  # fmt: skip
    return {name: value.clone() for name, value in model.state_dict().items()} | grads


def same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0, check_dtype=True)


def test_an_average_of_the_weights_and_a_second_model_are_put_back() -> None:
    model, critic = network(), network()
    average, optimizer = AveragedModel(model, use_buffers=True), torch.optim.Adam(model.parameters())
    seen = {"models": [model, critic], "kept": {"average": average}}
    before, mean, numbers = (
        [state_of(each) for each in (model, critic, average)],
        model[1].running_mean,
        torch.get_rng_state(),
    )
    with Restored([model], [seen, optimizer]):
        torch.rand(1)
        for _ in range(3):
            critic(model(X) @ torch.ones(2, 4)).sum().backward()
            optimizer.step()
            average.update_parameters(model)
        critic.eval()
        model[1].running_mean = torch.ones(4)
        assert not torch.equal(average.module[0].weight, before[2]["module.0.weight"])

    same([state_of(each) for each in (model, critic, average)], before)
    assert critic.training
    assert model[1].running_mean is mean
    assert torch.equal(torch.get_rng_state(), numbers)
    assert not optimizer.state


class Counting(nn.Module):
    """Keeps plain values and tensors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.n, self.name = 3, "first"
        self.ema, self.sums, self.last = torch.zeros(4), torch.zeros(4), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        self.n += 1
        self.name = "later"
        self.ema = 0.9 * self.ema + 0.1 * out.detach().mean(0)
        self.sums += out.detach().sum(0)
        self.last, self.made = out, 1.5
        return out


def test_attributes_that_are_plain_values_or_tensors_are_put_back() -> None:
    model: Any = nn.Sequential(Counting(), nn.ReLU())
    counting: Any = model[0]
    model.n = 1  # of a class of torch
    ema, sums = counting.ema, counting.sums
    with Restored([model], []):
        for _ in range(2):
            model(X).sum().backward()
            model.n += 1
        assert counting.n == 5
    assert (counting.n, counting.name, counting.last) == (3, "first", None)
    assert model.n == 1
    assert not hasattr(counting, "made")
    assert counting.ema is ema
    assert counting.sums is sums
    same([ema, sums], [torch.zeros(4), torch.zeros(4)])


class Collecting(nn.Module):
    """Collects in containers of many kinds what it computes, as for the end of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.losses: list[Any] = [0.5]
        self.metrics: Any = {"train": defaultdict[str, list[int]](list), "sums": OrderedDict(total=torch.zeros(4))}
        self.seen, self.shapes, self.recent = Counter(old=1), {(1, 4)}, deque([1, 2], maxlen=2)
        self.own_list: Any = self.losses
        self.itself: list[Any] = [self]
        self.itself.append(self.itself)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        self.losses.append(out.mean())
        self.metrics["train"]["rows"].append(len(x))
        self.metrics["sums"]["total"] += out.detach().sum(0)
        self.metrics["made"] = []
        self.seen["rows"] += len(x)
        self.shapes.add(tuple(x.shape))
        self.recent.append(len(x))
        self.own_list = [*self.own_list, 1]
        self.made = {"some": "thing"}
        return out


def test_containers_in_attributes_stay_the_same_objects_with_what_they_held() -> None:
    model: Any = nn.Sequential(Collecting(), nn.ReLU())
    one: Any = model[0]
    held = {name: value for name, value in vars(one).items() if not name.startswith("_")}
    rows = one.metrics["train"]
    with Restored([model], []):
        for _ in range(2):
            model(X).sum().backward()
        assert rows["rows"] == [8, 8]
        assert one.seen["rows"] == 16
    assert {name: value for name, value in vars(one).items() if not name.startswith("_")} == held
    assert all(getattr(one, name) is value for name, value in held.items())
    assert (one.losses, one.metrics["train"], one.metrics.keys()) == ([0.5], {}, {"train", "sums"})
    assert one.metrics["train"] is rows
    assert one.metrics["sums"]["total"].tolist() == [0.0] * 4
    assert (one.seen, one.shapes, list(one.recent)) == ({"old": 1}, {(1, 4)}, [1, 2])
    assert one.itself == [one, one.itself]


def test_the_proof_sees_what_was_added_to_a_container_or_to_a_tensor_in_one() -> None:
    model = Collecting()
    subject = Subject(lambda: None, None, {"net": model}, {}, None)
    before = fingerprint(subject)
    assert fingerprint(subject) == before
    model.metrics["train"]["rows"].append(1)
    model.losses.append(1.0)
    model.metrics["sums"]["total"] += 1
    after = fingerprint(subject)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"the attribute {name} of net" for name in ("losses", "metrics", "own_list")}
    before = fingerprint(subject)
    model.metrics["sums"]["total"] += 1
    after = fingerprint(subject)
    assert {name for name in before if before[name] != after[name]} == {"the attribute metrics of net"}


class Registering(nn.Module):
    """Registers a submodule, a parameter and a buffer under names that were plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.head: Any = None
        self.scale: Any = 1.0
        self.kept = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.head is None:
            self.head, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
            self.extra = nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(4))
            self.kept = nn.Linear(4, 4)
        out: Tensor = self.head(x) * self.scale
        return out


def test_plain_attributes_that_become_modules_parameters_or_buffers_are_put_back() -> None:
    model = Registering()
    kept, names = model.kept, (list(vars(model)), list(model.state_dict()))
    with Restored([model], []):
        model(X).sum().backward()
        assert "head.weight" in model.state_dict()
    assert (sorted(vars(model)), list(model.state_dict())) == (sorted(names[0]), names[1])
    assert (model.head, model.scale) == (None, 1.0)
    assert model.kept is kept
    model(X)


def add_to_data(x: Tensor) -> None:
    x.data += 1


def add_to_array(x: Tensor) -> None:
    x.numpy()[:] += 1


@pytest.mark.parametrize("write", [add_to_data, add_to_array])
def test_attributes_written_to_behind_autograd_are_put_back(write: Callable[[Tensor], None]) -> None:
    model: Any = nn.Linear(4, 4)
    model.sums, model.other = torch.zeros(3), torch.tensor([float("nan"), 1.0])
    sums, version = model.sums, model.other._version
    with Restored([model], []):
        write(model.sums)
    assert model.sums is sums
    same(sums, torch.zeros(3))
    assert model.other._version == version  # what has not changed is not written to


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls sparse CSR beta and quantized tensors deprecated
def test_attributes_of_every_layout_are_compared() -> None:
    values = [
        torch.eye(4).to_sparse(),
        torch.eye(4).to_sparse_csr(),
        torch.ones(3, dtype=torch.cfloat).conj(),
        torch.ones(3, 4).t(),
        torch.ones(()),
        torch.empty(0),
        torch._empty_affine_quantized([3], scale=1.0, zero_point=0, dtype=torch.qint8),
    ]
    model: Any = nn.Linear(4, 4)
    for place, value in enumerate(values):
        setattr(model, f"x{place}", value)
    with Restored([model], []):
        model.x0._values().add_(1)
        model.x1.values().add_(1)
        model.x3.data.add_(1)
    same([model.x0.to_dense(), model.x1.to_dense(), model.x3], [torch.eye(4), torch.eye(4), torch.ones(4, 3)])


def jagged() -> Tensor:
    return torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


#: Tensors whose numbers cannot be copied, or fill far more memory in a copy.
UNREADABLE = {
    "meta": lambda: torch.empty(3, device="meta"),
    "jagged": jagged,
    "expanded": lambda: torch.zeros(1).expand(300_000, 300_000),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_attributes_whose_numbers_cannot_be_copied_are_only_bound_again(kind: str) -> None:
    model: Any = nn.Linear(4, 4)
    model.x = x = UNREADABLE[kind]()
    subject = Subject(model, None, {"model": model}, {}, None)
    before = fingerprint(subject)
    with Restored([model], []):
        model.x = None
        assert fingerprint(subject) != before
    assert model.x is x
    assert fingerprint(subject) == before


@pytest.mark.parametrize(
    ("shape", "strides", "own"),
    [
        ((3,), (1,), True),
        ((3,), (2,), True),
        ((3,), (0,), False),
        ((1,), (0,), True),
        ((0, 3), (0, 0), True),
        ((2, 3), (3, 1), True),
        ((3, 2), (1, 3), True),
        ((2, 3), (2, 1), False),  # 6 elements in 5 places
        ((2, 2), (1, 1), False),
        ((2, 1, 2), (2, 0, 1), True),
    ],
)
def test_tensors_have_numbers_of_their_own_unless_elements_share_memory(
    shape: tuple[int, ...], strides: tuple[int, ...], own: bool
) -> None:
    assert restored.has_numbers(torch.zeros(20).as_strided(shape, strides)) is own


def test_large_sparse_tensors_are_compared_and_put_back_without_being_made_dense() -> None:
    model: Any = nn.Linear(4, 4)
    places = torch.tensor([[3, 900_000], [5, 700_000]])
    model.links = torch.sparse_coo_tensor(places, torch.ones(2), (1_000_000, 1_000_000), check_invariants=True)
    subject = Subject(model, None, {"model": model}, {}, None)
    before = fingerprint(subject)
    with Restored([model], []):
        model.links._values().add_(1)
        assert fingerprint(subject) != before
    assert model.links._values().tolist() == [1.0, 1.0]
    assert fingerprint(subject) == before


class Nested(torch.optim.Optimizer):
    """Keeps its state in lists and dicts, and a count of its own in addition to the parameters' states."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"factors": [torch.ones(1)]})
        self.state["steps"] = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["steps"] += 1
        for group in self.param_groups:
            group["factors"][0].mul_(2)
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("sums", [torch.zeros_like(parameter), {"calls": torch.zeros(())}])
                state["sums"][0].add_(parameter.grad)
                state["sums"][1]["calls"].add_(1)
                state["sums"].append(torch.ones(1))


def test_a_state_that_is_nested_is_put_back_in_the_same_tensors() -> None:
    layer = nn.Linear(4, 2)
    optimizer = Nested(layer.parameters())

    def step() -> None:
        layer(X).sum().backward()
        optimizer.step()

    step()
    held = optimizer.state[layer.weight]["sums"][0]
    before = pickle.dumps(optimizer.state_dict()["state"]), held.clone()
    with Restored([layer], []):
        step()
        step()
        optimizer.param_groups[0]["made"] = 1

    assert set(optimizer.param_groups[0]) == {"params", "factors"}
    assert optimizer.state[layer.weight]["sums"][0] is held
    same(held, before[1])
    assert pickle.dumps(optimizer.state_dict()["state"]) == before[0]
    assert optimizer.state["steps"] == 1
    assert optimizer.param_groups[0]["factors"][0].item() == 2


class Trainer:
    """Holds what it needs a few levels deep."""

    def __init__(self) -> None:
        self.net = network()
        self.optimizers = {"main": torch.optim.SGD(self.net.parameters(), lr=0.1)}
        self.plans = {"schedules": [StepLR(self.optimizers["main"], 1)]}
        self.numbers = [torch.Generator(), np.random.default_rng(1), random.Random(2), np.random.RandomState(3)]

    def step(self, *_: Any) -> None:
        torch_numbers, numpy_numbers, python_numbers, old_numbers = self.numbers
        x = X + torch.randn(X.shape, generator=torch_numbers) + numpy_numbers.normal() + python_numbers.random()
        self.net(x * float(old_numbers.rand())).sum().backward()
        self.optimizers["main"].step()
        self.plans["schedules"][0].step()


@pytest.mark.parametrize("way", ["method", "partial", "closure", "object"])
def test_schedules_and_generators_are_found_however_the_step_holds_them(way: str) -> None:
    trainer = Trainer()

    def apply(owner: Trainer) -> None:
        owner.step()

    class Called:
        def __init__(self) -> None:
            self.owner = trainer

    steps: dict[str, Any] = {
        "method": trainer.step,
        "partial": functools.partial(apply, trainer),
        "closure": lambda: trainer.step(),
        "object": Called(),
    }

    def told() -> list[Any]:
        torch_numbers, numpy_numbers, python_numbers, old_numbers = trainer.numbers
        numbers = [str(numpy_numbers.bit_generator.state), str(python_numbers.getstate()), str(old_numbers.get_state())]
        return [torch_numbers.get_state().tolist(), *numbers, trainer.plans["schedules"][0].state_dict()]

    before = told()
    with Restored([trainer.net], [steps[way]]):
        trainer.step()
        assert all(one != other for one, other in zip(told(), before, strict=True))

    assert told() == before


CHANGES: list[Callable[[nn.Module], Any]] = [
    lambda model: model[0].requires_grad_(False),
    lambda model: model.to(torch.bfloat16),
    lambda model: setattr(model[0].weight, "data", torch.zeros(1, 4)),
]


@pytest.mark.parametrize("change", CHANGES)
def test_flags_dtypes_and_shapes_are_put_back(change: Callable[[nn.Module], Any]) -> None:
    model = network()
    model(X).sum().backward()
    before = state_of(model), [each.requires_grad for each in model.parameters()]
    with Restored([model], []):
        change(model)

    same(state_of(model), before[0])
    assert [each.requires_grad for each in model.parameters()] == before[1]


def test_sparse_gradients_and_tensors_of_inference_mode_are_put_back() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    table(torch.tensor([1, 2])).sum().backward()
    with torch.inference_mode():
        frozen = nn.BatchNorm1d(4)
    before = table.weight.detach().clone(), table.weight.grad.to_dense(), frozen.running_mean.clone()
    with Restored([table, frozen], [optimizer]):
        table(torch.tensor([3])).sum().backward()
        optimizer.step()
        with torch.inference_mode():
            frozen(X)

    same((table.weight.detach(), table.weight.grad.to_dense(), frozen.running_mean.clone()), before)


def test_the_search_for_values_is_bounded_and_ends_in_a_cycle() -> None:
    loop: list[Any] = []
    loop.append(loop)
    many = [[Tensor() for _ in range(100)] for _ in range(250)]

    class Refuses:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    found = list(reachable([loop, many, Refuses()]))
    assert loop in found
    assert len(found) <= 20_000


def test_tensors_without_values_of_their_own_are_left_alone_and_the_rest_is_put_back() -> None:
    model, lazy = nn.Linear(2, 2, bias=False), nn.LazyLinear(2)
    model.register_buffer("shared", torch.zeros(100)[:1].expand(32))
    weight = model.weight.detach().clone()

    with Restored([model, lazy], []), torch.no_grad():
        model.weight += 1

    assert torch.equal(model.weight, weight)
    assert model.bias is None
    assert lazy.has_uninitialized_params()


def test_containers_are_searched_four_deep_and_for_a_thousand_values() -> None:
    nested: Any = 7
    for _ in range(6):
        nested = [nested]
    assert len(restored.contents([nested])) == 1 + 4
    assert len(restored.contents([list(range(1001))])) == 1 + 1000
    ordered, unordered = [2, 3, 1], {object() for _ in range(99)}
    assert restored.contents([ordered])[1:] == ordered
    assert restored.contents([unordered])[1:] == sorted(unordered, key=id)


def test_one_tensor_that_cannot_be_put_back_does_not_keep_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    weight, refill = second.weight.detach().clone(), restored._refill

    def refused(tensor: torch.Tensor, value: torch.Tensor) -> None:
        if tensor is first.weight:
            raise RuntimeError("read-only")
        refill(tensor, value)

    def stepped() -> None:
        with Restored([first, second], []), torch.no_grad():
            first.weight += 1
            second.weight += 1

    monkeypatch.setattr(restored, "_refill", refused)
    with pytest.raises(CaptureError, match="cannot be restored: read-only"):
        stepped()

    assert torch.equal(second.weight, weight)


def test_attributes_of_an_object_that_is_not_a_module_are_put_back_after_an_error() -> None:
    owner: Any = SimpleNamespace(calls=3, sums=torch.zeros(2), losses=[0.5])
    before = dict(vars(owner))
    with suppress(LookupError), kept_attributes(owner):
        owner.losses.append(1.0)
        owner.sums += 1
        owner.calls, owner.made, owner.losses = 4, "new", []
        raise LookupError
    assert vars(owner).keys() == before.keys()
    assert all(getattr(owner, name) is value for name, value in before.items())
    assert (owner.calls, owner.sums.tolist(), owner.losses) == (3, [0.0, 0.0], [0.5])


def test_a_loader_that_knows_its_position_returns_to_it() -> None:
    loader = SimpleNamespace(state={"at": [3]}, state_dict=lambda: loader.state)
    loader.load_state_dict = lambda state: vars(loader).update(state=state)
    with kept_positions([[1, 2], loader]):
        loader.state["at"][0] = 9
    assert loader.state == {"at": [3]}


def test_a_loader_that_has_a_state_only_if_asked_for_is_left_alone() -> None:
    class Prepared:
        """Like a loader that accelerate has prepared."""

        def state_dict(self) -> dict[str, int]:
            raise AttributeError("'DataLoader' object has no attribute 'dl_state_dict'")

        def load_state_dict(self, state: dict[str, int]) -> None:
            raise AssertionError("it has no state to put back")

    with kept_positions([Prepared()]):
        pass
