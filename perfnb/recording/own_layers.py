"""What perfnb writes of its layers into a trace, so that it finds them again: their names, and whose each span is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT
from perfnb.trace.columns import MISSING

#: Under this key it stands beside the events.
KEY = "perfnb"
_VERSION = 1
_MOST = 2**31


def layers_written(recording: Recording) -> dict[str, Any]:
    """The layers and spans of a recording, ready for JSON."""
    modules, spans = recording.modules, recording.spans
    unknown = modules[["parameters", "parameter_bytes"]].astype("Int64")
    return {
        "version": _VERSION,
        "modules": {
            "name": modules["name"].astype(TEXT).tolist(),
            "module": [None if pd.isna(kind) else str(kind) for kind in modules["module"]],
            "parent": modules["parent"].tolist(),
            **{name: [None if pd.isna(n) else int(n) for n in unknown[name]] for name in unknown},
            "compiled": modules["compiled"].tolist(),
        },
        "spans": {
            "span": spans.index.tolist(),
            "layer": spans["layer"].tolist(),
            "loss": spans["loss"].tolist(),
        },
    }


def layers_read(written: Any) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """The frames ``modules`` and ``spans`` of a recording; ``None`` where this is not what perfnb writes."""
    try:
        if written["version"] != _VERSION:
            return None
        modules, spans = _modules(written["modules"]), _spans(written["spans"])
        if not spans["layer"].between(MISSING, len(modules) - 1).all():
            return None
    except (TypeError, ValueError, KeyError, IndexError, OverflowError):
        return None
    return modules, spans


def _modules(columns: Any) -> pd.DataFrame:
    names, classes = _list(columns["name"], str), _list(columns["module"], str, type(None))
    parent = _list(columns["parent"], int)
    if {len(column) for column in columns.values()} != {len(names)}:
        raise ValueError("its columns differ in length")
    depth: list[int] = []
    for row, above in enumerate(parent):
        if not MISSING <= above < row:
            raise ValueError("parents come first")
        depth.append(0 if above == MISSING else depth[above] + 1)
    optional = ("parameters", "parameter_bytes")
    numbers = {name: pd.array(_list(columns[name], int, type(None)), dtype="Int64") for name in optional}
    return pd.DataFrame(
        {
            "name": pd.Series(names, dtype=TEXT),
            "module": pd.Series(classes, dtype=TEXT),
            "parent": np.array(parent, dtype=np.int64),
            "depth": np.array(depth, dtype=np.int64),
            **numbers,
            "compiled": np.array(_list(columns["compiled"], bool), dtype=bool),
        }
    )


def _spans(columns: Any) -> pd.DataFrame:
    numbers = _list(columns["span"], int)
    if len(set(numbers)) < len(numbers):
        raise ValueError("a span is told of twice")
    layer = np.array(_list(columns["layer"], int), dtype=np.int64)
    loss = np.array(_list(columns["loss"], bool), dtype=bool)
    return pd.DataFrame({"layer": layer, "loss": loss}, index=pd.Index(numbers, dtype="int64", name="span"))


def _list(values: Any, *kinds: type) -> list[Any]:
    """The values, each of which must be of one of the types, and small if it is a number."""
    if not isinstance(values, list) or not all(type(value) in kinds for value in values):
        raise TypeError("not a list of that")
    if int in kinds and not all(value is None or -_MOST < value < 2**62 for value in values):
        raise ValueError("a number is too large")
    return values
