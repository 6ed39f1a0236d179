"""Choose the number of steps per pass within the user's time budget, and check whether the step time is steady."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfnb.arguments import require_count, require_flag, require_seconds
from perfnb.errors import CaptureError
from perfnb.quantities import duration

#: The minimum number of steps in an automatic warm-up, without and with a GPU.
FLOOR, FLOOR_GPU = 3, 10
#: The share of the budget after which an automatic warm-up ends, even if the step time is not in steady state.
WARMUP_SHARE = 0.2
#: The maximum number of steps in an automatic warm-up, which applies even if the clock stands still.
MOST_WARMUP = 10_000
#: The limits of an automatic timed pass, and the half-width that it aims at for the median's 95 % interval.
FEWEST_TIMED, MOST_TIMED, AIM = 20, 200, 0.02
#: The minimum number of timed steps for a 95 % interval of the median, and how far these steps may exceed the budget.
FEWEST_FOR_INTERVAL, SLACK = 6, 1.05
#: The maximum number of steps in a trial, and the maximum share of the budget that it may use.
MOST_TRIED, TRIAL_SHARE = 10, 0.1
#: The durations planned for a traced step and for a counted step, as multiples of a timed step.
TRACED_FACTOR, COUNTED_FACTOR = 1.5, 2.0
#: How many seconds of steps are sampled at 100 stacks per second, and the maximum number of these steps.
SAMPLED_S, MOST_SAMPLED = 3.0, 2_000
#: The minimum number of seconds to sample, regardless of the budget, in order to collect enough samples.
LEAST_SAMPLED_S = 0.5
#: The maximum number of seconds to sample if the user did not ask for stacks.
BRIEFLY_S = 1.5
#: The maximum number of steps to sample if the user did not ask for stacks: this multiple of the timed steps, or this
#: number.
_UNASKED, _UNASKED_STEPS = 3, 30


@dataclass(frozen=True)
class Plan:
    """The user's options for the number of steps and the time budget.

    If a number of steps is ``None``, perfnb chooses it. The budget limits all passes, but each of them runs at least
    one step, regardless of the budget. If steps are long, the timed pass has priority: it gets enough steps for an
    interval before a second step is traced.
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
        """Decide whether to run another warm-up step, given the durations of the previous ones."""
        if self.warmup is not None:
            return len(times_ns) < self.warmup and (not times_ns or spent_s < self.budget_s / 2)
        if not times_ns:
            return True
        enough = spent_s >= self.budget_s * WARMUP_SHARE or len(times_ns) >= MOST_WARMUP
        if enough or self.steps_are_long(times_ns, spent_s):
            return False
        return len(times_ns) < max(FEWEST, FLOOR_GPU if gpu else FLOOR) or not is_steady(times_ns)

    def steps_are_long(self, times_ns: Sequence[int], spent_s: float) -> bool:
        """Check whether another warm-up step would leave too little time for the timed steps that an interval needs.

        The first step is not typical of the others, because it may compile code or fill caches.
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
        """Return the number of steps to time.

        If the user did not request a number, it is estimated from the spread of the warm-up steps and the target
        precision.
        """
        if self.steps is not None:
            return self.steps
        recent = np.asarray(warm_ns[-FEWEST_TIMED:], dtype=float)
        if len(recent) < FEWEST:
            return FEWEST_TIMED
        # The median's standard error is 1.2533 standard deviations divided by the square root of n. For robustness,
        # the standard deviation is estimated from the quartiles.
        low, middle, high = np.percentile(recent, [25, 50, 75])
        spread = (high - low) / 1.349 / middle if middle > 0 else 0.0
        return int(np.clip(math.ceil((1.96 * 1.2533 * spread / AIM) ** 2), FEWEST_TIMED, MOST_TIMED))

    def goes_on_timing(self, done: int, wanted: int, spent_s: float, step_s: float) -> bool:
        """Decide whether to time another step, reserving time for the later passes.

        Until there are enough steps for an interval, time for a single step is reserved for each later pass. After
        that, time is reserved for all the steps that these passes need.
        """
        if done == 0:
            return True
        if done < min(wanted, FEWEST_FOR_INTERVAL):
            return spent_s + (1 + self._least_after) * step_s <= SLACK * self.budget_s
        counted = 2 * self.memory + self.flops
        kept_back = ((self.traced + 1) * TRACED_FACTOR + counted * COUNTED_FACTOR) * step_s
        return done < wanted and spent_s + step_s + kept_back <= self.budget_s

    def why_longer(self, spent_s: float, step_s: float) -> str | None:
        """After the first step, return a note for the user if the remaining passes will exceed the budget."""
        passes = {"timed": True, "traced": True, "memory": self.memory, "FLOPs": self.flops}
        left = [name for name, wanted in passes.items() if wanted]
        if spent_s + len(left) * step_s <= self.budget_s:
            return None
        return (
            f"a step takes {duration(step_s * 1e3)}: the remaining passes ({', '.join(left)}) need at least one step "
            f"each, about {duration(len(left) * step_s * 1e3)} in total, which exceeds the budget of "
            f"{self.budget_s:g} s"
        )

    def steps_to_try(self, spent_s: float, step_s: float) -> int:
        """Return the number of steps for trying another setting, or 0 if there is not enough time.

        The two steps that run first and are discarded are not included.
        """
        left_s = min(TRIAL_SHARE * self.budget_s, (self.budget_s - spent_s) / 2)
        affordable = int(left_s / step_s) - 2 if step_s > 0 else MOST_TRIED
        return min(MOST_TRIED, affordable) if affordable >= 3 else 0

    def traced_steps(self, spent_s: float, step_s: float) -> tuple[int, bool]:
        """Return the number of steps to trace, and whether to run one that is not analysed beforehand.

        Time for the counted steps is reserved.
        """
        left_s = max(0.0, self.budget_s - spent_s - (self.memory + self.flops) * step_s)
        affordable = int(left_s / (step_s * TRACED_FACTOR)) if step_s > 0 else self.traced + 1
        lead_in = affordable > self.traced
        return max(1, min(self.traced, affordable)), lead_in

    def sampled_steps(self, spent_s: float, step_s: float) -> int:
        """Return the number of steps whose stacks to sample, reserving time for the counted steps."""
        left_s = (self.budget_s - spent_s - 2 * (self.memory + self.flops) * COUNTED_FACTOR * step_s) / 2
        wanted_s = max(LEAST_SAMPLED_S, min(SAMPLED_S, left_s))
        return max(1, min(MOST_SAMPLED, math.ceil(wanted_s / step_s))) if step_s > 0 else FEWEST_TIMED

    def briefly_sampled_steps(self, spent_s: float, step_s: float, timed: int) -> int:
        """Return the number of steps to sample after all other passes if the user did not ask for stacks.

        The number is limited to a small multiple of the timed steps, because each step trains the user's model. It is 0
        if the budget does not allow enough samples.
        """
        left_s = min(BRIEFLY_S, self.budget_s - spent_s)
        if left_s < LEAST_SAMPLED_S or step_s <= 0 or self.budget_s - spent_s < step_s:
            return 0
        return max(1, min(MOST_SAMPLED, max(_UNASKED * timed, _UNASKED_STEPS), int(left_s / step_s)))

    def affords_lead_in(self, spent_s: float, step_s: float) -> bool:
        """Check whether there is time for a lead-in step before the step whose memory is counted."""
        return spent_s + (2 + self.flops) * COUNTED_FACTOR * step_s <= self.budget_s


#: The number of steps used by the test, which compares the first half with the second.
WINDOW = 20
#: The minimum number of steps that the test needs.
FEWEST = 6


def is_steady(times: Sequence[float]) -> bool | None:
    """Check whether the last step times are in steady state.

    The last 20 step times are split into two halves, which must agree. If there are fewer than 20, the largest possible
    even number is used, which must be at least 6. The halves agree if the first value is at most 1.5 interquartile
    ranges above the upper quartile of its half, the medians and outer quartiles differ by at most 5 %, and the spreads
    (median absolute deviation relative to the median) differ by at most 10 percentage points. The thresholds are taken
    from pyperf's warm-up calibration.

    The result is ``None`` if there are too few step times or if the clock stood still.
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
    """Return the index at which the last `WINDOW` steps begin, but at least `fewest`, if they are in steady state.

    Otherwise, return ``None``. Call this function after each step to find the end of the warm-up, which consists of the
    steps before the returned index.
    """
    first = len(times) - WINDOW
    return first if first >= fewest and is_steady(times[first:]) else None


def require_passing_time(times: Sequence[float]) -> None:
    """Raise `CaptureError` if the clock stood still throughout these steps."""
    if len(times) and not any(times):
        raise CaptureError(
            f"The clock stood still for {len(times)} steps, so they cannot be timed: time.perf_counter was replaced, "
            "for example by a test that freezes time. Restore it while perfnb measures."
        )
