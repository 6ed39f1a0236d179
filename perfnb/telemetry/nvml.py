"""Readings of NVIDIA GPUs, through NVML."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pynvml

from perfnb.telemetry.nvml_devices import LOST, Device, error_words, find_gpus, let_through
from perfnb.telemetry.nvml_fields import FIELDS, PCIE_THROUGHPUT, SLICE_FIELDS, Field
from perfnb.telemetry.nvml_pcie import PcieCounters
from perfnb.telemetry.nvml_throttle import throttle_words
from perfnb.telemetry.readings import Absent, Facts, Lost, Values

__all__ = ["NvmlSource", "absence", "throttle_words"]

T = TypeVar("T")

_ABSENT = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver on this machine",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver and its library differ in version: restart the machine or reload the driver"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to use the NVIDIA driver",
}
_NEVER = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
#: NVML measures the traffic for 20 ms in each direction, in which nothing else can be read: seldom, and apart.
_THROUGHPUT_NS, _APART_NS = 2_000_000_000, 100_000_000
_SLICES = (
    "Of a MIG slice only memory can be read: NVML gives no utilisation under MIG, and the rest only for the whole GPU."
)


def absence(error: pynvml.NVMLError) -> str:
    """Why there is no GPU to read, where NVML does not start or cannot count them."""
    return _ABSENT.get(error.value) or f"NVML does not start: {error_words(error)}"


class NvmlSource:
    """NVIDIA GPUs, and the MIG slices of those that are cut into slices, as NVML sees them.

    Memory is what everyone uses on the device, and ``busy_percent`` the share of the last 1/6 to 1 s in which some
    kernel ran. There are no figures by process: NVML gives the host's process ids, which mean nothing in a container.

    Parameters
    ----------
    visible : str or None
        The value of CUDA_VISIBLE_DEVICES; ``None`` where it is not set. Integers in it are taken in NVML's order, which
        may differ from CUDA's own: once the devices that CUDA uses are known, map them by UUID.

    Raises
    ------
    Absent
        If there is no GPU to read.
    """

    name = "GPU"

    def __init__(self, visible: str | None) -> None:
        self.notes: list[str] = []
        self._open = False
        try:
            pynvml.nvmlInit()
            self._open = True
            gpus = find_gpus()
        except pynvml.NVMLError as error:
            self.close()
            raise Absent(absence(error)) from error
        chosen = let_through(gpus, visible)
        self._devices = {device.key: device for device in chosen if not device.problem}
        if not self._devices:
            self.close()
            hidden = gpus and not chosen
            problem = f"no GPU can be read ({chosen[0].problem})" if chosen else "no GPU is visible"
            raise Absent(f"{problem}: CUDA_VISIBLE_DEVICES hides all {len(gpus)}" if hidden else problem)
        self.notes += [f"{device.problem}. It is not watched." for device in chosen if device.problem]
        if any(device.mig for device in self._devices.values()):
            self.notes.append(_SLICES)
        self._pcie = {key: PcieCounters() for key in self._devices}
        self._asked_ns: dict[str, int] = {}

    def devices(self) -> list[str]:
        """The UUIDs of the devices, in the order of CUDA_VISIBLE_DEVICES."""
        return list(self._devices)

    def facts(self, device: str) -> Facts:
        """Name, UUID, NVML's index, size of the memory, power limit, and whether it is a slice."""
        return dict(self._devices[device].facts)

    def read(self, device: str, now_ns: int) -> Values:
        """Read a GPU; see `perfnb.telemetry.readings.Source`."""
        asked = self._devices[device]
        values: Values = dict.fromkeys([*FIELDS, *PCIE_THROUGHPUT])
        for metric in SLICE_FIELDS if asked.mig else FIELDS:
            values[metric] = self._read(asked, metric, FIELDS[metric])
        if not asked.mig:
            values |= self._read_pcie(asked, now_ns)
        return values

    def close(self) -> None:
        """Shut NVML down; what was started once is ended once."""
        if self._open:
            self._open = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _read(self, device: Device, metric: str, how: Field) -> float | None:
        value = None if metric in device.mute else self._ask(device, {metric: how.words}, how.read)
        if value is None:
            return None
        if value == how.none:
            self._note(device, metric, how.words, "the driver gives no value")
            return None
        return value if how.unit == 1 else value * how.unit

    def _read_pcie(self, device: Device, now_ns: int) -> Values:
        words = {metric: how.words for metric, how in PCIE_THROUGHPUT.items() if metric not in device.mute}
        counters = self._pcie[device.key]
        if counters.usable and words:
            rates = self._ask(device, words, lambda handle: counters.read(handle, now_ns))
            if counters.usable:
                return rates or {}
        asked = self._asked_ns.get(device.key, -math.inf), max(self._asked_ns.values(), default=-math.inf)
        if not words or now_ns - asked[0] < _THROUGHPUT_NS or now_ns - asked[1] < _APART_NS:
            return {}
        self._asked_ns[device.key] = now_ns
        return {metric: self._read(device, metric, PCIE_THROUGHPUT[metric]) for metric in words}

    def _ask(self, device: Device, words: dict[str, str], read: Callable[[Any], T]) -> T | None:
        """What `read` gives of a device; ``None``, and a note for each of the metrics in `words`, if it fails."""
        try:
            return read(device.handle)
        except pynvml.NVMLError as error:
            if error.value in LOST:
                raise Lost(f"{device.words}: {error_words(error)}") from error
            for metric, word in words.items():
                self._note(device, metric, word, error_words(error))
            if error.value in _NEVER:
                device.mute.update(words)
        return None

    def _note(self, device: Device, metric: str, words: str, why: str) -> None:
        if metric not in device.told:
            device.told.add(metric)
            self.notes.append(f"{device.words}: {words} cannot be read: {why}.")
