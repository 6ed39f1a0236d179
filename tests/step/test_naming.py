"""Layers are called what the user calls the model: its variable, attribute or key; else its class."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from perfnb.step.budget import Plan
from perfnb.step.layers import Calls, known_models, name_layers, own_tables, parallel_models
from perfnb.step.namespace import (
    chosen_models,
    loader_facts,
    named_values,
    namespace_of,
    reachable,
    step_variables,
    variables_of,
)
from perfnb.step.pass_order import capture_step
from tests.step.models import three_linears

pytestmark = pytest.mark.usefixtures("nothing_left")

X = torch.randn(4, 8)
a_global_model = three_linears()


def names_of(step: Callable[[], Any], model: Any = None) -> list[tuple[str, int | None]]:
    """Return the names of the layers of two traced steps, and the row of each one's parent, without a profile."""
    plan, (models, chosen) = Plan(warmup=0, steps=1, traced=2, memory=False, flops=False), chosen_models(model)
    capture = capture_step(step, plan=plan, models=models, namespace=step_variables(step, chosen))
    capture.close()
    return [(layer.name, layer.parent) for layer in capture.layers]


def roots_of(step: Any, model: Any = None) -> list[str]:
    return [name for name, parent in names_of(step, model) if parent is None]


class Trainer:
    def __init__(self) -> None:
        self.model = three_linears()

    def step(self) -> None:
        self.model(X)


def test_a_model_is_named_by_where_the_step_finds_it() -> None:
    net, trainer = three_linears(), Trainer()
    nets, parts = {"a b": three_linears()}, [nn.Linear(8, 8), nn.Tanh()]

    def helper() -> Tensor:
        return net(X)

    def step() -> None:
        parts[1](parts[0](nets["a b"](trainer.model(X))))

    assert roots_of(lambda: a_global_model(X)) == ["a_global_model"]
    assert roots_of(lambda: net(X)) == roots_of(lambda: helper()) == ["net"]
    assert roots_of(step) == ["trainer.model", "nets['a b']", "parts[0]", "parts[1]"]
    assert roots_of(trainer.step) == ["self.model"]
    assert roots_of(lambda: parts[0](net(X)), model={"a": net, "b": parts[0]}) == ["a", "b"]


def test_models_that_are_named_are_the_only_ones() -> None:
    net, other = three_linears(), nn.Linear(8, 8)

    inside = [("net", None), ("net.0", 0), ("net.1", 0), ("net.2", 0)]
    for model, names in ((net, inside), ([other], [("other", None)]), (net[2], [("net.2", None)])):
        assert names_of(lambda: other(net(X)), model) == names


