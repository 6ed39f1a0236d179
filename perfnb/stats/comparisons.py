"""Determine whether b is faster than a, slower or equally fast, or whether the measurements are inconclusive.

Measurements can be compared in pairs, unpaired, or many at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd

from perfnb.stats.blocks import difference
from perfnb.stats.intervals import CORRELATED, Centre, Floats, Samples, hodges_lehmann, lag1, signed_rank_p, spread
from perfnb.stats.planning import smallest_detectable

#: If there are more pairs, they are merged into blocks, because the number of Walsh averages grows quadratically.
_MOST = 1000
#: The ratio of the 90 % to the 95 % normal quantile. The equivalence interval is narrower by this factor.
_INNER = 1.6449 / 1.9600

Bounds = tuple[float, float]


@dataclass(frozen=True)
class PairedComparison:
    """The times of b relative to the times of a, measured in pairs.

    Attributes
    ----------
    ratio : float
        The time of b divided by the time of a. If it is below 1, b is faster.
    ratio_ci : tuple of float or None
        The ratio's 95 % interval, or ``None`` if there are too few pairs.
    equivalence_ci : tuple of float or None
        The ratio's 90 % interval. If it is within the band, b and a are equivalent.
    p_value : float
        The p-value of the hypothesis that the ratio is 1.
    equal_within : float
        The equivalence band, which is from 1 / (1 + equal_within) to 1 + equal_within.
    verdict : str
        "faster", "slower", "same" or "inconclusive", for b compared with a.
    smallest_detectable : float
        The smallest relative difference that these pairs detect in 9 of 10 experiments (0.01 is 1 %).
    pairs : int
        The number of pairs.
    correlation : float
        The lag-1 autocorrelation of the log ratios, which widens the intervals. It is 0 if it does not exceed chance.
    confidence : float
        The confidence level of `ratio_ci`.
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
    """Return whether a ratio's interval is within the equivalence band, which is symmetric on the log scale."""
    low, high = ratio_ci
    edge = math.log1p(equal_within)
    return math.log(low) >= -edge and math.log(high) <= edge and edge > 0


def judge(ratio_ci: Bounds | None, ratio: float, equivalent: bool, significant: bool = False) -> str:
    """Return the verdict. Equivalence is checked first, and then the sign of the difference.

    There is a difference if the interval excludes 1, or if another test finds it `significant`. If the difference is
    known to be within the band, the verdict is "same", because the user has declared such differences irrelevant. If it
    may exceed the band, the verdict is "faster" or "slower". In all other cases, the verdict is "inconclusive".
    """
    if ratio_ci is None:
        return "inconclusive"
    if equivalent:
        return "same"
    differs = significant or not ratio_ci[0] <= 1 <= ratio_ci[1]
    return ("faster" if ratio < 1 else "slower") if differs else "inconclusive"


def compare_pairs(log_ratios: Samples, equal_within: float = 0.02, confidence: float = 0.95) -> PairedComparison:
    """Compare two steps that were measured in pairs, in random order within each pair.

    The ratio is the Hodges-Lehmann estimate, and its interval and p-value come from Wilcoxon's signed-rank test.
    Because the order is random, drift is as likely to increase a log ratio as to decrease it. If there is no
    difference, the log ratios are therefore symmetric around 0, as the test requires, and heavy tails do not matter. (A
    BCa bootstrap interval of the mean covers the truth in about 75 of 100 experiments of 6 to 20 pairs if some pairs
    stall.) If neighbouring log ratios are still autocorrelated, for example because a load slows one of the two more
    than the other, the interval is widened to the width for n (1 - rho) / (1 + rho) independent pairs (Bayley and
    Hammersley, 1946).

    Parameters
    ----------
    log_ratios : sequence of float
        ``log(b / a)`` of each pair, in the order of execution.
    equal_within : float
        The largest relative difference that does not matter, or 0 if every difference matters.
    confidence : float
        The confidence level of the ratio's interval. The equivalence interval excludes twice as much probability.
    """
    if not 0 <= equal_within < 1:
        raise ValueError(f"equal_within must be between 0 and 1, not {equal_within!r}.")
    values = np.asarray(log_ratios, dtype=float)
    if len(values) == 0 or not np.isfinite(values).all():
        raise ValueError("There must be at least one log ratio, and all log ratios must be finite.")
    values = _joined(values)
    n, rho = len(values), _correlation(values)
    independent = n if rho == 0 else max(3.0, n * (1 - rho) / (1 + rho))
    wider = _widening(n, independent)
    centre = _widened(hodges_lehmann(values, confidence), wider)
    inner = _widened(hodges_lehmann(values, 2 * confidence - 1), wider)
    ratio = math.exp(centre.estimate)
    ratio_ci = (math.exp(centre.low), math.exp(centre.high)) if centre.bounded else None
    equivalence_ci = (math.exp(inner.low), math.exp(inner.high)) if ratio_ci is not None else None
    equivalent = equivalence_ci is not None and within_band(equivalence_ci, equal_within)
    return PairedComparison(
        ratio,
        ratio_ci,
        equivalence_ci,
        _weakened(signed_rank_p(values), wider),
        equal_within,
        judge(ratio_ci, ratio, equivalent),
        smallest_detectable(spread(values) * wider, n, confidence=confidence),
        len(log_ratios),
        rho,
        confidence,
    )


