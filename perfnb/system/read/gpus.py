"""Read the configuration of NVIDIA GPUs through NVML."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pynvml

from perfnb.system.read.reading import Reader, Unread, Unreadable
from perfnb.telemetry.history import throttle_words
from perfnb.telemetry.sampler.nvml import (
    FIELDS,
    NONE_32,
    NONE_64,
    absence,
    decoded,
    error_words,
    find_gpus,
    let_through,
)


def gpu_readers(visible: str | None) -> dict[str, Reader]:
    """Return a reader for all GPU facts. `visible` is the value of CUDA_VISIBLE_DEVICES, or ``None`` if it is unset."""
    return {"gpus": lambda: read_gpus(visible)}


def read_gpus(visible: str | None) -> dict[str, Any]:
    """Return the driver and each visible GPU's configuration. Single values that cannot be read are `Unread`.

    Raises
    ------
    Unreadable
        If there is no GPU to read.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Unreadable(absence(error)) from None
    try:
        gpus = find_gpus()
        chosen = let_through(gpus, visible)
        if not chosen:
            hidden = f": CUDA_VISIBLE_DEVICES hides all {len(gpus)}" if gpus else ""
            raise Unreadable(f"no GPU is visible{hidden}")
        places = [place for place, gpu in enumerate(gpus) if any(device in chosen for device in gpu.devices)]
        return {
            "driver": _asked(lambda: decoded(pynvml.nvmlSystemGetDriverVersion)),
            "driver_cuda": _asked(_cuda_of_driver),
            "devices": {f"GPU {place}": _device(place) for place in places},
        }
    except pynvml.NVMLError as error:  # the GPUs cannot be counted
        raise Unreadable(absence(error)) from None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _device(place: int) -> dict[str, Any] | Unread:
    handle = _asked(lambda: pynvml.nvmlDeviceGetHandleByIndex(place))
    if isinstance(handle, Unread):
        return handle
    return {name: _asked(lambda read=read: read(handle)) for name, read in _READERS.items()}  # type: ignore[misc]


def _asked(read: Callable[[], Any]) -> Any:
    """Return NVML's answer, or the reason why there is no answer."""
    try:
        value = read()
    except pynvml.NVMLError as error:
        return Unread(error_words(error))
    return Unread("the driver reports no value") if value in (NONE_32, NONE_64) else value


def _cuda_of_driver() -> tuple[int, int]:
    """Return the newest CUDA version that the driver supports."""
    version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    return version // 1000, version % 1000 // 10


def _ecc(handle: Any) -> dict[str, bool]:
    now, next_start = pynvml.nvmlDeviceGetEccMode(handle)
    return {"on": bool(now), "after_restart": bool(next_start)}


def _uncorrected(handle: Any) -> int:
    """Return the number of uncorrectable memory errors since the driver was loaded."""
    return int(
        pynvml.nvmlDeviceGetTotalEccErrors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    )


def _throttled(handle: Any) -> list[str] | Unread:
    bits = int(FIELDS["throttle_reasons"].read(handle))
    return Unread("the driver reports no value") if bits == FIELDS["throttle_reasons"].none else throttle_words(bits)


_READERS: dict[str, Callable[[Any], Any]] = {
    "name": lambda handle: decoded(pynvml.nvmlDeviceGetName, handle),
    "persistent": lambda handle: bool(pynvml.nvmlDeviceGetPersistenceMode(handle)),
    "power_limit_mw": pynvml.nvmlDeviceGetPowerManagementLimit,
    "power_default_mw": pynvml.nvmlDeviceGetPowerManagementDefaultLimit,
    "throttled": _throttled,
    "ecc": _ecc,
    "uncorrected": _uncorrected,
    "pcie_generation": pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
    "pcie_width": pynvml.nvmlDeviceGetCurrPcieLinkWidth,
    "pcie_most_generation": pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
    "pcie_most_width": pynvml.nvmlDeviceGetMaxPcieLinkWidth,
}
