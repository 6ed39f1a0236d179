"""Read XSpace files (``*.xplane.pb``), which are written by JAX, TensorFlow and PyTorch/XLA.

A file contains planes, which consist of lines of events. Times are in picoseconds since the start of the line, and each
line starts at a different time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from perfnb.errors import TraceError
from perfnb.trace.columns import TraceColumns
from perfnb.trace.protobuf import BYTES, VARINT, Buffer, Damaged, facts_of, signed, spans, text, varint
from perfnb.trace.rows import FAR_NS, Rows
from perfnb.trace.trace_file import Kept, Limits, OnProgress, Reader, whole_file
from perfnb.trace.xla import CAVEATS, STATS, Stat, XlaPlane, add_device_steps, framework_op, number_of

#: The number of statistics that are cached. Many events have the same statistics.
_MOST_SEEN = 4_096
#: The prefixes of plane names.
_NAMES = ("/host:", "/device:", "Task Environment", "#Chip")
_METADATA, _ENVIRONMENT = "/host:metadata", "Task Environment"
_START = "profile_start_time"
#: The statistics of a plane that are used, by their names in the device descriptions of other formats.
_OF_DEVICE = {"totalGlobalMem": "memory_size", "numSms": "core_count"}
_USED = frozenset({_START, "device_vendor", *_OF_DEVICE.values(), *STATS})

#: The start and the end of a range of bytes.
Place = tuple[int, int]
#: The path of a JAX or TensorFlow op, by module and op.
Paths = dict[tuple[str, str], str]


def read(path: Path, limits: Limits, progress: OnProgress | None = None) -> TraceColumns:
    """Read a file. This raises the same errors as `perfnb.trace.kineto.read`."""
    limits = limits.whole()
    data = whole_file(path, limits, progress)
    try:
        return _trace(data, Rows(str(path), limits))
    except Damaged as error:
        raise TraceError(f"{path} is not an XSpace file that perfnb can read: {error}; record it again.") from error


def _trace(data: Buffer, rows: Rows) -> TraceColumns:
    planes, places, base = list[XlaPlane](), list[Place](), 0
    for place in _messages(data, 0, len(data), 1):
        rows.kept.add(4)  # with its name and the part that it adds to the rows
        places.append(place)
    names = [_text_at(data, *place, 2) for place in places]
    paths: Paths = {}
    for name, place in zip(names, places, strict=True):
        if name == _METADATA:
            _add_paths(data, *place, paths, rows.kept)
    for number, (name, place) in enumerate(zip(names, places, strict=True)):
        try:
            if name == _ENVIRONMENT:
                base = _PlaneReader(data, place, rows).began() or base
            elif name != _METADATA:
                planes.append(_PlaneReader(data, place, rows).add_events(name, number, paths))
        except Damaged as error:
            raise Damaged(f"{error} (in the plane at byte {place[0]:,})") from error
    add_device_steps(rows, planes)
    return rows.columns(base)


def _add_paths(data: Buffer, start: int, end: int, paths: Paths, kept: Kept) -> None:
    """Add the paths of the ops in all compiled modules. Their HLO is stored next to the events."""
    for entry in _messages(data, start, end, 4):
        for kind in _messages(data, *entry, 2):
            for stat in _messages(data, *kind, 5):
                for proto in _messages(data, *stat, 6):
                    for module in _messages(data, *proto, 1):
                        _add_paths_of_module(data, *module, paths, kept)


def _add_paths_of_module(data: Buffer, start: int, end: int, paths: Paths, kept: Kept) -> None:
    name = _text_at(data, start, end, 1)
    for computation in _messages(data, start, end, 3):
        for instruction in _messages(data, *computation, 2):
            path = next((_text_at(data, *about, 2) for about in _messages(data, *instruction, 7)), "")
            if "/" in path:
                kept.add(2)
                paths[name, _text_at(data, *instruction, 1)] = path


def _text_at(data: Buffer, start: int, end: int, wanted: int) -> str:
    return next((text(data[a:b]) for a, b in _messages(data, start, end, wanted)), "")


def _messages(data: Buffer, start: int, end: int, wanted: int) -> Iterator[Place]:
    """Yield the positions of a field's messages or texts."""
    return ((a, b) for field, kind, a, b in spans(data, start, end) if field == wanted and kind == BYTES)


