"""Provide `MemorySnapshot`, the memory in a snapshot of the CUDA allocator, which any program can dump."""

from __future__ import annotations

from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.memory.snapshot import reading as reader
from perfnb.memory.snapshot.reading import SnapshotColumns
from perfnb.memory.snapshot.tables import (
    ACTIVE,
    allocation_table,
    fragmentation_table,
    memory_table,
    notes_on,
    segment_table,
    span_us,
)
from perfnb.memory.snapshot.view import snapshot_document
from perfnb.recording.loadable import Loadable


class MemorySnapshot(Documented):
    """The memory of the CUDA allocator at one point in time, and as far back as its history goes.

    Notebooks display the snapshot. Each access to a table returns a new DataFrame. Names in the tables are taken from
    the file, so do not trust them.
    """

    def __init__(self, columns: SnapshotColumns, name: str = "snapshot") -> None:
        self._columns, self._name = columns, name

    @property
    def allocations(self) -> pd.DataFrame:
        """Every allocation that is alive or in the history, with its size, its origin and its lifetime.

        ``start_ns`` and ``end_ns`` are relative to the first entry in the history (``meta["base_ns"]``).
        """
        return allocation_table(self._columns)

    @property
    def memory(self) -> pd.DataFrame:
        """The allocated (``total``) and reserved bytes on each device after each change in the history."""
        return memory_table(self._columns)

    @property
    def segments(self) -> pd.DataFrame:
        """The allocator's segments and the amount of free memory in each of them."""
        return segment_table(self._columns)

    @property
    def fragmentation(self) -> pd.DataFrame:
        """The reserved, allocated, active and free bytes on each device, and how fragmented the free memory is."""
        return fragmentation_table(self._columns)

    @property
    def meta(self) -> dict[str, Any]:
        """The name of the file, the allocator's settings, the number of history entries, and notes on missing data."""
        span = span_us(self._columns)
        return {
            "name": self._name,
            "settings": deepcopy(self._columns.settings),
            "events": len(self._columns.events),
            "base_ns": None if span is None else 1000 * span[0],
            "notes": list(self._live[1]),
        }

    @cached_property
    def _live(self) -> tuple[pd.DataFrame, list[str]]:
        """The live allocations, and notes on missing data."""
        live = self.allocations.loc[lambda table: table["state"].isin(ACTIVE)]
        return live, [*notes_on(self._columns, live)]

    def _line(self) -> str:
        total = self.fragmentation[["active_bytes", "reserved_bytes", "segments", "blocks"]].sum()
        return (
            f"{escape.plain(self._name, 60)!r}: {fmt.size(total['active_bytes'])} active of "
            f"{fmt.size(total['reserved_bytes'])} reserved, {total['segments']:,} segments, {total['blocks']:,} blocks"
        )

    def _document(self) -> Document:
        return snapshot_document(self._columns, self._name, self.fragmentation, *self._live)


def load_snapshot(path: str | Path) -> MemorySnapshot:
    """Load a snapshot written by ``torch.cuda.memory._dump_snapshot``. Nothing in the file is executed.

    Raises
    ------
    TraceError
        If the file cannot be read, contains anything other than plain data, is truncated, or needs too much memory. The
        message contains the name of the file.
    """
    return MemorySnapshot(reader.read(path), Path(path).name)


LOADABLE = Loadable(reader.looks_like_snapshot, lambda path, *_: load_snapshot(path))
