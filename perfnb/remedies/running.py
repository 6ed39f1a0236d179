"""Levers tried one after the other within a budget: prepared, checked, timed together, and confirmed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from perfnb.bench.design import SEED
from perfnb.bench.quality import RESOURCES, Loss
from perfnb.bench.values import DIFFERENT, UNCHECKED
from perfnb.remedies.lever import Lever, Switch, lines_of
from perfnb.remedies.subject import Subject
from perfnb.remedies.trial import (
    Prepared,
    all_on,
    check,
    check_together,
    losses,
    peak_bytes,
    prepared,
    time_blocks,
    time_switches,
)
from perfnb.remedies.values import Yardstick, measure_yardstick
from perfnb.remedies.verdicts import (
    CONFIRM_SHARE,
    HOPELESS,
    MEMORY_MATTERS,
    Confirmed,
    Plan,
    Trial,
    affordable,
    as_its_interval,
    budget_for,
    fewest_rounds,
    keepable,
    memory_verdict,
    plan_for,
)
from perfnb.stats.comparisons import compare_with_first
from perfnb.stats.intervals import Floats

#: Steps more before levers are tried if there is time for everything.
_MORE = 10
#: How much longer than planned the levers before one may have taken, for it still to be tried.
_LATE = 1.1
_NO_TIME = "no time within the budget: raise budget_s{}, or name fewer levers"
_WOULD_DO = " (about {:,} s would do for all)"
#: A budget that was too short is at least so many times shorter than what would do.
_MORE_THAN_TOO_LITTLE = 1.2
_HOPELESS = f"too slow to keep timing: more than {HOPELESS:.0f} times the step's time in its first rounds"
_UNCONFIRMED = "no time was left to confirm it: raise budget_s"


@dataclass
class Run:
    """What trials share."""

    subject: Subject
    step_s: float
    until: float  # when the budget ends, as `time.perf_counter` has it
    progress: Callable[..., None]
    prove: Callable[[str], None]  # that everything is as before
    goal: str = "time"
    listed: Sequence[str] = ()
    quality: Callable[[], Any] | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    own_losses: dict[str, float] = field(default_factory=dict)
    own_peak: int | None = None
    yardstick: Yardstick | None = None
    plan: Plan = field(default_factory=Plan)
    rounds: int = 0
    budget_s: float = 0.0
    #: Seconds that preparing and checking a lever takes beyond its steps, and those of the first compilation, which
    #: alone is not counted.
    each_s: float = 0.0
    compiling_s: float = 0.0
    #: Milliseconds of the step as it is, and with its batch, in the rounds that levers are compared in.
    own_ms: float | None = None
    fed_ms: float | None = None
    #: About how many seconds would do for all levers, if the time was too short to time some that were ready.
    need_s: int | None = None

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return max(0.0, self.until - time.perf_counter())

    def compiled(self, seconds: float) -> None:
        """Note how long a compilation took; the first is not taken from the levers' budget."""
        if not self.compiling_s:
            self.compiling_s = seconds
            self.until += seconds

    def telling(self, words: str) -> Callable[..., None]:
        """A progress callback that says what is being tried and what is left of the budget."""
        return lambda _pass="", done=0, planned=None: self.progress(words, done, planned, f"{self.left_s:.0f} s left")


@dataclass(frozen=True)
class Outcome:
    """What trying levers found."""

    trials: list[Trial]
    confirmed: Confirmed | None
    rounds: int
    own_peak: int | None  # bytes, of the step as it is
    yardstick: Yardstick | None


