"""A journal's run chart: each entry's step time with its interval, next to the last accepted one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb.draw import escape, palette
from perfnb.draw.picture import INK, LINE, bare, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most entries in the chart (the last ones), and panels, one per step name.
MOST_ENTRIES, MOST_PANELS = 60, 4
#: Marker, colour and word of each kind of entry.
_MARKS = {
    "accept": ("^", palette.BETTER, "A/B test, accepted"),
    "reject": ("X", palette.WORSE, "A/B test, rejected"),
    "inconclusive": ("D", palette.UNDECIDED, "A/B test, inconclusive"),
    "measured": ("o", palette.AS_BEFORE, "profile or timing"),
    "elsewhere": ("s", palette.UNDECIDED, "not compared"),
}


def journal_figure(history: pd.DataFrame) -> Figure:
    """The run chart; entries without a time are left out."""
    size = 7.4, 0.5 + 2.3 * len(latest_names(history))
    return figure_of(functools.partial(_draw, history=history), size)


def latest_names(history: pd.DataFrame) -> list[str]:
    """Names of the steps with the latest entries."""
    return list(history["name"].iloc[-MOST_ENTRIES:].drop_duplicates(keep="last").iloc[-MOST_PANELS:])


def _draw(figure: Figure, history: pd.DataFrame) -> None:
    names, recent = latest_names(history), history.iloc[-MOST_ENTRIES:]
    panels: list[Axes] = list(figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]) if names else []
    keys = dict[str, Any]()
    for axes, name in zip(panels, names, strict=True):
        _panel(axes, recent[recent["name"] == name])
        axes.set_ylabel(f"{escape.chart(name, 24) if name else 'step'}, ms")
        axes.set_xlim(float(recent["number"].min()) - 0.6, float(recent["number"].max()) + 0.6)
        axes.set_xlabel("entry" if axes is panels[-1] else "")
        handles, words = axes.get_legend_handles_labels()
        keys |= dict(zip(words, handles, strict=True))
    how: Any = {"ncols": 3, "frameon": False, "fontsize": 7.5, "handletextpad": 0.4}
    figure.legend(keys.values(), keys, loc="outside upper left", **how)


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    from matplotlib.ticker import MaxNLocator

    bare(axes)
    axes.grid(axis="y", color=LINE, linewidth=0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    is_test = rows["kind"] == "report"
    decided, elsewhere = is_test & rows["decision"].isin(list(_MARKS)), ~rows["comparable"] & rows["against"].notna()
    kinds = np.where(decided, rows["decision"], np.where(elsewhere, "elsewhere", "measured"))
    for kind, (marker, colour, word) in _MARKS.items():
        _points(axes, rows[kinds == kind], 0.1 * is_test[kinds == kind], "median_ms", "ci", marker, colour, word)
    _points(axes, rows[is_test], -0.16, "baseline_ms", "baseline_ci", "_", palette.AS_BEFORE, "baseline of an A/B test")
    # Of an A/B test, its baseline is compared with what was last accepted.
    compared = rows.assign(ms=rows["median_ms"].where(~is_test, rows["baseline_ms"]))[rows["ratio"].notna()]
    at, ms = (compared[name].to_numpy(float) for name in ("number", "ms"))
    if len(compared):
        level = ms / compared["ratio"].to_numpy(float)
        axes.hlines(level, at - 0.5, at + 0.5, color=INK, linewidth=1, linestyle=(0, (3, 2)), label="last accepted")
    slower = compared["regression"].to_numpy(bool)
    if slower.any():
        places = at - np.where(is_test[compared.index], 0.16, 0.0)
        ring: Any = {"color": palette.WORSE, "markersize": 11, "markerfacecolor": "none", "linestyle": "none"}
        axes.plot(places[slower], ms[slower], marker="o", label="regression", **ring)
    axes.margins(x=0.05, y=0.22)
    axes.set_ylim(bottom=0)  # start at 0, so that twice as high is twice as long


def _points(
    axes: Axes,
    rows: pd.DataFrame,
    beside: pd.Series | float,
    column: str,
    bounds: str,
    marker: str,
    colour: str,
    word: str,
) -> None:
    """Step times with their intervals."""
    ms, low, high = (rows[name].to_numpy(float) for name in (column, f"{bounds}_low_ms", f"{bounds}_high_ms"))
    if np.isfinite(ms).any():
        spread = np.maximum(0, np.nan_to_num([ms - low, high - ms]))
        at = (rows["number"] + beside).to_numpy(float)
        axes.errorbar(at, ms, yerr=spread, fmt=marker, color=colour, markersize=5.5, elinewidth=1.2, label=word)
