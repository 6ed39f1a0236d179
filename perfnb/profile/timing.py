"""`Timing`: step times that show, save and load themselves, and what disturbed them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Required, TypedDict

import numpy as np
import pandas as pd
from msgspec import Meta

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.draw.frame import framed, header
from perfnb.draw.picture import INK, LINE, QUIET, picture_html
from perfnb.draw.shown import Shown
from perfnb.errors import RecordingError
from perfnb.recording import store
from perfnb.recording.frame_files import Column
from perfnb.recording.reading import Loader
from perfnb.recording.saved_facts import Count, Noise
from perfnb.recording.store import SavedFolder, SavedKind
from perfnb.recording.text import TEXT
from perfnb.stats.step_times import StepTimes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Garbage collection is reported above this share of the step time.
_TELL_GC = 0.005
_INCHES = (6.4, 1.7)
_QUANTILES = (0.9, 0.95, 0.99)
#: Steps up to this many interquartile ranges above the upper quartile are drawn in place.
_SHOWN = 6
_POINTS: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 2.5}
_BEYOND = palette.WORSE


class TimingFacts(TypedDict, total=False):
    """What saved step times contain besides their frame; earlier versions saved no ``block``."""

    batch_size: Required[Count | None]
    samples: Required[Count | None]
    steady: Required[bool | None]
    noise: Required[Noise]
    wanted: Required[Count | None]
    block: Annotated[int, Meta(ge=1, le=2**62)]


_STEPS = {"pass": Column(TEXT), "wall_ms": Column("float64", low=0, high=1e15)}
TIMING = SavedKind("timing", TimingFacts, {"steps": _STEPS})


class Timing(StepTimes, Shown):
    """Step times, measured without profiler and hooks. Shows itself in a notebook."""

    def save(self, path: str | Path) -> Path:
        """Save the step times to the folder `path` (Parquet and JSON), atomically; `perfnb.load` reads it.

        Raises
        ------
        RecordingError
            If `path` holds something else, or cannot be written.
        """
        parts = (("warmup", self.warmup_ms), ("timed", self.samples_ms))
        steps = pd.DataFrame([(name, ms) for name, times in parts for ms in times], columns=["pass", "wall_ms"])
        return store.save(
            TIMING,
            {"steps": steps.astype({"pass": TEXT, "wall_ms": "float64"})},
            {name: getattr(self, name) for name in TimingFacts.__annotations__},
            path,
        )

    def _text(self, width: int = 100) -> str:
        return "\n".join(escape.wrapped(" · ".join(timing_facts(self)), width))

    def _html(self) -> str:
        return timing_html(self)


def shown(timing: StepTimes) -> Timing:
    """Turn figures into a `Timing` that shows itself."""
    return Timing(**{name: getattr(timing, name) for name in StepTimes.__dataclass_fields__})


def load_timing(path: str | Path) -> Timing:
    """Read step times that `Timing.save` wrote.

    Raises
    ------
    RecordingError
        If it is missing or damaged.
    """
    saved = SavedFolder(TIMING, path)
    steps = saved.frame("steps")
    try:
        warmup, timed = (
            tuple(float(ms) for ms in steps.loc[steps["pass"] == name, "wall_ms"]) for name in ("warmup", "timed")
        )
        facts = {name: saved.facts[name] for name in TimingFacts.__annotations__ if name in saved.facts}
        return Timing(samples_ms=timed, warmup_ms=warmup, **facts)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{path} is damaged: its steps are not those of a timing ({error}).") from error


def timing_facts(timing: StepTimes) -> list[str]:
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
    return facts + noise_facts(timing.noise)


def timing_html(timing: StepTimes) -> str:
    """The step time in one line, above a plot of the steps in order and a histogram."""
    first, *rest = timing_facts(timing)
    time, _, known = first.partition(" (")
    words = header("A step", "timing", time, " · ".join([known.removesuffix(")"), *rest]))
    if len(timing.samples_ms) < 2:
        return framed(words)
    alt = f"Step times in order, and their histogram; {first}"
    return framed(f"{words}<p>{picture_html(functools.partial(_draw, timing=timing), _INCHES, alt)}</p>")


def _draw(figure: Figure, timing: StepTimes) -> None:
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
        axes.xaxis.get_major_locator().set_params(integer=True)
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


def noise_facts(noise: Mapping[str, Any]) -> list[str]:
    """Describe what disturbed the steps; empty if nothing is known to have."""
    facts = []
    if noise.get("gc_share", 0.0) > _TELL_GC:
        facts.append(f"garbage collection took {fmt.share(noise['gc_share'])}")
    load, cpus = noise.get("load_before"), noise.get("cpus")
    if load is not None and cpus and load > 0.5 * cpus:
        facts.append(f"the machine was already busy (load {load:.1f} on {cpus} CPUs)")
    before, after = noise.get("cpu_mhz_before"), noise.get("cpu_mhz_after")
    if before and after and abs(after / before - 1) > 0.1:
        facts.append(f"the CPU clock changed from {before:,} to {after:,} MHz")
    if noise.get("throttled_periods"):
        facts.append(f"the CPU limit paused the process for {fmt.duration(noise['throttled_ms'])}")
    if noise.get("gpu_throttle_reasons"):
        facts.append(f"the GPU was throttled: {escape.plain(', '.join(noise['gpu_throttle_reasons']), 200)}")
    return facts


def noise_sentences(noise: Mapping[str, Any]) -> list[str]:
    """What disturbed the steps, as in `noise_facts`, in sentences for the notes of a result."""
    return [f"{fmt.capital(fact)}." for fact in noise_facts(noise)]


LOADER = Loader("saved step times", TIMING.is_at, lambda path, *_: load_timing(path))
