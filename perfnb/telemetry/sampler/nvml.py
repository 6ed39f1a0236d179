"""Readings of NVIDIA GPUs, through NVML."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import pynvml

from perfnb.telemetry.sampler.nvml_devices import (
    LOST,
    OTHER_WAY,
    Device,
    error_words,
    find_gpus,
    let_through,
    read_memory,
)
from perfnb.telemetry.sampler.source import Absent, Facts, Lost, Rates, Values

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
#: NVML measures PCIe traffic for 20 ms in each direction and blocks meanwhile: ask rarely, and one GPU at a time.
_THROUGHPUT_NS, _APART_NS = 2_000_000_000, 100_000_000
_SLICES = (
    "Only the memory of a MIG slice can be read: NVML reports no utilisation under MIG, and the rest per GPU only."
)


def absence(error: pynvml.NVMLError) -> str:
    """Why there is no GPU to read, if NVML does not start or cannot count the GPUs."""
    return _ABSENT.get(error.value) or f"NVML does not start: {error_words(error)}"


class NvmlSource:
    """NVIDIA GPUs, and the MIG slices of those that are partitioned, as NVML sees them.

    Memory is that of all processes on the device, and ``busy_percent`` the share of the last 1/6 to 1 s in which any
    kernel ran. Nothing is broken down by process: NVML gives the host's process ids, useless in a container.

    `visible` is the value of CUDA_VISIBLE_DEVICES, ``None`` if unset; see `let_through` for its integers.

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
        self.notes += [f"{device.problem}. It is not read." for device in chosen if device.problem]
        if any(device.mig for device in self._devices.values()):
            self.notes.append(_SLICES)
        self._pcie = {key: PcieCounters() for key in self._devices}
        self._asked_ns: dict[str, int] = {}

    def devices(self) -> list[str]:
        """The UUIDs of the devices, in the order of CUDA_VISIBLE_DEVICES."""
        return list(self._devices)

    def facts(self, device: str) -> Facts:
        """Name, UUID, NVML's index, memory size, power limit, and whether it is a slice."""
        return dict(self._devices[device].facts)

    def read(self, device: str, now_ns: int) -> Values:
        """Read a GPU; see `perfnb.telemetry.sampler.source.Source`."""
        asked = self._devices[device]
        values: Values = dict.fromkeys([*FIELDS, *PCIE_THROUGHPUT])
        for metric in SLICE_FIELDS if asked.mig else FIELDS:
            values[metric] = self._read(asked, metric, FIELDS[metric])
        if not asked.mig:
            values |= self._read_pcie(asked, now_ns)
        return values

    def close(self) -> None:
        """Shut NVML down, once."""
        if self._open:
            self._open = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _read(self, device: Device, metric: str, how: Field) -> float | None:
        value = None if metric in device.mute else self._ask(device, {metric: how.words}, how.read)
        if value is None:
            return None
        if value == how.none:
            self._note(device, metric, how.words, "the driver reports no value")
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
        """What `read` gives for a device; if it fails, ``None`` and a note for each of the metrics in `words`."""
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
        if metric not in device.reported:
            device.reported.add(metric)
            self.notes.append(f"{device.words}: {words} cannot be read: {why}.")


#: What NVML writes if it has no value, in 32 and in 64 bits.
NONE_32, NONE_64 = 2**32 - 1, 2**64 - 1


class Field(NamedTuple):
    """How a metric is read."""

    words: str
    read: Callable[[Any], int]
    unit: float = 1
    none: int = NONE_32


def _newest(handle: Any, *calls: tuple[str, *tuple[int, ...]]) -> int:
    """Make the first call that binding and driver support; each is a name and the arguments after the handle."""
    for name, *arguments in calls[:-1]:
        try:
            if function := getattr(pynvml, name, None):
                return int(function(handle, *arguments))
        except pynvml.NVMLError as error:
            if error.value not in OTHER_WAY:
                raise
    name, *arguments = calls[-1]
    return int(getattr(pynvml, name)(handle, *arguments))


def _temperature(handle: Any) -> int:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    degrees = _newest(handle, ("nvmlDeviceGetTemperatureV", sensor), ("nvmlDeviceGetTemperature", sensor))
    return degrees % 2**32 if degrees == -1 else degrees  # the newer call is signed, its "no value" is not


