"""Store the entries that people add to a journal.

Each entry is a folder that contains the measured result. It is written under a hidden name next to the other entries
and then renamed, so writing is atomic. Names consist of the time and random digits, so processes can write concurrently
without a lock. Entries do not refer to anything outside their folder, so the journal can be moved.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from perfnb.arguments import shown
from perfnb.errors import RecordingError
from perfnb.files import usable
from perfnb.recording import store
from perfnb.recording.saved_facts import Amount, Count
from perfnb.recording.store import SavedKind, facts_in

ENTRY_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}")
#: The maximum number of bytes in an entry's facts. In the file, they are indented, which less than doubles their size.
_LARGEST = 1 << 20

#: The limits of plausible milliseconds and ratios, and of plausible years.
_Measured = Annotated[float, Meta(ge=1e-12, le=1e18)]
_Bounds = tuple[_Measured, _Measured]
_YEARS = (1970, 2200)
#: The maximum effect of rounding on an interval.
_SLACK = 1 - 1e-6


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """The facts about an entry, with times in milliseconds and 95 % intervals. Unknown facts are ``None``."""

    at: str  # the time when it was added, in UTC and ISO 8601
    kind: Literal["report", "profile", "timing"]  # the type of its contents, which are in a subfolder of that name
    name: str = ""  # the name of the step; only entries with the same name are compared
    hypothesis: str = ""  # the expected result
    change: str = ""  # the one thing that changed
    accepted: bool = False  # whether later entries are compared with this one
    decision: str | None = None  # for reports only, like `reason`
    reason: str | None = None
    median_ms: _Measured | None = None  # the step time; for reports, the candidate's
    ci_ms: _Bounds | None = None
    baseline_ms: _Measured | None = None  # for reports only
    baseline_ci_ms: _Bounds | None = None
    ratio: _Measured | None = None  # for reports only: candidate divided by baseline, from the pairs
    ratio_ci: _Bounds | None = None
    steps: Count = 0  # the number of timed steps or pairs
    batch_size: Count | None = None  # the number of samples per step
    throughput_per_s: Amount | None = None  # this field and the next two are as in a report
    utilisation: Amount | None = None
    peak_memory_bytes: Count | None = None
    disturbed: str = ""  # possible disturbances of the measurement
    environment: dict[str, Any] = field(default_factory=dict)  # can be written as JSON
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def time(self) -> datetime:
        """The time when the entry was added."""
        return datetime.fromisoformat(self.at).astimezone(UTC)


class UnreadFacts(TypedDict):
    """A trace of a fleet that could not be read."""

    name: str
    reason: str


ENTRY = SavedKind("entry", JournalEntry, largest=2 * _LARGEST)
UNREAD = SavedKind("unread", UnreadFacts)


def write_entry(journal: str | Path, entry: JournalEntry, save: Callable[[Path], object]) -> str:
    """Atomically add an entry to a journal's folder, and return its name.

    `save` is called with the folder where it must write the entry's contents.

    Raises
    ------
    RecordingError
        If the entry cannot be written or could not be read again.
    """
    target, facts = usable(journal), asdict(entry)
    try:
        text = json.dumps(facts, allow_nan=False, ensure_ascii=False)
        if len(text.encode()) > _LARGEST:  # encoding fails for half of a surrogate pair, which tables cannot store
            raise ValueError(f"its texts are larger than {_LARGEST:,} bytes")
        name = f"{_entry(json.loads(text)).time:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(4)}"
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise RecordingError(f"The entry cannot be written to {target}: {error}.") from error
    store.save(ENTRY, {}, facts, target / name, parts={entry.kind: save})
    return name


def entry_in(file: Path) -> JournalEntry:
    """Read and check an added entry.

    Raises
    ------
    NewerFormatError, or one of `UNREADABLE`
        The message describes the problem, without the file's name.
    """
    return _entry(facts_in(ENTRY, file)[0])


def _entry(facts: Mapping[str, Any]) -> JournalEntry:
    """Create an entry from its facts, after checking its date and intervals."""
    entry = msgspec.convert(facts, JournalEntry)
    try:
        year = entry.time.year
    except OverflowError:
        year = 0
    if not _YEARS[0] <= year <= _YEARS[1]:
        raise ValueError(f"its date is invalid: {entry.at[:40]}")
    for name, bounds in (("median_ms", "ci_ms"), ("baseline_ms", "baseline_ci_ms"), ("ratio", "ratio_ci")):
        value, inside = getattr(entry, name), getattr(entry, bounds)
        if value is not None and inside is not None and not inside[0] * _SLACK <= value <= inside[1] / _SLACK:
            raise ValueError(f"its {name} lies outside its interval")
    return entry


def entry_of(names: Sequence[str], wanted: str | int) -> str:
    """Find an entry by its name, the beginning of its name, or its number, which starts at 1, and return its full name.

    Raises
    ------
    KeyError
        If there is no such entry, or if there is more than one.
    """
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        place = wanted - 1 if wanted > 0 else len(names) + wanted
        if wanted and 0 <= place < len(names):
            return names[place]
        raise KeyError(f"there is no entry {shown(wanted)}: the journal has {len(names):,}, numbered from 1.")
    found = [name for name in names if name == wanted] or [name for name in names if name.startswith(str(wanted))]
    if len(found) == 1:
        return found[0]
    raise KeyError(f"{'more than one entry starts' if found else 'no entry starts'} with {shown(wanted)}.")
