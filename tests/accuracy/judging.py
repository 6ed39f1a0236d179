"""Judge what is measured: figures next to their limits, and the meaning of a miss on a disturbed machine."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

#: Between these lines of the page stands the table.
BEGIN, END = "<!-- accuracy table: make accuracy writes it -->", "<!-- end of the accuracy table -->"


class Missed(AssertionError):
    """A figure lies outside its limit."""


class Unsettled(AssertionError):
    """A check could not establish its own truth: the machine is too restless, whatever else is seen of it."""


@dataclass
class Figure:
    """A measured figure next to its limit."""

    name: str
    measured: str
    limit: str
    verdict: str


class Figures:
    """Takes the figures of one run of a check, and raises `Missed` at the first outside its limit."""

    def __init__(self) -> None:
        self.rows: list[Figure] = []

    def __call__(
        self,
        name: str,
        value: float,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        within: tuple[float, float] | None = None,
        unit: str = "",
    ) -> None:
        """Record a figure and judge it.

        Parameters
        ----------
        name : str
            What was measured, in words that can be read alone in a table.
        value : float
        at_most, at_least : float, optional
        within : tuple of float, optional
            Lowest and highest value; give exactly one of the three limits.
        unit : str
            ``"%"`` shows a share as a percentage.
        """
        if sum(limit is not None for limit in (at_most, at_least, within)) != 1:
            raise TypeError(f"{name}: give one of at_most, at_least and within.")
        low, high = within or (-math.inf if at_least is None else at_least, math.inf if at_most is None else at_most)
        if within is not None:
            limit = f"{shown(low, unit)} to {shown(high, unit)}"
        else:
            limit = f"at least {shown(low, unit)}" if at_most is None else f"at most {shown(high, unit)}"
        holds = low <= value <= high  # False for a value that is not a number
        self.rows.append(Figure(name, shown(value, unit), limit, "held" if holds else "MISSED"))
        if not holds:
            raise Missed(f"{name}: {shown(value, unit)}, {limit} expected")


def shown(value: float, unit: str) -> str:
    """Return three significant digits and the unit."""
    if unit == "%":
        return f"{100 * value:.3g} %"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def as_table(rows: Sequence[Figure]) -> str:
    """Return the figures in Markdown, columns aligned."""
    cells = [("figure", "measured", "limit", "verdict")]
    cells += [(row.name.replace("|", r"\|"), row.measured, row.limit, row.verdict) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def write_table(page: Path, rows: Sequence[Figure]) -> None:
    """Put the figures between the two markers of a page, with the date and the machine."""
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the table: it needs the lines {BEGIN!r} and {END!r}.")
    page.write_text(f"{before}{BEGIN}\n\n{machine()}\n\n{as_table(rows)}\n\n{END}{after}", "utf-8")


def machine() -> str:
    """Return the time and the machine of these figures, as a sentence."""
    cores = psutil.cpu_count(logical=True)
    gib = psutil.virtual_memory().total / 2**30
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: {_processor()}, {cores} {'core' if cores == 1 else 'cores'}, "
        f"{gib:.0f} GiB; {platform.system()}, Python {platform.python_version()}, torch {metadata.version('torch')}."
    )


def _processor() -> str:
    """Return the processor's model, as Linux tells it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
