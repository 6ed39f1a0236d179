"""Compute the time tables ``phases``, ``layers``, ``ops``, ``layer_ops`` and ``kernels``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution, is_derived, layer_of_spans, owner_names
from perfnb.attribution.blocks import Host, Kind
from perfnb.recording.nesting import NONE, Bools, Floats, Ints, forest_of, innermost, outermost, subtree_sums
from perfnb.recording.recording import Recording
from perfnb.recording.schema import ACCUMULATION_ROW, PHASES, SPECIAL_ROWS, UNATTRIBUTED_ROW, conform
from perfnb.recording.text import TEXT, is_one_of
from perfnb.trace_names import CALLS, DEVICE_WORK


def phase_table(attribution: Attribution) -> pd.DataFrame:
    """Return the table ``phases``, which contains each phase's time per traced step and its share of the step.

    The values of ``ms`` are traced times, which add up to the traced step. ``share`` is corrected for tracing overhead.
    """
    sums = attribution.cells.groupby("phase", observed=False)[["ns", "corrected_ns"]].sum()
    sums = sums.reindex(list(PHASES), fill_value=0)
    share = sums["corrected_ns"] / (sums["corrected_ns"].sum() or np.nan)
    return conform(pd.DataFrame({"ms": sums["ns"] / 1e6 / attribution.steps, "share": share}), "phases")


def phase_stretches(attribution: Attribution, begin: int, end: int) -> list[tuple[str, int, int]]:
    """Return a step's phases in chronological order, as the name, start and end in nanoseconds of each interval."""
    blocks = attribution.host.blocks
    inside = blocks["main"] & (blocks["start"] >= begin) & (blocks["end"] <= end)
    rows = blocks[inside.to_numpy() & (attribution.host.forest.depth == 1)].sort_values("start")
    joined: list[tuple[str, int, int]] = []
    for phase, start, stop in zip(rows["phase"], rows["start"], rows["end"], strict=True):
        if joined and joined[-1][0] == phase:
            joined[-1] = (phase, joined[-1][1], int(stop))
        else:
            joined.append((str(phase), int(start), int(stop)))
    return [stretch for stretch in joined if stretch[0] in PHASES]


def own_losses(recording: Recording, attribution: Attribution) -> list[str]:
    """Return the models that compute the loss in forward.

    These are the models in whose calls all backward passes in the traced steps begin, because the first node of a
    backward pass belongs to the tensor on which ``backward`` was called, which is the loss. Models whose loss ops were
    recognised by name are left out, because these ops are already in the phase loss.
    """
    blocks, forest, cells = attribution.host.blocks, attribution.host.forest, attribution.cells
    kind, parent = blocks["kind"].to_numpy(), forest.parent
    in_engine = (parent != NONE) & (kind[parent] == Kind.ENGINE)
    nodes = np.flatnonzero((kind == Kind.NODE) & in_engine & (cells["special"] != ACCUMULATION_ROW).to_numpy())
    nodes = nodes[np.argsort(blocks["start"].to_numpy()[nodes], kind="stable")]
    first = nodes[np.unique(parent[nodes], return_index=True)[1]]
    made_in = cells["span"].to_numpy()[first]
    if len(first) == 0 or (made_in == NONE).any():
        return []
    layer = layer_of_spans(recording, attribution.host)
    model = outermost(forest, layer != NONE)
    told = model[kind == Kind.LOSS]
    named = np.setdiff1d(layer[model[made_in]], layer[told[told != NONE]])
    names: list[str] = recording.modules["name"].iloc[named].tolist()
    return names


DIRECTIONS = ("forward", "backward", "recompute")
_KNOWN_WITHOUT_SPANS = ("module", "depth", "parameters", "parameter_bytes")
_COLUMNS = {"own": "ns", "corrected": "corrected_ns", "ops": "ops", "kernels": "kernels", "gpu": "gpu_ns"}


