"""A journal's run chart: each entry's step time with its interval, next to the last accepted one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb.draw import escape, palette
from perfnb.draw.picture import INK, LINE, QUIET, bare, figure_of, halo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most entries in the chart (the last ones), and panels, one per step name.
MOST_ENTRIES, MOST_PANELS = 60, 4
_DASHES, _SLOWER = (0, (3, 2)), palette.WORSE
#: Marker, colour and word of each kind of entry.
MARKS = {
    "accept": ("^", palette.BETTER, "A/B test, accepted"),
    "reject": ("X", palette.WORSE, "A/B test, rejected"),
    "inconclusive": ("D", palette.UNDECIDED, "A/B test, inconclusive"),
    "measured": ("o", palette.AS_BEFORE, "profile or timing"),
    "elsewhere": ("s", palette.UNDECIDED, "not compared"),
    "baseline": ("_", palette.AS_BEFORE, "baseline of an A/B test"),
}


def journal_figure(history: pd.DataFrame) -> Figure:
    """The run chart; entries without a time are left out."""
    size = 7.4, 0.5 + 2.3 * len(latest_names(history))
    return figure_of(functools.partial(_draw, history=history), size)


def latest_names(history: pd.DataFrame) -> list[str]:
    """Names of the steps with the latest entries."""
    return list(history["name"].iloc[-MOST_ENTRIES:].drop_duplicates(keep="last").iloc[-MOST_PANELS:])


def _draw(figure: Figure, history: pd.DataFrame) -> None:
    names = latest_names(history)
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    shown = history.iloc[-MOST_ENTRIES:]
    for axes, name in zip(panels, names, strict=True):
        _panel(axes, shown[shown["name"] == name], name)
    panels[-1].set_xlabel("entry")
    panels[-1].set_xlim(float(shown["number"].min()) - 0.6, float(shown["number"].max()) + 0.6)
    _legend(figure, shown)


def _panel(axes: Axes, rows: pd.DataFrame, name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    bare(axes)
    axes.grid(axis="y", color=LINE, linewidth=0.5)
    axes.set_ylabel(f"{escape.chart(name, 24) if name else 'step'}, ms")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    last: tuple[float, float] | None = None
    for kind, row in zip(_kinds(rows), rows.to_dict("records"), strict=True):
        number, of_report = float(row["number"]), row["kind"] == "report"
        # For a report, its baseline is compared with what was last accepted.
        column, bounds = ("baseline_ms", "baseline_ci") if of_report else ("median_ms", "ci")
        place = number - 0.16 * of_report
        if of_report:
            _point(axes, place, row, column, bounds, "baseline")
        _point(axes, number + 0.1 * of_report, row, "median_ms", "ci", kind)
        if row["regression"]:
            axes.plot(place, row[column], "o", color=_SLOWER, markersize=11, markerfacecolor="none")
            last = (place, row[f"{bounds}_high_ms"])
        if not pd.isna(row["ratio"]):
            level = row[column] / row["ratio"]
            axes.hlines(level, number - 0.5, number + 0.5, color=INK, linewidth=1, linestyle=_DASHES)
    if last is not None:  # one label explains the rings
        how: Any = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
        halo(axes.annotate("regression", last, color=_SLOWER, **how))
    if rows["median_ms"].isna().all():
        axes.text(0.5, 0.5, "no times", transform=axes.transAxes, ha="center", color=QUIET)
    axes.margins(x=0.05, y=0.22)
    axes.set_ylim(bottom=0)  # start at 0, so that twice as high is twice as long


def _kinds(rows: pd.DataFrame) -> list[str]:
    """Marker of each entry."""
    decided = (rows["kind"] == "report") & rows["decision"].isin(list(MARKS))
    elsewhere = ~rows["comparable"] & rows["against"].notna()
    return list(np.where(decided, rows["decision"], np.where(elsewhere, "elsewhere", "measured")))


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
        Line2D([], [], marker=marker, color=colour, linestyle="none", label=word)
        for marker, colour, word in map(MARKS.__getitem__, kinds)
    ]
    if shown["ratio"].notna().any():
        keys.append(Line2D([], [], color=INK, linewidth=1, linestyle=_DASHES, label="last accepted"))
    figure.legend(handles=keys, loc="outside upper left", ncols=3, frameon=False, fontsize=7.5, handletextpad=0.4)
