"""Collectives that several ranks took part in: how far their clocks are apart, and who waited for whom.

A collective begins on each rank when that rank comes to it, and ends on all at about the same time. So the ends tell
how far the clocks are apart, and with that known, the begins tell who came last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from perfnb.analysis.device_work import SORTS, device_work, text

#: What a kernel's name tells of the collective, where nothing else does.
_KIND = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|reduce", re.IGNORECASE)
#: What collectives have in common of which one may be the other.
_ALIKE = ["step", "kind", "group"]
#: How far apart ends of one collective may be, once the clocks' difference is taken off.
_TOGETHER_NS = 1_000_000
#: So many pairs are looked at, of the first collectives.
_MOST_PAIRS = 2_000_000
#: Fewer that fit together tell no time.
_LEAST = 3


def collectives(events: pd.DataFrame, rank: int, base_ns: int = 0, step: int | None = None) -> pd.DataFrame:
    """The collectives of a rank's steps, in the order of time.

    Parameters
    ----------
    events : DataFrame
        One row an event of the rank, see `Recording.events`.
    rank : int
    base_ns : int
        Added to times.
    step : int, optional
        Number of the one step that all belong to.

    Returns
    -------
    DataFrame
        ``rank``, ``step``, ``kind`` (``allreduce``, ...), ``group`` (ranks that take part; empty where unknown),
        ``start_ns``, ``end_ns``.
    """
    work = device_work(events)
    chosen = np.flatnonzero(work.sort == SORTS.index("communication"))
    chosen = chosen[np.argsort(work.start[chosen], kind="stable")]
    rows = work.rows[chosen]
    return pd.DataFrame(
        {
            "rank": rank,
            "step": work.step[chosen] if step is None else step,
            "kind": _kinds(events, rows),
            "group": _texts(events, "group", rows),
            "start_ns": work.start[chosen] + base_ns,
            "end_ns": work.end[chosen] + base_ns,
        }
    )


def matching(tables: Mapping[int, pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The collectives that ranks share with the first of them, and how far their clocks are apart.

    A profiler can lose kernels, so they are not counted off: the difference of the clocks is the one at which the most
    ends come together, and what ends together then, of one kind and group and in one step, is one collective.

    Parameters
    ----------
    tables : mapping of int to DataFrame
        Of each rank, as `collectives` gives them.

    Returns
    -------
    matched : DataFrame
        As `collectives`, of what was found on several ranks, with ``place``: which collective each is.
    clocks : DataFrame
        Indexed by ``rank``: ``ahead_us`` of the first rank's clock (missing where too few fit), ``spread_us`` (half the
        distance between the quartiles of single collectives, which tells how sure it is), ``collectives``.
    """
    first, *others = tables
    reference = tables[first].assign(place=range(len(tables[first])))
    found: list[pd.DataFrame] = []
    clocks: list[tuple[int, float | None, float | None, int]] = []
    for rank in others:
        mine = tables[rank].assign(row=range(len(tables[rank])))
        pairs = reference.merge(mine, on=_ALIKE, suffixes=("", "_mine")).iloc[:_MOST_PAIRS]
        apart = pairs["end_ns_mine"].to_numpy(dtype=np.int64) - pairs["end_ns"].to_numpy(dtype=np.int64)
        ahead = _densest(apart)
        close = pairs.assign(off=np.abs(apart - ahead), apart=apart)[np.abs(apart - ahead) <= _TOGETHER_NS]
        close = close.sort_values("off", kind="stable").drop_duplicates("place").drop_duplicates("row")
        if len(close) < _LEAST:
            clocks.append((rank, None, None, 0))
            continue
        low, middle, high = np.percentile(close["apart"].to_numpy() - ahead, [25, 50, 75])
        clocks.append((rank, (ahead + middle) / 1e3, (high - low) / 2e3, len(close)))
        found.append(mine.iloc[close["row"]].drop(columns="row").assign(place=close["place"].to_numpy()))
    shared = {place for part in found for place in part["place"]}
    matched = pd.concat([reference[reference["place"].isin(shared)], *found], ignore_index=True)
    rows = [(first, 0.0, 0.0, len(shared)), *clocks]
    table = pd.DataFrame(rows, columns=["rank", "ahead_us", "spread_us", "collectives"]).set_index("rank")
    return matched, table.astype({"ahead_us": "Float64", "spread_us": "Float64", "collectives": "Int64"})


def _densest(apart: np.ndarray) -> int:
    """The difference around which the most of the differences lie."""
    if len(apart) == 0:
        return 0
    ordered = np.sort(apart)
    reach = np.searchsorted(ordered, ordered + _TOGETHER_NS, side="right")
    begin = int(np.argmax(reach - np.arange(len(ordered))))
    return int(ordered[(begin + int(reach[begin]) - 1) // 2])


def waits(matched: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """How long each rank waited in collectives for the last one to come, by rank and step.

    Returns
    -------
    DataFrame
        ``rank``, ``step``, ``waiting_ms``, ``collectives`` (found on several ranks), ``last`` (to how many of them it
        came last).
    """
    ahead = (clocks["ahead_us"].dropna() * 1e3).round().astype("int64")
    shift = matched["rank"].map(ahead).to_numpy(dtype=np.int64)
    start = matched["start_ns"].to_numpy() - shift
    latest = pd.Series(start).groupby(matched["place"].to_numpy()).transform("max").to_numpy()
    duration = (matched["end_ns"] - matched["start_ns"]).to_numpy()
    waited = np.clip(latest - start, 0, duration)
    rows = matched[["rank", "step"]].assign(
        waiting_ms=waited / 1e6, collectives=1, last=(start == latest).astype(np.int64)
    )
    return rows.groupby(["rank", "step"], as_index=False).sum()


def _kinds(events: pd.DataFrame, rows: np.ndarray) -> np.ndarray:
    codes, labels = text(events, "name")
    of_name = []
    for label in labels:
        found = _KIND.search(str(label))
        of_name.append(found[0].lower().replace("_", "") if found else str(label))
    told = _texts(events, "collective", rows)
    kinds = np.array([*of_name, ""], dtype=object)[codes[rows]]
    return np.asarray(np.where(told == "", kinds, told))


def _texts(events: pd.DataFrame, name: str, rows: np.ndarray) -> np.ndarray:
    if name not in events:
        return np.full(len(rows), "", dtype=object)
    codes, labels = text(events, name)
    return np.asarray(np.array([*map(str, labels), ""], dtype=object)[codes[rows]])