def try_each(run: Run, levers: Sequence[Lever], bounds: Mapping[str, float], confirm: bool) -> Outcome:
    """Try levers in order, as many as the budget allows; the best are confirmed.

    Parameters
    ----------
    bounds : mapping of str to float
        What each finding said could be saved at most, in milliseconds.
    """
    __tracebackhide__ = True
    trials: dict[str, Trial] = {}
    for lever in levers:
        bound = max((bounds[each] for each in lever.answers if each in bounds), default=None)
        trials[lever.name] = Trial(lever.name, "not tried", why_not=lever.refuses(run.subject), bound_ms=bound)
    possible = [lever for lever in levers if not trials[lever.name].why_not]
    turns = [run.plan.turn(lever.in_blocks, lever.settles) for lever in possible]
    spare_s = run.left_s - run.plan.own * run.step_s
    within, kept_s = affordable(run.plan, turns, run.step_s, spare_s), 0.0
    if within:
        _measure_own(run)
        kept_s = max(CONFIRM_SHARE * run.left_s, run.plan.confirming() * run.step_s) if confirm else 0.0
        within = affordable(run.plan, turns, run.step_s, run.left_s - kept_s, run.each_s)
        if not within:  # one that cannot be confirmed says more than none
            within, kept_s = affordable(run.plan, turns, run.step_s, run.left_s)[:1], 0.0
        spare_s = run.left_s
    spent_s, said = max(0.0, run.budget_s - spare_s), ""
    if len(within) < len(possible):
        need = _budget_for_all(run, possible, run.step_s, spent_s, confirm)
        said = _WOULD_DO.format(need) if need > run.budget_s else ""
    for place, lever in enumerate(possible):
        if place not in within:
            trials[lever.name].why_not = _NO_TIME.format(said)
    with ExitStack() as stack:
        ready: list[Prepared] = []
        for place in within:
            lever, turn = possible[place], turns[place]
            timed = [run.plan.turn(one.lever.in_blocks, one.lever.settles) for one in ready]
            needed_s = run.each_s + run.step_s * (run.plan.each + run.plan.rounds_of([*timed, turn]))
            switching = [one.switching_s for one in ready]
            needed_s += (sum(switching) + max(switching, default=0.0)) * (run.plan.warm + fewest_rounds(len(ready) + 1))
            late = _LATE * (run.left_s - kept_s) < needed_s + run.compiling_s * lever.settles
            if late and place != within[0]:  # what the first one takes is not known yet
                trials[lever.name].why_not = _NO_TIME.format(said)
            elif (one := _ready(run, stack, lever, trials[lever.name])) is not None:
                ready.append(one)
        if run.plan.timed and (step_s := _time(run, ready, trials, kept_s)) is not None:
            need = _budget_for_all(run, possible, step_s, spent_s, confirm)
            run.need_s = max(need, math.ceil(_MORE_THAN_TOO_LITTLE * run.budget_s))
            for one in ready:
                trial = trials[one.lever.name]
                if trial.verdict == "not timed":
                    trial.why_not = trial.why_not or _NO_TIME.format(_WOULD_DO.format(run.need_s))
        for one in ready:
            trial = trials[one.lever.name]
            trial.notes = [*one.lever.says(run.subject), *one.notes, *trial.notes]
            trial.why_not = trial.why_not or _over_a_limit(trial, run.limits)
        good = _good(run, ready, trials)
        confirmed = _confirm(run, good, trials) if confirm else None
        if not confirm:
            families: set[str] = set()
            for one in good:
                trials[one.lever.name].unconfirmed = one.lever.family not in families
                families |= {one.lever.family} - {""}
    return Outcome(list(trials.values()), confirmed, run.rounds, run.own_peak, run.yardstick)


def _budget_for_all(run: Run, levers: Sequence[Lever], step_s: float, spent_s: float, confirm: bool) -> int:
    """About how many seconds would do for all these levers, for steps that take so long."""
    turns = [run.plan.turn(lever.in_blocks, lever.settles) for lever in levers]
    need = budget_for(run.plan, turns, step_s, spent_s, run.each_s, confirm)
    if (fuller := plan_for(run.goal, step_s, need - spent_s)) != run.plan:  # which takes more steps
        turns = [fuller.turn(lever.in_blocks, lever.settles) for lever in levers]
        need = budget_for(fuller, turns, step_s, spent_s + _MORE * step_s, run.each_s, confirm)
    return need


def _measure_own(run: Run) -> None:
    """The unmodified step: its memory, how far it is from the truth, quality, and what these take beyond steps."""
    __tracebackhide__ = True
    run.telling("the step as it is")()
    begin = time.perf_counter()
    run.own_peak = peak_bytes(run.subject) if run.plan.weighed else None
    run.yardstick = measure_yardstick(run.subject, run.own_peak, run.plan.brief, run.plan.checked)
    run.each_s = max(0.0, time.perf_counter() - begin - run.plan.own * run.step_s) / 2
    if run.quality is None:
        return
    begin = time.perf_counter()
    own = losses(run.subject, run.quality, run.limits)
    if unknown := [name for name in run.limits if name not in RESOURCES and name not in {one.name for one in own}]:
        raise ValueError(f"limits names {unknown[0]!r}, which quality() does not return.")
    run.own_losses = {one.name: one.candidate for one in own}
    run.each_s += time.perf_counter() - begin


