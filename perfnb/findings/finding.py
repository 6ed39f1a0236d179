"""Define findings and rules, and how steps, runs and jobs sort, tabulate and choose findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import pandas as pd

from perfnb.recording.schema import conform

Confidence = Literal["high", "medium", "low"]
_SUREST_FIRST: tuple[Confidence, ...] = ("high", "medium", "low")
_TEXTS = ("bottleneck", "evidence", "advice", "code", "remedy", "confidence", "why", "blind")
#: A more certain finding is preferred to the largest one if it is at least this share as large.
_RATHER = 1 / 3
#: Share of the step above which unexplained idle time outweighs every finding.
_OUTWEIGHS = 0.5


class Row(NamedTuple):
    """A row in another table that a finding refers to."""

    #: ``layer``, ``op``, ``phase``, ``kernel``, ``step`` (number of a timed step), ``memory`` (milliseconds into the
    #: counted step) or ``rank``.
    kind: str
    name: str


def rows(kind: str, names: Iterable[object]) -> tuple[Row, ...]:
    """Return the rows of one kind with these names."""
    return tuple(Row(kind, str(name)) for name in names)


@dataclass(frozen=True)
class Finding:
    """Something that slows down a step, a run or a job."""

    #: The figures that support the finding.
    evidence: str
    #: The maximum time that removing the bottleneck could save per step, in milliseconds (Amdahl's law); ``None`` if it
    #: is unknown. For uneven steps, it refers to the mean step, which is longer than the typical one.
    bound_ms: float | None
    #: The recommendation.
    advice: str
    #: ``high``, ``medium`` or ``low``.
    confidence: Confidence
    #: The reasons why the confidence is neither higher nor lower.
    why: str
    #: What the rule cannot see.
    blind: str
    #: The rows that the finding is about.
    rows: tuple[Row, ...] = ()
    #: A line of Python that follows the advice and uses the user's own names; empty if these are unknown or if a single
    #: line is not enough.
    code: str = ""
    #: For findings about memory, the maximum amount of memory that could be freed.
    bound_bytes: int | None = None
    #: The step time that the bound is a share of, if it is not that of the typical step.
    of_ms: float | None = None
    #: The lever of `perfnb.try_levers` that may help; by default, that of the rule.
    remedy: str = ""
    #: 1 sorts the finding before all others regardless of its bound and makes it the verdict; -1 sorts it last.
    urgency: int = 0
    #: The name of the finding's rule, which is set by the rule.
    bottleneck: str = ""

    def share(self, step_ms: float | None) -> float:
        """Return the bound as a share of the step; 0 if there is none."""
        whole = self.of_ms or step_ms
        return self.bound_ms / whole if self.bound_ms and whole else 0.0

    def at_most(self, confidence: Confidence, reason: str) -> Finding:
        """Return the finding with at most this confidence, adding the reason if the confidence was lowered."""
        if _SUREST_FIRST.index(self.confidence) >= _SUREST_FIRST.index(confidence):
            return self
        return replace(self, confidence=confidence, why=f"{reason} {self.why}")


@dataclass(frozen=True)
class Rule:
    """A bottleneck, with the function that finds it and the wording of its verdict. Call a rule with the facts."""

    #: The bottleneck in two or three words, as in the frame ``findings``.
    name: str
    #: The start of the verdict: ``Compute-bound``.
    headline: str
    #: The change that could save the time: ``removing the wait``.
    saving: str
    #: The function that yields the findings.
    search: Callable[[Any], Iterator[Finding]]
    #: The minimum share of the step that a finding with a bound must be able to save.
    worth: float = 0.0
    #: A function that returns the headline and the saving, if they depend on the facts.
    words: Callable[[Any], tuple[str, str]] | None = None
    #: Whether the bound on a GPU comprises all of the work, which no change can remove completely.
    ceiling: bool = False
    #: Whether the bottleneck is visible only in timed steps. Traced steps then cannot refute it.
    timed_only: bool = False
    #: The cause in `GpuFacts.idle_by` that the rule explains, if any.
    idle_cause: str = ""
    #: Whether the cause is known.
    explained: bool = True
    #: The lever of `perfnb.try_levers` that may help, if any.
    remedy: str = ""

    def __call__(self, facts: Any) -> list[Finding]:
        return [
            replace(finding, bottleneck=self.name, remedy=finding.remedy or self.remedy)
            for finding in self.search(facts)
            if not self.worth or finding.bound_ms is None or finding.share(facts.step_ms) >= self.worth
        ]

    def words_for(self, facts: Any) -> tuple[str, str]:
        """Return the headline and the saving."""
        return self.words(facts) if self.words else (self.headline, self.saving)


def rule(
    name: str, headline: str, saving: str = "removing it", **traits: Any
) -> Callable[[Callable[[Any], Iterator[Finding]]], Rule]:
    """Return a decorator that converts a search function to a `Rule`; `traits` are the rule's other attributes."""
    return lambda search: Rule(name, headline, saving, search, **traits)


