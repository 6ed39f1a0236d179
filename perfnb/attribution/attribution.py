"""Cells: the own time of each block of the traced steps, with one phase and one owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.blocks import Host, Kind, host_blocks
from perfnb.attribution.gaps import fill_gaps
from perfnb.attribution.owners import accumulates, owning_blocks
from perfnb.recording.labels import is_one_of
from perfnb.recording.nesting import NONE, Bools, Floats, Forest, Ints, children_sums, forest_of, innermost, outermost
from perfnb.recording.recording import Recording
from perfnb.recording.schema import ACCUMULATION_ROW, ENGINE_ROW, LOSS_ROW, UNATTRIBUTED_ROW
from perfnb.trace_names import DEVICE_WORK


@dataclass(frozen=True)
class Attribution:
    """Who owns the time of the traced steps."""

    #: Events and blocks.
    host: Host
    #: One row per block of `host`, in the same order: ``step``, ``phase``, ``direction`` (forward, backward, recompute
    #: or empty), ``span`` (position of the layer span that owns it, -1 for none), ``special`` (a row of the layers'
    #: table that is not a module, or empty), ``ns`` (its share of the step's time), ``corrected_ns`` (the same without
    #: tracing overhead), ``ops``, ``kernels``, ``gpu_ns``.
    cells: pd.DataFrame
    #: How layer spans nest, by position in `cells`; a recomputed layer has the parent that it had in forward.
    spans: Forest
    #: Number of traced steps.
    steps: int


def attribute(recording: Recording) -> Attribution:
    """Find the phase and the owner of all time in the traced steps of a recording."""
    events = recording.events
    raw = host_blocks(events)
    host = fill_gaps(raw, _is_loss(recording, raw.blocks))
    blocks = host.blocks
    owner = owning_blocks(events, host)
    cells = pd.DataFrame(
        {
            "step": blocks["step"],
            "phase": pd.Categorical(blocks["phase"]),
            "direction": _direction(blocks),
            "span": _owning_span(recording, blocks, owner),
        }
    )
    cells["special"] = _special(cells, blocks, owner, accumulates(events, host))
    own, counts = _own_time(host), _part_that_counts(host)
    cells["ops"] = _count(host.block[host.is_op], len(blocks))
    cells["ns"] = own * counts
    cells["corrected_ns"] = np.maximum(own - _tracing_cost(cells["ops"].to_numpy(), host, recording.meta), 0.0) * counts
    cells["kernels"], cells["gpu_ns"] = _on_device(events, host)
    steps = int((blocks["kind"] == Kind.STEP).sum())
    return Attribution(host, cells, _span_forest(recording, host), steps)


def _is_loss(recording: Recording, blocks: pd.DataFrame) -> Bools:
    loss = recording.spans["loss"].reindex(blocks["span"], fill_value=False)
    return loss.to_numpy(dtype=bool) & (blocks["kind"] == Kind.SPAN).to_numpy()


def _direction(blocks: pd.DataFrame) -> npt.NDArray[np.object_]:
    kind, recomputed = blocks["kind"].to_numpy(), blocks["in_backward"].to_numpy()
    of_span = np.where(recomputed, "recompute", "forward").astype(object)
    return np.where(kind == Kind.SPAN, of_span, np.where(kind == Kind.NODE, "backward", ""))


def _owning_span(recording: Recording, blocks: pd.DataFrame, owner: Ints) -> Ints:
    """Layer span that owns each block: the block itself, or the one in which a node's forward op ran."""
    kind = blocks["kind"].to_numpy()
    span = np.where(kind == Kind.SPAN, np.arange(len(kind)), np.where(kind == Kind.NODE, owner, NONE))
    layer = recording.span_layers.reindex(blocks["span"], fill_value=NONE).to_numpy()
    return np.where((span != NONE) & (kind[span] == Kind.SPAN) & (layer[span] != NONE), span, NONE)


def _special(cells: pd.DataFrame, blocks: pd.DataFrame, owner: Ints, accumulating: Bools) -> npt.NDArray[np.object_]:
    """Row of the layers' table for forward and backward cells that no layer owns."""
    kind, phase = blocks["kind"].to_numpy(), blocks["phase"].to_numpy(dtype=object)
    row = np.full(len(kind), "", dtype=object)
    in_scope = (phase == "forward") | (phase == "backward")
    row[in_scope & (cells["span"].to_numpy() == NONE)] = UNATTRIBUTED_ROW
    row[(kind == Kind.NODE) & (owner != NONE) & (phase[owner] == "loss")] = LOSS_ROW
    row[accumulating & (cells["span"].to_numpy() == NONE)] = ACCUMULATION_ROW
    row[kind == Kind.ENGINE] = ENGINE_ROW
    return row


def _own_time(host: Host) -> Floats:
    """Each block's duration without the blocks inside it, on any thread."""
    duration = (host.blocks["end"] - host.blocks["start"]).to_numpy(dtype=float)
    return np.maximum(duration - children_sums(host.forest.parent, duration), 0.0)


