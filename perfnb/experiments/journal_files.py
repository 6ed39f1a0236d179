"""A journal on disk: a folder with one folder per entry, written atomically.

An entry is written under a hidden name next to the others and then renamed. Names consist of the time and random
digits, so that processes can write concurrently without a lock, and no entry refers to anything outside its folder, so
that the journal can be moved. There is no index that could go stale.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from perfnb.arguments import shown
from perfnb.errors import RecordingError
from perfnb.files import new_folder, open_regular, usable
from perfnb.recording.folder import FORMAT, VERSION
from perfnb.recording.saved_facts import Amount, Count

#: What an entry may hold, in a subfolder of that name.
KINDS = ("report", "profile", "timing")
#: File with an entry's facts.
FACTS = "entry.json"

_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}")
#: Largest size of that file, in bytes.
_LARGEST = 1 << 20

#: Plausible milliseconds and ratios; plausible years.
_Measured = Annotated[float, Meta(ge=1e-12, le=1e18)]
_Bounds = tuple[_Measured, _Measured]
_YEARS = (1970, 2200)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The facts of one entry; times in milliseconds, 95 % intervals, ``None`` if unknown."""

    at: str  # when it was added: UTC, ISO 8601
    kind: str  # one of `KINDS`
    name: str = ""  # name of the step; only entries of the same name are compared
    hypothesis: str = ""  # what was expected
    change: str = ""  # the one thing that changed
    accepted: bool = False  # whether later entries are compared with this one
    decision: str | None = None  # of a report, like `reason`
    reason: str | None = None
    median_ms: _Measured | None = None  # step time; of a report, the candidate's
    ci_ms: _Bounds | None = None
    baseline_ms: _Measured | None = None  # of a report
    baseline_ci_ms: _Bounds | None = None
    ratio: _Measured | None = None  # of a report, from its pairs: candidate divided by baseline
    ratio_ci: _Bounds | None = None
    steps: Count = 0  # timed steps or pairs
    batch_size: Count | None = None  # samples per step
    throughput_per_s: Amount | None = None  # this and the next two as in a report
    utilisation: Amount | None = None
    peak_memory_bytes: Count | None = None
    disturbed: str = ""  # what may have disturbed the measurement
    environment: dict[str, Any] = field(default_factory=dict)  # JSON-able
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def time(self) -> datetime:
        """When it was added."""
        return datetime.fromisoformat(self.at).astimezone(UTC)


@dataclass
class _Head:
    format: str
    version: int


@dataclass
class _File(_Head):
    meta: Entry


def write_entry(journal: str | Path, entry: Entry, save: Callable[[Path], object]) -> str:
    """Add an entry to a journal's folder, atomically, and return its name.

    `save` is called with the folder that it writes what the entry holds to.

    Raises
    ------
    RecordingError
        If it cannot be written, or could not be read back.
    """
    target = usable(journal)
    try:
        content = json.dumps(asdict(_File(FORMAT, VERSION, entry)), indent=1, allow_nan=False)
        _decoded(content.encode())
        target.mkdir(parents=True, exist_ok=True)
        name = f"{entry.time:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(4)}"
        with new_folder(target / name) as fresh:
            save(fresh / entry.kind)
            (fresh / FACTS).write_text(content, encoding="utf-8")
    except (OSError, TypeError, ValueError, msgspec.MsgspecError) as error:  # the last three: not valid JSON
        raise RecordingError(f"The entry cannot be written to {target}: {error}.") from error
    return name


def read_entries(journal: str | Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """All entries by name in chronological order, and what is wrong with those that cannot be read.

    Raises
    ------
    RecordingError
        If `journal` is not a folder or cannot be listed. One that does not exist yet has no entries.
    """
    source = usable(journal)
    try:
        # Names that start with a dot are being written, or their writer was killed.
        names = [each.name for each in os.scandir(source) if not each.name.startswith(".")]
    except FileNotFoundError:
        return {}, {}
    except OSError as error:
        raise RecordingError(f"{source} cannot be read as a journal: {error}.") from error
    entries: dict[str, Entry] = {}
    damaged: dict[str, str] = {}
    for name in sorted(names):
        try:
            with open_regular(f"{source}/{name}/{FACTS}") as file:
                entries[name] = _decoded(file.read(_LARGEST + 1))
        except (FileNotFoundError, NotADirectoryError):
            if _NAME.fullmatch(name):  # otherwise it belongs to the user
                damaged[name] = f"it has no {FACTS}"
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            damaged[name] = " ".join(str(error).split())
    return dict(sorted(entries.items(), key=lambda each: (each[1].time, each[0]))), damaged


def _decoded(content: bytes) -> Entry:
    if len(content) > _LARGEST:
        raise ValueError(f"its {FACTS} is larger than {_LARGEST:,} bytes")
    newer = "it was written by a newer perfnb (format {}): update perfnb"
    try:
        whole = msgspec.json.decode(content, type=_File)
    except msgspec.ValidationError:
        if (version := msgspec.json.decode(content, type=_Head).version) > VERSION:
            raise ValueError(newer.format(version)) from None
        raise
    entry = whole.meta
    if whole.format != FORMAT or entry.kind not in KINDS:
        raise ValueError("it is not a perfnb entry, or of an unknown kind")
    if whole.version > VERSION:
        raise ValueError(newer.format(whole.version))
    try:
        year = entry.time.year
    except OverflowError:
        year = 0
    if not _YEARS[0] <= year <= _YEARS[1]:
        raise ValueError(f"its date is invalid: {entry.at[:40]}")
    return entry


def entry_of(entries: Mapping[str, Entry], wanted: str | int) -> str:
    """Name of the entry given by its name, the start of it, or its number from 1; -1 is the last.

    Raises
    ------
    KeyError
        With a message, if there is none or more than one.
    """
    names = list(entries)
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        place = wanted - 1 if wanted > 0 else len(names) + wanted
        if wanted and 0 <= place < len(names):
            return names[place]
        raise KeyError(f"there is no entry {shown(wanted)}: the journal has {len(names):,}, numbered from 1.")
    found = [name for name in names if name == wanted or name.startswith(str(wanted))]
    if len(found) == 1 or (found and found[0] == wanted):
        return found[0]
    raise KeyError(f"{'more than one entry starts' if found else 'no entry starts'} with {shown(wanted)}.")
