"""A step time as one line and as a small picture of its distribution."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfnb.views import escape, palette
from perfnb.views import format as fmt
from perfnb.views.picture import INK, LINE, QUIET, picture_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfnb.analysis.timing import Timing

_INCHES = (6.4, 1.7)
_QUANTILES = (0.9, 0.95, 0.99)
#: Share of the steps' time above which garbage collections are told.
_TELL_GC = 0.005
#: Interquartile ranges above the upper quartile up to which steps are drawn in their place.
_SHOWN = 6
_POINTS: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 2.5}
_BEYOND = "#D55E00"


def timing_facts(timing: Timing) -> list[str]:
    """What is known of a step time, the most important first."""
    if not timing.steps:
        return ["no step was timed"]
    median = f"median of {timing.steps:,} steps" if timing.steps > 1 else "1 step"
    known = f"95 % interval, {median}" if timing.ci_ms else f"too few steps for an interval, {median}"
    facts = [f"{fmt.interval(timing.median_ms, timing.ci_ms)} ({known})"]
    if timing.wanted is not None and timing.steps < timing.wanted:
        facts.append(f"the budget ended it before the {timing.wanted:,} steps that were wanted: raise budget_s")
    if timing.throughput_per_s is not None:
        facts.append(fmt.rate(timing.throughput_per_s, "samples"))
    tails = [(q, timing.quantile_ms(q)) for q in _QUANTILES]
    facts += [f"p{round(100 * q)} {fmt.duration(value)}" for q, value in tails if value is not None][-1:]
    if timing.warmup_ms:
        steps = "1 step" if len(timing.warmup_ms) == 1 else f"{len(timing.warmup_ms):,} steps"
        end = {True: "steady after", False: "never steady in", None: "too few steps to tell whether steady after"}
        facts.append(f"{end[timing.steady]} {steps} of warm-up")
    if timing.outliers.count:
        facts.append(str(timing.outliers))
    return facts + noise_facts(timing.noise, sum(timing.samples_ms))


def noise_facts(noise: Mapping[str, Any], whole_ms: float) -> list[str]:
    """What disturbed the steps, in words; nothing where nothing is known to have."""
    facts = []
    paused = sum(ms for _, ms in noise.get("gc_pauses", ()))
    if paused > _TELL_GC * whole_ms > 0:
        facts.append(f"garbage collections took {fmt.share(paused / whole_ms)}")
    load, cpus = noise.get("load_before"), noise.get("cpus")
    if load is not None and cpus and load > 0.5 * cpus:
        facts.append(f"the machine was busy before (load {load:.1f} on {cpus} CPUs)")
    before, after = noise.get("cpu_mhz_before"), noise.get("cpu_mhz_after")
    if before and after and abs(after / before - 1) > 0.1:
        facts.append(f"the CPU's clock went from {before:,} to {after:,} MHz")
    if noise.get("throttled_periods"):
        facts.append(f"the CPU limit stopped the process for {fmt.duration(noise['throttled_ms'])}")
    if noise.get("gpu_throttle_reasons"):
        facts.append(f"the GPU was throttled: {escape.plain(', '.join(noise['gpu_throttle_reasons']), 200)}")
    return facts


def timing_text(timing: Timing) -> str:
    """The step time in one line."""
    return " · ".join(timing_facts(timing))


def timing_html(timing: Timing) -> str:
    """The step time in one line, above a picture of the steps in order and of their distribution."""
    words = f"<p>{escape.html_sentence(timing_text(timing))}</p>"
    if timing.steps < 2:
        return words
    alt = f"Step times in their order and how they are distributed; {timing_facts(timing)[0]}"
    return f"{words}<p>{picture_html(functools.partial(_draw, timing=timing), _INCHES, alt)}</p>"


def _draw(figure: Figure, timing: Timing) -> None:
    order, spread = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
    unit, factor = ("s", 1e-3) if timing.median_ms >= 1000 else ("µs", 1e3) if timing.median_ms < 0.1 else ("ms", 1.0)
    warm, timed = (np.asarray(values) * factor for values in (timing.warmup_ms, timing.samples_ms))
    # The scale is that of most timed steps: a stall, or a first step that compiles, would flatten all others.
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
        axes.axhline(timing.median_ms * factor, color=INK, linewidth=1)
        axes.spines[["top", "right"]].set_visible(False)
    order.set_ylabel(f"step, {unit}")
    words = [
        "steps in order",
        f"× {len(warm)} of warm-up" if len(warm) else "",
        f"▲ {len(beyond)} above" if len(beyond) else "",
    ]
    order.set_xlabel(", ".join(filter(None, words)))
    bins = min(40, max(8, len(timed) // 8))
    spread.hist(timed, bins=bins, range=(low, top), orientation="horizontal", color=palette.mark("forward").colour)
    spread.set_xlabel("steps")
