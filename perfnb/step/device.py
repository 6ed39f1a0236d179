"""The devices that a step may use: waiting for them, timing on them, and what they are."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def cuda_in_use() -> bool:
    """Whether this process has put work on an NVIDIA or AMD GPU; asking does not start the GPU's context."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def synchronize() -> None:
    """Wait until the GPU has done what was launched; nothing to do without one."""
    if cuda_in_use():
        torch.cuda.synchronize()


class StepClock:
    """Durations of steps, without waiting for the GPU at each.

    On the CPU the host's clock tells. On a GPU an event is recorded on the current stream where a step begins and
    where it ends, and the events are read after the pass.
    """

    def __init__(self) -> None:
        self._cuda = cuda_in_use()
        self._events: list[tuple[Any, Any]] = []
        self._host_ns: list[int] = []
        self._open: Any = None

    def begin(self) -> None:
        """A step begins."""
        if self._cuda:
            self._open = _event()

    def end(self, host_ns: int) -> None:
        """The step that began last ends; the host saw it take `host_ns`."""
        if self._cuda:
            self._events.append((self._open, _event()))
        self._host_ns.append(host_ns)

    def durations_ns(self) -> list[int]:
        """Duration of each step; waits for the GPU."""
        if not self._cuda:
            return list(self._host_ns)
        synchronize()
        return [round(first.elapsed_time(second) * 1e6) for first, second in self._events]


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def random_state() -> tuple[Any, ...]:
    """The state of the generators of Python, NumPy and torch, on GPUs that are in use too."""
    on_gpu = torch.cuda.get_rng_state_all() if cuda_in_use() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_gpu


def set_random_state(state: tuple[Any, ...]) -> None:
    """Put back what `random_state` returned."""
    of_python, of_numpy, of_torch, on_gpu = state
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    torch.set_rng_state(of_torch)
    if on_gpu is not None:
        torch.cuda.set_rng_state_all(on_gpu)
