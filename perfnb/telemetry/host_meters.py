"""The machine's counters: from Linux's files where they can be read, which is cheap, else from psutil."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from perfnb.telemetry.files import KeptFiles

#: Bytes read and written, or received and sent, by disk or interface.
Traffic = dict[str, tuple[int, int]]

#: Time that is not work. A guest's time is counted as the user's too.
_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")

#: Disks that lie on other disks or in memory: what they carry is counted there, or never reaches a disk.
_STACKED = re.compile(r"(loop|ram|zram|dm-|md|zd|bcache|drbd)\d")

_LOOPBACK = re.compile(r"lo\d*|Loopback.*")

_SECTOR_BYTES = 512  # in /proc/diskstats, whatever the disk's own are

#: Lists the disks, without their parts, on Linux.
_BLOCK = "/sys/block"


@dataclass
class Meters:
    """How to read each counter; each may raise anything."""

    busy_s: Callable[[], float]  # summed over the cores
    used_bytes: Callable[[], int]
    disks: Callable[[], Traffic]
    interfaces: Callable[[], Traffic]
    close: Callable[[], None]


def meters(proc: str = "/proc") -> Meters:
    """The cheapest way that works, for each counter.

    Parameters
    ----------
    proc : str
        What to read in place of ``/proc``.
    """
    files = _Files(proc)
    chosen = Meters(_busy_s, _used_bytes, _disks, _interfaces, files.close)
    for name in ("busy_s", "used_bytes", "disks", "interfaces"):
        with suppress(Exception):  # another system, or a file that looks otherwise
            cheap = getattr(files, name)
            cheap()
            setattr(chosen, name, cheap)
    return chosen


class _Files:
    """The files of Linux: ten times a second psutil takes most of a hundredth of a core, these a quarter of that."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._kept = KeptFiles()
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self.close = self._kept.close

    def busy_s(self) -> float:
        line = self._kept.text(f"{self._proc}/stat", 512)
        label, user, nice, system, _, _, irq, softirq, steal, *_ = line.partition(b"\n")[0].split()
        if label != b"cpu":
            raise ValueError(f"{self._proc}/stat begins otherwise")
        return (int(user) + int(nice) + int(system) + int(irq) + int(softirq) + int(steal)) * self._tick_s

    def used_bytes(self) -> int:
        rows = self._kept.text(f"{self._proc}/meminfo", 512)
        total, available = (int(rows.partition(name)[2].split(None, 1)[0]) for name in (b"MemTotal:", b"MemAvailable:"))
        return (total - available) * 1024

    def disks(self) -> Traffic:
        told = {}
        for line in self._kept.text(f"{self._proc}/diskstats", 1 << 16).splitlines():
            words = line.split(None, 10)
            if _is_whole_disk(words[2]):
                told[os.fsdecode(words[2])] = int(words[5]) * _SECTOR_BYTES, int(words[9]) * _SECTOR_BYTES
        return _some(told, "the system lists no disk")

    def interfaces(self) -> Traffic:
        told = {}
        for line in self._kept.text(f"{self._proc}/net/dev", 1 << 16).splitlines()[2:]:
            name, _, counters = line.rpartition(b":")
            words = counters.split(None, 9)
            told[os.fsdecode(name.strip())] = int(words[0]), int(words[8])
        return _without_loopback(told)


def _busy_s() -> float:
    times = psutil.cpu_times()
    # A difference of the sums would seem to fall now and then, by what is rounded.
    return float(sum(getattr(times, name) for name in times._fields if name not in _NOT_BUSY))


def _used_bytes() -> int:
    memory = psutil.virtual_memory()
    return memory.total - memory.available


def _disks() -> Traffic:
    counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    told = {name: (disk.read_bytes, disk.write_bytes) for name, disk in counters.items()}
    return _some(
        {name: both for name, both in told.items() if _is_whole_disk(name.encode())}, "the system lists no disk"
    )


def _interfaces() -> Traffic:
    counters = psutil.net_io_counters(pernic=True, nowrap=False) or {}
    return _without_loopback({name: (each.bytes_recv, each.bytes_sent) for name, each in counters.items()})


def _without_loopback(told: Traffic) -> Traffic:
    told = {name: both for name, both in told.items() if not _LOOPBACK.fullmatch(name)}
    return _some(told, "the system lists no interface but loopback")


def _some(told: Traffic, otherwise: str) -> Traffic:
    if not told:
        raise LookupError(otherwise)
    return told


_whole_disks: dict[bytes, bool] = {}


def _is_whole_disk(name: bytes) -> bool:
    """Whether this is a disk itself, not a part of one that is listed too."""
    if name not in _whole_disks:
        text = os.fsdecode(name)
        listed = not os.path.isdir(_BLOCK) or os.path.exists(f"{_BLOCK}/" + text.replace("/", "!"))
        _whole_disks[name] = listed and not _STACKED.match(text)
    return _whole_disks[name]
