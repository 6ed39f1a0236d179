"""Several ranks of one job, side by side: what each computed and waited for, and who held the others up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from perfnb.attribution.events import all_events
from perfnb.gpu.device_time import gpu_time, gpu_time_by_step
from perfnb.ranks.collectives import collectives, matching, waited_for, waits
from perfnb.ranks.doubts import Doubts, doubts_of
from perfnb.recording.recording import Recording

#: Share of a step that the others must have waited longer than the straggler.
_STRAGGLES = 0.01
_TIMES = ("computation_ms", "communication_ms", "overlap_ms", "memcpy_ms", "idle_ms")


@dataclass(frozen=True)
class RanksSummary:
    """What is to say of several ranks.

    Attributes
    ----------
    names : mapping of int to str
        File of each rank.
    times : DataFrame
        One row a rank and step: ``rank``, ``step``, ``wall_ms`` (of the host), ``computation_ms``,
        ``communication_ms``, ``overlap_ms`` (communication while computing), ``exposed_ms`` (communication alone),
        ``memcpy_ms``, ``idle_ms``, ``waiting_ms`` (in collectives for the last rank to come; missing where none could
        be matched). Times of several devices of a rank are summed.
    clocks : DataFrame
        Indexed by ``rank``: ``ahead_us`` of the clock of rank ``reference`` (the first of the ranks that it shares
        collectives with, directly or through others), ``spread_us``, ``collectives``.
    straggler : int or None
        The rank that those waited for with which it shares collectives, where one stands out.
    doubts : Doubts
        What speaks against reading them as the ranks of one job, or as all of them.
    matched : tuple of int
        The ranks of which collectives were found on others as well.
    parts : DataFrame
        What the GPUs of each rank did in the mean step, indexed by ``rank``, in milliseconds that overlap nowhere:
        ``computing_ms`` (while not communicating), ``both_ms``, ``exposed_ms``, ``idle_ms``.
    """

    names: dict[int, str]
    times: pd.DataFrame
    clocks: pd.DataFrame
    straggler: int | None
    doubts: Doubts
    matched: tuple[int, ...]
    parts: pd.DataFrame


def summarize_ranks(recordings: Sequence[Recording]) -> RanksSummary:
    """Compare recordings of different ranks."""
    parts, tables = [], {}
    for recording in recordings:
        events = all_events(recording)
        parts.append(_times(recording, events))
        base = int(recording.meta.get("base_ns", 0))
        tables[recording.rank] = collectives(events, recording.rank, base, _only_step(recording))
    matched, clocks = matching(tables)
    waited = waits(matched, clocks)
    times = pd.concat(parts, ignore_index=True).merge(
        waited[["rank", "step", "waiting_ms"]].astype({"rank": "Int64", "step": "Int64"}),
        on=["rank", "step"],
        how="left",
    )
    times["waiting_ms"] = times["waiting_ms"].astype("Float64")
    straggler = _straggler(times, waited_for(matched, clocks))
    names = {recording.rank: str(recording.meta["name"]) for recording in recordings}
    together = _matched_with(clocks) if len(matched) else ()
    return RanksSummary(names, times, clocks, straggler, doubts_of(recordings), together, _parts(times))


def _times(recording: Recording, events: pd.DataFrame) -> pd.DataFrame:
    only = _only_step(recording)
    by_step = gpu_time_by_step(events) if only is None else gpu_time(events).assign(step=only)
    by_step = by_step.astype({"step": "Int64"}).groupby("step", as_index=False)[list(_TIMES)].sum()
    steps = recording.steps[recording.steps["pass"] == "traced"][["step", "wall_ms"]]
    table = steps.astype({"step": "Int64", "wall_ms": "Float64"}).merge(by_step, on="step", how="left")
    table.insert(0, "rank", pd.Series(recording.rank, index=table.index, dtype="Int64"))
    exposed = table["communication_ms"] - table["overlap_ms"]
    table.insert(table.columns.get_loc("overlap_ms") + 1, "exposed_ms", exposed)  # type: ignore[arg-type, operator]
    return table


def _parts(times: pd.DataFrame) -> pd.DataFrame:
    means = times.groupby("rank")[["computation_ms", "overlap_ms", "exposed_ms", "idle_ms"]].mean()
    means["computing_ms"] = means["computation_ms"] - means["overlap_ms"]
    return means.rename(columns={"overlap_ms": "both_ms"})[["computing_ms", "both_ms", "exposed_ms", "idle_ms"]]


def _only_step(recording: Recording) -> int | None:
    """The number of the step that stands for the whole trace, where one does."""
    whole = recording.is_loaded and not recording.meta["trace"]["steps_marked"]
    return int(recording.steps["step"].iloc[0]) if whole and len(recording.steps) else None


def _straggler(times: pd.DataFrame, waited: pd.Series) -> int | None:
    """The rank for which every other that it shares collectives with waited clearly longer than it did, if it is one.

    Of several, as where groups of ranks have nothing in common, it is the one that was waited for clearly the most.
    """
    mean = times.groupby("rank")[["waiting_ms", "wall_ms"]].mean()
    if len(mean) < 2 or mean["waiting_ms"].isna().any():
        return None
    steps = times.dropna(subset=["waiting_ms"]).groupby("rank").size()
    ordered = (waited / steps.reindex(waited.index)).sort_values(ascending=False)
    second = max(float(ordered.iloc[1]), 0.0) if len(ordered) > 1 else 0.0
    clearly = ordered.iloc[0] - second > _STRAGGLES * mean["wall_ms"].mean()
    return int(ordered.index[0]) if clearly else None


def _matched_with(clocks: pd.DataFrame) -> tuple[int, ...]:
    """Ranks of which some collectives were found on others."""
    return tuple(int(rank) for rank in clocks.index[clocks["collectives"].fillna(0) > 0])
