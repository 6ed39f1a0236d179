"""Snapshots of the CUDA allocator, as ``torch.cuda.memory._dump_snapshot`` writes them, decoded into columns.

They are untrusted pickles, decoded by `perfnb.memory.snapshot.plain_pickle` without running anything. Only the fields
of the format are read, to a fixed depth, and each value must have the right type and range.
"""

from __future__ import annotations

import gc
import os
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from perfnb import quantities as fmt
from perfnb.arguments import storable
from perfnb.errors import TraceError
from perfnb.files import open_regular
from perfnb.memory.snapshot import plain_pickle
from perfnb.trace.columns import MISSING, Ints

#: Largest file that is read.
MAX_BYTES = 1 << 30

#: Characters kept of a text: a million rows may share a long one.
MAX_TEXT = 160
#: Most distinct stacks.
MOST_STACKS = 500_000

_OP = re.compile(r"at::_ops::(\w{1,100})::")
#: The overload at the end of an operator's name, such as ``_Tensor``, if the name shows where it starts.
_OVERLOAD = re.compile(r"_[A-Z].*")
_LIBRARY_PATH = re.compile(
    r"<frozen |/(site|dist)-packages/|/lib/python\d[\d.]*/"
    r"|/torch/(nn|optim|autograd|utils|cuda|distributed|fx|amp|_[a-z_]+)[/.]"
)
_NOTHING, _LIBRARY, _USER = "", "library", "user"

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
        self.stacks = Stacks(source)

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
        flags = [row.get("is_expandable") for row in rows]
        return Segments(
            device=self.whole([row.get("device", 0) for row in rows], "device", what, 0, _MOST_DEVICES),
            address=self.addresses(rows, "address", what),
            size=self.sizes(rows, "total_size", what),
            stream=self.streams(rows, what),
            kind=kind,
            pool=pool,
            expandable=np.array([int(flag) if type(flag) is bool else MISSING for flag in flags], dtype=np.int64),
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
        address = self.addresses(rows, "address", what)
        unknown = np.array(["address" not in row for row in rows], dtype=bool)
        if unknown.any():  # old versions: blocks are adjacent from the start of the segment
            starts = self.addresses(segments, "address", "a segment")
            before = np.cumsum(size) - size
            of_segment = before - np.append(before, 0)[np.cumsum([0, *counts])[:-1]][segment]
            address = np.where(unknown, starts[segment] + of_segment.astype(np.uint64), address)
        return Blocks(
            segment=segment,
            address=address,
            size=size,
            requested=self.whole(requested, "requested_size", what, MISSING, _LARGEST_SIZE),
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
            address=self.addresses(rows, "addr", what),
            size=self.sizes(rows, "size", what, optional=True),
            stream=self.streams(rows, what),
            time_us=self.whole([row.get("time_us") for row in rows], "time_us", what, MISSING, _LATEST_US),
            stack=np.array([self.stack(row.get("frames")) for row in rows], dtype=np.int64),
            actions=actions,
        )

    def first_in_history(self, block: Any) -> Mapping[str, Any]:
        """What versions before 2.1 say about the contents of a block."""
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
        result = self.whole([row.get(key) for row in rows], key, what, MISSING, _LARGEST_SIZE)
        if not optional and (result == MISSING).any():
            self.refuse(f"{what} has no {key}")
        if float(result.sum(dtype=np.float64)) > _LARGEST_SUM:
            self.refuse(f"the sum of all {key} exceeds any machine's memory")
        return result

    def streams(self, rows: list[Any], what: str) -> Ints:
        return self.whole([row.get("stream") for row in rows], "stream", what, -(2**63), 2**63 - 1)

    def addresses(self, rows: list[Any], key: str, what: str) -> Addresses:
        known = [0 if row.get(key) is None else row[key] for row in rows]
        return np.array(self.checked(known, "address", what, 0, 2**64 - 1), dtype=np.uint64)

    def whole(self, values: list[Any], key: str, what: str, least: int, most: int) -> Ints:
        """Whole numbers, `MISSING` for ``None``."""
        known = [MISSING if value is None else value for value in values]
        return np.array(self.checked(known, key, what, least, most), dtype=np.int64)

    def checked(self, values: list[Any], key: str, what: str, least: int, most: int) -> list[Any]:
        if not {*map(type, values)} <= {int}:
            self.refuse(f"{key} of {what} is not a whole number")
        if values and not (least <= min(values) and max(values) <= most):
            self.refuse(f"{key} of {what} is out of range")
        return values

    def codes(self, values: list[Any], what: str) -> tuple[Ints, list[str]]:
        """Turn a few texts into codes, `MISSING` for none."""
        if not {*map(type, values)} <= {str, type(None)}:
            self.refuse(f"a state, type or action of {what} is not text")
        labels = [text for text in dict.fromkeys(values) if text is not None]
        if len(labels) > _MOST_LABELS:
            self.refuse(f"{what} has one of {len(labels):,} states, types or actions")
        numbers = {text: code for code, text in enumerate(labels)}
        codes = np.array([numbers.get(value, MISSING) for value in values], dtype=np.int64)
        return codes, [_clean(text) for text in labels]

    def refuse(self, why: str) -> NoReturn:
        raise TraceError(f"{self.source} is not a CUDA memory snapshot that perfnb can read: {why}; {_ADVICE}.")


def _pool(value: Any) -> str | None:
    """Format the two numbers of a memory pool."""
    if type(value) not in (tuple, list) or len(value) != 2 or not {*map(type, value)} <= {int}:
        return None
    return None if max(map(abs, value)) >= 2**64 else f"{value[0]}, {value[1]}"


def _settings(value: Any) -> dict[str, Any]:
    """The allocator's settings that are texts and numbers; one of them is a dict of such."""
    if type(value) is not dict:
        return {}
    settings: dict[str, Any] = {}
    for name, setting in list(value.items())[:100]:
        inner: Sequence[Any] = list(setting.items())[:100] if type(setting) is dict else ()
        kept = {_clean(key): _clean_value(item) for key, item in inner} or _clean_value(setting)
        settings[_clean(name)] = kept
    return settings


def _clean(text: Any) -> str:
    """Return the start of `text`, without surrogates, which cannot be stored."""
    return storable(text[:MAX_TEXT]) if type(text) is str else ""


def _clean_value(value: Any) -> Any:
    """Clean a text; keep booleans and ordinary numbers; ``None`` for anything else."""
    if type(value) is str:
        return _clean(value)
    if type(value) is int:
        return value if -(2**63) <= value < 2**63 else None
    return value if type(value) in (bool, float) else None


class Stacks:
    """Numbers the distinct stacks, and finds the operator and line of each.

    Attributes
    ----------
    ops : list of str or None
        The operator, such as ``aten::mm``: the outermost one below the last Python function. Only stacks recorded with
        C++ frames have it.
    made_at : list of str or None
        ``file:line function`` of the user's innermost Python function, or else of a library's.
    """

    def __init__(self, source: str) -> None:
        self.ops: list[str | None] = []
        self.made_at: list[str | None] = []
        self._source = source
        self._of_list: dict[int, int] = {}
        self._of_frames: dict[bytes, int] = {}
        self._kinds: dict[int, str] = {}

    def number(self, frames: list[Any]) -> int:
        """Number a stack, innermost frame first. The frames must live as long as this object.

        Each list is walked once, however many rows share it.
        """
        found = self._of_list.get(id(frames))
        if found is None:
            same = blake2b(array("Q", map(id, frames)), digest_size=16).digest()
            found = self._of_frames.setdefault(same, len(self.ops))
            self._of_list[id(frames)] = found
            if found == len(self.ops):
                if found == MOST_STACKS:
                    raise TraceError(
                        f"{self._source} was not read: it has more than {MOST_STACKS:,} distinct call stacks; record "
                        "fewer entries."
                    )
                op, made_at = self._read(frames)
                self.ops.append(op)
                self.made_at.append(made_at)
        return found

    def _read(self, frames: list[Any]) -> tuple[str | None, str | None]:
        op: str | None = None
        library = None
        for frame in frames:
            kind = self._kinds.get(id(frame))
            if kind is None:
                kind = self._kinds[id(frame)] = _kind_of(frame)
            if kind == _NOTHING:
                continue
            if kind == _USER:
                return op, _line(frame)
            if kind == _LIBRARY:
                library = library or frame
            elif library is None:
                op = kind
        return op, None if library is None else _line(library)


def _kind_of(frame: Any) -> str:
    """Return whose frame it is, or the name of the operator that it runs."""
    if type(frame) is not dict or not type(frame.get("name")) is type(frame.get("filename")) is str:
        return _NOTHING
    file = frame["filename"][-MAX_TEXT:].replace("\\", "/")
    if file.endswith((".py", ">")):
        return _LIBRARY if _LIBRARY_PATH.search(file) else _USER
    operator = _OP.search(frame["name"], 0, MAX_TEXT)
    return f"aten::{_OVERLOAD.sub('', operator[1])}" if operator else _NOTHING


def _line(frame: dict[str, Any]) -> str:
    line = frame.get("line")
    number = f":{line}" if type(line) is int and 0 <= line < 2**31 else ""
    return f"{storable(frame['filename'][-MAX_TEXT:])}{number} {_clean(frame['name'])}"
