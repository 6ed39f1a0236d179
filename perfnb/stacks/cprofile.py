"""cProfile's ``.prof`` files: Python's marshal format, of which a few plain types are read.

``marshal.loads`` on a crafted file can crash the interpreter. Here code objects and everything else that statistics do
not need are refused, lengths are checked against the file, and only names may be referred to again: nested references
could unfold without end.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfnb.errors import TraceError
from perfnb.recording.nesting import NONE
from perfnb.stacks.formats import Format, HostRecord
from perfnb.stacks.tree import Function
from perfnb.trace.trace_file import MOST_TEXT_BYTES, Kept, Limits, cut, whole_file
from perfnb.trace_names import without_address

#: Statistics are a dict of tuples with a dict of tuples.
_DEEPEST = 5
_SCALARS = (str, int, float, type(None))
_NOTES = (
    "cProfile counts calls and times them; it keeps no stacks, so there is no flame graph.",
    "cProfile's own cost per call is in the times: functions that call many short ones look slower than they are.",
)
#: What sampling profilers, such as pyinstrument, write for the calls they did not count.
_UNCOUNTED = -1
_NOTES_OF_SAMPLES = (
    "The file has times without numbers of calls, as sampling profilers write it: calls are n/a.",
    "Statistics in cProfile's format keep no stacks, so there is no flame graph.",
)


class _Bad(ValueError):
    """What is wrong with the data."""


class _MarshalReader:
    """Reads values of marshal, versions 0 (Python 2) to 5."""

    def __init__(self, data: bytearray, kept: Kept) -> None:
        self._data, self._at, self._kept = data, 0, kept
        self._refs: list[Any] = []
        self._interned: list[str] = []

    @property
    def ended(self) -> bool:
        """Whether everything was read."""
        return self._at == len(self._data)

    def value(self, depth: int = 0) -> Any:
        """The next value."""
        if depth > _DEEPEST:
            raise _Bad("it nests deeper than statistics do")
        self._kept.add()
        code = self._take(1)[0]
        kind, kept = chr(code & 0x7F), bool(code & 0x80)
        if kind == "r":
            return self._known(self._refs, self._number("<I"))
        if kind == "R":  # Python 2
            return self._known(self._interned, self._number("<I"))
        place = len(self._refs)
        if kept:
            self._refs.append(_Bad)
        found = self._of(kind, depth)
        if kept:
            self._refs[place] = found
        return found

    def _of(self, kind: str, depth: int) -> Any:
        if kind in "NFT":
            return {"N": None, "F": False, "T": True}[kind]
        if kind == "i":
            return self._number("<i")
        if kind == "I":
            return self._number("<q")
        if kind == "l":
            return self._long()
        if kind == "g":
            return struct.unpack("<d", self._take(8))[0]
        if kind == "f":
            return self._decimal()
        if kind in "zZ":
            return self._text(self._take(1)[0], "latin-1")
        if kind in "aA":
            return self._text(self._number("<I"), "latin-1")
        if kind in "stu":
            text = self._text(self._number("<I"), "utf-8")
            if kind == "t":
                self._interned.append(text)
            return text
        if kind in "()":
            count = self._number("<I") if kind == "(" else self._take(1)[0]
            if count > 5:
                raise _Bad("a tuple is longer than those of statistics")
            return tuple(self.value(depth + 1) for _ in range(count))
        if kind == "{":
            return self._dict(depth)
        word = "a code object" if kind == "c" else f"a value of type {kind!a}"
        raise _Bad(f"it holds {word}, which statistics never do")

    def _dict(self, depth: int) -> dict[Any, Any]:
        found = {}
        while self._peek() != "0":
            key = self.value(depth + 1)
            if not (isinstance(key, tuple) and _is_flat(key)):
                raise _Bad("a key is not a function")
            found[key] = self.value(depth + 1)
        self._take(1)
        return found

    def _peek(self) -> str:
        if self._at >= len(self._data):
            raise _Bad("it ends too early")
        return chr(self._data[self._at] & 0x7F)

    def _take(self, count: int) -> bytearray:
        if count > len(self._data) - self._at:
            raise _Bad("it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _long(self) -> int:
        """An integer in digits of 15 bits."""
        count = self._number("<i")
        if abs(count) > 5:
            raise _Bad("a number is far too large")
        digits = [self._number("<H") for _ in range(abs(count))]
        whole = sum(digit << (15 * place) for place, digit in enumerate(digits))
        return -whole if count < 0 else whole

    def _decimal(self) -> float:
        """A float as text, of marshal's versions 0 and 1."""
        try:
            return float(self._take(self._take(1)[0]))
        except ValueError:
            raise _Bad("a number cannot be read") from None

    def _text(self, count: int, encoding: str) -> str:
        return cut(self._take(count)[:MOST_TEXT_BYTES].decode(encoding, "replace"))

    def _known(self, values: list[Any], place: int) -> Any:
        if place >= len(values) or values[place] is _Bad:
            raise _Bad("it refers to a value that is not there")
        found = values[place]
        if not (isinstance(found, _SCALARS) or (isinstance(found, tuple) and _is_flat(found))):
            raise _Bad("it refers to a value inside another, which statistics never do")
        return found


