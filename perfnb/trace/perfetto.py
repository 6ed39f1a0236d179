"""Perfetto traces (``.pftrace``), as torch's CUPTI backend, rocprofv3 and Perfetto itself write them.

A file is a list of packets: tracks with their processes and threads, strings that later packets name by number, and
starts and ends of slices. Packets are not in order of time; within a track, starts and ends are paired by time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from perfnb.errors import TraceError
from perfnb.trace.chrome_json import Args
from perfnb.trace.columns import MISSING, TraceColumns
from perfnb.trace.kineto import DERIVED, INSTANT, WRITTEN
from perfnb.trace.protobuf import BYTES, Buffer, Damaged, double, facts_of, fields, signed, spans, text, varint
from perfnb.trace.rows import Rows
from perfnb.trace.trace_file import MAX_DEPTH, MOST_TEXT, Limits, OnProgress, Reader, cut, too_deep, whole_file
from perfnb.trace_names import CALLS, COPIES, KERNELS, OPS

#: Numbers of fields: of a packet,
_TIME, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _CLEARED, _CLOCK, _DEFAULTS, _TRACK = 8, 10, 11, 12, 13, 41, 58, 59, 60
_COMPRESSED = 50
#: and what a packet may be besides, by which a file is recognised.
_KNOWN = {_TIME, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _CLEARED, _CLOCK, _DEFAULTS, _TRACK, 6, 33, 36, 42}
_BEGIN, _END = 1, 2
#: Clocks from this number on are a sequence's own and count in steps.
_OWN_CLOCKS = 64
_MOST_PARENTS = 100
_UNSIGNED_MINUS_ONE = 2**32 - 1
#: Categories of rocprofv3 in perfnb's words.
_WORDS = {
    "kernel_dispatch": KERNELS[0],
    "memory_copy": COPIES[0],
    **dict.fromkeys(("hip_runtime_api", "hip_api", "hsa_api", "hip_compiler_api"), CALLS[0]),
}
_SKIPPED = {"Trace", INSTANT, DERIVED}
#: Arguments by their names in Chrome traces.
_ARGUMENTS = {each.encode_name: each.name for each in msgspec.structs.fields(Args)}
_NUMBERS = {
    **{name: name for name in ("device", "stream", "correlation", "sequence", "forward_thread", "external_id")},
    **{name: name for name in ("python_id", "python_parent", "wait_stream", "wait_correlation")},
    **{"old_external_id": "external_id", "moved_bytes": "bytes"},
}
_TEXTS = {"shapes": "shapes", "old_shapes": "shapes", "collective": "collective"}
_GROUPS = ("group", "ranks")
_USED = {*_NUMBERS, *_TEXTS, *_GROUPS}


def read(path: Path, limits: Limits, progress: OnProgress | None = None) -> TraceColumns:
    """Read a file; errors as `perfnb.trace.kineto.read`."""
    limits = limits.whole()
    data = whole_file(path, limits, progress)
    trace, place = _Trace(str(path), limits), 0
    try:
        for field_, kind, start, end in spans(data, 0, len(data)):
            if field_ == 1 and kind == BYTES:
                place = start
                trace.add(data, start, end)
        return trace.columns()
    except Damaged as error:
        why = f"{error} (in or after the packet at byte {place:,})"
        raise TraceError(f"{path} is not a Perfetto trace that perfnb can read: {why}; record it again.") from error


@dataclass
class _Sequence:
    """What a sequence of packets has told so far."""

    categories: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    track: int = 0
    clock: int = 0

    def clear(self) -> None:
        for texts in (self.categories, self.names, self.arguments, self.strings):
            texts.clear()


@dataclass(slots=True)
class _Track:
    """Where the slices of a track are."""

    name: str = ""
    parent: int = 0
    process: int | None = None
    thread: int | None = None


_NO_ARGUMENTS: dict[str, int] = {}


@dataclass(slots=True)
class _Slice:
    time: int
    name: str = ""
    category: str = ""
    arguments: dict[str, int] = field(default_factory=lambda: _NO_ARGUMENTS)


class _Trace:
    def __init__(self, source: str, limits: Limits) -> None:
        self._rows = Rows(source, limits)
        self._source = source
        self._kept = self._rows.kept
        self._sequences: defaultdict[int, _Sequence] = defaultdict(_Sequence)
        self._tracks: dict[int, _Track] = {}
        self._begins: defaultdict[int, list[_Slice]] = defaultdict(list)
        self._ends: defaultdict[int, list[int]] = defaultdict(list)
        self._other = 0

    def add(self, data: Buffer, start: int, end: int) -> None:
        """Add a packet."""
        packet = facts_of(memoryview(data)[start:end])
        if _COMPRESSED in packet:
            raise TraceError(
                f"{self._source} cannot be read as a trace: its packets are compressed; unpack them first with "
                "traceconv decompress_packets."
            )
        number = signed(packet.get(_SEQUENCE, 0))
        if number not in self._sequences:
            self._kept.add(4)
        sequence = self._sequences[number]
        if signed(packet.get(_FLAGS, 0)) & 1 or packet.get(_CLEARED):
            sequence.clear()
        if isinstance(part := packet.get(_INTERNED), memoryview):
            self._intern(part, sequence)
        if isinstance(part := packet.get(_DEFAULTS), memoryview):
            self._set_defaults(part, sequence)
        if isinstance(part := packet.get(_TRACK), memoryview):
            self._describe(part)
        if isinstance(part := packet.get(_EVENT), memoryview):
            self._take(part, packet, sequence)

    def _intern(self, data: memoryview, sequence: _Sequence) -> None:
        known = {1: sequence.categories, 2: sequence.names, 3: sequence.arguments, 29: sequence.strings}
        for field_, value in fields(data):
            if field_ in known and isinstance(value, memoryview):
                self._kept.add()
                entry = facts_of(value)
                known[field_][signed(entry.get(1, 0))] = text(entry.get(2, b""))

    @staticmethod
    def _set_defaults(data: memoryview, sequence: _Sequence) -> None:
        for field_, value in fields(data):
            if field_ == _CLOCK and isinstance(value, int):
                sequence.clock = value
            elif field_ == _EVENT and isinstance(value, memoryview):
                sequence.track = signed(facts_of(value).get(11, 0))

    def _describe(self, data: memoryview) -> None:
        self._kept.add(2)
        facts = facts_of(data)
        track = _Track(next((text(facts[key]) for key in (2, 10, 13) if key in facts), ""), signed(facts.get(5, 0)))
        if isinstance(process := facts.get(3), memoryview):
            told = facts_of(process)  # never the command line in it
            track.process = signed(told.get(1, 0))
            self._rows.process_names[track.process] = text(told.get(6, b"")) or track.name
        if isinstance(thread := facts.get(4), memoryview):
            told = facts_of(thread)
            track.process, track.thread = signed(told.get(1, 0)), signed(told.get(2, 0))
            self._rows.thread_names[track.process, track.thread] = text(told.get(5, b"")) or track.name
        self._tracks[signed(facts.get(1, 0))] = track

    def _take(self, data: memoryview, packet: dict[int, int | memoryview], sequence: _Sequence) -> None:
        """Keep the start or end of a slice."""
        if (signed(packet.get(_CLOCK, 0)) or sequence.clock) >= _OWN_CLOCKS:
            raise TraceError(
                f"{self._source} cannot be read as a trace: its times count from one packet to the next, as Chrome "
                "writes them; convert it with traceconv json first."
            )
        kind, track, one = 0, sequence.track, _Slice(signed(packet.get(_TIME, 0)))
        arguments: list[memoryview] = []
        for field_, value in fields(data):
            if field_ == 9:
                kind = signed(value)
            elif field_ == 11:
                track = signed(value)
            elif field_ == 10:
                one.name = sequence.names.get(signed(value), "")
            elif field_ == 23:
                one.name = text(value)
            elif field_ == 3:
                one.category = one.category or sequence.categories.get(signed(value), "")
            elif field_ == 22:
                one.category = one.category or text(value)
            elif field_ == 4 and isinstance(value, memoryview):
                arguments.append(value)
        if kind == _BEGIN:
            if arguments:
                one.arguments = self._arguments(arguments, sequence) or _NO_ARGUMENTS
            self._kept.add(1 + len(one.arguments) + (track not in self._begins))
            self._begins[track].append(one)
        elif kind == _END:
            self._kept.add(1 + (track not in self._ends))
            self._ends[track].append(one.time)
        else:
            self._other += 1

    def _arguments(self, annotations: list[memoryview], sequence: _Sequence) -> dict[str, int]:
        """Columns of an event, from its annotations."""
        found: dict[str, int] = {}
        group: dict[str, str] = {}
        for annotation in annotations:
            facts = facts_of(annotation)
            name = text(facts[10]) if 10 in facts else sequence.arguments.get(signed(facts.get(1, 0)), "")
            key = _ARGUMENTS.get(name, "")
            value = self._value(annotation, sequence, 1) if key in _USED else None
            if key in _NUMBERS and isinstance(value, int):
                if value != _UNSIGNED_MINUS_ONE:
                    found.setdefault(_NUMBERS[key], value)
            elif key in _TEXTS and (words := _spelt(value)):
                found.setdefault(_TEXTS[key], self._rows.code(_TEXTS[key], words))
            elif key in _GROUPS:
                group[key] = _spelt(value)
        if whole := f"{group.get('group', '')} {group.get('ranks', '')}".strip():
            found["group"] = self._rows.code("group", whole)
        return found

    def _value(self, annotation: memoryview, sequence: _Sequence, depth: int) -> Any:
        """Value of an annotation; dictionaries have none."""
        if depth > MAX_DEPTH:
            raise too_deep(self._source)
        array = list[Any]()
        value: Any = None
        for field_, given in fields(annotation):
            if isinstance(given, memoryview):
                if field_ in (6, 9):
                    value = text(given)
                elif field_ == 12:
                    self._kept.add()
                    array.append(self._value(given, sequence, depth + 1))
            elif field_ == 2:
                value = bool(given)
            elif field_ in (3, 7):
                value = given
            elif field_ == 4:
                value = signed(given)
            elif field_ == 5:
                value = double(given)
            elif field_ == 17:
                value = sequence.strings.get(signed(given), "")
        return array or value

    def columns(self) -> TraceColumns:
        """Return the columns of all slices."""
        rows, never_ended, never_started = self._rows, 0, 0
        for order, uuid in enumerate(list(self._begins)):
            process, thread = self._place(uuid, -2 - order)
            paired, alone = _pairs(self._begins.pop(uuid), self._ends.pop(uuid, []))
            never_started += alone
            for one, end in paired:
                never_ended += end is None
                if one.category in _SKIPPED:
                    continue
                category = _WORDS.get(one.category, one.category)
                if category not in WRITTEN:
                    category = OPS[0]
                last = one.time if end is None else end
                rows.add(one.name or "(no name)", category, one.time, last - one.time, process, thread, **one.arguments)
        never_started += sum(map(len, self._ends.values()))
        for count, what in (
            (never_ended, "Slices that start and never end, and count as taking no time"),
            (never_started, "Ends of slices that never start, left out"),
            (self._other, "Instants and counters, not shown"),
        ):
            if count:
                rows.caveats.append(f"{what}: {count:,}.")
        return rows.columns()

    def _place(self, uuid: int, unknown: int) -> tuple[int, int]:
        """Process and thread of a track: its own, or those of a track around it."""
        track = self._tracks.get(uuid, _Track())
        thread = track.thread
        for _ in range(_MOST_PARENTS):
            if track.process is not None or track.parent not in self._tracks:
                break
            track = self._tracks[track.parent]
        process = MISSING if track.process is None else track.process
        if thread is None:
            thread = unknown
            if name := self._tracks.get(uuid, _Track()).name:
                self._rows.thread_names[process, thread] = name
        return process, thread


def _pairs(begins: list[_Slice], ends: list[int]) -> tuple[list[tuple[_Slice, int | None]], int]:
    """Slices of a track with their ends, `None` if they have none; and the number of ends of nothing.

    At equal times an end comes before a start, except that of a slice that takes no time.
    """
    begins.sort(key=lambda one: one.time)
    ends.sort()
    found: list[tuple[_Slice, int | None]] = []
    stack: list[_Slice] = []
    alone, place = 0, 0
    for end in ends:
        while place < len(begins) and (begins[place].time < end or (not stack and begins[place].time == end)):
            stack.append(begins[place])
            place += 1
        if stack:
            found.append((stack.pop(), end))
        else:
            alone += 1
    found += [(one, None) for one in (*stack, *begins[place:])]
    return found, alone


def _spelt(value: Any) -> str:
    """The text of an annotation, as it stands in a Chrome trace, cut if it is too long."""
    if isinstance(value, list):
        parts, left = list[str](), MOST_TEXT
        for one in value:
            if left < 0:
                break  # what follows would be cut anyway, and may refer to the same long text again and again
            parts.append(_spelt(one))
            left -= len(parts[-1]) + len(", ")
        return cut(f"[{', '.join(parts)}]")
    return "" if value is None else str(value)


def _recognise(path: Path, head: bytes) -> bool:
    """Accept a list of packets: what the first of them hold is known."""
    place, packets = 0, 0
    try:
        while place < len(head) and packets < 3 and head[place] == 0x0A:
            length, start = varint(head, place + 1, len(head))
            if start + length > len(head) and packets:
                break
            found = set[int]()
            for field_, *_ in _fields_so_far(head, start, min(start + length, len(head))):
                found.add(field_)
            if not found & _KNOWN or 1 in found:
                return False
            place, packets = start + length, packets + 1
    except Damaged:
        return False
    return packets > 0


def _fields_so_far(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message that may be cut off at the end of the data."""
    try:
        yield from spans(data, start, end)
    except Damaged:
        if end < len(data):
            raise


READER = Reader(
    "Perfetto traces (.pftrace)",
    (".pftrace", ".perfetto-trace", ".pftrace.gz"),
    _recognise,
    read,
    ("A Perfetto trace does not describe the GPUs, and marks memory only as instants, which are not shown.",),
)
