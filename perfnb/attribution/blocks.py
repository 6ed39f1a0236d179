"""Find the blocks in a trace, and their nesting.

Blocks are steps, waits for data and for collectives, layer spans, backward nodes and optimizer steps. A block is an
interval that owns all of its time except the time of blocks inside it. The time between a step's blocks also becomes
blocks, which have their own phase.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfnb.attribution.collective_waits import (
    device_collectives_alone,
    host_collectives,
    pieces,
    starts_collective,
    synchronises,
    takes_results,
    waits_of_host,
)
from perfnb.attribution.device_work import thread_keys
from perfnb.attribution.interval_sets import intersection, union
from perfnb.recording.nesting import NONE, Bools, Forest, Ints, forest_of, innermost, nest_cutting, subtree_sums
from perfnb.recording.text import found, is_one_of, of_labels
from perfnb.trace.trace_steps import step_of
from perfnb.trace_names import (
    BACKWARD_NODE,
    CALLS,
    COPIES,
    DATA_SPAN,
    LAYER_SPAN,
    LOADER,
    MARK_SPAN,
    OPS,
    OPTIMIZER,
    PIECE,
    RANGES,
    STEP_SPAN,
    number_behind,
    told_direction,
)

_HOST_CATEGORIES = (*OPS, *RANGES, *CALLS, "overhead", "memory")
#: An event counts as inside a step even if it extends beyond the step by this much, because times in files are rounded
#: to microseconds.
_ROUNDING_NS = 1000
#: The event columns that are needed here.
_READ = (
    *("name", "category", "start_ns", "duration_ns", "process", "thread", "correlation", "sequence", "forward_thread"),
    *("span", "marks_step", "collective"),
)
_OLD_NODE = re.compile(r"\w+Backward[0-9]*|torch::autograd::\w+")
_OPTIMIZER = (OPTIMIZER, "aten::_amp_")
#: The name of a function as py-spy writes it. Creating an optimizer may import half of torch, and is not part of a
#: step.
_OPTIMIZER_MADE = "Optimizer.__init__"
_COPY_TO_DEVICE = "HtoD"
_TORCH_OP = "aten::"
_LOSS = re.compile(r"aten::(_?\w+_loss|nll_loss_nd|binary_cross_entropy(_with_logits)?|kl_div)")


class Kind(IntEnum):
    """The kinds of blocks.

    `NODE` is a node of the backward graph, `ENGINE` is a run of autograd's engine over nodes, `GAP` is the time between
    two blocks of a step, `LOSS` is a loss op that a model runs, and `COMMUNICATION` is a wait for a collective.
    `FORWARD_OP` and `BACKWARD_OP` are ops from other frameworks whose names reveal their direction. `OP` is not a
    block.
    """

    OP = 0
    STEP = 1
    DATA = 2
    COPY = 3
    SPAN = 4
    OPTIMIZER = 5
    GAP = 6
    LOSS = 7
    COMMUNICATION = 8
    NODE = 9
    ENGINE = 10
    FORWARD_OP = 11
    BACKWARD_OP = 12


@dataclass(frozen=True)
class Host:
    """The events on the host and their blocks."""

    #: Each event's row in the recording's events.
    rows: Ints
    #: The index of the innermost block that is or contains each event, or -1 outside all blocks.
    block: Ints
    #: Whether each event is an operator. It is either not a block, or a block that copies to a device or is a loss.
    is_op: Bools
    #: The start and end in nanoseconds. An event that ends later than its parent is cut at the parent's end.
    starts: Ints
    ends: Ints
    #: The number of each event's thread, which is the same as in `blocks`.
    thread: Ints
    #: The nesting of the events. Step marks do not enclose other events, because they may start in the middle of a
    #: call.
    calls: Forest
    #: The columns are ``kind``, ``event`` (row in the recording's events, -1 for gaps and engine runs), ``start``,
    #: ``end``, ``thread``, ``continued`` (whether it is the rest of a block that was cut at a step boundary), ``span``,
    #: ``step``, ``main`` (whether it is on its step's thread) and ``in_backward``.
    blocks: pd.DataFrame
    #: The nesting of the blocks. Nodes on other threads are inside the engine run during which they ran.
    forest: Forest


class _Steps(NamedTuple):
    """The steps in chronological order, with their indices among the host's events, starts, ends and threads.

    Steps do not overlap.
    """

    at: Ints
    starts: Ints
    ends: Ints
    threads: Ints

    @classmethod
    def of(cls, kind: Ints, thread: Ints, start: Ints, end: Ints) -> _Steps:
        at = np.flatnonzero(kind == Kind.STEP)
        at = at[np.argsort(start[at], kind="stable")]
        starts, ends = start[at], end[at]
        return cls(at, starts, np.minimum(ends, np.append(starts[1:], ends[-1:])), thread[at])

    def at_time(self, time: Ints) -> Ints:
        """Return the last step that started before or at each time, or -1 before the first step."""
        return np.searchsorted(self.starts, time, side="right") - 1

    def around(self, thread: Ints, time: Ints) -> Ints:
        """Return the step on the given thread that contains each time, or -1 if there is none."""
        step = step_of(time, self.starts, self.ends)
        return np.where(thread == np.append(self.threads, NONE)[step], step, NONE)


def host_blocks(events: pd.DataFrame) -> Host:
    """Find the blocks in a recording's events, and the block to which each event belongs."""
    on_host = is_one_of(events["category"], _HOST_CATEGORIES) | (events["span"] != NONE).to_numpy()
    if "marks_step" in events:
        on_host |= (events["marks_step"] != NONE).to_numpy()
    rows = np.flatnonzero(on_host)
    host = events[[name for name in _READ if name in events]].iloc[rows]
    start = host["start_ns"].to_numpy()
    thread = thread_keys(events)[rows]
    kind = _kinds(host)
    end = start + host["duration_ns"].to_numpy()
    steps = _Steps.of(kind, thread, start, end)
    around = steps.around(thread, start)
    step_end = np.append(steps.ends, 0)[around]
    rounded = (around != NONE) & (end > step_end) & (end - step_end <= _ROUNDING_NS)
    # A step mark is not part of the call stack, because it may start in the middle of a call.
    beside = np.where(kind == Kind.STEP, NONE, thread)
    forest, end = nest_cutting(beside, start, np.where(rounded, step_end, end))
    end[steps.at] = steps.ends
    _mark_copies(events, host, kind, forest, around != NONE)
    node_above = innermost(forest, kind == Kind.NODE)
    # As in a live profile, only layers that are called by the step, or by autograd's engine on its behalf, are
    # included.
    kind[(kind == Kind.SPAN) & ~np.isin(thread, steps.threads) & (node_above == NONE)] = Kind.OP
    _mark_losses(host, kind, forest, node_above)
    silent = is_one_of(host["category"], ("memory",))  # freeing memory between two nodes does not end an engine run
    runs = _engine_runs(steps, kind, start, end, thread, node_above, silent)

    waits = _waits_for_collectives(events, host, steps, kind, start, end, thread, forest, node_above, runs)

    # Steps come first, followed by other blocks from the outside in. Equal intervals then nest like their events.
    others = np.flatnonzero((kind != Kind.OP) & (kind != Kind.STEP))
    others = others[np.argsort(forest.depth[others], kind="stable")]
    marked = pd.DataFrame({"kind": kind, "place": np.arange(len(kind)), "start": start, "end": end, "thread": thread})
    runs, waits = runs.assign(kind=int(Kind.ENGINE), place=NONE), waits.assign(kind=int(Kind.COMMUNICATION), place=NONE)
    whole = pd.concat([marked.iloc[steps.at], runs, marked.iloc[others], waits], ignore_index=True).astype("int64")
    blocks, first_step = _cut_at_steps(whole, steps)
    place = blocks.pop("place").to_numpy()
    blocks.insert(1, "event", np.append(rows, NONE)[place])
    blocks["span"] = np.append(host["span"].to_numpy(), NONE)[place]
    tree, blocks["end"] = nest_cutting(*(blocks[name].to_numpy() for name in ("thread", "start", "end")))
    tree = _adopt(blocks, tree)
    blocks["step"] = steps.at_time(blocks["start"].to_numpy())
    own_thread = np.append(steps.threads, NONE)[blocks["step"]]
    blocks["main"] = (blocks["step"] != NONE) & (blocks["thread"] == own_thread)
    blocks["in_backward"] = innermost(tree, np.isin(blocks["kind"], (Kind.NODE, Kind.ENGINE))) != NONE

    # An event's block is the event itself, the nearest block around it, or otherwise the step. If a block was cut, it
    # is the part in the event's step.
    first = np.flatnonzero((place != NONE) & ~blocks["continued"].to_numpy())
    position = np.full(len(host) + 1, NONE, dtype=np.int64)
    position[place[first]] = first
    parts = np.bincount(place[place != NONE], minlength=len(host))
    nearest = np.where(kind != Kind.OP, np.arange(len(host)), innermost(forest, kind != Kind.OP))
    nearest = np.where(nearest != NONE, nearest, np.append(steps.at, NONE)[around])
    later = np.clip(
        steps.at_time(start) - np.append(first_step, 0)[position[nearest]], 0, np.append(parts, 1)[nearest] - 1
    )
    position = position[nearest] + np.where(nearest != NONE, later, 0)

    is_op = np.isin(kind, (Kind.OP, Kind.COPY, Kind.LOSS, Kind.FORWARD_OP, Kind.BACKWARD_OP)) & is_one_of(
        host["category"], OPS
    )
    return Host(rows, position, is_op, start, end, thread, forest, blocks, tree)


