"""What went on beside the steps while they were timed: load, clock, garbage collections, throttling."""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from perfnb.capture.device import cuda_in_use
from perfnb.capture.guard import loses_exceptions

#: Where version 2 and version 1 of cgroups tell how often the process had to wait for its share of the CPU.
_CPU_STAT = ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat", "/sys/fs/cgroup/cpu,cpuacct/cpu.stat")


class Conditions:
    """Context manager that records what may have disturbed the steps that were run in it.

    Attributes
    ----------
    step : int
        Number of the step that runs, or runs next; set by who runs it.
    running : bool
        Whether a step runs: what is collected between steps disturbs none.
    facts : dict
        JSON-able, complete when the context is left; what could not be found out is absent. ``load_before`` and
        ``load_after`` (mean number of runnable threads of the machine in the last minute), ``cpus``,
        ``cpu_mhz_before`` and ``cpu_mhz_after``, ``gc_pauses`` (pairs of step and milliseconds),
        ``involuntary_switches`` (how often the process was made to wait), ``throttled_periods`` and ``throttled_ms``
        (by the limit of its cgroup), ``gpu_throttle_reasons`` (words, as they were at the end).
    """

    def __init__(self) -> None:
        self.step, self.running = 0, False
        self.facts: dict[str, Any] = {}
        self._pauses: list[list[float]] = []
        self._began = 0.0
        self._throttled: tuple[int, float] | None = None
        self._switches: int | None = None

    def __enter__(self) -> Conditions:
        self.facts = {"cpus": _cpus(), **_now("before")}
        self._throttled, self._switches = _throttled(), _involuntary_switches()
        gc.callbacks.append(self._collects)
        return self

    def __exit__(self, *exc_info: object) -> None:
        gc.callbacks.remove(self._collects)
        self.facts |= _now("after")
        self.facts["gc_pauses"] = self._pauses
        throttled, switches = _throttled(), _involuntary_switches()
        if switches is not None and self._switches is not None:
            self.facts["involuntary_switches"] = switches - self._switches
        if throttled is not None and self._throttled is not None:
            self.facts["throttled_periods"] = throttled[0] - self._throttled[0]
            self.facts["throttled_ms"] = round(throttled[1] - self._throttled[1], 3)
        if cuda_in_use() and (reasons := _gpu_throttle_reasons()) is not None:
            self.facts["gpu_throttle_reasons"] = reasons

    @loses_exceptions
    def _collects(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        elif self.running:
            self._pauses.append([self.step, round((time.perf_counter() - self._began) * 1e3, 4)])


def _now(word: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    with suppress(OSError, AttributeError):
        facts[f"load_{word}"] = round(os.getloadavg()[0], 2)
    with suppress(Exception):  # psutil's readers of sysfs fail in many ways
        frequency = psutil.cpu_freq()
        if frequency.current > 0:
            facts[f"cpu_mhz_{word}"] = round(frequency.current)
    return facts


def _cpus() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _involuntary_switches() -> int | None:
    try:
        return int(psutil.Process().num_ctx_switches().involuntary)
    except (psutil.Error, NotImplementedError):
        return None


def _throttled() -> tuple[int, float] | None:
    """How often the cgroup's limit has stopped the process, and for how many milliseconds; ``None`` without one."""
    for name in _CPU_STAT:
        with suppress(OSError, ValueError):
            rows = dict(line.split() for line in Path(name).read_text(encoding="ascii").splitlines())
            if "nr_throttled" in rows:
                microseconds = int(rows.get("throttled_usec", 0)) or int(rows.get("throttled_time", 0)) / 1e3
                return int(rows["nr_throttled"]), microseconds / 1e3
    return None


def _gpu_throttle_reasons() -> list[str] | None:
    """Why the current GPU runs below its clock, in NVML's words; ``None`` if that cannot be known."""
    try:
        import pynvml
        import torch

        pynvml.nvmlInit()
        try:
            uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
            device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
            bits = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device))
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no driver, a MIG slice, an older library: nothing is known
        return None
    idle = ("None", "All", "GpuIdle", "ApplicationsClocksSetting")
    names = [name for name in dir(pynvml) if name.startswith("nvmlClocksThrottleReason")]
    words = {name.removeprefix("nvmlClocksThrottleReason"): int(getattr(pynvml, name)) for name in names}
    return sorted(word for word, bit in words.items() if word not in idle and bits & bit)
