"""What the user calls the optimizer and the loader, and what is known of them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfnb
from perfnb.step.namespace import name_of_batches, named_parts
from perfnb.step.refusals import (
    compiled_already,
    refused_levers,
    without_blocks,
    without_dtype,
    without_plain_loader,
    without_switch,
)

train_batches = [torch.zeros(2, 4)]


def parts_of(step: Any, batches: Any = None) -> dict[str, Any]:
    p = perfnb.profile_step(step, batches, warmup=1, steps=2, traced=1, memory=False, flops=False)
    parts: dict[str, Any] = p.meta["parts"]
    json.dumps(parts)
    return parts


def test_optimizer_and_loader_are_known_by_the_names_that_the_user_gave() -> None:
    net = nn.Linear(4, 3)
    adam = torch.optim.Adam(net.parameters(), fused=True)
    other = torch.optim.SGD(nn.Linear(4, 3).parameters(), lr=0.1)  # of a model that is not called
    loader = DataLoader(TensorDataset(torch.zeros(8, 4)), batch_size=2)

    def step(batch: Any) -> None:
        loader.dataset, other.state  # the step sees them  # noqa: B018
        net(batch[0]).sum().backward()
        adam.step()

    parts = parts_of(step, loader)

    assert [entry["name"] for entry in parts["optimizers"]] == ["adam"]
    assert parts["optimizers"][0] | {"class": "Adam", "tensors": 2, "fused": True} == parts["optimizers"][0]
    told = {"elements": 15, "groups": 1, "at_once": []}  # it is fused already
    assert parts["optimizers"][0] | told == parts["optimizers"][0]
    loader_facts = parts["loader"]
    assert (loader_facts["name"], loader_facts["num_workers"], loader_facts["batch_size"]) == ("loader", 0, 2)
    known = {"dataset": "TensorDataset", "iterable": False, "indexed": True, "direct": True, "same": ["batch_sampler"]}
    assert loader_facts | known == loader_facts


def test_an_optimizer_is_only_offered_the_arguments_that_it_takes() -> None:
    net = nn.Linear(4, 3)

    class Own(torch.optim.SGD):
        pass

    made = {
        "plain": torch.optim.Adam(net.parameters(), foreach=False),
        "fused": torch.optim.SGD(net.parameters(), fused=True),
        "lists": torch.optim.RMSprop(net.parameters()),
        "own": Own(net.parameters()),
        "differentiable": torch.optim.SGD(net.parameters(), differentiable=True),
    }

    def told(modules: list[nn.Module]) -> dict[str, list[str]]:
        parts = named_parts({**made, "again": made["plain"]}, None, modules)["optimizers"]
        return {part["name"]: part["at_once"] for part in parts}

    assert told([net]) == {
        "plain": ["fused", "foreach"],
        "fused": [],
        "lists": ["foreach"],
        "own": ["foreach"],  # a class that the user wrote may not take the fused kernel
        "differentiable": [],
    }
    assert not any(told([net, nn.Embedding(3, 2, sparse=True)]).values())


def test_the_loader_behind_an_enumeration_is_found_where_it_is_the_only_one() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(8, 4)), batch_size=2)

    parts = named_parts({"loader": loader}, enumerate(loader), [])

    assert (parts["loader"]["name"], parts["loader"]["class"]) == ("loader", "DataLoader")
    assert named_parts({"a": loader, "b": DataLoader([1])}, enumerate(loader), [])["loader"]["class"] == "enumerate"
    assert named_parts({"loader": loader}, None, [])["loader"] is None


def test_batches_in_a_global_variable_have_its_name() -> None:
    def step(batch: torch.Tensor) -> torch.Tensor:
        return batch.sum()

    assert name_of_batches(step, train_batches) == {"train_batches": train_batches}
    assert name_of_batches(step, [torch.ones(1)]) == {}
    assert name_of_batches(print, None) == {}
    assert parts_of(step, train_batches)["loader"] == {"name": "train_batches", "class": "list"}


def test_modules_that_the_step_sees_are_listed() -> None:
    import os

    assert named_parts({"torch": torch, "os": os, "gc": 3}, None, [])["imports"] == ["torch", "os"]


class OwnLoader(DataLoader[Any]):
    pass


def test_why_levers_do_not_apply() -> None:
    rows = TensorDataset(torch.zeros(8, 4))
    plain, working = DataLoader(rows), DataLoader(rows, num_workers=1)
    assert without_plain_loader(plain, plain) == ""
    assert without_plain_loader(plain, enumerate(plain)) == "the step's batches do not come directly from the loader"
    assert without_plain_loader(working, working) == "the loader already has workers"
    assert without_plain_loader([1], [1]) == "no DataLoader feeds the step (pass it as batches, or as loader=)"
    assert without_plain_loader(own := OwnLoader(rows), own) == (
        "perfnb cannot copy a OwnLoader, because it may keep track of its position"
    )
    net, single = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2))
    assert without_dtype(torch.float32, net.parameters()) == ""
    assert without_dtype(torch.float64, net.parameters()) == "the model is not in float64"
    assert (without_blocks([net]), bool(without_blocks([single]))) == ("", True)
    assert compiled_already(net.modules()) == ""
    net._compiled_call_impl = lambda *_: None  # type: ignore[method-assign]
    assert compiled_already(net.modules()) == "the model is already compiled"


class Switched(nn.Linear):
    """A model of Hugging Face, as far as levers are concerned."""

    def __init__(self, implementation: str) -> None:
        super().__init__(2, 2)
        self.config = SimpleNamespace(_attn_implementation=implementation)

    def set_attn_implementation(self, _: str) -> None: ...


def test_attention_is_switched_unless_all_of_it_is_fused() -> None:
    eager, fused = Switched("eager"), Switched("sdpa")
    assert without_switch([eager, nn.Linear(1, 1)]) == without_switch([eager, fused]) == ""
    assert without_switch([fused]) == "attention is already fused"
    assert without_switch([nn.Linear(1, 1)]).startswith("perfnb can switch only Hugging Face models")
    levers = ["autocast", "checkpointing", "compile", "compile_max_autotune", "compile_reduce_overhead", "float32"]
    assert refused_levers([], None) == ["attention", *levers, "loader_workers"]
    loader = DataLoader(TensorDataset(torch.zeros(8, 4)))
    assert refused_levers([eager], loader) == ["checkpointing", "float32"]
