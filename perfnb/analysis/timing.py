"""The step time and how well it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, repr=False)
class Timing:
    """Step times of the timed pass: no profiler, no hooks.

    Attributes
    ----------
    samples_ms : tuple of float
        Wall time of each step, in the order of execution.
    batch_size : int or None
        Samples that every step works on; ``None`` where the batches do not tell or differ.
    samples : int or None
        Samples of all steps together; ``None`` where the batches do not tell.
    """

    samples_ms: tuple[float, ...]
    batch_size: int | None = None
    samples: int | None = None

    def __repr__(self) -> str:
        interval = "" if self.ci_ms is None else f" [{self.ci_ms[0]:.3g}, {self.ci_ms[1]:.3g}]"
        return f"<perfnb.Timing: {self.median_ms:.3g} ms{interval}, {self.steps} steps>"

    @property
    def steps(self) -> int:
        """Number of steps measured."""
        return len(self.samples_ms)

    @property
    def median_ms(self) -> float:
        """Median step time in milliseconds."""
        return float(np.median(self.samples_ms))

    @property
    def ci_ms(self) -> tuple[float, float] | None:
        """95 % confidence interval of the median; ``None`` below 6 steps, which cannot support one."""
        return median_interval(self.samples_ms)

    @property
    def throughput_per_s(self) -> float | None:
        """Samples per second: at the median step time, or over all steps where batches differ; ``None`` if unknown."""
        if self.batch_size is not None:
            return self.batch_size / self.median_ms * 1e3
        return None if self.samples is None else self.samples / sum(self.samples_ms) * 1e3


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Confidence interval of the median from order statistics; ``None`` where too few samples allow none.

    The interval from the k-th smallest to the k-th largest of n samples covers the median with
    probability ``1 - 2 P(Binomial(n, 1/2) < k)`` whatever the distribution (David and Nagaraja,
    Order Statistics, section 7.1).
    """
    from scipy.special import bdtr

    ordered = np.sort(np.asarray(samples, dtype=float))
    n = len(ordered)
    ranks = np.arange(1, n // 2 + 1)
    enough = ranks[1.0 - 2.0 * bdtr(ranks - 1.0, n, 0.5) >= confidence]
    if len(enough) == 0:
        return None
    k = int(enough[-1])
    return float(ordered[k - 1]), float(ordered[n - k])
