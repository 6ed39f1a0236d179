"""Named intervals of time, which may be nested."""

from __future__ import annotations

import threading
from typing import NamedTuple

#: Marks to keep; beyond that, the oldest that have ended are dropped.
MOST_MARKS = 10_000


class Mark(NamedTuple):
    """A named interval; `end_s` is ``None`` while it lasts, `depth` counts the marks around it."""

    name: str
    depth: int
    start_s: float
    end_s: float | None


class Marks:
    """The marks of a watch.

    Attributes
    ----------
    dropped : int
        How many were dropped because there were too many.
    changes : int
        Grows whenever a mark starts or ends.
    """

    def __init__(self) -> None:
        self.dropped, self.changes = 0, 0
        self._ended: list[Mark] = []
        self._open: dict[int, Mark] = {}
        self._next = 0
        self._lock = threading.RLock()

    def start(self, name: str, now_s: float) -> int:
        """Start a mark inside those that are open; returns the number to end it with."""
        with self._lock:
            self._next += 1
            self.changes += 1
            self._open[self._next] = Mark(name, len(self._open), now_s, None)
            return self._next

    def end(self, number: int, now_s: float) -> None:
        """End a mark; does nothing if it has already ended."""
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

    def all(self, latest: int | None = None) -> list[Mark]:
        """The marks by start time, outer ones first; with `latest`, only that many of those that ended."""
        with self._lock:
            marks = [*(self._ended if latest is None else self._ended[-latest:]), *self._open.values()]
        return sorted(marks, key=lambda mark: (mark.start_s, mark.depth))
