"""Determine the format of a trace file, and read its content in blocks, which are unpacked on the fly within limits.

Each format has a module in this folder that defines a `READER`, and a line in `READERS`.
"""

from __future__ import annotations

import codecs
import io
import os
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, BinaryIO

from perfnb.errors import TraceError
from perfnb.files import open_regular
from perfnb.quantities import size
from perfnb.trace.columns import TraceColumns

#: The readers, in the order they are tried. Specific formats must come before general ones.
READERS = (
    "perfnb.trace.xplane:READER",
    "perfnb.trace.perfetto:READER",
    "perfnb.trace.nsys:READER",
    "perfnb.trace.nsys:REPORT",
    "perfnb.trace.rocprof:READER",
    "perfnb.trace.chrome_events:READER",
    "perfnb.trace.kineto:READER",
)
#: The reference in error messages about unknown files.
FORMATS_ARE = 'help(perfnb.load) and "File formats" in the documentation list the formats'
#: The number of unpacked bytes that are used to recognise a file's format.
HEAD = 2**16
#: A callback that receives the number of bytes that have been processed, and the file's size.
OnProgress = Callable[[int, int], None]

_BLOCK = 2**20
#: The maximum numbers of bytes and events, for formats that are read piece by piece and for formats that are decoded as
#: a whole.
_PIECEWISE, _WHOLE = (8 * 2**30, 25_000_000), (256 * 2**20, 4_000_000)
#: The maximum nesting depth of values. Python's own recursion limit is higher.
MAX_DEPTH = 200
#: The maximum number of characters in a text, which is truncated beyond that. Many events may refer to the same text,
#: and each of them would copy it.
MOST_TEXT = 16_384
#: The maximum number of characters in all distinct texts of a file, per event that is allowed in a format decoded as a
#: whole.
LETTERS = 64
#: The number of UTF-8 bytes that certainly contain more characters than the maximum.
MOST_TEXT_BYTES = 4 * MOST_TEXT + 4
#: The maximum number of characters in a line of text.
_LONGEST_LINE = 2**20
#: The time in seconds until progress is first reported, and between two reports.
QUIET_S, _EVERY_S = 2.0, 0.2
#: Real traces unpack to 15 to 30 times their size. A file that unpacks to more than the first number times its size is
#: rejected, unless its unpacked size is below the second number of bytes.
_MOST_RATIO, _RATIO_FROM = 200, 32 * 2**20
GZIP = b"\x1f\x8b"
#: The number of compressed bytes that are unpacked at once. It is small because the bytes after the end of each part
#: are copied.
_PACKED_BLOCK = 2**14
#: Descriptions of files that none of the readers recognise, by their first bytes.
_MAGIC = {
    b"PK\x03\x04": "a ZIP archive: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it first",
    b"BZh": "compressed with bzip2: unpack it first",
    b"\xfd7zXZ": "compressed with xz: unpack it first",
    b"PAR1": "a Parquet file",
    b"SQLite format 3": "an SQLite database",
}


@dataclass(frozen=True)
class Limits:
    """The limits beyond which a reader rejects a file. If a limit is not specified, there is a default.

    Formats that are read piece by piece have higher default limits than formats whose whole content is in memory at
    once. For the latter, the defaults ensure that even a malicious file needs less than 2 GiB of memory. Each value
    takes up to 200 bytes of memory, regardless of its size in the file.

    Attributes
    ----------
    max_bytes : int, optional
        The maximum size of the unpacked content in bytes.
    max_events : int, optional
        The maximum number of events of any kind. For formats that are decoded as a whole, it includes names and values.
    """

    max_bytes: int | None = None
    max_events: int | None = None

    @property
    def most_bytes(self) -> int:
        """The limit on the number of bytes, or its default."""
        return self.max_bytes or _PIECEWISE[0]

    @property
    def most_events(self) -> int:
        """The limit on the number of events, or its default."""
        return self.max_events or _PIECEWISE[1]

    def whole(self) -> Limits:
        """Return the limits for a format that is decoded as a whole."""
        return Limits(self.max_bytes or _WHOLE[0], self.max_events or _WHOLE[1])


def cut(text: str) -> str:
    """Return a text from a file. A text that is far longer than any name is truncated and ends in "…"."""
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


