"""Read Chrome traces from programs other than torch.profiler.

TensorFlow, JAX, Horovod and many other programs write such traces. In these files, the array of events may lack its
closing bracket, an interval may consist of a start event (``B``) and an end event (``E``), and some durations are
impossibly long. In traces from TensorFlow 2 and JAX, the process names identify devices and hosts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Raw

from perfnb.quantities import duration
from perfnb.trace.chrome_json import NO_TEXT, ChromeJson, Decoders, Loose, odd_time
from perfnb.trace.columns import TraceColumns
from perfnb.trace.kineto import DERIVED, INSTANT, OLD_CATEGORIES, WRITTEN, Ids, resolution, text_of
from perfnb.trace.kineto import read as read_of_torch
from perfnb.trace.rows import FAR_NS, Rows
from perfnb.trace.trace_file import Kept, Limits, OnProgress, Reader, blocks_of_file, cut
from perfnb.trace.xla import CAVEATS, Stat, XlaPlane, add_device_steps, is_plane
from perfnb.trace_names import OPS

_TORCHS = {*WRITTEN, *OLD_CATEGORIES, "Trace", INSTANT, DERIVED, "ac2g", "fwdbwd", "async_cpu_to_gpu"}
_TORCHS_JSON = frozenset(map(msgspec.json.encode, _TORCHS))
#: Keys next to the list of events that only torch.profiler writes.
_TORCHS_KEYS = re.compile(rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|perfnb)"\s*:')
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([^"\\]{0,80})"')
_EVENT = re.compile(rb'"ph"\s*:\s*"')
#: An interval must be an error if it lasts longer than a day, and more than ten times as long as the rest of the trace.
_DAY_NS, _TIMES = 86_400 * 10**9, 10
_TAIL = 2**12
#: The phases of events that are not shown: instants, counters, asynchronous events and object events, but not flows.
_NOT_SHOWN = frozenset("iIRCbenTFSpNOD")


class _ForeignEvent(msgspec.Struct, gc=False):
    # An argument that may contain anything is only decoded when it is used.
    ph: str = ""
    cat: Raw = NO_TEXT
    name: Raw = NO_TEXT
    pid: Loose = None
    tid: Loose = None
    ts: Loose = None
    dur: Loose = None
    args: Raw = NO_TEXT


class _ForeignArgs(msgspec.Struct, gc=False):
    name: Raw = NO_TEXT
    step_num: Raw = NO_TEXT
    correlation_id: Raw = NO_TEXT
    hlo_op: Raw = NO_TEXT
    hlo_module: Raw = NO_TEXT
    tf_op: Raw = NO_TEXT
    memcpy_details: Raw = NO_TEXT
    memset_details: Raw = NO_TEXT


class _Interval(NamedTuple):
    start: int
    duration: int
    name: str
    process: int
    thread: int
    args: dict[str, Stat]


_NO_ARGS: dict[str, Stat] = {}
#: An argument's value that is a number or text.
_SIMPLE = (b'"', b"-", *(b"%d" % digit for digit in range(10)))
_ARGS = msgspec.json.Decoder(_ForeignArgs)
_DECODERS: Decoders[_ForeignEvent] = Decoders(_ForeignEvent)


def read(path: Path, limits: Limits, progress: OnProgress | None = None) -> TraceColumns:
    """Read a file.

    If it turns out that torch.profiler wrote the file, it is read with `perfnb.trace.kineto.read`. The same errors are
    raised as in that function.
    """
    given, limits = limits, limits.whole()
    found = _Intervals(str(path), limits)
    with closing(blocks_of_file(path, limits, progress)) as blocks:
        for piece in ChromeJson(_closed(blocks), str(path), limits, _DECODERS).pieces():
            if any(bytes(event.cat) in _TORCHS_JSON for event in piece.events):
                return replace(read_of_torch(path, given, progress), of_torch=True)
            found.add(piece.events)
    return found.trace(Rows(str(path), limits))


def _closed(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Close an unclosed array, and remove a trailing comma. Both are allowed in these files."""
    held, is_array = b"", None
    for block in blocks:
        if is_array is None and (first := block.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]):
            is_array = first == b"["
        whole = held + block
        cut = max(0, len(whole) - _TAIL)
        held = whole[cut:]
        yield whole[:cut]
    tail = held.rstrip(b" \t\r\n\0")
    if is_array:
        tail = re.sub(rb",\s*\]\Z", b"]", tail)
        if tail.endswith((b"}", b",", b"[")):
            tail = tail.rstrip(b", \t\r\n") + b"]"
    yield tail