class Dropping(nn.Module):
    """A model that runs one of its two layers in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.calls = nn.Linear(8, 8), nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return (self.left if self.calls % 2 else self.right)(x)


def test_modules_get_the_same_names_in_each_step_wherever_they_are_made() -> None:
    class Maker(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.Linear(8, 8)(x)

    def anew() -> None:
        x = nn.Sequential(nn.Linear(8, 8), nn.ReLU())(X)
        nn.Softmax(1)(nn.Softmax(0)(x))

    model, dropping, left, right = nn.Sequential(Maker()), Dropping(), nn.Linear(8, 8), nn.Linear(8, 8)

    assert names_of(anew) == [
        ("Sequential", None), ("Sequential.0", 0), ("Sequential.1", 0), ("Softmax", None), ("Softmax (2)", None),
    ]  # fmt: skip
    assert names_of(lambda: model(X)) == [("model", None), ("model.0", 0), ("model.0.(Linear)", 1)]
    assert names_of(lambda: (left if dropping.calls % 2 else right)(dropping(X))) == [
        ("dropping", None), ("dropping.left", 0), ("dropping.right", 0), ("left", None), ("right", None),
    ]  # fmt: skip


def calls_of(*called: tuple[nn.Module, int | None], **more: Any) -> Calls:
    """Return a record of calls, each given by its module and the number of the call around it."""
    return Calls([(number, *call) for number, call in enumerate(called)], **more)


def named(
    calls: Calls, namespace: dict[str, Any], only: list[nn.Module] | None = None
) -> list[tuple[str, int | None, bool]]:
    """Return the layers of these calls: their names, the rows of their parents, and whether they are compiled."""
    return [(layer.name, layer.parent, layer.compiled) for layer in name_layers(calls, namespace, only)[0]]


def test_a_model_has_the_name_of_the_variable_that_contains_it() -> None:
    net, other, loss, inner = three_linears(), nn.Tanh(), nn.MSELoss(), nn.ReLU()
    calls = calls_of((net[0], None), (net[2], None), (other, None), (loss, None), (inner, 3), loss={3})

    rows = [("net", None, False), *((f"net.{place}", 0, False) for place in range(3)), ("Tanh", None, False)]
    assert named(calls, {"net": net}) == rows
    assert named(calls, {"part": net[0], "net": net}) == rows
    assert [name for name, *_ in named(calls, {})] == ["Linear", "Linear (2)", "Tanh"]
    assert named(calls, {"net": net}, [net[2], other]) == [("net.2", None, False), ("Tanh", None, False)]
    assert named(calls, {"net": net}, [inner]) == []
    _, places = name_layers(calls, {"net": net}, [net[2]])
    assert places == {id(net[2]): 0}


def test_a_part_of_two_models_is_a_layer_of_the_first() -> None:
    shared = nn.Linear(2, 2)
    first, second = nn.Sequential(nn.ReLU(), nn.Sequential(shared)), nn.Sequential(nn.Sequential(shared, nn.Tanh()))
    names = [("a", None), ("a.0", 0), ("a.1", 0), ("a.1.0", 2), ("b", None), ("b.0", 4), ("b.0.1", 5)]

    layers, places = name_layers(calls_of((first, None), (second, None)), {"a": first, "b": second})

    assert [(layer.name, layer.parent) for layer in layers] == names
    assert places[id(shared)] == 3
    assert [layer.parameters for layer in layers] == [6, 0, 6, 6, 6, 6, 0]
    assert [layer.parameter_bytes for layer in layers] == [24, 0, 24, 24, 24, 24, 0]


class Wrapper(nn.Module):
    """Stands for what torch.compile makes of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


def test_a_compiled_model_and_its_original_are_one_layer() -> None:
    compiled = Wrapper(nn.Sequential(nn.Linear(2, 2)))
    model = nn.Sequential(nn.ReLU(), compiled)
    graph = fx.GraphModule(nn.Module(), fx.Graph())
    made = nn.Tanh()

    calls = calls_of((model, None), (compiled, 0), (graph, 1), (made, 1), (graph, 0), (nn.Tanh(), 1))
    layers, places = name_layers(calls, {"model": model})

    assert [(layer.name, layer.parent, layer.compiled) for layer in layers] == [
        ("model", None, False), ("model.0", 0, False), ("model.1", 0, True), ("model.1.0", 2, False),
        ("model.1.(Tanh)", 2, False), ("model.1.(Tanh) (2)", 2, False),
    ]  # fmt: skip
    assert layers[2].module == "Sequential"
    assert places[id(compiled)] == places[id(compiled._orig_mod)] == places[id(graph)] == 2
    # Elsewhere, a graph is a module like any other.
    assert named(calls_of((model, None), (graph, 0)), {"model": model})[-1][1:] == (0, False)


def test_models_that_are_called_only_in_compiled_functions_or_other_threads_are_layers() -> None:
    inside, anew, aside, loss = nn.Sequential(nn.ReLU()), nn.Tanh(), nn.Sequential(nn.Tanh()), nn.MSELoss()
    elsewhere = {id(module): weakref.ref(module) for module in (aside[0], aside, loss)}
    calls = calls_of(hidden=[inside, anew], elsewhere=elsewhere)

    assert named(calls, {"inside": inside}) == [
        ("Sequential", None, False), ("Sequential.0", 0, False), ("inside", None, True), ("inside.0", 2, False),
    ]  # fmt: skip
    seen = calls_of((aside, None), elsewhere=elsewhere)
    assert [id(module) for module in seen.unseen()] == [id(aside[0])]


