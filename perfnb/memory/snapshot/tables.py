"""Compute a snapshot's tables: what uses memory, how this came about, and how fragmented the remaining memory is.

The final state is known for each block. Earlier states are reconstructed by going backwards from the final state
through the allocator's history, as far as the history goes. The history contains the sizes of requests but not those of
blocks, so the size of a freed block is assumed to be the smallest that the allocator would provide for the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfnb.memory.allocations import AFTER, BEFORE, paired
from perfnb.memory.snapshot.reading import SnapshotColumns
from perfnb.memory.table import fullest
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT
from perfnb.trace.columns import MISSING, Ints

#: The states of blocks that cannot be allocated.
ALLOCATED = "active_allocated"
ACTIVE = (ALLOCATED, "active_awaiting_free")

#: The allocator rounds a request up at least to a multiple of this; a block may be larger.
_ROUNDING = 512
_GROWS = ("segment_alloc", "segment_map")
_SHRINKS = ("segment_free", "segment_unmap")


def segment_table(snapshot: SnapshotColumns) -> pd.DataFrame:
    """Return a table with one row per segment.

    It contains each segment's sizes in bytes, its largest free block, and ``fragmentation`` (1 - allocated / total).
    """
    segments, blocks = snapshot.segments, snapshot.blocks
    size, state = blocks["size"], blocks["state"]
    parts = pd.DataFrame(
        {
            "allocated_bytes": size.where(state == ALLOCATED, 0),
            "active_bytes": size.where(state.isin(ACTIVE), 0),
            "free": size.where(state == "inactive", 0),
        }
    ).groupby(blocks["segment"])
    held = parts.sum().assign(largest=parts["free"].max(), blocks=parts.size())
    held = held.reindex(segments.index, fill_value=0)
    return pd.DataFrame(
        {
            "address": segments["address"].astype("UInt64"),
            "device": _device_names(segments["device"]),
            "stream": segments["stream"],
            **{name: segments[name].astype(object).astype(TEXT) for name in ("type", "pool")},
            "expandable": segments["expandable"],
            "total_bytes": segments["size"],
            "allocated_bytes": held["allocated_bytes"],
            "active_bytes": held["active_bytes"],
            "free_bytes": segments["size"] - held["active_bytes"],
            "largest_free_bytes": held["largest"],
            "inactive_split_bytes": held["free"].where(held["blocks"] > 1, 0),
            "blocks": held["blocks"],
            "fragmentation": _one_minus(held["allocated_bytes"], segments["size"]),
        }
    ).astype(dict.fromkeys(("stream", "blocks", *_SIZES), "Int64"))


_SIZES = ("total_bytes", "allocated_bytes", "active_bytes", "free_bytes", "largest_free_bytes", "inactive_split_bytes")
_OF_DEVICE = (
    *("reserved_bytes", "allocated_bytes", "active_bytes", "requested_bytes", "free_bytes", "fragmentation"),
    *("largest_free_bytes", "inactive_split_bytes", "segments", "blocks", "ooms"),
)


def fragmentation_table(snapshot: SnapshotColumns) -> pd.DataFrame:
    """Return a table with one row per device, which shows how much memory is reserved and how much of it is in use.

    ``fragmentation`` is 1 - allocated / reserved. ``inactive_split_bytes`` is the size of the free blocks that cannot
    be returned to the device because they share a segment with other blocks. ``ooms`` is the number of out-of-memory
    errors in the history.
    """
    segments, blocks, events = snapshot.segments, snapshot.blocks, snapshot.events
    numbers = _devices(snapshot)
    of_device = segment_table(snapshot).groupby(segments["device"])
    sums = of_device[["blocks", *_SIZES]].sum().reindex(numbers, fill_value=0)
    in_use = blocks[blocks["state"].isin(ACTIVE)]
    requested = in_use["requested"].groupby(segments["device"].reindex(in_use["segment"]).to_numpy()).sum()
    table = sums.rename(columns={"total_bytes": "reserved_bytes"}).assign(
        requested_bytes=requested.reindex(numbers, fill_value=0),
        fragmentation=_one_minus(sums["allocated_bytes"], sums["total_bytes"]),
        largest_free_bytes=of_device["largest_free_bytes"].max().reindex(numbers, fill_value=0),
        segments=of_device.size().reindex(numbers, fill_value=0),
        ooms=(events["action"] == "oom").groupby(events["device"]).sum().astype("Int64").reindex(numbers),
    )[[*_OF_DEVICE]]
    whole = table.columns.drop("fragmentation")
    return table.astype(dict.fromkeys(whole, "Int64")).set_index(pd.Index(_device_names(numbers), name="device"))


def allocation_table(snapshot: SnapshotColumns) -> pd.DataFrame:
    """Return a table with one row per allocation that is alive in the snapshot or appears in its history.

    ``start_ns`` and ``end_ns`` are relative to the first history entry. ``start_ns`` is ``NA`` for allocations made
    before that entry, and ``end_ns`` is ``NA`` for live allocations. ``bytes`` is the size of the block or, if it was
    freed, the smallest size that it can have had. A snapshot does not contain categories, layers, phases or names, so
    these are ``NA``.
    """
    lives, _ = lifetimes(snapshot)
    stack = lives["stack"].to_numpy()
    op, made_at = (np.array([*texts, None], dtype=object)[stack] for texts in (snapshot.ops, snapshot.made_at))
    times = {f"{end}_ns": _since_first(snapshot, lives[end].to_numpy()) for end in ("start", "end")}
    shared = {"bytes": lives["size"], "op": op, "device": _device_names(lives["device"]), **times}
    return conform(pd.DataFrame(shared), "allocations").assign(
        requested_bytes=lives["requested"].astype("Int64"),
        made_at=pd.array(made_at, dtype=TEXT),
        stream=lives["stream"].astype("Int64"),
        segment=snapshot.segments["address"].astype("UInt64").reindex(lives["segment"]).array,
        address=lives["address"].astype("UInt64"),
        state=lives["state"].astype(TEXT),
    )


def memory_table(snapshot: SnapshotColumns) -> pd.DataFrame:
    """Return a table with one row per change in a device's allocated or reserved memory, with the bytes after it.

    A device without history has a single row that contains its final state, and ``t_ms`` is ``NA``. Figures are ``NA``
    if the history contradicts the final state, because they would otherwise be negative.
    """
    events, final = snapshot.events, segment_table(snapshot)
    size, action = events["size"], events["action"]
    _, allocated = lifetimes(snapshot)
    reserved = (size.where(action.isin(_GROWS), 0) - size.where(action.isin(_SHRINKS), 0)).to_numpy()
    changed = (allocated != 0) | (reserved != 0)
    empty = np.array([], dtype=np.int64)
    parts = [(empty, empty, empty, empty)]
    for device in _devices(snapshot):
        own = final[snapshot.segments["device"] == device]
        rows = np.flatnonzero((events["device"] == device).to_numpy() & changed)
        total = _backwards(int(own["allocated_bytes"].sum()), allocated[rows])
        times = rows if len(rows) else np.array([MISSING])
        parts.append(
            (np.full(len(times), device), times, total, _backwards(int(own["total_bytes"].sum()), reserved[rows]))
        )
    devices, times, total, held = map(np.concatenate, zip(*parts, strict=True))
    table = pd.DataFrame(
        {
            "t_ms": pd.Series(_since_first(snapshot, times)).astype("Float64") / 1e6,
            "device": _device_names(pd.Series(devices)),
            "total": pd.arrays.IntegerArray(total, total < 0),
            "reserved": pd.arrays.IntegerArray(held, held < 0),
        }
    )
    return conform(table, "memory")


def span_us(snapshot: SnapshotColumns) -> tuple[int, int] | None:
    """Return the times of the first and last history entries in microseconds since 1970.

    Return ``None`` if there is no history.
    """
    times = snapshot.events["time_us"]
    return (int(times.min()), int(times.max())) if len(times) else None


def notes_on(snapshot: SnapshotColumns, live: pd.DataFrame) -> Iterator[str]:
    """Yield notes about information that is missing from a snapshot's tables, given its live allocations."""
    nowhere = int(live[["op", "made_at"]].isna().all(axis=1).sum())
    if not len(snapshot.events):
        yield (
            "The snapshot has no history, so memory over time is unknown. To record a history, call "
            "torch.cuda.memory._record_memory_history first."
        )
    if nowhere:
        yield (
            f"The origin of {nowhere:,} of {len(live):,} live allocations is unknown, because they are older than the "
            "recording or their stacks were not recorded."
        )
    if memory_table(snapshot)[["total", "reserved"]].isna().any(axis=None):
        yield (
            "The history does not match the final state, for example because only one memory pool was dumped. Some "
            "figures for memory over time are therefore missing."
        )


