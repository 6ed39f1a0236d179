"""Read the CPU and its limits, NUMA, memory, shared memory, the builds of Python and torch, and torch's threads."""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
import time
import warnings
from typing import Any

import psutil
import torch

from perfnb.step.environment import describe_environment
from perfnb.system.read.reading import Reader, SystemTree, Unreadable, numbers_of
from perfnb.telemetry.sampler.cgroup import CgroupSource, cpu_limit, memory_limit_bytes, throttled
from perfnb.telemetry.sampler.source import Absent

_CPU = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
#: How long other processes are watched, in seconds.
_SEEN_S = 0.3
#: The first of psutil's CPU times add up to the total. The last ones, for guests, are already part of these.
_REAL_TIMES = 8


def host_readers(tree: SystemTree) -> dict[str, Reader]:
    """Return a reader for each fact."""
    host = _Host(tree)
    return {
        "governors": lambda: host._of_policies("scaling_governor"),
        "frequency_drivers": lambda: host._of_policies("scaling_driver"),
        "energy_preferences": lambda: host._of_policies("energy_performance_preference"),
        "heat_events": lambda: host._heat("core_throttle_count"),
        "heat_ms": lambda: host._heat("core_throttle_total_time_ms"),
        **{name: getattr(host, name) for name in vars(_Host) if not name.startswith("_")},
        "huge_pages": lambda: tree.chosen("sys/kernel/mm/transparent_hugepage/enabled"),
        "platform": lambda: tree.platform,
    }


class _Host:
    def __init__(self, tree: SystemTree) -> None:
        self._tree = tree

    def _policies(self) -> list[str]:
        """Return the frequency control folders. Each represents a group of CPUs that share a clock."""
        try:
            return self._tree.folders(f"{_CPU}/cpufreq", "policy")
        except Unreadable:
            folders = [f"{folder}/cpufreq" for folder in self._tree.folders(_CPU, "cpu")]
        found = [folder for folder in folders if os.path.isdir(self._tree.path(folder))]
        if not found:
            raise Unreadable(f"no frequency control (no /{_CPU}/cpufreq, as on virtual machines)")
        return found

    def _of_policies(self, name: str) -> dict[str, int]:
        """Return a setting's values, each with the number of policies that have it."""
        words = [self._tree.word(f"{folder}/{name}") for folder in self._policies()]
        return {word: words.count(word) for word in sorted(set(words))}

    def frequency_limits(self) -> list[tuple[float, float]]:
        """Return, for each policy, the highest allowed frequency and the CPU's own maximum, in MHz."""
        names = ("scaling_max_freq", "cpuinfo_max_freq")
        limits = [tuple(self._tree.whole(f"{folder}/{name}") / 1e3 for name in names) for folder in self._policies()]
        return sorted({(allowed, most) for allowed, most in limits})

    def boost(self) -> bool:
        """Return whether the CPU may exceed its nominal clock."""
        try:
            return self._tree.whole(f"{_CPU}/intel_pstate/no_turbo") == 0
        except Unreadable:
            return self._tree.whole(f"{_CPU}/cpufreq/boost") != 0

    def _heat(self, name: str) -> int:
        """Return a counter of how much heat has slowed the CPUs since boot, summed over the CPUs."""
        files = [f"{folder}/thermal_throttle/{name}" for folder in self._tree.folders(_CPU, "cpu")]
        counts = [
            self._tree.whole(file) for file in files if os.path.exists(self._tree.path(file))
        ]  # some CPUs may be offline
        if not counts:
            raise Unreadable(f"no {name} in /{_CPU}; only Intel CPUs outside virtual machines have it")
        return sum(counts)

    def virtual(self) -> bool:
        """Return whether this is a virtual machine, whose disks are also virtual."""
        rows = [line.partition(":") for line in self._tree.text("proc/cpuinfo").splitlines()]
        flags = [value.split() for name, _, value in rows if name.strip() == "flags"]
        if not flags:
            raise Unreadable("/proc/cpuinfo does not show if this is a virtual machine")
        return "hypervisor" in flags[0]

    def cpus(self) -> int:
        """Return how many CPUs the process may run on."""
        return len(self._allowed())

    def cores(self) -> int:
        """Return how many physical cores contain these CPUs."""
        if not self._tree.is_linux:
            cores = psutil.cpu_count(logical=False)
            if not cores:
                raise Unreadable("the system does not report its cores")
            return cores
        allowed = self._allowed()
        siblings = [self._siblings(folder) for folder in self._tree.folders(_CPU, "cpu") if _number(folder) in allowed]
        if not siblings:
            raise Unreadable(f"/{_CPU} lists none of the CPUs that the process may use")
        return len(set(siblings))

    def _siblings(self, folder: str) -> frozenset[int]:
        try:
            return numbers_of(self._tree.text(f"{folder}/topology/thread_siblings_list"))
        except Unreadable:
            return numbers_of(self._tree.text(f"{folder}/topology/core_cpus_list"))

    def nodes(self) -> list[tuple[int, int]]:
        """Return, for each NUMA node with CPUs, how many CPUs it has and how many of them the process may use."""
        allowed = self._allowed()
        lists = [_list_of(self._tree, folder) for folder in self._tree.folders(_NODES, "node")]
        found = [(len(numbers), len(numbers & allowed)) for numbers in lists if numbers]
        if not found:
            raise Unreadable(f"/{_NODES} lists no CPU")
        return found

    def _allowed(self) -> frozenset[int]:
        if hasattr(os, "sched_getaffinity"):
            return frozenset(os.sched_getaffinity(0))
        return frozenset(range(os.cpu_count() or 1))

    def _places(self) -> tuple[str, str]:
        return self._tree.path("proc/self"), self._tree.path("sys/fs/cgroup")

    def cpu_limit(self) -> float | None:
        """Return how many CPUs the cgroups allow, or ``None`` if there is no limit."""
        return cpu_limit(*self._places())

    def throttled(self) -> tuple[int, float]:
        """Return how many times the limit throttled the cgroup, and for how many milliseconds."""
        stopped = throttled(*self._places())
        if stopped is None:
            raise Unreadable("no cgroup reports it")
        return stopped

    def cpu_of_others(self) -> dict[str, float]:
        """Return the CPU usage of other processes over `_SEEN_S` seconds, and the number of CPUs.

        The usage is in percent of one core.
        """
        own = psutil.Process()

        def used() -> tuple[float, float]:
            times, mine = psutil.cpu_times(), own.cpu_times()
            idle = times.idle + getattr(times, "iowait", 0.0)
            return sum(times[:_REAL_TIMES]) - idle, mine.user + mine.system

        start, (all_before, own_before) = time.perf_counter(), used()
        time.sleep(_SEEN_S)
        seconds, (all_after, own_after) = time.perf_counter() - start, used()
        others = max(0.0, all_after - all_before - (own_after - own_before))
        return {"percent": 100 * others / seconds, "cpus": psutil.cpu_count() or 1}

    def memory(self) -> dict[str, int]:
        """Return the total bytes, and the bytes available without swapping."""
        memory = psutil.virtual_memory()
        return {"total": int(memory.total), "available": int(memory.available)}

    def memory_limit(self) -> tuple[int, float | None] | None:
        """Return how many bytes the cgroups allow and how many are in use, or ``None`` if there is no limit."""
        limit = memory_limit_bytes(*self._places())
        if limit is None:
            return None
        try:
            source = CgroupSource(*self._places())
        except Absent:
            return limit, None
        try:
            return limit, source.read("cgroup", time.perf_counter_ns())["memory_bytes"]
        finally:
            source.close()

    def swap(self) -> dict[str, int]:
        """Return the size of the swap and how much of it is in use, in bytes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # psutil warns if it cannot count the pages swapped in and out
            swap = psutil.swap_memory()
        return {"total": int(swap.total), "used": int(swap.used)}

    def shared_memory(self) -> dict[str, int]:
        """Return the total and the free bytes of the shared memory file system."""
        place = self._tree.path("dev/shm")
        try:
            space: Any = os.statvfs(place)
        except OSError as error:
            raise Unreadable(f"{(error.strerror or 'error').lower()}: /dev/shm") from None
        return {"total": space.f_frsize * space.f_blocks, "free": space.f_frsize * space.f_bavail}


def _number(folder: str) -> int:
    return int(folder.rpartition("cpu")[2])


def _list_of(tree: SystemTree, folder: str) -> frozenset[int]:
    """Return a node's CPUs, which are none if the node has only memory."""
    try:
        return numbers_of(tree.text(f"{folder}/cpulist"))
    except Unreadable as error:
        if "is empty" in str(error):
            return frozenset()
        raise


