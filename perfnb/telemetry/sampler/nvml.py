"""Read the NVIDIA GPUs and MIG slices that CUDA_VISIBLE_DEVICES makes visible, through NVML."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pynvml

from perfnb.telemetry.sampler.gpm import GpmCounters
from perfnb.telemetry.sampler.source import Absent, DeviceFacts, Lost, Source, Values

T = TypeVar("T")

#: The errors after which a device can no longer be read.
LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)

#: The errors after which perfnb tries an older call.
OTHER_WAY = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    26,  # a deprecated function; older bindings do not have a name for this error
)

_ABSENT = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver on this machine",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver and its library have different versions: restart the machine or reload the driver"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to use the NVIDIA driver",
}
_NEVER = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
#: NVML needs 20 ms to measure PCIe traffic in each direction, and blocks during this time. The traffic is therefore
#: rarely read, and for one GPU at a time.
_THROUGHPUT_NS, _APART_NS = 2_000_000_000, 100_000_000
_SLICES = (
    "Only the memory of a MIG slice can be read: NVML does not report utilisation for slices, and reports everything "
    "else only for whole GPUs."
)


def absence(error: pynvml.NVMLError) -> str:
    """Return the reason why there is no GPU to read, given the error that NVML raised when counting the GPUs."""
    return _ABSENT.get(error.value) or f"NVML does not start: {error_words(error)}"


class NvmlSource(Source):
    """NVIDIA GPUs as reported by NVML. If a GPU is partitioned, its MIG slices are reported instead.

    Memory is the memory used by all processes on the device, and ``busy_percent`` is the share of the last 1/6 to 1 s
    during which any kernel ran. The values are not broken down by process, because NVML reports the host's process ids,
    which are useless in a container.

    `visible` is the value of CUDA_VISIBLE_DEVICES, or ``None`` if it is unset. `let_through` describes its integers.

    Raises
    ------
    Absent
        If there is no GPU to read.
    """

    name = "GPU"

    def __init__(self, visible: str | None) -> None:
        super().__init__()
        self._open = False
        self._gpm: dict[str, GpmCounters] = {}
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
        self._gpm = {key: GpmCounters(device.handle) for key, device in self._devices.items() if not device.mig}
        self._asked_ns: dict[str, int] = {}

    def devices(self) -> list[str]:
        """Return the devices' UUIDs, in the order of CUDA_VISIBLE_DEVICES."""
        return list(self._devices)

    def facts(self, device: str) -> DeviceFacts:
        """Return the name, UUID, NVML index, memory size and power limit of a device, and whether it is a slice."""
        return dict(self._devices[device].facts)

    def read(self, device: str, now_ns: int) -> Values:
        """Read a GPU, as described in `perfnb.telemetry.sampler.source.Source`."""
        asked = self._devices[device]
        values: Values = dict.fromkeys([*FIELDS, *PCIE_THROUGHPUT])
        for metric in SLICE_FIELDS if asked.mig else FIELDS:
            values[metric] = self._read(asked, metric, FIELDS[metric])
        if not asked.mig:
            values |= self._read_pcie(asked, now_ns) | self._gpm[device].read(now_ns)
        return values

    def close(self) -> None:
        """Shut down NVML once."""
        if self._open:
            self._open = False
            for counters in self._gpm.values():
                counters.close()
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _read(self, device: NvmlDevice, metric: str, how: Field) -> float | None:
        value = None if metric in device.mute else self._ask(device, metric, how)
        if value is None:
            return None
        if value == how.none:
            self.note_unreadable(device.words, metric, "the driver reports no value")
            return None
        return value if how.unit == 1 else value * how.unit

    def _read_pcie(self, device: NvmlDevice, now_ns: int) -> Values:
        asked = self._asked_ns.get(device.key, -math.inf), max(self._asked_ns.values(), default=-math.inf)
        if now_ns - asked[0] < _THROUGHPUT_NS or now_ns - asked[1] < _APART_NS:
            return {}
        self._asked_ns[device.key] = now_ns
        return {metric: self._read(device, metric, how) for metric, how in PCIE_THROUGHPUT.items()}

    def _ask(self, device: NvmlDevice, metric: str, how: Field) -> int | None:
        """Return the value that NVML reports. If the call fails, add a note and return ``None``."""
        try:
            return how.read(device.handle)
        except pynvml.NVMLError as error:
            if error.value in LOST:
                raise Lost(f"{device.words}: {error_words(error)}") from error
            self.note_unreadable(device.words, metric, error_words(error))
            if error.value in _NEVER:
                device.mute.add(metric)
        return None


