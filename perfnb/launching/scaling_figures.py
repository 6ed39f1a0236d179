"""What more ranks gain, and what becomes of the rest: pure figures from the steps of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.stats.intervals import interval_of_median

#: Of each job's median: two of them are compared, and both hold with 95 %.
CONFIDENCE = 0.975
#: How many times as long as the fastest run of a job the slowest may take before a note says so.
_DISAGREE = 1.25
#: The parts of a loss.
PARTS = ("compute", "communication", "imbalance", "input")


@dataclass(frozen=True)
class JobRun:
    """One run of a job.

    Attributes
    ----------
    steps_ms : sequence of float
        Each timed step of the job, as long as on its slowest rank.
    shares : mapping
        Parts of a traced step, on average over the ranks: ``input``, ``communication`` (exposed, without waiting for
        the last rank), ``imbalance`` (this waiting; ``None`` if unknown, and then in ``communication``) and
        ``compute``, all the rest. They add up to 1.
    buckets : str
        What other sizes of DDP's buckets would save, in words; empty without buckets.
    """

    steps_ms: Sequence[float]
    shares: Mapping[str, float | None]
    buckets: str = ""


@dataclass
class ScalingJob:
    """A job that is run several times.

    Attributes
    ----------
    kind : str
        ``ranks``, ``plain`` (one rank without DDP) or ``best`` (the same with all cores).
    failed : str
        Why there are no runs.
    """

    kind: str
    ranks: int
    threads: int
    runs: list[JobRun] = field(default_factory=list)
    failed: str = ""


@dataclass(frozen=True)
class RankScalingFigures:
    """All jobs of a study, compared with one rank.

    Attributes
    ----------
    table : pd.DataFrame
        A row for each job.
    losses : pd.DataFrame
        A row for each number of ranks above 1: where the time beyond perfect scaling goes.
    """

    mode: str
    table: pd.DataFrame
    losses: pd.DataFrame
    rounds: int
    cores: int
    notes: list[str] = field(default_factory=list)


def rank_scaling_figures(jobs: Sequence[ScalingJob], mode: str, cores: int) -> RankScalingFigures:
    """Compare jobs with the one of one rank; `mode` is ``strong`` (the same batch for all ranks) or ``weak``."""
    times = {(job.kind, job.ranks): _time(job) for job in jobs}
    base, plain, best = times["ranks", 1], times.get(("plain", 1)), times.get(("best", 1))
    rows = []
    for job in jobs:
        own, work = times[job.kind, job.ranks], job.ranks if mode == "weak" else 1
        against = [_ratio(other, own, work) for other in (base, plain, best)]
        of_ranks = job.kind == "ranks"
        efficiency = [value / job.ranks if of_ranks else np.nan for value in against[0]]
        if of_ranks and job.ranks == 1:
            against[0], efficiency = (1.0, np.nan, np.nan), [1.0, np.nan, np.nan]
        rows.append(
            (_name(job), job.ranks, job.threads, *own, *against[0], *efficiency)
            + ((against[1][0], against[2][0]) if of_ranks else (np.nan, np.nan))
        )
    columns = [
        *("job", "ranks", "threads", "step_ms", "ci_low_ms", "ci_high_ms"),
        *("speedup", "speedup_low", "speedup_high", "efficiency", "efficiency_low", "efficiency_high"),
        *("against_plain", "against_best"),
    ]
    table = pd.DataFrame(rows, columns=columns).set_index("job")
    floats = dict.fromkeys(columns[3:], "Float64")
    notes = [f"{_name(job)}: n/a, because it failed: {job.failed}" for job in jobs if job.failed]
    notes += [f"{_name(job)}: {job.runs[-1].buckets}" for job in jobs if job.runs and job.runs[-1].buckets]
    notes += [note for job in jobs for note in _doubts(job)]
    losses, more = _losses(jobs, mode)
    rounds = max(len(job.runs) for job in jobs)
    return RankScalingFigures(mode, table.astype(floats), losses, rounds, cores, notes + more)


def _name(job: ScalingJob) -> str:
    if job.kind == "ranks":
        return "1 rank" if job.ranks == 1 else f"{job.ranks:,} ranks"
    return "1 rank without DDP" if job.kind == "plain" else "1 process, all cores"


def _time(job: ScalingJob) -> tuple[float, float, float]:
    """The median step of a job, and an interval that holds those of all its runs."""
    if not job.runs:
        return np.nan, np.nan, np.nan
    medians = [float(np.median(run.steps_ms)) for run in job.runs]
    intervals = [interval_of_median(run.steps_ms, CONFIDENCE) for run in job.runs]
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(intervals):
        return float(np.mean(medians)), np.nan, np.nan
    return float(np.mean(medians)), min(bounds.low for bounds in known), max(bounds.high for bounds in known)


def _doubts(job: ScalingJob) -> Iterator[str]:
    """Why the step of a job may be far off, or has no interval."""
    medians = sorted(float(np.median(run.steps_ms)) for run in job.runs)
    if len(medians) > 1 and medians[-1] > _DISAGREE * medians[0]:
        yield (
            f"{_name(job)}: its runs disagree, from {fmt.duration(medians[0])} to {fmt.duration(medians[-1])} per "
            "step. Other work on the machine may be the cause: run the study again when it is idle."
        )
    if job.runs and np.isnan(_time(job)[1]):
        least = min(len(run.steps_ms) for run in job.runs)
        yield (
            f"{_name(job)}: no interval, because {fmt.counted(least, 'timed step')} in a run are too few. Pass a "
            "higher budget_s, or steps."
        )


def _ratio(
    other: tuple[float, float, float] | None, own: tuple[float, float, float], work: int
) -> tuple[float, float, float]:
    """How many times as fast `own` is as `other`, and an interval."""
    if other is None or np.isnan(own[0]):
        return np.nan, np.nan, np.nan
    return work * other[0] / own[0], work * other[1] / own[2], work * other[2] / own[1]


def _losses(jobs: Sequence[ScalingJob], mode: str) -> tuple[pd.DataFrame, list[str]]:
    """Milliseconds of a step beyond perfect scaling, by cause; the parts add up to the loss."""
    base = next(job for job in jobs if job.kind == "ranks" and job.ranks == 1)
    rows, notes = [], []
    for job in jobs:
        if job.kind != "ranks" or job.ranks == 1:
            continue
        divided = job.ranks if mode == "strong" else 1
        own, of_base = _parts(job), _parts(base)
        step, ideal = sum(own.values()), sum(of_base.values()) / divided
        unknown = any(run.shares["imbalance"] is None for run in job.runs)
        lost = {name: own[name] - of_base[name] / divided for name in PARTS}
        if unknown:
            lost["imbalance"] = np.nan
            notes.append(
                f"{_name(job)}: the collectives of the ranks could not be matched, so that communication includes "
                "waiting for the last rank."
            )
        rows.append((job.ranks, step, ideal, step - ideal, *lost.values()))
    columns = ["ranks", "step_ms", "ideal_ms", "loss_ms", *(f"{name}_ms" for name in PARTS)]
    return pd.DataFrame(rows, columns=columns).set_index("ranks").astype("Float64"), notes


def _parts(job: ScalingJob) -> dict[str, float]:
    """The parts of a job's median step in milliseconds: the shares of the traced steps, of the timed ones."""
    step = _time(job)[0]
    return {name: step * float(np.mean([run.shares[name] or 0.0 for run in job.runs])) for name in PARTS}
