"""Which memory belongs to live objects: parameters, buffers, gradients, optimizer state, inputs, other tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from perfnb.step.steps import tensors_in


class Known(NamedTuple):
    """A block of memory with a known owner."""

    #: Number of the mark in the trace at which it was found.
    mark: int
    #: Address and size of the storage.
    address: int
    bytes: int
    #: ``cpu``, ``cuda:0``.
    device: str
    #: ``parameters`` (and buffers), ``gradients``, ``optimizer_state``, ``inputs``, or ``other`` for any other tensor.
    category: str
    #: ``id`` of the module of its parameter or buffer.
    module: int | None = None
    #: Name in that module.
    name: str | None = None


class LiveObjects:
    """Finds the memory blocks of the live objects that a step uses.

    Models become known when they are called, optimizers when they step; if none steps, those of the known models are
    used.
    """

    def __init__(self) -> None:
        self._owner: dict[int, tuple[int, str]] = {}
        self._parameters: dict[int, torch.Tensor] = {}
        self._buffers: dict[int, torch.Tensor] = {}
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._modules: set[int] = set()

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters of all known models and optimizers."""
        return list(self._parameters.values())

    def add_model(self, model: nn.Module) -> None:
        """Add the parameters and buffers of a module and its submodules."""
        if id(model) in self._modules:
            return
        for module in model.modules():
            self._modules.add(id(module))
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    self._add(self._parameters, parameter, module, name)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self._add(self._buffers, buffer, module, name)

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Add an optimizer's state, and its parameters that belong to no known model."""
        self._optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._parameters.setdefault(id(parameter), parameter)

    def add_optimizers_not_seen(self) -> None:
        """Add the optimizers of the known models if none has stepped, as in a step that fails early."""
        if self._optimizers:
            return
        ours = self._parameters.keys()
        for optimizer in living(torch.optim.Optimizer):
            if any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
                self.add_optimizer(optimizer)

    def _add(self, known: dict[int, torch.Tensor], tensor: torch.Tensor, module: nn.Module, name: str) -> None:
        known[id(tensor)] = tensor
        self._owner.setdefault(id(tensor), (id(module), name))

    def blocks(self, mark: int) -> Iterator[Known]:
        """The current blocks of parameters, buffers, gradients and optimizer state."""
        for tensor in (*self._parameters.values(), *self._buffers.values()):
            yield from self._known(mark, tensor, "parameters", tensor)
        for parameter in self._parameters.values():
            yield from self.gradient(mark, parameter)
        for optimizer in self._optimizers.values():
            for key, state in list(optimizer.state.items()):
                values = state.items() if isinstance(state, dict) else [("", state)]
                for word, value in list(values):
                    for tensor in tensors_in(value):
                        yield from self._known(mark, tensor, "optimizer_state", key, str(word))

    def gradient(self, mark: int, parameter: torch.Tensor) -> Iterator[Known]:
        """The block of a parameter's gradient, if it has one."""
        if parameter.grad is not None:
            yield from self._known(mark, parameter.grad, "gradients", parameter)

    def _known(self, mark: int, tensor: torch.Tensor, category: str, owner: Any, word: str = "") -> Iterator[Known]:
        module, name = self._owner.get(id(owner), (None, None))
        if word and name is not None:
            name = f"{name} ({word})"
        for address, size, device in storages(tensor):
            yield Known(mark, address, size, device, category, module, name)


def inputs(mark: int, values: Any) -> Iterator[Known]:
    """The blocks of a batch or of a model's arguments, except tensors created by autograd."""
    try:
        tensors = list(tensors_in(values))
    except Exception:  # a batch may be anything, and its memory is not worth failing for
        return
    for tensor in tensors:
        if tensor.grad_fn is None and not isinstance(tensor, nn.Parameter):
            for address, size, device in storages(tensor):
                yield Known(mark, address, size, device, "inputs")


def everything(mark: int) -> Iterator[Known]:
    """The blocks of all live tensors."""
    for tensor in living(torch.Tensor):
        for address, size, device in storages(tensor):
            yield Known(mark, address, size, device, "other")


def living(kind: type[Any] | tuple[type[Any], ...]) -> Iterator[Any]:
    """The live objects of a class, by type: `isinstance` may run code of proxies."""
    return (candidate for candidate in gc.get_objects() if issubclass(type(candidate), kind))


def storages(tensor: torch.Tensor) -> Iterator[tuple[int, int, str]]:
    """Address, size in bytes and device of the storages of a tensor, if it has any."""
    try:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            # A fake tensor, such as torch.compile leaves, has a meta storage, and asking for its address warns.
            if storage.device.type != "meta" and storage.data_ptr():
                yield storage.data_ptr(), storage.nbytes(), str(part.device)
    except (RuntimeError, NotImplementedError, AttributeError):
        return  # sparse, fake, functional or otherwise without a storage


def _parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """The plain tensors inside a wrapper subclass."""
    if not bool(is_traceable_wrapper_subclass(tensor)):
        return [tensor]
    names, _ = getattr(tensor, "__tensor_flatten__")()  # noqa: B009 - not every tensor has it
    return [part for name in names for part in _parts(getattr(tensor, name))]
