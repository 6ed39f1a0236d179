"""Estimate how much memory grows per step, with an interval that is valid for autocorrelated levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

#: The minimum number of steps for an interval. With fewer steps, a block has no middle.
FEWEST_STEPS = 15
#: The number of blocks of steps between which growth is computed.
_BLOCKS = 5
#: How far a change in the rate is extrapolated, in units of half the measured steps.
_AHEAD = 1.5

METHOD = "Theil-Sen slope; 95 % interval over single steps, blocks of steps, and the change between both halves"


@dataclass(frozen=True)
class Slope:
    """The growth of memory per step.

    Attributes
    ----------
    bytes_per_step : float
        The Theil-Sen slope: the median of the slopes between all pairs of steps.
    ci_low, ci_high : float or None
        The 95 % interval, or ``None`` if there are too few steps.
    steps : int
        The number of steps with a known level.
    method : str
        The method used for the slope and the interval.
    """

    bytes_per_step: float
    ci_low: float | None
    ci_high: float | None
    steps: int
    method: str = METHOD

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval is entirely above or below zero."""
        return self.ci_low is not None and self.ci_high is not None and (self.ci_low > 0 or self.ci_high < 0)

    @property
    def grows(self) -> bool:
        """Whether the interval is entirely above zero."""
        return self.ci_low is not None and self.ci_low > 0


def memory_slope(
    bytes_per_step: Sequence[Any] | np.ndarray[Any, Any], steps: Sequence[int] | np.ndarray[Any, Any] | None = None
) -> Slope | None:
    """Return the slope of memory readings that were taken after each step, excluding warm-up.

    Return ``None`` if there are fewer than two known readings.

    The levels of successive steps are autocorrelated: memory stays constant, jumps once, fills a cache ever more
    slowly, or drops at each garbage collection. The Theil-Sen interval assumes independence and excludes 0 in most
    random walks. It is therefore combined with two other intervals. One is the t interval of the mean growth between
    blocks of steps, which a single jump cannot raise above 0. The other is the future rate, assuming that it continues
    to change as it did from the first half of the steps to the second. This rate reaches 0 if growth levels off.

    Parameters
    ----------
    bytes_per_step : sequence of number
        One reading per step, in order. Unknown readings are ``nan`` or ``None``.
    steps : sequence of int, optional
        The step of each reading, if some steps have no reading.
    """
    from scipy.stats import theilslopes

    levels = _relative(bytes_per_step)
    places = np.asarray(np.arange(len(levels)) if steps is None else steps, dtype=float)[np.isfinite(levels)]
    levels = levels[np.isfinite(levels)]
    if len(levels) < 2:
        return None
    slope, _, low, high = map(float, theilslopes(levels, places))
    if len(levels) < FEWEST_STEPS:
        return Slope(slope, None, None, len(levels))
    block_low, block_high = _between_blocks(levels, places)
    ahead = _ahead(levels, places)
    return Slope(slope, min(low, block_low, ahead), max(high, block_high, ahead), len(levels))


def _relative(readings: Sequence[Any] | np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Subtract the first known reading from all readings, so that a high initial level does not cost precision.

    Unknown readings are ``nan``.
    """
    known = np.array([not pd.isna(value) for value in readings], dtype=bool)
    relative = np.full(len(known), np.nan)
    if known.any():
        first = readings[int(np.argmax(known))]
        relative[known] = [float(value - first) for value, seen in zip(readings, known, strict=True) if seen]
    return relative


def _between_blocks(levels: np.ndarray[Any, Any], places: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the t interval of the mean growth per step between the medians of consecutive blocks."""
    from scipy.special import stdtrit

    middles = [float(np.median(block)) for block in np.array_split(levels, _BLOCKS)]
    centres = [float(np.mean(block)) for block in np.array_split(places, _BLOCKS)]
    rates = np.diff(middles) / np.diff(centres)
    half = float(stdtrit(len(rates) - 1, 0.975) * rates.std(ddof=1) / np.sqrt(len(rates)))
    return float(rates.mean()) - half, float(rates.mean()) + half


def _ahead(levels: np.ndarray[Any, Any], places: np.ndarray[Any, Any]) -> float:
    """Return the future rate, assuming that the change from the first half to the second continues."""
    from scipy.stats import theilslopes

    half = len(levels) // 2
    early, late = (float(theilslopes(levels[part], places[part])[0]) for part in (slice(half), slice(-half, None)))
    return late + _AHEAD * (late - early)