#: Environment variables that determine how many threads compute, and where.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
)
_OPENMP_FILE = re.compile(r"(?<= )/[^\n]*lib(?:gomp|iomp5|omp5?)(?:-\w+)?\.so[.\w]*")


def build_readers(tree: SystemTree) -> dict[str, Reader]:
    """Return a reader for each fact."""
    return {
        "environment": describe_environment,
        "thread_variables": lambda: {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
        "python": python_build,
        "torch": torch_build,
        "openmp_runtimes": lambda: loaded_openmp(tree),
    }


def python_build() -> dict[str, Any]:
    """Return the facts that affect how fast Python's own code runs."""
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "debug": hasattr(sys, "gettotalrefcount") or bool(sysconfig.get_config_var("Py_DEBUG")),
        "optimized": "--enable-optimizations" in options if options else None,
        "developer_mode": bool(sys.flags.dev_mode),
        "malloc": os.environ.get("PYTHONMALLOC", ""),
        "tracer": sys.gettrace() is not None or sys.getprofile() is not None,
    }


def torch_build() -> dict[str, Any]:
    """Return the features that torch was built with."""
    capability = getattr(torch.backends.cpu, "get_cpu_capability", None)
    return {
        "version": str(torch.__version__),
        "debug": bool(torch.version.debug),
        "mkl": bool(torch.backends.mkl.is_available()),
        "onednn": bool(torch.backends.mkldnn.is_available()),
        "openmp": bool(torch.backends.openmp.is_available()),
        "blas": _blas(),
        "capability": None if capability is None else str(capability()),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "machine": platform.machine(),
    }


def _blas() -> str | None:
    """Return the BLAS library that torch was built with, as torch reports it."""
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return None if found is None else found[1].lower()


def loaded_openmp(tree: SystemTree) -> list[str]:
    """Return the files of the OpenMP runtimes that the process has loaded. Each runtime has its own threads."""
    return sorted({found[0] for found in _OPENMP_FILE.finditer(tree.text("proc/self/maps"))})
