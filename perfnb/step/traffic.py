"""Lower bound of the bytes that an operator moves: each input read once, each output written once.

Caches and repeated reads are ignored. Views and written arguments follow from the operator's schema; operators that
touch only part of an argument are listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from perfnb.step.formulas import FREE, adds, aten, operator_name

#: Identifies a tensor's memory, so that a tensor passed twice counts once, even with permuted dimensions.
_Place = tuple[Any, ...]


def bytes_moved(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """Lower bound of the bytes that a call of an operator reads and writes."""
    name = operator_name(func)
    plan = _plan(func)
    if plan is None:
        reads = {_place(tensor): _extent(tensor) for tensor in _tensors([*args, *kwargs.values()])}
        return sum(({_place(tensor): _extent(tensor) for tensor in _tensors([out])} | reads).values())
    if plan.free:
        return 0
    if name in _TOUCHED:
        return _putting(name, args, kwargs)
    skipped = _unread(name, args)
    picked = _PICKED[name](args, out) if name in _PICKED else None
    reads, writes = {}, {}
    for place, (argument, value) in enumerate(_bound(plan, args, kwargs)):
        for tensor in _tensors([value]):
            where, extent = _place(tensor), _extent(tensor)
            if argument.written:
                writes[where] = extent
            if place == 0 and picked is not None:
                extent = min(extent, picked * tensor.element_size())
            if place not in skipped and not (argument.written and (argument.only or plan.overwrites)):
                reads[where] = extent
    for result, tensors in zip(plan.results, out if len(plan.results) > 1 else [out], strict=False):
        if not result:  # otherwise it is an argument or a view of one
            writes |= {_place(tensor): _extent(tensor) for tensor in _tensors([tensors])}
    return sum(reads.values()) + sum(writes.values())


class _Argument(NamedTuple):
    name: str
    written: bool
    #: Whether it is an `out=`, which is not read.
    only: bool


class _Plan(NamedTuple):
    arguments: tuple[_Argument, ...]
    #: For each result, whether it is an argument or a view of one.
    results: tuple[bool, ...]
    free: bool
    overwrites: bool


@lru_cache(maxsize=4096)
def _plan(func: Any) -> _Plan | None:
    """The relevant part of an operator's schema; ``None`` without one."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return None
    name = operator_name(func)
    arguments = tuple(
        _Argument(argument.name, argument.alias_info is not None and argument.alias_info.is_write, argument.is_out)
        for argument in schema.arguments
    )
    results = tuple(result.alias_info is not None for result in schema.returns)
    views = bool(results) and all(results) and not any(argument.written for argument in arguments)
    return _Plan(arguments, results, views or name in FREE, name in _OVERWRITING)


def _bound(plan: _Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[_Argument, Any]]:
    yield from zip(plan.arguments, args, strict=False)
    for argument in plan.arguments[len(args) :]:
        if argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _place(tensor: Tensor) -> _Place:
    try:
        steps = sorted(pair for pair in zip(tensor.stride(), tensor.shape, strict=True) if pair[0] != 0 and pair[1] > 1)
        return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype, *steps)
    except (RuntimeError, NotImplementedError):  # sparse, nested or opaque
        return (id(tensor),)


def _extent(tensor: Tensor) -> int:
    """Bytes of memory that a tensor's elements occupy, without repeats."""
    size = tensor.element_size()
    if tensor.layout is torch.sparse_coo:
        return int(tensor._nnz()) * (size * prod(tensor.shape[tensor.sparse_dim() :]) + 8 * tensor.sparse_dim())
    try:
        steps = [pair for pair in zip(tensor.stride(), tensor.shape, strict=True) if pair[0] != 0]
    except (RuntimeError, NotImplementedError):
        compressed = tensor.layout is not torch.strided and hasattr(tensor, "_nnz") and not tensor.is_mkldnn
        return int((tensor._nnz() if compressed else tensor.numel()) * size)
    if tensor.numel() == 0:
        return 0
    spanned = 1 + sum(step * (length - 1) for step, length in steps)
    return size * min(prod(length for _, length in steps), spanned)


def _putting(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """An operator that writes, and when accumulating reads, only some elements of its first argument."""
    sources = sum({_place(tensor): _extent(tensor) for tensor in _tensors(args[1:])}.values())
    touched = _TOUCHED[name](args) * int(args[0].element_size())
    return sources + touched * (2 if adds(name, args, kwargs) or "reduce" in name else 1)


def _put_places(args: tuple[Any, ...]) -> int:
    """Elements that `index_put_` writes; with a mask, whose sum is unknown here, the number of values."""
    target, indices, values = args[:3]
    chosen = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for _, index in chosen):
        return int(values.numel())
    rest = prod(length for dim, length in enumerate(target.shape) if dim not in dict(chosen))
    return int(rest * prod(torch.broadcast_shapes(*(index.shape for _, index in chosen))))


def _unread(name: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Positions of arguments of which only the shape is used."""
    if name == "aten::convolution_backward":
        mask = args[10]
        return tuple(place for place, needed in ((1, mask[1]), (2, mask[0])) if not needed)
    return _UNREAD.get(name, ())


#: In-place operators that do not read the old values.
_OVERWRITING = aten("""
    copy_ fill_ zero_ _foreach_copy_ _foreach_zero_ uniform_ normal_ bernoulli_ random_ exponential_ cauchy_ geometric_
    log_normal_
""")

_UNREAD: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        aten("zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full"), (0,)
    ),
    **dict.fromkeys(aten("nll_loss_backward nll_loss2d_backward max_pool2d_with_indices_backward"), (1,)),
    **dict.fromkeys(aten("avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward"), (1,)),
}

_AS_MANY_AS_RETURNED = aten("embedding index index_select gather take masked_select _unsafe_index")
#: Number of elements read from the first argument.
_PICKED: Mapping[str, Callable[[tuple[Any, ...], Any], int]] = {
    **dict.fromkeys(_AS_MANY_AS_RETURNED, lambda args, out: int(out.numel())),
    **dict.fromkeys(aten("nll_loss_forward nll_loss2d_forward"), lambda args, out: int(args[1].numel())),
    "aten::_embedding_bag": lambda args, out: int(args[1].numel()) * int(args[0].shape[-1]),
    "aten::_embedding_bag_forward_only": lambda args, out: int(args[1].numel()) * int(args[0].shape[-1]),
}

#: Number of elements written to the first argument.
_TOUCHED: Mapping[str, Callable[[tuple[Any, ...]], int]] = {
    **dict.fromkeys(aten("index_put_ _index_put_impl_"), _put_places),
    **dict.fromkeys(aten("scatter_ scatter_add_ scatter_reduce_"), lambda args: int(args[2].numel())),
    **dict.fromkeys(aten("index_add_ index_copy_ index_reduce_"), lambda args: int(args[3].numel())),
}
