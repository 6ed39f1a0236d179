"""Allocations reconstructed from an allocator's history and the blocks left at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.memory.snapshot.reading import Addresses, SnapshotColumns
from perfnb.trace.columns import MISSING, Ints

#: States of an allocation: that of its block if it still exists.
ALLOCATED, AWAITING_FREE, FREED, UNKNOWN = range(4)
STATES = ("active_allocated", "active_awaiting_free", "freed", "unknown")
#: States of blocks that cannot be handed out.
ACTIVE = STATES[:2]

#: The allocator rounds a request up at least to a multiple of this; a block may be larger.
_ROUNDING = 512


@dataclass(frozen=True)
class Lifetimes:
    """One row per allocation: those in the history in its order, then the others.

    Attributes
    ----------
    device, stream, size, requested, state, segment, stack, start_us, end_us : ndarray of int64
        `MISSING` if unknown. `state` is a code of `STATES`. `size` is that of the block, or the least it had if it no
        longer exists.
    address : ndarray of uint64
    change : ndarray of int64
        For each entry of the history, the change of the allocated bytes.
    """

    device: Ints
    stream: Ints
    size: Ints
    requested: Ints
    state: Ints
    segment: Ints
    stack: Ints
    start_us: Ints
    end_us: Ints
    address: Addresses
    change: Ints


def lifetimes_of(snapshot: SnapshotColumns) -> Lifetimes:
    """Pair each allocation of the history with its end, and with its block if that still exists.

    Addresses are reused: between two allocations at one address lies the end of the first.
    """
    events, blocks, segments = snapshot.events, snapshot.blocks, snapshot.segments
    entry, opening, end, is_last = _pairs(snapshot)
    requested = events.size[entry]
    size = -(-np.where(requested == MISSING, 0, requested) // _ROUNDING) * _ROUNDING
    state = np.where(end == MISSING, UNKNOWN, FREED)
    segment = np.full(len(entry), MISSING)
    stack = np.where(opening == MISSING, MISSING, events.stack[entry])

    names = words(blocks.states, blocks.state)
    held = np.flatnonzero(np.isin(names, ACTIVE))
    block_state = np.where(names[held] == ACTIVE[0], ALLOCATED, AWAITING_FREE)
    lasts = np.flatnonzero(is_last)
    there = pd.MultiIndex.from_arrays([events.device[entry[lasts]], events.address[entry[lasts]]])
    place = there.get_indexer(pd.MultiIndex.from_arrays([segments.device[blocks.segment[held]], blocks.address[held]]))
    candidate = np.append(lasts, MISSING)[place]
    # An allocated block has no end yet; one waiting to be freed has.
    fits = (candidate != MISSING) & ((np.append(end, MISSING)[candidate] == MISSING) == (block_state == ALLOCATED))
    fits &= ~pd.Series(candidate).duplicated().to_numpy()
    mine, seen, alone = candidate[fits], held[fits], held[~fits]
    size[mine], segment[mine], state[mine] = blocks.size[seen], blocks.segment[seen], block_state[fits]
    stack[mine] = np.where(stack[mine] == MISSING, blocks.stack[seen], stack[mine])

    change = np.zeros(len(events.size), dtype=np.int64)
    change[opening[opening != MISSING]] = size[opening != MISSING]
    change[end[end != MISSING]] = -size[end != MISSING]
    times = np.append(events.time_us, MISSING)
    in_order = np.argsort(entry, kind="stable")
    owner = blocks.segment[alone]

    def joined(of_history: Ints, of_blocks: Ints) -> Ints:
        return np.concatenate([of_history[in_order], of_blocks])

    nothing = np.full(len(alone), MISSING)
    return Lifetimes(
        device=joined(events.device[entry], segments.device[owner]),
        stream=joined(events.stream[entry], segments.stream[owner]),
        size=joined(size, blocks.size[alone]),
        requested=joined(requested, blocks.requested[alone]),
        state=joined(state, block_state[~fits]),
        segment=joined(segment, owner),
        stack=joined(stack, blocks.stack[alone]),
        start_us=joined(times[opening], nothing),
        end_us=joined(times[end], nothing),
        address=np.concatenate([events.address[entry][in_order], blocks.address[alone]]),
        change=change,
    )


def words(labels: Sequence[str | None], codes: Ints) -> npt.NDArray[np.object_]:
    """Return the label of each code, ``None`` for `MISSING`."""
    return np.array([*labels, None], dtype=object)[codes]


def _pairs(snapshot: SnapshotColumns) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_]]:
    """One row per allocation: the entry that shows it, its start and end, and whether it is the last at its address.

    An allocation older than the history shows only as its end.
    """
    events = snapshot.events
    actions = words(events.actions, events.action)
    starts = actions == "alloc"
    rows = np.flatnonzero(starts | (actions == "free_requested"))
    # By address, and at one address in the order of the history.
    rows = rows[np.lexsort((rows, events.address[rows], events.device[rows]))]
    start, device, address = starts[rows], events.device[rows], events.address[rows]
    goes_on = np.append((device[1:] == device[:-1]) & (address[1:] == address[:-1]), False)[: len(rows)]
    closed_by_next = start & goes_on & ~np.append(start[1:], True)[: len(rows)]
    is_own_end = np.insert(closed_by_next, 0, False)[: len(rows)]
    shown = np.flatnonzero(start | ~is_own_end)
    after = np.append(shown[1:], len(rows)) - 1  # its end, or itself
    following = np.append(rows[1:], MISSING)[: len(rows)]
    end = np.where(start, np.where(closed_by_next, following, MISSING), rows)[shown]
    return rows[shown], np.where(start[shown], rows[shown], MISSING), end, ~goes_on[after[: len(shown)]]
