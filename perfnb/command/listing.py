"""Describe a folder with several results: the journal of what perfnb saved below it, and the raw traces in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from perfnb import quantities as fmt
from perfnb.draw.document import Column, Document, Table, Verdict
from perfnb.draw.documented import Documented
from perfnb.errors import PerfnbError
from perfnb.experiments.journal import journal
from perfnb.profile.loading import kind_of, load
from perfnb.ranks.ranks import FOLDER_OF_TRACES, Ranks

#: The maximum number of traces that are read for their verdicts.
_MOST = 30


class Folder(Documented):
    """The results in a folder.

    Parameters
    ----------
    path : str
    traces : iterable of Path
        The traces, or folders of traces.
    verdict_of : callable
        A function that returns the verdict on a trace.
    """

    def __init__(self, path: str, traces: Iterable[Path], verdict_of: Callable[[Path], str]) -> None:
        self._path, self._traces = path, sorted(traces, key=_saved, reverse=True)
        self._verdict_of = verdict_of

    def _document(self) -> Document:
        found, traces = journal(self._path)._document(), self._traces
        if not found.sections:
            sentence = f"{fmt.counted(len(traces), 'trace')}. To see the newest:"
            code = f"perfnb show {shlex.quote(str(traces[0]))}"
            found = Document("folder", self._path, verdict=Verdict("none", sentence, code=code))
        if not traces:
            return found
        table = Table(
            "Traces, newest first",
            (Column("name"), Column("saved", priority=1)),
            [(path.name, f"{datetime.fromtimestamp(_saved(path)):%Y-%m-%d %H:%M}") for path in traces],
            details=[self._verdict_of(path) if place < _MOST else "" for place, path in enumerate(traces)],
            noun="trace",
            names=[str(path) for path in traces],
            key="traces",
        )
        return replace(found, sections=(*found.sections, table))


def folder_with(path: str, inside: Iterable[Path]) -> Folder:
    """Return a folder that contains these results."""
    return Folder(path, [one for one in inside if kind_of(one) is FOLDER_OF_TRACES], _verdict)


def without_ranks(found: Ranks, path: str) -> Ranks | Folder:
    """Return the traces in a folder as the ranks of one job or, if they do not seem to be ranks, as a folder."""
    files = [profile.meta.get("trace", {}) for profile in found]
    names = [str(facts.get("file", "")) for facts in files]
    if len(files) < 2 or not all(names) or all(facts.get("rank_known") for facts in files):
        return found
    if _numbered(names) or all(name.endswith(".xplane.pb") for name in names):  # one file per host
        return found
    profiles = {Path(path, name): profile for name, profile in zip(names, found, strict=True)}
    return Folder(path, profiles, lambda one: profiles[one]._document().verdict.sentence)


def _verdict(path: Path) -> str:
    try:
        return load(path)._document().verdict.sentence
    except PerfnbError as error:
        return str(error)


def _numbered(names: Sequence[str]) -> bool:
    """Check whether names only differ in a number that counts up from 0."""
    numbers = {int(number) for name in names for number in re.findall(r"\d{1,9}", name)}
    return len({re.sub(r"\d+", "0", name) for name in names}) == 1 and numbers.issuperset(range(len(names)))


def _saved(path: Path) -> float:
    """Return the time when a trace or the newest file in a folder was last written, in seconds since 1970."""
    files = list(path.iterdir())[:100] if path.is_dir() else []
    return max(one.stat().st_mtime for one in (path, *files))
