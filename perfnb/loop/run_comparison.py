"""Two runs: what changed from one to the other, with intervals over blocks of their steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.loop.run_summary import FEWEST_STEPS, RunFigures
from perfnb.recording.text import TEXT
from perfnb.stats.blocks import difference, in_blocks, log_median_of_blocks, mean_of_blocks
from perfnb.stats.comparisons import judge, within_band
from perfnb.stats.intervals import Centre
from perfnb.stats.slope import Slope

#: Ratio of the 90 % to the 95 % normal quantile: how much narrower the equivalence interval is.
_INNER = 1.6449 / 1.9600


@dataclass(frozen=True)
class RunChanges:
    """What changed from run a to run b.

    Attributes
    ----------
    a, b : RunFigures
    step : DataFrame
        Index `what`: ``step`` (median), ``mean step`` (slow ones included), ``waiting for data``, ``working`` and
        ``between steps`` (means per step); `a_ms`, `b_ms`, and `change_ms` with its 95 % interval from `low_ms` to
        `high_ms`.
    ratio, ratio_ci
        Median step time of b over that of a, with its 95 % interval; ``None`` with too few steps.
    verdict : str
        "faster", "slower", "same" or "inconclusive", of b against a.
    memory : DataFrame
        Index `what`: ``resident``, ``allocated`` (peaks), and their growth per step; `a_bytes`, `b_bytes`, and
        `change_bytes` with its interval from `low_bytes` to `high_bytes`, which peaks do not have.
    equal_within : float
        Relative difference that does not matter.
    """

    a: RunFigures
    b: RunFigures
    step: pd.DataFrame
    ratio: float | None
    ratio_ci: tuple[float, float] | None
    verdict: str
    memory: pd.DataFrame
    equal_within: float


def compare_runs(a: RunFigures, b: RunFigures, equal_within: float = 0.02) -> RunChanges:
    """Compare two runs, profiled windows and warm-up left out.

    Intervals come from blocks of consecutive steps: single steps depend on their neighbours, and count for less than
    their number. They cover what varied within each run, not what differed on the machine between the runs.
    """
    sides = [a.judged, b.judged]
    medians = [log_median_of_blocks(side["ms"].to_numpy(float)) for side in sides]
    apart = difference(*medians)
    enough = apart.bounded and all(run.counted >= FEWEST_STEPS for run in (a, b))
    ratio = math.exp(apart.estimate) if math.isfinite(apart.estimate) else None
    bounds = (math.exp(apart.low), math.exp(apart.high)) if enough else None
    verdict = "inconclusive"
    if ratio is not None and bounds is not None:
        inner = [math.exp(apart.estimate + _INNER * (edge - apart.estimate)) for edge in (apart.low, apart.high)]
        verdict = judge(bounds, ratio, within_band((inner[0], inner[1]), equal_within))
    return RunChanges(a, b, _times(sides), ratio, bounds, verdict, _memory(a, b), equal_within)


def _times(sides: list[pd.DataFrame]) -> pd.DataFrame:
    rows = {
        "mean step": "sum_wall_ms",
        "waiting for data": "sum_data_ms",
        "working": "working",
        "between steps": "sum_other_ms",
    }
    found = {"step": [_centre_of_median(side) for side in sides]}
    found |= {what: [_per_step(side, column) for side in sides] for what, column in rows.items()}
    return pd.DataFrame(
        [(one.estimate, other.estimate, *_change(one, other)) for one, other in found.values()],
        pd.Index(list(found), name="what", dtype=TEXT),
        ["a_ms", "b_ms", "change_ms", "low_ms", "high_ms"],
    ).astype("Float64")


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
        one, other = (run.memory[kind].peak_bytes for run in (a, b))
        if one is not None or other is not None:
            rows.append((kind, one, other, None if one is None or other is None else other - one, None, None))
    for kind in ("resident", "allocated"):
        slopes = [run.memory[kind].growth for run in (a, b)]
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
