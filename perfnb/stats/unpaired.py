"""Two medians that were not measured in pairs: their ratio, with what their own intervals allow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfnb.stats.paired import judge, within_band

#: 90 % by 95 % normal quantile: how much nearer the ends of an interval of equivalence lie.
_INNER = 1.6449 / 1.9600

Bounds = tuple[float, float]


@dataclass(frozen=True)
class UnpairedComparison:
    """How a median b stands to a median a.

    Attributes
    ----------
    ratio : float
        b by a: below 1, b is faster.
    ratio_ci : tuple of float or None
        95 % interval of the ratio, of the noise within each measurement alone: what changed on the machine from one
        to the other is not in it. ``None`` where one of the two has no interval.
    verdict : str
        "faster", "slower", "same" or "inconclusive", of b against a; as of pairs.
    """

    ratio: float
    ratio_ci: Bounds | None
    verdict: str


def compare_medians(
    a: float, a_ci: Bounds | None, b: float, b_ci: Bounds | None, equal_within: float = 0.02
) -> UnpairedComparison:
    """Compare two independent medians by their 95 % intervals.

    On the log scale the ends of the difference's interval lie from it by the root of the summed squares of the ends of
    the two (the method of variance estimates recovery; G. Zou and A. Donner, Statistics in Medicine 27, 2008). The two
    must be above 0.
    """
    ratio = b / a
    ratio_ci, equivalent = None, False
    if a_ci is not None and b_ci is not None:
        down = math.hypot(math.log(b / b_ci[0]), math.log(a_ci[1] / a))
        up = math.hypot(math.log(b_ci[1] / b), math.log(a / a_ci[0]))
        ratio_ci = (ratio * math.exp(-down), ratio * math.exp(up))
        inner = (ratio * math.exp(-_INNER * down), ratio * math.exp(_INNER * up))
        equivalent = within_band(inner, equal_within)
    differs = ratio_ci is not None and not ratio_ci[0] <= 1 <= ratio_ci[1]
    return UnpairedComparison(ratio, ratio_ci, judge(ratio_ci, differs, ratio, equivalent))
