"""Draw a document's series as a matplotlib figure, for papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.document import Series, words
from perfnb.draw.picture import LINE, QUIET, bare, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 8.8, 2.1
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.6)), (0, (7, 2, 1, 2)))
#: The maximum number of lines in the legend.
_MOST_WORDS = 8


def series_figure(charts: Sequence[Series], across: int = 1) -> Figure:
    """Draw the charts, with `across` of them side by side. If there are no charts, the figure contains a note."""
    rows = math.ceil(len(charts) / across)
    return figure_of(partial(_draw, charts=charts, rows=rows, across=across), (_WIDTH, max(1.0, _HEIGHT * rows)))


def _draw(figure: Figure, charts: Sequence[Series], rows: int, across: int) -> None:
    if not charts:
        figure.text(0.5, 0.5, "Nothing to draw.", ha="center", va="center")
    for place, chart in enumerate(charts):
        _chart(figure.add_subplot(rows, across, place + 1), chart)


def _chart(axes: Axes, chart: Series) -> None:
    from matplotlib.ticker import MaxNLocator

    bare(axes)
    for line, dashes in zip(chart.lines, cycle(_DASHES), strict=False):
        values, low, high = (
            [math.nan if (number := fmt.known(value)) is None else number for value in ends or ()]
            for ends in (line.values, line.low, line.high)
        )
        look: dict[str, Any] = {"color": line.mark.colour, "linestyle": dashes, "linewidth": 1.3}
        # Dots show values that are surrounded by missing values, which a line would not show.
        axes.plot(chart.at, values, marker=".", markersize=4, label=escape.chart(line.mark.word, 40), **look)
        if low and high:
            axes.vlines(chart.at, low, high, color=line.mark.colour, linewidth=1.2)
    for name, value in chart.levels.items():
        axes.axhline(value, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)), label=escape.chart(name, 30))
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[:_MOST_WORDS], names[:_MOST_WORDS], frameon=False, fontsize=7, loc="best")
    axes.set_title(escape.chart(chart.title, 60), loc="left", fontsize=8.5, weight="bold")
    axes.set(xlabel=chart.x.label, ylabel=chart.y.label)
    axes.xaxis.set_major_formatter(lambda value, _: fmt.on_axis(words(value, chart.x.unit)))
    axes.yaxis.set_major_formatter(lambda value, _: fmt.on_axis(words(value, chart.y.unit)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=chart.x.unit == "count", min_n_ticks=1))
    top = axes.get_ylim()[1]
    base = fmt.byte_unit(top)[0] if chart.y.unit.startswith("bytes") else 1
    axes.set_yticks([base * tick for tick in MaxNLocator(4).tick_values(0, top / base)])
    axes.set_ylim(0, top)  # start at 0, so that heights are proportional to values
    axes.yaxis.grid(True, color=LINE, linewidth=0.6)
    axes.tick_params(labelsize=7)
