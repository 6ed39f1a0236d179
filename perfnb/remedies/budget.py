"""Plan the cost of trying levers: the number of steps for each part, and whether they fit into the time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfnb.remedies.verdicts import fewest_rounds

if TYPE_CHECKING:
    from perfnb.remedies.lever import Lever, PreparedLever

#: The share of the remaining time that is reserved for confirming levers.
CONFIRM_SHARE = 0.25
#: If the budget allows fewer steps than this, only the goal's own figures are measured.
_FEW_STEPS = 60
#: The number of turns in a block of a lever that works ahead, for two workers with two batches each.
_AHEAD = 10
#: A lever is tried only if the work before it took at most this many times as long as planned.
_LATE = 1.1
#: Autotuning is assumed to take this many times as long as a plain compilation. For four small attention blocks on an
#: NVIDIA H200, it takes even longer.
_AUTOTUNING = 20
#: The margin of the recommended budget, and the number of additional steps before the first lever if there is time.
_ROOM, _MORE = 1.2, 10


@dataclass(frozen=True)
class LeverPlan:
    """The number of steps for each part, which is small if only a few long steps fit into the budget."""

    set_up: int = 2  # steps with a lever on that do not count
    checked: int = 3  # steps after which parameters are compared
    weighed: int = 2  # steps for measuring peak memory; 0 if it is not measured
    warm: int = 2  # rounds that do not count
    block: int = 3  # for the peak of memory; 0 if that is not measured
    timed: bool = True
    brief: bool = False

    @property
    def own(self) -> int:
        """The number of steps needed to determine the unmodified step's results and memory."""
        return self.weighed + self.checked * (2 if self.brief else 4)

    @property
    def each(self) -> int:
        """The number of steps needed to prepare and check a lever."""
        return self.set_up + self.checked + self.weighed

    def turn(self, lever: Lever) -> int:
        """Return the number of steps in one turn of a lever; 1 if it shares rounds with other levers."""
        return _AHEAD if lever.in_blocks else self.block + 1 if lever.settles and self.block > 1 else 1

    def a_round(self, levers: Sequence[Lever]) -> int:
        """Return the number of steps in a round of levers.

        A lever with longer turns also needs its own turns of the unmodified step.
        """
        turns = [self.turn(lever) for lever in levers]
        shared = turns.count(1)
        return 2 * sum(turn for turn in turns if turn > 1) + (shared + 1 if shared else 0)

    def timing(self, levers: Sequence[Lever]) -> int:
        """Return the smallest number of steps needed to time levers."""
        return self.a_round(levers) * (self.warm + fewest_rounds(len(levers))) if self.timed else 0

    def confirming(self, settles: bool = False) -> int:
        """Return the smallest number of steps needed to confirm levers, one of which may need time to settle."""
        turn = self.block + 1 if settles and self.block > 1 else 1
        return 2 * (self.warm + fewest_rounds(2)) * turn if self.timed else 0


def plan_for(goal: str, step_s: float, budget_s: float) -> LeverPlan:
    """Return the plan for a given budget."""
    if budget_s >= _FEW_STEPS * step_s:
        return LeverPlan()
    weighed = 2 if goal == "memory" else 0
    return LeverPlan(set_up=1, checked=1, block=1, weighed=weighed, warm=1, timed=not weighed, brief=True)


class TrialBudget:
    """The time for all trials together, which starts when this object is created.

    Attributes
    ----------
    seconds, left_s : float
        The total time, and the time left.
    step_s, plan : float, LeverPlan
        The duration of a step, and the resulting number of steps for each part.
    each_s : float
        The time needed to prepare and check a lever, excluding its steps.
    kept_s : float
        The time reserved for confirming.
    compiling_s : float
        The duration of the first compilation, which is the only one that does not count.
    """

    def __init__(self, seconds: float, goal: str) -> None:
        self.seconds, self._goal = seconds, goal
        self._until = time.perf_counter() + seconds
        self.step_s = self.each_s = self.kept_s = self.compiling_s = self._before_s = 0.0
        self.plan = LeverPlan()

    @property
    def left_s(self) -> float:
        return max(0.0, self._until - time.perf_counter())

    def divide(self, step_s: float) -> None:
        """Choose a plan, once the step time is known."""
        self.step_s, self._before_s = step_s, self.seconds - self.left_s
        self.plan = plan_for(self._goal, step_s, self.left_s)

    def keep_for_confirming(self) -> None:
        """Reserve time for confirming one lever, and more if there is plenty of time."""
        self.kept_s = max(CONFIRM_SHARE * self.left_s, self.plan.confirming() * self.step_s)

    def compiled(self, seconds: float) -> None:
        """Record the duration of a compilation. The first one does not reduce the time for levers."""
        if not self.compiling_s:
            self.compiling_s = seconds
            self._until += seconds

    def allows(self, lever: Lever, ready: Sequence[PreparedLever] = (), beside: int = 0) -> bool:
        """Return whether there is time to prepare, check and time a lever.

        The lever is timed together with the levers that are `ready`, and there must be time for `beside` more steps.
        """
        levers = [*(one.lever for one in ready), lever]
        switching = [one.switching_s for one in ready]
        switching_s = sum(switching) + max(switching, default=0.0)  # the new lever may be as slow as the slowest
        needed_s = self.each_s + self.step_s * (self.plan.each + self.plan.timing(levers) + beside)
        needed_s += switching_s * (self.plan.warm + fewest_rounds(len(levers)))
        needed_s += self.compiling_s * lever.settles * (_AUTOTUNING if lever.autotunes else 1)
        return needed_s <= _LATE * (self.left_s - self.kept_s)

    def need_s(self, levers: Sequence[Lever], confirm: bool, step_s: float) -> int:
        """Estimate how many seconds would be enough for all of these levers at this step time."""

        def seconds(plan: LeverPlan) -> float:
            steps = plan.own + plan.each * len(levers) + plan.timing(levers)
            tried_s = self._before_s + steps * step_s + len(levers) * self.each_s
            return max(tried_s / (1 - CONFIRM_SHARE), tried_s + plan.confirming() * step_s) if confirm else tried_s

        need_s = seconds(self.plan)
        if (fuller := plan_for(self._goal, step_s, need_s)) != self.plan:
            need_s = seconds(fuller) + _MORE * step_s
        return math.ceil(_ROOM * need_s)
