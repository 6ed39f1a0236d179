"""Save and load a host profile as a folder with Parquet files and a JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import pandas as pd
from msgspec import Meta

from perfnb.recording import store
from perfnb.recording.frame_files import SavedColumn
from perfnb.recording.nesting import NONE
from perfnb.recording.store import SavedFolder, SavedKind
from perfnb.recording.text import TEXT
from perfnb.stacks.formats import HostRecord
from perfnb.stacks.tree import CallTree, Function, function_frame

_COUNT = SavedColumn("int64", low=0, high=2**62)
_PLACE = SavedColumn("int64", low=-1, high=2**31)
_TREE = {"parent": _PLACE, "function": _PLACE, "self": SavedColumn("float64", low=0, high=1e300), "samples": _COUNT}
_FUNCTIONS = {
    "function": SavedColumn(TEXT),
    "file": SavedColumn(TEXT, missing=True),
    "line": SavedColumn("Int64", missing=True, low=0, high=2**31),
}
_FIGURES = {
    "calls": SavedColumn("Int64", missing=True, low=0, high=2**62),
    **dict.fromkeys(("self_ms", "total_ms"), SavedColumn("float64")),
}


class HostFacts(TypedDict):
    """The contents of a saved host profile, except its tables."""

    name: str
    format: str
    unit: Literal["ms", "samples", "bytes", "none"]
    samples: Annotated[int, Meta(ge=0, le=2**62)] | None
    notes: list[str]


HOST = SavedKind(
    "host_profile", HostFacts, {"tree": _TREE, "functions": _FUNCTIONS, "calls": {**_FUNCTIONS, **_FIGURES}}
)


def save_record(record: HostRecord, path: str | Path) -> Path:
    """Save a host profile to the folder `path`, either completely or not at all.

    Any profile that was saved in the folder before is replaced.
    """
    facts = {name: getattr(record, name) for name in HostFacts.__annotations__}
    frames: dict[str, pd.DataFrame] = {}
    if record.tree is not None:
        frames["functions"] = function_frame(record.tree.functions)
        frames["tree"] = pd.DataFrame({name: getattr(record.tree, name) for name in _TREE})
    if record.calls is not None:
        frames["calls"] = pd.concat([function_frame(record.functions), record.calls], axis=1)
    return store.save(HOST, frames, facts, path)


def load_record(path: str | Path) -> HostRecord:
    """Load a host profile that was saved with `save_record`.

    Raises
    ------
    RecordingError
        If there is no host profile, or if it is damaged or was saved by a newer version.
    """
    saved = SavedFolder(HOST, path)
    facts: dict[str, Any] = {name: saved.facts[name] for name in HostFacts.__annotations__}
    facts["notes"] = tuple(facts["notes"])
    if "calls" in saved:
        calls = saved.frame("calls")
        facts |= {"calls": calls[list(_FIGURES)], "functions": _functions(calls)}
    if "tree" not in saved:
        return HostRecord(**facts)
    functions, nodes = _functions(saved.frame("functions")), saved.frame("tree")
    tree = CallTree(functions, *(nodes[name].to_numpy() for name in _TREE))
    if not ((tree.parent < np.arange(len(tree))) & (tree.function >= 0) & (tree.function < len(functions))).all():
        raise saved.damaged("tree.parquet", "it refers to a missing row")
    return HostRecord(**facts, tree=tree)


def _functions(frame: pd.DataFrame) -> tuple[Function, ...]:
    return tuple(
        Function(str(name), "" if pd.isna(file) else str(file), NONE if pd.isna(line) else int(line))
        for name, file, line in frame[list(_FUNCTIONS)].itertuples(index=False)
    )
