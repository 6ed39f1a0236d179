"""Everything that `perfnb.load` reads.

A kind of file or folder is one `Loader` in the room it belongs to, and one line in `LOADERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from perfnb.trace.trace_file import Limits

#: Asked in this order: put a specific kind before a general one.
LOADERS = (
    "perfnb.profile.loading:LOADER",
    "perfnb.watching.saved:LOADER",
    "perfnb.experiments.report_files:LOADER",
    "perfnb.profile.timing:LOADER",
    "perfnb.ranks.saved:LOADER",
    "perfnb.ranks.saved:FOLDER_OF_TRACES",
    "perfnb.memory.snapshot.snapshot:LOADER",
    "perfnb.profile.loading:TRACE",
)
#: Reads a list of traces, given their paths, `Limits` and the executor: the ranks of one job.
SEVERAL = "perfnb.ranks.saved:load_traces"


@dataclass(frozen=True)
class Loader:
    """Something that `perfnb.load` reads.

    Attributes
    ----------
    what : str
        As errors list it: ``saved watches``.
    recognise : callable
        Whether a path is one, by its content.
    load : callable
        Makes the public object from the path, `Limits`, and the executor for several files, if the user gave one.
    """

    what: str
    recognise: Callable[[Path], bool]
    load: Callable[[Path, Limits, Executor | None], Any]


def loaders() -> Iterator[Loader]:
    """Every loader, in the order in which they are asked; its room is imported when its turn comes."""
    return map(resolve_name, LOADERS)
