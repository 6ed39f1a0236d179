"""Collectives that several ranks took part in: how far their clocks are apart, and who waited for whom.

A collective starts on each rank when that rank arrives, and ends on all at about the same time. So the ends give the
offsets of the clocks, and with those known, the starts show who arrived last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import SORTS, device_work, text
from perfnb.ranks.clocks import Ends, TwoRanks

#: The kind of collective in a kernel's name, if nothing else gives it.
_KIND = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|reduce", re.IGNORECASE)
#: Columns that the same collective has in common on all ranks.
_ALIKE = ["step", "kind", "group"]


def collectives(events: pd.DataFrame, rank: int, base_ns: int = 0, step: int | None = None) -> pd.DataFrame:
    """The collectives of a rank's steps, in order of time.

    Parameters
    ----------
    events : DataFrame
        One row per event of the rank, see `Recording.events`.
    rank : int
    base_ns : int
        Added to times.
    step : int, optional
        The one step that all belong to.

    Returns
    -------
    DataFrame
        ``rank``, ``step``, ``kind`` (``allreduce``, ...), ``group`` (ranks that take part; empty if unknown),
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
    """The collectives that ranks share, and how far their clocks are apart.

    Collectives of one kind, group and step that end together are the same one; see `clocks`. Clocks of ranks that share
    collectives, directly or through others, are relative to the first of them: with groups [0, 1] and [2, 3], the clock
    of rank 3 is relative to that of rank 2.

    Parameters
    ----------
    tables : mapping of int to DataFrame
        For each rank, from `collectives`.

    Returns
    -------
    matched : DataFrame
        Rows of `collectives` found on several ranks, with ``place``, which identifies the collective.
    clocks : DataFrame
        Indexed by ``rank``: ``ahead_us`` of the clock of rank ``reference`` (both missing if not known), ``spread_us``
        (its uncertainty: half the interquartile range of single collectives, summed along a chain of ranks),
        ``collectives`` (found on several ranks).
    """
    ends, rows = _ends(tables)
    clocks = _clocks(ends)
    found = pd.concat(tables.values(), ignore_index=True).assign(place=_places(ends, rows, clocks))
    several = found.groupby("place")["rank"].transform("nunique") > 1
    matched = found[several].reset_index(drop=True)
    count = matched["rank"].value_counts()
    first = next(iter(tables))
    table = pd.DataFrame(
        [
            (rank, *(clocks[rank] if count.get(rank) or rank == first else (None, None, None)), count.get(rank, 0))
            for rank in tables
        ],
        columns=["rank", "ahead_us", "spread_us", "reference", "collectives"],
    ).set_index("rank")
    kinds = {"ahead_us": "Float64", "spread_us": "Float64", "reference": "Int64", "collectives": "Int64"}
    return matched, table.astype(kinds)


def _ends(tables: Mapping[int, pd.DataFrame]) -> tuple[dict[int, Ends], dict[int, np.ndarray]]:
    """The ends of each rank's collectives, and their rows in all tables together."""
    whole = pd.concat(tables.values(), ignore_index=True)
    keys = whole.groupby(_ALIKE, sort=False, dropna=False).ngroup().to_numpy()
    end = whole["end_ns"].to_numpy(dtype=np.int64)
    ends, rows, first = {}, {}, 0
    for rank, table in tables.items():
        mine = np.arange(first, first + len(table))
        mine = mine[np.lexsort((end[mine], keys[mine]))]
        ends[rank], rows[rank] = Ends(keys[mine], end[mine]), mine
        first += len(table)
    return ends, rows


def _clocks(ends: Mapping[int, Ends]) -> dict[int, tuple[float, float, int]]:
    """Each rank's clock: microseconds ahead, uncertainty, and of which rank."""
    clocks: dict[int, tuple[float, float, int]] = {}
    for reference in ends:
        if reference in clocks:
            continue
        clocks[reference] = (0.0, 0.0, reference)
        reached = [reference]
        for near in reached:  # grows while it is walked
            for rank in ends:
                if rank in clocks:
                    continue
                both = TwoRanks(ends[near], ends[rank])
                apart = both.apart_ns()
                if apart is None:
                    continue
                mine, others = both.same(apart)
                if len(mine) == 0:
                    continue
                off = ends[rank].end[others] - ends[near].end[mine] - apart
                low, middle, high = np.percentile(off, [25, 50, 75])
                ahead, spread, _ = clocks[near]
                clocks[rank] = (ahead + (apart + middle) / 1e3, spread + (high - low) / 2e3, reference)
                reached.append(rank)
    return clocks


