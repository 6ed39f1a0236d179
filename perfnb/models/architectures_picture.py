"""The comparison of architectures as a matplotlib chart: each one's time by kind of layer and by phase."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.picture import GROUND, HATCHES, INK, LINE, bare
from perfnb.models.architectures_data import SHARED_BY, metric_values, part_mark, part_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfnb.models.costs import ArchitectureFigures

#: Room at the right of the longest bar, and the least part of it at which a share is written, by what is shared out.
_ROOM = {"kind": 1.42, "phase": 1.04}
_WORDED = {"kind": 0.09, "phase": 0.13}
#: Characters of a legend that have room side by side.
_LEGEND = 110


def inches(figures: ArchitectureFigures) -> tuple[float, float]:
    """Width and height of the picture."""
    return 8.8, 1.4 + 0.56 * len(figures.table)


def draw_architectures(figure: Figure, figures: ArchitectureFigures) -> None:
    """Draw the comparison into an empty figure."""
    sides = figure.subplots(1, 2, sharey=True, width_ratios=[1.5, 1])
    for axes, (by, (word, _)) in zip(sides, SHARED_BY.items(), strict=True):
        bare(axes)
        axes.spines["bottom"].set_visible(False)
        axes.xaxis.grid(True, color=LINE, linewidth=0.6)
        axes.set_title(f"time of a step by {word}", loc="left", fontsize=8.5, fontweight="bold")
        axes.xaxis.set_major_formatter(lambda value, _: _round(fmt.duration(value)) if value else "0")
        axes.locator_params(axis="x", nbins=5 if by == "kind" else 4, steps=[1, 2, 5, 10])
        _bars(axes, figures, by)
    _legend(figure, sides)
    first = sides[0]
    first.set_yticks(range(len(figures.table)), [escape.chart(name, 26) for name in figures.table.index])
    first.tick_params(axis="y", labelcolor=INK)
    first.set_ylim(len(figures.table) - 0.4, -0.6)
    _times(first, figures)


def _bars(axes: Axes, figures: ArchitectureFigures, by: str) -> None:
    parts = part_times(figures, by)
    ends = [0.0] * len(figures.table)
    for times in parts.values():
        for place, (ms, _) in enumerate(times):
            ends[place] += ms or 0.0
    longest, starts = max([*ends, 1e-12]), [0.0] * len(ends)
    for part, times in parts.items():
        mark = part_mark(by, part)
        widths = [ms or 0.0 for ms, _ in times]
        hatch, colour = HATCHES.get(mark.pattern, (None, GROUND))
        axes.barh(
            range(len(widths)), widths, left=starts, height=0.46, facecolor=mark.colour, hatch=hatch, edgecolor=colour,
            linewidth=0, label=escape.chart(mark.word, 24) if any(widths) else "_",
        )  # fmt: skip
        for place, (ms, share) in enumerate(times):
            if ms is not None and ms >= _WORDED[by] * longest:
                middle = starts[place] + ms / 2
                axes.annotate(
                    fmt.share(share), (middle, place + 0.23), (0, -2), textcoords="offset points", ha="center",
                    va="top", fontsize=7.5,
                )  # fmt: skip
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_xlim(0, _ROOM[by] * longest)


def _legend(figure: Figure, sides: Iterable[Axes]) -> None:
    """One legend of all that is drawn; the grey of what is left over stands in it once."""
    entries = {label: handle for axes in sides for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if entries:
        columns = max(1, min(6, _LEGEND // (6 + max(map(len, entries)))))
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False,
            handlelength=1.4, columnspacing=1.4,
        )  # fmt: skip


def _times(axes: Axes, figures: ArchitectureFigures) -> None:
    """The median and its interval at the end of each bar."""
    bounds = [metric_values(figures, column) for column in ("ci_low_ms", "ci_high_ms")]
    for place, (ms, low, high) in enumerate(zip(metric_values(figures, "median_ms"), *bounds, strict=True)):
        interval = None if low is None or high is None else (low, high)
        if interval is not None:
            axes.plot(interval, [place, place], color=INK, linewidth=1.3, marker="|", markersize=6, zorder=4)
        at = max(ms or 0.0, high or 0.0)
        axes.annotate(
            fmt.interval(ms, interval), (at, place), (6, 0), textcoords="offset points", va="center", fontsize=8
        )


def _round(text: str) -> str:
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"
