"""The figures of a report on a change: both steps, their differences, and the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from perfnb.bench.pairs import ABFigures
from perfnb.experiments.decision import Decision, Evidence, Loss, Resource, decide
from perfnb.profile.summary import Summary
from perfnb.recording.text import TEXT
from perfnb.stats.intervals import quantile_interval
from perfnb.stats.step_times import Timing

#: What `limits` may contain besides losses: figures of the candidate that should be small.
RESOURCES = ("peak_memory_bytes", "median_ms", "p95_ms")
#: The loss used without a quality function: the largest difference between what the steps return.
DIFFERENCE = "difference"

#: Columns of `PerformanceFigures.table` and their types, after the index ``metric``.
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "unit": TEXT,
        **dict.fromkeys(("baseline", "candidate", "difference", "ratio", "ci_low", "ci_high", "limit"), "Float64"),
    }
)


@dataclass(frozen=True)
class Side:
    """Figures of one step; ``None`` if not measured.

    Attributes
    ----------
    name : str
        Name of the step.
    timing : Timing
        Its times in the pairs.
    utilisation : float or None
        Model FLOPs utilisation, 0 to 1, at its step time in the pairs.
    peak_memory_bytes : int or None
        Peak memory that torch had allocated in a step.
    flops : int or None
        FLOPs of a step.
    ceiling : str or None
        The dtype whose ceiling `utilisation` refers to.
    """

    name: str
    timing: Timing
    utilisation: float | None = None
    peak_memory_bytes: int | None = None
    flops: int | None = None
    ceiling: str | None = None

    @property
    def flops_per_s(self) -> float | None:
        """FLOP/s at the median step time."""
        return None if self.flops is None else self.flops / self.median_ms * 1e3

    @property
    def median_ms(self) -> float:
        """Median step time."""
        return float(np.median(self.timing.samples_ms))

    @property
    def p95_ms(self) -> float | None:
        """95th percentile of the step time; needs 59 steps."""
        return self.timing.quantile_ms(0.95)

    @property
    def throughput_per_s(self) -> float:
        """Samples per second at the median step time; steps per second if the batch size is unknown."""
        return (self.timing.batch_size or 1) / self.median_ms * 1e3


@dataclass(frozen=True)
class Quality:
    """What is known about the quality of the candidate's results."""

    losses: tuple[Loss, ...]  # empty if quality is unknown
    judged_by: str  # "function" (the user's), or "results" (the steps' return values were compared)
    said: str = ""  # how the results differ, or why they could not be compared; empty if they agree
    dtype: str = ""  # the dtype that set the limit of the difference; empty if none did


@dataclass(frozen=True)
class PerformanceFigures:
    """A report on a change."""

    change: str  # what changed, in the user's words
    ab: ABFigures  # the A/B test, with the baseline as a and the candidate as b
    quality: Quality
    limits: Mapping[str, float]  # as given by the user
    baseline: Side
    candidate: Side
    table: pd.DataFrame  # see `PerformanceReport.table`
    decision: Decision
    resources: tuple[Resource, ...] = ()  # limited resources of the candidate
    environment: Mapping[str, Any] = field(default_factory=dict)  # of the measurement; JSON-able
    options: Mapping[str, Any] = field(default_factory=dict)


