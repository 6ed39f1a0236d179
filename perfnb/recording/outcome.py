"""Record what was found when something was saved: a few dated facts, which make a list of many saved things possible.

They are in the JSON file of a saved profile, run or report under ``outcome``, and are never computed again: they record
perfnb's findings at that time. Any reader of JSON can list them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import pandas as pd
from msgspec import Meta, Struct, field

from perfnb.analysis_version import analysis_version
from perfnb.quantities import known, known_bounds
from perfnb.recording.saved_facts import Amount, Count

#: Figures that are whole numbers.
_TYPES: Mapping[str, Any] = {"peak_bytes": int, "batch_size": int}
#: Facts of the environment that have a field of their own.
_NAMED = ("host", "torch", "commit")


class FindingOutcome(Struct, frozen=True):
    """A row of ``findings``."""

    bottleneck: str
    confidence: str
    bound_ms: Amount | None = None


class Outcome(Struct, frozen=True, kw_only=True):
    """The results that were found, in milliseconds and bytes; ``None`` for unknown facts.

    Attributes
    ----------
    at : datetime
        When it was first saved or, for a report, measured.
    name : str
    verdict : str or None
        What holds the step or run back; of a report, its decision.
    confidence : str or None
        Of the finding that the verdict rests on, like `bound_ms`.
    bound_ms : float or None
        The most that following the verdict could save per step.
    findings : tuple of FindingOutcome
        All findings, largest bound first.
    step_ms, step_ci_ms : float, tuple or None
        Median step time and its 95 % interval; of a report, those of the candidate.
    ratio, ratio_ci : float, tuple or None
        Of a report: the candidate's step time divided by the baseline's.
    data_share : float or None
        Share of the step that is waiting for data, 0 to 1.
    peak_bytes : int or None
        Peak memory of a step; of a run, of all of it.
    batch_size : int or None
        Samples per step.
    host, device, torch, commit : str or None
        Where it was measured: the machine, what the step ran on, the version of PyTorch, and the user's commit.
    environment : mapping
        Other facts about where it was measured: threads, precision, versions.
    analysis : str or None
        The version of the analysis that found the verdict; see `perfnb.analysis_version`.
    """

    at: Annotated[datetime, Meta(tz=True)]
    name: str
    verdict: str | None = None
    confidence: str | None = None
    bound_ms: Amount | None = None
    findings: tuple[FindingOutcome, ...] = ()
    step_ms: Amount | None = None
    step_ci_ms: tuple[Amount, Amount] | None = None
    ratio: Amount | None = None
    ratio_ci: tuple[Amount, Amount] | None = None
    data_share: Amount | None = None
    peak_bytes: Count | None = None
    batch_size: Count | None = None
    host: str | None = None
    device: str | None = None
    torch: str | None = None
    commit: str | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    analysis: str | None = None


def make_outcome(
    name: str,
    environment: Mapping[str, Any],
    *,
    verdict: str | None = None,
    findings: pd.DataFrame | None = None,
    row: int | None = None,
    interval_ms: tuple[float, float] | None = None,
    ratio_interval: tuple[float, float] | None = None,
    **figures: float | None,
) -> Outcome:
    """Make an outcome; figures that are not finite are unknown.

    Parameters
    ----------
    name : str
    environment : mapping
        As `perfnb.step.environment.provenance` gives it, or less.
    verdict : str, optional
    findings : DataFrame, optional
        With the columns ``bottleneck``, ``confidence`` and ``bound_ms``.
    row : int, optional
        The finding that the verdict rests on.
    interval_ms, ratio_interval : pair of float, optional
    **figures : float or None
        ``step_ms``, ``ratio``, ``data_share``, ``peak_bytes`` and ``batch_size``.
    """
    columns = ["bottleneck", "confidence", "bound_ms"]
    rows: Iterable[Any] = () if findings is None else findings[columns].itertuples(index=False)
    listed = tuple(FindingOutcome(str(name), str(sure), known(bound)) for name, sure, bound in rows)
    chosen = None if row is None else listed[row]
    # torch's version has a type of its own
    texts: dict[str, Any] = {name: str(environment[name]) for name in _NAMED if environment.get(name) is not None}
    return Outcome(
        at=_date(environment.get("at")),
        name=name,
        verdict=verdict,
        confidence=None if chosen is None else chosen.confidence,
        bound_ms=None if chosen is None else chosen.bound_ms,
        findings=listed,
        step_ci_ms=known_bounds(interval_ms),
        ratio_ci=known_bounds(ratio_interval),
        device=", ".join(environment.get("gpus") or []) or environment.get("processor"),
        environment={name: value for name, value in environment.items() if name not in (*_NAMED, "at")},
        analysis=analysis_version(),
        **texts,
        **{key: None if known(value) is None else _TYPES.get(key, float)(value) for key, value in figures.items()},
    )


def _date(text: Any) -> datetime:
    """Return when something was measured, or now."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return datetime.now(UTC)
