"""Where a step's time goes, phase by phase."""

from __future__ import annotations

import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.recording.schema import PHASES, conform


def phase_table(attribution: Attribution) -> pd.DataFrame:
    """The frame ``phases``: every phase with its time in a traced step and its share of the step.

    ``ms`` is as traced, and the rows add up to the traced step. ``share`` is corrected for the cost of tracing.
    """
    sums = attribution.cells.groupby("phase", observed=False)[["ns", "corrected_ns"]].sum()
    sums = sums.reindex(list(PHASES), fill_value=0)
    whole = sums["corrected_ns"].sum()
    table = pd.DataFrame(
        {"ms": sums["ns"] / 1e6 / attribution.steps, "share": sums["corrected_ns"] / whole if whole else float("nan")}
    )
    return conform(table, "phases")


def phase_stretches(attribution: Attribution, begin: int, end: int) -> list[tuple[str, int, int]]:
    """The phases between two times of the trace, in their order, neighbours of one phase joined.

    Parameters
    ----------
    attribution : Attribution
    begin, end : int
        Nanoseconds: where a step begins and ends.

    Returns
    -------
    list of (str, int, int)
        Phase, and where it begins and ends.
    """
    blocks = attribution.host.blocks
    inside = blocks["main"] & (blocks["start"] >= begin) & (blocks["end"] <= end)
    rows = blocks[inside.to_numpy() & (attribution.host.forest.depth == 1)].sort_values("start")
    joined: list[tuple[str, int, int]] = []
    for phase, start, stop in zip(rows["phase"], rows["start"], rows["end"], strict=True):
        if joined and joined[-1][0] == phase:
            joined[-1] = (phase, joined[-1][1], int(stop))
        else:
            joined.append((str(phase), int(start), int(stop)))
    return [stretch for stretch in joined if stretch[0] in PHASES]
