"""The schema of the tables: the columns of each table, their types, and their meanings.

Names and units are a public contract. Event times are int64 nanoseconds, and times in summaries are float milliseconds
per step. Values that could not be measured are ``NA``, and never 0. In text and category columns, pandas shows them as
``NaN``. ``isna()`` finds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from perfnb.recording.text import TEXT, with_text
from perfnb.telemetry.metrics import METRIC_WORDS

#: The phases of a step, in their usual order. Communication only includes time when the step does nothing but wait for
#: it.
PHASES = ("data", "host_to_device", "forward", "loss", "backward", "optimizer", "communication", "other")

#: The passes that execute a step. ``lead_in`` starts the trace and is not analysed. ``trial`` runs with one thread per
#: core if torch uses a different number. In ``recompiled``, models are compiled again. Python stacks are sampled in
#: ``sampled``.
PASSES = ("warmup", "timed", "trial", "recompiled", "lead_in", "traced", "sampled", "counted")

#: The categories of memory use. Parameters include buffers.
CATEGORIES = ("parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries", "other")

#: Rows of ``layers`` that are not modules, for time in the backward pass that does not belong to any layer.
LOSS_ROW = "(loss)"
ACCUMULATION_ROW = "(gradient accumulation)"
ENGINE_ROW = "(autograd engine)"
UNATTRIBUTED_ROW = "(unattributed)"
SPECIAL_ROWS = (LOSS_ROW, ACCUMULATION_ROW, ENGINE_ROW, UNATTRIBUTED_ROW)

#: The row of ``diff_ops`` for GPU work whose operator is unknown.
NO_OP_ROW = "(no known op)"

_TEXT, _INT, _FLOAT, _CATEGORY = TEXT, "Int64", "Float64", "category"


def _of(dtype: Any, *names: str) -> dict[str, Any]:
    """Return columns with the same type."""
    return dict.fromkeys(names, dtype)


#: An operator that was matched between two traces, and the method of matching.
_MATCHED = {**_of(_TEXT, "op", "shapes", "layer"), "phase": _CATEGORY, "matched": _CATEGORY}


def _both(dtype: Any, *names: str) -> dict[str, Any]:
    """Return columns for two runs: ``<name>_a`` and ``<name>_b``."""
    return {f"{name}_{side}": dtype for name in names for side in ("a", "b")}


#: The increase from a to b in the chosen measure and in each measure, and the ratio of b to a.
_GREW = _of(_FLOAT, "grew_ms", "grew_host_ms", "grew_gpu_ms", "ratio")

#: The telemetry in ``samples``. Columns that end in ``_per_s`` and ``_percent`` are means since the previous reading.
#: The exception is a GPU's ``busy_percent``, because the driver chooses its time window. All other columns are
#: instantaneous readings.
METRICS = tuple(METRIC_WORDS)

_GPU_TIMES = {
    **_of(_FLOAT, "total_ms", "busy_ms", "computation_ms", "communication_ms", "memcpy_ms"),
    **_of(_FLOAT, "idle_ms", "idle_pct", "overlap_ms", "overlap_pct"),
    "kernels": _INT,
    "kernel_ms": _FLOAT,
}

#: The column types of all frames, by frame and column, in column order.
SCHEMA: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "layers": {
            "module": _TEXT,
            "depth": _INT,
            **_of(_FLOAT, "calls", "forward_ms", "backward_ms", "recompute_ms", "total_ms", "self_ms"),
            **_of(_FLOAT, "self_forward_ms", "self_backward_ms", "share", "self_share"),
            **_of(_INT, "forward_flops", "backward_flops", "recompute_flops", "moved_bytes", "parameters"),
            **_of(_INT, "parameter_bytes", "activation_bytes", "peak_bytes"),
            **_of(_FLOAT, "ops", "kernels", "gpu_ms", "self_gpu_ms", "fused_ms"),
        },
        "phases": _of(_FLOAT, "ms", "share"),
        "steps": {
            "pass": _CATEGORY,
            **_of(_FLOAT, "start_s", "wall_ms", "data_ms"),
            **_of(_INT, "samples", "step"),
            "rank": "int64",
        },
        "ops": {**_of(_FLOAT, "calls", "self_cpu_ms", "total_cpu_ms", "gpu_ms"), **_of(_INT, "flops", "bytes")},
        "layer_ops": {
            **_of(_TEXT, "layer", "op"),
            "direction": _CATEGORY,
            **_of(_FLOAT, "calls", "self_cpu_ms", "gpu_ms"),
        },
        "memory": {
            "t_ms": _FLOAT,
            "device": _CATEGORY,
            **_of(_INT, *CATEGORIES),
            **_of(_INT, "total", "reserved", "process"),
        },
        "allocations": {
            "bytes": "int64",
            "category": _CATEGORY,
            "layer": _TEXT,
            **_of(_CATEGORY, "phase", "direction"),
            **_of(_TEXT, "op", "name"),
            "device": _CATEGORY,
            **_of(_INT, "start_ns", "end_ns"),
        },
        "samples": {
            "t_s": "float64",
            "device": _CATEGORY,
            **_of(_FLOAT, *METRICS),
            **_of(_TEXT, "throttle_reasons", "mark"),
            **_of(_FLOAT, "window_s", "read_ms", "late_ms"),
            **_of(_INT, "missed_ticks", "readings"),
        },
        "marks": {"name": _TEXT, "depth": _INT, **_of(_FLOAT, "start_s", "end_s")},
        "collectives": {
            **_of(_TEXT, "collective", "group", "dtype", "layer"),
            **_of(_INT, "bucket", "bytes"),
            **_of(_FLOAT, "calls", "ms", "exposed_ms", "waiting_ms", "transfer_ms", "bytes_per_s"),
        },
        "kernels": _of(_FLOAT, "calls", "total_ms", "mean_us", "max_us"),
        "compiled": {
            "kernel": _TEXT,
            "graph": _INT,
            "direction": _CATEGORY,
            **_of(_FLOAT, "calls", "ms"),
            **_of(_TEXT, "layers", "ops", "source"),
            **_of(_INT, "bytes", "flops"),
            "bytes_per_s": _FLOAT,
        },
        "compiled_regions": {
            **_of(_TEXT, "function", "line"),
            **_of(_FLOAT, "calls", "ms", "kernel_ms", "overhead_ms", "lookup_ms", "gap_ms", "compile_s"),
            "guards": _INT,
            **_of(_TEXT, "recompiled", "broke", "broke_at"),
        },
        "events": {
            **_of(_CATEGORY, "name", "category"),
            **_of("int64", "start_ns", "duration_ns", "thread"),
            **_of(_INT, "device", "stream", "correlation"),
            **_of(_CATEGORY, "layer", "phase"),
            "step": _INT,
            "rank": "int64",
            **_of(_INT, "process", "external_id"),
            **_of(_CATEGORY, "shapes", "collective", "group"),
        },
        "findings": {
            **_of(_TEXT, "bottleneck", "evidence"),
            "rows": "object",
            **_of(_FLOAT, "bound_ms", "bound_share"),
            "bound_bytes": _INT,
            **_of(_TEXT, "advice", "code", "remedy"),
            "confidence": _CATEGORY,
            **_of(_TEXT, "why", "blind"),
        },
        "gpu_time": {**_of(_INT, "rank", "device"), **_GPU_TIMES},
        "gpu_steps": {**_of(_INT, "rank", "device", "step"), **_GPU_TIMES},
        "gpu_idle": {
            **_of(_INT, "rank", "device", "step"),
            **_of(_FLOAT, "idle_ms", "host_ms", "dependency_ms", "other_ms", "unknown_ms", "call_ms", "latency_ms"),
            "before_ms": _FLOAT,
            "gaps": _INT,
        },
        "launches": _of(_FLOAT, "calls", "launched", "call_ms", "delay_us", "gpu_ms", "short", "short_share"),
        "queue": {**_of(_INT, "rank", "device", "stream"), **_of("int64", "start_ns", "length")},
        "kernel_ops": {
            **_of(_CATEGORY, "op", "shapes"),
            "op_calls": _FLOAT,
            "kernels": _INT,
            **_of(_FLOAT, "calls", "total_ms", "mean_us", "min_us", "max_us"),
            "layers": _INT,
            "layer": _CATEGORY,
            "layer_share": _FLOAT,
        },
        "critical_path": {
            **_of(_INT, "rank", "step"),
            **_of(_CATEGORY, "kind", "name", "op", "layer"),
            **_of("int64", "start_ns", "duration_ns"),
            **_of(_INT, "thread", "device", "stream"),
            "inferred": "bool",
        },
        "path_savings": {
            **_of(_INT, "rank", "step"),
            "by": _CATEGORY,
            "part": _TEXT,
            "segments": _INT,
            **_of(_FLOAT, "path_ms", "share", "saves_ms"),
        },
        "diff_ops": {
            **_MATCHED,
            **_both(_FLOAT, "calls", "host_ms", "gpu_ms"),
            **_GREW,
            **_both(_FLOAT, "self_host_ms", "self_gpu_ms"),
            "depth": _INT,
            "around": _INT,
            "is_range": "bool",
            **_both(_TEXT, "op", "shapes", "layer", "phase"),
        },
        "diff_by_op": {
            **_of(_TEXT, "op", "shapes"),
            "matched": _CATEGORY,
            "layers": _INT,
            **_both(_FLOAT, "calls", "host_ms", "gpu_ms"),
            **_GREW,
            **_both("object", "kernels"),
            **_both(_TEXT, "op"),
        },
        "diff_kernels": {
            **_MATCHED,
            "inside": _TEXT,
            "row": _INT,
            **_both("object", "kernels"),
            **_both(_FLOAT, "calls", "gpu_ms"),
            "grew_ms": _FLOAT,
            "ratio": _FLOAT,
        },
        "diff_gpu_time": {**_both(_FLOAT, "ms"), "grew_ms": _FLOAT},
        "functions": {
            **_of(_TEXT, "function", "file"),
            **_of(_INT, "line", "calls"),
            **_of(_FLOAT, "self_ms", "total_ms"),
            **_of(_INT, "self_samples", "total_samples", "self_bytes", "total_bytes"),
            **_of(_FLOAT, "self_share", "total_share"),
        },
        "stacks": {"stack": _TEXT, "samples": _INT, "ms": _FLOAT, "bytes": _INT, "share": _FLOAT},
        "lines": {
            **_of(_CATEGORY, "phase", "process"),
            **_of(_TEXT, "file", "function"),
            "line": _INT,
            "code": _TEXT,
            **_of(_FLOAT, "self_ms", "total_ms", "share"),
            "samples": _INT,
        },
        "diff_functions": {
            **_of(_TEXT, "function", "file"),
            **_both(_FLOAT, "self_ms", "total_ms"),
            "grew_ms": _FLOAT,
            **_both(_INT, "calls"),
            **_both(_FLOAT, "self_share", "total_share"),
            "grew_share": _FLOAT,
        },
    }
)

#: The name of the index, for each frame with a meaningful index.
INDEX = MappingProxyType(
    {
        **{"layers": "layer", "phases": "phase", "ops": "op", "launches": "op"},
        **{"kernels": "kernel", "diff_gpu_time": "figure", "compiled_regions": "region"},
    }
)


def conform(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """Return a copy of `frame` with exactly the columns, column order and types of `table`.

    Missing columns are filled with ``NA``. An unknown column raises an error.
    """
    columns = SCHEMA[table]
    unknown = [name for name in frame.columns if name not in columns]
    if unknown:
        raise ValueError(f"frame {table!r} has no column {unknown[0]!r}; its columns are {', '.join(columns)}")
    typed: dict[str, Any] = {}
    for name, dtype in columns.items():
        # The index is left out because pandas would otherwise compare it with the index of every column.
        typed[name] = frame[name].astype(dtype).array if name in frame.columns else missing(len(frame), dtype)
    result = with_text(pd.DataFrame(typed, index=frame.index))
    if table in INDEX:
        index = result.index.astype(TEXT) if result.index.dtype == object else result.index
        result.index = index.rename(INDEX[table])
    return result


def missing(count: int, dtype: Any) -> Any:
    """Return a column of the given type that consists of `count` missing values."""
    if dtype == _CATEGORY:
        return pd.Categorical.from_codes([-1] * count, pd.Index([], dtype=TEXT))
    return pd.array([pd.NA] * count, dtype=dtype)
