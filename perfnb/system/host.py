"""Check the rest of the machine: CPU, NUMA, memory, shared memory, the disk with the data, and the builds."""

from __future__ import annotations

import math
from typing import Any

from perfnb import quantities as fmt
from perfnb.system.check import Check, CheckResult, SystemFacts, check
from perfnb.system.read.reading import Unreadable

GIB = 1 << 30
#: With these drivers, "powersave" raises the clock under load; with others, such as "amd-pstate", it pins the lowest
#: one.
_OWN_CONTROL = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
#: The check of current disturbances, and the share of the CPU above which other programs make the machine busy.
OTHERS, _BUSY = "CPU used by others", 0.25
_SAVING = ("power", "balance_power")
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"
#: Too little memory is free if it is below this share. Swap in use above this share of memory consists of more than
#: leftovers.
_LITTLE_FREE, _MUCH_SWAPPED = 0.1, 0.02
#: By default, Docker containers have only 64 MiB of shared memory.
_LITTLE_SHARED = GIB
#: A short burst may explain this much throttled time, in milliseconds.
_BURST_MS = 1000.0

_INTEL = ("x86_64", "amd64", "i686")
#: BLAS libraries other than MKL, by torch's names.
_BLAS = {"open": "OpenBLAS", "accelerate": "Accelerate", "flame": "BLIS", "nvpl": "NVPL", "atlas": "ATLAS"}

_WHEEL = "Install the wheel for your machine from pytorch.org."
_ONE_RUNTIME = (
    "Each runtime has its own threads, which compete if two of them run at the same time. threadpoolctl shows which "
    "package loaded which runtime; limit the others to one thread."
)


@check(
    "CPU governor",
    "performance, or a governor that raises the clock under load",
    "A CPU that saves power raises its clock late or not at all, so steps are slower and their times vary more.",
    "Run sudo cpupower frequency-set -g performance; on a laptop, change the power profile and plug it in.",
)
def governor(facts: SystemFacts) -> CheckResult:
    governors, drivers = facts["governors"], facts.get("frequency_drivers") or {}
    preferences = facts.get("energy_preferences") or {}
    found = ", ".join(governors) + (f" ({', '.join(drivers)})" if drivers else "")
    if preferences:
        found += f", energy preference {', '.join(preferences)}"
    own = bool(drivers) and all(driver in _OWN_CONTROL for driver in drivers)
    slow = {"conservative"} if own else {"conservative", "powersave", "userspace"}
    if slow & set(governors) or ("performance" not in governors and set(preferences) & set(_SAVING)):
        return CheckResult(found, "attention")
    return CheckResult(found, "ok" if set(governors) == {"performance"} else "info")


@check(
    "CPU frequency",
    "no limit below the CPU's maximum",
    "A limit or a lack of boost slows down everything on the host. A fixed clock can still be useful for measurements.",
    "Run sudo cpupower frequency-set -u with the CPU's maximum. Enable boost in the BIOS or, as root, in "
    "/sys/devices/system/cpu: write 1 to cpufreq/boost or, with intel_pstate, 0 to intel_pstate/no_turbo.",
)
def frequency(facts: SystemFacts) -> CheckResult:
    boost = facts.get("boost")
    limits = facts["frequency_limits"] if boost is not False else facts.get("frequency_limits") or []
    low = [(allowed, most) for allowed, most in limits if allowed < 0.98 * most]
    parts = [f"limited to {allowed:,.0f} of {most:,.0f} MHz" for allowed, most in low]
    if not low:
        parts += [f"up to {most:,.0f} MHz" for _, most in limits]
    if boost is not None:
        parts.append(f"boost {'on' if boost else 'off'}")
    return CheckResult(", ".join(parts), "attention" if low or boost is False else "ok")


@check(
    OTHERS,
    "less than a quarter of the CPU",
    "A step cannot use the CPU time that other processes take, so it is slower and its times vary more.",
    "Stop other processes, or measure when the machine is idle.",
)
def others(facts: SystemFacts) -> CheckResult:
    used = facts["cpu_of_others"]
    whole = float(used["cpus"])
    share = min(whole, used["percent"] / 100)
    return CheckResult(f"{fmt.share(share)} of {fmt.share(whole)}", "attention" if share > _BUSY * whole else "ok")


