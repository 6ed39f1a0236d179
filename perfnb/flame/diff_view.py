"""The comparison of two host profiles as text and as HTML without scripts."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header, notes_html
from perfnb.flame.comparison import HostDiff

_LISTED = 10


def diff_text(diff: HostDiff, width: int = 100) -> str:
    """The comparison as text."""
    a, b = (escape.plain(name, 60) for name in diff.names)
    title = escape.shorten(f"perfnb · {b} compared with {a}", width)
    parts = [[title, *escape.wrapped(fmt.capital(headline(diff)), width)]]
    for caption, rows in _halves(diff):
        lines = [caption, f"{'first':>9} {'second':>9} {'change':>12}  function"]
        for row in rows.itertuples(index=False):
            first, second, change = _figures(diff, row)
            room = max(20, width - 34)
            lines.append(f"{first:>9} {second:>9} {change:>12}  {escape.plain(_named(row), room)}")
        parts.append(lines)
    parts.append(["Notes", *escape.bullets(diff.notes, width)])
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts)


def diff_html(diff: HostDiff) -> str:
    """The comparison as HTML without scripts."""
    a, b = diff.names
    parts = [header(f"{escape.plain(b, 90)} compared with {escape.plain(a, 90)}", "host profiles", "", headline(diff))]
    for caption, rows in _halves(diff):
        cells = [
            [
                tables.name(row.function),
                tables.name(row.file if isinstance(row.file, str) else "", 50),
                *map(escape.html, _figures(diff, row)),
            ]
            for row in rows.itertuples(index=False)
        ]
        parts.append(tables.table(caption, ["function", "file", "first", "second", "change"], cells, texts=2))
    return framed("".join(parts) + notes_html(diff.notes), narrow=True)


def headline(diff: HostDiff) -> str:
    """How many functions take more, and how many less."""
    change = diff.functions[diff.measure].astype("Float64")
    more, less = int((change > 0).sum()), int((change < 0).sum())
    take = "takes more time of its own" if more == 1 else "take more time of their own"
    return f"{fmt.counted(more, 'function')} {take}, {less:,} less"


def _halves(diff: HostDiff) -> list[tuple[str, pd.DataFrame]]:
    change = diff.functions[diff.measure].astype("Float64").fillna(0.0)
    halves = [("What grew, by own time", change > 0), ("What shrank, by own time", change < 0)]
    return [(caption, diff.functions[chosen].head(_LISTED)) for caption, chosen in halves if chosen.any()]


def _figures(diff: HostDiff, row: Any) -> tuple[str, str, str]:
    change = float(getattr(row, diff.measure))
    sign = "+" if change > 0 else fmt.MINUS
    if diff.measure == "grew_ms":
        return fmt.duration(row.self_ms_a), fmt.duration(row.self_ms_b), f"{sign}{fmt.duration(abs(change))}"
    return fmt.share(row.self_share_a), fmt.share(row.self_share_b), _points(sign, change)


def _points(sign: str, change: float) -> str:
    """The difference of two shares, in percentage points; a tiny one has no sign, which the caption tells."""
    points = fmt.share(abs(change)).replace("%", "points")
    return points if points.startswith("<") else f"{sign}{points}"


def _named(row: Any) -> str:
    return f"{row.function} ({row.file})" if isinstance(row.file, str) else str(row.function)
