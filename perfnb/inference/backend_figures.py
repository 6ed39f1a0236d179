"""Build the table for a backend comparison and decide which backends to accept.

All functions here are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from perfnb.bench import acceptance
from perfnb.bench.acceptance import Decision, Resource, decide
from perfnb.bench.quality import DIFFERENCE, Loss
from perfnb.bench.values import DIFFERENT, NOISE, SAME, UNCHECKED, Values
from perfnb.stats.comparisons import PairedComparison, compare_with_first
from perfnb.stats.intervals import quantile_interval
from perfnb.stats.step_times import StepTimes

#: Two backends are considered equally fast if their times differ by no more than this fraction.
EQUAL_WITHIN = 0.02
_NUMBERS = (
    *("median_ms", "ci_low_ms", "ci_high_ms", "p95_ms", "ratio", "ratio_low", "ratio_high", "error", "max_distance"),
    "setup_s",
)
_UNKNOWN = (None, None)


@dataclass(frozen=True)
class BackendTrial:
    """A backend that was tried, or the reason why it could not be."""

    backend: str
    why_not: str = ""
    run: Any = None  # takes the model's arguments; ``None`` if it cannot run
    setup_s: float | None = None
    size_bytes: int | None = None
    peak_bytes: int | None = None
    values: Values = Values(UNCHECKED)  # noqa: RUF009
    error: float | None = None  # distance from float64, relative to the outputs' size
    max_distance: float | None = None
    times_ms: tuple[float, ...] = ()

    @property
    def timing(self) -> StepTimes:
        """The backend's times in all rounds."""
        return StepTimes(self.times_ms)


@dataclass(frozen=True)
class BackendRounds:
    """The measurements of a model with each backend."""

    trials: tuple[BackendTrial, ...]  # the unmodified model first
    model: str
    batch_size: int | None
    steady: bool | None  # whether all had reached steady state after the warm-up
    noise: Mapping[str, Any] = field(default_factory=dict)  # conditions that may have disturbed the measurements


@dataclass(frozen=True)
class Judged:
    """The decision whether to use a backend, and the reason."""

    decision: str  # accept, reject or inconclusive; "baseline" for the unmodified model, "refused" if it did not run
    reason: str


def table_of(trials: Sequence[BackendTrial], judged: Mapping[str, Judged]) -> pd.DataFrame:
    """Return one row per backend, starting with the unmodified model."""
    pairs, rows = comparisons(trials), []
    for trial in trials:
        pair, timing, decided = pairs.get(trial.backend), trial.timing, judged[trial.backend]
        low, high = timing.ci_ms or _UNKNOWN
        ratio_low, ratio_high = _UNKNOWN if pair is None else pair.ratio_ci or _UNKNOWN
        rows.append(
            {
                "backend": trial.backend,
                "verdict": "refused" if trial.why_not else "baseline" if pair is None else pair.verdict,
                "median_ms": timing.median_ms,
                "ci_low_ms": low,
                "ci_high_ms": high,
                "p95_ms": timing.quantile_ms(0.95),
                "ratio": None if pair is None else pair.ratio,
                "ratio_low": ratio_low,
                "ratio_high": ratio_high,
                "values": None if trial.why_not else trial.values.verdict,
                "error": trial.error,
                "max_distance": trial.max_distance,
                "size_bytes": trial.size_bytes,
                "peak_memory_bytes": trial.peak_bytes,
                "setup_s": trial.setup_s,
                "decision": decided.decision,
                "reason": decided.reason,
            }
        )
    whole = dict.fromkeys(("size_bytes", "peak_memory_bytes"), "Int64")
    return pd.DataFrame(rows).set_index("backend").astype(dict.fromkeys(_NUMBERS, "Float64") | whole)


