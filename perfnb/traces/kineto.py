"""Chrome traces as torch.profiler's Kineto writes them, decoded into columns by typed structs.

Only the fields that perfnb uses are decoded; msgspec skips the rest without making objects of it.
"""

from __future__ import annotations

import gc
import gzip
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from perfnb.errors import TraceError

#: Stands in an integer column for a value that the event does not carry.
MISSING = -1

Ints = npt.NDArray[np.int64]
_Loose = int | float | str | None
#: A text that is a number, and of no more digits than any that fits.
_WHOLE = re.compile(r"-?[0-9]{1,30}")
#: An allocation or a free, as an instant; torch's slower exporter gives it a meaningless duration.
_MEMORY, _INSTANT = "[memory]", "cpu_instant_event"
_NOT_TIMED = ("Trace", _INSTANT)
#: Longest time that fits into nanoseconds.
_LONGEST_US = 9e15


class _Args(msgspec.Struct, frozen=True, gc=False):
    correlation: _Loose = None
    device: _Loose = None
    stream: _Loose = None
    sequence: _Loose = msgspec.field(default=None, name="Sequence number")
    forward_thread: _Loose = msgspec.field(default=None, name="Fwd thread id")
    address: _Loose = msgspec.field(default=None, name="Addr")
    bytes: _Loose = msgspec.field(default=None, name="Bytes")
    device_type: _Loose = msgspec.field(default=None, name="Device Type")
    device_id: _Loose = msgspec.field(default=None, name="Device Id")
    allocated: _Loose = msgspec.field(default=None, name="Total Allocated")
    reserved: _Loose = msgspec.field(default=None, name="Total Reserved")


_NO_ARGS = _Args()


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: _Loose = None
    args: _Args = _NO_ARGS


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]
    baseTimeNanoseconds: int = 0
    deviceProperties: list[dict[str, Any]] = []


@dataclass(frozen=True)
class MemoryColumns:
    """The allocations and frees (``[memory]``) of a trace, column by column, in order of time.

    Attributes
    ----------
    time_ns, thread : ndarray of int64
        When, and on which thread.
    address, bytes : ndarray of int64
        Of the block; `bytes` is negative where it is freed.
    device_type, device : ndarray of int64
        torch's number of the kind of device (0 is the CPU, 1 CUDA), and the device's own.
    allocated, reserved : ndarray of int64
        The allocator's totals in bytes after the event. The CPU's counts from the begin of the session, and reserves
        nothing.
    """

    time_ns: Ints
    thread: Ints
    address: Ints
    bytes: Ints
    device_type: Ints
    device: Ints
    allocated: Ints
    reserved: Ints

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True)
class TraceColumns:
    """The complete events (``ph: X``) of a trace, column by column, in the order of the file.

    Attributes
    ----------
    names, categories : list of str
        What the codes stand for.
    name, category : ndarray of int64
        Codes.
    start_ns, duration_ns : ndarray of int64
        Nanoseconds; `start_ns` counts from `base_ns`.
    thread, device, stream, correlation, sequence, forward_thread : ndarray of int64
        `MISSING` where the event carries none. Threads with a name instead of a number have numbers below -1.
    base_ns : int
        What to add to `start_ns` to have nanoseconds since 1970.
    devices : list of dict
        The GPUs as the trace describes them.
    memory : MemoryColumns
        What was allocated and freed, where the profiler recorded it.
    """

    names: list[str]
    categories: list[str]
    name: Ints
    category: Ints
    start_ns: Ints
    duration_ns: Ints
    thread: Ints
    device: Ints
    stream: Ints
    correlation: Ints
    sequence: Ints
    forward_thread: Ints
    memory: MemoryColumns
    base_ns: int = 0
    devices: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.name)


def read(path: str | Path) -> TraceColumns:
    """Read a trace file, plain or compressed with gzip.

    Raises
    ------
    TraceError
        If the file cannot be read or is no trace; the message names the file.
    """
    try:
        data = Path(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path} cannot be read as a trace: {error}.") from error
    return decode(data, source=str(path))


