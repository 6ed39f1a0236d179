"""A clock that moves only as a test says, so that what depends on time is the same on every machine."""

from __future__ import annotations

import random
import time

import pytest

#: Duration of each look at the clock.
LOOK_NS = 200
#: Duration of a sleep of no length, which lets other threads run.
YIELD_NS = 5_000


class FakeClock:
    """Stands for `time.perf_counter`, `time.perf_counter_ns`, `time.time_ns` and `time.sleep` of this process.

    A sleep ends late by up to half a percent, as real ones do, but by the same in every run: statistics need some
    spread.
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
        """Return nanoseconds since 1970, in a year when nothing real happened that torch keeps records of."""
        return 946_684_800 * 10**9 + self.now_ns

    def sleep(self, seconds: float) -> None:
        """Let time pass, without waiting."""
        self.now_ns += round(seconds * 1e9 * (1 + 0.005 * self._late.random())) if seconds else YIELD_NS

    def pass_exactly(self, ms: float) -> None:
        """Let exactly so much time pass."""
        self.now_ns += round(ms * 1e6)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the real clock until the test is over.

        The machine's ceilings cannot be measured by it and are left out: a product would take no time.
        """
        monkeypatch.setattr("perfnb.step.ceilings._measure", lambda ceilings: {})
        for name in ("perf_counter", "perf_counter_ns", "sleep", "time_ns"):
            monkeypatch.setattr(time, name, getattr(self, name))
