"""Create batches of a different size from tensors that do not have any memory."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
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

#: The copies, keyed by the id of the original.
Copies = dict[int, tuple[Any, Any]]
#: The nesting depth to which a batch is searched for tensors.
_MOST_LEVELS = 4
#: The types of containers that can be copied, and the maximum number of entries in a container that is searched.
_PLAIN, _MOST_ENTRIES = (dict, OrderedDict, defaultdict, list, tuple), 10_000


def one_batch(batch: Any) -> Any:
    """Return the first batch of a loader, or the value itself if it is not a loader.

    Raises
    ------
    TypeError
        If the value is an iterator, because taking a batch would remove it from the iterator.
    """
    __tracebackhide__ = True
    if hasattr(type(batch), "__next__"):
        raise TypeError(
            f"batch is a {type(batch).__name__}: pass one batch, such as next(iter(loader)), or the loader."
        )
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
    """Return the size of the first dimension of the first tensor that has any dimensions."""
    leaves = batch.values() if isinstance(batch, Mapping) else tree_leaves(batch)
    return next((int(t.shape[0]) for t in leaves if isinstance(t, Tensor) and t.dim()), None)


def tensor_resized(tensor: Tensor, samples: int, size: int) -> Tensor:
    """Return a resized tensor on ``meta`` if its first dimension is the number of samples.

    Otherwise, return the tensor itself.
    """
    given: Any = size
    if isinstance(given, bool) or not isinstance(given, Integral) or given < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, not {shown(given)}.")
    if not tensor.dim() or tensor.shape[0] != samples:
        return tensor
    shape = (size, *tensor.shape[1:])
    strides = tensor.stride()
    order = sorted(range(1, tensor.dim()), key=strides.__getitem__, reverse=True)  # preserves channels last
    try:
        made = torch.empty([shape[0], *(shape[d] for d in order)], dtype=tensor.dtype, device="meta")
    except RuntimeError:
        raise OverflowError(f"A batch of {size:,} samples contains more bytes than can be counted.") from None
    return made.permute(0, *(1 + order.index(d) for d in range(1, tensor.dim())))


def with_tensors(
    value: Any, change: Callable[[Tensor], Tensor], depth: int = _MOST_LEVELS, known: Copies | None = None
) -> Any:
    """Return a copy of a batch where each tensor is replaced with another tensor.

    Containers and objects keep their classes.

    Parameters
    ----------
    value : object
        The batch.
    change : callable
        A function that returns the replacement for a tensor.
    depth : int
        The number of levels of nested containers to search.
    known : dict, optional
        The copies that have been made so far. If this is given, only plain containers are copied, and other objects are
        kept unchanged.
    """
    of_batch, copies = known is None, Copies() if known is None else known

    def copied(value: Any, depth: int) -> Any:
        made: Any
        if id(value) in copies:
            return copies[id(value)][1]
        if isinstance(value, Tensor):
            made = change(value)
        elif not depth or not (of_batch or type(value) in _PLAIN):
            return value
        elif not of_batch and len(value) > _MOST_ENTRIES:  # for example the index of a data set, or a history
            made = copy.copy(value)
        elif isinstance(value, Mapping):
            made = copy.copy(value) if hasattr(value, "__setitem__") else dict(value)
            copies[id(value)] = value, made  # the container may contain itself
            for key in value:
                made[key] = copied(value[key], depth - 1)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            made = type(value)(*(copied(item, depth - 1) for item in value))
        elif type(value) in _PLAIN:
            made = type(value)(copied(item, depth - 1) for item in value)
        elif not isinstance(value, type) and any(map(_holds_tensors, getattr(value, "__dict__", {}).values())):
            made = copy.copy(value)
            vars(made).update({name: copied(part, depth - 1) for name, part in vars(value).items()})
        else:
            return value
        copies[id(value)] = value, made  # a copy that is met again represents itself
        copies[id(made)] = made, made
        return made

    return copied(value, depth)


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
