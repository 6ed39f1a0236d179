"""Wait until a condition is true, even if this takes long on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

#: If a condition takes this long, something is broken.
LIMIT_S = 120.0


def wait_until(condition: Callable[[], object], limit_s: float = LIMIT_S, every_s: float = 0.02) -> None:
    """Wait until a condition is true, and fail if it does not become true in time."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "the condition did not become true"
        time.sleep(every_s)
