"""Store telemetry in the kernel: readings, marks that name intervals, and the names of throttle reasons.

Hours of readings fit into bounded memory because older readings are joined into rows that cover a longer time. This
limits the kernel's memory over a day. There are two other limits elsewhere: `perfnb.watching.charts.on_grid` reduces
the remaining rows to the resolution of a picture, and the live panel's store limits the browser's memory independently
of the kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import deepcopy
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

#: The maximum size of all readings together, which is enough for a day at 2 Hz.
MOST_BYTES = 32 * 2**20
#: The number of rows that a table always has room for before rows are joined, however many devices there are.
FEWEST_ROWS = 512

#: The columns besides the metrics: when the reading was taken, the time that its rates cover, how long it took, how
#: late it was, how many ticks were skipped before it, and how many readings the row represents.
_OWN = ("t_s", "window_s", "read_ms", "late_ms", "missed_ticks", "readings")
_T, _WINDOW, _READ, _LATE, _MISSED, _READINGS = range(len(_OWN))
#: Metrics that cannot be averaged. Joined rows contain the later value, or the bits of both values.
_LAST, _BITS = {"energy_j"}, {"throttle_reasons"}

Floats = NDArray[np.float64]


class History:
    """The readings from several devices, in tables with a total size of at most `most_bytes`.

    When a table is full, neighbouring rows are joined to make room. Joined rows contain time-weighted means, from which
    the maxima cannot be recovered, nor the integrals of metrics that were not read each time. `exact` preserves both.
    """

    def __init__(self, devices: int, most_bytes: int = MOST_BYTES) -> None:
        self._share = most_bytes // max(1, devices)
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()

    def append(self, device: str, own: Mapping[str, float], values: Mapping[str, float | None]) -> None:
        """Add a reading.

        `own` contains ``t_s``, ``window_s`` (``nan`` for the first reading), ``read_ms``, ``late_ms`` and
        ``missed_ticks``. `values` must contain the same metrics for every reading.
        """
        with self._lock:
            table = self._tables.get(device)
            if table is None:
                table = self._tables[device] = _Table(tuple(values), self._share)
            table.append(own, values)

    def columns(self) -> dict[str, dict[str, Floats]]:
        """Return a copy of the rows by device and column, with ``nan`` where a metric was not read."""
        with self._lock:
            return {device: table.columns() for device, table in self._tables.items()}

    def exact(self) -> dict[str, dict[str, Exact]]:
        """Return figures by device and metric that are computed from every reading, including joined ones."""
        with self._lock:
            return {device: deepcopy(table.figures) for device, table in self._tables.items()}

    def unlock_in_child(self) -> None:
        """Replace the lock in a forked process, where it may be held by a thread that does not exist there."""
        self._lock = threading.Lock()


class Exact(TypedDict):
    """Figures about a metric, computed from all readings where its value was known.

    `integral` is the sum of all values, each multiplied by the time that it covers. These times add up to `known_s`.
    """

    max: float
    integral: float
    known_s: float
    readings: int


class _Table:
    def __init__(self, metrics: tuple[str, ...], most_bytes: int) -> None:
        self.figures: dict[str, Exact] = {}
        self.names = (*_OWN, *metrics)
        self.most = max(FEWEST_ROWS, most_bytes // (8 * len(self.names))) // 4 * 4
        self.rows: Floats = np.empty((min(64, self.most), len(self.names)))
        self.length = 0

    def append(self, own: Mapping[str, float], values: Mapping[str, float | None]) -> None:
        if self.length == len(self.rows):
            if self.length < self.most:
                larger = np.empty((min(2 * self.length, self.most), len(self.names)))
                larger[: self.length] = self.rows
                self.rows = larger
            else:
                self._coarsen()
        self._count(values, max(0.0, np.nan_to_num(own["window_s"])))
        known = [np.nan if (value := values.get(name)) is None else value for name in self.names[len(_OWN) :]]
        self.rows[self.length] = [*(own[name] for name in _OWN[:-1]), 1.0, *known]
        self.length += 1

    def _count(self, values: Mapping[str, float | None], window_s: float) -> None:
        for metric, value in values.items():
            if value is None or metric in _BITS:
                continue
            figures = self.figures.setdefault(metric, Exact(max=value, integral=0.0, known_s=0.0, readings=0))
            figures["max"] = max(figures["max"], value)
            figures["integral"] += value * window_s
            figures["known_s"] += window_s
            figures["readings"] += 1

    def columns(self) -> dict[str, Floats]:
        return {name: self.rows[: self.length, place].copy() for place, name in enumerate(self.names)}

    def _coarsen(self) -> None:
        """Join neighbouring rows, except for the newest ones.

        The rows that represent the fewest readings are joined first, which keeps the resolution of the past uniform.
        """
        readings = self.rows[: self.length - self.length // 4, _READINGS]
        for most in np.unique(readings):
            first = _starts_of_pairs(readings <= most)
            if len(first) >= self.most // 16:
                break
        self.rows[first] = _joined(self.rows[first], self.rows[first + 1], self.names)
        kept = np.delete(self.rows[: self.length], first + 1, axis=0)
        self.length = len(kept)
        self.rows[: self.length] = kept


def _starts_of_pairs(eligible: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the starts of disjoint pairs of eligible neighbours."""
    places = np.flatnonzero(eligible)
    run = np.cumsum(np.diff(places, prepend=-2) > 1)
    start = np.searchsorted(run, run)  # where each place's run starts
    even = (np.arange(len(places)) - start) % 2 == 0
    with_next = np.append(np.diff(places) == 1, False)
    starts: NDArray[np.intp] = places[even & with_next]
    return starts