def layer_table(recording: Recording, attribution: Attribution) -> pd.DataFrame:
    """Return the table ``layers``.

    It has one row per layer in model order, followed by rows in parentheses that are not modules.

    Times are per traced step and include children, except in the columns that begin with ``self``. A layer's children
    are the layers that ran inside it, so a shared layer counts towards each of its parents. A container that is never
    called (``ModuleList``) has the sum of the layers below it. ``share`` and ``self_share`` are fractions of the step,
    corrected for tracing overhead. The values of ``self_ms`` add up to the phases forward and backward. If a layer is
    called as a loss, the calls count in ``calls``, but their time belongs to the phase loss.
    """
    cells, modules = attribution.cells, recording.modules
    per_span = _per_span(attribution)
    layer = layer_of_spans(recording, attribution.host)
    sums = sums_by_layer(recording, attribution, per_span)
    is_span = layer != NONE
    repeated = (attribution.spans.parent != NONE) & (layer[attribution.spans.parent] == layer)
    forward = is_span & (cells["direction"] == "forward").to_numpy() & ~repeated
    blocks = attribution.host.blocks
    pieces = is_derived(recording, attribution.host) & blocks["span"].duplicated().to_numpy()  # for one call
    began = forward & ~blocks["continued"].to_numpy() & ~pieces
    losses = _loss_calls(recording, attribution)
    calls = np.bincount(layer[began], minlength=len(modules)) + losses
    own = {name: _summed(layer[is_span], values[is_span], len(modules)) for name, values in per_span.items()}
    # Shares are undefined if there is no time, and figures per step are undefined if there are no steps.
    steps, whole = attribution.steps or np.nan, float(cells["corrected_ns"].sum()) or np.nan
    ms, on_gpu = 1e6 * steps, bool(cells["kernels"].sum())
    table = modules[list(_KNOWN_WITHOUT_SPANS)].assign(
        calls=calls / steps,
        **{f"{name}_ms": sums[name] / ms for name in DIRECTIONS},
        total_ms=sum(sums[name] for name in DIRECTIONS) / ms,
        self_ms=own["own"] / ms,
        **{f"self_{name}_ms": own[name] / ms for name in ("forward", "backward")},
        share=sums["corrected"] / whole,
        self_share=own["corrected"] / whole,
        ops=sums["ops"] / steps,
    )
    if on_gpu:
        table = table.assign(kernels=sums["kernels"] / steps, gpu_ms=sums["gpu"] / ms, self_gpu_ms=own["gpu"] / ms)
    measured = table.columns.drop(list(_KNOWN_WITHOUT_SPANS))
    table.loc[_hidden(recording, layer, table["total_ms"].to_numpy()), measured] = pd.NA
    table.loc[_only_loss(recording, layer, losses), measured.drop("calls")] = pd.NA
    table.index = pd.Index(modules["name"], dtype=TEXT)
    return pd.concat([conform(table, "layers"), conform(_special_rows(attribution, whole, on_gpu), "layers")])


def sums_by_layer(recording: Recording, attribution: Attribution, per_span: Mapping[str, Floats]) -> dict[str, Floats]:
    """Sum measures by layer, including children. The input contains values per layer span without children."""
    modules = recording.modules
    parent = modules["parent"].to_numpy()
    layer = layer_of_spans(recording, attribution.host)
    with_children = {name: subtree_sums(attribution.spans, values) for name, values in per_span.items()}
    counted = (layer != NONE) & ~_inside_same(layer, attribution.spans.parent)  # recursive calls count once
    sums = {name: _summed(layer[counted], values[counted], len(modules)) for name, values in with_children.items()}
    called = np.isin(np.arange(len(modules)), layer)
    for container, spans in _uncalled(attribution, layer, parent, called).items():
        for name, values in with_children.items():
            sums[name][container] = values[spans].sum()
    return sums


def _hidden(recording: Recording, layer: Ints, total: Floats) -> Bools:
    """Check whether a layer's calls are hidden in a compiled layer, or on a thread that is not recorded."""
    called = np.isin(np.arange(len(total)), recording.span_layers.to_numpy())
    seen = np.isin(np.arange(len(total)), layer)
    modules = recording.modules
    in_region = inside_compiled(modules) | (modules["compiled"].to_numpy() & ~seen)
    return np.asarray((in_region & (total == 0)) | (called & ~seen))


def _loss_calls(recording: Recording, attribution: Attribution) -> Ints:
    """Return the number of times that each layer was called as a loss, over all steps."""
    blocks = attribution.host.blocks
    of_losses = recording.spans["layer"].where(recording.spans["loss"], NONE)
    layer = of_losses.reindex(blocks["span"], fill_value=NONE).to_numpy()
    counted = (layer != NONE) & ~blocks["continued"].to_numpy()
    return np.bincount(layer[counted], minlength=len(recording.modules))