def _is_flat(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, _SCALARS) for value in values)


def read(path: Path, limits: Limits) -> HostRecord:
    """Read cProfile's statistics."""
    data = whole_file(path, limits)
    try:
        reader = _MarshalReader(data, Kept(str(path), limits))
        found = reader.value()
        if not isinstance(found, dict) or not reader.ended:
            raise _Bad("something follows the statistics" if isinstance(found, dict) else "it holds no statistics")
        rows = [_row(key, value) for key, value in found.items()]
    except (_Bad, struct.error) as error:
        raise TraceError(f"{path} cannot be read as statistics of cProfile: {error}.") from error
    calls = np.array([row[1] for row in rows], dtype=np.int64)
    table = pd.DataFrame(
        {
            "calls": pd.arrays.IntegerArray(calls, calls == _UNCOUNTED),
            "self_ms": np.array([1e3 * row[2] for row in rows], dtype=np.float64),
            "total_ms": np.array([1e3 * row[3] for row in rows], dtype=np.float64),
        }
    )
    notes = _NOTES_OF_SAMPLES if len(calls) and (calls == _UNCOUNTED).all() else _NOTES
    return HostRecord(path.name, "cProfile", "ms", calls=table, functions=tuple(row[0] for row in rows), notes=notes)


def _row(key: Any, value: Any) -> tuple[Function, int, float, float]:
    """A function, its calls, and the seconds in itself and with what it calls."""
    if len(key) != 3 or not (isinstance(key[0], str) and _is_whole(key[1]) and isinstance(key[2], str)):
        raise _Bad("a key is not a function")
    if not (isinstance(value, tuple) and len(value) == 5 and isinstance(value[4], dict)):
        raise _Bad("a function's figures are not those of cProfile")
    primitive, calls, own, total = value[:4]
    counted = _is_whole(primitive) and _is_whole(calls) and 0 <= primitive <= calls < 2**62
    if not counted and (primitive, calls) != (_UNCOUNTED, _UNCOUNTED):
        raise _Bad("a number of calls is out of range")
    if not all(isinstance(each, (int, float)) and math.isfinite(each) and abs(each) < 1e12 for each in (own, total)):
        raise _Bad("a time is out of range")
    file, line, name = key
    # Built-in functions have line 0 and the file "~", or "<built-in>" in the files of pyinstrument.
    built_in = file in ("~", "<built-in>")
    place = int(line) if 0 <= line < 2**31 and not built_in else NONE
    return Function(without_address(name), "" if built_in else file, place), calls, float(own), float(total)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def recognised(head: bytes) -> bool:
    """Whether this is the start of a marshalled dict whose first key is a tuple of three, or of an empty one."""
    if not head or head[0] & 0x7F != ord("{"):
        return False
    if len(head) == 2:
        return head[1:] == b"0"
    kind, rest = head[1] & 0x7F, head[2:6]
    return (kind == ord("(") and rest == b"\x03\0\0\0") or (kind == ord(")") and rest[:1] == b"\x03")


FORMAT = Format("statistics of cProfile (.prof)", recognised, read)