def test_modules_of_several_steps_correspond_by_class_structure_caller_and_position() -> None:
    model, kept = nn.Sequential(nn.ReLU()), nn.Linear(2, 2)
    made = [nn.Tanh(), nn.Tanh(), nn.Sequential(nn.Tanh()), nn.Tanh(), nn.Tanh(), nn.Sequential(nn.Tanh(), nn.ReLU())]
    step = [(model, None), (kept, None)]
    calls = calls_of(
        *(*step, (made[0], 0), (made[1], 0), (made[2], None)),
        *(*step, (made[3], 5), (made[4], 5), (made[5], None)),
        begins=[0, 5],
    )
    layers, places = name_layers(calls, {"model": model})
    assert [layer.name for layer in layers] == [
        *("model", "model.0", "model.(Tanh)", "model.(Tanh) (2)", "Linear", "Sequential", "Sequential.0"),
        *("Sequential (2)", "Sequential (2).0", "Sequential (2).1"),
    ]
    assert [places[id(module)] for module in made] == [2, 3, 5, 2, 3, 7]
    calls.begins = [0]  # all in one step
    assert len(name_layers(calls, {"model": model})[0]) == 12


class Parallel(nn.parallel.DistributedDataParallel):
    """Has the settings of torch's class without a process group."""

    def __init__(self, logged: Any) -> None:
        nn.Module.__init__(self)
        self.find_unused_parameters, self.static_graph, self.bucket_bytes_cap, self.logged = True, False, 25.0, logged

    def _get_ddp_logging_data(self) -> Any:
        return self.logged


@pytest.mark.parametrize(
    ("logged", "unused"), [({"unused_parameter_size": 64}, 64), ({"unused_parameter_size": "?"}, 0), ({}, 0), (3, None)]
)
def test_a_parallel_model_has_its_settings_and_the_size_left_unused(logged: Any, unused: int | None) -> None:
    model, elsewhere, plain = Parallel(logged), Parallel({}), nn.Tanh()
    layers, places = name_layers(calls_of((model, None), (plain, None)), {"ddp": model})
    facts = {"name": "ddp", "find_unused_parameters": True, "static_graph": False, "bucket_bytes": 25}
    assert parallel_models(layers, places, [plain, model, elsewhere, model]) == [facts | {"unused_bytes": unused}]


def test_a_model_is_known_if_a_variable_holds_it_and_it_was_called() -> None:
    net, other, part, uncalled = three_linears(), nn.Tanh(), nn.ReLU(), nn.ReLU()
    calls = calls_of((net, None), (other, None), (part, 0), called_whole={id(net): True})
    namespace = {"net": net, "other": other, "same": net, "inner": net[0], "uncalled": uncalled}
    known = known_models(calls, namespace, *name_layers(calls, namespace))
    assert known == [{"name": "net", "called": True}, {"name": "other", "called": False}]


def test_own_tables_are_dense_and_not_shared() -> None:
    own, bag, sparse, shared, uncalled = (
        nn.Embedding(3, 2), nn.EmbeddingBag(3, 2), nn.Embedding(3, 2, sparse=True), nn.Embedding(3, 2),
        nn.Embedding(3, 2),
    )  # fmt: skip
    head = nn.Linear(2, 3)
    head.weight = shared.weight
    model = nn.Sequential(own, bag, sparse, shared, head)
    layers, places = name_layers(calls_of((model, None)), {"model": model})
    assert own_tables(layers, places, [model], {"uncalled": uncalled}) == ["model.0", "model.1"]
    tied = nn.Linear(2, 3)
    tied.weight = own.weight
    assert own_tables(layers, places, [model], {"tied": tied}) == ["model.1"]


def test_the_namespace_ignores_empty_closures_and_objects_that_are_no_functions() -> None:
    def step() -> None:
        print(later)

    assert namespace_of(step) == {}
    later = 1
    assert namespace_of(step) == {"later": 1}
    assert namespace_of(print) == {} or set(namespace_of(print)) == {"self"}


@pytest.mark.parametrize("model", [3, "net", [nn.ReLU(), None], {"a": 1}, nn.ReLU])
def test_an_object_that_is_not_a_model_is_refused_in_one_sentence(model: Any) -> None:
    with pytest.raises(
        TypeError, match=r"model must be a torch module, a list of modules or a dict of names to modules, not \w+\.$"
    ):
        chosen_models(model)


