"""The whole machine: CPU, memory, load, disks, network."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import psutil

from perfnb.telemetry.host_meters import Meters, Traffic, meters
from perfnb.telemetry.readings import Facts, Rates, Values

_Told = TypeVar("_Told")


class HostSource:
    """What the whole machine does; see `Source`.

    A field that cannot be read is ``None``, with one note; the others go on. The CPU's counters move in steps of
    10 ms a core on Linux, so that at 10 Hz a single reading is coarse and only the mean of several is exact.
    """

    name = "host"

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._meters: Meters = meters()
        self._rates = Rates()
        self._traffic: dict[str, tuple[int, Traffic]] = {}
        self._failed: set[str] = set()

    def devices(self) -> list[str]:
        return ["host"]

    def facts(self, device: str) -> Facts:
        memory = self._try("memory", psutil.virtual_memory)
        return {"cpus": os.cpu_count(), "memory_bytes": None if memory is None else memory.total}

    def read(self, device: str, now_ns: int) -> Values:
        busy_s = self._rates.per_second("cpu", self._try("CPU time", self._meters.busy_s), now_ns)
        read, written = self._both("disk traffic", self._meters.disks, now_ns)
        received, sent = self._both("network traffic", self._meters.interfaces, now_ns)
        return {
            "cpu_percent": None if busy_s is None else busy_s * 100,
            "memory_bytes": self._try("memory", self._meters.used_bytes),
            "load": self._try("load", lambda: os.getloadavg()[0]),
            "disk_read_bytes_per_s": read,
            "disk_write_bytes_per_s": written,
            "network_receive_bytes_per_s": received,
            "network_send_bytes_per_s": sent,
        }

    def close(self) -> None:
        self._meters.close()

    def _try(self, what: str, tell: Callable[[], _Told]) -> _Told | None:
        try:
            return tell()
        except Exception as error:  # psutil's readers fail in many ways on machines that its authors have not seen
            if what not in self._failed:
                self._failed.add(what)
                self.notes.append(f"The host's {what} cannot be read: {str(error) or type(error).__name__}.")
            return None

    def _both(self, what: str, tell: Callable[[], Traffic], now_ns: int) -> tuple[float | None, float | None]:
        """Bytes per second each way, over the parts that were there before and whose counters did not start anew."""
        now = self._try(what, tell)
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
