"""Write Chrome traces piece by piece.

The JSON has the same format as torch.profiler's, and can be opened in chrome://tracing and Perfetto.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfnb.trace.columns import MISSING, Ints

#: The number of events that are written together.
_CHUNK = 20_000
_GZIP, _LEVEL = 31, 6


class TextColumn(NamedTuple):
    """A column of text, consisting of the labels and a code for each event, which is -1 if the event has no text."""

    texts: Sequence[str]
    codes: Ints


class Json(NamedTuple):
    """A column like `TextColumn`, but for texts that are JSON values.

    Valid JSON is written unchanged. Anything else is written as a string.
    """

    texts: Sequence[str]
    codes: Ints


class Flow(NamedTuple):
    """The positions of arrow starts, arrow ends or instants. Each has a process, a thread and a time in nanoseconds."""

    process: Ints
    thread: Ints
    time_ns: Ints


Column = Ints | TextColumn | Json


def slices(
    name: TextColumn,
    category: TextColumn,
    start_ns: Ints,
    duration_ns: Ints,
    process: Ints,
    thread: Ints,
    args: Mapping[str, Column],
) -> Iterator[str]:
    """Write complete events (``ph: X``). Values of `args` are omitted from an event if they are -1."""
    for first in range(0, len(start_ns), _CHUNK):
        part = slice(first, first + _CHUNK)
        fields = zip(
            _written(name, part),
            _written(category, part),
            # A thread of -1 is written, as torch does, because viewers display events without a thread in arbitrary
            # places.
            _ids("pid", process[part], None),
            _ids("tid", thread[part], None),
            _microseconds(start_ns[part]),
            _microseconds(duration_ns[part]),
            _arguments(args, part, len(start_ns[part])),
            strict=True,
        )
        yield ",\n".join(
            f'{{"ph":"X","cat":{cat},"name":{word},{pid}{tid}"ts":{ts},"dur":{dur}{rest}}}'
            for word, cat, pid, tid, ts, dur, rest in fields
        )


def instants(name: str, category: str, places: Flow, args: Mapping[str, Column]) -> Iterator[str]:
    """Write events that have the same name and no duration (``ph: i``).

    Values of `args` are omitted from an event if they are -1.
    """
    words = f'"cat":{_text(category)},"name":{_text(name)}'
    for first in range(0, len(places.time_ns), _CHUNK):
        part = slice(first, first + _CHUNK)
        process, thread, times = (values[part] for values in places)
        told = _arguments(args, part, len(times))
        fields = zip(_ids("pid", process), _ids("tid", thread), _microseconds(times), told, strict=True)
        yield ",\n".join(f'{{"ph":"i","s":"t",{words},{pid}{tid}"ts":{ts}{rest}}}' for pid, tid, ts, rest in fields)


def flows(category: str, starts: Flow, ends: Flow, first: int = 1) -> Iterator[str]:
    """Write arrows that lead from events to later events (``ph: s`` and ``f``), numbered from `first`."""
    word = _text(category)
    numbers = range(first, first + len(starts.time_ns))
    for phase, (process, thread, times) in (('"ph":"s"', starts), ('"ph":"f","bp":"e"', ends)):
        fields = zip(numbers, _ids("pid", process), _ids("tid", thread), _microseconds(times), strict=True)
        lines = [f'{{{phase},"id":{n},"cat":{word},"name":{word},{pid}{tid}"ts":{ts}}}' for n, pid, tid, ts in fields]
        for at in range(0, len(lines), _CHUNK):
            yield ",\n".join(lines[at : at + _CHUNK])


def counter(name: str, process: int, times_ns: Ints, values: Ints, unit: str) -> Iterator[str]:
    """Write a curve (``ph: C``). Each value applies from its time until the time of the next value."""
    word, key = _text(name), _text(unit)
    fields = zip(_microseconds(times_ns), values.tolist(), strict=True)
    lines = [f'{{"ph":"C","name":{word},"pid":{process},"ts":{ts},"args":{{{key}:{value}}}}}' for ts, value in fields]
    if lines:
        yield ",\n".join(lines)


def process_name(process: int, name: str, place: int | None = None) -> Iterator[str]:
    """Write a process's name and its position among the processes."""
    yield _metadata("process_name", process, None, name=name)
    if place is not None:
        yield _metadata("process_sort_index", process, None, sort_index=place)


def process_labels(process: int, labels: str) -> Iterator[str]:
    """Write a description of a process in addition to its name."""
    yield _metadata("process_labels", process, None, labels=labels)


def thread_name(process: int, thread: int, name: str, place: int | None = None) -> Iterator[str]:
    """Write a thread's name and its position among the threads."""
    yield _metadata("thread_name", process, thread, name=name)
    if place is not None:
        yield _metadata("thread_sort_index", process, thread, sort_index=place)


def document(events: Iterable[str], facts: Mapping[str, Any]) -> Iterator[bytes]:
    """Write the whole file, which consists of the facts about the trace followed by its events."""
    head = msgspec.json.encode({"schemaVersion": 1, "displayTimeUnit": "ms", **facts})
    yield head[:-1] + b',"traceEvents":[\n'
    between = ""
    for text in events:
        yield f"{between}{text}".encode()
        between = ",\n"
    yield b"\n]}\n"


def gzipped(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Compress bytes as a gzip file that does not contain a file name or a time."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()


def _metadata(kind: str, process: int, thread: int | None, **args: Any) -> str:
    place = {"pid": process} if thread is None else {"pid": process, "tid": thread}
    return msgspec.json.encode({"ph": "M", "name": kind, **place, "args": args}).decode()


def _arguments(args: Mapping[str, Column], part: slice, count: int) -> list[str]:
    columns = []
    for name, column in args.items():
        key = _text(name)
        if not isinstance(column, np.ndarray):
            columns.append([f"{key}:{text}" if text else "" for text in _written(column, part)])
        elif ((values := column[part]) != MISSING).any():
            columns.append([f"{key}:{value}" if value != MISSING else "" for value in values.tolist()])
    columns = [column for column in columns if any(column)]
    if not columns:
        return [""] * count
    return [
        f',"args":{{{text}}}' if (text := ",".join(filter(None, row))) else "" for row in zip(*columns, strict=True)
    ]


def _written(column: TextColumn | Json, part: slice) -> list[str]:
    """Return each event's text as JSON, or an empty string if it has none. Each text is only encoded once per part."""
    used, place = np.unique(column.codes[part], return_inverse=True)
    encode = _json if isinstance(column, Json) else _text
    texts = ["" if code == MISSING else encode(column.texts[code]) for code in used.tolist()]
    return [texts[code] for code in place.tolist()]


def _text(text: str) -> str:
    return msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode()


def _json(text: str) -> str:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _text(text)
    return text if "\n" not in text else _text(text)


def _ids(key: str, values: Ints, left_out: int | None = MISSING) -> list[str]:
    return ["" if value == left_out else f'"{key}":{value},' for value in values.tolist()]


def _microseconds(times_ns: Ints) -> list[str]:
    """Format microseconds exactly, with three decimals."""
    whole, rest = np.divmod(np.abs(times_ns), 1000)
    signs = np.where(times_ns < 0, "-", "").tolist()
    return [f"{sign}{a}.{b:03d}" for sign, a, b in zip(signs, whole.tolist(), rest.tolist(), strict=True)]
