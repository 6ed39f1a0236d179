"""Whether two steps return the same: tensors and numbers, in whatever nest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Number
from typing import Any

import torch


def disagreement(first: Any, second: Any, tolerance: float, where: str = "the result") -> str:
    """How `second` differs from `first`, in words; empty where it does not by more than `tolerance`.

    Numbers and tensors agree where no element differs by more than `tolerance` times the largest magnitude in `first`;
    all else has to be equal.
    """
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return _of_tensors(first, second, tolerance, where)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if first.keys() != second.keys():
            return f"{where} has other keys"
        pairs = [(first[key], second[key], f"{where}[{key!r}]") for key in first]
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        if len(first) != len(second):
            return f"{where} has {len(second)} parts instead of {len(first)}"
        pairs = [(a, b, f"{where}[{place}]") for place, (a, b) in enumerate(zip(first, second, strict=True))]
    elif _is_number(first) and _is_number(second):
        return _of_tensors(torch.tensor(first), torch.tensor(second), tolerance, where)
    else:
        same = type(first) is type(second) and (first is second or bool(first == second))
        return "" if same else f"{where} is {type(second).__name__} and not the same {type(first).__name__}"
    return next(filter(None, (disagreement(a, b, tolerance, place) for a, b, place in pairs)), "")


def holds_numbers(value: Any) -> bool:
    """Whether a result holds a tensor or a number to compare."""
    if isinstance(value, Mapping):
        return any(map(holds_numbers, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_numbers, value))
    return isinstance(value, torch.Tensor) or _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _of_tensors(first: torch.Tensor, second: torch.Tensor, tolerance: float, where: str) -> str:
    if first.shape != second.shape:
        return f"{where} has the shape {tuple(second.shape)} instead of {tuple(first.shape)}"
    if first.numel() == 0:
        return ""
    wide = torch.complex128 if first.is_complex() or second.is_complex() else torch.float64
    a, b = (value.detach().to("cpu", wide) for value in (first, second))
    missing = torch.isnan(a) != torch.isnan(b)
    if bool(missing.any()):
        return f"{where} is not a number in {int(missing.sum()):,} other places"
    worst = float(torch.nan_to_num(torch.where(a == b, torch.zeros_like(a), a - b).abs(), nan=0.0).max())
    scale = float(torch.nan_to_num(a.abs(), nan=0.0).max())
    relative = worst / scale if scale > 0 else math.inf if worst else 0.0
    return "" if relative <= tolerance else f"{where} differs by up to {relative:.2g} of the largest value"
