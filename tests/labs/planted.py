"""Times that the tests choose, so that none of them waits for a clock or judges how fast this machine is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perfnb.labs import workloads


def plant(monkeypatch: pytest.MonkeyPatch, a_ms: float, b_ms: float) -> list[Sequence[Any]]:
    """Let a check find that of the two functions it runs in turns, each takes so many milliseconds.

    Returns a list that gets the inputs of each comparison's rounds, without the warm-up.
    """
    given: list[Sequence[Any]] = []

    def interleaved(
        a: Callable[..., Any], b: Callable[..., Any], inputs: Sequence[Sequence[Any]]
    ) -> tuple[list[float], list[float]]:
        a(*inputs[0])
        b(*inputs[0])
        given.append(inputs[1:])
        return [a_ms] * len(given[-1]), [b_ms] * len(given[-1])

    monkeypatch.setattr(workloads, "interleaved", interleaved)
    return given


class Clock:
    """Stands for the module `time`: only sleeping and looking at the clock take time, and asleep no CPU is used."""

    def __init__(self) -> None:
        self.now = self.used = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        self.used += 1e-6
        return self.now

    monotonic = perf_counter

    def process_time(self) -> float:
        self.perf_counter()
        return self.used

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Pool:
    """Replaces `ThreadPoolExecutor`: each call takes time on a thread of its own, in parallel with the caller."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(self, workers: int) -> Pool:
        assert workers == 1
        return self

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Done:
        began = self.clock.now
        returned = function(*arguments)
        done = Done(self.clock, self.clock.now, returned)
        self.clock.now = began
        return done


class Done:
    """A future whose result is there from some instant on."""

    def __init__(self, clock: Clock, at: float, returned: Any) -> None:
        self.clock, self.at, self.returned = clock, at, returned

    def result(self) -> Any:
        self.clock.now = max(self.clock.now, self.at)
        return self.returned
