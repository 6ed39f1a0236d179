"""A snapshot of the CUDA allocator as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import Budget, Choice, Column, Document, Figure, Picture, Section, Table, Verdict
from perfnb.draw.palette import Mark
from perfnb.memory.pictures import IN_HTML, Areas, Segment, areas_html, areas_text, segments_html, segments_text
from perfnb.memory.snapshot.tables import history_by_origin, holders, largest_segments, lifetimes, line_words, span_us

if TYPE_CHECKING:
    from perfnb.memory.snapshot.reading import SnapshotColumns

#: Looks of the origins that hold most, and of all others.
_LOOKS = tuple(mark for name, mark in palette.KINDS.items() if name != "other")
_OTHERS = replace(palette.mark("other"), word="all others", glyph="+")
#: Most instants of the history that are drawn.
_INSTANTS = 240


def snapshot_document(
    snapshot: SnapshotColumns, name: str, devices: pd.DataFrame, live: pd.DataFrame, notes: Sequence[str]
) -> Document:
    """What holds the memory, how that came about, and how it lies in the segments.

    Parameters
    ----------
    snapshot : SnapshotColumns
    name : str
    devices : DataFrame
        As `MemorySnapshot.fragmentation`.
    live : DataFrame
        The live ones of `MemorySnapshot.allocations`.
    notes : sequence of str
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
        sentence += f"; of the known lines, {first['made_at']} holds most: {fmt.size(first['bytes'])} ({share})"
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
    yield Table("Who holds the memory", columns, rows, budget=Budget(15, 40), noun="origin")
    heads = (
        Column("device"),
        *(Column(head, "bytes", priority=place) for place, (head, _) in enumerate(_BYTES)),
        Column("fragmentation", "share", help="1 - allocated / reserved"),
        *(Column(head, "count", priority=2) for head in ("segments", "blocks")),
        Column("out of memory", "count", priority=1, help="errors in the history"),
    )
    lines = [
        (str(name), *(row[column] for _, column in _BYTES), row["fragmentation"], row["segments"], row["blocks"],
         row["ooms"])
        for name, row in devices.iterrows()
    ]  # fmt: skip
    yield Table("Memory of the CUDA allocator", heads, lines, noun="device")


_BYTES = (
    ("reserved", "reserved_bytes"),
    ("active", "active_bytes"),
    ("allocated", "allocated_bytes"),
    ("requested", "requested_bytes"),
    ("largest free", "largest_free_bytes"),
    ("free in split segments", "inactive_split_bytes"),
)


def _pictures(snapshot: SnapshotColumns, lives: pd.DataFrame, name: str) -> tuple[Section, ...]:
    device = int(name.rpartition(":")[2])
    history = history_by_origin(snapshot, lives, device, len(_LOOKS), _INSTANTS)
    marks = {origin: replace(look, word=origin) for origin, look in zip(history.origins, _LOOKS, strict=False)}
    parts = [*zip((*marks.values(), _OTHERS), history.alive.tolist(), strict=True)]
    areas = Areas(history.times_ms.tolist(), float(history.times_ms.max(initial=0.0)), parts)
    segments = [
        Segment(f"{address:#x} {fmt.size(size)}", size, [(_mark(origin, marks), part) for origin, part in blocks])
        for address, size, blocks in largest_segments(snapshot, lives, device, IN_HTML)
    ]
    count = int((snapshot.segments["device"] == device).sum())
    return (
        Picture(
            "snapshot_area",
            "Allocated memory by origin, over the history",
            partial(areas_text, areas),
            partial(areas_html, areas),
        ),
        Picture(
            "snapshot_map",
            "Segments, with their blocks by origin",
            partial(segments_text, segments, count),
            partial(segments_html, segments, count),
        ),
    )


def _mark(origin: str | None, marks: dict[str, Mark]) -> Mark | None:
    return None if origin is None else marks.get(origin, _OTHERS)
