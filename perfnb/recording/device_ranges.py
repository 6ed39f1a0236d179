"""On which stream a range on a device lies: torch writes it where the work beside it stands, without saying which."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfnb.trace.columns import MISSING, Ints, TraceColumns
from perfnb.trace.trace_steps import is_in
from perfnb.trace_names import DEVICE_RANGES, DEVICE_WORK


def with_places(trace: TraceColumns) -> TraceColumns:
    """The trace with the device and stream of ranges that carry neither: those of work of the same pid and tid."""
    lost = np.flatnonzero(is_in(trace, DEVICE_RANGES) & (trace.device == MISSING) & (trace.stream == MISSING))
    known = np.flatnonzero(is_in(trace, DEVICE_WORK) & (trace.device != MISSING) & (trace.stream != MISSING))
    if len(lost) == 0 or len(known) == 0:
        return trace
    rows, first = np.unique(_pairs(trace, known), axis=0, return_index=True)
    place = {(pid, tid): int(at) for (pid, tid), at in zip(rows.tolist(), known[first], strict=True)}
    asked, which = np.unique(_pairs(trace, lost), axis=0, return_inverse=True)
    beside = np.array([place.get((pid, tid), MISSING) for pid, tid in asked.tolist()], dtype=np.int64)
    beside = beside[which.reshape(-1)]
    device, stream = trace.device.copy(), trace.stream.copy()
    for values in (device, stream):
        values[lost] = np.where(beside == MISSING, MISSING, values[beside])
    return replace(trace, device=device, stream=stream)


def _pairs(trace: TraceColumns, rows: Ints) -> Ints:
    return np.stack([trace.process[rows], trace.thread[rows]], axis=1)
