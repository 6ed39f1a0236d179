"""Saving and loading recordings and watches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfnb.frames import folder
from perfnb.frames.folder import VERSION, Kind, write_text
from perfnb.frames.recording import ArithmeticRecord, MemoryRecord, Recording, WatchRecord
from perfnb.frames.schema import SCHEMA, conform

__all__ = ["VERSION", "is_watch", "load", "load_watch", "save", "save_watch", "write_text"]

_EVENTS = (
    *("name", "category", "start_ns", "duration_ns", "thread", "device", "stream", "correlation"),
    *("sequence", "forward_thread", "span"),
)
#: The frames of a recording and the columns that they must have.
_FRAMES = {
    "events": _EVENTS,
    "steps": ("pass", "wall_ms", "data_ms", "samples"),
    "modules": ("name", "module", "parent", "depth", "parameters", "parameter_bytes", "compiled"),
    "spans": ("layer", "loss"),
}
_WATCHED: dict[str, tuple[str, ...]] = {
    "samples": ("t_s", "device", "window_s", "readings"),
    "marks": ("name", "depth", "start_s", "end_s"),
}
#: Those of its parts that may be absent, by the part's name.
_PARTS: dict[str, tuple[type, dict[str, tuple[str, ...]]]] = {
    "memory": (
        MemoryRecord,
        {
            "events": _EVENTS,
            "changes": ("event", "time_ns", "address", "bytes", "device", "allocated", "reserved"),
            "known": ("time_ns", "address", "bytes", "device", "category", "layer", "name"),
            "resident": ("time_ns", "bytes"),
        },
    ),
    "arithmetic": (ArithmeticRecord, {"events": _EVENTS, "calls": ("op", "flops", "bytes", "dtype")}),
    "watch": (WatchRecord, _WATCHED),
}
_PROFILE = Kind(
    "profile",
    frozenset({*_FRAMES, *(f"{part}_{name}" for part, (_, frames) in _PARTS.items() for name in frames)}),
    frozenset({"name", "environment", "options"}),
)
_WATCH = Kind("watch", frozenset(_WATCHED), frozenset({"interval_s", "devices", "ticks", "missed"}))


def save(recording: Recording, path: str | Path) -> Path:
    """Write a recording to the folder `path`, whole or not at all; an earlier profile there is replaced.

    Raises
    ------
    RecordingError
        If something that is no profile stands at `path`, or it cannot be written.
    """
    return folder.save(_PROFILE, recording.frames(), recording.meta, path)


def load(path: str | Path) -> Recording:
    """Read a recording that `save` wrote.

    Raises
    ------
    RecordingError
        If `path` holds none, or a damaged or newer one.
    """
    source = Path(path).expanduser()
    meta = folder.load_meta(_PROFILE, source)
    frames: dict[str, Any] = {name: folder.load_frame(name, columns, source) for name, columns in _FRAMES.items()}
    parts: dict[str, Any] = {}
    for part, (record, tables) in _PARTS.items():
        if any(folder.has_frame(f"{part}_{name}", source) for name in tables):
            parts[part] = record(
                **{name: folder.load_frame(f"{part}_{name}", columns, source) for name, columns in tables.items()}
            )
    return Recording(**frames, **parts, meta=meta)


def save_watch(record: WatchRecord, meta: Mapping[str, Any], path: str | Path) -> Path:
    """Write a watch to the folder `path`; as `save`."""
    return folder.save(_WATCH, {"samples": record.samples, "marks": record.marks}, meta, path)


def is_watch(path: str | Path) -> bool:
    """Whether a saved watch stands at `path`."""
    return folder.is_one(_WATCH, path)


def load_watch(path: str | Path) -> tuple[WatchRecord, dict[str, Any]]:
    """Read a watch that `save_watch` wrote; as `load`."""
    source = Path(path).expanduser()
    meta = folder.load_meta(_WATCH, source)
    frames = {name: folder.load_frame(name, columns, source) for name, columns in _WATCHED.items()}
    known = {name: frame[[column for column in SCHEMA[name] if column in frame]] for name, frame in frames.items()}
    return WatchRecord(conform(known["samples"], "samples"), conform(known["marks"], "marks")), meta
