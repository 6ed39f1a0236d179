"""Decide whether to accept a change, based on its effect on step time, its losses, and its use of resources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfnb.bench.quality import Loss

ACCEPT, REJECT, INCONCLUSIVE = "accept", "reject", "inconclusive"

#: The causes of a decision, from the most to the least important.
WORSE, OVER, SLOWER, NO_GAIN, CANNOT_TELL = "worse", "over a limit", "slower", "no gain", "cannot tell"
UNJUDGED, UNMEASURED, UNSURE, GAIN = "quality unknown", "limit unchecked", "at a limit", "gain"


@dataclass(frozen=True)
class Resource:
    """A resource that the candidate uses, and its limit."""

    name: str
    value: float | None  # ``None`` if unknown
    limit: float
    # 95 % interval of the value, if it varies and there are enough steps for one
    bounds: tuple[float, float] | None = None

    @property
    def exceeded(self) -> bool:
        """Whether the candidate exceeds the limit. If there is an interval, all of it must be above the limit."""
        least = self.value if self.bounds is None else self.bounds[0]
        return least is not None and not least <= self.limit

    @property
    def unsure(self) -> bool:
        """Whether the interval contains the limit."""
        return self.bounds is not None and not self.exceeded and self.bounds[1] > self.limit


@dataclass(frozen=True)
class Decision:
    """A decision, and its reason."""

    decision: str  # "accept", "reject" or "inconclusive"
    cause: str  # the most important reason
    about: tuple[str, ...] = ()  # losses or resources that the cause refers to


def decide(
    verdict: str, losses: Sequence[Loss] = (), resources: Sequence[Resource] = (), unmatched: Sequence[str] = ()
) -> Decision:
    """Accept a candidate that is faster, has good enough results and stays within all limits.

    Bad results are checked first, because a higher speed cannot compensate for them. If quality or a resource with a
    limit was not measured, the candidate can be rejected but not accepted. If the limit on a time lies within the
    time's interval, the time counts as unmeasured.

    `verdict` is the A/B test's verdict on the step times. If `losses` is empty, quality is unknown. `resources`
    contains only resources with a limit, and `unmatched` names the losses that have a limit but were not measured.
    """
    if worse := tuple(loss.name for loss in losses if loss.exceeded):
        return Decision(REJECT, WORSE, worse)
    if over := tuple(resource.name for resource in resources if resource.exceeded):
        return Decision(REJECT, OVER, over)
    if verdict == "slower":
        return Decision(REJECT, SLOWER)
    if verdict == "same":
        return Decision(REJECT, NO_GAIN)
    if verdict != "faster":
        return Decision(INCONCLUSIVE, CANNOT_TELL)
    unjudged = tuple(loss.name for loss in losses if loss.largest is None)
    if unjudged or not losses:
        return Decision(INCONCLUSIVE, UNJUDGED, unjudged)
    unmeasured = tuple(resource.name for resource in resources if resource.value is None)
    if unmeasured or unmatched:
        return Decision(INCONCLUSIVE, UNMEASURED, (*unmeasured, *unmatched))
    if unsure := tuple(resource.name for resource in resources if resource.unsure):
        return Decision(INCONCLUSIVE, UNSURE, unsure)
    return Decision(ACCEPT, GAIN)
