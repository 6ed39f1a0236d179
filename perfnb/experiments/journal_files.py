"""A journal on disk: a folder with a folder an entry, each of them whole or not there at all.

An entry is written beside the others under a hidden name, and moved to its own in one stroke. Names are made of the
time and of random digits, so that several processes write without knowing of each other, and nothing refers to a place
outside its own folder, so that the journal can be moved. There is no index that could be stale, and no lock.
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
from typing import Any

import msgspec

from perfnb.arguments import shown
from perfnb.errors import RecordingError
from perfnb.files import new_folder, open_regular, usable
from perfnb.recording.folder import FORMAT, VERSION

#: What may be an entry's thing, which stands in a folder of that name in the entry.
KINDS = ("report", "profile", "timing")
#: The file that holds an entry's facts.
FACTS = "entry.json"

_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}")
#: No entry's facts are longer than this, in bytes.
_LARGEST = 1 << 20

#: What is measured lies between these: milliseconds, ratios, bytes; and the years in which one can have done it.
_LEAST, _MOST = 1e-12, 1e18
_YEARS = (1970, 2200)

_Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The facts of one entry; times in milliseconds, intervals of 95 %, ``None`` for what is not known.

    Attributes
    ----------
    at : str
        When it was added: UTC, ISO 8601.
    kind : str
        One of `KINDS`.
    name : str
        Of the step; only entries of one name are compared.
    hypothesis, change : str
        What was expected, and the one thing that was changed.
    accepted : bool
        Whether what was measured is what later entries are compared with.
    decision, reason : str or None
        Of a report.
    median_ms, ci_ms : float, tuple of float
        The step's time; of a report the candidate's.
    baseline_ms, baseline_ci_ms : float, tuple of float
        Of a report.
    ratio, ratio_ci : float, tuple of float
        Of a report, from its pairs: candidate by baseline.
    steps : int
        Steps, or pairs, that were timed.
    batch_size : int or None
        Samples that each of them worked on.
    throughput_per_s, utilisation, peak_memory_bytes
        As in a report on a change.
    disturbed : str
        What may have disturbed the measurement, in words.
    environment, options : dict
        JSON-able.
    """

    at: str
    kind: str
    name: str = ""
    hypothesis: str = ""
    change: str = ""
    accepted: bool = False
    decision: str | None = None
    reason: str | None = None
    median_ms: float | None = None
    ci_ms: _Bounds | None = None
    baseline_ms: float | None = None
    baseline_ci_ms: _Bounds | None = None
    ratio: float | None = None
    ratio_ci: _Bounds | None = None
    steps: int = 0
    batch_size: int | None = None
    throughput_per_s: float | None = None
    utilisation: float | None = None
    peak_memory_bytes: int | None = None
    disturbed: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def time(self) -> datetime:
        """When it was added."""
        return datetime.fromisoformat(self.at).astimezone(UTC)


@dataclass
class _File:
    format: str
    version: int
    meta: Entry


@dataclass
class _Head:
    format: str
    version: int


_FILE, _HEAD = msgspec.json.Decoder(_File), msgspec.json.Decoder(_Head)


def write_entry(journal: str | Path, entry: Entry, save: Callable[[Path], object]) -> str:
    """Add an entry, whole or not at all.

    Parameters
    ----------
    journal : str or Path
        The journal's folder, made where it is missing.
    entry : Entry
    save : callable
        Writes the entry's thing to the folder that it is given.

    Returns
    -------
    str
        The entry's name.

    Raises
    ------
    RecordingError
        If it cannot be written, or could not be read again.
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
    except (OSError, TypeError, ValueError, msgspec.MsgspecError) as error:  # the last three, of facts that are no JSON
        raise RecordingError(f"The entry cannot be written to {target}: {error}.") from error
    return name


def read_entries(journal: str | Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """Every entry by name, in the order of time, and what is wrong with those that cannot be read.

    Raises
    ------
    RecordingError
        If `journal` is no folder, or cannot be listed. One that does not exist yet has no entries.
    """
    source = usable(journal)
    try:
        # What begins with a dot is being written, or was when its writer was killed.
        names = [each.name for each in os.scandir(source) if not each.name.startswith(".")]
    except FileNotFoundError:
        return {}, {}
    except OSError as error:
        raise RecordingError(f"{source} cannot be read as a journal: {error}.") from error
    entries: dict[str, Entry] = {}
    damaged: dict[str, str] = {}
    for name in sorted(names):
        try:
            entries[name] = _read(source, name)
        except (FileNotFoundError, NotADirectoryError):
            if _NAME.fullmatch(name):  # else it is something of the user's
                damaged[name] = f"it has no {FACTS}"
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            damaged[name] = " ".join(str(error).split())
    return dict(sorted(entries.items(), key=lambda each: (each[1].time, each[0]))), damaged


def _read(journal: Path, name: str) -> Entry:
    with open_regular(f"{journal}/{name}/{FACTS}") as file:
        return _decoded(file.read(_LARGEST + 1))


def _decoded(content: bytes) -> Entry:
    if len(content) > _LARGEST:
        raise ValueError(f"its {FACTS} is larger than {_LARGEST:,} bytes")
    try:
        whole = _FILE.decode(content)
    except msgspec.ValidationError:
        head = _HEAD.decode(content)
        if head.version > VERSION:
            raise ValueError(f"it was written by a newer perfnb (form {head.version}): update perfnb") from None
        raise
    entry = whole.meta
    if whole.format != FORMAT or entry.kind not in KINDS:
        raise ValueError("it is not perfnb's, or of an unknown kind")
    if whole.version > VERSION:
        raise ValueError(f"it was written by a newer perfnb (form {whole.version}): update perfnb")
    if not all(_LEAST <= ms <= _MOST for ms in _times(entry)):
        raise ValueError("it holds a time that is none")
    if not all(0 <= count <= _MOST for count in _counts(entry)):
        raise ValueError("it holds a number that is out of range")
    try:
        year = entry.time.year
    except OverflowError:
        year = 0
    if not _YEARS[0] <= year <= _YEARS[1]:
        raise ValueError(f"it was not added at {entry.at[:40]}")
    return entry


def _counts(entry: Entry) -> list[float]:
    given = (entry.steps, entry.batch_size, entry.peak_memory_bytes, entry.throughput_per_s, entry.utilisation)
    return [count for count in given if count is not None]


def _times(entry: Entry) -> list[float]:
    bounds = [bound for pair in (entry.ci_ms, entry.baseline_ci_ms, entry.ratio_ci) if pair for bound in pair]
    return bounds + [ms for ms in (entry.median_ms, entry.baseline_ms, entry.ratio) if ms is not None]


def entry_of(entries: Mapping[str, Entry], wanted: str | int) -> str:
    """The name of an entry given by its name, the begin of it, or its number from 1; -1 is the last.

    Raises
    ------
    KeyError
        With a sentence, if there is none or more than one.
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
    raise KeyError(f"{'more than one entry begins' if found else 'no entry begins'} with {shown(wanted)}.")
