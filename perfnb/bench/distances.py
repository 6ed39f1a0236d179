"""Measure the differences between results.

The return values of two steps are compared part by part, and named results are compared with their true values.
Differences are always relative to the size of the reference. To check whether two results agree, the size is the
largest value, because every element counts. To compare the rounding errors of two results, the size is the root mean
square, because individual errors vary by chance.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from perfnb.bench.values import TOLERANCES, Errors

#: If a result's numbers are this many times smaller than the largest of their kind, differences are relative to that
#: size.
_SMALL = 1e-3
#: Numbers below this share of that size count as zero.
_NOISE = 1e-3
Results = dict[str, Tensor | None]


class Difference(NamedTuple):
    """The difference in one part of a result."""

    relative: float  # largest difference divided by the largest value, or infinity if structure or type differ
    words: str  # description of the difference
    dtype: str = ""  # the less precise of the two dtypes, or empty if the values must be equal
    known: bool = True  # whether the two parts could be compared; if not, `words` contains the reason

    @property
    def tolerance(self) -> float:
        """The largest difference that rounding can explain."""
        return TOLERANCES.get(self.dtype, 0.0)


def worst_difference(first: Any, second: Any, tolerance: float | None = None) -> Difference:
    """Return the part of two results that exceeds `tolerance` (by default its dtype's tolerance) the most.

    If no part exceeds it, return a part that could not be compared. If the results contain no numbers, the difference
    is unknown.
    """

    def excess(part: Difference) -> float:
        allowed = part.tolerance if tolerance is None else tolerance
        if not part.known:
            return 1.0  # ranks above parts that agree and below parts that do not
        if allowed > 0:
            return part.relative / allowed
        return math.inf if part.relative > 0 else 0.0

    parts = [] if first is None or second is None else list(differences(first, second))
    if not any(part.dtype or part.words for part in parts):
        return Difference(0.0, "a step does not return any tensor or number", known=False)
    return max(parts, key=excess)


def differences(first: Any, second: Any, where: str = "the result") -> Iterator[Difference]:
    """Compare tensors, numbers and arrays in `second` with those in `first`, however they are nested.

    All other parts must be equal.
    """
    try:
        first, second = _as_tensors(first, second)
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            yield _of_tensors(first, second, where)
            return
    except (RuntimeError, TypeError, ValueError) as error:  # a layout, dtype or kind of number without these operations
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
    elif dataclasses.is_dataclass(first) and not isinstance(first, type) and type(first) is type(second):
        for name in (field.name for field in dataclasses.fields(first)):
            yield from differences(getattr(first, name, None), getattr(second, name, None), f"{where}.{name}")
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


def _unknown(where: str, kind: str) -> Difference:
    return Difference(0.0, f"{where} cannot be compared ({kind})", known=False)


def _as_tensors(first: Any, second: Any) -> tuple[Any, Any]:
    """Convert arrays to tensors, and numbers as well if the other value is a number or a one-element tensor."""
    values = [_as_tensor(value) for value in (first, second)]
    single = [_is_number(value) or (isinstance(value, Tensor) and value.dim() == 0) for value in values]
    if all(single):
        values = [torch.tensor(value) if _is_number(value) else value for value in values]
    return values[0], values[1]


def _as_tensor(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.is_quantized:
            return value.dequantize()
        return list(value.unbind()) if value.is_nested else value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.dtype.itemsize <= 16:
        return torch.from_numpy(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="))))
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _of_tensors(first: Tensor, second: Tensor, where: str) -> Difference:
    dtypes = [str(value.dtype.to_real()).removeprefix("torch.") for value in (first, second)]
    dtype = max(dtypes, key=lambda name: TOLERANCES.get(name, 0.0))
    difference = _distance(_wide(first), _wide(second), where)
    return difference._replace(dtype=dtype if dtype in TOLERANCES else "")


def _largest(value: Tensor) -> float:
    return float(value.abs().max())


def _mean_square_root(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value)) / math.sqrt(value.numel())


def _distance(
    first: Tensor, second: Tensor, where: str = "", size: Callable[[Tensor], float] = _largest, floor: float = 0.0
) -> Difference:
    """Return the difference relative to the size of the first result, or relative to `floor` if that is larger.

    Elements that are infinite in both results are ignored. If only one of two elements is finite, the distance is
    infinite.
    """
    if first.shape != second.shape:
        return Difference(math.inf, f"{where} has shape {tuple(second.shape)} instead of {tuple(first.shape)}")
    if first.numel() == 0:
        return Difference(0.0, "")
    both_nan = torch.isnan(first) & torch.isnan(second)
    if bool(both_nan.all()):
        return Difference(0.0, f"{where} is NaN in both", known=False)
    finite = torch.isfinite(first) & torch.isfinite(second)
    if odd := int((~finite & ~both_nan & (first != second)).sum()):
        places = "1 place" if odd == 1 else f"{odd:,} places"
        return Difference(math.inf, f"{where} differs in {places} where one value is infinite or NaN")
    # Values that are infinite in both tensors would make all other differences look small.
    worst, scale = (size(torch.where(finite, value, 0.0)) for value in (first - second, first))
    if max(scale, floor) == 0 and worst > 0:
        return Difference(math.inf, f"{where} differs by up to {worst:.2g} where the first is all zeros")
    relative = worst / max(scale, floor) if worst > 0 else 0.0
    return Difference(relative, f"{where} differs by up to {relative:.2g} times the largest value")


def _wide(tensor: Tensor) -> Tensor:
    """Convert a tensor to float64 on the CPU."""
    dense = tensor.detach()
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return (dense if dense.layout is torch.strided else dense.to_dense()).to("cpu", dtype)


def kept(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU in float64."""
    return _wide(tensor).clone()


def errors_between(
    own: Results, found: Results, truth: Results, *, random: bool = False, kind_of: Callable[[str], str] = str
) -> Errors:
    """Return how far the results are from the true values, and how far the original's results are from them.

    Parameters
    ----------
    random : bool
        Whether the original draws random numbers.
    kind_of : callable
        Maps a result's name to its kind. Results of the same kind are similar in size.
    """
    floors = _floors(truth, kind_of)
    return Errors(
        equal=not differ(own, found),
        own={name: _error(own[name], truth.get(name), floors[kind_of(name)]) for name in own},
        other={name: _error(found.get(name), truth.get(name), floors[kind_of(name)]) for name in own},
        not_finite=tuple(name for name in own if _is_finite(own[name]) and not _is_finite(found.get(name))),
        vanished=tuple(
            name
            for name in own
            if _is_above(own[name], _NOISE * floors[kind_of(name)]) and not _is_above(found.get(name), 0.0)
        ),
        random=random,
    )


def _floors(truth: Results, kind_of: Callable[[str], str]) -> dict[str, float]:
    """Return, for each kind, the size below which numbers are so much smaller than the others that they may be noise.

    For example, the true gradient of a bias before a batch norm is zero. In float32, it consists only of the rounding
    errors of numbers that cancel.
    """
    floors: dict[str, float] = defaultdict(float)
    for name, value in truth.items():
        if value is not None:
            floors[kind_of(name)] = max(floors[kind_of(name)], _SMALL * _finite_size(value))
    return floors


def _error(found: Tensor | None, truth: Tensor | None, floor: float) -> float:
    """Return the distance from the true value, which is infinite if either of the two is missing."""
    if found is None or truth is None:
        return 0.0 if found is truth else math.inf
    return _distance(truth, found, size=_mean_square_root, floor=floor).relative


def _finite_size(value: Tensor) -> float:
    return _mean_square_root(torch.where(torch.isfinite(value), value, 0.0)) if value.numel() else 0.0


def differ(a: Results, b: Results) -> bool:
    """Return whether any results differ in any bit. NaN counts as equal to NaN."""
    return a.keys() != b.keys() or any(not _same(a[name], b[name]) for name in a)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _is_finite(value: Tensor | None) -> bool:
    return value is None or bool(torch.isfinite(value).all())


def _is_above(value: Tensor | None, size: float) -> bool:
    return value is not None and _finite_size(value) > size
