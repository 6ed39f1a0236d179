"""Batches of a different size, made of tensors without memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from perfnb.arguments import shown
from perfnb.step.device import random_state, set_random_state
from perfnb.step.steps import BatchSource

#: Nesting depth to which a batch is searched for tensors.
_MOST_LEVELS = 4


def one_batch(batch: Any) -> Any:
    """The first batch of a loader; anything else is a batch itself.

    Raises
    ------
    TypeError
        For an iterator, which would lose its first batch.
    """
    __tracebackhide__ = True
    if hasattr(type(batch), "__next__"):
        raise TypeError(f"batch is a {type(batch).__name__}: pass one batch, as in next(iter(loader)), or the loader.")
    if not isinstance(batch, DataLoader):
        return batch
    generators = {g for owner in (batch, batch.sampler) if (g := getattr(owner, "generator", None)) is not None}
    states = [(generator, generator.get_state()) for generator in generators]
    source, numbers = BatchSource(batch), random_state()
    try:
        return source.next()
    finally:
        source.close()
        set_random_state(numbers)
        for generator, state in states:
            generator.set_state(state)


def samples_in(batch: Any) -> int | None:
    """First dimension of the first tensor that has one."""
    leaves = batch.values() if isinstance(batch, Mapping) else tree_leaves(batch)
    return next((int(t.shape[0]) for t in leaves if isinstance(t, Tensor) and t.dim()), None)


def tensor_resized(tensor: Tensor, samples: int, size: int) -> Tensor:
    """A resized tensor on ``meta`` if its first dimension counts samples; otherwise the tensor itself."""
    given: Any = size
    if isinstance(given, bool) or not isinstance(given, Integral) or given < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, not {shown(given)}.")
    if not tensor.dim() or tensor.shape[0] != samples:
        return tensor
    shape = (size, *tensor.shape[1:])
    strides = tensor.stride()
    order = sorted(range(1, tensor.dim()), key=strides.__getitem__, reverse=True)  # keeps channels last
    try:
        made = torch.empty([shape[0], *(shape[d] for d in order)], dtype=tensor.dtype, device="meta")
    except RuntimeError:
        raise OverflowError(f"A batch of {size:,} samples has more bytes than can be counted.") from None
    return made.permute(0, *(1 + order.index(d) for d in range(1, tensor.dim())))


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a batch with its tensors replaced, each by one other, in containers and objects of the same classes."""
    made: dict[int, tuple[Tensor, Tensor]] = {}  # a batch may hold a tensor twice, as input and target

    def copied(value: Any, levels: int) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in made:
                made[id(value)] = value, change(value)
            return made[id(value)][1]
        if not levels:
            return value
        if isinstance(value, Mapping):
            items = {key: copied(value[key], levels - 1) for key in value}
            try:
                same: Any = copy.copy(value)
                for key, item in items.items():
                    same[key] = item
            except Exception:  # read-only
                return items
            return same
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(copied(item, levels - 1) for item in value))
        if type(value) in (list, tuple):
            return type(value)(copied(item, levels - 1) for item in value)
        parts = getattr(value, "__dict__", None)
        if isinstance(parts, dict) and not isinstance(value, type) and any(map(_holds_tensors, parts.values())):
            same = copy.copy(value)
            vars(same).update({name: copied(part, levels - 1) for name, part in parts.items()})
            return same
        return value

    return copied(value, _MOST_LEVELS)


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
