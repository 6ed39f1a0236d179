"""Measure the GPU energy that requests use, based on the drivers' energy counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from perfnb.errors import CaptureError
from perfnb.telemetry.watcher import Watcher

_INTERVAL_S = 0.1
#: The length of the shortest usable run in seconds. Drivers update a counter every 20 to 100 ms, which is too coarse
#: for shorter runs.
_LEAST_S = 1.0
NO_GPU = "no GPU was used, and perfnb does not read the energy counters of CPUs"


#: Returns the joules between two instants (`time.perf_counter_ns`), or the reason why they are unknown.
Joules = Callable[[int, int], float | str]


@contextmanager
def energy_meter() -> Iterator[Joules]:
    """Start reading the energy counters of all GPUs that torch uses, if it uses any."""
    why, watcher = NO_GPU, None
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        try:
            watcher = Watcher(_INTERVAL_S)
        except CaptureError as error:
            why = str(error)
    if watcher is None:
        yield lambda *_: why
        return
    zero_ns = watcher.zero_ns
    try:
        yield lambda *ns: joules_between(watcher.columns(), *((instant - zero_ns) / 1e9 for instant in ns))
    finally:
        watcher.stop()


def joules_between(devices: dict[str, dict[str, Any]], start_s: float, end_s: float) -> float | str:
    """Return the energy in joules that the GPUs used between two instants, or the reason why it is unknown.

    Only GPUs on which torch has allocated memory are included.

    Parameters
    ----------
    devices : dict
        The columns of readings for each device, as returned by `Watcher.columns`.
    """
    if end_s - start_s < _LEAST_S:
        return f"an energy counter needs a run of at least {_LEAST_S:g} s"
    whole, used = 0.0, 0
    for name, columns in devices.items():
        if not name.startswith("gpu") or not (columns.get("torch_allocated_bytes", np.zeros(1)) > 0).any():
            continue
        known = ~np.isnan(columns["energy_j"])
        times, counted = columns["t_s"][known], columns["energy_j"][known]
        inside = (times >= start_s - _INTERVAL_S) & (times <= end_s + _INTERVAL_S)
        if inside.sum() < 2:
            return f"{name} has no energy counter, or it could not be read"
        if (np.diff(counted) < 0).any():
            return f"the energy counter of {name} was reset"
        whole += float(np.diff(np.interp([start_s, end_s], times, counted))[0])
        used += 1
    return whole if used else NO_GPU
