"""A saved profile that is read as far as it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb.errors import RecordingError
from perfnb.frames import folder
from perfnb.frames.folder import Kind
from perfnb.frames.paths import usable
from perfnb.frames.recording import ArithmeticRecord, MemoryRecord, Recording, WatchRecord
from perfnb.frames.schema import INDEX, SCHEMA, conform

EVENT_COLUMNS = (
    *("name", "category", "start_ns", "duration_ns", "thread", "device", "stream", "correlation"),
    *("sequence", "forward_thread", "span"),
)
WATCH_COLUMNS: dict[str, tuple[str, ...]] = {
    "samples": ("t_s", "device", "window_s", "readings"),
    "marks": ("name", "depth", "start_s", "end_s"),
}
#: The frames of a recording and the columns that they must have.
_FRAMES = {
    "events": EVENT_COLUMNS,
    "steps": ("pass", "wall_ms", "data_ms", "samples"),
    "modules": ("name", "module", "parent", "depth", "parameters", "parameter_bytes", "compiled"),
    "spans": ("layer", "loss"),
}
#: Of a loaded trace alone, which may lack them.
_OF_TRACE: dict[str, tuple[str, ...]] = {
    "outside": EVENT_COLUMNS,
    "trace_memory": (
        *("time_ns", "process", "thread", "address", "bytes", "device_type", "device", "allocated", "reserved"),
    ),
}
#: Those of its parts that may be absent, by the part's name.
_PARTS: dict[str, tuple[type, dict[str, tuple[str, ...]]]] = {
    "memory": (
        MemoryRecord,
        {
            "events": EVENT_COLUMNS,
            "changes": ("event", "time_ns", "address", "bytes", "device", "allocated", "reserved"),
            "known": ("time_ns", "address", "bytes", "device", "category", "layer", "name"),
            "resident": ("time_ns", "bytes"),
        },
    ),
    "arithmetic": (ArithmeticRecord, {"events": EVENT_COLUMNS, "calls": ("op", "flops", "bytes", "dtype")}),
    "watch": (WatchRecord, WATCH_COLUMNS),
}
#: Tables that may be saved finished, beside the frames that they were computed from.
TABLES = ("events", "layers", "phases", "ops", "layer_ops", "kernels", "gpu_time")
_TABLE, _MADE_BY = "table_{}", "tables_made_by"

PROFILE = Kind(
    "profile",
    frozenset(
        {
            *(*_FRAMES, *_OF_TRACE, *(_TABLE.format(name) for name in TABLES)),
            *(f"{part}_{name}" for part, (_, frames) in _PARTS.items() for name in frames),
        }
    ),
    frozenset({"name", "environment", "options"}),
)


def content(
    recording: Recording, tables: Mapping[str, pd.DataFrame], made_by: str | None
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """The frames and facts that are written of a recording."""
    if tables.keys() - set(TABLES):
        raise ValueError(f"tables that are not saved: {sorted(tables.keys() - set(TABLES))}")
    finished = {_TABLE.format(name): table for name, table in tables.items()} if made_by else {}
    return recording.frames() | finished, {**recording.meta, **({_MADE_BY: made_by} if finished else {})}


class SavedProfile:
    """What `perfnb.frames.storage.save` wrote, held as it lies on disk and decoded when it is asked for.

    What becomes of the folder meanwhile does not matter.

    Attributes
    ----------
    meta : dict
        As `Recording.meta`.

    Raises
    ------
    RecordingError
        If `path` holds no profile, or a damaged or newer one.
    """

    def __init__(self, path: str | Path) -> None:
        source = usable(path)
        self.meta = folder.load_meta(PROFILE, source)
        self._made_by = self.meta.pop(_MADE_BY, None)
        self._files = {name: folder.read(name, source) for name in PROFILE.frames if folder.has_frame(name, source)}
        self._source = source
        self._parts = [
            part for part, (_, tables) in _PARTS.items() if any(f"{part}_{name}" in self._files for name in tables)
        ]
        for name, columns in self._needed().items():
            folder.check(name, columns, source, self._files.get(name))

    def _needed(self) -> dict[str, tuple[str, ...]]:
        needed = dict(_FRAMES)
        for part in self._parts:
            needed |= {f"{part}_{name}": columns for name, columns in _PARTS[part][1].items()}
        return needed | {name: columns for name, columns in _OF_TRACE.items() if name in self._files}

    def recording(self) -> Recording:
        """All that was recorded.

        Raises
        ------
        RecordingError
            If a file is damaged.
        """
        frames: dict[str, Any] = {name: self._frame(name) for name in _FRAMES}
        for part in self._parts:
            record, tables = _PARTS[part]
            frames[part] = record(**{name: self._frame(f"{part}_{name}") for name in tables})
        frames |= {name: self._frame(name) for name in _OF_TRACE if name in self._files}
        return Recording(**frames, meta=self.meta)

    def table(self, name: str, made_by: str) -> pd.DataFrame | None:
        """A finished table, ``None`` if none was saved, or not by the same analysis."""
        file = _TABLE.format(name)
        if self._made_by != made_by or file not in self._files:
            return None
        try:
            table = self._frame(file)
        except RecordingError:
            return None  # it can be computed again
        columns = SCHEMA[name]
        if not len(table):  # Parquet does not tell of what type nothing is
            table = table.drop(columns=[column for column, kind in columns.items() if kind == "category"])
            table = conform(table, name)
        # Another pandas may read types in its own way.
        same = list(table.columns) == list(columns) and all(str(table[c].dtype) == t for c, t in columns.items())
        return table if same and table.index.name == INDEX.get(name) else None

    def _frame(self, name: str) -> pd.DataFrame:
        return folder.decoded(name, self._source, self._files[name])
