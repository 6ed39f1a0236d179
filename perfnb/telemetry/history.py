"""Readings of many hours in bounded memory: the older they are, the longer the time that a kept row stands for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

#: Bytes that all readings together may take: a day at 2 Hz is kept within them.
MOST_BYTES = 32 * 2**20
#: Rows are kept as they came at least this long, however many devices there are.
FEWEST_ROWS = 512

#: Columns beside the metrics: when the reading was taken, the time that its rates cover, how long it took, by how much
#: it was late, how many ticks were left out before it, and how many readings the row stands for.
_OWN = ("t_s", "window_s", "read_ms", "late_ms", "missed_ticks", "readings")
_T, _WINDOW, _READ, _LATE, _MISSED, _READINGS = range(len(_OWN))
#: Metrics that are no means over time: of two rows the later one's value, or every bit of both.
_LAST, _BITS = {"energy_j"}, {"throttle_reasons"}

Floats = NDArray[np.float64]


class History:
    """The readings of some devices.

    A full table makes room by joining rows with their neighbours. Joined rows hold means weighted by time: maxima
    are lost in them and, where a metric was not read each time, integrals. `exact` keeps both.

    Parameters
    ----------
    devices : int
        How many there are.
    most_bytes : int
        What they may take together.
    """

    def __init__(self, devices: int, most_bytes: int = MOST_BYTES) -> None:
        self._share = most_bytes // max(1, devices)
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()

    def append(self, device: str, own: Mapping[str, float], values: Mapping[str, float | None]) -> None:
        """Add a reading.

        Parameters
        ----------
        device : str
        own : mapping
            ``t_s``, ``window_s`` (``nan`` at first), ``read_ms``, ``late_ms``, ``missed_ticks``.
        values : mapping
            The metrics, the same ones at each reading.
        """
        with self._lock:
            table = self._tables.get(device)
            if table is None:
                table = self._tables[device] = _Table(tuple(values), self._share)
            table.append(own, values)

    def columns(self) -> dict[str, dict[str, Floats]]:
        """A copy of what is kept: by device and column; ``nan`` where a metric was not read."""
        with self._lock:
            return {device: table.columns() for device, table in self._tables.items()}

    def exact(self) -> dict[str, dict[str, Exact]]:
        """What every reading went into, by device and metric, also those that were joined since."""
        with self._lock:
            return {device: table.exact() for device, table in self._tables.items()}

    def nbytes(self) -> int:
        """Bytes that the tables take."""
        with self._lock:
            return sum(table.rows.nbytes for table in self._tables.values())

    def unlock_in_child(self) -> None:
        """A forked process inherits the lock, maybe held by a thread that it does not have."""
        self._lock = threading.Lock()


class Exact(TypedDict):
    """Figures of a metric over every reading in which it was known.

    `integral` is the sum of values by the time they cover, which is `known_s` in all.
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
        self._count(values, own["window_s"])
        row = [own[name] for name in _OWN[:-1]]
        row += [1.0]
        row += [np.nan if (value := values.get(name)) is None else value for name in self.names[len(_OWN) :]]
        self.rows[self.length] = row
        self.length += 1

    def exact(self) -> dict[str, Exact]:
        return {metric: figures.copy() for metric, figures in self.figures.items()}

    def _count(self, values: Mapping[str, float | None], window_s: float) -> None:
        window = window_s if window_s > 0 else 0.0
        for metric, value in values.items():
            if value is None or metric in _BITS:
                continue
            figures = self.figures.get(metric)
            if figures is None:
                figures = self.figures[metric] = Exact(max=value, integral=0.0, known_s=0.0, readings=0)
            figures["max"] = max(figures["max"], value)
            figures["integral"] += value * window
            figures["known_s"] += window
            figures["readings"] += 1

    def columns(self) -> dict[str, Floats]:
        return {name: self.rows[: self.length, place].copy() for place, name in enumerate(self.names)}

    def _coarsen(self) -> None:
        """Join neighbours, of the rows that are not new those that stand for least, so that all the past is as fine."""
        readings = self.rows[: self.length - self.length // 4, _READINGS]
        for most in np.unique(readings):
            first = _beginnings_of_pairs(readings <= most)
            if len(first) >= self.most // 16:
                break
        self.rows[first] = _joined(self.rows[first], self.rows[first + 1], self.names)
        kept = np.delete(self.rows[: self.length], first + 1, axis=0)
        self.length = len(kept)
        self.rows[: self.length] = kept


def _beginnings_of_pairs(eligible: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Where pairs of neighbours begin, both of them eligible, that share no row."""
    places = np.flatnonzero(eligible)
    run = np.cumsum(np.diff(places, prepend=-2) > 1)
    start = np.searchsorted(run, run)  # where each place's run begins
    even = (np.arange(len(places)) - start) % 2 == 0
    with_next = np.append(np.diff(places) == 1, False)
    begins: NDArray[np.intp] = places[even & with_next]
    return begins


def _joined(first: Floats, second: Floats, names: tuple[str, ...]) -> Floats:
    """Each row of `first` with that of `second`, which comes after it, as one."""
    pairs = np.stack([first, second], axis=1)
    windows = np.nan_to_num(pairs[:, :, _WINDOW])
    # The very first reading covers no time; its levels still count.
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
