"""What trials of levers say: verdicts on values, comparisons with the step as it is, which levers to keep. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfnb.bench.values import NOISE, REDUCED, SAME, UNCHECKED, Values
from perfnb.stats.intervals import Floats

#: A lever that makes the step so many times slower in rounds that warm up is not timed further.
HOPELESS = 5.0
#: Share of the budget for confirming.
CONFIRM_SHARE = 0.25
#: Smallest change of the peak of memory that matters; it hardly varies from step to step.
MEMORY_MATTERS = 0.01


@dataclass
class Trial:
    """One lever that was tried, or why it was not."""

    lever: str
    verdict: str  # of its time: faster, slower, same, inconclusive; "not timed" or "not tried"
    ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None
    saves_ms: float | None = None
    values: Values = field(default_factory=lambda: Values(UNCHECKED))
    setup_s: float | None = None
    why_not: str = ""
    code: list[str] = field(default_factory=list)
    bound_ms: float | None = None  # the most that the finding it answers said it could save
    times_ms: tuple[float, ...] = ()  # of the step with the lever on, a value per round
    peak_bytes: int | None = None  # of allocated memory in a step
    memory: str = ""  # less, more or same, against the step as it is
    smallest: float = 0.0  # the smallest relative difference of time that could have been seen
    notes: list[str] = field(default_factory=list)
    unconfirmed: bool = False  # it helps, and was not measured again


@dataclass
class Confirmed:
    """The levers to keep, all on at once, measured again on fresh pairs."""

    levers: tuple[str, ...]
    verdict: str
    ratio: float | None
    ratio_ci: tuple[float, float] | None
    saves_ms: float | None
    peak_bytes: int | None = None
    times_ms: tuple[float, ...] = ()  # of the step with all of them on, a value per round


def fewest_rounds(levers: int, level: float = 0.05) -> int:
    """The fewest pairs in which the smallest signed-rank p-value, 2 / 2**n, stands Holm's correction."""
    return max(6, math.ceil(1 + math.log2(max(1, levers) / level)))


@dataclass(frozen=True)
class Plan:
    """How many steps things take: few for a step so long that the budget holds few of them."""

    set_up: int = 2  # with a lever on, before it counts
    checked: int = 3  # after which parameters are compared
    weighed: int = 2  # for the peak of memory; 0 if it is not measured
    warm: int = 2  # rounds before those that count
    block: int = 3  # timed as one, for a lever that settles
    timed: bool = True
    brief: bool = False

    def turn(self, in_blocks: bool, settles: bool) -> int:
        """How many steps one turn of a lever takes; 1 if it shares rounds with others."""
        return _BLOCK if in_blocks else self.block + 1 if settles and self.block > 1 else 1

    @property
    def own(self) -> int:
        """How many steps it takes to see what the unmodified step computes, and how much memory it needs."""
        return self.weighed + self.checked * (2 if self.brief else 4)

    @property
    def each(self) -> int:
        """How many steps it takes to prepare and check a lever."""
        return self.set_up + self.checked + self.weighed

    def rounds_of(self, turns: Sequence[int]) -> int:
        """How many steps it takes at least to time levers whose turns take so many steps, see `turn`."""
        rounds, alone = fewest_rounds(len(turns)), [turn for turn in turns if turn > 1]
        together = len(turns) - len(alone)
        steps = 2 * sum(alone) * (rounds + self.warm)
        return (steps + ((together + 1) * (self.warm + rounds) if together else 0)) if self.timed else 0

    def confirming(self, turn: int = 1) -> int:
        """How many steps it takes at least to confirm a lever."""
        return 2 * (self.warm + fewest_rounds(2)) * turn if self.timed else 0


#: With fewer steps than this in the budget, only what the goal needs is measured.
_FEW_STEPS = 60
#: Turns of a block of a lever that works ahead: two workers that hold two batches each.
_BLOCK = 10


