"""Read a process's cgroup: its limits, its usage, and how long the CPU limit throttled it.

There are two versions of cgroups with different files, and "hybrid" machines have both. Any file may be missing or
contain unexpected data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import NamedTuple

from perfnb.telemetry.sampler.source import Absent, DeviceFacts, KeptFiles, Lost, Rates, Source, Values, file_bytes

_PROC = "/proc/self"
_ROOT = "/sys/fs/cgroup"

#: In version 1, the absence of a limit is represented by the largest multiple of the page size below 2^63.
_NO_LIMIT = 1 << 62


#: A function that reads a file in a folder. It returns an empty text if the file cannot be read.
_Reader = Callable[[str, str], bytes]


class _Mount(NamedTuple):
    """The folder where a hierarchy of groups is mounted."""

    unified: bool
    controllers: frozenset[str]
    top: str  # the group mounted at `folder`
    folder: str


class _Hierarchy(NamedTuple):
    """The process's position in a hierarchy."""

    unified: bool
    folders: tuple[str, ...]  # from the process's own group to the outermost visible group; empty if unknown


_UNKNOWN = _Hierarchy(True, ())


def cpu_limit(proc: str = _PROC, root: str = _ROOT) -> float | None:
    """Return the number of cores that a process may use according to its cgroups.

    Return ``None`` if there is no limit or if it is unknown. `proc` is the folder that describes the process, and
    `root` is read instead of ``/sys/fs/cgroup``.
    """
    limits = _cpu_limits(_places(proc, root)["cpu"])
    return min((limit for limit in limits if limit is not None), default=None)


def memory_limit_bytes(proc: str = _PROC, root: str = _ROOT) -> int | None:
    """Return the number of bytes that a process may use according to its cgroups.

    The parameters, and the meaning of ``None``, are the same as for `cpu_limit`.
    """
    place = _places(proc, root)["memory"]
    name = "memory.max" if place.unified else "memory.limit_in_bytes"
    limits = [_whole(_text(folder, name)) for folder in place.folders]
    if not place.unified:
        # This value includes the limits of groups above the outermost visible group.
        limits.append(_row(_text(place.folders[0], "memory.stat"), "hierarchical_memory_limit"))
    return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT), default=None)


def throttled(proc: str = _PROC, root: str = _ROOT) -> tuple[int, float] | None:
    """Return how many times the CPU limit throttled a process's cgroup, and for how many milliseconds.

    Both values are counted from the creation of the group, and the time is summed over all CPUs. The result is ``None``
    if they cannot be read. The parameters are the same as for `cpu_limit`.
    """
    return _first_throttled(_throttling_folders(_places(proc, root)["cpu"]), _text)


class CgroupSource(Source):
    """The usage of the process's cgroup (see `Source`). The parameters are the same as for `cpu_limit`.

    Raises
    ------
    Absent
        If neither the limit nor the usage of any cgroup can be read.
    """

    name = "cgroup"

    def __init__(self, proc: str = _PROC, root: str = _ROOT) -> None:
        super().__init__()
        places = _places(proc, root)
        self._version = _version(_mounts(proc, root))
        self._usage, self._memory = places["cpuacct"], places["memory"]
        self._throttling = _throttling_folders(places["cpu"])
        self._limits = cpu_limit(proc, root), memory_limit_bytes(proc, root)
        self._rates = Rates()
        self._kept = KeptFiles()
        self._readable = any(counter is not None for counter in self._counters())
        if not self._readable and self._limits == (None, None):
            self.close()
            raise Absent("no cgroup limits this process, and no usage can be read")

    def facts(self, device: str) -> DeviceFacts:
        return {"version": self._version, "cpu_limit": self._limits[0], "memory_limit_bytes": self._limits[1]}

    def read(self, device: str, now_ns: int) -> Values:
        usage_ns, throttled_ms, memory = self._counters()
        if self._readable and usage_ns is None and throttled_ms is None and memory is None:
            raise Lost("the cgroup can no longer be read")
        used = self._rates.per_second("usage", usage_ns, now_ns)
        held = self._rates.per_second("throttled", throttled_ms, now_ns)
        return {
            "cpu_percent": None if used is None else used / 1e7,
            "memory_bytes": memory,
            "throttled_percent": None if held is None else held / 10,
        }

    def close(self) -> None:
        self._kept.close()

    def _counters(self) -> tuple[int | None, float | None, int | None]:
        """Return the CPU time in nanoseconds, the throttled time in milliseconds, and the memory in bytes."""
        held = _first_throttled(self._throttling, self._text)
        return _used_ns(self._usage, self._text), held and held[1], _used_bytes(self._memory, self._text)

    def _text(self, folder: str, name: str) -> bytes:
        try:
            return self._kept.text(f"{folder}/{name}")
        except (OSError, ValueError):
            return b""


def _cpu_limits(place: _Hierarchy) -> list[float | None]:
    """Return the CPU limit of each group."""
    limits: list[float | None] = []
    for folder in place.folders:
        if place.unified:
            words = _text(folder, "cpu.max").split()
            quota, period = (_whole(word) for word in words) if len(words) == 2 else (None, None)
        else:
            quota, period = (_whole(_text(folder, f"cpu.cfs_{word}_us")) for word in ("quota", "period"))
        limits.append(quota / period if quota and period else None)
    return limits


