"""The formats of host profiles that perfnb reads, each a module of this room, recognised by content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pandas as pd

from perfnb.stacks.tree import CallTree, Function
from perfnb.trace.trace_file import LIMITS, Limits, head_of

#: The formats in the order of recognition: put a specific format before a general one.
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
        The name of the file.
    format : str
        In words.
    unit : str
        Of the tree's values: ``ms``, ``samples``, ``bytes``, or ``none`` if the file does not name it.
    tree : CallTree or None
        ``None`` if nothing is known of the stacks; approximate if there are `calls`.
    calls : DataFrame or None
        For a format without stacks, one row per function: ``calls``, ``self_ms``, ``total_ms``, with `functions`.
    functions : tuple of Function
        Of `calls`.
    samples : int or None
        Number of samples.
    notes : tuple of str
        Facts that the file lacks.
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
    """A format of host profiles.

    Attributes
    ----------
    what : str
        The format in words: ``collapsed stacks``.
    recognise : callable
        Whether a file has this format, given the first bytes of its content, unpacked.
    read : callable
        Reads a file, given its path and `Limits`. Raises `TraceError` if it is damaged or exceeds a limit.
    """

    what: str
    recognise: Callable[[bytes], bool]
    read: Callable[[Path, Limits], HostRecord]


@cache
def formats() -> tuple[Format, ...]:
    """Return every format, in the order they are asked."""
    return tuple(resolve_name(name) for name in FORMATS)


def format_of(path: Path) -> Format | None:
    """Return the first format that recognises a file, ``None`` if none does."""
    head = head_of(path) if path.is_file() else b""
    return next((each for each in formats() if each.recognise(head)), None) if head else None


def read_record(path: Path, limits: Limits = LIMITS) -> HostRecord:
    """Read a host profile that another program wrote.

    Raises
    ------
    TraceError
        If it cannot be read.
    """
    found = format_of(path)
    assert found is not None  # asked before
    return found.read(path, limits.whole())


def text_of(data: bytes) -> str:
    """Return the characters of the start of a text; PowerShell's redirection writes UTF-16."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