@check(
    "CPU slowed by heat",
    "never",
    "A CPU that is too hot lowers its clock, so long runs are slower than short ones.",
    "Improve the cooling, use fewer threads, or set a power limit that the CPU can sustain for the whole run.",
)
def heat(facts: SystemFacts) -> CheckResult:
    events, lasted_ms = facts["heat_events"], facts.get("heat_ms")
    if not events:
        return CheckResult("never since boot", "ok")
    found = f"thermal throttling slowed a core {fmt.counted(events, 'time')} since boot"
    if lasted_ms is None:
        return CheckResult(found, "attention")
    found += f", for a total of {fmt.duration(lasted_ms)}"
    return CheckResult(found, "attention" if lasted_ms > _BURST_MS else "info")


@check(
    "NUMA",
    "one node, or a process that is bound to one node",
    "Memory on another node is slower, and each GPU is attached to one node.",
    "Run numactl --cpunodebind=0 --membind=0 python ..., with the GPU's node (nvidia-smi topo -m). If a step needs the "
    "cores of all nodes, use one process per node, or numactl --interleave=all.",
)
def numa(facts: SystemFacts) -> CheckResult:
    nodes = facts["nodes"]
    used = sum(own > 0 for _, own in nodes)
    if len(nodes) == 1:
        return CheckResult("1 node", "ok")
    if used <= 1:
        return CheckResult(f"{len(nodes)} nodes, process bound to 1", "ok")
    return CheckResult(f"{len(nodes)} nodes, process may run on {used}", "attention")


@check(
    "torch's threads",
    "one per core that the process may use",
    "Too many threads wait for each other, and too few leave cores idle. torch does not recognise a container's limit.",
    "Use torch.set_num_threads(n), or set OMP_NUM_THREADS before Python starts.",
)
def threads(facts: SystemFacts) -> CheckResult:
    environment = facts["environment"]
    count, cpus, cores, limit = environment["threads"], facts["cpus"], facts.get("cores"), facts.get("cpu_limit")
    variables = facts.get("thread_variables") or {}
    allowed = cpus if limit is None else min(cpus, max(1, math.ceil(limit)))
    real = allowed if cores is None else min(allowed, cores)
    have = fmt.counted(allowed, "CPU") + (
        f" on {fmt.counted(cores, 'core')}" if cores is not None and cores < allowed else ""
    )
    quota = "" if limit is None else f" (cgroup limit: {limit:g})"
    chosen = "".join(f", {name}={value}" for name, value in variables.items())
    found = f"{fmt.counted(count, 'thread')} for {have}{quota}{chosen}"
    set_to = f"torch.set_num_threads({real}), or set OMP_NUM_THREADS={real} before Python starts."
    if count > allowed:
        return CheckResult(found, "attention", f"{set_to} Threads that share a core wait for each other.")
    if count > real:
        return CheckResult(found, "info", f"Try {set_to}")
    if 2 * count <= real and real >= 4:
        return CheckResult(found, "attention", f"{set_to} Keep it if workers or other processes use the other cores.")
    return CheckResult(found, "ok", set_to)


@check(
    "CPU limit of the cgroup",
    "none, or never reached",
    "A container that exceeds its limit is paused for the rest of the period, usually 0.1 s, so steps stall at random.",
    "Raise the container's limit (docker --cpus, resources.limits.cpu), or use fewer threads and workers.",
)
def cpu_limit(facts: SystemFacts) -> CheckResult:
    limit, held = facts["cpu_limit"], facts.get("throttled")
    if limit is None:
        return CheckResult("none", "ok")
    found = f"{limit:g} CPUs"
    if held is None:
        return CheckResult(f"{found}; its throttling could not be read", "info")
    periods, stopped_ms = held
    if not periods:
        return CheckResult(f"{found}; never throttled", "ok")
    found += f"; throttled {fmt.counted(periods, 'time')}, for a total of {fmt.duration(stopped_ms)}"
    return CheckResult(found, "attention" if stopped_ms > _BURST_MS else "info")


@check(
    "memory",
    "at least 10 % free",
    "Free memory is used to cache files. Without it, data must be read from disk again, and the system may kill the "
    "process.",
    "Stop other processes and kernels, use fewer workers or smaller batches, or raise the container's limit.",
)
def memory(facts: SystemFacts) -> CheckResult:
    known = facts["memory"]
    total, free = known["total"], known["available"]
    found = f"{fmt.size(free)} of {fmt.size(total)} free"
    little = free < _LITTLE_FREE * total
    limit = facts.get("memory_limit")
    if limit is not None and limit[0] < total:
        most, used = limit
        found += f"; the cgroup allows {fmt.size(most)}" + ("" if used is None else f", {fmt.size(used)} in use")
        little = little or (used is not None and most - used < _LITTLE_FREE * most)
    return CheckResult(found, "attention" if little else "ok")


