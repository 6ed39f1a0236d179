"""Convert Chrome traces written by torch.profiler (Kineto) into columns, piece by piece.

The decoded events themselves do not need to stay in memory.
"""

from __future__ import annotations

import gc
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from decimal import Context, Decimal, InvalidOperation, localcontext
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from perfnb.errors import TraceError
from perfnb.trace.chrome_json import (
    NO_ARGS,
    NO_TEXT,
    QUICK,
    AnyEvent,
    Args,
    ChromeJson,
    Event,
    Loose,
    Piece,
    Quick,
    Time,
    depth_of,
    odd_time,
)
from perfnb.trace.collective_messages import may_send, message_of, runs_on_host
from perfnb.trace.columns import MISSING, Ints, MemoryColumns, TraceColumns
from perfnb.trace.rows import FAR_NS
from perfnb.trace.trace_file import (
    GZIP,
    LIMITS,
    MAX_DEPTH,
    Limits,
    OnProgress,
    Reader,
    blocks_of_bytes,
    blocks_of_file,
    cut,
)
from perfnb.trace_names import DEVICE_EVENTS, HOST_EVENTS

Kind = TypeVar("Kind", bound=np.generic)

#: The names of categories in 2021, and their current names.
OLD_CATEGORIES = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}
#: The categories that torch.profiler uses for events with a duration, on all devices.
WRITTEN = {
    *(*HOST_EVENTS, *DEVICE_EVENTS, "collective_comm", "glow_runtime", "hpu_op"),
    *("cuda_event", "cuda_profiler_range", "mtia_runtime", "mtia_ccp_events", "mtia_insight", "mtia_counters"),
    *("mtia_workloadd", "xpu_runtime", "xpu_driver", "xpu_sync", "privateuse1_runtime", "privateuse1_driver"),
}
_MOST_RANKS = 2**31
#: Below this number of microseconds, float64 can distinguish adjacent nanoseconds.
_FINE_US = 2.0**43
#: Times beyond this are rejected to ensure that the sums and differences of times fit in int64.
_FAR_US = FAR_NS // 1000
#: Above this number of microseconds, float64 has a resolution of a quarter. Some programs round quarters to one
#: decimal.
_COARSE_US = 2**50
_QUARTERS_NS = np.array([0, 200, 250, 500, 750, 800])
#: The name and category of an allocation or free, which is an instant. torch's slower exporter adds a meaningless
#: duration.
MEMORY, INSTANT = "[memory]", "cpu_instant_event"
#: The category of intervals that perfnb derived from the trace's events. They are derived again on loading.
DERIVED = "perfnb"
_NOT_TIMED = frozenset(("Trace", INSTANT, DERIVED))
#: A number as text, without more digits than could fit.
_WHOLE = re.compile(r"-?[0-9]{1,30}")
_UNSIGNED = ("device", "stream", "correlation", "wait_stream", "wait_correlation")
_SIGNED = ("sequence", "forward_thread", "python_id", "python_parent")
_OF_MEMORY = {
    **{name: name for name in ("address", "bytes", "device_type", "allocated", "reserved")},
    "device": "device_id",
}
_OF_GRAPHS = ("module_fqn", "annotation", "mark")
_OF_MESSAGE = ("in_elements", "out_elements", "dtype", "shapes", "types")
#: A column under construction: the values and the number of events in each part. The values are ``None`` if all are
#: missing.
_Parts = list[tuple[Ints | None, int]]
_MINUS_ONE = 2**32 - 1
_BLANKS = re.compile(r"\s+")


