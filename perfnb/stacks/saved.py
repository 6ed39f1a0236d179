"""Saving and loading a host profile: a folder of Parquet files and one JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Required, TypedDict

import numpy as np
import pandas as pd
from msgspec import Meta

from perfnb.errors import RecordingError
from perfnb.files import usable
from perfnb.recording import folder
from perfnb.recording.folder import Kind
from perfnb.recording.nesting import NONE
from perfnb.recording.raw_columns import Column
from perfnb.stacks.formats import HostRecord
from perfnb.stacks.tree import CallTree, Function, function_frame

_COUNT = Column("whole", low=0, high=2**62)
_PLACE = Column("whole", low=-1, high=2**31)
_TREE = {"parent": _PLACE, "function": _PLACE, "self": Column("number", low=0, high=1e300), "samples": _COUNT}
_FUNCTIONS = {
    "function": Column("text"),
    "file": Column("text", missing=True),
    "line": Column("count", missing=True, low=0, high=2**31),
}
_CALLS = {
    **_FUNCTIONS,
    "calls": Column("count", missing=True, low=0, high=2**62),
    "self_ms": Column("number"),
    "total_ms": Column("number"),
}


class _Facts(TypedDict, total=False):
    name: Required[str]
    format: Required[str]
    unit: Required[str]
    samples: Required[Annotated[int, Meta(ge=0, le=2**62)] | None]
    notes: Required[list[str]]


HOST = Kind(
    "host_profile",
    frozenset({"tree", "functions", "calls"}),
    frozenset({"name", "format", "unit", "samples", "notes"}),
    _Facts,
)


def save_record(record: HostRecord, path: str | Path) -> Path:
    """Write a host profile to the folder `path`, all or nothing; an earlier one there is replaced."""
    meta = {name: getattr(record, name) for name in ("name", "format", "unit", "samples")}
    frames: dict[str, pd.DataFrame] = {}
    if record.tree is not None:
        tree = record.tree
        frames["functions"] = function_frame(tree.functions)
        frames["tree"] = pd.DataFrame({name: getattr(tree, name) for name in _TREE})
    if record.calls is not None:
        frames["calls"] = pd.concat([function_frame(record.functions), record.calls], axis=1)
    return folder.save(HOST, frames, {**meta, "notes": list(record.notes)}, path)


def load_record(path: str | Path) -> HostRecord:
    """Read what `save_record` wrote.

    Raises
    ------
    RecordingError
        If there is no host profile, or it is damaged or was saved by a newer version.
    """
    source = usable(path)
    meta: dict[str, Any] = folder.load_meta(HOST, source)
    if meta["unit"] not in ("ms", "samples", "bytes", "none"):
        raise RecordingError(f"{source / HOST.meta} is damaged: its unit is none of perfnb's.")
    facts = {name: meta[name] for name in ("name", "format", "unit", "samples")} | {"notes": tuple(meta["notes"])}
    if (source / "calls.parquet").exists():
        calls = folder.load_frame("calls", _CALLS, source)
        return HostRecord(**facts, calls=calls[["calls", "self_ms", "total_ms"]], functions=_functions(calls))
    functions = _functions(folder.load_frame("functions", _FUNCTIONS, source))
    nodes = folder.load_frame("tree", _TREE, source)
    tree = CallTree(functions, *(nodes[name].to_numpy() for name in _TREE))
    place = np.arange(len(tree))
    if not ((tree.parent < place).all() and (tree.function >= 0).all() and (tree.function < len(functions)).all()):
        raise RecordingError(f"{source / 'tree.parquet'} is damaged: it refers to a missing row.")
    return HostRecord(**facts, tree=tree)


def _functions(frame: pd.DataFrame) -> tuple[Function, ...]:
    columns: Sequence[list[Any]] = [frame[name].tolist() for name in _FUNCTIONS]
    return tuple(
        Function(str(name), "" if pd.isna(file) else str(file), NONE if pd.isna(line) else int(line))
        for name, file, line in zip(*columns, strict=True)
    )