def comparisons(trials: Sequence[BackendTrial]) -> dict[str, PairedComparison]:
    """Compare each backend's times with the unmodified model's, applying Holm's correction across all backends."""
    timed = [trial for trial in trials if trial.times_ms]
    if len(timed) < 2:
        return {}
    rows = np.array([trial.times_ms for trial in timed], dtype=np.float64)
    pairs = compare_with_first(rows, equal_within=EQUAL_WITHIN)
    return {trial.backend: pair for trial, pair in zip(timed[1:], pairs, strict=True)}


def judge(trial: BackendTrial, verdict: str, losses: Sequence[Loss] | None, limits: Mapping[str, float]) -> Judged:
    """Decide whether to use a backend, based on the rules of `perfnb.ab_test`.

    `losses` are the losses that the quality function returned. If there is no quality function, they are ``None``, and
    the decision is based on the outputs instead.
    """
    known = _losses_of_values(trial, limits) if losses is None else tuple(losses)
    timing = trial.timing
    measured: dict[str, tuple[float | None, tuple[float, float] | None]] = {
        "peak_memory_bytes": (trial.peak_bytes, None),
        "median_ms": (timing.median_ms, timing.ci_ms),
        "p95_ms": (timing.quantile_ms(0.95), quantile_interval(trial.times_ms, 0.95)),
    }
    resources = [
        Resource(name, value, limits[name], interval) for name, (value, interval) in measured.items() if name in limits
    ]
    names = {loss.name for loss in known}
    unmatched = [name for name in limits if name not in names and name not in measured]
    decision = decide(verdict, known, resources, unmatched)
    return Judged(decision.decision, _reason(decision, trial, known, judged=losses is not None))


def _losses_of_values(trial: BackendTrial, limits: Mapping[str, float]) -> tuple[Loss, ...]:
    """Return the outputs' distance from float64, together with its limit.

    If the user did not set a limit, it follows from the verdict on the outputs.
    """
    if trial.error is None:
        return ()
    if (limit := limits.get(DIFFERENCE)) is not None:
        return (Loss(DIFFERENCE, trial.error, limit=limit),)
    if trial.values.verdict == DIFFERENT:
        return (Loss(DIFFERENCE, math.inf),)
    return (Loss(DIFFERENCE, trial.error, limit=math.inf if trial.values.verdict in (SAME, NOISE) else None),)


def _reason(decision: Decision, trial: BackendTrial, losses: Sequence[Loss], judged: bool) -> str:
    about, verdict, why = ", ".join(decision.about), trial.values.verdict, trial.values.why
    reasons = {
        acceptance.WORSE: "; ".join(_over(loss) for loss in losses if loss.name in decision.about),
        acceptance.OVER: f"over the limit of {about}",
        acceptance.SLOWER: "slower than the unmodified model",
        acceptance.NO_GAIN: f"as fast as the unmodified model, within {EQUAL_WITHIN:.0%}",
        acceptance.CANNOT_TELL: "no clear difference in time: raise budget_s",
        acceptance.UNJUDGED: f"faster, but {about} has no limit, and the unmodified model has no finite one",
        acceptance.UNMEASURED: f"faster, but {about} was not measured",
        acceptance.UNSURE: f"faster, but {about} may be over its limit: raise budget_s",
        acceptance.GAIN: "faster, and good enough",
    }
    if not judged:
        outputs = {SAME: "exactly the same", NOISE: "the same within noise"}.get(verdict, "within the limit")
        reasons[acceptance.GAIN] = f"faster, and its outputs are {outputs}"
        reasons[acceptance.UNJUDGED] = "faster, in lower precision: pass quality=, or limits={'difference': ...}"
        if verdict == UNCHECKED:
            reasons[acceptance.UNJUDGED] = f"faster, but its outputs could not be checked: {why}"
        if verdict == DIFFERENT:
            reasons[acceptance.WORSE] = f"its outputs are different: {why}"
    return reasons[decision.cause]


def _over(loss: Loss) -> str:
    largest = "" if loss.largest is None else f", more than {loss.largest:.3g}"
    return f"{loss.name} is {loss.candidate:.3g}{largest}"
