"""Compare the step times of two profiles with each other and with a limit."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from perfnb.stats.comparisons import UnpairedComparison, compare_medians
from perfnb.stats.step_times import StepTimes


@dataclass(frozen=True)
class StepChange:
    """A comparison of the step times of two profiles or timings that were not measured side by side.

    Attributes
    ----------
    a, b : StepTimes
        The step times of the first and the second profile.
    kind : str
        The kind of steps that are compared: ``timed``, or ``traced`` if either profile has no timed steps.
    found : UnpairedComparison or None
        The comparison of the second with the first, or ``None`` if either has no steps.
    """

    a: StepTimes
    b: StepTimes
    kind: str
    found: UnpairedComparison | None


def slower_by_more_than(ratio_ci: tuple[float, float] | None, percent: float) -> bool | None:
    """Return whether the whole interval of a step time ratio is above a limit, or ``None`` without an interval."""
    return None if ratio_ci is None else ratio_ci[0] > 1 + percent / 100


def step_change(a: StepTimes, b: StepTimes, kind: str = "timed") -> StepChange:
    """Compare the step times of two timings."""
    if not (a.median_ms and b.median_ms):
        return StepChange(a, b, kind, None)
    return StepChange(a, b, kind, compare_medians(a.median_ms, a.ci_ms, b.median_ms, b.ci_ms))


def step_change_of(a: pd.DataFrame, b: pd.DataFrame) -> StepChange:
    """Compare two ``steps`` frames, using timed steps if both contain them, and traced steps otherwise."""
    kind = "timed" if all("timed" in set(side["pass"]) for side in (a, b)) else "traced"
    return step_change(_times(a, kind), _times(b, kind), kind)


def _times(steps: pd.DataFrame, kind: str) -> StepTimes:
    return StepTimes(tuple(map(float, steps.loc[steps["pass"] == kind, "wall_ms"].dropna())))
