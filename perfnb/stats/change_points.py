"""Find where the level of a sequence changes.

Maximally selected rank statistics are applied to both sides of each change in turn.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfnb.stats.intervals import CORRELATED, Floats, Samples, lag1, ranks_of

#: The default minimum number of values on either side of a change.
FEWEST_ASIDE = 5


class ChangePoint(NamedTuple):
    """A change of level, with the index of the first value after it and the p-value of the change."""

    place: int
    p_value: float


def change_points(
    values: Samples, level: float = 0.05, comparisons: int = 1, fewest: int = FEWEST_ASIDE
) -> list[ChangePoint]:
    """Find the places where the level of a sequence changes, in order.

    The sums of ranks before and after each place are compared (Wilcoxon), and the place where they differ the most is
    tested (Lausen and Schumacher, Biometrics 48, 1992). Each side of a change is then searched with half of the level.
    The probability of finding a change in a sequence without changes is therefore at most `level`, and the same applies
    to each further false change. Outliers have little influence because only their ranks are used.

    If neighbouring values are correlated, as when a machine is slow for days, the statistic is divided by the square
    root of (1 + rho) / (1 - rho) (Bayley and Hammersley, 1946).

    Parameters
    ----------
    values : sequence of float
        The values, in order.
    level : float
        The probability of finding a change among all sequences without changes.
    comparisons : int
        The number of sequences that are searched, for the Bonferroni correction.
    fewest : int
        The smallest number of values on either side of a change.

    Returns
    -------
    list of ChangePoint
        The changes, with p-values adjusted for the comparisons.
    """
    sequence = np.asarray(values, dtype=float)
    return _found(sequence, 0, level, comparisons, fewest)


def _found(values: Floats, offset: int, level: float, times: int, fewest: int) -> list[ChangePoint]:
    n = len(values)
    if n < 2 * fewest:
        return []
    ranks = ranks_of(values)
    before = np.arange(1, n)
    deviation = ranks.std(ddof=1) * np.sqrt(before * (n - before) / n)
    if not deviation.any():
        return []
    inner = slice(fewest - 1, n - fewest)
    apart = np.abs(np.cumsum(ranks - ranks.mean())[:-1] / deviation)[inner]
    place = int(np.argmax(apart)) + fewest
    wider = math.sqrt(_inflation(values, place))
    p_value = min(1.0, times * _p_of_largest(float(apart.max()) / wider, fewest / n))
    if p_value > level:
        return []
    place = _nearest(values, place, fewest)
    left = _found(values[:place], offset, level, 2 * times, fewest)
    right = _found(values[place:], offset + place, level, 2 * times, fewest)
    return [*left, ChangePoint(offset + place, p_value), *right]


def _nearest(values: Floats, place: int, fewest: int) -> int:
    """Return the place near a change that best separates its two sides.

    The best place has the smallest total distance of the values from the median of their side.
    """
    before, after = np.median(values[:place]), np.median(values[place:])
    # The increase in the misfit if a value is assigned to the level before the change rather than to the level after
    # it.
    misfit = np.concatenate([[0.0], np.cumsum(np.abs(values - before) - np.abs(values - after))])
    return int(np.argmin(misfit[fewest : len(values) - fewest + 1])) + fewest


def _p_of_largest(largest: float, margin: float) -> float:
    """Return the probability that the largest standardised sum is this large.

    The first and last `margin` values are left out. The result is slightly too large for short sequences (Miller and
    Siegmund, Biometrics 38, 1982).
    """
    if largest <= 1:
        return 1.0
    density = math.exp(-(largest**2) / 2) / math.sqrt(2 * math.pi)
    crossings = (largest - 1 / largest) * 2 * math.log((1 - margin) / margin)
    return min(1.0, density * (crossings + 4 / largest))


def _inflation(values: Floats, place: int) -> float:
    """Return the factor by which correlation increases the variance of sums, or 1 if it does not exceed chance.

    This is the smaller of two estimates, neither of which mistakes changes for correlation. One is the correlation of
    the values without the change at `place`. The other is -(1 - rho) / 2, the correlation of neighbouring differences
    of a first-order autoregression, where any change is a single outlier.
    """
    left = np.concatenate([part - np.median(part) for part in (values[:place], values[place:])])
    ranks = ranks_of(np.diff(values))
    ranks = ranks - ranks.mean()
    total = float(ranks @ ranks)
    of_differences = 1 + 2 * float(ranks[1:] @ ranks[:-1]) / total if total else 0.0
    rho = min(0.95, lag1(left), of_differences)
    chance = max(CORRELATED, 2 / math.sqrt(len(values)))
    return (1 + rho) / (1 - rho) if rho > chance else 1.0
