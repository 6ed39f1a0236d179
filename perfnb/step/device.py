"""Wait for accelerators from any vendor, time steps on them, and read their memory and random state.

All operations use torch's module for the kind of device: ``torch.cuda``, ``torch.xpu``, ``torch.mps`` or a module that
a backend has registered. perfnb checks which functions the module provides instead of relying on version numbers.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

from perfnb.telemetry.sampler.cgroup import memory_limit_bytes

#: The clock waits for each step if work that is not covered by events takes longer than this share of the time of all
#: steps, and also longer than this many nanoseconds.
_UNSEEN, _UNSEEN_NS = 0.02, 100_000


class Accelerator(NamedTuple):
    """The devices of one kind that this process uses."""

    #: torch's name for the kind: ``cuda`` (NVIDIA and AMD), ``xpu``, ``mps`` or the name of another backend.
    kind: str
    #: torch's module for this kind of device.
    module: Any
    #: The indices of the devices in use. This is empty if the module has only one device and does not number it.
    indices: tuple[int, ...]

    def synchronize(self) -> None:
        """Wait for all devices of this kind that are in use."""
        for index in self.indices:
            self.module.synchronize(index)
        if not self.indices:
            self.module.synchronize()

    def names(self) -> list[str]:
        """Return the names of all devices of this kind, whether or not they are in use.

        The kind of device is used as the name if torch does not report one.
        """
        name = getattr(self.module, "get_device_name", None)
        count = int(self.module.device_count()) if hasattr(self.module, "device_count") else 1
        return [str(name(index)) if name is not None else self.kind for index in range(count)]


def accelerators() -> list[Accelerator]:
    """Return the accelerators that this process uses, without initialising any of them."""
    return [Accelerator(kind, module, _indices(module)) for kind, module in _modules() if _is_used(module)]


def accelerator_in_use() -> bool:
    """Check whether this process has used any accelerator."""
    return any(_is_used(module) for _, module in _modules())


def cuda_in_use() -> bool:
    """Check whether this process has used an NVIDIA or AMD GPU, without creating a GPU context."""
    return bool(torch.cuda.is_initialized())


def synchronize() -> None:
    """Wait until every accelerator in use has finished its work. Do nothing if there is no accelerator."""
    _wait_for(accelerators())


def _wait_for(used: list[Accelerator]) -> int:
    """Wait for accelerators, and return how many nanoseconds that took."""
    begin = time.perf_counter_ns()
    for accelerator in used:
        accelerator.synchronize()
    return time.perf_counter_ns() - begin


def _modules() -> list[tuple[str, Any]]:
    """Return the kinds of accelerators that this build of torch may support, along with their modules."""
    kinds = ("cuda", "xpu", "mps", "mtia", "hpu", torch._C._get_privateuse1_backend_name())
    modules = ((kind, getattr(torch, kind, None)) for kind in kinds)
    return [(kind, module) for kind, module in modules if hasattr(module, "synchronize")]


def _is_used(module: Any) -> bool:
    initialized = getattr(module, "is_initialized", None)
    if initialized is not None:  # checked first because CUDA's is_available() starts the driver
        return bool(initialized())
    available = getattr(module, "is_available", None)
    if available is not None and not available():
        return False
    allocated = getattr(module, "current_allocated_memory", None)  # MPS
    return allocated is not None and allocated() > 0


def _indices(module: Any) -> tuple[int, ...]:
    """Return the devices on which torch has allocated or cached memory, or the current device if there are none."""
    if not hasattr(module, "current_device"):
        return ()
    held = getattr(module, "memory_reserved", None) or getattr(module, "memory_allocated", None)
    used: tuple[int, ...] = ()
    if held is not None and hasattr(module, "device_count"):
        with suppress(RuntimeError):  # an allocator plugged into torch does not report this
            used = tuple(index for index in range(module.device_count()) if held(index) > 0)
    return used or (int(module.current_device()),)


class StepClock:
    """Times steps without waiting for the device after each step, if that can be avoided.

    On a single device with timing events, events on its current stream mark the start and end of each step. They are
    read after the pass. With several devices, or a device without events, the clock waits until each step has finished,
    because its work would otherwise count as part of a later step. The clock also waits on MPS, because MPS events
    report different times in different versions of torch. Without an accelerator, the host's clock is used.

    Parameters
    ----------
    wait : bool
        Whether to wait for each step even if events are available. See `read_clocks`.
    """

    def __init__(self, *, wait: bool = False) -> None:
        self._accelerators = accelerators()
        self._event = None if wait else _event_maker(self._accelerators)
        self._events: list[tuple[Any, Any]] = []
        self._host_ns: list[int] = []
        self._open: Any = None

    def begin(self) -> None:
        """Mark the start of a step."""
        if self._event is not None:
            self._open = self._event()

    def end(self, host_ns: int) -> None:
        """Mark the end of the step, which took `host_ns` on the host."""
        if self._event is not None:
            self._events.append((self._open, self._event()))
        elif self._accelerators:
            host_ns += _wait_for(self._accelerators)
        self._host_ns.append(host_ns)

    def durations_ns(self) -> list[int]:
        """Wait for the last event, and return the durations of all steps."""
        if self._events:
            self._events[-1][1].synchronize()
        elapsed = (round(first.elapsed_time(second) * 1e6) for first, second in self._events)
        return list(elapsed) if self._events else list(self._host_ns)


def read_clocks(*clocks: StepClock) -> tuple[list[list[int]], bool]:
    """Wait for the devices, and return the durations of all steps for each of several clocks that took turns.

    The second value is true if a lot of work was still running after the last event, on a stream that the events do not
    cover. In that case, the steps took longer than measured and must be timed again with a clock that waits.
    """
    durations = [clock.durations_ns() for clock in clocks]
    used = accelerators()  # this can take as long as a short step
    unseen_ns = _wait_for(used)
    return durations, unseen_ns > max(_UNSEEN * sum(map(sum, durations)), _UNSEEN_NS)


def _event_maker(used: list[Accelerator]) -> Any:
    """Return a function that records a timing event on the only device in use.

    Return ``None`` if several devices are in use, or if the device has no timing events.
    """
    if len(used) != 1 or len(used[0].indices) != 1 or not hasattr(used[0].module, "Event"):
        return None
    module, [index] = used[0].module, used[0].indices

    def record() -> Any:
        event = module.Event(enable_timing=True)
        if hasattr(module, "current_stream"):
            event.record(module.current_stream(index))  # the device in use may not be the current device
        else:
            event.record()
        return event

    try:
        first, second = record(), record()
        second.synchronize()
        first.elapsed_time(second)
    except (RuntimeError, TypeError):  # the events of this build or backend do not measure time
        return None
    return record


def capacity_bytes(kind: str) -> int | None:
    """Return the amount of memory that a kind of device can provide to this process, or ``None`` if it is unknown.

    On CUDA and XPU, this is the sum of the free memory and the memory that this process has already allocated. On MPS,
    it is the maximum that Metal recommends. On the CPU, it is the installed memory or the container's limit.
    """
    if kind == "cpu":
        return min(int(psutil.virtual_memory().total), memory_limit_bytes() or sys.maxsize)
    module = dict(_modules()).get(kind)
    if module is None or not getattr(module, "is_available", lambda: True)():
        return None
    if hasattr(module, "recommended_max_memory"):
        return int(module.recommended_max_memory())
    free = getattr(module, "mem_get_info", None)
    held = getattr(module, "memory_reserved", lambda: 0)
    with suppress(RuntimeError):  # some Intel devices do not report this
        return None if free is None else int(free()[0] + held())
    return None


def allocator_statistics() -> dict[str, dict[str, int]]:
    """Return statistics from the accelerators' caching allocators, keyed by device (such as ``cuda:0``).

    The result is empty if there are no such allocators.
    """
    statistics: dict[str, dict[str, int]] = {}
    for kind, module, indices in accelerators():
        if not hasattr(module, "memory_stats"):
            continue
        free = _largest_free(module) if hasattr(module, "memory_snapshot") else {}
        for index in indices:
            figures: dict[str, int] = {}
            with suppress(RuntimeError):
                figures = module.memory_stats(index)
            if figures.get("segment.all.peak", figures.get("reserved_bytes.all.peak", 0)):
                own = {name: figures[key] for name, key in _STATISTICS.items() if key in figures}
                own |= {"largest_free_bytes": free[index]} if index in free else {}
                statistics[f"{kind}:{index}"] = {name: int(value) for name, value in own.items()}
    return statistics


#: torch's names for an allocator's statistics.
_STATISTICS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
}


def _largest_free(module: Any) -> dict[int, int]:
    """Return the size of the largest free block inside a segment for each device.

    The result is empty if the allocator does not track blocks.
    """
    free: dict[int, int] = {}
    segments: list[Any] = []
    with suppress(RuntimeError):
        segments = module.memory_snapshot()
    for segment in segments:
        for block in segment["blocks"]:
            size = block["size"] if block["state"] == "inactive" else 0
            free[segment["device"]] = max(free.get(segment["device"], 0), size)
    return free


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an exception means that a device or the host ran out of memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = str(error)
    return isinstance(error, RuntimeError) and (
        ("DefaultCPUAllocator" in words and "allocate" in words) or "backend out of memory" in words  # MPS
    )


def random_state() -> tuple[Any, ...]:
    """Return the states of the random number generators in Python, NumPy, torch and every accelerator in use."""
    used = [module for _, module in _modules() if _is_used(module)]
    on_devices = [(module, _of_all(module, "get")()) for module in used if _of_all(module, "get")]
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_devices


def set_random_state(state: tuple[Any, ...]) -> None:
    """Restore the states that `random_state` returned."""
    of_python, of_numpy, of_torch, on_devices = state
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    torch.set_rng_state(of_torch)
    for module, on_device in on_devices:
        _of_all(module, "set")(on_device)


def _of_all(module: Any, verb: str) -> Any:
    """Return the module's function that gets or sets the random state of all its devices, or of its only device."""
    return getattr(module, f"{verb}_rng_state_all", None) or getattr(module, f"{verb}_rng_state", None)
