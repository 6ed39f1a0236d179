"""Create a document about a snapshot of the CUDA allocator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import Bar, Bars, Budget, Choice, Column, Document, Figure, Part, Section, Table, Verdict
from perfnb.draw.palette import Mark
from perfnb.memory.snapshot.tables import history_by_origin, holders, largest_segments, lifetimes, line_words, span_us
from perfnb.memory.tab import stacked

if TYPE_CHECKING:
    from perfnb.memory.snapshot.reading import SnapshotColumns

#: The appearance of the origins with the most memory, and of all other origins.
_LOOKS = tuple(mark for name, mark in palette.KINDS.items() if name != "other")
_OTHERS = replace(palette.mark("other"), word="all others", glyph="+")
_FREE = Mark("free", palette.LIGHT, "·", "none")
#: The maximum number of instants in the history, and of segments, that are drawn.
_INSTANTS, _SEGMENTS = 240, 24


def snapshot_document(
    snapshot: SnapshotColumns, name: str, devices: pd.DataFrame, live: pd.DataFrame, notes: Sequence[str]
) -> Document:
    """Return a document about a snapshot.

    It shows what uses the memory, how this came about, and how memory is distributed over the segments.

    Parameters
    ----------
    snapshot : SnapshotColumns
        The snapshot.
    name : str
        The name of the snapshot.
    devices : DataFrame
        The table `MemorySnapshot.fragmentation`.
    live : DataFrame
        The live allocations in `MemorySnapshot.allocations`.
    notes : sequence of str
        Notes about missing information.
    """
    largest = holders(live)
    reserved, active, allocated = (devices[f"{kind}_bytes"].sum() for kind in ("reserved", "active", "allocated"))
    figures = (
        Figure("active", active, "bytes"),
        Figure("reserved", reserved, "bytes"),
        Figure(
            "fragmentation", 1 - allocated / reserved if reserved else None, "share", basis="reserved, not allocated"
        ),
    )
    return Document(
        "memory snapshot",
        name,
        verdict=_verdict(devices, largest, active, reserved),
        figures=figures,
        facts=(_history_words(snapshot),),
        sections=tuple(_sections(snapshot, devices, largest)),
        notes=tuple(notes),
    )


def _verdict(devices: pd.DataFrame, largest: pd.DataFrame, active: float, reserved: float) -> Verdict:
    sentence = f"{fmt.size(active)} of {fmt.size(reserved)} reserved are in use"
    known = largest[largest["made_at"].notna()]
    if len(known) and active:
        first = known.iloc[0]
        share = fmt.share(first["bytes"] / active)
        sentence += f"; the known line with the most memory is {first['made_at']}: {fmt.size(first['bytes'])} ({share})"
    ooms = int(devices["ooms"].sum()) if devices["ooms"].notna().any() else 0
    if ooms:
        times = "once" if ooms == 1 else f"{ooms:,} times"
        return Verdict("bad", f"Out of memory {times}: {sentence}")
    return Verdict("none", sentence)


def _history_words(snapshot: SnapshotColumns) -> str:
    span = span_us(snapshot)
    if span is None:
        return "final state only, no history"
    entries = fmt.counted(len(snapshot.events), "entry")
    return f"final state and a history of {entries} over {fmt.duration((span[1] - span[0]) / 1e3)}"


def _sections(snapshot: SnapshotColumns, devices: pd.DataFrame, largest: pd.DataFrame) -> Iterator[Section]:
    lives, _ = lifetimes(snapshot)
    pictures = {str(name): _pictures(snapshot, lives, str(name)) for name in devices.index}
    if len(pictures) > 1:
        yield Choice("By device", pictures)
    for parts in list(pictures.values())[: len(pictures) == 1]:
        yield from parts
    columns = (
        Column("made at"),
        Column("op"),
        Column("device", priority=3),
        Column("live", "bytes", bar=True),
        Column("allocations", "count", priority=1),
        Column("largest", "bytes", priority=2),
    )
    rows = [
        (line_words(made_at, op), op if isinstance(op, str) else None, device, *sizes)
        for device, made_at, op, *sizes in largest.itertuples(index=False)
    ]
    yield Table("Allocated memory by origin", columns, rows, budget=Budget(15, 40), noun="origin")
    figures = {
        "name": Column("device"),
        "reserved_bytes": Column("reserved", "bytes"),
        "active_bytes": Column("active", "bytes", 1),
        "allocated_bytes": Column("allocated", "bytes", 2),
        "requested_bytes": Column("requested", "bytes", 3),
        "largest_free_bytes": Column("largest free", "bytes", 4),
        "inactive_split_bytes": Column("free in split segments", "bytes", 5),
        "fragmentation": Column("fragmentation", "share", help="1 - allocated / reserved"),
        "segments": Column("segments", "count", 2),
        "blocks": Column("blocks", "count", 2),
        "ooms": Column("out of memory", "count", 1, help="errors in the history"),
    }
    shown = devices.rename_axis("name").reset_index()
    yield Table.of("Memory of the CUDA allocator", shown, figures, noun="device")


def _pictures(snapshot: SnapshotColumns, lives: pd.DataFrame, name: str) -> tuple[Section, ...]:
    device = int(name.rpartition(":")[2])
    history = history_by_origin(snapshot, lives, device, len(_LOOKS), _INSTANTS)
    marks = {origin: replace(look, word=origin) for origin, look in zip(history.origins, _LOOKS, strict=False)}
    parts = zip((*marks.values(), _OTHERS), history.alive.tolist(), strict=True)
    times, count = history.times_ms.tolist(), int((snapshot.segments["device"] == device).sum())
    segments = []
    for address, size, blocks in largest_segments(snapshot, lives, device, _SEGMENTS):
        # Neighbours with the same origin are one part.
        held = groupby(blocks, lambda block: _FREE if block[0] is None else marks.get(block[0], _OTHERS))
        blocks_of = tuple(Part(mark, sum(part for _, part in run)) for mark, run in held)
        segments.append(Bar(f"{address:#x} {fmt.size(size)}", blocks_of))
    title = "Segments, with their blocks by origin"
    if count > len(segments):
        title += f", the {len(segments)} largest of {count:,}"
    return (
        stacked("Allocated memory by origin, over the history", times, max(times, default=0.0), parts, {}),
        Bars(title, "bytes", tuple(segments)),
    )
