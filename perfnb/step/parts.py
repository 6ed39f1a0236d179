"""The names and settings of a step's optimizers and loader, for recommendations that name them."""

from __future__ import annotations

import gc
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset, default_collate

from perfnb.step.namespace import named_values

#: Recorded settings of a loader and of an optimizer.
_OF_LOADER = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "batch_size", "drop_last")
_OF_OPTIMIZER = ("foreach", "fused", "capturable")
#: Modules that a recommended line may use.
_IMPORTS = ("torch", "gc", "os")
#: Arguments that let torch's optimizers update all parameters at once, fastest first.
_AT_ONCE = ("fused", "foreach")


def name_of_batches(step: Any, batches: Any) -> dict[str, Any]:
    """The global variable of a step's module that holds the batches, with the batches."""
    places = getattr(getattr(step, "__func__", step), "__globals__", {})
    if batches is None or isinstance(batches, (int, str)):
        return {}
    return next(({name: batches} for name, value in list(places.items()) if value is batches), {})


def named_parts(namespace: Mapping[str, Any], batches: Any, called: Iterable[nn.Module]) -> dict[str, Any]:
    """Names and settings of the optimizers and the loader of a step; JSON-able.

    Parameters
    ----------
    namespace : mapping
        Variables.
    batches : object
        Source of the batches; ``None`` without batches.
    called : iterable of Module
        The called modules; optimizers of other parameters are left out.

    Returns
    -------
    dict
        ``optimizers``, each once: ``name``, ``class``, ``tensors`` (number of parameters), ``elements`` in them,
        ``groups``, ``at_once`` (arguments that would make it update all at once), ``arguments`` (those given, for
        torch's optimizers), ``untold`` (which of them are not plain values), ``scheduled`` (whether a scheduler sets
        its learning rate), ``held_by`` (other names, or classes of objects, that refer to it) and its settings.
        ``loader``: ``name`` (``None`` if it is in no variable), ``class``, its settings, ``iterable`` (whether its
        dataset is iterable-style) and ``collates`` (whether with the user's function); ``None`` without batches.
        ``imports``: modules that the namespace has under their own names.
    """
    used = {id(parameter) for module in called for parameter in module.parameters(recurse=False)}
    names: dict[int, list[str]] = {}
    found: dict[int, torch.optim.Optimizer] = {}
    for name, value in named_values(namespace, torch.optim.Optimizer):
        if any(id(tensor) in used for tensor in _tensors(value)):
            names.setdefault(id(value), []).append(name)
            found[id(value)] = value
    held = holders(found.values())
    optimizers = []
    for key, (name, *others) in names.items():
        value, tensors = found[key], _tensors(found[key])
        # Assigning a new optimizer to that name also replaces it in the object that the name goes through.
        root = namespace.get(re.split(r"[.\[]", name)[0])
        around = [holder for holder in held[key] if holder is not root]
        given = _given(value)
        optimizers.append(
            {
                "name": name,
                "class": type(value).__name__,
                "tensors": len(tensors),
                "elements": sum(tensor.numel() for tensor in tensors),
                "groups": len(value.param_groups),
                "at_once": [word for word in _AT_ONCE if word in value.defaults],
                "arguments": _told(given),
                "untold": [key for key, one in (given or {}).items() if not _is_told(one)],
                "scheduled": _is_scheduled(value, held[key]),
                "held_by": [*others, *dict.fromkeys(type(holder).__name__ for holder in around)],
                **{key: value.defaults[key] for key in _OF_OPTIMIZER if _plain(value.defaults.get(key))},
            }
        )
    return {
        "optimizers": optimizers,
        "loader": None if batches is None else _loader(namespace, batches),
        "imports": [name for name in _IMPORTS if namespace.get(name) is sys.modules.get(name, _IMPORTS)],
    }


def _tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _is_scheduled(optimizer: torch.optim.Optimizer, held_by: Iterable[Any]) -> bool:
    """Whether a scheduler sets its learning rate; most of torch's schedulers leave ``initial_lr`` in the optimizer."""
    noted = any("initial_lr" in group for group in optimizer.param_groups)
    return noted or any(issubclass(type(holder), LRScheduler) for holder in held_by)


def _given(optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """The non-default settings of one of torch's optimizers; ``None`` for any other class."""
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind:
        return None
    usual = inspect.signature(kind).parameters
    given = {name: optimizer.defaults[name] for name in usual if name in optimizer.defaults}
    return {
        name: value
        for name, value in given.items()
        if name not in (*_AT_ONCE, "capturable") and not _is(value, usual[name].default)
    }


def _is(value: Any, usual: Any) -> bool:
    """Whether a setting has its default value; a tensor never does."""
    return value is usual or (_is_told(value) and bool(value == usual))


def _told(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """The settings with plain values."""
    return None if given is None else {name: value for name, value in given.items() if _is_told(value)}


def _is_told(value: Any) -> bool:
    return _plain(value) or (isinstance(value, tuple) and all(map(_plain, value)))


def _loader(namespace: Mapping[str, Any], batches: Any) -> dict[str, Any]:
    known = named_values(namespace, type(batches))
    name = next((name for name, value in known if value is batches), None)
    if not isinstance(batches, DataLoader):
        # enumerate(loader), zip(loader): use the loader, if there is only one.
        loaders = list({id(value): (name, value) for name, value in named_values(namespace, DataLoader)}.values())
        if name is not None or len(loaders) != 1 or isinstance(batches, (list, tuple)):
            return {"name": name, "class": type(batches).__name__}
        name, batches = loaders[0]
    settings = {key: getattr(batches, key, None) for key in _OF_LOADER}
    settings = {key: value for key, value in settings.items() if _plain(value)}
    dataset = getattr(batches, "dataset", None)
    return {
        "name": name,
        "class": type(batches).__name__,
        "dataset": type(dataset).__name__,
        "iterable": isinstance(dataset, IterableDataset),
        "collates": batches.batch_size is not None and batches.collate_fn is not default_collate,
        **settings,
    }


def _plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def holders(values: Iterable[Any]) -> dict[int, list[Any]]:
    """The objects that hold one of the values as an attribute, by the value's ``id``.

    They would keep the old value if its variable were assigned a new one. Modules are left out, and objects frozen by
    ``gc.freeze`` are not found.
    """
    wanted = {id(value): value for value in values}
    found: dict[int, list[Any]] = {key: [] for key in wanted}
    if not wanted:
        return found
    # The referrer is the object itself, or its __dict__, which the object refers to.
    direct = gc.get_referrers(*wanted.values())
    dicts = [one for one in direct if type(one) is dict]
    above = gc.get_referrers(*dicts) if dicts else []
    for owner in {id(one): one for one in (*direct, *above)}.values():
        if issubclass(type(owner), ModuleType):
            continue
        try:  # a proxy's own attributes
            parts = object.__getattribute__(owner, "__dict__")
        except Exception:
            continue
        if type(parts) is dict:
            for key in {id(part) for part in list(parts.values())} & wanted.keys():
                found[key].append(owner)
    return found
