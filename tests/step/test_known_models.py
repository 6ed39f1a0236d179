"""Which models a variable holds, and which of them are compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.step.refusals import compiled_already, is_compiled, is_compiled_in_place

QUICK: dict[str, Any] = {"warmup": 1, "steps": 2, "traced": 1, "memory": False, "flops": False}


class Decoder(nn.Module):
    """A model that is called by a method of its own, as those with ``generate`` are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 4), nn.Linear(4, 20, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(ids))
        return out

    @torch.no_grad()
    def generate(self, ids: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
        return ids


IDS = torch.zeros(1, 3, dtype=torch.long)
net = Decoder()


def parts(step: Any, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = perfnb.profile_step(step, **QUICK, **options).meta["parts"]
    return found


def test_a_name_given_with_a_model_is_not_a_variable() -> None:
    assert parts(lambda: net(IDS), model={"mine": net})["models"] == []
    assert parts(lambda: net(IDS), model={"net": net})["models"] == [{"name": "net", "called": True}]


@pytest.mark.slow
def test_a_model_whose_method_is_called_is_compiled_in_place_alone() -> None:
    """What advice on compiling rests on: torch.compile(m) compiles nothing of m.generate, and m.compile() does."""
    graphs: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    wrapped: Any = torch.compile(Decoder(), backend=counting)
    wrapped.generate(IDS)
    assert graphs == []
    in_place = Decoder()
    in_place.compile(backend=counting)
    in_place.generate(IDS)
    assert graphs
    torch.compiler.reset()


def in_place(module: nn.Module) -> nn.Module:
    module.compile()
    return module


COMPILED: dict[str, tuple[Callable[[nn.Module], Any], bool, bool]] = {
    "plain": (lambda module: module, False, False),
    "wrapper": (torch.compile, True, False),
    "in place": (in_place, False, True),
    "part of a model": (lambda module: nn.Sequential(torch.compile(module)), False, False),
    "TorchScript": (torch.jit.script, True, False),
    "traced": (lambda module: torch.jit.trace(module, torch.ones(1, 4)), True, False),
}


@pytest.mark.parametrize("kind", COMPILED)
def test_what_is_compiled_is_not_offered_torch_compile(kind: str) -> None:
    make, hides, is_in_place = COMPILED[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        module = make(nn.Linear(4, 4))

    assert (is_compiled(module), is_compiled_in_place(module)) == (hides, is_in_place)
    assert compiled_already(module.modules()) == ("" if kind == "plain" else "the model is already compiled")
