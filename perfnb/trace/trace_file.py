"""Find the format of a trace file, and read its text in blocks, unpacked on the fly, within limits.

A format is one module in this folder with a `READER`, and one line in `READERS`.
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

#: The readers in the order of recognition: put a specific format before a general one.
READERS = (
    "perfnb.trace.xplane:READER",
    "perfnb.trace.perfetto:READER",
    "perfnb.trace.nsys:READER",
    "perfnb.trace.nsys:REPORT",
    "perfnb.trace.rocprof:READER",
    "perfnb.trace.chrome_events:READER",
    "perfnb.trace.kineto:READER",
)
#: The reference in errors about an unknown file.
FORMATS_ARE = 'help(perfnb.load) and "File formats" in the documentation list the formats'
#: The unpacked bytes of a file that its format is recognised by.
HEAD = 2**16
#: A callback with the bytes of the file done so far, and its size.
OnProgress = Callable[[int, int], None]

_BLOCK = 2**20
#: The most bytes and events of a format that is read piece by piece, and of one that is decoded whole.
_PIECEWISE, _WHOLE = (8 * 2**30, 25_000_000), (256 * 2**20, 4_000_000)
#: The most values inside values. Python's own recursion limit is higher.
MAX_DEPTH = 200
#: The letters of one text that are kept: many events may refer to the same text, and each would copy it.
MOST_TEXT = 16_384
#: The letters of all the distinct texts of a file, for each event that a format decoded whole may hold.
LETTERS = 64
#: The bytes of UTF-8 that surely spell more letters than are kept.
MOST_TEXT_BYTES = 4 * MOST_TEXT + 4
#: The most letters in a line of text.
_LONGEST_LINE = 2**20
#: The seconds after which progress is reported, and between two reports.
QUIET_S, _EVERY_S = 2.0, 0.2
#: Real traces unpack to 15 to 30 times their size. A file that unpacks to more than the first number is refused, from
#: the second number of bytes on.
_MOST_RATIO, _RATIO_FROM = 200, 32 * 2**20
GZIP = b"\x1f\x8b"
#: The compressed bytes that are unpacked together: few, because the bytes after the end of a part are copied for each
#: part.
_PACKED_BLOCK = 2**14
#: Descriptions of files that no reader recognises, by their first bytes.
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
    """The limits beyond which a reader refuses a file. Limits that are not specified have defaults.

    Formats that are read piece by piece have higher limits than formats whose whole content is in memory at once. For
    the latter, the defaults keep a hostile file's memory below 2 GiB, because each value that is kept takes up to 200
    bytes, regardless of its size in the file.

    Attributes
    ----------
    max_bytes : int, optional
        The maximum size of the unpacked content in bytes.
    max_events : int, optional
        The maximum number of events of any kind. In a format that is decoded as a whole, names and values also count.
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
    """Return a text from a file. A text that is far longer than any name is cut and ends in "…"."""
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


class Kept:
    """Counts the values that a file makes its reader keep in memory.

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
            If this exceeds the limit.
        """
        self._count += count
        self._letters += len(text)
        if self._count > self._most:
            raise too_many(self._source, self._most)
        if self._letters > self._most_letters:
            raise TraceError(
                f"{self._source} was not read: its names have more than {self._most_letters:,} characters in all; if "
                "you trust it, raise max_events."
            )


LIMITS = Limits()


@dataclass(frozen=True)
class Reader:
    """A trace format.

    Attributes
    ----------
    endings : tuple of str
        The lower-case file name endings by which traces in a folder are found.
    recognise : callable
        Returns whether a file has this format, given its path and the first `HEAD` bytes of its unpacked content.
    read : callable
        Reads a file, given its path, `Limits` and a progress callback. If it returns a list, it contains the ranks of
        one job, in order. Raises `TraceError` if the file is damaged or exceeds a limit.
    caveats : tuple of str
        Notes on data that the format cannot record. They are included in a profile's notes.
    guess_steps : bool
        Whether to use a repeating range as the mark of a step, because the format has no step marks.
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
    """Return the first reader that recognises a file, or ``None`` if none does."""
    head = head_of(path)
    return next((reader for reader in readers() if reader.recognise(path, head)), None)


def looks_like(path: Path) -> str:
    """Describe, in parentheses, a file that no reader recognises, if its first bytes reveal its kind.

    The first bytes are never quoted.
    """
    head = head_of(path)
    return next((f" (it is {what})" for magic, what in _MAGIC.items() if head.startswith(magic)), "")


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file's content.

    If they cannot be unpacked, they are returned packed, and if they cannot be read, the result is empty.
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
    """Return the blocks of a text that is in memory."""
    view = memoryview(data)
    return (view[start : start + _BLOCK] for start in range(0, len(view), _BLOCK))


def blocks_of_file(path: Path, limits: Limits, progress: OnProgress | None = None) -> Generator[bytes, None, None]:
    """Read the blocks of a file's content, unpacked if it is compressed with gzip.

    Raises
    ------
    TraceError
        If the file cannot be read, is damaged, or is too large, either packed or unpacked.
    """
    try:
        with open_regular(path) as file:
            yield from _blocks(file, path, limits.most_bytes, progress)
    except IsADirectoryError as error:
        raise TraceError(f"{path} cannot be read as a trace: it is a folder; pass a file in it.") from error
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
                f"{path} was not read: it unpacks to {done // place:,} times its size, more than any trace; if you "
                "trust it, unpack it first."
            )
        yield block
        report(place)


def _unpacked(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Unpack a file that consists of one or more parts compressed with gzip, at most `_BLOCK` bytes at a time."""
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
    """Reports progress in a file a few times per second, if reading it takes long.

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
        """Report that this many bytes are done, if the next report is due."""
        now = time.monotonic()
        due = now - self._last >= _EVERY_S or done == self._length
        if self._progress is not None and now - self._start >= QUIET_S and due:
            self._last = now
            self._progress(done, self._length)


def whole_file(path: Path, limits: Limits, progress: OnProgress | None = None) -> bytearray:
    """Return a file's unpacked content, within the limits. Errors are as in `blocks_of_file`."""
    content = bytearray()
    with closing(blocks_of_file(path, limits, progress)) as blocks:
        for block in blocks:
            content += block
    return content


def lines_of_file(path: Path, limits: Limits) -> Generator[str, None, None]:
    """Read the lines of a text without their line endings. PowerShell's redirection writes UTF-16.

    Raises
    ------
    TraceError
        As in `blocks_of_file`, and also if a line is too long to be kept in memory.
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
                raise TraceError(f"{path} was not read: it has a line of more than {_LONGEST_LINE:,} letters.")
            for line in lines:
                yield line.rstrip("\r")
    yield rest.rstrip("\r")


def refuse_many_values(text: bytearray, source: str, limits: Limits) -> None:
    """Refuse JSON with too many values before it is decoded as a whole. Brackets in texts also count.

    Four numbers or texts take as much memory as one list or object.
    """
    if text.count(b"{") + text.count(b"[") + text.count(b",") // 4 > limits.most_events:
        raise too_many(source, limits.most_events)


def too_many(source: str, most: int) -> TraceError:
    """Return an error about a file that contains too much."""
    return TraceError(
        f"{source} was not read: it holds more than {most:,} events, names and values; if you trust it, raise "
        "max_events."
    )


def too_deep(source: str) -> TraceError:
    """Return an error about values that are nested too deeply."""
    return TraceError(f"{source} was not read: it holds more than {MAX_DEPTH} values inside each other.")