def read(path: str | Path, limits: Limits = LIMITS, progress: OnProgress | None = None) -> TraceColumns:
    """Read a trace file, either plain or compressed with gzip, regardless of its name.

    The text is unpacked and decoded piece by piece, and the whole text is never in memory.

    Parameters
    ----------
    path : str or Path
    limits : Limits
        The limits beyond which the file is rejected.
    progress : callable, optional
        Called with the number of bytes that have been read and the file's size. After two seconds, it is called a few
        times per second.

    Raises
    ------
    TraceError
        If the file cannot be read, is not a trace, comes from a program other than torch.profiler, is incomplete, or
        exceeds a limit. The message names the file.
    """
    with closing(blocks_of_file(Path(path), limits, progress)) as blocks:
        trace = _columns(blocks, str(path), limits)
    if len(trace) and not len(trace.memory) and WRITTEN.isdisjoint(trace.categories):
        found = [ascii(name)[:40] for name in trace.categories if name][:3]
        said = f"categories such as {', '.join(found)}" if found else "no categories"
        raise TraceError(
            f"{path} is not a torch.profiler trace: its events have {said}, none of which torch.profiler writes; "
            "pass a file that was written with export_chrome_trace."
        )
    return trace


def decode(data: bytes, source: str = "the trace") -> TraceColumns:
    """Decode a trace's JSON, which is an object with ``traceEvents`` or just a list of events.

    Raises
    ------
    TraceError
        If `data` is not such JSON. The message names `source` and, if it is known, the byte.
    """
    return _columns(blocks_of_bytes(data), source, LIMITS)


def _columns(blocks: Iterable[bytes | memoryview], source: str, limits: Limits) -> TraceColumns:
    collecting = gc.isenabled()
    gc.disable()  # There are millions of small objects without cycles, which garbage collection would traverse in vain.
    try:
        text, columns = ChromeJson(blocks, source, limits, QUICK), EventColumns(source)
        for piece in text.pieces():
            columns.add(piece)
        return _trace(columns, text.facts, source)
    except MemoryError as error:
        raise TraceError(f"{source} was not read: there is not enough memory for it.") from error
    finally:
        if collecting:
            gc.enable()


def _trace(columns: EventColumns, facts: dict[str, Any], source: str) -> TraceColumns:
    timed = columns.timed()
    categories = Codes()
    todays = [categories[OLD_CATEGORIES.get(name, name)] for name in columns.categories]
    timed["category"] = np.array(todays, dtype=np.int64)[timed["category"]]
    base = facts.get("base")
    base_ns = 0 if base is None else whole_number(base)
    if base_ns is None or abs(base_ns) >= FAR_NS:
        raise odd_time(source, "its baseTimeNanoseconds", ascii(base)[:40])
    job = facts.get("distributed")
    _name_only_group(columns, timed, job)
    devices = facts.get("devices") or facts.get("old_devices")
    return TraceColumns(
        **timed,
        names=list(columns.names),
        categories=list(categories),
        memory=columns.memory(),
        shape_texts=list(columns.shapes.codes),
        collective_names=list(columns.collectives.codes),
        group_names=list(columns.groups),
        dtype_names=list(columns.dtypes),
        module_names=list(columns.modules),
        base_ns=base_ns,
        unit_ns=resolution(timed["start_ns"], timed["duration_ns"]),
        negative_durations=columns.negative_durations,
        devices=[device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else [],
        rank=_count(job, "rank"),
        world_size=_count(job, "world_size"),
        process_names=columns.process_names,
        process_labels=columns.process_labels,
        thread_names=columns.thread_names,
        perfnb=facts.get("perfnb"),
        caveats=[],
        of_torch=False,
    )


def _name_only_group(columns: EventColumns, timed: dict[str, Ints], job: Any) -> None:
    """If the job has only one group, assign it to the collectives on the host that do not name their group."""
    groups = job.get("pg_config") if isinstance(job, dict) else None
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], dict):
        return
    name, ranks = groups[0].get("pg_name", ""), groups[0].get("ranks")
    if not isinstance(name, str) or not isinstance(ranks, list) or not all(isinstance(rank, int) for rank in ranks):
        return
    on_host = np.array([runs_on_host(one) for one in columns.names], dtype=bool)
    unknown = on_host[timed["name"]] & (timed["group"] == MISSING) if len(columns.names) else np.array([], dtype=bool)
    if unknown.any():
        timed["group"] = np.where(unknown, columns.groups[f"{name} {ranks}".strip()], timed["group"])