def test_models_are_given_alone_in_a_list_or_by_name() -> None:
    one, other = nn.ReLU(), nn.Tanh()
    assert chosen_models(None) == (None, {})
    assert chosen_models(one) == ([one], {})
    assert chosen_models((one, other)) == ([one, other], {})
    assert chosen_models({"a": one, "b": other}) == ([one, other], {"a": one, "b": other})


def test_a_module_whose_getattr_raises_has_a_layer() -> None:
    class Strict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def __getattr__(self, name: str) -> Any:
            if name in ("_modules", "_parameters", "_buffers"):
                raise AttributeError(name)
            return self.__dict__["_modules"][name]  # KeyError where there is none

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model, x = Strict(), torch.ones(2, 4)

    assert names_of(lambda: model(x)) == [("model", None), ("model.inner", 0)]


def uses_the_global_model() -> Tensor:
    return a_global_model(X)


def test_running_code_uses_its_own_variables_and_those_of_the_functions_that_it_calls() -> None:
    here, closed = object(), object()

    def inner() -> object:
        return closed

    found = variables_of(sys._getframe())
    assert (found["here"], found["inner"], found["closed"]) == (here, inner, closed)
    scope: dict[str, Any] = {"sys": sys, "variables_of": variables_of, "uses": uses_the_global_model, "X": "own"}
    exec("found = variables_of(sys._getframe()); used = uses, X", scope)
    assert scope["found"]["a_global_model"] is a_global_model
    assert scope["found"]["X"] == "own"  # before that of the function


def test_values_are_found_one_level_inside_of_public_variables() -> None:
    made = [nn.Identity() for _ in range(6)]
    namespace = {
        "one": made[0], "_private": made[1], "In": [made[1]], "by_key": {"a b": made[2]}, "rows": [0, made[3]],
        "pair": (made[4],), "holder": SimpleNamespace(part=made[5], deep=[made[1]]), "kind": nn.Identity, "number": 1,
    }  # fmt: skip
    assert [(name, made.index(value)) for name, value in named_values(namespace, nn.Module)] == [
        ("one", 0), ("by_key['a b']", 2), ("rows[1]", 3), ("pair[0]", 4), ("holder.part", 5)
    ]  # fmt: skip


def test_what_is_inside_of_values_is_reached() -> None:
    class Owner:
        def __init__(self) -> None:
            self.kept = ["in a method's object"]

        def method(self) -> None: ...

    def function(first: object, *, second: object) -> None: ...

    first, second, owner = ["first"], ["second"], Owner()
    found = list(reachable([functools.partial(function, first, second=second), owner.method]))
    for wanted in (function, first, second, owner, owner.kept):
        assert sum(value is wanted for value in found) == 1
    nested: Any = ["deepest"]
    levels = [nested := [nested] for _ in range(5)]
    assert any(value is levels[0] for value in reachable([levels[4]]))
    assert "deepest" not in list(reachable([levels[4]]))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


class Own(DataLoader[Any]):
    pass


def test_what_another_loader_of_the_same_samples_needs() -> None:
    rows = TensorDataset(torch.zeros(8, 2))
    known = {"dataset": "TensorDataset", "iterable": False}
    assert loader_facts(DataLoader(rows, batch_size=2, timeout=0)) == known | {
        "indexed": True,
        "same": ["batch_sampler"],
    }
    assert loader_facts(DataLoader(rows, batch_size=None)) == known | {
        "indexed": False,
        "same": ["batch_size", "sampler"],
    }
    assert loader_facts(DataLoader(rows, collate_fn=list)) == known | {
        "indexed": False, "same": ["batch_sampler", "collate_fn"]
    }  # fmt: skip
    assert loader_facts(Own(rows)) == known | {"indexed": False, "same": []}
    stream = {"dataset": "Stream", "iterable": True, "indexed": False}
    assert loader_facts(DataLoader(Stream(), batch_size=2)) == stream | {"same": ["batch_size"]}
    assert loader_facts(DataLoader(Stream(), batch_size=2, drop_last=True)) == stream | {
        "same": ["batch_size", "drop_last"]
    }  # fmt: skip