def _joined(first: Floats, second: Floats, names: tuple[str, ...]) -> Floats:
    """Join each row in `first` with the row in `second` that follows it."""
    pairs = np.stack([first, second], axis=1)
    windows = np.nan_to_num(pairs[:, :, _WINDOW])
    # The very first reading does not cover any time, but its levels still count.
    weights = np.where(windows > 0, windows, np.where(windows.max(axis=1, keepdims=True) > 0, 1e-9, 1.0))[:, :, None]
    known = ~np.isnan(pairs)
    share = known * weights
    with np.errstate(invalid="ignore", divide="ignore"):
        joined: Floats = (np.nan_to_num(pairs) * share).sum(axis=1) / share.sum(axis=1)
    joined[:, _T] = second[:, _T]
    joined[:, _WINDOW] = windows.sum(axis=1)
    for place in (_READ, _LATE):
        joined[:, place] = pairs[:, :, place].max(axis=1)
    for place in (_MISSED, _READINGS):
        joined[:, place] = pairs[:, :, place].sum(axis=1)
    for place, name in enumerate(names):
        if name in _LAST:
            joined[:, place] = np.where(np.isnan(second[:, place]), first[:, place], second[:, place])
        elif name in _BITS:
            bits = np.nan_to_num(pairs[:, :, place]).astype(np.int64)
            either = (bits[:, 0] | bits[:, 1]).astype(np.float64)
            joined[:, place] = np.where(known[:, :, place].any(axis=1), either, np.nan)
    return joined


#: The maximum number of marks. If there are more, the oldest marks that have ended are dropped.
MOST_MARKS = 10_000


class WatchMark(NamedTuple):
    """A named interval. While it is open, `end_s` is ``None``. `depth` is the number of enclosing marks."""

    name: str
    depth: int
    start_s: float
    end_s: float | None


class Marks:
    """A watch's marks.

    Attributes
    ----------
    dropped : int
        The number of marks dropped because there were too many.
    changes : int
        A counter that increases whenever a mark starts or ends.
    """

    def __init__(self) -> None:
        self.dropped, self.changes = 0, 0
        self._ended: list[WatchMark] = []
        self._open: dict[int, WatchMark] = {}
        self._next = 0
        self._lock = threading.RLock()

    def start(self, name: str, now_s: float) -> int:
        """Start a mark inside the marks that are open, and return the number that is needed to end it."""
        with self._lock:
            self._next += 1
            self.changes += 1
            self._open[self._next] = WatchMark(name, len(self._open), now_s, None)
            return self._next

    def end(self, number: int, now_s: float) -> None:
        """End a mark. If it has already ended, do nothing."""
        with self._lock:
            mark = self._open.pop(number, None)
            if mark is None:
                return
            self.changes += 1
            self._ended.append(mark._replace(end_s=now_s))
            if len(self._ended) > MOST_MARKS:
                fewer = MOST_MARKS // 2
                self.dropped += len(self._ended) - fewer
                del self._ended[:-fewer]

    def end_all(self, now_s: float) -> None:
        """End all marks."""
        with self._lock:
            for number in sorted(self._open, reverse=True):
                self.end(number, now_s)

    def all(self, latest: int | None = None) -> list[WatchMark]:
        """Return the marks sorted by start time, with outer marks first.

        If `latest` is given, return at most that many of the marks that have ended.
        """
        with self._lock:
            marks = [*(self._ended if latest is None else self._ended[-latest:]), *self._open.values()]
        return sorted(marks, key=lambda mark: (mark.start_s, mark.depth))


#: NVML's bits for throttle reasons, except those that do not slow anything down: 1 (the GPU is idle) and 2 (the user
#: set the clock).
_WORDS = {
    0x004: "SwPowerCap",
    0x008: "HwSlowdown",
    0x010: "SyncBoost",
    0x020: "SwThermalSlowdown",
    0x040: "HwThermalSlowdown",
    0x080: "HwPowerBrakeSlowdown",
    0x100: "DisplayClockSetting",
    0x200: "BoardLimit",
    0x400: "Reliability",
}
_HARMLESS = 0x001 | 0x002


def throttle_words(bits: int) -> list[str]:
    """Return the sorted names of the throttle reasons in a bit mask from NVML, such as ``SwPowerCap``.

    Idle GPUs and clocks set by the user do not count as reasons. ``Other`` represents bits that are not in this list.
    """
    other = bits & ~(sum(_WORDS) | _HARMLESS)
    return sorted([word for bit, word in _WORDS.items() if bits & bit] + ["Other"] * bool(other))
