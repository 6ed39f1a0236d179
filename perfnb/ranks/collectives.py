"""Match the collectives of several ranks, compute the offsets between the ranks' clocks, and find which ranks waited.

Collectives are kernels (NCCL, RCCL, oneCCL), or ranges recorded by a backend on the host (gloo, MPI).

A collective starts on each rank when that rank arrives, and ends on all ranks at about the same time. The clock offsets
can therefore be computed from the ends. Once the offsets are known, the starts show which rank arrived last.

If two ranks have the same number of collectives of a kind, the collectives are matched in order. However, a profiler
can lose kernels. If matching in order does not fit, perfnb searches for the offset at which most ends coincide. If
several offsets fit about equally well, for example because some of many evenly spaced collectives were lost, the offset
is unknown. Collectives on the host are never lost, but on a busy machine their ends can be milliseconds apart, so they
are matched in order within each step.
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

#: The columns that have the same value on all ranks of a collective.
_ALIKE = ["on_host", "step", "kind", "group"]
#: The ends of a collective on different ranks may be apart by the distance between two collectives divided by the first
#: number, but at least and at most by the other two numbers.
_SHARE, _LEAST_NS, _MOST_NS = 4, 20_000, 1_000_000
#: The minimum number of matches that determine an offset.
_FEW = 3
#: When matching in order, the share of pairs that must agree, and the share of collectives that must be in such pairs.
_AGREE, _HALF = 0.75, 0.5
#: An offset is ruled out if it has fewer matches than this share of the best offset's matches.
_RIVAL = 0.6
#: The maximum numbers of pairs of ends to compare, of offsets to try, and of positions by which the order may shift.
_PAIRS, _PEAKS, _BAND = 2**20, 16, 4
#: Times that are further apart are not compared, because int64 would overflow.
_FARTHEST = 2**61

#: The default if no rank is known to have waited for collectives on the host.
_ALL: Mapping[int, IntervalSet] = MappingProxyType({})


def collectives(events: pd.DataFrame, rank: int, base_ns: int = 0, step: int | None = None) -> pd.DataFrame:
    """Return the collectives in a rank's steps, in chronological order.

    Parameters
    ----------
    events : DataFrame
        One row per event of the rank, as described in `Recording.events`.
    rank : int
    base_ns : int
        The offset to add to all times.
    step : int, optional
        The step that all collectives belong to. By default, each collective belongs to the step that launched it.

    Returns
    -------
    DataFrame
        ``rank``, ``step``, ``kind`` (``allreduce``, ...), ``group`` (the participating ranks; empty if unknown),
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
    """Return the collectives that ran on the host.

    If there are none, return the operators that started collectives, unless these may only have launched kernels.
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
    """Match the collectives of several ranks, and compute the offsets between the ranks' clocks.

    Collectives with the same kind, group and step that end at the same time are matched (see `TwoRanks`). If ranks
    share collectives, directly or through other ranks, their clocks are relative to the clock of the first of these
    ranks. For example, with the groups [0, 1] and [2, 3], the clock of rank 3 is relative to the clock of rank 2.

    Parameters
    ----------
    tables : mapping of int to DataFrame
        The output of `collectives` for each rank.

    Returns
    -------
    matched : DataFrame
        The collectives that were found on several ranks, in the format of `collectives`, with the additional column
        ``place``, which identifies the collective.
    clocks : DataFrame
        Indexed by ``rank``: ``ahead_us`` (how far the rank's clock is ahead of the clock of rank ``reference``; both
        are missing if unknown), ``spread_us`` (the uncertainty of this offset: half the interquartile range over
        individual collectives, summed along a chain of ranks), ``collectives`` (the number that were found on several
        ranks).
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
    """Compare each rank's clock with the clock of a reference rank.

    Return how far it is ahead, the uncertainty of this offset (both in microseconds), and the reference rank.
    """
    clocks: dict[int, tuple[float, float, int]] = {}
    for reference in ends:
        if reference in clocks:
            continue
        clocks[reference] = (0.0, 0.0, reference)
        reached = [reference]
        for near in reached:  # the list grows during the loop
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
    """Identify each collective by its row on the rank that has the most collectives of the same kind."""
    places = np.arange(sum(map(len, rows.values())))
    counts = pd.DataFrame({rank: pd.Series(one.key).value_counts() for rank, one in ends.items()}).fillna(0)
    for reference in dict.fromkeys(told for _, _, told in clocks.values()):
        ranks = [rank for rank in ends if clocks[rank][2] == reference]
        leaders = counts[ranks].idxmax(axis="columns")  # the first rank if several have the same number
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
    """Compute how long each rank waited in shared collectives for the last rank to arrive.

    Parameters
    ----------
    matched, clocks : DataFrame
        From `matching`.
    alone : mapping of int to IntervalSet
        For ranks whose collectives run on the host, the times when the rank did nothing except wait for a collective.

    Returns
    -------
    DataFrame
        `matched` with ``on_clock_ns`` (the start on the reference rank's clock), ``waiting_ns``, ``is_last`` (whether
        this rank arrived last), and ``alone_ns``. For collectives on the host, ``alone_ns`` is the exposed part of the
        waiting time, which is counted once if the rank waited in several collectives at a time. For other collectives,
        it is the same as ``waiting_ns``.
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
    """Sum each rank's exposed waiting time in collectives per step.

    `rows` is the output of `with_waiting`. The columns of the result are ``rank``, ``step`` and ``waiting_ms``.
    """
    sums: pd.DataFrame = rows.groupby(["rank", "step"], as_index=False)[["alone_ns"]].sum()
    return sums.assign(waiting_ms=sums["alone_ns"] / 1e6).drop(columns="alone_ns")


def waited_for(rows: pd.DataFrame) -> pd.Series:
    """Return how much longer the other ranks waited than each rank, in the collectives that they share with it.

    Parameters
    ----------
    rows : DataFrame
        The output of `with_waiting`.

    Returns
    -------
    Series
        For each rank, the difference to the other rank that waited least, in milliseconds over all steps. It is
        negative if the other rank waited less than this rank.
    """
    rank, ranks = pd.factorize(rows["rank"], sort=True)
    # more[a, b] is how long b waited in the collectives that it shares with a, minus how long a waited in them.
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
    """Return how much longer another rank waited in each collective than the given rank.

    The other rank is the one that `waited_for` chose, which waited least.

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
    """Return the waiting times, excluding time that is hidden by computation or by another collective."""
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
    """The ends of a rank's collectives, sorted by `key` and then by `end`.

    Only collectives with equal keys can be matched between two ranks.
    """

    key: np.ndarray
    end: np.ndarray
    on_host: np.ndarray

    def only(self, rows: np.ndarray) -> Ends:
        """Return the ends in the given rows."""
        return Ends(self.key[rows], self.end[rows], self.on_host[rows])