def _cut_at_steps(whole: pd.DataFrame, steps: _Steps) -> tuple[pd.DataFrame, Ints]:
    """Cut blocks at step boundaries, and drop the parts outside steps. The step of each part is also returned.

    If a block only overlaps a step because of rounding, it is not part of that step.
    """
    start, end = whole["start"].to_numpy(), whole["end"].to_numpy()
    if len(steps.at) == 0:
        return whole.assign(continued=False), np.full(len(whole), NONE, dtype=np.int64)
    first = np.maximum(steps.at_time(start), 0)
    last = np.maximum(np.searchsorted(steps.starts, end, side="left") - 1, first)
    first = np.where((first < last) & (steps.ends[first] - start <= _ROUNDING_NS), first + 1, first)
    last = np.where((first < last) & (end - steps.starts[last] <= _ROUNDING_NS), last - 1, last)
    parts = last - first + 1
    block = np.repeat(np.arange(len(whole)), parts)
    number = np.arange(len(block)) - np.repeat(np.cumsum(parts) - parts, parts)
    step = first[block] + number
    begin = np.maximum(start[block], steps.starts[step])
    until = np.maximum(np.minimum(end[block], steps.ends[step]), begin)
    return whole.iloc[block].reset_index(drop=True).assign(start=begin, end=until, continued=number > 0), step


