"""Simulate queues with measured service times to compute waiting times, load curves, and the highest rate for a bound.

All functions here are pure. The latency at any rate can be computed from the service times, because each request waits
until a server is free. A request that finds its server idle takes longer than a request that directly follows another
one, because its data is no longer in the caches and the processor has been sleeping. This extra time is also measured,
for several pauses. Two short runs are therefore enough to compute the whole load curve.

Near saturation, it takes thousands of requests until a queue no longer depends on having started empty. Similarly, two
requests are only independent of each other if there are thousands of requests between them. Each simulation therefore
consists of many short windows, and each window starts with the backlog of a queue in its steady state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfnb.stats.intervals import Floats, Samples, effective_size

#: The utilizations in a load curve.
UTILIZATIONS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
#: The number of resampled runs for each interval, the number of windows per run, and the number of requests per window.
RUNS, WINDOWS, WINDOW = 200, 200, 60
#: The fraction of runs that use the measured service times without resampling. Estimates are based on these runs.
_OWN = 0.25
#: The number of requests that are discarded at the start of a window. The backlog is exact for one server with
#: independent service times. In other cases, it settles within a few requests.
_SETTLES = 15
#: The number of bisection steps in the search for the highest rate.
_HALVINGS = 6
#: The utilizations between which the highest rate is interpolated.
_GRID = (0.02, *np.linspace(0.1, 0.9, 17), 0.925, 0.95, 0.97, 0.985)


def poisson_arrivals(count: int, rate_per_s: float, rng: np.random.Generator) -> Floats:
    """Return the arrival times, in milliseconds, of requests that arrive independently of each other.

    If their number is fixed, Poisson arrivals are distributed uniformly at random. If the gaps were drawn one by one
    instead, the actual rate of a short run with few requests could be far from the reported rate.
    """
    return np.sort(rng.uniform(0, 1e3 * count / rate_per_s, count))


@dataclass(frozen=True)
class Pauses:
    """The extra time of a request whose server was idle before it, interpolated between measured pauses.

    Attributes
    ----------
    pause_ms, extra_ms : array
        The pauses, in ascending order from 0, and the extra time after each of them. All pauses longer than the last
        one have the same extra time.
    scale : array
        The factor by which the extra time is multiplied in each run.
    """

    pause_ms: Floats
    extra_ms: Floats
    scale: Floats

    def after(self, idle_ms: Floats) -> Floats:
        """Return a request's extra time in each run, based on the time that its server was idle.

        The extra time is zero if the server was busy.
        """
        runs = self.scale[: len(idle_ms)]
        return runs.reshape(-1, *[1] * (idle_ms.ndim - 1)) * np.interp(idle_ms, self.pause_ms, self.extra_ms)


def served_in_turn(
    arrivals_ms: Floats,
    service_ms: Floats,
    servers: int = 1,
    *,
    pauses: Pauses | None = None,
    between_ms: float = 0.0,
    free_ms: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Return the time that each request waits for a server, and the service times including the extra time after
    pauses.

    In order of arrival, each request goes to the server that becomes free first (Kiefer and Wolfowitz, 1955). A request
    that finds the server idle takes longer (Welch, 1964). The extra time depends on the length of the pause.

    Parameters
    ----------
    arrivals_ms, service_ms : array
        The first axis contains the requests in order, and the other axes represent independent queues. Arrivals must be
        in ascending order.
    between_ms : float
        The time that a server is busy after each request before it can start the next one.
    free_ms : array, optional
        The times when each queue's servers first become free, in ascending order along the first axis.
    """
    service = service_ms.copy() if pauses is not None else service_ms
    free = [*(np.zeros((servers, *arrivals_ms.shape[1:])) if free_ms is None else free_ms)]
    waited = np.empty_like(arrivals_ms)
    for place, arrival in enumerate(arrivals_ms):
        start = np.maximum(arrival, free[0])
        np.subtract(start, arrival, out=waited[place, ...])
        if pauses is not None:
            service[place] += pauses.after(arrival - free[0])
        ends = start + service[place] + between_ms
        for number in range(1, servers):  # keep the servers sorted
            free[number - 1], ends = np.minimum(ends, free[number]), np.maximum(ends, free[number])
        free[-1] = ends
    return waited, service


