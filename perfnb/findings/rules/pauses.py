"""Slow timed steps: pauses of Python's garbage collector, and steps that are slow for unknown reasons."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from perfnb import quantities as fmt
from perfnb.findings.facts import Facts, without_longest
from perfnb.findings.finding import Finding, rows, rule
from perfnb.stats.step_times import classify_outliers

_WORTH_GC, _WORTH = 0.02, 0.05
#: Number of pauses from which their mean is reliable.
_OFTEN = 4
#: Fewest timed steps among which a slow one stands out.
_FEWEST = 10


@rule("garbage collection", "Slowed by Python's garbage collector", "avoiding its pauses", timed_only=True)
def garbage_collection(facts: Facts) -> Iterator[Finding]:
    """Pauses of Python's garbage collector in the timed steps."""
    pauses = facts.meta.get("noise", {}).get("gc_pauses", [])
    if not facts.live or not pauses:
        return
    per_step = facts.pauses_ms
    bound = float(per_step.mean())
    # One pause in many steps proves nothing: some must be left without the longest 2 %.
    again = facts.share(without_longest(per_step)) >= _WORTH_GC
    if facts.share(bound) < _WORTH_GC or not (again or len(per_step) < _FEWEST):
        return
    heavy = np.flatnonzero(per_step > 0.2 * per_step.max())
    period = _period(heavy, len(per_step))
    often = f"every {period} steps" if period else f"in {fmt.counted(len(heavy), 'step')} of {len(per_step)}"
    yield Finding(
        "garbage collection",
        f"Python collected garbage {often}, for {fmt.duration(float(per_step[heavy].mean()))} each time: on average "
        f"{facts.of_step(bound)}. The longest pause took {fmt.duration(max(ms for _, ms in pauses))}.",
        bound,
        "Hide long-lived objects from the collector once they exist, or collect between steps.",
        "gc.collect(); gc.freeze()  # before the loop",
        "high" if len(heavy) >= _OFTEN else "medium" if again else "low",
        "The collector's own callbacks timed each pause in the timed steps"
        + ("." if again else ", but there was only one: more steps would show how often they occur."),
        "Which objects keep the collector busy; memory may grow if it is switched off.",
        rows("step", heavy[:5]),
    )


@rule("uneven steps", "Slowed by a few slow steps", "making them as fast as the others", timed_only=True)
def uneven_steps(facts: Facts) -> Iterator[Finding]:
    """Steps far slower than the others, if neither the wait for data nor the garbage collector explains it."""
    if not facts.live or len(facts.timed_ms) < _FEWEST:
        return
    rest = facts.timed_ms - facts.waits_ms - facts.pauses_ms
    outliers = classify_outliers(rest.tolist())
    slow = np.array(sorted((*outliers.high_mild, *outliers.high_severe)), dtype=np.int64)
    if len(slow) == 0 or len(slow) > 0.4 * len(rest):
        return
    typical = float(np.median(rest))
    bound = float((rest[slow] - typical).sum()) / len(rest)
    period = _period(slow, len(rest))
    if facts.share(bound) < _WORTH or (period is None and facts.busy):
        return
    noise, hints = facts.meta.get("noise", {}), []
    if noise.get("throttled_ms"):
        hints.append(f"the cgroup's CPU limit stopped the process for {fmt.duration(noise['throttled_ms'])}")
    if noise.get("gpu_throttle_reasons"):
        hints.append("the GPU was throttled")
    said = f" During the timed steps {' and '.join(hints)}." if hints else ""
    often = f"every {period} steps" if period else f"{len(slow)} of {len(rest)} steps"
    mean_ms = facts.step_ms + bound
    yield Finding(
        "uneven steps",
        f"Some steps are far slower than the others ({often}): {fmt.duration(float(np.median(rest[slow])))} instead of "
        f"{fmt.duration(typical)}. That adds {fmt.duration(bound)} to the mean step, {fmt.share(bound / mean_ms)} of "
        f"it.{said}",
        bound,
        "Look for what happens only in these steps: checkpoints, logging, evaluation, batches of another size."
        if period
        else "Profile again on a quiet machine. If it persists, look for work that is done only now and then; "
        "watch=True shows what the machine does during the slow steps.",
        "",
        "medium" if period else "low",
        f"The slow steps recur every {period} steps." if period else "Other work on the machine looks the same.",
        "What these steps did: the timed pass runs without instrumentation.",
        rows("step", slow[:5]),
        of_ms=mean_ms,
    )


def _period(slow: npt.NDArray[np.int64], count: int) -> int | None:
    """The distance between slow steps, if it is always the same."""
    apart = np.diff(slow)
    if len(slow) < 3 or apart.min() < 2 or apart.max() != apart.min():
        return None
    return int(apart[0]) if len(slow) >= 0.6 * count / int(apart[0]) else None
