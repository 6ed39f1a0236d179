"""Estimate the gain from a dynamic batcher by simulating it with the measured times of batches of each size.

All functions here are pure.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.arguments import require_seconds
from perfnb.inference.queueing import poisson_arrivals
from perfnb.stats.intervals import Floats, Samples, quantile_interval

#: The number of requests in a simulation. The first quarter is discarded, because the queue is still filling up.
REQUESTS = 8_000
_SETTLES = REQUESTS // 4
#: The delays that are tried, as fractions of the time that a single request takes.
DELAYS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
#: Settings whose figures differ by less than this fraction are considered equal.
EQUAL_WITHIN = 0.05
#: The number of bisection steps in the search for the highest rate.
_HALVINGS = 7
#: The number of quantiles that represent the distribution of a batch's time.
_LEVELS = 4096
_SEED = 21


@dataclass(frozen=True, repr=False)
class Batcher:
    """A simulated batcher under load, with its settings and the resulting figures.

    Attributes
    ----------
    most, delay_ms : int, float
        The maximum batch size, and the maximum time that a batch's first request waits for more requests.
    rate_per_s : float
        Requests per second.
    p50_ms, p95_ms, p99_ms : float
        Latency quantiles. They are infinite if requests arrive faster than the batcher can serve them.
    batch_size : float
        Mean batch size.
    utilization : float
        Fraction of the time during which the server is busy.
    served_per_s : float
        Number of requests served per second. This equals the arrival rate unless the batcher is overrun.
    """

    most: int
    delay_ms: float
    rate_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    batch_size: float
    utilization: float
    served_per_s: float

    def __repr__(self) -> str:
        p99 = "infinite" if math.isinf(self.p99_ms) else fmt.duration(self.p99_ms)
        setting = f"at most {self.most}, {fmt.duration(self.delay_ms)} delay"
        return f"<perfnb.Batcher: {setting}, at {fmt.significant(self.rate_per_s)}/s: p99 {p99}>"


class Batching:
    """Service times by batch size, and simulations of a dynamic batcher that are based on them.

    Parameters
    ----------
    times_ms : mapping of int to array
        Service times of batches by size, including size 1.
    servers : int
        Number of batches that are served at the same time.
    """

    def __init__(self, times_ms: Mapping[int, Samples], servers: int = 1) -> None:
        self._times: dict[int, Floats] = {size: np.sort(times_ms[size]) for size in sorted(times_ms)}
        self._servers = servers
        self._simulated = cache(self._simulate)

    @cached_property
    def sizes(self) -> pd.DataFrame:
        """One row per measured batch size.

        The columns are ``median_ms`` with its 95 % interval, ``per_request_ms`` (the mean divided by the size),
        ``requests_per_s`` (if batches of this size are served back to back), ``marginal_ms`` (the cost of each
        additional request since the previous size) and ``batches`` (the number measured).
        """
        times = self._times.values()
        table = pd.DataFrame({"batch_size": list(self._times), "median_ms": [np.median(each) for each in times]})
        intervals = [quantile_interval(each, 0.5) or (None, None) for each in times]
        table[["ci_low_ms", "ci_high_ms"]] = pd.DataFrame(intervals, dtype="Float64")
        table["per_request_ms"] = [each.mean() for each in times] / table["batch_size"]
        table["requests_per_s"] = self._servers * 1e3 / table["per_request_ms"]
        table["marginal_ms"] = table["median_ms"].diff() / table["batch_size"].diff()
        table["batches"] = [len(each) for each in times]
        numbers = [name for name in table.columns if name.endswith(("_ms", "_per_s"))]
        return table.astype(dict.fromkeys(numbers, "Float64")).set_index("batch_size")

    @property
    def gain(self) -> float:
        """The throughput with the best batch size, divided by the throughput when requests are served one by one."""
        per_second = self.sizes["requests_per_s"]
        return float(per_second.max() / per_second.iloc[0])

    def at(self, rate_per_s: float, most: int, delay_ms: float) -> Batcher:
        """Simulate a batcher at a given rate of independent (Poisson) arrivals.

        Each batch's time is drawn from the measured times of the nearest batch sizes.
        """
        return self._simulated(rate_per_s, most, delay_ms)

    def _simulate(self, rate_per_s: float, most: int, delay_ms: float) -> Batcher:
        rng = np.random.default_rng(_SEED)
        draws = iter(rng.random(REQUESTS))
        latency, sizes, busy = simulate_batches(
            poisson_arrivals(REQUESTS, rate_per_s, rng),
            lambda size: self._time(size, float(next(draws))),
            most,
            delay_ms,
            self._servers,
        )
        p50, p95, p99 = map(float, np.quantile(latency[_SETTLES:], (0.5, 0.95, 0.99)))
        capacity = self._capacity(most)
        if rate_per_s >= capacity:
            p50 = p95 = p99 = math.inf
        served = min(rate_per_s, capacity)
        return Batcher(most, delay_ms, rate_per_s, p50, p95, p99, float(np.mean(sizes)), min(1.0, busy), served)

    def grid(self, rate_per_s: float) -> pd.DataFrame:
        """Return one row per batcher setting, with its figures at a given rate. See `Batcher` for the columns."""
        return pd.DataFrame([self.at(rate_per_s, *setting) for setting in self._settings])

    @property
    def _settings(self) -> list[tuple[int, float]]:
        alone = float(np.median(self._times[1]))
        return [(1, 0.0)] + [(most, share * alone) for most in self._times if most > 1 for share in DELAYS]

    def best(self, rate_per_s: float, quantile: float = 0.99) -> Batcher | None:
        """Return the setting with the lowest latency at a rate, or ``None`` if all settings are overrun.

        The simulations are too short to distinguish between settings that are within 5 % of the lowest latency. Of
        these settings, the one with the smallest batch and delay is returned.

        Parameters
        ----------
        quantile : float
            0.5, 0.95 or 0.99.
        """
        name = _column_of(quantile)
        batchers = [self.at(rate_per_s, *setting) for setting in self._settings]
        lowest = min(getattr(batcher, name) for batcher in batchers)
        if math.isinf(lowest):
            return None
        return next(batcher for batcher in batchers if getattr(batcher, name) <= (1 + EQUAL_WITHIN) * lowest)

    def best_within(self, bound_ms: float, quantile: float = 0.99) -> Batcher | None:
        """Return the setting that serves the highest rate while a latency quantile stays within a bound.

        The returned batcher contains the figures at that rate. The result is ``None`` if no setting meets the bound at
        any rate. If several settings have rates within 5 % of the highest, the one with the smallest batch and delay is
        returned.

        Parameters
        ----------
        quantile : float
            0.5, 0.95 or 0.99.
        """
        name = _column_of(quantile)
        require_seconds("bound_ms", bound_ms)
        best: Batcher | None = None
        for most, delay_ms in self._settings:
            low = 0.02 * self._capacity(1) if best is None else (1 + EQUAL_WITHIN) * best.rate_per_s
            high = self._capacity(most)
            if low >= high or getattr(self.at(low, most, delay_ms), name) > bound_ms:
                continue
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                within = getattr(self.at(middle, most, delay_ms), name) <= bound_ms
                low, high = (middle, high) if within else (low, middle)
            best = self.at(low, most, delay_ms)
        return best

    def _capacity(self, most: int) -> float:
        """Return the number of requests per second that the batcher serves when all of its batches are full."""
        means = [float(times.mean()) for times in self._times.values()]
        return self._servers * 1e3 * most / float(np.interp(most, list(self._times), means))

    def _time(self, size: int, share: float) -> float:
        """Return a quantile of a batch's time, interpolated between the nearest measured sizes."""
        return self._table[int(share * _LEVELS)][size - 1]

    @cached_property
    def _table(self) -> list[list[float]]:
        """Return batch times by quantile and by batch size, starting at size 1."""
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        measured = np.array([times[(levels * len(times)).astype(int)] for times in self._times.values()])
        sizes = np.arange(1, max(self._times) + 1)
        return [np.interp(sizes, list(self._times), times).tolist() for times in measured.T]


