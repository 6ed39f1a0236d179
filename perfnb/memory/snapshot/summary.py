"""What a snapshot's report shows, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.memory.snapshot.lifetimes import ACTIVE, words
from perfnb.memory.snapshot.reading import SnapshotColumns
from perfnb.memory.snapshot.tables import KNOWN_ACTIONS, allocation_table, fragmentation_table, memory_table
from perfnb.trace.columns import MISSING

#: Number of live allocations in a report.
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
        Number of live allocations.
    events : int
        Number of history entries.
    span_ms : float or None
        Time from the first to the last of them.
    notes : tuple of str
        Caveats.
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
    """Collect the facts for the report of `snapshot`."""
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
    """Return the time of the first history entry in nanoseconds since 1970, ``None`` if unknown."""
    times = snapshot.events.time_us[snapshot.events.time_us != MISSING]
    return int(times.min()) * 1000 if len(times) else None


def _notes(snapshot: SnapshotColumns, live: pd.DataFrame) -> Iterator[str]:
    events = snapshot.events
    nowhere = int(live[["op", "made_at"]].isna().all(axis=1).sum())
    if not len(events.size):
        yield (
            "The snapshot has no history, so memory over time is unknown; to record it, call "
            "torch.cuda.memory._record_memory_history first."
        )
    elif (events.time_us[np.isin(words(events.actions, events.action), list(KNOWN_ACTIONS))] == MISSING).any():
        yield "History entries have no times, as in snapshots of old torch versions."
    if nowhere:
        yield (
            f"{nowhere:,} of {len(live):,} live allocations have no known origin: they are older than the recording, "
            "or their stacks were not recorded."
        )
    if memory_table(snapshot)[["total", "reserved"]].isna().any(axis=None):
        yield (
            "The history does not match the final state, as when only one memory pool was dumped: some figures of "
            "memory over time are missing."
        )
    if actions := sorted(set(events.actions) - KNOWN_ACTIONS):
        yield f"History entries of unknown kinds were skipped: {', '.join(actions[:5])}."
    if states := sorted(set(snapshot.blocks.states) - {*ACTIVE, "inactive"}):
        yield f"Some blocks are in an unknown state, neither active nor free: {', '.join(states[:5])}."
