"""Compute cells, which contain each block's own time in the traced steps, with a phase and an owner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.backward_links import accumulates, owning_blocks
from perfnb.attribution.blocks import Host, Kind, fill_gaps, host_blocks
from perfnb.recording.nesting import NONE, Bools, Floats, Forest, Ints, children_sums, forest_of, innermost, outermost
from perfnb.recording.recording import Recording
from perfnb.recording.schema import ACCUMULATION_ROW, ENGINE_ROW, LOSS_ROW, UNATTRIBUTED_ROW
from perfnb.recording.text import is_one_of, of_labels
from perfnb.trace_names import DEVICE_WORK, PIECE


@dataclass(frozen=True)
class Attribution:
    """The attribution of the traced steps' time to layers and phases."""

    #: The host's events and their blocks.
    host: Host
    #: One row per block of `host`, in the same order: ``step``, ``phase``, ``direction`` (forward, backward, recompute
    #: or empty), ``span`` (index of the layer span that owns it, -1 if there is none), ``special`` (a row in the layer
    #: table that is not a module, or empty), ``ns`` (its contribution to the step's time), ``corrected_ns`` (the same
    #: without tracing overhead), ``ops``, ``kernels``, ``gpu_ns``.
    cells: pd.DataFrame
    #: The nesting of layer spans, by index in `cells`. A recomputed layer has the same parent as the call that it
    #: repeats.
    spans: Forest
    #: The number of traced steps.
    steps: int


def attribute(recording: Recording) -> Attribution:
    """Determine the phase and the owner of all of the time in a recording's traced steps."""
    events = recording.events
    raw = host_blocks(events)
    is_loss = recording.spans["loss"].reindex(raw.blocks["span"], fill_value=False)
    host = fill_gaps(raw, is_loss.to_numpy(dtype=bool))
    blocks = host.blocks
    owner = owning_blocks(events, host)
    cells = pd.DataFrame(
        {
            "step": blocks["step"],
            "phase": pd.Categorical(blocks["phase"]),
            "direction": _direction(blocks),
            "span": _owning_span(blocks, owner, layer_of_spans(recording, host)),
        }
    )
    cells["special"] = _special(cells, blocks, owner, accumulates(events, host))
    own = _own_time(host)
    counts = _part_that_counts(host, own)
    cells["ops"] = np.bincount(host.block[host.is_op & (host.block != NONE)], minlength=len(blocks))
    cells["ns"] = own * counts
    cost = _tracing_cost(cells["ops"].to_numpy(), host, recording)
    cells["corrected_ns"] = np.maximum(own - cost, 0.0) * counts
    cells["kernels"], cells["gpu_ns"] = _on_device(recording, host, own)
    steps = int((blocks["kind"] == Kind.STEP).sum())
    return Attribution(host, cells, _span_forest(recording, host, owner), steps)


def _direction(blocks: pd.DataFrame) -> npt.NDArray[np.object_]:
    kind, recomputed = blocks["kind"].to_numpy(), blocks["in_backward"].to_numpy()
    of_span = np.where(recomputed, "recompute", "forward").astype(object)
    return np.where(kind == Kind.SPAN, of_span, np.where(kind == Kind.NODE, "backward", ""))


def _owning_span(blocks: pd.DataFrame, owner: Ints, layer: Ints) -> Ints:
    """Return the layer span that owns each block.

    A layer span owns itself. A backward node is owned by the span where its forward op ran.
    """
    kind = blocks["kind"].to_numpy()
    span = np.where(kind == Kind.SPAN, np.arange(len(kind)), np.where(kind == Kind.NODE, owner, NONE))
    return np.where((span != NONE) & (layer[span] != NONE), span, NONE)


def _special(cells: pd.DataFrame, blocks: pd.DataFrame, owner: Ints, accumulating: Bools) -> npt.NDArray[np.object_]:
    """Return the row in the layer table for each forward or backward cell that does not belong to a layer."""
    kind, phase = blocks["kind"].to_numpy(), blocks["phase"].to_numpy(dtype=object)
    row = np.full(len(kind), "", dtype=object)
    in_scope = (phase == "forward") | (phase == "backward")
    row[in_scope & (cells["span"].to_numpy() == NONE)] = UNATTRIBUTED_ROW
    row[(kind == Kind.NODE) & (owner != NONE) & (phase[owner] == "loss")] = LOSS_ROW
    row[accumulating & (cells["span"].to_numpy() == NONE)] = ACCUMULATION_ROW
    row[kind == Kind.ENGINE] = ENGINE_ROW
    return row


