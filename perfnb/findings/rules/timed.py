"""Find problems that are visible only in timed steps.

These are waits for data, an unsuitable number of threads, and slow steps among fast ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from perfnb import quantities as fmt
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rows, rule
from perfnb.findings.proposed_code import lever_line, loader_line, workers_line
from perfnb.recording.nesting import Floats, Ints
from perfnb.stats.step_times import classify_outliers

#: Minimum share of the step worth reporting, the same for the garbage collector, and minimum milliseconds of a wait.
_WORTH, _WORTH_GC, _LEAST_MS = 0.05, 0.02, 0.05
#: Number of pauses from which on their mean is reliable.
_OFTEN = 4
_AHEAD = " (num_workers and prefetch_factor of torch's DataLoader)"
#: Minimum number of timed steps among which a slow one stands out.
_FEWEST = 10


@rule(
    "input pipeline",
    "Input-bound",
    "removing the wait for data",
    timed_only=True,
    remedy="loader_workers",
    worth=_WORTH,
)
def input_pipeline(facts: Facts) -> Iterator[Finding]:
    """Find the wait for data from the timed pass; with a GPU, only the part during which the GPU was idle."""
    waited = facts.phases_ms["data"]
    measured = facts.live and bool(facts.waits_ms.any())
    least = waited
    if measured:
        # If other work held up a single step, the pipeline is not slow. Some waits must therefore remain after removing
        # the longest ones; if the batches exist already, most steps must wait.
        at_hand = facts.loader.get("class") in ("list", "tuple")
        least = min(waited, float(np.median(facts.waits_ms)) if at_hand else _without_longest(facts.waits_ms))
    if least < _LEAST_MS or facts.share(least) < _WORTH:
        return
    bound, hidden = waited, ""
    if facts.gpu is not None:
        bound = min(bound, facts.gpu.idle_ms if facts.live else facts.gpu.held_ms("data"))
        hidden = f"; the GPU was idle for {fmt.duration(bound)} of this time"
    source = f"mean of {len(facts.waits_ms)} timed steps" if measured else "in the traced steps"
    batches = int(facts.meta.get("batches", 1))
    whose = "its batch" if batches == 1 else f"its {batches:,} batches"
    advice, code = _advice(facts, waited)
    yield Finding(
        f"The step waits {fmt.duration(waited)} for {whose}, {fmt.share(facts.share(waited))} of "
        f"{facts.step_words} ({source}){hidden}.{_setting(facts)}",
        bound,
        advice,
        "low" if facts.uneven else "high" if measured and facts.gpu is None else "medium",
        f"{fmt.capital(facts.uneven)}, so the wait's share of a step is uncertain."
        if facts.uneven
        else "The wait for each batch was timed without instrumentation."
        if measured
        else "The wait was measured in the trace, which includes tracing overhead.",
        "Which part of the pipeline is slow: reading, decoding or transforms. Workers that compete with the step for "
        "cores also slow down its other phases.",
        rows("phase", ["data"]),
        code=code,
    )


def _without_longest(ms: Floats) -> float:
    """Return the mean over all steps except the longest 2 %, which excludes a single hiccup."""
    return float(np.sort(ms)[: -math.ceil(len(ms) / 50)].sum()) / len(ms)


def _setting(facts: Facts) -> str:
    workers = facts.loader.get("num_workers")
    if not isinstance(workers, int):
        return ""
    how = "no workers: batches are made in the main process" if workers == 0 else fmt.counted(workers, "worker")
    dataset = str(facts.loader.get("dataset", ""))
    method = "__iter__" if facts.loader.get("iterable") else "__getitem__"
    maker = f" Its samples come from {dataset}.{method}." if dataset.isidentifier() else ""
    return f" {facts.loader.get('name') or 'The loader'} has {how}.{maker}"


def _advice(facts: Facts, waited: float) -> tuple[str, str]:
    """Return a recommendation on how to make batches, and the line of code for it."""
    loader, cores = facts.loader, facts.cores or math.inf
    workers = loader.get("num_workers")
    if not isinstance(workers, int):
        made = facts.live and loader.get("class") not in (None, "list", "tuple")
        how = ": use a torch.utils.data.DataLoader with workers (num_workers=2)" if made else facts.for_torch(_AHEAD)
        return f"Prepare batches ahead of time in other processes{how}, or make them cheaper: cache and vectorise.", ""
    if loader.get("indexed") is True:
        return (
            "The samples are already in memory but are fetched one at a time. Fetch each batch with a single indexing "
            "operation; the batches stay the same.",
            loader_line(loader, batch_sampler=None, sampler=f"{loader['name']}.batch_sampler", batch_size=repr(None)),
        )
    rest = max(facts.step_ms - waited, 1e-3)
    # With n workers, making a batch takes n times as long as the time between batches.
    making = waited if workers == 0 else workers * facts.step_ms
    needed = math.ceil(making / rest)
    batches = int(facts.meta.get("batches", 1))
    what = "a batch takes" if batches == 1 else f"the step's {batches:,} batches take"
    takes = f"{what} about {fmt.duration(making)} to make and {fmt.duration(rest)} to use"
    wanted = max(workers + 1, needed)
    if loader.get("iterable"):
        wanted = max(1, workers)
        advice = (
            f"{'Use 1 worker' if workers == 0 else 'Make batches cheaper, or use more workers'}: {takes}. Each worker "
            "of an iterable dataset loads every sample, unless the dataset splits them among its workers: see "
            "torch.utils.data.get_worker_info()."
        )
    elif wanted > cores:
        wanted = max(1, int(cores))
        advice = (
            "Make batches cheaper (cache what is read or decoded, and vectorise), and "
            f"{'keep' if wanted == workers else 'use'} {fmt.counted(wanted, 'worker')}: {takes}, so about "
            f"{fmt.counted(needed, 'worker')} would be needed, but "
            f"there are {cores:g} cores. If most of the time is spent waiting for a disk or a network, have the "
            "dataset fetch its samples in threads (__getitems__)."
        )
    else:
        advice = (
            f"Use about {fmt.counted(wanted, 'worker')}: {takes}. If making batches is CPU-bound, each worker needs "
            "its own core; in that case, cheaper transforms and a cache also help."
        )
    return advice, workers_line(loader, wanted, facts.gpu is not None) if wanted != workers else ""


@rule(
    "threads and cores",
    "Slowed by its number of threads",
    "matching the number of cores",
    timed_only=True,
    remedy="threads",
    worth=0.1,
)
def threads_and_cores(facts: Facts) -> Iterator[Finding]:
    """Find an unsuitable number of threads by comparison with steps that ran with a different number."""
    threads, cores, tried = facts.environment.get("threads"), facts.cores, facts.meta.get("threads_tried")
    if facts.gpu is not None or not threads or cores is None or not facts.live or not tried:
        return
    other = np.asarray(tried["steps_ms"], dtype=float)
    typical, faster = float(np.median(facts.timed_ms)), float(np.median(other))
    # The steps with the other number must be clearly faster, and not merely within the spread of the timed steps.
    clearly = float(np.percentile(other, 75)) < float(np.percentile(facts.timed_ms, 25))
    if not clearly:
        return
    bound = min(facts.step_ms - faster * facts.step_ms / typical, typical - faster)
    limit = facts.environment.get("cpu_limit")
    room = f"{facts.environment.get('cpus')} cores" + (f", limited to {limit:g} by its cgroup" if limit else "")
    yield Finding(
        f"torch uses {threads} threads, and the process has {room}. With {fmt.counted(tried['threads'], 'thread')} the "
        f"step took {fmt.duration(faster)} instead of {fmt.duration(typical)} (medians of {len(other)} and "
        f"{len(facts.timed_ms)} steps), {fmt.share(facts.share(bound))} less.",
        bound,
        "Use as many threads as there are cores: "
        + ("additional threads compete and wait for each other." if threads > cores else "otherwise some are idle."),
        "high",
        "The same steps were also run with the other number of threads.",
        "Threads of other libraries and of data-loading workers; cores that are hyperthreads of one another.",
        code=lever_line("threads", tried["threads"]),
    )


@rule(
    "garbage collection",
    "Slowed by Python's garbage collector",
    "avoiding its pauses",
    timed_only=True,
    remedy="gc_freeze",
    worth=_WORTH_GC,
)
def garbage_collection(facts: Facts) -> Iterator[Finding]:
    """Find pauses of Python's garbage collector in the timed steps."""
    per_step = facts.pauses_ms
    if not per_step.any():
        return
    bound = float(per_step.mean())
    # A single pause in many steps proves nothing, so some pauses must be left after removing the longest 2 %.
    again = facts.share(_without_longest(per_step)) >= _WORTH_GC
    if not again and len(per_step) >= _FEWEST:
        return
    heavy = np.flatnonzero(per_step > 0.2 * per_step.max())
    period = _period(heavy, len(per_step))
    often = f"every {period} steps" if period else f"in {fmt.counted(len(heavy), 'step')} of {len(per_step)}"
    yield Finding(
        f"Python collected garbage {often}, for {fmt.duration(float(per_step[heavy].mean()))} each time, which is "
        f"{facts.of_step(bound)} on average. The pauses of a single step took up to {fmt.duration(per_step.max())}.",
        bound,
        "Once long-lived objects exist, hide them from the collector and switch it off. If memory grows, collect "
        "between steps, because reference cycles are no longer freed.",
        "high" if len(heavy) >= _OFTEN else "medium" if again else "low",
        "The collector's own callbacks timed each pause in the timed steps"
        + ("." if again else ", but there was only one: more steps would show how often they occur."),
        "Which objects keep the collector busy; memory may grow if it is switched off.",
        rows("step", heavy[:5]),
        code=lever_line("gc_freeze"),
    )


