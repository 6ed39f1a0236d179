"""The schema of a recording's tables, used to make them, save them, and check them on loading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from perfnb.recording.frame_files import Columns, SavedColumn
from perfnb.recording.schema import INDEX, SCHEMA
from perfnb.recording.text import TEXT

_FAR = 2**62
_WHOLE, _FROM_NONE, _LENGTH = SavedColumn("int64"), SavedColumn("int64", low=-1), SavedColumn("int64", low=0)
_COUNT = SavedColumn("Int64", missing=True, low=0, high=_FAR)
_LABEL, _MAYBE_LABEL = SavedColumn("category"), SavedColumn("category", missing=True)
_TEXT, _MAYBE_TEXT = SavedColumn(TEXT), SavedColumn(TEXT, missing=True)
_MS, _AT = SavedColumn("float64", low=0, high=1e15), SavedColumn("float64", low=-1e12, high=1e12)
#: Columns that earlier versions of perfnb did not write.
_OLD_WHOLE, _OLD_FROM_NONE = replace(_WHOLE, needed=False), replace(_FROM_NONE, needed=False)
_NUMBER_OF_ROW = SavedColumn("int64", low=0, needed=False, index=True)

#: The integer columns of an event. Missing values are -1.
_NUMBERS: Columns = {
    **{"start_ns": _WHOLE, "duration_ns": _LENGTH, "process": _OLD_WHOLE, "thread": _WHOLE, "device": _WHOLE},
    **{"stream": _WHOLE, "correlation": _WHOLE, "external_id": _OLD_WHOLE, "sequence": _WHOLE},
    **{"forward_thread": _WHOLE, "wait_stream": _OLD_WHOLE, "wait_correlation": _OLD_WHOLE, "bytes": _OLD_WHOLE},
    "elements": _OLD_FROM_NONE,
}
#: The text columns of an event. They may have missing values.
_TEXTS: Columns = dict.fromkeys(
    ("shapes", "collective", "group", "dtype", "module"), replace(_MAYBE_LABEL, needed=False)
)
NUMBERS, TEXTS = tuple(_NUMBERS), tuple(_TEXTS)

EVENTS: Columns = {
    **{"name": _LABEL, "category": _LABEL},
    **_NUMBERS,
    **_TEXTS,
    **{"span": _FROM_NONE, "marks_step": _OLD_FROM_NONE},
}


def frame_of_schema(table: str, needed: Columns | None = None) -> Columns:
    """Return the columns of a table in the schema, all of which may have missing values.

    Parameters
    ----------
    table : str
    needed : Columns, optional
        Constraints on some of the columns. If this is passed, the other columns are optional.
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
#: The frames that a recording may contain, and their required columns.
RAW_FRAMES: Mapping[str, Columns] = {
    "events": EVENTS,
    "steps": {
        **{"pass": _LABEL, "start_s": replace(_AT, needed=False), "wall_ms": _MS},
        **{"data_ms": replace(_MS, missing=True), "samples": _COUNT},
        "step": SavedColumn("Int64", missing=True, needed=False),
    },
    "modules": {
        **{"name": _TEXT, "module": _MAYBE_TEXT, "parent": _FROM_NONE, "depth": _LENGTH},
        **{"parameters": _COUNT, "parameter_bytes": _COUNT, "compiled": SavedColumn("bool")},
    },
    "spans": {
        **{"span": _NUMBER_OF_ROW, "layer": _FROM_NONE, "loss": SavedColumn("bool")},
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
        **{"number": _NUMBER_OF_ROW, "op": _LABEL, "flops": _COUNT, "bytes": replace(_LENGTH, high=_FAR)},
        "dtype": _MAYBE_LABEL,
    },
    "watch_samples": SAMPLES,
    "watch_marks": MARKS,
    "python_tree": {
        **{"parent": _FROM_NONE, "kind": _LABEL, "name": _TEXT, "file": _TEXT},
        **{"line": SavedColumn("int64", low=-1, high=2**31), "code": _TEXT},
        **dict.fromkeys(("self_ns", "samples"), SavedColumn("int64", low=0, high=_FAR)),
    },
    "compiled_kernels": {
        **{"graph": _TEXT, "kernel": _TEXT, "direction": _LABEL, "ops": _TEXT, "source": _TEXT},
        **dict.fromkeys(("bytes", "flops"), replace(_LENGTH, high=_FAR)),
        "leaves": SavedColumn("bool", needed=False),
    },
    "compiled_shares": {"kernel": _LENGTH, "layer": _LENGTH, "share": SavedColumn("float64", low=0, high=1)},
    "compiled_calls": {"kernel": _LENGTH, "start_ns": _WHOLE, "duration_ns": _LENGTH},
    "compiled_code": {
        **{"region": _TEXT, "function": _TEXT, "line": _TEXT, "guards": _COUNT},
        "compile_s": SavedColumn("Float64", missing=True, low=0, high=1e9),
        **{"recompiled": _TEXT, "broke": _TEXT, "broke_at": _TEXT},
    },
    "outside": EVENTS,
    "trace_memory": {
        **dict.fromkeys(("time_ns", "process", "thread", "address", "bytes"), _WHOLE),
        **dict.fromkeys(("device_type", "device", "allocated", "reserved"), _WHOLE),
    },
}


def raw_frame(name: str, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Create one of a recording's tables from its columns' values, which are converted to the types in the schema.

    Raises
    ------
    ValueError
        If the columns are not those in the schema, or have different lengths.
    """
    declared = RAW_FRAMES[name]
    if columns.keys() != declared.keys():
        raise ValueError(f"frame {name!r} has the columns {', '.join(declared)}, not {', '.join(columns)}")
    kinds = {column: kind.dtype for column, kind in declared.items()}
    # Without an index, columns of different lengths raise an error.
    frame = pd.DataFrame({column: pd.Series(columns[column], dtype=kind).array for column, kind in kinds.items()})
    index = [column for column, kind in declared.items() if kind.index]
    return frame.set_index(index) if index else frame


def frame_of_rows(name: str, rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """Create a table like `raw_frame`, but from rows whose values are in the order of the schema's columns."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in RAW_FRAMES[name])
    return raw_frame(name, dict(zip(RAW_FRAMES[name], map(list, columns), strict=True)))
