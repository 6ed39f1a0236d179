"""The resident memory of the process, read again and again while a step runs."""

from __future__ import annotations

import ctypes
import gc
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


class Footprint:
    """Context manager: reads resident memory so that successive readings can be compared.

    A plain reading says little about a leak: the C library keeps pages that the program freed, so that memory jumps
    with batches of varying shape, and a leak can fill those pages for a hundred steps before the process grows. Here
    each reading first collects garbage and hands free pages back, where the C library can (glibc's `malloc_trim`).
    Objects that are there at the begin are set apart meanwhile, for a collection over all of them takes 0.1 s.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._trim = _malloc_trim()
        self._frozen = False

    def __enter__(self) -> Footprint:
        gc.collect()
        if gc.get_freeze_count() == 0:  # else they are set apart by the user, and stay so
            gc.freeze()
            self._frozen = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._frozen:
            self._frozen = False
            gc.unfreeze()

    def read(self) -> int:
        """Resident bytes of the process, now."""
        gc.collect()
        if self._trim is not None:
            self._trim(0)
        return int(self._process.memory_info().rss)


def _malloc_trim() -> Any:
    """glibc's function that hands free pages back to the system; ``None`` where there is none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim
