"""Queues computed from measured service times: waits, load curves, the highest rate for a bound, batching. Pure.

The latency at any rate follows from the service times: each request waits until a server is free. A request that
finds its server idle takes longer than one that follows another at once, because what it needs has left the caches and
the processor has slept; how much longer, by the pause, is measured too. So two short runs give the whole load curve.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfnb.stats.intervals import Floats, Samples

#: Utilizations at which a load curve is computed.
UTILIZATIONS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
#: Resampled runs behind each interval, and the requests of each; the first quarter, in which the queue fills, is left
#: out.
RUNS, REQUESTS = 200, 12_000
_SETTLES = 0.25
#: How often the interval around the highest rate is halved.
_HALVINGS = 6
#: Simulated latencies that are held at a time, about.
_HELD = 5_000_000
#: Utilizations between which the highest rate is interpolated.
_GRID = (0.02, *np.linspace(0.1, 0.9, 17), 0.925, 0.95, 0.97, 0.985)


def poisson_arrivals(count: int, rate_per_s: float, rng: np.random.Generator) -> Floats:
    """Arrival times in milliseconds of requests that come independently of each other."""
    return np.cumsum(rng.exponential(1e3 / rate_per_s, count))


@dataclass(frozen=True)
class Pauses:
    """How much longer a request takes if its server was idle before it; between these pauses in proportion.

    Attributes
    ----------
    pause_ms, extra_ms : array
        Pauses, ascending from 0, and what each adds; longer ones than the last add no more than that.
    scale : array
        By how much more or less than that it is in each run.
    """

    pause_ms: Floats
    extra_ms: Floats
    scale: Floats

    def after(self, idle_ms: Floats) -> Floats:
        """The extra time of a request per run, by how long its server was idle; none where it was busy."""
        return self.scale * np.interp(idle_ms, self.pause_ms, self.extra_ms)


def waits(arrivals_ms: Floats, service_ms: Floats, servers: int = 1) -> Floats:
    """How long each request waits for a server, in milliseconds, served in order of arrival.

    One server by Lindley's recursion, ``W[k+1] = max(0, W[k] + S[k] - (T[k+1] - T[k]))``, as the distance of a random
    walk from its minimum so far; several by handing each request to the server that is free first (Kiefer and
    Wolfowitz, 1955).

    Parameters
    ----------
    arrivals_ms, service_ms : array
        Shape ``(requests,)``, or ``(runs, requests)`` for several runs at once. Arrivals ascend.
    """
    if servers == 1:
        steps = np.zeros_like(arrivals_ms)
        steps[..., 1:] = service_ms[..., :-1] - np.diff(arrivals_ms)
        walk = np.cumsum(steps, axis=-1)
        return walk - np.minimum.accumulate(walk, axis=-1)
    if arrivals_ms.ndim > 1:
        return served_in_turn(arrivals_ms, service_ms, servers)[0]
    free = [0.0] * servers
    found = np.empty(len(arrivals_ms))
    for place, (arrival, service) in enumerate(zip(arrivals_ms.tolist(), service_ms.tolist(), strict=True)):
        start = max(arrival, free[0])
        heapq.heapreplace(free, start + service)
        found[place] = start - arrival
    return found


def served_in_turn(
    arrivals_ms: Floats, service_ms: Floats, servers: int, pauses: Pauses | None = None
) -> tuple[Floats, Floats]:
    """Waits, and service times with what pauses add: one request after the other, all runs at once.

    A queue whose first customer after a pause is exceptional (Welch, 1964), with a service that depends on the pause.

    Parameters
    ----------
    arrivals_ms, service_ms : array
        Shape ``(runs, requests)``.
    """
    arrivals, service = np.ascontiguousarray(arrivals_ms.T), np.array(service_ms.T, order="C")
    free = [np.zeros(arrivals.shape[1]) for _ in range(servers)]  # when each server is, the earliest first
    found = np.empty_like(arrivals)
    for place, arrival in enumerate(arrivals):
        start = np.maximum(arrival, free[0])
        np.subtract(start, arrival, out=found[place])
        if pauses is not None:
            service[place] += pauses.after(arrival - free[0])
        ends = start + service[place]
        for number in range(1, servers):  # into its place among the others
            free[number - 1], ends = np.minimum(ends, free[number]), np.maximum(ends, free[number])
        free[-1] = ends
    return np.ascontiguousarray(found.T), np.ascontiguousarray(service.T)


@dataclass(frozen=True)
class Loads:
    """Simulated runs of a service under load, from which curves and rates are read.

    Each run has its own service times, resampled from the measured ones, so that the runs differ as another measurement
    would. The gaps between its arrivals are the same at every rate but for their scale: in each run, a higher rate
    never means a shorter wait.
    """

    measured_ms: Floats
    servers: int
    #: Gaps between arrivals at one request per millisecond, and service times; shape ``(runs, requests)``. The first
    #: `own` runs have the measured service times themselves.
    gaps: Floats
    service_ms: Floats
    #: Mean service time of each run's resampled measurement.
    means_ms: Floats
    own: int
    #: What pauses add, in each run; ``None`` if nothing.
    pauses: Pauses | None = None

    def at(self, rate_per_s: float, quantiles: Sequence[float]) -> Floats:
        """Quantiles of latency, mean wait and mean service, of each run; infinite where the rate is too high for it.

        Returns
        -------
        array
            Shape ``(runs, quantiles + 2)``, in milliseconds.
        """
        found: Floats = self._at_rates([rate_per_s], quantiles)[0]
        return found

    def _at_rates(self, rates: Sequence[float], quantiles: Sequence[float], runs: int | None = None) -> Floats:
        """As `at`, for the first `runs` runs at each rate; shape ``(rates, runs, quantiles + 2)``."""
        at_one, service, means = np.cumsum(self.gaps[:runs], axis=1), self.service_ms[:runs], self.means_ms[:runs]
        together = max(1, _HELD // service.size) if self.pauses is not None else 1
        found = []
        for begin in range(0, len(rates), together):
            some = rates[begin : begin + together]
            arrivals = np.concatenate([at_one * (1e3 / rate) for rate in some])
            if self.pauses is None:
                taken = service
                waited = waits(arrivals, taken, self.servers)
            else:
                pauses = replace(self.pauses, scale=np.tile(self.pauses.scale[:runs], len(some)))
                waited, taken = served_in_turn(arrivals, np.tile(service, (len(some), 1)), self.servers, pauses)
            settled = slice(int(_SETTLES * waited.shape[1]), None)
            waited, taken = waited[:, settled], taken[:, settled]
            latency = np.quantile(waited + taken, list(quantiles), axis=1).T
            mean_service = taken.mean(axis=1) if self.pauses is not None else np.tile(means, len(some))
            table = np.column_stack([latency, waited.mean(axis=1), mean_service])
            table[np.outer(some, means).ravel() >= 1e3 * self.servers, :-1] = np.inf
            found += np.split(table, len(some))
        return np.array(found)

    def summed_up(self, values: Floats, estimate: float | None = None) -> tuple[float, float, float]:
        """Estimate and 95 % interval from a value per run (bias-corrected percentiles: Efron, 1981).

        The estimate is the mean of the runs with the measured service times, if none is given.
        """
        from scipy.special import ndtr, ndtri

        estimate = float(values[: self.own].mean()) if estimate is None else estimate
        others = np.sort(values[self.own :])
        if not np.isfinite(estimate):
            return math.inf, float(others[0]), math.inf
        count = len(others)
        shift = 2 * float(ndtri(np.clip(np.mean(others < estimate), 0.5 / count, 1 - 0.5 / count)))
        low, high = (int(np.clip(ndtr(shift + side) * count, 0, count - 1)) for side in (-1.96, 1.96))
        return estimate, float(min(estimate, others[low])), float(max(estimate, others[high]))

    def highest_rate(self, bound_ms: float, quantile: float) -> tuple[float, float, float]:
        """The highest rate per second at which a quantile of latency is within a bound, with its 95 % interval.

        It is 0 where not even a request alone is served in time.
        """
        rates = np.array([self.rate(each) for each in _GRID])
        latency = self._at_rates(rates.tolist(), [quantile])[:, :, 0].T
        crossings = np.array([_crossing(rates, run, bound_ms) for run in latency])
        usual = latency[: self.own].mean(axis=0)
        estimate = _crossing(rates, usual, bound_ms)
        inside = np.flatnonzero(usual <= bound_ms)
        if estimate > 0 and inside[-1] + 1 < len(rates):
            low, high = float(rates[inside[-1]]), float(rates[inside[-1] + 1])
            for _ in range(_HALVINGS):
                estimate = (low + high) / 2
                within = float(self._at_rates([estimate], [quantile], self.own)[0, :, 0].mean()) <= bound_ms
                low, high = (estimate, high) if within else (low, estimate)
        return self.summed_up(crossings, estimate)

    def utilization(self, rate_per_s: float) -> float:
        """Share of their time for which the servers are busy."""
        return rate_per_s * float(self.measured_ms.mean()) / 1e3 / self.servers

    def rate(self, utilization: float) -> float:
        """Requests per second that keep the servers busy for a share of their time."""
        return utilization * self.servers * 1e3 / float(self.measured_ms.mean())


def simulate(
    service_ms: Samples,
    servers: int = 1,
    *,
    extra_ms: Mapping[float, Samples] | None = None,
    seed: int = 0,
    runs: int = RUNS,
) -> Loads:
    """Runs of a service whose times were measured, in the order in which they were measured.

    Consecutive service times that depend on each other (`effective_size`) are resampled in blocks, of the cube root of
    their number (Künsch, 1989), and follow each other in the runs as they were measured.

    Parameters
    ----------
    extra_ms : mapping of float to array, optional
        How much longer requests took after a pause, by its milliseconds.
    """
    from perfnb.stats.intervals import effective_size

    rng = np.random.default_rng(seed)
    measured = np.asarray(service_ms, dtype=float)
    count = len(measured)
    block = max(1, round(count ** (1 / 3))) if effective_size(measured) < count else 1
    own = max(1, runs // 10)
    samples = measured[_places(rng, (runs, count), count, block)]
    samples[:own] = measured
    places = _places(rng, (runs, REQUESTS), count, block)
    service = np.take_along_axis(samples, places, axis=1)
    gaps = rng.exponential(1.0, service.shape)
    pauses = None if not extra_ms else _pauses(extra_ms, runs, own, rng)
    return Loads(measured, servers, gaps, service, samples.mean(axis=1), own, pauses)


def _pauses(extra_ms: Mapping[float, Samples], runs: int, own: int, rng: np.random.Generator) -> Pauses:
    """The median that each pause adds, never less than nothing; in the other runs, as much more as resampled ones."""
    known = {pause: np.asarray(extra_ms[pause], dtype=float) for pause in sorted(extra_ms)}
    medians = np.maximum([np.median(each) for each in known.values()], 0.0)
    again = sum(np.maximum(np.median(rng.choice(each, (runs, len(each))), axis=1), 0.0) for each in known.values())
    scale = again / medians.sum() if medians.any() else np.ones(runs)
    scale[:own] = 1.0
    return Pauses(np.array([0.0, *known]), np.array([0.0, *medians]), scale)


def _places(rng: np.random.Generator, shape: tuple[int, int], count: int, block: int) -> np.ndarray[Any, Any]:
    """Places among `count` values, drawn in blocks that wrap around."""
    runs, wanted = shape
    starts = rng.integers(0, count, (runs, math.ceil(wanted / block)))
    return ((starts[:, :, None] + np.arange(block)) % count).reshape(runs, -1)[:, :wanted]


def _crossing(rates: Floats, latency: Floats, bound_ms: float) -> float:
    """The rate above which latency is over a bound. After pauses it can be higher at the lowest rates, too."""
    within = np.flatnonzero(latency <= bound_ms)
    if not len(within):
        return 0.0
    last = int(within[-1])
    if last + 1 == len(rates) or not np.isfinite(latency[last + 1]):
        return float(rates[last])
    share = (bound_ms - latency[last]) / (latency[last + 1] - latency[last])
    return float(rates[last] + share * (rates[last + 1] - rates[last]))


@dataclass(frozen=True)
class Batched:
    """What a batcher made of requests: the latency of each, and the sizes of its batches."""

    latency_ms: Floats
    sizes: np.ndarray[Any, Any]
    #: Share of the time in which the server was busy.
    utilization: float


def simulate_batches(
    arrivals_ms: Floats, service_ms: Callable[[int], float], most: int, delay_ms: float, servers: int = 1
) -> Batched:
    """A dynamic batcher: a free server takes what waits, at most `most`, once that many wait or the first has waited
    `delay_ms`.

    Parameters
    ----------
    service_ms : callable
        Time of a batch of a size; called once for each batch.
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
    return Batched(np.array(ends) - arrivals_ms, np.array(sizes), busy / servers / span)
