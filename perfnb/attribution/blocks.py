"""The blocks of a traced step: steps, waits for data, layer spans, backward nodes, optimizer steps, and how they nest.

A block is an interval that owns the time which no block inside it owns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfnb.recording.labels import is_one_of, of_labels
from perfnb.recording.nesting import NONE, Bools, Forest, Ints, forest_of, innermost, nest_cutting
from perfnb.trace_names import (
    BACKWARD_NODE,
    CALLS,
    COPIES,
    DATA_SPAN,
    LOADER,
    OPS,
    OPTIMIZER,
    RANGES,
    STEP_SPAN,
    number_behind,
)

_HOST_CATEGORIES = (*OPS, *RANGES, *CALLS, "overhead", "memory")
#: What reaches no farther over the mark of a step only seems to: files round times to a microsecond.
_ROUNDING_NS = 1000
#: Columns of the host's events that tell what they are.
_READ = (
    *("name", "category", "start_ns", "duration_ns", "process", "thread", "correlation", "sequence", "forward_thread"),
    *("span", "marks_step"),
)
_OLD_NODE = re.compile(r"\w+Backward[0-9]*|torch::autograd::\w+")
_OPTIMIZER = (OPTIMIZER, "aten::_amp_")
_COPY_TO_DEVICE = "HtoD"
_TORCH_OP = "aten::"
_LOSS = re.compile(r"aten::(_?\w+_loss|nll_loss_nd|binary_cross_entropy(_with_logits)?|kl_div)")


class Kind(IntEnum):
    """What a block is: `NODE` is one node of the backward graph, `ENGINE` a run of autograd's engine over nodes,
    `GAP` what lies between the blocks of a step, `LOSS` the op of a loss that a model computes itself. `OP` is no
    block."""

    OP = 0
    STEP = 1
    DATA = 2
    COPY = 3
    SPAN = 4
    OPTIMIZER = 5
    GAP = 6
    LOSS = 7
    NODE = 8
    ENGINE = 9


@dataclass(frozen=True)
class Host:
    """The host's events, each inside its block.

    Attributes
    ----------
    rows : ndarray
        Row of each host event in the recording's events.
    block : ndarray
        Position in `blocks` of the innermost block around or at each host event; -1 outside all.
    is_op : ndarray of bool
        Whether each host event is an operator: no block, or one that copies to a device or is a loss.
    starts, ends : ndarray
        Of each host event in nanoseconds; what ends later than the event that it began in ends with it here.
    thread : ndarray
        A number for the thread of each host event, the same one in `blocks`.
    blocks : DataFrame
        ``kind``, ``event`` (row in the recording's events, -1 where perfnb put the block together), ``start``, ``end``,
        ``thread``, ``continued`` (whether it goes on from an earlier step: a block lies in one step), ``span``,
        ``step``, ``main`` (on the thread of its step), ``in_backward``.
    forest : Forest
        How the blocks nest. A node on another thread than its step's lies in the run of the engine at that time.
    """

    rows: Ints
    block: Ints
    is_op: Bools
    starts: Ints
    ends: Ints
    thread: Ints
    blocks: pd.DataFrame
    forest: Forest


class _Steps(NamedTuple):
    """The steps among the host's events, in order of time: place, begin, end and thread. No two overlap."""

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
        """Number of the last step that began by then; -1 before the first."""
        return np.searchsorted(self.starts, time, side="right") - 1

    def around(self, thread: Ints, time: Ints) -> Ints:
        """Number of the step in which each time of a thread lies, if it is the step's own; -1 for none."""
        step = self.at_time(time)
        inside = (time < np.append(self.ends, time.min(initial=0))[step]) & (
            thread == np.append(self.threads, NONE)[step]
        )
        return np.where(inside & (step != NONE), step, NONE)


def host_blocks(events: pd.DataFrame) -> Host:
    """Find the blocks of a recording's events and what lies in each."""
    on_host = is_one_of(events["category"], _HOST_CATEGORIES) | (events["span"] != NONE).to_numpy()
    if "marks_step" in events:
        on_host |= (events["marks_step"] != NONE).to_numpy()
    rows = np.flatnonzero(on_host)
    host = events[[name for name in _READ if name in events]].iloc[rows]
    start = host["start_ns"].to_numpy()
    thread = _threads(host)
    kind = _kinds(host)
    end = start + host["duration_ns"].to_numpy()
    steps = _Steps.of(kind, thread, start, end)
    around = steps.around(thread, start)
    step_end = np.append(steps.ends, 0)[around]
    rounded = (around != NONE) & (end > step_end) & (end - step_end <= _ROUNDING_NS)
    # A step's mark may fall in the middle of a call; it is no part of the call stack.
    beside = np.where(kind == Kind.STEP, thread.min(initial=0) - 1, thread)
    forest, end = nest_cutting(beside, start, np.where(rounded, step_end, end))
    end[steps.at] = steps.ends
    _mark_copies(events, host, kind, forest, around != NONE)
    node_above = innermost(forest, kind == Kind.NODE)
    # As in a live profile, the layers are those that the step called itself, or autograd's engine for it.
    kind[(kind == Kind.SPAN) & ~np.isin(thread, steps.threads) & (node_above == NONE)] = Kind.OP
    _mark_losses(host, kind, forest, node_above)
    silent = is_one_of(host["category"], ("memory",))  # what is freed between two nodes is no doing of the step's
    runs = _engine_runs(kind, start, end, thread, node_above, silent)

    # Steps come first and what is outside before what is inside it: so equal intervals nest as their events do.
    others = np.flatnonzero((kind != Kind.OP) & (kind != Kind.STEP))
    others = others[np.argsort(forest.depth[others], kind="stable")]
    whole = {
        "kind": np.concatenate([kind[steps.at], np.full(len(runs), Kind.ENGINE), kind[others]]),
        "place": np.concatenate([steps.at, np.full(len(runs), NONE), others]),
        "start": np.concatenate([steps.starts, runs["start"], start[others]]),
        "end": np.concatenate([steps.ends, runs["end"], end[others]]),
        "thread": np.concatenate([steps.threads, runs["thread"], thread[others]]),
    }
    blocks, first_step = _cut_at_steps(pd.DataFrame({name: v.astype(np.int64) for name, v in whole.items()}), steps)
    place = blocks.pop("place").to_numpy()
    blocks.insert(1, "event", np.append(rows, NONE)[place])
    blocks["span"] = np.append(host["span"].to_numpy(), NONE)[place]
    tree, blocks["end"] = nest_cutting(*(blocks[name].to_numpy() for name in ("thread", "start", "end")))
    tree = _adopt(blocks, tree)
    blocks["step"], blocks["main"] = _steps(blocks, tree)
    blocks["in_backward"] = innermost(tree, blocks["kind"].to_numpy() >= Kind.NODE) != NONE

    # Each event's block: the marked event itself, else the nearest marked one above, else the step; of one that steps
    # cut, the part in the event's own step. A root may lie in an engine's run.
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

    is_op = np.isin(kind, (Kind.OP, Kind.COPY, Kind.LOSS)) & is_one_of(host["category"], OPS)
    return Host(rows, position, is_op, start, end, thread, blocks, tree)


def _cut_at_steps(whole: pd.DataFrame, steps: _Steps) -> tuple[pd.DataFrame, Ints]:
    """The parts that blocks have in each step, and the step of each part; what lies between two steps goes.

    An event belongs to the step in which it begins, even if that is by a hair.
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
    """Whether each event marks a step that counts: as the reader of a loaded trace decided, else perfnb's own span."""
    if "marks_step" in events:
        return np.asarray((events["marks_step"] != NONE).to_numpy(dtype=bool))
    return of_labels(events["name"], lambda name: number_behind(STEP_SPAN, name) != NONE) & is_one_of(
        events["category"], OPS
    )


def _threads(host: pd.DataFrame) -> Ints:
    """A number for each thread; threads of two processes may share theirs."""
    thread = host["thread"].to_numpy()
    if "process" not in host or host["process"].nunique() < 2:
        return thread
    return np.asarray(host.groupby(["process", "thread"], sort=False).ngroup().to_numpy(), dtype=np.int64)


def _kinds(host: pd.DataFrame) -> Ints:
    """Kind of each host event, by its name and category."""
    kind = of_labels(host["name"], _kind_of, Kind.OP)
    # A range that the user named like one of these is only a range.
    is_range = is_one_of(host["category"], RANGES)
    is_loader = of_labels(host["name"], lambda name: name.startswith(LOADER))
    spoofed = is_range & ((kind == Kind.NODE) | ((kind == Kind.DATA) & ~is_loader))
    kind = np.where(marks_step(host), Kind.STEP, np.where(spoofed, Kind.OP, kind))
    if "marks_step" in host and not (kind == Kind.NODE).any():
        kind = np.where(_is_old_node(host) & (kind == Kind.OP), Kind.NODE, kind)
    return np.where(host["span"].to_numpy() != NONE, Kind.SPAN, kind)


def _is_old_node(host: pd.DataFrame) -> Bools:
    """Whether each event is a node of the backward pass as torch traced them before 1.9: the node's op alone."""
    named = of_labels(host["name"], lambda name: _OLD_NODE.fullmatch(name) is not None)
    numbered = ((host["sequence"] != NONE) & (host["forward_thread"] > 0)).to_numpy()
    return np.asarray((named | numbered) & is_one_of(host["category"], OPS))


def _kind_of(name: str) -> Kind:
    if name == DATA_SPAN or name.startswith(LOADER):
        return Kind.DATA
    if name.startswith(_OPTIMIZER):
        return Kind.OPTIMIZER
    return Kind.NODE if name.startswith(BACKWARD_NODE) else Kind.OP


def _mark_copies(events: pd.DataFrame, host: pd.DataFrame, kind: Ints, forest: Forest, in_step: Bools) -> None:
    """Mark the outermost of torch's ops around a copy from host to device, where a step is the innermost block.

    A range or an op of someone else's around it holds more than the copy.
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
    """Mark the outermost ops of losses inside the calls of modules: of a model that returns its own loss."""
    is_loss = of_labels(host["name"], lambda name: _LOSS.fullmatch(name) is not None)
    is_loss &= is_one_of(host["category"], OPS) & (kind == Kind.OP) & (node_above == NONE)
    if is_loss.any():
        around = innermost(forest, kind != Kind.OP)
        is_loss &= (around != NONE) & (kind[around] == Kind.SPAN) & (innermost(forest, is_loss) == NONE)
        kind[is_loss] = Kind.LOSS


def _engine_runs(kind: Ints, start: Ints, end: Ints, thread: Ints, node_above: Ints, silent: Bools) -> pd.DataFrame:
    """Runs of autograd's engine, on the thread of their step.

    A run is a series of outermost backward nodes, on whatever threads, between which the step's thread did nothing.
    """
    is_step = kind == Kind.STEP
    order = np.argsort(start[is_step])
    step_start, step_thread = start[is_step][order], thread[is_step][order]
    outermost = np.flatnonzero((kind == Kind.NODE) & (node_above == NONE))
    outermost = outermost[np.argsort(start[outermost], kind="stable")]
    if len(outermost) == 0 or len(step_start) == 0:
        return pd.DataFrame({"start": [], "end": [], "thread": []}, dtype="int64")
    step_of = np.searchsorted(step_start, start[outermost], side="right") - 1
    other = np.sort(start[(node_above == NONE) & (kind != Kind.NODE) & ~silent & np.isin(thread, step_thread)])
    reached = np.maximum.accumulate(end[outermost])
    # The step's thread began something between the end of all nodes so far and the start of the next.
    began = np.searchsorted(other, start[outermost][1:]) > np.searchsorted(other, reached[:-1])
    first = np.flatnonzero(np.concatenate([[True], began | (np.diff(step_of) > 0)]))
    last = np.append(first[1:], len(outermost)) - 1
    return pd.DataFrame({"start": start[outermost][first], "end": reached[last], "thread": step_thread[step_of[first]]})


def _adopt(blocks: pd.DataFrame, tree: Forest) -> Forest:
    """Put outermost nodes of other threads into the run of the engine during which they ran."""
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


def _steps(blocks: pd.DataFrame, tree: Forest) -> tuple[Ints, Bools]:
    """Number of the step each block lies in by time, and whether it is on the step's own thread."""
    start, thread = blocks["start"].to_numpy(), blocks["thread"].to_numpy()
    steps = np.flatnonzero((blocks["kind"] == Kind.STEP).to_numpy())
    steps = steps[np.argsort(start[steps])]
    number = np.asarray(np.searchsorted(start[steps], start, side="right") - 1, dtype=np.int64)
    if len(steps) == 0:
        return number, np.zeros(len(number), dtype=bool)
    return number, thread == thread[steps][number]