def _only_loss(recording: Recording, layer: Ints, losses: Ints) -> Bools:
    """Check whether a layer and its children were only called as losses."""
    tree = forest_of(recording.modules["parent"].to_numpy())
    seen = np.isin(np.arange(len(losses)), layer)
    lossy, visible = (subtree_sums(tree, values.astype(float)) > 0 for values in (losses, seen))
    return np.asarray(lossy & ~visible)


def inside_compiled(modules: pd.DataFrame) -> Bools:
    """Check for each layer whether it is inside a compiled layer."""
    return np.asarray(innermost(forest_of(modules["parent"].to_numpy()), modules["compiled"].to_numpy()) != NONE)


def _per_span(attribution: Attribution) -> dict[str, Floats]:
    """Return the measures of each layer span without its children, indexed by block."""
    cells = attribution.cells[attribution.cells["span"] != NONE]
    parts = {name: (cells[cells["direction"] == name], "ns") for name in DIRECTIONS}
    parts |= {name: (cells, column) for name, column in _COLUMNS.items()}
    return {
        name: _summed(part["span"].to_numpy(), part[column].to_numpy(dtype=float), len(attribution.cells))
        for name, (part, column) in parts.items()
    }


def _summed(places: Ints, values: Floats, length: int) -> Floats:
    return np.bincount(places, weights=values, minlength=length).astype(np.float64)


def _uncalled(attribution: Attribution, layer: Ints, parent: Ints, called: Bools) -> dict[int, list[int]]:
    """Return the outermost spans of the layers below each layer that is never called."""
    above = np.where(attribution.spans.parent != NONE, layer[attribution.spans.parent], NONE)
    # Each layer and its ancestors, by name. Parents come first.
    lines: dict[int, list[int]] = {NONE: []}
    for one, outer in enumerate(parent.tolist()):
        lines[one] = [one, *lines[outer]]
    spans: dict[int, list[int]] = {}
    for position in np.flatnonzero(layer != NONE).tolist():
        outside = lines[int(above[position])]
        for container in lines[int(layer[position])]:
            if not called[container] and container not in outside:
                spans.setdefault(container, []).append(position)
    return spans


def _special_rows(attribution: Attribution, whole: float, on_gpu: bool) -> pd.DataFrame:
    """Return rows for the time that does not belong to any layer. Rows without time are left out."""
    cells, steps = attribution.cells[attribution.cells["special"] != ""], attribution.steps or np.nan
    ms = 1e6 * steps
    sums = cells.groupby("special")[["ns", "corrected_ns", "ops", "kernels", "gpu_ns"]].sum()
    sums = sums.reindex([row for row in SPECIAL_ROWS if row in sums.index and sums["ns"][row] > 0])
    forward = cells[cells["phase"] == "forward"].groupby("special")["ns"].sum().reindex(sums.index, fill_value=0) / ms
    rows = pd.DataFrame(
        {
            # Only unattributed time can be in forward. All other rows only have time in backward.
            "forward_ms": forward.where(sums.index == UNATTRIBUTED_ROW),
            "backward_ms": sums["ns"] / ms - forward,
            "ms": sums["ns"] / ms,
            "share": sums["corrected_ns"] / whole,
        }
    )
    rows = (
        rows.add_prefix("self_").join(rows.rename(columns={"ms": "total_ms"})).assign(depth=0, ops=sums["ops"] / steps)
    )
    gpu_ms = sums["gpu_ns"] / ms
    return rows.assign(kernels=sums["kernels"] / steps, gpu_ms=gpu_ms, self_gpu_ms=gpu_ms) if on_gpu else rows


