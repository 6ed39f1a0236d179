"""Host profiles in files: which format a file has, and what `perfnb.load` makes of it."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from perfnb.flame.formats import Format, HostRecord, formats
from perfnb.flame.saved import HOST, load_record
from perfnb.recording.reading import Loader
from perfnb.trace.trace_file import LIMITS, Limits, head_of


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
    return found.read(path, limits)


def _load(path: Path, limits: Limits, _: Executor | None) -> Any:
    from perfnb.flame.host_profile import HostProfile

    return HostProfile(read_record(path, limits))


def _load_saved(path: Path, *_: object) -> Any:
    from perfnb.flame.host_profile import HostProfile

    return HostProfile(load_record(path))


LOADER = Loader(", ".join(each.what for each in formats()), lambda path: format_of(path) is not None, _load)
SAVED = Loader("saved host profiles", HOST.is_at, _load_saved)
