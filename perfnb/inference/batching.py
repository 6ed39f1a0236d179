"""What a dynamic batcher would gain: batches of each size measured, the batcher simulated. Pure."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.arguments import require_seconds
from perfnb.inference.queueing import poisson_arrivals, simulate_batches
from perfnb.stats.intervals import Floats, median_interval

#: Requests of a simulation; the first quarter, in which the queue fills, is left out.
REQUESTS = 8_000
_SETTLES = REQUESTS // 4
#: Delays that are tried, as shares of the time that a request alone takes.
DELAYS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
#: Settings whose figures differ by less count as equal.
EQUAL_WITHIN = 0.05
#: How often the interval around the highest rate is halved.
_HALVINGS = 7
#: Quantiles of a batch's time that are told apart.
_LEVELS = 4096
_SEED = 21


@dataclass(frozen=True, repr=False)
class Batcher:
    """A batcher under load, simulated: its settings, and what they do.

    Attributes
    ----------
    most, delay_ms : int, float
        The largest batch, and how long the first request of a batch waits for others.
    rate_per_s : float
        Requests per second.
    p50_ms, p95_ms, p99_ms : float
        Quantiles of latency; infinite if requests come faster than the batcher serves them.
    batch_size : float
        Mean size of its batches.
    utilization : float
        Share of the time for which the server is busy.
    served_per_s : float
        Requests per second that it serves: as many as come, unless it is overrun.
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
        rate = f"{fmt.significant(self.rate_per_s)}/s"
        times = ", ".join(
            f"{word} {'without end' if math.isinf(ms) else fmt.duration(ms)}"
            for word, ms in (("p50", self.p50_ms), ("p95", self.p95_ms), ("p99", self.p99_ms))
        )
        sizes = f"batches of {fmt.significant(self.batch_size)}, {fmt.share(self.utilization)} busy"
        return (
            f"<perfnb.Batcher: at most {self.most}, {fmt.duration(self.delay_ms)} delay, at {rate}: {times}, {sizes}>"
        )