class Kept:
    """Counts the values that a reader stores in memory because of a file's content.

    Parameters
    ----------
    source : str
        The file's name, for error messages.
    limits : Limits
    """

    def __init__(self, source: str, limits: Limits) -> None:
        self._source = source
        self._most, self._most_letters = limits.most_events, LETTERS * limits.whole().most_events
        self._count = self._letters = 0

    def add(self, count: int = 1, text: str = "") -> None:
        """Count additional values, and the characters in a distinct text.

        Raises
        ------
        TraceError
            If a limit is exceeded.
        """
        self._count += count
        self._letters += len(text)
        if self._count > self._most:
            raise too_many(self._source, self._most)
        if self._letters > self._most_letters:
            raise TraceError(
                f"{self._source} was not read: its names have more than {self._most_letters:,} characters in total; if "
                "you trust it, raise max_events."
            )


LIMITS = Limits()


@dataclass(frozen=True)
class Reader:
    """A trace format.

    Attributes
    ----------
    endings : tuple of str
        The file name endings, in lower case, that are used to find traces in a folder.
    recognise : callable
        Function that checks whether a file has this format, given its path and the first `HEAD` bytes of its unpacked
        content.
    read : callable
        Function that reads a file, given its path, `Limits` and a progress callback. If it returns a list, the list
        contains the ranks of one job, in order. It raises `TraceError` if the file is damaged or exceeds a limit.
    caveats : tuple of str
        Notes on data that the format cannot record, which are included in a profile's notes.
    guess_steps : bool
        Whether a repeating range should be used to mark steps, because the format does not have step marks.
    """

    endings: tuple[str, ...]
    recognise: Callable[[Path, bytes], bool]
    read: Callable[[Path, Limits, OnProgress | None], TraceColumns | list[TraceColumns]]
    caveats: tuple[str, ...] = ()
    guess_steps: bool = False


@cache
def readers() -> tuple[Reader, ...]:
    """Return all readers, in the order they are tried."""
    return tuple(resolve_name(name) for name in READERS)


def reader_of(path: Path) -> Reader | None:
    """Return the first reader that recognises a file, or ``None`` if the format is unknown."""
    head = head_of(path)
    return next((reader for reader in readers() if reader.recognise(path, head)), None)


def looks_like(path: Path) -> str:
    """Return a description, in parentheses, of a file that none of the readers recognise.

    The result is empty if the file's first bytes do not reveal its type. The bytes themselves are never quoted.
    """
    head = head_of(path)
    return next((f" (it is {what})" for magic, what in _MAGIC.items() if head.startswith(magic)), "")


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file's content.

    If they cannot be unpacked, they are returned in packed form. If they cannot be read, the result is empty.
    """
    head = content = b""
    with suppress(OSError, ValueError, TraceError), open_regular(path) as file:
        head = file.read(HEAD)
        if head.startswith(GZIP):
            for block in _unpacked(io.BytesIO(head), path):
                content += block
                if len(content) >= HEAD:
                    break
    return (content or head)[:HEAD]


def blocks_of_bytes(data: bytes) -> Iterator[memoryview]:
    """Return the blocks of a text that is already in memory."""
    view = memoryview(data)
    return (view[start : start + _BLOCK] for start in range(0, len(view), _BLOCK))


def blocks_of_file(path: Path, limits: Limits, progress: OnProgress | None = None) -> Generator[bytes, None, None]:
    """Read the blocks of a file's content, unpacked if it is compressed with gzip.

    Raises
    ------
    TraceError
        If the file cannot be read or is damaged, or if its packed or unpacked size is too large.
    """
    try:
        with open_regular(path) as file:
            yield from _blocks(file, path, limits.most_bytes, progress)
    except IsADirectoryError as error:
        raise TraceError(f"{path} cannot be read as a trace: it is a folder; pass one of the files in it.") from error
    except FileNotFoundError as error:
        raise TraceError(f"{path} cannot be read as a trace: the file does not exist.") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise TraceError(f"{path} cannot be read as a trace: {why}.") from error


def _blocks(file: BinaryIO, path: Path, most: int, progress: OnProgress | None) -> Iterator[bytes]:
    length = os.fstat(file.fileno()).st_size
    if length > most:
        raise TraceError(f"{path} was not read: it is {size(length)}, above {size(most)}; raise max_bytes.")
    packed = file.read(len(GZIP)) == GZIP
    file.seek(0)
    report, done = Reports(progress, length), 0
    for block in _unpacked(file, path) if packed else iter(lambda: file.read(_BLOCK), b""):
        if packed and not done and block.startswith(GZIP):
            raise TraceError(f"{path} cannot be read as a trace: it is compressed twice; unpack it first.")
        done += len(block)
        if done > most:
            raise TraceError(
                f"{path} {'would unpack to' if packed else 'is'} more than {size(most)}, so it was not read; if you "
                "trust it, raise max_bytes."
            )
        place = file.tell()
        if packed and done > max(_RATIO_FROM, _MOST_RATIO * place):
            raise TraceError(
                f"{path} was not read: it unpacks to {done // place:,} times its size, unlike any real trace; if you "
                "trust it, unpack it first."
            )
        yield block
        report(place)


def _unpacked(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Unpack a file that consists of one or more gzip parts, at most `_BLOCK` bytes at a time."""
    part: Any = None
    while packed := file.read(_PACKED_BLOCK):
        while packed:
            if part is None:
                packed = packed.lstrip(b"\0")  # gzip's padding between and after the parts
                if not packed:
                    break
                part = zlib.decompressobj(wbits=31)
            try:
                block = part.decompress(packed, _BLOCK)
            except zlib.error as error:
                raise _not_unpacked(path, f"is damaged at or before byte {file.tell():,}") from error
            if block:
                yield block
            packed = part.unconsumed_tail
            if part.eof:
                packed, part = part.unused_data, None
    if part is not None:
        raise _not_unpacked(path, f"is cut off after byte {file.tell():,}")


