"""Workloads for the checks: a simulated machine with noise, and interleaved timings of two functions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from perfnb.labs.answers import as_function, outcome
from perfnb.labs.exercise import Hint

#: Number of interleaved rounds when a check runs two steps again.
TURNS = 12


class Machine:
    """A simulated machine whose steps return the milliseconds they would have taken.

    Parameters
    ----------
    weather : str
        ``steady``, ``slower and slower`` (by 0.02 % per run), or ``every second run slow`` (by 8 %).
    seed : int
        The seed of the noise, which is 5 % of a run.

    Attributes
    ----------
    runs : Counter
        The number of runs of each step, by name.
    """

    def __init__(self, weather: str, seed: int = 0) -> None:
        self.runs: Counter[str] = Counter()
        self._weather, self._generator = weather, np.random.default_rng(seed)

    def step(self, true_ms: float, name: str = "") -> Callable[[], float]:
        """Return a step that takes `true_ms` on an idle machine."""

        def run() -> float:
            before = self.runs.total()
            slow = {
                "steady": 1.0,
                "slower and slower": 1.0 + 0.0002 * before,
                "every second run slow": 1.08 if before % 2 else 1.0,
            }[self._weather]
            self.runs[name] += 1
            return float(true_ms * slow * np.exp(self._generator.normal(0.0, 0.05)))

        return run


def interleaved(
    a: Callable[..., Any],
    b: Callable[..., Any],
    inputs: Sequence[Sequence[Any]],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[float]]:
    """Time two functions in turn and return their times in milliseconds.

    Each round uses the next of `inputs`, and the first input is used for the warm-up. No input is timed twice, so a
    function gains nothing by caching its results.
    """
    a(*inputs[0])
    b(*inputs[0])
    times: tuple[list[float], list[float]] = ([], [])
    for index, arguments in enumerate(inputs[1:]):
        for which in (0, 1) if index % 2 else (1, 0):
            began = clock()
            (a, b)[which](*arguments)
            times[which].append((clock() - began) * 1e3)
    return times


def time_ratio(new: Callable[..., Any], old: Callable[..., Any], inputs: Sequence[Sequence[Any]]) -> float:
    """Return the shortest time of `new` divided by the shortest time of `old`, both `interleaved` on one thread."""
    with one_thread():
        old_ms, new_ms = interleaved(old, new, inputs)
    return min(new_ms) / min(old_ms)


def shortest_ms(steps: Any) -> list[float]:
    """Run the two steps that a check received in turn, and return the shortest time of each.

    Raises
    ------
    Hint
        If `steps` does not consist of two steps.
    """
    if not isinstance(steps, list | tuple) or len(steps) != 2:
        raise Hint("Run the check unchanged: it also needs the two steps.")
    first, second = (as_function(step, "step()") for step in steps)
    return [min(times) for times in interleaved(lambda: outcome(first), lambda: outcome(second), [()] * (TURNS + 1))]


def agree(first: Any, second: Any, relative: float = 1e-4) -> bool:
    """Check whether two tensors, arrays or numbers have the same shape and, apart from rounding, the same values."""
    one, other = (np.asarray(side.detach() if hasattr(side, "detach") else side) for side in (first, second))
    if one.shape != other.shape or one.dtype.kind not in "fiub" or other.dtype.kind not in "fiub":
        return False
    scale = max(float(np.abs(one).max(initial=0.0)), 1e-30)
    return bool(np.allclose(one, other, rtol=0.0, atol=relative * scale))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, because threads spend much time waiting for one another on a shared machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
