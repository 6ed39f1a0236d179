"""What `perfnb.load` makes of host profiles, in files of other tools and in perfnb's own folders."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from perfnb.recording.reading import Loadable
from perfnb.stacks.formats import format_of, read_record
from perfnb.stacks.saved import HOST, load_record
from perfnb.trace.trace_file import Limits


def _load(path: Path, limits: Limits, _: Executor | None) -> Any:
    from perfnb.flame.host_profile import HostProfile

    return HostProfile(read_record(path, limits))


def _load_saved(path: Path, *_: object) -> Any:
    from perfnb.flame.host_profile import HostProfile

    return HostProfile(load_record(path))


LOADABLE = Loadable("host profiles of other tools", lambda path: format_of(path) is not None, _load)
SAVED = Loadable("saved host profiles", HOST.is_at, _load_saved)
