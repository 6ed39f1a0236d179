"""The trace formats that perfnb reads.

A format is one module in this folder with a `READER`, and one line in `READERS`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

from perfnb.files import open_regular
from perfnb.trace.columns import TraceColumns
from perfnb.trace.trace_file import GZIP, PACKED, Limits, Progress

#: Asked in this order: put a specific format before a general one.
READERS = ("perfnb.trace.kineto:READER",)
#: Bytes of a file, unpacked, by which its format is recognised.
HEAD = 2**16


@dataclass(frozen=True)
class Reader:
    """A trace format.

    Attributes
    ----------
    what : str
        As errors list it: ``traces of torch.profiler (Chrome JSON)``.
    endings : tuple of str
        Lower-case endings of file names by which traces are found in a folder.
    recognise : callable
        Whether a file has this format, given its path and the first `HEAD` bytes of its content, unpacked.
    read : callable
        Reads a file, given its path, `Limits` and a progress callback. Raises `TraceError` if it is damaged or exceeds
        a limit.
    caveats : tuple of str
        What the format cannot tell; a profile's notes list it.
    """

    what: str
    endings: tuple[str, ...]
    recognise: Callable[[Path, bytes], bool]
    read: Callable[[Path, Limits, Progress | None], TraceColumns]
    caveats: tuple[str, ...] = ()


@cache
def readers() -> tuple[Reader, ...]:
    """Every reader, in the order in which they are asked."""
    return tuple(resolve_name(name) for name in READERS)


def reader_of(path: Path) -> Reader | None:
    """Return the first reader that recognises a file, ``None`` if none does."""
    head = _head(path)
    return next((reader for reader in readers() if reader.recognise(path, head)), None)


def looks_like(path: Path) -> str:
    """Say what a file that no reader recognises seems to be, for an error."""
    head = _head(path)
    for magic, what in PACKED.items():
        if head.startswith(magic):
            packed = what.startswith(("compressed", "a ZIP"))
            return f"it is {what}: unpack it first" if packed else f"it is {what}"
    return f"it starts with {ascii(head[:16])[1:]}"


def _head(path: Path) -> bytes:
    """The first bytes of a file's content; as they are if they cannot be unpacked, none if they cannot be read."""
    try:
        with open_regular(path) as file:
            head = file.read(HEAD)
    except (OSError, ValueError):
        return b""
    if head.startswith(GZIP):
        with suppress(zlib.error):
            return zlib.decompressobj(wbits=31).decompress(head, HEAD) or head
    return head
