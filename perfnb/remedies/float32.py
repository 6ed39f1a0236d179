"""How torch computes products of float32 matrices, as its two interfaces have it.

Since torch 2.9 there are two, and asking the older one raises after the newer one was used.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

_OLDER = "torch.get_float32_matmul_precision"


def older_precision() -> str | None:
    """What ``torch.get_float32_matmul_precision`` says; ``None`` where the newer interface is in use."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def newer_parts() -> dict[str, Any]:
    """What has an ``fp32_precision`` for products, by name; empty before torch 2.9."""
    owners = {
        "torch.backends.cuda.matmul": torch.backends.cuda.matmul,
        "torch.backends.mkldnn.matmul": getattr(torch.backends.mkldnn, "matmul", None),
    }
    found: dict[str, Any] = {}
    for name, owner in owners.items():
        with suppress(AttributeError, RuntimeError):
            if isinstance(getattr(owner, "fp32_precision", None), str):
                found[name] = owner
    return found


def set_float32_precisions(wanted: Mapping[str, str | None]) -> None:
    """Set what `float32_precisions` gave."""
    if (older := wanted[_OLDER]) is not None:
        torch.set_float32_matmul_precision(older)
    for name, owner in newer_parts().items():
        if owner.fp32_precision != wanted[name]:  # "none" would be "ieee" now
            owner.fp32_precision = wanted[name]


def float32_precisions() -> dict[str, str | None]:
    """All settings, by name."""
    parts = {name: owner.fp32_precision for name, owner in newer_parts().items()}
    return {_OLDER: older_precision()} | parts