def _ready(run: Run, stack: ExitStack, lever: Lever, trial: Trial) -> Prepared | None:
    """Prepare a lever and check its results; ``None`` if the step fails with it."""
    __tracebackhide__ = True
    assert run.yardstick is not None
    run.telling(f"prepare {lever.name}")()
    begin = time.perf_counter()
    stack.push(lambda kind, *_: run.prove(f"undoing {lever.name}") if kind is None else None)
    try:
        one = stack.enter_context(prepared(lever, run.subject, run.step_s, run.plan.set_up))
        run.compiled(one.setup_s if one.at_first.graphs else 0.0)
        trial.values = check(one, run.subject, run.yardstick, again=run.left_s > run.compiling_s)
        if run.plan.weighed and not lever.in_blocks and lever.timed is None:
            trial.peak_bytes = peak_bytes(run.subject, one.switch)
    except Exception as error:  # with this lever the step fails; without it, it runs
        run.compiled(time.perf_counter() - begin if lever.settles else 0.0)
        trial.why_not = _failed("the step fails with it", error)
        run.prove(f"trying {lever.name}")
        return None
    took_s = time.perf_counter() - begin - run.step_s * run.plan.each
    run.each_s = max(run.each_s, took_s - one.setup_s * lever.settles)
    trial.verdict = "not timed"
    trial.memory = memory_verdict(trial.peak_bytes, run.own_peak)
    trial.setup_s, trial.code = one.setup_s, lines_of(lever, run.subject)
    passes, said = _judged(run, one.switch)
    trial.why_not = keepable(trial.values, lever.name in run.listed, passes)
    if said:
        trial.notes.append(said)
    run.prove(f"trying {lever.name}")
    return one


def _judged(run: Run, switch: Switch) -> tuple[bool | None, str]:
    """Whether quality is good enough with a lever on, and what it is; ``None`` without a test of it."""
    __tracebackhide__ = True
    if run.quality is None:
        return None, ""
    found = losses(run.subject, run.quality, run.limits, switch)
    judged = [Loss(one.name, one.candidate, run.own_losses.get(one.name), one.limit) for one in found]
    said = ", ".join(f"{one.name} {one.candidate:.4g}" for one in judged)
    over = [f"{one.name} above {one.largest:.4g}" for one in judged if one.exceeded and one.largest is not None]
    return not any(one.exceeded for one in judged), "; ".join([f"quality: {said}", *over])


def _time(run: Run, ready: Sequence[Prepared], trials: Mapping[str, Trial], kept_s: float) -> float | None:
    """Time levers side by side, those that work ahead each by itself, and note what the times say.

    Some seconds of the budget are kept for confirming. If they leave too few rounds for some levers, the result is how
    many seconds a step of these took, with switching.
    """
    __tracebackhide__ = True
    together = [one for one in ready if not one.lever.timed_alone]
    settling = [one for one in ready if one.lever.settles]
    rest = [[one] for one in ready if one not in together and one not in settling]
    groups = [group for group in (together, settling, *rest) if group]
    times: list[Floats] = []
    firsts: list[Lever] = []
    timed: list[Prepared] = []
    too_short_s: list[float] = []
    for place, group in enumerate(groups):
        words = f"try {group[0].lever.name}" if len(group) == 1 else f"try {len(group)} levers"
        budget_s = max(0.0, run.left_s - kept_s) / (len(groups) - place)
        begin = time.perf_counter()
        left, rows = _rows_of(run, group, trials, budget_s, words)
        took_s = time.perf_counter() - begin
        run.prove(f"timing {', '.join(one.lever.name for one in group)}")
        if left and rows.shape[1] < fewest_rounds(1):
            turns = [run.plan.turn(one.lever.in_blocks, one.lever.settles) for one in group]
            each_round = len(group) + 1 if max(turns) == 1 else 2 * sum(turns)
            too_short_s.append(took_s / (each_round * (run.plan.warm + rows.shape[1])))
        elif left:
            times.append(rows)
            firsts.append(left[0].lever)
            timed += left
            run.rounds = max(run.rounds, rows.shape[1])
    for each, first in zip(times, firsts, strict=True):
        if first.in_blocks:
            run.fed_ms = float(np.median(each[0]))
        elif first.timed is None:
            run.own_ms = run.own_ms or float(np.median(each[0]))
    pairs = [(float(np.median(each[0])), row) for each in times for row in each[1:]]
    for one, (own_ms, row), found in zip(timed, pairs, compare_with_first(*times), strict=True):
        trial = trials[one.lever.name]
        trial.verdict = as_its_interval(found.verdict, found.ratio_ci)
        trial.ratio, trial.ratio_ci = found.ratio, found.ratio_ci
        trial.saves_ms, trial.times_ms = own_ms * (1 - found.ratio), tuple(row.tolist())
        trial.smallest = found.smallest_detectable
    return max(too_short_s, default=None)


