"""Which objects hold another one as an attribute: they keep it when a variable gets a new one."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import ModuleType
from typing import Any


def holders(values: Iterable[Any]) -> dict[int, list[Any]]:
    """The objects with an attribute that is one of the values, by the value's ``id``; modules are left out.

    What the user set apart from the garbage collector (``gc.freeze``) is not seen.
    """
    wanted = {id(value): value for value in values}
    found: dict[int, list[Any]] = {key: [] for key in wanted}
    if not wanted:
        return found
    # An attribute is held by the object itself or by its dictionary, which the object holds.
    direct = gc.get_referrers(*wanted.values())
    dicts = [one for one in direct if type(one) is dict]
    above = gc.get_referrers(*dicts) if dicts else []
    for owner in {id(one): one for one in (*direct, *above)}.values():
        if issubclass(type(owner), ModuleType):
            continue
        try:  # a proxy's own attributes are asked for, not those of what it stands for
            parts = object.__getattribute__(owner, "__dict__")
        except Exception:
            continue
        if type(parts) is dict:
            for key in {id(part) for part in list(parts.values())} & wanted.keys():
                found[key].append(owner)
    return found
