"""Saving and loading recordings: a folder of Parquet files and one JSON file, decoded as far as it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfnb.errors import RecordingError
from perfnb.files import usable
from perfnb.recording import folder, raw_columns
from perfnb.recording.folder import Kind, StoredFrame
from perfnb.recording.raw_columns import Columns
from perfnb.recording.recording import ArithmeticRecord, MemoryRecord, PythonRecord, Recording, WatchRecord
from perfnb.recording.saved_facts import ProfileFacts
from perfnb.recording.schema import INDEX, SCHEMA, conform
from perfnb.trace.columns import MISSING

#: The frames that a recording may have, and the columns they must have.
_COLUMNS: dict[str, Columns] = {
    "events": raw_columns.EVENTS,
    "steps": raw_columns.STEPS,
    "modules": raw_columns.MODULES,
    "spans": raw_columns.SPANS,
    "memory_events": raw_columns.EVENTS,
    "memory_changes": raw_columns.CHANGES,
    "memory_known": raw_columns.KNOWN,
    "memory_resident": raw_columns.RESIDENT,
    "arithmetic_events": raw_columns.EVENTS,
    "arithmetic_calls": raw_columns.CALLS,
    "watch_samples": raw_columns.SAMPLES,
    "watch_marks": raw_columns.MARKS,
    "python_tree": raw_columns.PYTHON,
    "outside": raw_columns.EVENTS,
    "trace_memory": raw_columns.TRACE_MEMORY,
}
_NEEDED, _OF_TRACE = ("events", "steps", "modules", "spans"), ("outside", "trace_memory")
#: The optional parts of a recording; their frames' names start with theirs.
_PARTS: dict[str, Any] = {
    "memory": MemoryRecord,
    "arithmetic": ArithmeticRecord,
    "watch": WatchRecord,
    "python": PythonRecord,
}
#: Frames that may be long: their files' statistics are trusted until they are decoded.
_LONG = ("events", "outside", "trace_memory", "memory_events", "arithmetic_events")
#: Tables that may be saved with the frames they were computed from.
TABLES = ("events", "layers", "phases", "ops", "layer_ops", "kernels", "gpu_time")
#: Those of them that are all that a reduced profile has.
REDUCED_TABLES = TABLES[1:]
_TABLE, _MADE_BY = "table_{}", "tables_made_by"

PROFILE = Kind(
    "profile",
    frozenset({*_COLUMNS, *map(_TABLE.format, TABLES)}),
    frozenset({"name", "environment", "options"}),
    ProfileFacts,
)


def content(
    recording: Recording, tables: Mapping[str, pd.DataFrame], made_by: str | None
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Return the frames and facts that are written for a recording."""
    if tables.keys() - set(TABLES):
        raise ValueError(f"tables that cannot be saved: {sorted(tables.keys() - set(TABLES))}")
    finished = {_TABLE.format(name): table for name, table in tables.items()} if made_by else {}
    return recording.frames() | finished, {**recording.meta, **({_MADE_BY: made_by} if finished else {})}


def save(
    recording: Recording,
    path: str | Path,
    tables: Mapping[str, pd.DataFrame] | None = None,
    made_by: str | None = None,
) -> Path:
    """Write a recording to the folder `path`, all or nothing; an earlier profile there is replaced.

    Parameters
    ----------
    recording : Recording
    path : str or Path
    tables : mapping of str to DataFrame, optional
        Tables computed from it, out of `TABLES`, to save beside it.
    made_by : str, optional
        The version of the analysis that computed them. Only the same version reads them again; without it they are not
        saved.

    Raises
    ------
    RecordingError
        If something other than a profile is at `path`, or it cannot be written.
    """
    return folder.save(PROFILE, *content(recording, tables or {}, made_by), path)


def load(path: str | Path) -> Recording:
    """Read a recording that `save` wrote; errors as in `SavedProfile`."""
    return SavedProfile(path).recording()


