"""Compute intervals for a long run from contiguous blocks of steps, which makes them robust to autocorrelation.

Neighbouring steps depend on each other: the machine is busy for a while, a cache fills, a loader delivers in bursts. If
the blocks are much longer than these effects, their figures are nearly independent (method of batch means; Law,
Simulation Modeling and Analysis, section 9.5). Any remaining correlation widens the interval.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfnb.stats.change_points import change_points
from perfnb.stats.intervals import Centre, Floats, Samples, lag1

#: The number of blocks in a run, the minimum number for an interval, and the minimum number of steps per block.
BLOCKS, FEWEST_BLOCKS, SHORTEST = 20, 6, 5
#: The number of blocks that are searched for changes.
FINE_BLOCKS = 60
#: A change is ignored if chance alone would produce it more often than this.
_LEVEL = 0.01
#: The minimum number of blocks on either side of a change, and the maximum number of changes.
_FEWEST_ASIDE, _MOST_CHANGES = 3, 3


def in_blocks(*series: Samples, most: int = BLOCKS) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """Split series of equal length into the same contiguous blocks of at least `SHORTEST` values.

    The result is empty if the series are too short.
    """
    count = min(most, len(series[0]) // SHORTEST)
    if count < FEWEST_BLOCKS:
        return []
    return list(zip(*(np.array_split(np.asarray(one, dtype=float), count) for one in series), strict=True))


def mean_of_blocks(values: Samples) -> Centre:
    """Return the mean of the block values with its 95 % t interval.

    The interval is wider if neighbouring blocks are correlated.

    The standard error is multiplied by the square root of (1 + rho) / (1 - rho) (Bayley and Hammersley, 1946). The
    interval is infinite if there are fewer than `FEWEST_BLOCKS` blocks.
    """
    from scipy.special import stdtrit

    blocks = np.asarray(values, dtype=float)
    n = len(blocks)
    if n < FEWEST_BLOCKS:
        return Centre(float(blocks.mean()) if n else math.nan, -math.inf, math.inf)
    rho = min(max(lag1(blocks), 0.0), 0.9)
    independent = max(3.0, n * (1 - rho) / (1 + rho))
    half = float(stdtrit(independent - 1, 0.975) * blocks.std(ddof=1) / math.sqrt(independent))
    centre = float(blocks.mean())
    return Centre(centre, centre - half, centre + half)


def ratio_of_sums(parts: Samples, wholes: Samples) -> Centre:
    """Return the ratio of two sums, such as waiting time and total time, with its interval over blocks."""
    blocks = in_blocks(parts, wholes)
    whole = float(np.sum(wholes))
    share = float(np.sum(parts)) / whole if whole > 0 else math.nan
    # The delta method: the difference between each block's part and the part expected from the overall share.
    off = [float(part.sum() - share * every.sum()) for part, every in blocks]
    if not blocks or not whole > 0:
        return Centre(share, -math.inf, math.inf)
    around = mean_of_blocks(off)
    each = whole / len(blocks)
    return Centre(share, max(0.0, share + around.low / each), share + around.high / each)


def difference(a: Centre, b: Centre) -> Centre:
    """Return b minus a for two independent estimates.

    The distance from the difference to each end of its interval is the square root of the sum of the squared distances
    for the two estimates (method of variance estimates recovery; Zou and Donner, Statistics in Medicine 27, 2008).
    """
    centre = b.estimate - a.estimate
    down = math.hypot(b.estimate - b.low, a.high - a.estimate)
    up = math.hypot(b.high - b.estimate, a.estimate - a.low)
    return Centre(centre, centre - down, centre + up)


def log_median_of_blocks(times: Samples) -> Centre:
    """Return the mean logarithm of the block medians of step times, which must all be greater than 0."""
    blocks = in_blocks(times)
    if not blocks:
        return Centre(float(np.log(np.median(times))) if len(times) else math.nan, -math.inf, math.inf)
    return mean_of_blocks([math.log(float(np.median(block))) for (block,) in blocks])


@dataclass(frozen=True)
class Changes:
    """The changes in a measured quantity over a run.

    Attributes
    ----------
    kind : str
        ``steady``, ``drift`` (it kept changing) or ``jumps``.
    places : tuple of int
        The indices of the first sample after each jump. It is empty if there are no jumps.
    levels : tuple of float
        For jumps, the geometric means of the block medians before, between and after the jumps. For a drift, the levels
        at its start and end. For a steady series, the median of all samples.
    ratio : Centre
        The last level divided by the first, with its 95 % interval. It is 1 for a steady series.
    """

    kind: str
    places: tuple[int, ...]
    levels: tuple[float, ...]
    ratio: Centre


def changes_in(times: Samples) -> Changes | None:
    """Determine whether step times jumped or drifted. Return ``None`` if there are too few of them.

    `change_points` looks for jumps among the medians of blocks, and only the clearest jumps count. If a straight line
    describes the blocks better than jumps do, the change is a drift (Theil and Sen's slope).
    """
    from scipy.stats import theilslopes

    values = np.asarray(times, dtype=float)
    cut = in_blocks(values, most=FINE_BLOCKS)
    if len(cut) < 2 * FEWEST_BLOCKS:
        return None
    blocks = [block for (block,) in cut]
    logs = np.log([float(np.median(block)) for block in blocks])
    ends = np.cumsum([len(block) for block in blocks])
    clearest = sorted(change_points(logs, _LEVEL, fewest=_FEWEST_ASIDE), key=lambda change: change.p_value)
    found = sorted(change.place for change in clearest[:_MOST_CHANGES])
    if not found:
        return Changes("steady", (), (float(np.median(values)),), Centre(1.0, 1.0, 1.0))
    edges = [0, *found, len(logs)]
    parts = [slice(low, high) for low, high in itertools.pairwise(edges)]
    steps_off = sum(float(np.abs(logs[part] - np.median(logs[part])).sum()) for part in parts)
    slope, start, slowest, fastest = map(float, theilslopes(logs, np.arange(len(logs))))
    line = start + slope * np.arange(len(logs))
    if float(np.abs(logs - line).sum()) <= steps_off and (slowest > 0 or fastest < 0):
        ratio = Centre(*(math.exp(growth * (len(logs) - 1)) for growth in (slope, slowest, fastest)))
        return Changes("drift", (), (math.exp(line[0]), math.exp(line[-1])), ratio)
    # These are means because the interval of their ratio refers to means. Medians of uneven levels can lie outside it.
    levels = tuple(math.exp(float(np.mean(logs[part]))) for part in parts)
    apart = difference(mean_of_blocks(logs[parts[0]]), mean_of_blocks(logs[parts[-1]]))
    ratio = Centre(levels[-1] / levels[0], *(math.exp(min(700.0, edge)) for edge in apart[1:]))
    places = tuple(_edge(values, ends, place, levels[n], levels[n + 1]) for n, place in enumerate(found))
    return Changes("jumps", places, levels, ratio)


def _edge(values: Floats, ends: Any, place: int, before: float, after: float) -> int:
    """Return the sample near a jump between blocks at which the neighbouring blocks are best divided."""
    low = int(ends[place - 2])  # a jump has at least `_FEWEST_ASIDE` blocks before it
    high = int(ends[place])  # and after it
    # The increase in the misfit if a sample is assigned to the level before the jump rather than to the level after it.
    off = np.abs(values[low:high] - before) - np.abs(values[low:high] - after)
    return low + int(np.argmin(np.concatenate([[0.0], np.cumsum(off)])))
