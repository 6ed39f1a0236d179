"""What ladders of alternatives share: each one's change of time in words, and as a bar from the middle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette

#: Half the width of a bar.
_HALF_PX = 70
#: Logarithm of the slow-down beyond which a bar is cut off, unless something becomes faster by as much.
_CUT_OFF = math.log(2)


def percent(ratio: float) -> str:
    """A ratio as a change: ``−14.0 %``, or as a factor if it is far from 1."""
    return fmt.change(ratio)


def ratio_words(ratio: float, interval: tuple[float, float] | None) -> str:
    """A change with its interval: ``−14.0 % [−17.0, −11.0]``."""
    return fmt.change(ratio, interval)


def row_words(row: Any) -> str:
    """A row's verdict and change; it has ``verdict``, ``ratio``, ``ratio_low`` and ``ratio_high``."""
    interval = None if pd.isna(row["ratio_low"]) else (float(row["ratio_low"]), float(row["ratio_high"]))
    return f"{row['verdict']} {ratio_words(float(row['ratio']), interval)}"


def longest(table: pd.DataFrame) -> float:
    """The scale of a table's bars: the largest logarithm of a ratio or of an end of an interval.

    What is many times slower is cut off, or else nobody would see what the others gain.
    """
    columns = (table[name].dropna() for name in ("ratio", "ratio_low", "ratio_high"))
    found = [math.log(float(value)) for column in columns for value in column]
    most = max(_CUT_OFF, -min(found, default=0.0))
    return max((min(abs(value), most) for value in found), default=0.0) or 1.0


def bar(row: Any, longest: float) -> str:
    """The change of a row's time from the middle, left if it became faster, with its interval as a line."""
    if pd.isna(row["ratio"]):
        return ""

    def place(ratio: float) -> float:
        return _HALF_PX * (1 + min(math.log(ratio) / longest, 1.0))

    ends = [place(float(row[name])) for name in ("ratio_low", "ratio", "ratio_high") if not pd.isna(row[name])]
    at = place(float(row["ratio"]))
    fill = palette.MARKS["optimizer"].colour if row["verdict"] == "faster" else palette.MARKS["other"].colour
    return (
        f'<svg width="{2 * _HALF_PX}" height="12" role="img" aria-label="{escape.html(row_words(row))}">'
        f'<rect x="{min(at, _HALF_PX):.1f}" y="2" width="{abs(at - _HALF_PX):.1f}" height="8" fill="{fill}"/>'
        f'<path d="M{min(ends):.1f} 6H{max(ends):.1f}M{_HALF_PX} 0V12" stroke="currentColor" fill="none"/></svg>'
    )


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns, the last of which is as long as it is."""
    widths = [max(escape.cells(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
    lines = ["  ".join([*(escape.fit(c, w) for c, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]
    return [line.rstrip() for line in lines]
