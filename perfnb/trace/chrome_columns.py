"""Decoded events turned into columns, piece by piece, so that the events themselves need not stay in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal, InvalidOperation, localcontext
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from perfnb.trace.chrome_json import NO_ARGS, NO_TEXT, AnyEvent, Args, Event, Loose, Piece, Time, odd_time
from perfnb.trace.columns import MISSING, Ints, MemoryColumns, plain_floats, plain_ints

#: Below this many microseconds a float64 distinguishes neighbouring nanoseconds.
_FINE_US = 2.0**43
_LEAST_NS, _MOST_NS = -(2**63), 2**63 - 1
_MOST_WHOLE_US = _MOST_NS // 1000
_FAR_US = Decimal(10**17)
#: Above this many microseconds a float64 moves in quarters, which some writers round to one decimal.
_COARSE_US = 2**50
_QUARTERS_NS = np.array([0, 200, 250, 500, 750, 800])


def quick_nanoseconds(microseconds: Sequence[Any]) -> Ints | None:
    """Convert times given as int, float or text exactly; ``None`` if only `exact_nanoseconds` can."""
    whole = plain_ints(microseconds)
    if whole is not None:
        fits = not len(whole) or -_MOST_WHOLE_US <= whole.min() <= whole.max() <= _MOST_WHOLE_US
        return whole * 1000 if fits else None
    try:
        times = plain_floats(microseconds)
        if times is None:
            times = np.array(microseconds, dtype=np.float64)
    except (ValueError, OverflowError):
        return None
    if not (np.abs(times) < _FINE_US).all():
        return None
    # In two parts: a product with 1000 would be rounded to less than a nanosecond's worth of digits.
    whole_us = np.trunc(times)
    return whole_us.astype(np.int64) * 1000 + np.rint((times - whole_us) * 1000).astype(np.int64)


def exact_nanoseconds(microseconds: Sequence[Decimal | int]) -> Ints:
    """Convert times that kept every digit to nanoseconds, rounding below that.

    Raises
    ------
    ValueError
        If a time is not a number or does not fit in int64; it is the error's only argument.
    """
    times = []
    with localcontext(Context(prec=60)):
        for value in microseconds:
            try:
                inside = -_FAR_US < value < _FAR_US  # before it becomes an int, of perhaps a million digits
            except InvalidOperation:
                inside = False
            time = round(value * 1000) if inside else _MOST_NS + 1
            if not _LEAST_NS <= time <= _MOST_NS:
                raise ValueError(f"{Decimal(value):.6g}")
            times.append(time)
    return np.array(times, dtype=np.int64)


def resolution(*columns: Ints) -> int:
    """Return the resolution of a file's times in ns: 1 for full digits, 1000 if all are whole microseconds."""
    unit = 1000
    for times in columns:
        if unit > 1 and len(times):
            unit = int(np.gcd(unit, np.gcd.reduce(times % 1000)))
    starts = columns[0]
    if 1 < unit < 1000 and starts.min() > _COARSE_US * 1000 and np.isin(starts % 1000, _QUARTERS_NS).all():
        return 250
    return unit


#: An allocation or a free, as an instant; torch's slower exporter gives it a meaningless duration.
MEMORY, INSTANT = "[memory]", "cpu_instant_event"
#: Category of intervals that perfnb derived from the trace's events, and derives again.
DERIVED = "perfnb"
_NOT_TIMED = ("Trace", INSTANT, DERIVED)
#: Text that is a number, with no more digits than any that fits.
_WHOLE = re.compile(r"-?[0-9]{1,30}")
_COLUMNS = (
    *("name", "category", "start_ns", "duration_ns", "process", "thread", "device", "stream", "correlation"),
    *("sequence", "forward_thread", "external_id", "python_id", "python_parent", "shapes", "collective", "group"),
    *("wait_stream", "wait_correlation", "bytes"),
)
_UNSIGNED = ("device", "stream", "correlation", "wait_stream", "wait_correlation")
_SIGNED = ("sequence", "forward_thread", "python_id", "python_parent")
_OF_MEMORY = {
    **{name: name for name in ("address", "bytes", "device_type", "allocated", "reserved")},
    "device": "device_id",
}
_MEMORY_COLUMNS = ("time_ns", "process", "thread", *_OF_MEMORY)
#: A column being built: values and number of events, without values if none of the events has one.
_Parts = list[tuple[Ints | None, int]]
_NOTHING: Ints = np.array([], dtype=np.int64)
_MINUS_ONE = 2**32 - 1
_BLANKS = re.compile(r"\s+")


