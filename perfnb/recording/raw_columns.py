"""The columns that a saved frame must have, with their types and ranges: anyone may have altered a file.

A Parquet file's own description of its columns is checked before they are decoded, and the columns themselves
afterwards, because the description may be false.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from perfnb.recording.schema import SCHEMA
from perfnb.recording.text import TEXT


@dataclass(frozen=True)
class Column:
    """What a column must hold.

    Attributes
    ----------
    kind : str
        ``whole`` and ``count`` (int64, and int64 with missing values), ``number`` (float64), ``label`` (a category of
        text), ``text``, ``flag``.
    missing : bool
        Whether values may be missing.
    low, high : float or None
        Smallest and largest value.
    needed : bool
        Whether a file without the column is damaged.
    """

    kind: str
    missing: bool = False
    low: float | None = None
    high: float | None = None
    needed: bool = True


Columns = Mapping[str, Column]

_FAR = 2**62
_WHOLE, _FROM_NONE = Column("whole"), Column("whole", low=-1)
_LENGTH = Column("whole", low=0)
_LABEL, _MAYBE_LABEL = Column("label"), Column("label", missing=True)
#: Columns that earlier versions did not write.
_OLD_WHOLE, _OLD_FROM_NONE = replace(_WHOLE, needed=False), replace(_FROM_NONE, needed=False)
_OLD_LABEL = replace(_MAYBE_LABEL, needed=False)
_COUNT = Column("count", missing=True, low=0, high=_FAR)
_MS = Column("number", low=0, high=1e15)
#: An index, which is not a column of the file if it counts from 0.
_NUMBER_OF_ROW = Column("whole", low=0, needed=False)

EVENTS: Columns = {
    **{"name": _LABEL, "category": _LABEL, "start_ns": _WHOLE, "duration_ns": _LENGTH},
    **dict.fromkeys(("thread", "device", "stream", "correlation", "sequence", "forward_thread"), _WHOLE),
    "span": _FROM_NONE,
    **dict.fromkeys(("process", "external_id", "wait_stream", "wait_correlation", "bytes"), _OLD_WHOLE),
    "elements": _OLD_FROM_NONE,
    **dict.fromkeys(("shapes", "collective", "group", "dtype"), _OLD_LABEL),
    "marks_step": _OLD_FROM_NONE,
}
STEPS: Columns = {
    "pass": _LABEL,
    "start_s": Column("number", low=-1e12, high=1e12, needed=False),
    "wall_ms": _MS,
    "data_ms": _MS,
    "samples": _COUNT,
    "step": Column("count", missing=True, needed=False),
}
MODULES: Columns = {
    "name": Column("text"),
    "module": Column("text", missing=True),
    "parent": _FROM_NONE,
    "depth": Column("whole", low=0),
    "parameters": _COUNT,
    "parameter_bytes": _COUNT,
    "compiled": Column("flag"),
}
SPANS: Columns = {"layer": _FROM_NONE, "loss": Column("flag"), "span": _NUMBER_OF_ROW}
TRACE_MEMORY: Columns = {
    **dict.fromkeys(("time_ns", "process", "thread", "address", "bytes"), _WHOLE),
    **dict.fromkeys(("device_type", "device", "allocated", "reserved"), _WHOLE),
}
CHANGES: Columns = {
    **{"event": _FROM_NONE, "time_ns": _WHOLE, "address": _WHOLE, "bytes": _WHOLE},
    **{"device": _LABEL, "allocated": _WHOLE, "reserved": _WHOLE},
}
KNOWN: Columns = {
    **{"time_ns": _WHOLE, "address": _WHOLE, "bytes": _LENGTH, "device": _LABEL, "category": _LABEL},
    **{"layer": _FROM_NONE, "name": Column("text", missing=True)},
}
RESIDENT: Columns = {"time_ns": _WHOLE, "bytes": _LENGTH}
CALLS: Columns = {
    **{"op": _LABEL, "flops": _COUNT, "bytes": _COUNT, "dtype": _MAYBE_LABEL},
    "number": _NUMBER_OF_ROW,
}
_KINDS: dict[Any, str] = {"Int64": "count", "int64": "whole", "Float64": "number", "float64": "number", TEXT: "text"}


def _of_watch(table: str, needed: Columns) -> Columns:
    rest = {name: _KINDS.get(dtype, "label") for name, dtype in SCHEMA[table].items()}
    return {name: Column(kind, missing=True, needed=False) for name, kind in rest.items()} | dict(needed)


SAMPLES: Columns = _of_watch(
    "samples",
    {
        "t_s": Column("number", low=-1e12, high=1e12),
        "device": _LABEL,
        "window_s": Column("number", missing=True),
        "readings": Column("count", low=0, high=_FAR),
    },
)
MARKS: Columns = _of_watch(
    "marks",
    {
        "name": Column("text"),
        "depth": Column("count", low=0, high=1e6),
        "start_s": Column("number", low=-1e12, high=1e12),
        "end_s": Column("number", missing=True, low=-1e12, high=1e12),
    },
)
PYTHON: Columns = {
    "parent": _FROM_NONE,
    "kind": _LABEL,
    **dict.fromkeys(("name", "file", "code"), Column("text")),
    "line": Column("whole", low=-1, high=2**31),
    "self_ns": Column("whole", low=0, high=_FAR),
    "samples": Column("whole", low=0, high=_FAR),
}
TIMED: Columns = {"pass": Column("text"), "wall_ms": _MS}
PAIRS: Columns = {"a_ms": _MS, "b_ms": _MS}
LOSSES: Columns = {
    "name": Column("text"),
    **dict.fromkeys(("candidate", "baseline", "limit"), Column("number", missing=True)),
}

#: Frames with numbered rows, and the column of numbers, which is their index.
ROWS_NUMBERED = MappingProxyType({"spans": "span", "arithmetic_calls": "number"})


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of a file is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


#: By kind: whether a column of a file is of it, its types in a frame, and its type in a frame without rows.
_TYPES: dict[str, tuple[Callable[[pa.DataType], bool], tuple[str, ...], Any]] = {
    "whole": (pa.types.is_int64, ("int64",), "int64"),
    "count": (pa.types.is_int64, ("int64", "Int64"), "Int64"),
    "number": (pa.types.is_float64, ("float64", "Float64"), "float64"),
    "flag": (pa.types.is_boolean, ("bool",), "bool"),
    "label": (pa.types.is_dictionary, ("category",), pd.CategoricalDtype(pd.Index([], dtype=TEXT))),
    "text": (is_text, ("str", "string", "object"), TEXT),
}


class Odd(ValueError):
    """A column is not as it must be."""


def check_file(file: pq.ParquetFile, columns: Columns) -> bool:
    """Refuse a file whose columns cannot be right; return whether it describes all of them.

    Raises
    ------
    Odd
        With the column and what is wrong with it.
    """
    schema, rows = file.schema_arrow, file.metadata.num_rows
    for name, column in columns.items():
        if name not in schema.names:
            if column.needed:
                raise Odd(f"it has no column {name!r}")
        elif len(schema.get_all_field_indices(name)) > 1:
            raise Odd(f"it has the column {name!r} twice")
        elif rows and not _is(schema.field(name).type, column):
            raise Odd(f"its column {name!r} is of another type ({schema.field(name).type})")
    if rows:
        typed = {field.name for field in schema if not pa.types.is_null(field.type)}
        known = {name: its for name, its in columns.items() if name in typed}
        _check_types(schema.empty_table().to_pandas(), known)
    described = _statistics(file.metadata)
    for name, column in columns.items():
        if name in schema.names and rows and (seen := described.get(name)) is not None:
            missing, low, high = seen
            _check_range(name, column, bool(missing), low, high)
    return not rows or all(name in described for name in columns if name in schema.names)


def check_frame(frame: pd.DataFrame, columns: Columns, index: str | None = None) -> pd.DataFrame:
    """Return the known columns of a frame after checking them; errors as in `check_file`.

    Parquet does not keep the types of a frame without rows: they are set here.

    Parameters
    ----------
    index : str, optional
        The column of numbers that is the index.
    """
    if index is not None:
        frame = frame.reset_index()
    lost = [name for name, column in columns.items() if (column.needed or name == index) and name not in frame]
    if lost:
        raise Odd(f"it has no column {lost[0]!r}")
    frame = frame[[name for name in columns if name in frame]].reset_index(drop=True)
    for name, column in columns.items():
        if name in frame and column.kind == "label" and column.missing and frame[name].isna().all():
            frame = frame.assign(**{name: pd.Categorical.from_codes([-1] * len(frame), pd.Index([], dtype=TEXT))})
    if len(frame):
        _check_types(frame, columns)
        for name, column in columns.items():
            if name in frame:
                numeric = column.kind in ("whole", "count", "number")
                known = frame[name].dropna() if numeric else frame[name].iloc[:0]
                low, high = (known.min(), known.max()) if len(known) else (None, None)
                _check_range(name, column, bool(frame[name].isna().any()), low, high)
    else:
        frame = _typed(frame, columns)
    if index is not None and frame[index].duplicated().any():
        raise Odd(f"its column {index!r} holds a number twice")
    return frame if index is None else frame.set_index(index)


def _is(kind: pa.DataType, column: Column) -> bool:
    if pa.types.is_null(kind) and column.kind in ("label", "text"):  # a column without values has no type
        return column.missing
    untyped = column.kind == "label" and not column.missing and pa.types.is_dictionary(kind)
    return _TYPES[column.kind][0](kind) and not (untyped and not is_text(kind.value_type))


def _check_types(frame: pd.DataFrame, columns: Columns) -> None:
    for name, column in columns.items():
        if name in frame and str(frame[name].dtype) not in _TYPES[column.kind][1]:
            raise Odd(f"its column {name!r} is of another type ({frame[name].dtype})")


def _check_range(name: str, column: Column, missing: bool, low: object, high: object) -> None:
    if missing and not column.missing:
        raise Odd(f"its column {name!r} lacks values")
    below = column.low is not None and isinstance(low, _NUMBER) and low < column.low
    above = column.high is not None and isinstance(high, _NUMBER) and high > column.high
    if below or above:
        raise Odd(f"its column {name!r} holds a value that is out of range ({low if below else high})")


_NUMBER = (int, float, np.number)


def _statistics(metadata: pq.FileMetaData) -> dict[str, tuple[int, object, object]]:
    """Return the missing count, minimum and maximum of each column for which every part of the file has them."""
    parts: defaultdict[str, list[Any]] = defaultdict(list)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            parts[column.path_in_schema].append(column.statistics)
    told = {}
    for name, known in parts.items():
        if all(one and one.has_null_count and (one.has_min_max or not one.num_values) for one in known):
            ends = [one for one in known if one.has_min_max]
            low = min((one.min for one in ends if one.min is not None), default=None)
            high = max((one.max for one in ends if one.max is not None), default=None)
            told[name] = (sum(one.null_count for one in known), low, high)
    return told


def _typed(frame: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    wrong: dict[str, Any] = {}
    for name, column in columns.items():
        _, known, empty = _TYPES[column.kind]
        if name in frame and (column.kind in ("label", "text") or str(frame[name].dtype) not in known):
            wrong[name] = empty
    return frame.astype(wrong)
