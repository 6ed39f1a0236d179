"""What pairs of step times say about two steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfnb.stats.comparisons import PairedComparison, compare_pairs
from perfnb.stats.intervals import Floats
from perfnb.stats.planning import smallest_detectable
from perfnb.stats.step_times import Timing


@dataclass(frozen=True)
class Blocks:
    """Turns of a step back to back, used when something prefetches for a step while the other runs."""

    who: str  # what prefetches: "worker processes", "processes", "threads", or "something" that was not seen
    lead: int  # uncounted turns before each block
    turns: int  # turns that count
    # seconds a round takes, with one block of each step; ``None`` if there was no time to find out
    round_s: float | None


@dataclass(frozen=True)
class ABFigures:
    """An experiment of randomised, interleaved pairs of turns, or of blocks of turns."""

    a_name: str
    b_name: str
    # milliseconds a turn, pair by pair, in the order of execution; for blocks, the mean of each
    a_ms: tuple[float, ...]
    b_ms: tuple[float, ...]
    comparison: PairedComparison  # statistics of b against a
    planned: int  # pairs that the budget allowed, according to the pilot
    needed: int  # pairs that the aim required, according to the pilot
    seed: int  # of the order within the pairs
    # how the results of b differ from those of a; empty if they agree, ``None`` if not checked
    check: str | None = None
    noise: Mapping[str, Any] = field(default_factory=dict)  # what may have disturbed the steps
    steady: bool | None = None  # whether both were steady at the end of the warm-up
    batch_size: int | None = None  # samples in each batch; ``None`` if unknown or not constant
    blocks: Blocks | None = None  # what the pairs consist of, if not of single turns

    @property
    def whole_ms(self) -> float:
        """Time of all counted turns."""
        return (sum(self.a_ms) + sum(self.b_ms)) * (1 if self.blocks is None else self.blocks.turns)

    @property
    def verdict(self) -> str:
        """ "faster", "slower", "same" or "inconclusive", of b against a."""
        return self.comparison.verdict

    @property
    def a(self) -> Timing:
        """Times of a."""
        return Timing(self.a_ms, self.batch_size, steady=self.steady, noise=self.noise)

    @property
    def b(self) -> Timing:
        """Times of b."""
        return Timing(self.b_ms, self.batch_size, steady=self.steady, noise=self.noise)

    @property
    def percent(self) -> Floats:
        """Percent by which b took longer than a, pair by pair."""
        return 100.0 * (np.asarray(self.b_ms, dtype=np.float64) / np.asarray(self.a_ms, dtype=np.float64) - 1.0)


def ab_figures(a_ms: Sequence[float], b_ms: Sequence[float], *, equal_within: float, **rest: Any) -> ABFigures:
    """Compare pairs of times by the log of their ratio, so that twice as fast weighs as much as twice as slow."""
    ratios = np.log(np.asarray(b_ms, dtype=float) / np.asarray(a_ms, dtype=float))
    return ABFigures(
        a_ms=tuple(a_ms), b_ms=tuple(b_ms), comparison=compare_pairs(ratios, equal_within=equal_within), **rest
    )


def detectable_in(figures: ABFigures, seconds: float) -> float | None:
    """Smallest difference that the pairs which fit into `seconds` detect with 90 % power."""
    pairs, found = figures.comparison.pairs, figures.comparison.smallest_detectable
    if pairs < 2 or not math.isfinite(found):
        return None
    pair_s = figures.whole_ms / pairs / 1e3
    if figures.blocks is not None:
        pair_s *= 1 + figures.blocks.lead / figures.blocks.turns
    deviation = math.log1p(found) / math.log1p(smallest_detectable(1.0, pairs))
    return smallest_detectable(deviation, max(2, int(seconds / pair_s)))
