"""Plan how many steps or pairs a measurement needs. A pilot determines the number, which is then fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfnb.stats.intervals import FEWEST_PAIRS, Samples, effective_size, interval_of_median, spread

#: The confidence level of the upper limit that is used for a pilot's standard deviation, because half of all pilots
#: underestimate it.
PILOT_CONFIDENCE = 0.8
#: The minimum number of pairs that tolerates one disturbed pair, however large the disturbance. If the sign of the
#: largest difference is flipped, 2 × 70 of the 2**12 sums of signed ranks, or 3.4 %, are as extreme. With 11 pairs, it
#: would be 5.4 %.
STURDY_PAIRS = 12
#: The target half-width of a step time's interval, relative to the median.
AIM = 0.02
#: Steps shorter than the first duration are timed in blocks of at least the second duration, because reading the clock
#: takes about a tenth of a microsecond.
SHORT_STEP_S, BLOCK_S = 1e-4, 1e-3
_MOST_IN_BLOCK = 10_000
#: The largest number that is computed. It means "this many or more".
MOST_NEEDED = 100_000


@dataclass(frozen=True)
class Planned:
    """A planned number of measurements.

    Attributes
    ----------
    count : int
        The number of measurements to make, which the budget may limit.
    needed : int
        The number of measurements that the target needs.
    """

    count: int
    needed: int

    @property
    def enough(self) -> bool:
        """Whether the budget is sufficient for the target."""
        return self.count >= self.needed


def plan_steps(
    pilot_ms: Samples,
    *,
    half_width: float = AIM,
    budget_s: float = math.inf,
    confidence: float = 0.95,
    fewest: int = 20,
    most: int = 1000,
) -> Planned:
    """Return the number of steps needed for a median interval of relative half-width `half_width` (0.02 is 2 %).

    The standard error of a normal sample's median is 1.2533 standard deviations divided by the square root of n (David
    and Nagaraja, Order Statistics, on asymptotic quantiles). The standard deviation is estimated from the quartiles of
    the log times. Autocorrelated steps count for less, according to `effective_size`.
    """
    from scipy.special import ndtri

    logs = np.log(np.asarray(pilot_ms, dtype=float))
    low, high = np.percentile(logs, [25, 75])
    deviation = (high - low) / 1.349
    inflation = len(logs) / effective_size(logs)
    z = float(ndtri((1 + confidence) / 2))
    needed = max(fewest, math.ceil((z * 1.2533 * deviation / math.log1p(half_width)) ** 2 * inflation))
    return _within(needed, budget_s, float(np.mean(pilot_ms)) / 1e3, most, least=1)


def steps_in_block(step_s: float) -> int:
    """Return how many steps of this duration to time as one block. The result is 1 unless steps are very short."""
    if step_s >= SHORT_STEP_S:
        return 1
    return _MOST_IN_BLOCK if step_s <= 0 else min(_MOST_IN_BLOCK, math.ceil(BLOCK_S / step_s))


def still_needed(samples: Samples, *, half_width: float = AIM) -> int:
    """Return how many more samples are needed for a median interval of relative half-width `half_width`.

    The result is 0 if there are enough samples. It assumes that the interval shrinks with the square root of the number
    of samples. It never exceeds the number of samples so far, because their spread may be misleading.
    """
    count, found = len(samples), interval_of_median(samples)
    if found is None:
        return max(1, count)
    median = float(np.median(samples))
    off = max(found.high - median, median - found.low)
    if off <= half_width * median:
        return 0
    needed = count * (off / (half_width * median)) ** 2 if median > 0 else math.inf
    return max(1, math.ceil(min(needed, 2.0 * count)) - count)


def plan_pairs(
    pilot: Samples,
    *,
    equal_within: float = 0.02,
    power: float = 0.9,
    confidence: float = 0.95,
    budget_s: float = math.inf,
    pair_s: float = 0.0,
    most: int = 1000,
) -> Planned:
    """Return how many pairs are needed to detect a difference of `equal_within`, or to rule it out.

    Both must succeed with probability `power`. If the budget allows, the number is at least large enough to tolerate
    one disturbed pair.

    Parameters
    ----------
    pilot : sequence of float
        The log ratios of at least 2 pairs. The upper 80 % limit of their spread is used (Browne, 1995).
    pair_s : float
        The number of seconds per pair, out of `budget_s`.
    """
    from scipy.special import chdtri

    if len(pilot) < 2:
        raise ValueError("A pilot needs at least 2 pairs.")
    if equal_within <= 0:
        return _within(most, budget_s, pair_s, most, least=FEWEST_PAIRS)
    freedom = len(pilot) - 1
    deviation = spread(pilot) * math.sqrt(freedom / float(chdtri(freedom, PILOT_CONFIDENCE)))
    needed = pairs_needed(deviation, math.log1p(equal_within), power=power, confidence=confidence)
    sturdy = _within(max(needed, STURDY_PAIRS), budget_s, pair_s, most, least=FEWEST_PAIRS)
    return Planned(sturdy.count, needed)


def plan_pairs_blindly(*, budget_s: float, pair_s: float, most: int) -> Planned:
    """Plan as many pairs as the budget allows, for a pilot of a single pair, which only shows how long a pair takes."""
    count = _within(most, budget_s, pair_s, most, least=FEWEST_PAIRS).count
    return Planned(count, count)


def pairs_needed(
    deviation: float, effect: float, *, power: float = 0.9, confidence: float = 0.95, most: int = MOST_NEEDED
) -> int:
    """Return the smallest number of pairs that can detect `effect`, or show that there is no effect of that size.

    Effects are detected by a t-test and ruled out by two one-sided tests, all on the log scale. The power of the paired
    t-test follows from the noncentral t distribution with noncentrality effect / deviation * sqrt(n) (Cohen,
    Statistical Power Analysis, chapter 2). Each of the two one-sided tests of equivalence must reject with probability
    (1 + power) / 2 for both to do so without a difference (Julious, Statistics in Medicine 23, 2004).
    """
    from scipy.special import stdtrit
    from scipy.stats import nct

    if deviation <= 0:
        return FEWEST_PAIRS
    fewest = beyond = FEWEST_PAIRS
    tail = (1 - confidence) / 2

    def suffices(n: int) -> bool:
        shift = effect / deviation * math.sqrt(n)
        # The power is 1 for such large effects, where the integral would be truncated.
        if shift > 30:
            return True
        finds = float(nct.sf(stdtrit(n - 1, 1 - tail), n - 1, shift))
        equals = float(nct.sf(stdtrit(n - 1, 1 - 2 * tail), n - 1, shift))
        return finds >= power and equals >= (1 + power) / 2

    while not suffices(beyond):
        if beyond >= most:
            return most
        fewest, beyond = beyond, min(2 * beyond, most)
    while beyond - fewest > 1:
        middle = (fewest + beyond) // 2
        fewest, beyond = (fewest, middle) if suffices(middle) else (middle, beyond)
    return beyond


def smallest_detectable(deviation: float, pairs: int, *, power: float = 0.9, confidence: float = 0.95) -> float:
    """Return the smallest relative difference that this many pairs detect with probability `power` (0.01 is 1 %).

    It is (t_0.975 + t_0.90) deviation / sqrt(n) on the log scale (Bloom, Evaluation Review 19, 1995).
    """
    from scipy.special import stdtrit

    if pairs < 2:
        return math.inf
    factor = float(stdtrit(pairs - 1, (1 + confidence) / 2) + stdtrit(pairs - 1, power))
    try:
        return math.expm1(factor * deviation / math.sqrt(pairs))
    except OverflowError:  # two very different pairs, at the high confidence that many comparisons require
        return math.inf


def _within(needed: int, budget_s: float, each_s: float, most: int, least: int) -> Planned:
    affordable = most if each_s <= 0 or math.isinf(budget_s) else int(budget_s / each_s)
    return Planned(max(least, min(needed, affordable, most)), needed)
