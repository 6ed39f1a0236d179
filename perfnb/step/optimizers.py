"""Determine which optimizers can update all their parameters at once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perfnb.trace_names import FUSED, FUSED_ON_CPU

_FUSED_ON_CPU_ALONE = tuple(getattr(torch.optim, name) for name in FUSED_ON_CPU)
_FUSED = (*_FUSED_ON_CPU_ALONE, *(getattr(torch.optim, name) for name in FUSED))


def tensors_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that an optimizer updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def has_sparse_gradients(optimizers: Iterable[Optimizer], modules: Iterable[nn.Module]) -> bool:
    """Check whether any parameter has a sparse gradient or belongs to a module that produces sparse gradients."""
    grads = (parameter.grad for each in optimizers for parameter in tensors_of(each))
    return any(module.__dict__.get("sparse") is True for module in modules) or any(
        grad is not None and grad.is_sparse for grad in grads
    )


def cannot_fuse(optimizer: Optimizer, sparse: bool) -> str:
    """Return the reason why an optimizer cannot use a fused kernel, or an empty string if it can."""
    if type(optimizer) not in _FUSED:
        return f"{type(optimizer).__name__} has no fused implementation"
    groups, held = optimizer.param_groups, tensors_of(optimizer)
    if any(group.get("fused") for group in groups):
        return "the optimizer is already fused"
    if any(group.get("differentiable") or group.get("capturable") for group in groups):
        return "a differentiable or capturable optimizer cannot be fused"
    kinds = {parameter.device.type for parameter in held}
    if kinds - {"cpu", "cuda"} or not all(parameter.is_floating_point() for parameter in held):
        return "a fused update requires real floating-point parameters on a CPU or CUDA device"
    if type(optimizer) in _FUSED_ON_CPU_ALONE and kinds != {"cpu"}:
        return f"{type(optimizer).__name__} has a fused implementation only for CPUs"
    return "a fused update does not support sparse gradients" if sparse else ""


def cannot_foreach(optimizer: Optimizer, sparse: bool) -> str:
    """Return the reason why an optimizer cannot update all parameters with functions that operate on lists of tensors.

    The result is an empty string if it can.
    """
    groups = optimizer.param_groups
    if not all("foreach" in group for group in groups):
        return f"{type(optimizer).__name__} has no implementation that updates all parameters at once"
    if any(group["foreach"] or group.get("fused") for group in groups):
        return "the optimizer already updates all parameters at once"
    if any(group.get("differentiable") for group in groups):
        return "a differentiable optimizer cannot update all parameters at once"
    kinds = {parameter.device.type for parameter in tensors_of(optimizer)}
    if kinds == {"cuda"} and all(group["foreach"] is None for group in groups):
        return "on CUDA the optimizer already updates all parameters at once by default"
    return "updating all parameters at once is not supported with sparse gradients" if sparse else ""