class Batching:
    """Service times by batch size, and what a dynamic batcher makes of them.

    Parameters
    ----------
    times_ms : mapping of int to array
        Service times of batches, by size; size 1 is there.
    servers : int
        Batches served at the same time.
    """

    def __init__(self, times_ms: Mapping[int, Floats], servers: int = 1) -> None:
        self._times = {size: np.sort(times_ms[size]) for size in sorted(times_ms)}
        self._servers = servers
        self._grids: dict[float, pd.DataFrame] = {}
        self._highest: dict[tuple[float, str], Batcher | None] = {}

    @cached_property
    def sizes(self) -> pd.DataFrame:
        """A row per batch size measured.

        ``median_ms`` with its 95 % interval, ``per_request_ms`` (the mean, over the size), ``requests_per_s`` (if
        batches of this size follow each other), ``marginal_ms`` (what one more request cost, since the size before)
        and ``batches`` (measured).
        """
        rows: list[dict[str, Any]] = []
        before: tuple[int, float] | None = None
        for size, times in self._times.items():
            low, high = median_interval(times) or (None, None)
            median = float(np.median(times))
            marginal = None if before is None else (median - before[1]) / (size - before[0])
            rows.append(
                {
                    "batch_size": size,
                    "median_ms": median,
                    "ci_low_ms": low,
                    "ci_high_ms": high,
                    "per_request_ms": float(times.mean()) / size,
                    "requests_per_s": self._servers * 1e3 * size / float(times.mean()),
                    "marginal_ms": marginal,
                    "batches": len(times),
                }
            )
            before = size, median
        kinds = {"batch_size": "int64", "batches": "int64"}
        return pd.DataFrame(rows).astype({name: kinds.get(name, "Float64") for name in rows[0]}).set_index("batch_size")

    @property
    def gain(self) -> float:
        """How many times as many requests can be served with the best batch size as one by one."""
        per_second = self.sizes["requests_per_s"]
        return float(per_second.max() / per_second.iloc[0])

    def at(self, rate_per_s: float, most: int, delay_ms: float) -> Batcher:
        """A batcher at a rate of independent (Poisson) arrivals, simulated.

        The time of a batch is drawn from those measured at the sizes around it.
        """
        rng = np.random.default_rng(_SEED)
        draws = iter(rng.random(REQUESTS))
        found = simulate_batches(
            poisson_arrivals(REQUESTS, rate_per_s, rng),
            lambda size: self._time(size, float(next(draws))),
            most,
            delay_ms,
            self._servers,
        )
        latency = found.latency_ms[_SETTLES:]
        p50, p95, p99 = (float(each) for each in np.quantile(latency, (0.5, 0.95, 0.99)))
        capacity = self._capacity(most)
        served = min(rate_per_s, capacity)
        if rate_per_s >= capacity:
            p50 = p95 = p99 = np.inf
        size, busy = float(found.sizes.mean()), min(1.0, found.utilization)
        return Batcher(most, delay_ms, rate_per_s, p50, p95, p99, size, busy, served)

    def grid(self, rate_per_s: float) -> pd.DataFrame:
        """A row per setting of the batcher, with what it does at a rate; as `Batcher`."""
        if rate_per_s not in self._grids:
            self._grids[rate_per_s] = pd.DataFrame([self.at(rate_per_s, *each) for each in self._settings])
        return self._grids[rate_per_s].copy()

    @property
    def _settings(self) -> list[tuple[int, float]]:
        alone = float(np.median(self._times[1]))
        return [(1, 0.0)] + [(most, share * alone) for most in self._times if most > 1 for share in DELAYS]

    def best(self, rate_per_s: float, quantile: float = 0.99) -> Batcher | None:
        """The setting whose latency is lowest at a rate; ``None`` if all are overrun.

        Of settings within 5 % of the lowest, which simulations of this length cannot tell apart, it is the one with the
        smallest batch and delay.

        Parameters
        ----------
        quantile : float
            0.5, 0.95 or 0.99.
        """
        name = _column_of(quantile)
        table = self.grid(rate_per_s).sort_values(["most", "delay_ms"])
        lowest = float(table[name].min())
        if not np.isfinite(lowest):
            return None
        row = table[table[name] <= (1 + EQUAL_WITHIN) * lowest].iloc[0]
        return self.at(rate_per_s, int(row["most"]), float(row["delay_ms"]))

    def highest_rate(self, bound_ms: float, quantile: float = 0.99) -> Batcher | None:
        """The setting that serves the highest rate with a quantile of latency within a bound, at that rate.

        ``None`` if none does at any rate. Of settings whose rates are within 5 % the one with the smallest batch and
        delay is meant.

        Parameters
        ----------
        quantile : float
            0.5, 0.95 or 0.99.
        """
        name = _column_of(quantile)
        require_seconds("bound_ms", bound_ms)
        if (bound_ms, name) not in self._highest:
            self._highest[bound_ms, name] = self._find_highest(bound_ms, name)
        return self._highest[bound_ms, name]

    def _find_highest(self, bound_ms: float, name: str) -> Batcher | None:
        best: Batcher | None = None
        for most, delay_ms in self._settings:
            within = functools.partial(self._within, name=name, bound_ms=bound_ms, most=most, delay_ms=delay_ms)
            low = 0.02 * self._capacity(1) if best is None else (1 + EQUAL_WITHIN) * best.rate_per_s
            high = self._capacity(most)
            if low >= high or within(low) is None:
                continue
            best = within(low)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                found = within(middle)
                low, high, best = (middle, high, found) if found is not None else (low, middle, best)
        return best

    def _within(self, rate_per_s: float, *, name: str, bound_ms: float, most: int, delay_ms: float) -> Batcher | None:
        found = self.at(rate_per_s, most, delay_ms)
        return found if getattr(found, name) <= bound_ms else None

    def _capacity(self, most: int) -> float:
        """Requests per second that the batcher serves when all its batches are full."""
        means = [float(times.mean()) for times in self._times.values()]
        return self._servers * 1e3 * most / float(np.interp(most, list(self._times), means))

    def _time(self, size: int, share: float) -> float:
        """The quantile of a batch's time, interpolated between the sizes measured around it."""
        return self._table[size - 1][int(share * _LEVELS)]

    @cached_property
    def _table(self) -> list[list[float]]:
        """Times by size, from 1, and by quantile."""
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        measured = {size: times[(levels * len(times)).astype(int)] for size, times in self._times.items()}
        table = [measured[1]]
        for before, after in itertools.pairwise(measured):
            shares = (np.arange(before, after) + 1 - before) / (after - before)
            table += [(1 - share) * measured[before] + share * measured[after] for share in shares]
        return [each.tolist() for each in table]


def _column_of(quantile: float) -> str:
    name = {0.5: "p50_ms", 0.95: "p95_ms", 0.99: "p99_ms"}.get(quantile)
    if name is None:
        raise ValueError(f"quantile must be 0.5, 0.95 or 0.99, not {quantile!r}.")
    return name
