"""How a step's time and memory grow with size: the laws, their predictions, and where they break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.arguments import finite, shown
from perfnb.stats.intervals import interval_of_median, relative_standard_error
from perfnb.stats.power_law import PowerLaw, fit_power_law

#: The curve runs from this fraction of the smallest size to this multiple of the largest, in this many points plus the
#: sizes themselves.
_BELOW, _ABOVE, _POINTS = 0.5, 2.0, 121


@dataclass(frozen=True, repr=False)
class SizePrediction:
    """Predicted time and memory of a step at some size.

    Attributes
    ----------
    size : float
    median_ms : float
        Median step time.
    ci_ms : tuple of float
        95 % prediction interval of that median; it widens outside the measured sizes.
    peak_bytes : int or None
        Peak memory; ``None`` if unknown.
    """

    size: float
    median_ms: float
    ci_ms: tuple[float, float]
    peak_bytes: int | None

    def __repr__(self) -> str:
        peak = "" if self.peak_bytes is None else f", peak memory {fmt.size(self.peak_bytes)}"
        return f"<perfnb.SizePrediction: size {self.size:g}: {fmt.interval(self.median_ms, self.ci_ms)}{peak}>"


@dataclass(frozen=True, repr=False, eq=False)
class ScalingFigures:
    """Time and memory by size.

    Attributes
    ----------
    table : DataFrame
        One row per size, ascending: ``size``, ``median_ms`` with its interval ``ci_low_ms`` to ``ci_high_ms``,
        ``peak_bytes``, ``flops``, and the law's ``predicted_ms`` and ``residual`` (share of the prediction).
    law : PowerLaw
        Of the median times.
    memory_law : PowerLaw or None
        Of peak memory, which is counted, not timed.
    curve : DataFrame
        Predictions on a grid of sizes, even on the log scale: ``size``, ``median_ms``, ``low_ms``, ``high_ms``,
        ``peak_bytes``.
    device : str
    notes : tuple of str
        Caveats.
    """

    table: pd.DataFrame
    law: PowerLaw
    memory_law: PowerLaw | None
    curve: pd.DataFrame
    device: str
    notes: tuple[str, ...] = ()

    @property
    def fit(self) -> pd.DataFrame:
        """One row per size: ``measured`` and ``predicted`` milliseconds, and the ``residual`` (share of the latter)."""
        return self.law.fit.copy()

    @property
    def exponent(self) -> float:
        """Exponent of the time: 2 means that a step of twice the size takes four times as long."""
        return self.law.exponent

    @property
    def exponent_ci(self) -> tuple[float, float] | None:
        """95 % interval of the exponent; ``None`` for two sizes, which are too few for one."""
        return self.law.exponent_ci

    @property
    def warning(self) -> str | None:
        """Where one law does not hold, such as at a cache's size or a switch of kernels; ``None`` if it holds."""
        return self.law.warning

    def predict(self, size: float) -> SizePrediction:
        """Predict time and memory of a step of that size."""
        if (finite(size) or 0.0) <= 0:
            raise ValueError(f"size must be a number above 0, not {shown(size)}.")
        time = self.law.predict(size)
        peak = None if self.memory_law is None else round(self.memory_law.predict(size).median)
        return SizePrediction(float(size), time.median, (time.low, time.high), peak)


def scaling_figures(
    samples_ms: Mapping[float, Sequence[float]],
    peaks: Mapping[float, int | None],
    flops: Mapping[float, int | None],
    *,
    device: str,
    notes: tuple[str, ...] = (),
) -> ScalingFigures:
    """Fit the laws to the measurements at each size."""
    sizes = sorted(samples_ms)
    medians = [float(np.median(samples_ms[size])) for size in sizes]
    errors = [relative_standard_error(samples_ms[size]) for size in sizes]
    known = [error for error in errors if error is not None]
    law = fit_power_law(sizes, medians, known if len(known) == len(sizes) else None)
    bounds = [(interval_of_median(samples_ms[size]) or (None, None))[:2] for size in sizes]
    held = [peaks.get(size) for size in sizes]
    table = pd.DataFrame(
        {
            "size": sizes,
            "median_ms": medians,
            "ci_low_ms": [low for low, _ in bounds],
            "ci_high_ms": [high for _, high in bounds],
            "peak_bytes": held,
            "flops": [flops.get(size) for size in sizes],
            "predicted_ms": law.fit["predicted"].to_numpy(),
            "residual": law.fit["residual"].to_numpy(),
        }
    )
    types = dict.fromkeys(table.columns, "Float64") | dict.fromkeys(("peak_bytes", "flops"), "Int64")
    memory_law = fit_power_law(sizes, [float(peak or 0) for peak in held]) if all(held) else None
    return ScalingFigures(table.astype(types), law, memory_law, _curve(sizes, law, memory_law), device, notes)


def _curve(sizes: Sequence[float], law: PowerLaw, memory_law: PowerLaw | None) -> pd.DataFrame:
    grid = np.union1d(np.geomspace(_BELOW * sizes[0], _ABOVE * sizes[-1], _POINTS), np.asarray(sizes, dtype=float))
    predicted = [law.predict(float(size)) for size in grid]
    memory = [None if memory_law is None else memory_law.predict(float(size)).median for size in grid]
    return pd.DataFrame(
        {
            "size": grid,
            "median_ms": [each.median for each in predicted],
            "low_ms": [each.low for each in predicted],
            "high_ms": [each.high for each in predicted],
            "peak_bytes": pd.array(memory, dtype="Float64"),
        }
    )