class _Intervals:
    """The intervals in a trace, and the names of its processes and threads."""

    def __init__(self, source: str, limits: Limits) -> None:
        self._source = source
        self._kept = Kept(source, limits)
        self._names: dict[str, str] = {}
        self._ids = Ids()
        self._whole: list[_Interval] = []
        self._ends: defaultdict[tuple[int, int], list[tuple[int, _Interval | None]]] = defaultdict(list)
        self._processes: dict[int, str] = {}
        self._threads: dict[tuple[int, int], str] = {}
        self._negative = 0
        self._not_shown = 0

    def add(self, events: Iterable[_ForeignEvent]) -> None:
        """Add the events in a piece."""
        for event in events:
            kind = event.ph
            if kind == "M":
                self._name(event)
            elif kind in ("X", "B", "E"):
                before = len(self._ids)
                place = self._ids[event.pid], self._ids[event.tid]
                start = self._time(event.ts)
                args = _args(event.args)
                name = text_of(bytes(event.name)) or "(no name)"
                new = len(self._ids) - before + (name not in self._names)
                new += 2 * (kind != "X" and place not in self._ends)
                self._kept.add(1 + len(args) + new)
                interval = _Interval(start, 0, self._names.setdefault(name, name), *place, args)
                if kind == "X":
                    lasts = self._time(event.dur)
                    self._negative += lasts < 0
                    self._whole.append(interval._replace(duration=max(lasts, 0)))
                else:
                    self._ends[place].append((start, interval if kind == "B" else None))
            elif kind in _NOT_SHOWN:
                self._not_shown += 1

    def _name(self, event: _ForeignEvent) -> None:
        name, kind = _args(event.args).get("name"), bytes(event.name)
        if isinstance(name, str) and kind in (b'"process_name"', b'"thread_name"'):
            self._kept.add()
            process = self._ids[event.pid]
            if kind == b'"process_name"':
                self._processes[process] = cut(name)
            else:
                self._threads[process, self._ids[event.tid]] = cut(name)

    def _time(self, value: Loose) -> int:
        """Convert a time to nanoseconds. The result is 0 if there is no time."""
        with suppress(InvalidOperation):
            number = Decimal(0 if value is None else value)
            # This is an approximate check, because the time could otherwise become an int with a million digits. `Rows`
            # rejects
            # times that are too far away, and a duration that has wrapped around is treated as 0.
            if -FAR_NS < number < FAR_NS:
                return round(number * 1000)
        raise odd_time(self._source, "a ts or dur in it", ascii(value)[:40])

    def _paired(self, rows: Rows) -> Iterator[_Interval]:
        """Pair starts with ends, and yield the resulting intervals in the order of their starts.

        An end closes the most recent open interval on its thread. If two intervals have the same times, the first one
        is treated as the outer one.
        """
        open_starts = ends_alone = 0
        for events in self._ends.values():
            events.sort(key=lambda event: event[0])  # in file order if times are equal
            started: list[_Interval] = []
            stack: list[int] = []
            for time, start in events:
                if start is not None:
                    stack.append(len(started))
                    started.append(start)
                elif stack:
                    place = stack.pop()
                    started[place] = started[place]._replace(duration=time - started[place].start)
                else:
                    ends_alone += 1
            open_starts += len(stack)
            yield from started
        if open_starts:
            rows.caveats.append(f"Events without an end (treated as taking no time): {open_starts:,}.")
        if ends_alone:
            rows.caveats.append(f"Ends of events without a start (left out): {ends_alone:,}.")

    def _believed(self, intervals: list[_Interval], rows: Rows) -> list[_Interval]:
        """Set the durations of impossibly long intervals to zero."""
        starts = [one.start for one in intervals]
        most = max(_DAY_NS, _TIMES * (max(starts) - min(starts))) if starts else 0
        absurd = [one for one in intervals if one.duration > most]
        if not absurd:
            return intervals
        longest = duration(max(one.duration for one in absurd) / 1e6)
        names = ", ".join(dict.fromkeys(ascii(one.name)[1:-1][:60] for one in absurd[:3]))
        rows.caveats.append(
            f"Events with impossible durations of up to {longest} (treated as taking no time): "
            f"{len(absurd):,} ({names})."
        )
        return [one._replace(duration=0) if one.duration > most else one for one in intervals]

    def trace(self, rows: Rows) -> TraceColumns:
        """Return the columns of all events."""
        intervals = self._believed([*chain(self._whole, self._paired(rows))], rows)
        rows.process_names, rows.thread_names = self._processes, self._threads
        lines: defaultdict[int, set[str]] = defaultdict(set)
        for (process, _), line in self._threads.items():
            lines[process].add(line)
        planes = {
            process: XlaPlane(rows, name, process, lines[process])
            for process, name in self._processes.items()
            if is_plane(name)
        }
        for one in intervals:
            if plane := planes.get(one.process):
                line = self._threads.get((one.process, one.thread), "")
                plane.add(line, one.thread, one.name, one.start, one.duration, one.args)
            else:
                rows.add(one.name, OPS[0], *one[:2], one.process, one.thread)
        add_device_steps(rows, list(planes.values()))
        if planes:
            rows.caveats += CAVEATS
        if self._not_shown:
            rows.caveats.append(f"Instants, counters and asynchronous events (not shown): {self._not_shown:,}.")
        trace = rows.columns(negative_durations=self._negative)
        unit_ns = resolution(trace.start_ns, trace.duration_ns) if len(trace) else 1
        return replace(trace, unit_ns=unit_ns)


def _args(given: Raw) -> dict[str, Stat]:
    """Return the arguments that perfnb uses, if they are numbers or text."""
    found: dict[str, Stat] = {}
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        if (text := bytes(given)).startswith(b"{"):
            args = _ARGS.decode(text)
            for key, raw in zip(_ForeignArgs.__struct_fields__, msgspec.structs.astuple(args), strict=True):
                if raw is not NO_TEXT and (value := bytes(raw)).startswith(_SIMPLE):
                    decoded = msgspec.json.decode(value)
                    if isinstance(decoded, int | str):
                        found[key] = decoded
    return found or _NO_ARGS


def _recognise(path: Path, head: bytes) -> bool:
    """Accept JSON with events, unless any visible event comes from torch.profiler."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] not in (b"{", b"[") or not _EVENT.search(text) or _TORCHS_KEYS.search(text):
        return False
    return not any(name.decode("utf-8", "replace") in _TORCHS for name in _CATEGORY.findall(text))


READER = Reader(
    (".json", ".json.gz"),
    _recognise,
    read,
    ("This trace was not written by torch.profiler, so the events that it names are treated as ops.",),
)