@check(
    "swap",
    "none in use",
    "A step that touches swapped-out memory waits for the disk.",
    "Use less memory. If everything fits, sudo swapoff -a && sudo swapon -a moves it back to memory; sudo sysctl "
    "vm.swappiness=10 makes the system swap later.",
)
def swap(facts: SystemFacts) -> CheckResult:
    used, of_memory = facts["swap"], facts.get("memory")
    if not used["total"]:
        return CheckResult("none", "ok")
    found = f"{fmt.size(used['used'])} of {fmt.size(used['total'])} in use"
    if of_memory is not None and used["used"] > _MUCH_SWAPPED * of_memory["total"]:
        return CheckResult(found, "attention")
    return CheckResult(found, "info" if used["used"] else "ok")


@check(
    "huge pages",
    "always, or madvise with a program that requests them",
    "With 2 MiB pages, a step on the CPU has fewer TLB misses and page faults.",
    "To make torch request them, set THP_MEM_ALLOC_ENABLE=1 before Python starts. Alternatively, as root, write always "
    f"to {_THP}.",
)
def huge_pages(facts: SystemFacts) -> CheckResult:
    chosen = facts["huge_pages"]
    if chosen == "madvise":
        return CheckResult("madvise: only on request", "info")
    if chosen == "never":
        how = f"As root, write always to {_THP}; or write madvise and set THP_MEM_ALLOC_ENABLE=1 before Python starts."
        return CheckResult("never, not even on request", "attention", how)
    return CheckResult(chosen, "ok" if chosen == "always" else "info")


@check(
    "shared memory (/dev/shm)",
    "at least 1 GiB free",
    "A DataLoader's workers pass batches through shared memory. If it is full, they die with a bus error.",
    "Use docker run with --shm-size=8g or --ipc=host, or in Kubernetes, an emptyDir with medium: Memory at /dev/shm. "
    "Otherwise, delete the leftovers of dead programs, or run sudo mount -o remount,size=8g /dev/shm.",
)
def shared_memory(facts: SystemFacts) -> CheckResult:
    if facts.get("platform") == "darwin":
        return CheckResult("macOS has no separate size limit for shared memory", "info")
    space = facts["shared_memory"]
    found = f"{fmt.size(space['free'])} of {fmt.size(space['total'])} free"
    return CheckResult(found, "attention" if space["free"] < _LITTLE_SHARED else "ok")


MIB = 1 << 20
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "beegfs", "afs", "gpfs", "virtiofs")
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
#: Disks of virtual machines, which are always reported as rotational.
_VIRTUAL = ("vd", "xvd")
#: A request of up to 1 MiB should not take longer than this, in seconds: 100 MiB/s, or the seek time of a hard disk.
_SLOW_S = 0.01
#: The disk's rate is unknown if fewer bytes than this were read from the disk itself.
_FEWEST = MIB


@check(
    "disk of the data",
    "a local SSD",
    "On a network file system or a hard disk, a loader waits for each small file.",
    "Copy the data to a local SSD, or pack small files into a few large ones (WebDataset, Parquet, LMDB, HDF5).",
)
def disk(facts: SystemFacts) -> CheckResult:
    mount, device = facts["mount"], facts.get("block_device")
    kind = mount["kind"]
    found = f"{kind} at {mount['folder']}" + ("" if device is None else f", disk {device['name']}")
    if kind.startswith("fuse") or kind in _NETWORK:
        return CheckResult(f"{found}: a network or user-space file system", "attention")
    if kind in _IN_MEMORY:
        return CheckResult(f"{found}: in memory", "info")
    if kind == "overlay":
        return CheckResult(f"{found}: a container's layers", "info")
    if device is not None and device["turns"]:
        if device["name"].startswith(_VIRTUAL) or facts.get("virtual"):
            return CheckResult(f"{found} (virtual)", "info")
        return CheckResult(f"{found} (a hard disk)", "attention")
    return CheckResult(found, "ok" if device is not None else "info")


