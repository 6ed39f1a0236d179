"""The frame ``layers``: where a step's time goes, layer by layer, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind
from perfnb.recording.nesting import NONE, Bools, Floats, Ints, subtree_sums
from perfnb.recording.recording import Recording
from perfnb.recording.schema import SPECIAL_ROWS, UNATTRIBUTED_ROW, conform
from perfnb.recording.text import TEXT

_DIRECTIONS = ("forward", "backward", "recompute")
_KNOWN_WITHOUT_SPANS = ("module", "depth", "parameters", "parameter_bytes")
_COLUMNS = {"own": "ns", "corrected": "corrected_ns", "ops": "ops", "kernels": "kernels", "gpu": "gpu_ns"}


def layer_table(recording: Recording, attribution: Attribution) -> pd.DataFrame:
    """The frame ``layers``: one row per layer in model order, then the rows in parentheses that are not modules.

    Times are per traced step and include children, except ``self_ms`` and ``self_gpu_ms``. A layer's children are those
    that ran inside it, so a shared layer counts in each of its parents; a container that is never called
    (``ModuleList``) sums the layers below it. ``share`` and ``self_share`` are of the step, corrected for tracing
    overhead. The ``self_ms`` add up to the phases forward and backward. Calls as a loss count in ``calls``, but their
    time belongs to the phase loss.
    """
    cells, modules = attribution.cells, recording.modules
    per_span = _per_span(attribution)
    layer = recording.span_layers.reindex(attribution.host.blocks["span"], fill_value=NONE).to_numpy()
    sums = sums_by_layer(recording, attribution, per_span)
    is_span = (attribution.host.blocks["kind"] == Kind.SPAN).to_numpy() & (layer != NONE)
    repeated = (attribution.spans.parent != NONE) & (layer[attribution.spans.parent] == layer)
    forward = is_span & (cells["direction"] == "forward").to_numpy() & ~repeated
    began = forward & ~attribution.host.blocks["continued"].to_numpy()
    losses = _loss_calls(recording, attribution)
    calls = _by_layer(layer[began], np.ones(int(began.sum())), len(modules)) + losses
    own = {name: _by_layer(layer[is_span], per_span[name][is_span], len(modules)) for name in _COLUMNS}
    # No time means no shares, and no steps no figures per step.
    steps, whole = attribution.steps or np.nan, float(cells["corrected_ns"].sum()) or np.nan
    on_gpu = bool(cells["kernels"].sum())
    table = pd.DataFrame(
        {
            "module": modules["module"].to_numpy(),
            "depth": modules["depth"].to_numpy(),
            "calls": calls / steps,
            **{f"{name}_ms": sums[name] / 1e6 / steps for name in _DIRECTIONS},
            "total_ms": sum(sums[name] for name in _DIRECTIONS) / 1e6 / steps,
            "self_ms": own["own"] / 1e6 / steps,
            "share": sums["corrected"] / whole,
            "self_share": own["corrected"] / whole,
            "parameters": modules["parameters"].to_numpy(),
            "parameter_bytes": modules["parameter_bytes"].to_numpy(),
            "ops": sums["ops"] / steps,
            **({"kernels": sums["kernels"] / steps, "gpu_ms": sums["gpu"] / 1e6 / steps} if on_gpu else {}),
            **({"self_gpu_ms": own["gpu"] / 1e6 / steps} if on_gpu else {}),
        },
        index=pd.Index(modules["name"], dtype=TEXT),
    )
    hidden = _hidden(recording, layer, table["total_ms"].to_numpy())
    table.loc[hidden, [name for name in table.columns if name not in _KNOWN_WITHOUT_SPANS]] = pd.NA
    only_loss = _only_loss(recording, layer, losses)
    table.loc[only_loss, [name for name in table.columns if name not in (*_KNOWN_WITHOUT_SPANS, "calls")]] = pd.NA
    return pd.concat([conform(table, "layers"), conform(_special_rows(attribution, whole, on_gpu), "layers")])


def sums_by_layer(recording: Recording, attribution: Attribution, per_span: Mapping[str, Floats]) -> dict[str, Floats]:
    """Sum measures by layer, children included, from their values per layer span without children."""
    modules = recording.modules
    parent = modules["parent"].to_numpy()
    layer = recording.span_layers.reindex(attribution.host.blocks["span"], fill_value=NONE).to_numpy()
    is_span = (attribution.host.blocks["kind"] == Kind.SPAN).to_numpy() & (layer != NONE)
    with_children = {name: subtree_sums(attribution.spans, values) for name, values in per_span.items()}
    counted = _outermost_of_layer(attribution, layer)
    sums = {name: _by_layer(layer[counted], values[counted], len(modules)) for name, values in with_children.items()}
    called = _by_layer(layer[is_span], np.ones(int(is_span.sum())), len(modules)) > 0
    for container, spans in _uncalled(attribution, layer, parent, called).items():
        for name, values in with_children.items():
            sums[name][container] = values[spans].sum()
    return sums


def _hidden(recording: Recording, layer: Ints, total: Floats) -> Bools:
    """Whether a layer ran unseen: inside a compiled one, or on a thread that the profiler does not record."""
    called = np.isin(np.arange(len(total)), recording.span_layers.to_numpy())
    seen = np.isin(np.arange(len(total)), layer)
    return np.asarray((inside_compiled(recording.modules) & (total == 0)) | (called & ~seen))


def _loss_calls(recording: Recording, attribution: Attribution) -> Floats:
    """Calls of each layer as a loss, in all steps."""
    blocks, length = attribution.host.blocks, len(recording.modules)
    of_losses = recording.spans["layer"].where(recording.spans["loss"], NONE)
    layer = of_losses.reindex(blocks["span"], fill_value=NONE).to_numpy()
    counted = (blocks["kind"] == Kind.SPAN).to_numpy() & (layer != NONE) & ~blocks["continued"].to_numpy()
    return _by_layer(layer[counted], np.ones(int(counted.sum())), length)


def _only_loss(recording: Recording, layer: Ints, losses: Floats) -> Bools:
    """Whether the only calls of a layer and its children were as losses."""
    parent = recording.modules["parent"].to_numpy()
    seen, lossy = np.isin(np.arange(len(parent)), layer), losses > 0
    for place in range(len(parent) - 1, -1, -1):  # parents come first
        if parent[place] != NONE:
            seen[parent[place]] |= seen[place]
            lossy[parent[place]] |= lossy[place]
    return np.asarray(lossy & ~seen)


def inside_compiled(modules: pd.DataFrame) -> Bools:
    """Whether each layer is inside a compiled one."""
    compiled, parent = modules["compiled"].to_numpy(), modules["parent"].to_numpy()
    inside = np.zeros(len(parent), dtype=bool)
    for place, above in enumerate(parent.tolist()):  # parents come first
        inside[place] = above != NONE and (inside[above] or compiled[above])
    return inside


def _per_span(attribution: Attribution) -> dict[str, Floats]:
    """Measures of each layer span without its children, indexed by block."""
    cells = attribution.cells
    span, direction = cells["span"].to_numpy(), cells["direction"].to_numpy(dtype=object)
    owned = span != NONE

    def summed(column: str, chosen: Bools) -> Floats:
        weights = cells[column].to_numpy(dtype=float)[chosen]
        return np.bincount(span[chosen], weights=weights, minlength=len(cells)).astype(np.float64)

    directions = {name: summed("ns", owned & (direction == name)) for name in _DIRECTIONS}
    return directions | {name: summed(column, owned) for name, column in _COLUMNS.items()}


def _by_layer(layer: Ints, values: Floats, length: int) -> Floats:
    return np.bincount(layer, weights=values, minlength=length).astype(np.float64)


def _outermost_of_layer(attribution: Attribution, layer: Ints) -> Bools:
    """Whether each block is a layer span that is not inside another span of its layer (recursion counts once)."""
    counted = (attribution.host.blocks["kind"] == Kind.SPAN).to_numpy() & (layer != NONE)
    above = attribution.spans.parent
    while (above != NONE).any():
        counted &= ~((above != NONE) & (layer[above] == layer))
        above = np.where(above != NONE, attribution.spans.parent[above], NONE)
    return np.asarray(counted)


def _uncalled(attribution: Attribution, layer: Ints, parent: Ints, called: Bools) -> dict[int, list[int]]:
    """For each layer that is never called, the outermost spans of the layers below it."""
    above = np.where(attribution.spans.parent != NONE, layer[attribution.spans.parent], NONE)
    is_span = np.flatnonzero((attribution.host.blocks["kind"] == Kind.SPAN).to_numpy() & (layer != NONE))
    spans: dict[int, list[int]] = {}
    lines: dict[int, list[int]] = {}
    for position in is_span.tolist():
        outside = _line(int(above[position]), parent, lines)
        for container in _line(int(layer[position]), parent, lines):
            if not called[container] and container not in outside:
                spans.setdefault(container, []).append(position)
    return spans


def _line(layer: int, parent: Ints, known: dict[int, list[int]]) -> list[int]:
    """A layer and its ancestors by name."""
    if layer == NONE:
        return []
    if layer not in known:
        known[layer] = [layer, *_line(int(parent[layer]), parent, known)]
    return known[layer]


def _special_rows(attribution: Attribution, whole: float, on_gpu: bool) -> pd.DataFrame:
    """Rows for the time that no layer owns; rows without time are left out."""
    cells = attribution.cells[attribution.cells["special"] != ""]
    sums = cells.groupby("special")[["ns", "corrected_ns", "ops", "kernels", "gpu_ns"]].sum()
    forward = cells[cells["phase"] == "forward"].groupby("special")["ns"].sum()
    sums = sums.reindex([row for row in SPECIAL_ROWS if row in sums.index and sums["ns"][row] > 0])
    steps = attribution.steps or np.nan
    total = sums["ns"] / 1e6 / steps
    in_forward = forward.reindex(sums.index, fill_value=0) / 1e6 / steps
    share = sums["corrected_ns"] / whole
    # Only unattributed time can be in forward; the other rows belong to backward alone.
    anywhere = sums.index == UNATTRIBUTED_ROW
    rows = pd.DataFrame(
        {
            "depth": 0,
            "forward_ms": in_forward.where(anywhere),
            "backward_ms": total - in_forward,
            "recompute_ms": pd.NA,
            "total_ms": total,
            "self_ms": total,
            "share": share,
            "self_share": share,
            "ops": sums["ops"] / steps,
        },
        index=sums.index,
    )
    gpu = sums["gpu_ns"] / 1e6 / steps
    return rows.assign(kernels=sums["kernels"] / steps, gpu_ms=gpu, self_gpu_ms=gpu) if on_gpu else rows
