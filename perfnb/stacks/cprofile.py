"""Read cProfile's ``.prof`` files, which are in Python's marshal format. Only a few plain types are accepted.

A crafted file can crash an interpreter that reads it with ``marshal.loads``. This reader rejects code objects and
everything else that does not occur in statistics, and it checks all lengths against the size of the file. Only names
may be referenced more than once, because nested references could expand endlessly.
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
from perfnb.stacks.call_graph import tree_of_callers
from perfnb.stacks.formats import Format, HostRecord
from perfnb.stacks.tree import Function
from perfnb.trace.trace_file import MOST_TEXT_BYTES, Kept, Limits, cut, whole_file
from perfnb.trace_names import without_address

#: The maximum nesting depth. Statistics are a dict of tuples, each of which contains a dict of tuples.
_DEEPEST = 5
_SCALARS = (str, int, float, type(None))
#: The types by their codes, including those written by Python 2: how numbers are packed, how the length and the
#: encoding of strings are stored, and how the length of tuples is stored.
_NUMBERS = {"i": "<i", "I": "<q", "g": "<d"}
_TEXTS = {
    **dict.fromkeys("zZ", ("<B", "latin-1")),
    **dict.fromkeys("aA", ("<I", "latin-1")),
    **dict.fromkeys("stu", ("<I", "utf-8")),
}
_TUPLES = {"(": "<I", ")": "<B"}
_APPROXIMATE = (
    "The file has no stacks, so the flame graph is approximate. It divides each function's time among its callers by "
    "the time of the calls between them, and leaves out recursive calls. The table of functions is exact."
)
_NOTES = (
    _APPROXIMATE,
    "The times include cProfile's overhead per call. Functions with many short calls look slower than they are.",
)
#: The longest plausible time, in seconds.
_LONGEST_S = 1e12
#: The number of calls that sampling profilers such as pyinstrument write, because they do not count calls.
_UNCOUNTED = -1
_NOTES_OF_SAMPLES = (
    "The file contains times but no call counts, which is typical of sampling profilers. Calls are n/a.",
    _APPROXIMATE,
)


class _Bad(ValueError):
    """Raised if the data is invalid. The message describes the problem."""


class _MarshalReader:
    """Reader of marshalled values, for versions 0 (Python 2) to 5 of the format."""

    def __init__(self, data: bytearray, kept: Kept) -> None:
        self.at = 0  # the number of bytes that have been read
        self._data, self._kept = data, kept
        self._refs: list[Any] = []
        self._interned: list[str] = []

    def value(self, depth: int = 0) -> Any:
        """Return the next value."""
        if depth > _DEEPEST:
            raise _Bad("its values are nested more deeply than in statistics")
        self._kept.add()
        code = self._take(1)[0]
        kind, kept = chr(code & 0x7F), bool(code & 0x80)
        if kind in "rR":  # "R" is used by Python 2
            return self._known(self._refs if kind == "r" else self._interned, self._number("<I"))
        place = len(self._refs)
        if kept:
            self._refs.append(_Bad)
        found = self._of(kind, depth)
        if kept:
            self._refs[place] = found
        return found

    def _of(self, kind: str, depth: int) -> Any:
        if kind == "N":
            return None
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind in _TEXTS:
            length, encoding = _TEXTS[kind]
            text = cut(self._take(self._number(length))[:MOST_TEXT_BYTES].decode(encoding, "replace"))
            if kind == "t":
                self._interned.append(text)
            return text
        if kind in _TUPLES:
            return tuple(self.value(depth + 1) for _ in range(self._number(_TUPLES[kind])))
        if kind == "{":
            return self._dict(depth)
        if kind == "l":
            return self._long()
        word = "a code object" if kind == "c" else f"a value of type {kind!a}"
        raise _Bad(f"it contains {word}, which does not occur in statistics")

    def _dict(self, depth: int) -> dict[Any, Any]:
        found = {}
        while bytes(self._data[self.at : self.at + 1]) not in (b"0", b"\xb0"):
            key = self.value(depth + 1)
            if not (isinstance(key, tuple) and _is_flat(key)):
                raise _Bad("a key is not a function")
            found[key] = self.value(depth + 1)
        self._take(1)
        return found

    def _take(self, count: int) -> bytearray:
        if count > len(self._data) - self.at:
            raise _Bad("it ends too early")
        self.at += count
        return self._data[self.at - count : self.at]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _long(self) -> int:
        """Read an integer that is stored in 15-bit digits."""
        count: int = self._number("<i")
        if abs(count) > 5:
            raise _Bad("a number is far too large")
        digits: list[int] = [self._number("<H") for _ in range(abs(count))]
        whole = sum(digit << (15 * place) for place, digit in enumerate(digits))
        return -whole if count < 0 else whole

    def _known(self, values: list[Any], place: int) -> Any:
        if place >= len(values) or values[place] is _Bad:
            raise _Bad("it refers to a value that does not exist")
        found = values[place]
        if not (isinstance(found, _SCALARS) or (isinstance(found, tuple) and _is_flat(found))):
            raise _Bad("it refers to a value inside another value, which does not occur in statistics")
        return found


def _is_flat(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, _SCALARS) for value in values)


def read(path: Path, limits: Limits) -> HostRecord:
    """Read cProfile's statistics."""
    data = whole_file(path, limits)
    reader = _MarshalReader(data, Kept(str(path), limits))
    try:
        found = reader.value()
        if not isinstance(found, dict) or reader.at < len(data):
            raise _Bad("something follows the statistics" if isinstance(found, dict) else "it contains no statistics")
        rows = [_row(key, value) for key, value in found.items()]
    except _Bad as error:
        why = f"{error} (byte {reader.at:,})"
        raise TraceError(f"{path} cannot be read as cProfile statistics: {why}.") from error
    calls = np.array([row[1] for row in rows], dtype=np.int64)
    table = pd.DataFrame(
        {
            "calls": pd.arrays.IntegerArray(calls, calls == _UNCOUNTED),
            "self_ms": np.array([1e3 * row[2] for row in rows], dtype=np.float64),
            "total_ms": np.array([1e3 * row[3] for row in rows], dtype=np.float64),
        }
    )
    notes = _NOTES_OF_SAMPLES if len(calls) and (calls == _UNCOUNTED).all() else _NOTES
    functions = tuple(row[0] for row in rows)
    tree = tree_of_callers(functions, table["self_ms"].to_numpy(), table["total_ms"].to_numpy(), _edges(found))
    return HostRecord(path.name, "cProfile", "ms", tree, table, functions, notes=notes)