def _count(job: Any, key: str) -> int | None:
    number = whole_number(job.get(key)) if isinstance(job, dict) else None
    return number if number is not None and 0 <= number < _MOST_RANKS else None


class Codes(dict[Any, int]):
    """Assigns numbers to keys, starting at 0, in the order of their first lookup."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


class JsonTexts(dict[bytes, int]):
    """Assigns numbers to JSON values based on the text that they represent, regardless of whitespace and quoting."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = Codes()

    def __missing__(self, key: bytes) -> int:
        text = text_of(key)
        self[key] = code = self.codes[text] if text else MISSING
        return code


class Ids(dict[Any, int]):
    """Assigns numbers to processes and threads.

    Numbers in the file remain unchanged. Names, and numbers that exceed int64, are replaced by numbers from -2
    downwards.
    """

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
    """The columns of all complete events and memory events added so far.

    Attributes
    ----------
    names, categories, groups, dtypes, modules : Codes
    shapes, collectives : JsonTexts
    process_names, process_labels, thread_names : dict
        As in `TraceColumns`.
    negative_durations : int
    """

    def __init__(self, source: str) -> None:
        self.names, self.categories = Codes(), Codes()
        self.shapes, self.collectives, self.groups, self.dtypes = JsonTexts(), JsonTexts(), Codes(), Codes()
        self.modules = Codes()
        self.process_names: dict[int, str] = {}
        self.process_labels: dict[int, str] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self.negative_durations = 0
        self._ids = Ids()
        self._may_send = np.array([], dtype=bool)  # indexed by the names' codes
        self._source = source
        self._timed: defaultdict[str, _Parts] = defaultdict(list)
        self._memory: defaultdict[str, _Parts] = defaultdict(list)

    def add(self, piece: Piece[Event[Quick]]) -> None:
        """Add the events in a piece.

        Raises
        ------
        TraceError
            If a time is not a number, or is out of range.
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
        if (start + duration >= FAR_NS).any():
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
        coded = _codes(self.names, names)
        columns = {
            "name": coded,
            "category": _codes(self.categories, events["cat"]),
            "start_ns": start,
            "duration_ns": duration,
            "process": self._ids_of(events["pid"]),
            "thread": self._ids_of(events["tid"]),
            **{name: _numbers(args[name]) for name in (*_UNSIGNED, *_SIGNED)},
            "bytes": _numbers(args["moved_bytes"]),
            "external_id": old if external is None else external,
            "shapes": _texts(self.shapes, shapes),
            "collective": _texts(self.collectives, args["collective"]),
            "group": self._groups_of(args["group"], args["ranks"]),
            **self._messages_of(coded, args),
            "module": self._modules_of(args),
        }
        for column, values in columns.items():
            self._timed[column].append((values, len(start)))

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
        ids = _plain(values, np.int64)
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

    def _messages_of(self, names: Ints, args: Mapping[str, Sequence[Any]]) -> dict[str, Ints | None]:
        """Return the numbers of elements and the dtypes in collectives' messages."""
        if len(self.names) > len(self._may_send):
            new = [*self.names][len(self._may_send) :]
            self._may_send = np.append(self._may_send, [may_send(name) for name in new])
        rows = np.flatnonzero(self._may_send[names])
        if not len(rows):
            return {"elements": None, "dtype": None}
        elements, dtype = (np.full(len(names), MISSING, dtype=np.int64) for _ in range(2))
        for row in rows.tolist():
            count, kind = message_of(*(args[key][row] for key in _OF_MESSAGE))
            elements[row] = MISSING if count is None else count
            dtype[row] = self.dtypes[kind] if kind else MISSING
        return {"elements": elements, "dtype": dtype}

    def _modules_of(self, args: Mapping[str, Sequence[Any]]) -> Ints | None:
        """Return the annotations of the work in CUDA graphs."""
        if _all_are(MISSING, args["graph_node"]):
            return None
        codes = np.full(len(args["graph_node"]), MISSING, dtype=np.int64)
        for row, node in enumerate(args["graph_node"]):
            if node not in (MISSING, 0) and (text := annotated(*(args[key][row] for key in _OF_GRAPHS))):
                codes[row] = self.modules[text]
        return codes

    def timed(self) -> dict[str, Ints]:
        """Return the columns of the complete events."""
        columns = {name: _joined(parts) for name, parts in self._timed.items()}
        for name in _UNSIGNED:  # some programs write -1 as an unsigned 32-bit number
            columns[name][columns[name] == _MINUS_ONE] = MISSING
        return columns

    def memory(self) -> MemoryColumns:
        """Return the columns of the allocations and frees, in chronological order."""
        columns = {field.name: _joined(self._memory[field.name]) for field in fields(MemoryColumns)}
        order = np.argsort(columns["time_ns"], kind="stable")
        return MemoryColumns(**{name: values[order] for name, values in columns.items()})


