"""What a report on a change says: the figures of both steps, how they differ, and what follows from that."""

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

#: What `limits` may hold beside losses: figures of the candidate that a larger value makes worse.
RESOURCES = ("peak_memory_bytes", "median_ms", "p95_ms")
#: The loss that stands for quality where nobody gives another: the largest difference of what the steps return.
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
    """The figures of one of the two steps; what was not measured is ``None``.

    Attributes
    ----------
    name : str
        The step.
    timing : Timing
        Its times in the pairs.
    utilisation : float or None
        Model FLOPs utilisation, 0 to 1, of its time in the pairs.
    peak_memory_bytes : int or None
        The most memory alive in a step, of what torch allocated.
    flops : int or None
        Of a step.
    ceiling : str or None
        The dtype whose ceiling `utilisation` is a share of.
    """

    name: str
    timing: Timing
    utilisation: float | None = None
    peak_memory_bytes: int | None = None
    flops: int | None = None
    ceiling: str | None = None

    @property
    def flops_per_s(self) -> float | None:
        """Arithmetic done a second, at the median."""
        return None if self.flops is None else self.flops / self.median_ms * 1e3

    @property
    def median_ms(self) -> float:
        """Median step time."""
        return float(np.median(self.timing.samples_ms))

    @property
    def p95_ms(self) -> float | None:
        """The time that 95 of 100 steps do not exceed; needs 59 steps."""
        return self.timing.quantile_ms(0.95)

    @property
    def throughput_per_s(self) -> float:
        """Samples per second at the median; steps per second where the batches do not tell their size."""
        return (self.timing.batch_size or 1) / self.median_ms * 1e3


@dataclass(frozen=True)
class Quality:
    """What was found out about the candidate's answer.

    Attributes
    ----------
    losses : tuple of Loss
        Empty where quality is unknown.
    judged_by : str
        "function" (the user's), or "results" (what the steps returned was compared).
    said : str
        How the results differ, or why they could not be compared; empty where they agree.
    dtype : str
        By which the limit of the difference was chosen; empty where it was not, or where results have to be equal.
    """

    losses: tuple[Loss, ...]
    judged_by: str
    said: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class PerformanceFigures:
    """A report on a change.

    Attributes
    ----------
    change : str
        What the candidate does otherwise, in the user's words.
    ab : ABFigures
        The experiment, the baseline as a and the candidate as b.
    quality : Quality
    limits : mapping of str to float
        As the user gave them.
    baseline, candidate : Side
    table : DataFrame
        A row a metric: ``unit``, ``baseline``, ``candidate``, ``difference`` (candidate less baseline), ``ratio``
        (candidate by baseline) with its 95 % interval ``ci_low``, ``ci_high``, ``limit`` (the largest accepted of the
        candidate).
    decision : Decision
    resources : tuple of Resource
        What the candidate uses of which there is a limit.
    environment, options : mapping
        In which the report was made; JSON-able.
    """

    change: str
    ab: ABFigures
    quality: Quality
    limits: Mapping[str, float]
    baseline: Side
    candidate: Side
    table: pd.DataFrame
    decision: Decision
    resources: tuple[Resource, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
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
    """Judge a change.

    Parameters
    ----------
    ab : ABFigures
        The experiment, baseline first.
    quality : Quality
    limits : mapping of str to float
        Largest accepted values by name: of losses, and of `RESOURCES`.
    summaries : sequence of Summary
        Of the profiles of baseline and candidate, or none.
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
    if (
        utilisation is not None and profile.timing.median_ms and timing.median_ms
    ):  # of the profile's few steps; those of the pairs are many, and fair to both
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
    """Whether the utilisations of both are shares of different things, so that they do not compare."""
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
    """Of the 95th percentiles.

    Its interval goes from the least to the greatest ratio that two intervals of 97.5 % allow, and so holds the truth in
    95 of 100 cases at least (Bonferroni), however the two hang together.
    """
    first, second = (quantile_interval(times, 0.95, 0.975) for times in (ab.a_ms, ab.b_ms))
    ratio = _ratio(ab.a.quantile_ms(0.95), ab.b.quantile_ms(0.95))
    return ratio, None if first is None or second is None else (second[0] / first[1], second[1] / first[0])


def _utilisation(baseline: Side, candidate: Side, ab: ABFigures) -> dict[str, tuple[Any, ...]]:
    """The row of the utilisation; where it is of two ceilings, with no ratio but a row of FLOP/s to compare."""
    both, rates = (baseline.utilisation, candidate.utilisation), (baseline.flops_per_s, candidate.flops_per_s)
    if not of_two_ceilings(baseline, candidate):
        return {"utilisation": ("", *both, *_work_ratio(*both, baseline, candidate, ab), None)}
    work = _work_ratio(*rates, baseline, candidate, ab)
    return {"flops_per_s": ("FLOP/s", *rates, *work, None), "utilisation": ("", *both, None, None, None)}


def _work_ratio(
    first: float | None, second: float | None, baseline: Side, candidate: Side, ab: ABFigures
) -> tuple[float | None, tuple[float, float] | None]:
    """Of two rates of work: that of the work, which is certain, by that of the times in pairs."""
    apart = _ratio(first, second)
    if apart is None:
        return None, None
    work = apart * candidate.median_ms / baseline.median_ms
    bounds = ab.comparison.ratio_ci
    return work / ab.comparison.ratio, None if bounds is None else (work / bounds[1], work / bounds[0])
