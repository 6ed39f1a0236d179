"""What ``--json`` prints of each kind of result: its figures, and its tables as lists of rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

#: The attributes of each kind of result that are printed, in this order. A new kind is a line here.
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "Profile": ("meta", "timing", "phases", "layers", "ops", "kernels", "gpu_time", "steps", "findings"),
    "Timing": ("median_ms", "ci_ms", "basis", "steps", "throughput_per_s", "batch_size", "steady", "samples_ms"),
    "Ranks": ("ranks", "straggler", "times", "clocks", "gpu_time", "findings"),
    "ABTest": (
        *("verdict", "ratio", "ratio_ci", "check", "decision", "reason"),
        *("change", "table", "limits", "options", "environment"),
    ),
    "HostProfile": ("meta", "functions"),
    "HostComparison": ("functions",),
    "MemorySnapshot": ("meta", "fragmentation", "segments"),
    "Watch": ("meta", "summary", "marks"),
    "RunSummary": (
        *("name", "verdict", "sentences", "next", "median_ms", "ci_ms"),
        *("phases", "findings", "slow", "windows", "memory"),
    ),
    "RankRuns": ("ranks", "straggler", "times", "differences"),
    "RunComparison": ("verdict", "sentences", "ratio", "ratio_ci", "step", "memory"),
    "ProfileComparison": ("phases", "layers", "by_op", "gpu_time"),
    "SystemCheck": ("checks",),
}


def facts_of(thing: Any) -> dict[str, Any]:
    """A result as a mapping for JSON, with its ``kind`` first."""
    kind = type(thing).__name__
    return {"kind": kind} | {name: _value(getattr(thing, name)) for name in _ATTRIBUTES[kind]}


def _value(value: Any) -> Any:
    if callable(value):
        value = value()
    if isinstance(value, pd.DataFrame):
        named = any(name is not None for name in value.index.names)
        return json.loads((value.reset_index() if named else value).to_json(orient="records", double_precision=15))
    if type(value).__name__ in _ATTRIBUTES:
        return {name: figure for name, figure in facts_of(value).items() if name != "kind"}
    return value
