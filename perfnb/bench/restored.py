"""Training that leaves no trace: what steps change in models, optimizers and random numbers is put back."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves, tree_map

from perfnb.step.device import random_state, set_random_state
from perfnb.step.namespace import reachable


class Restored:
    """Context manager that puts back, bit by bit, what steps change.

    Parameters and buffers of models with their gradients and modes; the states and groups of optimizers and the
    parameters that they train; learning-rate schedulers, gradient scalers and generators of random numbers; the random
    numbers of Python, NumPy and torch. Other objects, such as counters of the user's own, are not.

    Parameters
    ----------
    models : iterable of Module
    roots : iterable
        What the steps see: what can be reached from there is put back as the models are, such as an average of their
        weights or a second model. Optimizers that are not there are noticed when they step first.
    """

    def __init__(self, models: Iterable[nn.Module], roots: Iterable[Any]) -> None:
        self._models = list(models)
        self._roots = list(roots)
        self._tensors: dict[int, _SavedTensor] = {}
        self._modules: dict[int, tuple[nn.Module, bool, dict[str, Any], dict[str, Any]]] = {}
        self._optimizers: dict[int, _OptimizerState] = {}
        self._ways_back: list[Callable[[], Any]] = []
        self._numbers: Any = None
        self._hook: Any = None

    def __enter__(self) -> Restored:
        self._numbers = random_state()
        for value in (*self._models, *reachable(self._roots)):
            kind = type(value)  # isinstance asks a proxy for its class, and a proxy may have none
            if issubclass(kind, nn.Module):
                self._save_model(value)
            elif issubclass(kind, Optimizer):
                self._save_optimizer(value)
            else:
                with suppress(NotImplementedError):  # the system's own source of numbers has no state
                    self._ways_back += filter(None, [_way_back(value)])
        self._hook = register_optimizer_step_pre_hook(lambda optimizer, *_: self._save_optimizer(optimizer))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._hook.remove()
        with torch.no_grad():
            for module, training, parameters, buffers in self._modules.values():
                module.training = training
                for own, saved in ((module._parameters, parameters), (module._buffers, buffers)):
                    if isinstance(own, dict):  # TorchScript's is none, and its tensors cannot be exchanged
                        own.clear()
                        own.update(saved)
            for tensor in self._tensors.values():
                tensor.put_back()
            for state in self._optimizers.values():
                state.put_back()
        for put_back in self._ways_back:
            put_back()
        set_random_state(self._numbers)

    def _save_model(self, model: nn.Module) -> None:
        for module in model.modules():
            if id(module) not in self._modules:
                parts = dict(module._parameters.items()), dict(module._buffers.items())
                self._modules[id(module)] = (module, module.training, *parts)
                for tensor in (*parts[0].values(), *parts[1].values()):
                    self._save(tensor)

    def _save(self, tensor: Tensor | None) -> None:
        if tensor is not None and not is_lazy(tensor) and id(tensor) not in self._tensors:
            grad = tensor.grad if tensor.is_leaf else None
            copied = None if grad is None else _copy(grad)
            self._tensors[id(tensor)] = _SavedTensor(tensor, _copy(tensor), tensor.requires_grad, grad, copied)

    def _save_optimizer(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._save(parameter)
            self._optimizers[id(optimizer)] = _OptimizerState(optimizer)


class _SavedTensor(NamedTuple):
    """A parameter or buffer, and what it was."""

    tensor: Tensor
    value: Tensor
    derivable: bool
    grad: Tensor | None
    grad_value: Tensor | None

    def put_back(self) -> None:
        _refill(self.tensor, self.value)
        if self.tensor.is_leaf and self.tensor.requires_grad != self.derivable:
            self.tensor.requires_grad_(self.derivable)
        if self.grad is not None and self.grad_value is not None:
            _refill(self.grad, self.grad_value)
        self.tensor.grad = self.grad


class _OptimizerState:
    """The groups and the state of an optimizer: the same tensors, and what they held."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [
            {name: _rebuilt(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        self._states = {key: _rebuilt(state) for key, state in optimizer.state.items()}
        leaves = tree_leaves((self._groups, list(self._states.values())))
        self._tensors = [(leaf, _copy(leaf)) for leaf in leaves if isinstance(leaf, Tensor)]

    def put_back(self) -> None:
        for tensor, value in self._tensors:
            _refill(tensor, value)
        for group, saved in zip(self._optimizer.param_groups, self._groups, strict=False):
            for name in [name for name in group if name not in saved and name != "params"]:
                del group[name]
            group.update(saved)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._states)


def _way_back(value: Any) -> Callable[[], Any] | None:
    """What puts a scheduler, a scaler or a generator of random numbers back; ``None`` for anything else."""
    kind = type(value)
    if issubclass(kind, (LRScheduler, torch.amp.GradScaler)):
        state = copy.deepcopy(value.state_dict())
        return partial(value.load_state_dict, state) if state else None
    if issubclass(kind, torch.Generator):
        return partial(value.set_state, value.get_state())
    if issubclass(kind, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", copy.deepcopy(value.bit_generator.state))
    if issubclass(kind, np.random.RandomState):
        return partial(value.set_state, value.get_state())
    if issubclass(kind, random.Random):
        return partial(value.setstate, value.getstate())
    return None


def _rebuilt(value: Any) -> Any:
    """Lists, tuples and dicts of our own, with the same tensors and other things in them."""
    return tree_map(lambda leaf: leaf, value)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _refill(tensor: Tensor, value: Tensor) -> None:
    if (tensor.shape, tensor.dtype, tensor.device) != (value.shape, value.dtype, value.device):
        tensor.data = value
    elif tensor.is_inference():
        with torch.inference_mode():
            tensor.copy_(value)
    else:
        tensor.copy_(value)
