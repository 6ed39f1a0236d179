"""Saving and loading recordings: the frames of a saved profile, decoded as far as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfnb.errors import RecordingError
from perfnb.recording import store
from perfnb.recording.frame_files import Columns, SavedColumn
from perfnb.recording.outcome import Outcome
from perfnb.recording.recording import PARTS, Recording, WatchRecord
from perfnb.recording.saved_facts import ProfileFacts
from perfnb.recording.schema import INDEX, SCHEMA, conform
from perfnb.recording.store import SavedFolder, SavedKind
from perfnb.recording.text import TEXT
from perfnb.trace.columns import MISSING

_FAR = 2**62
_WHOLE, _FROM_NONE, _LENGTH = SavedColumn("int64"), SavedColumn("int64", low=-1), SavedColumn("int64", low=0)
_COUNT = SavedColumn("Int64", missing=True, low=0, high=_FAR)
_LABEL, _MAYBE_LABEL = SavedColumn("category"), SavedColumn("category", missing=True)
_TEXT, _MAYBE_TEXT = SavedColumn(TEXT), SavedColumn(TEXT, missing=True)
_MS, _AT = SavedColumn("float64", low=0, high=1e15), SavedColumn("float64", low=-1e12, high=1e12)
#: Columns that earlier versions did not write.
_OLD_WHOLE, _OLD_FROM_NONE = replace(_WHOLE, needed=False), replace(_FROM_NONE, needed=False)
_NUMBER_OF_ROW = SavedColumn("int64", low=0, needed=False, index=True)

EVENTS: Columns = {
    **{"name": _LABEL, "category": _LABEL, "start_ns": _WHOLE, "duration_ns": _LENGTH},
    **dict.fromkeys(("thread", "device", "stream", "correlation", "sequence", "forward_thread"), _WHOLE),
    "span": _FROM_NONE,
    **dict.fromkeys(("process", "external_id", "wait_stream", "wait_correlation", "bytes"), _OLD_WHOLE),
    "elements": _OLD_FROM_NONE,
    **dict.fromkeys(("shapes", "collective", "group", "dtype"), replace(_MAYBE_LABEL, needed=False)),
    "marks_step": _OLD_FROM_NONE,
}


def frame_of_schema(table: str, needed: Columns | None = None) -> Columns:
    """Return the columns of a table of the schema, any of which may lack values.

    Parameters
    ----------
    table : str
    needed : Columns, optional
        What some of them must hold; then the others need not be there.
    """
    columns = {name: SavedColumn(dtype, missing=True, needed=needed is None) for name, dtype in SCHEMA[table].items()}
    index = {INDEX[table]: SavedColumn(TEXT, missing=True, index=True)} if table in INDEX else {}
    return columns | index | dict(needed or {})


SAMPLES = frame_of_schema(
    "samples",
    {
        **{"t_s": _AT, "device": _LABEL, "window_s": SavedColumn("Float64", missing=True)},
        "readings": replace(_COUNT, missing=False),
    },
)
MARKS = frame_of_schema(
    "marks",
    {
        **{"name": _TEXT, "depth": SavedColumn("Int64", low=0, high=1e6)},
        **{"start_s": _AT, "end_s": replace(_AT, missing=True)},
    },
)
#: The frames that a recording may have, and the columns they must have.
_FRAMES: dict[str, Columns] = {
    "events": EVENTS,
    "steps": {
        **{"pass": _LABEL, "start_s": replace(_AT, needed=False), "wall_ms": _MS, "samples": _COUNT},
        "data_ms": replace(_MS, missing=True),
        "step": SavedColumn("Int64", missing=True, needed=False),
    },
    "modules": {
        **{"name": _TEXT, "module": _MAYBE_TEXT, "parent": _FROM_NONE, "depth": _LENGTH},
        **{"parameters": _COUNT, "parameter_bytes": _COUNT, "compiled": SavedColumn("bool")},
    },
    "spans": {
        **{"layer": _FROM_NONE, "loss": SavedColumn("bool"), "span": _NUMBER_OF_ROW},
        "derived": SavedColumn("bool", needed=False),
    },
    "memory_events": EVENTS,
    "memory_changes": {
        **{"event": _FROM_NONE, "time_ns": _WHOLE, "address": _WHOLE, "bytes": _WHOLE},
        **{"device": _LABEL, "allocated": _WHOLE, "reserved": _WHOLE},
    },
    "memory_known": {
        **{"time_ns": _WHOLE, "address": _WHOLE, "bytes": _LENGTH, "device": _LABEL, "category": _LABEL},
        **{"layer": _FROM_NONE, "name": _MAYBE_TEXT},
    },
    "memory_resident": {"time_ns": _WHOLE, "bytes": _LENGTH},
    "arithmetic_events": EVENTS,
    "arithmetic_calls": {
        **{"op": _LABEL, "flops": _COUNT, "bytes": replace(_LENGTH, high=_FAR), "dtype": _MAYBE_LABEL},
        "number": _NUMBER_OF_ROW,
    },
    "watch_samples": SAMPLES,
    "watch_marks": MARKS,
    "python_tree": {
        **{"parent": _FROM_NONE, "kind": _LABEL, "name": _TEXT, "file": _TEXT, "code": _TEXT},
        "line": SavedColumn("int64", low=-1, high=2**31),
        **dict.fromkeys(("self_ns", "samples"), SavedColumn("int64", low=0, high=_FAR)),
    },
    "compiled_kernels": {
        **{"graph": _TEXT, "kernel": _TEXT, "ops": _TEXT, "source": _TEXT, "direction": _LABEL},
        **dict.fromkeys(("bytes", "flops"), SavedColumn("int64", low=0, high=_FAR)),
    },
    "compiled_shares": {"kernel": _LENGTH, "layer": _LENGTH, "share": SavedColumn("float64", low=0, high=1)},
    "compiled_code": {
        **dict.fromkeys(("region", "function", "line", "recompiled", "broke", "broke_at"), _TEXT),
        **{"guards": _COUNT, "compile_s": SavedColumn("Float64", missing=True, low=0, high=1e9)},
    },
    "compiled_calls": {"kernel": _LENGTH, "start_ns": _WHOLE, "duration_ns": _LENGTH},
    "outside": EVENTS,
    "trace_memory": {
        **dict.fromkeys(("time_ns", "process", "thread", "address", "bytes"), _WHOLE),
        **dict.fromkeys(("device_type", "device", "allocated", "reserved"), _WHOLE),
    },
}
_NEEDED, _OF_TRACE = ("events", "steps", "modules", "spans"), ("outside", "trace_memory")
#: Frames that may be long, of whole numbers and labels: their files' statistics are trusted until they are decoded.
_LONG = ("events", "outside", "trace_memory", "memory_events", "arithmetic_events")
#: Tables that may be saved with the frames they were computed from.
TABLES = ("events", "layers", "phases", "ops", "layer_ops", "kernels", "gpu_time")
#: Those of them that are all that a reduced profile has.
REDUCED_TABLES = TABLES[1:]
_TABLE, _MADE_BY = "table_{}", "tables_made_by"

PROFILE = SavedKind("profile", ProfileFacts, _FRAMES | {_TABLE.format(name): frame_of_schema(name) for name in TABLES})


def save(
    recording: Recording,
    path: str | Path,
    tables: Mapping[str, pd.DataFrame] | None = None,
    made_by: str | None = None,
    outcome: Outcome | None = None,
) -> Path:
    """Write a recording to the folder `path`, all or nothing; an earlier profile there is replaced.

    Parameters
    ----------
    recording : Recording
    path : str or Path
    tables : mapping, optional
        Finished tables by name, of those in `TABLES`.
    made_by : str, optional
        The version of the analysis that computed them. Only the same version reads them again; without it they are not
        saved.
    outcome : Outcome, optional
        What was found.

    Raises
    ------
    RecordingError
        If something other than a profile is at `path`, or it cannot be written.
    """
    finished = {_TABLE.format(name): table for name, table in (tables or {}).items()} if made_by else {}
    facts = {**recording.meta, **({_MADE_BY: made_by} if finished else {})}
    return store.save(PROFILE, recording.frames() | finished, facts, path, outcome=outcome)


class SavedProfile:
    """What `save` wrote, checked on loading and decoded when it is asked for.

    Attributes
    ----------
    meta : dict
        As `Recording.meta`.
    outcome : Outcome or None
        What was found when it was saved.

    Raises
    ------
    RecordingError
        If `path` holds no profile, or a damaged or newer one.
    """

    def __init__(self, path: str | Path) -> None:
        self._saved = SavedFolder(PROFILE, path)
        self.meta, self.outcome = self._saved.facts, self._saved.outcome
        self._made_by = self.meta.pop(_MADE_BY, None)
        self._parts = [part for part in PARTS if any(name in self._saved for name in _frames_of(part).values())]
        self._check_facts()
        names = [*_NEEDED, *(name for part in self._parts for name in _frames_of(part).values())]
        names += [name for name in _OF_TRACE if name in self._saved]
        for name in filter(_LONG.__contains__, names):
            self._saved.file(name).check()
        self._short = {name: self._saved.frame(name) for name in names if name not in _LONG}
        numbers = self._short["spans"].index
        self._saved.file("events").check(span=int(numbers.max()) if len(numbers) else MISSING)
        self._check_rows()

    def _check_facts(self) -> None:
        """Refuse facts that lack others they need."""
        needed: list[str] = [part for part in ("watch", "python") if part in self._parts]
        needed += ["failed_in"] if "failure" in self.meta else []
        lacking = [f"meta.{name}" for name in needed if name not in self.meta]
        if "trace" not in self.meta:
            lacking += [f"meta.options.{name}" for name in ("warmup", "budget_s") if name not in self.meta["options"]]
        if lacking:
            raise self._saved.damaged(PROFILE.file, f"it has no {lacking[0]}")

    def _check_rows(self) -> None:
        """Refuse rows that refer to others that do not exist."""
        modules, spans = self._short["modules"], self._short["spans"]
        parent, depth = (modules[name].to_numpy() for name in ("parent", "depth"))
        around = np.append(depth, MISSING)[np.minimum(parent, len(depth))]
        places: dict[tuple[str, str], Any] = {
            ("modules", "parent"): parent < np.arange(len(modules)),
            ("modules", "depth"): depth == around + 1,
            ("spans", "layer"): spans["layer"] < len(modules),
        }
        if "python" in self._parts:
            tree = self._short["python_tree"]
            places["python_tree", "parent"] = tree["parent"] < np.arange(len(tree))
        if "compiled" in self._parts:
            count = len(self._short["compiled_kernels"])
            places["compiled_shares", "kernel"] = self._short["compiled_shares"]["kernel"] < count
            places["compiled_shares", "layer"] = self._short["compiled_shares"]["layer"] < len(modules)
            places["compiled_calls", "kernel"] = self._short["compiled_calls"]["kernel"] < count
        if "memory" in self._parts:
            places["memory_known", "layer"] = self._short["memory_known"]["layer"] < len(modules)
            rows = self._saved.file("memory_events").rows()
            places["memory_changes", "event"] = self._short["memory_changes"]["event"] < rows
        for (frame, column), right in places.items():
            if not right.all():
                raise self._saved.damaged(f"{frame}.parquet", f"its column {column!r} refers to a missing row")

    def recording(self) -> Recording:
        """Return everything that was recorded.

        Raises
        ------
        RecordingError
            If a file is damaged.
        """
        frames: dict[str, Any] = {name: self._frame(name) for name in (*_NEEDED, *_OF_TRACE) if name in self._saved}
        for part in self._parts:
            frames[part] = PARTS[part](**{field: self._frame(name) for field, name in _frames_of(part).items()})
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
        """Return a finished table; ``None`` if none was saved, or it is damaged, or from a different analysis.

        Those of a reduced profile are returned whichever analysis made them: they cannot be computed again.

        Raises
        ------
        RecordingError
            If a table of a reduced profile cannot be read.
        """
        alone = "reduced" in self.meta and name in REDUCED_TABLES
        try:
            if alone or (made_by is not None and self._made_by == made_by):
                return self._saved.frame(_TABLE.format(name))
        except RecordingError as error:
            if alone:
                raise RecordingError(
                    f"{self._saved.source} keeps only its tables, and {name} cannot be read: save it again."
                ) from error
        return None  # it can be computed again

    def _frame(self, name: str) -> pd.DataFrame:
        return self._short[name] if name in self._short else self._saved.frame(name)


def _frames_of(part: str) -> dict[str, str]:
    """Return the names of the frames of a part, by its fields."""
    return {field.name: f"{part}_{field.name}" for field in fields(PARTS[part])}


def watch_of(read: WatchRecord) -> WatchRecord:
    """Return a watch's frames, as read from disk, in the form that a watch has."""
    return WatchRecord(conform(read.samples, "samples"), conform(read.marks, "marks"))
