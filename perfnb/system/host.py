"""Checks of CPU, NUMA, memory and shared memory."""

from __future__ import annotations

import math

from perfnb import quantities as fmt
from perfnb.system.check import Check, Facts, Finding, counted

GIB = 1 << 30
#: With these drivers "powersave" raises the clock under load; with others, including "amd-pstate", it pins the lowest.
_OWN_CONTROL = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_SAVING = ("power", "balance_power")
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"
#: Too little memory is free below this share; more swap in use than this share of memory is not just leftovers.
_LITTLE_FREE, _MUCH_SWAPPED = 0.1, 0.02
#: Docker gives 64 MiB of shared memory by default.
_LITTLE_SHARED = GIB
#: Throttled time, in milliseconds, that a short burst explains.
_BURST_MS = 1000.0


def governor(facts: Facts) -> Finding:
    """Does the clock rise under load?"""
    governors, drivers = facts["governors"], facts.get("frequency_drivers") or {}
    preferences = facts.get("energy_preferences") or {}
    found = ", ".join(governors) + (f" ({', '.join(drivers)})" if drivers else "")
    if preferences:
        found += f", energy preference {', '.join(preferences)}"
    own = bool(drivers) and all(driver in _OWN_CONTROL for driver in drivers)
    slow = {"conservative"} if own else {"conservative", "powersave", "userspace"}
    if slow & set(governors) or ("performance" not in governors and set(preferences) & set(_SAVING)):
        return Finding(found, "attention")
    return Finding(found, "ok" if set(governors) == {"performance"} else "info")


def frequency(facts: Facts) -> Finding:
    """Can the clock reach the CPU's maximum?"""
    boost = facts.get("boost")
    limits = facts["frequency_limits"] if boost is not False else facts.get("frequency_limits") or []
    low = [(allowed, most) for allowed, most in limits if allowed < 0.98 * most]
    parts = [f"limited to {allowed:,.0f} of {most:,.0f} MHz" for allowed, most in low]
    if not low:
        parts += [f"up to {most:,.0f} MHz" for _, most in limits]
    if boost is not None:
        parts.append(f"boost {'on' if boost else 'off'}")
    return Finding(", ".join(parts), "attention" if low or boost is False else "ok")


def heat(facts: Facts) -> Finding:
    """Has the CPU overheated?"""
    events, lasted_ms = facts["heat_events"], facts.get("heat_ms")
    if not events:
        return Finding("never since boot", "ok")
    found = f"thermal throttling slowed a core {counted(events, 'time')} since boot"
    if lasted_ms is None:
        return Finding(found, "attention")
    found += f", for a total of {fmt.duration(lasted_ms)}"
    return Finding(found, "attention" if lasted_ms > _BURST_MS else "info")


def numa(facts: Facts) -> Finding:
    """Are threads and memory on one node?"""
    nodes = facts["nodes"]
    used = [own for _, own in nodes if own]
    if len(nodes) == 1:
        return Finding("1 node", "ok")
    if len(used) <= 1:
        return Finding(f"{len(nodes)} nodes, process bound to 1", "ok")
    return Finding(f"{len(nodes)} nodes, process may run on {len(used)}", "attention")


def threads(facts: Facts) -> Finding:
    """Does torch use one thread per core that the process may use?"""
    environment = facts["environment"]
    count, cpus, cores, limit = environment["threads"], facts["cpus"], facts.get("cores"), facts.get("cpu_limit")
    variables = facts.get("thread_variables") or {}
    allowed = cpus if limit is None else min(cpus, max(1, math.ceil(limit)))
    real = allowed if cores is None else min(allowed, cores)
    have = counted(allowed, "CPU") + (f" on {counted(cores, 'core')}" if cores is not None and cores < allowed else "")
    quota = "" if limit is None else f" (cgroup limit: {limit:g})"
    chosen = "".join(f", {name}={value}" for name, value in variables.items())
    found = f"{counted(count, 'thread')} for {have}{quota}{chosen}"
    set_to = f"torch.set_num_threads({real}), or OMP_NUM_THREADS={real} before Python starts."
    if count > allowed:
        return Finding(found, "attention", f"{set_to} Threads that share a core wait for each other.")
    if count > real:
        return Finding(found, "info", f"Try {set_to}")
    if 2 * count <= real and real >= 4:
        return Finding(found, "attention", f"{set_to} Keep it if workers or other processes use the other cores.")
    return Finding(found, "ok", set_to)


def cpu_limit(facts: Facts) -> Finding:
    """Does the cgroup's limit throttle the process?"""
    limit, held = facts["cpu_limit"], facts.get("throttled")
    if limit is None:
        return Finding("none", "ok")
    found = f"{limit:g} CPUs"
    if held is None:
        return Finding(f"{found}; its throttling could not be read", "info")
    periods, stopped_ms = held
    if not periods:
        return Finding(f"{found}; never throttled", "ok")
    found += f"; throttled {counted(periods, 'time')}, for a total of {fmt.duration(stopped_ms)}"
    return Finding(found, "attention" if stopped_ms > _BURST_MS else "info")