def _joined(parts: _Parts) -> Ints:
    """Concatenate the parts of a column, and clear the list."""
    whole = np.full(sum(count for _, count in parts), MISSING, dtype=np.int64)
    start = 0
    for values, count in parts:
        if values is not None:
            whole[start : start + count] = values
        start += count
    parts.clear()
    return whole


def whole_number(value: Any) -> int | None:
    """Convert `value` to an int64 if it is a number or a number as text. Otherwise, return ``None``."""
    if isinstance(value, str):
        value = int(value) if _WHOLE.fullmatch(value) else None
    elif isinstance(value, float):
        value = int(value) if value.is_integer() else None
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


def text_of(json: bytes) -> str:
    """Return the text of a JSON value.

    For a string, this is the string's content. For any other value, it is the JSON with uniform whitespace.
    """
    try:
        text = msgspec.json.decode(json, type=str) if json.startswith(b'"') else json.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = json.decode("utf-8", "backslashreplace")
    if text.startswith("["):
        if depth_of(json) > MAX_DEPTH:
            return f"{text[:MAX_DEPTH]}…"  # avoids exceeding the recursion limit of programs that read it
        return _BLANKS.sub("", text).replace(",", ", ")  # not truncated: shapes may be this long
    return "" if text == "null" else cut(text)


def annotated(module: Raw, annotation: Raw, mark: Raw) -> str:
    """Return the module in the annotation of an event in a CUDA graph, or the annotation itself.

    The result is empty if there are no annotations.

    torch 2.13 writes the keys of an annotation as arguments of the event, and a list of annotations as JSON
    (`_annotation_to_args` in torch/profiler/_cupti_monitor_trace.py). In contrast,
    torch/cuda/_annotate_cuda_graph_trace.py writes the keys of one annotation after another.
    ``mark_kernels("words")`` creates the annotation ``{"str": "words"}``.
    """
    if module is not NO_TEXT or annotation is NO_TEXT:
        return text_of(bytes(mark if module is NO_TEXT else module))
    try:
        scopes = _SCOPES.decode(msgspec.json.decode(bytes(annotation), type=str))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text_of(bytes(annotation))
    return cut(
        next((scope.module_fqn or scope.mark for scope in reversed(scopes)), "")
    )  # as in torch, the last one counts


class _Scope(msgspec.Struct):
    """An annotation."""

    module_fqn: str = ""
    mark: str = msgspec.field(default="", name="str")


_SCOPES = msgspec.json.Decoder(list[_Scope])


def _timed(events: Iterable[Event[Time]]) -> list[Event[Time]]:
    # This code is inlined, because a function call for each of millions of events would double the time.
    return [event for event in events if event.ph == "X" and event.cat not in _NOT_TIMED]


def _not_timed(events: Iterable[Event[Time]]) -> list[Event[Time]]:
    return [event for event in events if event.ph != "X" or event.cat in _NOT_TIMED]


def _memory(events: Iterable[Event[Time]]) -> list[Event[Time]]:
    return [event for event in events if event.cat == INSTANT and event.name == MEMORY]


def _numbers(values: Sequence[Loose]) -> Ints | None:
    """Convert values to int64.

    Values that do not fit become `MISSING`, and the result is ``None`` if none of them fit.
    """
    if _all_are(MISSING, values):
        return None
    numbers = _plain(values, np.int64)
    if numbers is not None:
        return numbers
    return np.array([MISSING if (n := whole_number(value)) is None else n for value in values], dtype=np.int64)


