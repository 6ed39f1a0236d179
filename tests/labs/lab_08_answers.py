"""Lab 8: what its tests share."""

from __future__ import annotations

import pandas as pd

from perfnb.labs.lab_08 import LEVERS

WORK = ["kernel", "gpu_memcpy", "gpu_memset"]


CALLS = ["cuda_runtime", "cuda_driver"]


#: Right by the facts of `VERDICT` in the tests, and no figures of the lab's own traces.
SAID = {
    "reader_a": ["fewer launches", 6.33],
    "training_b": ["no allocation", 3010.0],
    "rank_0": ["hidden communication", 168.5],
}


def bounds(*ms: float) -> dict[str, float]:
    return dict(zip(LEVERS, ms, strict=True))


def union(work: pd.DataFrame, sort: bool = True, latest: bool = True) -> float:
    busy = end = 0
    rows = work.sort_values("start_ns") if sort else work
    for start, duration in zip(rows["start_ns"], rows["duration_ns"], strict=True):
        busy += max(start + duration - max(start, end), 0)
        end = max(end, start + duration) if latest else start + duration
    return busy / 1e6


def late(
    events: pd.DataFrame,
    calls: list[str] = CALLS,
    work: list[str] = WORK,
    latest: bool = True,
    ended: bool = False,
    by_place: bool = False,
) -> float:
    done = events[events["category"].isin(work)].sort_values("start_ns")
    launches = events[events["category"].isin(calls)].dropna(subset="correlation")
    moments = launches.set_index("correlation")["start_ns"]
    if ended:
        moments += launches.set_index("correlation")["duration_ns"]
    called = done["correlation"].map(moments)
    if by_place:
        called = pd.Series(sorted(moments), done.index)
    ends = done["start_ns"] + done["duration_ns"]
    before = (ends.cummax() if latest else ends).shift()
    return float((called > before).fillna(False).iloc[1:].mean())
