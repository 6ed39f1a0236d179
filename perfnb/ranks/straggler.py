"""The finding about the rank that the others wait for."""

from __future__ import annotations

from perfnb import quantities as fmt
from perfnb.findings.finding import Finding, Row
from perfnb.ranks.summary import RanksSummary


def straggler(ranks: RanksSummary) -> list[Finding]:
    """The rank that arrives last at collectives, so that the others wait for it."""
    if ranks.straggler is None:
        return []
    mean = ranks.times.groupby("rank")[["waiting_ms", "wall_ms"]].mean()
    waited = float(mean["waiting_ms"].drop(ranks.straggler).mean())
    step_ms = float(mean["wall_ms"].mean())
    own = float(mean["waiting_ms"][ranks.straggler])
    return [
        Finding(
            "straggler",
            f"Rank {ranks.straggler} arrives last at collectives: the others wait {fmt.duration(waited)} per step for "
            f"it ({fmt.share(waited / step_ms)} of the step); it waits {fmt.duration(own) if own > 0 else 'for none'}.",
            min(waited, step_ms),
            "Check what this rank does more of, or slower: its share of the data, its host, GPU clocks and links; and "
            "its own findings.",
            "",
            "medium",
            "From the starts of matched collectives; clocks are compared by their ends.",
            "Collectives that could not be matched between the ranks.",
            (Row("rank", str(ranks.straggler)),),
        )
    ]
