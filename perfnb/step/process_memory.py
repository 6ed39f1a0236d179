"""Resident memory of the process: sampled while a step runs, or read between steps so that readings compare."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from typing import Any

import psutil

#: Seconds between samples.
INTERVAL_S = 0.001


class ResidentMemory:
    """Context manager in which a thread samples the process's resident memory.

    Attributes
    ----------
    readings : list of (int, int)
        Unix time in nanoseconds, and bytes.
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


class Footprint:
    """Context manager for comparable readings of resident memory.

    Plain readings hide leaks: the C library keeps freed pages, so memory jumps with batches of varying shape, and a
    leak can fill those pages for a hundred steps before the process grows. Each reading therefore collects garbage
    first and returns free pages to the system, if the C library can (glibc's `malloc_trim`). Objects that exist at the
    start are frozen in the meantime, because a collection over all of them takes 0.1 s.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._trim = _malloc_trim()
        self._frozen = False

    def __enter__(self) -> Footprint:
        gc.collect()
        if gc.get_freeze_count() == 0:  # otherwise the user froze them
            gc.freeze()
            self._frozen = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._frozen:
            self._frozen = False
            gc.unfreeze()

    def read(self) -> int:
        """Resident bytes of the process."""
        gc.collect()
        if self._trim is not None:
            self._trim(0)
        return int(self._process.memory_info().rss)


def _malloc_trim() -> Any:
    """glibc's function that returns free pages to the system; ``None`` in other C libraries."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim
