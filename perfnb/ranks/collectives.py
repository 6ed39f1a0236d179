"""Find the collectives that several ranks share, the offsets between the ranks' clocks, and which ranks waited.

Collectives are kernels (NCCL, RCCL, oneCCL) or ranges of a backend on the host (gloo, MPI).

A collective starts on each rank when that rank arrives, and ends on all ranks at about the same time. The clock offsets
follow from the ends. Once the offsets are known, the starts show which rank arrived last.

If two ranks have the same number of collectives of a kind, they are matched in order. A profiler can lose kernels; if
the order does not fit, perfnb searches for the offset where most ends coincide. If several offsets are about as good
(evenly spaced collectives with some lost), the offset is unknown. Collectives on the host are never lost, but on a busy
machine their ends are milliseconds apart, so they are matched in order within each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from perfnb.attribution.collective_waits import collective_kinds, host_collectives
from perfnb.attribution.device_work import SORTS, device_work, is_in, steps_of, texts
from perfnb.attribution.interval_sets import IntervalSet
from perfnb.recording.nesting import NONE
from perfnb.recording.text import of_labels
from perfnb.trace_names import DEVICE_WORK, collective_kind

#: Columns with the same value on all ranks of a collective.
_ALIKE = ["on_host", "step", "kind", "group"]
#: Ends of one collective are closer than this fraction of the distance between two collectives, within bounds.
_SHARE, _LEAST_NS, _MOST_NS = 4, 20_000, 1_000_000
#: Fewest matches that determine an offset.
_FEW = 3
#: Share of the pairs in order that must agree, and share of collectives that must be in such pairs.
_AGREE, _HALF = 0.75, 0.5
#: An offset is ruled out if it has fewer than this share of the best offset's matches.
_RIVAL = 0.6
#: Pairs of ends whose differences are tried; most offsets tried; largest shift between orders.
_PAIRS, _PEAKS, _BAND = 2**20, 16, 4
#: Times further apart are not compared, because int64 would overflow.
_FARTHEST = 2**61

#: Used where no rank is known to have waited for collectives of the host.
_ALL: Mapping[int, IntervalSet] = MappingProxyType({})


def collectives(events: pd.DataFrame, rank: int, base_ns: int = 0, step: int | None = None) -> pd.DataFrame:
    """Return the collectives of a rank's steps, ordered by time.

    Parameters
    ----------
    events : DataFrame
        One row per event of the rank, as described in `Recording.events`.
    rank : int
    base_ns : int
        Offset added to all times.
    step : int, optional
        The step that all of them belong to.

    Returns
    -------
    DataFrame
        ``rank``, ``step``, ``kind`` (``allreduce``, ...), ``group`` (ranks that take part; empty if unknown),
        ``start_ns``, ``end_ns``, ``on_host``.
    """
    work = device_work(events)
    chosen = np.flatnonzero(work.sort == SORTS.index("communication"))
    chosen = chosen[np.argsort(work.start[chosen], kind="stable")]
    rows = work.rows[chosen]
    of_device = pd.DataFrame(
        {
            "rank": rank,
            "step": work.step[chosen] if step is None else step,
            "kind": _kinds(events, rows),
            "group": texts(events, "group", rows),
            "start_ns": work.start[chosen] + base_ns,
            "end_ns": work.end[chosen] + base_ns,
            "on_host": False,
        }
    )
    of_host = _on_host(events, rank, base_ns, step, len(chosen) > 0)
    if not len(of_host):
        return of_device
    return pd.concat([of_device, of_host], ignore_index=True) if len(of_device) else of_host


def _on_host(events: pd.DataFrame, rank: int, base_ns: int, step: int | None, on_device: bool) -> pd.DataFrame:
    """Return the collectives that run on the host.

    If there are none, return the operators that started them, unless these operators may only be launches.
    """
    own = host_collectives(events, on_device)
    chosen = np.flatnonzero(own.ran != NONE)
    if not len(chosen) and not is_in(events, DEVICE_WORK).any():
        launches = of_labels(events["name"], lambda name: name.startswith("nccl:") and bool(collective_kind(name)))
        chosen = chosen if launches.any() else np.arange(len(own.start))
    rows = np.where(own.ran != NONE, own.ran, own.issued)[chosen]
    source = np.where(own.issued != NONE, own.issued, own.ran)[chosen]
    return pd.DataFrame(
        {
            "rank": rank,
            "step": steps_of(events, source, np.full(len(source), NONE)) if step is None else step,
            "kind": own.kind[chosen],
            "group": texts(events, "group", rows, source),
            "start_ns": own.begin[chosen] + base_ns,
            "end_ns": own.end[chosen] + base_ns,
            "on_host": True,
        }
    )


def matching(tables: Mapping[int, pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Find the collectives that ranks share, and the offsets between the ranks' clocks.

    Collectives with the same kind, group and step that end at the same time are the same collective (see `TwoRanks`).
    If ranks share collectives, directly or through other ranks, their clocks are relative to the first of these ranks.
    For example, with the groups [0, 1] and [2, 3], the clock of rank 3 is relative to the clock of rank 2.

    Parameters
    ----------
    tables : mapping of int to DataFrame
        For each rank, from `collectives`.

    Returns
    -------
    matched : DataFrame
        The rows of `collectives` that were found on several ranks, with ``place``, which identifies the collective.
    clocks : DataFrame
        Indexed by ``rank``: how far the rank's clock is ahead of the clock of rank ``reference`` (``ahead_us``; both
        are missing if unknown), ``spread_us`` (its uncertainty: half the interquartile range of single collectives,
        summed along a chain of ranks), ``collectives`` (found on several ranks).
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
    """Return the ends of each rank's collectives, and their row numbers in the concatenated tables."""
    whole = pd.concat(tables.values(), ignore_index=True)
    keys = whole.groupby(_ALIKE, sort=False, dropna=False).ngroup().to_numpy()
    end = whole["end_ns"].to_numpy(dtype=np.int64)
    order, of_rank = np.lexsort((end, keys)), whole["rank"].to_numpy()
    rows = {rank: order[of_rank[order] == rank] for rank in tables}
    on_host = whole["on_host"].to_numpy(dtype=bool)
    ends = {rank: Ends(keys[mine], end[mine], on_host[mine]) for rank, mine in rows.items()}
    return ends, rows


