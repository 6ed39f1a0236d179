"""What the report of a snapshot of the CUDA allocator shows, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.memory.snapshot.lifetimes import ACTIVE, words
from perfnb.memory.snapshot.reading import MISSING, SnapshotColumns
from perfnb.memory.snapshot.tables import KNOWN_ACTIONS, allocation_table, fragmentation_table, memory_table

#: Live allocations that a report lists.
LARGEST = 8


@dataclass(frozen=True)
class SnapshotSummary:
    """The facts of a snapshot's report.

    Attributes
    ----------
    name : str
        Name of the file.
    reserved_bytes, active_bytes, segments, blocks : int
        Of all devices together.
    fragmentation : DataFrame
        As `fragmentation_table` makes it.
    largest : DataFrame
        The largest live allocations, as in `allocation_table`.
    live : int
        How many allocations are alive.
    events : int
        Entries of the history.
    span_ms : float or None
        Time from the first to the last of them.
    notes : tuple of str
        What must be known to read the figures rightly.
    """

    name: str
    reserved_bytes: int
    active_bytes: int
    segments: int
    blocks: int
    fragmentation: pd.DataFrame
    largest: pd.DataFrame
    live: int
    events: int
    span_ms: float | None
    notes: tuple[str, ...]


def summarize_snapshot(snapshot: SnapshotColumns, name: str) -> SnapshotSummary:
    """The facts of the report of `snapshot`."""
    allocations = allocation_table(snapshot)
    live = allocations[allocations["state"].isin(ACTIVE)]
    times = snapshot.events.time_us[snapshot.events.time_us != MISSING]
    devices = fragmentation_table(snapshot)
    return SnapshotSummary(
        name=name,
        **{column: int(devices[column].sum()) for column in ("reserved_bytes", "active_bytes", "segments", "blocks")},
        fragmentation=devices,
        largest=live.sort_values("bytes", ascending=False, kind="stable").head(LARGEST).reset_index(drop=True),
        live=len(live),
        events=len(snapshot.events.size),
        span_ms=None if not len(times) else float(times.max() - times.min()) / 1e3,
        notes=tuple(_notes(snapshot, live)),
    )


def first_ns(snapshot: SnapshotColumns) -> int | None:
    """Time of the history's first entry in nanoseconds since 1970; ``None`` if there is none or it carries no time."""
    times = snapshot.events.time_us[snapshot.events.time_us != MISSING]
    return int(times.min()) * 1000 if len(times) else None


def _notes(snapshot: SnapshotColumns, live: pd.DataFrame) -> Iterator[str]:
    events = snapshot.events
    nowhere = int(live[["op", "made_at"]].isna().all(axis=1).sum())
    if not len(events.size):
        yield (
            "The snapshot holds no history, so memory over time is not known; call "
            "torch.cuda.memory._record_memory_history before what you want to see."
        )
    elif (events.time_us[np.isin(words(events.actions, events.action), list(KNOWN_ACTIONS))] == MISSING).any():
        yield "Entries of the history carry no time, as in snapshots of old versions of torch."
    if nowhere:
        yield (
            f"Where {nowhere:,} of {len(live):,} live allocations were made is not known: they are older than the "
            "recording, or their stacks were not recorded."
        )
    if memory_table(snapshot)[["total", "reserved"]].isna().any(axis=None):
        yield (
            "The history does not fit the final state, as where only one memory pool was dumped: figures of memory "
            "over time are missing in part."
        )
    if actions := sorted(set(events.actions) - KNOWN_ACTIONS):
        yield f"The history holds entries that perfnb does not know and leaves out: {', '.join(actions[:5])}."
    if states := sorted(set(snapshot.blocks.states) - {*ACTIVE, "inactive"}):
        yield f"Some blocks are in a state that perfnb does not know, neither active nor free: {', '.join(states[:5])}."
