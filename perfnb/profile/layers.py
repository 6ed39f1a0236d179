"""Assemble the table ``layers`` from the sources of its columns.

=====================================================  =========================================================
columns                                                source
=====================================================  =========================================================
``module``, ``depth``, ``parameters``,                 the modules of the live model, or of the trace's spans
``parameter_bytes``
``calls``, ``ops``, ``kernels``                        the traced steps, counted
``forward_ms``, ``backward_ms``, ``recompute_ms``,     the traced steps: `layer_table` of `perfnb.attribution`
``total_ms``, ``gpu_ms`` and those with ``self_``
``share``, ``self_share``                              the same, corrected for the cost of tracing
those that end in ``_flops``, ``moved_bytes``          the counted step's shapes: `with_arithmetic`
``activation_bytes``, ``peak_bytes``                   the watched step's allocations: `with_memory`
``fused_ms``                                           the kernels of compiled regions: `with_fused`
=====================================================  =========================================================
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.attribution.arithmetic import arithmetic_per_span, special_arithmetic
from perfnb.attribution.attribution import Attribution, layer_of_spans
from perfnb.attribution.blocks import Kind
from perfnb.attribution.tables import DIRECTIONS, sums_by_layer
from perfnb.compiled.tables import fused_ms
from perfnb.memory.allocations import Watched
from perfnb.memory.table import activation_bytes, most_alive
from perfnb.recording.nesting import NONE, Ints
from perfnb.recording.recording import Recording
from perfnb.recording.schema import conform


def with_arithmetic(
    layers: pd.DataFrame, view: Recording, attribution: Attribution, counted: pd.DataFrame
) -> pd.DataFrame:
    """Return the table ``layers`` with FLOPs and bytes moved, including those of child layers.

    FLOPs are counted only for ops that have a formula, and they are missing if none of a layer's ops has one. For rows
    that are not modules, they are also missing in directions where the row has no time.
    """
    sums = sums_by_layer(view, attribution, arithmetic_per_span(attribution, counted))
    table = _whole_numbers(sums)
    seen = np.isin(np.arange(len(view.modules)), layer_of_spans(view, attribution.host))
    table[~_largest_inside(view, seen)] = pd.NA
    special = layers.iloc[len(view.modules) :]
    own = special_arithmetic(counted).reindex(special.index)
    for way in DIRECTIONS:
        own[f"{way}_flops"] = own[f"{way}_flops"].mask(special[f"{way}_ms"].isna())
    whole = pd.concat([table, own], ignore_index=True)
    for way in DIRECTIONS:
        unknown = (whole[f"{way}_flops"] == 0) & (whole[f"{way}_uncounted"] > 0)
        whole[f"{way}_flops"] = whole[f"{way}_flops"].mask(unknown.fillna(False))
    moved = whole[[f"{way}_bytes" for way in DIRECTIONS]].sum(axis=1, min_count=1)
    columns = {f"{way}_flops": whole[f"{way}_flops"].array for way in DIRECTIONS}
    return conform(layers.assign(**columns, moved_bytes=moved.array), "layers")


def with_fused(layers: pd.DataFrame, recording: Recording) -> pd.DataFrame:
    """Return the table ``layers`` with the time of the kernels that each layer shares with layers outside of it."""
    if recording.compiled is None or not len(recording.compiled.kernels):
        return layers
    fused = pd.Series(fused_ms(recording), index=range(len(recording.modules))).reindex(range(len(layers)))
    total = layers["total_ms"].astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    # The parts of kernels are rounded to nanoseconds.
    return conform(layers.assign(fused_ms=np.minimum(fused.to_numpy(), total)), "layers")


def with_memory(layers: pd.DataFrame, watched: Watched, memory: pd.DataFrame, device: str) -> pd.DataFrame:
    """Return the table ``layers`` with the memory that each layer saves for backward, and its peak on `device`.

    The peak is the maximum amount of memory that was allocated while the layer ran.
    """
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
    """Return the peak memory in the counted step while each layer, or a node of its backward pass, was running.

    The value is -1 for layers that did not run.
    """
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
    layer = layer_of_spans(view, attribution.host)
    known = (blocks["kind"] == Kind.SPAN).to_numpy() & (layer != NONE)
    peaks = np.full(len(view.modules), NONE, dtype=np.int64)
    np.maximum.at(peaks, layer[known], most[known])
    return _largest_inside(view, peaks)


def _largest_inside(view: Recording, values: np.ndarray) -> np.ndarray:
    """Return the largest value in each layer, including the layers inside it."""
    parent, largest = view.modules["parent"].to_numpy(), values.copy()
    for row in range(len(largest) - 1, -1, -1):  # parents come first
        if parent[row] != NONE:
            largest[parent[row]] = max(largest[parent[row]], largest[row])
    return largest


def _whole_numbers(sums: dict[str, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame({name: np.rint(values).astype(np.int64) for name, values in sums.items()}).astype("Int64")
