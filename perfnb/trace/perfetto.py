"""Read Perfetto traces (``.pftrace``), written by torch's CUPTI backend, rocprofv3 or Perfetto itself.

A file is a list of packets. They describe tracks with their processes and threads, strings to which later packets refer
by number, and the starts and ends of slices. Packets are not in chronological order, so starts and ends are paired by
time within each track.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import msgspec

from perfnb.errors import TraceError
from perfnb.trace.chrome_json import Args
from perfnb.trace.columns import MISSING, TraceColumns
from perfnb.trace.kineto import DERIVED, INSTANT, WRITTEN
from perfnb.trace.protobuf import BYTES, Damaged, double, facts_of, fields, signed, spans, text, varint
from perfnb.trace.rows import Rows
from perfnb.trace.trace_file import MAX_DEPTH, MOST_TEXT, Limits, OnProgress, Reader, cut, too_deep, whole_file
from perfnb.trace_names import CALLS, COPIES, KERNELS, OPS

#: The numbers of the fields of a packet,
_TIME, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _CLEARED, _CLOCK, _DEFAULTS, _TRACK = 8, 10, 11, 12, 13, 41, 58, 59, 60
_COMPRESSED = 50
#: the other fields of a packet, which identify a file as a trace,
_KNOWN = {_TIME, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _CLEARED, _CLOCK, _DEFAULTS, _TRACK, 6, 33, 36, 42}
#: and the fields of interned texts.
_CATEGORIES, _NAMES, _ARGUMENTS, _STRINGS = 1, 2, 3, 29
_BEGIN, _END = 1, 2
#: Clocks with at least this number belong to a single sequence and are incremental.
_OWN_CLOCKS = 64
_MOST_PARENTS = 100
_UNSIGNED_MINUS_ONE = 2**32 - 1
#: perfnb's names for rocprofv3's categories.
_WORDS = {
    "kernel_dispatch": KERNELS[0],
    "memory_copy": COPIES[0],
    **dict.fromkeys(("hip_runtime_api", "hip_api", "hsa_api", "hip_compiler_api"), CALLS[0]),
}
_SKIPPED = {"Trace", INSTANT, DERIVED}
#: The columns of numbers and texts, by the fields of `Args` and by the names of arguments in Chrome traces.
_NUMBERS = {
    **{name: name for name in ("device", "stream", "correlation", "sequence", "forward_thread", "external_id")},
    **{name: name for name in ("python_id", "python_parent", "wait_stream", "wait_correlation")},
    **{"old_external_id": "external_id", "moved_bytes": "bytes"},
}
_TEXTS = {"shapes": "shapes", "old_shapes": "shapes", "collective": "collective", "group": "group", "ranks": "ranks"}
_COLUMNS = {
    field.encode_name: (_NUMBERS | _TEXTS)[field.name]
    for field in msgspec.structs.fields(Args)
    if field.name in _NUMBERS | _TEXTS
}


def read(path: Path, limits: Limits, progress: OnProgress | None = None) -> TraceColumns:
    """Read a file. This raises the same errors as `perfnb.trace.kineto.read`."""
    limits = limits.whole()
    data = whole_file(path, limits, progress)
    trace, place = _Trace(str(path), limits), 0
    try:
        for field, kind, start, end in spans(data, 0, len(data)):
            if field == 1 and kind == BYTES:
                place = start
                trace.add(memoryview(data)[start:end])
        return trace.columns()
    except Damaged as error:
        why = f"{error} (in or after the packet at byte {place:,})"
        raise TraceError(f"{path} is not a Perfetto trace that perfnb can read: {why}; record it again.") from error


class _Sequence:
    """The state of a sequence of packets: its texts by field and number, its track and its clock."""

    def __init__(self) -> None:
        self.texts: defaultdict[int, dict[int, str]] = defaultdict(dict)
        self.track = self.clock = 0

    def text(self, field: int, number: int | memoryview) -> str:
        """Return an interned text, or an empty string if it is unknown."""
        return self.texts[field].get(signed(number), "")


class _Track(NamedTuple):
    """The process and thread of a track's slices."""

    name: str = ""
    parent: int = 0
    process: int | None = None
    thread: int | None = None


class _Slice(NamedTuple):
    time: int
    name: str
    category: str
    arguments: dict[str, int]


