"""Compare the runs of a job's ranks: which rank is slower, by how much, and whether it waits for data."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from perfnb import quantities as fmt
from perfnb.loop.run_comparison import RunChanges
from perfnb.loop.run_summary import RunFigures
from perfnb.recording.text import TEXT

#: Share of the median step from which a difference between ranks matters.
_WORTH = 0.05
#: The parts of a step, each of which may explain the next ones. Because ranks exchange gradients, the time that they
#: wait for a slow rank is part of their own work.
_PARTS = {"waiting for data": "data_ms", "working": "working_ms", "step": "step_ms"}
_CHANGE = ("change_ms", "low_ms", "high_ms")


class RankFigures:
    """The figures of each rank's run.

    In each part of the step, every rank is compared with the median rank (the lower one of two). The 95 % intervals
    hold simultaneously for all ranks (Bonferroni).
    """

    def __init__(self, runs: Mapping[int, RunFigures]) -> None:
        #: By rank: `step_ms` (median), `data_ms`, `working_ms`, `other_ms` (means per step).
        self.times = _times(runs)
        #: By rank and part: `than` (a rank), `change_ms`, `low_ms`, `high_ms`.
        self.differences = _differences(runs, self.times)
        #: The slow rank, and the part of its steps that is longer.
        self.straggler, self.slow_part = _straggler(self.differences, self.times)
        #: The number of ranks in the job, as recorded by their runs.
        self.size = max((run.ranks or 0 for run in runs.values()), default=0)


def _times(runs: Mapping[int, RunFigures]) -> pd.DataFrame:
    rows = {}
    for rank, run in runs.items():
        mean = RunChanges(run, run).step["a_ms"]
        data = mean["waiting for data"] if fmt.known(run.phases["ms"]["data"]) is not None else pd.NA
        rows[rank] = (mean["step"], data, mean["working"], mean["between steps"])
    columns = ["step_ms", "data_ms", "working_ms", "other_ms"]
    made = pd.DataFrame.from_dict(rows, orient="index", columns=columns).astype("Float64")
    return made.rename_axis("rank")


def _differences(runs: Mapping[int, RunFigures], times: pd.DataFrame) -> pd.DataFrame:
    rows, wider = [], _wider(len(times) - 1)
    for what, column in _PARTS.items():
        if times[column].isna().any():
            continue
        middle = int(times[column].sort_values(kind="stable").index[(len(times) - 1) // 2])
        for rank in runs:
            if rank == middle:
                continue
            changes = RunChanges(runs[middle], runs[rank])
            row = changes.step.loc[what]
            change, low, high = (math.nan if (value := fmt.known(row[end])) is None else value for end in _CHANGE)
            if changes.ratio_ci is None:  # too few steps
                low = high = math.nan
            rows.append((rank, what, middle, change, *(change + wider * (end - change) for end in (low, high))))
    made = pd.DataFrame(rows, columns=["rank", "part", "than", *_CHANGE])
    made = made.astype({"rank": "int64", "part": TEXT, "than": "int64"} | dict.fromkeys(_CHANGE, "Float64"))
    return made.set_index(["rank", "part"])


def _wider(others: int) -> float:
    """Return the factor by which intervals must be widened to hold simultaneously for this number of comparisons."""
    from scipy.special import ndtri

    return float(ndtri(1 - 0.025 / max(1, others)) / ndtri(0.975))


def _straggler(differences: pd.DataFrame, times: pd.DataFrame) -> tuple[int | None, str | None]:
    least = _WORTH * float(times["step_ms"].median())
    clear = differences[(differences["low_ms"] > 0).fillna(False) & (differences["change_ms"] >= least)]
    for part in ("waiting for data", "working"):
        found = clear[clear.index.get_level_values("part") == part]["change_ms"].astype(float)
        if len(found):
            return int(found.idxmax()[0]), part  # type: ignore[index]
    return None, None
