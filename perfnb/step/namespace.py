"""The variables that a step uses: by name, the models among them, and everything reachable from them."""

from __future__ import annotations

import gc
import os
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

#: Locations of code that is not the user's.
_INSTALLED = (
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]) + os.sep,
    "<frozen ",
)
#: Most functions called by a step, directly or not, whose variables are searched for names.
_MOST_FUNCTIONS = 50


def namespace_of(step: Any) -> dict[str, Any]:
    """The globals and closure variables used by a function, the functions inside it and those that it calls by name,
    and a method's object as ``self``."""
    seen: dict[str, Any] = {}
    functions = [getattr(step, "__func__", step)]
    for function in functions:  # grows; variables nearer to the step keep their names
        if type(function) is FunctionType:
            new = {name: value for name, value in _variables(function).items() if name not in seen}
            seen |= new
            if len(functions) < _MOST_FUNCTIONS:
                functions += [value for value in new.values() if type(value) is FunctionType]
    owner = getattr(step, "__self__", None)
    return seen if owner is None else {**seen, "self": owner}


def _variables(function: FunctionType) -> dict[str, Any]:
    """The globals named in a function's code, and its closure."""
    seen = {name: function.__globals__[name] for name in names_in(function.__code__) if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return seen | {name: cell.cell_contents for name, cell in cells if not is_empty(cell)}


def names_in(code: CodeType) -> list[str]:
    """Global names in a code object and in the functions inside it."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in names_in(constant)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def is_empty(cell: CellType) -> bool:
    """Whether a closure variable has no value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def is_installed(file: str) -> bool:
    """Whether code is from the standard library, an installed package or perfnb, and not the user's."""
    return file.startswith(_INSTALLED)


def chosen_models(model: Any) -> tuple[list[nn.Module] | None, dict[str, nn.Module]]:
    """The models that the user chose, as a module, a sequence or a mapping by name, and the names given to them.

    Raises `TypeError` for anything else but ``None``.
    """
    if model is None:
        return None, {}
    names = dict(model) if isinstance(model, Mapping) else {}
    models = list(names.values()) or ([model] if isinstance(model, nn.Module) else model)
    if not isinstance(models, (list, tuple)) or not all(isinstance(entry, nn.Module) for entry in models):
        raise TypeError(
            "model must be a torch module, a list of modules or a dict of names to modules, "
            f"not {type(model).__name__}."
        )
    return list(models), names


def named_modules(namespace: Mapping[str, Any]) -> list[tuple[str, nn.Module]]:
    """Modules in variables, then those one level inside an object, list or dict in a variable."""
    return named_values(namespace, nn.Module)


def named_values(namespace: Mapping[str, Any], kind: type) -> list[tuple[str, Any]]:
    """Values of a class, found as in `named_modules`."""
    public = [(name, value) for name, value in namespace.items() if _is_public(name)]
    direct = [(name, value) for name, value in public if _is_a(value, kind)]
    nested: list[tuple[str, Any]] = []
    for name, value in public:
        if issubclass(type(value), (nn.Module, FunctionType, ModuleType, type)):
            continue
        if issubclass(type(value), dict):
            nested += [(f"{name}[{key!r}]", item) for key, item in value.items()]
        elif issubclass(type(value), (list, tuple)):
            nested += [(f"{name}[{place}]", item) for place, item in enumerate(value)]
        elif (parts := _attributes(value)) is not None:
            nested += [(f"{name}.{key}", item) for key, item in parts.items()]
    return direct + [(name, item) for name, item in nested if _is_a(item, kind)]


def _is_public(name: Any) -> bool:
    return isinstance(name, str) and not name.startswith("_") and name not in ("In", "Out")


def _is_a(value: Any, kind: type) -> bool:
    # By type: isinstance may run code of a proxy.
    return issubclass(type(value), kind)


def _attributes(value: Any) -> dict[str, Any] | None:
    """An object's own attributes; ``None`` if it has none or they cannot be read."""
    try:
        parts: dict[str, Any] = vars(value)
        return parts
    except Exception:
        return None


#: Most levels inside a variable, entries of a container, and values in all.
_MOST_LEVELS, _MOST_ENTRIES, _MOST_VALUES = 4, 1000, 20_000

#: Values that are not searched.
_CLOSED = (str, bytes, bytearray, int, float, complex, type, ModuleType, Tensor, Optimizer, LRScheduler, type(None))


def reachable(roots: Iterable[Any]) -> Iterator[Any]:
    """The roots, then the values inside them, nearest first, each once.

    Searches containers, objects, methods, partial functions, iterators and the variables of functions, but not classes
    or Python modules. Depth and number are limited, because a dataset may hold millions of values.
    """
    waiting = deque((value, 0) for value in roots)
    seen: dict[int, Any] = {}  # kept alive, so that no id is reused
    while waiting and len(seen) < _MOST_VALUES:
        value, level = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        yield value
        if level < _MOST_LEVELS:
            waiting.extend((inner, level + 1) for inner in islice(_inside(value), _MOST_ENTRIES))


def _inside(value: Any) -> Iterable[Any]:
    kind = type(value)  # isinstance may run code of a proxy
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
    except Exception:  # no attributes, or not readable
        # The iterable of a generator's loop is in none of its variables.
        return gc.get_referents(value) if hasattr(kind, "__next__") else ()
    if issubclass(kind, nn.Module):  # its tensors and submodules are found otherwise
        return [part for name, part in parts.items() if not name.startswith("_")]
    return list(parts.values())
