"""What a step can get hold of: the values of its variables, and what lies inside them."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from perfnb.step.namespace import namespace_of

#: Levels inside a variable, entries of one container, and values in all that are looked at.
_MOST_LEVELS, _MOST_ENTRIES, _MOST_VALUES = 4, 1000, 20_000

#: What holds nothing that a step could change for us to know.
_CLOSED = (str, bytes, bytearray, int, float, complex, type, ModuleType, Tensor, Optimizer, LRScheduler, type(None))


def reachable(roots: Iterable[Any]) -> Iterator[Any]:
    """The roots, then what lies in their entries and attributes, nearer ones first, each once.

    Containers, objects, methods, partial functions, and generators and other iterators are opened, also variables that
    functions among them use, but neither classes nor Python modules. How deep and how many is bounded, for a dataset
    may hold millions.
    """
    waiting = deque((value, 0) for value in roots)
    seen: dict[int, Any] = {}  # what was seen is held, so that no other takes its place in memory
    while waiting and len(seen) < _MOST_VALUES:
        value, level = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        yield value
        if level < _MOST_LEVELS:
            waiting.extend((inner, level + 1) for inner in islice(_inside(value), _MOST_ENTRIES))


def _inside(value: Any) -> Iterable[Any]:
    # By type: isinstance asks a proxy for its class, and a proxy may have none.
    kind = type(value)
    if issubclass(kind, _CLOSED):
        return ()
    if issubclass(kind, dict):
        return list(islice(dict.values(value), _MOST_ENTRIES))
    if issubclass(kind, (list, tuple, set, frozenset, deque)):
        return list(islice(iter(value), _MOST_ENTRIES))
    if kind is FunctionType:
        return namespace_of(value).values()
    if kind is MethodType:
        return value.__self__, value.__func__
    if issubclass(kind, partial):
        return value.func, *value.args, *value.keywords.values()
    try:
        parts = vars(value)
    except Exception:  # it has none, or will not tell
        # What a generator loops over lies in none of its variables.
        return gc.get_referents(value) if hasattr(kind, "__next__") else ()
    if issubclass(kind, nn.Module):  # its tensors and the modules in it have ways of their own
        return [part for name, part in parts.items() if not name.startswith("_")]
    return list(parts.values())
