"""Map a function over the tensors in whatever a step or a model returns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to each tensor and array in a value; containers and objects around them are copied.

    Enters the containers that torch knows, mappings, data classes, and objects whose attributes hold tensors.
    """

    def leaf(part: Any) -> Any:
        if isinstance(part, (Tensor, np.ndarray)):
            return function(part)
        if not (inner := _inside(part)):
            return part
        try:
            fresh = copy.copy(part)
            for name, inside in inner.items():
                new = tree_map(leaf, inside)
                if isinstance(fresh, Mapping):
                    fresh[name] = new  # type: ignore[index]
                else:
                    object.__setattr__(fresh, name, new)  # also if the class is frozen
        except Exception:  # it cannot be copied or changed
            return part
        return fresh

    return tree_map(leaf, value)


def _inside(part: Any) -> dict[Any, Any]:
    """What to enter in an object, by key or attribute."""
    if isinstance(part, Mapping):
        return dict(part)
    if isinstance(part, (type, nn.Module)):
        return {}
    if dataclasses.is_dataclass(part):
        names = [field.name for field in dataclasses.fields(part)]
        return {name: getattr(part, name) for name in names if hasattr(part, name)}
    attributes = getattr(part, "__dict__", {})
    return {name: value for name, value in attributes.items() if any(isinstance(x, Tensor) for x in tree_leaves(value))}