def marks_step(events: pd.DataFrame) -> Bools:
    """Check for each event whether it marks one of the steps.

    For a loaded trace, this was determined on loading. Otherwise, steps are marked by perfnb's own spans.
    """
    if "marks_step" in events:
        return np.asarray((events["marks_step"] != NONE).to_numpy(dtype=bool))
    return of_labels(events["name"], lambda name: number_behind(STEP_SPAN, name) != NONE) & is_one_of(
        events["category"], OPS
    )


def _kinds(host: pd.DataFrame) -> Ints:
    """Return each event's kind, based on its name and category."""
    kind = of_labels(host["name"], _kind_of, Kind.OP)
    # A user range is only a range, even if it has a name that perfnb or torch uses.
    is_range = is_one_of(host["category"], RANGES)
    is_loader = of_labels(host["name"], lambda name: name.startswith(LOADER))
    spoofed = is_range & ((kind >= Kind.NODE) | ((kind == Kind.DATA) & ~is_loader))
    kind = np.where(marks_step(host), Kind.STEP, np.where(spoofed, Kind.OP, kind))
    if "marks_step" in host and not (kind == Kind.NODE).any():
        kind = np.where(_is_old_node(host) & (kind == Kind.OP), Kind.NODE, kind)
    return np.where(host["span"].to_numpy() != NONE, Kind.SPAN, kind)


