"""Decoded events turned into columns, piece by piece, so that the events themselves need not stay."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from perfnb.traces import chrome_faults
from perfnb.traces.chrome_events import NO_ARGS, NO_TEXT, AnyEvent, Args, Event, Loose, Time
from perfnb.traces.chrome_json import Piece
from perfnb.traces.chrome_times import exact_nanoseconds, quick_nanoseconds
from perfnb.traces.columns import MISSING, Ints, MemoryColumns, plain_ints

#: An allocation or a free, as an instant; torch's slower exporter gives it a meaningless duration.
_MEMORY, _INSTANT = "[memory]", "cpu_instant_event"
#: Category of intervals that perfnb derived from the events of the trace, and finds anew.
DERIVED = "perfnb"
_NOT_TIMED = ("Trace", _INSTANT, DERIVED)
#: A text that is a number, and of no more digits than any that fits.
_WHOLE = re.compile(r"-?[0-9]{1,30}")
_COLUMNS = (
    *("name", "category", "start_ns", "duration_ns", "process", "thread", "device", "stream", "correlation"),
    *("sequence", "forward_thread", "external_id", "python_id", "python_parent", "shapes", "collective", "group"),
    *("wait_stream", "wait_correlation"),
)
_OF_MEMORY = {
    **{name: name for name in ("address", "bytes", "device_type", "allocated", "reserved")},
    "device": "device_id",
}
_MEMORY_COLUMNS = ("time_ns", "thread", *_OF_MEMORY)
_MINUS_ONE = 2**32 - 1
_BLANKS = re.compile(r"\s+")


class Codes(dict[Any, int]):
    """Numbers keys in the order in which they are first asked for, from 0 up."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


