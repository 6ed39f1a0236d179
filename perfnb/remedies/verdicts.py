"""Judge levers: which ones to try first, which are faster, which save memory, and which may be kept.

All functions here are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfnb.bench.values import NOISE, REDUCED, SAME, UNCHECKED, Values
from perfnb.stats.intervals import Floats, quantile

if TYPE_CHECKING:
    from perfnb.remedies.lever import Lever
    from perfnb.stats.comparisons import PairedComparison

#: A lever that makes the step this many times slower in the warm-up rounds is not timed any further.
HOPELESS = 5.0
#: The smallest change in peak memory that matters. Peak memory hardly varies between steps.
MEMORY_MATTERS = 0.01


@dataclass
class LeverTrial:
    """A lever that was tried, or the reason why it was not tried; or a combination of several levers."""

    lever: str
    verdict: str  # on its time: faster, slower, same or inconclusive; or "not timed" or "not tried"
    ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None
    saves_ms: float | None = None
    values: Values = field(default_factory=lambda: Values(UNCHECKED))
    setup_s: float | None = None
    why_not: str = ""
    code: list[str] = field(default_factory=list)
    bound_ms: float | None = None  # the largest saving according to the finding that it addresses
    times_ms: tuple[float, ...] = ()  # step times with the lever on, one per round
    peak_bytes: int | None = None  # peak of allocated memory in a step
    memory: str = ""  # less, more or same, relative to the unmodified step
    smallest: float = 0.0  # the smallest relative time difference that could have been detected
    notes: list[str] = field(default_factory=list)
    unconfirmed: bool = False  # the lever helps, but was not measured again

    def timed(self, comparison: PairedComparison, own_ms: Floats | float, times_ms: Floats) -> None:
        """Record the verdict of a comparison, and the saving relative to the unmodified step's time."""
        self.verdict, self.ratio, self.ratio_ci = comparison.verdict, comparison.ratio, comparison.ratio_ci
        self.saves_ms = float(np.median(own_ms)) * (1 - comparison.ratio)
        self.times_ms, self.smallest = tuple(times_ms.tolist()), comparison.smallest_detectable

    @property
    def pays_after_steps(self) -> int | None:
        """The number of steps after which the lever has saved more time than its preparation took.

        ``None`` if the lever saves nothing.
        """
        if self.verdict != "faster" or self.setup_s is None or not self.saves_ms:
            return None
        return math.ceil(self.setup_s * 1e3 / self.saves_ms)

    def as_tried(self, *, kept: bool, left: int | None) -> dict[str, Any]:
        """Return the lever's entry for a run's summary, given the number of steps that remained in the run."""
        return {
            **{"lever": self.lever, "verdict": self.verdict, "ratio": self.ratio},
            "interval": None if self.ratio_ci is None else list(self.ratio_ci),
            **{"values": self.values.verdict, "saves_ms": self.saves_ms, "setup_s": self.setup_s, "left": left},
            **{"kept": kept, "why_not": self.why_not, "code": list(self.code)},
        }

    def helps(self, goal: str) -> bool:
        """Return whether the lever makes the step faster or saves memory, depending on the goal, and may be kept."""
        return not self.why_not and (self.memory == "less" if goal == "memory" else self.verdict == "faster")


@dataclass
class LeverFigures:
    """The measurements from a trial of levers on a step."""

    name: str  # of the step
    goal: str = "time"
    trials: list[LeverTrial] = field(default_factory=list)
    kept: tuple[str, ...] = ()  # the levers to keep, confirmed together
    confirmed: LeverTrial | None = None  # all of these on at once, measured again on fresh pairs
    confirms: bool = True  # whether kept levers are measured again
    budget_word: str = "budget_s"  # the option that allows more time
    step_ms: float = 0.0  # the unmodified step's time in the rounds that compare levers
    fed_ms: float | None = None  # the same including its batch, if a lever on the loader was timed
    rounds: int = 0
    own_peak: int | None = None  # the unmodified step's peak memory in bytes
    caveat: str = ""  # how values were checked, if not by comparison with float64
    noise: Mapping[str, Any] = field(default_factory=dict)  # what may have disturbed the steps
    need_s: int | None = None  # a sufficient budget, if there was too little time for some prepared levers

    def own_ms(self, ahead: bool) -> float:
        """Return the unmodified step's time that savings refer to, including the batch for levers that work `ahead`."""
        return self.step_ms if self.fed_ms is None or not ahead else self.fed_ms

    @property
    def best(self) -> tuple[str, ...]:
        """The levers to keep, confirmed together; or, without confirmation, the levers that helped individually."""
        if not self.confirms:
            return tuple(trial.lever for trial in self.trials if trial.unconfirmed)
        return self.kept


