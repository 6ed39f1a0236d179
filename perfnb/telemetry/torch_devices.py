"""What torch, if this process has loaded it and uses the GPUs, knows about them; asking loads and starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

#: Metrics of torch's allocator, and their keys in its statistics.
_ALLOCATOR = {"torch_allocated_bytes": "allocated_bytes", "torch_reserved_bytes": "reserved_bytes"}


def names(uuids: Sequence[str]) -> dict[str, str] | None:
    """``gpu0`` and so on by UUID, in torch's order; GPUs that torch does not know come last.

    ``None`` while torch does not use CUDA, or if it does not report UUIDs. `uuids` are NVML's: ``GPU-8f...``.
    """
    cuda = _cuda() if uuids else None
    if cuda is None:
        return None
    try:
        own = [str(cuda.get_device_properties(index).uuid).lower() for index in range(cuda.device_count())]
    except Exception:  # an old torch or driver: the order of the environment variable stands
        return None
    places = {uuid: place for place, uuid in enumerate(own)}
    known = {uuid: places[bare] for uuid in uuids if (bare := uuid.lower().partition("-")[2]) in places}
    if not known:
        return None
    free = iter(range(len(own), len(own) + len(uuids)))
    return {uuid: f"gpu{known[uuid] if uuid in known else next(free)}" for uuid in uuids}


def allocator(device: str, *, ask: bool) -> dict[str, float | None]:
    """What torch's allocator holds on a device (``gpu0``); unknown if `ask` is false or torch cannot tell."""
    cuda = _cuda() if ask else None
    values: dict[str, float | None] = dict.fromkeys(_ALLOCATOR)
    if cuda is None:
        return values
    try:
        statistics = cuda.memory_stats_as_nested_dict(int(device.removeprefix("gpu")))
        return {metric: float(statistics[name]["all"]["current"]) for metric, name in _ALLOCATOR.items()}
    except Exception:  # a device that torch does not see, or another allocator
        return values


def _cuda() -> Any:
    """torch's CUDA module, if torch is loaded and has initialised CUDA."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    try:
        # Not is_available(), which initialises the driver: a process forked after that could not use the GPU.
        return cuda if cuda is not None and cuda.is_initialized() else None
    except Exception:  # torch may be half loaded
        return None
