"""Times whose truth is known: sleeps, and the traced steps that the tables are made of."""

from __future__ import annotations

import time

import perfnb


def traced_ms(p: perfnb.Profile) -> float:
    """Mean length of the traced steps, by the marks in the trace that the tables are made from."""
    steps = p.events[p.events["category"] == "step"]
    return float(steps["duration_ns"].mean()) / 1e6


class Sleep:
    """A sleep that remembers how long it really was: a busy machine wakes a sleeper late."""

    def __init__(self, ms: float) -> None:
        self.ms = ms
        self.slept_ms: list[float] = []

    def __call__(self) -> None:
        begin = time.perf_counter_ns()
        time.sleep(self.ms / 1e3)
        self.slept_ms.append((time.perf_counter_ns() - begin) / 1e6)

    def mean_ms(self, traced: int) -> float:
        """Return the mean of the last sleeps, those of the traced steps."""
        return sum(self.slept_ms[-traced:]) / traced