def fewest_rounds(levers: int, level: float = 0.05) -> int:
    """Return the minimum number of pairs whose smallest signed-rank p-value, 2 / 2**n, passes Holm's correction."""
    return max(6, math.ceil(1 + math.log2(max(1, levers) / level)))


def as_its_interval(verdict: str, interval: tuple[float, float] | None) -> str:
    """Return a verdict that agrees with the interval that is displayed next to it.

    Holm's test may detect differences that a simultaneous interval does not show.
    """
    if verdict in ("faster", "slower") and interval is not None and interval[0] <= 1 <= interval[1]:
        return "inconclusive"
    return verdict


def memory_verdict(peak: int | None, own: int | None) -> str:
    """Compare a lever's memory with the unmodified step's: less, more, same, or "" if it was not measured."""
    if peak is None or not own:
        return ""
    change = peak / own - 1
    return "same" if abs(change) < MEMORY_MATTERS else "less" if change < 0 else "more"


def not_hopeless(pilot_ms: Floats) -> list[int]:
    """Return the rows that are worth more rounds: the first row, and those that are not many times slower."""
    best = pilot_ms.min(axis=1)
    return [0, *(row for row in range(1, len(best)) if best[row] <= HOPELESS * best[0])]


def keepable(values: Values, listed: bool, quality: bool | None) -> str:
    """Return the reason why a lever must not be kept because of its results; empty if it may be kept.

    Parameters
    ----------
    listed : bool
        Whether the user requested the lever by name.
    quality : bool or None
        Whether the user's own quality test passes with the lever on; ``None`` if there is no such test.
    """
    if quality is not None:
        return "" if quality else "quality exceeds the limit"
    if values.verdict in (SAME, NOISE) or (listed and values.verdict in (REDUCED, UNCHECKED)):
        return ""
    if values.verdict == REDUCED:
        return "lower precision: pass quality=, or name it in levers="
    return values.why or values.verdict


def over_a_limit(trial: LeverTrial, limits: Mapping[str, float]) -> str:
    """Describe the time or memory limit that a lever exceeds, or that could not be checked.

    The result is empty if there is no such limit.
    """
    times = trial.times_ms
    measured = {
        "peak_memory_bytes": trial.peak_bytes,
        "median_ms": float(np.median(times)) if times else None,
        "p95_ms": quantile(times, 0.95),
    }
    for name, value in measured.items():
        if name in limits and value is None:
            return f"{name} has a limit but was not measured"
        if name in limits and value is not None and value > limits[name]:
            return f"{name} is {value:.4g}, above the limit of {limits[name]:.4g}"
    return ""


def bound_of(lever: Lever, bounds: Mapping[str, float]) -> float | None:
    """Return the largest possible saving according to the findings that a lever addresses.

    The result is ``None`` if it does not address any finding.
    """
    return max((bounds[cause] for cause in lever.answers if cause in bounds), default=None)


def worth_trying(levers: Iterable[Lever], bounds: Mapping[str, float], goal: str) -> list[Lever]:
    """Return the levers that findings suggest, largest bound first, then those that cost little to try.

    If memory is the goal, levers for memory come first, regardless of their cost.
    """

    def for_goal(lever: Lever) -> bool:
        return goal == "memory" and lever.for_memory

    tried = [lever for lever in levers if not lever.costly or for_goal(lever) or bound_of(lever, bounds) is not None]
    return sorted(tried, key=lambda lever: (not for_goal(lever), -(bound_of(lever, bounds) or 0.0)))
