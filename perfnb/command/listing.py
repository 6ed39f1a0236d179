"""List the saved results in a folder, newest first."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perfnb import quantities as fmt
from perfnb.draw.document import Budget, Column, Document, Table, Verdict
from perfnb.errors import PerfnbError

if TYPE_CHECKING:
    from perfnb.ranks.ranks import Ranks

#: The maximum number of results that are read for the list.
_MOST = 30


class Entry(NamedTuple):
    """A saved result."""

    path: Path
    saved: float
    kind: str
    verdict: str


def saved_entries(paths: Iterable[Path]) -> tuple[list[Entry], int]:
    """Return the newest saved results, newest first, and the number of results that were left out."""
    from perfnb.profile.loading import load

    newest = sorted(((_saved(path), path) for path in paths), reverse=True)
    entries = []
    for saved, path in newest[:_MOST]:
        try:
            found = load(path)
            entries.append(Entry(path, saved, type(found).__name__, verdict_of(found)))
        except PerfnbError as error:
            entries.append(Entry(path, saved, "unreadable", str(error)))
    return entries, len(newest) - len(entries)


def unrelated_traces(found: Ranks, folder: Path) -> list[Entry]:
    """Return the traces in a folder, newest first. If they appear to be the ranks of one job, return nothing."""
    files = {rank: profile.meta.get("trace", {}) for rank, profile in zip(found.ranks, found, strict=True)}
    names = [str(facts.get("file", "")) for facts in files.values()]
    if len(files) < 2 or not all(names) or all(facts.get("rank_known") for facts in files.values()):
        return []
    if _numbered(names) or all(name.endswith(".xplane.pb") for name in names):  # one file per host
        return []
    paths = [folder / name for name in names]
    entries = [
        Entry(path, _saved(path), "trace", verdict_of(profile)) for path, profile in zip(paths, found, strict=True)
    ]
    return sorted(entries, key=lambda entry: -entry.saved)


def _numbered(names: list[str]) -> bool:
    """Check whether names only differ in a number that counts up from 0."""
    numbers = sorted({int(number) for name in names for number in re.findall(r"\d{1,9}", name)})
    made = {re.sub(r"\d+", "0", name) for name in names}
    return len(made) == 1 and set(range(len(names))) <= set(numbers)


def verdict_of(found: Any) -> str:
    """Return the verdict on a loaded result in one line or, if there is none, the kind of the result."""
    findings = getattr(getattr(found, "_summary", None), "findings", None)
    if (verdict := getattr(findings, "verdict", None)) is not None:
        return str(verdict.verdict)
    return repr(found).partition(": ")[2].removesuffix(">")


def folder_document(folder: str, entries: Sequence[Entry], rest: int) -> Document:
    """Return a document that lists the results in a folder, newest first."""
    first = shlex.quote(str(entries[0].path))
    rows = [(_below(entry.path, folder), entry.kind, _when(entry.saved)) for entry in entries]
    table = Table(
        "Newest first",
        (Column("name"), Column("kind"), Column("saved", priority=1)),
        rows,
        details=[entry.verdict for entry in entries],
        budget=Budget(_MOST, _MOST),
        noun="entry",
        names=[str(entry.path) for entry in entries],
        key="entries",
    )
    newest = f"{fmt.counted(len(entries) + rest, 'saved result')}. To see the newest:"
    notes = (f"Only the {len(entries):,} newest results are listed. {rest:,} others are not shown.",) if rest else ()
    verdict = Verdict("none", newest, code=f"perfnb show {first}")
    return Document("folder", folder, verdict=verdict, sections=(table,), notes=notes)


def _below(path: Path, folder: str) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _when(saved: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(saved))


def _saved(path: Path) -> float:
    """Return the time when a result was last written, in seconds since 1970."""
    times = [path.stat().st_mtime]
    if path.is_dir():
        times += [file.stat().st_mtime for file in list(path.iterdir())[:100]]
    return max(times)