_NO_ARGUMENTS: dict[str, int] = {}


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

    def add(self, data: memoryview) -> None:
        """Add a packet."""
        packet = facts_of(data)
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
            sequence.texts.clear()
        if isinstance(part := packet.get(_INTERNED), memoryview):
            self._intern(part, sequence)
        if isinstance(part := packet.get(_DEFAULTS), memoryview):
            defaults = facts_of(part)
            sequence.clock = signed(defaults.get(_CLOCK, sequence.clock))
            if isinstance(event := defaults.get(_EVENT), memoryview):
                sequence.track = signed(facts_of(event).get(11, 0))
        if isinstance(part := packet.get(_TRACK), memoryview):
            self._describe(part)
        if isinstance(part := packet.get(_EVENT), memoryview):
            self._take(part, packet, sequence)

    def _intern(self, data: memoryview, sequence: _Sequence) -> None:
        for field, value in fields(data):
            if field in (_CATEGORIES, _NAMES, _ARGUMENTS, _STRINGS) and isinstance(value, memoryview):
                self._kept.add()
                entry = facts_of(value)
                sequence.texts[field][signed(entry.get(1, 0))] = text(entry.get(2, b""))

    def _describe(self, data: memoryview) -> None:
        self._kept.add(2)
        facts = facts_of(data)
        name = next((text(facts[key]) for key in (2, 10, 13) if key in facts), "")
        process = thread = None
        if isinstance(part := facts.get(3), memoryview):
            own = facts_of(part)  # never the command line in it
            process = signed(own.get(1, 0))
            self._rows.process_names[process] = text(own.get(6, b"")) or name
        if isinstance(part := facts.get(4), memoryview):
            own = facts_of(part)
            process, thread = signed(own.get(1, 0)), signed(own.get(2, 0))
            self._rows.thread_names[process, thread] = text(own.get(5, b"")) or name
        self._tracks[signed(facts.get(1, 0))] = _Track(name, signed(facts.get(5, 0)), process, thread)

    def _take(self, data: memoryview, packet: dict[int, int | memoryview], sequence: _Sequence) -> None:
        """Store the start or end of a slice."""
        if (signed(packet.get(_CLOCK, 0)) or sequence.clock) >= _OWN_CLOCKS:
            raise TraceError(
                f"{self._source} cannot be read as a trace: it uses incremental timestamps, as Chrome does; convert it "
                "with traceconv json first."
            )
        event, category, annotations = dict[int, int | memoryview](), "", list[memoryview]()
        for field, value in fields(data):
            if field == 4 and isinstance(value, memoryview):
                annotations.append(value)
            elif field in (3, 22):  # if there are several categories, the first one counts
                category = category or (text(value) if field == 22 else sequence.text(_CATEGORIES, value))
            else:
                event[field] = value
        kind, track, time = signed(event.get(9, 0)), signed(event.get(11, sequence.track)), signed(packet.get(_TIME, 0))
        if kind == _BEGIN:
            name = text(event[23]) if 23 in event else sequence.text(_NAMES, event.get(10, 0))
            arguments = self._arguments(annotations, sequence) or _NO_ARGUMENTS
            self._kept.add(1 + len(arguments) + (track not in self._begins))
            self._begins[track].append(_Slice(time, name, category, arguments))
        elif kind == _END:
            self._kept.add(1 + (track not in self._ends))
            self._ends[track].append(time)
        else:
            self._other += 1

    def _arguments(self, annotations: list[memoryview], sequence: _Sequence) -> dict[str, int]:
        """Return an event's columns from its annotations. If a column has several values, the first one is used."""
        columns, words = dict[str, int](), dict[str, str]()
        for annotation in annotations:
            facts = facts_of(annotation)
            name = text(facts[10]) if 10 in facts else sequence.text(_ARGUMENTS, facts.get(1, 0))
            if (column := _COLUMNS.get(name)) is None:
                continue
            value = self._value(annotation, sequence, 1)
            if column in _TEXTS:
                words[column] = words.get(column) or str(value)
            elif isinstance(value, int) and value != _UNSIGNED_MINUS_ONE:
                columns.setdefault(column, value)
        words["group"] = f"{words.get('group', '')} {words.pop('ranks', '')}".strip()
        return columns | {column: self._rows.code(column, word) for column, word in words.items() if word}

    def _value(self, annotation: memoryview, sequence: _Sequence, depth: int) -> int | float | str:
        """Return an annotation's value.

        An array is returned as text, which is truncated if it is too long. Dictionaries have no value.
        """
        if depth > MAX_DEPTH:
            raise too_deep(self._source)
        parts, left = list[str](), MOST_TEXT
        value: int | float | str = ""
        for field, given in fields(annotation):
            if field == 12 and isinstance(given, memoryview):
                self._kept.add()
                inner = self._value(given, sequence, depth + 1)
                if left >= 0:  # the rest would be truncated anyway, and may refer to the same long text many times
                    parts.append(str(inner))
                    left -= len(parts[-1]) + len(", ")
            elif isinstance(given, memoryview):
                value = text(given) if field in (6, 9) else value
            elif field == 2:
                value = bool(given)
            elif field in (3, 7):
                value = given
            elif field == 4:
                value = signed(given)
            elif field == 5:
                value = double(given)
            elif field == 17:
                value = sequence.text(_STRINGS, given)
        return cut(f"[{', '.join(parts)}]") if parts else value

    def columns(self) -> TraceColumns:
        """Return the columns of all slices."""
        rows, never_ended, never_started = self._rows, 0, 0
        for order, uuid in enumerate(list(self._begins)):
            process, thread = self._place(uuid, -2 - order)
            paired, alone = _pairs(self._begins.pop(uuid), self._ends.pop(uuid, []))
            never_started += alone
            for (time, name, word, arguments), end in paired:
                never_ended += end is None
                if word not in _SKIPPED:
                    category = _WORDS.get(word, word if word in WRITTEN else OPS[0])
                    lasts = 0 if end is None else end - time
                    rows.add(name or "(no name)", category, time, lasts, process, thread, **arguments)
        never_started += sum(map(len, self._ends.values()))
        for count, what in (
            (never_ended, "Slices without an end (treated as taking no time)"),
            (never_started, "Ends of slices without a start (left out)"),
            (self._other, "Instants and counters (not shown)"),
        ):
            if count:
                rows.caveats.append(f"{what}: {count:,}.")
        return rows.columns()

    def _place(self, uuid: int, unknown: int) -> tuple[int, int]:
        """Return a track's process and thread. If they are unknown, those of an enclosing track are returned."""
        own = track = self._tracks.get(uuid, _Track())
        for _ in range(_MOST_PARENTS):
            if track.process is not None or track.parent not in self._tracks:
                break
            track = self._tracks[track.parent]
        process = MISSING if track.process is None else track.process
        if own.thread is None and own.name:
            self._rows.thread_names[process, unknown] = own.name
        return process, unknown if own.thread is None else own.thread