def _own_time(host: Host) -> Floats:
    """Return each block's duration, excluding all blocks inside it, regardless of their threads."""
    duration = (host.blocks["end"] - host.blocks["start"]).to_numpy(dtype=float)
    return np.maximum(duration - children_sums(host.forest.parent, duration), 0.0)


def _part_that_counts(host: Host, own: Floats) -> Floats:
    """Return the fraction of each block's own time that counts towards the step.

    The fraction is 1 on the step's thread and 0 on other threads. In backward, the duration of an engine run is divided
    among the nodes if they ran on several threads at once.
    """
    kind, main = host.blocks["kind"].to_numpy(), host.blocks["main"].to_numpy(dtype=float)
    engine = outermost(host.forest, kind == Kind.ENGINE)
    inside = engine != NONE
    duration = (host.blocks["end"] - host.blocks["start"]).to_numpy(dtype=float)
    whole = np.bincount(engine[inside], weights=own[inside], minlength=len(kind))
    share = np.minimum(1.0, duration / np.maximum(whole, 1.0))
    return np.where(inside, share[engine], main)


def _tracing_cost(ops: Ints, host: Host, recording: Recording) -> Floats:
    """Return the tracing overhead that the ops, nodes and layer spans directly inside each block cause."""
    cost = recording.meta.get("cost", {})
    kind = host.blocks["kind"].to_numpy()
    traced = ~is_derived(recording, host)
    spans = children_sums(_spans_in_gaps(host), ((kind == Kind.SPAN) & traced).astype(np.float64))
    nodes = children_sums(host.forest.parent, ((kind == Kind.NODE) & traced).astype(np.float64))
    lost: Floats = (ops + nodes) * cost.get("op_ns", 0.0) + spans * cost.get("call_ns", 0.0)
    return lost


def is_derived(recording: Recording, host: Host) -> Bools:
    """Return whether each block was added to the trace for a layer inside a compiled region."""
    span = recording.derived_spans.reindex(host.blocks["span"], fill_value=False).to_numpy(dtype=bool)
    event = host.blocks["event"].to_numpy()
    piece = of_labels(recording.events["name"], PIECE.__eq__)[event] & (event != NONE)
    return np.asarray(span | piece)


def _spans_in_gaps(host: Host) -> Ints:
    """Return the parent of each block, with models' spans moved into the gaps before them.

    The gap before a model's span contains the cost of opening the span.
    """
    blocks, parent = host.blocks, host.forest.parent.copy()
    kind, start, end = (blocks[name].to_numpy() for name in ("kind", "start", "end"))
    gaps = np.flatnonzero(kind == Kind.GAP)
    gaps = gaps[np.argsort(end[gaps], kind="stable")]
    roots = np.flatnonzero((kind == Kind.SPAN) & (parent != NONE) & np.isin(kind[parent], (Kind.STEP, Kind.OPTIMIZER)))
    parent[roots] = np.append(gaps, NONE)[np.searchsorted(end[gaps], start[roots], side="right") - 1]
    return parent


def owner_names(recording: Recording, attribution: Attribution) -> npt.NDArray[np.object_]:
    """Return the row in the layer table that owns each block, or an empty value if there is none."""
    span = attribution.cells["span"].to_numpy()
    layer = layer_of_spans(recording, attribution.host)[span]
    names = np.append(recording.modules["name"].to_numpy(dtype=object), "")
    return np.where(span != NONE, names[layer], attribution.cells["special"].to_numpy(dtype=object))


def layer_of_spans(recording: Recording, host: Host) -> Ints:
    """Return the layer number of each block that is a layer span.

    The result is -1 for all other blocks, and for spans without a layer.
    """
    return recording.span_layers.reindex(host.blocks["span"], fill_value=NONE).to_numpy()


def blocks_of_events(events: pd.DataFrame, host: Host) -> Ints:
    """Return the block of each event, or -1 if it is unknown.

    Host events are assigned based on time, and device events based on the call that launched them.
    """
    block = np.full(len(events), NONE, dtype=np.int64)
    block[host.rows] = host.block
    device, launch = _launches(events, host)
    block[device] = np.append(host.block, NONE)[launch]
    return block


def _launches(events: pd.DataFrame, host: Host) -> tuple[Ints, Ints]:
    """Return the rows of device work, and the call that launched each of them.

    The calls are indices into `host`, or -1 if a call is unknown.
    """
    correlation = events["correlation"].to_numpy()
    places = np.flatnonzero(correlation[host.rows] != NONE)
    by_number = pd.Series(places, index=correlation[host.rows[places]])
    by_number = by_number[~by_number.index.duplicated(keep="last")]
    device = np.flatnonzero(is_one_of(events["category"], DEVICE_WORK) & (correlation != NONE))
    return device, by_number.reindex(correlation[device], fill_value=NONE).to_numpy()


