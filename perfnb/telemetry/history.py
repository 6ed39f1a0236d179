"""Hours of readings in bounded memory: the older they are, the longer the time that a row stands for.

This thinning bounds the kernel's memory over a day. The other two have other limits: `perfnb.watching.points` fits what
is left into the pixels of a picture, and the live panel's store bounds the browser's memory without asking the kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

#: Bytes for all readings together: enough for a day at 2 Hz.
MOST_BYTES = 32 * 2**20
#: A table holds at least this many rows before any are joined, however many devices there are.
FEWEST_ROWS = 512

#: Columns beside the metrics: when the reading was taken, the time its rates cover, how long it took, how late it was,
#: how many ticks were skipped before it, and how many readings the row stands for.
_OWN = ("t_s", "window_s", "read_ms", "late_ms", "missed_ticks", "readings")
_T, _WINDOW, _READ, _LATE, _MISSED, _READINGS = range(len(_OWN))
#: Metrics that cannot be averaged: joined rows keep the later value, or the bits of both.
_LAST, _BITS = {"energy_j"}, {"throttle_reasons"}

Floats = NDArray[np.float64]


class History:
    """The readings of `devices` devices, within `most_bytes` for all of them together.

    A full table makes room by joining neighbouring rows. Joined rows hold means weighted by time: they lose maxima
    and, for metrics that were not read each time, integrals. `exact` keeps both.
    """

    def __init__(self, devices: int, most_bytes: int = MOST_BYTES) -> None:
        self._share = most_bytes // max(1, devices)
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()

    def append(self, device: str, own: Mapping[str, float], values: Mapping[str, float | None]) -> None:
        """Add a reading.

        `own` has ``t_s``, ``window_s`` (``nan`` at first), ``read_ms``, ``late_ms`` and ``missed_ticks``; `values` has
        the same metrics every time.
        """
        with self._lock:
            table = self._tables.get(device)
            if table is None:
                table = self._tables[device] = _Table(tuple(values), self._share)
            table.append(own, values)

    def columns(self) -> dict[str, dict[str, Floats]]:
        """A copy of the rows, by device and column; ``nan`` where a metric was not read."""
        with self._lock:
            return {device: table.columns() for device, table in self._tables.items()}

    def exact(self) -> dict[str, dict[str, Exact]]:
        """Figures over every reading, joined or not, by device and metric."""
        with self._lock:
            return {device: table.exact() for device, table in self._tables.items()}

    def unlock_in_child(self) -> None:
        """Replace the lock, which a thread that a forked process lacks may hold."""
        self._lock = threading.Lock()


class Exact(TypedDict):
    """Figures of a metric over every reading in which it was known.

    `integral` is the sum of each value times the time it covers; those times add up to `known_s`.
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
        """Join neighbours among the older rows, those that stand for least first, so that the past is equally fine."""
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
    """Where disjoint pairs of eligible neighbours start."""
    places = np.flatnonzero(eligible)
    run = np.cumsum(np.diff(places, prepend=-2) > 1)
    start = np.searchsorted(run, run)  # where each place's run starts
    even = (np.arange(len(places)) - start) % 2 == 0
    with_next = np.append(np.diff(places) == 1, False)
    starts: NDArray[np.intp] = places[even & with_next]
    return starts


def _joined(first: Floats, second: Floats, names: tuple[str, ...]) -> Floats:
    """Join each row of `first` with the row of `second` that follows it."""
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
