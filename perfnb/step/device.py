"""The devices that a step may use: waiting for them, timing on them, and what they are."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch

from perfnb.telemetry.sampler.cgroup import cpu_limit


def cuda_in_use() -> bool:
    """Whether this process has put work on an NVIDIA or AMD GPU; asking does not start the GPU's context."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def synchronize() -> None:
    """Wait until the GPU has done what was launched; nothing to do without one."""
    if cuda_in_use():
        torch.cuda.synchronize()


class StepClock:
    """Durations of steps, without waiting for the GPU at each.

    On the CPU the host's clock tells. On a GPU an event is recorded on the current stream where a step begins and
    where it ends, and the events are read after the pass.
    """

    def __init__(self) -> None:
        self._cuda = cuda_in_use()
        self._events: list[tuple[Any, Any]] = []
        self._host_ns: list[int] = []
        self._open: Any = None

    def begin(self) -> None:
        """A step begins."""
        if self._cuda:
            self._open = _event()

    def end(self, host_ns: int) -> None:
        """The step that began last ends; the host saw it take `host_ns`."""
        if self._cuda:
            self._events.append((self._open, _event()))
        self._host_ns.append(host_ns)

    def durations_ns(self) -> list[int]:
        """Duration of each step; waits for the GPU."""
        if not self._cuda:
            return list(self._host_ns)
        synchronize()
        return [round(first.elapsed_time(second) * 1e6) for first, second in self._events]


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def describe_environment() -> dict[str, Any]:
    """Versions, device, threads and settings that bear on speed; JSON-able."""
    cpus = _cpus()
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cpus": cpus,
        "cpu_limit": cpu_limit(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "debugger_or_tracer": sys.gettrace() is not None or sys.getprofile() is not None,
        "gpus": [],
        "unwatched_accelerator": unwatched_accelerator(),
    }
    if cuda_in_use():
        facts["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        facts["cuda"] = torch.version.cuda or torch.version.hip
        facts["cudnn_benchmark"] = torch.backends.cudnn.benchmark
    return facts


def usable_cpus() -> float:
    """How many CPUs this process may use: those it may run on, and no more than its cgroup's limit."""
    limit = cpu_limit()
    return float(_cpus()) if limit is None else min(float(_cpus()), limit)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def lower_precision() -> str | None:
    """The dtype of half the bytes in which this device multiplies matrices by instructions of its own, if any."""
    try:
        if cuda_in_use():
            return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else None
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    except (AttributeError, RuntimeError, TypeError):  # another version of torch asks in another way
        return None
    return "bfloat16" if native else None


def unwatched_accelerator() -> str | None:
    """Kind of an accelerator that perfnb neither waits for nor traces, such as ``mps``; ``None`` if there is none."""
    accelerator = getattr(torch, "accelerator", None)
    current = accelerator.current_accelerator() if accelerator is not None and accelerator.is_available() else None
    return None if current is None or current.type == "cuda" else str(current.type)


def _processor() -> str:
    """The CPU's name where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
