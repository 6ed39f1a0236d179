"""Compare what two steps return: tensors and numbers, however nested."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from numbers import Integral, Number
from typing import Any, NamedTuple

import numpy as np
import torch

#: Largest difference, relative to the largest value, that a different order of rounding explains, by dtype. Everything
#: else, such as integers, must be equal.
TOLERANCES = {"float64": 1e-6, "float32": 1e-4, "float16": 2e-2, "bfloat16": 2e-2}
#: A Python number usually comes from a tensor of this dtype.
_OF_NUMBERS = "float32"


class Difference(NamedTuple):
    """How one part of a result differs."""

    relative: float  # largest difference divided by the largest value; infinite if structure or type differ
    words: str  # description of the difference
    tolerance: float = 0.0  # difference that rounding explains, for the coarser of the two dtypes
    dtype: str = ""  # that dtype; empty if the values must be equal
    known: bool = True  # whether the two could be compared; if not, `words` says why


def disagreement(first: Any, second: Any, tolerance: float, where: str = "the result") -> str:
    """Describe how `second` differs from `first`; empty if by no more than `tolerance`.

    Numbers and tensors agree if no element differs by more than `tolerance` times the largest finite magnitude in
    `first` and non-finite values are the same; everything else must be equal. What cannot be compared is reported too.
    """
    parts = list(differences(first, second, where))
    off = [part.words for part in parts if part.known and part.relative > tolerance]
    return next(iter(off or [part.words for part in parts if not part.known]), "")


def worst_difference(first: Any, second: Any, tolerance: float | None = None) -> Difference | None:
    """The part of two results that exceeds `tolerance` the most, by default that of its own dtype.

    If none exceeds it, a part that could not be compared. ``None`` if there is nothing to compare.
    """
    parts = [
        part if tolerance is None else part._replace(tolerance=tolerance)
        for part in differences(first, second, "the result")
    ]
    return max(parts, key=_excess, default=None)


def differences(first: Any, second: Any, where: str) -> Iterator[Difference]:
    """Compare each part of `second` with that of `first`."""
    try:
        first, second = _as_tensors(first, second)
        if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
            yield _of_tensors(first, second, where)
            return
    except (RuntimeError, TypeError, ValueError) as error:  # a layout or dtype that lacks these operations
        yield _unknown(where, type(error).__name__)
        return
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if first.keys() != second.keys():
            yield Difference(math.inf, f"{where} has different keys")
            return
        for key in first:
            yield from differences(first[key], second[key], f"{where}[{key!r}]")
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        if len(first) != len(second):
            yield Difference(math.inf, f"{where} has {len(second)} elements instead of {len(first)}")
            return
        for place, (a, b) in enumerate(zip(first, second, strict=True)):
            yield from differences(a, b, f"{where}[{place}]")
    elif _has_fields(first) and type(first) is type(second):
        for name in (field.name for field in dataclasses.fields(first)):
            yield from differences(getattr(first, name, None), getattr(second, name, None), f"{where}.{name}")
    elif _is_number(first) and _is_number(second):
        whole = isinstance(first, Integral) and isinstance(second, Integral)
        dtype = "" if whole else _OF_NUMBERS
        yield _of_tensors(torch.tensor(first), torch.tensor(second), where)._replace(
            tolerance=TOLERANCES.get(dtype, 0.0), dtype=dtype
        )
    else:
        yield _of_others(first, second, where)


def _of_others(first: Any, second: Any, where: str) -> Difference:
    kind = type(first).__name__
    if type(first) is not type(second):
        return Difference(math.inf, f"{where} has type {type(second).__name__} instead of {kind}")
    if first is second:
        return Difference(0.0, "")
    by_place: Any = object.__eq__
    if type(first).__eq__ is by_place:
        return _unknown(where, kind)
    try:
        same = bool(first == second)
    except Exception:  # it does not support comparison
        return _unknown(where, kind)
    return Difference(0.0, "") if same else Difference(math.inf, f"{where} differs ({kind})")


def holds_numbers(value: Any) -> bool:
    """Whether a result contains a tensor or a number to compare."""
    if isinstance(value, Mapping):
        return any(map(holds_numbers, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_numbers, value))
    if _has_fields(value):
        return any(holds_numbers(getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return isinstance(value, torch.Tensor) or _is_number(value) or _is_numeric(value)


def _as_tensors(first: Any, second: Any) -> tuple[Any, Any]:
    """Convert numeric arrays to tensors, and a number next to a scalar tensor; leave everything else as it is."""
    first, second = _as_tensor(first), _as_tensor(second)
    if isinstance(first, torch.Tensor) and first.dim() == 0 and _is_number(second):
        return first, torch.tensor(second)
    if isinstance(second, torch.Tensor) and second.dim() == 0 and _is_number(first):
        return torch.tensor(first), second
    return first, second


def _as_tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.is_quantized:
            return value.dequantize()
        if value.is_nested:
            return list(value.unbind())
        return value if value.layout == torch.strided else value.to_dense()
    if _is_numeric(value):
        return torch.from_numpy(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="))))
    return value


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.dtype.itemsize <= 16


def _has_fields(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _unknown(where: str, kind: str) -> Difference:
    return Difference(0.0, f"{where} cannot be compared ({kind})", known=False)


def _excess(part: Difference) -> float:
    if not part.known:
        return 1.0  # ranks above what agrees and below what does not
    if part.tolerance > 0:
        return part.relative / part.tolerance
    return math.inf if part.relative > 0 else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _of_tensors(first: torch.Tensor, second: torch.Tensor, where: str) -> Difference:
    if first.shape != second.shape:
        return Difference(math.inf, f"{where} has shape {tuple(second.shape)} instead of {tuple(first.shape)}")
    dtypes = [str(value.dtype.to_real()).removeprefix("torch.") for value in (first, second)]
    dtype = max(dtypes, key=lambda name: TOLERANCES.get(name, 0.0))
    about = (TOLERANCES.get(dtype, 0.0), dtype if dtype in TOLERANCES else "")
    if first.numel() == 0:
        return Difference(0.0, "", *about)
    wide = torch.complex128 if first.is_complex() or second.is_complex() else torch.float64
    a, b = (value.detach().to("cpu", wide) for value in (first, second))
    odd = torch.isnan(a) & torch.isnan(b)
    if bool(odd.all()):
        return Difference(0.0, f"{where} is NaN in both", *about, known=False)
    finite = torch.isfinite(a) & torch.isfinite(b)
    if other := int((~finite & ~odd & (a != b)).sum()):
        places = "1 place" if other == 1 else f"{other:,} places"
        return Difference(math.inf, f"{where} differs in {places} where one value is infinite or NaN", *about)
    # Values infinite in both would make every other difference look small.
    worst, scale = (float(torch.where(finite, value.abs(), 0.0).max()) for value in (a - b, a))
    if scale == 0 and worst > 0:
        return Difference(math.inf, f"{where} differs by up to {worst:.2g} where the first is all zeros", *about)
    relative = worst / scale if scale > 0 else 0.0
    return Difference(relative, f"{where} differs by up to {relative:.2g} times the largest value", *about)
