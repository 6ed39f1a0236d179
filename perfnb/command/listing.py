"""What several things in a folder are: a line each, newest first."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perfnb.draw import escape
from perfnb.errors import PerfnbError

if TYPE_CHECKING:
    from perfnb.ranks.ranks import Ranks

#: Most things that are read for the list.
_MOST = 30


class Entry(NamedTuple):
    """One of them."""

    path: Path
    saved: float
    kind: str
    verdict: str


def saved_entries(paths: Iterable[Path]) -> tuple[list[Entry], int]:
    """The newest of several saved things, newest first, and how many others there are."""
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
    """The traces of a folder, newest first, if nothing says that they are ranks of one job."""
    files = {rank: profile.meta.get("trace", {}) for rank, profile in zip(found.ranks, found, strict=True)}
    names = [str(facts.get("file", "")) for facts in files.values()]
    if len(files) < 2 or not all(names) or all(facts.get("rank_known") for facts in files.values()):
        return []
    if _numbered(names) or all(name.endswith(".xplane.pb") for name in names):  # a file per host
        return []
    paths = [folder / name for name in names]
    entries = [
        Entry(path, _saved(path), "trace", verdict_of(profile)) for path, profile in zip(paths, found, strict=True)
    ]
    return sorted(entries, key=lambda entry: -entry.saved)


def _numbered(names: list[str]) -> bool:
    """Whether names differ only in a number, which counts from 0."""
    numbers = sorted({int(number) for name in names for number in re.findall(r"\d{1,9}", name)})
    made = {re.sub(r"\d+", "0", name) for name in names}
    return len(made) == 1 and set(range(len(names))) <= set(numbers)


def verdict_of(found: Any) -> str:
    """The verdict on something that was loaded, or else what it is, in a line."""
    findings = getattr(getattr(found, "_summary", None), "findings", None)
    if (verdict := getattr(findings, "verdict", None)) is not None:
        return str(verdict.verdict)
    return str(found._line())


def lines_of(entries: Iterable[Entry], rest: int, width: int) -> Iterator[str]:
    """Each entry as lines for a terminal."""
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.saved))
        yield f"{when}  {escape.plain(str(entry.path), 200)}"
        yield from (f"    {line}" for line in escape.wrapped(escape.plain(entry.verdict, 500), width - 4))
    if rest:
        yield f"… {rest:,} more"


def _saved(path: Path) -> float:
    """When it was last written, in seconds since 1970."""
    times = [path.stat().st_mtime]
    if path.is_dir():
        times += [one.stat().st_mtime for one in list(path.iterdir())[:100]]
    return max(times)
