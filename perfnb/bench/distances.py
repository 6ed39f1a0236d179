"""How far results are from the truth: tensors in float64 on the CPU, by name."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from perfnb.bench.values import Errors

#: Results of which the numbers are so many times smaller than the largest of their kind are judged by that size.
_SMALL = 1e-3
#: Below this share of that size they count as zero.
_NOISE = 1e-3
Results = dict[str, Tensor | None]


def errors_between(
    own: Results, found: Results, truth: Results, *, random: bool = False, kind_of: Callable[[str], str] = str
) -> Errors:
    """How far some results are from the truth, and how far the original's own are.

    Parameters
    ----------
    random : bool
        Whether the original draws random numbers.
    kind_of : callable
        The kind of a result by its name; those of one kind are of one size.
    """
    floors = _floors(truth, kind_of)
    pairs = {
        name: tuple(_error(each.get(name), truth.get(name), floors[kind_of(name)]) for each in (own, found))
        for name in own
    }
    return Errors(
        equal=not differ(own, found),
        own={name: pair[0] for name, pair in pairs.items()},
        other={name: pair[1] for name, pair in pairs.items()},
        not_finite=tuple(name for name in own if _is_finite(own[name]) and not _is_finite(found.get(name))),
        vanished=tuple(
            name
            for name in own
            if _is_above(own[name], _NOISE * floors[kind_of(name)]) and not _is_above(found.get(name), 0.0)
        ),
        random=random,
    )


def kept(tensor: Tensor) -> Tensor:
    """A copy in float64 on the CPU."""
    dense = tensor.detach()
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return (dense if dense.layout is torch.strided else dense.to_dense()).to("cpu", dtype).clone()


def _floors(truth: Results, kind_of: Callable[[str], str]) -> dict[str, float]:
    """By kind, the size of numbers that count as small beside the others: what is smaller may be nothing but noise.

    The gradient of a bias before a batch norm is zero, and in float32 the rounding of numbers that cancel.
    """
    largest: dict[str, float] = defaultdict(float)
    for name, value in truth.items():
        if value is not None and value.numel() and _is_finite(value):
            largest[kind_of(name)] = max(largest[kind_of(name)], _size(value))
    return defaultdict(float, {kind: _SMALL * size for kind, size in largest.items()})


def _size(value: Tensor) -> float:
    """Root mean square."""
    return float(torch.linalg.vector_norm(value)) / math.sqrt(max(1, value.numel()))


def _error(found: Tensor | None, truth: Tensor | None, floor: float) -> float:
    """Distance relative to the truth's size, or to the floor's; infinite if one of the two is missing."""
    if found is None or truth is None:
        return 0.0 if found is truth else float("inf")
    if found.shape != truth.shape:
        return float("inf")
    distance, scale = _size(found - truth), max(_size(truth), floor)
    return 0.0 if distance == 0 else distance / scale if scale > 0 else float("inf")


def differ(a: Mapping[str, Tensor | None], b: Mapping[str, Tensor | None]) -> bool:
    """Whether any result differs in any bit; NaN equals NaN."""
    if a.keys() != b.keys():
        return True
    return any(not _same(a[name], b[name]) for name in a)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _is_finite(value: Tensor | None) -> bool:
    return value is None or bool(torch.isfinite(value).all())


def _is_above(value: Tensor | None, size: float) -> bool:
    return value is not None and _size(value) > size
