"""Find all results that perfnb has saved below a folder, read each of them once, and cache them in a file.

The facts about each entry are cached in a hidden file in the folder, together with the state of the files from which
they were read. An entry is not read again unless its files have changed. Paths are relative, so the folder can be
moved. Each process replaces the file with its own findings. They are always correct, so no lock is needed. If the file
is missing, damaged or from another version, it is created again. If the folder is not writable, its entries are read
each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from perfnb.analysis_version import analysis_version
from perfnb.errors import RecordingError
from perfnb.experiments.journal_files import ENTRY, ENTRY_NAME, UNREAD, JournalEntry, entry_in
from perfnb.files import open_regular, read_regular, write_file
from perfnb.recording.job import RANKS
from perfnb.recording.outcome import Outcome
from perfnb.recording.reading import rank_of_name
from perfnb.recording.saved_profile import PROFILE
from perfnb.recording.store import UNREADABLE, SavedKind, facts_in

#: The names of the kinds of saved folders. The kind of an added entry comes before the kinds of its contents.
WORDS = (ENTRY.word, RANKS.word, PROFILE.word, "run", "report", "timing", "watch", "host_profile", UNREAD.word)
_OF_RANKS = (PROFILE.word, "run")
#: The index file and its version. Increase the number if this module reads entries differently.
INDEX, _VERSION = ".perfnb-journal.json", f"1 {analysis_version()}"
#: Limits that no journal should reach: the size of the file in bytes, the number of folders, their depth, and the
#: number of names in a folder.
_LARGEST, _MOST_FOLDERS, _DEEPEST, _MOST_NAMES = 2**28, 200_000, 40, 100_000
#: The first bytes of files written by perfnb.
_MARK = b'"format": "perfnb"'
#: The files that identify an entry's folder if the file with its facts is missing.
_HALF = frozenset(("events.parquet", "steps.parquet", "modules.parquet"))


class SavedEntry(Struct, frozen=True, kw_only=True):
    """The known facts about a saved result.

    Attributes
    ----------
    kind : str
        The name of its kind, or an empty string if perfnb did not save it.
    at : datetime
        The time when it was measured or added.
    outcome : Outcome or None
        The outcome. If there are several ranks, this is the outcome of the slowest rank.
    added : JournalEntry or None
        The entry, if it was added by a person.
    environment : mapping
        Facts about the machine and the software that are not in `outcome`.
    profiles : tuple of (str, int or None)
        The folders of the profiles in it, relative to its own folder, and the ranks of the profiles.
    ranks : int
        The number of ranks, if it is a job.
    damaged : str
        The reason why it cannot be read, or an empty string if it can be read.
    """

    kind: str
    at: datetime
    outcome: Outcome | None = None
    added: JournalEntry | None = None
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    profiles: tuple[tuple[str, int | None], ...] = ()
    ranks: int = 1
    damaged: str = ""


class _Index(Struct):
    version: str
    entries: dict[str, tuple[str, SavedEntry]]


@dataclass
class Catalogue:
    """All results that perfnb has saved below a folder. Entries that have changed are read again.

    Attributes
    ----------
    folder : Path
    limits : str
        A note about entries that were omitted because the folder is too large, or an empty string if there are none.
    """

    folder: Path
    limits: str = ""
    _known: dict[str, tuple[str, SavedEntry]] | None = None
    _seen: dict[str, tuple[str, SavedEntry]] = field(default_factory=dict)

    def entries(self) -> dict[str, SavedEntry]:
        """Return all entries by path, in chronological order.

        Raises
        ------
        RecordingError
            If the path is not a folder, or if the folder cannot be listed. A folder that does not exist yet is treated
            as empty.
        """
        if not self.folder.exists():
            return {}
        try:
            os.scandir(self.folder).close()
        except OSError as error:
            raise RecordingError(f"{self.folder} cannot be read as a journal: {error}.") from error
        if self._known is None:
            self._known = _remembered(self.folder)
        self._seen = {}
        found = dict(self._walk())
        if self._seen != self._known and found:
            with suppress(OSError):
                content = msgspec.json.encode(_Index(_VERSION, self._seen))
                write_file([content], self.folder / INDEX)
        self._known = self._seen
        return dict(sorted(found.items(), key=lambda item: (item[1].at, item[0])))

    def _walk(self) -> Iterator[tuple[str, SavedEntry]]:
        """Search all folders for entries, without following links. The folders inside an entry are not searched."""
        self.limits = ""
        waiting, looked = [(".", 0)], 0
        while waiting:
            place, depth = waiting.pop()
            looked += 1
            try:
                with os.scandir(self.folder / place) as inside:
                    listed = list(islice(inside, _MOST_NAMES))
                folders = [one.name for one in listed if one.is_dir(follow_symlinks=False)]
            except OSError as error:
                yield _shown(place), SavedEntry(kind="folder", at=_modified(self.folder / place), damaged=_words(error))
                continue
            if (entry := self._entry_at(place, {one.name for one in listed})) is not None:
                yield _shown(place), entry
            elif depth == _DEEPEST or looked + len(waiting) > _MOST_FOLDERS:
                self.limits = f"Only {_MOST_FOLDERS:,} folders, at most {_DEEPEST} levels deep, were searched."
            else:
                below = sorted((name for name in folders if not name.startswith((".", "__pycache__"))), reverse=True)
                waiting += [(name if place == "." else f"{place}/{name}", depth + 1) for name in below]

    def _entry_at(self, place: str, names: set[str]) -> SavedEntry | None:
        """Return the entry in a folder that contains these names, from the index or by reading it, or ``None``."""
        folder = self.folder / place
        word = next((word for word in WORDS if f"{word}.json" in names), None)
        if word is None:
            lost = ENTRY if ENTRY_NAME.fullmatch(folder.name) else PROFILE if names >= _HALF else None
            return None if lost is None else _damaged(lost.word, folder, f"it has no {lost.file}")
        ranks = sorted(name for name in names if name.startswith("rank_")) if word == RANKS.word else []
        files = [folder / rank / f"{kind}.json" for rank in ranks for kind in _OF_RANKS]
        state = " ".join(map(_state, (folder / f"{word}.json", *files)))
        known = (self._known or {}).get(place)
        if known is not None and known[0] == state:
            entry = known[1]
        else:
            entry = _read(folder, word, ranks)
            has_frames = bool(ranks) or any(name.endswith(".parquet") for name in names)
            if entry.damaged and not (has_frames or _is_ours(folder / f"{word}.json")):
                entry = structs.replace(entry, kind="")  # another program's file with the same name
        if place.isprintable():
            self._seen[place] = (state, entry)
        elif entry.kind:
            return _damaged(entry.kind, folder, "its name contains characters that cannot be displayed")
        return entry if entry.kind else None


def _remembered(folder: Path) -> dict[str, tuple[str, SavedEntry]]:
    """Return the contents of the index, which are empty if it cannot be used."""
    try:
        index = msgspec.json.decode(read_regular(folder / INDEX, _LARGEST), type=_Index)
    except UNREADABLE:
        return {}
    return index.entries if index.version == _VERSION else {}


def _state(file: Path) -> str:
    """Return a text that changes whenever the file is replaced or edited, or an empty string if there is no file."""
    try:
        found = file.stat()
    except OSError:
        return ""
    return f"{found.st_mtime_ns:x}.{found.st_ctime_ns:x}.{found.st_size:x}.{found.st_ino:x}"


def _read(folder: Path, word: str, ranks: Sequence[str] = ()) -> SavedEntry:
    """Read the facts about the result that is saved in a folder."""
    try:
        if word == ENTRY.word:
            entry = _added(folder)
        elif word == RANKS.word:
            entry = _job(folder, ranks)
        else:
            entry = _saved(folder, word)
        msgspec.json.encode(entry)  # perfnb never writes facts that cannot be stored in the index
        return entry
    except (*UNREADABLE, TypeError) as error:
        return _damaged(word, folder, _words(error))


def _saved(folder: Path, word: str) -> SavedEntry:
    file = folder / f"{word}.json"
    facts, outcome = facts_in(SavedKind(word, dict[str, Any]), file)
    given = facts.get("environment")
    if outcome is None:  # the kind has no outcome, or the entry is from an earlier version
        name = facts.get("name")
        outcome = Outcome(at=_modified(file), name=name if isinstance(name, str) else folder.name)
    return SavedEntry(
        kind=word,
        at=outcome.at.astimezone(UTC),
        outcome=outcome,
        environment=outcome.environment or (given if isinstance(given, dict) else {}),
        profiles=((".", rank if type(rank := facts.get("rank")) is int else None),) if word == PROFILE.word else (),
        damaged=str(facts.get("reason", "it was not read")) if word == UNREAD.word else "",
    )


def _added(folder: Path) -> SavedEntry:
    added = entry_in(folder / ENTRY.file)
    return of_added(added, _read(folder / added.kind, added.kind))


def of_added(added: JournalEntry, inside: SavedEntry | None = None) -> SavedEntry:
    """Return an added entry, with the facts about the result inside it if that can be read."""
    found = None if inside is None else inside.outcome
    known: dict[str, Any] = {
        name: str(value) for name in ("host", "torch", "commit") if (value := added.environment.get(name)) is not None
    }
    return SavedEntry(
        kind=added.kind,
        at=added.time,
        outcome=found
        or Outcome(
            at=added.time,
            name=added.name,
            step_ms=added.median_ms,
            step_ci_ms=added.ci_ms,
            peak_bytes=added.peak_memory_bytes,
            batch_size=added.batch_size,
            device=str(added.environment.get("processor") or "") or None,
            **known,
        ),
        added=added,
        environment=added.environment,
        profiles=() if inside is None else tuple((added.kind, rank) for _, rank in inside.profiles),
    )


def _job(folder: Path, ranks: Sequence[str]) -> SavedEntry:
    """Combine a job's ranks into one entry, with the slowest rank's outcome and the largest peak."""
    facts_in(RANKS, folder / RANKS.file)
    kinds = [(rank, kind) for rank in ranks for kind in _OF_RANKS if (folder / rank / f"{kind}.json").exists()]
    read = {rank: _read(folder / rank, kind) for rank, kind in kinds}
    found = {rank: entry for rank, entry in read.items() if entry.outcome is not None and not entry.damaged}
    if not found:
        why = next((f"{rank}: {entry.damaged}" for rank, entry in read.items()), "none of its ranks saved anything")
        return _damaged(RANKS.word, folder, why)
    slowest = max(found.values(), key=lambda entry: (entry.outcome and entry.outcome.step_ms) or 0.0)
    assert slowest.outcome is not None
    peaks = [entry.outcome.peak_bytes for entry in found.values() if entry.outcome and entry.outcome.peak_bytes]
    return structs.replace(
        slowest,
        outcome=structs.replace(slowest.outcome, peak_bytes=max(peaks, default=None)),
        profiles=tuple((rank, rank_of_name(rank)) for rank, entry in found.items() if entry.profiles),
        ranks=len(found),
    )


def _damaged(word: str, folder: Path, why: str) -> SavedEntry:
    return SavedEntry(kind=word, at=_modified(folder / f"{word}.json"), damaged=why)


def _modified(file: Path) -> datetime:
    """Return the time when a file or, if it does not exist, its folder was last written."""
    for place in (file, file.parent):
        with suppress(OSError, ValueError, OverflowError):
            return datetime.fromtimestamp(place.stat().st_mtime, UTC)
    return datetime.now(UTC)


def _is_ours(file: Path) -> bool:
    """Return whether an unreadable file was written by perfnb or is in a place where an entry is expected."""
    if ENTRY_NAME.fullmatch(file.parent.name):
        return True
    with suppress(OSError), open_regular(file) as opened:
        return _MARK in opened.read(64)
    return False


def _words(error: BaseException) -> str:
    why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return " ".join(why.split())[:500]


def _shown(place: str) -> str:
    """Return a path as text that can be displayed and encoded."""
    return os.fsencode(place).decode("utf-8", "backslashreplace")
