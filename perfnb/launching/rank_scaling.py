"""`rank_scaling`: measure how much faster a job is on several ranks, and where the rest of the time goes."""

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
    """How a job scales with the number of ranks. A notebook displays it.

    Attributes
    ----------
    mode : str
        ``strong`` or ``weak``.
    table : pd.DataFrame
        One row per job.

        ``ranks``, ``threads`` of each, ``step_ms`` with its interval from ``ci_low_ms`` to ``ci_high_ms``. ``speedup``
        is work per second compared with one rank of the same code, and ``efficiency`` the same per rank, both with an
        interval. ``against_plain`` is the speed-up over one rank without DDP, and ``against_best`` the speed-up over
        one process with all cores.
    losses : pd.DataFrame
        Milliseconds of a step beyond perfect scaling (``ideal_ms``), for each number of ranks above 1.

        ``compute_ms`` (a smaller batch, or ranks that share a resource, compute less efficiently), ``communication_ms``
        (exposed: nothing computes meanwhile), ``imbalance_ms`` (waiting for the slowest rank) and ``input_ms`` add up
        to ``loss_ms``. A part that became shorter is negative.
    rounds, cores : int
        How many times each job ran, and the number of cores on this machine.
    notes : list of str
        Caveats about these figures: failed jobs, runs that disagree, and the possible savings from other bucket sizes.
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

    Each job runs `rounds` times in fresh processes, in an order that is reversed each time: with each number of ranks,
    with one rank without DistributedDataParallel, and with one such process that has all cores. All ranks have the same
    number of threads.

    Parameters
    ----------
    target : callable
        As in `profile_ranks`, except that it cannot be a script.
    ranks : sequence of int
        The numbers of ranks. A single rank is always measured.
    mode : str
        With ``strong``, the batch of one rank is split among all ranks. With ``weak``, each rank gets a whole batch. If
        the step has no batches, it must do this itself.
    batches, ddp, backend, threads, env
        As in `profile_ranks`. By default, each rank gets the cores divided by the highest number of ranks.
    warmup, steps, traced : int, optional
        The numbers of steps in each run of a job, as in `profile_step`.
    rounds : int
        The number of runs of each job. The intervals cover all of them.
    budget_s : float
        How many seconds the steps of all jobs may take. Starting the processes takes additional time.

    Raises
    ------
    ValueError
        If `ranks` does not contain a number above 1, or if `mode` is unknown.
    Exception
        As `profile_ranks`.
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
            {**plan, "flops": of_ranks and job.ranks > 1},  # which contains the bytes of buckets
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
            # Code may request attributes of DDP's model that others lack.
            job.runs, job.failed = [], escape.plain(f"{type(error).__name__}: {error}", 200)
    return RankScaling(mode=mode, cores=cores, **compared_jobs(jobs, mode))


def _numbers(ranks: Sequence[int]) -> list[int]:
    if isinstance(ranks, int | str) or not isinstance(ranks, Iterable):
        raise TypeError(f"ranks must be numbers of ranks, such as (1, 2), not {shown(ranks)}.")
    numbers = list(ranks)
    for number in numbers:
        require_ranks(number)
    if max(numbers, default=1) == 1:
        raise ValueError("ranks must contain a number above 1, such as (1, 2).")
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
        # Some of the waiting may be hidden behind computing.
        waited = min(exposed, float((mean["waiting_ms"] / mean["wall_ms"]).mean())) if known else None
    communication = exposed - (waited or 0.0)
    parts = {"input": data, "communication": communication, "imbalance": waited}
    words = "" if profiles._buckets is None else bucket_sentence(profiles._buckets)
    return JobRun(steps_ms.tolist(), {**parts, "compute": 1.0 - data - exposed}, words)
