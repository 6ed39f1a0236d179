"""How many steps each pass runs, within the time that the user gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfnb.arguments import require_count, require_seconds, shown
from perfnb.errors import CaptureError

#: Fewest steps of an automatic warm-up, without and with a GPU.
FLOOR, FLOOR_GPU = 3, 10
#: Share of the budget after which an automatic warm-up ends, steady or not.
WARMUP_SHARE = 0.2
#: Most steps of an automatic warm-up, whatever the clock says.
MOST_WARMUP = 10_000
#: Bounds and aim of an automatic timed pass: half-width of the median's 95 % interval.
FEWEST_TIMED, MOST_TIMED, AIM = 20, 200, 0.02
#: Fewest timed steps for a 95 % interval of the median, and by how much they may overrun the budget's plan.
FEWEST_FOR_INTERVAL, SLACK = 6, 1.05
#: Most steps of a trial, and the share of the budget that it may take.
MOST_TRIED, TRIAL_SHARE = 10, 0.1
#: A traced step, and a counted one, is planned to take this much longer than a timed one.
TRACED_FACTOR, COUNTED_FACTOR = 1.5, 2.0


@dataclass(frozen=True)
class Plan:
    """What the user asked for: ``None`` leaves a number of steps to perfnb; the budget bounds all of them.

    Every pass runs at least one step, whatever the budget. Where steps are long, the timed pass comes first: it gets
    the steps for an interval before there is a second one to trace.
    """

    warmup: int | None = None
    steps: int | None = None
    traced: int = 3
    budget_s: float = 30.0
    memory: bool = True
    flops: bool = True

    def __post_init__(self) -> None:
        for name, least in (("warmup", 0), ("steps", 1)):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), least)
        require_count("traced", self.traced, 1)
        require_seconds("budget_s", self.budget_s)
        for name in ("memory", "flops"):
            value = getattr(self, name)
            if not isinstance(value, (bool, int, np.bool_)) or value not in (0, 1):
                raise TypeError(f"{name} must be True or False, not {shown(value)}.")

    def goes_on_warming(self, times_ns: Sequence[int], spent_s: float, gpu: bool) -> bool:
        """Whether the warm-up runs another step after steps of these durations."""
        if self.warmup is not None:
            return len(times_ns) < self.warmup and (not times_ns or spent_s < self.budget_s / 2)
        if not times_ns:
            return True
        enough = spent_s >= self.budget_s * WARMUP_SHARE or len(times_ns) >= MOST_WARMUP
        if enough or self.steps_are_long(times_ns, spent_s):
            return False
        return len(times_ns) < max(FEWEST, FLOOR_GPU if gpu else FLOOR) or not is_steady(times_ns)

    def steps_are_long(self, times_ns: Sequence[int], spent_s: float) -> bool:
        """Whether the warm-up ends because another of its steps would cost the timed pass its interval.

        The first step tells nothing of the others: it may compile, or fill caches.
        """
        if self.warmup is not None or len(times_ns) < 2:
            return False
        step_s = times_ns[-1] / 1e9
        return spent_s + (1 + FEWEST_FOR_INTERVAL + self._least_after) * step_s > self.budget_s

    @property
    def _least_after(self) -> int:
        """Steps that must come after the timed ones."""
        return 1 + self.memory + self.flops

    def timed_steps(self, warm_ns: Sequence[int]) -> int:
        """How many steps to time: those asked for, or as many as the aim needs by the spread of the warm-up's end."""
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
        """Whether the timed pass runs another step; time for the passes after it is kept back.

        Up to the steps for an interval that is time for a step of each, from then on for all that they want.
        """
        if done == 0:
            return True
        if done < min(wanted, FEWEST_FOR_INTERVAL):
            return spent_s + (1 + self._least_after) * step_s <= SLACK * self.budget_s
        counted = 2 * self.memory + self.flops
        kept_back = ((self.traced + 1) * TRACED_FACTOR + counted * COUNTED_FACTOR) * step_s
        return done < wanted and spent_s + step_s + kept_back <= self.budget_s

    def why_longer(self, spent_s: float, step_s: float) -> str | None:
        """After the first step: how often a step will run although the budget is too short for it, and why."""
        passes = {"timed": True, "traced": True, "memory": self.memory, "FLOPs": self.flops}
        left = [name for name, wanted in passes.items() if wanted]
        if spent_s + len(left) * step_s <= self.budget_s:
            return None
        return (
            f"a step takes {step_s:.3g} s: it will run at least {len(left)} times more, for about "
            f"{len(left) * step_s:.3g} s, past the budget of {self.budget_s:g} s, because each pass needs one "
            f"({', '.join(left)})"
        )

    def steps_to_try(self, spent_s: float, step_s: float) -> int:
        """How many steps another setting is tried with, after two that are not counted; 0 where time is short."""
        left_s = min(TRIAL_SHARE * self.budget_s, (self.budget_s - spent_s) / 2)
        affordable = int(left_s / step_s) - 2 if step_s > 0 else MOST_TRIED
        return min(MOST_TRIED, affordable) if affordable >= 3 else 0

    def traced_steps(self, spent_s: float, step_s: float) -> tuple[int, bool]:
        """How many steps to trace, and whether an unanalysed one goes before them; a counted step is kept back."""
        left_s = max(0.0, self.budget_s - spent_s - (self.memory + self.flops) * step_s)
        affordable = int(left_s / (step_s * TRACED_FACTOR)) if step_s > 0 else self.traced + 1
        lead_in = affordable > self.traced
        return max(1, min(self.traced, affordable)), lead_in

    def affords_lead_in(self, spent_s: float, step_s: float) -> bool:
        """Whether a step may go before the one whose memory is counted."""
        return spent_s + (2 + self.flops) * COUNTED_FACTOR * step_s <= self.budget_s


#: Steps that the test looks at; half of them are compared with the other half.
WINDOW = 20
#: Fewest steps that the test can judge.
FEWEST = 6


def is_steady(times: Sequence[float]) -> bool | None:
    """Whether the last step times show no trend; ``None`` where there are too few to tell, or the clock stood still.

    The last 20 (or, where fewer were run, an even number of at least 6) are split in two halves that must agree:
    the first value of the earlier half lies below its upper quartile plus 1.5 interquartile ranges, the medians
    and the outer quartiles differ by at most 5 %, the spreads (median absolute deviation, as a share of the
    median) by at most 10 points. The thresholds are those of pyperf's calibration of warm-ups.
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
    """Number of the first of the last `WINDOW` steps, `fewest` or later, where these show no trend; else ``None``.

    Asked after each step, it tells where the warm-up ended: with the steps before that number.
    """
    first = len(times) - WINDOW
    return first if first >= fewest and is_steady(times[first:]) else None


def require_passing_time(times: Sequence[float]) -> None:
    """Refuse to judge steps by a clock that stood still while all of them ran.

    Raises
    ------
    CaptureError
    """
    if len(times) and not any(times):
        raise CaptureError(
            f"The clock stood still for {len(times)} steps, so they cannot be timed: something has replaced "
            "time.perf_counter, as tests that freeze time do; let it run while perfnb measures."
        )