def performance_figures(
    ab: ABFigures,
    quality: Quality,
    limits: Mapping[str, float],
    summaries: Sequence[Summary] = (),
    *,
    change: str = "",
    environment: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> PerformanceFigures:
    """Evaluate a change, given its A/B test (baseline first) and the profiles of both steps, or none.

    `limits` are largest accepted values of losses and of `RESOURCES`, by name.
    """
    profiles: Sequence[Summary | None] = list(summaries) or [None, None]
    sides = [
        _side(name, timing, profile)
        for name, timing, profile in zip((ab.a_name, ab.b_name), (ab.a, ab.b), profiles, strict=True)
    ]
    baseline, candidate = sides
    names = {loss.name for loss in quality.losses}
    vary = {"median_ms": ab.b.ci_ms, "p95_ms": quantile_interval(ab.b_ms, 0.95)}
    resources = tuple(
        Resource(name, getattr(candidate, name), limits[name], vary.get(name)) for name in RESOURCES if name in limits
    )
    unmatched = tuple(name for name in limits if name not in names and name not in RESOURCES)
    evidence = Evidence(ab.verdict, quality.losses, resources, unmatched)
    return PerformanceFigures(
        change,
        ab,
        quality,
        dict(limits),
        baseline,
        candidate,
        _table(ab, baseline, candidate, quality.losses, limits),
        decide(evidence),
        resources,
        environment or {},
        options or {},
    )


def _side(name: str, timing: Timing, profile: Summary | None) -> Side:
    if profile is None:
        return Side(name, timing)
    roofline, memory = profile.roofline, profile.memory
    utilisation = None if roofline is None else roofline.utilisation
    if utilisation is not None and profile.timing.median_ms and timing.median_ms:
        # A profile times only a few steps; the pairs time many, and are fair to both.
        utilisation *= profile.timing.median_ms / timing.median_ms
    return Side(
        name,
        timing,
        utilisation,
        None if memory is None else memory.peak_bytes,
        None if roofline is None else roofline.flops,
        None if roofline is None else roofline.dtype,
    )


def of_two_ceilings(baseline: Side, candidate: Side) -> bool:
    """Whether the two utilisations refer to different ceilings, so that they cannot be compared."""
    known = baseline.utilisation is not None and candidate.utilisation is not None
    return known and baseline.ceiling != candidate.ceiling


def _table(
    ab: ABFigures, baseline: Side, candidate: Side, losses: Sequence[Loss], limits: Mapping[str, float]
) -> pd.DataFrame:
    time, bounds = ab.comparison.ratio, ab.comparison.ratio_ci
    inverse = None if bounds is None else (1 / bounds[1], 1 / bounds[0])
    tail, tail_ci = _tail_ratio(ab)
    rows: dict[str, tuple[Any, ...]] = {
        "median_ms": ("ms", baseline.median_ms, candidate.median_ms, time, bounds, limits.get("median_ms")),
        "p95_ms": ("ms", baseline.p95_ms, candidate.p95_ms, tail, tail_ci, limits.get("p95_ms")),
        "throughput_per_s": (
            "steps/s" if ab.batch_size is None else "samples/s",
            *(baseline.throughput_per_s, candidate.throughput_per_s, 1 / time, inverse, None),
        ),
        **_utilisation(baseline, candidate, ab),
        "peak_memory_bytes": (
            *("bytes", baseline.peak_memory_bytes, candidate.peak_memory_bytes),
            *(_ratio(baseline.peak_memory_bytes, candidate.peak_memory_bytes), None, limits.get("peak_memory_bytes")),
        ),
        "flops": ("FLOP", baseline.flops, candidate.flops, _ratio(baseline.flops, candidate.flops), None, None),
    }
    for loss in losses:
        rows[loss.name] = ("", loss.baseline, loss.candidate, _ratio(loss.baseline, loss.candidate), None, loss.largest)
    records = []
    for metric, (unit, first, second, ratio, ci, limit) in rows.items():
        together = metric != "utilisation" or not of_two_ceilings(baseline, candidate)
        difference = second - first if together and first is not None and second is not None else None
        low, high = ci or (None, None)
        records.append((unit, first, second, difference, ratio, low, high, limit))
    index = pd.Index(list(rows), name="metric", dtype=TEXT)
    return pd.DataFrame(records, index=index, columns=list(COLUMNS)).astype(dict(COLUMNS))


def _ratio(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None or first <= 0 else second / first


def _tail_ratio(ab: ABFigures) -> tuple[float | None, tuple[float, float] | None]:
    """Ratio of the 95th percentiles.

    Its interval spans the ratios that two 97.5 % intervals allow, so it covers at least 95 % however the two are
    correlated (Bonferroni).
    """
    first, second = (quantile_interval(times, 0.95, 0.975) for times in (ab.a_ms, ab.b_ms))
    ratio = _ratio(ab.a.quantile_ms(0.95), ab.b.quantile_ms(0.95))
    return ratio, None if first is None or second is None else (second[0] / first[1], second[1] / first[0])


def _utilisation(baseline: Side, candidate: Side, ab: ABFigures) -> dict[str, tuple[Any, ...]]:
    """The row of the utilisation; with two ceilings it has no ratio, and a row of FLOP/s is added."""
    both, rates = (baseline.utilisation, candidate.utilisation), (baseline.flops_per_s, candidate.flops_per_s)
    if not of_two_ceilings(baseline, candidate):
        return {"utilisation": ("", *both, *_work_ratio(*both, baseline, candidate, ab), None)}
    work = _work_ratio(*rates, baseline, candidate, ab)
    return {"flops_per_s": ("FLOP/s", *rates, *work, None), "utilisation": ("", *both, None, None, None)}


def _work_ratio(
    first: float | None, second: float | None, baseline: Side, candidate: Side, ab: ABFigures
) -> tuple[float | None, tuple[float, float] | None]:
    """Ratio of two rates: the ratio of the work, which is exact, divided by that of the paired times."""
    apart = _ratio(first, second)
    if apart is None:
        return None, None
    work = apart * candidate.median_ms / baseline.median_ms
    bounds = ab.comparison.ratio_ci
    return work / ab.comparison.ratio, None if bounds is None else (work / bounds[1], work / bounds[0])