def _column_of(quantile: float) -> str:
    name = {0.5: "p50_ms", 0.95: "p95_ms", 0.99: "p99_ms"}.get(quantile)
    if name is None:
        raise ValueError(f"quantile must be 0.5, 0.95 or 0.99, not {quantile!r}.")
    return name


def simulate_batches(
    arrivals_ms: Floats, service_ms: Callable[[int], float], most: int, delay_ms: float, servers: int = 1
) -> tuple[Floats, list[int], float]:
    """Simulate a dynamic batcher.

    A free server starts a batch as soon as `most` requests are waiting, or when the first request has waited for
    `delay_ms`. The batch contains at most `most` requests.

    Parameters
    ----------
    service_ms : callable
        Function that returns a batch's time, given its size. It is called once for each batch.

    Returns
    -------
    array, list of int, float
        The latency of each request, the batch sizes, and the fraction of the time during which the servers are busy.
    """
    arrivals = arrivals_ms.tolist()
    ends: list[float] = []
    sizes, busy = [], 0.0
    free = [0.0] * servers
    head = 0
    while head < len(arrivals):
        full = arrivals[head + most - 1] if head + most <= len(arrivals) else math.inf
        start = max(free[0], min(full, arrivals[head] + delay_ms))
        end = head + 1
        while end < len(arrivals) and end - head < most and arrivals[end] <= start:
            end += 1
        taken = service_ms(end - head)
        heapq.heapreplace(free, start + taken)
        ends += [start + taken] * (end - head)
        sizes.append(end - head)
        busy += taken
        head = end
    span = max(max(free), arrivals[-1]) - arrivals[0]
    return np.array(ends) - arrivals_ms, sizes, busy / servers / span
