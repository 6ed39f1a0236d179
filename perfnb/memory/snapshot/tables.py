"""Tables of a snapshot: who holds memory, how it came to that, and how fragmented the rest is.

The final state is known block by block; earlier states follow backwards from it through the allocator's history, as far
as that goes. The history has requested sizes, not block sizes: memory that was freed counts as the least the allocator
gives for the request.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.memory.snapshot.lifetimes import ACTIVE, STATES, lifetimes_of, words
from perfnb.memory.snapshot.reading import SnapshotColumns
from perfnb.recording.labels import whole_sums
from perfnb.recording.schema import CATEGORIES
from perfnb.recording.text import TEXT
from perfnb.trace.columns import MISSING, Ints

_GROWS = ("segment_alloc", "segment_map")
_SHRINKS = ("segment_free", "segment_unmap")
#: Known entries of a history; others are skipped.
KNOWN_ACTIONS = frozenset({"alloc", "free_requested", "free_completed", "oom", "snapshot", *_GROWS, *_SHRINKS})


def segment_table(snapshot: SnapshotColumns) -> pd.DataFrame:
    """One row per segment: sizes in bytes, largest free block, and ``fragmentation`` (1 - allocated / total)."""
    segments, blocks = snapshot.segments, snapshot.blocks
    count = len(segments.size)
    states = words(blocks.states, blocks.state)
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
            "type": _text(words(segments.kinds, segments.kind)),
            "pool": _text(words(segments.pools, segments.pool)),
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
    in_use = np.isin(words(blocks.states, blocks.state), ACTIVE)
    asked = whole_sums(place[blocks.segment], np.where(in_use, blocks.requested, 0), len(numbers))
    unknown = np.isin(np.arange(len(numbers)), place[blocks.segment[in_use & (blocks.requested == MISSING)]])
    out = events.device[words(events.actions, events.action) == "oom"]
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
    life = lifetimes_of(snapshot)
    segments, first = snapshot.segments, _first_us(snapshot)
    owner, stack = life.segment, life.stack
    unknown = pd.Series(pd.NA, index=range(len(life.size)))
    address = np.append(segments.address, np.uint64(0))[owner]
    return pd.DataFrame(
        {
            "bytes": life.size,
            "requested_bytes": _integers(life.requested),
            "category": pd.Categorical([None] * len(life.size), categories=list(CATEGORIES)),
            "layer": _text(unknown),
            "phase": _text(unknown),
            "direction": _text(unknown),
            "op": _text(words(snapshot.ops, stack)),
            "name": _text(unknown),
            "made_at": _text(words(snapshot.made_at, stack)),
            "device": _text(_devices(life.device)),
            "stream": _integers(life.stream),
            "segment": pd.arrays.IntegerArray(address, owner == MISSING),
            "address": pd.array(life.address, dtype="UInt64"),
            "state": _text(words(STATES, life.state)),
            "start_ns": _nanoseconds(life.start_us, first),
            "end_ns": _nanoseconds(life.end_us, first),
        }
    )


def memory_table(snapshot: SnapshotColumns) -> pd.DataFrame:
    """One row per change of a device's allocated or reserved memory, with the bytes after it.

    A device without history has one row, its final state, with ``t_ms`` ``NA``. Figures are ``NA`` if the history
    contradicts the final state (they would be negative).
    """
    events, segments = snapshot.events, snapshot.segments
    actions = words(events.actions, events.action)
    life = lifetimes_of(snapshot)
    allocated_change = life.change
    size = np.where(events.size == MISSING, 0, events.size)
    reserved_change = np.where(np.isin(actions, _GROWS), size, 0) - np.where(np.isin(actions, _SHRINKS), size, 0)
    final = segment_table(snapshot)
    none = np.array([], dtype=np.int64)
    parts = [_instants(_integers(none), "", none, none)]
    for device in np.unique(np.concatenate([segments.device, events.device])):
        own = final[segments.device == device]
        rows = np.flatnonzero((events.device == device) & ((allocated_change != 0) | (reserved_change != 0)))
        total = _backwards(int(own["allocated_bytes"].sum()), allocated_change[rows])
        reserved = _backwards(int(own["total_bytes"].sum()), reserved_change[rows])
        times = _nanoseconds(events.time_us[rows], _first_us(snapshot)) if len(rows) else _integers(np.array([MISSING]))
        parts.append(_instants(times, str(_devices(np.array([device]))[0]), total, reserved))
    return pd.concat(parts, ignore_index=True)


def _instants(times: pd.arrays.IntegerArray, device: str, total: Ints, reserved: Ints) -> pd.DataFrame:
    rows = range(len(times))
    nothing = pd.Series(pd.NA, index=rows, dtype="Int64")
    return pd.DataFrame(
        {
            "t_ms": pd.Series(times, index=rows).astype("Float64") / 1e6,
            "device": pd.Series(device, index=rows, dtype=TEXT),
            **dict.fromkeys(CATEGORIES, nothing),
            "total": pd.arrays.IntegerArray(total, total < 0),
            "reserved": pd.arrays.IntegerArray(reserved, reserved < 0),
            "process": nothing,
        }
    )


def _backwards(final: int, changes: Ints) -> Ints:
    """Return the amount after each change, the last of which led to `final`; only `final` without changes."""
    if not len(changes):
        return np.array([final], dtype=np.int64)
    after = np.cumsum(changes)
    return np.asarray(final - (after[-1] - after), dtype=np.int64)


def _first_us(snapshot: SnapshotColumns) -> int:
    times = snapshot.events.time_us[snapshot.events.time_us != MISSING]
    return int(times.min()) if len(times) else 0


def _nanoseconds(times_us: Ints, first: int) -> pd.arrays.IntegerArray:
    unknown = times_us == MISSING
    return pd.arrays.IntegerArray(np.where(unknown, 0, times_us - first) * 1000, unknown)


def _one_minus(part: Ints, whole: Ints) -> pd.arrays.FloatingArray:
    nothing = whole == 0
    return pd.arrays.FloatingArray(1.0 - part / np.where(nothing, 1, whole), nothing)


def _devices(numbers: Ints) -> npt.NDArray[np.object_]:
    """Return the devices' names as torch writes them."""
    different, place = np.unique(numbers, return_inverse=True)
    return np.array([f"cuda:{number}" for number in different], dtype=object)[place]


def _integers(values: Ints) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(values, values == MISSING)


def _text(values: npt.NDArray[np.object_] | pd.Series) -> pd.Series:
    """Return texts, missing for ``None``."""
    return pd.Series(values, dtype=object).astype(TEXT)
