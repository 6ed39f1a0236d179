"""What other sizes of DDP's buckets could save at most, from how long buckets of several sizes took: pure figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from perfnb import quantities as fmt
from perfnb.recording.nesting import NONE

#: Fewest sizes of buckets that a line is fitted to; of points beyond its two parameters.
_SIZES, _FREE = 3, 3
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class BucketSizes:
    """The buckets of one rank, and the line ``latency + bytes / bandwidth`` through the times of their transfers.

    Attributes
    ----------
    buckets : float
        Per step.
    bytes : float
        Of all buckets of a step.
    latency_ms, low_ms, high_ms : float or None
        Time that each bucket takes whatever its size, with its interval; ``None`` without a line.
    bytes_per_s : float or None
        Of the line; ``None`` also if larger buckets did not take longer.
    fewer_ms : float or None
        The most that one bucket instead of all could save per step: the upper end of the latency of all but one, and
        no more than the transfers that nothing hid.
    smaller_ms : float or None
        The most that smaller ones, which start earlier, could save: the transfers that nothing hid.
    why : str
        Why there is no line; empty if there is.
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
    """Fit the transfers of DDP's buckets; ``None`` if there are none.

    Parameters
    ----------
    calls : DataFrame
        A rank's, from `collective_calls`, with ``waiting_ns`` where they were found on other ranks.
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
    """Why no line can be fitted to some buckets, of which `sent` are the bytes of those that are known."""
    if (own["bytes"] == NONE).any():
        return "the bytes of the buckets are not known (the counted pass, flops=True, tells them)"
    if own["waiting_ns"].isna().any():
        return "not all buckets were found on another rank"
    sizes = len(np.unique(sent))
    if sizes < _SIZES:
        return f"the buckets have {'one size' if sizes == 1 else 'only two sizes'}, and three are needed to fit a line"
    return "too few steps were traced" if len(sent) < 2 + _FREE else ""


def _line(size: np.ndarray, ms: np.ndarray) -> tuple[float, float, float]:
    """Where a line meets size 0, half the width of its interval, and its slope, by least squares."""
    centre, spread = size.mean(), ((size - size.mean()) ** 2).sum()
    slope = float(((size - centre) * ms).sum() / spread)
    start = float(ms.mean() - slope * centre)
    free = len(size) - 2
    error = np.sqrt(((ms - start - slope * size) ** 2).sum() / free * (1 / len(size) + centre**2 / spread))
    return start, float(special.stdtrit(free, (1 + _CONFIDENCE) / 2) * error), slope


def bucket_sentence(found: BucketSizes) -> str:
    """What other sizes could save, in words."""
    sent = f"DDP sends {fmt.size(found.bytes)} per step in {fmt.counted(round(found.buckets, 2), 'bucket')}"
    if found.why:
        return f"What other bucket sizes would save is n/a: {found.why}."
    each = fmt.interval(found.latency_ms, (found.low_ms, found.high_ms))
    rate = "" if found.bytes_per_s is None else f", and then {fmt.size(found.bytes_per_s)}/s"
    return (
        f"{sent}, each with a latency of {each}{rate}. One bucket instead would save at most "
        f"{fmt.duration(found.fewer_ms)} per step; smaller ones, which start earlier, at most "
        f"{fmt.duration(found.smaller_ms)}."
    )