def op_calls(recording: Recording, attribution: Attribution, times: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return `op_times` with ``layer`` and ``direction``.

    ``layer`` is a row in the layer table, and is empty outside forward and backward. If the `op_times` of the
    attribution's host have already been computed, they can be passed as `times`.
    """
    times = op_times(recording, attribution.host) if times is None else times
    block = times["block"].to_numpy()
    return times.drop(columns="block").assign(
        layer=pd.array(np.append(owner_names(recording, attribution), "")[block], dtype=TEXT),
        direction=pd.array(np.append(attribution.cells["direction"].to_numpy(dtype=object), "")[block], dtype=TEXT),
    )


def op_times(recording: Recording, host: Host) -> pd.DataFrame:
    """Return one row per operator call: ``op``, ``block``, ``self_ns``, ``total_ns``, ``gpu_ns``.

    ``total_ns`` is 0 for a call inside another call to the same operator. This ensures that no time is counted twice in
    sums.
    """
    events, rows, is_op = recording.events, host.rows, host.is_op
    duration = host.ends - host.starts
    above = innermost(host.calls, is_op)
    nested = is_op & (above != NONE)
    inner = _summed(above[nested], duration[nested].astype(float), len(rows))
    device_ns = _device_time(events, rows)
    launcher = np.where(is_op, np.arange(len(rows)), above)
    counted = (device_ns > 0) & (launcher != NONE)
    name = events["name"].cat.codes.to_numpy().astype(np.int64)[rows]
    calls = pd.DataFrame(
        {
            "op": events["name"].array[rows],
            "block": host.block,
            "self_ns": np.maximum(duration - inner, 0),
            "total_ns": np.where(_inside_same(name, above), 0, duration),
            "gpu_ns": _summed(launcher[counted], device_ns[counted], len(rows)),
        }
    )
    # A live trace may contain work from other threads. A loaded trace has already been cut to its steps.
    return calls[is_op if recording.is_from_trace else is_op & (host.block != NONE)]


def op_table(calls: pd.DataFrame, steps: int, on_gpu: bool) -> pd.DataFrame:
    """Return the table ``ops`` per traced step, in descending order of time."""
    groups = calls.groupby("op", observed=True)
    sums = groups[["self_ns", "total_ns", "gpu_ns"]].sum() / 1e6 / steps
    table = sums.set_axis(["self_cpu_ms", "total_cpu_ms", "gpu_ms"], axis="columns").assign(calls=groups.size() / steps)
    table.index = table.index.astype(TEXT)
    if not on_gpu:
        table = table.drop(columns="gpu_ms")
    order = ["gpu_ms", "self_cpu_ms"] if on_gpu else ["self_cpu_ms"]
    return conform(table.sort_values(order, ascending=False, kind="stable"), "ops")


def layer_op_table(calls: pd.DataFrame, steps: int, on_gpu: bool) -> pd.DataFrame:
    """Return the table ``layer_ops``, which lists operators by layer and direction.

    Figures are per traced step, and the rows are in descending order of time.
    """
    owned = calls[calls["layer"] != ""]
    groups = owned.groupby(["layer", "op", "direction"], observed=True, sort=False)
    sums = groups.agg(calls=("self_ns", "size"), self_cpu_ms=("self_ns", "sum"), gpu_ms=("gpu_ns", "sum"))
    table = (sums / [steps, 1e6 * steps, 1e6 * steps]).reset_index()
    if not on_gpu:
        table = table.drop(columns="gpu_ms")
    return conform(table.sort_values("self_cpu_ms", ascending=False, kind="stable", ignore_index=True), "layer_ops")


def kernel_table(recording: Recording) -> pd.DataFrame:
    """Return the table ``kernels``, which lists GPU kernels, copies and memsets by name.

    Figures are per traced step, and the rows are in descending order of time.
    """
    events, steps = recording.events, int((recording.steps["pass"] == "traced").sum())
    kernels = events[["name", "duration_ns"]].iloc[np.flatnonzero(is_one_of(events["category"], DEVICE_WORK))]
    duration = kernels.groupby("name", observed=True)["duration_ns"]
    sums = duration.agg(calls="size", total_ms="sum", mean_us="mean", max_us="max")
    table: Any = sums / [steps, 1e6 * steps, 1e3, 1e3]
    table.index = table.index.astype(TEXT)
    return conform(table.sort_values("total_ms", ascending=False, kind="stable"), "kernels")


def _inside_same(name: Ints, above: Ints) -> Bools:
    """Check for each operator or layer span whether it is inside another one with the same name."""
    result = np.zeros(len(name), dtype=bool)
    outer = above
    while (outer != NONE).any():
        result |= (outer != NONE) & (name[outer] == name)
        outer = np.where(outer != NONE, above[outer], NONE)
    return result


def _device_time(events: pd.DataFrame, rows: Ints) -> Floats:
    """Return the GPU time that each of these host events launched, using correlation ids."""
    correlation = events["correlation"].to_numpy()
    device = is_one_of(events["category"], DEVICE_WORK) & (correlation != NONE)
    time = events["duration_ns"][device].groupby(correlation[device]).sum()
    is_call = is_one_of(events["category"], CALLS)[rows]
    return np.where(is_call, time.reindex(correlation[rows], fill_value=0).to_numpy(), 0).astype(float)
