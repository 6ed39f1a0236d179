"""Python calls, if the trace has them: the block in which each starts, and which functions take the most time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.blocks import Host
from perfnb.attribution.interval_sets import IntervalSet
from perfnb.recording.labels import is_one_of
from perfnb.recording.nesting import NONE, Ints, children_sums, nest
from perfnb.trace_names import PYTHON_CALLS


def calls_of(events: pd.DataFrame) -> Ints:
    """Rows of Python calls."""
    return np.flatnonzero(is_one_of(events["category"], PYTHON_CALLS))


def block_of_calls(events: pd.DataFrame, host: Host, rows: Ints) -> Ints:
    """Innermost block of the same thread in which each call starts; `NONE` if it starts outside all."""
    blocks = host.blocks
    thread, start = _threads(events, host, rows), events["start_ns"].to_numpy()[rows]
    of_blocks, begin, end = (blocks[name].to_numpy() for name in ("thread", "start", "end"))
    found = np.full(len(rows), NONE, dtype=np.int64)
    for one in np.unique(thread[thread != NONE]):
        here = np.flatnonzero(of_blocks == one)
        here = here[np.lexsort((host.forest.depth[here], begin[here]))]
        asked = np.flatnonzero(thread == one)
        place = np.searchsorted(begin[here], start[asked], side="right") - 1
        found[asked] = np.append(here, NONE)[place]
    while True:  # from blocks that ended before the call started to the ones around them
        over = (found != NONE) & (end[found] <= start)
        if not over.any():
            return found
        above = host.forest.parent[found]
        found = np.where(over, np.where(of_blocks[above] == thread, above, NONE), found)


def longest_calls(events: pd.DataFrame, host: Host, thread: int, time: IntervalSet) -> pd.Series:
    """Self time in ns of each Python function of a thread within a set of time, longest first."""
    rows = calls_of(events)
    rows = rows[_threads(events, host, rows) == thread]
    begin = events["start_ns"].to_numpy()[rows]
    end = begin + events["duration_ns"].to_numpy()[rows]
    inside = time.within(begin, end).astype(np.float64)
    own = inside - children_sums(nest(np.zeros(len(rows), dtype=np.int64), begin, end).parent, inside)
    names = events["name"].array[rows]
    sums = pd.Series(np.maximum(own, 0.0)).groupby(names, observed=True).sum()
    return sums[sums > 0].sort_values(ascending=False, kind="stable")


def _threads(events: pd.DataFrame, host: Host, rows: Ints) -> npt.NDArray[np.int64]:
    """The blocks' number for each event's thread; `NONE` for a thread without blocks."""
    columns = [name for name in ("process", "thread") if name in events]
    known = events[columns].iloc[host.rows].assign(number=host.thread).drop_duplicates(columns)
    found = events[columns].iloc[rows].merge(known, how="left", on=columns)["number"]
    return found.fillna(NONE).to_numpy(dtype=np.int64)
