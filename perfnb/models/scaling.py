"""`scaling_study`: measure how time and memory grow with size, and predict them at other sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from perfnb.arguments import finite, require_seconds, shown
from perfnb.bench.design import SEED, random_orders, warm_up
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.draw.progress import Progress
from perfnb.models.scaling_view import scaling_document
from perfnb.models.size_laws import SizePrediction, measured_sizes
from perfnb.profile.profiling import run_profile
from perfnb.profile.summary import device_words
from perfnb.profile.timing import noise_sentences
from perfnb.stats.power_law import PowerLaw

#: Share of the budget for timing. The rest is for counting memory and FLOPs.
TIMED_SHARE = 0.7
#: Minimum and maximum number of rounds. Each size runs once per round.
FEWEST_ROUNDS, MOST_ROUNDS = 6, 100


@dataclass(frozen=True, repr=False, eq=False)
class ScalingStudy(Documented):
    """Time and memory as a function of size, which notebooks display.

    Attributes
    ----------
    table : DataFrame
        One row per size, ascending: ``size``, ``median_ms`` with its interval ``ci_low_ms`` to ``ci_high_ms``,
        ``peak_bytes``, ``flops``, and the law's ``predicted_ms`` and ``residual`` (share of the prediction).
    law : PowerLaw
        The law for the median times.
    memory_law : PowerLaw or None
        The law for peak memory, which is counted rather than measured.
    curve : DataFrame
        Predictions on a grid of sizes that is evenly spaced on the log scale: ``size``, ``median_ms``, ``low_ms``,
        ``high_ms``, ``peak_bytes``.
    device : str
    notes : tuple of str
        Caveats about the figures.
    """

    table: pd.DataFrame
    law: PowerLaw
    memory_law: PowerLaw | None
    curve: pd.DataFrame
    device: str
    notes: tuple[str, ...] = ()

    @property
    def fit(self) -> pd.DataFrame:
        """One row per size, with the ``measured`` and ``predicted`` milliseconds and the relative ``residual``."""
        return self.law.fit.copy()

    @property
    def exponent(self) -> float:
        """The time's exponent. For example, 2 means that a step of twice the size takes four times as long."""
        return self.law.exponent

    @property
    def exponent_ci(self) -> tuple[float, float] | None:
        """The exponent's 95 % interval, or ``None`` for two sizes, which are too few for an interval."""
        return self.law.exponent_ci

    @property
    def warning(self) -> str | None:
        """A sentence that explains where a single law does not hold, or ``None`` if it holds everywhere.

        For example, a law can break where the data no longer fits into a cache, or where a different kernel is used.
        """
        return self.law.warning

    def predict(self, size: float) -> SizePrediction:
        """Predict the time and memory of a step of a given size."""
        if (finite(size) or 0.0) <= 0:
            raise ValueError(f"size must be a number above 0, not {shown(size)}.")
        time = self.law.predict(size)
        peak = None if self.memory_law is None else round(self.memory_law.predict(size).median)
        return SizePrediction(float(size), time.median, (time.low, time.high), peak)

    def _document(self) -> Document:
        return scaling_document(self)


def scaling_study(
    make_step: Callable[[Any], Callable[[], Any]], sizes: Iterable[float], *, budget_s: float = 30.0
) -> ScalingStudy:
    """Measure a step at several sizes side by side, and fit a law to its time and memory.

    Parameters
    ----------
    make_step : callable
        ``make_step(size)`` returns the step for that size, which is a function without arguments. The steps for all
        sizes exist at the same time.
    sizes : iterable of number
        At least two sizes above 0. Five or more can show whether a single law holds.
    budget_s : float
        The time limit in seconds for all steps together. Each size runs at least about ten times.

    Returns
    -------
    ScalingStudy

    Raises
    ------
    ValueError
        If there are fewer than two sizes, or if a size is not above 0.
    CaptureError
        Inside a profiler.
    Exception
        Any exception that `make_step` or a step raises, after perfnb has removed all its hooks.
    """
    from perfnb.bench.rounds import Bench
    from perfnb.step.environment import describe_environment

    __tracebackhide__ = True
    require_seconds("budget_s", budget_s)
    chosen: list[Any] = list(set(sizes))
    numbers = all((finite(size) or 0.0) > 0 for size in chosen)
    if len(chosen) < 2 or not numbers:
        raise ValueError(f"sizes must be at least two different numbers above 0, not {shown(chosen)}.")
    chosen.sort()
    given: Any = make_step
    if not callable(given):
        raise TypeError(f"make_step must be a function that returns the step for a size, not {type(given).__name__}.")
    steps = [_made(make_step, size) for size in chosen]
    start = time.perf_counter()
    with Progress() as progress:
        with Bench(steps, progress=progress) as bench:
            steady = warm_up(bench, start, TIMED_SHARE * budget_s)
            pilot_s = float(bench.rounds(random_orders(1, len(steps), SEED + 1)).sum()) / 1e3
            left_s = start + TIMED_SHARE * budget_s - time.perf_counter()
            count = int(min(MOST_ROUNDS, max(FEWEST_ROUNDS, left_s / pilot_s)))
            times = bench.rounds(random_orders(count, len(steps), SEED), planned=count)
        peaks: dict[float, int | None] = {}
        flops: dict[float, int | None] = {}
        for done, (size, step) in enumerate(zip(chosen, steps, strict=True), start=1):
            peaks[size], flops[size] = _counted(step)
            progress("counted", done, len(steps))
    samples_ms = {size: row.tolist() for size, row in zip(chosen, times, strict=True)}
    return ScalingStudy(
        **measured_sizes(samples_ms, peaks, flops),
        device=device_words(describe_environment()),
        notes=(
            *(() if steady is not False else ("Not all sizes had reached steady state when the warm-up ended.",)),
            *noise_sentences(bench.conditions.facts),
        ),
    )


def _made(make_step: Callable[[Any], Any], size: float) -> Callable[[], Any]:
    """Return the step for a size."""
    from perfnb.step.checks import require_steps

    __tracebackhide__ = True
    step = make_step(size)
    if not callable(step):
        raise TypeError(
            f"make_step({shown(size)}) must return a function, the step for that size, but returned "
            f"{type(step).__name__}: write lambda size: lambda: work(size), or define the step as a function inside "
            "make_step."
        )
    require_steps({"the step that make_step returns": step}, None, "")
    return step  # type: ignore[no-any-return]


def _counted(step: Callable[[], Any]) -> tuple[int | None, int | None]:
    """Return a step's peak memory and FLOPs, excluding memory that does not belong to the step."""
    from perfnb.step.budget import Plan

    __tracebackhide__ = True
    plan = Plan(warmup=0, steps=1, traced=1, budget_s=1.0)
    summary = run_profile(step, None, plan=plan, models=None, namespace={}, quiet=True)._summary
    memory, roofline = summary.memory, summary.roofline
    peak = None if memory is None else memory.peak_bytes - memory.by_category["other"]
    return peak or None, None if roofline is None else roofline.flops
