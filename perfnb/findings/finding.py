"""Findings, and the rules that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pandas as pd

from perfnb.recording.schema import conform

if TYPE_CHECKING:
    from perfnb.findings.facts import Facts

Confidence = Literal["high", "medium", "low"]
_TEXTS = ("bottleneck", "evidence", "advice", "code", "remedy", "confidence", "why", "blind")


class Row(NamedTuple):
    """A row of another table that a finding is about."""

    #: ``layer``, ``op``, ``phase``, ``kernel``, ``step`` (number of a timed step), ``memory`` (milliseconds into the
    #: counted step) or ``rank``.
    kind: str
    name: str


def rows(kind: str, names: Iterable[object]) -> tuple[Row, ...]:
    """The rows of one kind that have these names."""
    return tuple(Row(kind, str(name)) for name in names)


@dataclass(frozen=True)
class Finding:
    """Something that holds the step back."""

    #: The name of its rule.
    bottleneck: str
    #: The figures behind it.
    evidence: str
    #: The most that removing it could save per step, in milliseconds (Amdahl); ``None`` if that is unknown. For uneven
    #: steps it refers to the mean step, which is longer than the typical one.
    bound_ms: float | None
    #: The recommendation.
    advice: str
    #: A line of Python that follows it, in the user's own names; empty if these are unknown or one line cannot do it.
    code: str
    #: ``high``, ``medium`` or ``low``.
    confidence: Confidence
    #: Why not more, and why not less.
    why: str
    #: What the rule could not see.
    blind: str
    #: What it is about.
    rows: tuple[Row, ...] = ()
    #: The most memory that removing it could free, for findings about memory.
    bound_bytes: int | None = None
    #: The step that the bound is a share of, if not the typical one.
    of_ms: float | None = None
    #: The lever of `perfnb.try_levers` that may cure it; by default that of its rule.
    remedy: str = ""


@dataclass(frozen=True)
class Rule:
    """A bottleneck: how to find it, and what the verdict says about it. Calling it searches a step."""

    #: The bottleneck in two or three words, as in the frame ``findings``.
    name: str
    #: How the verdict starts: ``Compute-bound``.
    headline: str
    #: What could save the time: ``removing the wait``.
    saving: str
    #: Yields the findings.
    search: Callable[[Facts], Iterator[Finding]]
    #: Gives headline and saving where they depend on the step.
    words: Callable[[Facts], tuple[str, str]] | None = None
    #: Whether a GPU's bound is all of the work, which no change removes as a whole.
    ceiling: bool = False
    #: Whether only timed steps show it, so that traced steps without it are no argument against it.
    timed_only: bool = False
    #: The cause in `GpuFacts.idle_by` that it explains, if any.
    idle_cause: str = ""
    #: Whether the cause is known.
    explained: bool = True
    #: The lever of `perfnb.try_levers` that may cure it, if any.
    remedy: str = ""

    def __call__(self, facts: Facts) -> list[Finding]:
        return [replace(one, remedy=one.remedy or self.remedy) for one in self.search(facts)]


def rule(
    name: str, headline: str, saving: str = "removing it", **traits: Any
) -> Callable[[Callable[[Facts], Iterator[Finding]]], Rule]:
    """Turn the function that searches for a bottleneck into its `Rule`; `traits` are the other attributes."""
    return lambda search: Rule(name, headline, saving, search, **traits)


def finding_table(found: Iterable[Finding], step_ms: float | None) -> pd.DataFrame:
    """The frame ``findings``, largest bound first, findings without a bound last.

    Parameters
    ----------
    found : iterable of Finding
    step_ms : float or None
        The step that `bound_share` is a share of.
    """
    listed = list(found)
    table = pd.DataFrame(
        {
            **{name: [getattr(one, name) for one in listed] for name in _TEXTS},
            "bound_ms": pd.array([one.bound_ms for one in listed], dtype="Float64"),
            "bound_bytes": pd.array([one.bound_bytes for one in listed], dtype="Int64"),
            "rows": [[row._asdict() for row in one.rows] for one in listed],
        }
    )
    whole = pd.array([one.of_ms or step_ms or None for one in listed], dtype="Float64")
    table["bound_share"] = table["bound_ms"] / whole
    table = conform(table, "findings")
    return table.sort_values("bound_ms", ascending=False, kind="stable", na_position="last", ignore_index=True)