class Texts(dict[bytes, int]):
    """Numbers JSON values by the text that they spell, however they are spaced or quoted."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = Codes()

    def __missing__(self, key: bytes) -> int:
        text = text_of(key)
        self[key] = code = self.codes[text] if text else MISSING
        return code


class Ids(dict[Any, int]):
    """Numbers of processes and threads: their own, or from -2 down for names and for numbers above int64."""

    def __init__(self) -> None:
        super().__init__()
        self._names = Codes()

    def __missing__(self, key: Loose) -> int:
        number = whole_number(key)
        if number is None:
            number = MISSING if key is None else -2 - self._names[key]
        self[key] = number
        return number


class EventColumns:
    """The columns of the complete events and of the memory's, as far as they were added.

    Attributes
    ----------
    names, categories, groups : Codes
    shapes, collectives : Texts
    process_names, thread_names : dict
        As `TraceColumns` has them.
    negative_durations : int
    """

    def __init__(self, source: str) -> None:
        self.names, self.categories = Codes(), Codes()
        self.shapes, self.collectives, self.groups = Texts(), Texts(), Codes()
        self.process_names: dict[int, str] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self.negative_durations = 0
        self._ids = Ids()
        self._source = source
        # Arrays of the standard library grow in place.
        self._timed = {name: array("q") for name in _COLUMNS}
        self._memory = {name: array("q") for name in _MEMORY_COLUMNS}

    def add(self, piece: Piece) -> None:
        """Take the columns of a piece's events.

        Raises
        ------
        TraceError
            If a time is no number, or too long for int64 nanoseconds.
        """
        timed, memory = _timed(piece.events), _memory(piece.events)
        start = quick_nanoseconds([event.ts for event in timed])
        duration = quick_nanoseconds([event.dur for event in timed])
        time = quick_nanoseconds([event.ts for event in memory])
        if start is None or duration is None or time is None:
            exact = piece.exactly(self._source)
            try:
                start = exact_nanoseconds([event.ts for event in _timed(exact)])
                duration = exact_nanoseconds([event.dur for event in _timed(exact)])
                time = exact_nanoseconds([event.ts for event in _memory(exact)])
            except ValueError as error:
                raise chrome_faults.odd_time(self._source, "a ts or dur in it", f"{error} µs") from error
        negative = duration < 0
        self.negative_durations += int(negative.sum())
        duration = np.where(negative, 0, duration)
        if (start > np.iinfo(np.int64).max - duration).any():
            raise chrome_faults.odd_time(self._source, "the end of an event in it", "ts + dur")
        self._add_timed(timed, start, duration)
        if memory:
            self._add_memory(memory, time)
        self._add_names(piece.events)

    def _add_timed(self, events: Sequence[AnyEvent], start: Ints, duration: Ints) -> None:
        args = [event.args or NO_ARGS for event in events]
        external = _numbers([arg.external_id for arg in args])
        old = _numbers([arg.old_external_id for arg in args])
        shapes = [arg.old_shapes if arg.shapes is NO_TEXT else arg.shapes for arg in args]
        columns = {
            "name": _codes(self.names, [event.name for event in events]),
            "category": _codes(self.categories, [event.cat for event in events]),
            "start_ns": start,
            "duration_ns": duration,
            "process": self._ids_of([event.pid for event in events]),
            "thread": self._ids_of([event.tid for event in events]),
            # Written out, because a name looked up for each of millions of events would take twice the time.
            "device": _unsigned([arg.device for arg in args]),
            "stream": _unsigned([arg.stream for arg in args]),
            "correlation": _unsigned([arg.correlation for arg in args]),
            "sequence": _numbers([arg.sequence for arg in args]),
            "forward_thread": _numbers([arg.forward_thread for arg in args]),
            "python_id": _numbers([arg.python_id for arg in args]),
            "python_parent": _numbers([arg.python_parent for arg in args]),
            "wait_stream": _unsigned([arg.wait_stream for arg in args]),
            "wait_correlation": _unsigned([arg.wait_correlation for arg in args]),
            "external_id": np.where(external == MISSING, old, external),
            "shapes": _texts(self.shapes, shapes),
            "collective": _texts(self.collectives, [arg.collective for arg in args]),
            "group": self._groups_of(args),
        }
        for name, values in columns.items():
            self._timed[name].frombytes(values.tobytes())

    def _add_memory(self, events: Sequence[AnyEvent], time: Ints) -> None:
        args = [event.args or NO_ARGS for event in events]
        columns = {name: _numbers([getattr(arg, argument) for arg in args]) for name, argument in _OF_MEMORY.items()}
        columns |= {"time_ns": time, "thread": self._ids_of([event.tid for event in events])}
        for name, values in columns.items():
            self._memory[name].frombytes(values.tobytes())

    def _add_names(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            if event.ph == "M" and event.args and event.name in ("process_name", "thread_name"):
                text = text_of(bytes(event.args.name)).strip()
                process = self._ids[event.pid]
                if event.name == "process_name":
                    self.process_names[process] = text
                else:
                    self.thread_names[process, self._ids[event.tid]] = text

    def _ids_of(self, values: list[Loose]) -> Ints:
        ids = plain_ints(values)
        return _codes(self._ids, values) if ids is None else ids

    def _groups_of(self, args: Sequence[Args]) -> Ints:
        codes = np.full(len(args), MISSING, dtype=np.int64)
        if [arg.group for arg in args].count(NO_TEXT) == [arg.ranks for arg in args].count(NO_TEXT) == len(args):
            return codes
        for row, arg in enumerate(args):
            if arg.group is not NO_TEXT or arg.ranks is not NO_TEXT:
                text = f"{text_of(bytes(arg.group))} {text_of(bytes(arg.ranks))}".strip()
                codes[row] = self.groups[text] if text else MISSING
        return codes

    def timed(self) -> dict[str, Ints]:
        """The columns of the complete events."""
        return {name: np.frombuffer(values, dtype=np.int64) for name, values in self._timed.items()}

    def memory(self) -> MemoryColumns:
        """The columns of the allocations and frees, in order of time."""
        columns = {name: np.frombuffer(values, dtype=np.int64) for name, values in self._memory.items()}
        order = np.argsort(columns["time_ns"], kind="stable")
        return MemoryColumns(**{name: values[order] for name, values in columns.items()})


def whole_number(value: Any) -> int | None:
    """The int64 that `value` is or spells, ``None`` for all else."""
    if isinstance(value, str):
        value = int(value) if _WHOLE.fullmatch(value) else None
    elif isinstance(value, float):
        value = int(value) if value.is_integer() else None
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


def text_of(json: bytes) -> str:
    """The text that a JSON value spells: a string's own, and anything else as it stands, evenly spaced."""
    try:
        text = msgspec.json.decode(json, type=str) if json.startswith(b'"') else json.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = json.decode("utf-8", "backslashreplace")
    if text.startswith("["):
        text = _BLANKS.sub("", text).replace(",", ", ")
    return "" if text == "null" else text


def _timed(events: Iterable[Event[Time]]) -> list[Event[Time]]:
    return [event for event in events if event.ph == "X" and event.cat not in _NOT_TIMED]


def _memory(events: Iterable[Event[Time]]) -> list[Event[Time]]:
    return [event for event in events if event.cat == _INSTANT and event.name == _MEMORY]


def _numbers(values: list[Loose]) -> Ints:
    """Whole numbers; `MISSING` for none and for what is no int64."""
    if values.count(MISSING) == len(values):
        return np.full(len(values), MISSING, dtype=np.int64)
    numbers = plain_ints(values)
    if numbers is not None:
        return numbers
    return np.array([MISSING if (n := whole_number(value)) is None else n for value in values], dtype=np.int64)


def _unsigned(values: list[Loose]) -> Ints:
    """As `_numbers`, where some writers print -1 as an unsigned number of 32 bits."""
    numbers = _numbers(values)
    return np.where(numbers == _MINUS_ONE, MISSING, numbers)


def _codes(codes: dict[Any, int], values: Sequence[Any]) -> Ints:
    return np.fromiter(map(codes.__getitem__, values), dtype=np.int64, count=len(values))


def _texts(codes: Texts, values: list[msgspec.Raw]) -> Ints:
    if values.count(NO_TEXT) == len(values):
        return np.full(len(values), MISSING, dtype=np.int64)
    found = [MISSING if value is NO_TEXT else codes[bytes(value)] for value in values]
    return np.array(found, dtype=np.int64)
