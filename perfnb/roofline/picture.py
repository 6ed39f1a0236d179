"""The roofline as a matplotlib chart: logarithmic axes, dots for layers, squares for ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.palette import GREY
from perfnb.draw.picture import GROUND, INK, LINE, QUIET, bare, halo
from perfnb.recording.text import TEXT
from perfnb.roofline.data import heaviest_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfnb.roofline.levels import Roofline

#: The fill shows a point's bound, its shape whether it is a layer or an op.
_FILLS = {"compute": (GREY, "compute-bound"), "memory": (GROUND, "memory-bound"), "": ("none", "unknown bound")}
_LABELS = 5
_STYLES = ("-", "--", ":", "-.")


def draw_roofline(figure: Figure, roofline: Roofline) -> None:
    """Draw the roofline into an empty figure."""
    axes = figure.subplots()
    points = heaviest_points(roofline.points)
    points = points[points["intensity"].fillna(0).gt(0) & points["achieved_flops_per_s"].fillna(0).gt(0)]
    peaks = {dtype: peak for dtype, peak in roofline.peaks.items() if peak > 0}
    axes.set_xscale("log")
    axes.set_yscale("log")
    ridges = [peak / roofline.bandwidth for peak in peaks.values()] if roofline.bandwidth else []
    left, right = _span([*points["intensity"].astype(float), *ridges], 2.2)
    low, high = _span([*points["achieved_flops_per_s"].astype(float), *peaks.values()], 1.9)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    bare(axes)
    axes.grid(True, which="major", color=LINE, linewidth=0.6)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: fmt.significant(value, trim=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} FLOP/s" if value < 1000 else _rate(value))
    axes.set_xlabel("arithmetic intensity, FLOP per byte moved")
    _roofs(axes, peaks, roofline.bandwidth, left, right)
    if len(ridges) == 1:
        axes.axvline(ridges[0], color=QUIET, linewidth=0.6, linestyle=":")
        for word, shift, side in (("memory-bound", -5, "right"), ("compute-bound", 5, "left")):
            axes.annotate(
                word, (ridges[0], 0), (shift, 5), xycoords=("data", "axes fraction"), textcoords="offset points",
                ha=side, color=QUIET,
            )  # fmt: skip
    _dots(axes, points)
    _names(axes, points)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)


def _roofs(axes: Axes, peaks: dict[str, float], bandwidth: float | None, left: float, right: float) -> None:
    for place, (dtype, peak) in enumerate(peaks.items()):
        start = left if bandwidth is None else max(left, peak / bandwidth)
        x, y = [start, right], [peak, peak]
        if bandwidth is not None and start > left:
            x, y = [left, *x], [left * bandwidth, *y]
        axes.plot(x, y, color=INK, linewidth=1.6, linestyle=_STYLES[place % len(_STYLES)])
        words = f"{escape.chart(dtype, 20)} {_rate(peak)}"
        _word(axes, words, (right, peak), (-4, 5), ha="right", weight="bold")
    if bandwidth is not None and peaks:
        ridge = min(peaks.values()) / bandwidth
        words = f"{fmt.count(bandwidth)}B/s"
        at = ridge / 3
        _word(axes, words, (at, at * bandwidth), (-5, 5), ha="right", weight="bold")


def _dots(axes: Axes, points: pd.DataFrame) -> None:
    bounds = points["bound"].fillna("").astype(TEXT).where(lambda bound: bound.isin(["compute", "memory"]), "")
    # Ops sum over layers, so each kind has its own scale, and squares stay behind dots.
    for kind, marker, most, order in (("layer", "o", 260.0, 3), ("op", "s", 110.0, 2)):
        times = points["ms"][(points["kind"] == "op") == (kind == "op")].fillna(0)
        heaviest = max(1e-12, float(times.max())) if len(times) else 1.0
        for bound, (fill, word) in _FILLS.items():
            rows = points[(bounds == bound) & ((points["kind"] == "op") == (kind == "op"))]
            if not len(rows):
                continue
            area = np.maximum(14.0, most * rows["ms"].fillna(0).to_numpy(float) / heaviest)
            axes.scatter(
                rows["intensity"].to_numpy(float), rows["achieved_flops_per_s"].to_numpy(float), s=area, marker=marker,
                facecolor=fill, edgecolor=INK, linewidth=0.9, alpha=0.85, zorder=order,
            )  # fmt: skip
            axes.scatter([], [], s=36, marker=marker, facecolor=fill, edgecolor=INK, label=f"{kind}, {word}")


def _names(axes: Axes, points: pd.DataFrame) -> None:
    """Names of the heaviest points, unless they would overlap."""
    placed: list[tuple[float, float]] = []
    (left, right), (low, high) = (np.log10(limit) for limit in (axes.get_xlim(), axes.get_ylim()))
    layers = points[points["kind"] != "op"]
    figures = (layers[column].to_numpy(float) for column in ("intensity", "achieved_flops_per_s"))
    for name, x, y in zip(layers["name"], *figures, strict=True):
        at = ((np.log10(x) - left) / (right - left), (np.log10(y) - low) / (high - low))
        if len(placed) == _LABELS or any(abs(at[0] - a) < 0.22 and abs(at[1] - b) < 0.06 for a, b in placed):
            continue
        placed.append(at)
        late = at[0] > 0.7
        _word(axes, escape.chart(name, 26), (x, y), (-11 if late else 11, -3), ha="right" if late else "left")


def _word(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **style: Any) -> None:
    halo(axes.annotate(text, at, shift, textcoords="offset points", **style))


def _rate(value: float) -> str:
    number, _, unit = fmt.flops(value).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}/s"


def _span(values: list[float], spare: float) -> tuple[float, float]:
    low, high = min(values, default=1.0), max(values, default=10.0)
    return low / spare, max(high * spare, 10 * low)
