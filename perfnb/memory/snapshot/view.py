"""A snapshot of the CUDA allocator as text and as HTML without scripts: what is reserved, and who holds it."""

from __future__ import annotations

from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header
from perfnb.memory.snapshot.summary import SnapshotSummary

#: Least width for the columns.
MIN_WIDTH = 80


def snapshot_line(summary: SnapshotSummary) -> str:
    """Return the figures in one line, for a repr."""
    return (
        f"<perfnb.MemorySnapshot {escape.plain(summary.name, 60)!r}: {fmt.size(summary.active_bytes)} active of "
        f"{fmt.size(summary.reserved_bytes)} reserved, {summary.segments:,} segments, {summary.blocks:,} blocks>"
    )


def snapshot_text(summary: SnapshotSummary, width: int = 100) -> str:
    """Return the report as text, for a terminal, a log or a notebook without HTML."""
    width = max(MIN_WIDTH, width)
    title = escape.shorten(f"perfnb · memory snapshot · {escape.plain(summary.name, width // 2)}", width)
    parts = [[title, *escape.wrapped(_history(summary), width)]]
    parts += [_device_lines(str(name), row, width) for name, row in summary.fragmentation.iterrows()]
    if len(summary.largest):
        parts.append([_caption(summary), *(_allocation_line(row, width) for _, row in summary.largest.iterrows())])
    if summary.notes:
        parts.append(["Notes", *escape.bullets(summary.notes, width)])
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts)


def snapshot_html(summary: SnapshotSummary) -> str:
    """Return the report as tables without scripts."""
    devices = [
        [escape.html(name), *(escape.html(value) for _, value in _figures(row))]
        for name, row in summary.fragmentation.iterrows()
    ]
    heads = ["device", *(word for word, _ in _figures({}))]
    parts = [tables.table("Memory of the CUDA allocator", heads, devices)] if devices else []
    if len(summary.largest):
        rows = [
            [tables.name(_place(row)), tables.name(_op(row)), escape.html(row["device"]), fmt.size(row["bytes"])]
            for _, row in summary.largest.iterrows()
        ]
        parts.append(tables.table(_caption(summary), ["made at", "op", "device", "size"], rows, texts=3))
    if items := "".join(f"<li>{escape.html_sentence(note)}</li>" for note in summary.notes):
        parts.append(f"<p><strong>Notes</strong></p><ul>{items}</ul>")
    words = header(escape.plain(summary.name), "memory snapshot", "", fmt.capital(_history(summary)))
    return framed(words + "".join(parts), narrow=True)


def _history(summary: SnapshotSummary) -> str:
    if not summary.events:
        return "final state only, no history"
    entries = "1 entry" if summary.events == 1 else f"{summary.events:,} entries"
    span = "without times" if summary.span_ms is None else f"over {fmt.duration(summary.span_ms)}"
    return f"final state and a history of {entries} {span}"


def _figures(row: Any) -> list[tuple[str, str]]:
    """Return the figures of a device, each with its label."""
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


def _caption(summary: SnapshotSummary) -> str:
    if summary.live <= len(summary.largest):
        return "Live allocations, largest first"
    return f"The largest {len(summary.largest)} of {summary.live:,} live allocations"


def _allocation_line(row: Any, width: int) -> str:
    op = escape.fit(_op(row), 24)
    return (
        f"  {fmt.size(row['bytes']):>9}  {escape.fit(row['device'], 8)} {op}  {escape.plain(_place(row), width - 48)}"
    )


def _op(row: Any) -> str:
    return row["op"] if isinstance(row["op"], str) else ""


def _place(row: Any) -> str:
    if isinstance(row["made_at"], str):
        return row["made_at"]
    return "(no Python line)" if _op(row) else "(not recorded)"
