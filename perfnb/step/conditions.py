"""What may have disturbed timed steps: load, clock speed, garbage collections, throttling."""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from typing import Any

import psutil

from perfnb.interrupts import loses_exceptions
from perfnb.step.device import cuda_in_use
from perfnb.step.environment import available_cpus
from perfnb.telemetry.sampler.cgroup import throttled
from perfnb.telemetry.throttle import throttle_words


class Conditions:
    """Context manager that records what may have disturbed the steps run inside it.

    Attributes
    ----------
    step : int
        Number of the current or next step; set by the caller.
    running : bool
        Whether a step is running; set by the caller. Collections between steps are ignored.
    facts : dict
        JSON-able, complete on exit; unknown facts are absent. ``load_before`` and ``load_after`` (the machine's mean
        number of runnable threads in the last minute), ``cpus``, ``cpu_mhz_before`` and ``cpu_mhz_after``,
        ``gc_pauses`` (pairs of step and milliseconds), ``involuntary_switches`` (of the process's context),
        ``throttled_periods`` and ``throttled_ms`` (by its cgroup's limit), ``gpu_throttle_reasons`` (at the end).
    """

    def __init__(self) -> None:
        self.step, self.running = 0, False
        self.facts: dict[str, Any] = {}
        self._pauses: list[list[float]] = []
        self._began = 0.0
        self._throttled: tuple[int, float] | None = None
        self._switches: int | None = None

    def __enter__(self) -> Conditions:
        self.facts = {"cpus": available_cpus(), **_now("before")}
        self._throttled, self._switches = throttled(), _involuntary_switches()
        gc.callbacks.append(self._collects)
        return self

    def __exit__(self, *exc_info: object) -> None:
        gc.callbacks.remove(self._collects)
        self.facts |= _now("after")
        self.facts["gc_pauses"] = self._pauses
        stopped, switches = throttled(), _involuntary_switches()
        if switches is not None and self._switches is not None:
            self.facts["involuntary_switches"] = switches - self._switches
        if stopped is not None and self._throttled is not None:
            self.facts["throttled_periods"] = stopped[0] - self._throttled[0]
            self.facts["throttled_ms"] = round(stopped[1] - self._throttled[1], 3)
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


def _involuntary_switches() -> int | None:
    try:
        return int(psutil.Process().num_ctx_switches().involuntary)
    except (psutil.Error, NotImplementedError):
        return None


def _gpu_throttle_reasons() -> list[str] | None:
    """NVML's reasons why the current GPU runs below its clock; ``None`` if unknown."""
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
    except Exception:  # no driver, a MIG slice, an older library
        return None
    return throttle_words(bits)
