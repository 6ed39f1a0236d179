"""Read sensors for the whole machine: CPU, memory, load, disks and network."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import TypeVar

import psutil

from perfnb.telemetry.sampler.source import DeviceFacts, KeptFiles, Rates, Source, Values

_Read = TypeVar("_Read")

#: The number of bytes read and written by each disk, or received and sent by each interface.
Traffic = dict[str, tuple[int, int]]

#: The kinds of CPU time that do not count as busy. Guest time is left out because user time already includes it.
_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")

#: Disks whose traffic is already counted because they are on top of other disks, or which are in memory.
_STACKED = re.compile(r"(loop|ram|zram|dm-|md|zd|bcache|drbd)\d")

_LOOPBACK = re.compile(r"lo\d*|Loopback.*")

_SECTOR_BYTES = 512  # in /proc/diskstats, whatever the disk's own are

#: The folder that lists the disks without their partitions on Linux.
_BLOCK = "/sys/block"


class _Files:
    """Reads the files that Linux provides, which is four times as fast as psutil."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._kept = KeptFiles()
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self.close = self._kept.close

    def busy_s(self) -> float:
        line = self._kept.text(f"{self._proc}/stat", 512)
        label, user, nice, system, _, _, irq, softirq, steal, *_ = line.partition(b"\n")[0].split()
        if label != b"cpu":
            raise ValueError(f"{self._proc}/stat does not start with the CPU's times")
        return (int(user) + int(nice) + int(system) + int(irq) + int(softirq) + int(steal)) * self._tick_s

    def used_bytes(self) -> int:
        rows = self._kept.text(f"{self._proc}/meminfo", 512)
        total, available = (int(rows.partition(name)[2].split(None, 1)[0]) for name in (b"MemTotal:", b"MemAvailable:"))
        return (total - available) * 1024

    def disks(self) -> Traffic:
        rows = [line.split(None, 10) for line in self._kept.text(f"{self._proc}/diskstats", 1 << 16).splitlines()]
        return {os.fsdecode(row[2]): (int(row[5]) * _SECTOR_BYTES, int(row[9]) * _SECTOR_BYTES) for row in rows}

    def interfaces(self) -> Traffic:
        traffic = {}
        for line in self._kept.text(f"{self._proc}/net/dev", 1 << 16).splitlines()[2:]:
            name, _, counters = line.rpartition(b":")
            words = counters.split(None, 9)
            traffic[os.fsdecode(name.strip())] = int(words[0]), int(words[8])
        return traffic


def _busy_s() -> float:
    times = psutil.cpu_times()
    # The total minus these kinds would sometimes decrease because of rounding errors.
    return float(sum(getattr(times, name) for name in times._fields if name not in _NOT_BUSY))


def _used_bytes() -> int:
    memory = psutil.virtual_memory()
    return memory.total - memory.available


def _disks() -> Traffic:
    counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    return {name: (disk.read_bytes, disk.write_bytes) for name, disk in counters.items()}


def _interfaces() -> Traffic:
    counters = psutil.net_io_counters(pernic=True, nowrap=False) or {}
    return {name: (each.bytes_recv, each.bytes_sent) for name, each in counters.items()}


def _cheapest(cheap: Callable[[], _Read], portable: Callable[[], _Read]) -> Callable[[], _Read]:
    try:
        cheap()
    except Exception:  # raised on other systems, and if a file has a different format
        return portable
    return cheap


def _some(traffic: Traffic, counts: Callable[[str], bool], otherwise: str) -> Traffic:
    counted = {name: both for name, both in traffic.items() if counts(name)}
    if not counted:
        raise LookupError(otherwise)
    return counted


@functools.cache
def _is_whole_disk(name: str) -> bool:
    """Check whether a name refers to a whole disk and not to a partition."""
    listed = not os.path.isdir(_BLOCK) or os.path.exists(f"{_BLOCK}/" + name.replace("/", "!"))
    return listed and not _STACKED.match(name)


class HostSource(Source):
    """The source for the whole machine (see `Source`).

    If a sensor cannot be read, its value is ``None``, a note is added once, and the other sensors continue. Linux
    counts CPU time in steps of 10 ms per core, so a single reading at 10 Hz is coarse. Only the mean of several
    readings is exact.
    """

    name = "host"

    def __init__(self, proc: str = "/proc") -> None:
        super().__init__()
        self._files = files = _Files(proc)
        self._busy_s, self._used_bytes = _cheapest(files.busy_s, _busy_s), _cheapest(files.used_bytes, _used_bytes)
        self._disks, self._interfaces = _cheapest(files.disks, _disks), _cheapest(files.interfaces, _interfaces)
        self._rates = Rates()
        self._traffic: dict[str, tuple[int, Traffic]] = {}
        self._failed: set[str] = set()

    def facts(self, device: str) -> DeviceFacts:
        memory = self._try("memory", psutil.virtual_memory)
        return {"cpus": os.cpu_count(), "memory_bytes": None if memory is None else memory.total}

    def read(self, device: str, now_ns: int) -> Values:
        busy_s = self._rates.per_second("cpu", self._try("CPU time", self._busy_s), now_ns)
        read, written = self._both("disk I/O", self.disks, now_ns)
        received, sent = self._both("network traffic", self.interfaces, now_ns)
        return {
            "cpu_percent": None if busy_s is None else busy_s * 100,
            "memory_bytes": self._try("memory", self._used_bytes),
            "load": self._try("load", lambda: os.getloadavg()[0]),
            "disk_read_bytes_per_s": read,
            "disk_write_bytes_per_s": written,
            "network_receive_bytes_per_s": received,
            "network_send_bytes_per_s": sent,
        }

    def close(self) -> None:
        self._files.close()

    def disks(self) -> Traffic:
        """Return the number of bytes that were read from and written to each whole disk."""
        return _some(self._disks(), _is_whole_disk, "the system lists no disk")

    def interfaces(self) -> Traffic:
        """Return the number of bytes that each interface, except loopback, has received and sent."""
        outside = self._interfaces()
        return _some(outside, lambda name: not _LOOPBACK.fullmatch(name), "the system lists no interface but loopback")

    def _try(self, what: str, read: Callable[[], _Read]) -> _Read | None:
        try:
            return read()
        except Exception as error:  # psutil fails in many ways on unusual machines
            if what not in self._failed:
                self._failed.add(what)
                self.notes.append(f"The host's {what} cannot be read: {str(error) or type(error).__name__}.")
            return None

    def _both(self, what: str, read: Callable[[], Traffic], now_ns: int) -> tuple[float | None, float | None]:
        """Return the number of bytes per second in each direction, summed over all disks or interfaces.

        Those that did not exist at the last reading or whose counters were reset are left out.
        """
        now = self._try(what, read)
        before_ns, before = self._traffic.pop(what, (now_ns, {}))
        if now is None:
            return None, None
        self._traffic[what] = now_ns, now
        if now_ns <= before_ns:
            return None, None
        grown = [(now[part], before[part]) for part in now if part in before]
        ways = ([after[way] - then[way] for after, then in grown if after[way] >= then[way]] for way in (0, 1))
        first, second = (sum(way) / (now_ns - before_ns) * 1e9 if way else None for way in ways)
        return first, second
