"""Tables of a snapshot: who holds memory, how it came to that, and how fragmented the rest is.

The final state is known block by block; earlier states follow backwards from it through the allocator's history, as far
as that goes. The history has requested sizes, not block sizes: memory that was freed counts as the least the allocator
gives for the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.memory.snapshot.reading import SnapshotColumns
from perfnb.recording.schema import CATEGORIES
from perfnb.recording.text import TEXT, whole_sums
from perfnb.trace.columns import MISSING, Ints

#: States of an allocation: that of its block if it still exists.
ALLOCATED, AWAITING_FREE, FREED, UNKNOWN = range(4)
STATES = ("active_allocated", "active_awaiting_free", "freed", "unknown")
#: States of blocks that cannot be handed out.
ACTIVE = STATES[:2]

#: The allocator rounds a request up at least to a multiple of this; a block may be larger.
_ROUNDING = 512
_GROWS = ("segment_alloc", "segment_map")
_SHRINKS = ("segment_free", "segment_unmap")
#: Known entries of a history; others are skipped.
_KNOWN_ACTIONS = frozenset({"alloc", "free_requested", "free_completed", "oom", "snapshot", *_GROWS, *_SHRINKS})


def segment_table(snapshot: SnapshotColumns) -> pd.DataFrame:
    """One row per segment: sizes in bytes, largest free block, and ``fragmentation`` (1 - allocated / total)."""
    segments, blocks = snapshot.segments, snapshot.blocks
    count = len(segments.size)
    states = _words(blocks.states, blocks.state)
    total = segments.size
    allocated = whole_sums(blocks.segment, np.where(states == "active_allocated", blocks.size, 0), count)
    active = whole_sums(blocks.segment, np.where(np.isin(states, ACTIVE), blocks.size, 0), count)
    free = np.where(states == "inactive", blocks.size, 0)
    largest = np.zeros(count, dtype=np.int64)
    np.maximum.at(largest, blocks.segment, free)
    in_segment = np.bincount(blocks.segment, minlength=count)
    split = np.where(in_segment > 1, whole_sums(blocks.segment, free, count), 0)
    return pd.DataFrame(
        {
            "address": pd.array(segments.address, dtype="UInt64"),
            "device": _text(_devices(segments.device)),
            "stream": _integers(segments.stream),
            "type": _text(_words(segments.kinds, segments.kind)),
            "pool": _text(_words(segments.pools, segments.pool)),
            "expandable": pd.arrays.BooleanArray(segments.expandable == 1, segments.expandable == MISSING),
            "total_bytes": _integers(total),
            "allocated_bytes": _integers(allocated),
            "active_bytes": _integers(active),
            "free_bytes": _integers(total - active),
            "largest_free_bytes": _integers(largest),
            "inactive_split_bytes": _integers(split),
            "blocks": _integers(in_segment),
            "fragmentation": _one_minus(allocated, total),
        }
    )


def fragmentation_table(snapshot: SnapshotColumns) -> pd.DataFrame:
    """One row per device: reserved memory, and how much of it is in use.

    ``fragmentation`` is 1 - allocated / reserved; ``inactive_split_bytes`` are free blocks that share a segment with
    others and so cannot go back to the device; ``ooms`` counts out-of-memory errors in the history.
    """
    segments, blocks, events = snapshot.segments, snapshot.blocks, snapshot.events
    table = segment_table(snapshot)
    numbers, place = np.unique(np.concatenate([segments.device, events.device]), return_inverse=True)
    place = place[: len(segments.device)]

    def total(column: str) -> Ints:
        return whole_sums(place, table[column].to_numpy(dtype=np.int64), len(numbers))

    largest = np.zeros(len(numbers), dtype=np.int64)
    np.maximum.at(largest, place, table["largest_free_bytes"].to_numpy(dtype=np.int64))
    in_use = np.isin(_words(blocks.states, blocks.state), ACTIVE)
    asked = whole_sums(place[blocks.segment], np.where(in_use, blocks.requested, 0), len(numbers))
    unknown = np.isin(np.arange(len(numbers)), place[blocks.segment[in_use & (blocks.requested == MISSING)]])
    out = events.device[_words(events.actions, events.action) == "oom"]
    reserved, allocated = total("total_bytes"), total("allocated_bytes")
    return pd.DataFrame(
        {
            "reserved_bytes": _integers(reserved),
            "allocated_bytes": _integers(allocated),
            "active_bytes": _integers(total("active_bytes")),
            "requested_bytes": pd.arrays.IntegerArray(asked, unknown),
            "free_bytes": _integers(total("free_bytes")),
            "fragmentation": _one_minus(allocated, reserved),
            "largest_free_bytes": _integers(largest),
            "inactive_split_bytes": _integers(total("inactive_split_bytes")),
            "segments": _integers(np.bincount(place, minlength=len(numbers))),
            "blocks": _integers(total("blocks")),
            "ooms": pd.arrays.IntegerArray(
                np.array([(out == number).sum() for number in numbers], dtype=np.int64),
                ~np.isin(numbers, events.device),
            ),
        },
        index=pd.Index(_devices(numbers), dtype=TEXT, name="device"),
    )


def allocation_table(snapshot: SnapshotColumns) -> pd.DataFrame:
    """One row per allocation alive in the snapshot or seen in its history.

    ``start_ns`` and ``end_ns`` count from the first history entry, with ``NA`` for allocations made before it and for
    live ones. ``bytes`` is the size of the block, or the least it had if it was freed. A snapshot knows no categories,
    layers, phases or names: these are ``NA``.
    """
    life, _ = _lifetimes(snapshot)
    owner, stack = life["segment"].to_numpy(), life["stack"].to_numpy()
    unknown = pd.Series(pd.NA, index=life.index, dtype=object).astype(TEXT)
    return pd.DataFrame(
        {
            "bytes": life["size"],
            "requested_bytes": _integers(life["requested"].to_numpy()),
            "category": pd.Categorical([None] * len(life), categories=list(CATEGORIES)),
            **dict.fromkeys(("layer", "phase", "direction"), unknown),
            "op": _text(_words(snapshot.ops, stack)),
            "name": unknown,
            "made_at": _text(_words(snapshot.made_at, stack)),
            "device": _text(_devices(life["device"].to_numpy())),
            "stream": _integers(life["stream"].to_numpy()),
            "segment": pd.arrays.IntegerArray(
                np.append(snapshot.segments.address, np.uint64(0))[owner], owner == MISSING
            ),
            "address": life["address"].astype("UInt64"),
            "state": _text(_words(STATES, life["state"].to_numpy())),
            "start_ns": _since_first(snapshot, life["start_us"].to_numpy()),
            "end_ns": _since_first(snapshot, life["end_us"].to_numpy()),
        }
    )


def memory_table(snapshot: SnapshotColumns) -> pd.DataFrame:
    """One row per change of a device's allocated or reserved memory, with the bytes after it.

    A device without history has one row, its final state, with ``t_ms`` ``NA``. Figures are ``NA`` if the history
    contradicts the final state (they would be negative).
    """
    events, segments = snapshot.events, snapshot.segments
    actions = _words(events.actions, events.action)
    _, allocated_change = _lifetimes(snapshot)
    size = np.where(events.size == MISSING, 0, events.size)
    reserved_change = np.where(np.isin(actions, _GROWS), size, 0) - np.where(np.isin(actions, _SHRINKS), size, 0)
    final = segment_table(snapshot)
    parts = [(np.array([], dtype=np.int64),) * 4]
    for device in np.unique(np.concatenate([segments.device, events.device])):
        own = final[segments.device == device]
        rows = np.flatnonzero((events.device == device) & ((allocated_change != 0) | (reserved_change != 0)))
        times = events.time_us[rows] if len(rows) else np.array([MISSING])
        total = _backwards(int(own["allocated_bytes"].sum()), allocated_change[rows])
        reserved = _backwards(int(own["total_bytes"].sum()), reserved_change[rows])
        parts.append((np.full(len(times), device), times, total, reserved))
    devices, times, total, reserved = map(np.concatenate, zip(*parts, strict=True))
    nothing = pd.array([pd.NA] * len(times), dtype="Int64")
    return pd.DataFrame(
        {
            "t_ms": pd.Series(_since_first(snapshot, times)).astype("Float64") / 1e6,
            "device": _text(_devices(devices)),
            **dict.fromkeys(CATEGORIES, nothing),
            "total": pd.arrays.IntegerArray(total, total < 0),
            "reserved": pd.arrays.IntegerArray(reserved, reserved < 0),
            "process": nothing,
        }
    )


def span_us(snapshot: SnapshotColumns) -> tuple[int, int] | None:
    """The times of the first and the last history entry in microseconds since 1970; ``None`` if unknown."""
    times = snapshot.events.time_us[snapshot.events.time_us != MISSING]
    return (int(times.min()), int(times.max())) if len(times) else None


def notes_on(snapshot: SnapshotColumns, live: pd.DataFrame) -> Iterator[str]:
    """What the tables of a snapshot cannot tell, given its live allocations."""
    events = snapshot.events
    nowhere = int(live[["op", "made_at"]].isna().all(axis=1).sum())
    if not len(events.size):
        yield (
            "The snapshot has no history, so memory over time is unknown; to record it, call "
            "torch.cuda.memory._record_memory_history first."
        )
    elif (events.time_us[np.isin(_words(events.actions, events.action), list(_KNOWN_ACTIONS))] == MISSING).any():
        yield "History entries have no times, as in snapshots of old torch versions."
    if nowhere:
        yield (
            f"{nowhere:,} of {len(live):,} live allocations have no known origin: they are older than the recording, "
            "or their stacks were not recorded."
        )
    if memory_table(snapshot)[["total", "reserved"]].isna().any(axis=None):
        yield (
            "The history does not match the final state, as when only one memory pool was dumped: some figures of "
            "memory over time are missing."
        )
    if actions := sorted(set(events.actions) - _KNOWN_ACTIONS):
        yield f"History entries of unknown kinds were skipped: {', '.join(actions[:5])}."
    if states := sorted(set(snapshot.blocks.states) - {*ACTIVE, "inactive"}):
        yield f"Some blocks are in an unknown state, neither active nor free: {', '.join(states[:5])}."


def _lifetimes(snapshot: SnapshotColumns) -> tuple[pd.DataFrame, Ints]:
    """The allocations, those in the history in its order and then the others; and how each entry of the history
    changes the allocated bytes.

    Each allocation is paired with its end, and with its block if that still exists. Addresses are reused: between two
    allocations at one address lies the end of the first. Numbers are `MISSING` if unknown; `state` is a code of
    `STATES`; `size` is that of the block, or the least it had if it no longer exists.
    """
    events, blocks, segments = snapshot.events, snapshot.blocks, snapshot.segments
    entry, opening, end, is_last = _pairs(snapshot)
    requested = events.size[entry]
    size = -(-np.where(requested == MISSING, 0, requested) // _ROUNDING) * _ROUNDING
    state = np.where(end == MISSING, UNKNOWN, FREED)
    segment = np.full(len(entry), MISSING)
    stack = np.where(opening == MISSING, MISSING, events.stack[entry])

    names = _words(blocks.states, blocks.state)
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
    of_history = pd.DataFrame(
        {
            "device": events.device[entry],
            "stream": events.stream[entry],
            "address": events.address[entry],
            "size": size,
            "requested": requested,
            "state": state,
            "segment": segment,
            "stack": stack,
            "start_us": times[opening],
            "end_us": times[end],
        }
    ).iloc[np.argsort(entry, kind="stable")]
    owner = blocks.segment[alone]
    of_blocks = pd.DataFrame(
        {
            "device": segments.device[owner],
            "stream": segments.stream[owner],
            "address": blocks.address[alone],
            "size": blocks.size[alone],
            "requested": blocks.requested[alone],
            "state": block_state[~fits],
            "segment": owner,
            "stack": blocks.stack[alone],
            "start_us": MISSING,
            "end_us": MISSING,
        }
    )
    return pd.concat([of_history, of_blocks], ignore_index=True), change


def _pairs(snapshot: SnapshotColumns) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_]]:
    """One row per allocation: the entry that shows it, its start and end, and whether it is the last at its address.

    An allocation older than the history shows only as its end.
    """
    events = snapshot.events
    actions = _words(events.actions, events.action)
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


def _backwards(final: int, changes: Ints) -> Ints:
    """The amount after each change, the last of which led to `final`; only `final` without changes."""
    if not len(changes):
        return np.array([final], dtype=np.int64)
    after = np.cumsum(changes)
    return np.asarray(final - (after[-1] - after), dtype=np.int64)


def _since_first(snapshot: SnapshotColumns, times_us: Ints) -> pd.arrays.IntegerArray:
    """Nanoseconds since the first history entry."""
    unknown, (first, _) = times_us == MISSING, span_us(snapshot) or (0, 0)
    return pd.arrays.IntegerArray(np.where(unknown, 0, times_us - first) * 1000, unknown)


def _one_minus(part: Ints, whole: Ints) -> pd.arrays.FloatingArray:
    nothing = whole == 0
    return pd.arrays.FloatingArray(1.0 - part / np.where(nothing, 1, whole), nothing)


def _devices(numbers: Ints) -> npt.NDArray[np.object_]:
    """The devices' names as torch writes them."""
    different, place = np.unique(numbers, return_inverse=True)
    return np.array([f"cuda:{number}" for number in different], dtype=object)[place]


def _integers(values: Ints) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(values, values == MISSING)


def _words(labels: Sequence[str | None], codes: Ints) -> npt.NDArray[np.object_]:
    """The label of each code, ``None`` for `MISSING`."""
    return np.array([*labels, None], dtype=object)[codes]


def _text(values: npt.NDArray[np.object_]) -> pd.Series:
    return pd.Series(values, dtype=object).astype(TEXT)
