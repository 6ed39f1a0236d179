"""Decode snapshots of the CUDA allocator, written by ``torch.cuda.memory._dump_snapshot``, into columns.

Snapshots are untrusted pickles, which `perfnb.memory.snapshot.plain_pickle` decodes without running any code. Only the
fields that exist in the format since torch 2.2 are read, up to a fixed depth, and each value must have the right type
and be within range.
"""

from __future__ import annotations

import gc
import os
import re
from array import array
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.arguments import storable
from perfnb.errors import TraceError
from perfnb.files import open_regular
from perfnb.memory.snapshot import plain_pickle
from perfnb.trace.columns import MISSING, Ints

#: The size of the largest file that is read.
MAX_BYTES = 1 << 30

#: The maximum length of a text. Longer texts are truncated, because a million rows may share one.
MAX_TEXT = 160

_OP = re.compile(r"at::_ops::(\w{1,100})::")
#: Matches the overload at the end of an operator's name, such as ``_Tensor``, if the name shows where it starts.
_OVERLOAD = re.compile(r"_[A-Z].*")
_LIBRARY_PATH = re.compile(
    r"<frozen |/(site|dist)-packages/|/lib/python\d[\d.]*/"
    r"|/torch/(nn|optim|autograd|utils|cuda|distributed|fx|amp|_[a-z_]+)[/.]"
)
_NOTHING, _LIBRARY, _USER = "", "library", "user"

#: The largest size (the sum of a million such sizes fits into an integer), the largest address, the largest stream, and
#: the largest time in microseconds (which still fits into an integer in nanoseconds).
_LARGEST_SIZE, _ADDRESS, _STREAM, _TIME = 1 << 43, 2**64 - 1, 2**63 - 1, 1 << 53
_ADVICE = "Dump it again with torch.cuda.memory._dump_snapshot in torch 2.2 or later"


@dataclass(frozen=True)
class SnapshotColumns:
    """A snapshot of the CUDA allocator.

    Attributes
    ----------
    segments : DataFrame
        The memory that the allocator obtained from the device: ``device``, ``address`` (unsigned), ``size``,
        ``stream``, ``type``, ``pool`` and ``expandable``. The last three are missing if they are unknown.
    blocks : DataFrame
        The blocks in the segments: ``segment`` (the row of the segment), ``address``, ``size``, ``requested`` (at most
        `size`), ``state`` (``active_allocated``, ``active_awaiting_free`` or ``inactive``) and ``stack`` (the number of
        the stack, or `MISSING` if there is none).
    events : DataFrame
        The actions of the allocator for each device, in chronological order: ``device``, ``action``, ``address`` (0 for
        an out-of-memory error), ``size`` (as requested), ``stream``, ``time_us`` (since 1970) and ``stack``.
    ops, made_at : list of str or None
        For each stack, the operator that requested the memory, and the line of user code that called the operator.
    settings : dict
        The allocator's settings, restricted to texts and numbers.
    """

    segments: pd.DataFrame
    blocks: pd.DataFrame
    events: pd.DataFrame
    ops: list[str | None]
    made_at: list[str | None]
    settings: dict[str, Any]