def _edges(found: dict[Any, Any]) -> dict[tuple[int, int], float]:
    """Return the milliseconds spent in calls from one function to another, by the indices of both functions."""
    places = {key: place for place, key in enumerate(found)}
    edges = {}
    for place, (_, _, _, _, callers) in enumerate(found.values()):
        for key, figures in callers.items():
            total = figures[-1] if isinstance(figures, tuple) and figures else None
            if key in places and isinstance(total, float) and 0 <= total < _LONGEST_S:
                edges[places[key], place] = 1e3 * total
    return edges


def _row(key: Any, value: Any) -> tuple[Function, int, float, float]:
    """Return a function, its number of calls, and its seconds excluding and including its callees."""
    if len(key) != 3 or not (isinstance(key[0], str) and _is_whole(key[1]) and isinstance(key[2], str)):
        raise _Bad("a key is not a function")
    if not (isinstance(value, tuple) and len(value) == 5 and isinstance(value[4], dict)):
        raise _Bad("a function's figures are not in cProfile's format")
    primitive, calls, own, total = value[:4]
    counted = _is_whole(primitive) and _is_whole(calls) and 0 <= primitive <= calls < 2**62
    if not counted and (primitive, calls) != (_UNCOUNTED, _UNCOUNTED):
        raise _Bad("a number of calls is out of range")
    if not all(
        isinstance(each, (int, float)) and math.isfinite(each) and abs(each) < _LONGEST_S for each in (own, total)
    ):
        raise _Bad("a time is out of range")
    file, line, name = key
    # Built-in functions have line 0 and the file "~", or "<built-in>" in pyinstrument's files.
    built_in = file in ("~", "<built-in>")
    place = int(line) if 0 <= line < 2**31 and not built_in else NONE
    return Function(without_address(name), "" if built_in else file, place), calls, float(own), float(total)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def recognised(head: bytes) -> bool:
    """Return whether this is the start of a marshalled dict.

    The dict's first key must be a tuple with three elements, or the dict must be empty.
    """
    if len(head) < 2 or head[0] & 0x7F != ord("{"):
        return False
    if len(head) == 2:
        return head[1:] == b"0"
    kind, rest = head[1] & 0x7F, head[2:6]
    return (kind == ord("(") and rest == b"\x03\0\0\0") or (kind == ord(")") and rest[:1] == b"\x03")


FORMAT = Format("cProfile statistics (.prof)", recognised, read)
