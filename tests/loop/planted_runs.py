"""Runs whose steps take what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perfnb.loop.record import Recorded, RunRecorder
from perfnb.loop.run import RunSummary

Series = Sequence[float] | np.ndarray[Any, Any]
MIB = 2**20


class _Process:
    """Stands for this process, with resident memory that a test chooses for each step."""

    def __init__(self, of_step: Callable[[int], int], recorder: RunRecorder) -> None:
        self._of_step, self._recorder = of_step, recorder

    def memory_info(self) -> _Process:
        """Return the process itself as its readings."""
        return self

    @property
    def rss(self) -> int:
        """Resident bytes."""
        return self._of_step(self._recorder._count)


def usual(count: int, ms: float = 10.0, seed: int = 1) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return milliseconds of steps as on a quiet machine: each depends a little on the one before."""
    noise = np.random.default_rng(seed).standard_normal(count)
    for place in range(1, count):
        noise[place] += 0.3 * noise[place - 1]
    return ms * np.exp(0.03 * noise)


def steady_memory(step: int) -> int:
    """Return a gibibyte, give or take a page or so."""
    return 2**30 + 4096 * (step * 7919 % 13)


def recorder_of(
    wall_ms: Series,
    data_ms: Series | None = None,
    other_ms: Series | None = None,
    *,
    memory: Callable[[int], int] = steady_memory,
    windows: Sequence[tuple[int, int]] = (),
    pass_name: str = "timed",
    window_ms: float = 0.0,
    name: str = "train.py",
) -> RunRecorder:
    """Return a recorder of these steps; steps in `windows` are profiled, and each takes `window_ms` to end."""
    recorder = RunRecorder(name)
    recorder._process = _Process(memory, recorder)  # type: ignore[assignment]
    nothing = np.zeros(len(wall_ms))
    now = 10**12
    opens, closes = ({pair[end] for pair in windows} for end in (0, 1))
    given = (nothing if part is None else part for part in (wall_ms, data_ms, other_ms))
    parts = (np.asarray(part, dtype=float) * 1e6 for part in given)
    for step, (wall, data, other) in enumerate(zip(*(part.astype(int).tolist() for part in parts), strict=True)):
        if step in opens:
            recorder.enter(pass_name)
        elif step in closes:
            now += round(window_ms * 1e6)
            recorder.leave(now)
        now += other
        recorder.step(wall, data, now)
        now += wall
    return recorder


def recorded(*args: Any, **options: Any) -> Recorded:
    """Return what `recorder_of` recorded, with a load of the machine that is not known."""
    found = recorder_of(*args, **options).recorded()
    found.facts["load"] = None
    return found


def run(*args: Any, **options: Any) -> RunSummary:
    """Return the summary of such a run, on a machine with 64 GiB."""
    found = recorded(*args, **options)
    found.facts["memory_bytes"] = 64 * 2**30
    return RunSummary(found)
