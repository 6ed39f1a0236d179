"""A step time as one line and as a small picture of its distribution."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.frame import framed, header
from perfnb.draw.picture import INK, LINE, QUIET, picture_html
from perfnb.profile.noise import noise_facts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfnb.stats.step_times import Timing

_INCHES = (6.4, 1.7)
_QUANTILES = (0.9, 0.95, 0.99)
#: Steps up to this many interquartile ranges above the upper quartile are drawn in place.
_SHOWN = 6
_POINTS: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 2.5}
_BEYOND = palette.WORSE


def timing_facts(timing: Timing) -> list[str]:
    """What is known about a step time, most important first."""
    if not timing.steps:
        return ["no step was timed"]
    facts = [f"{fmt.interval(timing.median_ms, timing.ci_ms)} ({timing.basis})"]
    if timing.wanted is not None and timing.steps < timing.wanted:
        facts.append(f"the budget ended before the {timing.wanted:,} steps needed: raise budget_s")
    if timing.throughput_per_s is not None:
        facts.append(fmt.rate(timing.throughput_per_s, "samples"))
    tails = [(q, timing.quantile_ms(q)) for q in _QUANTILES]
    facts += [f"p{round(100 * q)} {fmt.duration(value)}" for q, value in tails if value is not None][-1:]
    if timing.warmup_ms:
        end = {True: "steady after", False: "not steady after", None: "too few steps to tell if steady after"}
        facts.append(f"{end[timing.steady]} {fmt.counted(len(timing.warmup_ms), 'warm-up step')}")
    if timing.outliers.count:
        outliers = str(timing.outliers)
        facts.append(outliers if timing.block == 1 else outliers.replace(" steps:", " blocks:"))
    return facts + noise_facts(timing.noise, sum(timing.samples_ms) * timing.block)


def timing_text(timing: Timing) -> str:
    """The step time in one line."""
    return " · ".join(timing_facts(timing))


def timing_html(timing: Timing) -> str:
    """The step time in one line, above a plot of the steps in order and a histogram."""
    first, *rest = timing_facts(timing)
    time, _, known = first.partition(" (")
    words = header("A step", "timing", time, " · ".join([known.removesuffix(")"), *rest]))
    if len(timing.samples_ms) < 2:
        return framed(words)
    alt = f"Step times in order, and their histogram; {timing_facts(timing)[0]}"
    return framed(f"{words}<p>{picture_html(functools.partial(_draw, timing=timing), _INCHES, alt)}</p>")


def _draw(figure: Figure, timing: Timing) -> None:
    order, spread = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
    median = timing.median_ms or 0.0
    unit, factor = ("s", 1e-3) if median >= 1000 else ("µs", 1e3) if median < 0.1 else ("ms", 1.0)
    warm, timed = (np.asarray(values) * factor for values in (timing.warmup_ms, timing.samples_ms))
    # Scale to most timed steps: a stall, or a first step that compiles, would flatten all others.
    low, (first, third), high = timed.min(), np.percentile(timed, [25, 75]), timed.max()
    top = min(high, third + _SHOWN * (third - first)) if third > first else high
    margin = 0.08 * (top - low) or 0.05 * top
    order.set_ylim(low - margin, top + margin)
    beyond = np.flatnonzero(timed > top)
    order.plot(beyond, np.full(len(beyond), top), linestyle="none", marker="^", color=_BEYOND, markersize=5)
    order.plot(np.arange(len(warm)) - len(warm), np.minimum(warm, top), color=QUIET, **_POINTS | {"marker": "x"})
    within = np.flatnonzero(timed <= top)
    order.plot(within, timed[within], color=palette.mark("forward").colour, **_POINTS)
    for axes in (order, spread):
        if timing.ci_ms:
            axes.axhspan(timing.ci_ms[0] * factor, timing.ci_ms[1] * factor, color=LINE, alpha=0.8, linewidth=0)
        axes.axhline(median * factor, color=INK, linewidth=1)
        axes.spines[["top", "right"]].set_visible(False)
    order.xaxis.get_major_locator().set_params(integer=True)
    spread.xaxis.get_major_locator().set_params(integer=True)
    order.set_ylabel(f"step, {unit}")
    words = [
        "steps in order" if timing.block == 1 else f"blocks of {timing.block:,} steps in order",
        f"× {len(warm)} warm-up" if len(warm) else "",
        f"▲ {len(beyond)} above" if len(beyond) else "",
    ]
    order.set_xlabel(", ".join(filter(None, words)))
    bins = min(40, max(8, len(timed) // 8))
    spread.hist(timed, bins=bins, range=(low, top), orientation="horizontal", color=palette.mark("forward").colour)
    spread.set_xlabel("steps" if timing.block == 1 else "blocks")
