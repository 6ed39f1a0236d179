"""Whether two steps return the same: tensors and numbers, in whatever nest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from numbers import Integral, Number
from typing import Any, NamedTuple

import numpy as np
import torch

#: Largest difference, relative to the largest value, that rounding in another order explains, by the dtype of what is
#: compared. What has none of these, such as an integer, has to be equal.
TOLERANCES = {"float64": 1e-6, "float32": 1e-4, "float16": 2e-2, "bfloat16": 2e-2}
_COMPLEX = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
#: A number in Python mostly comes out of a tensor of this dtype.
_OF_NUMBERS = "float32"


class Difference(NamedTuple):
    """How one part of a result differs.

    Attributes
    ----------
    relative : float
        The largest difference by the largest value; infinite where the two cannot be compared.
    words : str
        What is different.
    tolerance : float
        What rounding explains, by the coarser of the two dtypes.
    dtype : str
        That dtype; empty for what has to be equal.
    """

    relative: float
    words: str
    tolerance: float = 0.0
    dtype: str = ""


def disagreement(first: Any, second: Any, tolerance: float, where: str = "the result") -> str:
    """How `second` differs from `first`, in words; empty where it does not by more than `tolerance`.

    Numbers and tensors agree where no element differs by more than `tolerance` times the largest magnitude in `first`;
    all else has to be equal.
    """
    return next((part.words for part in differences(first, second, where) if part.relative > tolerance), "")


def worst_difference(first: Any, second: Any, tolerance: float | None = None) -> Difference | None:
    """The part of two results that lies farthest beyond `tolerance`, by default beyond that of its own dtype.

    ``None`` where neither holds anything to compare.
    """
    parts = [
        part if tolerance is None else part._replace(tolerance=tolerance)
        for part in differences(first, second, "the result")
    ]
    return max(parts, key=_excess, default=None)


def differences(first: Any, second: Any, where: str) -> Iterator[Difference]:
    """How each part of `second` differs from that of `first`."""
    first, second = _as_tensor(first), _as_tensor(second)
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        yield _of_tensors(first, second, where)
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        if first.keys() != second.keys():
            yield Difference(math.inf, f"{where} has other keys")
            return
        for key in first:
            yield from differences(first[key], second[key], f"{where}[{key!r}]")
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        if len(first) != len(second):
            yield Difference(math.inf, f"{where} has {len(second)} parts instead of {len(first)}")
            return
        for place, (a, b) in enumerate(zip(first, second, strict=True)):
            yield from differences(a, b, f"{where}[{place}]")
    elif _is_number(first) and _is_number(second):
        whole = isinstance(first, Integral) and isinstance(second, Integral)
        dtype = "" if whole else _OF_NUMBERS
        yield _of_tensors(torch.tensor(first), torch.tensor(second), where)._replace(
            tolerance=TOLERANCES.get(dtype, 0.0), dtype=dtype
        )
    else:
        same = type(first) is type(second) and (first is second or bool(first == second))
        words = "" if same else f"{where} is {type(second).__name__} and not the same {type(first).__name__}"
        yield Difference(0.0 if same else math.inf, words)


def holds_numbers(value: Any) -> bool:
    """Whether a result holds a tensor or a number to compare."""
    if isinstance(value, Mapping):
        return any(map(holds_numbers, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_numbers, value))
    return isinstance(_as_tensor(value), torch.Tensor) or _is_number(value)


def _as_tensor(value: Any) -> Any:
    """An array of numbers as a tensor; all else as it is."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.dtype.itemsize <= 16:
        return torch.from_numpy(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="))))
    return value


def _excess(part: Difference) -> float:
    if part.tolerance > 0:
        return part.relative / part.tolerance
    return math.inf if part.relative > 0 else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _of_tensors(first: torch.Tensor, second: torch.Tensor, where: str) -> Difference:
    if first.shape != second.shape:
        return Difference(math.inf, f"{where} has the shape {tuple(second.shape)} instead of {tuple(first.shape)}")
    dtype = max((_real_name(first), _real_name(second)), key=lambda name: TOLERANCES.get(name, 0.0))
    about = (TOLERANCES.get(dtype, 0.0), dtype if dtype in TOLERANCES else "")
    if first.numel() == 0:
        return Difference(0.0, "", *about)
    wide = torch.complex128 if first.is_complex() or second.is_complex() else torch.float64
    a, b = (value.detach().to("cpu", wide) for value in (first, second))
    missing = torch.isnan(a) != torch.isnan(b)
    if bool(missing.any()):
        return Difference(math.inf, f"{where} is not a number in {int(missing.sum()):,} other places", *about)
    worst = float(torch.nan_to_num(torch.where(a == b, torch.zeros_like(a), a - b).abs(), nan=0.0).max())
    scale = float(torch.nan_to_num(a.abs(), nan=0.0).max())
    relative = worst / scale if scale > 0 else math.inf if worst else 0.0
    return Difference(relative, f"{where} differs by up to {relative:.2g} of the largest value", *about)


def _real_name(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return _COMPLEX.get(name, name)
