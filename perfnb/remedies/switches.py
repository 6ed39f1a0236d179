"""Provide functions that read and set the global switches of torch and Python, by name."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

_OLDER = "torch.get_float32_matmul_precision"
_ATTENTIONS = ("flash", "mem_efficient", "math", "cudnn")
_AUTOCASTS = ("cpu", "cuda")


def older_precision() -> str | None:
    """Return the result of ``torch.get_float32_matmul_precision``; ``None`` if the newer interface is in use.

    Since torch 2.9, there are two interfaces. Once the newer one has been used, reading the older one raises an error.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def newer_parts() -> dict[str, Any]:
    """Return the objects that have an ``fp32_precision`` for matrix products, by name; empty before torch 2.9."""
    owners = {
        "torch.backends.cuda.matmul": torch.backends.cuda.matmul,
        "torch.backends.mkldnn.matmul": getattr(torch.backends.mkldnn, "matmul", None),
    }
    parts: dict[str, Any] = {}
    for name, owner in owners.items():
        with suppress(AttributeError, RuntimeError):
            if isinstance(getattr(owner, "fp32_precision", None), str):
                parts[name] = owner
    return parts


def float32_precisions() -> dict[str, str | None]:
    """Return the precision that torch uses for float32 matrix products, according to both interfaces."""
    parts = {name: owner.fp32_precision for name, owner in newer_parts().items()}
    return {_OLDER: older_precision()} | parts


def set_float32_precisions(wanted: Mapping[str, str | None]) -> None:
    """Restore the precisions that `float32_precisions` returned."""
    if (older := wanted[_OLDER]) is not None:
        torch.set_float32_matmul_precision(older)
    for name, owner in newer_parts().items():
        if owner.fp32_precision != wanted[name]:  # "none" would be "ieee" now
            owner.fp32_precision = wanted[name]


def _set_attentions(wanted: Iterable[bool]) -> None:
    for name, on in zip(_ATTENTIONS, wanted, strict=True):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(on)


def _set_autocasts(wanted: Iterable[tuple[bool, torch.dtype]]) -> None:
    for kind, (on, dtype) in zip(_AUTOCASTS, wanted, strict=True):
        torch.set_autocast_enabled(kind, on)
        torch.set_autocast_dtype(kind, dtype)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


THREADS, COLLECTION, CUDNN = "torch's number of threads", "garbage collection", "cuDNN's benchmark"
PRECISION, BACKWARD = "the float32 precision", "torch.Tensor.backward"
#: Functions to read and to set each switch, by name.
SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    THREADS: (torch.get_num_threads, torch.set_num_threads),
    PRECISION: (float32_precisions, set_float32_precisions),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    CUDNN: _attribute(torch.backends.cudnn, "benchmark"),
    "cuDNN": _attribute(torch.backends.cudnn, "enabled"),
    "cuDNN's determinism": _attribute(torch.backends.cudnn, "deterministic"),
    "oneDNN (mkldnn)": _attribute(torch.backends.mkldnn, "enabled"),
    "the choice of attention": (
        lambda: [getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in _ATTENTIONS],
        _set_attentions,
    ),
    "autocast": (
        lambda: [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCASTS],
        _set_autocasts,
    ),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "anomaly detection": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    COLLECTION: (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    BACKWARD: _attribute(Tensor, "backward"),
}


@contextmanager
def kept(name: str) -> Iterator[None]:
    """Restore a switch at the end of the context."""
    read, write = SWITCHES[name]
    before = read()
    try:
        yield
    finally:
        write(before)


@contextmanager
def switched(name: str, value: Any) -> Iterator[None]:
    """Set a switch and restore it at the end of the context."""
    with kept(name):
        SWITCHES[name][1](value)
        yield
