"""XSpace files (``*.xplane.pb``), which JAX, TensorFlow and PyTorch/XLA write: planes of lines of events.

Times are picoseconds from their line's start, and lines of one file start at different times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfnb.errors import TraceError
from perfnb.trace.columns import TraceColumns
from perfnb.trace.protobuf import BYTES, VARINT, Buffer, Damaged, facts_of, signed, spans, text, varint
from perfnb.trace.rows import FAR_NS, Rows
from perfnb.trace.trace_file import Kept, Limits, OnProgress, Reader, whole_file
from perfnb.trace.xla import CAVEATS, STATS, Stat, XlaPlane, add_device_steps, framework_op, number_of

#: Statistics that are remembered, and the longest of them: most are the same in many events.
_MOST_SEEN, _LONGEST_SEEN = 50_000, 256
#: Names of planes start so.
_NAMES = ("/host:", "/device:", "Task Environment", "#Chip")
_METADATA, _ENVIRONMENT = "/host:metadata", "Task Environment"
_START = "profile_start_time"
#: Statistics of a plane that are used, and their names among a device's facts in other formats.
_OF_DEVICE = {"totalGlobalMem": "memory_size", "numSms": "core_count"}
_OF_PLANE = frozenset({_START, "device_vendor", *_OF_DEVICE.values()})

#: Where something starts and ends.
Place = tuple[int, int]
#: By module and op, the path of an op of JAX or TensorFlow.
Paths = dict[tuple[str, str], str]


def read(path: Path, limits: Limits, progress: OnProgress | None = None) -> TraceColumns:
    """Read a file; errors as `perfnb.trace.kineto.read`."""
    limits = limits.whole()
    data = whole_file(path, limits, progress)
    try:
        return _trace(data, Rows(str(path), limits))
    except Damaged as error:
        raise TraceError(f"{path} is not an XSpace file that perfnb can read: {error}; record it again.") from error


def _trace(data: Buffer, rows: Rows) -> TraceColumns:
    planes, places, base = list[XlaPlane](), list[Place](), 0
    for place in _messages(data, 0, len(data), 1):
        rows.kept.add(4)  # with its name and its part in the rows
        places.append(place)
    names = [_text_at(data, *place, 2) for place in places]
    paths: Paths = {}
    for name, place in zip(names, places, strict=True):
        if name == _METADATA:
            _add_paths(data, *place, paths, rows.kept)
    for number, (name, place) in enumerate(zip(names, places, strict=True)):
        try:
            base = _plane(data, place, name, rows, number, planes, paths) or base
        except Damaged as error:
            raise Damaged(f"{error} (in the plane at byte {place[0]:,})") from error
    add_device_steps(rows, planes)
    return rows.columns(base)


def _add_paths(data: Buffer, start: int, end: int, paths: Paths, kept: Kept) -> None:
    """Add the paths of the ops of every compiled module: its HLO is beside the events."""
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
    """Places of the messages in a field, or of its texts."""
    return ((a, b) for field, kind, a, b in spans(data, start, end) if field == wanted and kind == BYTES)


def _plane(data: Buffer, place: Place, name: str, rows: Rows, number: int, planes: list[XlaPlane], paths: Paths) -> int:
    """Add the events of a plane; return the time at which the profile started, if the plane says so."""
    if name == _METADATA:
        return 0
    stat_names = dict[int, str]()
    for key, entry in _entries(data, place, 5, rows.kept):
        stat_names[key] = text(facts_of(entry).get(2, b""))
    own = dict[str, Stat]()
    wanted = {key: stat for key, stat in stat_names.items() if stat in _OF_PLANE}
    for a, b in _messages(data, *place, 6):
        _stat(data, a, b, wanted, stat_names, own)
    if name == _ENVIRONMENT:
        begun = number_of(own.get(_START))
        return begun if 0 < begun < FAR_NS else 0
    # Only what is used: the statistics of a kind are those of all its events.
    wanted = {key: stat for key, stat in stat_names.items() if stat in STATS}
    names, of_kinds = dict[int, str](), dict[int, dict[str, Stat]]()
    for key, entry in _entries(data, place, 4, rows.kept):
        names[key], stats = _kind(entry, wanted, stat_names)
        if stats:
            rows.kept.add(len(stats))
            of_kinds[key] = stats
    heads = list[tuple[int, str, int]]()
    for a, b in _messages(data, *place, 3):
        rows.kept.add(2)
        heads.append(_head_of_line(data, a, b))
    plane = XlaPlane(rows, name, number, [head[1] for head in heads])
    planes.append(plane)
    rows.process_names[number] = name
    if plane.device >= 0:
        rows.devices.setdefault(plane.device, _device(name, own))
    seen = dict[bytes, dict[str, Stat]]()
    for (thread, line, begin), where in zip(heads, _messages(data, *place, 3), strict=True):
        rows.thread_names[number, thread] = line
        for a, b in _messages(data, *where, 4):
            _event(data, a, b, plane, (line, thread, begin), names, of_kinds, wanted, stat_names, seen, paths)
    return 0


def _entries(data: Buffer, place: Place, field: int, kept: Kept) -> Iterator[tuple[int, Buffer]]:
    """Key and value of the entries of a map."""
    view = memoryview(data)
    for a, b in _messages(data, *place, field):
        entry = facts_of(view[a:b])
        value = entry.get(2, b"")
        if not isinstance(value, int):
            kept.add()
            yield signed(entry.get(1, 0)), value


def _kind(data: Buffer, wanted: dict[int, str], stat_names: dict[int, str]) -> tuple[str, dict[str, Stat]]:
    """Name of a kind of events, and the statistics that all of them have."""
    name, stats = "", dict[str, Stat]()
    for field, kind, a, b in spans(data, 0, len(data)):
        if kind == BYTES and field == 2:
            name = text(data[a:b])
        elif kind == BYTES and field == 5:
            _stat(data, a, b, wanted, stat_names, stats)
    return name, stats


def _head_of_line(data: Buffer, start: int, end: int) -> tuple[int, str, int]:
    """Number, name and start in nanoseconds of a line."""
    facts = facts_of(memoryview(data)[start:end])
    return signed(facts.get(1, 0)), text(facts.get(11, b"")) or text(facts.get(2, b"")), signed(facts.get(3, 0))


def _event(
    data: Buffer,
    start: int,
    end: int,
    plane: XlaPlane,
    line: tuple[str, int, int],
    names: dict[int, str],
    of_kinds: dict[int, dict[str, Stat]],
    wanted: dict[int, str],
    stat_names: dict[int, str],
    seen: dict[bytes, dict[str, Stat]],
    paths: Paths,
) -> None:
    kind = offset = duration = 0
    stats: dict[str, Stat] = {}
    for field, wire, a, b in spans(data, start, end):
        if wire == VARINT:
            if field == 1:
                kind = signed(a)
            elif field == 2:
                offset = signed(a)
            elif field == 3:
                duration = signed(a)
            elif field == 5:
                return  # a number of occurrences, not an event in time
        elif wire == BYTES and field == 4:
            if b - a > _LONGEST_SEEN:
                _stat(data, a, b, wanted, stat_names, stats)
                continue
            stat = bytes(data[a:b])
            known = seen.get(stat)
            if known is None:
                known = {}
                _stat(stat, 0, len(stat), wanted, stat_names, known)
                if len(seen) < _MOST_SEEN:
                    seen[stat] = known
            stats.update(known)
    if common := of_kinds.get(kind):
        stats = {**common, **stats}
    if paths and (op := stats.get("hlo_op")) and not framework_op(stats):
        stats["name"] = paths.get((str(stats.get("hlo_module", "")), str(op)), "")
    name, thread, begin = line
    # Both ends are rounded down, so that what nests in picoseconds nests in nanoseconds.
    first = begin + offset // 1000
    last = begin + (offset + duration) // 1000
    plane.add(name, thread, names.get(kind, f"event {kind}"), first, max(last - first, 0), stats)


def _stat(
    data: Buffer, start: int, end: int, wanted: dict[int, str], names: dict[int, str], stats: dict[str, Stat]
) -> None:
    """Add a statistic if it is wanted; text may be the name of another statistic."""
    if end - start < 2 or data[start] != 8:  # its kind comes first in every known writer's files
        return
    kind, place = varint(data, start + 1, end)
    name = wanted.get(signed(kind))
    if name is None:
        return
    for field, wire, a, b in spans(data, place, end):
        if wire == VARINT:
            if field == 7:
                stats[name] = names.get(signed(a), "")
            elif field == 3:
                stats[name] = a
            elif field == 4:
                stats[name] = signed(a)
        elif wire == BYTES and field in (5, 6):
            stats[name] = text(data[a:b])


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
    """Accept a list of planes: the first field of the file is a message whose field 2 is the name of a plane."""
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


READER = Reader(
    "profiles of JAX and TensorFlow (XSpace, .xplane.pb)", (".xplane.pb", ".xplane.pb.gz"), _recognise, read, CAVEATS
)
