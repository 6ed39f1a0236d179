"""Define the host profile formats that perfnb reads. Each format is a module and is recognised by its content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pandas as pd

from perfnb.stacks.tree import CallTree, Function
from perfnb.trace.trace_file import LIMITS, Limits, head_of

#: The formats, in the order of recognition. A specific format must precede a general one.
FORMATS = (
    "perfnb.stacks.cprofile:FORMAT",
    "perfnb.stacks.speedscope:FORMAT",
    "perfnb.stacks.perf_script:FORMAT",
    "perfnb.stacks.collapsed:FORMAT",
)


@dataclass(frozen=True)
class HostRecord:
    """The contents of a host profile.

    Attributes
    ----------
    name : str
        The file's name.
    format : str
        The name of the format.
    unit : str
        The unit of the tree's values: ``ms``, ``samples``, ``bytes``, or ``none`` if the file does not specify it.
    tree : CallTree or None
        The stacks as a tree of calls. It is ``None`` if the stacks are unknown, and approximate if there are `calls`.
    calls : DataFrame or None
        For a format without stacks, one row for each of the `functions`, with ``calls``, ``self_ms`` and ``total_ms``.
    functions : tuple of Function
        The functions in `calls`.
    samples : int or None
        The number of samples.
    notes : tuple of str
        Notes about data that is missing from the file.
    """

    name: str
    format: str
    unit: str
    tree: CallTree | None = None
    calls: pd.DataFrame | None = None
    functions: tuple[Function, ...] = ()
    samples: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """A host profile format.

    Attributes
    ----------
    what : str
        The name of the format, for example ``collapsed stacks``.
    recognise : callable
        A function that returns whether a file has this format, given the first bytes of its uncompressed content.
    read : callable
        A function that reads a file, given its path and `Limits`. It raises `TraceError` if the file is damaged or
        exceeds a limit.
    """

    what: str
    recognise: Callable[[bytes], bool]
    read: Callable[[Path, Limits], HostRecord]


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats, in the order of recognition."""
    return tuple(resolve_name(name) for name in FORMATS)


def format_of(path: Path) -> Format | None:
    """Return the first format that recognises a file, or ``None`` if none does."""
    head = head_of(path) if path.is_file() else b""
    return next((each for each in formats() if each.recognise(head)), None) if head else None


def read_record(path: Path, limits: Limits = LIMITS) -> HostRecord:
    """Read a host profile that was written by another program.

    Raises
    ------
    TraceError
        If the file cannot be read.
    """
    found = format_of(path)
    assert found is not None  # the caller has already checked this
    return found.read(path, limits.whole())


def text_of(data: bytes) -> str:
    """Decode the start of a text file. Files that were redirected in PowerShell are encoded as UTF-16."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