def _on_device(recording: Recording, host: Host, own: Floats) -> tuple[Ints, Floats]:
    """Return the number and duration of the kernels launched from each block, including copies and memsets.

    If a kernel in compiled code belongs to several layers, the device time that it launches is divided among their
    blocks in the same proportions as its time on the host.
    """
    events, length = recording.events, len(host.blocks)
    device, launch = _launches(events, host)
    block = np.append(host.block, NONE)[launch]
    device, launch, block = (values[block != NONE] for values in (device, launch, block))
    duration = events["duration_ns"].to_numpy()[device]
    time = np.bincount(block, weights=duration, minlength=length).astype(np.float64)
    if recording.compiled is not None and len(calls := recording.compiled.calls.sort_values("start_ns")):
        first = calls["start_ns"].to_numpy()
        last = first + calls["duration_ns"].to_numpy()

        def call_around(start: Ints, end: Ints) -> Ints:
            at = np.searchsorted(first, start, side="right") - 1
            return np.where((at != NONE) & (end <= last[at]), at, NONE)

        start, end = (host.blocks[name].to_numpy() for name in ("start", "end"))
        part = np.where(is_derived(recording, host), call_around(start, end), NONE)
        host_ns = np.bincount(part[part != NONE], weights=own[part != NONE], minlength=len(calls) + 1)
        call = call_around(host.starts[launch], host.starts[launch])
        shared = host_ns[call] > 0  # the last one is 0, for work that was not launched by such a kernel
        time -= np.bincount(block[shared], weights=duration[shared], minlength=length)
        device_ns = np.bincount(call[shared], weights=duration[shared], minlength=len(calls) + 1)
        time += np.where(part != NONE, own * (device_ns / np.maximum(host_ns, 1))[part], 0)
    return np.bincount(block, minlength=length), time


def _span_forest(recording: Recording, host: Host, owner: Ints) -> Forest:
    """Return the parent of each layer span. A recomputed span has the same parent as the call that it repeats.

    A recomputation runs inside a backward node. The layer that made the checkpointed call is either the layer whose
    forward created that node or a layer around it. Since layers can be shared, the layer that called the largest number
    of the recomputed layers is chosen. If there are several candidates, the innermost one is chosen.
    """
    blocks, layer = host.blocks, layer_of_spans(recording, host)
    is_span = (blocks["kind"] == Kind.SPAN).to_numpy()
    above = innermost(host.forest, is_span | (blocks["kind"] == Kind.NODE).to_numpy())
    parent = np.where(is_span & (above != NONE) & is_span[above], above, NONE)
    in_backward = blocks["in_backward"].to_numpy()
    waiting = np.flatnonzero(is_span & in_backward & (parent == NONE))
    made_in = np.where(is_span, np.arange(len(is_span)), innermost(host.forest, is_span))
    made_in = np.append(made_in, NONE)[np.append(owner, NONE)[above]]  # for the node around each recomputed span
    while len(waiting):  # repeated for recomputations inside other recomputations
        callers = _callers(waiting, above, layer, made_in, parent)
        if len(callers) == 0:
            break
        parent[callers.index] = callers.to_numpy()
        waiting = waiting[parent[waiting] == NONE]
    # If a trace has no sequence numbers, only the parents in forward are known.
    keys = pd.MultiIndex.from_arrays([blocks["step"], layer])
    forward = np.flatnonzero(is_span & ~in_backward)
    last_time = pd.Series(parent[forward], index=keys[forward])
    last_time = last_time[~last_time.index.duplicated(keep="last")]
    parent[waiting] = last_time.reindex(keys[waiting], fill_value=NONE).to_numpy()
    return forest_of(parent)


def _callers(waiting: Ints, node: Ints, layer: Ints, made_in: Ints, parent: Ints) -> pd.Series:
    """Return the caller of each recomputed span in `waiting` whose caller can be found."""
    inside = np.flatnonzero(parent != NONE)
    calls = pd.DataFrame({"caller": parent[inside], "layer": layer[inside]}).drop_duplicates()
    spans = pd.DataFrame({"span": waiting, "node": node[waiting], "layer": layer[waiting]})
    around, caller = [], made_in[waiting]
    while (caller != NONE).any():
        around.append(spans.assign(caller=caller))
        caller = np.where(caller != NONE, parent[caller], NONE)
    if not around:
        return pd.Series(dtype=np.int64)
    found = pd.concat(around).merge(calls, on=["caller", "layer"])
    recomputed = found.groupby(["node", "caller"])["layer"].transform("nunique")
    found = found.iloc[np.argsort(-recomputed.to_numpy(), kind="stable")].drop_duplicates("span")
    return found.set_index("span")["caller"]
