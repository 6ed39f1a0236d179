"""A scaling study: the law in a sentence, the curve on log axes, and a slider that reads off time and memory."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.draw.picture import LINE, QUIET, picture_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfnb.models.size_laws import ScalingFigures

_INCHES = (6.6, 3.0)
_MEMORY = palette.ORANGE
_HEADS = ("size", "median", "predicted", "off by", "peak", "FLOPs")


def scaling_line(figures: ScalingFigures) -> str:
    """``time grows as size^1.98 [1.91, 2.05]``."""
    law = figures.law
    bounds = "" if law.exponent_ci is None else f" [{_exponent(law.exponent_ci[0])}, {_exponent(law.exponent_ci[1])}]"
    beside = "" if not law.overhead else f", plus a constant {fmt.duration(law.overhead)}"
    return f"time grows as size^{_exponent(law.exponent)}{bounds}{beside}"


def _exponent(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def scaling_sentences(figures: ScalingFigures) -> list[str]:
    """The laws, and where they do not hold."""
    few = "" if figures.law.exponent_ci else " (too few sizes for an interval)"
    sentences = [f"The {scaling_line(figures)}{few}, on {escape.plain(figures.device, 80)}."]
    if figures.memory_law is not None:
        sentences.append(f"Peak memory grows as size^{_exponent(figures.memory_law.exponent)}.")
    if figures.law.warning is not None:
        sentences.append(figures.law.warning)
    return [*sentences, *figures.notes]


def scaling_text(figures: ScalingFigures, width: int = 100) -> str:
    """The study as text."""
    lines = [line for sentence in scaling_sentences(figures) for line in escape.wrapped(sentence, width)]
    for size, median, predicted, off, peak, flops in (_HEADS, *_rows(figures)):
        lines.append(f"{size:>10}  {median:>26}  {predicted:>10}  {off:>8}  {peak:>9}  {flops:>12}")
    return "\n".join(lines)


def scaling_html(figures: ScalingFigures) -> str:
    """The study as sentences, a picture on log axes, and a table."""
    first, *rest = scaling_sentences(figures)
    alt = f"Step time and peak memory by size on log axes, with the prediction interval; {scaling_line(figures)}"
    rows = [[escape.html(cell) for cell in row] for row in _rows(figures)]
    return framed(
        f"{header(_title(figures), 'scaling study', first, ' '.join(rest))}"
        f"<p>{picture_html(functools.partial(_draw, figures=figures), _INCHES, alt)}</p>"
        f"{tables.table('Measurements by size', _HEADS, rows)}"
    )


def scaling_data(figures: ScalingFigures) -> dict[str, Any]:
    """The payload of the live view."""

    measured = figures.table[["size", "median_ms", "ci_low_ms", "ci_high_ms", "peak_bytes"]]
    return {
        "title": _title(figures),
        "sentences": [escape.plain(sentence, 2000) for sentence in scaling_sentences(figures)],
        "measured": {name: list(map(fmt.short, values)) for name, values in measured.items()},
        "curve": {name: list(map(fmt.short, values)) for name, values in figures.curve.items()},
    }


def _title(figures: ScalingFigures) -> str:
    return f"A step at {len(figures.table):,} sizes"


def _rows(figures: ScalingFigures) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for _, row in figures.table.iterrows():
        rows.append(
            (
                f"{float(row['size']):g}",
                fmt.interval(row["median_ms"], (row["ci_low_ms"], row["ci_high_ms"])),
                fmt.duration(row["predicted_ms"]),
                f"{100 * float(row['residual']):+.1f} %".replace("-", "−"),
                fmt.size(row["peak_bytes"]),
                fmt.flops(row["flops"]),
            )
        )
    return rows


def _draw(figure: Figure, figures: ScalingFigures) -> None:
    axes = figure.subplots()
    table, curve = figures.table, figures.curve
    sizes, medians = (table[name].to_numpy(dtype=float) for name in ("size", "median_ms"))
    axes.set_xscale("log")
    axes.set_yscale("log")
    finite = np.isfinite(curve["high_ms"]) & (curve["low_ms"] > 0)
    if finite.any():
        axes.fill_between(
            curve["size"][finite], curve["low_ms"][finite], curve["high_ms"][finite], color=LINE, alpha=0.8, linewidth=0
        )
    colour = palette.mark("forward").colour
    axes.plot(curve["size"], curve["median_ms"], color=colour, linewidth=1.2)
    low, high = (table[name].to_numpy(dtype=float, na_value=np.nan) for name in ("ci_low_ms", "ci_high_ms"))
    known = np.isfinite(low)
    axes.vlines(sizes[known], low[known], high[known], color=colour, linewidth=1)
    axes.plot(sizes, medians, linestyle="none", marker="o", markersize=4, color=colour)
    axes.set_xlabel("size")
    axes.set_ylabel("step, ms")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.grid(color=LINE, linewidth=0.5)
    if figures.memory_law is not None:
        beside = axes.twinx()
        beside.set_yscale("log")
        beside.plot(curve["size"], curve["peak_bytes"] / 2**20, color=_MEMORY, linewidth=1, linestyle=(0, (4, 3)))
        peaks = table["peak_bytes"].to_numpy(dtype=float) / 2**20
        beside.plot(sizes, peaks, linestyle="none", marker="s", markersize=4, color=_MEMORY)
        beside.set_ylabel("peak memory, MiB (squares)", color=QUIET)
        beside.spines["top"].set_visible(False)
    axes.spines["top"].set_visible(False)
