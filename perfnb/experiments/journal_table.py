"""Convert a journal's entries to DataFrames: all entries with their outcomes, and comparisons of added entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd
from msgspec import structs

from perfnb.experiments.journal_files import JournalEntry
from perfnb.experiments.journal_index import SavedEntry
from perfnb.recording.text import TEXT
from perfnb.stats.comparisons import compare_medians

#: The columns of the history after the index ``entry``, with their types.
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "number": "int64",
        "at": "datetime64[us, UTC]",
        **dict.fromkeys(("kind", "name", "hypothesis", "change", "decision", "reason"), TEXT),
        "accepted": "bool",
        **dict.fromkeys(("median_ms", "ci_low_ms", "ci_high_ms"), "Float64"),
        **dict.fromkeys(("baseline_ms", "baseline_ci_low_ms", "baseline_ci_high_ms"), "Float64"),
        **dict.fromkeys(("candidate_ratio", "candidate_ci_low", "candidate_ci_high"), "Float64"),
        **dict.fromkeys(("throughput_per_s", "utilisation"), "Float64"),
        "peak_memory_bytes": "Int64",
        "steps": "int64",
        "batch_size": "Int64",
        "against": TEXT,
        **dict.fromkeys(("ratio", "ratio_ci_low", "ratio_ci_high"), "Float64"),
        "verdict": TEXT,
        "regression": "bool",
        "also_changed": TEXT,
        "two_changes": "bool",
        "not_compared": TEXT,
        **dict.fromkeys(("disturbed", "host", "torch", "commit"), TEXT),
    }
)

#: The columns of the table of all entries after the index ``entry``, with their types.
TABLE: Mapping[str, str] = MappingProxyType(
    {
        "number": "Int64",
        "at": "datetime64[us, UTC]",
        **dict.fromkeys(("kind", "name", "commit", "host", "device", "torch"), TEXT),
        "batch_size": "Int64",
        **dict.fromkeys(("step_ms", "step_low_ms", "step_high_ms", "data_share"), "Float64"),
        "peak_bytes": "Int64",
        **dict.fromkeys(("verdict", "decision", "change", "hypothesis"), TEXT),
        "accepted": "bool",
        "ranks": "Int64",
        "damaged": TEXT,
    }
)
#: The columns of the findings of all entries, after the index ``entry``.
FINDINGS: Mapping[str, str] = MappingProxyType({"bottleneck": TEXT, "confidence": TEXT, "bound_ms": "Float64"})

#: Facts that may differ between runs without affecting speed. A commit contains the change itself.
_APART = {"at", "commit", "uncommitted"}
#: Facts that must be equal for the times to be comparable.
_DECISIVE = ("machine", "processor", "gpus", "cpus", "cpu_limit", "batch_size")


def entry_table(entries: Mapping[str, SavedEntry]) -> pd.DataFrame:
    """Return one row per entry, in the order given. See `Journal.table` for the columns.

    Only readable entries are numbered.
    """
    number, records = 0, []
    for entry in entries.values():
        number += not entry.damaged
        records.append(_row(entry) | {"number": None if entry.damaged else number})
    return _typed(records, list(entries), TABLE)


def finding_rows(entries: Mapping[str, SavedEntry]) -> pd.DataFrame:
    """Return one row for each finding in each entry."""
    found = [
        (path, one) for path, entry in entries.items() if entry.outcome is not None for one in entry.outcome.findings
    ]
    return _typed([structs.asdict(one) for _, one in found], [path for path, _ in found], FINDINGS)


def _row(entry: SavedEntry) -> dict[str, Any]:
    row: dict[str, Any] = {"at": entry.at, "kind": entry.kind, "accepted": False, "damaged": entry.damaged or None}
    if (found := entry.outcome) is not None:
        row = structs.asdict(found) | row | _ends("step_low_ms", "step_high_ms", found.step_ci_ms) | {"verdict": None}
        row |= {"decision" if entry.kind == "report" else "verdict": found.verdict, "ranks": entry.ranks}
    if (added := entry.added) is not None:
        row |= {"decision": added.decision, "change": added.change, "hypothesis": added.hypothesis}
        row |= {"name": added.name or row["name"], "accepted": added.accepted}
    return row


def _typed(records: Sequence[Mapping[str, Any]], names: Sequence[str], columns: Mapping[str, str]) -> pd.DataFrame:
    index = pd.Index(list(names), name="entry", dtype=TEXT)
    types: Any = dict(columns)
    return pd.DataFrame(records, index, columns=list(columns), dtype=object).astype(types)


@dataclass(frozen=True)
class _Reference:
    """The last accepted entry, which is the reference for later entries, and its time."""

    entry: str
    ms: float | None
    ci_ms: tuple[float, float] | None
    made: JournalEntry

    def changed(self, entry: JournalEntry) -> dict[str, tuple[str, str]]:
        """Return what differs in a later entry: environment, batch size and, if both are of the same kind, options."""
        changed = changes_between(self.made.environment, entry.environment)
        sizes = self.made.batch_size, entry.batch_size
        if None not in sizes and sizes[0] != sizes[1]:
            changed["batch_size"] = (str(sizes[0]), str(sizes[1]))
        return changed | (changes_between(self.made.options, entry.options) if self.made.kind == entry.kind else {})

    def comparable(self, entry: JournalEntry) -> bool:
        """Return whether the two times can be compared."""
        return not self.changed(entry).keys() & set(_DECISIVE)


def journal_history(
    entries: Mapping[str, JournalEntry], equal_within: float = 0.02, numbers: Mapping[str, int] | None = None
) -> pd.DataFrame:
    """Return one row per added entry, in chronological order. See `Journal.history` for the columns.

    The step time of an entry (for a report, of its baseline) is compared with the last accepted entry with the same
    name, machine and batch size. This is an accepted report's candidate, or an accepted profile or timing. If no entry
    has been accepted yet, the first entry with a time is used instead. The interval of `ratio` is computed by
    `compare_medians`. ``regression`` means that the verdict is "slower" and that the entry is not a trial of a lever,
    which does not change anything permanently.
    """
    last: dict[str, list[_Reference]] = {}
    records = []
    for number, (name, entry) in enumerate(entries.items(), start=1):
        known = last.setdefault(entry.name, [])  # at most one per machine and batch size, latest last
        reference = next((past for past in reversed(known) if past.comparable(entry)), None)
        against = reference or (known[-1] if known else None)
        records.append(
            _facts(number if numbers is None else numbers[name], entry) | _against(entry, against, equal_within)
        )
        if (new := _in_effect(name, entry, reference is None)) is not None:
            last[entry.name] = [*(past for past in known if not past.comparable(entry)), new]
    return _typed(records, list(entries), COLUMNS)


def _facts(number: int, entry: JournalEntry) -> dict[str, Any]:
    where = {key: entry.environment.get(key) for key in ("host", "torch", "commit")}
    return {
        **vars(entry),
        "number": number,
        "at": entry.time,
        **_ends("ci_low_ms", "ci_high_ms", entry.ci_ms),
        **_ends("baseline_ci_low_ms", "baseline_ci_high_ms", entry.baseline_ci_ms),
        "candidate_ratio": entry.ratio,
        **_ends("candidate_ci_low", "candidate_ci_high", entry.ratio_ci),
        "disturbed": entry.disturbed or None,
        **{key: None if value is None else str(value) for key, value in where.items()},
    }


def _ends(low: str, high: str, bounds: tuple[float, float] | None) -> dict[str, float | None]:
    return dict(zip((low, high), bounds or (None, None), strict=True))


def _against(entry: JournalEntry, reference: _Reference | None, equal_within: float) -> dict[str, Any]:
    """Compare an entry with its reference."""
    row: dict[str, Any] = {"ratio": None, "regression": False, "two_changes": False}  # the rest is unknown
    if reference is None:
        return row
    changed = reference.changed(entry)
    words_of = {key: f"{key} {old} → {new}" for key, (old, new) in changed.items()}
    others = [words for key, words in words_of.items() if not _named(entry.change, key, changed[key][1])]
    row["against"] = reference.entry
    row["also_changed"] = "; ".join(others) or None
    row["two_changes"] = len(others) + bool(entry.change) > 1
    row["not_compared"] = "; ".join(words_of[key] for key in _DECISIVE if key in words_of) or None
    ms, ci = (entry.baseline_ms, entry.baseline_ci_ms) if entry.kind == "report" else (entry.median_ms, entry.ci_ms)
    if row["not_compared"] is None and ms is not None and reference.ms is not None:
        compared = compare_medians(reference.ms, reference.ci_ms, ms, ci, equal_within)
        slower = compared.verdict == "slower" and not entry.options.get("lever")
        row |= {"ratio": compared.ratio, "verdict": compared.verdict, "regression": slower}
        row |= _ends("ratio_ci_low", "ratio_ci_high", compared.ratio_ci)
    return row


def _in_effect(name: str, entry: JournalEntry, first: bool) -> _Reference | None:
    """Return the new reference after an entry, or ``None`` if the reference does not change."""
    if not (entry.accepted or first):
        return None
    before = entry.kind == "report" and not entry.accepted  # in this case, its own baseline becomes the reference
    ms, ci = (entry.baseline_ms, entry.baseline_ci_ms) if before else (entry.median_ms, entry.ci_ms)
    return _Reference(name, ms, ci, entry) if entry.accepted or ms is not None else None


def changes_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the facts that are present in both entries but have different values."""
    both = [key for key in old if key in new and key not in _APART]
    return {key: (_short(old[key]), _short(new[key])) for key in both if old[key] != new[key]}


def _short(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _named(change: str, key: str, new: str) -> bool:
    """Return whether the description of a change mentions a fact, for example ``torch`` or ``num_threads=4``."""
    words = change.casefold()
    return (
        key.casefold() in words
        or key.replace("_", " ").casefold() in words
        or (len(new) > 2 and new.casefold() in words)
    )
