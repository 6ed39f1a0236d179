"""Read the resource usage of the watched process and its descendants, such as a data loader's workers."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import NamedTuple

import psutil

from perfnb.telemetry.sampler import MODULE
from perfnb.telemetry.sampler.source import Absent, DeviceFacts, KeptFiles, Lost, Rates, Source, Values, file_bytes

#: How often to look for new processes if nothing shows that one has started.
_SEARCH_S = 0.5
#: The time between two searches, as a multiple of the duration of the last search. This limits the cost of searching to
#: 0.2 % of a core.
_SEARCH_SHARE = 500

#: A string that is part of every sampler's command line.
SAMPLER = MODULE.encode()

#: Sums that never decrease: CPU nanoseconds, bytes read and bytes written.
_Sums = list[float]

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CORES = os.cpu_count() or 1


class ProcessSource(Source):
    """The combined usage of a process and all of its descendants (see `Source`).

    The sums include the usage of workers that have ended. On Linux, the CPU time and disk bytes of a process are added
    to those of its parent when the process ends. On other systems, the last reading is kept. Memory is resident memory,
    so a page that several processes share is counted for each of them.

    Samplers of other watches are not counted, even if their usage has been added to that of their parent.

    The process `without`, which is the sampler itself, is left out together with its descendants. `proc` is read
    instead of ``/proc``.

    Raises
    ------
    Absent
        If the process does not exist, or if the user is not allowed to see it.
    """

    name = "process"

    def __init__(self, pid: int, without: int, proc: str = "/proc") -> None:
        super().__init__()
        self._pid, self._without = pid, without
        self._table: Portable = ProcFiles(pid, proc)
        first = self._table.see(pid)
        if first is None:
            self._table.close()
            self._table = Portable()
            first = self._table.see(pid)
        if first is None:
            raise Absent(f"process {pid} does not exist or is not visible to this user")
        self._last: dict[int, Seen] = {pid: first}
        self._others: dict[int, Seen] = {}  # samplers of other watches
        self._kept: _Sums = [0.0, 0.0, 0.0]
        self._cpu_ns, self._reported_ns = 0.0, 0.0
        self._before_ns: int | None = None
        self._rates = Rates()
        self._last_pid: bytes | None = None
        self._searched_ns, self._search_took_ns = 0, 0
        self._noted = False

    def facts(self, device: str) -> DeviceFacts:
        try:
            return {"pid": self._pid, "name": psutil.Process(self._pid).name()}
        except (psutil.Error, OSError):
            return {"pid": self._pid, "name": None}

    def read(self, device: str, now_ns: int) -> Values:
        members = self._members(now_ns)
        self._follow_others()
        seen = self._see(members)
        cpu_ns, read, written = self._sums(seen, now_ns)
        self._last, self._before_ns = seen, now_ns
        disk_known = any(process.disk_bytes for process in seen.values())
        if not self._noted and not all(process.disk_bytes for process in seen.values()):
            self._noted = True
            some = "some of the watched processes" if disk_known else "the watched process"
            self.notes.append(f"The disk I/O of {some} cannot be read.")
        used = self._rates.per_second("cpu", cpu_ns, now_ns)
        return {
            "cpu_percent": None if used is None else used / 1e7,
            "memory_bytes": sum(process.memory_bytes for process in seen.values()),
            "processes": sum(not process.ended for process in seen.values()),
            "disk_read_bytes_per_s": self._rates.per_second("read", read if disk_known else None, now_ns),
            "disk_write_bytes_per_s": self._rates.per_second("written", written if disk_known else None, now_ns),
        }

    def close(self) -> None:
        self._table.close()

    def _members(self, now_ns: int) -> list[int]:
        """Return the processes to read.

        Finding new processes takes much longer than reading known processes, so it is only done when necessary.
        """
        known = [pid for pid in self._last if pid != self._pid]
        since_ns, last_pid = now_ns - self._searched_ns, self._table.last_pid()
        started = last_pid is not None and last_pid != self._last_pid
        if (started or since_ns >= _SEARCH_S * 1e9) and since_ns >= self._search_took_ns * _SEARCH_SHARE:
            start_ns = time.thread_time_ns()
            found = [pid for pid in self._table.below(self._pid, self._without) if not self._is_other(pid)]
            self._search_took_ns = time.thread_time_ns() - start_ns
            self._searched_ns, self._last_pid = now_ns, last_pid
            # The kernel may omit children from its list while other children end.
            known = [pid for pid in dict.fromkeys((*found, *known)) if pid not in self._others]
        return [self._pid, *known]

    def _is_other(self, pid: int) -> bool:
        """Check whether a process is the sampler of another watch.

        A sampler that has been forked but has not started yet is recognised by the next search.
        """
        if pid not in self._others and SAMPLER in self._table.command(pid):
            sampler = self._table.see(pid)
            if sampler is not None:
                self._others[pid] = sampler
        return pid in self._others

    def _follow_others(self) -> None:
        for pid, last in list(self._others.items()):
            now = self._table.see(pid)
            if now is not None and now.started_s == last.started_s:
                self._others[pid] = now
                continue
            del self._others[pid]
            self._table.forget(pid)
            if self._table.inherits:
                self._keep(last, -1.0)

    def _see(self, pids: list[int]) -> dict[int, Seen]:
        """Read the processes, starting with the parents. If a process ends in the meantime, read them again.

        Otherwise, its parent may have been read before the figures of the ended process were added to those of the
        parent.
        """
        for _ in range(3):
            seen: dict[int, Seen] = {}
            for pid in pids:
                process, before = self._table.see(pid), self._last.get(pid)
                if process and before and process.ended and not process.disk_bytes:
                    process = process._replace(disk_bytes=before.disk_bytes)
                same = process is not None and (before is None or before.started_s == process.started_s)
                # Otherwise, the process does not belong to the tree, because its id may have been reused.
                if process and same and (pid == self._pid or process.parent in seen):
                    seen[pid] = process
                else:
                    self._table.forget(pid)
            if self._pid not in seen or seen[self._pid].ended:
                raise Lost(f"process {self._pid} has ended")
            gone = self._last.keys() - seen.keys()
            for pid in gone:
                left = self._last.pop(pid)
                if not self._table.inherits:
                    self._keep(left, 1.0)
            pids = list(seen)
            if not gone:
                break
        return seen

    def _keep(self, process: Seen, share: float) -> None:
        """Add a share of a process's usage to the sums. A negative share is subtracted."""
        self._kept = [kept + share * had for kept, had in zip(self._kept, _counters(process), strict=True)]

    def _sums(self, seen: dict[int, Seen], now_ns: int) -> _Sums:
        had = zip(*map(_counters, seen.values()), strict=True)
        cpu_ns, read, written = (kept + sum(each) for kept, each in zip(self._kept, had, strict=True))
        # When figures are added to those of the parent, user time and system time are each rounded down to whole ticks.
        if 0 < self._cpu_ns - cpu_ns <= 2e9 * _TICK_S * len(seen):
            cpu_ns = self._cpu_ns
        self._cpu_ns = cpu_ns
        # If a process is found late, its CPU time may exceed what the cores can have done since the last reading. The
        # excess is reported later.
        if self._before_ns is not None:
            cpu_ns = min(cpu_ns, self._reported_ns + (now_ns - self._before_ns) * _CORES)
        self._reported_ns = cpu_ns
        return [cpu_ns, read, written]