class TwoRanks:
    """Matches the collectives of two ranks, using the keys that both ranks have.

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
        """Return how far the other rank's clock is ahead in nanoseconds, or ``None`` if this is unknown."""
        if not self.known:
            return None
        mine, others = self._surely_nth()
        if len(mine):
            return int(np.median(self._end[1][others] - self._end[0][mine]))
        by_order = self._by_order()
        return self._by_search() if by_order is None else by_order

    def same(self, apart: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of matching collectives in both `Ends` if the other rank's clock is `apart` ns ahead."""
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
        """Return how far apart the ends of a collective may be, for nearest neighbours and for pairs in order."""
        within = np.diff(self._key[0]) == 0
        gaps = np.diff(self._end[0])[within]
        usual, least = np.percentile(gaps, [10, 0]) if len(gaps) else (_MOST_NS * _SHARE, 0)
        window = min(max(int(usual) // _SHARE, _LEAST_NS), _MOST_NS)
        return window, min(max(int(least) // 2, window), _MOST_NS)

    def _nth(self, shift: int = 0, from_end: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Pair the n-th collective with the (n + `shift`)-th one. Without a shift, only use keys with equal counts."""
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

        These are the most frequent differences among sampled pairs of ends, and among pairs with nearly the same
        position in the order.
        """
        found = _frequent(self._some_differences(), self._window, _PEAKS)
        for shift in range(-_BAND, _BAND + 1):
            for from_end in (False, True):
                mine, others = self._nth(shift, from_end)
                found += _frequent(self._end[1][others] - self._end[0][mine], self._window, 1)
        return sorted(set(found))

    def _some_differences(self) -> np.ndarray:
        """Return the differences between the ends of all pairs of collectives.

        If there are too many pairs, an evenly spaced sample of the first rank's ends is paired with all ends of the
        other rank.
        """
        each = _PAIRS // len(self._count[0])
        parts = []
        for key in range(len(self._count[0])):
            (first, count), (start, number) = ((self._start[n][key], self._count[n][key]) for n in (0, 1))
            chosen = first + np.unique(np.linspace(0, count - 1, min(count, max(each // number, 1)), dtype=np.int64))
            parts.append((self._end[1][None, start : start + number] - self._end[0][chosen, None]).ravel())
        return np.concatenate(parts)

    def _nearest(self, apart: int) -> tuple[np.ndarray, np.ndarray]:
        """Pair ends that are each other's nearest neighbours, if they are within the tolerance."""
        lowest = np.minimum.reduceat(self._end[0], self._start[0])
        span = int((self._end[0] - lowest[self._key[0]]).max()) + self._window + 1
        at = [
            key * (6 * span)
            + np.clip(end - lowest[key], -span, 2 * span)  # keys are so far apart that the nearest end has the same key
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
