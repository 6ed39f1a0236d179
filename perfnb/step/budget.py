"""Determine the number of steps per pass within the user's time budget, and whether the step time is steady."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfnb.arguments import require_count, require_flag, require_seconds
from perfnb.errors import CaptureError
from perfnb.quantities import duration

#: The fewest steps of an automatic warm-up, without and with a GPU.
FLOOR, FLOOR_GPU = 3, 10
#: The share of the budget at which an automatic warm-up ends, in steady state or not.
WARMUP_SHARE = 0.2
#: The most steps of an automatic warm-up, even if the clock stands still.
MOST_WARMUP = 10_000
#: Limits of an automatic timed pass, and the half-width of the median's 95 % interval that it aims at.
FEWEST_TIMED, MOST_TIMED, AIM = 20, 200, 0.02
#: The fewest timed steps for a 95 % interval of the median, and how far they may exceed the budget.
FEWEST_FOR_INTERVAL, SLACK = 6, 1.05
#: The most steps of a trial, and its largest share of the budget.
MOST_TRIED, TRIAL_SHARE = 10, 0.1
#: The planned duration of a traced and of a counted step, in timed steps.
TRACED_FACTOR, COUNTED_FACTOR = 1.5, 2.0
#: The seconds of steps whose stacks are sampled, 100 samples per second, and the most of these steps.
SAMPLED_S, MOST_SAMPLED = 3.0, 2_000
#: The least time that is sampled whatever the budget, in seconds, so that there are enough samples.
LEAST_SAMPLED_S = 0.5
#: The most seconds that are sampled without a request.
BRIEFLY_S = 1.5
#: The most steps that are sampled without a request: this many times the timed steps, or this many.
_UNASKED, _UNASKED_STEPS = 3, 30


@dataclass(frozen=True)
class Plan:
    """The user's options: ``None`` lets perfnb choose the number of steps; the budget limits them all.

    Every pass runs at least one step, regardless of the budget. If steps are long, the timed pass has priority: it gets
    enough steps for an interval before a second step is traced.
    """

    warmup: int | None = None
    steps: int | None = None
    traced: int = 3
    budget_s: float = 30.0
    memory: bool = True
    flops: bool = True
    recompile: bool = False

    def __post_init__(self) -> None:
        for name, least in (("warmup", 0), ("steps", 1)):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), least)
        require_count("traced", self.traced, 1)
        require_seconds("budget_s", self.budget_s)
        for name in ("memory", "flops", "recompile"):
            value = getattr(self, name)
            require_flag(name, bool(value) if isinstance(value, np.bool_) else value)

    def goes_on_warming(self, times_ns: Sequence[int], spent_s: float, gpu: bool) -> bool:
        """Return whether to run another warm-up step after steps of these durations."""
        if self.warmup is not None:
            return len(times_ns) < self.warmup and (not times_ns or spent_s < self.budget_s / 2)
        if not times_ns:
            return True
        enough = spent_s >= self.budget_s * WARMUP_SHARE or len(times_ns) >= MOST_WARMUP
        if enough or self.steps_are_long(times_ns, spent_s):
            return False
        return len(times_ns) < max(FEWEST, FLOOR_GPU if gpu else FLOOR) or not is_steady(times_ns)

    def steps_are_long(self, times_ns: Sequence[int], spent_s: float) -> bool:
        """Return whether another warm-up step would leave too few timed steps for an interval.

        The first step is not typical of the others: it may compile or fill caches.
        """
        if self.warmup is not None or len(times_ns) < 2:
            return False
        step_s = times_ns[-1] / 1e9
        return spent_s + (1 + FEWEST_FOR_INTERVAL + self._least_after) * step_s > self.budget_s

    @property
    def _least_after(self) -> int:
        """The number of steps that must follow the timed ones."""
        return 1 + self.memory + self.flops

    def timed_steps(self, warm_ns: Sequence[int]) -> int:
        """Return how many steps to time.

        This is the requested number, or the number needed for the target precision given the warm-up's spread.
        """
        if self.steps is not None:
            return self.steps
        recent = np.asarray(warm_ns[-FEWEST_TIMED:], dtype=float)
        if len(recent) < FEWEST:
            return FEWEST_TIMED
        # The median's standard error is 1.2533 standard deviations over the root of n; robustly, from the quartiles.
        low, middle, high = np.percentile(recent, [25, 50, 75])
        spread = (high - low) / 1.349 / middle if middle > 0 else 0.0
        return int(np.clip(math.ceil((1.96 * 1.2533 * spread / AIM) ** 2), FEWEST_TIMED, MOST_TIMED))

    def goes_on_timing(self, done: int, wanted: int, spent_s: float, step_s: float) -> bool:
        """Return whether to time another step, reserving time for the later passes.

        Until there are enough steps for an interval, the time of one step is reserved for each pass; afterwards, the
        time of all the steps that the passes request.
        """
        if done == 0:
            return True
        if done < min(wanted, FEWEST_FOR_INTERVAL):
            return spent_s + (1 + self._least_after) * step_s <= SLACK * self.budget_s
        counted = 2 * self.memory + self.flops
        kept_back = ((self.traced + 1) * TRACED_FACTOR + counted * COUNTED_FACTOR) * step_s
        return done < wanted and spent_s + step_s + kept_back <= self.budget_s

    def why_longer(self, spent_s: float, step_s: float) -> str | None:
        """Return a note for the user after the first step if the passes will exceed the budget."""
        passes = {"timed": True, "traced": True, "memory": self.memory, "FLOPs": self.flops}
        left = [name for name, wanted in passes.items() if wanted]
        if spent_s + len(left) * step_s <= self.budget_s:
            return None
        return (
            f"a step takes {duration(step_s * 1e3)}: the passes still to come ({', '.join(left)}) need at least one "
            f"each, about {duration(len(left) * step_s * 1e3)} in all, which exceeds the budget of {self.budget_s:g} s"
        )

    def steps_to_try(self, spent_s: float, step_s: float) -> int:
        """Return the number of steps to try another setting with, after two that do not count; 0 if time is short."""
        left_s = min(TRIAL_SHARE * self.budget_s, (self.budget_s - spent_s) / 2)
        affordable = int(left_s / step_s) - 2 if step_s > 0 else MOST_TRIED
        return min(MOST_TRIED, affordable) if affordable >= 3 else 0

    def traced_steps(self, spent_s: float, step_s: float) -> tuple[int, bool]:
        """Return how many steps to trace, and whether to run an unanalysed one first.

        Time for counted steps is reserved.
        """
        left_s = max(0.0, self.budget_s - spent_s - (self.memory + self.flops) * step_s)
        affordable = int(left_s / (step_s * TRACED_FACTOR)) if step_s > 0 else self.traced + 1
        lead_in = affordable > self.traced
        return max(1, min(self.traced, affordable)), lead_in

    def sampled_steps(self, spent_s: float, step_s: float) -> int:
        """Return how many steps to sample the stacks of; time for counted steps is reserved."""
        left_s = (self.budget_s - spent_s - 2 * (self.memory + self.flops) * COUNTED_FACTOR * step_s) / 2
        wanted_s = max(LEAST_SAMPLED_S, min(SAMPLED_S, left_s))
        return max(1, min(MOST_SAMPLED, math.ceil(wanted_s / step_s))) if step_s > 0 else FEWEST_TIMED

    def briefly_sampled_steps(self, spent_s: float, step_s: float, timed: int) -> int:
        """Return how many steps to sample without a request, after all other passes.

        This is not much more than the number of timed steps, because each step trains the user's model. It is 0 if the
        budget does not allow enough samples.
        """
        left_s = min(BRIEFLY_S, self.budget_s - spent_s)
        if left_s < LEAST_SAMPLED_S or step_s <= 0 or self.budget_s - spent_s < step_s:
            return 0
        return max(1, min(MOST_SAMPLED, max(_UNASKED * timed, _UNASKED_STEPS), int(left_s / step_s)))

    def affords_lead_in(self, spent_s: float, step_s: float) -> bool:
        """Return whether there is time for a lead-in step before the one whose memory is counted."""
        return spent_s + (2 + self.flops) * COUNTED_FACTOR * step_s <= self.budget_s


#: The number of steps that the test uses; one half is compared with the other.
WINDOW = 20
#: The fewest steps that the test can use.
FEWEST = 6


def is_steady(times: Sequence[float]) -> bool | None:
    """Return whether the last step times are in steady state; ``None`` if there are too few, or the clock stood still.

    The last 20 (or an even number from 6) are split into halves that must agree: the first value is at most 1.5
    interquartile ranges above the upper quartile of its half, medians and outer quartiles differ by at most 5 %, and
    spreads (median absolute deviation relative to the median) by at most 10 points. The thresholds are those of
    pyperf's warm-up calibration.
    """
    count = min(len(times), WINDOW) // 2 * 2
    if count < FEWEST:
        return None
    recent = np.asarray(times[-count:], dtype=float)
    early, late = recent[: count // 2], recent[count // 2 :]
    low, middle, high = np.percentile(early, [25, 50, 75])
    late_low, late_middle, late_high = np.percentile(late, [25, 50, 75])
    if middle <= 0 or late_middle <= 0:
        return None
    if early[0] > high + 1.5 * (high - low):
        return False
    close = all(abs(b - a) <= 0.05 * a for a, b in ((middle, late_middle), (low, late_low), (high, late_high)))
    spread = np.median(np.abs(early - middle)) / middle
    late_spread = np.median(np.abs(late - late_middle)) / late_middle
    return bool(close and abs(late_spread - spread) <= 0.10)


def steady_from(times: Sequence[float], fewest: int = 0) -> int | None:
    """Return the index of the first of the last `WINDOW` steps, at least `fewest`, if these are in steady state.

    The result is ``None`` otherwise. When called after each step, it finds the end of the warm-up, which consists of
    the steps before that index.
    """
    first = len(times) - WINDOW
    return first if first >= fewest and is_steady(times[first:]) else None


def require_passing_time(times: Sequence[float]) -> None:
    """Raise `CaptureError` if the clock stood still during all of these steps."""
    if len(times) and not any(times):
        raise CaptureError(
            f"The clock stood still for {len(times)} steps, so they cannot be timed: something replaced "
            "time.perf_counter, as tests that freeze time do; restore it while perfnb measures."
        )
