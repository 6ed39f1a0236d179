"""Compare two runs, with intervals over blocks of their steps."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from perfnb.loop.run_summary import FEWEST_STEPS, RunFigures
from perfnb.recording.text import TEXT
from perfnb.stats.blocks import difference, in_blocks, log_median_of_blocks, mean_of_blocks
from perfnb.stats.comparisons import judge, within_band
from perfnb.stats.intervals import Centre
from perfnb.stats.slope import Slope

#: The ratio of the normal quantiles for 90 % and 95 % intervals, by which the equivalence interval is narrower.
_INNER = 1.6449 / 1.9600


#: The parts of a step: means per step, by name.
_PARTS = {
    "mean step": "sum_wall_ms",
    "waiting for data": "sum_data_ms",
    "working": "working",
    "between steps": "sum_other_ms",
}


class RunChanges:
    """The changes from one run (the baseline) to another, excluding profiled windows and warm-up.

    Intervals are computed from blocks of consecutive steps, because individual steps depend on their neighbours and
    provide less information than their number suggests. The intervals cover variation within each run, but not changes
    to the machine between the runs.

    Parameters
    ----------
    a, b : RunFigures
    equal_within : float
        The largest relative difference that does not matter.
    """

    def __init__(self, a: RunFigures, b: RunFigures, equal_within: float = 0.02) -> None:
        self.a, self.b, self.equal_within = a, b, equal_within
        sides = [a.judged, b.judged]
        apart = difference(*(log_median_of_blocks(side["ms"].to_numpy(float)) for side in sides))
        enough = apart.bounded and a.counted >= FEWEST_STEPS <= b.counted
        self.ratio = math.exp(apart.estimate) if math.isfinite(apart.estimate) else None
        self.ratio_ci = (math.exp(apart.low), math.exp(apart.high)) if enough else None
        self.verdict = "inconclusive"
        if self.ratio is not None and self.ratio_ci is not None:
            low, high = (math.exp(apart.estimate + _INNER * (edge - apart.estimate)) for edge in apart[1:])
            self.verdict = judge(self.ratio_ci, self.ratio, within_band((low, high), equal_within))
        self.step, self.memory = _times(sides), _memory(a, b)


def _times(sides: list[pd.DataFrame]) -> pd.DataFrame:
    found = {"step": [_centre_of_median(side) for side in sides]}
    found |= {what: [_per_step(side, column) for side in sides] for what, column in _PARTS.items()}
    return pd.DataFrame(
        [(one.estimate, other.estimate, *_change(one, other), *_ratio(one, other)) for one, other in found.values()],
        pd.Index(list(found), name="what", dtype=TEXT),
        ["a_ms", "b_ms", "change_ms", "low_ms", "high_ms", "ratio", "ratio_low", "ratio_high"],
    ).astype("Float64")


def _ratio(one: Centre, other: Centre) -> tuple[float | None, ...]:
    """Return the second figure divided by the first, with an interval based on the difference of their logarithms."""
    return tuple(None if value is None else math.exp(value) for value in _change(_log(one), _log(other)))


def _log(figure: Centre) -> Centre:
    estimate, low, _ = figure
    if not estimate > 0:
        return Centre(math.nan, -math.inf, math.inf)
    ends = map(math.log, figure[1:]) if low > 0 and figure.bounded else (-math.inf, math.inf)
    return Centre(math.log(estimate), *ends)


def _centre_of_median(side: pd.DataFrame) -> Centre:
    times = side["ms"].to_numpy(float)
    median = float(np.median(times)) if len(times) else math.nan
    logs = log_median_of_blocks(times)
    if not logs.bounded:
        return Centre(median, -math.inf, math.inf)
    return Centre(median, *(median * math.exp(edge - logs.estimate) for edge in logs[1:]))


def _per_step(side: pd.DataFrame, column: str) -> Centre:
    sums, steps = side[column].to_numpy(float), side["steps"].to_numpy(float)
    blocks = [float(part.sum() / count.sum()) for part, count in in_blocks(sums, steps)]
    mean = float(sums.sum() / steps.sum()) if steps.sum() else math.nan
    found = mean_of_blocks(blocks)
    return Centre(mean, mean + found.low - found.estimate, mean + found.high - found.estimate)


def _change(one: Centre, other: Centre) -> tuple[float | None, ...]:
    apart = difference(one, other)
    return tuple(value if math.isfinite(value) else None for value in apart)


def _memory(a: RunFigures, b: RunFigures) -> pd.DataFrame:
    rows: list[tuple[str, float | None, float | None, float | None, float | None, float | None]] = []
    for kind in ("resident", "allocated"):
        one, other = (run.memory_of[kind].peak_bytes for run in (a, b))
        if one is not None or other is not None:
            rows.append((kind, one, other, None if one is None or other is None else other - one, None, None))
    for kind in ("resident", "allocated"):
        slopes = [run.memory_of[kind].growth for run in (a, b)]
        if any(slope is not None for slope in slopes):
            centres = [_of_slope(slope) for slope in slopes]
            known = [None if math.isnan(one.estimate) else one.estimate for one in centres]
            rows.append((f"growth of {kind}", *known, *_change(*centres)))  # type: ignore[arg-type]
    columns = ["what", "a_bytes", "b_bytes", "change_bytes", "low_bytes", "high_bytes"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({"what": TEXT} | dict.fromkeys(columns[1:], "Float64")).set_index("what")


def _of_slope(slope: Slope | None) -> Centre:
    if slope is None:
        return Centre(math.nan, -math.inf, math.inf)
    if slope.ci_low is None or slope.ci_high is None:
        return Centre(slope.bytes_per_step, -math.inf, math.inf)
    return Centre(slope.bytes_per_step, slope.ci_low, slope.ci_high)