def found_by(rules: Iterable[Rule], facts: Any, step_ms: float) -> list[Finding]:
    """Return the findings of these rules in order. Bounds never exceed the duration of the step."""
    return in_order(_within(finding.of_ms or step_ms, finding) for rule in rules for finding in rule(facts))


def _within(whole_ms: float, finding: Finding) -> Finding:
    return finding if finding.bound_ms is None else replace(finding, bound_ms=min(finding.bound_ms, whole_ms))


def in_order(found: Iterable[Finding]) -> list[Finding]:
    """Sort findings: the most urgent first, then by decreasing bound, and findings without a bound last."""
    return sorted(found, key=lambda finding: (-finding.urgency, finding.bound_ms is None, -(finding.bound_ms or 0.0)))


def finding_table(found: Iterable[Finding], step_ms: float | None) -> pd.DataFrame:
    """Return the sorted frame ``findings``.

    Parameters
    ----------
    found : iterable of Finding
    step_ms : float or None
        The step time that `bound_share` refers to.
    """
    listed = in_order(found)
    table = pd.DataFrame(
        {
            **{name: [getattr(finding, name) for finding in listed] for name in _TEXTS},
            "bound_ms": pd.array([finding.bound_ms for finding in listed], dtype="Float64"),
            "bound_bytes": pd.array([finding.bound_bytes for finding in listed], dtype="Int64"),
            "rows": [[row._asdict() for row in finding.rows] for finding in listed],
        }
    )
    whole = pd.array([finding.of_ms or step_ms or None for finding in listed], dtype="Float64")
    table["bound_share"] = table["bound_ms"] / whole
    return conform(table, "findings")


@dataclass(frozen=True)
class Conclusion:
    """The verdict on a step or a run, with its reasons and a recommendation."""

    #: The cause.
    verdict: str
    #: The evidence.
    why: str
    #: The recommendation.
    next: str
    #: The row of the frame ``findings`` that the verdict is based on.
    finding: int | None = None


@dataclass(frozen=True)
class Findings:
    """All findings about a step or a run."""

    #: The frame ``findings``.
    table: pd.DataFrame
    verdict: Conclusion
    #: The step time that the bounds are shares of.
    step_ms: float | None
    #: How the profile was requested; see `perfnb.findings.proposed_code.trial_line`.
    call: object = None


def deciding(found: Sequence[Finding], rules: Mapping[str, Rule], step_ms: float, least: float) -> int | None:
    """Return the index of the finding to start with: the largest one with a known cause, if it is large enough.

    A low-confidence bound is often far from what can actually be saved, so a more reliable bound is preferred if it is
    not much smaller.

    Parameters
    ----------
    found : sequence of Finding
        Sorted by `in_order`.
    rules : mapping of str to Rule
        By bottleneck.
    step_ms : float
    least : float
        The minimum share of the step that a finding must be able to save.
    """
    if found and found[0].urgency > 0:
        return 0
    shares = [finding.share(step_ms) for finding in found]
    large = [place for place, share in enumerate(shares) if share >= least]
    known = [place for place in large if rules[found[place].bottleneck].explained]
    unknown = [place for place in large if place not in known]
    if unknown and (not known or shares[unknown[0]] > _OUTWEIGHS):
        return unknown[0]
    sure = [
        place for place in known if found[place].confidence != "low" and shares[place] >= _RATHER * shares[known[0]]
    ]
    return next(iter(sure or known), None)
