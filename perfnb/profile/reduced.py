"""Reduce a profile to its tables, which contain a few hundred rows, without events, allocations and counted ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from perfnb.findings.finding import Conclusion, Findings
from perfnb.findings.proposed_code import REMEDIES, is_own_line
from perfnb.profile.summary import Summary, summarize
from perfnb.recording.recording import Recording
from perfnb.recording.saved_profile import REDUCED_TABLES
from perfnb.recording.schema import conform

_NOTE = "This profile was reduced to its tables when it was created: it has no timeline, memory curve or roofline."


@dataclass(frozen=True)
class ReducedProfile:
    """The part of a reduced profile that is kept in memory instead of its recording."""

    kept: Recording
    tables: Mapping[str, pd.DataFrame]

    @property
    def meta(self) -> Mapping[str, Any]:
        """The same as `Recording.meta`, with the additional entry ``reduced``."""
        return self.kept.meta

    def of_rank(self, rank: int) -> ReducedProfile:
        """Return a copy of the profile that belongs to a rank."""
        return replace(self, kept=replace(self.kept, meta={**self.meta, "rank": rank}))

    def recording(self) -> Recording:
        """Return the recording without the parts that were dropped."""
        return self.kept

    def table(self, name: str, made_by: str | None) -> pd.DataFrame | None:
        """Return the table with the given name, or ``None`` if it does not exist."""
        return self.tables[name].copy() if name in self.tables else None


def reduced(recording: Recording, summary: Summary, tables: Callable[[str], pd.DataFrame]) -> ReducedProfile:
    """Reduce a profile to its tables, verdict and findings."""
    found = summary.findings
    facts = {
        "notes": list(summary.notes),
        "verdict": None if found is None else [found.verdict.verdict, found.verdict.why, found.verdict.next],
        "finding": None if found is None else found.verdict.finding,
        "step_ms": None if found is None else found.step_ms,
        "findings": [] if found is None else _records(found.table),
    }
    kept = replace(
        recording,
        events=_emptied(recording.events),
        spans=recording.spans.iloc[:0],
        meta={**recording.meta, "reduced": facts},
        memory=None,
        arithmetic=None,
        outside=None,
        trace_memory=None,
    )
    return ReducedProfile(kept, {name: tables(name) for name in REDUCED_TABLES})


def summary_of_tables(recording: Recording, table: Callable[[str], pd.DataFrame]) -> Summary:
    """Return the contents of a reduced profile's report."""
    facts = recording.meta["reduced"]
    phases = table("phases")
    findings: Findings | None = None
    if facts["verdict"] is not None:
        rows = [_checked(dict(finding)) for finding in facts["findings"]]
        found = conform(pd.DataFrame(rows), "findings")
        row = facts["finding"] if facts["finding"] is not None and facts["finding"] < len(found) else None
        verdict, why, then = facts["verdict"]
        findings = Findings(found, Conclusion(verdict, why, then, row), facts["step_ms"])
    return replace(
        summarize(recording),
        traced_ms=float(phases["ms"].sum()) if len(phases) else None,
        phases=phases,
        layers=table("layers"),
        ops=table("ops"),
        layer_ops=table("layer_ops"),
        notes=(*facts["notes"], _NOTE),
        findings=findings,
    )


def _checked(finding: dict[str, Any]) -> dict[str, Any]:
    """Return a finding without any code or lever that perfnb would not propose.

    This check is needed because the file may have been edited.
    """
    code, lever = finding["code"], finding["remedy"]
    return finding | {"code": code if is_own_line(code) else "", "remedy": lever if lever in REMEDIES else ""}


def _emptied(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of a data frame without any rows or index names."""
    empty = frame.iloc[:0].copy()
    for name in empty.select_dtypes("category"):
        empty[name] = empty[name].cat.remove_unused_categories()
    return empty


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of ``findings`` as plain values."""
    plain = table.astype(object).where(table.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]