def _plain(values: Sequence[Any], kind: type[Kind]) -> npt.NDArray[Kind] | None:
    """Convert the values to an array, or return ``None`` if any of them is not a number that fits.

    This is much faster than checking each value.
    """
    try:
        return np.frombuffer(struct.pack(f"{len(values)}{np.dtype(kind).char}", *values), dtype=kind)
    except (struct.error, OverflowError):
        return None


def _codes(codes: dict[Any, int], values: Sequence[Any]) -> Ints:
    return np.fromiter(map(codes.__getitem__, values), dtype=np.int64, count=len(values))


def _texts(codes: JsonTexts, values: Sequence[Raw]) -> Ints | None:
    return None if _all_are(NO_TEXT, values) else _codes(codes, [*map(bytes, values)])


def _by_field(kind: type[msgspec.Struct], values: Sequence[msgspec.Struct]) -> dict[str, Sequence[Any]]:
    """Return the values of each field.

    For millions of objects, this is much faster than accessing the attributes of each one.
    """
    columns = zip(*map(msgspec.structs.astuple, values), strict=True) if values else repeat(())
    return dict(zip(kind.__struct_fields__, columns, strict=False))


def _all_are(one: Any, values: Sequence[Any]) -> bool:
    return tuple(values) == (one,) * len(values)  # unlike count(), this stops at the first other value


def quick_nanoseconds(microseconds: Sequence[Any]) -> Ints | None:
    """Convert times exactly to nanoseconds, or return ``None`` if this requires `exact_nanoseconds`."""
    whole = _plain(microseconds, np.int64)
    if whole is not None:
        return whole * 1000 if ((whole > -_FAR_US) & (whole < _FAR_US)).all() else None
    try:
        times = _plain(microseconds, np.float64)
        if times is None:
            times = np.array(microseconds, dtype=np.float64)
    except (ValueError, OverflowError):
        return None
    if not (np.abs(times) < _FINE_US).all():
        return None
    # This is done in two parts, because multiplying by 1000 would round to a resolution coarser than a nanosecond.
    whole_us = np.trunc(times)
    return whole_us.astype(np.int64) * 1000 + np.rint((times - whole_us) * 1000).astype(np.int64)


def exact_nanoseconds(microseconds: Sequence[Decimal | int]) -> Ints:
    """Convert times with their full precision to nanoseconds. Fractions of a nanosecond are rounded.

    Raises
    ------
    ValueError
        If a time is not a number or does not fit in int64. The time is the exception's only argument.
    """
    times = []
    with localcontext(Context(prec=60)):
        for value in microseconds:
            try:
                fits = -_FAR_US < value < _FAR_US  # must be checked first: the int could have a million digits
            except InvalidOperation:
                fits = False
            if not fits:
                raise ValueError(f"{Decimal(value):.6g}")
            times.append(round(value * 1000))
    return np.array(times, dtype=np.int64)


def resolution(*columns: Ints) -> int:
    """Return the resolution of a file's times in ns: 1000 if all are whole microseconds, and otherwise 1."""
    unit = 1000
    for times in columns:
        if unit > 1 and len(times):
            unit = int(np.gcd(unit, np.gcd.reduce(times % 1000)))
    starts = columns[0]
    if 1 < unit < 1000 and starts.min() > _COARSE_US * 1000 and np.isin(starts % 1000, _QUARTERS_NS).all():
        return 250
    return unit


def _recognise(path: Path, head: bytes) -> bool:
    """Accept any file that may be JSON in some encoding. `read` raises an error if the file is empty or damaged."""
    text = head.removeprefix(b"\xef\xbb\xbf").removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff")
    text = text.replace(b"\0", b"").lstrip(b" \t\r\n")
    return not text or text[:1] in (b"{", b"[") or head.startswith(GZIP)


READER = Reader((".json", ".json.gz"), _recognise, read)
