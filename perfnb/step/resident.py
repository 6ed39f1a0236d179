"""The resident memory of the process, read again and again while a step runs."""

from __future__ import annotations

import threading
import time
from typing import Any

import psutil

#: Seconds between two readings.
INTERVAL_S = 0.001


class ResidentMemory:
    """Context manager: a thread reads the process's resident memory until it is left.

    Attributes
    ----------
    readings : list of (int, int)
        Nanoseconds since 1970, and bytes.
    """

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.readings: list[tuple[int, int]] = []
        self._interval_s = interval_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="perfnb-resident-memory", daemon=True)

    def __enter__(self) -> ResidentMemory:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._end.set()
        self._thread.join()

    def _read_on(self) -> None:
        process = psutil.Process()
        while True:
            before = time.time_ns()
            resident = process.memory_info().rss
            self.readings.append(((before + time.time_ns()) // 2, resident))
            if self._end.wait(self._interval_s):
                return
