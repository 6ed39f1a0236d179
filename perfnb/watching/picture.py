"""A watch as a matplotlib picture: small charts with one time axis, marks above."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.picture import GROUND, LINE, QUIET, bare, figure_of
from perfnb.watching.charts import Points, columns_of, thinned
from perfnb.watching.data import Band, bands_of, line_mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfnb.watching.charts import Chart, ChartLine
    from perfnb.watching.summary import MachineSummary

MOST_LEVELS = 3
_WIDTH, _ROW, _LEVEL = 8.8, 1.42, 0.19
_POINTS, _MOST_BANDS, _MOST_WORDS = 300, 200, 6
_BAND, _DEEPER = "#e4e7ea", "#f6f6f6"
_INCHES_A_CHARACTER = 0.068
_LEAST_TOP = {
    "percent": 100.0,
    "bytes": 2.0**20,
    "bytes_per_s": 1024.0,
    "watts": 10.0,
    "celsius": 50.0,
    "megahertz": 100.0,
}
_TIME_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.6)), (0, (7, 2, 1, 2)), (0, (10, 2)), (0, (2.5, 1.5)))


def watch_figure(summary: MachineSummary) -> Figure:
    """The history as a matplotlib figure; empty if nothing was read."""
    if not summary.charts:
        return figure_of(lambda figure: figure.text(0.5, 0.5, "No readings.", ha="center", va="center"), (6.0, 1.0))
    bands = bands_of(summary)
    return figure_of(functools.partial(_draw, summary=summary, bands=bands), _inches(summary, bands))


def _inches(summary: MachineSummary, bands: Sequence[Band]) -> tuple[float, float]:
    rows = math.ceil(len(summary.charts) / _columns(summary))
    return _WIDTH, _ROW * rows + (_LEVEL * _levels(bands) + 0.3 if bands else 0.1)


def _draw(figure: Figure, summary: MachineSummary, bands: Sequence[Band]) -> None:
    start, end = _span(summary)
    figure.set_layout_engine("constrained", h_pad=0.07)
    across = _columns(summary)
    rows = math.ceil(len(summary.charts) / across)
    heights = [_LEVEL * _levels(bands) / _ROW, *[1.0] * rows] if bands else [1.0] * rows
    grid = figure.add_gridspec(len(heights), across, height_ratios=heights)
    if bands:
        _strip(figure.add_subplot(grid[0, :]), bands, start, end)
    samples = summary.samples
    points = {
        device: thinned(samples[samples["device"] == device], columns, summary.interval_s, _POINTS)
        for device, columns in columns_of(summary.charts).items()
    }
    for place, chart in enumerate(summary.charts):
        row, column = divmod(place, across)
        axes = figure.add_subplot(grid[row + len(heights) - rows, column])
        _chart(axes, chart, points, bands, (start, end))


def _span(summary: MachineSummary) -> tuple[float, float]:
    times = summary.samples["t_s"]
    start, end = float(times.min()), float(times.max())
    return start, max(end, start + summary.interval_s)


def _columns(summary: MachineSummary) -> int:
    return 2 if len(summary.charts) in (2, 4) else min(3, len(summary.charts))


def _levels(bands: Sequence[Band]) -> int:
    return min(MOST_LEVELS, 1 + max(band[1] for band in bands))


def _chart(
    axes: Axes, chart: Chart, points: dict[str, Points], bands: Sequence[Band], span: tuple[float, float]
) -> None:
    bare(axes)
    most = 0.0
    for line in chart.lines:
        own = points[line.device]
        look, values = _look(chart, line), own.values[line.column]
        most = max(most, float(np.nanmax(values)))
        holes = np.flatnonzero(own.broken)
        axes.plot(np.insert(own.t_s, holes, own.t_s[holes]), np.insert(values, holes, np.nan), **look)
        alone = _alone(own, values)
        axes.plot(own.t_s[alone], values[alone], linestyle="none", marker="o", markersize=2, color=look["color"])
    top, ticks, near = _axis(chart, most)
    for _, _, first, last, _ in [band for band in bands if band[1] == 0][:_MOST_BANDS]:
        axes.axvspan(first, span[1] if last is None else last, color=_DEEPER, linewidth=0, zorder=0)
    axes.set_xlim(*span)
    axes.set_ylim(0, top)
    axes.set_yticks(ticks)
    axes.yaxis.set_major_formatter(lambda value, _: _tick_words(value, top, chart.unit))
    axes.yaxis.grid(True, color=LINE, linewidth=0.6)
    _clock_axis(axes, span, 4)
    axes.tick_params(labelsize=7)
    if near and chart.ceiling is not None:
        axes.axhline(chart.ceiling, color=QUIET, linewidth=0.9, linestyle=(0, (1, 2)))
    _words(axes, chart)


def _words(axes: Axes, chart: Chart) -> None:
    """The title, the legend and the ceiling."""
    from matplotlib.lines import Line2D

    lines = chart.lines[:_MOST_WORDS]
    handles = [Line2D([], [], **_look(chart, line)) for line in lines]
    words = [escape.chart(line.word, 30) for line in lines]
    left = len(chart.lines) - len(lines)
    if left:
        handles.append(Line2D([], [], linestyle="none"))
        words.append(f"and {left} more lines")
    columns = 3 if max(map(len, words)) < 9 else 2
    axes.legend(
        handles, words, loc="lower left", bbox_to_anchor=(-0.01, 0.98), ncols=columns, frameon=False, fontsize=7,
        handlelength=2.4, columnspacing=1.0, handletextpad=0.5, labelspacing=0.15, borderaxespad=0, borderpad=0.2,
    )  # fmt: skip
    pad = 4 + 9.6 * math.ceil(len(words) / columns)
    axes.set_title(escape.chart(chart.title, 60), loc="left", fontsize=8.5, weight="bold", pad=pad)
    if chart.ceiling is not None:
        ceiling = f"{chart.ceiling_word} {fmt.reading(chart.ceiling, chart.unit)}"
        axes.set_title(ceiling, loc="right", fontsize=7, color=QUIET, pad=pad)


def _look(chart: Chart, line: ChartLine) -> dict[str, Any]:
    """As in the browser: lines differ by colour and dash."""
    dashes = _DASHES[chart.lines.index(line) % len(_DASHES)]
    return {"color": line_mark(chart, line).colour, "linewidth": 1.3, "linestyle": dashes}


def _alone(own: Points, values: np.ndarray) -> np.ndarray:
    """Which readings are isolated, so that a line would not show them."""
    known = np.isfinite(values)
    before = np.append(False, known[:-1]) & ~own.broken
    after = np.append(known[1:] & ~own.broken[1:], False)
    alone: np.ndarray = known & ~before & ~after
    return alone


def _axis(chart: Chart, most: float) -> tuple[float, np.ndarray, bool]:
    """A round top, ticks, and whether the ceiling is on the axis, which it is if the lines come near."""
    near = chart.near_ceiling(most)
    wanted = max(_LEAST_TOP.get(chart.unit, 1.0), most, chart.ceiling if near and chart.ceiling else 0.0)
    unit = float(fmt.byte_unit(wanted)[0]) if chart.unit.startswith("bytes") else 1.0
    rough = wanted / unit / 3
    power = 10.0 ** math.floor(math.log10(rough))
    halves = unit > 1 and rough < 1  # halves and quarters of a GiB, not tenths
    steps = (0.125, 0.25, 0.5, 1.0) if halves else (power, 2 * power, 5 * power, 10 * power)
    step = unit * next(step for step in steps if step >= rough * 0.999)
    top = 1.04 * wanted if near else step * math.ceil(wanted / step - 1e-9)
    return top, np.arange(0, top + 1e-9 * step, step), near


def _tick_words(value: float, top: float, unit: str) -> str:
    if not value:
        return "0"
    if not unit.startswith("bytes"):
        return fmt.reading(value, unit).replace(".0 ", " ")
    factor, word = fmt.byte_unit(top)
    return f"{fmt.significant(value / factor, trim=True)} {word}" + ("/s" if unit == "bytes_per_s" else "")


def _clock_axis(axes: Axes, span: tuple[float, float], wanted: int) -> None:
    rough = (span[1] - span[0]) / wanted
    step = next((step for step in _TIME_STEPS if step >= rough), 86400 * math.ceil(rough / 86400))
    axes.set_xticks(np.arange(math.ceil(span[0] / step - 1e-6), span[1] / step + 1e-9) * step)
    axes.xaxis.set_major_formatter(lambda value, _: fmt.clock(value, 1 if step < 1 else 0))


def _strip(axes: Axes, bands: Sequence[Band], start: float, end: float) -> None:
    bare(axes)
    axes.spines["bottom"].set_visible(False)
    axes.set_xlim(start, end)
    levels = _levels(bands)
    axes.set_ylim(levels, 0)
    axes.set_yticks([])
    wide = (end - start) / (_WIDTH - 0.3)
    open_until = [(*band[:3], end if band[3] is None else band[3]) for band in bands if band[1] < MOST_LEVELS]
    for name, depth, first, last in [band for band in open_until if band[3] > start and band[2] < end][-_MOST_BANDS:]:
        left, right = max(first, start), min(last, end)
        axes.barh(depth + 0.5, right - left, 0.86, left, color=_BAND, edgecolor=GROUND, linewidth=0.8)
        room = int((right - left) / wide / _INCHES_A_CHARACTER) - 1
        if room >= min(4, len(name)):
            axes.text(left + 0.04 * wide, depth + 0.52, escape.chart(name, room), fontsize=7, va="center", clip_on=True)
    _clock_axis(axes, (start, end), 8)
    axes.tick_params(labelsize=7, pad=1)
