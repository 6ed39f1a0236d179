"""Try levers one by one: prepare and check each lever, time those that are ready, and confirm the best."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from perfnb.bench.design import SEED
from perfnb.bench.quality import RESOURCES, Loss
from perfnb.bench.values import DIFFERENT, FROM_EXACT, UNCHECKED
from perfnb.remedies.budget import TrialBudget
from perfnb.remedies.lever import Lever, PreparedLever, Switch, all_on, prepared
from perfnb.remedies.measuring import losses, peak_bytes, time_levers
from perfnb.remedies.subject import Subject
from perfnb.remedies.values import Yardstick, check, measure_yardstick
from perfnb.remedies.verdicts import (
    HOPELESS,
    MEMORY_MATTERS,
    LeverFigures,
    LeverTrial,
    as_its_interval,
    bound_of,
    fewest_rounds,
    keepable,
    memory_verdict,
    over_a_limit,
)
from perfnb.stats.comparisons import compare_with_first
from perfnb.stats.intervals import Floats

if TYPE_CHECKING:
    from perfnb.remedies.try_levers import LeverRequest

_NO_TIME = "no time left in the budget: raise {}{}, or name fewer levers"
#: A budget counts as too short only if the recommended budget is at least this many times as long.
_MORE_THAN_TOO_LITTLE = 1.2
_HOPELESS = f"too slow to keep timing: it took more than {HOPELESS:.0f} times as long in its first rounds"
_UNCONFIRMED = "no time was left to confirm it: raise {}"
#: How levers that are timed together behave: whether they work ahead, and whether they settle.
_GROUPS = ((False, False), (False, True), (True, False))


@dataclass
class LeverLoop:
    """Try levers on a step within a budget."""

    subject: Subject
    request: LeverRequest
    budget: TrialBudget
    figures: LeverFigures  # filled during the trial
    progress: Callable[..., None]
    prove: Callable[[str], None]  # verifies that everything is unchanged
    own_losses: dict[str, float] = field(default_factory=dict)
    yardstick: Yardstick | None = None

    def try_each(self, levers: Sequence[Lever], bounds: Mapping[str, float]) -> None:
        """Try as many levers as the budget allows, in order.

        Parameters
        ----------
        bounds : mapping of str to float
            The largest possible saving according to each finding, in milliseconds.
        """
        __tracebackhide__ = True
        possible = []
        for lever in levers:
            why_not, bound = lever.refuses(self.subject), bound_of(lever, bounds)
            trial = LeverTrial(lever.name, "not tried", why_not=why_not, bound_ms=bound)
            self.figures.trials.append(trial)
            possible += [] if why_not else [(lever, trial)]
        with ExitStack() as stack:
            ready = self._prepare(stack, possible)
            too_slow_s = self._time(ready) if self.budget.plan.timed else 0.0
            self._say_what_would_do(possible, too_slow_s)
            for one in ready:
                one.trial.notes = [*one.lever.says(self.subject), *one.notes, *one.trial.notes]
                one.trial.why_not = one.trial.why_not or over_a_limit(one.trial, self.request.accepted)
            by_memory = self.request.goal == "memory"
            good = [one for one in ready if one.trial.helps(self.request.goal)]
            good.sort(key=lambda one: float((one.trial.peak_bytes if by_memory else one.trial.ratio) or 0))
            if self.request.confirm:
                self._confirm(good)
            else:
                families: set[str] = set()
                for one in good:
                    one.trial.unconfirmed = one.lever.family not in families
                    families |= {one.lever.family} - {""}

    def _telling(self, words: str) -> Callable[..., None]:
        """Return a progress callback that displays the current lever and the remaining budget."""
        return lambda _pass="", done=0, planned=None: self.progress(
            words, done, planned, f"{self.budget.left_s:.0f} s left"
        )

    def _say_what_would_do(self, possible: Sequence[tuple[Lever, LeverTrial]], too_slow_s: float) -> None:
        """Record the reason and a sufficient budget for levers that had too little time.

        `too_slow_s` is the duration of a step, including switching, if there were too few rounds; 0 otherwise.
        """
        budget = self.budget
        short = [trial for _, trial in possible if not trial.why_not and trial.verdict == "not tried"]
        need_s = budget.need_s([lever for lever, _ in possible], self.request.confirm, too_slow_s or budget.step_s)
        if too_slow_s:
            self.figures.need_s = need_s = max(need_s, math.ceil(_MORE_THAN_TOO_LITTLE * budget.seconds))
            short += [trial for _, trial in possible if not trial.why_not and trial.verdict == "not timed"]
        enough = f" (about {need_s:,} s would be enough for all)" if need_s > budget.seconds else ""
        for trial in short:
            trial.why_not = _NO_TIME.format(self.figures.budget_word, enough)

    # Prepared and checked

    def _prepare(self, stack: ExitStack, possible: Sequence[tuple[Lever, LeverTrial]]) -> list[PreparedLever]:
        """Prepare and check levers as long as there is also time to measure them; the stack undoes them."""
        __tracebackhide__ = True
        budget, ready = self.budget, list[PreparedLever]()
        if not any(budget.allows(lever, beside=budget.plan.own) for lever, _ in possible):
            return ready
        self._measure_own()
        if self.request.confirm:
            budget.keep_for_confirming()
            if not any(budget.allows(lever) for lever, _ in possible):
                budget.kept_s = 0.0  # a lever without confirmation is better than no lever at all
        for lever, trial in possible:
            if budget.allows(lever, ready) and (one := self._ready(stack, lever, trial)) is not None:
                ready.append(one)
        return ready

    def _measure_own(self) -> None:
        """Measure the unmodified step.

        The figures are its memory, its distance from the truth, its quality, and the time to determine these, excluding
        steps.
        """
        __tracebackhide__ = True
        self._telling("the unmodified step")()
        begin, plan = time.perf_counter(), self.budget.plan
        self.figures.own_peak = peak_bytes(self.subject) if plan.weighed else None
        self.yardstick = measure_yardstick(self.subject, self.figures.own_peak, plan.brief, plan.checked)
        self.budget.each_s = max(0.0, time.perf_counter() - begin - plan.own * self.budget.step_s) / 2
        if not self.yardstick.exact:
            self.figures.caveat = (
                f"results compared with the step on another number of threads: {self.yardstick.why_not}"
            )
        if not self.yardstick.repeats:
            self.figures.caveat = "results not checked: the step is not reproducible from the same state"
        if self.request.quality is None:
            return
        begin, limits = time.perf_counter(), self.request.accepted
        own = losses(self.subject, self.request.quality, limits)
        if unknown := [name for name in limits if name not in RESOURCES and name not in {one.name for one in own}]:
            raise ValueError(f"limits contains {unknown[0]!r}, which quality() does not return.")
        self.own_losses = {one.name: one.candidate for one in own}
        self.budget.each_s += time.perf_counter() - begin

    def _ready(self, stack: ExitStack, lever: Lever, trial: LeverTrial) -> PreparedLever | None:
        """Prepare a lever and check its results; return ``None`` if the step fails with it."""
        __tracebackhide__ = True
        assert self.yardstick is not None
        budget = self.budget
        self._telling(f"prepare {lever.name}")()
        begin = time.perf_counter()
        stack.push(lambda kind, *_: self.prove(f"undoing {lever.name}") if kind is None else None)
        try:
            one = stack.enter_context(prepared(lever, self.subject, budget.step_s, budget.plan.set_up))
            budget.compiled(one.setup_s if one.at_first.graphs else 0.0)
            trial.values = check([one], self.subject, self.yardstick, again=budget.left_s > budget.compiling_s)
            if budget.plan.weighed and not lever.in_blocks:
                trial.peak_bytes = peak_bytes(self.subject, one.switch)
        except Exception as error:  # the step fails only with this lever
            budget.compiled(time.perf_counter() - begin if lever.settles else 0.0)
            trial.why_not = _failed("the step fails with it", error)
            self.prove(f"trying {lever.name}")
            return None
        took_s = time.perf_counter() - begin - budget.step_s * budget.plan.each
        budget.each_s = max(budget.each_s, took_s - one.setup_s * lever.settles)
        one.trial, trial.verdict = trial, "not timed"
        trial.memory = memory_verdict(trial.peak_bytes, self.figures.own_peak)
        own_words = self.request.words(lever.name, self.subject)
        trial.setup_s, trial.code = one.setup_s, lever.code(self.subject) if own_words is None else own_words
        passes, words = self._judged(one.switch)
        trial.why_not = keepable(trial.values, lever.name in self.request.listed, passes)
        trial.notes += [words] if words else []
        self.prove(f"trying {lever.name}")
        return one

    def _judged(self, switch: Switch) -> tuple[bool | None, str]:
        """Return whether quality is good enough with a lever on, and its values in words.

        The first result is ``None`` if there is no quality test.
        """
        __tracebackhide__ = True
        if self.request.quality is None:
            return None, ""
        judged = [
            Loss(one.name, one.candidate, self.own_losses.get(one.name), one.limit)
            for one in losses(self.subject, self.request.quality, self.request.accepted, switch)
        ]
        measured = ", ".join(f"{one.name} {one.candidate:.4g}" for one in judged)
        over = [f"{one.name} above {one.largest:.4g}" for one in judged if one.exceeded and one.largest is not None]
        return not any(one.exceeded for one in judged), "; ".join([f"quality: {measured}", *over])

    # Timed

    def _time(self, ready: Sequence[PreparedLever]) -> float:
        """Time levers side by side and record the results, while reserving the time for confirming.

        Return the seconds that a step took, including switching, if there were too few rounds; 0 otherwise.
        """
        __tracebackhide__ = True
        alike = [[one for one in ready if (one.lever.in_blocks, one.lever.settles) == kind] for kind in _GROUPS]
        groups = [group for group in alike if group]
        times: list[Floats] = []
        timed: list[tuple[PreparedLever, Floats]] = []
        too_slow_s = 0.0
        for number, group in enumerate(groups):
            words = f"try {group[0].lever.name}" if len(group) == 1 else f"try {len(group)} levers"
            begin, left_s = time.perf_counter(), max(0.0, self.budget.left_s - self.budget.kept_s)
            kept, rows = self._rows_of(group, left_s / (len(groups) - number), words)
            took_s, plan = time.perf_counter() - begin, self.budget.plan
            self.prove(f"timing {', '.join(one.lever.name for one in group)}")
            if not kept:
                continue
            if rows.shape[1] < fewest_rounds(1):
                steps = plan.a_round([one.lever for one in group]) * (plan.warm + rows.shape[1])
                too_slow_s = max(too_slow_s, took_s / steps)
                continue
            own_ms = float(np.median(rows[0]))
            if kept[0].lever.in_blocks:
                self.figures.fed_ms = own_ms
            self.figures.step_ms = self.figures.step_ms if times else own_ms
            self.figures.rounds = max(self.figures.rounds, rows.shape[1])
            times.append(rows)
            timed += zip(kept, rows[1:], strict=True)
        for (one, row), comparison in zip(timed, compare_with_first(*times), strict=True):
            one.trial.timed(comparison, self.figures.own_ms(one.lever.in_blocks), row)
            one.trial.verdict = as_its_interval(comparison.verdict, comparison.ratio_ci)
        return too_slow_s

    def _rows_of(
        self, group: Sequence[PreparedLever], budget_s: float, words: str
    ) -> tuple[list[PreparedLever], Floats]:
        """Return the levers in a group that could be timed completely, and rows for the unmodified step and for each.

        If the step fails with a lever, this lever is excluded and the others are timed again.
        """
        __tracebackhide__ = True
        left, until = list(group), time.perf_counter() + budget_s
        while left:
            try:
                rows = self._times(left, [one.switch for one in left], until - time.perf_counter(), words)
            except Exception as error:
                for one in (broken := self._broken(left, error)):
                    one.trial.verdict, one.trial.why_not = "not tried", _failed("the step fails with it", error)
                left = [one for one in left if one not in broken]
                continue
            timed = np.isfinite(rows.sum(axis=1))
            for lever, is_timed in zip(left, timed[1:], strict=True):
                lever.trial.why_not = lever.trial.why_not if is_timed else _HOPELESS
            return list(itertools.compress(left, timed[1:])), rows[timed]
        return [], np.empty((1, 0))

    def _times(
        self, levers: Sequence[PreparedLever], switches: Sequence[Switch], budget_s: float, words: str, seed: int = SEED
    ) -> Floats:
        """Return the milliseconds of the unmodified step and of the step under each switch.

        The levers determine how they are timed.
        """
        __tracebackhide__ = True
        for one in levers:
            one.on = False
        plan, settles = self.budget.plan, any(one.lever.settles for one in levers)
        return time_levers(
            *(self.subject, switches, max(0.0, budget_s), self._telling(words)),
            seed=seed,
            warm=plan.warm,
            block=plan.block if settles else 1,
            ahead=any(one.lever.in_blocks for one in levers),
        )

    def _broken(self, levers: Sequence[PreparedLever], error: Exception) -> list[PreparedLever]:
        """Return the levers that were on when the step failed.

        If the step also fails without them, its error is raised.
        """
        __tracebackhide__ = True
        broken = [one for one in levers if one.on]
        if not broken:
            raise error
        with self.subject.restored(), self.subject.gate.opened():
            self.subject.run()
        return broken

    # Confirmed

    def _confirm(self, good: Sequence[PreparedLever]) -> None:
        """Combine the proven levers, largest gain first, and measure them again in fresh rounds."""
        __tracebackhide__ = True
        budget, figures, by_memory = self.budget, self.figures, self.request.goal == "memory"
        kept: list[PreparedLever] = []
        for number, one in enumerate(good):
            trial, together = one.trial, " and ".join(figures.kept)
            if kept and budget.left_s > 0 and (why := self._apart(one, kept)):
                trial.notes.append(f"not together with {together}: {why}")
                continue
            combination = [*kept, one]
            names = [other.lever.name for other in combination]
            switches = [all_on([other.switch for other in levers]) for levers in (combination, kept) if levers]
            fewest_s = budget.plan.confirming(any(other.lever.settles for other in combination)) * budget.step_s
            times: Floats | None = None
            if budget.plan.timed and budget.left_s >= 0.4 * (1 + len(switches)) * fewest_s:
                budget_s = max(budget.left_s / (len(good) - number), min(budget.left_s, fewest_s))
                words = f"confirm {' + '.join(names)}"
                try:
                    times = self._times(combination, switches, budget_s, words, SEED + 17 + number)
                except Exception as error:
                    self._broken(combination, error)
                    trial.notes.append(_failed("not confirmed: the step fails", error))
                    continue
            elif by_memory and not kept:  # memory hardly varies
                kept, figures.kept, figures.confirmed = combination, tuple(names), trial
                continue
            if times is None or np.isnan(times).any() or times.shape[1] < fewest_rounds(1):
                trial.unconfirmed = True
                trial.notes.append(_UNCONFIRMED.format(figures.budget_word))
                continue
            confirmed = _together(combination) if kept else replace(trial)
            ahead = any(other.lever.in_blocks for other in combination)
            confirmed.timed(compare_with_first(times)[0], figures.own_ms(ahead), times[1])
            if by_memory and figures.confirmed is not None:
                confirmed.peak_bytes = peak_bytes(self.subject, switches[0])
                before = figures.confirmed.peak_bytes or 0
                better = (confirmed.peak_bytes or before) < before * (1 - MEMORY_MATTERS)
            elif by_memory:
                better = True  # as measured before
            else:
                better = confirmed.verdict == "faster"
                better = better and (not kept or compare_with_first(times[[2, 1]])[0].verdict == "faster")
            if better:
                if not kept:  # the verdict quotes the figures of this row
                    self.figures.trials[self.figures.trials.index(trial)] = one.trial = confirmed
                kept, figures.kept, figures.confirmed = combination, tuple(names), confirmed
            else:
                trial.notes.append(f"adds nothing to {together}" if kept else "not confirmed on fresh pairs")

    def _apart(self, one: PreparedLever, kept: Sequence[PreparedLever]) -> str:
        """Return why a lever cannot be combined with others or is not worth combining; empty if it should be."""
        __tracebackhide__ = True
        assert self.yardstick is not None
        if one.lever.family and one.lever.family in {other.lever.family for other in kept}:
            return "only one lever of this kind can be on"
        if self.request.goal == "time" and one.trial.ratio is not None and 1 - one.trial.ratio < one.trial.smallest:
            return "its saving is too small to be visible next to theirs"
        combination = [*kept, one]
        try:
            values = check(combination, self.subject, self.yardstick)
        except Exception as error:  # each lever works on its own
            return _failed("the step fails", error)
        if values.verdict == DIFFERENT or (values.verdict == UNCHECKED and one.lever.name not in self.request.listed):
            return values.why or "results differ"
        passes, words = self._judged(all_on([other.switch for other in combination]))
        return words if passes is False else ""


def _together(combination: Sequence[PreparedLever]) -> LeverTrial:
    """Combine several levers into one trial, with the largest distance of their values from the exact values.

    Each lever's lines of code remain in its own row.
    """
    trials = [one.trial for one in combination]
    values = max((trial.values for trial in trials), key=lambda values: FROM_EXACT.index(values.verdict))
    setup_s = sum(trial.setup_s or 0.0 for trial in trials)
    names = " and ".join(trial.lever for trial in trials)
    return LeverTrial(names, "", values=values, setup_s=setup_s, peak_bytes=trials[-1].peak_bytes)


def _failed(what: str, error: BaseException) -> str:
    words = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{what}: {words[:200]}"
