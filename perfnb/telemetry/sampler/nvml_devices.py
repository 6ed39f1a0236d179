"""The GPUs and MIG slices of this machine, and which of them CUDA_VISIBLE_DEVICES shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pynvml

from perfnb.telemetry.sampler.source import Facts

T = TypeVar("T")

#: Errors after which a device can no longer be read.
LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)

#: Errors after which an older call may work.
OTHER_WAY = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    26,  # deprecated; older bindings have no name for it
)


@dataclass(eq=False)
class Device:
    """A GPU, or a MIG slice of one."""

    key: str  # its UUID, or its index if NVML gives none
    words: str  # its name in messages: "GPU 1 (NVIDIA H100)"
    handle: Any = None  # NVML's
    facts: Facts = field(default_factory=dict)  # what does not change about it
    old_name: str = ""  # what drivers before version 470 called a slice
    problem: str = ""  # why it cannot be read
    reported: set[str] = field(default_factory=set)  # metrics reported as unreadable
    mute: set[str] = field(default_factory=set)  # metrics that it does not have

    @property
    def mig(self) -> bool:
        """Whether it is a slice."""
        return bool(self.facts.get("mig"))


@dataclass(frozen=True)
class Gpu:
    """A whole GPU, and the devices to read: itself, or its slices."""

    uuid: str
    devices: list[Device]


def error_words(error: pynvml.NVMLError) -> str:
    """NVML's own message."""
    return str(error).rstrip(".")


def read_memory(handle: Any) -> Any:
    """NVML's memory structure; version 2, if the driver has it, does not count the driver's own part as used."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in OTHER_WAY:
            raise
    return pynvml.nvmlDeviceGetMemoryInfo(handle)


def find_gpus() -> list[Gpu]:
    """All GPUs that NVML lists, in its order.

    Raises
    ------
    pynvml.NVMLError
        If they cannot be counted.
    """
    return [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]


def let_through(gpus: list[Gpu], visible: str | None) -> list[Device]:
    """The devices that CUDA_VISIBLE_DEVICES, ``None`` if unset, shows, in its order.

    An entry that names nothing ends the list, and so does one of a different kind from the first; a device named twice
    hides all. Integers count in NVML's order, as in ``nvidia-smi``. CUDA's default puts the fastest GPU first
    (``CUDA_DEVICE_ORDER``), so with unlike GPUs an integer may mean another one: map CUDA's devices by UUID.
    """
    if visible is None:
        return [device for gpu in gpus for device in gpu.devices]
    entries = [entry.strip() for entry in visible.split(",")]
    kind = entries[0][:4] if entries[0].startswith(("GPU-", "MIG-")) else ""
    named = _by_name(gpus, kind)
    chosen: list[Device] = []
    for entry in entries:
        name = _full_name(entry, kind, list(named))
        if name is None:
            break
        if any(device in chosen for device in named[name]):
            return []
        chosen += named[name]
    return chosen


def _by_name(gpus: list[Gpu], kind: str) -> dict[str, list[Device]]:
    if kind == "GPU-":
        return {gpu.uuid: gpu.devices for gpu in gpus if gpu.uuid}
    if kind == "MIG-":
        slices = [device for gpu in gpus for device in gpu.devices if device.mig]
        return {name: [device] for device in slices for name in (device.old_name, device.key) if name}
    return {str(index): gpu.devices for index, gpu in enumerate(gpus)}


def _full_name(entry: str, kind: str, names: list[str]) -> str | None:
    if not kind:  # as in CUDA, what follows the digits is ignored
        number = re.match(r"\+?0*([0-9]+)", entry)
        return number[1] if number and number[1] in names else None
    if entry in names:
        return entry
    fitting = [name for name in names if entry.startswith(kind) and name.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None


def _gpu(index: int) -> Gpu:
    place = f"GPU {index}"
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return Gpu("", [Device(place, place, problem=f"{place}: {error_words(error)}")])
    uuid, name = _text(pynvml.nvmlDeviceGetUUID, handle), _text(pynvml.nvmlDeviceGetName, handle)
    words = f"{place} ({name})" if name else place
    if (_known(pynvml.nvmlDeviceGetMigMode, handle) or [0])[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        slices = _slices(handle, index, uuid or place, words, name)
        problem = f"{words}: its MIG mode is on, but it has no slices"
        return Gpu(uuid or "", slices or [Device(uuid or place, words, problem=problem)])
    facts = _facts(handle, index, uuid, name)
    limit = _known(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    if limit is not None and limit != 2**32 - 1:
        facts["power_limit_w"] = limit / 1e3
    return Gpu(uuid or "", [Device(uuid or place, words, handle, facts)])


def _slices(parent: Any, index: int, parent_key: str, parent_words: str, parent_name: str | None) -> list[Device]:
    slices = []
    for number in range(_known(pynvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0):
        handle = _known(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, number)
        if handle is None:  # not every place holds a slice
            continue
        uuid, name = _text(pynvml.nvmlDeviceGetUUID, handle), _text(pynvml.nvmlDeviceGetName, handle)
        instances = (
            _known(pynvml.nvmlDeviceGetGpuInstanceId, handle),
            _known(pynvml.nvmlDeviceGetComputeInstanceId, handle),
        )
        slices.append(
            Device(
                uuid or f"{parent_key} slice {number}",
                f"MIG slice {number} of {parent_words}",
                handle,
                {**_facts(handle, index, uuid, name or parent_name), "mig": True},
                f"MIG-{parent_key}/{instances[0]}/{instances[1]}",
            )
        )
    return slices


def _facts(handle: Any, index: int, uuid: str | None, name: str | None) -> Facts:
    memory = getattr(_known(read_memory, handle), "total", None)
    memory = None if memory == 2**64 - 1 else memory
    facts: Facts = {"name": name, "uuid": uuid, "index": index, "memory_bytes": memory, "mig": False}
    return {fact: value for fact, value in facts.items() if value is not None}


def _known(read: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return read(*arguments)
    except pynvml.NVMLError:
        return None


def _text(read: Callable[[Any], str], handle: Any) -> str | None:
    try:
        return _known(read, handle)
    except UnicodeDecodeError as error:  # the binding decodes strictly; a name is whatever the driver says
        return bytes(error.object).decode(errors="replace")
