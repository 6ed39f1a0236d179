"""Build the tree of operators in the traced steps, with each operator's layer, phase, host time and GPU work.

Apart from vendor-specific operators, the tree is the same on every machine. It can therefore be used to compare traces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution, attribute, owner_names
from perfnb.attribution.backward_links import makers
from perfnb.attribution.blocks import Host, Kind
from perfnb.attribution.device_work import device_work, is_in, launches_of, matching, named, step_rows
from perfnb.recording.nesting import NONE, Bools, Forest, Ints, children_sums, forest_of, innermost, nest, outermost
from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT
from perfnb.trace_names import (
    BACKWARD_NODE,
    CALLS,
    DATA_SPAN,
    DEVICE_WORK,
    LOADER,
    OP_SPAN,
    OPS,
    OPTIMIZER,
    PIECE,
    RANGES,
    STEP_SPAN,
)

_NODES = (*OPS, *RANGES)
#: Ranges that older torch versions recorded as operators.
_RANGE = re.compile("|".join(map(re.escape, (OPTIMIZER, LOADER, "DistributedDataParallel."))))
_ENGINE = re.compile(f"{BACKWARD_NODE}: ")
#: perfnb's own ranges.
_OURS = re.compile(rf"{STEP_SPAN}|{DATA_SPAN}$|{OP_SPAN}|{PIECE}$")


@dataclass(frozen=True)
class OpTree:
    """The nested calls to operators and annotated ranges.

    Attributes
    ----------
    nodes : DataFrame
        One row per call or range, in chronological order. The columns are ``name``, ``shapes``, ``layer`` and ``phase``
        (as text, missing if unknown; ``recompute`` counts as a phase), ``forward_op`` (for a backward node, the
        outermost operator that created it), ``is_range``, ``is_engine`` (whether it is the engine's range around a
        backward node) and ``self_ns`` (host time, excluding the nodes inside).
    forest : Forest
        The nesting of the nodes.
    work : DataFrame
        One row per kernel, copy or memset, with ``name``, ``duration_ns`` and ``node`` (the innermost node around the
        call that launched it, or -1 if it is unknown).
    steps : int
        The number of traced steps.
    """

    nodes: pd.DataFrame
    forest: Forest
    work: pd.DataFrame
    steps: int

    def lacks(self, word: str) -> bool:
        """Return whether a column, such as ``shapes`` or ``layer``, is missing for all nodes."""
        return bool(self.nodes[word].isna().all())


def op_tree(recording: Recording) -> OpTree:
    """Return the operator tree of a recording. It has no nodes if no step was traced."""
    attribution = attribute(recording)
    host = attribution.host
    members = _members(recording, host)
    rows = host.rows[members]
    is_node = _is_node(recording.events, host, rows)
    start, end = host.starts[members], host.ends[members]
    around = innermost(nest(host.thread[members], start, end), is_node)
    places = np.flatnonzero(is_node)
    places = places[np.lexsort((-end[places], start[places]))]
    number = np.full(len(members) + 1, NONE, dtype=np.int64)  # the number of each node; the last one is for none
    number[places] = np.arange(len(places))
    parent = number[around[places]]
    duration = (end - start)[places].astype(np.float64)
    # A call belongs to the node around it, and an operator belongs to itself.
    node_of = np.full(len(recording.events) + 1, NONE, dtype=np.int64)
    node_of[rows] = np.where(is_node, number[:-1], number[around])
    forest = forest_of(parent)
    is_range = (is_in(recording.events, RANGES) | matching(recording.events, _RANGE))[rows[places]]
    nodes = pd.DataFrame(
        {
            **_words(recording, attribution, rows[places], host.block[members][places]),
            "is_range": is_range,
            "is_engine": matching(recording.events, _ENGINE)[rows[places]],
            "self_ns": np.maximum(duration - children_sums(parent, duration), 0),
        }
    )
    made_by = _forward_ops(recording.events, host, node_of, rows[places], outermost(forest, ~is_range))
    nodes["forward_op"] = named(recording.events, np.append(rows[places], NONE)[made_by])
    return OpTree(nodes, forest, _work(recording.events, node_of), max(attribution.steps, 1))


def _members(recording: Recording, host: Host) -> Ints:
    """Return the indices in `host` of all operators, ranges and calls in the steps."""
    chosen = is_in(recording.events, (*_NODES, *CALLS))[host.rows]
    if not recording.is_from_trace:
        chosen &= host.block != NONE  # a live recording may include work from other threads
    return np.flatnonzero(chosen)


def _is_node(events: pd.DataFrame, host: Host, rows: Ints) -> Bools:
    """Return whether each row is an operator or range, as opposed to a step, a layer or one of perfnb's own ranges."""
    is_step = np.zeros(len(events) + 1, dtype=bool)
    is_step[host.blocks["event"].to_numpy()[(host.blocks["kind"] == Kind.STEP).to_numpy()]] = True
    mark = is_step[:-1] | step_rows(events) | (matching(events, _OURS) & is_in(events, OPS))
    mark |= (events["span"] != NONE).to_numpy()
    return np.asarray((is_in(events, _NODES) & ~mark)[rows])