class Codes(dict[Any, int]):
    """Number keys from 0 in the order in which they are first looked up."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


class Texts(dict[bytes, int]):
    """Number JSON values by the text they spell, however they are spaced or quoted."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = Codes()

    def __missing__(self, key: bytes) -> int:
        text = text_of(key)
        self[key] = code = self.codes[text] if text else MISSING
        return code


class Ids(dict[Any, int]):
    """Number processes and threads: their own numbers, or from -2 down for names and for numbers above int64."""

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
    """The columns of the complete events and the memory events added so far.

    Attributes
    ----------
    names, categories, groups : Codes
    shapes, collectives : Texts
    process_names, process_labels, thread_names : dict
        As `TraceColumns` has them.
    negative_durations : int
    """

    def __init__(self, source: str) -> None:
        self.names, self.categories = Codes(), Codes()
        self.shapes, self.collectives, self.groups = Texts(), Texts(), Codes()
        self.process_names: dict[int, str] = {}
        self.process_labels: dict[int, str] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self.negative_durations = 0
        self._ids = Ids()
        self._source = source
        self._timed: dict[str, _Parts] = {name: [] for name in _COLUMNS}
        self._memory: dict[str, _Parts] = {name: [] for name in _MEMORY_COLUMNS}

    def add(self, piece: Piece) -> None:
        """Add the events of a piece.

        Raises
        ------
        TraceError
            If a time is not a number, or does not fit in int64 nanoseconds.
        """
        timed = _timed(piece.events)
        others = [] if len(timed) == len(piece.events) else _not_timed(piece.events)
        memory = _memory(others)
        columns = _by_field(Event, timed)
        start, duration = quick_nanoseconds(columns["ts"]), quick_nanoseconds(columns["dur"])
        time = quick_nanoseconds([event.ts for event in memory])
        if start is None or duration is None or time is None:
            exact = piece.exactly(self._source)
            try:
                start = exact_nanoseconds([event.ts for event in _timed(exact)])
                duration = exact_nanoseconds([event.dur for event in _timed(exact)])
                time = exact_nanoseconds([event.ts for event in _memory(exact)])
            except ValueError as error:
                raise odd_time(self._source, "a ts or dur in it", f"{error} µs") from error
        negative = duration < 0
        self.negative_durations += int(negative.sum())
        duration = np.where(negative, 0, duration)
        if (start > np.iinfo(np.int64).max - duration).any():
            raise odd_time(self._source, "the end of an event in it", "ts + dur")
        self._add_timed(columns, start, duration)
        if memory:
            self._add_memory(memory, time)
        self._add_names(others)

    def _add_timed(self, events: dict[str, Sequence[Any]], start: Ints, duration: Ints) -> None:
        given = [arg or NO_ARGS for arg in events["args"]]
        args = _by_field(Args, given)
        external, old = _numbers(args["external_id"]), _numbers(args["old_external_id"])
        shapes = args["shapes"]
        if not _all_are(NO_TEXT, args["old_shapes"]):
            shapes = [b if a is NO_TEXT else a for a, b in zip(shapes, args["old_shapes"], strict=True)]
        names = events["name"]
        if not _all_are(NO_TEXT, own := args["own_name"]):
            names = [b if a is NO_TEXT else text_of(bytes(a)) for a, b in zip(own, names, strict=True)]
        if external is not None and old is not None:
            external = np.where(external == MISSING, old, external)
        columns = {
            "name": _codes(self.names, names),
            "category": _codes(self.categories, events["cat"]),
            "start_ns": start,
            "duration_ns": duration,
            "process": self._ids_of(events["pid"]),
            "thread": self._ids_of(events["tid"]),
            **{name: _unsigned(args[name]) for name in _UNSIGNED},
            **{name: _numbers(args[name]) for name in _SIGNED},
            "bytes": _numbers(args["moved_bytes"]),
            "external_id": old if external is None else external,
            "shapes": _texts(self.shapes, shapes),
            "collective": _texts(self.collectives, args["collective"]),
            "group": self._groups_of(args["group"], args["ranks"]),
        }
        for name, values in columns.items():
            self._timed[name].append((values, len(start)))

    def _add_memory(self, events: Sequence[AnyEvent], time: Ints) -> None:
        args = _by_field(Args, [event.args or NO_ARGS for event in events])
        columns = {name: _numbers(args[argument]) for name, argument in _OF_MEMORY.items()}
        columns |= {"time_ns": time, "process": self._ids_of([event.pid for event in events])}
        columns["thread"] = self._ids_of([event.tid for event in events])
        for name, values in columns.items():
            self._memory[name].append((values, len(events)))

    def _add_names(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            if event.ph == "M" and event.args and event.name in ("process_name", "thread_name"):
                text = text_of(bytes(event.args.name)).strip()
                process = self._ids[event.pid]
                if event.name == "process_name":
                    self.process_names[process] = text
                else:
                    self.thread_names[process, self._ids[event.tid]] = text
            elif event.ph == "M" and event.args and event.name == "process_labels":
                self.process_labels[self._ids[event.pid]] = text_of(bytes(event.args.labels)).strip()

    def _ids_of(self, values: Sequence[Loose]) -> Ints:
        ids = plain_ints(values)
        return _codes(self._ids, values) if ids is None else ids

    def _groups_of(self, groups: Sequence[Raw], ranks: Sequence[Raw]) -> Ints | None:
        if _all_are(NO_TEXT, groups) and _all_are(NO_TEXT, ranks):
            return None
        codes = np.full(len(groups), MISSING, dtype=np.int64)
        for row, (group, members) in enumerate(zip(groups, ranks, strict=True)):
            if group is not NO_TEXT or members is not NO_TEXT:
                text = f"{text_of(bytes(group))} {text_of(bytes(members))}".strip()
                codes[row] = self.groups[text] if text else MISSING
        return codes

    def timed(self) -> dict[str, Ints]:
        """Return the columns of the complete events."""
        return {name: _joined(parts) for name, parts in self._timed.items()}

    def memory(self) -> MemoryColumns:
        """Return the columns of the allocations and frees, in time order."""
        columns = {name: _joined(parts) for name, parts in self._memory.items()}
        order = np.argsort(columns["time_ns"], kind="stable")
        return MemoryColumns(**{name: values[order] for name, values in columns.items()})


def _joined(parts: _Parts) -> Ints:
    """Join the parts of a column, and empty the list."""
    each = (np.full(count, MISSING, dtype=np.int64) if values is None else values for values, count in parts)
    whole = np.concatenate([_NOTHING, *each])
    parts.clear()
    return whole


def whole_number(value: Any) -> int | None:
    """Return the int64 that `value` is or spells, ``None`` for anything else."""
    if isinstance(value, str):
        value = int(value) if _WHOLE.fullmatch(value) else None
    elif isinstance(value, float):
        value = int(value) if value.is_integer() else None
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


def text_of(json: bytes) -> str:
    """Return the text that a JSON value spells: a string's own, anything else as it is, evenly spaced."""
    try:
        text = msgspec.json.decode(json, type=str) if json.startswith(b'"') else json.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = json.decode("utf-8", "backslashreplace")
    if text.startswith("["):
        text = _BLANKS.sub("", text).replace(",", ", ")
    return "" if text == "null" else text


def _timed(events: Iterable[Event[Time]]) -> list[Event[Time]]:
    # Written out, because a call for each of millions of events would double the time.
    return [event for event in events if event.ph == "X" and event.cat not in _NOT_TIMED]


def _not_timed(events: Iterable[Event[Time]]) -> list[Event[Time]]:
    return [event for event in events if event.ph != "X" or event.cat in _NOT_TIMED]


def _memory(events: Iterable[Event[Time]]) -> list[Event[Time]]:
    return [event for event in events if event.cat == INSTANT and event.name == MEMORY]


def _numbers(values: Sequence[Loose]) -> Ints | None:
    """Return whole numbers: `MISSING` for anything that is not an int64, ``None`` if no event has one."""
    if _all_are(MISSING, values):
        return None
    numbers = plain_ints(values)
    if numbers is not None:
        return numbers
    return np.array([MISSING if (n := whole_number(value)) is None else n for value in values], dtype=np.int64)


def _unsigned(values: Sequence[Loose]) -> Ints | None:
    """As `_numbers`, for arguments of which some writers print -1 as an unsigned number of 32 bits."""
    numbers = _numbers(values)
    return None if numbers is None else np.where(numbers == _MINUS_ONE, MISSING, numbers)


def _codes(codes: dict[Any, int], values: Sequence[Any]) -> Ints:
    return np.fromiter(map(codes.__getitem__, values), dtype=np.int64, count=len(values))


def _texts(codes: Texts, values: Sequence[Raw]) -> Ints | None:
    if _all_are(NO_TEXT, values):
        return None
    return np.fromiter(map(codes.__getitem__, map(bytes, values)), dtype=np.int64, count=len(values))


def _by_field(struct: type[msgspec.Struct], values: Sequence[msgspec.Struct]) -> dict[str, Sequence[Any]]:
    """Return the values of each field: for millions of objects far faster than an attribute access each."""
    fields = struct.__struct_fields__
    return dict(
        zip(fields, zip(*map(msgspec.structs.astuple, values), strict=True) if values else repeat(()), strict=False)
    )


def _all_are(one: Any, values: Sequence[Any]) -> bool:
    return values.count(one) == len(values)