def _is_old_node(host: pd.DataFrame) -> Bools:
    """Check for each event whether it is a backward node from torch before 1.9, which only recorded the node's op."""
    named = found(host["name"], _OLD_NODE.fullmatch)
    numbered = ((host["sequence"] != NONE) & (host["forward_thread"] > 0)).to_numpy()
    return np.asarray((named | numbered) & is_one_of(host["category"], OPS))


def _kind_of(name: str) -> Kind:
    if name == DATA_SPAN or name.startswith(LOADER):
        return Kind.DATA
    if name.startswith(_OPTIMIZER) and name != _OPTIMIZER_MADE:
        return Kind.OPTIMIZER
    if name.startswith(BACKWARD_NODE) or name == PIECE:
        return Kind.NODE
    return {"forward": Kind.FORWARD_OP, "backward": Kind.BACKWARD_OP}.get(told_direction(name), Kind.OP)


def _mark_copies(events: pd.DataFrame, host: pd.DataFrame, kind: Ints, forest: Forest, in_step: Bools) -> None:
    """Mark the outermost aten op around each host-to-device copy that is in no block other than the step.

    Ranges and ops from other libraries are ignored, because they may contain more than the copy.
    """
    to_device = of_labels(events["name"], lambda name: _COPY_TO_DEVICE in name)
    copied = events["correlation"].to_numpy()[to_device & is_one_of(events["category"], COPIES)]
    if len(copied) == 0:
        return
    in_step = in_step & (kind == Kind.OP) & (innermost(forest, kind != Kind.OP) == NONE)
    is_op = of_labels(host["name"], lambda name: name.startswith(_TORCH_OP))
    is_op &= is_one_of(host["category"], OPS) & in_step
    launch = np.flatnonzero(np.isin(host["correlation"].to_numpy(), copied[copied != NONE]) & in_step)
    launch = launch[~is_one_of(host["category"], RANGES)[launch]]
    while len(launch):
        above = forest.parent[launch]
        inside = (above != NONE) & is_op[above]
        kind[launch[~inside]] = Kind.COPY
        launch = np.unique(above[inside])


def _mark_losses(host: pd.DataFrame, kind: Ints, forest: Forest, node_above: Ints) -> None:
    """Mark the outermost loss ops directly inside module calls, which belong to models that compute their own loss."""
    is_loss = (
        found(host["name"], _LOSS.fullmatch)
        & is_one_of(host["category"], OPS)
        & (kind == Kind.OP)
        & (node_above == NONE)
    )
    if is_loss.any():
        around = innermost(forest, kind != Kind.OP)
        is_loss &= (around != NONE) & (kind[around] == Kind.SPAN) & (innermost(forest, is_loss) == NONE)
        kind[is_loss] = Kind.LOSS


def _engine_runs(
    steps: _Steps, kind: Ints, start: Ints, end: Ints, thread: Ints, node_above: Ints, silent: Bools
) -> pd.DataFrame:
    """Find the runs of autograd's engine on their step's thread.

    A run is a series of outermost backward nodes on any threads. It ends when the step's thread starts anything else.
    """
    outermost = np.flatnonzero((kind == Kind.NODE) & (node_above == NONE))
    outermost = outermost[np.argsort(start[outermost], kind="stable")]
    if len(outermost) == 0 or len(steps.at) == 0:
        return pd.DataFrame({"start": [], "end": [], "thread": []}, dtype="int64")
    step_of = steps.at_time(start[outermost])
    other = np.sort(start[(node_above == NONE) & (kind != Kind.NODE) & ~silent & np.isin(thread, steps.threads)])
    reached = np.maximum.accumulate(end[outermost])
    # Whether the step's thread started something between the end of all previous nodes and the next node.
    began = np.searchsorted(other, start[outermost][1:]) > np.searchsorted(other, reached[:-1])
    first = np.flatnonzero(np.concatenate([[True], began | (np.diff(step_of) > 0)]))
    last = np.append(first[1:], len(outermost)) - 1
    return pd.DataFrame(
        {"start": start[outermost][first], "end": reached[last], "thread": steps.threads[step_of[first]]}
    )


