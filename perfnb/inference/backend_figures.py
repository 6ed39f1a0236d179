"""What a comparison of backends says: its table, and which backends to accept. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from perfnb.bench import deciding
from perfnb.bench.deciding import Decision, Resource, decide
from perfnb.bench.quality import DIFFERENCE, RESOURCES, Loss
from perfnb.bench.values import DIFFERENT, NOISE, SAME, UNCHECKED, Values
from perfnb.stats.comparisons import compare_with_first
from perfnb.stats.intervals import interval_of_median, quantile_interval
from perfnb.stats.step_times import StepTimes

#: Relative difference of time up to which two backends count as the same.
EQUAL_WITHIN = 0.02
_NUMBERS = (
    *("median_ms", "ci_low_ms", "ci_high_ms", "p95_ms", "ratio", "ratio_low", "ratio_high", "error", "max_distance"),
    "setup_s",
)


@dataclass
class Trial:
    """One backend that was tried, or why it was not."""

    backend: str
    words: str
    lowers: str = ""
    why_not: str = ""
    values: Values = Values(UNCHECKED)  # noqa: RUF009
    error: float | None = None  # distance from float64, relative to the size of the outputs
    max_distance: float | None = None
    setup_s: float | None = None
    size_bytes: int | None = None
    peak_bytes: int | None = None
    times_ms: tuple[float, ...] = ()
    run: Callable[..., Any] | None = None  # called as the model is


@dataclass(frozen=True)
class Judged:
    """Whether to use a backend, and why."""

    decision: str  # accept, reject, inconclusive; "baseline" for the model as it is, "refused" if it did not run
    reason: str


def table_of(trials: Sequence[Trial], judged: Mapping[str, Judged]) -> pd.DataFrame:
    """A row per backend, the model as it is first."""
    found = comparisons(trials)
    rows = []
    for one in trials:
        timing, pair = StepTimes(one.times_ms), found.get(one.backend)
        interval = interval_of_median(one.times_ms) if one.times_ms else None
        rows.append(
            {
                "backend": one.backend,
                "verdict": "refused" if one.why_not else "baseline" if pair is None else pair.verdict,
                "median_ms": timing.median_ms if one.times_ms else None,
                "ci_low_ms": None if interval is None else interval.low,
                "ci_high_ms": None if interval is None else interval.high,
                "p95_ms": timing.quantile_ms(0.95) if one.times_ms else None,
                "ratio": None if pair is None else pair.ratio,
                "ratio_low": None if pair is None or pair.ratio_ci is None else pair.ratio_ci[0],
                "ratio_high": None if pair is None or pair.ratio_ci is None else pair.ratio_ci[1],
                "values": None if one.why_not else one.values.verdict,
                "error": one.error,
                "max_distance": one.max_distance,
                "size_bytes": one.size_bytes,
                "peak_memory_bytes": one.peak_bytes,
                "setup_s": one.setup_s,
                "decision": judged[one.backend].decision,
                "reason": judged[one.backend].reason,
            }
        )
    whole = dict.fromkeys(("size_bytes", "peak_memory_bytes"), "Int64")
    return pd.DataFrame(rows).set_index("backend").astype(dict.fromkeys(_NUMBERS, "Float64") | whole)


def comparisons(trials: Sequence[Trial]) -> dict[str, Any]:
    """Each backend's times against those of the model as it is, with Holm's correction over all."""
    timed = [one for one in trials if one.times_ms]
    if len(timed) < 2:
        return {}
    rows = np.array([one.times_ms for one in timed], dtype=np.float64)
    found = compare_with_first(rows, equal_within=EQUAL_WITHIN)
    return {one.backend: pair for one, pair in zip(timed[1:], found, strict=True)}


def judge(trial: Trial, verdict: str, losses: Sequence[Loss] | None, limits: Mapping[str, float]) -> Judged:
    """Whether to use a backend, by the rules of `perfnb.ab_test`.

    `losses` are those of the user's quality function; ``None`` without one: then outputs are judged.
    """
    known = _losses_of_values(trial, limits) if losses is None else tuple(losses)
    timing = StepTimes(trial.times_ms)
    measured: dict[str, float | None] = {
        "peak_memory_bytes": trial.peak_bytes,
        "median_ms": timing.median_ms,
        "p95_ms": timing.quantile_ms(0.95),
    }
    interval = interval_of_median(trial.times_ms)
    vary = {
        "median_ms": None if interval is None else (interval.low, interval.high),
        "p95_ms": quantile_interval(trial.times_ms, 0.95),
    }
    resources = [Resource(name, measured[name], limits[name], vary.get(name)) for name in RESOURCES if name in limits]
    names = {loss.name for loss in known}
    unmatched = [name for name in limits if name not in names and name not in RESOURCES]
    decision = decide(verdict, known, resources, unmatched)
    return Judged(decision.decision, _reason(decision, trial, known, judged=losses is not None))


def _losses_of_values(trial: Trial, limits: Mapping[str, float]) -> tuple[Loss, ...]:
    """The distance of the outputs from float64, with the user's limit, or the one that the verdict on them implies."""
    if trial.error is None:
        return ()
    if (limit := limits.get(DIFFERENCE)) is not None:
        return (Loss(DIFFERENCE, trial.error, limit=limit),)
    if trial.values.verdict == DIFFERENT:
        return (Loss(DIFFERENCE, math.inf),)
    return (Loss(DIFFERENCE, trial.error, limit=math.inf if trial.values.verdict in (SAME, NOISE) else None),)


def _reason(decision: Decision, trial: Trial, losses: Sequence[Loss], judged: bool) -> str:
    cause, about = decision.cause, decision.about
    if cause == deciding.WORSE:
        if not judged and trial.values.verdict == DIFFERENT:
            return f"its outputs are different: {trial.values.why}"
        return "; ".join(_over(loss) for loss in losses if loss.name in about)
    if cause == deciding.OVER:
        return f"over the limit of {', '.join(about)}"
    if cause == deciding.SLOWER:
        return "slower than the model as it is"
    if cause == deciding.NO_GAIN:
        return f"as fast as the model as it is, within {EQUAL_WITHIN:.0%}"
    if cause == deciding.CANNOT_TELL:
        return "no clear difference of time: raise budget_s"
    if cause == deciding.UNJUDGED:
        if judged:
            return f"faster, but {', '.join(about)} has no limit and the model as it is none that is finite"
        if trial.values.verdict == UNCHECKED:
            return f"faster, but its outputs could not be checked: {trial.values.why}"
        return "faster, in lower precision: pass quality=, or limits={'difference': ...}"
    if cause == deciding.UNMEASURED:
        return f"faster, but {', '.join(about)} was not measured"
    if cause == deciding.UNSURE:
        return f"faster, but {', '.join(about)} may be over its limit: raise budget_s"
    return "faster, and good enough" if judged else f"faster, and its outputs are {_words(trial)}"


def _words(trial: Trial) -> str:
    verdict = trial.values.verdict
    return {SAME: "exactly the same", NOISE: "the same within noise"}.get(verdict, "within the limit")


def _over(loss: Loss) -> str:
    largest = "" if loss.largest is None else f", more than {loss.largest:.3g}"
    return f"{loss.name} is {loss.candidate:.3g}{largest}"
