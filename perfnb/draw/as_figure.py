"""Draw a document's series as a matplotlib figure, for papers."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.document import Series, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The colours of less important text and of lines. A figure has its own background, which makes it readable on any
#: page.
_QUIET, _LINE = "#57606a", "#d0d7de"
_STYLE: Any = {
    "font.size": 8.5,
    "text.color": "#1f2328",
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _QUIET,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "figure.facecolor": "#ffffff",
    "axes.facecolor": "#ffffff",
}
_WIDTH, _HEIGHT, _DOTS_AN_INCH = 8.8, 2.1, 150
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.6)), (0, (7, 2, 1, 2)))
#: The maximum number of lines in the legend.
_MOST_WORDS = 8


def series_figure(charts: Sequence[Series], across: int = 1) -> Figure:
    """Draw the charts as a figure that a notebook displays as a picture, with `across` of them side by side.

    If there are no charts, the figure contains a note.
    """
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            with _styled():
                buffer = io.BytesIO()
                self.savefig(buffer, format="png")
                return buffer.getvalue()

    Shown.__name__ = Shown.__qualname__ = "Figure"
    rows = math.ceil(len(charts) / across)
    with _styled():
        figure = Shown(figsize=(_WIDTH, max(1.0, _HEIGHT * rows)), dpi=_DOTS_AN_INCH, layout="constrained")
        if not charts:
            figure.text(0.5, 0.5, "Nothing to draw.", ha="center", va="center")
        for place, chart in enumerate(charts):
            _chart(figure.add_subplot(rows, across, place + 1), chart)
    return figure


@contextmanager
def _styled() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # names may be written in any script
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def _chart(axes: Axes, chart: Series) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, labelsize=7)
    axes.set_axisbelow(True)
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
        axes.axhline(value, color=_QUIET, linewidth=0.9, linestyle=(0, (3, 2)), label=escape.chart(name, 30))
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
    axes.yaxis.grid(True, color=_LINE, linewidth=0.6)
