"""The finding on the rank that the others wait for."""

from __future__ import annotations

from perfnb.findings.finding import Finding, Row, part, time
from perfnb.ranks.tables import RanksSummary


def straggler(ranks: RanksSummary) -> list[Finding]:
    """The rank that comes last to collectives, so that the others wait for it."""
    if ranks.straggler is None:
        return []
    mean = ranks.times.groupby("rank")[["waiting_ms", "wall_ms"]].mean()
    waited = float(mean["waiting_ms"].drop(ranks.straggler).mean())
    step_ms = float(mean["wall_ms"].mean())
    own = float(mean["waiting_ms"][ranks.straggler])
    return [
        Finding(
            "straggler",
            f"Rank {ranks.straggler} comes last to collectives: the others wait {time(waited)} a step for it, "
            f"{part(waited / step_ms)} of the step; it waits {time(own) if own > 0 else 'for none'}.",
            min(waited, step_ms),
            "Look at what this rank does more, or slower: its share of the data, its host, its clocks, its links; and "
            "at its own findings.",
            "",
            "medium",
            "From the begins of collectives that could be matched; clocks were compared by the ends.",
            "Collectives that could not be matched between the ranks.",
            (Row("rank", str(ranks.straggler)),),
        )
    ]
