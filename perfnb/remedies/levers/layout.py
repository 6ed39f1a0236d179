"""Levers that change the memory layout of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from perfnb.findings.proposed_code import lever_line
from perfnb.remedies.lever import Lever, always, forwards
from perfnb.remedies.lines import for_models
from perfnb.remedies.subject import Subject


def without_convolutions(subject: Subject) -> str:
    """Return the reason why levers for convolutions do not apply; empty if they do."""
    found = any(True for _ in subject.modules(nn.Conv2d, nn.ConvTranspose2d))
    return "" if found else "the model has no 2-D convolutions"


@contextmanager
def _on(subject: Subject) -> Iterator[None]:
    with ExitStack() as stack:
        for weight in (parameter for parameter in subject.parameters if parameter.dim() == 4):
            stack.callback(_copy_back, weight, weight.data)
            weight.data = _channels_last(weight.data)
        stack.enter_context(forwards((model, _of_images(model.forward)) for model in subject.models.values()))
        yield


def _of_images(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: forward(*tree_map(_channels_last, args), **kwargs)


def _channels_last(value: Any) -> Any:
    is_image = isinstance(value, torch.Tensor) and value.dim() == 4
    return value.contiguous(memory_format=torch.channels_last) if is_image else value


def _copy_back(weight: nn.Parameter, before: torch.Tensor) -> None:
    """Return a weight to its original memory without changing its current values."""
    before.copy_(weight.data)
    weight.data = before


CHANNELS_LAST = Lever(
    "channels_last",
    "images and convolutions with the channels as the innermost dimension",
    without_convolutions,
    always(_on),
    for_models(
        lever_line("channels_last", "{0}"),
        "# and each batch of images: x = x.contiguous(memory_format=torch.channels_last)",
    ),
    answers=("compute", "memory bandwidth"),
)
