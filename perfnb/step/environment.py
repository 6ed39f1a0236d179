"""Record the origin of a measurement (versions, settings, host, the user's commit) and possible disturbances."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import psutil
import torch

from perfnb.interrupts import loses_exceptions
from perfnb.step.device import accelerators, cuda_in_use
from perfnb.step.tracer import untraced
from perfnb.telemetry.history import throttle_words
from perfnb.telemetry.sampler.cgroup import cpu_limit, throttled

#: The number of seconds to wait for git, which may be slow in a network folder.
_GIT_S = 3.0


def describe_environment() -> dict[str, Any]:
    """Return the versions, devices, threads and settings that affect speed, ready for JSON."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cpus": available_cpus(),
        "cpu_limit": cpu_limit(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "debugger_or_tracer": sys.gettrace() is not None or sys.getprofile() is not None,
        "gpus": [name for accelerator in accelerators() for name in accelerator.names()],
        "untraced_accelerators": untraced(),
    }
    if cuda_in_use():
        facts["cuda"] = torch.version.cuda or torch.version.hip
        facts["cudnn_benchmark"] = torch.backends.cudnn.benchmark
    return facts


def place_in_job() -> dict[str, int] | None:
    """Return this process's rank and the number of ranks, or ``None`` if torch's process group is not initialized."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}


def usable_cpus() -> float:
    """Return the number of CPUs that this process may use, taking into account its affinity and its cgroup's limit."""
    limit = cpu_limit()
    return float(available_cpus()) if limit is None else min(float(available_cpus()), limit)


def available_cpus() -> int:
    """Return the number of CPUs on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def lower_precision(kind: str) -> str | None:
    """Return a 16-bit dtype that this kind of device supports with native matrix instructions, if there is one."""
    try:
        if kind == "cuda":
            return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else None
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    except (AttributeError, RuntimeError, TypeError):  # not in this version of torch
        return None
    return "bfloat16" if native else None


def _processor() -> str:
    """Return the name of the CPU, if it is known."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def provenance() -> dict[str, Any]:
    """Return the result of `describe_environment` along with information that identifies a run, ready for JSON.

    This adds ``host``, the versions ``perfnb`` and ``numpy``, and the time ``at`` (UTC, ISO 8601). In a git repository,
    it also adds ``commit`` and ``uncommitted`` (whether tracked files differ from the commit).
    """
    return {
        **describe_environment(),
        "host": platform.node(),
        "perfnb": _version("perfnb"),
        "numpy": _version("numpy"),
        "at": datetime.now(UTC).isoformat(),
        **_commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a checkout on the path
        return None


def _commit() -> dict[str, Any]:
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit} | ({} if changes is None else {"uncommitted": bool(changes)})


def _git(*words: str) -> str | None:
    """Return the output of a git command.

    Return ``None`` if git is not installed, if this is not a repository, or if the command takes too long.
    """
    # Do not run a file-system monitor, which the repository may have configured.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_S, stdin=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    return done.stdout.strip()


class Conditions:
    """Context manager that records possible disturbances of the steps that run inside it.

    Attributes
    ----------
    step : int
        The number of the current or next step, which the caller must set.
    running : bool
        Whether a step is running. The caller must set this, and call `ended` after the step. Garbage collections are
        counted only to the extent that they overlap with a step.
    facts : dict
        The recorded values, ready for JSON. The dictionary is complete on exit, and unknown values are omitted:
        ``load_before`` and ``load_after`` (the machine's mean number of runnable threads in the last minute), ``cpus``,
        ``cpu_mhz_before`` and ``cpu_mhz_after``, ``gc_pauses`` (pairs of step number and milliseconds), ``gc_share``
        (the share of the time of all steps that these pauses take), ``involuntary_switches`` (context switches of the
        process), ``throttled_periods`` and ``throttled_ms`` (due to the cgroup's limit), and ``gpu_throttle_reasons``
        (at the end).
    """

    def __init__(self) -> None:
        self.step, self.running = 0, False
        self.facts: dict[str, Any] = {}
        self._pauses: list[list[float]] = []
        self._collected: list[tuple[int, int]] = []  # start and end (ns) of the collections during this step
        self._began_ns = self._ran_ns = 0
        self._before: dict[str, float] = {}

    def __enter__(self) -> Conditions:
        self.facts = {"cpus": available_cpus(), **_now("before")}
        self._before = _interruptions()
        self._ran_ns = 0
        gc.callbacks.append(self._collects)
        return self

    def __exit__(self, *exc_info: object) -> None:
        gc.callbacks.remove(self._collects)
        self.facts |= _now("after") | {"gc_pauses": self._pauses}
        if self._ran_ns:
            self.facts["gc_share"] = sum(ms for _, ms in self._pauses) * 1e6 / self._ran_ns
        before, after = self._before, _interruptions()
        self.facts |= {name: round(after[name] - before[name], 3) for name in after if name in before}
        if cuda_in_use() and (reasons := _gpu_throttle_reasons()) is not None:
            self.facts["gpu_throttle_reasons"] = reasons

    def ended(self, begin_ns: int, end_ns: int) -> None:
        """Record that the step has ended. It ran from `begin_ns` to `end_ns` (`time.perf_counter_ns`)."""
        self.running = False
        self._ran_ns += end_ns - begin_ns
        for began, stopped in self._collected:
            inside_ns = min(stopped, end_ns) - max(began, begin_ns)
            if inside_ns > 0:
                self._pauses.append([self.step, inside_ns / 1e6])
        self._collected.clear()

    @loses_exceptions
    def _collects(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
        elif self.running:
            self._collected.append((self._began_ns, time.perf_counter_ns()))


def _now(word: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    with suppress(OSError, AttributeError):
        facts[f"load_{word}"] = round(os.getloadavg()[0], 2)
    with suppress(Exception):  # psutil can fail in many ways when it reads sysfs
        frequency = psutil.cpu_freq()
        if frequency.current > 0:
            facts[f"cpu_mhz_{word}"] = round(frequency.current)
    return facts


def _interruptions() -> dict[str, float]:
    """Return how many times and for how long the process has been prevented from running so far, if known."""
    counts: dict[str, float] = {}
    with suppress(psutil.Error, NotImplementedError):
        counts["involuntary_switches"] = psutil.Process().num_ctx_switches().involuntary
    if (stopped := throttled()) is not None:
        counts["throttled_periods"], counts["throttled_ms"] = stopped
    return counts


def _gpu_throttle_reasons() -> list[str] | None:
    """Return the reasons reported by NVML for a reduced clock of the current GPU, or ``None`` if they are unknown."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
            device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
            bits = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device))
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # there is no driver, the GPU is a MIG slice, or the library is too old
        return None
    return throttle_words(bits)
