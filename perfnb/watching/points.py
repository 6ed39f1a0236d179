"""Many readings as the points of a line: means over a few readings each, with gaps where nothing was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Points:
    """The points of the lines of one device."""

    t_s: Floats
    broken: NDArray[np.bool_]  # whether there is a gap before a point
    values: Mapping[str, Floats]  # by column; `nan` if nothing was read; no columns without a reading


def thinned(own: pd.DataFrame, columns: Sequence[str], interval_s: float, most: int, latest: int = 0) -> Points:
    """At most about `most` points for the readings of one device.

    `own` are the device's rows of ``samples``, in order and at least one. The `latest` readings, but at most half of
    `most`, keep a point of their own.
    """
    t, readings = own["t_s"].to_numpy(float), own["readings"].to_numpy(float, na_value=1.0)
    window = own["window_s"].to_numpy(float, na_value=np.nan)
    window = np.where(window > 0, window, readings * interval_s)
    apart = (1.5 + np.maximum(readings[1:], readings[:-1])) * interval_s
    gaps = np.append(False, np.diff(t) > apart)
    group = _groups(gaps, most, latest)
    count = int(group[-1]) + 1
    first = np.searchsorted(group, np.arange(count))
    found = {}
    for name in columns:
        values = own[name].to_numpy(float, na_value=np.nan)
        if np.isfinite(values).any():
            found[name] = _means(values, window if name.endswith("_per_s") else readings, group, count)
    return Points(_means(t, readings, group, count), gaps[first], found)


def _groups(gaps: NDArray[np.bool_], most: int, latest: int) -> NDArray[np.int_]:
    """The point for each reading: the newest on their own, the older ones in groups as large as needed."""
    count = len(gaps)
    if count <= most:
        return np.arange(count)
    latest = min(latest, most // 2)
    old = count - latest
    together = -(-old // (most - latest))
    place = np.arange(old)
    started = np.maximum.accumulate(np.where(gaps[:old], place, 0))
    starts = (place - started) % together == 0
    if starts.sum() > 1.5 * (most - latest):  # more gaps than can be drawn
        starts = place % together == 0
    return np.cumsum(np.append(starts, np.full(latest, True))) - 1


def _means(values: Floats, weights: Floats, group: NDArray[np.int_], count: int) -> Floats:
    known = np.isfinite(values)
    weight = np.bincount(group[known], weights[known], count)
    total = np.bincount(group[known], (values * weights)[known], count)
    means: Floats = np.divide(total, weight, out=np.full(count, np.nan), where=weight > 0)
    return means
