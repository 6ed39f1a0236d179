"""Centre of paired differences with its interval, from Wilcoxon's signed ranks."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from perfnb.stats.intervals import Floats, Samples

#: Fewest differences that can be significant at 95 %: the smallest two-sided p-value of n is 2 / 2^n.
FEWEST_PAIRS = 6
#: Up to this number of differences the null distribution is exact, above it normal.
_EXACT = 150


class Centre(NamedTuple):
    """An estimate of the centre with its interval, which is infinite with too few differences for one."""

    estimate: float
    low: float
    high: float

    @property
    def bounded(self) -> bool:
        """Whether there were enough differences for an interval."""
        return bool(np.isfinite(self.low))


def walsh_averages(differences: Samples) -> Floats:
    """Means of all pairs of differences, each with itself included, in ascending order."""
    values = np.asarray(differences, dtype=float)
    first, second = np.triu_indices(len(values))
    # Adding halves keeps large values from overflowing.
    return np.sort(values[first] / 2 + values[second] / 2)


def hodges_lehmann(differences: Samples, confidence: float = 0.95) -> Centre:
    """Centre of symmetric differences: the median of their Walsh averages, and the interval of Wilcoxon's test.

    The interval from the k-th smallest to the k-th largest Walsh average covers the centre with probability
    1 - 2 P(W < k), where W is the signed-rank statistic under the null hypothesis (Hollander, Wolfe and Chicken,
    Nonparametric Statistical Methods, sections 3.2 and 3.3).
    """
    averages = walsh_averages(differences)
    if len(averages) == 0:
        return Centre(np.nan, -np.inf, np.inf)
    k = _rank(len(differences), confidence)
    if k < 1:
        return Centre(float(np.median(averages)), -np.inf, np.inf)
    return Centre(float(np.median(averages)), float(averages[k - 1]), float(averages[-k]))


def signed_rank_p(differences: Samples) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test that the centre is 0; it agrees with `hodges_lehmann`.

    Without ties and zeros `scipy.stats.wilcoxon` gives the same; with them it switches its method and warns. Here a
    Walsh average of 0 counts half to each side.
    """
    averages = walsh_averages(differences)
    n = len(differences)
    if n == 0:
        return 1.0
    smaller = min(np.sum(averages < 0), np.sum(averages > 0)) + np.sum(averages == 0) / 2
    return min(1.0, 2 * float(_below(n, int(np.ceil(smaller)))))


def spread(differences: Samples) -> float:
    """Standard deviation of normal differences with an interval of the same width; robust against stalls.

    The half-width of the interval over t with n - 1 degrees of freedom, times the root of n; the sample standard
    deviation with too few differences for an interval.
    """
    from scipy.special import stdtrit

    values = np.asarray(differences, dtype=float)
    n = len(values)
    if n < 2:
        return np.nan
    # The exact confidence of the ranks, which for few differences is well above the nominal one.
    k = _rank(n, 0.95)
    if k < 1:
        return float(values.std(ddof=1))
    averages = walsh_averages(values)
    return float((averages[-k] - averages[k - 1]) / 2 / stdtrit(n - 1, 1 - _below(n, k - 1)) * np.sqrt(n))


def _rank(n: int, confidence: float) -> int:
    """The largest k with P(W < k) at most half of what `confidence` leaves out; 0 if there is none."""
    from scipy.special import ndtri

    tail = (1 - confidence) / 2
    if n <= _EXACT:
        # A rounding error of the sums must not cost a rank.
        return int(np.searchsorted(_distribution(n), tail * (1 + 1e-9), side="right"))
    mean, deviation = _moments(n)
    return int(np.floor(mean + 0.5 + float(ndtri(tail)) * deviation))


def _below(n: int, most: int) -> float:
    """P(W <= most) under the null hypothesis."""
    from scipy.special import ndtr

    if n <= _EXACT:
        return float(_distribution(n)[min(most, n * (n + 1) // 2)])
    mean, deviation = _moments(n)
    return float(ndtr((most + 0.5 - mean) / deviation))


def _moments(n: int) -> tuple[float, float]:
    return n * (n + 1) / 4, float(np.sqrt(n * (n + 1) * (2 * n + 1) / 24))


@lru_cache(maxsize=256)
def _distribution(n: int) -> Floats:
    """Cumulative distribution of W, the sum of the ranks 1 to n, each counted with probability 1/2."""
    density = np.zeros(n * (n + 1) // 2 + 1)
    density[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(density)
        shifted[rank:] = density[:-rank]
        density = (density + shifted) / 2
    return np.cumsum(density)