@rule("uneven steps", "Slowed by a few slow steps", "making them as fast as the others", timed_only=True, worth=_WORTH)
def uneven_steps(facts: Facts) -> Iterator[Finding]:
    """Find steps that are far slower than the others for reasons other than data, garbage collection or compilation."""
    if not facts.live or len(facts.timed_ms) < _FEWEST:
        return
    rest = facts.timed_ms - facts.waits_ms - facts.pauses_ms - facts.compiling_ms
    outliers = classify_outliers(rest.tolist())
    slow = np.array(sorted((*outliers.high_mild, *outliers.high_severe)), dtype=np.int64)
    if len(slow) == 0 or len(slow) > 0.4 * len(rest):
        return
    typical = float(np.median(rest))
    bound = float((rest[slow] - typical).sum()) / len(rest)
    period = _period(slow, len(rest))
    if period is None and facts.busy:
        return
    often = f"every {period} steps" if period else f"{len(slow)} of {len(rest)} steps"
    mean_ms = facts.step_ms + bound
    yield Finding(
        f"Some steps are far slower than the others ({often}): {fmt.duration(float(np.median(rest[slow])))} instead of "
        f"{fmt.duration(typical)}. This adds {fmt.duration(bound)} to the mean step, or "
        f"{fmt.share(bound / mean_ms)} of it.",
        bound,
        "Look for work that happens only in these steps: checkpoints, logging, evaluation, batches of another size."
        if period
        else "Profile again on a quiet machine. If the slow steps persist, look for work that is done only "
        "occasionally; watch=True shows the state of the machine during the slow steps.",
        "medium" if period else "low",
        f"The slow steps recur every {period} steps." if period else "Other work on the machine would look the same.",
        "What these steps do, because the timed pass runs without instrumentation.",
        rows("step", slow[:5]),
        of_ms=mean_ms,
    )


def _period(slow: Ints, count: int) -> int | None:
    """Return the distance between slow steps, if it is always the same."""
    apart = np.diff(slow)
    if len(slow) < 3 or apart.min() < 2 or apart.max() != apart.min():
        return None
    return int(apart[0]) if len(slow) >= 0.6 * count / int(apart[0]) else None
