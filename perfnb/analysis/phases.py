"""Where a step's time goes, phase by phase."""

from __future__ import annotations

import pandas as pd

from perfnb.analysis.attribution import Attribution
from perfnb.frames.schema import PHASES, conform


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
