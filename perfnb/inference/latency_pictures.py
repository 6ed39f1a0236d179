"""The load curve and the token timeline of one request as pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.picture import GROUND, HATCHES, INK, LINE, QUIET, bare, halo
from perfnb.stats.intervals import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfnb.inference.latency import Latency
    from perfnb.inference.load_model import HighestRate
    from perfnb.inference.samples import OpenRun

CURVE_INCHES, TIMELINE_INCHES = (7.2, 4.2), (7.2, 1.5)
#: A quantile in the curve, with its colour, dashes and the marker of what was measured.
_LINES = {
    "p50_ms": (0.5, palette.BLUE, "-", "o"),
    "p95_ms": (0.95, palette.GREEN, "--", "s"),
    "p99_ms": (0.99, palette.VERMILION, ":", "^"),
}
#: Points across a timeline, about.
_WIDE = 480
#: Ranges of more than this are drawn on a log axis.
_DECADE = 10.0


def draw_curve(figure: Figure, found: Latency) -> None:
    """Quantiles of latency against the rate, above the mean wait and the mean service time of which they are made."""
    axes, parts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    curve = found.curve
    rates = _column(curve, "rate_per_s")
    seen = [each for name in _LINES for each in _column(curve, name) if math.isfinite(each)]
    measured = _measured(found.open_run)
    seen += [each for point in measured.values() for each in point]
    highest = found._asked
    if highest is not None and not isinstance(highest, str):
        seen.append(highest.bound_ms)
        _draw_highest(axes, highest)
    low, high = min(seen), max(seen)
    many = high > _DECADE * low
    top = high * (2 if many else 1.1)
    run = found.open_run
    for number, (name, (_, colour, dashes, marker)) in enumerate(reversed(_LINES.items())):
        _draw_quantile(axes, curve, name, top, colour=colour, dashes=dashes, level=number)
        if run is not None and name in measured:
            at, under, over = measured[name]
            axes.errorbar(
                *([run.rate_per_s], [at]),
                yerr=[[at - under], [over - at]],
                fmt=marker,
                markersize=5,
                markerfacecolor=GROUND,
                color=colour,
                elinewidth=1.2,
                zorder=6,
                label=f"{name.removesuffix('_ms')} measured",
            )
    if many:
        axes.set_yscale("log")
    axes.set_ylim(low / 1.5 if many else 0, top)
    _label_times(axes, many)
    axes.set_ylabel("latency")
    _finish(axes)
    _explain(axes)
    least, most = _ends(rates, found)
    _mark_rates(axes, parts, least, most)
    _draw_parts(parts, rates, _column(curve, "service_ms"), _column(curve, "wait_ms"))


def _ends(rates: Floats, found: Latency) -> tuple[float, float]:
    """The lowest and the highest rate in the picture."""
    seen = [*rates]
    if found.open_run is not None:
        seen.append(found.open_run.rate_per_s)
    if found._asked is not None and not isinstance(found._asked, str):
        seen.append(found._asked.rate_per_s or 0.0)
    known = [each for each in seen if each > 0]
    return min(known), max(known)


def _draw_quantile(
    axes: Axes, curve: pd.DataFrame, name: str, top: float, *, colour: str, dashes: str, level: int
) -> None:
    stem = name.removesuffix("_ms")
    rates, value, low, high = (
        _column(curve, column) for column in ("rate_per_s", name, f"{stem}_low_ms", f"{stem}_high_ms")
    )
    shown = np.isfinite(value)
    if not shown.any():
        return
    axes.plot(rates[shown], value[shown], color=colour, linestyle=dashes, linewidth=1.6, label=stem, zorder=5)
    banded = shown & np.isfinite(low) & ~np.isnan(high)
    over = np.minimum(high[banded], 10 * top)
    # Lower quantiles lie upon higher ones; the thin edges show where a band goes on underneath.
    axes.fill_between(rates[banded], low[banded], over, color=_light(colour), linewidth=0, zorder=2 + level / 10)
    for edge in (low[banded], over):
        axes.plot(rates[banded], edge, color=colour, linewidth=0.4, zorder=4)


def _light(colour: str) -> str:
    """A fifth of a colour on the picture's ground."""
    parts = zip(bytes.fromhex(colour[1:]), bytes.fromhex(GROUND[1:]), strict=True)
    return "#" + "".join(f"{round(0.2 * mine + 0.8 * ground):02x}" for mine, ground in parts)


