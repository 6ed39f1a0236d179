"""Compute the data on which the decision about a change is based: the quality of results and both steps' figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from perfnb.bench.acceptance import Resource
from perfnb.bench.paired_times import PairedTimes
from perfnb.bench.quality import DIFFERENCE, RESOURCES, Loss
from perfnb.profile.summary import Summary
from perfnb.recording.text import TEXT
from perfnb.stats.intervals import quantile_interval
from perfnb.stats.step_times import StepTimes

#: The two sides. Steps are also given these names if they have no names or if their names are equal.
SIDES = ("baseline", "candidate")
#: The columns of `ABTest.table` after the index ``metric``, with their types.
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "unit": TEXT,
        **dict.fromkeys((*SIDES, "difference", "ratio", "ci_low", "ci_high", "limit"), "Float64"),
    }
)


@dataclass(frozen=True)
class Quality:
    """What is known about the quality of the candidate's results, and how it was judged."""

    losses: tuple[Loss, ...]  # empty if quality is unknown
    # "function" (the user's), "results" (the steps' return values were compared), "check" (the same, on request), or
    # "nothing"
    judged_by: str
    said: str = ""  # how the results differ or why they could not be compared, or empty if they agree
    dtype: str = ""  # the dtype that determined the limit on the difference, if any


#: The quality if the results are not judged at all.
NOT_COMPARED = Quality((), "nothing", "they were not compared")


def compare_results(
    first: Any, second: Any, check: float | Callable[[Any, Any], Any] | None, limit: float | None
) -> Quality:
    """Compare the two steps' return values using `check`, if it is given, or else within `limit`.

    The default limit is the tolerance of their dtype.
    """
    from perfnb.bench.distances import worst_difference

    if callable(check):
        try:
            said = "check says that the results differ" if check(first, second) is False else ""
        except AssertionError as error:
            said = " ".join(str(error).split()) or "the check failed"
        return Quality((Loss(DIFFERENCE, math.inf if said else 0.0, limit=0.0),), "check", said)
    given = limit if check is None else float(check)
    worst = worst_difference(first, second, given)
    tolerance = worst.tolerance if given is None else given
    losses = (Loss(DIFFERENCE, worst.relative, limit=tolerance),) if worst.known else ()
    said = "" if worst.known and worst.relative <= tolerance else worst.words
    dtype = worst.dtype if losses and given is None else ""
    return Quality(losses, "results" if check is None else "check", said, dtype)


@dataclass(frozen=True)
class ABTestSide:
    """The figures of one step. Figures that were not measured are ``None``.

    Attributes
    ----------
    name : str
        The name of the step.
    timing : StepTimes
        The step's times in the pairs.
    utilisation : float or None
        The model FLOPs utilisation, from 0 to 1, at the step's time in the pairs.
    peak_memory_bytes : int or None
        The peak of the memory that torch allocated in a step.
    flops : int or None
        The number of FLOPs in a step.
    ceiling : str or None
        The dtype to whose ceiling `utilisation` refers.
    """

    name: str
    timing: StepTimes
    utilisation: float | None = None
    peak_memory_bytes: int | None = None
    flops: int | None = None
    ceiling: str | None = None

    @property
    def flops_per_s(self) -> float | None:
        """The FLOP/s at the median step time."""
        return None if self.flops is None else self.flops / self.median_ms * 1e3

    @property
    def median_ms(self) -> float:
        """The median step time."""
        return float(np.median(self.timing.samples_ms))

    @property
    def p95_ms(self) -> float | None:
        """The 95th percentile of the step time, or ``None`` if there are fewer than 59 steps."""
        return self.timing.quantile_ms(0.95)

    @property
    def throughput_per_s(self) -> float:
        """The samples per second at the median step time, or the steps per second if the batch size is unknown."""
        return (self.timing.batch_size or 1) / self.median_ms * 1e3


def limited_resources(candidate: ABTestSide, limits: Mapping[str, float]) -> tuple[Resource, ...]:
    """Return the candidate's usage of each resource in `limits`."""
    timing = candidate.timing
    vary = {"median_ms": timing.ci_ms, "p95_ms": quantile_interval(timing.samples_ms, 0.95)}
    return tuple(
        Resource(name, getattr(candidate, name), limits[name], vary.get(name)) for name in RESOURCES if name in limits
    )