def read(
    path: str | Path, max_bytes: int = MAX_BYTES, limits: plain_pickle.PickleLimits = plain_pickle.LIMITS
) -> SnapshotColumns:
    """Read the snapshot at `path`. Nothing in the file is executed.

    Raises
    ------
    TraceError
        If the file cannot be read, is too large, or is not a snapshot. The message contains the name of the file.
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
            f"{path} was not read: its size is {fmt.size(size)}, and perfnb reads at most {fmt.size(max_bytes)}. "
            "Record fewer entries (see max_entries in torch.cuda.memory._record_memory_history)."
        )
    return decode(data, source=str(path), limits=limits)


def decode(
    data: bytes, source: str = "the snapshot", limits: plain_pickle.PickleLimits = plain_pickle.LIMITS
) -> SnapshotColumns:
    """Decode the pickle of a snapshot, which is a dict with ``segments`` or just a list of segments.

    Raises
    ------
    TraceError
        If `data` is not such a pickle. The message mentions `source`.
    """
    collecting = gc.isenabled()
    try:
        gc.disable()  # collection would traverse many small objects without finding any cycles
        return SnapshotReader(source, len(data)).columns(plain_pickle.decode(data, source, limits))
    finally:
        if collecting:
            gc.enable()


def looks_like_snapshot(path: str | Path) -> bool:
    """Check whether a file starts like a pickle, by reading two bytes without executing anything."""
    try:
        with open_regular(path) as file:
            head = file.read(2)
    except OSError:
        return False
    return len(head) == 2 and head[0] == 0x80 and head[1] in plain_pickle.PROTOCOLS


class SnapshotReader:
    """Traverses the decoded snapshot, but never deeper than the format requires."""

    def __init__(self, source: str, size: int) -> None:
        self.source = source
        self.most_rows = size // 12  # a real row takes more bytes in the file, and a shared row takes one or two
        self.stacks = Stacks()

    def columns(self, whole: Any) -> SnapshotColumns:
        if type(whole) is list:  # the format of torch.cuda.memory_snapshot()
            whole = {"segments": whole}
        if type(whole) is not dict or "segments" not in whole:
            self.refuse("it contains plain data but no segments of a CUDA allocator")
        segments, _ = self.joined([whole["segments"]], "segments")
        blocks, segment = self.joined([row.get("blocks") for row in segments], "blocks")
        settings = _clean_value(whole.get("allocator_settings"))
        entries, device = self.joined(self.list_of(whole.get("device_traces"), "device_traces"), "device_traces")
        return SnapshotColumns(
            segments=self.of_segments(segments, "a segment"),
            blocks=self.of_blocks(blocks, "a block").assign(segment=segment),
            events=self.of_events(entries, "an entry of device_traces").assign(device=device),
            ops=self.stacks.ops,
            made_at=self.stacks.made_at,
            settings=settings if type(settings) is dict else {},
        )

    def of_segments(self, rows: list[Any], what: str) -> pd.DataFrame:
        flags = [row.get("is_expandable") for row in rows]
        return pd.DataFrame(
            {
                "device": self.whole(rows, "device", what),
                "address": self.whole(rows, "address", what, most=_ADDRESS),
                "size": self.whole(rows, "total_size", what),
                "stream": self.whole(rows, "stream", what, -_STREAM, _STREAM),
                "type": self.words([row.get("segment_type") for row in rows], "segment_type", what),
                "pool": self.words([_pool(row.get("segment_pool_id")) for row in rows], "segment_pool_id", what),
                "expandable": pd.array([flag if type(flag) is bool else None for flag in flags], dtype="boolean"),
            }
        )

    def of_blocks(self, rows: list[Any], what: str) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "address": self.whole(rows, "address", what, most=_ADDRESS),
                "size": self.whole(rows, "size", what),
                "requested": self.whole(rows, "requested_size", what),
                "state": self.words([row.get("state") for row in rows], "state", what, required=True),
                "stack": self.numbered(rows),
            }
        )

    def of_events(self, rows: list[Any], what: str) -> pd.DataFrame:
        known = [{**row, "addr": 0} if row.get("addr") is None else row for row in rows]
        return pd.DataFrame(
            {
                "action": self.words([row.get("action") for row in rows], "action", what, required=True),
                "address": self.whole(known, "addr", what, most=_ADDRESS),
                "size": self.whole(rows, "size", what),
                "stream": self.whole(rows, "stream", what, -_STREAM, _STREAM),
                "time_us": self.whole(rows, "time_us", what, most=_TIME),
                "stack": self.numbered(rows),
            }
        )

    def list_of(self, value: Any, name: str) -> list[Any]:
        if value is None:
            return []
        if type(value) is not list:
            self.refuse(f"{name} is a {type(value).__name__}, not a list")
        return value

    def joined(self, lists: list[Any], name: str) -> tuple[list[Any], Ints]:
        """Return the rows of several lists, and the number of the list that each row comes from."""
        rows: list[Any] = []
        counts = []
        for value in lists:
            own = self.list_of(value, name)
            if len(rows) + len(own) > self.most_rows:
                self.refuse(f"{name} repeats the same few rows endlessly")
            if not {*map(type, own)} <= {dict}:
                self.refuse(f"{name} contains something other than dicts")
            rows += own
            counts.append(len(own))
        return rows, np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    def numbered(self, rows: list[Any]) -> Ints:
        """Return the number of each row's stack."""
        frames = [row.get("frames") for row in rows]
        numbers = [MISSING if one is None else self.stacks.number(self.list_of(one, "frames")) for one in frames]
        return np.array(numbers, dtype=np.int64)

    def whole(self, rows: list[Any], key: str, what: str, least: int = 0, most: int = _LARGEST_SIZE) -> Any:
        """Return a column of whole numbers, which are unsigned if they can exceed the range of signed integers."""
        values = [row.get(key) for row in rows]
        kinds = {*map(type, values)}
        if type(None) in kinds:
            self.refuse(f"{what} has no {key}")
        if not kinds <= {int}:
            self.refuse(f"{key} of {what} is not a whole number")
        if values and not (least <= min(values) and max(values) <= most):
            self.refuse(f"{key} of {what} is out of range")
        return np.array(values, dtype=np.int64 if most < 2**63 else np.uint64)

    def words(self, values: list[Any], key: str, what: str, *, required: bool = False) -> pd.Categorical:
        """Return a column of text that contains only a few different values."""
        if not {*map(type, values)} <= {str, type(None)}:
            self.refuse(f"{key} of {what} is not text")
        if required and None in values:
            self.refuse(f"{what} has no {key}")
        cleaned = {text: _clean(text) for text in dict.fromkeys(values) if text is not None}
        return pd.Categorical(pd.Series([cleaned.get(text) for text in values], dtype=object))

    def refuse(self, why: str) -> NoReturn:
        raise TraceError(f"{self.source} is not a CUDA memory snapshot that perfnb can read: {why}. {_ADVICE}.")