def _joined(values: Floats) -> Floats:
    """Return the values, or the medians of neighbouring values if there are very many."""
    size = math.ceil(len(values) / _MOST)
    return values if size <= 1 else np.array([np.median(part) for part in np.array_split(values, len(values) // size)])


def _correlation(values: Floats) -> float:
    """Return the lag-1 autocorrelation.

    It is 0 unless it exceeds both 0.2 and the correlation that chance produces in 1 of 20 cases.
    """
    rho = min(lag1(values), 0.9)
    return rho if rho > max(CORRELATED, 1.645 / math.sqrt(len(values))) else 0.0


def _widening(n: int, independent: float) -> float:
    """Return how many times wider the interval of n values is if they are worth fewer independent values."""
    from scipy.special import stdtrit

    if independent >= n:
        return 1.0
    return math.sqrt(n / independent) * float(stdtrit(independent - 1, 0.975) / stdtrit(n - 1, 0.975))


def _widened(centre: Centre, wider: float) -> Centre:
    estimate, low, high = centre
    return Centre(estimate, estimate - (estimate - low) * wider, estimate + (high - estimate) * wider)


def _weakened(p_value: float, wider: float) -> float:
    """Return the p-value after dividing its normal deviate by `wider`, the factor by which the interval widens."""
    from scipy.special import ndtr, ndtri

    return float(2 * ndtr(ndtri(p_value / 2) / wider))


@dataclass(frozen=True)
class UnpairedComparison:
    """The median of b relative to the median of a.

    Attributes
    ----------
    ratio : float
        b divided by a. If it is below 1, b is faster.
    ratio_ci : tuple of float or None
        The ratio's 95 % interval. It covers the noise within each measurement, but not changes on the machine between
        the two measurements. It is ``None`` if either median has no interval.
    verdict : str
        "faster", "slower", "same" or "inconclusive", for b compared with a, as for pairs.
    """

    ratio: float
    ratio_ci: Bounds | None
    verdict: str


def compare_medians(
    a: float, a_ci: Bounds | None, b: float, b_ci: Bounds | None, equal_within: float = 0.02
) -> UnpairedComparison:
    """Compare two independent medians by their 95 % intervals.

    They are compared on the log scale using `difference`, so both must be above 0.
    """
    ratio = b / a
    if a_ci is None or b_ci is None:
        return UnpairedComparison(ratio, None, "inconclusive")
    change = difference(Centre(*map(math.log, (a, *a_ci))), Centre(*map(math.log, (b, *b_ci))))
    inner = _widened(change, _INNER)
    ratio_ci, inner_ci = ((math.exp(part.low), math.exp(part.high)) for part in (change, inner))
    return UnpairedComparison(ratio, ratio_ci, judge(ratio_ci, ratio, within_band(inner_ci, equal_within)))


def holm(p_values: Samples) -> Floats:
    """Adjust p-values for multiple comparisons.

    The adjusted values keep the probability of any false positive among all comparisons at the level of one comparison.

    The k-th smallest of m p-values is multiplied by m - k + 1, and no p-value is below the one before it (Holm,
    Scandinavian Journal of Statistics 6, 1979).
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values, kind="stable")
    steps = values[order] * (len(values) - np.arange(len(values)))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


def compare_all(
    times: Mapping[str, Samples], equal_within: float = 0.02, confidence: float = 0.95
) -> dict[tuple[str, str], PairedComparison]:
    """Compare every pair of names, in the order given. The first name in each pair is the baseline.

    Parameters
    ----------
    times : mapping of str to sequence of float
        The step times for each name, one per round. In each round, every name runs once, in random order.

    Returns
    -------
    dict
        The comparisons by (baseline, candidate). ``ratio_ci`` and ``equivalence_ci`` are simultaneous (Bonferroni):
        each of m comparisons excludes 5 % (or 10 %) divided by m. ``p_value`` is adjusted by Holm's method, which finds
        more differences than these intervals do. A difference counts if either method finds it, so an interval may just
        include 1 even though the verdict is "faster" or "slower".
    """
    logs = {name: np.log(np.asarray(samples, dtype=float)) for name, samples in times.items()}
    if len({len(values) for values in logs.values()}) > 1:
        raise ValueError("Every name must have one time for each round.")
    pairs = list(combinations(logs, 2))
    found = _compare_together([logs[b] - logs[a] for a, b in pairs], equal_within, confidence)
    return dict(zip(pairs, found, strict=True))


def compare_with_first(*groups_ms: Floats, equal_within: float = 0.02) -> list[PairedComparison]:
    """Compare each row of times with the first row in its group, as `compare_all` does, over all groups together."""
    return _compare_together([np.log(row) - np.log(group[0]) for group in groups_ms for row in group[1:]], equal_within)


def _compare_together(
    log_ratios: Sequence[Floats], equal_within: float, confidence: float = 0.95
) -> list[PairedComparison]:
    """Compare several sets of pairs, with simultaneous intervals and Holm's p-values across all sets."""
    each = 1 - (1 - confidence) / max(1, len(log_ratios))
    comparisons = [compare_pairs(values, equal_within, each) for values in log_ratios]
    adjusted = holm([one.p_value for one in comparisons]).tolist()
    return [
        replace(
            one,
            p_value=p_value,
            verdict=judge(one.ratio_ci, one.ratio, one.equivalent, significant=p_value <= 1 - confidence),
        )
        for one, p_value in zip(comparisons, adjusted, strict=True)
    ]


def ratio_table(comparisons: Mapping[tuple[str, str], PairedComparison]) -> pd.DataFrame:
    """Return one row per comparison: baseline, candidate, ratio with its interval, p-value and verdict."""
    rows = [
        (a, b, found.ratio, *(found.ratio_ci or (None, None)), found.p_value, found.verdict, found.smallest_detectable)
        for (a, b), found in comparisons.items()
    ]
    columns = ["baseline", "candidate", "ratio", "ci_low", "ci_high", "p_value", "verdict", "smallest_detectable"]
    numbers = [name for name in columns if name not in ("baseline", "candidate", "verdict")]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(numbers, "Float64"))
