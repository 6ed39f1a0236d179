"""Waiting for something to come about, however long a busy machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Only what is broken takes so long.
LIMIT_S = 120.0


def wait_until(condition: Callable[[], object], limit_s: float = LIMIT_S, every_s: float = 0.02) -> None:
    """Return as soon as a condition holds; fail if it never does."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "it never came about"
        time.sleep(every_s)
