"""The step time and how well it is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from perfnb.stats.intervals import Interval, interval_of_median, quantile
from perfnb.stats.outliers import Outliers, classify_outliers


@dataclass(frozen=True, repr=False)
class Timing:
    """Step times, measured without profiler and hooks.

    Attributes
    ----------
    samples_ms : tuple of float
        Wall time of each step, in the order of execution; of steps that are too short to be timed one by one, the mean
        of each block of them.
    batch_size : int or None
        Samples that every step works on; ``None`` where the batches do not tell or differ.
    samples : int or None
        Samples of all steps together; ``None`` where the batches do not tell.
    warmup_ms : tuple of float
        Wall time of each step of the warm-up, which are not among `samples_ms`.
    steady : bool or None
        Whether the last steps of the warm-up showed no trend; ``None`` where there were too few to tell.
    noise : mapping
        What went on beside the steps: load, clock, garbage collections, throttling; see `capture.conditions`.
    wanted : int or None
        How many steps were asked for, or would be needed for the interval that was aimed at.
    block : int
        Steps in a block; 1 where each was timed by itself.
    """

    samples_ms: tuple[float, ...]
    batch_size: int | None = None
    samples: int | None = None
    warmup_ms: tuple[float, ...] = ()
    steady: bool | None = None
    noise: Mapping[str, Any] = field(default_factory=dict)
    wanted: int | None = None
    block: int = 1

    def __repr__(self) -> str:
        if self.median_ms is None:
            return "<perfnb.Timing: no step>"
        times, unit = times_in_words([self.median_ms, *(self.ci_ms or ())]).rsplit(" ", 1)
        median, *bounds = times.split(", ")
        interval = f" [{', '.join(bounds)}]" if bounds else ""
        return f"<perfnb.Timing: {median} {unit}{interval}, {self.steps} step{'s' * (self.steps > 1)}>"

    @property
    def steps(self) -> int:
        """Number of steps measured."""
        return len(self.samples_ms) * self.block

    @property
    def median_ms(self) -> float | None:
        """Median step time in milliseconds; ``None`` where no step was timed, as in a trace that was loaded."""
        return float(np.median(self.samples_ms)) if self.samples_ms else None

    @property
    def ci_ms(self) -> tuple[float, float] | None:
        """95 % confidence interval of the median; ``None`` below 6 steps, which cannot support one.

        From order statistics; where successive steps resemble each other, at the ranks that their effective number
        allows (a moving-block bootstrap of the median holds it in 85 to 89 of 100 such runs, this in 94).
        """
        return None if self._interval is None else self._interval[:2]

    @property
    def ci_method(self) -> str | None:
        """How `ci_ms` was found."""
        return None if self._interval is None else self._interval.method

    @property
    def basis(self) -> str:
        """What the step time rests on, in words: how many steps, and whether there is an interval."""
        if not self.steps:
            return "no timed step"
        count = len(self.samples_ms)
        steps = "1 timed step" if self.steps == 1 else f"{count:,} timed steps"
        if self.block > 1:
            steps = f"{count:,} {'block' if count == 1 else 'blocks'} of {self.block:,} steps"
        of = "" if count == 1 else "median of "
        return f"95 % interval, {of}{steps}" if self.ci_ms else f"{of}{steps}: too few for a 95 % interval"

    def quantile_ms(self, q: float) -> float | None:
        """The step time that a share `q` of the steps does not exceed.

        ``None`` where so few steps cannot support it: the 90th percentile needs 29, the 95th 59, the 99th 299; and of
        blocks, whose means hide it.
        """
        return None if self.block > 1 else quantile(self.samples_ms, q)

    @property
    def throughput_per_s(self) -> float | None:
        """Samples per second: at the median step time, or over all steps where batches differ; ``None`` if unknown."""
        if self.median_ms is None:
            return None
        if self.batch_size is not None:
            return self.batch_size / self.median_ms * 1e3
        return None if self.samples is None else self.samples / sum(self.samples_ms) * 1e3

    @cached_property
    def outliers(self) -> Outliers:
        """Steps far from the others, by class; none is left out of any figure."""
        return classify_outliers(self.samples_ms)

    @cached_property
    def _interval(self) -> Interval | None:
        return interval_of_median(self.samples_ms)


def timing_of_batches(samples_ms: list[float], sizes: list[int | None], **rest: Any) -> Timing:
    """The timing of steps with the sizes of their batches."""
    known = [size for size in sizes if size is not None]
    whole = len(known) == len(sizes) and len(known) > 0
    return Timing(
        samples_ms=tuple(samples_ms),
        batch_size=known[0] if whole and len(set(known)) == 1 else None,
        samples=sum(known) if whole else None,
        **rest,
    )


def times_in_words(times_ms: Iterable[float]) -> str:
    """Times with three significant digits and one unit: ``1.2, 980 ms``, ``0.98, 3.44 s`` from 1,000 ms.

    Where some are below 0.1 ms and none reaches 1 ms: ``13.8, 117 µs``.
    """
    values = [float(f"{value:.3g}") for value in times_ms]
    sizes = [abs(value) for value in values if value]
    in_us = bool(sizes) and min(sizes) < 0.1 and max(sizes) < 1
    factor, unit = (1e3, "µs") if in_us else (1e-3, "s") if max(sizes, default=0.0) >= 1000 else (1.0, "ms")
    return ", ".join(f"{value * factor:.3g}" for value in values) + f" {unit}"
