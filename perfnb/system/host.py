"""Checks of CPU, NUMA, memory and shared memory: rules of thumb, each with its reason."""

from __future__ import annotations

import math

from perfnb.system.check import Check, Facts, Finding, counted, size_words

GIB = 1 << 30
#: With these drivers "powersave" raises the clock under load; elsewhere, also with "amd-pstate", it holds the lowest.
_OWN_CONTROL = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_SAVING = ("power", "balance_power")
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"
#: Below this share of all memory too little is free; above this share of it swap in use is more than leftovers.
_LITTLE_FREE, _MUCH_SWAPPED = 0.1, 0.02
#: Docker gives 64 MiB of shared memory unless asked for more.
_LITTLE_SHARED = GIB
#: Throttled or hot time, in milliseconds, that a short burst explains.
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
    """May the clock rise to what the CPU can do?"""
    now, limits, boost = facts.get("mhz"), facts.get("frequency_limits"), facts.get("boost")
    if now is None and limits is None:
        facts["mhz"]
    parts = [] if now is None else [f"{now:,.0f} MHz now"]
    for allowed, most in limits or ():
        parts.append(f"allowed up to {allowed:,.0f} of {most:,.0f} MHz")
    if boost is not None:
        parts.append(f"boost {'on' if boost else 'off'}")
    if any(allowed < 0.98 * most for allowed, most in limits or ()) or boost is False:
        return Finding(", ".join(parts), "attention")
    if limits is None:
        return Finding(f"{', '.join(parts)}; its limits are not told", "info")
    return Finding(", ".join(parts), "ok")


def heat(facts: Facts) -> Finding:
    """Has heat slowed the CPU?"""
    events, lasted_ms = facts["heat_events"], facts.get("heat_ms")
    if not events:
        return Finding("never since the machine's start", "ok")
    found = f"heat slowed a core {counted(events, 'time')} since the machine's start"
    if lasted_ms is None:
        return Finding(found, "attention")
    found += f", for {lasted_ms / 1e3:,.3g} s in all"
    return Finding(found, "attention" if lasted_ms > _BURST_MS else "info")


def hyper_threading(facts: Facts) -> Finding:
    """Do cores run two threads each?"""
    active, cpus, cores = facts["smt"], facts.get("cpus"), facts.get("cores")
    have = "" if cpus is None or cores is None else f": {counted(cpus, 'CPU')} on {counted(cores, 'core')}"
    if active:
        return Finding(f"on{have}", "info")
    if facts.get("virtual"):
        return Finding(f"none that this virtual machine shows{have}; its CPUs may be threads of shared cores", "info")
    return Finding(f"off, or the CPU has none{have}", "ok")


def numa(facts: Facts) -> Finding:
    """Do threads and memory lie on one node?"""
    nodes = facts["nodes"]
    used = [own for _, own in nodes if own]
    if len(nodes) == 1:
        return Finding("1 node", "ok")
    if len(used) <= 1:
        return Finding(f"{len(nodes)} nodes, the process is bound to 1 of them", "ok")
    return Finding(f"{len(nodes)} nodes, the process may run on {len(used)} of them", "attention")


def threads(facts: Facts) -> Finding:
    """Are torch's threads as many as the cores that the process may use?"""
    environment = facts["environment"]
    count, cpus, cores, limit = environment["threads"], facts["cpus"], facts.get("cores"), facts.get("cpu_limit")
    variables = facts.get("thread_variables") or {}
    allowed = cpus if limit is None else min(cpus, max(1, math.ceil(limit)))
    real = allowed if cores is None else min(allowed, cores)
    have = counted(allowed, "CPU") + (f" on {counted(cores, 'core')}" if cores is not None and cores < allowed else "")
    quota = "" if limit is None else f" (a limit of {limit:g} by the cgroup)"
    chosen = "".join(f", {name}={value}" for name, value in variables.items())
    found = f"{counted(count, 'thread')} for {have}{quota}{chosen}"
    set_to = f"torch.set_num_threads({real}), or OMP_NUM_THREADS={real} before Python starts."
    if count > allowed:
        return Finding(found, "attention", f"{set_to} Threads without a core of their own wait for each other.")
    if count > real:
        return Finding(found, "info", f"Try {set_to}")
    if 2 * count <= real and real >= 4:
        return Finding(found, "attention", f"{set_to} Leave it where workers or other processes use the other cores.")
    return Finding(found, "ok", set_to)


def cpu_limit(facts: Facts) -> Finding:
    """Does a limit of the cgroup stop the process?"""
    limit, held = facts["cpu_limit"], facts.get("throttled")
    if limit is None:
        return Finding("none", "ok")
    found = f"{limit:g} CPUs"
    if held is None:
        return Finding(f"{found}; how often it stopped the process could not be read", "info")
    periods, stopped_ms = held
    if not periods:
        return Finding(f"{found}; it never stopped the process", "ok")
    found += f"; it stopped the process {periods:,} times, for {stopped_ms / 1e3:,.3g} s in all"
    return Finding(found, "attention" if stopped_ms > _BURST_MS else "info")


def memory(facts: Facts) -> Finding:
    """Is there memory left?"""
    told = facts["memory"]
    total, free = told["total"], told["available"]
    found = f"{size_words(free)} of {size_words(total)} free"
    little = free < _LITTLE_FREE * total
    limit = facts.get("memory_limit")
    if limit is not None and limit[0] < total:
        most, used = limit
        found += f"; the cgroup allows {size_words(most)}" + ("" if used is None else f", {size_words(used)} in use")
        little = little or (used is not None and most - used < _LITTLE_FREE * most)
    return Finding(found, "attention" if little else "ok")