class SavedProfile:
    """What `save` wrote, held as stored and decoded when it is asked for.

    Later changes to the folder do not matter.

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
        self._files = {
            name: StoredFrame(name, source) for name in PROFILE.frames if (source / f"{name}.parquet").exists()
        }
        self._source = source
        self._parts = [part for part in _PARTS if any(name.startswith(f"{part}_") for name in self._files)]
        self._check_facts()
        self._columns = {
            name: columns
            for name, columns in _COLUMNS.items()
            if name in (*_NEEDED, *self._files) or name.partition("_")[0] in self._parts
        }
        complete = {name: self._check(name) for name in self._columns}
        self._decoded: dict[str, pd.DataFrame] = {}
        self._decoded = {name: self._frame(name) for name in complete if name not in _LONG}
        events, numbers = raw_columns.EVENTS, self._decoded["spans"].index
        highest = int(numbers.max()) if len(numbers) else MISSING
        self._columns["events"] = {**events, "span": replace(events["span"], high=highest)}
        complete["events"] = self._check("events")
        for name in _LONG:
            if not complete.get(name, True):
                self._frame(name)
        self._check_places()

    def _check(self, name: str) -> bool:
        if name not in self._files:
            raise RecordingError(f"{self._source / name}.parquet cannot be read: it is missing.")
        return self._files[name].check(self._columns[name])

    def _check_facts(self) -> None:
        """Refuse facts that lack others they need."""
        needed = [
            *(("options.warmup", "options.budget_s") if "trace" not in self.meta else ()),
            *(("failed_in",) if "failure" in self.meta else ()),
            *(("watch",) if "watch" in self._parts else ()),
            *(("python",) if "python" in self._parts else ()),
        ]
        for name in needed:
            above, _, key = name.rpartition(".")
            if key not in (self.meta[above] if above else self.meta):
                raise RecordingError(f"{self._source / PROFILE.meta} is damaged: it has no meta.{name}.")

    def _check_places(self) -> None:
        """Refuse rows that point nowhere."""
        modules, spans = self._decoded["modules"], self._decoded["spans"]
        parent, depth = (modules[name].to_numpy() for name in ("parent", "depth"))
        self._require("modules", "parent", (parent < np.arange(len(modules))).all())
        around = np.append(depth, MISSING)[parent] if len(modules) else depth
        self._require("modules", "depth", (depth == around + 1).all())
        self._require("spans", "layer", (spans["layer"] < len(modules)).all())
        if "python" in self._parts:
            around = self._decoded["python_tree"]["parent"].to_numpy()
            self._require("python_tree", "parent", (around < np.arange(len(around))).all())
        if "memory" in self._parts:
            known, changes = self._decoded["memory_known"], self._decoded["memory_changes"]
            self._require("memory_known", "layer", (known["layer"] < len(modules)).all())
            rows = self._files["memory_events"].rows()
            self._require("memory_changes", "event", (changes["event"] < rows).all())

    def _require(self, frame: str, column: str, holds: bool | np.bool_) -> None:
        if not holds:
            raise RecordingError(
                f"{self._source / f'{frame}.parquet'} is damaged: its column {column!r} refers to a missing row."
            )

    def recording(self) -> Recording:
        """Return everything that was recorded.

        Raises
        ------
        RecordingError
            If a file is damaged.
        """
        alone = [name for name in (*_NEEDED, *_OF_TRACE) if name in self._columns]
        frames: dict[str, Any] = {name: self._frame(name) for name in alone}
        for part in self._parts:
            tables = {field.name: self._frame(f"{part}_{field.name}") for field in fields(_PARTS[part])}
            frames[part] = _PARTS[part](**tables)
        if "watch" in frames:
            frames["watch"] = watch_of(frames["watch"])
        return Recording(**frames, meta=self.meta)

    def of_rank(self, rank: int) -> SavedProfile:
        """Return the same profile as that of a rank."""
        if self.meta.get("rank", 0) == rank:
            return self
        other = copy(self)
        other.meta = {**self.meta, "rank": rank}
        other._made_by = None  # finished tables contain the rank
        return other

    def table(self, name: str, made_by: str | None) -> pd.DataFrame | None:
        """Return a finished table, ``None`` if none was saved, or by a different analysis.

        Those of a reduced profile are returned whichever analysis made them: they cannot be computed again.

        Raises
        ------
        RecordingError
            If a table of a reduced profile cannot be read.
        """
        if "reduced" in self.meta and name in REDUCED_TABLES:
            made_by = self._made_by
        table = None if made_by is None else self._table(name, made_by)
        if table is None and "reduced" in self.meta and name in REDUCED_TABLES:
            raise RecordingError(f"{self._source} keeps only its tables, and {name} cannot be read: save it again.")
        return table

    def _table(self, name: str, made_by: str) -> pd.DataFrame | None:
        file = _TABLE.format(name)
        if self._made_by != made_by or file not in self._files:
            return None
        columns = SCHEMA[name]
        try:
            names = [*columns, *filter(None, [INDEX.get(name)])]
            table = self._files[file].as_stored(names)
            if not len(table):  # Parquet keeps no type for no values
                table = table.drop(columns=[column for column, kind in columns.items() if kind == "category"])
                table = conform(table, name)
        except (RecordingError, KeyError, ValueError, TypeError):
            return None  # it can be computed again
        # Another pandas may read types differently.
        same = list(table.columns) == list(columns) and all(table[c].dtype == t for c, t in columns.items())
        return table if same and table.index.name == INDEX.get(name) else None

    def _frame(self, name: str) -> pd.DataFrame:
        return self._decoded[name] if name in self._decoded else self._files[name].decoded(self._columns[name])


def watch_of(read: WatchRecord) -> WatchRecord:
    """Return a watch's frames, as read from disk, in the form that a watch has, with infinite figures missing."""
    frames = {name: conform(frame, name) for name, frame in vars(read).items()}
    for frame in frames.values():
        numbers = frame.select_dtypes("Float64").columns
        frame[numbers] = frame[numbers].mask(frame[numbers].isin([float("inf"), float("-inf")]))
    return WatchRecord(**frames)
