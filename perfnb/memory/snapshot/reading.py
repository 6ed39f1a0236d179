"""Snapshots of the CUDA allocator, as ``torch.cuda.memory._dump_snapshot`` writes them, decoded into columns.

They are untrusted pickles, decoded by `perfnb.memory.snapshot.plain_pickle` without running anything. Only the fields
of the format are read, to a fixed depth, and each value must have the right type and range.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from perfnb import quantities as fmt
from perfnb.errors import TraceError
from perfnb.files import open_regular
from perfnb.memory.snapshot import plain_pickle, stacks
from perfnb.trace.columns import MISSING, Ints

#: Largest file that is read.
MAX_BYTES = 1 << 30

Addresses = npt.NDArray[np.uint64]

_MOST_LABELS = 1000
_MOST_DEVICES = 1024
#: 2 PiB, and the largest sum of sizes that is still exact.
_LARGEST_SIZE, _LARGEST_SUM = 1 << 51, 1 << 61
#: Latest time since 1970 that fits in nanoseconds.
_LATEST_US = 9 * 10**15
_ADVICE = "dump it again with torch.cuda.memory._dump_snapshot"


@dataclass(frozen=True)
class Segments:
    """Memory that the allocator got from the device, one row per segment.

    `address` is unsigned; `kind` and `pool` are codes of `kinds` and `pools`; `expandable` is 1, 0 or `MISSING`.
    """

    device: Ints
    address: Addresses
    size: Ints
    stream: Ints
    kind: Ints
    pool: Ints
    expandable: Ints
    kinds: list[str]
    pools: list[str]


@dataclass(frozen=True)
class Blocks:
    """The blocks of the segments, one row per block; `segment` is the segment's row, `stack` the stack's.

    `state` is a code of `states`: ``active_allocated``, ``active_awaiting_free``, ``inactive``. `requested` is the
    requested size, at most `size`.
    """

    segment: Ints
    address: Addresses
    size: Ints
    requested: Ints
    state: Ints
    stack: Ints
    states: list[str]


@dataclass(frozen=True)
class Events:
    """What the allocator did, one row per entry of its history, by device and in time order.

    `action` is a code of `actions`. `size` is the requested size. `time_us` counts from 1970 and is `MISSING` in
    snapshots of old versions, as is `address` in out-of-memory entries.
    """

    device: Ints
    action: Ints
    address: Addresses
    size: Ints
    stream: Ints
    time_us: Ints
    stack: Ints
    actions: list[str]


@dataclass(frozen=True)
class SnapshotColumns:
    """A snapshot of the CUDA allocator, column by column.

    Attributes
    ----------
    segments, blocks, events
        Each a few arrays of equal length.
    ops, made_at : list of str or None
        By stack number: the operator that asked for the memory, and the user's line that led there.
    settings : dict
        The allocator's settings, only texts and numbers.
    """

    segments: Segments
    blocks: Blocks
    events: Events
    ops: list[str | None]
    made_at: list[str | None]
    settings: dict[str, Any]


def read(
    path: str | Path, max_bytes: int = MAX_BYTES, limits: plain_pickle.Limits = plain_pickle.LIMITS
) -> SnapshotColumns:
    """Read the snapshot at `path`.

    Parameters
    ----------
    path : str or Path
    max_bytes : int
        Largest file that is read.
    limits : Limits
        How much memory and nesting its content may ask for.

    Raises
    ------
    TraceError
        If it cannot be read, is too large, or is not a snapshot; the message names the file. Nothing in it is run.
    """
    try:
        with open_regular(path) as file:
            length = os.fstat(file.fileno()).st_size
            data = file.read(max_bytes + 1) if length <= max_bytes else b""
            size = max(length, len(data))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}; check the path.") from error
    if size > max_bytes:
        raise TraceError(
            f"{path} was not read: it is {fmt.size(size)}, and perfnb reads at most {fmt.size(max_bytes)}; record "
            "fewer entries (max_entries of torch.cuda.memory._record_memory_history)."
        )
    return decode(data, source=str(path), limits=limits)


def decode(
    data: bytes, source: str = "the snapshot", limits: plain_pickle.Limits = plain_pickle.LIMITS
) -> SnapshotColumns:
    """Decode the pickle of a snapshot: a dict with ``segments``, or a bare list of segments.

    Raises
    ------
    TraceError
        If `data` is not such a pickle; the message names `source`.
    """
    collecting = gc.isenabled()
    try:
        gc.disable()  # many small objects and no cycles: collection would only traverse them
        return _Reader(source, len(data)).columns(plain_pickle.decode(data, source, limits))
    finally:
        if collecting:
            gc.enable()


def looks_like_snapshot(path: str | Path) -> bool:
    """Return whether the file at `path` starts like a pickle: reads two bytes and runs nothing."""
    try:
        with open_regular(path) as file:
            head = file.read(2)
    except OSError:
        return False
    return len(head) == 2 and head[0] == 0x80 and head[1] in plain_pickle.PROTOCOLS


class _Reader:
    """Walks the decoded snapshot, never deeper than the format."""

    def __init__(self, source: str, size: int) -> None:
        self.source = source
        self.most_rows = size // 12  # a real row takes more bytes of the file; a shared one takes one or two
        self.stacks = stacks.Stacks(source)

    def columns(self, whole: Any) -> SnapshotColumns:
        if type(whole) is list:  # what torch.cuda.memory_snapshot() gives
            whole = {"segments": whole}
        if type(whole) is not dict or "segments" not in whole:
            self.refuse("it holds plain data but no segments of a CUDA allocator")
        segments = self.rows(whole["segments"], "segments")
        traces = self.list_of(whole.get("device_traces"), "device_traces")
        if len(traces) > _MOST_DEVICES:
            self.refuse(f"it names {len(traces):,} devices")
        entries: list[Any] = []
        device: list[int] = []
        for number, trace in enumerate(traces):
            own = self.rows(trace, "device_traces", beside=len(entries))
            entries += own
            device += [number] * len(own)
        return SnapshotColumns(
            segments=self.segments(segments),
            blocks=self.blocks(segments),
            events=self.events(entries, device),
            ops=self.stacks.ops,
            made_at=self.stacks.made_at,
            settings=_settings(whole.get("allocator_settings")),
        )

    def segments(self, rows: list[Any]) -> Segments:
        what = "a segment"
        kind, kinds = self.codes([row.get("segment_type") for row in rows], what)
        pool, pools = self.codes([_pool(row.get("segment_pool_id")) for row in rows], what)
        return Segments(
            device=self.numbers(rows, "device", what, most=_MOST_DEVICES, default=0),
            address=self.addresses([row.get("address") for row in rows], what),
            size=self.sizes(rows, "total_size", what),
            stream=self.streams(rows, what),
            kind=kind,
            pool=pool,
            expandable=np.array([_flag(row.get("is_expandable")) for row in rows], dtype=np.int64),
            kinds=kinds,
            pools=pools,
        )

    def blocks(self, segments: list[Any]) -> Blocks:
        what = "a block"
        rows: list[Any] = []
        counts = []
        for segment in segments:
            own = self.rows(segment.get("blocks"), "blocks", beside=len(rows))
            rows += own
            counts.append(len(own))
        first = [self.first_in_history(row) for row in rows]
        requested = [row.get("requested_size", old.get("real_size")) for row, old in zip(rows, first, strict=True)]
        stack = [self.stack(row.get("frames", old.get("frames"))) for row, old in zip(rows, first, strict=True)]
        state, states = self.codes([row.get("state") for row in rows], what)
        if MISSING in state:
            self.refuse("a block has no state")
        size = self.sizes(rows, "size", what)
        segment = np.repeat(np.arange(len(segments), dtype=np.int64), counts)
        address = self.addresses([row.get("address") for row in rows], what)
        unknown = np.array(["address" not in row for row in rows], dtype=bool)
        if unknown.any():  # old versions: blocks are adjacent from the start of the segment
            starts = self.addresses([row.get("address") for row in segments], "a segment")
            before = np.cumsum(size) - size
            of_segment = before - np.append(before, 0)[np.cumsum([0, *counts])[:-1]][segment]
            address = np.where(unknown, starts[segment] + of_segment.astype(np.uint64), address)
        return Blocks(
            segment=segment,
            address=address,
            size=size,
            requested=self.range_of(requested, "requested_size", what, _LARGEST_SIZE),
            state=state,
            stack=np.array(stack, dtype=np.int64),
            states=["active_awaiting_free" if name == "active_pending_free" else name for name in states],
        )

    def events(self, rows: list[Any], device: list[int]) -> Events:
        what = "an entry of device_traces"
        action, actions = self.codes([row.get("action") for row in rows], what)
        if MISSING in action:
            self.refuse(f"{what} has no action")
        return Events(
            device=np.array(device, dtype=np.int64),
            action=action,
            address=self.addresses([row.get("addr", 0) for row in rows], what),
            size=self.sizes(rows, "size", what, optional=True),
            stream=self.streams(rows, what),
            time_us=self.numbers(rows, "time_us", what, most=_LATEST_US),
            stack=np.array([self.stack(row.get("frames")) for row in rows], dtype=np.int64),
            actions=actions,
        )

    def first_in_history(self, block: Any) -> Mapping[str, Any]:
        """Return what versions before 2.1 say about the contents of a block."""
        history = self.list_of(block.get("history"), "history")
        return history[0] if history and type(history[0]) is dict else {}

    def stack(self, frames: Any) -> int:
        return MISSING if frames is None else self.stacks.number(self.list_of(frames, "frames"))

    def list_of(self, value: Any, name: str) -> list[Any]:
        if value is None:
            return []
        if type(value) is not list:
            self.refuse(f"{name} is a {type(value).__name__} and not a list")
        return value

    def rows(self, value: Any, name: str, beside: int = 0) -> list[Any]:
        rows = self.list_of(value, name)
        if len(rows) + beside > self.most_rows:
            self.refuse(f"{name} repeats the same few rows endlessly")
        if not {*map(type, rows)} <= {dict}:
            self.refuse(f"{name} holds something other than dicts")
        return rows

    def sizes(self, rows: list[Any], key: str, what: str, optional: bool = False) -> Ints:
        result = self.numbers(rows, key, what, most=_LARGEST_SIZE)
        if not optional and (result == MISSING).any():
            self.refuse(f"{what} has no {key}")
        if float(result.sum(dtype=np.float64)) > _LARGEST_SUM:
            self.refuse(f"the sum of all {key} exceeds any machine's memory")
        return result

    def streams(self, rows: list[Any], what: str) -> Ints:
        return self.range_of([row.get("stream") for row in rows], "stream", what, 2**63 - 1, least=-(2**63))

    def numbers(self, rows: list[Any], key: str, what: str, most: int, default: int = MISSING) -> Ints:
        return self.range_of([row.get(key, default) for row in rows], key, what, most, least=min(0, default))

    def range_of(self, values: list[Any], key: str, what: str, most: int, least: int = MISSING) -> Ints:
        known = [MISSING if value is None else value for value in values]
        self.check(known, key, what, least, most)
        return np.array(known, dtype=np.int64)

    def addresses(self, values: list[Any], what: str) -> Addresses:
        known = [0 if value is None else value for value in values]
        self.check(known, "address", what, 0, 2**64 - 1)
        return np.array(known, dtype=np.uint64)

    def check(self, values: list[Any], key: str, what: str, least: int, most: int) -> None:
        if not {*map(type, values)} <= {int}:
            self.refuse(f"{key} of {what} is not a whole number")
        if values and not (least <= min(values) and max(values) <= most):
            self.refuse(f"{key} of {what} is out of range")

    def codes(self, values: list[Any], what: str) -> tuple[Ints, list[str]]:
        """Turn a few texts into codes, `MISSING` for none."""
        if not {*map(type, values)} <= {str, type(None)}:
            self.refuse(f"a state, type or action of {what} is not text")
        labels = [text for text in dict.fromkeys(values) if text is not None]
        if len(labels) > _MOST_LABELS:
            self.refuse(f"{what} has one of {len(labels):,} states, types or actions")
        numbers = {text: code for code, text in enumerate(labels)}
        codes = np.array([numbers.get(value, MISSING) for value in values], dtype=np.int64)
        return codes, [stacks.clean(text) for text in labels]

    def refuse(self, why: str) -> NoReturn:
        raise TraceError(f"{self.source} is not a CUDA memory snapshot that perfnb can read: {why}; {_ADVICE}.")


def _flag(value: Any) -> int:
    return int(value) if type(value) is bool else MISSING


def _pool(value: Any) -> str | None:
    """Format the two numbers of a memory pool."""
    if type(value) not in (tuple, list) or len(value) != 2 or not {*map(type, value)} <= {int}:
        return None
    return None if max(map(abs, value)) >= 2**64 else f"{value[0]}, {value[1]}"


def _settings(value: Any) -> dict[str, Any]:
    """Keep the allocator's settings that are texts and numbers; one of them is a dict of such."""
    if type(value) is not dict:
        return {}
    settings: dict[str, Any] = {}
    for name, setting in list(value.items())[:100]:
        inner: Sequence[Any] = list(setting.items())[:100] if type(setting) is dict else ()
        kept = {stacks.clean(key): stacks.clean_value(item) for key, item in inner} or stacks.clean_value(setting)
        settings[stacks.clean(name)] = kept
    return settings
