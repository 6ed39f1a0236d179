"""Write protocol buffers by hand, as lists of fields and values."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def message(*fields: tuple[int, Any]) -> bytes:
    """Return a message, with integers as varints, floats as doubles, and text and bytes with their length."""
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def plane(name: str, lines: Mapping[str, Iterable[tuple[Any, ...]]], facts: Mapping[str, Any] | None = None) -> bytes:
    """Return a plane of an XSpace. Each event has a name, a start and duration in nanoseconds, and statistics.

    The name of a line may end in ``@`` and the line's start in nanoseconds. The text of a statistic is only written
    once, as the name of another statistic.
    """
    names: dict[str, int] = {}
    texts: dict[str, int] = {}

    def number(of: dict[str, int], text: str) -> int:
        return of.setdefault(text, len(of) + 1)

    def stat(name: str, value: Any) -> bytes:
        shared = isinstance(value, str)
        return message((1, number(texts, name)), (7 if shared else 4, number(texts, value) if shared else value))

    written = []
    for place, (line, events) in enumerate(lines.items()):
        called, _, begin = line.partition("@")
        of_line: list[tuple[int, Any]] = [(1, place + 10), (2, called), (3, int(begin or 0))]
        for event, start, duration, *stats in events:
            own: list[tuple[int, Any]] = [(1, number(names, event)), (2, start * 1000), (3, duration * 1000)]
            own += [(4, stat(key, value)) for key, value in (stats[0] if stats else {}).items()]
            of_line.append((4, message(*own)))
        written.append((3, message(*of_line)))
    own = [(6, stat(key, value)) for key, value in (facts or {}).items()]
    kinds = [(4, message((1, key), (2, message((1, key), (2, text))))) for text, key in names.items()]
    words = [(5, message((1, key), (2, message((1, key), (2, text))))) for text, key in texts.items()]
    return message((1, 1), (2, name), *written, *kinds, *words, *own)


def space(*planes: bytes) -> bytes:
    """Return an XSpace with the given planes."""
    return message(*((1, one) for one in planes), (4, "a host"))
