"""Levers that reduce the amount of data that a step keeps in memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from perfnb.remedies.lever import Lever, always, forwards
from perfnb.remedies.lines import is_named
from perfnb.remedies.subject import Subject
from perfnb.step.refusals import BLOCKS, without_blocks


def _refuses(subject: Subject) -> str:
    if not subject.trains:
        return "the step computes no gradients, so it keeps nothing for the backward pass"
    return without_blocks(subject.modules(nn.Module))


def _blocks(subject: Subject) -> tuple[str, str, list[nn.Module]]:
    """Return the longest list of blocks, with its model and path.

    These can be, for example, the layers of a transformer or the stages of a network.
    """
    lists = [
        (name, path, list(module.children()))
        for name, model in subject.models.items()
        for path, module in model.named_modules()
        if isinstance(module, BLOCKS)
    ]
    return max(lists, key=lambda listed: len(listed[2]))


def _checkpointed(subject: Subject) -> AbstractContextManager[None]:
    def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return forwards((block, recomputed(block.forward)) for block in _blocks(subject)[2])


def _code(subject: Subject) -> list[str]:
    name, path, _ = _blocks(subject)
    if not is_named(name, subject.models[name]):
        where = f"{type(subject.models[name]).__name__}'s {path}" if path else name
        return [f"# each block of {where}: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"]
    blocks = f"{name}.get_submodule({path!r})" if path else name
    return [
        "import functools, torch.utils.checkpoint",
        f"for block in {blocks}: block.forward = functools.partial("
        "torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)",
    ]


CHECKPOINTING = Lever(
    "checkpointing",
    "recompute the activations of the longest list of blocks in the backward pass",
    _refuses,
    always(_checkpointed),
    _code,
    answers=("activation memory",),
    costly=True,
    for_memory=True,
)