def _clocks(ends: Mapping[int, Ends]) -> dict[int, tuple[float, float, int]]:
    """Return, for each rank's clock, by how many microseconds it is ahead, the uncertainty, and the reference rank."""
    clocks: dict[int, tuple[float, float, int]] = {}
    for reference in ends:
        if reference in clocks:
            continue
        clocks[reference] = (0.0, 0.0, reference)
        reached = [reference]
        for near in reached:  # grows during the loop
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
    """Identify the collective of each row by its row on the rank that has the most collectives of that kind."""
    places = np.arange(sum(map(len, rows.values())))
    counts = pd.DataFrame({rank: pd.Series(one.key).value_counts() for rank, one in ends.items()}).fillna(0)
    for reference in dict.fromkeys(told for _, _, told in clocks.values()):
        ranks = [rank for rank in ends if clocks[rank][2] == reference]
        leaders = counts[ranks].idxmax(axis="columns")  # the first if there are several
        for leader in leaders.unique():
            led = _only(ends[leader], leaders.index[leaders == leader])
            for rank in ranks:
                if rank == leader:
                    continue
                apart = round((clocks[rank][0] - clocks[leader][0]) * 1e3)
                mine, others = TwoRanks(ends[leader].only(led), ends[rank]).same(apart)
                places[rows[rank][others]] = rows[leader][led[mine]]
    return places


def _only(ends: Ends, keys: pd.Index) -> np.ndarray:
    return np.flatnonzero(np.isin(ends.key, keys.to_numpy()))


def with_waiting(matched: pd.DataFrame, clocks: pd.DataFrame, alone: Mapping[int, IntervalSet] = _ALL) -> pd.DataFrame:
    """Add to shared collectives how long each rank waited in them for the last rank to arrive.

    Parameters
    ----------
    matched, clocks : DataFrame
        From `matching`.
    alone : mapping of int to IntervalSet
        For ranks whose collectives run on the host, the times when they did nothing except wait for a collective.

    Returns
    -------
    DataFrame
        `matched` with ``on_clock_ns`` (the start on the clock of the reference), ``waiting_ns``, ``is_last`` (whether
        this rank arrived last), and ``alone_ns``. For collectives on the host, ``alone_ns`` is only the waiting that
        nothing hid, counted once if the rank waited in several collectives at a time. Otherwise, it is the same as
        ``waiting_ns``.
    """
    ahead = (clocks["ahead_us"].dropna() * 1e3).round().astype("int64")
    on_clock = (matched["start_ns"] - matched["rank"].map(ahead).astype("int64")).to_numpy(dtype=np.int64)
    latest = pd.Series(on_clock).groupby(matched["place"].to_numpy()).transform("max").to_numpy()
    waited = np.clip(latest - on_clock, 0, (matched["end_ns"] - matched["start_ns"]).to_numpy(dtype=np.int64))
    own, on_host = waited.copy(), matched["on_host"].to_numpy(dtype=bool)
    if on_host.any():
        own[on_host] = _once(matched[on_host], waited[on_host], alone)
    return matched.assign(on_clock_ns=on_clock, waiting_ns=waited, is_last=on_clock == latest, alone_ns=own)


