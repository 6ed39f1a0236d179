"""Find what slowed a run down, with one rule per cause, and reach a verdict from the figures of the run's steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from perfnb import quantities as fmt
from perfnb.findings.finding import (
    Conclusion,
    Finding,
    Findings,
    Rule,
    deciding,
    finding_table,
    found_by,
    in_order,
    rows,
    rule,
)

if TYPE_CHECKING:
    from perfnb.loop.run_summary import RunFigures
    from perfnb.recording.nesting import Ints
    from perfnb.stats.intervals import Centre

#: The share of the run above which waits, time between steps and changes matter, and the share above which stalls
#: matter.
_WORTH, _WORTH_STALLS = 0.05, 0.02
#: The share of the steps' time above which waiting for data bounds the run.
_BOUND = 0.2
#: An interval that extends to this many times its estimate is too wide for any conclusion.
_NOTHING_SAID = 100
#: Growth over the run that matters, in bytes and relative to the level.
_LEAST_GROWTH, _GROWTH = 16 * 2**20, 0.01
#: If memory would be full within this many times the run's length, this is the most urgent finding.
_URGENT = 10
#: Findings that may also be caused by other programs on the machine.
_BY_NOISE = frozenset({"stalls", "drift", "change of pace"})
STEADY, TOO_FEW = "Steady", "Too few steps for a verdict"
_WHERE_TO_LOOK = (
    "Profile a fast and a slow part of the run (at=[early, late]; --at EARLY,LATE of perfnb run) and compare them "
    "with Profile.compare. If both do the same work, the machine changed: perfnb.watch() records clocks, "
    "throttling and load."
)
_OTHERS = "Other programs on the machine would look the same."


def _input_words(run: RunFigures) -> tuple[str, str]:
    is_bound = run.wait.estimate >= _BOUND and run.wait.low > 0
    return "Input-bound" if is_bound else "Slowed by waits for data", "removing the wait for data"


@rule("input pipeline", "Input-bound", words=_input_words)
def input_pipeline(run: RunFigures) -> Iterator[Finding]:
    """Find waits for data over all steps."""
    wait = run.wait
    if not wait.estimate >= _WORTH:
        return
    is_sure = wait.low > 0  # otherwise, perhaps only a single step waited
    bound = wait.estimate * run.mean_ms
    whose = "their batch" if run.batches == 1 else f"their {run.batches:,} batches"
    bursts = int((run.slow["data_ms"] > run.slow["wall_ms"] / 2).sum())
    in_bursts = " The waits come in bursts: the slowest steps are mostly waiting." if 2 * bursts > len(run.slow) else ""
    caveat = " The GPU may have been working during the wait." if run.has_device else ""
    yield Finding(
        f"Steps wait {fmt.duration(bound)} for {whose} on average, or {_share(wait)} of their time.{in_bursts}{caveat}",
        bound,
        "Prepare batches in more worker processes while the step computes (num_workers of your DataLoader, or "
        "dataloader_num_workers in the TrainingArguments of a Hugging Face Trainer), or make them cheaper: cache and "
        "vectorise. Then compare the runs with perfnb compare or run.compare(other).",
        "low" if not is_sure else "medium" if run.has_device else "high",
        "The wait for each batch was timed"
        + ("." if is_sure else ", but so few steps waited that the share is uncertain."),
        "Which part of the pipeline is slow: reading, decoding or transforms.",
        rows("phase", ["data"]),
    )


def _share(share: Centre) -> str:
    if not share.bounded:
        return fmt.share(share.estimate)
    value, low, high = (f"{100 * part:.1f}" for part in (share.estimate, share.low, min(1.0, share.high)))
    return f"{value} % [{low}, {high}]"


@rule("stalls", "Held up by stalls", "making the slow steps as fast as the others")
def stalls(run: RunFigures) -> Iterator[Finding]:
    """Find steps that are far slower than their neighbours, excluding waits for data."""
    slow, count = run.slow, run.counted
    if slow.empty or (bound := run.lost_ms / count) < _WORTH_STALLS * run.mean_ms:
        return
    period = _period(slow["step"].to_numpy(np.int64))
    least = "at least " if count > len(run.judged) else ""
    often = f"every {period:,} steps" if period else f"{least}{len(slow):,} of {count:,} steps"
    worst = slow.iloc[0]
    yield Finding(
        f"Some steps are far slower than their neighbours ({often}; the slowest, step {int(worst['step']):,}, took "
        f"{fmt.duration(worst['wall_ms'])}). They lost {fmt.duration(run.lost_ms)} in total, "
        f"or {fmt.share(bound / run.mean_ms)} of the steps' time, not counting waits for data.",
        bound,
        "Look for work that happens only in these steps: checkpoints, logging, evaluation, batches of another size."
        if period
        else "Look for work that is done only occasionally, and for other programs on the machine; perfnb.watch() "
        "shows the state of the machine during the run.",
        "medium" if period or len(slow) >= 3 else "low",
        f"The slow steps recur every {period:,} steps." if period else _OTHERS,
        "What these steps do, because they ran without instrumentation.",
        rows("step", slow["step"].astype(int).head(5)),
    )


def _period(steps: Ints) -> int | None:
    """Return the distance between slow steps, if it is always the same."""
    apart = np.diff(np.sort(steps))
    return int(apart[0]) if len(steps) >= 3 and apart.min() == apart.max() >= 2 else None


@rule("between steps", "Much time passes between steps", "doing less between steps")
def between_steps(run: RunFigures) -> Iterator[Finding]:
    """Find time that is spent outside the steps."""
    bound, whole = run.between_ms, run.mean_ms + run.between_ms
    if bound < _WORTH * whole:
        return
    of = "the time outside profiled windows" if run.profiled else "the time"
    yield Finding(
        f"{fmt.duration(bound * run.counted)} passed between steps, or {fmt.share(bound / whole)} of {of}: "
        "validation, logging, checkpoints, and everything else that is done outside the steps.",
        bound,
        "Do this work less often, or at the same time as the steps (asynchronous checkpoints, logging without "
        ".item()).",
        "high",
        "The time from the end of each step to the start of the next one was measured.",
        "How this time was spent.",
        of_ms=whole,
    )


@rule("drift", "Slower and slower", "keeping the pace of the start")
def drift(run: RunFigures) -> Iterator[Finding]:
    """Find step times that grow gradually."""
    changes = run.changes
    if changes is None or changes.kind != "drift":
        return
    first, last = changes.levels[0], changes.levels[-1]
    if changes.ratio.low <= 1 or changes.ratio.estimate < 1 + _WORTH or run.mean_ms <= first:
        return
    rise = fmt.change(changes.ratio.estimate, _ends(changes.ratio))
    yield Finding(
        f"Step time rose over the run from {fmt.duration(first)} to {fmt.duration(last)}, {rise}.",
        min((last - first) / 2, run.mean_ms - first),
        _WHERE_TO_LOOK,
        "medium",
        f"The medians of consecutive blocks of steps grow. {_OTHERS}",
        "Whether all steps did the same work.",
    )


@rule("change of pace", "Its pace changed", "keeping the fastest pace")
def change_of_pace(run: RunFigures) -> Iterator[Finding]:
    """Find step times that jump to another level and stay there."""
    changes = run.changes
    if changes is None or changes.kind in ("steady", "drift"):
        return
    steps, level = run.judged["step"].to_numpy(np.int64), np.asarray(changes.levels)
    weights = np.diff(np.searchsorted(steps, [steps[0], *changes.places, steps[-1] + 1]))
    fastest = float(level.min())
    bound = min(float(((level - fastest) * weights).sum() / weights.sum()), run.mean_ms - fastest)
    if level.max() < (1 + _WORTH) * fastest or bound < _WORTH * run.mean_ms / 2:
        return
    jumps = [
        f"from {fmt.duration(before)} to {fmt.duration(after)} at step {place:,}"
        for before, after, place in zip(changes.levels, changes.levels[1:], changes.places, strict=False)
    ]
    between = fmt.change(changes.ratio.estimate, _ends(changes.ratio))
    end = f" From first to last level: {between}." if len(jumps) == 1 else ""
    yield Finding(
        f"Step time changed {', then '.join(jumps)}.{end}",
        bound,
        _WHERE_TO_LOOK,
        "medium",
        f"The medians of consecutive blocks of steps jump to another level and stay there. {_OTHERS}",
        "Whether all steps did the same work.",
    )


def _ends(ratio: Centre) -> tuple[float, float] | None:
    return (ratio.low, ratio.high) if ratio.bounded and ratio.high < _NOTHING_SAID * ratio.estimate else None


@rule("memory growth", "Memory grows")
def memory_growth(run: RunFigures) -> Iterator[Finding]:
    """Find memory growth on the device or, if there is none, in the process. It is urgent if memory is soon full."""
    for kind, words in (("allocated", "Memory allocated on the device"), ("resident", "The process's memory")):
        slope, level = run.memory_of[kind].growth, run.memory_of[kind].last_bytes
        if slope is None or level is None or not slope.grows:
            continue
        grown = slope.bytes_per_step * run.count
        if grown < max(_LEAST_GROWTH, _GROWTH * level):
            continue
        room = run.memory_bytes if kind == "resident" else None
        left = (room - level) / slope.bytes_per_step if room else None
        full = (
            f" At this rate, {fmt.size(room)} are full after about {round(left, -2):,.0f} more steps." if left else ""
        )
        ends = fmt.growth(slope.bytes_per_step, (slope.ci_low, slope.ci_high))
        yield Finding(
            f"{words} grows by {ends}, or {fmt.size(grown)} over the run.{full}",
            None,
            "Look for what each step leaves behind. Often it is a loss that is stored with its graph (store "
            "loss.item() instead), or a list that keeps growing. If a step is a function of your own, "
            "perfnb.find_leaks(step, loader) names the cause.",
            "medium",
            "The whole interval of the growth per step is above 0.",
            "What keeps the memory in use, and whether a cache is still filling up.",
            bound_bytes=round(slope.bytes_per_step),
            urgency=1 if left is not None and left < _URGENT * run.count else 0,
        )
        return


RULES: tuple[Rule, ...] = (input_pipeline, stalls, between_steps, drift, change_of_pace, memory_growth)
_BY_NAME = {rule.name: rule for rule in RULES}


def run_findings(run: RunFigures) -> Findings:
    """Return the findings about a run.

    On a busy machine, findings that other programs may have caused come last, with low confidence.
    """
    if not run.enough:
        return Findings(finding_table([], None), Conclusion(TOO_FEW, "", ""), None)
    found = found_by(RULES, run, run.mean_ms)
    if run.load is not None:
        busy = "The machine was busy with other work."
        found = in_order(
            replace(finding.at_most("low", busy), urgency=-1) if finding.bottleneck in _BY_NOISE else finding
            for finding in found
        )
    table, place = finding_table(found, run.mean_ms), deciding(found, _BY_NAME, run.mean_ms, least=0.0)
    if place is None:
        return Findings(table, Conclusion(STEADY, "", ""), run.mean_ms)
    first = found[place]
    headline, saving = _BY_NAME[first.bottleneck].words_for(run)
    cost = f"by {fmt.size(first.bound_bytes)} per step"
    if first.bound_ms:
        share = fmt.share(first.share(run.mean_ms))
        cost = f"{saving} could save up to {fmt.duration(first.bound_ms)} per step, {share}"
    return Findings(table, Conclusion(f"{headline}: {cost}", first.evidence, first.advice, place), run.mean_ms)
