"""Compute an A/B test's statistics from the paired times of two steps.

All functions in this module are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from perfnb.stats.comparisons import PairedComparison, compare_pairs
from perfnb.stats.planning import smallest_detectable
from perfnb.stats.step_times import StepTimes


@dataclass(frozen=True)
class BlockPlan:
    """A plan for blocks of back-to-back turns, which are used if one step's batches load while the other runs."""

    who: str  # what prefetches: "worker processes", "processes", "threads", or "something" hidden
    lead: int  # the number of uncounted turns before each block
    turns: int  # the number of turns that count
    # the duration of a round with one block of each step, or ``None`` if there was no time to measure it
    round_s: float | None


@dataclass(frozen=True, repr=False, eq=False)
class PairedTimes:
    """The times of two steps in randomised, interleaved pairs of turns or of blocks of turns.

    Attributes
    ----------
    a_name, b_name : str
        The names of the two steps.
    a_ms, b_ms : tuple of float
        The milliseconds per turn in each pair, in order of execution. For blocks, this is the mean of each block.
    comparison : PairedComparison
        The statistics of b relative to a.
    planned, needed : int
        The number of pairs that the budget allowed, and the number that the target required. Both are estimated from
        the pilot.
    noise : mapping
        Possible disturbances of the steps.
    steady : bool or None
        Whether both steps were steady at the end of the warm-up, or ``None`` if this is unknown.
    batch_size : int or None
        The number of samples per batch, or ``None`` if it is unknown or not constant.
    blocks : BlockPlan or None
        The plan of the blocks that make up a pair, or ``None`` if pairs consist of single turns.
    """

    a_name: str
    b_name: str
    a_ms: tuple[float, ...]
    b_ms: tuple[float, ...]
    comparison: PairedComparison
    planned: int
    needed: int
    noise: Mapping[str, Any] = field(default_factory=dict)
    steady: bool | None = None
    batch_size: int | None = None
    blocks: BlockPlan | None = None

    @property
    def verdict(self) -> str:
        """The verdict on b compared with a: ``faster``, ``slower``, ``same`` or ``inconclusive``."""
        return self.comparison.verdict

    @property
    def ratio(self) -> float:
        """The time of b divided by the time of a. If it is below 1, b is faster."""
        return self.comparison.ratio

    @property
    def ratio_ci(self) -> tuple[float, float] | None:
        """The ratio's 95 % confidence interval, or ``None`` if there are fewer than 6 pairs."""
        return self.comparison.ratio_ci

    @property
    def p_value(self) -> float:
        """The p-value of the hypothesis that the ratio is 1 (Wilcoxon signed-rank test)."""
        return self.comparison.p_value

    @property
    def smallest_detectable(self) -> float:
        """The smallest relative difference that this number of pairs detects with 90 % power (0.01 is 1 %)."""
        return self.comparison.smallest_detectable

    @property
    def pairs(self) -> pd.DataFrame:
        """One row per pair, in order of execution: ``a_ms``, ``b_ms`` (means per turn for blocks) and ``ratio``."""
        a, b = np.asarray(self.a_ms), np.asarray(self.b_ms)
        return pd.DataFrame({"a_ms": a, "b_ms": b, "ratio": b / a}).rename_axis("pair")

    @property
    def turns(self) -> int:
        """The number of turns of each step that count in a pair: 1, or the length of a block."""
        return 1 if self.blocks is None else self.blocks.turns

    @property
    def a(self) -> StepTimes:
        """The times of a."""
        return StepTimes(self.a_ms, self.batch_size, steady=self.steady, noise=self.noise)

    @property
    def b(self) -> StepTimes:
        """The times of b."""
        return StepTimes(self.b_ms, self.batch_size, steady=self.steady, noise=self.noise)

    def detectable_in(self, seconds: float) -> float | None:
        """Return the smallest relative difference that a test of this length detects in 9 of 10 runs.

        Return ``None`` if this cannot be estimated.
        """
        pairs, detectable = len(self.a_ms), self.smallest_detectable
        if not math.isfinite(detectable):
            return None
        pair_s = (sum(self.a_ms) + sum(self.b_ms)) * self.turns / pairs / 1e3
        if self.blocks is not None:
            pair_s *= 1 + self.blocks.lead / self.blocks.turns
        deviation = math.log1p(detectable) / math.log1p(smallest_detectable(1.0, pairs))
        return smallest_detectable(deviation, max(2, int(seconds / pair_s)))


def paired_times(a_ms: Sequence[float], b_ms: Sequence[float], *, equal_within: float, **rest: Any) -> PairedTimes:
    """Compare pairs of times by the logarithm of their ratio, which treats twice as fast like twice as slow."""
    ratios = np.log(np.asarray(b_ms, dtype=float) / np.asarray(a_ms, dtype=float))
    comparison = compare_pairs(ratios, equal_within=equal_within)
    return PairedTimes(a_ms=tuple(a_ms), b_ms=tuple(b_ms), comparison=comparison, **rest)
