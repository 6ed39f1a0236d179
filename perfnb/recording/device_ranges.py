"""On which stream a range on a device lies: torch writes it where the work beside it stands, without saying which."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfnb.trace.columns import MISSING, Ints, TraceColumns

_RANGE, _WORK = "gpu_user_annotation", ("kernel", "gpu_memcpy", "gpu_memset")


def with_places(trace: TraceColumns) -> TraceColumns:
    """The trace with the device and stream of ranges that carry neither: those of work of the same pid and tid."""
    lost = np.flatnonzero(_is_in(trace, (_RANGE,)) & (trace.device == MISSING) & (trace.stream == MISSING))
    known = np.flatnonzero(_is_in(trace, _WORK) & (trace.device != MISSING) & (trace.stream != MISSING))
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


def _is_in(trace: TraceColumns, categories: tuple[str, ...]) -> np.ndarray:
    return np.isin(np.array(trace.categories, dtype=object), categories)[trace.category]


def _pairs(trace: TraceColumns, rows: Ints) -> Ints:
    return np.stack([trace.process[rows], trace.thread[rows]], axis=1)