def _part_that_counts(host: Host) -> Floats:
    """Fraction of each block's own time that is time of the step: 1 on the step's thread, 0 on other threads.

    In backward, nodes that ran on several threads at once share the duration of their engine run.
    """
    kind, main = host.blocks["kind"].to_numpy(), host.blocks["main"].to_numpy(dtype=float)
    engine = outermost(host.forest, kind == Kind.ENGINE)
    inside = engine != NONE
    duration = (host.blocks["end"] - host.blocks["start"]).to_numpy(dtype=float)
    whole = np.bincount(engine[inside], weights=_own_time(host)[inside], minlength=len(kind))
    share = np.minimum(1.0, duration / np.maximum(whole, 1.0))
    return np.where(inside, share[engine], main)


def _tracing_cost(ops: Ints, host: Host, meta: Mapping[str, Any]) -> Floats:
    """Tracing overhead in each block: that of its ops, nodes and layer spans directly inside it."""
    cost = meta.get("cost", {})
    kind = host.blocks["kind"].to_numpy()
    spans = children_sums(_spans_in_gaps(host), (kind == Kind.SPAN).astype(np.float64))
    nodes = children_sums(host.forest.parent, (kind == Kind.NODE).astype(np.float64))
    lost: Floats = (ops + nodes) * cost.get("op_ns", 0.0) + spans * cost.get("call_ns", 0.0)
    return lost


def _spans_in_gaps(host: Host) -> Ints:
    """Parents, except that a model's span counts in the gap before it, where the cost of opening it fell."""
    blocks, parent = host.blocks, host.forest.parent.copy()
    kind, start, end = (blocks[name].to_numpy() for name in ("kind", "start", "end"))
    gaps = np.flatnonzero(kind == Kind.GAP)
    gaps = gaps[np.argsort(end[gaps], kind="stable")]
    roots = np.flatnonzero((kind == Kind.SPAN) & (parent != NONE) & np.isin(kind[parent], (Kind.STEP, Kind.OPTIMIZER)))
    if len(gaps) and len(roots):
        place = np.searchsorted(end[gaps], start[roots], side="right") - 1
        parent[roots] = np.where(place >= 0, gaps[np.maximum(place, 0)], NONE)
    return parent


def blocks_of_events(events: pd.DataFrame, host: Host) -> Ints:
    """Block of each event: by time on the host, by the launching call on a device; -1 if unknown."""
    block = np.full(len(events), NONE, dtype=np.int64)
    block[host.rows] = host.block
    correlation = events["correlation"].to_numpy()
    launches = host.rows[correlation[host.rows] != NONE]
    by_number = pd.Series(block[launches], index=correlation[launches])
    by_number = by_number[~by_number.index.duplicated(keep="last")]
    device = np.flatnonzero(is_one_of(events["category"], DEVICE_WORK) & (correlation != NONE))
    block[device] = by_number.reindex(correlation[device], fill_value=NONE).to_numpy()
    return block


def _on_device(events: pd.DataFrame, host: Host) -> tuple[Ints, Ints]:
    """Number and duration of kernels launched from each block; copies and memsets count as kernels."""
    device = np.flatnonzero(is_one_of(events["category"], DEVICE_WORK))
    block = blocks_of_events(events, host)[device]
    known = block != NONE
    duration = events["duration_ns"].to_numpy()[device[known]]
    time = np.bincount(block[known], weights=duration, minlength=len(host.blocks))
    return _count(block, len(host.blocks)), time.astype(np.int64)


def _count(block: Ints, length: int) -> Ints:
    return np.bincount(block[block != NONE], minlength=length).astype(np.int64)


def _span_forest(recording: Recording, host: Host) -> Forest:
    """Parent of each layer span; a recomputed one gets the parent that its layer had in forward."""
    blocks = host.blocks
    is_span = (blocks["kind"] == Kind.SPAN).to_numpy()
    above = innermost(host.forest, is_span | (blocks["kind"] == Kind.NODE).to_numpy())
    parent = np.where(is_span & (above != NONE) & is_span[above], above, NONE)
    recomputed = np.flatnonzero(is_span & blocks["in_backward"].to_numpy() & (parent == NONE))
    layer = recording.span_layers.reindex(blocks["span"], fill_value=NONE).to_numpy()
    forward = np.flatnonzero(is_span & ~blocks["in_backward"].to_numpy())
    first_time = pd.Series(
        parent[forward], index=pd.MultiIndex.from_arrays([blocks["step"].to_numpy()[forward], layer[forward]])
    )
    first_time = first_time[~first_time.index.duplicated(keep="last")]
    key = pd.MultiIndex.from_arrays([blocks["step"].to_numpy()[recomputed], layer[recomputed]])
    parent[recomputed] = first_time.reindex(key, fill_value=NONE).to_numpy()
    return forest_of(parent)