def _counters(process: Seen) -> tuple[float, float, float]:
    read, written = process.disk_bytes or (0, 0)
    return process.cpu_ns, read, written


class Seen(NamedTuple):
    """A process's state at one moment."""

    started_s: float  # distinguishes it from a later process with the same id
    parent: int
    ended: bool  # whether it has ended, but its parent has not waited for it yet
    cpu_ns: float  # including children that it has waited for
    memory_bytes: int
    disk_bytes: tuple[int, int] | None  # read and written; `None` if the user may not see them


class Portable:
    """Reads processes through psutil, on any system."""

    inherits = sys.platform.startswith("linux")

    def see(self, pid: int) -> Seen | None:
        """Return a process, or ``None`` if it does not exist or the user is not allowed to see it."""
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                cpu_s = times.user + times.system
                if self.inherits:
                    cpu_s += times.children_user + times.children_system
                return Seen(
                    process.create_time(),
                    process.ppid(),
                    process.status() == psutil.STATUS_ZOMBIE,
                    cpu_s * 1e9,
                    process.memory_info().rss,
                    _disk_bytes(process),
                )
        except (psutil.Error, OSError):
            return None

    def below(self, pid: int, without: int) -> list[int]:
        """Return a process's descendants, parents first, except `without` and its descendants."""
        found, left_out = [], {without}
        with suppress(psutil.Error, OSError):
            for process in psutil.Process(pid).children(recursive=True):  # parents precede their children
                with suppress(psutil.Error, OSError):
                    if process.pid in left_out or process.ppid() in left_out:
                        left_out.add(process.pid)
                    else:
                        found.append(process.pid)
        return found

    def command(self, pid: int) -> bytes:
        """Return a process's command line, or an empty text if it cannot be seen."""
        try:
            return "\0".join(psutil.Process(pid).cmdline()).encode(errors="replace")
        except (psutil.Error, OSError):
            return b""

    def last_pid(self) -> bytes | None:
        """Return a value that changes whenever a process starts, or ``None`` if the system does not have one."""
        return None

    def forget(self, pid: int) -> None:
        """Release the resources used for a process."""

    def close(self) -> None:
        """Release all resources."""