class _PlaneReader:
    """Reads a plane. The names of its statistics and event types come first, followed by its lines and their events."""

    def __init__(self, data: Buffer, place: Place, rows: Rows) -> None:
        self._data, self._place, self._rows = data, place, rows
        self._names: dict[int, str] = {}
        for key, entry in self._entries(5):
            self._names[key] = text(facts_of(entry).get(2, b""))
        # A method would create a reference cycle, which would keep the data alive.
        self._stat = lru_cache(_MOST_SEEN)(partial(_stat, self._names))
        self._own = dict(filter(None, (self._stat(bytes(data[a:b])) for a, b in _messages(data, *place, 6))))

    def began(self) -> int:
        """Return the time when the profile started, in nanoseconds, or 0 if the plane does not record it."""
        begun = number_of(self._own.get(_START))
        return begun if 0 < begun < FAR_NS else 0

    def add_events(self, name: str, number: int, paths: Paths) -> XlaPlane:
        """Add the events in a plane."""
        data, rows = self._data, self._rows
        kinds = dict[int, tuple[str, dict[str, Stat]]]()
        for key, entry in self._entries(4):
            stats = dict(filter(None, (self._stat(bytes(entry[a:b])) for a, b in _messages(entry, 0, len(entry), 5))))
            rows.kept.add(len(stats))
            kinds[key] = _text_at(entry, 0, len(entry), 2), stats
        lines = list[tuple[int, str, int]]()
        for a, b in _messages(data, *self._place, 3):
            rows.kept.add(2)
            facts = facts_of(memoryview(data)[a:b])
            line = text(facts.get(11, b"")) or text(facts.get(2, b""))
            lines.append((signed(facts.get(1, 0)), line, signed(facts.get(3, 0))))
        plane = XlaPlane(rows, name, number, [line for _, line, _ in lines])
        rows.process_names[number] = name
        if plane.device >= 0:
            rows.devices.setdefault(plane.device, _device(name, self._own))
        for (thread, line, begin), place in zip(lines, _messages(data, *self._place, 3), strict=True):
            rows.thread_names[number, thread] = line
            for a, b in _messages(data, *place, 4):
                if (event := self._event(a, b)) is None:
                    continue
                kind, offset, duration, own = event
                word, common = kinds.get(kind, (f"event {kind}", {}))
                stats = {**common, **own}
                if paths and (op := stats.get("hlo_op")) and not framework_op(stats):
                    stats["name"] = paths.get((str(stats.get("hlo_module", "")), str(op)), "")
                # Both ends are rounded down to ensure that intervals that nest in picoseconds also nest in nanoseconds.
                first, last = begin + offset // 1000, begin + (offset + duration) // 1000
                plane.add(line, thread, word, first, max(last - first, 0), stats)
        return plane

    def _entries(self, field: int) -> Iterator[tuple[int, Buffer]]:
        """Yield the key and value of each entry in a map."""
        view = memoryview(self._data)
        for a, b in _messages(self._data, *self._place, field):
            entry = facts_of(view[a:b])
            value = entry.get(2, b"")
            if not isinstance(value, int):
                self._rows.kept.add()
                yield signed(entry.get(1, 0)), value

    def _event(self, start: int, end: int) -> tuple[int, int, int, dict[str, Stat]] | None:
        """Return an event's type, offset, duration and statistics, or ``None`` if it only counts occurrences."""
        kind = offset = duration = 0
        stats: dict[str, Stat] = {}
        for field, wire, a, b in spans(self._data, start, end):
            if wire == VARINT:
                if field == 1:
                    kind = signed(a)
                elif field == 2:
                    offset = signed(a)
                elif field == 3:
                    duration = signed(a)
                elif field == 5:
                    return None
            elif wire == BYTES and field == 4 and (stat := self._stat(bytes(self._data[a:b]))):
                stats[stat[0]] = stat[1]
        return kind, offset, duration, stats


def _stat(names: dict[int, str], data: bytes) -> tuple[str, Stat] | None:
    """Return a statistic's name, and its value if the statistic is used. Text may be the name of another statistic."""
    if len(data) < 2 or data[0] != 8:  # all known programs write its type first
        return None
    kind, place = varint(data, 1, len(data))
    name, value = names.get(signed(kind), ""), None
    if name not in _USED:
        return None
    for field, wire, a, b in spans(data, place, len(data)):
        if wire == VARINT and field in (3, 4, 7):
            value = a if field == 3 else signed(a) if field == 4 else names.get(signed(a), "")
        elif wire == BYTES and field in (5, 6):
            value = text(data[a:b])
    return None if value is None else (name, value)


def _device(plane: str, facts: dict[str, Stat]) -> dict[str, Any]:
    vendor = str(facts.get("device_vendor", ""))
    name = f"{vendor} {plane.rpartition('/')[2].removeprefix('device:').partition(':')[0]}".strip()
    known: dict[str, Any] = {"name": name}
    for key, stat in _OF_DEVICE.items():
        number = number_of(facts.get(stat))
        if number > 0:
            known[key] = number
    return known


def _recognise(path: Path, head: bytes) -> bool:
    """Accept a list of planes: the file's first field is a message, and field 2 of this message is a plane's name."""
    if not head.startswith(b"\x0a"):
        return False
    try:
        place = varint(head, 1, len(head))[1]
        for field, kind, a, b in spans(head, place, len(head)):
            if field == 2 and kind == BYTES:
                return text(head[a:b]).startswith(_NAMES)
            if field != 1 or kind != VARINT:
                return False
    except Damaged:
        pass
    return False


READER = Reader((".xplane.pb", ".xplane.pb.gz"), _recognise, read, CAVEATS)
