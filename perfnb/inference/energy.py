"""What requests take of the GPUs' energy, from the drivers' counters."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np
import torch

from perfnb.errors import CaptureError
from perfnb.telemetry.watcher import Watcher

_INTERVAL_S = 0.1
#: The driver renews a counter every 20 to 100 ms, which is too coarse for shorter runs.
_LEAST_S = 1.0
NO_GPU = "no GPU was used, and perfnb reads no energy counter of processors"


class EnergyMeter:
    """Reads energy counters as long as it is open, where torch uses a GPU."""

    def __init__(self) -> None:
        self._watcher: Watcher | None = None
        self._why = NO_GPU

    def __enter__(self) -> EnergyMeter:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            try:
                self._watcher = Watcher(_INTERVAL_S)
            except CaptureError as error:
                self._why = str(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher is not None:
            self._watcher.stop()

    def joules(self, start_ns: int, end_ns: int) -> float | str:
        """Of all GPUs that torch uses, between two instants (`time.perf_counter_ns`); or why it is not known."""
        if self._watcher is None:
            return self._why
        zero = self._watcher.zero_ns
        return joules_between(self._watcher.columns(), (start_ns - zero) / 1e9, (end_ns - zero) / 1e9)


def joules_between(devices: dict[str, dict[str, Any]], start_s: float, end_s: float) -> float | str:
    """Joules of the GPUs on which torch holds memory, between two instants; or why that is not known.

    Parameters
    ----------
    devices : dict
        Columns of readings by device, as `Watcher.columns` returns them.
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