def memory(facts: Facts) -> Finding:
    """Is there enough free memory?"""
    known = facts["memory"]
    total, free = known["total"], known["available"]
    found = f"{fmt.size(free)} of {fmt.size(total)} free"
    little = free < _LITTLE_FREE * total
    limit = facts.get("memory_limit")
    if limit is not None and limit[0] < total:
        most, used = limit
        found += f"; the cgroup allows {fmt.size(most)}" + ("" if used is None else f", {fmt.size(used)} in use")
        little = little or (used is not None and most - used < _LITTLE_FREE * most)
    return Finding(found, "attention" if little else "ok")


def swap(facts: Facts) -> Finding:
    """Is memory swapped out?"""
    used, of_memory = facts["swap"], facts.get("memory")
    if not used["total"]:
        return Finding("none", "ok")
    found = f"{fmt.size(used['used'])} of {fmt.size(used['total'])} in use"
    if of_memory is not None and used["used"] > _MUCH_SWAPPED * of_memory["total"]:
        return Finding(found, "attention")
    return Finding(found, "info" if used["used"] else "ok")


def huge_pages(facts: Facts) -> Finding:
    """Does the process get huge pages?"""
    chosen = facts["huge_pages"]
    if chosen == "madvise":
        return Finding("madvise: only on request", "info")
    if chosen == "never":
        how = f"As root, write always to {_THP}; or write madvise and set THP_MEM_ALLOC_ENABLE=1 before Python starts."
        return Finding("never, not even on request", "attention", how)
    return Finding(chosen, "ok" if chosen == "always" else "info")


def shared_memory(facts: Facts) -> Finding:
    """Is there room for the batches of a loader's workers?"""
    if facts.get("platform") == "darwin":
        return Finding("macOS has no size limit of its own for shared memory", "info")
    space = facts["shared_memory"]
    found = f"{fmt.size(space['free'])} of {fmt.size(space['total'])} free"
    return Finding(found, "attention" if space["free"] < _LITTLE_SHARED else "ok")


CHECKS = (
    Check(
        "CPU governor",
        "performance, or one that raises the clock under load",
        "A CPU that saves power raises its clock late or not at all: steps are slower and their times vary more.",
        "sudo cpupower frequency-set -g performance; on a laptop, change the power profile and plug it in.",
        governor,
    ),
    Check(
        "CPU frequency",
        "no limit below the CPU's maximum",
        "A limit, or no boost, slows everything on the host. A fixed clock can still be useful for measurements.",
        "sudo cpupower frequency-set -u with the CPU's maximum. Boost: in the BIOS, or in /sys/devices/system/cpu as "
        "root write 1 to cpufreq/boost or, with intel_pstate, 0 to intel_pstate/no_turbo.",
        frequency,
    ),
    Check(
        "CPU slowed by heat",
        "never",
        "A CPU that is too hot lowers its clock, so long runs are slower than short ones.",
        "Improve cooling, use fewer threads, or set a power limit that the CPU can hold for the whole run.",
        heat,
    ),
    Check(
        "NUMA",
        "one node, or the process bound to one",
        "Memory on another node is slower, and each GPU is attached to one node.",
        "numactl --cpunodebind=0 --membind=0 python ..., with the GPU's node (nvidia-smi topo -m). If a step needs the "
        "cores of all nodes: one process per node, or numactl --interleave=all.",
        numa,
    ),
    Check(
        "torch's threads",
        "one per core that the process may use",
        "Too many threads wait for each other; too few leave cores idle. torch does not notice a container's limit.",
        "torch.set_num_threads(n), or OMP_NUM_THREADS before Python starts.",
        threads,
    ),
    Check(
        "CPU limit of the cgroup",
        "none, or never reached",
        "A container over its limit is paused for the rest of the period, usually 0.1 s: steps stall at random.",
        "Raise the container's limit (docker --cpus, resources.limits.cpu), or use fewer threads and workers.",
        cpu_limit,
    ),
    Check(
        "memory",
        "at least 10 % free",
        "Free memory caches files. Without it, data is read from disk again, and the system may kill the process.",
        "Stop other processes and kernels, use fewer workers or smaller batches, or raise the container's limit.",
        memory,
    ),
    Check(
        "swap",
        "none in use",
        "A step that touches swapped-out memory waits for the disk.",
        "Use less memory. If everything fits, sudo swapoff -a && sudo swapon -a brings it back; sudo sysctl "
        "vm.swappiness=10 makes the system swap later.",
        swap,
    ),
    Check(
        "huge pages",
        "always, or madvise with a program that requests them",
        "With 2 MiB pages a step on the CPU has fewer TLB misses and page faults.",
        f"THP_MEM_ALLOC_ENABLE=1 before Python starts makes torch request them; or, as root, write always to {_THP}.",
        huge_pages,
    ),
    Check(
        "shared memory (/dev/shm)",
        "at least 1 GiB free",
        "A DataLoader's workers pass batches through it; when it is full, they die with a bus error.",
        "docker run --shm-size=8g or --ipc=host; in Kubernetes, an emptyDir with medium: Memory at /dev/shm; otherwise "
        "delete leftovers of dead programs, or sudo mount -o remount,size=8g /dev/shm.",
        shared_memory,
    ),
)