def _waits_for_collectives(
    events: pd.DataFrame,
    host: pd.DataFrame,
    steps: _Steps,
    kind: Ints,
    start: Ints,
    end: Ints,
    thread: Ints,
    forest: Forest,
    node_above: Ints,
    runs: pd.DataFrame,
) -> pd.DataFrame:
    """Return the time when steps only wait for a collective, cut into intervals that nest in the other blocks."""
    on_device_alone, on_device = device_collectives_alone(events)
    own = host_collectives(host, on_device)
    parts: list[pd.DataFrame] = []
    is_block = np.flatnonzero(kind != Kind.OP)
    borders = np.concatenate([start[is_block], end[is_block], runs["start"], runs["end"]]).astype(np.int64)
    if len(own.start) and len(steps.at):
        starts = starts_collective(host)
        inside, around = innermost(forest, starts) != NONE, subtree_sums(forest, starts.astype(np.float64)) > 0
        in_step = np.isin(thread, steps.threads) | (node_above != NONE) | (kind == Kind.NODE)
        own_spans = (STEP_SPAN, DATA_SPAN, LAYER_SPAN, MARK_SPAN)
        is_own = of_labels(host["name"], lambda name: name.startswith(own_spans))
        computes = is_one_of(host["category"], OPS) & ~np.isin(kind, (Kind.STEP, Kind.SPAN, Kind.DATA))
        busy = in_step & ((computes & ~inside & ~around & ~is_own) | (kind == Kind.DATA))
        calls = starts & np.isin(thread, steps.threads)
        outer = computes & in_step & (innermost(forest, computes) == NONE)
        time = waits_of_host(
            own,
            union(steps.starts, steps.ends),
            union(start[busy], end[busy]),
            union(start[calls], end[calls]),
            takes_results(host, outer),
        )
        begin, until = pieces(time, borders)
        parts.append(pd.DataFrame({"start": begin, "end": until, "thread": steps.threads[steps.at_time(begin)]}))
    if on_device:
        calls = synchronises(host)
        for one in np.unique(thread[calls]):
            mine = calls & (thread == one)
            time = intersection(on_device_alone, union(start[mine], end[mine]))
            begin, until = pieces(intersection(time, union(steps.starts, steps.ends)), borders)
            parts.append(pd.DataFrame({"start": begin, "end": until, "thread": one}))
    return pd.concat([pd.DataFrame({"start": [], "end": [], "thread": []}, dtype="int64"), *parts], ignore_index=True)


def _adopt(blocks: pd.DataFrame, tree: Forest) -> Forest:
    """Assign each outermost node on another thread to the engine run during which it ran."""
    kind = blocks["kind"].to_numpy()
    runs = np.flatnonzero(kind == Kind.ENGINE)
    orphans = np.flatnonzero((kind == Kind.NODE) & (tree.parent == NONE))
    if len(runs) == 0 or len(orphans) == 0:
        return tree
    begins, ends = blocks["start"].to_numpy()[runs], blocks["end"].to_numpy()[runs]
    at = blocks["start"].to_numpy()[orphans]
    place = np.searchsorted(begins, at, side="right") - 1
    inside = (place >= 0) & (at < ends[place])
    parent = tree.parent.copy()
    parent[orphans[inside]] = runs[place[inside]]
    return forest_of(parent)


_PHASE_OF = {
    Kind.STEP: "other",
    Kind.DATA: "data",
    Kind.COPY: "host_to_device",
    Kind.SPAN: "forward",
    Kind.OPTIMIZER: "optimizer",
    Kind.LOSS: "loss",
    Kind.COMMUNICATION: "communication",
    Kind.NODE: "backward",
    Kind.ENGINE: "backward",
    Kind.FORWARD_OP: "forward",
    Kind.BACKWARD_OP: "backward",
}