def side_of(name: str, timing: StepTimes, profile: Summary | None) -> ABTestSide:
    """Return a step's figures, using the summary of its profile if there is one."""
    if profile is None:
        return ABTestSide(name, timing)
    roofline, memory = profile.roofline, profile.memory
    utilisation = None if roofline is None else roofline.utilisation
    if utilisation is not None and profile.timing.median_ms and timing.median_ms:
        # A profile times only a few steps. The pairs time many steps and treat both sides equally.
        utilisation *= profile.timing.median_ms / timing.median_ms
    return ABTestSide(
        name,
        timing,
        utilisation,
        None if memory is None else memory.peak_bytes,
        None if roofline is None else roofline.flops,
        None if roofline is None else roofline.dtype,
    )


def of_two_ceilings(baseline: ABTestSide, candidate: ABTestSide) -> bool:
    """Return whether the two utilisations refer to different ceilings and therefore cannot be compared."""
    known = baseline.utilisation is not None and candidate.utilisation is not None
    return known and baseline.ceiling != candidate.ceiling


def metrics(
    times: PairedTimes, baseline: ABTestSide, candidate: ABTestSide, losses: Sequence[Loss], limits: Mapping[str, float]
) -> pd.DataFrame:
    """Return one row per metric, as described in `ABTest.table`."""
    time, bounds = times.ratio, times.ratio_ci
    apart = of_two_ceilings(baseline, candidate)
    units = {
        "median_ms": "ms",
        "p95_ms": "ms",
        "throughput_per_s": "steps/s" if times.batch_size is None else "samples/s",
        **({"flops_per_s": "FLOP/s"} if apart else {}),
        "utilisation": "",
        "peak_memory_bytes": "bytes",
        "flops": "FLOP",
    }
    rows: dict[str, tuple[Any, ...]] = {}
    for metric, unit in units.items():
        first, second = getattr(baseline, metric), getattr(candidate, metric)
        ratio, ci = _ratio(first, second), None
        if metric == "median_ms":
            ratio, ci = time, bounds
        elif metric == "p95_ms":
            ci = _tail_bounds(times)
        elif metric == "utilisation" and apart:
            ratio = None
        elif metric in ("throughput_per_s", "utilisation", "flops_per_s") and ratio is not None:
            # The ratio of two rates is the ratio of the work, which is exact, divided by the ratio of the paired times.
            work = ratio * candidate.median_ms / baseline.median_ms if metric != "throughput_per_s" else 1.0
            ratio, ci = work / time, None if bounds is None else (work / bounds[1], work / bounds[0])
        limit = limits.get(metric) if metric in RESOURCES else None
        rows[metric] = (unit, first, second, ratio, ci, limit)
    for loss in losses:
        rows[loss.name] = ("", loss.baseline, loss.candidate, _ratio(loss.baseline, loss.candidate), None, loss.largest)
    records = []
    for metric, (unit, first, second, ratio, ci, limit) in rows.items():
        known = first is not None and second is not None and not (apart and metric == "utilisation")
        records.append((unit, first, second, second - first if known else None, ratio, *(ci or (None, None)), limit))
    index = pd.Index(list(rows), name="metric", dtype=TEXT)
    return pd.DataFrame(records, index=index, columns=list(COLUMNS)).astype(dict(COLUMNS))


def _ratio(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None or first <= 0 else second / first


def _tail_bounds(pairs: PairedTimes) -> tuple[float, float] | None:
    """Return an interval for the ratio of the 95th percentiles.

    The interval contains all ratios that two 97.5 % intervals allow. Its coverage is therefore at least 95 %,
    regardless of how the two percentiles are correlated (Bonferroni).
    """
    first, second = (quantile_interval(times, 0.95, 0.975) for times in (pairs.a_ms, pairs.b_ms))
    return None if first is None or second is None else (second[0] / first[1], second[1] / first[0])
