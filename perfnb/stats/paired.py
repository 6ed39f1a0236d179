"""The verdict of an experiment in pairs: is b faster than a, slower, the same, or can these pairs not tell?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfnb.stats.intervals import CORRELATED, Floats, Samples, lag1
from perfnb.stats.planning import smallest_detectable
from perfnb.stats.signed_rank import Centre, hodges_lehmann, signed_rank_p, spread

#: More pairs are joined to blocks: the number of Walsh averages grows with the square.
_MOST = 1000


@dataclass(frozen=True)
class PairedComparison:
    """How the times of b stand to those of a.

    Attributes
    ----------
    ratio : float
        Time of b over time of a: below 1, b is faster.
    ratio_ci : tuple of float or None
        95 % interval of the ratio; ``None`` where there are too few pairs for one.
    equivalence_ci : tuple of float or None
        90 % interval of the ratio; b and a are equivalent where it lies within the band.
    p_value : float
        Of the hypothesis that the ratio is 1.
    equal_within : float
        The band of equivalence: from 1 / (1 + equal_within) to 1 + equal_within.
    verdict : str
        "faster", "slower", "same" or "inconclusive", of b against a.
    smallest_detectable : float
        Smallest relative difference that these pairs find in 9 of 10 experiments (0.01 is 1 %).
    pairs : int
        Number of pairs.
    correlation : float
        Lag-1 autocorrelation of the log ratios, for which the intervals were widened; 0 where it is not above chance.
    confidence : float
        Of `ratio_ci`.
    """

    ratio: float
    ratio_ci: tuple[float, float] | None
    equivalence_ci: tuple[float, float] | None
    p_value: float
    equal_within: float
    verdict: str
    smallest_detectable: float
    pairs: int
    correlation: float
    confidence: float = 0.95

    @property
    def equivalent(self) -> bool:
        """Whether two one-sided tests at 5 % show a difference below `equal_within` (Schuirmann, 1987)."""
        return self.equivalence_ci is not None and within_band(self.equivalence_ci, self.equal_within)


def within_band(ratio_ci: tuple[float, float], equal_within: float) -> bool:
    """Whether an interval of a ratio lies in the band of equivalence, which is symmetric on the log scale."""
    low, high = ratio_ci
    edge = math.log1p(equal_within)
    return math.log(low) >= -edge and math.log(high) <= edge and edge > 0


def judge(ratio_ci: tuple[float, float] | None, differs: bool, ratio: float, equivalent: bool) -> str:
    """The verdict: equivalence comes first, then the sign of a difference.

    A difference that is certain and shown to be smaller than the band is "same": it does not matter by the reader's
    own measure. One that is certain and may reach beyond the band is "faster" or "slower". What is neither is
    "inconclusive".
    """
    if ratio_ci is None:
        return "inconclusive"
    if equivalent:
        return "same"
    return ("faster" if ratio < 1 else "slower") if differs else "inconclusive"


def compare_pairs(log_ratios: Samples, equal_within: float = 0.02, confidence: float = 0.95) -> PairedComparison:
    """Judge pairs measured in random order within each pair.

    The ratio is the Hodges-Lehmann estimate, its interval and p-value come from Wilcoxon's signed ranks. Random order
    makes whatever drifts as likely to add as to take away, so that without a difference the log ratios are symmetric
    around 0, as the test asks, and heavy tails do not matter. (The interval of a BCa bootstrap of the mean holds the
    truth in about 75 of 100 experiments of 6 to 20 pairs where some pairs stall.) Where log ratios of neighbours still
    correlate, as where a load slows one of the two more than the other, the interval is widened as for fewer
    independent pairs, n (1 - rho) / (1 + rho) of them (Bayley and Hammersley, 1946).

    Parameters
    ----------
    log_ratios : sequence of float
        ``log(b / a)`` of each pair, in the order of execution.
    equal_within : float
        Largest relative difference that does not matter; 0 where each does.
    confidence : float
        Of the interval of the ratio; the interval of equivalence leaves out twice as much.
    """
    if not 0 <= equal_within < 1:
        raise ValueError(f"equal_within lies between 0 and 1, not at {equal_within!r}.")
    values = np.asarray(log_ratios, dtype=float)
    if len(values) == 0 or not np.isfinite(values).all():
        raise ValueError("There must be log ratios, and finite ones: no step takes no time.")
    values = _joined(values)
    n, rho = len(values), _correlation(values)
    independent = n if rho == 0 else max(3.0, n * (1 - rho) / (1 + rho))
    wider = _widening(n, independent)
    centre = _widened(hodges_lehmann(values, confidence), wider)
    inner = _widened(hodges_lehmann(values, 2 * confidence - 1), wider)
    ratio = math.exp(centre.estimate)
    ratio_ci = (math.exp(centre.low), math.exp(centre.high)) if centre.bounded else None
    equivalence_ci = (math.exp(inner.low), math.exp(inner.high)) if ratio_ci is not None else None
    differs = ratio_ci is not None and not ratio_ci[0] <= 1 <= ratio_ci[1]
    equivalent = equivalence_ci is not None and within_band(equivalence_ci, equal_within)
    return PairedComparison(
        ratio,
        ratio_ci,
        equivalence_ci,
        _weakened(signed_rank_p(values), wider),
        equal_within,
        judge(ratio_ci, differs, ratio, equivalent),
        smallest_detectable(spread(values) * wider, n, confidence=confidence),
        len(log_ratios),
        rho,
        confidence,
    )


def _joined(values: Floats) -> Floats:
    """The values, or where they are very many the medians of neighbours."""
    size = math.ceil(len(values) / _MOST)
    return values if size <= 1 else np.array([np.median(part) for part in np.array_split(values, len(values) // size)])


def _correlation(values: Floats) -> float:
    """Lag-1 autocorrelation where it is above 0.2 and above what chance explains in 1 of 20 cases; else 0."""
    rho = min(lag1(values), 0.9)
    return rho if rho > max(CORRELATED, 1.645 / math.sqrt(max(1, len(values)))) else 0.0


def _widening(n: int, independent: float) -> float:
    """How much wider an interval of n values is that tell as much as fewer independent ones."""
    from scipy.special import stdtrit

    if independent >= n:
        return 1.0
    return math.sqrt(n / independent) * float(stdtrit(independent - 1, 0.975) / stdtrit(n - 1, 0.975))


def _widened(centre: Centre, wider: float) -> Centre:
    estimate, low, high = centre
    return Centre(estimate, estimate - (estimate - low) * wider, estimate + (high - estimate) * wider)


def _weakened(p_value: float, wider: float) -> float:
    """The p-value of a normal deviate that lies as much nearer to 0 as the interval is wider."""
    from scipy.special import ndtr, ndtri

    return float(2 * ndtr(ndtri(p_value / 2) / wider))