def swap(facts: Facts) -> Finding:
    """Is memory swapped out?"""
    told, of_memory, eager = facts["swap"], facts.get("memory"), facts.get("swappiness")
    if not told["total"]:
        return Finding("none", "ok")
    found = f"{size_words(told['used'])} of {size_words(told['total'])} in use"
    found += "" if eager is None else f", swappiness {eager}"
    if of_memory is not None and told["used"] > _MUCH_SWAPPED * of_memory["total"]:
        return Finding(found, "attention")
    return Finding(found, "info" if told["used"] else "ok")


def huge_pages(facts: Facts) -> Finding:
    """Does the process get huge pages?"""
    chosen, defrag = facts["huge_pages"], facts.get("huge_page_defrag")
    found = chosen + ("" if defrag is None else f", defrag {defrag}")
    if chosen == "always":
        return Finding(found, "ok")
    if chosen == "madvise":
        return Finding(f"{found}: only for who asks", "info")
    if chosen == "never":
        how = f"As root, write always to {_THP}; or madvise, and THP_MEM_ALLOC_ENABLE=1 before Python starts."
        return Finding(f"{found}: not even for who asks", "attention", how)
    return Finding(found, "info")


def shared_memory(facts: Facts) -> Finding:
    """Have a loader's workers room to hand over their batches?"""
    if facts.get("platform") == "darwin":
        return Finding("macOS keeps shared memory elsewhere, without a size of its own", "info")
    told = facts["shared_memory"]
    found = f"{size_words(told['free'])} of {size_words(told['total'])} free"
    return Finding(found, "attention" if told["free"] < _LITTLE_SHARED else "ok")


CHECKS = (
    Check(
        "CPU governor",
        "performance, or one that raises the clock under load",
        "A CPU that saves power raises its clock late or not at all: steps are slower and their times spread.",
        "sudo cpupower frequency-set -g performance (on a laptop: the power profile, and the mains).",
        governor,
    ),
    Check(
        "CPU frequency",
        "allowed up to what the CPU can do",
        "A limit below it, or no boost, slows all that the host does. To measure, a fixed clock may be what you want.",
        "sudo cpupower frequency-set -u with the CPU's highest frequency. Boost: in the BIOS, or as root write 1 to "
        "cpufreq/boost or, with intel_pstate, 0 to intel_pstate/no_turbo, both in /sys/devices/system/cpu.",
        frequency,
    ),
    Check(
        "CPU slowed by heat",
        "never",
        "A CPU that is too hot lowers its clock: long runs are slower than short ones.",
        "Better cooling, fewer threads, or a lower limit of power that holds for the whole run.",
        heat,
    ),
    Check(
        "hyper-threading",
        "either, with a thread of torch for each core",
        "Two threads of one core share its arithmetic units: dense arithmetic gains little or loses.",
        "Leave it on, and let torch use one thread a core.",
        hyper_threading,
    ),
    Check(
        "NUMA",
        "one node, or a process bound to one",
        "Memory of another node is slower, and a GPU hangs on one of them.",
        "numactl --cpunodebind=0 --membind=0 python ..., with the node that is next to the GPU (nvidia-smi topo -m). "
        "Where a step needs the cores of all nodes: a process a node, or numactl --interleave=all.",
        numa,
    ),
    Check(
        "torch's threads",
        "as many as cores that the process may use",
        "Too many threads wait for each other, too few leave cores idle. A container's limit does not lower their "
        "number by itself.",
        "torch.set_num_threads(n), or OMP_NUM_THREADS before Python starts.",
        threads,
    ),
    Check(
        "CPU limit of the cgroup",
        "none, or one that never stops the process",
        "A container over its limit is stopped for the rest of a period, usually 0.1 s: steps stall at random.",
        "Raise the container's limit (docker --cpus, resources.limits.cpu), or use fewer threads and workers.",
        cpu_limit,
    ),
    Check(
        "memory",
        "at least 10 % free",
        "What is free caches files; without it data is read from the disk again, and the system may end the process.",
        "End other processes and kernels, use fewer workers or smaller batches, or raise the container's limit.",
        memory,
    ),
    Check(
        "swap",
        "none in use",
        "A step that touches memory which was swapped out waits for the disk.",
        "Need less memory. Where all fits into memory, sudo swapoff -a && sudo swapon -a brings it back; sudo sysctl "
        "vm.swappiness=10 makes the system swap later.",
        swap,
    ),
    Check(
        "huge pages",
        "always, or madvise with a program that asks",
        "With pages of 2 MiB a step on the CPU looks up fewer addresses, and meets fewer page faults.",
        f"THP_MEM_ALLOC_ENABLE=1 before Python starts lets torch ask; or, as root, write always to {_THP}.",
        huge_pages,
    ),
    Check(
        "shared memory (/dev/shm)",
        "at least 1 GiB free",
        "A DataLoader's workers hand over batches through it; when it is full they end with a bus error.",
        "docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir of medium Memory at /dev/shm; elsewhere "
        "remove what ended programs left in it, or sudo mount -o remount,size=8g /dev/shm.",
        shared_memory,
    ),
)
