"""Whether to take a change: what an experiment of pairs, losses of quality and limits say together."""

from __future__ import annotations

import math
from dataclasses import dataclass

ACCEPT, REJECT, INCONCLUSIVE = "accept", "reject", "inconclusive"

#: By how much, relative to the baseline's loss, that of the candidate may be larger where no limit is given.
SLACK = 1e-3

#: Causes of a decision, the weightiest first.
WORSE, OVER, SLOWER, NO_GAIN, CANNOT_TELL, UNJUDGED, UNMEASURED, UNSURE, GAIN = (
    *("worse", "over a limit", "slower", "no gain", "cannot tell", "quality unknown", "limit unchecked"),
    *("at a limit", "gain"),
)


@dataclass(frozen=True)
class Loss:
    """A loss of quality: smaller is better.

    Attributes
    ----------
    name : str
    candidate : float
        What is not finite is worse than any limit: below 0 without end is no loss either.
    baseline : float or None
        The same of the baseline, where it is known.
    limit : float or None
        The largest accepted; ``None`` where nobody gave one.
    """

    name: str
    candidate: float
    baseline: float | None = None
    limit: float | None = None

    @property
    def largest(self) -> float | None:
        """The largest accepted: the limit, else the baseline's loss and `SLACK` of it; ``None`` if unknown."""
        if self.limit is not None:
            return self.limit
        if self.baseline is None or not math.isfinite(self.baseline):
            return None
        return self.baseline + SLACK * abs(self.baseline)

    @property
    def exceeded(self) -> bool:
        """Whether the candidate's answer is worse than accepted."""
        if not math.isfinite(self.candidate):
            return True
        return self.largest is not None and self.candidate > self.largest


@dataclass(frozen=True)
class Resource:
    """Something that the candidate uses, and the most that it may use.

    Attributes
    ----------
    name : str
    value : float or None
        ``None`` where it is unknown.
    limit : float
    bounds : tuple of float, optional
        95 % interval of the value, where it varies and there are enough steps for one.
    """

    name: str
    value: float | None
    limit: float
    bounds: tuple[float, float] | None = None

    @property
    def exceeded(self) -> bool:
        """Whether the candidate uses more: where there is an interval, with all of it."""
        least = self.value if self.bounds is None else self.bounds[0]
        return least is not None and not least <= self.limit

    @property
    def unsure(self) -> bool:
        """Whether the limit lies within the interval, so that nobody can tell."""
        return self.bounds is not None and not self.exceeded and self.bounds[1] > self.limit


@dataclass(frozen=True)
class Evidence:
    """What a decision rests on.

    Attributes
    ----------
    verdict : str
        Of the experiment, of the candidate against the baseline: faster, slower, same, inconclusive.
    losses : tuple of Loss
        Of quality. Without any, quality is unknown.
    resources : tuple of Resource
        Those that have a limit.
    unmatched : tuple of str
        Limits of losses that were not measured.
    """

    verdict: str
    losses: tuple[Loss, ...] = ()
    resources: tuple[Resource, ...] = ()
    unmatched: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """What to do, and why.

    Attributes
    ----------
    decision : str
        "accept", "reject" or "inconclusive".
    cause : str
        The weightiest reason for it.
    about : tuple of str
        Names of the losses or resources that the cause speaks of.
    """

    decision: str
    cause: str
    about: tuple[str, ...] = ()


def decide(evidence: Evidence) -> Decision:
    """Accept what is faster, has the right answer and keeps all limits; the weightiest fault decides what is not.

    A wrong answer comes before everything, for a gain whose answer is wrong is no gain. What was not measured, be it
    quality or something that has a limit, never leads to an acceptance; what is rejected without it stays rejected.
    Where the interval of a time holds its limit, whether it keeps the limit is not known either.
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
