"""What can be seen of single processes: psutil on any system, and Linux's own files, which cost a tenth of that."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import psutil

from perfnb.telemetry.sampler.files import KeptFiles
from perfnb.telemetry.sampler.source import Absent


class Seen(NamedTuple):
    """One process at one moment."""

    started_s: float  # by the table's `clock_s`; tells it from a later process with the same id
    parent: int
    ended: bool  # but its parent has not waited for it yet
    cpu_ns: float  # including the children that it has waited for
    memory_bytes: int
    disk_bytes: tuple[int, int] | None  # read, written; `None` if the user may not know


def table_for(pid: int, proc: str = "/proc") -> Portable:
    """The cheapest table that can see a process.

    Raises
    ------
    Absent
        If none can.
    """
    files = ProcFiles(pid, proc)
    if files.see(pid):
        return files
    files.close()
    portable = Portable()
    if portable.see(pid):
        return portable
    raise Absent(f"process {pid} cannot be seen")


class Portable:
    """Processes through psutil.

    Attributes
    ----------
    inherits : bool
        Whether a parent's figures take over what a child used when the child ends.
    """

    def __init__(self) -> None:
        self.inherits = sys.platform.startswith("linux")
        self._known: dict[int, psutil.Process] = {}

    def see(self, pid: int) -> Seen | None:
        """A process; ``None`` if there is none, or none that the user may see."""
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
        """The processes below one, parents first, except `without` and what is below that."""
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
        """The command line of a process; empty if it cannot be seen."""
        try:
            return "\0".join(psutil.Process(pid).cmdline()).encode(errors="replace")
        except (psutil.Error, OSError):
            return b""

    def last_pid(self) -> bytes | None:
        """Something that changes whenever a process starts; ``None`` if the system has no such thing."""
        return None

    def clock_s(self) -> float:
        """The current time."""
        if self.inherits:  # Linux, where psutil counts from a boot time that it knows to the second
            return psutil.boot_time() + time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time()

    def forget(self, pid: int) -> None:
        """Release what is held for a process."""
        self._known.pop(pid, None)

    def close(self) -> None:
        """Release everything."""
        self._known.clear()


class ProcFiles(Portable):
    """Processes through Linux's files, with CPU time to the nanosecond where the kernel gives it.

    psutil would double what the sampler costs at 10 Hz, and counts CPU time in ticks of 10 ms.
    """

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        super().__init__()
        self.inherits = True
        self._proc = proc
        self._kept = KeptFiles()
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._exact = proc == "/proc" and self._clock_agrees(pid)
        self._lists_children = os.path.exists(f"{proc}/{pid}/task/{pid}/children")

    def see(self, pid: int) -> Seen | None:
        try:
            words = self._kept.text(f"{self._proc}/{pid}/stat").rpartition(b") ")[2].split(None, 20)
            own, reaped = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
            started = int(words[19]) * self._tick_s
            # The same figure in `stat` may be off by megabytes on machines with many cores.
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
        return Seen(started, parent, ended, cpu_ns + reaped * self._tick_s * 1e9, memory, self._disk_bytes(pid))

    def below(self, pid: int, without: int) -> list[int]:
        if not self._lists_children:
            return super().below(pid, without)
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
            rows = dict(zip(words[::2], words[1::2], strict=False))
            return int(rows[b"read_bytes:"]), int(rows[b"write_bytes:"])
        except (OSError, ValueError, KeyError):
            return None

    def _clock_agrees(self, pid: int) -> bool:
        """Whether the kernel gives another process's CPU time to the nanosecond rather than in ticks."""
        try:
            exact = time.clock_gettime_ns(_cpu_clock(pid)) / 1e9
            times = psutil.Process(pid).cpu_times()
        except (OSError, AttributeError, OverflowError, psutil.Error):
            return False
        return abs(exact - times.user - times.system) < 0.1 + exact / 100


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _cpu_clock(pid: int) -> int:
    """The id of a process's CPU clock, computed as Linux's ``clock_getcpuclockid`` does."""
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
