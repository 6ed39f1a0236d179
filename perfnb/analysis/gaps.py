"""What lies between the blocks of a step, so that no time is without a phase.

A gap between a model's forward and the backward that follows it is loss, and so is one between two backward runs (a
penalty on gradients, a second loss); any other gap belongs to what lies around it: to the optimizer inside its step
(a closure's surroundings), else to ``other``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from perfnb.analysis.blocks import Host, Kind
from perfnb.analysis.nesting import NONE, Bools, Forest, Ints

_PHASE_OF = {
    Kind.STEP: "other",
    Kind.DATA: "data",
    Kind.COPY: "host_to_device",
    Kind.SPAN: "forward",
    Kind.OPTIMIZER: "optimizer",
    Kind.NODE: "backward",
    Kind.ENGINE: "backward",
}


def fill_gaps(host: Host, loss: Bools) -> Host:
    """The same blocks with a ``phase``, and with the gaps of each step as blocks of their own.

    Parameters
    ----------
    loss : ndarray of bool
        Whether each block is the span of a loss.
    """
    blocks = host.blocks
    kind = blocks["kind"].to_numpy()
    phase = np.array([_PHASE_OF.get(Kind(value), "other") for value in range(len(Kind))], dtype=object)[kind]
    # An optimizer stays one where a hook runs it in the middle of the backward pass.
    in_backward = blocks["in_backward"].to_numpy() & (kind != Kind.OPTIMIZER)
    phase = np.where(in_backward, "backward", np.where(loss, "loss", phase))
    gaps = _all_gaps(host, phase)
    if not gaps:
        return replace(host, blocks=blocks.assign(phase=phase))
    parent = np.array([gap[0] for gap in gaps], dtype=np.int64)
    added = blocks.iloc[parent].assign(
        kind=int(Kind.GAP),
        event=NONE,
        span=NONE,
        start=np.array([gap[1] for gap in gaps], dtype=np.int64),
        end=np.array([gap[2] for gap in gaps], dtype=np.int64),
        phase=[gap[3] for gap in gaps],
    )
    filled = pd.concat([blocks.assign(phase=phase), added], ignore_index=True)
    forest = Forest(
        np.concatenate([host.forest.parent, parent]),
        np.concatenate([host.forest.depth, host.forest.depth[parent] + 1]),
    )
    return replace(host, block=_into_gaps(host, filled, forest), blocks=filled, forest=forest)


def _open_blocks(host: Host) -> Ints:
    """The steps and optimizer steps, whose time between the blocks inside them is to be told apart."""
    blocks = host.blocks
    kind = blocks["kind"].to_numpy()
    is_open = ((kind == Kind.STEP) | (kind == Kind.OPTIMIZER)) & blocks["main"].to_numpy()
    return np.flatnonzero(is_open & ~blocks["in_backward"].to_numpy())


def _all_gaps(host: Host, phase: np.ndarray) -> list[tuple[int, int, int, str]]:
    """The gaps of each open block: its position, begin, end and phase of each."""
    blocks = _open_blocks(host)
    starts, parent = host.blocks["start"].to_numpy(), host.forest.parent
    inside = np.flatnonzero(np.isin(parent, blocks))
    inside = inside[np.lexsort((starts[inside], parent[inside]))]
    first, last = (np.searchsorted(parent[inside], blocks, side=side) for side in ("left", "right"))
    found: list[tuple[int, int, int, str]] = []
    for block, begin, end in zip(blocks.tolist(), first.tolist(), last.tolist(), strict=True):
        found += _gaps(block, inside[begin:end], host, phase)
    return found


def _gaps(block: int, children: Ints, host: Host, phase: np.ndarray) -> list[tuple[int, int, int, str]]:
    """The gaps of a block between its children, which are in order of time."""
    starts, ends = host.blocks["start"].to_numpy(), host.blocks["end"].to_numpy()
    kinds = host.blocks["kind"].to_numpy()
    default = str(phase[block])
    gaps: list[tuple[int, int, int, str]] = []
    # Place in `gaps` of the first gap after a forward, or after a backward, that no backward has followed yet.
    after_forward = after_backward = NONE
    reached = int(starts[block])
    for child in [*children.tolist(), NONE]:
        until = int(ends[block]) if child == NONE else int(starts[child])
        if until > reached:
            gaps.append((block, reached, until, default))
        if child == NONE:
            break
        reached = max(reached, int(ends[child]))
        if kinds[child] == Kind.ENGINE:
            first = after_backward if after_forward == NONE else after_forward
            if first != NONE:
                gaps[first:] = [(*gap[:3], "loss") for gap in gaps[first:]]
            after_forward, after_backward = NONE, len(gaps)
        elif kinds[child] == Kind.SPAN and phase[child] == "forward" and after_forward == NONE:
            after_forward = len(gaps)
        elif kinds[child] == Kind.OPTIMIZER:
            after_backward = NONE
    return gaps


def _into_gaps(host: Host, filled: pd.DataFrame, forest: Forest) -> Ints:
    """Each event's block, where events directly in a step move into the gap they start in."""
    is_gap = (filled["kind"] == Kind.GAP).to_numpy()
    gaps = np.flatnonzero(is_gap)
    gaps = gaps[np.argsort(filled["start"].to_numpy()[gaps], kind="stable")]
    block = host.block.copy()
    open_block = np.isin(block, np.unique(forest.parent[gaps]))
    # An event is a block itself if it is the event of the block that it lies in.
    moving = np.flatnonzero(open_block & (filled["event"].to_numpy()[block] != host.rows))
    starts = host.starts[moving]
    place = np.searchsorted(filled["start"].to_numpy()[gaps], starts, side="right") - 1
    found = (place >= 0) & (starts < filled["end"].to_numpy()[gaps[np.maximum(place, 0)]])
    block[moving[found]] = gaps[place[found]]
    return block
