"""A finding names a lever only if `perfnb.try_levers` accepts it for the step on which the finding fires."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from perfnb.findings.rules.optimizer import lever_for
from perfnb.remedies.levers import by_name
from perfnb.remedies.subject import find_subject
from perfnb.step.namespace import named_parts, namespace_of
from perfnb.step.refusals import without_switch

JUDGED = {"attention", "autocast", "float32", "compile", "checkpointing", "loader_workers"}
MADE = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))


class Own(torch.optim.SGD):
    """Not torch's own class."""


class Moving(DataLoader[Any]):
    """A loader that does more than torch's."""


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([MADE[place] for place in range(64)])


def made(
    model: Callable[[], nn.Module] = lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)),
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda given: torch.optim.SGD(given, lr=0.1),
    loader: Callable[[], Any] = lambda: DataLoader(MADE, batch_size=4),
) -> tuple[Callable[[Any], None], Any]:
    net = model()
    opt, batches = optimizer(net.parameters()), loader()
    kind = next(net.parameters()).dtype

    def step(batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        opt.zero_grad()
        nn.functional.cross_entropy(net(y if isinstance(net, Table) else x.to(kind)), y).backward()
        opt.step()

    return step, batches


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 3, sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        return found


def compiled() -> nn.Module:
    net = nn.Linear(8, 3)
    net.compile(backend="eager")
    return net


class Switchable(nn.Linear):
    """A stand-in for a model of Hugging Face."""

    config = SimpleNamespace(_attn_implementation="eager")

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name


class Adapter(nn.Module):
    """A wrapper that passes attributes on, as those of PEFT do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Switchable(8, 3)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["inner"], name)


def test_wrapped_models_take_the_switch_of_attention() -> None:
    assert without_switch([nn.Linear(8, 3), Adapter()]) == ""


STEPS: dict[str, Callable[[], tuple[Callable[[Any], None], Any]]] = {
    "plain": made,
    "one layer": lambda: made(lambda: nn.Linear(8, 3)),
    "float64": lambda: made(lambda: nn.Linear(8, 3).double()),
    "bfloat16": lambda: made(lambda: nn.Linear(8, 3).bfloat16()),
    "sparse": lambda: made(Table),
    "compiled": lambda: made(compiled),
    "fused": lambda: made(optimizer=lambda given: torch.optim.SGD(given, lr=0.1, fused=True)),
    "another optimizer": lambda: made(optimizer=lambda given: torch.optim.RMSprop(given, foreach=False)),
    "own optimizer": lambda: made(optimizer=lambda given: Own(given, lr=0.1)),
    "workers": lambda: made(loader=lambda: DataLoader(MADE, batch_size=4, num_workers=1)),
    "another loader": lambda: made(loader=lambda: Moving(MADE, batch_size=4)),
    "a stream": lambda: made(loader=lambda: DataLoader(Stream(), batch_size=4)),
    "a list": lambda: made(loader=lambda: [MADE[:4]]),
}


@pytest.mark.parametrize("name", STEPS)
def test_levers_named_by_findings_accept_the_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.remedies.levers.compiling._compiler", lambda: True)  # the machine need not have one
    step, batches = STEPS[name]()
    subject, levers = find_subject(step, batches, namespace_of(step)), by_name()
    called = [part for model in subject.models.values() for part in model.modules()]
    parts = named_parts(namespace_of(step), batches, called)
    facts: Any = SimpleNamespace(gpu=None)

    named = JUDGED - set(parts["refused"])
    updates = lever_for(facts, parts["optimizers"], [])

    accepted = {lever for lever in JUDGED if not levers[lever].refuses(subject)}
    assert named <= accepted
    assert not updates or levers[updates].refuses(subject) == ""
    if name != "compiled":  # of a compiled model less is known
        assert named == accepted
        assert bool(updates) != all(levers[f"{word}_optimizer"].refuses(subject) for word in ("fused", "foreach"))
