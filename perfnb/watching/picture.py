"""A watch as a matplotlib figure: small charts with one time axis, the outermost marks behind them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.picture import LINE, QUIET, bare, figure_of
from perfnb.watching.charts import Floats, on_grid
from perfnb.watching.data import bands_of, line_mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfnb.watching.charts import Chart
    from perfnb.watching.summary import MachineSummary

_WIDTH, _ROW = 8.8, 1.6
_POINTS, _MOST_BANDS, _MOST_WORDS = 300, 40, 8
_BAND = "#f0f1f3"
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.6)), (0, (7, 2, 1, 2)))


def watch_figure(summary: MachineSummary) -> Figure:
    """The history as a matplotlib figure; empty if nothing was read."""
    if not summary.charts:
        return figure_of(_draw_nothing, (6.0, 1.0))
    across = 2 if len(summary.charts) in (2, 4) else min(3, len(summary.charts))
    rows = math.ceil(len(summary.charts) / across)
    times, values = on_grid(summary.samples, summary.charts, summary.interval_s, _POINTS)
    bands = [band for band in bands_of(summary) if band[1] == 0][-_MOST_BANDS:]

    def draw(figure: Figure) -> None:
        for place, chart in enumerate(summary.charts):
            axes = figure.add_subplot(rows, across, place + 1)
            for name, _, start, end, _ in bands:
                axes.axvspan(start, times[-1] if end is None else end, color=_BAND, linewidth=0, zorder=0)
                if place == 0:
                    axes.text(start, 1.0, escape.chart(name, 12), fontsize=6, va="top", clip_on=True, color=QUIET,
                              transform=axes.get_xaxis_transform())  # fmt: skip
            _draw_chart(axes, chart, times, values)

    return figure_of(draw, (_WIDTH, _ROW * rows))


def _draw_nothing(figure: Figure) -> None:
    figure.text(0.5, 0.5, "No readings.", ha="center", va="center")


def _draw_chart(axes: Axes, chart: Chart, times: Floats, values: dict[tuple[str, str], Floats]) -> None:
    from matplotlib.ticker import MaxNLocator

    bare(axes)
    most = float(np.nanmax([values[line.device, line.column] for line in chart.lines]))
    near = chart.ceiling is not None and chart.near_ceiling(most)
    factor = fmt.byte_unit(max(most, chart.ceiling or 0.0 if near else 0.0))[0] if chart.unit[:5] == "bytes" else 1
    for place, line in enumerate(chart.lines):
        look: dict[str, Any] = {
            "color": line_mark(chart, line).colour,
            "linestyle": _DASHES[place % len(_DASHES)],
            "linewidth": 1.3,
        }
        # Dots show readings between missing ones, which a line would not.
        readings = values[line.device, line.column] / factor
        axes.plot(times, readings, marker=".", markersize=1.5, label=escape.chart(line.word, 30), **look)
    title = escape.chart(chart.title, 60)
    if chart.ceiling is not None:
        title += f" ({chart.ceiling_word}: {fmt.reading(chart.ceiling, chart.unit)})"
        axes.axhline(chart.ceiling / factor, color=QUIET, linewidth=0.9, linestyle=(0, (1, 2)), visible=near)
    columns = 3 if max(len(line.word) for line in chart.lines) < 9 else 2
    legend = axes.legend(
        *(handles[:_MOST_WORDS] for handles in axes.get_legend_handles_labels()), ncols=columns, frameon=False,
        loc="lower left", bbox_to_anchor=(-0.01, 0.98), fontsize=7, borderaxespad=0, borderpad=0.2, handlelength=2.4,
        columnspacing=1.0, handletextpad=0.5,
    )  # fmt: skip
    legend.set_in_layout(False)  # it is above the chart, and may be wider
    pad = 4 + 9.6 * math.ceil(min(len(chart.lines), _MOST_WORDS) / columns)
    axes.set_title(title, loc="left", fontsize=8.5, weight="bold", pad=pad)
    axes.set_ylim(0, None if near else 1.05 * most / factor or 1.0)
    axes.set_xlim(times[0], max(times[-1], times[0] + 1e-9))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 3, 6, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: fmt.on_axis(fmt.reading(factor * value, chart.unit)))
    axes.xaxis.set_major_formatter(lambda value, _: fmt.clock(value, 0 if times[-1] - times[0] >= 10 else 1))
    axes.yaxis.grid(True, color=LINE, linewidth=0.6)
    axes.tick_params(labelsize=7)