def _draw_highest(axes: Axes, highest: HighestRate) -> None:
    axes.axhline(highest.bound_ms, color=INK, linewidth=0.9, zorder=5)
    word = f"p{100 * highest.quantile:g} within {fmt.duration(highest.bound_ms)}"
    if not highest.rate_per_s:
        left, rate = (0.01, highest.bound_ms), "at no rate" if highest.rate_per_s == 0 else "rate not known"
        halo(axes.text(*left, f"{word}: {rate}", transform=axes.get_yaxis_transform(), va="bottom", zorder=8))
        return
    said = axes.annotate(
        f"{word}: {fmt.significant(highest.rate_per_s)}/s",
        (highest.rate_per_s, highest.bound_ms),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        va="bottom",
        zorder=8,
    )
    halo(said)
    ends = [[highest.rate_per_s - highest.low], [highest.high - highest.rate_per_s]]
    axes.errorbar(
        *([highest.rate_per_s], [highest.bound_ms]),
        xerr=ends,
        fmt="D",
        markersize=6,
        color=INK,
        elinewidth=2.6,
        zorder=7,
        label="highest rate",
    )


def _draw_parts(axes: Axes, rates: Floats, service: Floats, wait: Floats) -> None:
    shown = np.isfinite(wait)
    hatch, ink = HATCHES["dots"]
    rates, service, wait = rates[shown], service[shown], wait[shown]
    axes.fill_between(rates, 0, service, color=palette.LIGHT, linewidth=0, label="mean service")
    axes.fill_between(
        *(rates, service, service + wait),
        facecolor=palette.ORANGE,
        edgecolor=ink,
        hatch=hatch,
        linewidth=0,
        label="mean wait",
    )
    axes.set_ylim(0, None)
    _label_times(axes, many=False)
    axes.set_ylabel("mean latency")
    axes.set_xlabel("requests per second")
    _finish(axes)
    _explain(axes, reverse=True)


def _measured(run: OpenRun | None) -> dict[str, tuple[float, float, float]]:
    """What the run at a rate showed: each quantile that has an interval, with it."""
    from perfnb.stats.intervals import quantile, quantile_interval

    if run is None or run.saturated:
        return {}
    times = run.samples["latency_ms"].to_numpy(dtype=float)
    found = {}
    for name, (q, *_) in _LINES.items():
        at, ends = quantile(times, q), quantile_interval(times, q)
        if at is not None and ends is not None:
            found[name] = (at, min(at, ends[0]), max(at, ends[1]))
    return found


def _label_times(axes: Axes, many: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    low, high = axes.get_ylim()
    if many:
        narrow = high / max(low, 1e-12) < 1e3
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: fmt.on_axis(fmt.duration(ms)) if ms > 0 else "0"))


def _mark_rates(axes: Axes, parts: Axes, least: float, most: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    margin = 0.05 * (most - least)
    axes.set_xlim(max(0.0, least - margin), most + margin)
    if most > _DECADE * least:
        axes.set_xscale("log")
        axes.set_xlim(least / 1.2, most * 1.2)
        parts.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        parts.xaxis.set_minor_locator(NullLocator())
        parts.xaxis.set_minor_formatter(NullFormatter())
    parts.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.6g}"))


def _finish(axes: Axes) -> None:
    axes.grid(color=LINE, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _explain(axes: Axes, reverse: bool = False) -> None:
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), reverse=reverse)


def draw_timeline(figure: Figure, wait_ms: float, tokens_ms: Sequence[float]) -> None:
    """One request from its arrival: waiting, the time to the first token, then each token as a field.

    Parameters
    ----------
    wait_ms : float
        From its arrival to its start.
    tokens_ms : sequence of float
        When each token came, after its arrival.
    """
    axes = figure.subplots()
    marks = palette.REQUEST
    spans = {"wait": (0.0, wait_ms), "prefill": (wait_ms, tokens_ms[0]), "decode": (tokens_ms[0], tokens_ms[-1])}
    for name, (begin, end) in spans.items():
        mark = marks[name]
        if end <= begin:
            continue
        axes.broken_barh([(begin, end - begin)], (0, 1), facecolor=mark.colour, label=mark.word)
        if name == "wait":
            hatch, ink = HATCHES[mark.pattern]
            axes.broken_barh([(begin, end - begin)], (0, 1), facecolor="none", edgecolor=ink, hatch=hatch, linewidth=0)
    # Lines between tokens, thin enough to leave the fields visible.
    wide = (tokens_ms[-1] - tokens_ms[0]) / max(1, len(tokens_ms) - 1) / tokens_ms[-1] * _WIDE
    axes.vlines(tokens_ms[:-1], 0, 1, color=GROUND, linewidth=min(1.0, 0.2 * wide))
    axes.plot(tokens_ms, [1.18] * len(tokens_ms), marker="v", color=INK, linestyle="", markersize=3.5, label="token")
    axes.set_ylim(0, 1.45)
    axes.set_yticks([])
    axes.set_xlim(0, tokens_ms[-1] * 1.01)
    axes.set_xlabel("ms since the request was due", color=QUIET)
    bare(axes)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0)


def _column(table: pd.DataFrame, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return table[name].to_numpy(dtype=float, na_value=np.nan)
