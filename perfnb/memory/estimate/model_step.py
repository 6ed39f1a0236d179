"""Run a training or inference step for a model, either for real or in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.utils._pytree import tree_leaves

from perfnb.arguments import shown
from perfnb.errors import CaptureError
from perfnb.step.checks import require_loss
from perfnb.step.data_waits import tensors_in


@contextmanager
def left_as_they_were(models: Iterable[nn.Module], *, training: bool) -> Iterator[None]:
    """Put models in training or evaluation mode, and restore modes and buffers (running means) at the end."""
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


class ModelStep:
    """A step for a model that runs forward, loss, backward and the optimizer's step, or only forward.

    Parameters
    ----------
    model : Module
        The model to run.
    loss : callable or None
        A function that is called as ``loss(output, target)``, as ``loss(output, batch)`` for a mapping, or as
        ``loss(output)`` for a single tensor. If it is ``None``, the loss is ``output.loss`` if that exists, and the sum
        of the outputs otherwise.
    training : bool
        Whether to train. If true, gradients are cleared first. Otherwise, the step only runs forward, without
        gradients.
    optimizer : Optimizer, callable or None
        The optimizer. If it is a function, the first step calls it to create the optimizer from the model's parameters.
    autocast : dtype or None
        The dtype that ``torch.autocast`` uses for forward and loss, or ``None`` to disable autocast.

    Attributes
    ----------
    output : object
        The last output, if a training loop keeps it in a variable until the next step. This is typical for ``out =
        model(**batch); out.loss.backward()`` but not for ``loss(model(x), y).backward()``.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any] | None = None,
        *,
        training: bool = True,
        optimizer: Optimizer | Callable[..., Any] | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model, self.loss, self.training = model, loss, training
        self.optimizer, self.autocast = optimizer, autocast
        self.output: Any = None

    def __call__(self, batch: Any) -> None:
        """Run a step."""
        __tracebackhide__ = True
        if not self.training:
            with torch.no_grad(), self._casting(batch):
                self._forward(batch)
            return
        with torch.enable_grad():
            self.model.zero_grad(set_to_none=True)
            with self._casting(batch):
                loss = self._loss_of(batch)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise CaptureError("The loss must be a tensor with one element: reduce it with mean or sum.")
            if not loss.requires_grad:
                raise CaptureError(
                    "Nothing in this step requires a gradient: pass training=False, or unfreeze a parameter that is "
                    "used."
                )
            loss.backward()
            if self.optimizer is None:
                return
            if not isinstance(self.optimizer, Optimizer):
                self.optimizer = _made(self.optimizer, self.model)
            self.optimizer.step()

    def _casting(self, batch: Any) -> Any:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(next((tensor.device.type for tensor in tensors_in(batch)), "cpu"), self.autocast)

    def _forward(self, batch: Any) -> Any:
        """Run the forward pass.

        In a tuple with several elements, the last element is the target. A mapping contains keyword arguments.
        """
        __tracebackhide__ = True
        if isinstance(batch, Mapping):
            return self.model(**batch)
        if isinstance(batch, (tuple, list)):
            return self.model(*(batch[:-1] if len(batch) > 1 else batch))
        return self.model(batch)

    def _loss_of(self, batch: Any) -> Any:
        __tracebackhide__ = True
        if self.loss is not None:
            target = (
                [batch] if isinstance(batch, Mapping) else list(batch[-1:]) if isinstance(batch, (tuple, list)) else []
            )
            return self.loss(self._forward(batch), *target)  # only the graph refers to the output when backward starts
        output = self._forward(batch)
        own = getattr(output, "loss", None)
        if isinstance(own, Tensor):
            self.output = output
            return own
        values = output.values() if isinstance(output, Mapping) else tree_leaves(output)
        parts = [t.sum() for t in values if isinstance(t, Tensor) and t.requires_grad]
        if not parts:
            raise CaptureError("The model's output does not require a gradient: pass training=False, or pass a loss.")
        return sum(parts[1:], parts[0])


def model_step(
    model: nn.Module, batch: Any, loss: Callable[..., Any] | None = None, *, training: bool = True
) -> Callable[[], None]:
    """Return a function that runs a `ModelStep` on a batch and changes only the model's gradients and buffers."""
    __tracebackhide__ = True
    if training or not callable(loss):  # inference does not call it
        require_loss(loss, batch)
    step = ModelStep(model, loss, training=training)

    def run() -> None:
        __tracebackhide__ = True
        step(batch)
        step.output = None  # released because another model runs next

    return run


def chosen_optimizer(wanted: Any) -> Any:
    """Return an optimizer or a function that creates one, given either of these or a name in ``torch.optim``.

    Raises
    ------
    TypeError, ValueError
        If the value is none of these.
    CaptureError
        If the optimizer is LBFGS.
    """
    if isinstance(wanted, str):
        classes = {
            name.lower(): kind
            for name, kind in vars(torch.optim).items()
            if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
        }
        if wanted.lower() not in classes:
            raise ValueError(f"torch.optim has no optimizer {shown(wanted)}. Choose from {', '.join(sorted(classes))}.")
        wanted = classes[wanted.lower()]
    if wanted is not None and not isinstance(wanted, Optimizer) and not callable(wanted):
        raise TypeError(
            "optimizer must be a name in torch.optim, an optimizer, or a function that creates one from parameters, "
            "not "
            f"{type(wanted).__name__}."
        )
    if isinstance(wanted, LBFGS) or wanted is LBFGS:
        raise CaptureError("LBFGS evaluates the loss any number of times per step, so its memory cannot be estimated.")
    return wanted


def _made(make: Callable[..., Any], model: nn.Module) -> Optimizer:
    optimizer = chosen_optimizer(make([parameter for parameter in model.parameters() if parameter.requires_grad]))
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must return a torch optimizer, not {type(optimizer).__name__}.")
    return optimizer
