"""The frames' schema: the columns of each table, their types, and what they mean.

Names and units are a public contract. Times of events are int64 nanoseconds; times in summaries are float milliseconds
per step. What could not be measured is ``NA``, never 0; in text and category columns pandas shows it as ``NaN``, and
``isna()`` finds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from perfnb.recording.text import TEXT, with_text

#: Phases of a step, in their usual order.
PHASES = ("data", "host_to_device", "forward", "loss", "backward", "optimizer", "other")

#: The passes in which a step is executed. ``lead_in`` opens the trace and is not analysed; ``trial`` runs with one
#: thread per core if torch uses another number.
PASSES = ("warmup", "timed", "trial", "lead_in", "traced", "counted")

#: What memory is used for. Parameters include buffers.
CATEGORIES = ("parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries", "other")

#: Rows of ``layers`` that are not modules: time in the backward pass that belongs to no layer.
LOSS_ROW = "(loss)"
ACCUMULATION_ROW = "(gradient accumulation)"
ENGINE_ROW = "(autograd engine)"
UNATTRIBUTED_ROW = "(unattributed)"
SPECIAL_ROWS = (LOSS_ROW, ACCUMULATION_ROW, ENGINE_ROW, UNATTRIBUTED_ROW)

#: Row of ``diff_ops`` for GPU work whose operator is unknown.
NO_OP_ROW = "(no known op)"

_TEXT, _INT, _FLOAT, _CATEGORY = TEXT, "Int64", "Float64", "category"

#: An operator matched between two traces, and how it was matched.
_MATCHED = {**dict.fromkeys(("op", "shapes", "layer"), _TEXT), "phase": _CATEGORY, "matched": _CATEGORY}


def _both(dtype: Any, *names: str) -> dict[str, Any]:
    """Columns of two runs: ``<name>_a`` and ``<name>_b``."""
    return {f"{name}_{side}": dtype for name in names for side in ("a", "b")}


#: How much longer b takes, by the measure in use and by each, and their ratio.
_GREW = dict.fromkeys(("grew_ms", "grew_host_ms", "grew_gpu_ms", "ratio"), _FLOAT)

#: Telemetry in ``samples``. ``_per_s`` and ``_percent`` are means since the last reading, except a GPU's
#: ``busy_percent``, whose window the driver chooses; the others are as read.
METRICS = (
    *("cpu_percent", "throttled_percent", "load", "processes", "memory_bytes"),
    *("disk_read_bytes_per_s", "disk_write_bytes_per_s"),
    *("network_receive_bytes_per_s", "network_send_bytes_per_s"),
    *("busy_percent", "torch_allocated_bytes", "torch_reserved_bytes", "power_w", "energy_j", "temperature_c"),
    *("sm_clock_mhz", "memory_clock_mhz", "pcie_receive_bytes_per_s", "pcie_send_bytes_per_s"),
)

_GPU_TIMES = {
    **dict.fromkeys(("total_ms", "busy_ms", "computation_ms", "communication_ms", "memcpy_ms"), _FLOAT),
    **dict.fromkeys(("idle_ms", "idle_pct", "overlap_ms", "overlap_pct"), _FLOAT),
    "kernels": _INT,
    "kernel_ms": _FLOAT,
}

#: Column types of every frame, by frame and column, in column order.
SCHEMA: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "layers": {
            "module": _TEXT,
            "depth": _INT,
            "calls": _FLOAT,
            "forward_ms": _FLOAT,
            "backward_ms": _FLOAT,
            "recompute_ms": _FLOAT,
            "total_ms": _FLOAT,
            "self_ms": _FLOAT,
            "share": _FLOAT,
            "self_share": _FLOAT,
            "forward_flops": _INT,
            "backward_flops": _INT,
            "recompute_flops": _INT,
            "moved_bytes": _INT,
            "parameters": _INT,
            "parameter_bytes": _INT,
            "activation_bytes": _INT,
            "peak_bytes": _INT,
            "ops": _FLOAT,
            "kernels": _FLOAT,
            "gpu_ms": _FLOAT,
            "self_gpu_ms": _FLOAT,
        },
        "phases": {"ms": _FLOAT, "share": _FLOAT},
        "steps": {
            "pass": _CATEGORY,
            "start_s": _FLOAT,
            "wall_ms": _FLOAT,
            "data_ms": _FLOAT,
            "samples": _INT,
            "step": _INT,
            "rank": "int64",
        },
        "ops": {
            "calls": _FLOAT,
            "self_cpu_ms": _FLOAT,
            "total_cpu_ms": _FLOAT,
            "gpu_ms": _FLOAT,
            "flops": _INT,
            "bytes": _INT,
        },
        "layer_ops": {
            "layer": _TEXT,
            "op": _TEXT,
            "direction": _CATEGORY,
            "calls": _FLOAT,
            "self_cpu_ms": _FLOAT,
            "gpu_ms": _FLOAT,
        },
        "memory": {
            "t_ms": _FLOAT,
            "device": _CATEGORY,
            **dict.fromkeys(CATEGORIES, _INT),
            "total": _INT,
            "reserved": _INT,
            "process": _INT,
        },
        "allocations": {
            "bytes": "int64",
            "category": _CATEGORY,
            "layer": _TEXT,
            "phase": _CATEGORY,
            "direction": _CATEGORY,
            "op": _TEXT,
            "name": _TEXT,
            "device": _CATEGORY,
            "start_ns": _INT,
            "end_ns": _INT,
        },
        "samples": {
            "t_s": "float64",
            "device": _CATEGORY,
            **dict.fromkeys(METRICS, _FLOAT),
            "throttle_reasons": _TEXT,
            "mark": _TEXT,
            "window_s": _FLOAT,
            "read_ms": _FLOAT,
            "late_ms": _FLOAT,
            "missed_ticks": _INT,
            "readings": _INT,
        },
        "marks": {"name": _TEXT, "depth": _INT, "start_s": _FLOAT, "end_s": _FLOAT},
        "kernels": {"calls": _FLOAT, "total_ms": _FLOAT, "mean_us": _FLOAT, "max_us": _FLOAT},
        "events": {
            "name": _CATEGORY,
            "category": _CATEGORY,
            "start_ns": "int64",
            "duration_ns": "int64",
            "thread": "int64",
            "device": _INT,
            "stream": _INT,
            "correlation": _INT,
            "layer": _CATEGORY,
            "phase": _CATEGORY,
            "step": _INT,
            "rank": "int64",
            "process": _INT,
            "external_id": _INT,
            "shapes": _CATEGORY,
            "collective": _CATEGORY,
            "group": _CATEGORY,
        },
        "findings": {
            "bottleneck": _TEXT,
            "evidence": _TEXT,
            "rows": "object",
            "bound_ms": _FLOAT,
            "bound_share": _FLOAT,
            "bound_bytes": _INT,
            "lever": _TEXT,
            "code": _TEXT,
            "confidence": _CATEGORY,
            "why": _TEXT,
            "blind": _TEXT,
        },
        "gpu_time": {"rank": _INT, "device": _INT, **_GPU_TIMES},
        "gpu_steps": {"rank": _INT, "device": _INT, "step": _INT, **_GPU_TIMES},
        "gpu_idle": {
            **dict.fromkeys(("rank", "device", "step"), _INT),
            **dict.fromkeys(("idle_ms", "host_ms", "dependency_ms", "other_ms", "unknown_ms"), _FLOAT),
            **dict.fromkeys(("call_ms", "latency_ms", "before_ms"), _FLOAT),
            "gaps": _INT,
        },
        "launches": {
            **dict.fromkeys(("calls", "launched", "call_ms", "delay_us", "gpu_ms", "short", "short_share"), _FLOAT),
        },
        "queue": {"rank": _INT, "device": _INT, "stream": _INT, "start_ns": "int64", "length": "int64"},
        "kernel_ops": {
            "op": _CATEGORY,
            "shapes": _CATEGORY,
            "op_calls": _FLOAT,
            "kernels": _INT,
            **dict.fromkeys(("calls", "total_ms", "mean_us", "min_us", "max_us"), _FLOAT),
            "layers": _INT,
            "layer": _CATEGORY,
            "layer_share": _FLOAT,
        },
        "critical_path": {
            "rank": _INT,
            "step": _INT,
            **dict.fromkeys(("kind", "name", "op", "layer"), _CATEGORY),
            "start_ns": "int64",
            "duration_ns": "int64",
            "thread": _INT,
            "device": _INT,
            "stream": _INT,
            "inferred": "bool",
        },
        "path_savings": {
            "rank": _INT,
            "step": _INT,
            "by": _CATEGORY,
            "part": _TEXT,
            "segments": _INT,
            "path_ms": _FLOAT,
            "share": _FLOAT,
            "saves_ms": _FLOAT,
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
            **dict.fromkeys(("op", "shapes"), _TEXT),
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
    }
)

#: Name of the index of each frame that has a meaningful one.
INDEX = MappingProxyType(
    {
        **{"layers": "layer", "phases": "phase", "ops": "op", "launches": "op"},
        **{"kernels": "kernel", "diff_gpu_time": "figure"},
    }
)


def conform(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """Copy `frame` with exactly the columns, order and types of `table`.

    Missing columns are added as ``NA``; an unknown column is an error.
    """
    columns = SCHEMA[table]
    unknown = [name for name in frame.columns if name not in columns]
    if unknown:
        raise ValueError(f"frame {table!r} has no column {unknown[0]!r}; its columns are {', '.join(columns)}")
    typed = {name: _typed(frame, name, dtype) for name, dtype in columns.items()}
    result = with_text(pd.DataFrame(typed, index=frame.index))
    if table in INDEX:
        index = result.index.astype(TEXT) if result.index.dtype == object else result.index
        result.index = index.rename(INDEX[table])
    return result


def _typed(frame: pd.DataFrame, name: str, dtype: Any) -> Any:
    """Return the values of a column as `dtype`, without the index, to save comparing it with every other column's."""
    if name not in frame.columns:
        return _missing(len(frame), dtype)
    return frame[name].astype(dtype).array


def _missing(count: int, dtype: Any) -> Any:
    if dtype == _CATEGORY:
        return pd.Categorical.from_codes([-1] * count, pd.Index([], dtype=TEXT))
    return pd.array([pd.NA] * count, dtype=dtype)
