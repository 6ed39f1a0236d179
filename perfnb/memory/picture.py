"""Memory over a step as a matplotlib chart: stacked areas, phases below, the peak marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.draw.picture import GROUND, HATCHES, INK, LINE, QUIET, bare, halo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfnb.memory.table import MemorySummary

#: Reserved and process memory are drawn only up to this multiple of the peak, so they do not flatten the areas.
_MOST_ABOVE_PEAK = 1.7
#: Time bins; in each, the instant with most memory alive is drawn.
_PARTS = 260
_INCHES_A_CHARACTER = 0.072


def draw_memory(figure: Figure, summary: MemorySummary) -> None:
    """Draw the memory view into an empty figure."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[20, 1])
    end = summary.step_ms or 1.0
    timeline = _fewer(summary.timeline, end)
    times = np.append(timeline["t_ms"].to_numpy(float), end)
    peak = float(summary.peak_bytes)
    highest = max(peak, _areas(above, timeline, times), _lines(above, timeline, times, _MOST_ABOVE_PEAK * peak), 1.0)
    bare(above)
    above.set_xlim(0, end)
    above.set_ylim(0, 1.12 * highest)
    above.yaxis.grid(True, color=LINE, linewidth=0.6)
    above.set_yticks(_ticks(highest, fmt.byte_unit(highest)[0]))
    above.yaxis.set_major_formatter(lambda value, _: fmt.on_axis(fmt.size(value)) if value else "0")
    for start in summary.phases["start_ms"].iloc[1:]:
        above.axvline(float(start), color=QUIET, linewidth=0.6, linestyle=":")
    _peak(above, summary, end)
    _phases(below, summary, end, figure.get_size_inches()[0] - 1.0)
    below.xaxis.set_major_formatter(lambda value, _: fmt.on_axis(fmt.duration(value)) if value else "0")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, handlelength=1.4, columnspacing=1.6)


def _fewer(timeline: pd.DataFrame, end: float) -> pd.DataFrame:
    if len(timeline) <= 2 * _PARTS:
        return timeline
    part = (timeline["t_ms"].to_numpy(float) / end * _PARTS).astype(int)
    rows = timeline["total"].astype("float64").reset_index(drop=True).groupby(part).idxmax()
    return timeline.iloc[rows.to_numpy()]


def _areas(axes: Axes, timeline: pd.DataFrame, times: Any) -> float:
    base = np.zeros(len(times))
    for name, mark in palette.CATEGORIES.items():
        values = timeline[name].to_numpy(float, na_value=0.0)
        if not values.any():
            continue
        top = base + np.append(values, values[-1:])
        axes.fill_between(times, base, top, step="post", label=mark.word, **_fill(mark))
        base = top
    axes.step(times, base, where="post", color=INK, linewidth=0.8)
    return float(base.max())


def _lines(axes: Axes, timeline: pd.DataFrame, times: Any, most: float) -> float:
    highest = 0.0
    for name, style in (("reserved", "--"), ("process", ":")):
        values = timeline[name].to_numpy(float, na_value=np.nan)
        if np.isnan(values).all() or np.nanmax(values) > most:
            continue
        axes.step(
            times, np.append(values, values[-1:]), where="post", color=INK, linewidth=1.3, linestyle=style, label=name
        )
        highest = max(highest, float(np.nanmax(values)))
    return highest


def _peak(axes: Axes, summary: MemorySummary, end: float) -> None:
    axes.axhline(summary.peak_bytes, color=INK, linewidth=0.7, linestyle=(0, (4, 4)), alpha=0.6)
    axes.plot(summary.peak_ms, summary.peak_bytes, marker="v", markersize=6, color=INK, clip_on=False)
    late = summary.peak_ms > 0.75 * end
    words = axes.annotate(
        f"{'peak' if summary.incomplete is None else 'at the failure'} {fmt.size(summary.peak_bytes)}",
        (summary.peak_ms, summary.peak_bytes),
        (-7 if late else 7, 4),
        textcoords="offset points",
        ha="right" if late else "left",
        weight="bold",
    )
    halo(words)
    if summary.incomplete is not None:
        axes.axvline(end, color=palette.WORSE, linewidth=2.5)
        axes.annotate(
            "failed here", (end, 1), (-6, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="right", va="top", weight="bold",
        )  # fmt: skip


def _phases(axes: Axes, summary: MemorySummary, end: float, inches: float) -> None:
    bare(axes)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    free = 0.0
    columns = (summary.phases[name] for name in ("phase", "start_ms", "end_ms"))
    for phase, first, last in zip(*columns, strict=True):
        mark = palette.mark(str(phase))
        start, wide = float(first), float(last) - float(first)
        axes.barh(0.5, wide, height=1, left=start, **_fill(mark))
        middle, need = start + wide / 2, _INCHES_A_CHARACTER * len(mark.word) * end / inches
        if wide >= need and middle - need / 2 >= free:
            free = middle + need / 2
            axes.annotate(
                escape.chart(mark.word, 30), (middle, 0), (0, -3), textcoords="offset points", ha="center", va="top"
            )
    axes.tick_params(axis="x", pad=15)


def _fill(mark: palette.Mark) -> dict[str, Any]:
    hatch, colour = HATCHES.get(mark.pattern, (None, GROUND))
    return {"facecolor": mark.colour, "hatch": hatch, "edgecolor": colour, "linewidth": 0}


def _ticks(highest: float, unit: int) -> Any:
    """About four round amounts up to `highest`."""
    rough = highest / unit / 4
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return np.arange(0, highest / unit + 1e-9, step) * unit
