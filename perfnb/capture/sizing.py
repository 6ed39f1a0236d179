"""Batches of another size, made of tensors without memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def samples_in(batch: Any) -> int | None:
    """The first dimension of the first tensor that has one."""
    leaves = batch.values() if isinstance(batch, Mapping) else tree_leaves(batch)
    return next((int(t.shape[0]) for t in leaves if isinstance(t, Tensor) and t.dim()), None)


def resized(batch: Any, samples: int, size: int) -> Any:
    """`batch` with `size` samples instead of `samples`, of tensors on ``meta``."""
    if size < 1 or size != int(size):
        raise ValueError(f"batch_size must be a whole number of at least 1, not {size!r}.")

    def scaled(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == samples:
            shape = (size, *value.shape[1:])
            strides = value.stride()
            order = sorted(range(1, value.dim()), key=strides.__getitem__, reverse=True)  # keeps channels last
            try:
                made = torch.empty([shape[0], *(shape[d] for d in order)], dtype=value.dtype, device="meta")
            except RuntimeError:
                raise OverflowError(f"a batch of {size:,} samples has more bytes than can be counted.") from None
            return made.permute(0, *(1 + order.index(d) for d in range(1, value.dim())))
        if isinstance(value, Mapping):
            return {key: scaled(item) for key, item in value.items()}
        return type(value)(map(scaled, value)) if type(value) in (list, tuple) else value

    return scaled(batch)
