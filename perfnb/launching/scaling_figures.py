"""Compute the gain from additional ranks, and the causes of the loss, from the step times of jobs.

All functions in this module are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.stats.intervals import interval_of_median

#: The confidence level for each job's median. When two medians are compared, both intervals are valid with 95 %
#: confidence.
CONFIDENCE = 0.975
#: A note is added if a job's slowest run takes longer than its fastest run multiplied by this factor.
_DISAGREE = 1.25
_UNKNOWN = (np.nan, np.nan, np.nan)
#: The parts of a loss.
PARTS = ("compute", "communication", "imbalance", "input")


@dataclass(frozen=True)
class JobRun:
    """One run of a job.

    Attributes
    ----------
    steps_ms : sequence of float
        The duration of each timed step on the job's slowest rank.
    shares : mapping
        The parts of a traced step, averaged over the ranks: ``input``, ``communication`` (the exposed part, excluding
        the wait for the last rank), ``imbalance`` (the wait for the last rank; if this is unknown, the value is
        ``None`` and the wait is included in ``communication``) and ``compute``, which is the remainder. The parts add
        up to 1.
    buckets : str
        A sentence about the savings from other DDP bucket sizes, or an empty string if there are no buckets.
    """

    steps_ms: Sequence[float]
    shares: Mapping[str, float | None]
    buckets: str = ""


@dataclass
class ScalingJob:
    """A job that runs several times.

    Attributes
    ----------
    kind : str
        ``ranks``, ``plain`` (one rank without DDP) or ``best`` (one rank without DDP that uses all cores).
    failed : str
        The reason why the job failed and has no runs, or an empty string.
    """

    kind: str
    ranks: int
    threads: int
    runs: list[JobRun] = field(default_factory=list)
    failed: str = ""


def compared_jobs(jobs: Sequence[ScalingJob], mode: str) -> dict[str, Any]:
    """Compare all jobs with the job on one rank.

    The result contains the attributes `table`, `losses`, `rounds` and `notes` of a `RankScaling`.

    Parameters
    ----------
    jobs : sequence of ScalingJob
    mode : str
        ``strong`` (the same batch for all ranks) or ``weak``.
    """
    times = {(job.kind, job.ranks): _time(job) for job in jobs}
    alone = [times.get((kind, 1), _UNKNOWN) for kind in ("ranks", "plain", "best")]
    rows = {}
    for job in jobs:
        own, work = times[job.kind, job.ranks], job.ranks if mode == "weak" else 1
        speedup, plain, best = (_ratio(other, own, work) for other in alone)
        if (of_ranks := job.kind == "ranks") and job.ranks == 1:
            speedup = (1.0, np.nan, np.nan)
        efficiency = [value / job.ranks if of_ranks else np.nan for value in speedup]
        against = (plain[0], best[0]) if of_ranks else (np.nan, np.nan)
        rows[_name(job)] = (job.ranks, job.threads, *own, *speedup, *efficiency, *against)
    floats = [
        *("step_ms", "ci_low_ms", "ci_high_ms", "speedup", "speedup_low", "speedup_high"),
        *("efficiency", "efficiency_low", "efficiency_high", "against_plain", "against_best"),
    ]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["ranks", "threads", *floats]).rename_axis("job")
    return {
        "table": table.astype(dict.fromkeys(floats, "Float64")),
        "losses": _losses(jobs, mode),
        "rounds": max(len(job.runs) for job in jobs),
        "notes": list(_notes(jobs)),
    }


def _name(job: ScalingJob) -> str:
    if job.kind == "ranks":
        return "1 rank" if job.ranks == 1 else f"{job.ranks:,} ranks"
    return "1 rank without DDP" if job.kind == "plain" else "1 process, all cores"


def _time(job: ScalingJob) -> tuple[float, float, float]:
    """Return a job's median step time, and an interval that covers the median step times of all its runs."""
    if not job.runs:
        return _UNKNOWN
    medians = [float(np.median(run.steps_ms)) for run in job.runs]
    intervals = [interval_of_median(run.steps_ms, CONFIDENCE) for run in job.runs]
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(intervals):
        return float(np.mean(medians)), np.nan, np.nan
    return float(np.mean(medians)), min(bounds.low for bounds in known), max(bounds.high for bounds in known)


def _notes(jobs: Sequence[ScalingJob]) -> Iterator[str]:
    """Yield notes about the figures. Jobs with the same caveat are combined in a single note."""
    shared: dict[str, list[str]] = {}
    for job in jobs:
        if job.failed:
            shared.setdefault(f"not available because the job failed: {job.failed}", []).append(_name(job))
        elif job.runs[-1].buckets:
            shared.setdefault(job.runs[-1].buckets, []).append(_name(job))
    yield from (f"{_listed(names)}: {why}" for why, names in shared.items())
    medians = {_name(job): sorted(float(np.median(run.steps_ms)) for run in job.runs) for job in jobs if job.runs}
    apart = {name: (each[0], each[-1]) for name, each in medians.items() if each[-1] > _DISAGREE * each[0]}
    if apart:
        ranges = [f"{name} (from {fmt.duration(low)} to {fmt.duration(high)})" for name, (low, high) in apart.items()]
        yield (
            f"The step times of the same job differ between runs: {_listed(ranges)}. Other work on the machine may be "
            "the cause. Run the study again when the machine is idle."
        )
    if short := [job for job in jobs if job.runs and np.isnan(_time(job)[1])]:
        least = min(len(run.steps_ms) for job in short for run in job.runs)
        yield (
            f"{_listed(map(_name, short))}: there is no interval, because a run with only "
            f"{fmt.counted(least, 'timed step')} is too short. Pass a higher value for budget_s or steps."
        )
    if unmatched := [job for job in jobs if any(run.shares["imbalance"] is None for run in job.runs)]:
        yield (
            f"{_listed(map(_name, unmatched))}: the collectives could not be matched between ranks, so communication "
            "includes the wait for the last rank."
        )


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _ratio(other: tuple[float, float, float], own: tuple[float, float, float], work: int) -> tuple[float, float, float]:
    """Return the speed of `own` relative to `other`, with an interval."""
    return work * other[0] / own[0], work * other[1] / own[2], work * other[2] / own[1]


def _losses(jobs: Sequence[ScalingJob], mode: str) -> pd.DataFrame:
    """Return the milliseconds per step that each cause adds to perfect scaling. The causes add up to the loss."""
    base = next(job for job in jobs if job.kind == "ranks" and job.ranks == 1)
    rows = []
    for job in jobs:
        if job.kind != "ranks" or job.ranks == 1:
            continue
        divided = job.ranks if mode == "strong" else 1
        own, of_base = _parts(job), _parts(base)
        step, ideal = sum(own.values()), sum(of_base.values()) / divided
        lost = {name: own[name] - of_base[name] / divided for name in PARTS}
        if any(run.shares["imbalance"] is None for run in job.runs):
            lost["imbalance"] = np.nan
        rows.append((job.ranks, step, ideal, step - ideal, *lost.values()))
    columns = ["ranks", "step_ms", "ideal_ms", "loss_ms", *(f"{name}_ms" for name in PARTS)]
    return pd.DataFrame(rows, columns=columns).set_index("ranks").astype("Float64")


def _parts(job: ScalingJob) -> dict[str, float]:
    """Split a job's median timed step into parts, according to their shares of the traced steps."""
    step = _time(job)[0]
    return {name: step * float(np.mean([run.shares[name] or 0.0 for run in job.runs])) for name in PARTS}
