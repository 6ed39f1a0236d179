"""One step of a model on a batch: forward, a loss, backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from perfnb.errors import CaptureError
from perfnb.step.given import require_loss


def call_model(model: nn.Module, batch: Any) -> Any:
    """The model's output. In a tuple the last element is the target, if there is another; a mapping holds keywords."""
    __tracebackhide__ = True
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, (tuple, list)):
        return model(*(batch[:-1] if len(batch) > 1 else batch))
    return model(batch)


def loss_and_held(
    model: nn.Module, batch: Any, loss: Callable[..., Any] | None, output_is_there: Callable[[], None] = lambda: None
) -> tuple[Any, Any]:
    """The loss of a model on a batch, and the output if a training loop usually holds it in a variable.

    That is the case in ``out = model(**batch); out.loss.backward()``, but not in ``loss(model(x), y).backward()``.

    Parameters
    ----------
    loss : callable or None
        ``loss(output, target)``; ``loss(output, batch)`` for a mapping, ``loss(output)`` for a lone tensor. Without
        one, ``output.loss`` if there is one, else the sum of the outputs.
    output_is_there : callable
        Called between the model and the loss.
    """
    __tracebackhide__ = True
    if loss is None:
        output = call_model(model, batch)
        output_is_there()
        own = getattr(output, "loss", None)
        return (own, output) if isinstance(own, Tensor) else (_sum(output), None)
    target = [batch] if isinstance(batch, Mapping) else list(batch[-1:]) if isinstance(batch, (tuple, list)) else []

    def output_of() -> Any:  # only the graph holds the output when backward starts
        made = call_model(model, batch)
        output_is_there()
        return made

    return loss(output_of(), *target), None


@contextmanager
def left_as_they_were(models: Iterable[nn.Module], *, training: bool) -> Iterator[None]:
    """Put models in training or evaluation mode; restore modes and buffers (running means) at the end."""
    modules = [module for model in models for module in model.modules()]
    modes = [module.training for module in modules]
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)]
    try:
        for module in modules:
            module.training = training and module.training
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)


def model_step(
    model: nn.Module, batch: Any, loss: Callable[..., Any] | None = None, *, training: bool = True
) -> Callable[[], None]:
    """A step of a model that changes nothing in it except gradients and buffers.

    Parameters
    ----------
    training : bool
        Forward, loss and backward, with gradients cleared first; or forward only, without gradients.
    """

    __tracebackhide__ = True
    if training or not callable(loss):  # inference does not call it
        require_loss(loss, batch)

    def train() -> None:
        __tracebackhide__ = True
        model.zero_grad(set_to_none=True)
        loss_and_held(model, batch, loss)[0].backward()

    def infer() -> None:
        __tracebackhide__ = True
        with torch.no_grad():
            call_model(model, batch)

    return train if training else infer


def _sum(output: Any) -> Any:
    values = output.values() if isinstance(output, Mapping) else tree_leaves(output)
    parts = [t.sum() for t in values if isinstance(t, Tensor) and t.requires_grad]
    if not parts:
        raise CaptureError("The model's output requires no gradient: pass training=False, or a loss.")
    return sum(parts[1:], parts[0])
