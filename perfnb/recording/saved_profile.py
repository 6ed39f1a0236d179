"""Save and load recordings. The tables of a saved profile are decoded only when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfnb.errors import RecordingError
from perfnb.recording import store
from perfnb.recording.outcome import Outcome
from perfnb.recording.raw_frames import RAW_FRAMES, frame_of_schema
from perfnb.recording.recording import PARTS, Recording, WatchRecord
from perfnb.recording.saved_facts import ProfileFacts
from perfnb.recording.schema import conform
from perfnb.recording.store import SavedFolder, SavedKind
from perfnb.trace.columns import MISSING

_NEEDED, _OF_TRACE = ("events", "steps", "modules", "spans"), ("outside", "trace_memory")
#: Potentially long frames of integers and labels. The statistics in their files are trusted until they are decoded.
_LONG = ("events", "outside", "trace_memory", "memory_events", "arithmetic_events")
#: Tables that may be saved together with the frames from which they were computed.
TABLES = ("events", "layers", "phases", "ops", "layer_ops", "kernels", "gpu_time")
#: The only tables in a reduced profile.
REDUCED_TABLES = TABLES[1:]
_TABLE, _MADE_BY = "table_{}", "tables_made_by"

_FRAMES = {**RAW_FRAMES, **{_TABLE.format(name): frame_of_schema(name) for name in TABLES}}
PROFILE = SavedKind("profile", ProfileFacts, _FRAMES)


def save(
    recording: Recording,
    path: str | Path,
    tables: Mapping[str, pd.DataFrame] | None = None,
    made_by: str | None = None,
    outcome: Outcome | None = None,
) -> Path:
    """Write a recording to the folder `path`, either completely or not at all.

    If the folder contains an earlier profile, it is replaced.

    Parameters
    ----------
    recording : Recording
    path : str or Path
    tables : mapping, optional
        Precomputed tables by name. Only the names in `TABLES` are allowed.
    made_by : str, optional
        The version of the analysis that computed the tables. They are only read by the same version, and they are not
        saved if this is omitted.
    outcome : Outcome, optional
        The findings.

    Raises
    ------
    RecordingError
        If `path` contains something other than a profile, or if it cannot be written.
    """
    finished = {_TABLE.format(name): table for name, table in (tables or {}).items()} if made_by else {}
    facts = {**recording.meta, **({_MADE_BY: made_by} if finished else {})}
    return store.save(PROFILE, recording.frames() | finished, facts, path, outcome=outcome)


class SavedProfile:
    """A saved profile, checked on loading and decoded on request.

    Attributes
    ----------
    meta : dict
        The metadata, as in `Recording.meta`.
    outcome : Outcome or None
        The findings at the time when it was saved.

    Raises
    ------
    RecordingError
        If `path` does not contain a profile, or if the profile is damaged or was saved by a newer version.
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
        """Raise an error if there are facts without the other facts that they depend on."""
        needed: list[str] = [part for part in ("watch", "python") if part in self._parts]
        needed += ["failed_in"] if "failure" in self.meta else []
        lacking = [f"meta.{name}" for name in needed if name not in self.meta]
        if "trace" not in self.meta:
            lacking += [f"meta.options.{name}" for name in ("warmup", "budget_s") if name not in self.meta["options"]]
        if lacking:
            raise self._saved.damaged(PROFILE.file, f"it does not contain {lacking[0]}")

    def _check_rows(self) -> None:
        """Raise an error if any row refers to a row that does not exist."""
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
        """Return the same profile, assigned to a rank."""
        if self.meta.get("rank", 0) == rank:
            return self
        other = copy(self)
        other.meta = {**self.meta, "rank": rank}
        other._made_by = None  # precomputed tables contain the old rank
        return other

    def table(self, name: str, made_by: str | None) -> pd.DataFrame | None:
        """Return a precomputed table, or ``None`` if it was not saved, is damaged or is from a different analysis.

        A reduced profile's tables are returned regardless of the analysis that produced them, because they cannot be
        recomputed.

        Raises
        ------
        RecordingError
            If one of a reduced profile's tables cannot be read.
        """
        alone = "reduced" in self.meta and name in REDUCED_TABLES
        try:
            if alone or (made_by is not None and self._made_by == made_by):
                return self._saved.frame(_TABLE.format(name))
        except RecordingError as error:
            if alone:
                raise RecordingError(
                    f"{self._saved.source} contains only tables, and {name} cannot be read: save it again."
                ) from error
        return None  # it can be computed again

    def _frame(self, name: str) -> pd.DataFrame:
        return self._short[name] if name in self._short else self._saved.frame(name)


def _frames_of(part: str) -> dict[str, str]:
    """Return the names of a part's tables, by its fields."""
    return {field.name: f"{part}_{field.name}" for field in fields(PARTS[part])}


def watch_of(read: WatchRecord) -> WatchRecord:
    """Return the watch that the given tables, which were read from disk, represent."""
    return WatchRecord(conform(read.samples, "samples"), conform(read.marks, "marks"))
