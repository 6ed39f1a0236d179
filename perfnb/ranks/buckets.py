"""Estimate how much other DDP bucket sizes could save at most, from the transfer times of buckets of several sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from perfnb import quantities as fmt
from perfnb.recording.nesting import NONE

#: The minimum number of bucket sizes for fitting a line, and of points in addition to the line's two parameters.
_SIZES, _FREE = 3, 3
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class BucketSizes:
    """A rank's buckets, and the line ``latency + bytes / bandwidth`` fitted to their transfer times.

    Attributes
    ----------
    buckets : float
        The number of buckets per step.
    bytes : float
        The total size of the buckets in a step.
    latency_ms, low_ms, high_ms : float or None
        The part of each bucket's time that does not depend on its size, with its interval. It is ``None`` if no line
        could be fitted.
    bytes_per_s : float or None
        The bandwidth according to the line. It is ``None`` if no line could be fitted or if larger buckets did not take
        longer.
    fewer_ms : float or None
        The most that using a single bucket could save per step. This is the upper end of the interval for the latency
        of all buckets except one, limited to the time of the exposed transfers.
    smaller_ms : float or None
        The most that smaller buckets, which start earlier, could save. This is the time of the exposed transfers.
    why : str
        The reason why no line could be fitted, or an empty string.
    """

    buckets: float
    bytes: float
    latency_ms: float | None
    low_ms: float | None
    high_ms: float | None
    bytes_per_s: float | None
    fewer_ms: float | None
    smaller_ms: float | None
    why: str


def bucket_sizes(calls: pd.DataFrame, steps: int) -> BucketSizes | None:
    """Fit a line to the transfer times of DDP's buckets, or return ``None`` if there are no buckets.

    Parameters
    ----------
    calls : DataFrame
        A rank's collectives from `collective_calls`, with ``waiting_ns`` for those also found on other ranks.
    steps : int
    """
    own = calls[calls["bucket"] != NONE]
    if own.empty or steps < 1:
        return None
    known = own[(own["bytes"] != NONE) & own["waiting_ns"].notna()]
    waiting = known["waiting_ns"].to_numpy(dtype=float)
    took = np.maximum((known["end_ns"] - known["begin_ns"]).to_numpy(dtype=float) - waiting, 0.0)
    sent = known["bytes"].to_numpy(dtype=float)
    count, whole = len(own) / steps, float(sent.sum()) / steps
    why = _why_not(own, sent)
    if why:
        return BucketSizes(count, whole, None, None, None, None, None, None, why)
    exposed = float(np.minimum(known["exposed_ns"].to_numpy(dtype=float), took).sum()) / 1e6 / steps
    latency, half, slope = _line(sent, took / 1e6)
    high = max(latency + half, 0.0)
    return BucketSizes(
        count,
        whole,
        max(latency, 0.0),
        max(latency - half, 0.0),
        high,
        1e3 / slope if slope > 0 else None,
        min(max(count - 1, 0.0) * high, exposed),
        exposed,
        "",
    )


def _why_not(own: pd.DataFrame, sent: np.ndarray) -> str:
    """Return the reason why no line can be fitted, or an empty string. `sent` has the known bucket sizes in bytes."""
    if (own["bytes"] == NONE).any():
        return "the bucket sizes are unknown (the counted pass, flops=True, records them)"
    if own["waiting_ns"].isna().any():
        return "some buckets were not found on any other rank"
    sizes = len(np.unique(sent))
    if sizes < _SIZES:
        return f"the buckets have only {'one size' if sizes == 1 else 'two sizes'}, and fitting a line requires three"
    return "too few steps were traced" if len(sent) < 2 + _FREE else ""


def _line(size: np.ndarray, ms: np.ndarray) -> tuple[float, float, float]:
    """Fit a line by least squares. Return its intercept, half the width of the intercept's interval, and its slope."""
    centre, spread = size.mean(), ((size - size.mean()) ** 2).sum()
    slope = float(((size - centre) * ms).sum() / spread)
    start = float(ms.mean() - slope * centre)
    free = len(size) - 2
    error = np.sqrt(((ms - start - slope * size) ** 2).sum() / free * (1 / len(size) + centre**2 / spread))
    return start, float(special.stdtrit(free, (1 + _CONFIDENCE) / 2) * error), slope


def bucket_sentence(found: BucketSizes) -> str:
    """Return a sentence about how much other bucket sizes could save."""
    sent = f"DDP sends {fmt.size(found.bytes)} per step in {fmt.counted(round(found.buckets, 2), 'bucket')}"
    if found.why:
        return f"The saving from other bucket sizes is unknown: {found.why}."
    each = fmt.interval(found.latency_ms, (found.low_ms, found.high_ms))
    rate = "" if found.bytes_per_s is None else f", and then {fmt.size(found.bytes_per_s)}/s"
    return (
        f"{sent}, each with a latency of {each}{rate}. A single bucket would save at most "
        f"{fmt.duration(found.fewer_ms)} per step. Smaller buckets, which start earlier, would save at most "
        f"{fmt.duration(found.smaller_ms)}."
    )
