"""A finding: something that holds the step back, what speaks for it, and what could be tried."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pandas as pd

from perfnb.recording.schema import conform

Confidence = Literal["high", "medium", "low"]


class Row(NamedTuple):
    """A row of another table that a finding speaks of.

    Attributes
    ----------
    kind : str
        ``layer``, ``op``, ``phase``, ``kernel``, ``step`` (number of a timed step), ``memory`` (milliseconds of the
        counted step) or ``rank``.
    name : str
        The row's name.
    """

    kind: str
    name: str


@dataclass(frozen=True)
class Finding:
    """Something that holds the step back.

    Attributes
    ----------
    bottleneck : str
        What it is, in two or three words.
    evidence : str
        What speaks for it, with the figures.
    bound_ms : float or None
        The most that removing it could save of a step, in milliseconds (Amdahl); ``None`` where it costs no time that
        could be told. Of uneven steps it is of a step in the mean, which is longer than the typical one.
    lever : str
        What to change.
    code : str
        A line of Python that does so, in the user's own names; empty where these are not known, or no one line does.
    confidence : str
        ``high``, ``medium`` or ``low``.
    why : str
        Why no more and no less.
    blind : str
        What the rule could not see.
    rows : tuple of Row
        What it speaks of.
    bound_bytes : int or None
        The most memory that removing it could free, where it is about memory.
    of_ms : float or None
        The step that the bound is a part of, where that is not the typical one.
    """

    bottleneck: str
    evidence: str
    bound_ms: float | None
    lever: str
    code: str
    confidence: Confidence
    why: str
    blind: str
    rows: tuple[Row, ...] = field(default=())
    bound_bytes: int | None = None
    of_ms: float | None = None


def finding_table(found: Iterable[Finding], step_ms: float | None) -> pd.DataFrame:
    """The frame ``findings``, the greatest bound first; what has none comes last.

    Parameters
    ----------
    found : iterable of Finding
    step_ms : float or None
        Of which `bound_share` is a share.
    """
    listed = list(found)
    table = pd.DataFrame(
        {
            **{
                name: [getattr(one, name) for one in listed]
                for name in ("bottleneck", "evidence", "lever", "code", "confidence", "why", "blind")
            },
            "bound_ms": pd.array([one.bound_ms for one in listed], dtype="Float64"),
            "bound_bytes": pd.array([one.bound_bytes for one in listed], dtype="Int64"),
            "rows": [[row._asdict() for row in one.rows] for one in listed],
        }
    )
    whole = pd.array([one.of_ms or step_ms or None for one in listed], dtype="Float64")
    table["bound_share"] = table["bound_ms"] / whole
    table = conform(table, "findings")
    return table.sort_values("bound_ms", ascending=False, kind="stable", na_position="last", ignore_index=True)


def time(ms: float) -> str:
    """A time in words: in µs below 0.1 ms, in s from 1,000 ms on."""
    value, unit = (ms * 1e3, "µs") if ms < 0.1 else (ms / 1e3, "s") if ms >= 1e3 else (ms, "ms")
    return f"{_three(value)} {unit}"


def part(share: float) -> str:
    """A share in words, as the views write it."""
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{_three(count)} {unit}"
        count /= 1024
    return f"{_three(count)} GiB"


def many(count: float, word: str) -> str:
    """A number of things: ``1 call``, ``1,204 calls``."""
    whole = round(count)
    if whole == 1:
        return f"{whole:,} {word}"
    if word.endswith("py"):
        return f"{whole:,} {word[:-1]}ies"
    return f"{whole:,} {word}{'es' if word.endswith('ch') else 's'}"


def _three(value: float) -> str:
    text = f"{value:#.3g}" if value < 1000 else f"{value:,.0f}"
    return text.rstrip(".")
