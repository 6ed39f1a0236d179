"""Add what the counted steps measured to the layer and op tables: arithmetic, bytes moved, memory."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.attribution.arithmetic import arithmetic_per_span, counted_ops, special_arithmetic, work_by_op
from perfnb.attribution.attribution import Attribution, attribute
from perfnb.attribution.blocks import Kind
from perfnb.attribution.layers import sums_by_layer
from perfnb.memory.allocations import Watched
from perfnb.memory.table import activation_bytes, most_alive
from perfnb.recording.nesting import NONE, Ints
from perfnb.recording.recording import Recording
from perfnb.recording.schema import conform

_WAYS = ("forward", "backward", "recompute")


def count_ops(recording: Recording) -> tuple[Recording, Attribution, pd.DataFrame] | None:
    """The counted step, its attribution, and its ops; ``None`` if arithmetic was not counted."""
    view = recording.of_arithmetic()
    if view is None or recording.arithmetic is None:
        return None
    attribution = attribute(view)
    return view, attribution, counted_ops(view, attribution, recording.arithmetic.calls)


def with_arithmetic(
    layers: pd.DataFrame, view: Recording, attribution: Attribution, counted: pd.DataFrame
) -> pd.DataFrame:
    """The frame ``layers`` with FLOPs and bytes moved, child layers included.

    FLOPs are those of ops with a formula, and missing if a layer only has ops without one. Rows that are not modules
    have none in a direction in which they have no time.
    """
    sums = sums_by_layer(view, attribution, arithmetic_per_span(attribution, counted))
    table = _whole_numbers(sums)
    seen = np.isin(np.arange(len(view.modules)), _spans_layer(view, attribution))
    inside = seen | _contains(view, seen)
    table[~inside] = pd.NA
    special = layers.iloc[len(view.modules) :]
    own = special_arithmetic(counted).reindex(special.index)
    for way in _WAYS:
        own[f"{way}_flops"] = own[f"{way}_flops"].mask(special[f"{way}_ms"].isna())
    whole = pd.concat([table, own], ignore_index=True)
    for way in _WAYS:
        unknown = (whole[f"{way}_flops"] == 0) & (whole[f"{way}_uncounted"] > 0)
        whole[f"{way}_flops"] = whole[f"{way}_flops"].mask(unknown.fillna(False))
    moved = whole[[f"{way}_bytes" for way in _WAYS]].sum(axis=1, min_count=1)
    columns = {f"{way}_flops": whole[f"{way}_flops"].array for way in _WAYS}
    return conform(layers.assign(**columns, moved_bytes=moved.array), "layers")


def ops_with_arithmetic(ops: pd.DataFrame, counted: pd.DataFrame) -> pd.DataFrame:
    """The frame ``ops`` with FLOPs and bytes moved; missing for ops without a formula or of which others do the
    work."""
    work = work_by_op(counted).reindex(ops.index)
    return conform(ops.assign(flops=work["flops"].array, bytes=work["bytes"].array), "ops")


def with_memory(layers: pd.DataFrame, watched: Watched, memory: pd.DataFrame, device: str) -> pd.DataFrame:
    """The frame ``layers`` with what each saves for backward, and the most alive on `device` while it ran."""
    view, attribution = watched.recording, watched.attribution
    cells = attribution.cells
    span = cells["span"].to_numpy()
    saved = activation_bytes(watched)
    owned = span != NONE
    per_span = np.bincount(span[owned], weights=saved[owned], minlength=len(cells)).astype(np.float64)
    table = _whole_numbers(sums_by_layer(view, attribution, {"activation_bytes": per_span}))
    peak = _peaks(watched, memory, device)
    table["peak_bytes"] = pd.arrays.IntegerArray(peak, peak == NONE)
    table.loc[peak == NONE, "activation_bytes"] = pd.NA
    table = table.reindex(range(len(layers)))
    return conform(layers.assign(**{name: table[name].array for name in table.columns}), "layers")


def _peaks(watched: Watched, memory: pd.DataFrame, device: str) -> Ints:
    """Most memory alive while each layer, or a node of its backward, ran in the counted step; -1 if none did."""
    view, attribution = watched.recording, watched.attribution
    blocks, span = attribution.host.blocks, attribution.cells["span"].to_numpy()
    ran = (blocks["kind"].isin((Kind.SPAN, Kind.NODE))).to_numpy() & (span != NONE)
    ran &= (blocks["start"] >= watched.begin).to_numpy() & (blocks["end"] <= watched.end).to_numpy()
    starts, ends = (blocks[name].to_numpy()[ran] - watched.begin for name in ("start", "end"))
    most = np.full(len(blocks), NONE, dtype=np.int64)
    if ran.any():
        np.maximum.at(most, span[ran], most_alive(memory, device, starts / 1e6, ends / 1e6))
    for level in reversed(attribution.spans.by_depth()[1:]):
        np.maximum.at(most, attribution.spans.parent[level], most[level])
    layer = _spans_layer(view, attribution)
    known = (blocks["kind"] == Kind.SPAN).to_numpy() & (layer != NONE)
    peaks = np.full(len(view.modules), NONE, dtype=np.int64)
    np.maximum.at(peaks, layer[known], most[known])
    parent = view.modules["parent"].to_numpy()
    for row in range(len(peaks) - 1, -1, -1):  # parents come first
        if parent[row] != NONE:
            peaks[parent[row]] = max(peaks[parent[row]], peaks[row])
    return peaks


def _spans_layer(view: Recording, attribution: Attribution) -> Ints:
    return np.asarray(view.span_layers.reindex(attribution.host.blocks["span"], fill_value=NONE).to_numpy())


def _contains(view: Recording, seen: np.ndarray) -> np.ndarray:
    """Whether each layer contains a layer that was seen."""
    parent, inside = view.modules["parent"].to_numpy(), np.zeros(len(seen), dtype=bool)
    for row in range(len(seen) - 1, -1, -1):
        if parent[row] != NONE and (seen[row] or inside[row]):
            inside[parent[row]] = True
    return inside


def _whole_numbers(sums: dict[str, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame({name: np.rint(values).astype(np.int64) for name, values in sums.items()}).astype("Int64")
