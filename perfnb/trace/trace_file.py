"""Trace files: the formats that perfnb reads, and their text in blocks, unpacked on the fly, within limits.

A format is one module in this folder with a `READER`, and one line in `READERS`.
"""

from __future__ import annotations

import gzip
import os
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import BinaryIO

from perfnb.errors import TraceError
from perfnb.files import open_regular
from perfnb.quantities import size
from perfnb.trace.columns import TraceColumns

#: Asked in this order: put a specific format before a general one.
READERS = (
    "perfnb.trace.xplane:READER",
    "perfnb.trace.perfetto:READER",
    "perfnb.trace.nsys:READER",
    "perfnb.trace.nsys:REPORT",
    "perfnb.trace.rocprof:READER",
    "perfnb.trace.chrome_events:READER",
    "perfnb.trace.kineto:READER",
)
#: Where an error about an unknown file points.
FORMATS_ARE = 'help(perfnb.load) and "Traces from elsewhere" in the documentation list the formats'
#: Bytes of a file, unpacked, by which its format is recognised.
HEAD = 2**16
#: Called with the bytes of the file done so far, and its size.
Progress = Callable[[int, int], None]

_BLOCK = 2**20
#: Progress is reported after this long, and this often.
QUIET_S, _EVERY_S = 2.0, 0.2
#: Real traces unpack to 15 to 30 times their size. A file that unpacks to more than the first and would exceed the
#: limit is refused early; one above `max_ratio` is refused after the last number of bytes, whatever the limit.
_BOMB_RATIO, _BOMB_FROM, _RATIO_FROM = 200, 4 * 2**20, 32 * 2**20
GZIP = b"\x1f\x8b"
#: A compressed file yields a block of text after at most this many bytes: twice what incompressible text takes.
_MOST_FOR_A_BLOCK = 2 * _BLOCK
#: First bytes of files that are no text, and what such a file is.
PACKED = {
    b"PK\x03\x04": "a ZIP archive",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"PAR1": "a Parquet file",
    b"SQLite format 3": "an SQLite database",
}


@dataclass(frozen=True)
class Limits:
    """What a file may ask for before a reader refuses it.

    Attributes
    ----------
    max_bytes : int
        Of the text, unpacked.
    max_packed_bytes : int
        Of a compressed file.
    max_events : int
        Of any kind.
    max_event_bytes : int
        Of one event, or of everything before or after the events: this much text is held in memory.
    max_depth : int
        Of values inside values. Python's own recursion limit is higher.
    max_ratio : int
        How many times its size a compressed file may unpack to, checked above 32 MiB.
    """

    max_bytes: int = 8 * 2**30
    max_packed_bytes: int = 2 * 2**30
    max_events: int = 25_000_000
    max_event_bytes: int = 64 * 2**20
    max_depth: int = 200
    max_ratio: int = 200


