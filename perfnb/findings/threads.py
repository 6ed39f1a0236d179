"""Threads and cores: torch uses more or fewer threads than this process has cores."""

from __future__ import annotations

import numpy as np

from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, many, part, time

_WORTH = 0.1


def threads_and_cores(facts: Facts) -> list[Finding]:
    """More threads than cores take turns; with far fewer, cores are idle. Told by steps that were tried so."""
    threads, cores, tried = facts.environment.get("threads"), facts.cores, facts.meta.get("threads_tried")
    if facts.gpu is not None or not threads or cores is None or not facts.live:
        return []
    if not tried:
        return _not_tried(threads, cores)
    other = np.asarray(tried["steps_ms"], dtype=float)
    typical = float(np.median(facts.timed_ms))
    bound = facts.step_ms - float(np.median(other)) * facts.step_ms / typical if typical > 0 else 0.0
    bound = min(bound, typical - float(np.median(other)))
    # Tried steps must be clearly faster, not only by the spread of the timed ones.
    clearly = float(np.percentile(other, 75)) < float(np.percentile(facts.timed_ms, 25))
    if facts.share(bound) < _WORTH or not clearly:
        return []
    limit = facts.environment.get("cpu_limit")
    room = f"{facts.environment.get('cpus')} cores" + (f", limited to {limit:g} by its cgroup" if limit else "")
    stopped = facts.meta.get("noise", {}).get("throttled_ms")
    throttled = f" The limit stopped the process for {time(stopped)} meanwhile." if stopped else ""
    more = threads > cores
    return [
        Finding(
            "threads and cores",
            f"torch computes with {threads} threads, and the process has {room}. With "
            f"{many(tried['threads'], 'thread')} the step took {time(float(np.median(other)))} instead of "
            f"{time(typical)} (medians of {len(other)} and {len(facts.timed_ms)} steps), "
            f"{part(facts.share(bound))} less.{throttled}",
            bound,
            "Use as many threads as there are cores: "
            + ("more of them take turns and wait for each other." if more else "the others are idle."),
            f"torch.set_num_threads({tried['threads']})",
            "high",
            "It was tried: the same steps were run with the other number of threads.",
            "Threads of other libraries and of data-loading workers, and which of the cores share one.",
        )
    ]


def _not_tried(threads: int, cores: float) -> list[Finding]:
    """More threads than cores seldom pay; by how much only steps with fewer would tell."""
    if threads <= cores:
        return []
    return [
        Finding(
            "threads and cores",
            f"torch computes with {threads} threads on {cores:g} cores. There was no time to try steps with fewer.",
            None,
            "Use as many threads as there are cores: more of them take turns and wait for each other.",
            f"torch.set_num_threads({max(1, int(cores))})",
            "low",
            "More threads than cores are seldom faster; here it was not tried.",
            "How long the step takes with fewer: a longer budget_s lets perfnb try.",
        )
    ]
