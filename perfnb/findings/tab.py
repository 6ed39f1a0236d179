"""Describe the verdict and the findings as parts of a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw.document import Card, Cards, Document, Link, Verdict
from perfnb.draw.tab import Tab
from perfnb.findings.proposed_code import trial_line

if TYPE_CHECKING:
    from perfnb.findings.finding import Findings

#: How the kinds of rows that a finding may refer to are displayed.
KINDS = {
    "layer": "layer",
    "op": "op",
    "phase": "phase",
    "kernel": "kernel",
    "step": "timed step",
    "memory": "memory at",
    "rank": "rank",
}
#: The sections of the report that show rows of each kind.
_SECTIONS = {"layer": "layers", "op": "ops", "kernel": "kernels", "memory": "memory"}


def document_verdict(findings: Findings) -> Verdict:
    """Return the verdict on a step, which is based on a finding unless nothing stands out."""
    verdict = findings.verdict
    if verdict.finding is not None:
        return verdict_of_finding(findings, verdict.finding, "findings")
    return Verdict("open", verdict.verdict, verdict.why, verdict.next)


def verdict_of_finding(findings: Findings, place: int, selects: str = "") -> Verdict:
    """Return the verdict based on the finding with this index, with the reason if its confidence is low."""
    verdict = findings.verdict
    row = findings.table.iloc[place]
    confidence, reason = str(row["confidence"]), str(row["why"])
    why = verdict.why
    if confidence == "low" and reason and reason not in why:
        why += f" {reason}"
    return Verdict("bad", verdict.verdict, why, verdict.next, confidence=confidence, selects=selects)


def finding_cards(findings: Findings, title: str = "") -> Cards:
    """Return the findings, starting with the one that the verdict is based on.

    Sentences that the verdict already contains are omitted.
    """
    first = findings.verdict.finding
    order = sorted(range(len(findings.table)), key=lambda place: place != first)
    return Cards(title, tuple(_card(findings, findings.table.iloc[place]) for place in order), "findings")


def _card(findings: Findings, row: pd.Series) -> Card:
    saves_memory = fmt.known(row["bound_ms"]) is None and fmt.known(row["bound_bytes"]) is not None
    trial, verdict = trial_line(findings.call, row["remedy"], saves_memory), findings.verdict
    evidence, advice = str(row["evidence"]), str(row["advice"])
    return Card(
        str(row["bottleneck"]),
        _bound_words(row),
        fmt.known(row["bound_share"]),
        str(row["confidence"]),
        str(row["why"]),
        "" if evidence in verdict.why else evidence,
        "" if advice in verdict.next else advice,
        str(row["code"]),
        str(row["blind"]),
        trial if trial[1] else None,
        tuple(_link(subject) for subject in row["rows"]),
        str(row["remedy"]),
    )


def _link(subject: Mapping[str, Any]) -> Link:
    """Return a link to a row that a finding refers to."""
    kind, name = str(subject["kind"]), str(subject["name"])
    shown = fmt.duration(float(name)) if kind == "memory" else name
    return Link(_SECTIONS.get(kind, ""), name, f"{KINDS.get(kind, kind)} {shown}")


def _bound_words(row: pd.Series) -> str:
    """Describe how much time or memory a finding could save at most."""
    parts = []
    if fmt.known(row["bound_ms"]) is not None:
        parts.append(f"up to {fmt.duration(row['bound_ms'])} ({fmt.share(row['bound_share'])})")
    if fmt.known(row["bound_bytes"]) is not None:
        size = fmt.size(row["bound_bytes"])
        grows = row["bottleneck"] in ("memory may grow", "memory growth")  # each step adds these bytes
        parts.append(f"{size} more in use after the step" if grows else f"up to {size} of memory")
    return " and ".join(parts) or f"{fmt.UNKNOWN} (its cost is unknown)"


def findings_document(findings: Findings) -> Document:
    """Return a document with the findings about the step, most expensive first."""
    return Document("findings", sections=(finding_cards(findings, "What each costs at most per step"),), upfront=True)


def _shows(report: Any) -> Findings | None:
    findings: Findings | None = report.summary.findings
    return None if findings is None or findings.table.empty else findings


TAB = Tab("findings", _shows, findings_document)
