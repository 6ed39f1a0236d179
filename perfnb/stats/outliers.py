"""Step times far from the others: classified and counted, never dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfnb.stats.intervals import Samples


@dataclass(frozen=True)
class Outliers:
    """Samples beyond Tukey's fences.

    Attributes
    ----------
    low_severe, low_mild, high_mild, high_severe : tuple of int
        Places of the samples of each class in the order of execution, counted from 0.
    samples : int
        Number of samples classified.
    """

    low_severe: tuple[int, ...]
    low_mild: tuple[int, ...]
    high_mild: tuple[int, ...]
    high_severe: tuple[int, ...]
    samples: int

    @property
    def count(self) -> int:
        """Number of outliers of all classes."""
        return sum(self.by_class.values())

    @property
    def share(self) -> float:
        """Outliers as a share of all samples."""
        return self.count / self.samples if self.samples else 0.0

    @property
    def by_class(self) -> dict[str, int]:
        """Number of outliers of each class, from the lowest to the highest."""
        return {
            "low severe": len(self.low_severe),
            "low mild": len(self.low_mild),
            "high mild": len(self.high_mild),
            "high severe": len(self.high_severe),
        }

    def __str__(self) -> str:
        if self.count == 0:
            return f"no outliers among {self.samples} steps"
        classes = ", ".join(f"{count} {name}" for name, count in self.by_class.items() if count)
        return f"{self.count} outlier{'s' * (self.count > 1)} among {self.samples} steps: {classes}"


def classify_outliers(samples: Samples) -> Outliers:
    """Sort samples by Tukey's fences: mild beyond 1.5, severe beyond 3 interquartile ranges from the quartiles.

    Tukey, Exploratory Data Analysis. Where more than half of the samples are equal, the fences lie on that
    value, and whatever differs is severe. Fewer than 4 samples have no quartiles to speak of and no outliers.
    """
    values = np.asarray(samples, dtype=float)
    if len(values) < 4:
        return Outliers((), (), (), (), len(values))
    low, high = np.percentile(values, [25, 75])
    spread = high - low
    low_severe, high_severe = values < low - 3 * spread, values > high + 3 * spread
    low_mild = (values < low - 1.5 * spread) & ~low_severe
    high_mild = (values > high + 1.5 * spread) & ~high_severe

    def places(kind: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[int, ...]:
        return tuple(np.flatnonzero(kind).tolist())

    return Outliers(places(low_severe), places(low_mild), places(high_mild), places(high_severe), len(values))