def _rows_of(
    run: Run, group: Sequence[Prepared], trials: Mapping[str, Trial], budget_s: float, words: str
) -> tuple[list[Prepared], Floats]:
    """Those levers of a group that can be timed to the end, and the rows of the step as it is and of each of them.

    One with which the step fails is left out, and the others are timed again.
    """
    __tracebackhide__ = True
    left, until = list(group), time.perf_counter() + budget_s
    while left:
        for one in left:
            one.on = False
        switches, budget_s = [one.switch for one in left], max(0.0, until - time.perf_counter())
        try:
            rows = _timing(run, left)(run.subject, switches, budget_s, run.telling(words), "trial")
        except Exception as error:
            broken = [one for one in left if one.on or one.lever.timed is not None]
            if not broken:
                raise
            _still_runs(run)
            for one in broken:
                said = str(error) if one.lever.timed is not None else _failed("the step fails with it", error)
                trials[one.lever.name].verdict, trials[one.lever.name].why_not = "not tried", said
            left = [one for one in left if one not in broken]
            continue
        slow = [bool(np.isnan(row).any()) for row in rows[1:]]
        for one, hopeless in zip(left, slow, strict=True):
            if hopeless:
                trials[one.lever.name].why_not = _HOPELESS
        kept = [one for one, hopeless in zip(left, slow, strict=True) if not hopeless]
        return kept, rows[[True, *(not hopeless for hopeless in slow)]]
    return [], np.empty((1, 0))


def _still_runs(run: Run) -> None:
    """Raise what the step raises as it is: an error with a lever on need not be the lever's."""
    __tracebackhide__ = True
    with run.subject.restored(), run.subject.gate.opened():
        run.subject.run()


def _over_a_limit(trial: Trial, limits: Mapping[str, float]) -> str:
    """Which limit on time or memory a lever breaks, or what could not be measured for it."""
    times = trial.times_ms
    measured = {
        "peak_memory_bytes": trial.peak_bytes,
        "median_ms": float(np.median(times)) if times else None,
        "p95_ms": float(np.quantile(times, 0.95)) if len(times) >= 59 else None,  # as in a report
    }
    for name, value in measured.items():
        if name in limits and value is None:
            return f"{name} has a limit and was not measured"
        if name in limits and value is not None and value > limits[name]:
            return f"{name} is {value:.4g}, above the limit of {limits[name]:.4g}"
    return ""


def _timing(run: Run, group: Sequence[Prepared]) -> Callable[..., Floats]:
    if (own := group[0].lever.timed) is not None:
        return own
    if any(one.lever.in_blocks for one in group):
        return partial(time_blocks, warm=run.plan.warm)
    settles = any(one.lever.settles for one in group)
    return partial(time_switches, warm=run.plan.warm, block=run.plan.block if settles else 1)


def _good(run: Run, ready: Sequence[Prepared], trials: Mapping[str, Trial]) -> list[Prepared]:
    """Levers that help and may be kept, the largest gain first."""
    by_memory = run.goal == "memory"
    good = [one for one in ready if not trials[one.lever.name].why_not]
    good = [one for one in good if _helps(trials[one.lever.name], by_memory)]
    return sorted(good, key=lambda one: _gain(trials[one.lever.name], by_memory))


