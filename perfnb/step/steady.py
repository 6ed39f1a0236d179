"""When a warm-up has warmed up: a bounded test on the last steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfnb.errors import CaptureError

#: Steps that the test looks at; half of them are compared with the other half.
WINDOW = 20
#: Fewest steps that the test can judge.
FEWEST = 6


def is_steady(times: Sequence[float]) -> bool | None:
    """Whether the last step times show no trend; ``None`` where there are too few to tell, or the clock stood still.

    The last 20 (or, where fewer were run, an even number of at least 6) are split in two halves that must agree:
    the first value of the earlier half lies below its upper quartile plus 1.5 interquartile ranges, the medians
    and the outer quartiles differ by at most 5 %, the spreads (median absolute deviation, as a share of the
    median) by at most 10 points. The thresholds are those of pyperf's calibration of warm-ups.
    """
    count = min(len(times), WINDOW) // 2 * 2
    if count < FEWEST:
        return None
    recent = np.asarray(times[-count:], dtype=float)
    early, late = recent[: count // 2], recent[count // 2 :]
    low, middle, high = np.percentile(early, [25, 50, 75])
    late_low, late_middle, late_high = np.percentile(late, [25, 50, 75])
    if middle <= 0 or late_middle <= 0:
        return None
    if early[0] > high + 1.5 * (high - low):
        return False
    close = all(abs(b - a) <= 0.05 * a for a, b in ((middle, late_middle), (low, late_low), (high, late_high)))
    spread = np.median(np.abs(early - middle)) / middle
    late_spread = np.median(np.abs(late - late_middle)) / late_middle
    return bool(close and abs(late_spread - spread) <= 0.10)


def steady_from(times: Sequence[float], fewest: int = 0) -> int | None:
    """Number of the first of the last `WINDOW` steps, `fewest` or later, where these show no trend; else ``None``.

    Asked after each step, it tells where the warm-up ended: with the steps before that number.
    """
    first = len(times) - WINDOW
    return first if first >= fewest and is_steady(times[first:]) else None


def require_passing_time(times: Sequence[float]) -> None:
    """Refuse to judge steps by a clock that stood still while all of them ran.

    Raises
    ------
    CaptureError
    """
    if len(times) and not any(times):
        raise CaptureError(
            f"The clock stood still for {len(times)} steps, so they cannot be timed: something has replaced "
            "time.perf_counter, as tests that freeze time do; let it run while perfnb measures."
        )
