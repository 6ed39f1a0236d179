"""What the user calls things: the variables that a step sees, the modules among them, and the models chosen."""

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

#: Where code lies that is none of the user's own.
_INSTALLED = (
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]) + os.sep,
    "<frozen ",
)
#: Functions that a step calls, directly or not, whose variables are looked at for names.
_MOST_FUNCTIONS = 50


def namespace_of(step: Any) -> dict[str, Any]:
    """The variables that a function sees by name: the globals and closure that it, a function in it or a function that
    it calls by name uses, and a method's object."""
    seen: dict[str, Any] = {}
    functions = [getattr(step, "__func__", step)]
    for function in functions:  # grows; what stands nearer to the step comes first and keeps its name
        if type(function) is FunctionType:
            new = {name: value for name, value in _variables(function).items() if name not in seen}
            seen |= new
            if len(functions) < _MOST_FUNCTIONS:
                functions += [value for value in new.values() if type(value) is FunctionType]
    owner = getattr(step, "__self__", None)
    return seen if owner is None else {**seen, "self": owner}


def _variables(function: FunctionType) -> dict[str, Any]:
    """The globals that a function's code names, and its closure."""
    seen = {name: function.__globals__[name] for name in names_in(function.__code__) if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return seen | {name: cell.cell_contents for name, cell in cells if not is_empty(cell)}


def names_in(code: CodeType) -> list[str]:
    """Global names in a function's code and in that of the functions inside it."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in names_in(constant)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def is_empty(cell: CellType) -> bool:
    """Whether a closure's variable has no value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def is_installed(file: str) -> bool:
    """Whether code comes from Python's library, an installed package or perfnb: it is none of the user's own."""
    return file.startswith(_INSTALLED)


def chosen_models(model: Any) -> tuple[list[nn.Module] | None, dict[str, nn.Module]]:
    """The models that a user named, and the names given with them.

    Parameters
    ----------
    model : Module, sequence of Module, mapping of name to Module, or None

    Raises
    ------
    TypeError
        If it is none of these.
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
    """Modules bound to variables, then those one level inside an object, list or dict bound to a variable."""
    return named_values(namespace, nn.Module)


def named_values(namespace: Mapping[str, Any], kind: type) -> list[tuple[str, Any]]:
    """Values of a class, found as `named_modules` are."""
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
    # By type: isinstance asks a proxy for its class, and a proxy may have none.
    return issubclass(type(value), kind)


def _attributes(value: Any) -> dict[str, Any] | None:
    """An object's own attributes; ``None`` where it has none or will not tell."""
    try:
        parts: dict[str, Any] = vars(value)
        return parts
    except Exception:
        return None


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