@check(
    "read test",
    "at most 10 ms for 1 MiB or a small file, from the disk itself",
    "If the data is larger than memory, the disk limits the loader. The test reads at most 32 MiB in one second. "
    "A new file may still be in the cache of the disk or of a virtual machine's host.",
    "If single requests are slow, use more workers. Otherwise, use larger files, a faster disk, or enough memory for "
    "the data.",
)
def read_test(facts: SystemFacts) -> CheckResult:
    test = facts["read_test"]
    what = _what(test, facts.get("data"))
    if not test["cache_known"]:
        rate = _rate(test["disk_bytes"] + test["cached_bytes"], test["disk_s"] + test["cached_s"])
        return CheckResult(f"{rate}, possibly from the page cache ({what})", "info")
    cached = f"{fmt.size(test['cached_bytes'])} from the page cache"
    if test["disk_bytes"] < _FEWEST:
        return CheckResult(f"nearly all from the page cache, which does not show the disk's rate ({what})", "info")
    requests = max(1, test["disk_requests"])
    each_s, each = test["disk_s"] / requests, fmt.size(test["disk_bytes"] / requests)
    found = f"{_rate(test['disk_bytes'], test['disk_s'])} from the disk, {fmt.duration(1e3 * each_s)} for {each}"
    found += f" ({what}, {cached})" if test["cached_bytes"] else f" ({what})"
    return CheckResult(found, "attention" if each_s > _SLOW_S else "ok")


def _what(test: dict[str, Any], data: str | None) -> str:
    if not test["files"] and not test["temporary"]:
        raise Unreadable("nothing was read")
    read = [fmt.counted(test["files"], "file")] if test["files"] else []
    read += ["a new temporary file"] if test["temporary"] else []
    size = fmt.size(test["disk_bytes"] + test["cached_bytes"])
    failed = f", {fmt.counted(test['failed'], 'file')} could not be read" if test["failed"] else ""
    return f"{size} of {' and '.join(read)}" + ("" if data is None else f" in {data}") + failed


def _rate(count: int, seconds: float) -> str:
    return "too fast to measure" if seconds <= 0 else f"{fmt.size(count / seconds)}/s"


@check(
    "Python",
    "a release build, no debugger",
    "A debug build, developer mode or a tracer makes every operator call several times slower.",
    "Use a release build, and run outside the debugger, without PYTHONDEVMODE and PYTHONMALLOC.",
)
def python_build(facts: SystemFacts) -> CheckResult:
    python = facts["python"]
    found = f"{python['implementation']} {python['version']}"
    signs = {
        "a debug build": python["debug"],
        "developer mode is on": python["developer_mode"],
        f"PYTHONMALLOC={python['malloc']}": "debug" in python["malloc"],
        "a debugger or tracer is active": python["tracer"],
    }
    slow = [words for words, holds in signs.items() if holds]
    if slow:
        return CheckResult(", ".join([found, *slow]), "attention")
    if python["optimized"] is False:
        return CheckResult(f"{found}, built without --enable-optimizations", "info")
    return CheckResult(found, "ok")


@check(
    "torch",
    "a release build with OpenMP, oneDNN and, on Intel and AMD, MKL or another BLAS",
    "Without these libraries, matrix products and convolutions run on one thread or without vector instructions.",
    _WHEEL,
)
def torch_build(facts: SystemFacts) -> CheckResult:
    build, runtimes = facts["torch"], facts.get("openmp_runtimes") or []
    intel = build["machine"].lower() in _INTEL
    blas = "MKL" if build["mkl"] else _BLAS.get(build["blas"] or "")
    libraries = [(blas, blas), ("oneDNN", build["onednn"]), ("OpenMP", build["openmp"])]
    having = [word for word, have in libraries if word and have]
    lacks = [word for word, have in libraries[1:] if word and not have] + (["MKL"] if intel and not blas else [])
    gpu = f"CUDA {build['cuda']}" if build["cuda"] else f"ROCm {build['hip']}" if build["hip"] else "CPU only"
    found = f"{build['version']} ({gpu}), with {', '.join(having) or 'no CPU library'}"
    found += f", for {build['capability']}" if build["capability"] else ""
    found += f"; lacks {', '.join(lacks)}" if lacks else ""
    found += "; a debug build" if build["debug"] else ""
    plain = intel and (build["capability"] or "").upper() in ("DEFAULT", "NO AVX")
    if build["debug"] or plain or (intel and lacks):
        unset = " Unset ATEN_CPU_CAPABILITY; if it is not set, the CPU has no AVX2." if plain else ""
        return CheckResult(found, "attention", _WHEEL + unset)
    if len(runtimes) > 1:
        names = ", ".join(path.rpartition("/")[2] for path in runtimes)
        return CheckResult(f"{found}; {len(runtimes)} OpenMP runtimes are loaded ({names})", "info", _ONE_RUNTIME)
    return CheckResult(found, "info" if lacks or (intel and not build["mkl"]) else "ok")


CHECKS: tuple[Check, ...] = (
    *(governor, frequency, others, heat, numa, threads, cpu_limit, memory, swap, huge_pages, shared_memory),
    *(disk, read_test, python_build, torch_build),
)