def lifetimes(snapshot: SnapshotColumns) -> tuple[pd.DataFrame, Ints]:
    """Return the allocations, and how each entry in the history changes the number of allocated bytes.

    Allocations in the history come first, in the same order, followed by all other allocations. Each allocation is
    paired with its end and, if it still exists, with its block. If another allocation follows at the same address
    without a free, the earlier allocation must have ended by then. Numbers are `MISSING` if they are unknown. ``start``
    and ``end`` are history entries, and ``size`` is the size of the block or, if it no longer exists, the smallest size
    that it can have had.
    """
    events, blocks = snapshot.events, snapshot.blocks
    seen = _seen_lives(events)
    seen["size"] = -(-seen["requested"] // _ROUNDING) * _ROUNDING
    seen["state"] = np.where(seen["end"] == MISSING, "unknown", "freed")
    seen["segment"] = MISSING

    held = blocks[blocks["state"].isin(ACTIVE)].assign(state=lambda table: table["state"].astype(object))
    held = held.assign(
        **{name: snapshot.segments[name].to_numpy()[held["segment"]] for name in ("device", "stream")},
        start=MISSING,
        end=MISSING,
    )
    key = ["device", "address"]
    lasts = seen[~seen.duplicated(key, keep="last")]
    of_address = pd.Series(lasts.index, index=pd.MultiIndex.from_frame(lasts[key]))
    life = of_address.reindex(pd.MultiIndex.from_frame(held[key]), fill_value=MISSING).to_numpy()
    # An allocated block does not have an end yet, but a block that is waiting to be freed does.
    ended = np.append(seen["end"].to_numpy(), MISSING)[life] != MISSING
    fits = (
        (life != MISSING)
        & (ended != (held["state"] == ALLOCATED).to_numpy())
        & ~pd.Series(life).duplicated().to_numpy()
    )
    mine = held[fits].set_axis(life[fits], axis=0)
    known = seen["stack"].reindex(mine.index)
    mine = mine.assign(stack=known.where(known != MISSING, mine["stack"]))
    seen.loc[mine.index, ["size", "state", "segment", "stack"]] = mine

    change = np.zeros(len(events), dtype=np.int64)
    for column, sign in (("start", 1), ("end", -1)):
        inside = seen[seen[column] != MISSING]
        np.add.at(change, inside[column].to_numpy(), sign * inside["size"].to_numpy())
    return pd.concat([seen, held[~fits][[*seen.columns]]], ignore_index=True), change


def _seen_lives(events: pd.DataFrame) -> pd.DataFrame:
    """Return the allocations in the history, in order. An allocation that is older than the history only has an end."""
    rows = events[events["action"].isin(("alloc", "free_requested"))]
    changes = pd.DataFrame(
        {
            "device": pd.Categorical(rows["device"]),
            "address": rows["address"],
            "bytes": np.where(rows["action"] == "alloc", 1, -1),
            "time_ns": rows.index,
            "event": rows.index,
        }
    )
    lives = paired(changes)
    start, end = (lives[name].where(~lives[name].isin((BEFORE, AFTER)), MISSING) for name in ("start", "end"))
    shown = np.where(start == MISSING, end, start)
    seen = rows.loc[shown, ["device", "stream", "address", "size", "stack"]].rename(columns={"size": "requested"})
    seen["stack"] = seen["stack"].where((start != MISSING).to_numpy(), MISSING)
    return seen.assign(start=start.to_numpy(), end=end.to_numpy()).sort_index().reset_index(drop=True)


def _backwards(final: int, changes: Ints) -> Ints:
    """Return the amount after each change, given the `final` amount. Without changes, return only `final`."""
    if not len(changes):
        return np.array([final], dtype=np.int64)
    after = np.cumsum(changes)
    return np.asarray(final - (after[-1] - after), dtype=np.int64)


def _since_first(snapshot: SnapshotColumns, entries: Ints) -> pd.arrays.IntegerArray:
    """Return the time in nanoseconds from the first history entry to the given entries."""
    (first, _), unknown = span_us(snapshot) or (0, 0), entries == MISSING
    times = np.append(snapshot.events["time_us"].to_numpy(), first)[entries]
    return pd.arrays.IntegerArray((times - first) * 1000, unknown)


def _one_minus(part: pd.Series, whole: pd.Series) -> pd.Series:
    return 1.0 - part.astype("Float64") / whole.astype("Float64").where(whole > 0)


def _devices(snapshot: SnapshotColumns) -> Ints:
    return np.unique(np.concatenate([snapshot.segments["device"], snapshot.events["device"]])).astype(np.int64)


def _device_names(numbers: pd.Series | Ints) -> pd.Series:
    """Return the names of devices in torch's notation."""
    series = pd.Series(numbers)
    names = series.map({number: f"cuda:{number}" for number in series.unique().tolist()})
    return names.astype(object).astype(TEXT)


def origins(snapshot: SnapshotColumns) -> list[str]:
    """Return the origin of the memory requested by each stack, in the order of the stack numbers.

    An origin consists of a line of Python code and the operator. The last entry is for allocations without a stack.
    """
    asked = zip((*snapshot.made_at, None), (*snapshot.ops, None), strict=True)
    return [line_words(made_at, op) + (f" ({op})" if op else "") for made_at, op in asked]


def line_words(made_at: Any, op: Any) -> str:
    """Return the line that requested memory, or the reason why it is unknown."""
    return str(made_at) if isinstance(made_at, str) else "(no Python line)" if isinstance(op, str) else "(not recorded)"


class OriginHistory(NamedTuple):
    """The number of bytes from each origin on a device at each instant. The last row of `alive` is for all others."""

    times_ms: np.ndarray[Any, Any]
    alive: Ints
    origins: list[str]


def history_by_origin(
    snapshot: SnapshotColumns, lives: pd.DataFrame, device: int, most: int, instants: int
) -> OriginHistory:
    """Return how much memory each origin had allocated on a device over the course of its history.

    Parameters
    ----------
    snapshot : SnapshotColumns
        The snapshot.
    lives : DataFrame
        The snapshot's allocations, as returned by `lifetimes`.
    device : int
        The number of the device.
    most : int
        The number of origins to distinguish, which are those with the most memory at the time of the peak.
    instants : int
        The maximum number of instants. The instants with the most allocated memory are kept.
    """
    words = np.array(origins(snapshot), dtype=object)
    lives = lives[lives["device"] == device]
    rows = np.flatnonzero(snapshot.events["device"] == device)
    begun, end = lives["start"].to_numpy(), lives["end"].to_numpy()
    start, ended = np.where(begun == MISSING, rows[0] if len(rows) else 0, begun), end != MISSING
    origin, size = words[lives["stack"].to_numpy()], lives["size"].to_numpy(dtype=np.int64)
    changes, made_by = np.concatenate([size, -size[ended]]), np.concatenate([origin, origin[ended]])
    moments, place = np.unique(np.concatenate([start, end[ended]]), return_inverse=True)
    if not len(moments):
        return OriginHistory(np.zeros(0), np.zeros((1, 0), dtype=np.int64), [])
    fullest_at = np.bincount(place, changes).cumsum().argmax()
    held = pd.Series(changes[place <= fullest_at]).groupby(made_by[place <= fullest_at]).sum().nlargest(most)
    chosen = [str(name) for name in held.index[held > 0]]
    alive = np.zeros((len(chosen) + 1, len(moments)), dtype=np.int64)
    line = pd.Index(chosen).get_indexer(pd.Index(made_by))  # others have place -1, the last row
    np.add.at(alive, (line, place), changes)
    alive = alive.cumsum(axis=1)
    times = _since_first(snapshot, moments).to_numpy(dtype=float, na_value=0.0) / 1e6
    kept = fullest(times, alive.sum(axis=0), instants)
    return OriginHistory(times[kept], alive[:, kept], chosen)


def largest_segments(
    snapshot: SnapshotColumns, lives: pd.DataFrame, device: int, most: int
) -> Iterator[tuple[int, int, list[tuple[str | None, int]]]]:
    """Yield the address, the size and the blocks of a device's largest segments.

    Blocks are in order, and each block has an origin unless it is free.
    """
    words = origins(snapshot)
    made = lives[lives["state"].isin(ACTIVE)].set_index(["segment", "address"])["stack"]
    own = snapshot.segments[snapshot.segments["device"] == device].nlargest(most, "size")
    blocks = snapshot.blocks[snapshot.blocks["segment"].isin(own.index)].sort_values("address", kind="stable")
    stack = made.reindex(pd.MultiIndex.from_frame(blocks[["segment", "address"]]), fill_value=MISSING)
    parts: dict[int, list[tuple[str | None, int]]] = {}
    for segment, number, used, size in zip(
        blocks["segment"], stack, blocks["state"].isin(ACTIVE), blocks["size"].tolist(), strict=True
    ):
        parts.setdefault(segment, []).append((words[number] if used else None, size))
    for segment, address, size in zip(own.index, own["address"], own["size"], strict=True):
        yield int(address), int(size), parts.get(segment, [])


def holders(live: pd.DataFrame) -> pd.DataFrame:
    """Return a table of the places where the allocated memory was requested, in descending order of bytes.

    The columns are ``device``, ``made_at``, ``op``, ``bytes``, ``count`` and ``largest_bytes``.
    """
    keys = ["device", "made_at", "op"]
    table = live.groupby(keys, dropna=False, observed=True)["bytes"].agg(["sum", "size", "max"]).reset_index()
    table = table.set_axis([*keys, "bytes", "count", "largest_bytes"], axis=1)
    return table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)
