"""The device under a step: waiting for it, timing on it, and the state of random number generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def cuda_in_use() -> bool:
    """Whether this process has used an NVIDIA or AMD GPU; asking does not create a GPU context."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def synchronize() -> None:
    """Wait until the GPU has finished; does nothing without one."""
    if cuda_in_use():
        torch.cuda.synchronize()


class StepClock:
    """Times steps without waiting for the GPU after each.

    On a GPU, events recorded on the current stream mark the start and the end of each step and are read after the pass;
    on the CPU the host's clock is used.
    """

    def __init__(self) -> None:
        self._cuda = cuda_in_use()
        self._events: list[tuple[Any, Any]] = []
        self._host_ns: list[int] = []
        self._open: Any = None

    def begin(self) -> None:
        """Mark the start of a step."""
        if self._cuda:
            self._open = _event()

    def end(self, host_ns: int) -> None:
        """Mark the end of the step, which took `host_ns` on the host."""
        if self._cuda:
            self._events.append((self._open, _event()))
        self._host_ns.append(host_ns)

    def durations_ns(self) -> list[int]:
        """Durations of all steps; waits for the GPU."""
        if not self._cuda:
            return list(self._host_ns)
        synchronize()
        return [round(first.elapsed_time(second) * 1e6) for first, second in self._events]


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def random_state() -> tuple[Any, ...]:
    """State of the random number generators of Python, NumPy and torch, including CUDA's if it is in use."""
    on_gpu = torch.cuda.get_rng_state_all() if cuda_in_use() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_gpu


def set_random_state(state: tuple[Any, ...]) -> None:
    """Restore what `random_state` returned."""
    of_python, of_numpy, of_torch, on_gpu = state
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    torch.set_rng_state(of_torch)
    if on_gpu is not None:
        torch.cuda.set_rng_state_all(on_gpu)
