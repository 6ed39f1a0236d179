"""Determine when a loop's windows are due."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfnb.arguments import require_count


class Windows:
    """The steps at which windows are due: first those that the user specified, then more at a fixed interval.

    Parameters
    ----------
    at : int or iterable of int
        Number of steps before each window.
    every : int or None
        Number of steps between windows after the last one in `at`.
    """

    def __init__(self, at: int | Iterable[int], every: int | None = None) -> None:
        given: Any = at
        planned: list[int] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        for steps in planned:
            require_count("at", steps, 0)
        if not planned:
            raise ValueError("at must contain at least one step.")
        if every is not None:
            require_count("every", every, 1)
        self._planned = sorted(set(planned))
        self._last = self._planned[-1]
        self._every = every
        #: Whether there is only one window.
        self.single = len(self._planned) == 1 and every is None

    def next(self, done: int) -> int | None:
        """Return the number of steps before the next window, or ``None`` if there are no more windows.

        `done` steps have ended so far. A window that became due while another one was open follows immediately, but
        repeated windows that were missed are skipped.
        """
        if self._planned:
            return max(done, self._planned.pop(0))
        if self._every is None:
            return None
        missed = max(1, -(-(done - self._last) // self._every))
        self._last += missed * self._every
        return self._last

    def postpone(self, window: int | None) -> None:
        """Make `next` return this window again, because another window comes first."""
        if window is not None:
            self._planned.insert(0, window)
