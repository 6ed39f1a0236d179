"""Which array libraries a function uses, by the names in its code."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

#: Libraries that compute with whole arrays outside Python.
LIBRARIES = frozenset(
    {"cupy", "jax", "mlx", "numba", "numexpr", "numpy", "pandas", "polars", "scipy", "sklearn", "tensorflow", "torch"}
)


def libraries_used(function: Any) -> list[str]:
    """Array libraries that a function, or a Python function it calls, names or imports.

    A library that is only imported next to the function, but not used in it, does not count.
    """
    found: set[str] = set()
    seen: set[int] = set()
    left = [function]
    while left:
        thing = left.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        top = _top(thing)
        if top in LIBRARIES:
            found.add(top)
        elif top == "__main__" or top not in sys.stdlib_module_names:
            left += _parts(thing)
        elif isinstance(thing, functools.partial):
            left += [thing.func, *thing.args, *thing.keywords.values()]
        elif hasattr(thing, "__wrapped__"):  # as by functools.cache
            left.append(thing.__wrapped__)
    return sorted(found)


def _top(thing: Any) -> str:
    """Top-level module that a thing is or comes from."""
    if isinstance(thing, ModuleType):
        return thing.__name__.partition(".")[0]
    homes = (thing, getattr(thing, "__objclass__", None), type(thing))
    return next((str(home).partition(".")[0] for each in homes if (home := getattr(each, "__module__", None))), "")


def _parts(thing: Any) -> list[Any]:
    """What a function, class or callable object is made of, as far as Python can see."""
    if isinstance(thing, FunctionType):
        names = [thing.__globals__[name] for name in _names(thing.__code__) if name in thing.__globals__]
        closure = [cell.cell_contents for cell in thing.__closure__ or () if _filled(cell)]
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        modules = [sys.modules[name] for name in _imports(thing.__code__) if name in sys.modules]
        return [*names, *closure, *defaults, *modules, *([thing.__wrapped__] if hasattr(thing, "__wrapped__") else [])]
    if isinstance(thing, type):
        return [*vars(thing).values(), *thing.__bases__]
    if isinstance(thing, (staticmethod, classmethod)) or hasattr(thing, "__func__"):
        return [thing.__func__, getattr(thing, "__self__", None)]
    return [type(thing), *getattr(thing, "__dict__", {}).values()] if callable(thing) else []


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """All instructions, including those of nested functions."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _names(code: CodeType) -> set[str]:
    """Global names that are read; attribute names do not count, as they may be anything."""
    return {each.argval for each in _instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def _imports(code: CodeType) -> set[str]:
    return {each.argval for each in _instructions(code) if each.opname == "IMPORT_NAME"}