def _places(
    ends: Mapping[int, Ends], rows: Mapping[int, np.ndarray], clocks: Mapping[int, tuple[float, float, int]]
) -> np.ndarray:
    """Which collective each row is: the row of the same one on the rank that has most of its kind."""
    places = np.arange(sum(map(len, rows.values())))
    counts = pd.DataFrame({rank: pd.Series(one.key).value_counts() for rank, one in ends.items()}).fillna(0)
    for reference in dict.fromkeys(told for _, _, told in clocks.values()):
        ranks = [rank for rank in ends if clocks[rank][2] == reference]
        leaders = counts[ranks].idxmax(axis="columns")  # the first of several
        for leader in leaders.unique():
            led = _only(ends[leader], leaders.index[leaders == leader])
            for rank in ranks:
                if rank == leader:
                    continue
                apart = round((clocks[rank][0] - clocks[leader][0]) * 1e3)
                mine, others = TwoRanks(Ends(ends[leader].key[led], ends[leader].end[led]), ends[rank]).same(apart)
                places[rows[rank][others]] = rows[leader][led[mine]]
    return places


def _only(ends: Ends, keys: pd.Index) -> np.ndarray:
    return np.flatnonzero(np.isin(ends.key, keys.to_numpy()))


def waits(matched: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """How long each rank waited in collectives for the last one to arrive, by rank and step.

    Returns
    -------
    DataFrame
        ``rank``, ``step``, ``waiting_ms``, ``collectives`` (found on several ranks), ``last`` (how many of them it
        was last at).
    """
    start, waited = _waited(matched, clocks)
    latest = pd.Series(start).groupby(matched["place"].to_numpy()).transform("max").to_numpy()
    rows = matched[["rank", "step"]].assign(
        waiting_ms=waited / 1e6, collectives=1, last=(start == latest).astype(np.int64)
    )
    return rows.groupby(["rank", "step"], as_index=False).sum()


def waited_for(matched: pd.DataFrame, clocks: pd.DataFrame) -> pd.Series:
    """How much longer than a rank the ranks it shares collectives with waited in these.

    Returns
    -------
    Series
        By rank, for the one of the others that waited least: milliseconds over all steps; negative if that one waited
        less than the rank itself.
    """
    _, waited = _waited(matched, clocks)
    ranks = list(clocks.index)
    rank = matched["rank"].map({rank: number for number, rank in enumerate(ranks)}).to_numpy(dtype=np.int64)
    more = np.zeros((len(ranks), len(ranks)))  # more[a, b]: wait of b in what it shares with a, minus that of a
    shared = np.zeros((len(ranks), len(ranks)), dtype=bool)
    who = pd.Series(rank).groupby(matched["place"].to_numpy()).agg(lambda one: ",".join(map(str, sorted(one))))
    for together, waiting in pd.Series(waited).groupby(matched["place"].map(who).to_numpy()):
        members = np.array([int(number) for number in str(together).split(",")])
        sums = np.bincount(rank[waiting.index], waiting.to_numpy() / 1e6, len(ranks))[members]
        more[np.ix_(members, members)] += sums[None, :] - sums[:, None]
        shared[np.ix_(members, members)] = True
    np.fill_diagonal(shared, False)
    least = np.where(shared, more, np.inf).min(axis=1)
    return pd.Series(least, index=ranks).replace(np.inf, np.nan).dropna()


def _waited(matched: pd.DataFrame, clocks: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """When each row started by the reference clock, and how long it waited, in nanoseconds."""
    ahead = (clocks["ahead_us"].dropna() * 1e3).round().astype("int64")
    shift = matched["rank"].map(ahead).to_numpy(dtype=np.int64)
    start = matched["start_ns"].to_numpy(dtype=np.int64) - shift
    latest = pd.Series(start).groupby(matched["place"].to_numpy()).transform("max").to_numpy()
    duration = (matched["end_ns"] - matched["start_ns"]).to_numpy(dtype=np.int64)
    return start, np.clip(latest - start, 0, duration)


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
