"""Whether to accept a change, given the verdict of an A/B test, quality losses and limits."""

from __future__ import annotations

import math
from dataclasses import dataclass

ACCEPT, REJECT, INCONCLUSIVE = "accept", "reject", "inconclusive"

#: Without a limit, how much larger the candidate's loss may be, relative to the baseline's.
SLACK = 1e-3

#: Causes of a decision, the most important first.
WORSE, OVER, SLOWER, NO_GAIN, CANNOT_TELL, UNJUDGED, UNMEASURED, UNSURE, GAIN = (
    *("worse", "over a limit", "slower", "no gain", "cannot tell", "quality unknown", "limit unchecked"),
    *("at a limit", "gain"),
)


@dataclass(frozen=True)
class Loss:
    """A loss of quality; smaller is better."""

    name: str
    candidate: float  # anything not finite counts as worse than any limit, negative infinity included
    baseline: float | None = None  # the baseline's loss, if known
    limit: float | None = None  # largest accepted value, if given

    @property
    def largest(self) -> float | None:
        """Largest accepted value: the limit, else the baseline's loss plus `SLACK` of it; ``None`` if unknown."""
        if self.limit is not None:
            return self.limit
        if self.baseline is None or not math.isfinite(self.baseline):
            return None
        return self.baseline + SLACK * abs(self.baseline)

    @property
    def exceeded(self) -> bool:
        """Whether the candidate's loss is larger than accepted."""
        if not math.isfinite(self.candidate):
            return True
        return self.largest is not None and self.candidate > self.largest


@dataclass(frozen=True)
class Resource:
    """Something the candidate uses, and its limit."""

    name: str
    value: float | None  # ``None`` if unknown
    limit: float
    # 95 % interval of the value, if it varies and there are enough steps for one
    bounds: tuple[float, float] | None = None

    @property
    def exceeded(self) -> bool:
        """Whether the candidate uses more than the limit, with its whole interval if there is one."""
        least = self.value if self.bounds is None else self.bounds[0]
        return least is not None and not least <= self.limit

    @property
    def unsure(self) -> bool:
        """Whether the interval contains the limit."""
        return self.bounds is not None and not self.exceeded and self.bounds[1] > self.limit


@dataclass(frozen=True)
class Evidence:
    """What a decision is based on."""

    verdict: str  # A/B verdict of the candidate against the baseline: faster, slower, same, inconclusive
    losses: tuple[Loss, ...] = ()  # empty if quality is unknown
    resources: tuple[Resource, ...] = ()  # those with a limit
    unmatched: tuple[str, ...] = ()  # limits of losses that were not measured


@dataclass(frozen=True)
class Decision:
    """What to do, and why."""

    decision: str  # "accept", "reject" or "inconclusive"
    cause: str  # the most important reason
    about: tuple[str, ...] = ()  # losses or resources that the cause refers to


def decide(evidence: Evidence) -> Decision:
    """Accept a candidate that is faster, has good enough results and stays within all limits.

    Bad results come first, because speed cannot make up for them. Anything unmeasured, be it quality or a limited
    resource, prevents acceptance but not rejection. A limit inside the interval of a time counts as unmeasured.
    """
    if worse := tuple(loss.name for loss in evidence.losses if loss.exceeded):
        return Decision(REJECT, WORSE, worse)
    if over := tuple(resource.name for resource in evidence.resources if resource.exceeded):
        return Decision(REJECT, OVER, over)
    if evidence.verdict == "slower":
        return Decision(REJECT, SLOWER)
    if evidence.verdict == "same":
        return Decision(REJECT, NO_GAIN)
    if evidence.verdict != "faster":
        return Decision(INCONCLUSIVE, CANNOT_TELL)
    unjudged = tuple(loss.name for loss in evidence.losses if loss.largest is None)
    if unjudged or not evidence.losses:
        return Decision(INCONCLUSIVE, UNJUDGED, unjudged)
    unmeasured = tuple(resource.name for resource in evidence.resources if resource.value is None)
    if unmeasured or evidence.unmatched:
        return Decision(INCONCLUSIVE, UNMEASURED, (*unmeasured, *evidence.unmatched))
    if unsure := tuple(resource.name for resource in evidence.resources if resource.unsure):
        return Decision(INCONCLUSIVE, UNSURE, unsure)
    return Decision(ACCEPT, GAIN)