def plan_for(goal: str, step_s: float, budget_s: float) -> Plan:
    """What a budget allows."""
    if budget_s >= _FEW_STEPS * step_s:
        return Plan()
    by_memory = goal == "memory"
    return Plan(set_up=1, checked=1, block=1, weighed=2 if by_memory else 0, warm=1, timed=not by_memory, brief=True)


def affordable(plan: Plan, turns: Sequence[int], step_s: float, budget_s: float, each_s: float = 0.0) -> list[int]:
    """The places of the levers that can be tried within a budget, each as often as its level demands.

    Parameters
    ----------
    turns : sequence of int
        For each lever, how many steps one of its turns takes; see `Plan.turn`.
    each_s : float
        What each takes beyond steps, such as judging quality and switching instruments on and off.
    """
    chosen: list[int] = []
    for place in range(len(turns)):
        tried = [*chosen, place]
        steps = plan.each * len(tried) + plan.rounds_of([turns[one] for one in tried])
        if steps * step_s + len(tried) * each_s <= budget_s:
            chosen = tried
    return chosen


def budget_for(
    plan: Plan, turns: Sequence[int], step_s: float, spent_s: float, each_s: float = 0.0, confirm: bool = True
) -> int:
    """About how many seconds would do for all levers; as in `affordable`, after what is spent before."""
    least = plan.confirming() * step_s if confirm else 0.0
    low, high = 0.0, 1.0
    while len(affordable(plan, turns, step_s, high, each_s)) < len(turns):
        low, high = high, 2 * high
    while high - low > 0.02 * high:
        middle = (low + high) / 2
        enough = len(affordable(plan, turns, step_s, middle, each_s)) == len(turns)
        low, high = (low, middle) if enough else (middle, high)
    return math.ceil(1.2 * (spent_s + max(high / (1 - CONFIRM_SHARE if confirm else 1.0), high + least)))


def as_its_interval(verdict: str, interval: tuple[float, float] | None) -> str:
    """A verdict that agrees with the interval beside it: Holm's test may see what a simultaneous interval does not."""
    if verdict in ("faster", "slower") and interval is not None and interval[0] <= 1 <= interval[1]:
        return "inconclusive"
    return verdict


def memory_verdict(peak: int | None, own: int | None) -> str:
    """Whether a lever needs less memory than the step as it is: less, more, same, or "" if not measured."""
    if peak is None or not own:
        return ""
    change = peak / own - 1
    return "same" if abs(change) < MEMORY_MATTERS else "less" if change < 0 else "more"


def not_hopeless(pilot_ms: Floats) -> list[int]:
    """The rows of a few rounds that are worth more of them: the first, and those not many times slower."""
    best = pilot_ms.min(axis=1)
    return [0, *(place for place in range(1, len(best)) if best[place] <= HOPELESS * best[0])]


def pays_after(setup_s: float | None, saves_ms: float | None) -> int | None:
    """After how many steps what a lever saves has paid for its preparation; ``None`` if never."""
    if setup_s is None or saves_ms is None or saves_ms <= 0:
        return None
    return math.ceil(setup_s * 1e3 / saves_ms)


def keepable(values: Values, listed: bool, quality: bool | None) -> str:
    """Why a lever's results forbid to keep it; empty if they do not.

    Parameters
    ----------
    listed : bool
        Whether the user asked for it by name.
    quality : bool or None
        Whether the user's own test of quality passes with it; ``None`` without one.
    """
    if quality is not None:
        return "" if quality else "quality is outside the limit"
    if values.verdict in (SAME, NOISE) or (listed and values.verdict in (REDUCED, UNCHECKED)):
        return ""
    if values.verdict == REDUCED:
        return "lower precision: pass quality=, or name it in levers="
    return values.why or values.verdict


def in_order(names: Sequence[str], answers: Mapping[str, Sequence[str]], bounds: Mapping[str, float]) -> list[str]:
    """Levers that answer a finding first, the largest bound first; the others in their own order."""

    def bound(name: str) -> float:
        return max((bounds.get(each, 0.0) for each in answers[name]), default=0.0)

    return sorted(names, key=lambda name: -bound(name))
