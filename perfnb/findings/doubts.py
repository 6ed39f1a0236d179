"""Find reasons to doubt bounds, such as too few timed steps, or inconsistent timed and traced steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from perfnb import quantities as fmt
from perfnb.compiled.tables import place_in_words
from perfnb.recording.recording import Recording

if TYPE_CHECKING:
    from perfnb.findings.facts import Facts

_LOW = "Low confidence: "
#: The factor by which timed and traced steps may differ. Tracing only adds time, which has already been subtracted.
_APART = 1.5
#: From this factor on, the timed steps are no longer evidence about the step.
_HELD_UP = 2.5
#: Ratio of the longest to the shortest traced step above which they disagree.
_DISAGREE = 1.5
#: Types of batches that exist already, and are therefore not made in the background.
_AT_HAND = ("list", "tuple", "range", "dict", "Tensor", "ndarray")
#: Batches were prefetched if timed steps wait this many times as long as expected from the traced steps, and if waits
#: are at least this share of a timed step.
_LESS, _WAITS = 2.0, 0.05


def held_up(facts: Facts) -> bool:
    """Return whether other work held up the timed steps.

    If so, they took far longer than the traced steps, which do at least as much work. This does not apply if batches
    are made in the background, because that may also slow down the timed steps.
    """
    compiled = bool(facts.compiling_ms.any())  # compilation would explain the difference
    return facts.live and facts.gpu is None and facts.scale > _HELD_UP and not _works_ahead(facts) and not compiled


def too_few_steps(facts: Facts) -> str:
    """Return a sentence that explains why the step's figures are uncertain.

    The result is empty if there are enough timed steps for an interval.
    """
    timing = facts.figures.timing
    if not facts.live or timing.ci_ms is not None:
        return ""
    steps = "1 timed step is" if timing.steps == 1 else f"{timing.steps} timed steps are"
    return f"{_LOW}{steps} too few for a 95 % interval."


def doubt_of(facts: Facts) -> str:
    """Return sentences that explain why bounds may be far off, with a recommendation.

    The result is empty if there is no reason for doubt.
    """
    if not facts.live:
        return ""
    if compiled := facts.meta.get("traced_compilations"):
        function, line = compiled[0][1:3]
        what = f"{function} ({place_in_words(line)})" if function else "code"
        return (
            f"{_LOW}torch.compile compiled {what} in {len({step for step, *_ in compiled})} of {facts.steps} traced "
            "steps, so these show the compiler at work. Run more steps before profiling (warmup=10), and if shapes "
            "change, mark them with torch._dynamo.mark_dynamic or compile with dynamic=True."
        )
    if facts.gpu is not None:
        return ""
    reasons = [reason for reason in (facts.uneven, *_disturbances(facts)) if reason]
    if not reasons:
        return ""
    if few := too_few_steps(facts):
        reasons.append(few.removeprefix(_LOW).rstrip("."))
    doubt = f"{_LOW}{'; '.join(reasons)}. Bounds can be off by half or more."
    if (facts.busy or facts.scale > _APART) and (facts.environment.get("threads") or 1) > 1:
        doubt += " If one thread has no core, all others wait for it: try torch.set_num_threads(1)."
    return doubt


def _disturbances(facts: Facts) -> list[str]:
    """Return evidence that timed and traced steps differed, or that other work ran on the machine."""
    reasons = []
    # The test excludes waits and the cost of tracing, but the sentence contains the ratio that the report shows.
    ratio = facts.figures.slowdown or 0.0
    if facts.scale > _APART and not _works_ahead(facts):
        reasons.append(
            f"timed steps took {fmt.significant(1 / ratio, trim=True)} times as long as traced ones, which do more work"
            if 0 < ratio < 1
            else "timed steps took longer than traced ones minus tracing overhead"
        )
    elif 0 < facts.scale < 1 / _APART and not facts.meta.get("stacks"):
        reasons.append(
            f"traced steps took {fmt.significant(ratio, trim=True)} times as long as timed ones, more than tracing adds"
            if ratio > 1
            else "traced steps took longer than timed ones by more than tracing adds"
        )
    traced = traced_ms(facts.recording)
    if disagree(traced):
        reasons.append(f"the traced steps disagree ({fmt.durations(traced)})")
    if facts.busy:
        reasons.append("the CPU was busy with other work")
    return reasons


def _works_ahead(facts: Facts) -> bool:
    """Return whether batches are made in the background, by workers or a thread.

    Workers and threads compete with the timed steps for cores, while the traced steps find prefetched batches. It is
    not known how other kinds of iterables work. They count as working ahead if timed steps waited much longer than the
    traced steps explain.
    """
    kind, workers = facts.loader.get("class"), facts.loader.get("num_workers")
    if isinstance(workers, int) and (workers > 0 or kind == "DataLoader"):
        return workers > 0
    waited = float(facts.waits_ms.mean())
    return kind not in _AT_HAND and waited > _LESS * facts.typical_ms("data") and facts.share(waited) >= _WAITS


def disagree(traced: pd.Series) -> bool:
    """Return whether the traced steps differ so much that their mean is not meaningful."""
    return bool(traced.max() > _DISAGREE * traced.min())


def traced_ms(recording: Recording) -> pd.Series:
    """Return the wall time of each traced step."""
    steps: pd.DataFrame = recording.steps
    return steps.loc[steps["pass"] == "traced", "wall_ms"]
