"""The offset between the clocks of two ranks, from the ends of collectives that both took part in.

If both have equally many of a kind, the n-th of one is the n-th of the other. A profiler can lose kernels; if that does
not fit, the offset is searched at which most ends coincide. If several are about as good, as with evenly spaced
collectives of which some were lost, it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Ends of one collective are closer together than this fraction of the distance between two, within bounds.
_SHARE, _LEAST_NS, _MOST_NS = 4, 20_000, 1_000_000
#: Fewest matches that give an offset.
_FEW = 3
#: Share of the pairs of n-th and n-th that must agree, and of collectives that must be in such pairs.
_AGREE, _HALF = 0.75, 0.5
#: An offset is no rival if it matches fewer than this share of what the best does.
_RIVAL = 0.6
#: Pairs of ends whose differences are tried; most offsets tried; how far the n-th may be from the n-th.
_PAIRS, _PEAKS, _BAND = 2**20, 16, 4
#: Times further apart are not compared, as int64 would overflow.
_FARTHEST = 2**61


@dataclass(frozen=True)
class Ends:
    """Collectives of a rank, sorted by `key` (which of them may be the same as another rank's), then by `end`."""

    key: np.ndarray
    end: np.ndarray


class TwoRanks:
    """Collectives of two ranks with keys in common.

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
        """How far the other's clock is ahead; ``None`` if not known."""
        if not self.known:
            return None
        by_order = self._by_order()
        return self._by_search() if by_order is None else by_order

    def same(self, apart: int) -> tuple[np.ndarray, np.ndarray]:
        """Places in both `Ends` of the same collectives, if the other's clock is `apart` ns ahead."""
        if not self.known:
            return np.empty(0, np.intp), np.empty(0, np.intp)
        mine, others = self._nearest(apart)
        places, same_places = self._nth()
        off = np.abs(self._end[1][same_places] - apart - self._end[0][places])
        keys, counts = self._key[0][places], self._count[0].clip(1)
        in_order = np.bincount(keys[off <= self._window], minlength=len(counts)) >= _AGREE * counts
        kept = in_order[keys] & (off <= self._surely)
        kept &= ~np.isin(places, mine) & ~np.isin(same_places, others)
        mine, others = np.append(mine, places[kept]), np.append(others, same_places[kept])
        return self._rows[0][mine], self._rows[1][others]

    def _tolerance(self) -> tuple[int, int]:
        """How far apart the ends of one collective may be: as each other's nearest, and as n-th and n-th."""
        within = np.diff(self._key[0]) == 0
        gaps = np.diff(self._end[0])[within]
        usual, least = np.percentile(gaps, [10, 0]) if len(gaps) else (_MOST_NS * _SHARE, 0)
        window = min(max(int(usual) // _SHARE, _LEAST_NS), _MOST_NS)
        return window, min(max(int(least) // 2, window), _MOST_NS)

    def _nth(self, shift: int = 0, from_end: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of the n-th and the (n + `shift`)-th; without a shift, of keys that both have equally often."""
        mine = np.arange(len(self._key[0]))
        key = self._key[0]
        number = mine - self._start[0][key] + shift
        if from_end:
            number += (self._count[1] - self._count[0])[key]
        there = (number >= 0) & (number < self._count[1][key])
        if not shift and not from_end:
            there = (self._count[0] == self._count[1])[key]
        return mine[there], (self._start[1][key] + number)[there]

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
        """Offsets to try: the frequent ones among some pairs, and those of n-th and about n-th."""
        found = _frequent(self._some_differences(), self._window, _PEAKS)
        for shift in range(-_BAND, _BAND + 1):
            for from_end in (False, True):
                mine, others = self._nth(shift, from_end)
                found += _frequent(self._end[1][others] - self._end[0][mine], self._window, 1)
        return sorted(set(found))

    def _some_differences(self) -> np.ndarray:
        """Differences of all pairs, or of some evenly spaced ends of the first rank with all of the other's."""
        each = _PAIRS // len(self._count[0])
        parts = []
        for key in range(len(self._count[0])):
            (first, count), (start, number) = ((self._start[n][key], self._count[n][key]) for n in (0, 1))
            chosen = first + np.unique(np.linspace(0, count - 1, min(count, max(each // number, 1)), dtype=np.int64))
            parts.append((self._end[1][None, start : start + number] - self._end[0][chosen, None]).ravel())
        return np.concatenate(parts)

    def _nearest(self, apart: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of ends that are each other's nearest, and near enough."""
        lowest = np.minimum.reduceat(self._end[0], self._start[0])
        span = int((self._end[0] - lowest[self._key[0]]).max()) + self._window + 1
        at = [
            key * (6 * span)
            + np.clip(end - lowest[key], -span, 2 * span)  # keys so far apart that the nearest has the same
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
    """The most frequent differences, `window` or more apart."""
    ordered = np.sort(differences)
    number = np.searchsorted(ordered, ordered + window, side="right") - np.arange(len(ordered))
    found: list[int] = []
    while len(found) < most and len(ordered) and number.max() > 0:
        begin = int(np.argmax(number))
        found.append(int(ordered[begin + (int(number[begin]) - 1) // 2]))
        low, high = np.searchsorted(ordered, [ordered[begin] - window, ordered[begin] + window], side="left")
        number[low : max(high, begin + 1)] = 0
    return found