def decode(data: bytes, source: str = "the trace") -> TraceColumns:
    """Decode the JSON of a trace: an object with ``traceEvents``, or a bare list of events.

    Raises
    ------
    TraceError
        If `data` is no such JSON; the message names `source` and, where known, the byte.
    """
    collecting = gc.isenabled()
    try:
        gc.disable()  # millions of small objects and no cycles: collecting would only walk them
        return _columns(_decode(data, source), source)
    finally:
        if collecting:
            gc.enable()


def _decode(data: bytes, source: str) -> _Trace:
    try:
        if data.lstrip()[:1] == b"[":
            return _Trace(msgspec.json.decode(data, type=list[_Event]))
        return msgspec.json.decode(data, type=_Trace)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{source} is not a Chrome trace that perfnb can read: {error}.") from error
    except RecursionError as error:
        raise TraceError(f"{source} is nested too deeply to be a Chrome trace.") from error


def _columns(trace: _Trace, source: str) -> TraceColumns:
    allocations = [event for event in trace.traceEvents if event.name == _MEMORY and event.cat == _INSTANT]
    events = [event for event in trace.traceEvents if event.ph == "X" and event.cat not in _NOT_TIMED]
    names, name = _codes(event.name for event in events)
    categories, category = _codes(event.cat for event in events)
    args = [event.args for event in events]
    return TraceColumns(
        names=names,
        categories=categories,
        name=name,
        category=category,
        start_ns=_nanoseconds([event.ts for event in events], source),
        duration_ns=_nanoseconds([event.dur for event in events], source),
        thread=_numbers([event.tid for event in events]),
        device=_numbers([arg.device for arg in args]),
        stream=_numbers([arg.stream for arg in args]),
        correlation=_numbers([arg.correlation for arg in args]),
        sequence=_numbers([arg.sequence for arg in args]),
        forward_thread=_numbers([arg.forward_thread for arg in args]),
        memory=_memory(allocations, source),
        base_ns=trace.baseTimeNanoseconds,
        devices=trace.deviceProperties,
    )


def _memory(events: list[_Event], source: str) -> MemoryColumns:
    args = [event.args for event in events]
    time_ns = _nanoseconds([event.ts for event in events], source)
    columns = {
        "time_ns": time_ns,
        "thread": _numbers([event.tid for event in events]),
        "address": _numbers([arg.address for arg in args]),
        "bytes": _numbers([arg.bytes for arg in args]),
        "device_type": _numbers([arg.device_type for arg in args]),
        "device": _numbers([arg.device_id for arg in args]),
        "allocated": _numbers([arg.allocated for arg in args]),
        "reserved": _numbers([arg.reserved for arg in args]),
    }
    order = np.argsort(time_ns, kind="stable")
    return MemoryColumns(**{name: values[order] for name, values in columns.items()})


def _codes(values: Iterable[str]) -> tuple[list[str], Ints]:
    numbers: dict[str, int] = {}
    codes = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), dtype=np.int64)
    return list(numbers), codes


def _nanoseconds(microseconds: list[float], source: str) -> Ints:
    """Times are microseconds, whatever ``displayTimeUnit`` says; exact to the nanosecond below 10^12 of them."""
    times = np.asarray(microseconds, dtype=np.float64)
    if not (np.abs(times) < _LONGEST_US).all():
        raise TraceError(f"{source} holds a time that is no number of microseconds: {times[np.abs(times).argmax()]:g}.")
    return np.rint(times * 1e3).astype(np.int64)


def _numbers(values: list[_Loose]) -> Ints:
    """Whole numbers; `MISSING` for none; names get numbers of their own, from -2 down."""
    try:
        return np.asarray([MISSING if value is None else value for value in values], dtype=np.int64)
    except (ValueError, OverflowError, TypeError):
        names: dict[str, int] = {}
        return np.asarray([_number(value, names) for value in values], dtype=np.int64)


def _number(value: _Loose, names: dict[str, int]) -> int:
    if value is None:
        return MISSING
    if isinstance(value, str):
        if not _WHOLE.fullmatch(value):
            return -2 - names.setdefault(value, len(names))
        value = int(value)
    return int(value) if -(2**63) <= value < 2**63 else MISSING
