"""Undo the changes that training steps make to models, optimizers and random states."""

from __future__ import annotations

import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves, tree_map

from perfnb.errors import CaptureError
from perfnb.step.device import random_state, set_random_state
from perfnb.step.namespace import reachable

#: The types of plain values.
PLAIN = (bool, int, float, complex, str, np.float64, np.float32, np.int64, np.int32, np.bool_)
#: Containers that steps may add to, such as a list of an epoch's losses. Subclasses are excluded, because they may do
#: more than contain values.
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_CONTAINERS = (list, set, deque, *_MAPPINGS)
#: The maximum number of values in a container, and the maximum number of nested containers, that are searched.
_MOST_SEARCHED, _DEEPEST = 1000, 4
_MODULES_OWN = frozenset(vars(nn.Module()))
#: For each sparse layout, the methods that return the strided tensors where the values are stored.
_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values")),
}
#: A function that restores one object. It refers to the object, which prevents the object's id from being reused.
PutBack = Callable[[], object]


class Restored:
    """Context manager that undoes all changes made by steps, so that every bit is as before.

    For models, it restores parameters and buffers with their gradients, modes, and attributes. Attributes are restored
    if they are plain values, tensors, lists, sets or dicts; containers remain the same objects. For optimizers, it
    restores their states, their groups and the parameters that they train. It also restores learning-rate schedulers,
    gradient scalers and random generators, as well as the global random state of Python, NumPy and torch. Other
    objects, such as counters outside a model, are not restored.

    Parameters
    ----------
    models : iterable of Module
    roots : iterable
        The objects that the steps can access. Everything reachable from them is also restored, such as averaged weights
        or a second model. Other optimizers are saved when they step for the first time.
    """

    def __init__(self, models: Iterable[nn.Module], roots: Iterable[Any]) -> None:
        self._models, self._roots = list(models), list(roots)
        self._saved: dict[int, PutBack] = {}
        self._numbers: Any = None
        self._hook: Any = None

    def __enter__(self) -> Restored:
        self._numbers = random_state()
        for value in (*self._models, *reachable(self._roots)):
            kind = type(value)  # isinstance would ask a proxy for its class, which it may not have
            if issubclass(kind, nn.Module):
                self.save_model(value)
            elif issubclass(kind, Optimizer):
                self._save_optimizer(value)
            else:
                with suppress(NotImplementedError):  # SystemRandom does not have a state
                    self._save(value, _other)
        self._hook = register_optimizer_step_pre_hook(lambda optimizer, *_: self._save_optimizer(optimizer))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._hook.remove()
        failed: Exception | None = None
        with torch.no_grad():
            for put_back in self._saved.values():
                try:  # an object that cannot be written to must not prevent the others from being restored
                    put_back()
                except Exception as error:
                    failed = failed or error
        set_random_state(self._numbers)
        if failed is not None:
            reason = " ".join(str(failed).split())[:300]
            raise CaptureError(f"A tensor of the model or optimizer cannot be restored: {reason}.") from failed

    def _save(self, value: Any, how: Callable[[Any], PutBack | None]) -> None:
        if id(value) not in self._saved and (put_back := how(value)) is not None:
            self._saved[id(value)] = put_back

    def save_model(self, model: nn.Module) -> None:
        """Also restore this model, to its current state unless an earlier one has been saved."""
        for module in model.modules():
            self._save(module, _module)
            for _, tensor in (*module._parameters.items(), *module._buffers.items()):
                self._save(tensor, _tensor)

    def _save_optimizer(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._saved:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._save(parameter, _tensor)
            self._save(optimizer, _optimizer)


@contextmanager
def kept_attributes(owner: Any) -> Iterator[None]:
    """Restore the attributes of an object that is not a module, in the same way as a module's attributes."""
    put_back = _attributes(owner)
    try:
        yield
    finally:
        with torch.no_grad():
            put_back()


@contextmanager
def kept_positions(loaders: Iterable[Any]) -> Iterator[None]:
    """Restore the position of those loaders that keep track of their position."""
    positions = []
    for loader in loaders:
        if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
            # Accelerate's loaders have both methods, but state_dict raises AttributeError unless a state was requested.
            with suppress(AttributeError):
                positions.append((loader, copy.deepcopy(loader.state_dict())))
    try:
        yield
    finally:
        for loader, position in positions:
            loader.load_state_dict(position)


def _module(module: nn.Module) -> PutBack:
    parts = (module._parameters, module._buffers, module._modules)
    training, held = module.training, [dict(part.items()) for part in parts]
    put_back_attributes = _attributes(module)

    def put_back() -> None:
        module.training = training
        # Registering a name removes it from the plain attributes. Registered attributes are therefore restored first.
        for own, saved in zip((module._parameters, module._buffers, module._modules), held, strict=True):
            if isinstance(own, dict):  # TorchScript uses another type, whose tensors cannot be replaced
                own.clear()
                own.update(saved)
        put_back_attributes()

    return put_back


def _attributes(owner: Any) -> PutBack:
    attributes = plain_attributes(owner)
    inside = contents(attributes.values())
    containers = [(value, copy.copy(value)) for value in inside if type(value) in _CONTAINERS]
    tensors = [_attribute(value) for value in inside if issubclass(type(value), Tensor) and has_numbers(value)]

    def put_back() -> None:
        for name in plain_attributes(owner).keys() - attributes.keys():
            del vars(owner)[name]
        vars(owner).update(attributes)
        for container, before in containers:
            container.clear()
            (container.extend if isinstance(container, (list, deque)) else container.update)(before)
        for put_back_tensor in tensors:
            put_back_tensor()

    return put_back


def plain_attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes that an object's own code has set to plain values, tensors or containers.

    The attributes of torch's wrappers are excluded. DistributedDataParallel, for example, keeps such values in sync
    with others that are not accessible from Python.
    """
    made_in = f"{type(owner).__module__}."
    if made_in.startswith("torch.") and not made_in.startswith("torch.nn.modules."):
        return {}
    return {
        name: value
        for name, value in vars(owner).items()
        if value is None
        or type(value) in PLAIN
        or isinstance(value, Tensor)
        or (type(value) in _CONTAINERS and name not in _MODULES_OWN)
    }


def contents(values: Iterable[Any]) -> list[Any]:
    """Return the values and any values inside containers, without duplicates, up to a limited depth and number."""
    waiting = deque((value, 0) for value in values)
    found: dict[int, Any] = {}
    while waiting:
        value, level = waiting.popleft()
        if id(value) not in found and type(value) in _CONTAINERS and level < _DEEPEST:
            waiting.extend((entry, level + 1) for entry in _entries(value)[:_MOST_SEARCHED])
        found.setdefault(id(value), value)
    return list(found.values())


def _entries(container: Any) -> list[Any]:
    """Return a container's contents in an order that stays the same as long as the contents do."""
    if type(container) in _MAPPINGS:
        return [*container.keys(), *container.values()]
    return sorted(container, key=id) if type(container) is set else list(container)


def has_numbers(tensor: Tensor) -> bool:
    """Return whether a tensor's values can be copied and written back.

    This is not possible for meta and nested tensors, for other subclasses with their own storage, and for tensors whose
    elements share memory, such as expanded tensors.
    """
    return not (tensor.is_meta or tensor.is_nested or _is_wrapped(tensor) or _overlaps(tensor))


def _is_wrapped(tensor: Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def _overlaps(tensor: Tensor) -> bool:
    """Return whether a tensor's elements share memory, which means that the tensor cannot be written to.

    For example, this is true of expanded tensors.
    """
    if tensor.is_meta or tensor.is_nested or _is_wrapped(tensor) or tensor.layout is not torch.strided:
        return False
    steps = [(step, length) for step, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1]
    spanned = 1 + sum(step * (length - 1) for step, length in steps)
    return tensor.numel() > spanned


def _attribute(tensor: Tensor) -> PutBack:
    """Restore the values of a tensor that is not a parameter, if they have changed.

    Unchanged tensors are not written to, because a graph may refer to them or their memory may be read-only.
    """
    value = _copy(tensor)

    def put_back() -> None:
        if not _same_bits(tensor, value):
            _refill(tensor, value)

    return put_back


def _same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors consist of the same bits.

    Comparing values would not work, because NaN differs from itself. Comparing versions would not work either, because
    writes via ``.data`` or NumPy do not update a tensor's version.
    """
    kinds = [(tensor.shape, tensor.dtype, tensor.device, tensor.layout) for tensor in (first, second)]
    return kinds[0] == kinds[1] and all(map(torch.equal, bits(first), bits(second)))


def bits(tensor: Tensor) -> list[Tensor]:
    """Return the bits of a tensor's values or, for a sparse tensor, the bits of its indices and values."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.int_repr()  # torch crashes when quantized tensors are compared through a view
    if tensor.layout is torch.strided:
        return [tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)]
    parts = _PARTS.get(tensor.layout, ("to_dense",))
    return [part for name in parts for part in bits(getattr(tensor, name)())]


def _tensor(tensor: Tensor | None) -> PutBack | None:
    if tensor is None or is_lazy(tensor) or _overlaps(tensor):
        return None
    value, derivable, grad = _copy(tensor), tensor.requires_grad, tensor.grad if tensor.is_leaf else None
    put_back_grad = None if grad is None else partial(_refill, grad, _copy(grad))

    def put_back() -> None:
        if not _same_bits(tensor, value):  # memory that has not been modified may be read-only
            _refill(tensor, value)
        if tensor.is_leaf and tensor.requires_grad != derivable:
            tensor.requires_grad_(derivable)
        if put_back_grad is not None:
            put_back_grad()
        tensor.grad = grad

    return put_back


def _optimizer(optimizer: Optimizer) -> PutBack:
    """Save an optimizer's state and groups. Restoring writes the values back into the same tensor objects."""
    groups = [
        {name: rebuilt(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]
    states = {key: rebuilt(state) for key, state in optimizer.state.items()}
    tensors = [(leaf, _copy(leaf)) for leaf in tree_leaves((groups, list(states.values()))) if isinstance(leaf, Tensor)]

    def put_back() -> None:
        for tensor, value in tensors:
            _refill(tensor, value)
        for group, saved in zip(optimizer.param_groups, groups, strict=False):
            for name in [name for name in group if name not in saved and name != "params"]:
                del group[name]
            group.update(saved)
        optimizer.state.clear()
        optimizer.state.update(states)

    return put_back


def _other(value: Any) -> PutBack | None:
    """Save the state of a scheduler, gradient scaler or random generator. Return ``None`` for any other object."""
    kind = type(value)
    if issubclass(kind, (LRScheduler, torch.amp.GradScaler)):
        state = copy.deepcopy(value.state_dict())
        return partial(value.load_state_dict, state) if state else None
    if issubclass(kind, (torch.Generator, np.random.RandomState)):
        return partial(value.set_state, value.get_state())
    if issubclass(kind, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", copy.deepcopy(value.bit_generator.state))
    if issubclass(kind, random.Random):
        return partial(value.setstate, value.getstate())
    return None


def rebuilt(value: Any) -> Any:
    """Copy nested lists, tuples and dicts, but not the tensors and other objects that they contain."""
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
