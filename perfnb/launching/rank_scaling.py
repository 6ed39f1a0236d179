"""Define `rank_scaling`, which measures how much faster a job runs on several ranks, and why it is not even faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from perfnb.arguments import require_count, shown
from perfnb.draw import escape
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.launching.order import pack_function
from perfnb.launching.profile_ranks import order_for, require_ranks, run_ranks
from perfnb.launching.scaling_figures import JobRun, ScalingJob, compared_jobs
from perfnb.launching.scaling_view import rank_scaling_document
from perfnb.ranks.buckets import bucket_sentence
from perfnb.ranks.ranks import Ranks

_MODES = ("strong", "weak")


@dataclass(frozen=True, repr=False, eq=False)
class RankScaling(Documented):
    """A study of how a job scales with the number of ranks. Notebooks display it as a report.

    Attributes
    ----------
    mode : str
        ``strong`` or ``weak``.
    table : pd.DataFrame
        One row per job.

        The columns include ``ranks``, ``threads`` (per rank), and ``step_ms`` with its interval from ``ci_low_ms`` to
        ``ci_high_ms``. ``speedup`` is the work per second relative to one rank with the same code, and ``efficiency``
        is the speed-up per rank. Both have an interval. ``against_plain`` is the speed-up over one rank without DDP,
        and ``against_best`` is the speed-up over one process with all cores.
    losses : pd.DataFrame
        The milliseconds per step by which the job exceeds perfect scaling (``ideal_ms``), for each number of ranks
        above 1.

        ``compute_ms`` (lower efficiency because of smaller batches or shared resources), ``communication_ms`` (while
        nothing computes), ``imbalance_ms`` (waiting for the slowest rank) and ``input_ms`` add up to ``loss_ms``. If a
        part became shorter, its value is negative.
    rounds, cores : int
        How many times each job ran, and the number of cores on this machine.
    notes : list of str
        Notes about these figures: failed jobs, runs that disagree, and the possible savings from other bucket sizes.
    """

    mode: str
    table: pd.DataFrame
    losses: pd.DataFrame
    rounds: int
    cores: int
    notes: list[str]

    def _document(self) -> Document:
        return rank_scaling_document(self)


def rank_scaling(
    target: Callable[[], Any],
    ranks: Sequence[int] = (1, 2),
    *,
    mode: str = "strong",
    batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
    ddp: bool = False,
    backend: str | None = None,
    threads: int | None = None,
    env: Mapping[str, str] | None = None,
    warmup: int | None = None,
    steps: int | None = None,
    traced: int = 10,
    rounds: int = 2,
    budget_s: float = 120.0,
) -> RankScaling:
    """Measure how much faster a job is on several ranks of this machine, and where the rest of the time goes.

    There is one job for each number of ranks, one job with a single rank without DistributedDataParallel, and one job
    with a single process that uses all cores. Each job runs `rounds` times in new processes, and the order of the jobs
    is reversed in each round. All ranks have the same number of threads.

    Parameters
    ----------
    target : callable
        The same as for `profile_ranks`, except that it cannot be a script.
    ranks : sequence of int
        The numbers of ranks to measure. A single rank is always measured.
    mode : str
        If ``strong``, the batch of one rank is split among all ranks. If ``weak``, each rank gets a whole batch. A step
        without batches must implement this itself.
    batches, ddp, backend, threads, env
        The same as for `profile_ranks`, except for the default number of threads, which is the number of cores divided
        by the highest number of ranks.
    warmup, steps, traced : int, optional
        The numbers of steps in each run of a job, as in `profile_step`.
    rounds : int
        The number of times that each job runs. The intervals cover all runs.
    budget_s : float
        The maximum number of seconds for the steps of all jobs. Starting the processes takes additional time.

    Raises
    ------
    ValueError
        If `ranks` does not contain a number above 1, or if `mode` is unknown.
    Exception
        The same exceptions as `profile_ranks`.
    """
    from perfnb.step.budget import Plan
    from perfnb.step.environment import usable_cpus

    __tracebackhide__ = True
    if mode not in _MODES:
        raise ValueError(f"mode must be 'strong' or 'weak', not {shown(mode)}.")
    if not callable(target):
        raise TypeError(f"target must be a function that returns the step, not {shown(target)}.")
    numbers = _numbers(ranks)
    require_count("rounds", rounds, 1)
    cores = max(1, int(usable_cpus()))
    own_threads = max(1, cores // numbers[-1]) if threads is None else threads
    jobs = [ScalingJob("ranks", number, own_threads) for number in numbers] + [ScalingJob("plain", 1, own_threads)]
    if own_threads != cores:
        jobs.append(ScalingJob("best", 1, cores))
    share_s = budget_s / (rounds * len(jobs))
    plan = {"warmup": warmup, "steps": steps, "traced": traced, "budget_s": share_s, "memory": False, "flops": False}
    Plan(**plan)  # type: ignore[arg-type]  # checks them
    payload = pack_function(target, batches)
    order_of_runs = [job for number in range(rounds) for job in (jobs if number % 2 == 0 else reversed(jobs))]
    for place, job in enumerate(order_of_runs, start=1):
        if job.failed:
            continue
        of_ranks = job.kind == "ranks"
        order = order_for(
            "function",
            job.ranks,
            {**plan, "flops": of_ranks and job.ranks > 1},  # this pass records the sizes of buckets
            backend=backend,
            threads=job.threads,
            ddp=ddp and of_ranks,
            split=mode == "strong",
            plain=not of_ranks,
            payload=payload,
        )
        try:
            profiles = run_ranks(order, job.ranks, env, note=f"job {place} of {len(order_of_runs)}", show=False)
            job.runs.append(_measured(profiles))
        except Exception as error:
            if of_ranks:
                raise
            # The code may use attributes that only exist on models wrapped in DDP.
            job.runs, job.failed = [], escape.plain(f"{type(error).__name__}: {error}", 200)
    return RankScaling(mode=mode, cores=cores, **compared_jobs(jobs, mode))


def _numbers(ranks: Sequence[int]) -> list[int]:
    if isinstance(ranks, int | str) or not isinstance(ranks, Iterable):
        raise TypeError(f"ranks must be a sequence of numbers, such as (1, 2), not {shown(ranks)}.")
    numbers = list(ranks)
    for number in numbers:
        require_ranks(number)
    if max(numbers, default=1) == 1:
        raise ValueError("ranks must contain at least one number above 1, such as (1, 2).")
    return sorted({1, *numbers})


def _measured(profiles: Ranks) -> JobRun:
    """Return the step times of a job, and how its steps are divided into parts."""
    timed = [profile.steps.loc[profile.steps["pass"] == "timed", "wall_ms"] for profile in profiles]
    steps_ms = np.max(np.stack([wall_ms.to_numpy(dtype=float) for wall_ms in timed]), axis=0)
    phases = [profile.phases["share"] for profile in profiles]
    data, exposed = (
        float(np.mean([float(shares.get(name, 0.0)) for shares in phases])) for name in ("data", "communication")
    )
    waited: float | None = 0.0
    if len(profiles) > 1 and exposed > 0:
        times = profiles.times
        mean = times.groupby("rank")[["waiting_ms", "wall_ms"]].mean()
        known = not mean["waiting_ms"].isna().any()
        # Some of the waiting may be hidden by computation.
        waited = min(exposed, float((mean["waiting_ms"] / mean["wall_ms"]).mean())) if known else None
    communication = exposed - (waited or 0.0)
    parts = {"input": data, "communication": communication, "imbalance": waited}
    words = "" if profiles._buckets is None else bucket_sentence(profiles._buckets)
    return JobRun(steps_ms.tolist(), {**parts, "compute": 1.0 - data - exposed}, words)
