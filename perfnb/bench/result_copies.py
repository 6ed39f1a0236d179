"""Copies of what a step returned, for the next step may write its own result to the same memory."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def copied(result: Any) -> Any:
    """A result whose tensors and arrays nobody else writes to; what a model owns stays as it is."""
    if isinstance(result, torch.Tensor):
        return result if isinstance(result, torch.nn.Parameter) else result.detach().clone()
    if isinstance(result, np.ndarray):
        return result.copy()
    if type(result) in (list, tuple):
        return type(result)(map(copied, result))
    if isinstance(result, tuple) and hasattr(result, "_make"):
        return result._make(map(copied, result))
    names = _names_in(result)
    if not names:
        return result
    try:
        fresh = copy.copy(result)
        for name in names:
            if isinstance(fresh, Mapping):
                fresh[name] = copied(result[name])  # type: ignore[index]
            else:
                setattr(fresh, name, copied(getattr(result, name)))
    except Exception:  # it does not let itself be changed
        return result
    return fresh


def _names_in(result: Any) -> list[Any]:
    """Keys of a mapping, or fields of a data class."""
    if isinstance(result, Mapping):
        return list(result)
    whole = dataclasses.is_dataclass(result) and not isinstance(result, type)
    return [field.name for field in dataclasses.fields(result)] if whole else []
