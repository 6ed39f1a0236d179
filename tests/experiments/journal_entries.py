"""Made-up entries of a journal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd

from perfnb.draw.document import Document
from perfnb.experiments.journal_files import JournalEntry
from perfnb.experiments.journal_index import SavedEntry, of_added
from perfnb.experiments.journal_table import entry_table, journal_history
from perfnb.experiments.journal_trend import trend_changes, trend_rows
from perfnb.experiments.journal_view import journal_document

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
ENVIRONMENT: dict[str, Any] = {
    **{"torch": "2.13.0", "python": "3.12.1", "machine": "x86_64", "processor": "A processor", "cpus": 8, "gpus": []},
    **{"threads": 4, "host": "lab-3", "commit": "0123456789abcdef", "at": "2026-03-01T12:00:00+00:00"},
}


def timing_entry(hours: float = 0.0, ms: float = 10.0, wide: float = 0.01, **given: Any) -> JournalEntry:
    """Of a step that takes so long, known to `wide` of it, added so many hours after the first."""
    facts: dict[str, Any] = {
        "kind": "timing",
        "median_ms": ms,
        "ci_ms": (ms * (1 - wide), ms * (1 + wide)),
        "steps": 50,
        "environment": ENVIRONMENT,
    }
    return JournalEntry(at=(BEGIN + timedelta(hours=hours)).isoformat(), **facts | given)


def report_entry(hours: float, ms: float, ratio: float, decision: str, **given: Any) -> JournalEntry:
    """Of a candidate that takes `ratio` of a baseline of so many milliseconds."""
    candidate = timing_entry(hours, ms * ratio)
    facts: dict[str, Any] = {
        "kind": "report",
        "median_ms": candidate.median_ms,
        "ci_ms": candidate.ci_ms,
        "baseline_ms": ms,
        "baseline_ci_ms": (0.99 * ms, 1.01 * ms),
        "ratio": ratio,
        "ratio_ci": (0.995 * ratio, 1.005 * ratio),
        "decision": decision,
        "accepted": decision == "accept",
    }
    return timing_entry(hours, **facts | given)


OTHER = {**ENVIRONMENT, "torch": "2.14.0"}
ELSEWHERE = {**ENVIRONMENT, "processor": "Another", "cpus": 2}
TRIED = (
    timing_entry(0, 10.0, hypothesis="where we begin"),
    report_entry(2, 10.0, 0.8, "accept", change="fused optimizer"),
    report_entry(20, 8.05, 0.6, "reject", change="half precision everywhere, and nothing else at all"),
    report_entry(22, 8.0, 1.0, "inconclusive", change="channels last"),
    timing_entry(45, 9.1, change="a new loader", disturbed="the machine was busy before (load 9.0 on 8 CPUs)"),
    timing_entry(46, 7.0, change="no logging", environment=OTHER),
    timing_entry(47, 3.0, environment=ELSEWHERE),
    timing_entry(48, median_ms=None, ci_ms=None),
)
DAMAGED = {f"2026-{n}": "Input data was truncated" for n in range(6)}


def named(*entries: JournalEntry) -> dict[str, JournalEntry]:
    return {f"e{number}": entry for number, entry in enumerate(entries, start=1)}


def history(*entries: JournalEntry) -> pd.DataFrame:
    return journal_history(named(*entries))


def shown(
    *entries: JournalEntry | SavedEntry, damaged: Mapping[str, str] | None = None, where: str = "experiments"
) -> Document:
    """Return the journal of entries that were added or saved, in chronological order."""
    saved = {
        f"e{number}": of_added(entry) if isinstance(entry, JournalEntry) else entry
        for number, entry in enumerate(entries, start=1)
    }
    table = entry_table(saved)
    series = trend_rows(table, saved, "step_ms", ())
    changes, levels = trend_changes(series, saved, "step_ms", 0.02)
    added = {path: entry.added for path, entry in saved.items() if entry.added is not None}
    of_all = journal_history(added, numbers=table["number"].to_dict())
    return journal_document(table, of_all, series.assign(level=levels), changes, damaged or {}, where)