#: The values that NVML returns for a missing value, in 32 and 64 bits.
NONE_32, NONE_64 = 2**32 - 1, 2**64 - 1


class Field(NamedTuple):
    """Describes how to read a metric."""

    read: Callable[[Any], int]
    unit: float = 1
    none: int = NONE_32


def _newest(handle: Any, *calls: tuple[str, *tuple[int, ...]]) -> int:
    """Make the first call that both the binding and the driver support, and return its result.

    A call consists of the name of a function and its arguments after the handle.
    """
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
    return degrees % 2**32 if degrees == -1 else degrees  # the newer call returns signed values, NONE_32 is unsigned


def _throttle_reasons(handle: Any) -> int:
    return _newest(handle, ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",))


FIELDS: dict[str, Field] = {
    "busy_percent": Field(lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "memory_bytes": Field(lambda handle: read_memory(handle).used, none=NONE_64),
    "power_w": Field(pynvml.nvmlDeviceGetPowerUsage, 1e-3),
    "energy_j": Field(pynvml.nvmlDeviceGetTotalEnergyConsumption, 1e-3, NONE_64),
    "temperature_c": Field(_temperature),
    "sm_clock_mhz": Field(lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
    "memory_clock_mhz": Field(lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
    "throttle_reasons": Field(_throttle_reasons, none=NONE_64),
}

#: The metrics of a slice. NVML reports the others only for whole GPUs, or not at all.
SLICE_FIELDS = ("memory_bytes",)


def _throughput(direction: int) -> Callable[[Any], int]:
    return lambda handle: int(pynvml.nvmlDeviceGetPcieThroughput(handle, direction))


#: The mean over the 20 ms that each call takes. The directions are from the GPU's point of view.
PCIE_THROUGHPUT: dict[str, Field] = {
    "pcie_receive_bytes_per_s": Field(_throughput(pynvml.NVML_PCIE_UTIL_RX_BYTES), 1e3),
    "pcie_send_bytes_per_s": Field(_throughput(pynvml.NVML_PCIE_UTIL_TX_BYTES), 1e3),
}


@dataclass(eq=False)
class NvmlDevice:
    """A GPU, or one of its MIG slices."""

    key: str  # the UUID, or if NVML does not report one, the index
    words: str  # the name in messages, such as "GPU 1 (NVIDIA H100)"
    handle: Any = None  # NVML's handle
    facts: DeviceFacts = field(default_factory=dict)  # facts that do not change
    problem: str = ""  # the reason why the device cannot be read
    mute: set[str] = field(default_factory=set)  # the metrics that the device does not have

    @property
    def mig(self) -> bool:
        """Whether this is a MIG slice."""
        return bool(self.facts.get("mig"))


@dataclass(frozen=True)
class Gpu:
    """A whole GPU with the devices to read, which are either the GPU itself or its slices."""

    uuid: str
    devices: list[NvmlDevice]


def error_words(error: pynvml.NVMLError) -> str:
    """Return NVML's own message for an error."""
    return str(error).rstrip(".")


def read_memory(handle: Any) -> Any:
    """Return NVML's memory structure.

    If the driver supports version 2 of the structure, memory that is reserved by the driver does not count as used.
    """
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in OTHER_WAY:
            raise
    return pynvml.nvmlDeviceGetMemoryInfo(handle)


def find_gpus() -> list[Gpu]:
    """Return all GPUs in NVML's order.

    Raises
    ------
    pynvml.NVMLError
        If the GPUs cannot be counted.
    """
    return [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]


def let_through(gpus: list[Gpu], visible: str | None) -> list[NvmlDevice]:
    """Return the devices that CUDA_VISIBLE_DEVICES makes visible, in the variable's order.

    `visible` is the variable's value, or ``None`` if it is unset. The list ends at the first entry that does not
    identify a device or repeats an earlier one. Integers refer to NVML's order, as in ``nvidia-smi``. By default, CUDA
    puts the fastest GPU first (``CUDA_DEVICE_ORDER``). If the GPUs are not all alike, the same integer may therefore
    refer to a different GPU in CUDA. Use UUIDs to identify CUDA's devices.
    """
    if visible is None:
        return [device for gpu in gpus for device in gpu.devices]
    chosen: list[NvmlDevice] = []
    for entry in visible.split(","):
        named = _named(gpus, entry.strip())
        if not named or named[0] in chosen:
            break
        chosen += named
    return chosen


def _named(gpus: list[Gpu], entry: str) -> list[NvmlDevice]:
    """Return the devices that an index or a UUID, which may be abbreviated, refers to.

    The result is empty if the entry does not identify exactly one GPU or slice.
    """
    if entry.isascii() and entry.isdecimal():
        return gpus[int(entry)].devices if len(entry) < 5 and int(entry) < len(gpus) else []
    named = {gpu.uuid: gpu.devices for gpu in gpus}
    named |= {device.key: [device] for gpu in gpus for device in gpu.devices if device.mig}
    is_uuid = entry.startswith(("GPU-", "MIG-"))
    fitting = [devices for uuid, devices in named.items() if is_uuid and uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else []


def _gpu(index: int) -> Gpu:
    place = f"GPU {index}"
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return Gpu("", [NvmlDevice(place, place, problem=f"{place}: {error_words(error)}")])
    uuid, name = _text(pynvml.nvmlDeviceGetUUID, handle), _text(pynvml.nvmlDeviceGetName, handle)
    words = f"{place} ({name})" if name else place
    if (_known(pynvml.nvmlDeviceGetMigMode, handle) or [0])[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        slices = _slices(handle, index, uuid or place, words, name)
        problem = f"{words}: its MIG mode is on, but it has no slices"
        return Gpu(uuid or "", slices or [NvmlDevice(uuid or place, words, problem=problem)])
    facts = _facts(handle, index, uuid, name)
    limit = _known(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    if limit is not None and limit != NONE_32:
        facts["power_limit_w"] = limit / 1e3
    return Gpu(uuid or "", [NvmlDevice(uuid or place, words, handle, facts)])


def _slices(parent: Any, index: int, parent_key: str, parent_words: str, parent_name: str | None) -> list[NvmlDevice]:
    slices = []
    for number in range(_known(pynvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0):
        handle = _known(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, number)
        if handle is None:  # there is not a slice at every position
            continue
        uuid, name = _text(pynvml.nvmlDeviceGetUUID, handle), _text(pynvml.nvmlDeviceGetName, handle)
        facts = _facts(handle, index, uuid, name or parent_name) | {"mig": True}
        key, words = uuid or f"{parent_key} slice {number}", f"MIG slice {number} of {parent_words}"
        slices.append(NvmlDevice(key, words, handle, facts))
    return slices


def _facts(handle: Any, index: int, uuid: str | None, name: str | None) -> DeviceFacts:
    memory = getattr(_known(read_memory, handle), "total", None)
    memory = None if memory == NONE_64 else memory
    facts: DeviceFacts = {"name": name, "uuid": uuid, "index": index, "memory_bytes": memory, "mig": False}
    return {fact: value for fact, value in facts.items() if value is not None}


def _known(read: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return read(*arguments)
    except pynvml.NVMLError:
        return None


def _text(read: Callable[[Any], str], handle: Any) -> str | None:
    return _known(decoded, read, handle)


def decoded(read: Callable[..., str], *arguments: Any) -> str:
    """Return text from NVML, even if it is not valid. A driver may return arbitrary bytes as a name."""
    try:
        return read(*arguments)
    except UnicodeDecodeError as error:
        return bytes(error.object).decode(errors="replace")
