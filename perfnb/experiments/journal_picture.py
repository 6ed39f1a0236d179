"""The run chart of a journal: every entry's step time with its interval, and what was in effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb.draw import escape, palette
from perfnb.draw.picture import INK, LINE, QUIET, bare, halo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Entries of the chart, the last ones, and steps that have a panel of their own.
MOST_ENTRIES, MOST_PANELS = 60, 4
_DASHES, _SLOWER = (0, (3, 2)), palette.WORSE
#: Marker, colour and word of each kind of entry.
MARKS = {
    "accept": ("^", palette.BETTER, "report, accepted"),
    "reject": ("X", palette.WORSE, "report, rejected"),
    "inconclusive": ("D", palette.UNDECIDED, "report, inconclusive"),
    "measured": ("o", palette.AS_BEFORE, "profile or timing"),
    "elsewhere": ("s", palette.UNDECIDED, "not compared"),
    "baseline": ("_", palette.AS_BEFORE, "baseline of a report"),
}


def inches(history: pd.DataFrame) -> tuple[float, float]:
    """Width and height of the chart."""
    return 7.4, 0.5 + 2.3 * len(_names(history))


def draw_journal(figure: Figure, history: pd.DataFrame) -> None:
    """Draw the run chart; an entry without a time has no place in it."""
    names = _names(history)
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    shown = history.iloc[-MOST_ENTRIES:]
    for axes, name in zip(panels, names, strict=True):
        _panel(axes, shown[shown["name"] == name], name)
    panels[-1].set_xlabel("entry")
    panels[-1].set_xlim(float(shown["number"].min()) - 0.6, float(shown["number"].max()) + 0.6)
    _legend(figure, shown)


def _names(history: pd.DataFrame) -> list[str]:
    """The steps with the latest entries."""
    latest = history["name"].iloc[-MOST_ENTRIES:].drop_duplicates(keep="last")
    return [str(name) for name in latest][-MOST_PANELS:]


def _panel(axes: Axes, rows: pd.DataFrame, name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    bare(axes)
    axes.grid(axis="y", color=LINE, linewidth=0.5)
    axes.set_ylabel("step, ms" if not name else f"{escape.chart(name, 24)}, ms")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    last: tuple[float, float] | None = None
    for kind, row in zip(_kinds(rows), rows.to_dict("records"), strict=True):
        number, of_report = float(row["number"]), row["kind"] == "report"
        # Of a report it is the baseline, measured anew, that stands against what was accepted.
        column, bounds, place = (
            ("baseline_ms", "baseline_ci", number - 0.16) if of_report else ("median_ms", "ci", number)
        )
        if of_report:
            _point(axes, place, row, column, bounds, "baseline")
        _point(axes, number + 0.1 * of_report, row, "median_ms", "ci", kind)
        if row["regression"]:
            _ring(axes, place, row[column])
            last = (place, row[f"{bounds}_high_ms"])
        if not pd.isna(row["ratio"]):
            level = row[column] / row["ratio"]
            axes.hlines(level, number - 0.5, number + 0.5, color=INK, linewidth=1, linestyle=_DASHES)
    if last is not None:  # one word tells what the rings are
        how: Any = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
        halo(axes.annotate("regression", last, color=_SLOWER, **how))
    if rows["median_ms"].isna().all():
        axes.text(0.5, 0.5, "no times", transform=axes.transAxes, ha="center", color=QUIET)
    axes.margins(x=0.05, y=0.22)
    axes.set_ylim(bottom=0)  # twice as high is twice as long, in every panel


def _kinds(rows: pd.DataFrame) -> list[str]:
    """The mark of each entry."""
    columns = (rows[name] for name in ("kind", "decision", "comparable", "against"))
    return [
        str(decision)
        if kind == "report" and decision in MARKS
        else "elsewhere"
        if not comparable and not pd.isna(against)
        else "measured"
        for kind, decision, comparable, against in zip(*columns, strict=True)
    ]


def _ring(axes: Axes, at: float, ms: float) -> None:
    axes.plot(at, ms, marker="o", color=_SLOWER, markersize=11, markerfacecolor="none", linestyle="none")


def _point(axes: Axes, at: float, row: dict[Any, Any], column: str, bounds: str, kind: str) -> None:
    if pd.isna(row[column]):
        return
    marker, colour, _ = MARKS[kind]
    low, high = row[f"{bounds}_low_ms"], row[f"{bounds}_high_ms"]
    if not pd.isna(low):
        axes.vlines(at, low, high, color=colour, linewidth=1.2)
    size = 8 if kind == "baseline" else 5.5
    axes.plot(at, row[column], marker=marker, color=colour, markersize=size, linestyle="none")


def _legend(figure: Figure, shown: pd.DataFrame) -> None:
    from matplotlib.lines import Line2D

    kinds = dict.fromkeys(_kinds(shown))
    if (shown["kind"] == "report").any():
        kinds["baseline"] = None
    keys: list[Any] = [
        Line2D([], [], marker=MARKS[kind][0], color=MARKS[kind][1], linestyle="none", label=MARKS[kind][2])
        for kind in kinds
    ]
    if np.any(shown["ratio"].notna()):
        keys.append(Line2D([], [], color=INK, linewidth=1, linestyle=_DASHES, label="last accepted before"))
    figure.legend(handles=keys, loc="outside upper left", ncols=3, frameon=False, fontsize=7.5, handletextpad=0.4)