def fill_gaps(host: Host, loss: Bools) -> Host:
    """Assign a ``phase`` to each block, and add the gaps as blocks. `loss` marks the spans that compute a loss."""
    blocks = host.blocks
    kind = blocks["kind"].to_numpy()
    phase = np.array([_PHASE_OF.get(Kind(value), "other") for value in range(len(Kind))], dtype=object)[kind]
    # If a hook runs an optimizer during backward, its phase is still optimizer. The phase of a wait for a collective is
    # still communication.
    in_backward = blocks["in_backward"].to_numpy() & ~np.isin(kind, (Kind.OPTIMIZER, Kind.COMMUNICATION))
    phase = np.where(in_backward, "backward", np.where(loss, "loss", phase))
    gaps = _gaps(host, phase)
    if not gaps:
        return replace(host, blocks=blocks.assign(phase=phase))
    *numbers, phases = zip(*gaps, strict=True)
    parent, start, end = np.array(numbers, dtype=np.int64)
    gap = {"kind": int(Kind.GAP), "event": NONE, "span": NONE, "start": start, "end": end, "phase": phases}
    added = blocks.iloc[parent].assign(**gap)
    filled = pd.concat([blocks.assign(phase=phase), added], ignore_index=True)
    forest = Forest(
        np.concatenate([host.forest.parent, parent]),
        np.concatenate([host.forest.depth, host.forest.depth[parent] + 1]),
    )
    return replace(host, block=_into_gaps(host, filled, forest), blocks=filled, forest=forest)


def _gaps(host: Host, phase: np.ndarray) -> list[tuple[int, int, int, str]]:
    """Return the parent, start, end and phase of each gap in a step or an optimizer step."""
    kind, starts, ends, event, continued = (
        host.blocks[name].to_numpy() for name in ("kind", "start", "end", "event", "continued")
    )
    is_open = np.isin(kind, (Kind.STEP, Kind.OPTIMIZER)) & host.blocks["main"].to_numpy()
    blocks = np.flatnonzero(is_open & ~host.blocks["in_backward"].to_numpy())
    inside = np.flatnonzero(np.isin(host.forest.parent, blocks))
    inside = inside[np.lexsort((starts[inside], host.forest.parent[inside]))]
    around = host.forest.parent[inside]
    gaps: list[tuple[int, int, int, str]] = []
    # The index in `gaps` of the first gap after a forward (or a backward) that has not yet been followed by a backward.
    after_forward = after_backward = NONE
    # The parts of a block that is cut at a step boundary are consecutive.
    for block in blocks[np.lexsort((starts[blocks], event[blocks]))].tolist():
        if not continued[block]:
            after_forward = after_backward = NONE
        reached = int(starts[block])
        first, last = np.searchsorted(around, [block, block + 1])
        for child in inside[first:last].tolist():
            if starts[child] > reached:
                gaps.append((block, reached, int(starts[child]), str(phase[block])))
            reached = max(reached, int(ends[child]))
            if kind[child] == Kind.ENGINE:
                since = after_backward if after_forward == NONE else after_forward
                if since != NONE:
                    gaps[since:] = [(*gap[:3], "loss") for gap in gaps[since:]]
                after_forward, after_backward = NONE, len(gaps)
            elif kind[child] == Kind.SPAN and phase[child] == "forward" and after_forward == NONE:
                after_forward = len(gaps)
            elif kind[child] == Kind.OPTIMIZER:
                after_backward = NONE
        if ends[block] > reached:
            gaps.append((block, reached, int(ends[block]), str(phase[block])))
    return gaps


def _into_gaps(host: Host, filled: pd.DataFrame, forest: Forest) -> Ints:
    """Return each event's block.

    Events directly in a step are assigned to the gap or the wait where they start.
    """
    kind, above = filled["kind"].to_numpy(), forest.parent
    is_gap = kind == Kind.GAP
    is_gap |= (kind == Kind.COMMUNICATION) & (above != NONE) & np.isin(kind[above], (Kind.STEP, Kind.OPTIMIZER))
    gaps = np.flatnonzero(is_gap)
    gaps = gaps[np.argsort(filled["start"].to_numpy()[gaps], kind="stable")]
    block = host.block.copy()
    open_block = np.isin(block, np.unique(forest.parent[gaps]))
    # Events that are blocks themselves are not moved.
    moving = np.flatnonzero(open_block & (filled["event"].to_numpy()[block] != host.rows))
    starts = host.starts[moving]
    place = np.searchsorted(filled["start"].to_numpy()[gaps], starts, side="right") - 1
    found = (place >= 0) & (starts < filled["end"].to_numpy()[gaps[np.maximum(place, 0)]])
    block[moving[found]] = gaps[place[found]]
    return block
