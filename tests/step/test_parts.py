"""What the user calls the optimizer and the loader, and what is known of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfnb
from perfnb.step.namespace import name_of_batches, named_parts

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
    told = {"elements": 15, "groups": 1, "at_once": ["fused", "foreach"], "arguments": {}}
    assert parts["optimizers"][0] | told == parts["optimizers"][0]
    loader_facts = parts["loader"]
    assert (loader_facts["name"], loader_facts["num_workers"], loader_facts["batch_size"]) == ("loader", 0, 2)
    known = {"dataset": "TensorDataset", "iterable": False, "indexed": True, "direct": True, "same": ["batch_sampler"]}
    assert loader_facts | known == loader_facts


def test_settings_of_an_optimizer_are_those_that_differ_from_the_defaults() -> None:
    net = nn.Linear(4, 3)

    class Own(torch.optim.SGD):
        pass

    made = {
        "adam": torch.optim.Adam(net.parameters(), lr=0.001, betas=(0.8, 0.9), amsgrad=True),
        "tensor": torch.optim.SGD(net.parameters(), lr=torch.tensor(0.1), nesterov=True, momentum=0.9),
        "own": Own(net.parameters(), lr=0.5),
    }
    parts = named_parts(made, None, [net])["optimizers"]

    assert {part["name"]: part["arguments"] for part in parts} == {
        "adam": {"betas": (0.8, 0.9), "amsgrad": True},
        "tensor": {"nesterov": True, "momentum": 0.9},  # a rate in a tensor is not told
        "own": None,
    }


class Holder:
    """Anything that keeps an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


@pytest.mark.parametrize("made", ["in sight", "out of sight", "on a plateau", "gone"])
def test_an_optimizer_with_a_scheduler_is_found_once_and_known_to_follow_it(made: str) -> None:
    net = nn.Linear(4, 3)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    schedulers = torch.optim.lr_scheduler
    scheduler = schedulers.ReduceLROnPlateau(sgd) if made == "on a plateau" else schedulers.StepLR(sgd, step_size=3)
    names: dict[str, Any] = {"net": net, "sgd": sgd, **({"scheduler": scheduler} if made == "in sight" else {})}
    if made == "gone":
        del scheduler  # what it noted in the optimizer stays

    (part,) = named_parts(names, None, [net])["optimizers"]

    assert (part["name"], part["scheduled"]) == ("sgd", True)


def test_what_else_holds_an_optimizer_is_told() -> None:
    net = nn.Linear(4, 3)

    def held(names: dict[str, Any]) -> tuple[str, bool, list[str]]:
        (part,) = named_parts({"net": net, **names}, None, [net])["optimizers"]
        return part["name"], part["scheduled"], part["held_by"]

    assert held({"sgd": torch.optim.SGD(net.parameters(), lr=0.1)}) == ("sgd", False, [])
    holder = Holder(torch.optim.SGD(net.parameters(), lr=0.1))
    assert held({"trainer": holder}) == ("trainer.optimizer", False, [])  # a new one takes its place there
    assert held({"sgd": holder.optimizer}) == ("sgd", False, ["Holder"])
    assert held({"sgd": holder.optimizer, "both": [holder.optimizer]}) == ("sgd", False, ["both[0]", "Holder"])


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


@pytest.mark.slow
def test_pauses_of_the_garbage_collector_are_known_by_their_step() -> None:
    import gc

    count = [0]

    def step() -> None:
        count[0] += 1
        if count[0] in (3, 5):
            gc.collect()

    p = perfnb.profile_step(step, warmup=1, steps=8, traced=1, memory=False, flops=False)

    full = {int(step) for step, _ in p.timing.noise["gc_pauses"]}
    assert full >= {1, 3}  # of the timed steps, after one of warm-up
    assert all(ms >= 0 for _, ms in p.timing.noise["gc_pauses"])


def test_settings_that_are_no_plain_values_are_named() -> None:
    net = nn.Linear(4, 3)
    made = {"tensor": torch.optim.SGD(net.parameters(), lr=torch.tensor(0.1), momentum=0.9)}

    (part,) = named_parts(made, None, [net])["optimizers"]

    assert (part["arguments"], part["untold"]) == ({"momentum": 0.9}, ["lr"])


def test_modules_are_told_that_the_step_sees() -> None:
    import os

    assert named_parts({"torch": torch, "os": os, "gc": 3}, None, [])["imports"] == ["torch", "os"]
