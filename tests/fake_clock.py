"""A clock that only advances when a test requests it, so that results do not depend on the machine."""

from __future__ import annotations

import random
import time

import pytest

#: The duration of reading the clock.
LOOK_NS = 200
#: The duration of ``sleep(0)``, which lets other threads run.
YIELD_NS = 5_000


class FakeClock:
    """Replaces `time.perf_counter`, `time.perf_counter_ns`, `time.time_ns` and `time.sleep` in this process.

    Like real sleeps, a sleep takes up to half a percent longer than requested, because statistics need some variation.
    The variation is the same in every run.
    """

    def __init__(self) -> None:
        self.now_ns = 10**9
        self._late = random.Random(5)

    def perf_counter_ns(self) -> int:
        """Nanoseconds."""
        self.now_ns += LOOK_NS
        return self.now_ns

    def perf_counter(self) -> float:
        """Seconds."""
        return self.perf_counter_ns() / 1e9

    def time_ns(self) -> int:
        """Return nanoseconds since 1970, in a year that does not occur in torch's own records."""
        return 946_684_800 * 10**9 + self.now_ns

    def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting."""
        self.now_ns += round(seconds * 1e9 * (1 + 0.005 * self._late.random())) if seconds else YIELD_NS

    def pass_exactly(self, ms: float) -> None:
        """Advance the clock by exactly the given time."""
        self.now_ns += round(ms * 1e6)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the real clock until the test ends.

        The machine's ceilings are left out, because they cannot be measured with this clock: a product takes no time.
        """
        monkeypatch.setattr("perfnb.step.ceilings._measure", lambda ceilings: {})
        for name in ("perf_counter", "perf_counter_ns", "sleep", "time_ns"):
            monkeypatch.setattr(time, name, getattr(self, name))