def waits(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each rank's exposed waiting time in collectives, computed from `with_waiting`.

    The columns are ``rank``, ``step`` and ``waiting_ms``.
    """
    sums: pd.DataFrame = rows.groupby(["rank", "step"], as_index=False)[["alone_ns"]].sum()
    return sums.assign(waiting_ms=sums["alone_ns"] / 1e6).drop(columns="alone_ns")


def waited_for(rows: pd.DataFrame) -> pd.Series:
    """Return how much longer other ranks waited in the collectives that they share with a rank. `rows` is as for
    `waits`.

    Returns
    -------
    Series
        For each rank, the milliseconds over all steps by which the other rank with the shortest waits waited longer
        than this rank. The value is negative if that rank waited less than this one.
    """
    rank, ranks = pd.factorize(rows["rank"], sort=True)
    # more[a, b]: wait of b in the collectives that it shares with a, minus the wait of a
    more = np.zeros((len(ranks), len(ranks)))
    shared = np.zeros((len(ranks), len(ranks)), dtype=bool)
    who = pd.Series(rank).groupby(rows["place"].to_numpy()).agg(lambda members: ",".join(map(str, sorted(members))))
    waited = pd.Series(rows["alone_ns"].to_numpy(dtype=float) / 1e6)
    for together, waiting in waited.groupby(rows["place"].map(who).to_numpy()):
        members = np.array([int(number) for number in str(together).split(",")])
        sums = np.bincount(rank[waiting.index], waiting.to_numpy(), len(ranks))[members]
        more[np.ix_(members, members)] += sums[None, :] - sums[:, None]
        shared[np.ix_(members, members)] = True
    np.fill_diagonal(shared, False)
    least = np.where(shared, more, np.inf).min(axis=1, initial=np.inf)
    return pd.Series(least, index=ranks).replace(np.inf, np.nan).dropna()


def waited_beyond(rows: pd.DataFrame, rank: int) -> pd.DataFrame:
    """Return, for each collective, how much longer the rank chosen by `waited_for` waited.

    Returns
    -------
    DataFrame
        ``step`` and ``more_ms``, in chronological order.
    """
    mine = rows[rows["rank"] == rank].drop_duplicates("place").set_index("place")["alone_ns"]
    others = rows[(rows["rank"] != rank) & rows["place"].isin(mine.index)]
    more = others.assign(more_ms=(others["alone_ns"] - mine.reindex(others["place"]).to_numpy()) / 1e6)
    least = more.groupby("rank")["more_ms"].sum()
    if least.empty:
        return pd.DataFrame({"step": [], "more_ms": []})
    chosen = more[more["rank"] == least.idxmin()].sort_values("end_ns", kind="stable")
    return chosen[["step", "more_ms"]].reset_index(drop=True)


def _once(rows: pd.DataFrame, waited: np.ndarray, alone: Mapping[int, IntervalSet]) -> np.ndarray:
    """Return the waiting time without the part that is hidden by computation or by another collective."""
    start = rows["start_ns"].to_numpy(dtype=np.int64)
    frame = pd.DataFrame({"rank": rows["rank"].to_numpy(), "start": start, "end": start + waited})
    frame = frame.sort_values(["rank", "start"], kind="stable")
    reached = frame.groupby("rank")["end"].cummax().groupby(frame["rank"]).shift(fill_value=np.iinfo(np.int64).min)
    begin = np.maximum(frame["start"].to_numpy(), reached.to_numpy())
    end = np.maximum(frame["end"].to_numpy(), begin)
    own = end - begin
    for rank, time in alone.items():
        mine = frame["rank"].to_numpy() == rank
        own[mine] = time.within(begin[mine], end[mine])
    return np.asarray(pd.Series(own, index=frame.index).sort_index().to_numpy(dtype=np.int64))


def _kinds(events: pd.DataFrame, rows: np.ndarray) -> np.ndarray:
    kinds = collective_kinds(events.iloc[rows])
    return np.where(kinds == "", texts(events, "name", rows), kinds)


@dataclass(frozen=True)
class Ends:
    """A rank's collectives, sorted by `key` and then by `end`.

    Collectives of two ranks can only be the same collective if their keys are equal.
    """

    key: np.ndarray
    end: np.ndarray
    on_host: np.ndarray

    def only(self, rows: np.ndarray) -> Ends:
        """Return a subset of the ends."""
        return Ends(self.key[rows], self.end[rows], self.on_host[rows])


class TwoRanks:
    """The collectives of two ranks that have keys in common.

    Parameters
    ----------
    first, other : Ends
    """

    def __init__(self, first: Ends, other: Ends) -> None:
        common = np.intersect1d(first.key, other.key)
        self._rows = [np.flatnonzero(np.isin(one.key, common)) for one in (first, other)]
        self._key = [np.searchsorted(common, one.key[r]) for one, r in zip((first, other), self._rows, strict=True)]
        self._count = [np.bincount(key, minlength=len(common)) for key in self._key]
        self._start = [np.cumsum(count) - count for count in self._count]
        ends = [one.end[rows] for one, rows in zip((first, other), self._rows, strict=True)]
        self._on_host = first.on_host[self._rows[0]]
        self.known = self._fit(ends)
        if self.known:
            self._zero = int(ends[0].min())
            self._end = [end - self._zero for end in ends]
            self._window, self._surely = self._tolerance()

    def _fit(self, ends: list[np.ndarray]) -> bool:
        if not len(ends[0]):
            return False
        lows, highs = [int(end.min()) for end in ends], [int(end.max()) for end in ends]
        span = max(high - low for low, high in zip(lows, highs, strict=True))
        return max(highs) - min(lows) < _FARTHEST and (span + _MOST_NS) * 6 * (len(self._count[0]) + 1) < _FARTHEST

    def apart_ns(self) -> int | None:
        """Return how far the other rank's clock is ahead, or ``None`` if this is unknown."""
        if not self.known:
            return None
        mine, others = self._surely_nth()
        if len(mine):
            return int(np.median(self._end[1][others] - self._end[0][mine]))
        by_order = self._by_order()
        return self._by_search() if by_order is None else by_order

    def same(self, apart: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of matching collectives in both `Ends`, if the other clock is `apart` ns ahead."""
        if not self.known:
            return np.empty(0, np.intp), np.empty(0, np.intp)
        certain, same_certain = self._surely_nth()
        mine, others = self._nearest(apart)
        free = ~np.isin(mine, certain) & ~np.isin(others, same_certain)
        mine, others = np.append(certain, mine[free]), np.append(same_certain, others[free])
        places, same_places = self._nth()
        off = np.abs(self._end[1][same_places] - apart - self._end[0][places])
        keys, counts = self._key[0][places], self._count[0].clip(1)
        in_order = np.bincount(keys[off <= self._window], minlength=len(counts)) >= _AGREE * counts
        kept = in_order[keys] & (off <= self._surely)
        kept &= ~np.isin(places, mine) & ~np.isin(same_places, others)
        mine, others = np.append(mine, places[kept]), np.append(others, same_places[kept])
        return self._rows[0][mine], self._rows[1][others]

    def _tolerance(self) -> tuple[int, int]:
        """Return how far apart a collective's ends may be, for nearest pairs and for pairs in order."""
        within = np.diff(self._key[0]) == 0
        gaps = np.diff(self._end[0])[within]
        usual, least = np.percentile(gaps, [10, 0]) if len(gaps) else (_MOST_NS * _SHARE, 0)
        window = min(max(int(usual) // _SHARE, _LEAST_NS), _MOST_NS)
        return window, min(max(int(least) // 2, window), _MOST_NS)

    def _nth(self, shift: int = 0, from_end: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Pair the n-th collective with the (n + `shift`)-th. Without a shift, use only keys with equal counts."""
        mine = np.arange(len(self._key[0]))
        key = self._key[0]
        number = mine - self._start[0][key] + shift
        if from_end:
            number += (self._count[1] - self._count[0])[key]
        there = (number >= 0) & (number < self._count[1][key])
        if not shift and not from_end:
            there = (self._count[0] == self._count[1])[key]
        return mine[there], (self._start[1][key] + number)[there]

    def _surely_nth(self) -> tuple[np.ndarray, np.ndarray]:
        """Pair the collectives that run on the host, in order."""
        mine, others = self._nth()
        on_host = self._on_host[mine]
        return mine[on_host], others[on_host]

    def _by_order(self) -> int | None:
        mine, others = self._nth()
        if len(mine) < max(_FEW, _HALF * min(len(self._end[0]), len(self._end[1]))):
            return None
        differences = self._end[1][others] - self._end[0][mine]
        middle = int(np.median(differences))
        return middle if np.mean(np.abs(differences - middle) <= self._window) >= _AGREE else None

    def _by_search(self) -> int | None:
        tried: dict[int, int] = {}
        for candidate in self._candidates():
            mine, others = self._nearest(candidate)
            if len(mine) >= _FEW:
                better = int(np.median(self._end[1][others] - self._end[0][mine]))
                tried[better] = len(self._nearest(better)[0])
        if not tried:
            return None
        best = max(tried, key=lambda shift: tried[shift])
        most = tried[best]
        rival = max((n for shift, n in tried.items() if abs(shift - best) > self._window), default=0)
        alone = len(self._end[0]) + len(self._end[1]) - 2 * most
        return best if most >= _FEW and (most - rival > alone or rival <= _RIVAL * most) else None

    def _candidates(self) -> list[int]:
        """Return the offsets to try.

        They are the most frequent offsets among sampled pairs, and the offsets of pairs in approximately the same
        order.
        """
        found = _frequent(self._some_differences(), self._window, _PEAKS)
        for shift in range(-_BAND, _BAND + 1):
            for from_end in (False, True):
                mine, others = self._nth(shift, from_end)
                found += _frequent(self._end[1][others] - self._end[0][mine], self._window, 1)
        return sorted(set(found))

    def _some_differences(self) -> np.ndarray:
        """Return the differences between the ends of all pairs.

        If there are too many pairs, use an evenly spaced sample of the first rank's ends with all of the other rank's
        ends.
        """
        each = _PAIRS // len(self._count[0])
        parts = []
        for key in range(len(self._count[0])):
            (first, count), (start, number) = ((self._start[n][key], self._count[n][key]) for n in (0, 1))
            chosen = first + np.unique(np.linspace(0, count - 1, min(count, max(each // number, 1)), dtype=np.int64))
            parts.append((self._end[1][None, start : start + number] - self._end[0][chosen, None]).ravel())
        return np.concatenate(parts)

    def _nearest(self, apart: int) -> tuple[np.ndarray, np.ndarray]:
        """Pair ends that are each other's nearest neighbour and within the tolerance."""
        lowest = np.minimum.reduceat(self._end[0], self._start[0])
        span = int((self._end[0] - lowest[self._key[0]]).max()) + self._window + 1
        at = [
            key * (6 * span)
            + np.clip(end - lowest[key], -span, 2 * span)  # keys so far apart that the nearest end has the same key
            for key, end in zip(self._key, (self._end[0], self._end[1] - apart), strict=True)
        ]
        of_other, of_mine = _nearest_place(at[0], at[1]), _nearest_place(at[1], at[0])
        others = np.flatnonzero(of_mine[of_other] == np.arange(len(of_other)))
        mine = of_other[others]
        near = np.abs(self._end[1][others] - apart - self._end[0][mine]) <= self._window
        return mine[near], others[near]


def _nearest_place(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    after = np.searchsorted(values, wanted).clip(0, len(values) - 1)
    before = (after - 1).clip(0)
    return np.where(wanted - values[before] <= np.abs(values[after] - wanted), before, after)


def _frequent(differences: np.ndarray, window: int, most: int) -> list[int]:
    """Return the most frequent differences that are at least `window` apart."""
    ordered = np.sort(differences)
    number = np.searchsorted(ordered, ordered + window, side="right") - np.arange(len(ordered))
    found: list[int] = []
    while len(found) < most and len(ordered) and number.max() > 0:
        begin = int(np.argmax(number))
        found.append(int(ordered[begin + (int(number[begin]) - 1) // 2]))
        low, high = np.searchsorted(ordered, [ordered[begin] - window, ordered[begin] + window], side="left")
        number[low : max(high, begin + 1)] = 0
    return found
