"""`MemorySnapshot`: what a snapshot of the CUDA allocator, dumped by any program, says about its memory."""

from __future__ import annotations

from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header, notes_html
from perfnb.draw.shown import Shown
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
from perfnb.recording.reading import Loader

#: Number of live allocations listed.
LARGEST = 8


class MemorySnapshot(Shown):
    """Memory of the CUDA allocator at one instant, and as far back as its history goes.

    Displays itself in a notebook; each access to a table returns a new frame. Names in them come from the file: do not
    trust them.
    """

    def __init__(self, columns: SnapshotColumns, name: str = "snapshot") -> None:
        self._columns, self._name = columns, name

    @property
    def allocations(self) -> pd.DataFrame:
        """Every allocation that is alive or in the history: its size, where it was made, and its lifetime.

        ``start_ns`` and ``end_ns`` count from the first entry of the history (``meta["base_ns"]``).
        """
        return allocation_table(self._columns)

    @property
    def memory(self) -> pd.DataFrame:
        """Allocated (``total``) and reserved bytes of each device after each change in the history."""
        return memory_table(self._columns)

    @property
    def segments(self) -> pd.DataFrame:
        """The allocator's segments, and the free memory in them."""
        return segment_table(self._columns)

    @property
    def fragmentation(self) -> pd.DataFrame:
        """Per device: reserved, allocated, active and free bytes, and how fragmented the free ones are."""
        return fragmentation_table(self._columns)

    @property
    def meta(self) -> dict[str, Any]:
        """Name of the file, the allocator's settings, number of history entries, and notes on what is missing."""
        span = span_us(self._columns)
        return {
            "name": self._name,
            "settings": deepcopy(self._columns.settings),
            "events": len(self._columns.events),
            "base_ns": None if span is None else 1000 * span[0],
            "notes": list(self._live[2]),
        }

    @cached_property
    def _live(self) -> tuple[int, pd.DataFrame, list[str]]:
        """How many allocations are alive, the largest of them, and notes on what is missing."""
        live = self.allocations.loc[lambda table: table["state"].isin(ACTIVE)]
        largest = live.sort_values("bytes", ascending=False, kind="stable").head(LARGEST)
        return len(live), largest, [*notes_on(self._columns, live)]

    @cached_property
    def _devices(self) -> pd.DataFrame:
        return self.fragmentation

    def _text(self, width: int = 100) -> str:
        _, largest, notes = self._live
        title = escape.shorten(f"perfnb · memory snapshot · {escape.plain(self._name, width // 2)}", width)
        parts = [[title, *escape.wrapped(self._history(), width)]]
        parts += [_device_lines(str(name), row, width) for name, row in self._devices.iterrows()]
        if len(largest):
            parts.append([self._caption(), *(_allocation_line(row, width) for _, row in largest.iterrows())])
        if notes:
            parts.append(["Notes", *escape.bullets(notes, width)])
        return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts)

    def _html(self) -> str:
        _, largest, notes = self._live
        devices = [
            [escape.html(name), *(escape.html(value) for _, value in _figures(row))]
            for name, row in self._devices.iterrows()
        ]
        heads = ["device", *(word for word, _ in _figures({}))]
        parts = [tables.table("Memory of the CUDA allocator", heads, devices)] if devices else []
        if len(largest):
            rows = [
                [tables.name(_place(row)), tables.name(_op(row)), escape.html(row["device"]), fmt.size(row["bytes"])]
                for _, row in largest.iterrows()
            ]
            parts.append(tables.table(self._caption(), ["made at", "op", "device", "size"], rows, texts=3))
        words = header(escape.plain(self._name), "memory snapshot", "", fmt.capital(self._history()))
        return framed(words + "".join(parts) + notes_html(notes), narrow=True)

    def __repr__(self) -> str:
        total = self._devices[["active_bytes", "reserved_bytes", "segments", "blocks"]].sum()
        return (
            f"<perfnb.MemorySnapshot {escape.plain(self._name, 60)!r}: {fmt.size(total['active_bytes'])} active of "
            f"{fmt.size(total['reserved_bytes'])} reserved, {total['segments']:,} segments, {total['blocks']:,} blocks>"
        )

    def _history(self) -> str:
        span = span_us(self._columns)
        if span is None:
            return "final state only, no history"
        entries = fmt.counted(len(self._columns.events), "entry")
        return f"final state and a history of {entries} over {fmt.duration((span[1] - span[0]) / 1e3)}"

    def _caption(self) -> str:
        live, largest, _ = self._live
        if live <= len(largest):
            return "Live allocations, largest first"
        return f"The largest {len(largest)} of {live:,} live allocations"


def load_snapshot(path: str | Path) -> MemorySnapshot:
    """Load a snapshot that ``torch.cuda.memory._dump_snapshot`` wrote. Nothing in the file is run.

    Raises
    ------
    TraceError
        If it cannot be read, holds anything but plain data, is truncated or asks for too much; the message names it.
    """
    return MemorySnapshot(reader.read(path), Path(path).name)


LOADER = Loader("CUDA memory snapshots (pickle)", reader.looks_like_snapshot, lambda path, *_: load_snapshot(path))


def _figures(row: Any) -> list[tuple[str, str]]:
    """The figures of a device, each with its label."""
    return [
        ("reserved", fmt.size(row.get("reserved_bytes"))),
        ("active", fmt.size(row.get("active_bytes"))),
        ("allocated", fmt.size(row.get("allocated_bytes"))),
        ("requested", fmt.size(row.get("requested_bytes"))),
        ("fragmentation", fmt.share(row.get("fragmentation"))),
        ("largest free block", fmt.size(row.get("largest_free_bytes"))),
        ("free in split segments", fmt.size(row.get("inactive_split_bytes"))),
        ("segments", _whole(row.get("segments"))),
        ("blocks", _whole(row.get("blocks"))),
        ("out-of-memory errors", _whole(row.get("ooms"))),
    ]


def _whole(value: Any) -> str:
    return fmt.UNKNOWN if fmt.known(value) is None else f"{int(value):,}"


def _device_lines(name: str, row: Any, width: int) -> list[str]:
    figures = _figures(row)
    words = max(len(word) for word, _ in figures)
    entries = [f"  {word:<{words}} {figure:>11}" for word, figure in figures]
    half = -(-len(entries) // 2)
    right = [*entries[half:], *[""] * (2 * half - len(entries))]
    return [escape.plain(name, width), *(f"{a}    {b}" for a, b in zip(entries[:half], right, strict=True))]


def _allocation_line(row: Any, width: int) -> str:
    size, device, op = f"{fmt.size(row['bytes']):>9}", escape.fit(row["device"], 8), escape.fit(_op(row), 24)
    return f"  {size}  {device} {op}  {escape.plain(_place(row), max(16, width - 48))}"


def _op(row: Any) -> str:
    return row["op"] if isinstance(row["op"], str) else ""


def _place(row: Any) -> str:
    if isinstance(row["made_at"], str):
        return row["made_at"]
    return "(no Python line)" if _op(row) else "(not recorded)"
