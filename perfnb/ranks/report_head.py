"""What the report of a job says first: how long its timed steps took, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.findings.tab import bound_words

#: Findings that the report shows; most ranks named for one.
_MOST, _MOST_NAMED = 4, 8
#: How many times as long as timed steps the traced ones may take before the report says so.
_UNLIKE = 1.5


class JobHead(NamedTuple):
    """Median of the timed steps by rank, their number, traced steps, and the findings, of which some were not asked."""

    timed_ms: Mapping[int, float]
    timed: int
    traced: int
    traced_ms: float
    findings: pd.DataFrame


def head_lines(head: JobHead) -> list[str]:
    """The step's time in sentences; none if no step was timed."""
    if not head.timed_ms:
        return []
    slowest = max(head.timed_ms, key=lambda rank: head.timed_ms[rank])
    ms = head.timed_ms[slowest]
    of = f" on rank {slowest}, the slowest" if len(head.timed_ms) > 1 else ""
    lines = [
        f"Step {fmt.duration(ms)}{of}.",
        f"That is the median of {fmt.counted(head.timed, 'timed step')}. What follows is the mean of "
        f"{fmt.counted(head.traced, 'traced step')}.",
    ]
    if not 1 / _UNLIKE <= head.traced_ms / ms <= _UNLIKE:
        lines.append(
            f"Traced steps took {fmt.duration(head.traced_ms)}, unlike timed ones. Other work on the machine, uneven "
            "steps or the cost of tracing may be the cause: profile again before trusting what follows."
        )
    return lines


def found_text(head: JobHead, width: int) -> list[str]:
    """The findings that could save most, as lines."""
    if not len(head.findings):
        return []
    lines = [_title(head)]
    for place, (name, row) in enumerate(_worst(head.findings)[:_MOST], start=1):
        lines += escape.wrapped(f"{place}. {name}: {bound_words(row)}, {row['confidence']} confidence", width)
        for words in filter(None, (row["evidence"], row["advice"] and f"Try: {row['advice']}")):
            lines += [f"   {line}" for line in escape.wrapped(escape.plain(words, 2000), width - 3)]
    return lines


def found_html(head: JobHead) -> str:
    """The same as a list."""
    items = [
        f"<li><strong>{escape.html(name)}</strong>: {escape.html(bound_words(row))}, {escape.html(row['confidence'])} "
        f"confidence<br>{escape.html_sentence(row['evidence'])}<br>Try: {escape.html_sentence(row['advice'])}</li>"
        for name, row in _worst(head.findings)[:_MOST]
    ]
    return f"<p><strong>{escape.html(_title(head))}</strong></p><ol>{''.join(items)}</ol>" if items else ""


def _title(head: JobHead) -> str:
    of = f"; {_MOST} of {count}" if (count := len(_worst(head.findings))) > _MOST else ""
    return f"Findings (with the most that each could save per step{of}; all are in .findings)"


def _worst(findings: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    """The row with the highest bound of each bottleneck, with a name that says which ranks have it."""
    found = []
    for name, part in findings.groupby("bottleneck", sort=False):
        ranks = sorted(int(rank) for rank in part["rank"].dropna())
        more = f" and {len(ranks) - _MOST_NAMED:,} more" if len(ranks) > _MOST_NAMED else ""
        listed = ", ".join(map(str, ranks[:_MOST_NAMED]))
        first = part.iloc[0]
        here = f"; figures of rank {first['rank']}" if len(ranks) > 1 else ""
        where = f" (rank{'s' * (len(ranks) > 1)} {listed}{more}{here})" if ranks else ""
        found.append((f"{escape.plain(name, 60)}{where}", first))
    return found
