"""Read host profiles from other tools' files and from perfnb's own folders, for `perfnb.load`."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from perfnb.recording.loadable import Loadable
from perfnb.stacks.formats import format_of, read_record
from perfnb.stacks.saved import HOST, load_record
from perfnb.trace.trace_file import Limits


def _load(path: Path, limits: Limits, _: Executor | None) -> Any:
    from perfnb.flame.host_profile import HostProfile

    return HostProfile(read_record(path, limits))


def _load_saved(path: Path, *_: object) -> Any:
    from perfnb.flame.host_profile import HostProfile

    return HostProfile(load_record(path))


LOADABLE = Loadable(lambda path: format_of(path) is not None, _load)
SAVED = Loadable(HOST.is_at, _load_saved)
