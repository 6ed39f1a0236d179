"""The frames ``ops``, ``layer_ops`` and ``kernels``: calls and times by operator, layer and kernel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Host
from perfnb.recording.labels import is_one_of
from perfnb.recording.nesting import NONE, Bools, Ints, children_sums, innermost, nest
from perfnb.recording.recording import Recording
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT
from perfnb.trace_names import CALLS, DEVICE_WORK


def owner_names(recording: Recording, attribution: Attribution) -> npt.NDArray[np.object_]:
    """Row of the layers' table that owns each block; empty if none does."""
    span = attribution.cells["span"].to_numpy()
    number = attribution.host.blocks["span"].to_numpy()[span]
    layer = recording.span_layers.reindex(number, fill_value=NONE).to_numpy()
    names = np.append(recording.modules["name"].to_numpy(dtype=object), "")
    special = attribution.cells["special"].to_numpy(dtype=object)
    return np.where(span != NONE, names[np.where(span != NONE, layer, NONE)], special)


def op_calls(recording: Recording, attribution: Attribution) -> pd.DataFrame:
    """`op_times` with ``layer`` (a row of the layers' table, empty outside forward and backward) and ``direction``."""
    calls = op_times(recording, attribution.host)
    block = calls.pop("block").to_numpy()
    return calls.assign(
        layer=pd.array(np.append(owner_names(recording, attribution), "")[block], dtype=TEXT),
        direction=pd.array(np.append(attribution.cells["direction"].to_numpy(dtype=object), "")[block], dtype=TEXT),
    )


def op_times(recording: Recording, host: Host) -> pd.DataFrame:
    """One row per operator call: ``op``, ``block``, ``self_ns``, ``total_ns``, ``gpu_ns``.

    ``total_ns`` is 0 for a call inside another of the same operator, so that sums count no time twice.
    """
    events = recording.events
    # A live trace may contain the work of other threads; a loaded one was cut to its steps already.
    inside = np.arange(len(host.rows)) if recording.is_loaded else np.flatnonzero(host.block != NONE)
    rows, is_op = host.rows[inside], host.is_op[inside]
    start, end = host.starts[inside], host.ends[inside]
    duration = end - start
    forest = nest(host.thread[inside], start, end)
    above = innermost(forest, is_op)
    inner = children_sums(np.where(is_op, above, NONE), duration.astype(float))
    device_ns = _device_time(events, rows)
    launcher = np.where(is_op, np.arange(len(rows)), above)
    counted = (device_ns > 0) & (launcher != NONE)
    gpu_ns = np.bincount(launcher[counted], weights=device_ns[counted], minlength=len(rows))
    name = events["name"].cat.codes.to_numpy().astype(np.int64)[rows]
    calls = pd.DataFrame(
        {
            "op": events["name"].array[rows],
            "block": host.block[inside],
            "self_ns": np.maximum(duration - inner, 0),
            "total_ns": np.where(_inside_same(name, above), 0, duration),
            "gpu_ns": gpu_ns,
        }
    )
    return calls[is_op]


def op_table(calls: pd.DataFrame, steps: int, on_gpu: bool) -> pd.DataFrame:
    """The frame ``ops``, per traced step, slowest first."""
    sums = calls.groupby("op", observed=True)[["self_ns", "total_ns", "gpu_ns"]].sum() / 1e6 / steps
    table = pd.DataFrame(
        {
            "calls": calls.groupby("op", observed=True).size() / steps,
            "self_cpu_ms": sums["self_ns"],
            "total_cpu_ms": sums["total_ns"],
        }
    )
    table.index = table.index.astype(TEXT)
    if on_gpu:
        table["gpu_ms"] = sums["gpu_ns"].to_numpy()
    order = ["gpu_ms", "self_cpu_ms"] if on_gpu else ["self_cpu_ms"]
    return conform(table.sort_values(order, ascending=False, kind="stable"), "ops")


def layer_op_table(calls: pd.DataFrame, steps: int, on_gpu: bool) -> pd.DataFrame:
    """The frame ``layer_ops``: operators by layer and direction, per traced step, slowest first."""
    owned = calls[calls["layer"] != ""]
    groups = owned.groupby(["layer", "op", "direction"], observed=True, sort=False)
    table = groups.agg(
        calls=("self_ns", "size"), self_cpu_ms=("self_ns", "sum"), gpu_ms=("gpu_ns", "sum")
    ).reset_index()
    table["calls"] = table["calls"] / steps
    table[["self_cpu_ms", "gpu_ms"]] = table[["self_cpu_ms", "gpu_ms"]] / 1e6 / steps
    table["op"] = table["op"].astype(TEXT)
    if not on_gpu:
        table = table.drop(columns="gpu_ms")
    return conform(table.sort_values("self_cpu_ms", ascending=False, kind="stable", ignore_index=True), "layer_ops")


def kernel_table(recording: Recording) -> pd.DataFrame:
    """The frame ``kernels``: GPU kernels, copies and memsets by name, per traced step, slowest first."""
    events, steps = recording.events, int((recording.steps["pass"] == "traced").sum())
    kernels = events[["name", "duration_ns"]].iloc[np.flatnonzero(is_one_of(events["category"], DEVICE_WORK))]
    duration = kernels.groupby("name", observed=True)["duration_ns"].agg(["size", "sum", "mean", "max"])
    table = pd.DataFrame(
        {
            "calls": duration["size"] / steps,
            "total_ms": duration["sum"] / 1e6 / steps,
            "mean_us": duration["mean"] / 1e3,
            "max_us": duration["max"] / 1e3,
        }
    )
    table.index = table.index.astype(TEXT)
    return conform(table.sort_values("total_ms", ascending=False, kind="stable"), "kernels")


def _inside_same(name: Ints, above: Ints) -> Bools:
    """Whether each operator runs inside another of the same name."""
    result = np.zeros(len(name), dtype=bool)
    outer = above
    while (outer != NONE).any():
        result |= (outer != NONE) & (name[outer] == name)
        outer = np.where(outer != NONE, above[outer], NONE)
    return result


def _device_time(events: pd.DataFrame, rows: Ints) -> npt.NDArray[np.float64]:
    """GPU time that each of these host events launched, by correlation id."""
    device = np.flatnonzero(is_one_of(events["category"], DEVICE_WORK) & (events["correlation"] != NONE).to_numpy())
    if len(device) == 0:
        return np.zeros(len(rows))
    time = events["duration_ns"].iloc[device].groupby(events["correlation"].to_numpy()[device]).sum()
    is_call = is_one_of(events["category"], CALLS)[rows]
    correlation = events["correlation"].to_numpy()[rows]
    return np.where(is_call, time.reindex(correlation, fill_value=0).to_numpy(), 0).astype(float)
