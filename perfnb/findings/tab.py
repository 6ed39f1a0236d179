"""The verdict and the findings as text, as HTML without scripts, and as data for the browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.document import Card, Cards
from perfnb.draw.tab import Tab
from perfnb.findings.code import trial_line

if TYPE_CHECKING:
    from perfnb.findings.finding import Findings

#: Labels of the three lines of a verdict.
HEADS = ("Verdict", "Why", "Next")
#: Words for the kinds of rows that a finding is about.
KINDS = {
    "layer": "layer",
    "op": "op",
    "phase": "phase",
    "kernel": "kernel",
    "step": "timed step",
    "memory": "memory at",
    "rank": "rank",
}

#: Width of the labels, and most characters of a sentence and of a line of code.
_WORDS, _SENTENCE, _CODE = 8, 2000, 300


def finding_cards(findings: Findings, title: str = "") -> Cards:
    """The findings, that of the verdict first, without the sentences that stand in the verdict already."""
    first = findings.verdict.finding
    order = sorted(range(len(findings.table)), key=lambda place: place != first)
    return Cards(title, tuple(_card(findings, findings.table.iloc[place]) for place in order), "findings")


def _card(findings: Findings, row: pd.Series) -> Card:
    trial, verdict = trial_line(findings.call, row["remedy"]), findings.verdict
    evidence, advice = str(row["evidence"]), str(row["advice"])
    return Card(
        str(row["bottleneck"]),
        bound_words(row),
        fmt.known(row["bound_share"]),
        str(row["confidence"]),
        str(row["why"]),
        "" if evidence in verdict.why else evidence,
        "" if advice in verdict.next else advice,
        str(row["code"]),
        str(row["blind"]),
        trial if trial[1] else None,
    )


def verdict_lines(findings: Findings) -> list[tuple[str, str]]:
    """The three lines with their labels; empty lines are left out."""
    verdict = findings.verdict
    lines = zip(HEADS, (verdict.verdict, verdict.why, verdict.next), strict=True)
    return [(head, words) for head, words in lines if words]


def verdict_text(findings: Findings, width: int) -> list[str]:
    """The verdict as lines of at most `width` cells."""
    lines: list[str] = []
    for head, words in verdict_lines(findings):
        wrapped = escape.wrapped(escape.plain(words, _SENTENCE), width - _WORDS)
        lines += [f"{'' if i else head:<{_WORDS}}{line}" for i, line in enumerate(wrapped)]
    return lines


def findings_text(findings: Findings, width: int) -> list[str]:
    """The findings as lines of at most `width` cells; none if nothing was found."""
    if not len(findings.table):
        return []
    lines = ["Findings (with the most that each could save per step)"]
    for place, (_, row) in enumerate(findings.table.iterrows(), start=1):
        head = f"{place}. {escape.plain(row['bottleneck'], 60)}: {bound_words(row)}, {row['confidence']} confidence"
        lines += escape.wrapped(head, width)
        trial = " ".join(trial_line(findings.call, row["remedy"])).strip()
        for words in filter(None, (row["evidence"], row["advice"] and f"Try: {row['advice']}", row["code"], trial)):
            lines += [f"   {line}" for line in escape.wrapped(escape.plain(words, _SENTENCE), width - 3)]
    return lines


def grows(row: Mapping[str, Any] | pd.Series) -> bool:
    """Whether the bytes of a finding are what a step adds to memory, rather than what a change would free."""
    return str(row["bottleneck"]) in ("memory may grow", "memory growth")


def bound_words(row: Mapping[str, Any] | pd.Series) -> str:
    """The most that a finding could save, in words."""
    said = []
    if fmt.known(row["bound_ms"]) is not None:
        said.append(f"up to {fmt.duration(row['bound_ms'])} ({fmt.share(row['bound_share'])})")
    if fmt.known(row["bound_bytes"]) is not None:
        size = fmt.size(row["bound_bytes"])
        said.append(f"{size} more in use after the step" if grows(row) else f"up to {size} of memory")
    return " and ".join(said) or f"{fmt.UNKNOWN} (its cost is unknown)"


def row_words(row: Mapping[str, Any]) -> str:
    """A row that a finding is about, in words."""
    name = fmt.duration(float(row["name"])) if row["kind"] == "memory" else row["name"]
    return f"{KINDS.get(str(row['kind']), str(row['kind']))} {name}"


def verdict_html(findings: Findings) -> str:
    """The verdict as three short paragraphs."""
    lines = "".join(
        f"<br><span><em>{head}</em> {escape.html_sentence(words)}</span>"
        for head, words in verdict_lines(findings)
        if head != HEADS[0]
    )
    return f'<p class="pf-verdict"><strong>{escape.html_sentence(findings.verdict.verdict)}</strong>{lines}</p>'


def findings_html(findings: Findings) -> str:
    """The findings as a list; nothing if nothing was found."""
    items = "".join(_item(row, trial_line(findings.call, row["remedy"])) for _, row in findings.table.iterrows())
    head = "<p><strong>Findings</strong> · with the most that each could save per step</p>"
    return f"{head}<ol>{items}</ol>" if items else ""


def _item(row: pd.Series, trial: tuple[str, str]) -> str:
    rows = ", ".join(tables.name(row_words(one)) for one in row["rows"])
    lines = [
        f"<strong>{escape.html(row['bottleneck'])}</strong>: {escape.html(bound_words(row))}, "
        f"{escape.html(row['confidence'])} confidence <em>({escape.html_sentence(row['why'])})</em>",
        escape.html_sentence(row["evidence"]),
        f"Try: {escape.html_sentence(row['advice'])}",
        *([f"<code>{escape.html(row['code'], _CODE)}</code>"] if row["code"] else []),
        *([f"{escape.html(trial[0])} <code>{escape.html(trial[1], _CODE)}</code>"] if trial[1] else []),
        f"<em>Caveat: {escape.html_sentence(row['blind'])}{f' About: {rows}.' if rows else ''}</em>",
    ]
    return f"<li>{'<br>'.join(lines)}</li>"


def findings_data(findings: Findings, layers: Mapping[str, int], ops: Mapping[str, int]) -> dict[str, Any]:
    """Verdict and findings, ready for JSON.

    Parameters
    ----------
    findings : Findings
    layers, ops : mapping of str to int
        The position of each row in the tables of layers and ops, for links from findings; an instant of memory is
        linked by its nanoseconds.
    """
    places: dict[str, Mapping[str, int]] = {"layer": layers, "op": ops}
    return {
        "verdict": [[head, escape.plain(words, _SENTENCE)] for head, words in verdict_lines(findings)],
        "finding": findings.verdict.finding,
        "rows": [
            {
                "bottleneck": escape.plain(row["bottleneck"]),
                **{name: fmt.known(row[name]) for name in ("bound_ms", "bound_share", "bound_bytes")},
                "grows": grows(row),
                "confidence": escape.plain(row["confidence"]),
                **{name: escape.plain(row[name], _SENTENCE) for name in ("evidence", "advice", "why", "blind")},
                "code": escape.plain(row["code"], _CODE),
                "remedy": escape.plain(row["remedy"]),
                "trial": [escape.plain(part, _CODE) for part in trial_line(findings.call, row["remedy"])],
                "links": [
                    {
                        "kind": one["kind"],
                        "word": escape.plain(row_words(one), 120),
                        "at": round(1e6 * float(one["name"]))
                        if one["kind"] == "memory"
                        else places.get(one["kind"], {}).get(one["name"], -1),
                    }
                    for one in row["rows"]
                ],
            }
            for _, row in findings.table.iterrows()
        ],
    }


TAB = Tab(
    key="findings",
    title="Findings",
    shows=lambda report: None if report.summary.findings is None else report,
    text=lambda report, width: findings_text(report.summary.findings, width),
    html=lambda report: findings_html(report.summary.findings),
    data=lambda report: findings_data(report.summary.findings, report.layer_places, report.op_places),
    script="findings/js/findings.js",
    style="findings/js/findings.css",
    upfront=True,
)
