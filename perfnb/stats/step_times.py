"""Step times: their median and its precision, throughput, and outliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from perfnb import quantities as fmt
from perfnb.stats.intervals import Interval, Samples, interval_of_median, quantile


@dataclass(frozen=True)
class Outliers:
    """Samples beyond Tukey's fences: classified and counted, never dropped.

    Attributes
    ----------
    low_severe, low_mild, high_mild, high_severe : tuple of int
        Indices of the samples of each class, in order of execution, from 0.
    samples : int
        Number of samples classified.
    """

    low_severe: tuple[int, ...]
    low_mild: tuple[int, ...]
    high_mild: tuple[int, ...]
    high_severe: tuple[int, ...]
    samples: int

    @property
    def count(self) -> int:
        """Number of outliers of all classes."""
        return sum(self.by_class.values())

    @property
    def share(self) -> float:
        """Share of outliers among all samples."""
        return self.count / self.samples if self.samples else 0.0

    @property
    def by_class(self) -> dict[str, int]:
        """Number of outliers of each class, from the lowest to the highest."""
        return {
            "low severe": len(self.low_severe),
            "low mild": len(self.low_mild),
            "high mild": len(self.high_mild),
            "high severe": len(self.high_severe),
        }

    def __str__(self) -> str:
        if self.count == 0:
            return f"no outliers among {self.samples} steps"
        classes = ", ".join(f"{count} {name}" for name, count in self.by_class.items() if count)
        return f"{self.count} outlier{'s' * (self.count > 1)} among {self.samples} steps: {classes}"


def classify_outliers(samples: Samples) -> Outliers:
    """Classify samples by Tukey's fences: mild beyond 1.5, severe beyond 3 interquartile ranges from the quartiles.

    Tukey, Exploratory Data Analysis. If more than half of the samples are equal, the fences are at that value and
    anything else is severe. Fewer than 4 samples have no outliers.
    """
    values = np.asarray(samples, dtype=float)
    if len(values) < 4:
        return Outliers((), (), (), (), len(values))
    low, high = np.percentile(values, [25, 75])
    spread = high - low
    low_severe, high_severe = values < low - 3 * spread, values > high + 3 * spread
    low_mild = (values < low - 1.5 * spread) & ~low_severe
    high_mild = (values > high + 1.5 * spread) & ~high_severe

    def places(kind: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[int, ...]:
        return tuple(np.flatnonzero(kind).tolist())

    return Outliers(places(low_severe), places(low_mild), places(high_mild), places(high_severe), len(values))


@dataclass(frozen=True, repr=False)
class StepTimes:
    """Step times, measured without profiler and hooks.

    Attributes
    ----------
    samples_ms : tuple of float
        Wall time of each step, in order of execution; for steps too short to time one by one, the mean of each block.
    batch_size : int or None
        Samples per step; ``None`` if unknown or not the same for all.
    samples : int or None
        Samples of all steps together; ``None`` if unknown.
    warmup_ms : tuple of float
        Wall time of each warm-up step; not part of `samples_ms`.
    steady : bool or None
        Whether the last warm-up steps showed no trend; ``None`` if there were too few to tell.
    noise : mapping
        Conditions during the steps: load, clock, garbage collections, throttling.
    wanted : int or None
        Steps requested, or needed for the target interval.
    block : int
        Steps per block; 1 if each was timed by itself.
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
        times, unit = fmt.durations([self.median_ms, *(self.ci_ms or ())]).rsplit(" ", 1)
        median, *bounds = times.split(", ")
        interval = f" [{', '.join(bounds)}]" if bounds else ""
        return f"<perfnb.Timing: {median} {unit}{interval}, {self.steps} step{'s' * (self.steps > 1)}>"

    @property
    def steps(self) -> int:
        """Number of steps measured."""
        return len(self.samples_ms) * self.block

    @property
    def median_ms(self) -> float | None:
        """Median step time in milliseconds; ``None`` if no step was timed, as in a loaded trace."""
        return float(np.median(self.samples_ms)) if self.samples_ms else None

    @property
    def ci_ms(self) -> tuple[float, float] | None:
        """95 % confidence interval of the median; ``None`` below 6 steps, which are too few for one.

        It follows from order statistics; if steps are autocorrelated, at the ranks for their effective number (a
        moving-block bootstrap of the median covers it in 85 to 89 of 100 such runs, this in 94).
        """
        return None if self._interval is None else self._interval[:2]

    @property
    def ci_method(self) -> str | None:
        """The method of `ci_ms`."""
        return None if self._interval is None else self._interval.method

    @property
    def basis(self) -> str:
        """The basis of the step time, in words: how many steps, and whether there is an interval."""
        if not self.steps:
            return "no timed step"
        count = len(self.samples_ms)
        steps = "1 timed step" if self.steps == 1 else f"{count:,} timed steps"
        if self.block > 1:
            steps = f"{count:,} {'block' if count == 1 else 'blocks'} of {self.block:,} steps"
        of = "" if count == 1 else "median of "
        return f"95 % interval, {of}{steps}" if self.ci_ms else f"{of}{steps}: too few for a 95 % interval"

    def quantile_ms(self, q: float) -> float | None:
        """Return the step time that a share `q` of the steps does not exceed.

        ``None`` with too few steps (the 90th percentile needs 29, the 95th 59, the 99th 299), and for blocks, whose
        means hide it.
        """
        return None if self.block > 1 else quantile(self.samples_ms, q)

    @property
    def throughput_per_s(self) -> float | None:
        """Samples per second: at the median step time, or over all steps if batches differ; ``None`` if unknown."""
        if self.median_ms is None:
            return None
        if self.batch_size is not None:
            return self.batch_size / self.median_ms * 1e3
        return None if self.samples is None else self.samples / sum(self.samples_ms) * 1e3

    @cached_property
    def outliers(self) -> Outliers:
        """Outliers among the steps, by class; none is left out of any figure."""
        return classify_outliers(self.samples_ms)

    @cached_property
    def _interval(self) -> Interval | None:
        return interval_of_median(self.samples_ms)


def timing_of_batches(samples_ms: list[float], sizes: list[int | None], **rest: Any) -> StepTimes:
    """Return the timing of steps with the given batch sizes."""
    known = [size for size in sizes if size is not None]
    whole = len(known) == len(sizes) and len(known) > 0
    return StepTimes(
        samples_ms=tuple(samples_ms),
        batch_size=known[0] if whole and len(set(known)) == 1 else None,
        samples=sum(known) if whole else None,
        **rest,
    )