def _throttle_reasons(handle: Any) -> int:
    return _newest(handle, ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",))


FIELDS: dict[str, Field] = {
    "busy_percent": Field("utilisation", lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "memory_bytes": Field("memory", lambda handle: read_memory(handle).used, none=NONE_64),
    "power_w": Field("power", pynvml.nvmlDeviceGetPowerUsage, 1e-3),
    "energy_j": Field("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption, 1e-3, NONE_64),
    "temperature_c": Field("temperature", _temperature),
    "sm_clock_mhz": Field("SM clock", lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
    "memory_clock_mhz": Field(
        "memory clock", lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
    ),
    "throttle_reasons": Field("throttle reasons", _throttle_reasons, none=NONE_64),
}

#: What can be read per slice; NVML has the rest per GPU only, or not at all.
SLICE_FIELDS = ("memory_bytes",)


def _throughput(direction: int) -> Callable[[Any], int]:
    return lambda handle: int(pynvml.nvmlDeviceGetPcieThroughput(handle, direction))


#: The mean over the 20 ms that each call takes; receive and send as seen from the GPU.
PCIE_THROUGHPUT: dict[str, Field] = {
    "pcie_receive_bytes_per_s": Field("PCIe receive", _throughput(pynvml.NVML_PCIE_UTIL_RX_BYTES), 1e3),
    "pcie_send_bytes_per_s": Field("PCIe send", _throughput(pynvml.NVML_PCIE_UTIL_TX_BYTES), 1e3),
}


#: The counters of bytes that a GPU has received and sent; older bindings have no names for these fields.
_PCIE_COUNTERS = {"pcie_receive_bytes_per_s": 198, "pcie_send_bytes_per_s": 197}
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_FULL = 2**32
#: For an unknown link: the fastest there is, generation 6 with 16 lanes.
_FASTEST = 128e9
#: Give up on the counters after this many readings in a row that came too late for them.
_PATIENCE = 3


class PcieCounters:
    """Rates of a GPU's PCIe traffic from its counters of bytes.

    The counters wrap around, in many drivers after 4 GiB, which a fast link carries in less than 0.1 s. A counter that
    may have wrapped between two readings is useless; one that was never seen above 4 GiB may.

    Attributes
    ----------
    usable : bool
        False once readings were too far apart, and if the driver has no such counters.
    """

    def __init__(self) -> None:
        self.usable = True
        self._rates = Rates()
        self._last_ns: int | None = None
        self._link = _FASTEST
        self._wide = False
        self._late = 0

    def read(self, handle: Any, now_ns: int) -> Values:
        """Bytes per second by metric.

        Raises
        ------
        pynvml.NVMLError
            If counters that could be read before no longer can, or the device is lost.
        """
        try:
            counts = _counts(handle)
        except pynvml.NVMLError as error:
            if self._last_ns is not None or error.value in LOST:
                raise
            self.usable = False
            return {}
        if self._last_ns is None:
            self._link = _link(handle)
        self._wide = self._wide or max(counts.values()) >= _FULL
        late = not self._wide and (now_ns - (self._last_ns or now_ns)) / 1e9 * self._link >= _FULL
        self._late = self._late + 1 if late else 0
        self.usable = self._late < _PATIENCE
        self._last_ns = now_ns
        rates = {metric: self._rates.per_second(metric, count, now_ns) for metric, count in counts.items()}
        return dict.fromkeys(rates) if late else {**rates}


def _counts(handle: Any) -> dict[str, int]:
    counts = {}
    asked = pynvml.nvmlDeviceGetFieldValues(handle, list(_PCIE_COUNTERS.values()))
    for metric, value in zip(_PCIE_COUNTERS, asked, strict=True):
        member = _MEMBERS.get(value.valueType)
        if value.nvmlReturn or member is None:
            raise pynvml.NVMLError(value.nvmlReturn or pynvml.NVML_ERROR_NOT_SUPPORTED)
        counts[metric] = int(getattr(value.value, member))
        if counts[metric] in (2**32 - 1, 2**64 - 1):  # "no value"
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_DATA)
    return counts


def _link(handle: Any) -> float:
    """The link's maximum rate in one direction, in bytes per second."""
    with suppress(pynvml.NVMLError):
        generation = int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        return float(250e6 * 2 ** (generation - 1) * int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)))
    return _FASTEST