def _throttling_folders(place: _Hierarchy) -> tuple[str, ...]:
    """Return the folders to search for throttling, starting with the tightest limit.

    Each group only counts throttling that is due to its own limit.
    """
    limits = [(limit, folder) for limit, folder in zip(_cpu_limits(place), place.folders, strict=True) if limit]
    return (*(folder for _, folder in sorted(limits)[:1]), *place.folders)


def _first_throttled(folders: tuple[str, ...], text: _Reader) -> tuple[int, float] | None:
    for folder in folders:
        rows = text(folder, "cpu.stat")
        periods, held_us, held_ns = (_row(rows, name) for name in ("nr_throttled", "throttled_usec", "throttled_time"))
        if periods is not None and (held_us is not None or held_ns is not None):
            return periods, held_us / 1e3 if held_us is not None else (held_ns or 0) / 1e6
    return None


def _used_ns(place: _Hierarchy, text: _Reader) -> int | None:
    if not place.folders:
        return None
    if not place.unified:
        return _whole(text(place.folders[0], "cpuacct.usage"))
    used_us = _row(text(place.folders[0], "cpu.stat"), "usage_usec")
    return None if used_us is None else used_us * 1000


def _used_bytes(place: _Hierarchy, text: _Reader) -> int | None:
    """Return the number of used bytes, excluding the file cache that the kernel would release first."""
    version_1 = ("memory.usage_in_bytes", "total_inactive_file")
    usage, cache = ("memory.current", "inactive_file") if place.unified else version_1
    for folder in place.folders if place.unified else place.folders[:1]:  # in version 2, also try the groups above
        if (used := _whole(text(folder, usage))) is not None:
            cached = _row(text(folder, "memory.stat"), cache)
            return None if cached is None else max(used - cached, 0)
    return None


def _places(proc: str, root: str) -> dict[str, _Hierarchy]:
    """Return a process's position in the hierarchies ``cpu``, ``cpuacct`` and ``memory``.

    ``cpuacct`` is the controller for CPU accounting in version 1.
    """
    mounts, groups = _mounts(proc, root), _groups(proc)
    places = dict.fromkeys(("cpu", "cpuacct", "memory"), _UNKNOWN)
    for controller in places:
        old = [mount for mount in mounts if controller in mount.controllers]
        # A controller belongs to one version at a time. If its line is missing, the location of its files decides.
        for candidates, group in ((old, groups.get(controller)), ([m for m in mounts if m.unified], groups.get(""))):
            if candidates and (group is not None or not groups):
                chains = [_chain(mount, group or "/") for mount in candidates]
                places[controller] = _Hierarchy(candidates[0].unified, max(chains, key=len))
                break
    return places


def _version(mounts: list[_Mount]) -> str:
    old = any(mount.controllers & {"cpu", "cpuacct", "memory"} for mount in mounts)
    return "hybrid" if old and any(mount.unified for mount in mounts) else "v1" if old else "v2"


def _chain(mount: _Mount, group: str) -> tuple[str, ...]:
    """Return the folders of a group and of all visible groups above it."""
    top = mount.top.rstrip("/")
    inside = group[len(top) :] if f"{group}/".startswith(f"{top}/") else ""
    parts = [part for part in inside.split("/") if part]
    # In a container, the path may be the path on the host. In this case, the mount shows the container's own group.
    if ".." in parts or not os.path.isdir(os.path.join(mount.folder, *parts)):
        parts = []
    return tuple(os.path.join(mount.folder, *parts[:count]) for count in range(len(parts), -1, -1))


def _groups(proc: str) -> dict[str, str]:
    """Return a process's group for each controller. For version 2, the key is ``""``."""
    groups: dict[str, str] = {}
    for line in os.fsdecode(_text(proc, "cgroup")).split("\n"):
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if number.isdigit() and colon and path.startswith("/"):
            groups |= dict.fromkeys(controllers.split(","), path)
    return groups


def _mounts(proc: str, root: str) -> list[_Mount]:
    mounts = []
    for line in os.fsdecode(_text(proc, "mountinfo")).split("\n"):
        before, _, after = line.partition(" - ")
        place, kind = before.split(" "), after.split(" ")
        if len(place) >= 5 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            top, folder = (re.sub(r"\\([0-3][0-7]{2})", lambda code: chr(int(code[1], 8)), place[n]) for n in (3, 4))
            if f"{folder}/".startswith(f"{_ROOT}/"):
                folder = root + folder[len(_ROOT) :]
            options = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset[str]()
            mounts.append(_Mount(kind[0] == "cgroup2", options, top, folder))
    return mounts


def _text(folder: str, name: str) -> bytes:
    """Return a file's content, or an empty text if it cannot be read."""
    try:
        return file_bytes(os.path.join(folder, name), 1 << 20)
    except (OSError, ValueError):  # the path may come from a file with unexpected contents
        return b""


def _row(rows: bytes, name: str) -> int | None:
    """Return the number in the row that starts with a name."""
    return _whole((b"\n" + rows).partition(b"\n%s " % name.encode())[2].partition(b"\n")[0])


def _whole(text: bytes) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() and len(text) < 20 else None
