"""Measure how long a step takes, and how precise the measurement is (`time_step`)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from perfnb.bench.design import MOST_WARMUP
from perfnb.draw.progress import Progress
from perfnb.profile.timing import Timing, shown
from perfnb.stats.planning import plan_steps, steps_in_block, still_needed
from perfnb.stats.step_times import timing_of_batches

#: The number of steps is planned from this many steps at the end of the warm-up.
PILOT = 20
#: The maximum number of samples, regardless of the budget, because the clock may have stopped.
MOST_SAMPLES = 100_000


def time_step(
    step: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    steps: int | None = None,
    budget_s: float = 10.0,
) -> Timing:
    """Warm up a step, and then run it until its time is known to within 2 % or the budget is used up.

    Steps without `batches` that take less than 0.1 ms are timed in blocks of at least 1 ms.

    Parameters
    ----------
    step : callable
        One step: ``step()``, or ``step(batch)`` with `batches`. The time spent waiting for a batch is included.
    batches : iterable, optional
        The batches, which are restarted when they are exhausted.
    steps : int, optional
        The number of steps to time individually. By default, as many steps are timed as are needed for an interval
        within 2 % of the median.
    budget_s : float
        The time limit for all steps together, in seconds. At least one step is timed. If the interval is still too wide
        when the budget is used up, the result contains a note.

    Returns
    -------
    Timing

    Raises
    ------
    TypeError
        If `step` is not callable, if `batches` is a single batch, or if the two do not match.
    ValueError
        If the number of steps or the budget is invalid.
    CaptureError
        If another profiler is active, or if the batches run out.
    Exception
        Any exception raised by `step` or `batches`, after perfnb has removed everything that it installed.
    """
    from perfnb.bench.rounds import Bench
    from perfnb.step.budget import FLOOR, FLOOR_GPU, WARMUP_SHARE, WINDOW, Plan, require_passing_time, steady_from
    from perfnb.step.checks import require_steps
    from perfnb.step.device import accelerator_in_use

    __tracebackhide__ = True
    Plan(steps=steps, budget_s=budget_s)  # validates the arguments
    require_steps({"step": step}, batches, "time_step(step, loader)")
    begin = time.perf_counter()
    with Progress() as progress, Bench([step], batches, progress) as bench:
        series: list[float] = []
        first: int | None = None
        while first is None and len(series) < MOST_WARMUP:
            series += _run(bench, 1, "warmup")
            if time.perf_counter() - begin > WARMUP_SHARE * budget_s:
                break
            first = steady_from(series, FLOOR_GPU if accelerator_in_use() else FLOOR)
        require_passing_time(series)
        warm = len(series) if first is None else first
        end, pilot = begin + budget_s, series[-PILOT:]
        block = steps_in_block(median(pilot) / 1e3) if steps is None and batches is None else 1
        # Steps that were already steady count as samples, except with blocks.
        before = warm if block == 1 else len(series)
        if steps is None:
            samples, wanted = _until_known(bench, series[before:], pilot, end, block)
        else:
            samples, wanted = series[before:][:steps], steps
            if len(samples) < steps:
                samples += _run(bench, steps - len(samples), "timed", end)
    noise = bench.conditions.facts
    noise["gc_pauses"] = [[place - before, ms] for place, ms in noise["gc_pauses"] if place >= before]
    return shown(
        timing_of_batches(
            samples,
            bench.sizes[before : before + len(samples)],
            warmup_ms=tuple(series[:before]),
            steady=None if len(series) < WINDOW else first is not None,
            noise=noise,
            wanted=wanted,
            block=block,
        )
    )


def _until_known(
    bench: Any, samples: list[float], pilot: list[float], end: float, block: int
) -> tuple[list[float], int]:
    """Time steps until the interval is narrow enough or the time limit is reached.

    Return the samples and the number of steps needed.
    """
    __tracebackhide__ = True
    left_s = max(0.0, end - time.perf_counter())
    needed = count = PILOT
    if min(pilot) > 0:
        plan = plan_steps(pilot, budget_s=left_s / block)
        needed, count = plan.needed, plan.count
    samples = samples[:count]
    while True:
        if len(samples) < count:
            samples += _run(bench, count - len(samples), "timed", end, block)
        more = min(still_needed(samples), MOST_SAMPLES - len(samples))
        if more == 0:
            return samples, block * len(samples)
        needed = max(needed, len(samples) + more)
        each_s = block * median(samples) / 1e3
        affordable = more if each_s <= 0 else int((end - time.perf_counter()) / each_s)
        if affordable < 1:
            return samples, block * needed
        count = len(samples) + min(more, affordable)


def _run(bench: Any, count: int, pass_name: str, until: float | None = None, block: int = 1) -> list[float]:
    """Time `count` steps or blocks, and return the milliseconds per step."""
    __tracebackhide__ = True
    (durations,) = bench.rounds(
        itertools.repeat((0,), count), pass_name=pass_name, planned=count, until=until, repeat=block
    )
    return (durations / block).tolist()  # type: ignore[no-any-return]
