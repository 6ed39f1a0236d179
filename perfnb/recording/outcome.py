"""Record the findings at the time when a profile, run or report was saved.

An outcome consists of a few dated facts, which are used to list many saved profiles, runs and reports at once.

It is stored under ``outcome`` in the JSON file, where any JSON reader can find it. It is never recomputed, because it
records the findings that perfnb reported at that time.
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

#: Figures that must be whole numbers.
_TYPES: Mapping[str, Any] = {"peak_bytes": int, "batch_size": int}
#: Facts about the environment that are stored in separate fields.
_NAMED = ("host", "torch", "commit")


class FindingOutcome(Struct, frozen=True):
    """A row in ``findings``."""

    bottleneck: str
    confidence: str
    bound_ms: Amount | None = None


class Outcome(Struct, frozen=True, kw_only=True):
    """The recorded results. Times are in milliseconds, sizes in bytes, and unknown facts are ``None``.

    Attributes
    ----------
    at : datetime
        The time when it was first saved or, for a report, when it was measured.
    name : str
    verdict : str or None
        The main bottleneck of the step or run, or for a report, the decision.
    confidence : str or None
        The confidence of the finding that the verdict is based on. `bound_ms` comes from the same finding.
    bound_ms : float or None
        The maximum time per step that following the verdict could save.
    findings : tuple of FindingOutcome
        All findings, largest bound first.
    step_ms, step_ci_ms : float, tuple or None
        The median step time and its 95 % interval. For a report, they are the candidate's.
    ratio, ratio_ci : float, tuple or None
        For a report, the candidate's step time divided by the baseline's.
    data_share : float or None
        The share of the step spent waiting for data, 0 to 1.
    peak_bytes : int or None
        The peak memory of a step, or of a whole run.
    batch_size : int or None
        The number of samples per step.
    host, device, torch, commit : str or None
        The measurement's circumstances: the machine, the device that the step ran on, the PyTorch version, and the
        user's commit.
    environment : mapping
        Other facts about the environment: threads, precision, and versions.
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
    """Create an outcome. Figures that are not finite are treated as unknown.

    Parameters
    ----------
    name : str
    environment : mapping
        The mapping returned by `perfnb.step.environment.provenance`, or a part of it.
    verdict : str, optional
    findings : DataFrame, optional
        With the columns ``bottleneck``, ``confidence`` and ``bound_ms``.
    row : int, optional
        The row in `findings` that the verdict is based on.
    interval_ms, ratio_interval : pair of float, optional
    **figures : float or None
        ``step_ms``, ``ratio``, ``data_share``, ``peak_bytes`` and ``batch_size``.
    """
    columns = ["bottleneck", "confidence", "bound_ms"]
    rows: Iterable[Any] = () if findings is None else findings[columns].itertuples(index=False)
    listed = tuple(FindingOutcome(str(name), str(sure), known(bound)) for name, sure, bound in rows)
    chosen = None if row is None else listed[row]
    # torch uses a special type for its version
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
    """Return the time when something was measured, or the current time."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return datetime.now(UTC)