def _pairs(begins: list[_Slice], ends: list[int]) -> tuple[list[tuple[_Slice, int | None]], int]:
    """Return a track's slices with their ends (`None` if they have none), and the number of ends without a start.

    If times are equal, an end comes before a start. The exception is the end of a slice that takes no time.
    """
    begins.sort(key=lambda begin: begin.time)
    ends.sort()
    paired: list[tuple[_Slice, int | None]] = []
    stack: list[_Slice] = []
    alone, place = 0, 0
    for end in ends:
        while place < len(begins) and (begins[place].time < end or (not stack and begins[place].time == end)):
            stack.append(begins[place])
            place += 1
        if stack:
            paired.append((stack.pop(), end))
        else:
            alone += 1
    return [*paired, *((begin, None) for begin in (*stack, *begins[place:]))], alone


def _recognise(path: Path, head: bytes) -> bool:
    """Accept a list of packets if all packets in the head are of known types."""
    inside, end = set[int](), 0
    try:
        length, start = varint(head, 1, len(head))
        end = start + length
        for field, *_ in spans(head, start, min(end, len(head))):
            inside.add(field)
    except Damaged:
        if end < len(head):
            return False
    return head.startswith(b"\x0a") and bool(inside & _KNOWN) and 1 not in inside


READER = Reader(
    (".pftrace", ".perfetto-trace", ".pftrace.gz"),
    _recognise,
    read,
    ("A Perfetto trace does not describe the GPUs, and it records memory only as instants, which are not shown.",),
)
