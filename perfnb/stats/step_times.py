"""Summarise step times: the median and its precision, throughput, and outliers."""

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
    """Samples outside Tukey's fences. They are classified and counted, but never dropped.

    Attributes
    ----------
    low_severe, low_mild, high_mild, high_severe : tuple of int
        The indices of the samples in each class, in order of execution, starting at 0.
    samples : int
        The number of samples that were classified.
    """

    low_severe: tuple[int, ...]
    low_mild: tuple[int, ...]
    high_mild: tuple[int, ...]
    high_severe: tuple[int, ...]
    samples: int

    @property
    def count(self) -> int:
        """The number of outliers in all classes."""
        return sum(self.by_class.values())

    @property
    def share(self) -> float:
        """The share of outliers among all samples."""
        return self.count / self.samples if self.samples else 0.0

    @property
    def by_class(self) -> dict[str, int]:
        """The number of outliers in each class, from the lowest to the highest."""
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
    """Classify samples using Tukey's fences.

    Outliers are mild beyond 1.5 interquartile ranges from the quartiles, and severe beyond 3.

    See Tukey, Exploratory Data Analysis. If more than half of the samples are equal, both fences are at that value, and
    all other samples are severe outliers. If there are fewer than 4 samples, there are no outliers.
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
    """Step times, measured without a profiler and without hooks.

    Attributes
    ----------
    samples_ms : tuple of float
        The wall time of each step, in order of execution. If steps are too short to be timed individually, it is the
        mean of each block.
    batch_size : int or None
        The number of samples per step, or ``None`` if it is unknown or not the same for all steps.
    samples : int or None
        The total number of samples in all steps, or ``None`` if it is unknown.
    warmup_ms : tuple of float
        The wall time of each warm-up step. It is not included in `samples_ms`.
    steady : bool or None
        Whether the last warm-up steps showed no trend, or ``None`` if there were too few to determine this.
    noise : mapping
        Conditions during the steps: load, clock, garbage collections, throttling.
    wanted : int or None
        The number of steps that were requested, or that the target interval needs.
    block : int
        The number of steps per block, which is 1 if each step was timed individually.
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
        """The number of measured steps."""
        return len(self.samples_ms) * self.block

    @property
    def median_ms(self) -> float | None:
        """The median step time in milliseconds, or ``None`` if no step was timed, as in a loaded trace."""
        return float(np.median(self.samples_ms)) if self.samples_ms else None

    @property
    def ci_ms(self) -> tuple[float, float] | None:
        """The median's 95 % confidence interval, or ``None`` if there are fewer than 6 steps.

        It is based on order statistics. If steps are autocorrelated, it uses the ranks for their effective number. (A
        moving-block bootstrap of the median covers it in 85 to 89 of 100 such runs, and this interval in 94.)
        """
        return None if self._interval is None else self._interval[:2]

    @property
    def ci_method(self) -> str | None:
        """The method by which `ci_ms` was computed, or ``None`` if there is no interval."""
        return None if self._interval is None else self._interval.method

    @property
    def basis(self) -> str:
        """A description of how the step time was measured: the number of steps, and whether there is an interval."""
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

        Return ``None`` if there are too few steps (the 90th percentile needs 29, the 95th needs 59, and the 99th needs
        299), or if the steps were timed in blocks, whose means hide the quantile.
        """
        return None if self.block > 1 else quantile(self.samples_ms, q)

    @property
    def throughput_per_s(self) -> float | None:
        """The number of samples per second, or ``None`` if it is unknown.

        It is computed from the median step time, or over all steps if batches differ in size.
        """
        if self.median_ms is None:
            return None
        if self.batch_size is not None:
            return self.batch_size / self.median_ms * 1e3
        return None if self.samples is None else self.samples / sum(self.samples_ms) * 1e3

    @cached_property
    def outliers(self) -> Outliers:
        """The outliers among the steps, by class. They are included in all figures."""
        return classify_outliers(self.samples_ms)

    @cached_property
    def _interval(self) -> Interval | None:
        return interval_of_median(self.samples_ms)


def timing_of_batches(samples_ms: list[float], sizes: list[int | None], **rest: Any) -> StepTimes:
    """Create `StepTimes` for steps with the given batch sizes."""
    known = [size for size in sizes if size is not None]
    whole = len(known) == len(sizes) and len(known) > 0
    return StepTimes(
        samples_ms=tuple(samples_ms),
        batch_size=known[0] if whole and len(set(known)) == 1 else None,
        samples=sum(known) if whole else None,
        **rest,
    )