@dataclass(frozen=True)
class Loads:
    """Simulated runs of a service under load, from which load curves and rates are derived.

    The service times of each run are resampled from the measured times, so the runs differ as much as repeated
    measurements would. The same random numbers are used at every rate. Within a run, a higher rate therefore never
    leads to a shorter wait.

    A window starts with the work that an arriving request finds in a queue in its steady state. With one server, this
    work is the sum of a geometrically distributed number of residual service times. Each of these is the remaining time
    of a request at a random instant during its service (Pollaczek and Khinchine). Several servers are treated as a
    single server that is correspondingly faster. The other servers become free one residual time after the first.
    """

    servers: int
    #: The time that a server is busy between two requests.
    between_ms: float
    #: The gaps between arrivals at one request per millisecond, and the service times, both of shape ``(requests, runs,
    #: windows)``. The first `own` runs use the measured service times without resampling.
    gaps: Floats
    service_ms: Floats
    own: int
    #: The mean service time of each run's resampled measurement. The first value is the measured mean.
    means_ms: Floats
    #: The cumulative sums of each run's residual service times, starting at 0, and a random number for each window,
    #: which determines the number of residual times.
    backlogs_ms: Floats
    chances: Floats
    #: The time until each of the other servers becomes free after the first one. The shape is ``(others, runs,
    #: windows)``.
    later_ms: Floats
    #: The extra time after pauses in each run, or ``None`` if there is none.
    pauses: Pauses | None = None

    def at(self, rate_per_s: float, quantiles: Sequence[float], runs: int | None = None) -> Floats:
        """Return each run's latency quantiles, mean wait and mean service time.

        All of these are infinite if the rate is too high for the run.

        The runs that use the measured service times are pooled, so each of them contains the same figures.

        Parameters
        ----------
        runs : int, optional
            The number of runs. The default is all runs.

        Returns
        -------
        array
            Shape ``(runs, quantiles + 2)``, in milliseconds.
        """
        arrivals = np.cumsum(self.gaps[:, :runs], axis=0) * (1e3 / rate_per_s)
        service, means = self.service_ms[:, :runs], self.means_ms[:runs]
        free = self._free_ms(rate_per_s, arrivals[0])
        waited, taken = served_in_turn(
            *(arrivals, service, self.servers), pauses=self.pauses, between_ms=self.between_ms, free_ms=free
        )
        waited, taken = waited[_SETTLES:], taken[_SETTLES:]
        table = np.empty((service.shape[1], len(quantiles) + 2))
        for part in (slice(self.own), *range(self.own, len(table))):
            latency = waited[:, part] + taken[:, part]
            table[part, :-2] = np.quantile(latency, list(quantiles))
            table[part, -2] = waited[:, part].mean()
            table[part, -1] = taken[:, part].mean() if self.pauses is not None else means[part].mean()
        table[rate_per_s * (means + self.between_ms) >= 1e3 * self.servers, :-1] = np.inf
        return table

    def _free_ms(self, rate_per_s: float, first_ms: Floats) -> Floats:
        """Return the times when the servers become free if the first request arrives at `first_ms`.

        The shape is ``(servers, runs, windows)``. Servers without a backlog have been idle since time 0, which is as
        long as the time between two arrivals.
        """
        runs, windows = first_ms.shape
        busy = np.clip(rate_per_s * (self.means_ms[:runs] + self.between_ms) / 1e3 / self.servers, 1e-9, 0.999)[:, None]
        sums = self.backlogs_ms[:runs]
        held = sums.shape[1] - 1
        begin = np.arange(windows) * (held // windows)
        end = begin + np.floor(np.log(self.chances[:runs]) / np.log(busy)).astype(np.int64)
        row = np.arange(runs)[:, None]
        backlog = sums[row, end % held] + end // held * sums[:, -1:] - sums[row, begin]
        later = np.concatenate([np.zeros((1, runs, windows)), self.later_ms[:, :runs]])
        free: Floats = np.where(backlog > 0, first_ms + backlog + later, 0.0)
        return free

    def summed_up(self, values: Floats, estimate: float | None = None) -> tuple[float, float, float]:
        """Return the estimate and its 95 % interval from one value per run (bias-corrected percentiles: Efron, 1981).

        By default, the estimate is the value from the runs that use the measured service times.
        """
        from scipy.special import ndtr, ndtri

        estimate = float(values[0]) if estimate is None else estimate
        others = np.sort(values[self.own :])
        if not np.isfinite(estimate):
            return math.inf, float(others[0]), math.inf
        count = len(others)
        shift = 2 * float(ndtri(np.clip(np.mean(others < estimate), 0.5 / count, 1 - 0.5 / count)))
        low, high = (int(np.clip(ndtr(shift + side) * count, 0, count - 1)) for side in (-1.96, 1.96))
        return estimate, float(min(estimate, others[low])), float(max(estimate, others[high]))

    def highest_rate(self, bound_ms: float, quantile: float) -> tuple[float, float, float]:
        """Return the highest rate per second at which a latency quantile is within a bound, with its 95 % interval.

        The rate is 0 if even a request served alone exceeds the bound.
        """
        rates = np.array([self.rate(utilization) for utilization in _GRID])
        latency = np.array([self.at(rate, [quantile])[:, 0] for rate in rates]).T
        crossings = np.array([_crossing(rates, run, bound_ms) for run in latency])
        estimate = crossings[0]
        inside = np.flatnonzero(latency[0] <= bound_ms)
        if estimate > 0 and inside[-1] + 1 < len(rates):
            low, high = float(rates[inside[-1]]), float(rates[inside[-1] + 1])
            for _ in range(_HALVINGS):
                estimate = (low + high) / 2
                within = float(self.at(estimate, [quantile], self.own)[0, 0]) <= bound_ms
                low, high = (estimate, high) if within else (low, estimate)
        return self.summed_up(crossings, float(estimate))

    def rate(self, utilization: float) -> float:
        """Return the requests per second that keep the servers busy for a given share of the time."""
        return float(utilization * self.servers * 1e3 / (self.means_ms[0] + self.between_ms))


def simulate(
    service_ms: Samples,
    servers: int = 1,
    *,
    extra_ms: Mapping[float, Samples] | None = None,
    between_ms: float = 0.0,
    seed: int = 0,
    runs: int = RUNS,
) -> Loads:
    """Simulate runs of a service from its measured service times, which must be in the order of measurement.

    If consecutive service times depend on each other (`effective_size`), they are resampled in blocks, which preserve
    the measured order. The length of a block is the cube root of the number of service times (Künsch, 1989).

    Parameters
    ----------
    extra_ms : mapping of float to array, optional
        For each pause in milliseconds, the extra time that requests took after it.
    between_ms : float
        The time that a server is busy between two requests.
    """
    rng = np.random.default_rng(seed)
    measured = np.asarray(service_ms, dtype=float)
    count = len(measured)
    block = max(1, round(count ** (1 / 3))) if effective_size(measured) < count else 1
    own = max(1, round(_OWN * runs))
    samples = measured[_places(rng, (runs, count), count, block)]
    samples[:own] = measured
    places = _places(rng, (runs * WINDOWS, WINDOW), count, block).reshape(runs, -1)
    service = np.take_along_axis(samples, places, axis=1).reshape(runs, WINDOWS, WINDOW)
    service = np.ascontiguousarray(service.transpose(2, 0, 1))
    gaps = rng.exponential(1.0, service.shape)
    pauses = None if not extra_ms else _pauses(extra_ms, runs, own, rng)
    left = _remainders(samples + between_ms, WINDOWS * WINDOW, rng)
    stretched = _clustering(measured, block) / servers * left
    backlogs = np.concatenate([np.zeros((runs, 1)), np.cumsum(stretched, axis=1)], axis=1)
    later = [left[:, place : place + WINDOWS] for place in rng.integers(0, left.shape[1] - WINDOWS, servers - 1)]
    chances = 1.0 - rng.random((runs, WINDOWS))
    later_ms = np.sort(np.array(later).reshape(-1, runs, WINDOWS), axis=0)
    means = samples.mean(axis=1)
    return Loads(servers, between_ms, gaps, service, own, means, backlogs, chances, later_ms, pauses)


def _remainders(busy_ms: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Return the current request's residual service time at `count` instants, which are spread evenly over each run."""
    held = busy_ms.shape[1]
    ends = np.cumsum(busy_ms, axis=1)
    instants = (np.arange(count) + 0.5) / count * ends[:, -1:]
    places = np.array([np.searchsorted(run, each) for run, each in zip(ends, instants, strict=True)])
    return rng.permuted(np.take_along_axis(ends, np.minimum(places, held - 1), axis=1) - instants, axis=1)


def _clustering(measured: Floats, block: int) -> float:
    """Return the factor by which backlogs increase because long service times occur in clusters.

    See Kingman (1962) on heavy traffic.
    """
    mean = float(measured.mean())
    if block == 1 or mean == 0:
        return 1.0
    around = np.concatenate([measured, measured[: block - 1]])
    sums = np.convolve(around, np.ones(block), "valid")
    return (float(sums.var()) / block / mean**2 + 1) / (float(measured.var()) / mean**2 + 1)


def _pauses(extra_ms: Mapping[float, Samples], runs: int, own: int, rng: np.random.Generator) -> Pauses:
    """Return the median extra time after each pause, and its scale in each run.

    Negative medians are replaced by 0. The scales of the resampled runs come from resampling the extra times.
    """
    known = {pause: np.asarray(extra_ms[pause], dtype=float) for pause in sorted(extra_ms)}
    medians = np.maximum([np.median(each) for each in known.values()], 0.0)
    again = sum(np.maximum(np.median(rng.choice(each, (runs, len(each))), axis=1), 0.0) for each in known.values())
    scale = again / medians.sum() if medians.any() else np.ones(runs)
    scale[:own] = 1.0
    return Pauses(np.array([0.0, *known]), np.array([0.0, *medians]), scale)


def _places(rng: np.random.Generator, shape: tuple[int, int], count: int, block: int) -> np.ndarray[Any, Any]:
    """Return random indices below `count`, drawn in blocks that wrap around."""
    runs, wanted = shape
    starts = rng.integers(0, count, (runs, math.ceil(wanted / block)))
    return ((starts[:, :, None] + np.arange(block)) % count).reshape(runs, -1)[:, :wanted]


def _crossing(rates: Floats, latency: Floats, bound_ms: float) -> float:
    """Return the rate above which latency exceeds a bound.

    At the lowest rates, latency may also exceed the bound, because of the extra time after pauses.
    """
    within = np.flatnonzero(latency <= bound_ms)
    if not len(within):
        return 0.0
    last = int(within[-1])
    if last + 1 == len(rates) or not np.isfinite(latency[last + 1]):
        return float(rates[last])
    share = (bound_ms - latency[last]) / (latency[last + 1] - latency[last])
    return float(rates[last] + share * (rates[last + 1] - rates[last]))
