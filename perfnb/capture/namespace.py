"""What the user calls things: the variables that a step sees, the modules among them, and the models chosen."""

from __future__ import annotations

from collections.abc import Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import nn

#: Functions that a step calls, directly or not, whose variables are looked at for names.
_MOST_FUNCTIONS = 50


def namespace_of(step: Any) -> dict[str, Any]:
    """The variables that a function sees by name: the globals and closure that it, a function in it or a function that
    it calls by name uses, and a method's object."""
    seen: dict[str, Any] = {}
    functions = [getattr(step, "__func__", step)]
    for function in functions:  # grows; what stands nearer to the step comes first and keeps its name
        if isinstance(function, FunctionType):
            new = {name: value for name, value in _variables(function).items() if name not in seen}
            seen |= new
            if len(functions) < _MOST_FUNCTIONS:
                functions += [value for value in new.values() if isinstance(value, FunctionType)]
    owner = getattr(step, "__self__", None)
    return seen if owner is None else {**seen, "self": owner}


def _variables(function: FunctionType) -> dict[str, Any]:
    """The globals that a function's code names, and its closure."""
    seen = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return seen | {name: cell.cell_contents for name, cell in cells if not _is_empty(cell)}


def _names(code: CodeType) -> list[str]:
    """Global names in a function's code and in that of the functions inside it."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _is_empty(cell: CellType) -> bool:
    """Whether a closure's variable has no value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


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
            f"model must be a torch module, a list of modules or a dict of them, not {type(model).__name__}."
        )
    return list(models), names


def named_modules(namespace: Mapping[str, Any]) -> list[tuple[str, nn.Module]]:
    """Modules bound to variables, then those one level inside an object, list or dict bound to a variable."""
    public = [entry for entry in namespace.items() if not entry[0].startswith("_") and entry[0] not in ("In", "Out")]
    direct = [(name, value) for name, value in public if isinstance(value, nn.Module)]
    nested = []
    for name, value in public:
        if isinstance(value, nn.Module) or callable(value):
            continue
        if isinstance(value, dict):
            nested += [(f"{name}[{key!r}]", item) for key, item in value.items() if isinstance(item, nn.Module)]
        elif isinstance(value, (list, tuple)):
            nested += [(f"{name}[{place}]", item) for place, item in enumerate(value) if isinstance(item, nn.Module)]
        else:
            parts = getattr(value, "__dict__", {})
            nested += [(f"{name}.{key}", item) for key, item in parts.items() if isinstance(item, nn.Module)]
    return direct + nested
