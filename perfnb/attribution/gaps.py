"""The time between the blocks of a step becomes blocks with a phase of their own.

Between a model's forward and the next backward it is loss, and so it is between two backward runs (a gradient penalty,
a second loss). Any other gap takes the phase of the block around it: optimizer inside an optimizer step (around a
closure), else ``other``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from perfnb.attribution.blocks import Host, Kind
from perfnb.recording.nesting import NONE, Bools, Forest, Ints

_PHASE_OF = {
    Kind.STEP: "other",
    Kind.DATA: "data",
    Kind.COPY: "host_to_device",
    Kind.SPAN: "forward",
    Kind.OPTIMIZER: "optimizer",
    Kind.LOSS: "loss",
    Kind.NODE: "backward",
    Kind.ENGINE: "backward",
}


def fill_gaps(host: Host, loss: Bools) -> Host:
    """Give each block a ``phase``, and add the gaps as blocks; `loss` marks the spans that compute a loss."""
    blocks = host.blocks
    kind = blocks["kind"].to_numpy()
    phase = np.array([_PHASE_OF.get(Kind(value), "other") for value in range(len(Kind))], dtype=object)[kind]
    # An optimizer that a hook runs during backward stays optimizer.
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
    """The blocks whose gaps are needed: steps and optimizer steps."""
    blocks = host.blocks
    kind = blocks["kind"].to_numpy()
    is_open = ((kind == Kind.STEP) | (kind == Kind.OPTIMIZER)) & blocks["main"].to_numpy()
    return np.flatnonzero(is_open & ~blocks["in_backward"].to_numpy())


def _all_gaps(host: Host, phase: np.ndarray) -> list[tuple[int, int, int, str]]:
    """Parent, start, end and phase of each gap."""
    blocks = _open_blocks(host)
    starts, parent = host.blocks["start"].to_numpy(), host.forest.parent
    inside = np.flatnonzero(np.isin(parent, blocks))
    inside = inside[np.lexsort((starts[inside], parent[inside]))]
    first, last = (np.searchsorted(parent[inside], blocks, side=side) for side in ("left", "right"))
    event, continued = host.blocks["event"].to_numpy()[blocks], host.blocks["continued"].to_numpy()[blocks]
    # The parts of a block that a step boundary cuts follow each other and share a row.
    order = np.lexsort((starts[blocks], event))
    found: list[list[tuple[int, int, int, str]]] = []
    for place in order.tolist():
        if not continued[place]:
            row = _Row(host, phase)
            found.append(row.gaps)
        row.add(int(blocks[place]), inside[first[place] : last[place]])
    return [gap for gaps in found for gap in gaps]


class _Row:
    """The gaps of one block, or of all parts of a block that step boundaries cut, added in order of time."""

    def __init__(self, host: Host, phase: np.ndarray) -> None:
        self.gaps: list[tuple[int, int, int, str]] = []
        self._starts, self._ends = host.blocks["start"].to_numpy(), host.blocks["end"].to_numpy()
        self._kinds, self._phase = host.blocks["kind"].to_numpy(), phase
        # Index in `gaps` of the first gap after a forward (or a backward) that no backward has followed yet.
        self._after_forward = self._after_backward = NONE

    def add(self, block: int, children: Ints) -> None:
        """Add a part and its children."""
        default = str(self._phase[block])
        reached = int(self._starts[block])
        for child in [*children.tolist(), NONE]:
            until = int(self._ends[block] if child == NONE else self._starts[child])
            if until > reached:
                self.gaps.append((block, reached, until, default))
            if child == NONE:
                break
            reached = max(reached, int(self._ends[child]))
            self._pass(child)

    def _pass(self, child: int) -> None:
        kind = self._kinds[child]
        if kind == Kind.ENGINE:
            first = self._after_backward if self._after_forward == NONE else self._after_forward
            if first != NONE:
                self.gaps[first:] = [(*gap[:3], "loss") for gap in self.gaps[first:]]
            self._after_forward, self._after_backward = NONE, len(self.gaps)
        elif kind == Kind.SPAN and self._phase[child] == "forward" and self._after_forward == NONE:
            self._after_forward = len(self.gaps)
        elif kind == Kind.OPTIMIZER:
            self._after_backward = NONE


def _into_gaps(host: Host, filled: pd.DataFrame, forest: Forest) -> Ints:
    """Block of each event, with those directly in a step moved into the gap in which they start."""
    is_gap = (filled["kind"] == Kind.GAP).to_numpy()
    gaps = np.flatnonzero(is_gap)
    gaps = gaps[np.argsort(filled["start"].to_numpy()[gaps], kind="stable")]
    block = host.block.copy()
    open_block = np.isin(block, np.unique(forest.parent[gaps]))
    # Events that are blocks themselves stay.
    moving = np.flatnonzero(open_block & (filled["event"].to_numpy()[block] != host.rows))
    starts = host.starts[moving]
    place = np.searchsorted(filled["start"].to_numpy()[gaps], starts, side="right") - 1
    found = (place >= 0) & (starts < filled["end"].to_numpy()[gaps[np.maximum(place, 0)]])
    block[moving[found]] = gaps[place[found]]
    return block