def _pool(value: Any) -> str | None:
    """Format the two numbers of a memory pool."""
    if type(value) not in (tuple, list) or len(value) != 2 or not {*map(type, value)} <= {int}:
        return None
    return None if max(map(abs, value)) >= 2**64 else f"{value[0]}, {value[1]}"


def _clean(text: Any) -> str:
    """Return the beginning of `text` without surrogates, which cannot be stored."""
    return storable(text[:MAX_TEXT]) if type(text) is str else ""


def _clean_value(value: Any, depth: int = 2) -> Any:
    """Clean a text, a boolean, an ordinary number, or a dict of such values, which is truncated.

    Return ``None`` for any other value.
    """
    if type(value) is dict and depth:
        return {_clean(name): _clean_value(item, depth - 1) for name, item in list(value.items())[:100]}
    if type(value) is str:
        return _clean(value)
    if type(value) is int:
        return value if -(2**63) <= value < 2**63 else None
    return value if type(value) in (bool, float) else None


class Stacks:
    """Numbers the distinct stacks, and finds the operator and the line of code for each of them.

    Attributes
    ----------
    ops : list of str or None
        The operator of each stack, such as ``aten::mm``. This is the outermost operator below the last Python function,
        and it is known only for stacks that were recorded with C++ frames.
    made_at : list of str or None
        The location of each stack, in the form ``file:line function``. This is the innermost Python function in user
        code or, if there is none, in a library.
    """

    def __init__(self) -> None:
        self.ops: list[str | None] = []
        self.made_at: list[str | None] = []
        self._of_list: dict[int, int] = {}
        self._of_frames: dict[bytes, int] = {}
        self._kinds: dict[int, str] = {}

    def number(self, frames: list[Any]) -> int:
        """Return the number of a stack, given its frames, innermost first.

        The frames must exist for as long as this object. Each list is traversed only once, regardless of how many rows
        share it.
        """
        found = self._of_list.get(id(frames))
        if found is None:
            same = blake2b(array("Q", map(id, frames)), digest_size=16).digest()
            found = self._of_frames.setdefault(same, len(self.ops))
            self._of_list[id(frames)] = found
            if found == len(self.ops):
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
    """Return the kind of a frame (user code or library code), or the name of the operator that it runs."""
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
