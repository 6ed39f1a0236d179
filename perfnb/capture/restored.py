"""Training that leaves no trace: what steps change in models, optimizers and random numbers is put back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from perfnb.capture.bench import random_state, set_random_state


class Restored:
    """Context manager that puts back, bit by bit, what steps change.

    Parameters and buffers of the models with their gradients and modes; the states and groups of optimizers and the
    parameters that they train; learning-rate schedulers and gradient scalers among the variables; the random numbers
    of Python, NumPy and torch. Other objects, such as counters of the user's own, are not.

    Parameters
    ----------
    models : iterable of Module
    namespace : mapping
        The variables that the steps see. Optimizers that are not among them are noticed when they step first.
    """

    def __init__(self, models: Iterable[nn.Module], namespace: Mapping[str, Any]) -> None:
        self._models = list(models)
        self._namespace = namespace
        self._tensors: dict[int, tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = {}
        self._modules: dict[int, tuple[nn.Module, bool, dict[str, Any], dict[str, Any]]] = {}
        self._optimizers: dict[int, _OptimizerState] = {}
        self._others: list[tuple[Any, Any]] = []
        self._numbers: Any = None
        self._hook: Any = None

    def __enter__(self) -> Restored:
        self._numbers = random_state()
        for model in self._models:
            for module in model.modules():
                parts = dict(module._parameters.items()), dict(module._buffers.items())
                self._modules[id(module)] = (module, module.training, *parts)
                for tensor in (*parts[0].values(), *parts[1].values()):
                    self._save(tensor)
        for value in _values(self._namespace):
            if isinstance(value, Optimizer):
                self._save_optimizer(value)
            elif isinstance(value, (LRScheduler, torch.amp.GradScaler)):
                self._others.append((value, copy.deepcopy(value.state_dict())))
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
            for tensor, value, grad, grad_value in self._tensors.values():
                _put_back(tensor, value)
                if grad is not None and grad_value is not None:
                    _put_back(grad, grad_value)
                tensor.grad = grad
            for state in self._optimizers.values():
                state.put_back()
        for other, state_dict in self._others:
            if state_dict:
                other.load_state_dict(state_dict)
        set_random_state(self._numbers)

    def _save(self, tensor: Tensor | None) -> None:
        if tensor is None or is_lazy(tensor) or id(tensor) in self._tensors:
            return
        grad = tensor.grad if tensor.is_leaf else None
        self._tensors[id(tensor)] = tensor, _copy(tensor), grad, None if grad is None else _copy(grad)

    def _save_optimizer(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._save(parameter)
            self._optimizers[id(optimizer)] = _OptimizerState(optimizer)


class _OptimizerState:
    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [{name: value for name, value in group.items() if name != "params"} for group in
                        optimizer.param_groups]  # fmt: skip
        self._copies = [{name: _copy(value) for name, value in group.items()} for group in self._groups]
        self._states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
        self._values = {
            parameter: {name: _copy(value) for name, value in state.items()}
            for parameter, state in self._states.items()
        }

    def put_back(self) -> None:
        optimizer = self._optimizer
        for group, values, copies in zip(optimizer.param_groups, self._groups, self._copies, strict=False):
            _refill(group, values, copies, keep=("params",))
        for parameter in [each for each in optimizer.state if each not in self._states]:
            del optimizer.state[parameter]
        for parameter, values in self._states.items():
            _refill(optimizer.state[parameter], values, self._values[parameter])


def _refill(holder: dict[str, Any], values: dict[str, Any], copies: dict[str, Any], keep: tuple[str, ...] = ()) -> None:
    """Put values back into a dict: the same tensors, with what they held."""
    for name in [name for name in holder if name not in values and name not in keep]:
        del holder[name]
    for name, value in values.items():
        if isinstance(value, Tensor):
            _put_back(value, copies[name])
            holder[name] = value
        else:
            holder[name] = copies[name]


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return copy.copy(value)


def _put_back(tensor: Tensor, value: Tensor) -> None:
    if tensor.shape == value.shape:
        tensor.detach().copy_(value)
    else:
        tensor.data = value


def _values(namespace: Mapping[str, Any]) -> list[Any]:
    """The values of variables, and one level inside lists, dicts and objects."""
    found = list(namespace.values())
    for value in namespace.values():
        if type(value) in (list, tuple):
            found += list(value)
        elif type(value) is dict:
            found += list(value.values())
        elif not issubclass(type(value), (type, nn.Module, ModuleType, FunctionType)):
            with suppress(Exception):  # a proxy may refuse to tell
                found += list(vars(value).values())
    return found
