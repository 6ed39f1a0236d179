"""What can be seen of single processes: from Linux's files where they can be read, which is cheap, else from psutil."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol

import psutil

from perfnb.telemetry.sampler.files import KeptFiles
from perfnb.telemetry.sampler.source import Absent


class Seen(NamedTuple):
    """One process at one moment."""

    begun_s: float  # by the table's `clock_s`; tells it from a later process of the same number
    parent: int
    ended: bool  # but its parent does not know yet
    cpu_ns: float  # with that of its children whose end it knows
    memory_bytes: int
    disk_bytes: tuple[int, int] | None  # read, written; `None` where the user may not know


class Table(Protocol):
    """A way to look at processes."""

    #: Whether a parent's figures take over what a child had used when that ends.
    inherits: bool

    def see(self, pid: int) -> Seen | None:
        """A process; ``None`` where there is none, or none that the user may see."""

    def below(self, pid: int, without: int) -> list[int]:
        """The processes below one, parents before their children, but for one and what is below that."""

    def command(self, pid: int) -> bytes:
        """How a process was started; empty where that cannot be seen."""

    def last_pid(self) -> bytes | None:
        """Something that changes whenever a process starts; ``None`` where nothing tells."""

    def clock_s(self) -> float:
        """Now."""

    def forget(self, pid: int) -> None:
        """Let go of what is held for a process."""

    def close(self) -> None:
        """Let go of everything."""


def table_for(pid: int, proc: str = "/proc") -> Table:
    """The cheapest table that can see a process.

    Raises
    ------
    Absent
        If none can.
    """
    files = ProcFiles(pid, proc)
    if files.see(pid):
        return files
    portable = Portable()
    files.close()
    if portable.see(pid):
        return portable
    raise Absent(f"process {pid} cannot be seen")


class ProcFiles:
    """Linux's files; a fifth of what psutil costs."""

    inherits = True

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._proc = proc
        self._kept = KeptFiles()
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._exact = proc == "/proc" and self._clock_agrees(pid)
        self._lists_children = os.path.exists(f"{proc}/{pid}/task/{pid}/children")

    def see(self, pid: int) -> Seen | None:
        try:
            words = self._kept.text(f"{self._proc}/{pid}/stat").rpartition(b") ")[2].split(None, 20)
            own, reaped = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
            begun = int(words[19]) * self._tick_s
            # The same figure in `stat` may be off by megabytes on machines of many cores.
            memory = int(self._kept.text(f"{self._proc}/{pid}/statm").split(None, 2)[1]) * _PAGE
            parent, ended = int(words[1]), words[0] in (b"Z", b"X")
        except (OSError, ValueError, IndexError):
            return None
        cpu_ns = own * self._tick_s * 1e9
        if self._exact:
            try:
                cpu_ns = time.clock_gettime_ns(_cpu_clock(pid))
            except OSError:  # it has ended since
                return None
        return Seen(begun, parent, ended, cpu_ns + reaped * self._tick_s * 1e9, memory, self._disk_bytes(pid))

    def below(self, pid: int, without: int) -> list[int]:
        if not self._lists_children:
            return Portable().below(pid, without)
        # A child belongs to the thread that started it.
        found = {pid: None}
        ahead = [pid]
        for above in ahead:
            for thread in _listed(f"{self._proc}/{above}/task"):
                try:
                    children = [int(word) for word in _text(f"{self._proc}/{above}/task/{thread}/children").split()]
                except (OSError, ValueError):
                    continue
                fresh = [child for child in children if child not in found and child != without]
                found |= dict.fromkeys(fresh)
                ahead += fresh
        return ahead[1:]

    def command(self, pid: int) -> bytes:
        try:
            return _text(f"{self._proc}/{pid}/cmdline")
        except OSError:
            return b""

    def last_pid(self) -> bytes | None:
        try:
            return self._kept.text(f"{self._proc}/loadavg").split()[-1]
        except (OSError, IndexError):
            return None

    def clock_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def forget(self, pid: int) -> None:
        for name in ("stat", "statm", "io"):
            self._kept.forget(f"{self._proc}/{pid}/{name}")

    def close(self) -> None:
        self._kept.close()

    def _disk_bytes(self, pid: int) -> tuple[int, int] | None:
        try:
            words = self._kept.text(f"{self._proc}/{pid}/io").split()
            told = dict(zip(words[::2], words[1::2], strict=False))
            return int(told[b"read_bytes:"]), int(told[b"write_bytes:"])
        except (OSError, ValueError, KeyError):
            return None

    def _clock_agrees(self, pid: int) -> bool:
        """Whether the kernel gives another process's CPU time to the nanosecond; it is ticks otherwise."""
        try:
            exact = time.clock_gettime_ns(_cpu_clock(pid)) / 1e9
            times = psutil.Process(pid).cpu_times()
        except (OSError, AttributeError, OverflowError, psutil.Error):
            return False
        return abs(exact - times.user - times.system) < 0.1 + exact / 100


class Portable:
    """psutil, on any system."""

    def __init__(self) -> None:
        self.inherits = sys.platform.startswith("linux")
        self._known: dict[int, psutil.Process] = {}

    def see(self, pid: int) -> Seen | None:
        process = self._known.get(pid)
        try:
            if process is None or not process.is_running():
                process = self._known[pid] = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                cpu_s = times.user + times.system
                if self.inherits:
                    cpu_s += times.children_user + times.children_system
                ended = process.status() == psutil.STATUS_ZOMBIE
                memory = process.memory_info().rss
                return Seen(process.create_time(), process.ppid(), ended, cpu_s * 1e9, memory, _disk_bytes(process))
        except (psutil.Error, OSError):
            self._known.pop(pid, None)
            return None

    def below(self, pid: int, without: int) -> list[int]:
        found, left_out = [], {without}
        with suppress(psutil.Error, OSError):
            for process in psutil.Process(pid).children(recursive=True):  # parents come before their children
                with suppress(psutil.Error, OSError):
                    if process.pid in left_out or process.ppid() in left_out:
                        left_out.add(process.pid)
                    else:
                        found.append(process.pid)
        return found

    def command(self, pid: int) -> bytes:
        try:
            return "\0".join(psutil.Process(pid).cmdline()).encode(errors="replace")
        except (psutil.Error, OSError):
            return b""

    def last_pid(self) -> bytes | None:
        return None

    def clock_s(self) -> float:
        if self.inherits:  # Linux, where psutil counts from a boot that it knows to the second
            return psutil.boot_time() + time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time()

    def forget(self, pid: int) -> None:
        self._known.pop(pid, None)

    def close(self) -> None:
        self._known.clear()


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _cpu_clock(pid: int) -> int:
    """The number of the clock of a process's CPU time, as Linux's ``clock_getcpuclockid`` makes it."""
    return (~pid << 3) | 2


def _text(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = part = os.read(descriptor, 1 << 16)
        while len(part) > 2048:  # see `KeptFiles`
            part = os.read(descriptor, 1 << 16)
            text += part
        return text
    finally:
        os.close(descriptor)


def _listed(folder: str) -> Iterable[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return ()


def _disk_bytes(process: psutil.Process) -> tuple[int, int] | None:
    try:
        counters = process.io_counters()
    except (AttributeError, NotImplementedError, psutil.Error, OSError):  # macOS has no such method
        return None
    return counters.read_bytes, counters.write_bytes
