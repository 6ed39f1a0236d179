"""Load imbalance in time: steps that take longer than the others, and what is known of their cause."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfnb.findings.facts import Facts, without_longest
from perfnb.findings.finding import Confidence, Finding, Row, many, part, time
from perfnb.stats.outliers import classify_outliers

_WORTH_GC, _WORTH = 0.02, 0.05
#: Pauses from which on their mean is sure.
_OFTEN = 4
#: Fewest timed steps among which a slow one stands out.
_FEWEST = 10


def garbage_collection(facts: Facts) -> list[Finding]:
    """Pauses of Python's garbage collector within the timed steps."""
    pauses = facts.meta.get("noise", {}).get("gc_pauses", [])
    if not facts.live or not pauses:
        return []
    per_step = facts.pauses_ms
    bound = float(per_step.mean())
    # One pause in many steps is no rule: without the longest of every fifty there must be some left.
    again = facts.share(without_longest(per_step)) >= _WORTH_GC
    if facts.share(bound) < _WORTH_GC or not (again or len(per_step) < _FEWEST):
        return []
    heavy = np.flatnonzero(per_step > 0.2 * per_step.max())
    period = _period(heavy, len(per_step))
    often = f"every {period} steps" if period else f"in {many(len(heavy), 'step')} of {len(per_step)}"
    return [
        Finding(
            "garbage collection",
            f"Python collected garbage {often}, for {time(float(per_step[heavy].mean()))} each time: "
            f"{time(bound)} a step in the mean, {part(facts.share(bound))} of it; the longest pause was "
            f"{time(max(ms for _, ms in pauses))}.",
            bound,
            "Take what lives for long out of the collector's sight once it is made, or collect where no step runs.",
            "gc.collect(); gc.freeze()  # before the loop",
            "high" if len(heavy) >= _OFTEN else "medium" if again else "low",
            "Each pause was timed from the collector's own callbacks while steps were timed"
            + ("." if again else ", but there was only one: more steps would tell how often they come."),
            "Which objects make the collector work; memory may grow where it is switched off.",
            tuple(Row("step", str(step)) for step in heavy[:5]),
        )
    ]


def uneven_steps(facts: Facts) -> list[Finding]:
    """Steps far slower than the others, where neither the wait for data nor the garbage collector explains it."""
    if not facts.live or len(facts.timed_ms) < _FEWEST:
        return []
    rest = facts.timed_ms - facts.waits_ms - facts.pauses_ms
    outliers = classify_outliers(rest.tolist())
    slow = np.array(sorted((*outliers.high_mild, *outliers.high_severe)), dtype=np.int64)
    if len(slow) == 0 or len(slow) > 0.4 * len(rest):
        return []
    typical = float(np.median(rest))
    bound = float((rest[slow] - typical).sum()) / len(rest)
    if facts.share(bound) < _WORTH:
        return []
    period = _period(slow, len(rest))
    confidence: Confidence = "medium" if period else "low"
    noise = facts.meta.get("noise", {})
    if period is None and facts.busy:
        return []
    hints = []
    if noise.get("throttled_ms"):
        hints.append(f"the limit of the cgroup stopped the process for {time(noise['throttled_ms'])}")
    if noise.get("gpu_throttle_reasons"):
        hints.append("the GPU was throttled")
    said = f" Meanwhile {' and '.join(hints)}." if hints else ""
    often = f"every {period} steps" if period else f"{len(slow)} of {len(rest)} steps"
    return [
        Finding(
            "uneven steps",
            f"Some steps are far slower than the others ({often}): {time(float(np.median(rest[slow])))} instead of "
            f"{time(typical)}, which adds {time(bound)} to a step in the mean, {part(bound / (facts.step_ms + bound))} "
            f"of it.{said}",
            bound,
            "Look at what happens only in these steps: checkpoints, logging, evaluation, batches of another size."
            if period
            else "Profile again on a quiet machine; if it stays, look for work that happens only now and then. "
            "watch=True shows what the machine does in the slow steps.",
            "",
            confidence,
            f"The slow steps come regularly, every {period} steps."
            if period
            else "Other work on the machine looks alike.",
            "What these steps did: the timed pass runs without any instrument.",
            tuple(Row("step", str(step)) for step in slow[:5]),
            of_ms=facts.step_ms + bound,
        )
    ]


def _period(slow: npt.NDArray[np.int64], count: int) -> int | None:
    """The distance at which steps recur, if it is one and the same."""
    apart = np.diff(slow)
    if len(slow) < 3 or apart.min() < 2 or apart.max() != apart.min():
        return None
    return int(apart[0]) if len(slow) >= 0.6 * count / int(apart[0]) else None
