"""Read the parts of the protocol buffer wire format that profiles use.

Messages are traversed instead of being parsed into objects. A traversal covers one level of a message and checks each
length against the number of remaining bytes, so a message cannot claim more bytes than it contains. The caller decides
which nested messages to traverse.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from perfnb.trace.trace_file import MOST_TEXT_BYTES, cut

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
#: Bytes, or a slice of bytes without a copy.
Buffer = bytes | bytearray | memoryview
Field = tuple[int, int | memoryview]

_MOST_BYTES, _MOST_FIELDS = 10, 128
_SIXTY_FOUR = 2**64 - 1


class Damaged(ValueError):
    """Raised if the bytes are not a valid message."""


def varint(data: Buffer, place: int, end: int) -> tuple[int, int]:
    """Read a number with up to 64 bits. Return the number and the position of the byte after it."""
    number = shift = 0
    last = min(end, place + _MOST_BYTES)
    while place < last:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _SIXTY_FOUR, place
        shift += 7
    raise Damaged("a number in it is cut off" if last == end else "a number in it is too long")


def spans(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Traverse a message's fields between two positions without copying the message.

    Yields
    ------
    tuple of int
        The field's number and its wire type. For varints, these are followed by the value and 0. For fixed-size and
        length-delimited fields, they are followed by the positions at which the value starts and ends.
    """
    place = start
    while place < end:
        byte = data[place]
        if byte < 0x80:
            key, place = byte, place + 1
        else:
            key, place = varint(data, place, end)
        field, kind = key >> 3, key & 7
        if field == 0:
            raise Damaged("it contains a field without a number")
        if kind == VARINT:
            number, place = varint(data, place, end)
            yield field, kind, number, 0
            continue
        if kind == BYTES:
            length, place = varint(data, place, end)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise Damaged("it contains a field of an unknown type")
        if length > end - place:
            raise Damaged("it is cut off, or a length in it is wrong")
        yield field, kind, place, place + length
        place += length


def fields(data: Buffer) -> Iterator[Field]:
    """Traverse a message's fields, yielding the number and value of each.

    The value of a fixed-size field is the number that its bytes represent.

    Messages and texts are slices of `data`, because copies of nested messages would take up too much memory.
    """
    view = memoryview(data)
    for field, kind, start, end in spans(view, 0, len(view)):
        if kind == VARINT:
            yield field, start
        elif kind == BYTES:
            yield field, view[start:end]
        else:
            yield field, int.from_bytes(view[start:end], "little")


def facts_of(data: Buffer) -> dict[int, int | memoryview]:
    """Return the last value of each field in a message. Only fields with small numbers are included."""
    return {field: value for field, value in fields(data) if field < _MOST_FIELDS}


def double(bits: int) -> float:
    """Return the floating-point number that the bits of a fixed-size field represent."""
    number: float = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
    return number


def text(value: int | Buffer) -> str:
    """Return a field's text, truncated if it is too long. Bytes that are not valid UTF-8 are escaped."""
    return "" if isinstance(value, int) else cut(str(value[:MOST_TEXT_BYTES], "utf-8", "backslashreplace"))


def signed(value: int | Buffer) -> int:
    """Convert a field's value to a signed 64-bit number. The result is 0 if the field is not a number."""
    if not isinstance(value, int):
        return 0
    return value - 2**64 if value >= 2**63 else value
