"""Threads: torch uses more or fewer than the process has cores."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfnb import quantities as fmt
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rule

_WORTH = 0.1


@rule("threads and cores", "Slowed by its number of threads", "matching the number of cores", timed_only=True)
def threads_and_cores(facts: Facts) -> Iterator[Finding]:
    """More or fewer threads than cores, judged by steps that were run with another number."""
    threads, cores, tried = facts.environment.get("threads"), facts.cores, facts.meta.get("threads_tried")
    if facts.gpu is not None or not threads or cores is None or not facts.live:
        return
    advice = "Use as many threads as there are cores: "
    if not tried and threads > cores:
        yield Finding(
            "threads and cores",
            f"torch uses {threads} threads on {cores:g} cores. There was no time to try steps with fewer.",
            None,
            f"{advice}more of them compete and wait for each other.",
            f"torch.set_num_threads({max(1, int(cores))})",
            "low",
            "More threads than cores rarely help, but it was not tried here.",
            "How long the step takes with fewer threads: with a longer budget_s perfnb tries it.",
        )
    if not tried:
        return
    other = np.asarray(tried["steps_ms"], dtype=float)
    typical, faster = float(np.median(facts.timed_ms)), float(np.median(other))
    bound = min(facts.step_ms - faster * facts.step_ms / typical if typical > 0 else 0.0, typical - faster)
    # The tried steps must be clearly faster, not just within the spread of the timed ones.
    clearly = float(np.percentile(other, 75)) < float(np.percentile(facts.timed_ms, 25))
    if facts.share(bound) < _WORTH or not clearly:
        return
    limit, stopped = facts.environment.get("cpu_limit"), facts.meta.get("noise", {}).get("throttled_ms")
    room = f"{facts.environment.get('cpus')} cores" + (f", limited to {limit:g} by its cgroup" if limit else "")
    throttled = f" The limit stopped the process for {fmt.duration(stopped)} in that time." if stopped else ""
    yield Finding(
        "threads and cores",
        f"torch uses {threads} threads, and the process has {room}. With {fmt.counted(tried['threads'], 'thread')} the "
        f"step took {fmt.duration(faster)} instead of {fmt.duration(typical)} (medians of {len(other)} and "
        f"{len(facts.timed_ms)} steps), {fmt.share(facts.share(bound))} less.{throttled}",
        bound,
        advice + ("more of them compete and wait for each other." if threads > cores else "the others are idle."),
        f"torch.set_num_threads({tried['threads']})",
        "high",
        "The same steps were run with the other number of threads.",
        "Threads of other libraries and of data-loading workers; cores that are hyperthreads of one another.",
    )
