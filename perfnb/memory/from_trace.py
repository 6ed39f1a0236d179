"""Read the memory in a loaded trace, which shows how much was allocated at each time, but not for what purpose."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import pandas as pd

from perfnb.recording.nesting import Ints
from perfnb.recording.recording import Recording
from perfnb.recording.schema import conform
from perfnb.trace.columns import MISSING
from perfnb.trace_names import DEVICE_KINDS

CPU = "cpu"


class TotalsOfDevice(NamedTuple):
    """The memory that a device's allocator had allocated and reserved at each time, or -1 where this is unknown."""

    device: str
    times_ns: Ints
    allocated: Ints
    reserved: Ints


def memory_of_trace(recording: Recording) -> list[TotalsOfDevice]:
    """Return the totals of each device, starting with the CPU. Devices whose events do not contain totals are omitted.

    Between the start of the trace and the first change, the totals are the memory allocated up to that point. CPU
    totals begin when a profiler first recorded memory in the process, and do not include memory that was allocated
    before.
    """
    changes = recording.trace_memory
    if changes is None:
        return []
    parts = [part for part in (recording.events, recording.outside) if part is not None and len(part)]
    begin = min((int(part["start_ns"].min()) for part in parts), default=None)
    lines = []
    told = changes[changes["allocated"] >= 0]
    number = told["device"].where(told["device_type"] != 0, MISSING)
    for key, rows in told.groupby([told["device_type"], number], sort=True):
        kind, index = cast("tuple[int, int]", key)
        times, allocated = rows["time_ns"].to_numpy(), rows["allocated"].to_numpy()
        # The CPU allocator does not reserve memory.
        reserved = np.full(len(rows), MISSING) if kind == 0 else np.maximum(rows["reserved"].to_numpy(), MISSING)
        before = int(allocated[0]) - int(rows["bytes"].iloc[0])
        if begin is not None and begin < times[0] and before >= 0:
            times, allocated, reserved = (
                np.concatenate([[first], values])
                for first, values in ((begin, times), (before, allocated), (MISSING, reserved))
            )
        lines.append(TotalsOfDevice(_name(kind, index), times, allocated, reserved))
    return sorted(lines, key=lambda line: line.device != CPU)


def trace_memory_table(recording: Recording) -> pd.DataFrame:
    """Return the table ``memory`` for a loaded trace, without categories.

    ``t_ms`` is relative to the start of the trace's first step.
    """
    lines = memory_of_trace(recording)
    if not lines:
        return conform(pd.DataFrame(), "memory")
    times, total, reserved = (np.concatenate([line[field] for line in lines]) for field in (1, 2, 3))
    events = recording.events
    zero = events["start_ns"][events["marks_step"] != MISSING].min()  # nan without steps
    table = pd.DataFrame(
        {
            "t_ms": (times - int(times.min() if np.isnan(zero) else zero)) / 1e6,
            "device": np.repeat([line.device for line in lines], [len(line.times_ns) for line in lines]),
            "total": total,
            "reserved": pd.arrays.IntegerArray(reserved, reserved == MISSING),
        }
    )
    return conform(table, "memory")


def _name(kind: int, index: int) -> str:
    """Return torch's name for a device."""
    word = CPU if kind == 0 else DEVICE_KINDS.get(kind, f"device of type {kind}")
    return word if index < 0 else f"{word}:{index}"