def _not_unpacked(path: Path, why: str) -> TraceError:
    return TraceError(f"{path} cannot be read as a trace: its compressed data {why}; copy or record it again.")


class Reports:
    """Reports the progress in reading a file a few times per second, if reading takes a long time.

    Parameters
    ----------
    progress : callable, optional
    length : int
        The size of the file in bytes.
    """

    def __init__(self, progress: OnProgress | None, length: int) -> None:
        self._progress = progress
        self._length = length
        self._start = self._last = time.monotonic()

    def __call__(self, done: int) -> None:
        """Report the number of bytes that have been processed, if the next report is due."""
        now = time.monotonic()
        due = now - self._last >= _EVERY_S or done == self._length
        if self._progress is not None and now - self._start >= QUIET_S and due:
            self._last = now
            self._progress(done, self._length)


def whole_file(path: Path, limits: Limits, progress: OnProgress | None = None) -> bytearray:
    """Return a file's unpacked content, within the limits. This raises the same errors as `blocks_of_file`."""
    content = bytearray()
    with closing(blocks_of_file(path, limits, progress)) as blocks:
        for block in blocks:
            content += block
    return content


def lines_of_file(path: Path, limits: Limits) -> Generator[str, None, None]:
    """Read the lines of a text file without their line endings. UTF-16 is supported because PowerShell writes it.

    Raises
    ------
    TraceError
        For the same reasons as in `blocks_of_file`, and if a line is too long to be held in memory.
    """
    rest, decoder = "", None
    with closing(blocks_of_file(path, limits)) as blocks:
        for block in blocks:
            if decoder is None:
                utf_16 = block.startswith((b"\xff\xfe", b"\xfe\xff"))
                decoder = codecs.getincrementaldecoder("utf-16" if utf_16 else "utf-8-sig")("replace")
            lines = (rest + decoder.decode(block)).split("\n")
            rest = lines.pop()
            if max(map(len, (rest, *lines))) > _LONGEST_LINE:
                raise TraceError(f"{path} was not read: it has a line of more than {_LONGEST_LINE:,} characters.")
            for line in lines:
                yield line.rstrip("\r")
    yield rest.rstrip("\r")


def refuse_many_values(text: bytearray, source: str, limits: Limits) -> None:
    """Raise an error if JSON that is about to be decoded as a whole contains too many values.

    Four numbers or strings take as much memory as one list or object. Brackets inside strings are also counted.
    """
    if text.count(b"{") + text.count(b"[") + text.count(b",") // 4 > limits.most_events:
        raise too_many(source, limits.most_events)


def too_many(source: str, most: int) -> TraceError:
    """Return an error for a file that contains too many values."""
    return TraceError(
        f"{source} was not read: it contains more than {most:,} events, names and values; if you trust it, raise "
        "max_events."
    )


def too_deep(source: str) -> TraceError:
    """Return an error for values that are nested too deeply."""
    return TraceError(f"{source} was not read: its values are nested more than {MAX_DEPTH} levels deep.")