LIMITS = Limits()


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
        Reads a file, given its path, `Limits` and a progress callback; a list is the ranks of one job, in order. Raises
        `TraceError` if the file is damaged or exceeds a limit.
    caveats : tuple of str
        What the format cannot tell; a profile's notes list it.
    guess_steps : bool
        Whether a range that repeats marks the steps, because the format has no marks of its own.
    """

    what: str
    endings: tuple[str, ...]
    recognise: Callable[[Path, bytes], bool]
    read: Callable[[Path, Limits, Progress | None], TraceColumns | list[TraceColumns]]
    caveats: tuple[str, ...] = ()
    guess_steps: bool = False


@cache
def readers() -> tuple[Reader, ...]:
    """Every reader, in the order in which they are asked."""
    return tuple(resolve_name(name) for name in READERS)


def reader_of(path: Path) -> Reader | None:
    """Return the first reader that recognises a file, ``None`` if none does."""
    head = head_of(path)
    return next((reader for reader in readers() if reader.recognise(path, head)), None)


def looks_like(path: Path) -> str:
    """Say in parentheses what a file that no reader recognises is, if its first bytes tell; never quote them."""
    head = head_of(path)
    for magic, what in PACKED.items():
        if head.startswith(magic):
            packed = what.startswith(("compressed", "a ZIP"))
            return f" (it is {what}: unpack it first)" if packed else f" (it is {what})"
    return ""


def head_of(path: Path) -> bytes:
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


def blocks_of_bytes(data: bytes) -> Iterator[memoryview]:
    """Return the blocks of a text in memory."""
    view = memoryview(data)
    return (view[start : start + _BLOCK] for start in range(0, len(view), _BLOCK))


def blocks_of_file(path: Path, limits: Limits, progress: Progress | None = None) -> Generator[bytes, None, None]:
    """Read the blocks of a file's text, unpacked if it is compressed with gzip.

    Raises
    ------
    TraceError
        If the file cannot be read, is damaged, or is or becomes too large.
    """
    try:
        with open_regular(path, buffering=_BLOCK // 8) as file:
            yield from _blocks(file, path, limits, progress)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        cut = isinstance(error, EOFError)
        why = "its compressed data is cut off" if cut else f"its compressed data is damaged ({error})"
        raise TraceError(f"{path} cannot be read as a trace: {why}; copy or record it again.") from error
    except IsADirectoryError as error:
        raise TraceError(f"{path} cannot be read as a trace: it is a folder; give a file in it.") from error
    except FileNotFoundError as error:
        raise TraceError(f"{path} cannot be read as a trace: the file does not exist.") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise TraceError(f"{path} cannot be read as a trace: {why}.") from error


def _blocks(file: BinaryIO, path: Path, limits: Limits, progress: Progress | None) -> Iterator[bytes]:
    start = told = time.monotonic()
    length = os.fstat(file.fileno()).st_size
    head = file.peek(16) if hasattr(file, "peek") else b""
    for magic, what in PACKED.items():
        if head.startswith(magic):
            raise TraceError(f"{path} cannot be read as a trace: it is {what}; unpack or export it as JSON first.")
    packed = head.startswith(GZIP)
    most, limit = (limits.max_packed_bytes, "max_packed_bytes") if packed else (limits.max_bytes, "max_bytes")
    if length > most:
        raise TraceError(f"{path} was not read: it is {size(length)}, above {size(most)}; raise {limit} in limits=.")
    counted = _Counted(file, path)
    text = gzip.GzipFile(fileobj=counted, mode="rb") if packed else file  # type: ignore[call-overload]
    done = 0
    while block := text.read(_BLOCK):
        counted.since_block = 0
        if packed and not done and block.startswith(GZIP):
            raise TraceError(f"{path} cannot be read as a trace: it is compressed twice; unpack it once first.")
        done += len(block)
        place = file.tell()
        if done > limits.max_bytes:
            does = "would unpack to" if packed else "is"
            raise _too_large(path, f"{does} more than {size(limits.max_bytes)}")
        if packed and done >= max(_BOMB_FROM, _BOMB_RATIO * place):
            expected = done * length // place
            if expected > limits.max_bytes:
                much = f"about {size(expected)}, {done // place:,} times its size"
                raise _too_large(path, f"would unpack to more than {size(limits.max_bytes)}: {much}")
        if packed and done > max(_RATIO_FROM, limits.max_ratio * place):
            raise TraceError(
                f"{path} was not read: it unpacks to {done // place:,} times its size, more than any trace; if you "
                "trust it, raise max_ratio in limits=."
            )
        yield block
        now = time.monotonic()
        if progress is not None and now - start >= QUIET_S and (now - told >= _EVERY_S or place == length):
            told = now
            progress(place, length)


class _Counted:
    """A compressed file, refused if much of it unpacks to nothing: an endless header, or endless empty parts."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self.since_block = 0

    def read(self, count: int = -1) -> bytes:
        """Read at most `count` bytes."""
        data = self._file.read(count)
        self.since_block += len(data)
        if self.since_block > _MOST_FOR_A_BLOCK:
            why = f"more than {size(_MOST_FOR_A_BLOCK)} of its compressed data unpack to nothing"
            raise TraceError(f"{self._path} cannot be read as a trace: {why}; copy or record it again.")
        return data


def _too_large(path: Path, how: str) -> TraceError:
    return TraceError(f"{path} {how}, so it was not read; if you trust it, raise max_bytes in limits=.")
