"""What ``--json`` prints of results that have no document: their figures, and their tables as lists of rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

#: The attributes of each kind of result that are printed, in this order. A new kind is a line here.
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "Timing": ("median_ms", "ci_ms", "basis", "steps", "throughput_per_s", "batch_size", "steady", "samples_ms"),
    "Ranks": ("ranks", "straggler", "times", "clocks", "gpu_time", "findings"),
    "ABTest": (
        *("verdict", "ratio", "ratio_ci", "check", "decision", "reason"),
        *("change", "table", "limits", "options", "environment"),
    ),
    "MemorySnapshot": ("meta", "fragmentation", "segments"),
    "Watch": ("meta", "summary", "marks"),
    "RunSummary": (
        *("name", "verdict", "sentences", "next", "median_ms", "ci_ms"),
        *("phases", "findings", "slow", "windows", "memory"),
    ),
    "RankRuns": ("ranks", "straggler", "times", "differences"),
    "RunComparison": ("verdict", "sentences", "ratio", "ratio_ci", "step", "memory"),
    "SystemCheck": ("checks",),
}


def facts_of(thing: Any) -> dict[str, Any]:
    """A result as a mapping for JSON, with its ``kind`` first."""
    kind = type(thing).__name__
    facts: dict[str, Any] = _plain({name: _value(getattr(thing, name)) for name in _ATTRIBUTES[kind]})
    return {"kind": kind} | facts


def _value(value: Any) -> Any:
    if callable(value):
        value = value()
    if isinstance(value, pd.DataFrame):
        named = any(name is not None for name in value.index.names)
        return json.loads((value.reset_index() if named else value).to_json(orient="records", double_precision=15))
    if type(value).__name__ in _ATTRIBUTES:
        return {name: figure for name, figure in facts_of(value).items() if name != "kind"}
    return value


def _plain(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)