def _confirm(run: Run, good: Sequence[Prepared], trials: Mapping[str, Trial]) -> Confirmed | None:
    """Put together what is proven, the largest gain first, and measure it again on fresh rounds."""
    __tracebackhide__ = True
    by_memory = run.goal == "memory"
    kept: list[Prepared] = []
    last: Confirmed | None = None
    for number, one in enumerate(good):
        trial, names = trials[one.lever.name], " and ".join(each.lever.name for each in kept)
        if kept and run.left_s > 0 and (why := _apart(run, one, kept, trial)):
            trial.notes.append(f"not together with {names}: {why}")
            continue
        variants = 3 if kept else 2
        combination = [*kept, one]
        turn = run.plan.turn(False, any(each.lever.settles for each in combination))
        fewest_s = run.plan.confirming(turn) * run.step_s
        if not run.plan.timed or run.left_s < 0.4 * variants * fewest_s:
            if by_memory and not kept:  # it hardly varies
                kept, name = [one], one.lever.name
                last = Confirmed((name,), trial.verdict, trial.ratio, trial.ratio_ci, trial.saves_ms, trial.peak_bytes)
            else:
                trial.unconfirmed = True
                trial.notes.append(_UNCONFIRMED)
            continue
        switches = [all_on([each.switch for each in combination])]
        switches += [all_on([each.switch for each in kept])] if kept else []
        tell = run.telling(f"confirm {' + '.join(each.lever.name for each in combination)}")
        budget_s = max(run.left_s / (len(good) - number), min(run.left_s, fewest_s))
        for each in combination:
            each.on = False
        try:
            timing = _timing(run, combination)
            times = timing(run.subject, switches, budget_s, tell, "confirm", seed=SEED + 17 + number)
        except Exception as error:
            if not any(each.on or each.lever.timed is not None for each in combination):
                raise
            _still_runs(run)
            trial.notes.append(_failed("not confirmed: the step fails", error))
            continue
        if np.isnan(times).any() or times.shape[1] < fewest_rounds(1):
            trial.unconfirmed = True
            trial.notes.append(_UNCONFIRMED)
            continue
        found = compare_with_first(times)[0]
        peak = trial.peak_bytes
        if by_memory and kept:
            peak = peak_bytes(run.subject, switches[0])
            better = peak is not None and peak < (last.peak_bytes or 0) * (1 - MEMORY_MATTERS) if last else True
        elif by_memory:
            better = True  # seen before, and it hardly varies
        else:
            better = found.verdict == "faster"
            better = better and (not kept or compare_with_first(times[[2, 1]])[0].verdict == "faster")
        if better:
            kept = combination
            saves = float(np.median(times[0])) * (1 - found.ratio)
            levers = tuple(each.lever.name for each in kept)
            rounds_ms = tuple(times[1].tolist())
            last = Confirmed(levers, found.verdict, found.ratio, found.ratio_ci, saves, peak, rounds_ms)
        else:
            trial.notes.append(f"adds nothing to {names}" if kept else "not confirmed on fresh pairs")
    return last


def _helps(trial: Trial, by_memory: bool) -> bool:
    return trial.memory == "less" if by_memory else trial.verdict == "faster"


def _gain(trial: Trial, by_memory: bool) -> float:
    return float(trial.peak_bytes or 0) if by_memory else trial.ratio or 1.0


def _apart(run: Run, one: Prepared, kept: Sequence[Prepared], trial: Trial) -> str:
    """Why a lever cannot be on with others, or why that is not worth trying; empty if it can."""
    __tracebackhide__ = True
    assert run.yardstick is not None
    if one.lever.family and one.lever.family in {each.lever.family for each in kept}:
        return "only one of its kind can be on"
    if any(each.lever.timed is not None for each in (*kept, one)):
        return "it needs a process of its own"
    if run.goal == "time" and trial.ratio is not None and 1 - trial.ratio < trial.smallest:
        return "what it saves is too little to be seen beside them"
    combination = [*kept, one]
    try:
        values = check_together(combination, run.subject, run.yardstick)
    except Exception as error:  # each of them works alone
        return _failed("the step fails", error)
    if values.verdict == DIFFERENT or (values.verdict == UNCHECKED and one.lever.name not in run.listed):
        return values.why or "results differ"
    passes, said = _judged(run, all_on([each.switch for each in combination]))
    return said if passes is False else ""


def _failed(what: str, error: BaseException) -> str:
    words = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{what}: {words[:200]}"
