"""A function over the tensors in what steps and models return: containers are copied, what is not data stays."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from perfnb.bench.rounds import mapped


@dataclass(frozen=True)
class Frozen:
    logits: Tensor
    inner: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    logits: Tensor


class Plain:
    def __init__(self) -> None:
        self.hidden, self.name = (torch.ones(2),), "x"


class Fixed(Plain):
    def __copy__(self) -> Any:
        raise TypeError


def doubled(value: Any) -> Any:
    return mapped(lambda part: part * 2, value)


def test_tensors_and_arrays_are_reached_in_containers_and_objects() -> None:
    frozen = Frozen(torch.ones(2), [Slotted(torch.ones(1))])
    given = [frozen, Plain(), OrderedDict(a=np.ones(3)), (torch.ones(1), None, 7)]
    found = doubled(given)

    assert [type(each) for each in found] == [Frozen, Plain, OrderedDict, tuple]
    assert found[0].logits.tolist() == [2, 2]
    assert found[0].inner[0].logits.tolist() == [2]
    assert found[1].hidden[0].tolist() == [2, 2]
    assert found[2]["a"].tolist() == [2, 2, 2]
    assert found[3][1:] == (None, 7)
    assert frozen.logits.tolist() == [1, 1]
    assert frozen.inner[0].logits.tolist() == given[1].hidden[0][:1].tolist() == [1]


def test_modules_classes_and_what_cannot_be_copied_stay_as_they_are() -> None:
    given = [nn.Linear(1, 1), Plain, MappingProxyType({"a": torch.ones(1)}), Fixed(), "text", 3]

    assert all(one is other for one, other in zip(doubled(given), given, strict=True))
