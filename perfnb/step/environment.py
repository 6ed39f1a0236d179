"""Where a figure comes from: versions, device, settings, host, and the commit of the user's code."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from perfnb.step.device import cuda_in_use
from perfnb.telemetry.sampler.cgroup import cpu_limit

#: Seconds to wait for git, which may be slow in a network folder.
_GIT_S = 3.0


def describe_environment() -> dict[str, Any]:
    """Versions, device, threads and settings that affect speed; JSON-able."""
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
        "gpus": [],
        "unwatched_accelerator": unwatched_accelerator(),
    }
    if cuda_in_use():
        facts["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        facts["cuda"] = torch.version.cuda or torch.version.hip
        facts["cudnn_benchmark"] = torch.backends.cudnn.benchmark
    return facts


def usable_cpus() -> float:
    """Number of CPUs this process may use, by its affinity and its cgroup's limit."""
    limit = cpu_limit()
    return float(available_cpus()) if limit is None else min(float(available_cpus()), limit)


def available_cpus() -> int:
    """Number of CPUs on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def lower_precision() -> str | None:
    """A 16-bit dtype for which this device has native matrix instructions, if any."""
    try:
        if cuda_in_use():
            return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else None
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    except (AttributeError, RuntimeError, TypeError):  # not in this version of torch
        return None
    return "bfloat16" if native else None


def unwatched_accelerator() -> str | None:
    """The current accelerator if perfnb cannot synchronise or trace it, such as ``mps``."""
    accelerator = getattr(torch, "accelerator", None)
    current = accelerator.current_accelerator() if accelerator is not None and accelerator.is_available() else None
    return None if current is None or current.type == "cuda" else str(current.type)


def _processor() -> str:
    """The CPU's name, if known."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def provenance() -> dict[str, Any]:
    """`describe_environment` and what identifies a run; JSON-able.

    Adds ``host``, ``perfnb`` and ``numpy`` (versions), ``at`` (UTC, ISO 8601), and in a git repository ``commit`` and
    ``uncommitted`` (whether tracked files differ from it).
    """
    return {
        **describe_environment(),
        "host": platform.node(),
        "perfnb": _version("perfnb"),
        "numpy": _version("numpy"),
        "at": datetime.now(UTC).isoformat(),
        **_git(Path.cwd()),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a checkout on the path
        return None


def _git(folder: Path) -> dict[str, Any]:
    commit = _ask(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _ask(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit} | ({} if changes is None else {"uncommitted": bool(changes)})


def _ask(folder: Path, *words: str) -> str | None:
    """Output of git; ``None`` without git, outside a repository, or if it takes too long."""
    # Do not run the file-system monitor that a repository may configure.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_GIT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
