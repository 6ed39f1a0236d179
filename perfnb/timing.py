"""`time_step`: how long a step takes, and how well that is known."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb.analysis import timing as analysis
from perfnb.analysis.planning import plan_steps
from perfnb.analysis.timing import timing_of_batches
from perfnb.errors import RecordingError
from perfnb.frames import measurements
from perfnb.views.progress import Progress
from perfnb.views.timing import timing_html, timing_text

#: Share of the budget after which the warm-up ends, steady or not; greatest number of its steps.
WARMUP_SHARE, MOST_WARMUP = 0.2, 200
#: Steps at the end of the warm-up by which the number of steps is planned.
PILOT = 20


#: What is saved of a timing, beside its steps.
_FACTS = ("batch_size", "samples", "steady", "noise", "wanted")


class Timing(analysis.Timing):
    """Step times, measured without profiler and hooks. Shows itself as a line and a small picture."""

    def save(self, path: str | Path) -> Path:
        """Write the step times to the folder `path` (Parquet and JSON), whole or not at all; `perfnb.load` reads it.

        Raises
        ------
        RecordingError
            If something that is no timing stands there, or it cannot be written.
        """
        parts = (("warmup", self.warmup_ms), ("timed", self.samples_ms))
        steps = pd.DataFrame([(name, ms) for name, times in parts for ms in times], columns=["pass", "wall_ms"])
        return measurements.save_timing(
            steps.astype({"pass": "str", "wall_ms": "float64"}), {name: getattr(self, name) for name in _FACTS}, path
        )

    def __str__(self) -> str:
        return timing_text(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": timing_html(self)}


def shown(timing: analysis.Timing) -> Timing:
    """The same figures, as what shows itself."""
    return Timing(**{name: getattr(timing, name) for name in analysis.Timing.__dataclass_fields__})


def load_timing(path: str | Path) -> Timing:
    """Read step times that `Timing.save` wrote.

    Raises
    ------
    RecordingError
        If there are none, or damaged ones.
    """
    steps, meta = measurements.load_timing(path)
    try:
        warmup, timed = (
            tuple(float(ms) for ms in steps.loc[steps["pass"] == name, "wall_ms"]) for name in ("warmup", "timed")
        )
        return Timing(samples_ms=timed, warmup_ms=warmup, **{name: meta[name] for name in _FACTS})
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{path} is damaged: its steps are not what a timing writes ({error}).") from error


def time_step(
    step: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    steps: int | None = None,
    budget_s: float = 10.0,
) -> Timing:
    """Run a step until it is warm, then as often as its spread asks for, and tell how long it takes.

    Parameters
    ----------
    step : callable
        One step: ``step()``, or ``step(batch)`` where there are `batches`; the wait for a batch counts.
    batches : iterable, optional
        Begun again when they run out.
    steps : int, optional
        Steps to time. By default as many as put the ends of the interval 2 % from the median, planned from a pilot.
    budget_s : float
        Seconds that all steps together may take; one step is timed at least.

    Returns
    -------
    Timing

    Raises
    ------
    TypeError
        If `step` is none or `batches` are one batch, or one does not fit the other.
    ValueError
        For a number of steps or a budget that makes no sense.
    CaptureError
        Inside a profiler, or with batches that run out.
    Exception
        Whatever `step` or `batches` raise, after everything that perfnb installed has been removed.
    """
    from perfnb.capture.bench import Bench
    from perfnb.capture.budget import FLOOR, FLOOR_GPU, Plan
    from perfnb.capture.device import cuda_in_use
    from perfnb.capture.given import require_steps
    from perfnb.capture.steady import WINDOW, require_passing_time, steady_from

    __tracebackhide__ = True
    Plan(steps=steps, budget_s=budget_s)  # refuses what makes no sense
    require_steps({"step": step}, batches, "time_step(step, loader)")
    begin = time.perf_counter()
    with Progress() as progress, Bench([step], batches, progress) as bench:
        series: list[float] = []
        first: int | None = None
        while first is None and len(series) < MOST_WARMUP:
            series += _run(bench, 1, "warmup")
            if time.perf_counter() - begin > WARMUP_SHARE * budget_s:
                break
            first = steady_from(series, FLOOR_GPU if cuda_in_use() else FLOOR)
        require_passing_time(series)
        warm = len(series) if first is None else first
        left_s = max(0.0, begin + budget_s - time.perf_counter())
        wanted = plan_steps(series[-PILOT:], budget_s=left_s).count if steps is None else steps
        samples = series[warm:][:wanted]  # what was steady already is a measurement like those that follow
        if len(samples) < wanted:
            samples += _run(bench, wanted - len(samples), "timed", begin + budget_s)
    noise = bench.conditions.facts
    noise["gc_pauses"] = [[place - warm, ms] for place, ms in noise["gc_pauses"] if place >= warm]
    return shown(
        timing_of_batches(
            samples,
            bench.sizes[warm : warm + len(samples)],
            warmup_ms=tuple(series[:warm]),
            steady=None if len(series) < WINDOW else first is not None,
            noise=noise,
            wanted=wanted,
        )
    )


def _run(bench: Any, count: int, pass_name: str, until: float | None = None) -> list[float]:
    """Milliseconds of `count` steps."""
    __tracebackhide__ = True
    (durations,) = bench.rounds(itertools.repeat((0,), count), pass_name=pass_name, planned=count, until=until)
    return [duration / 1e6 for duration in durations]
