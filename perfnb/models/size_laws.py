"""Fit laws for how a step's time and memory grow with size, predict other sizes, and find where the laws break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.stats.intervals import interval_of_median, relative_standard_error
from perfnb.stats.power_law import PowerLaw, fit_power_law

#: The curve runs from this fraction of the smallest size to this multiple of the largest, in this many points plus the
#: sizes themselves.
_BELOW, _ABOVE, _POINTS = 0.5, 2.0, 121


@dataclass(frozen=True, repr=False)
class SizePrediction:
    """The predicted time and memory of a step at a given size.

    Attributes
    ----------
    size : float
    median_ms : float
        The median step time.
    ci_ms : tuple of float
        The 95 % prediction interval of that median. It becomes wider outside the measured sizes.
    peak_bytes : int or None
        The peak memory, or ``None`` if it is unknown.
    """

    size: float
    median_ms: float
    ci_ms: tuple[float, float]
    peak_bytes: int | None

    def __repr__(self) -> str:
        peak = "" if self.peak_bytes is None else f", peak memory {fmt.size(self.peak_bytes)}"
        return f"<perfnb.SizePrediction: size {self.size:g}: {fmt.interval(self.median_ms, self.ci_ms)}{peak}>"


def measured_sizes(
    samples_ms: Mapping[float, Sequence[float]], peaks: Mapping[float, int | None], flops: Mapping[float, int | None]
) -> dict[str, Any]:
    """Fit the laws to the measurements at each size.

    The result contains `table`, `law`, `memory_law` and `curve` of a `ScalingStudy`.
    """
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
    curve = _curve(sizes, law, memory_law)
    return {"table": table.astype(types), "law": law, "memory_law": memory_law, "curve": curve}


def _curve(sizes: Sequence[float], law: PowerLaw, memory_law: PowerLaw | None) -> pd.DataFrame:
    grid = np.union1d(np.geomspace(_BELOW * sizes[0], _ABOVE * sizes[-1], _POINTS), np.asarray(sizes, dtype=float))
    predicted = [law.predict(float(size)) for size in grid]
    memory = [None if memory_law is None else memory_law.predict(float(size)).median for size in grid]
    return pd.DataFrame(
        {
            "size": grid,
            "median_ms": [cost.median for cost in predicted],
            "low_ms": [cost.low for cost in predicted],
            "high_ms": [cost.high for cost in predicted],
            "peak_bytes": pd.array(memory, dtype="Float64"),
        }
    )
