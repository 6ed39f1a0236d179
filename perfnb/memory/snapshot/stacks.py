"""Call stacks of an allocator's history: the operator that asked for memory, and the user's line that led there."""

from __future__ import annotations

import re
from array import array
from hashlib import blake2b
from typing import Any

from perfnb.arguments import storable
from perfnb.errors import TraceError

#: Characters kept of a text: a million rows may share a long one.
MAX_TEXT = 160
#: Most distinct stacks.
MOST_STACKS = 500_000

_OP = re.compile(r"at::_ops::(\w{1,100})::")
#: The overload at the end of an operator's name, such as ``_Tensor``, if the name shows where it starts.
_OVERLOAD = re.compile(r"_[A-Z].*")
_LIBRARY_PATH = re.compile(
    r"<frozen |/(site|dist)-packages/|/lib/python\d[\d.]*/"
    r"|/torch/(nn|optim|autograd|utils|cuda|distributed|fx|amp|_[a-z_]+)[/.]"
)
_NOTHING, _LIBRARY, _USER = "", "library", "user"


def clean(text: Any) -> str:
    """Return the start of `text`, without surrogates, which cannot be stored."""
    return storable(text[:MAX_TEXT]) if type(text) is str else ""


def clean_value(value: Any) -> Any:
    """Clean a text; keep booleans and ordinary numbers; ``None`` for anything else."""
    if type(value) is str:
        return clean(value)
    if type(value) is int:
        return value if -(2**63) <= value < 2**63 else None
    return value if type(value) in (bool, float) else None


class Stacks:
    """Numbers the distinct stacks, and finds the operator and line of each.

    Attributes
    ----------
    ops : list of str or None
        The operator, such as ``aten::mm``: the outermost one below the last Python function. Only stacks recorded with
        C++ frames have it.
    made_at : list of str or None
        ``file:line function`` of the user's innermost Python function, or else of a library's.
    """

    def __init__(self, source: str) -> None:
        self.ops: list[str | None] = []
        self.made_at: list[str | None] = []
        self._source = source
        self._of_list: dict[int, int] = {}
        self._of_frames: dict[bytes, int] = {}
        self._kinds: dict[int, str] = {}

    def number(self, frames: list[Any]) -> int:
        """Number a stack, innermost frame first. The frames must live as long as this object.

        Each list is walked once, however many rows share it.
        """
        found = self._of_list.get(id(frames))
        if found is None:
            same = blake2b(array("Q", map(id, frames)), digest_size=16).digest()
            found = self._of_frames.setdefault(same, len(self.ops))
            self._of_list[id(frames)] = found
            if found == len(self.ops):
                if found == MOST_STACKS:
                    raise TraceError(
                        f"{self._source} was not read: it has more than {MOST_STACKS:,} distinct call stacks; record "
                        "fewer entries."
                    )
                op, made_at = self._read(frames)
                self.ops.append(op)
                self.made_at.append(made_at)
        return found

    def _read(self, frames: list[Any]) -> tuple[str | None, str | None]:
        op: str | None = None
        library = None
        for frame in frames:
            kind = self._kinds.get(id(frame))
            if kind is None:
                kind = self._kinds[id(frame)] = _kind_of(frame)
            if kind == _NOTHING:
                continue
            if kind == _USER:
                return op, _line(frame)
            if kind == _LIBRARY:
                library = library or frame
            elif library is None:
                op = kind
        return op, None if library is None else _line(library)


def _kind_of(frame: Any) -> str:
    """Return whose frame it is, or the name of the operator that it runs."""
    if type(frame) is not dict or not type(frame.get("name")) is type(frame.get("filename")) is str:
        return _NOTHING
    file = frame["filename"][-MAX_TEXT:].replace("\\", "/")
    if file.endswith((".py", ">")):
        return _LIBRARY if _LIBRARY_PATH.search(file) else _USER
    operator = _OP.search(frame["name"], 0, MAX_TEXT)
    return f"aten::{_OVERLOAD.sub('', operator[1])}" if operator else _NOTHING


def _line(frame: dict[str, Any]) -> str:
    line = frame.get("line")
    number = f":{line}" if type(line) is int and 0 <= line < 2**31 else ""
    return f"{storable(frame['filename'][-MAX_TEXT:])}{number} {clean(frame['name'])}"