class ProcFiles(Portable):
    """Reads processes through the files that Linux provides, with CPU time in nanoseconds if possible.

    With psutil, the sampler would use twice as much CPU time at 10 Hz, and CPU time would be counted in ticks of 10 ms.
    """

    inherits = True

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._proc = proc
        self._kept = KeptFiles()
        self._exact = proc == "/proc" and self._clock_agrees(pid)
        self._lists_children = os.path.exists(f"{proc}/{pid}/task/{pid}/children")

    def see(self, pid: int) -> Seen | None:
        try:
            words = self._kept.text(f"{self._proc}/{pid}/stat").rpartition(b") ")[2].split(None, 20)
            own, reaped = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
            started = int(words[19]) * _TICK_S
            # The value in `stat` can be off by megabytes on machines with many cores.
            memory = int(self._kept.text(f"{self._proc}/{pid}/statm").split(None, 2)[1]) * _PAGE
            parent, ended = int(words[1]), words[0] in (b"Z", b"X")
        except (OSError, ValueError, IndexError):
            return None
        cpu_ns = own * _TICK_S * 1e9
        if self._exact:
            try:
                cpu_ns = _exact_cpu_ns(pid)
            except OSError:  # the process has ended in the meantime
                return None
        return Seen(started, parent, ended, cpu_ns + reaped * _TICK_S * 1e9, memory, self._disk_bytes(pid))

    def below(self, pid: int, without: int) -> list[int]:
        if not self._lists_children:
            return super().below(pid, without)
        # Each child is listed under the thread that started it.
        found = [pid]
        for above in found:
            try:
                threads = os.listdir(f"{self._proc}/{above}/task")
            except OSError:
                continue
            for thread in threads:
                with suppress(OSError, ValueError):
                    children = map(int, file_bytes(f"{self._proc}/{above}/task/{thread}/children").split())
                    found += [child for child in children if child not in found and child != without]
        return found[1:]

    def command(self, pid: int) -> bytes:
        try:
            return file_bytes(f"{self._proc}/{pid}/cmdline")
        except OSError:
            return b""

    def last_pid(self) -> bytes | None:
        try:
            return self._kept.text(f"{self._proc}/loadavg").split()[-1]
        except (OSError, IndexError):
            return None

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
        """Check whether the kernel reports the CPU time of another process in nanoseconds instead of ticks."""
        try:
            exact = _exact_cpu_ns(pid) / 1e9
            times = psutil.Process(pid).cpu_times()
        except (OSError, AttributeError, OverflowError, psutil.Error):
            return False
        return abs(exact - times.user - times.system) < 0.1 + exact / 100


def _exact_cpu_ns(pid: int) -> int:
    """Return the value of a process's CPU clock. The clock's id is computed as in Linux's ``clock_getcpuclockid``."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def _disk_bytes(process: psutil.Process) -> tuple[int, int] | None:
    try:
        counters = process.io_counters()
    except (AttributeError, NotImplementedError, psutil.Error, OSError):  # macOS does not have this method
        return None
    return counters.read_bytes, counters.write_bytes