def _forward_ops(events: pd.DataFrame, host: Host, node_of: Ints, rows: Ints, top: Ints) -> Ints:
    """Return the node of the outermost operator that created each backward node, or -1 for all other nodes."""
    block = np.full(len(events), NONE, dtype=np.int64)
    block[host.rows] = host.block
    of_blocks = makers(events, host)
    place = np.append(of_blocks, NONE)[block[rows]]
    place[(events["forward_thread"].to_numpy()[rows] <= 0) | (events["sequence"].to_numpy()[rows] == NONE)] = NONE
    return np.asarray(np.append(top, NONE)[node_of[np.append(host.rows, NONE)[place]]])


def _words(recording: Recording, attribution: Attribution, rows: Ints, block: Ints) -> dict[str, pd.Categorical]:
    """Return the name, shapes, layer and phase of each node."""
    events, cells = recording.events, attribution.cells
    owner = owner_names(recording, attribution)
    layer = np.where(cells["span"].to_numpy() != NONE, owner, "")
    recomputed = (cells["direction"] == "recompute").to_numpy()
    phase = np.where(recomputed, "recompute", cells["phase"].to_numpy(dtype=object))
    return {
        "name": named(events, rows),
        "shapes": named(events, rows, "shapes") if "shapes" in events.columns else _nothing(len(rows)),
        "layer": _of_blocks(layer, block),
        "phase": _of_blocks(phase, block),
    }


def _of_blocks(texts: np.ndarray, block: Ints) -> pd.Categorical:
    """Return the text of each node's block. Empty texts are missing values."""
    codes, labels = pd.factorize(np.append(texts, ""))
    empty = int(codes[-1])
    codes = codes[block]
    return pd.Categorical.from_codes(
        np.where(codes == empty, NONE, codes), pd.Index(labels.astype(object), dtype=TEXT)
    ).remove_unused_categories()


def _nothing(length: int) -> pd.Categorical:
    return pd.Categorical.from_codes(np.full(length, NONE), categories=pd.Index([], dtype=TEXT))


def _work(events: pd.DataFrame, node_of: Ints) -> pd.DataFrame:
    rows = np.flatnonzero(is_in(events, DEVICE_WORK))
    call = launches_of(events, rows)
    # If the trace does not contain the call that launched the work, the work may still name its operator.
    launcher = np.where(call != NONE, call, device_work(events).op) if (call == NONE).any() else call
    return pd.DataFrame(
        {
            "name": named(events, rows),
            "duration_ns": np.maximum(events["duration_ns"].to_numpy()[rows], 0),
            "node": node_of[launcher],
        }
    )
