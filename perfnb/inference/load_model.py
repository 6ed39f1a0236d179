"""Compute latency under load from service times and from the extra time after pauses.

All functions here are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.inference.queueing import RUNS, UTILIZATIONS, Loads, simulate
from perfnb.stats.intervals import Floats, quantile, quantile_interval

if TYPE_CHECKING:
    from perfnb.inference.samples import Measured, OpenRun

#: The quantiles in every curve.
QUANTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p95_ms": 0.95, "p99_ms": 0.99}
#: The minimum number of requests per server for determining the time between requests.
_FEWEST_EACH = 10
#: If a run has too few requests for its quantile, it refutes the rate if the number of requests over the bound has a
#: lower probability than this.
_SIGNIFICANT = 0.05


@dataclass(frozen=True, repr=False)
class LoadedLatency:
    """The latency at a given arrival rate, computed from service times.

    Attributes
    ----------
    rate_per_s, utilization : float
        Requests per second, and the fraction of the time during which the servers are busy.
    p50_ms, p90_ms, p95_ms, p99_ms : float or None
        Latency quantiles. They are ``None`` if there are too few service times, and infinite if requests arrive faster
        than they can be served.
    wait_ms, service_ms : float
        The mean waiting time before service, and the mean service time.
    intervals : dict of str to tuple of float
        The 95 % interval of each of these values, by name.
    """

    rate_per_s: float
    utilization: float
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    wait_ms: float
    service_ms: float
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __repr__(self) -> str:
        busy = f"{fmt.significant(self.rate_per_s)}/s, {fmt.share(self.utilization)} busy"
        wait = bounded_words(self.wait_ms, None)
        return f"<perfnb.LoadedLatency: {busy}: {load_words(self)}, mean wait {wait}>"


def load_words(load: LoadedLatency) -> str:
    """Return ``p50 12.3 ms [12.1, 12.6], p95 ..., p99 ...``."""
    names = {word: f"{word}_ms" for word in ("p50", "p95", "p99")}
    return ", ".join(
        f"{word} {bounded_words(getattr(load, name), load.intervals.get(name))}" for word, name in names.items()
    )


def bounded_words(ms: Any, bounds: tuple[Any, Any] | None) -> str:
    """Return a time with its interval. Either of them may be infinite."""
    if not pd.isna(ms) and math.isinf(ms):
        return "infinite"
    if bounds is not None and not pd.isna(bounds[1]) and math.isinf(bounds[1]):
        return f"{fmt.duration(ms)} [from {fmt.duration(bounds[0])}]"
    return fmt.interval(ms, bounds)


@dataclass(frozen=True, repr=False)
class HighestRate:
    """The highest rate at which a latency quantile stays within a bound.

    Attributes
    ----------
    rate_per_s : float or None
        Requests per second. The rate is 0 if even requests served alone exceed the bound. It is ``None``, which means
        unknown, if latency exceeded the bound in the runs at all of the rates that were tried.
    low, high : float
        The 95 % interval of the rate.
    bound_ms, quantile : float
        The bound, and the fraction of requests that must be within it.
    confirmed_ms : float or None
        The quantile measured in a run at `rate_per_s`, or ``None`` if there was no run or too few requests.
    confirmed_interval_ms : tuple of float or None
        The 95 % interval of `confirmed_ms`, or ``None`` if there were too few requests.
    confirmed_requests, confirmed_within : int or None
        The number of requests that were due in that run, and the number that were served within the bound.
    refuted_per_s : tuple of float
        Higher rates, computed from service times, at which a run exceeded the bound.
    """

    rate_per_s: float | None
    low: float
    high: float
    bound_ms: float
    quantile: float
    confirmed_ms: float | None = None
    confirmed_interval_ms: tuple[float, float] | None = None
    confirmed_requests: int | None = None
    confirmed_within: int | None = None
    refuted_per_s: tuple[float, ...] = ()

    def __repr__(self) -> str:
        words = " ".join(filter(None, (f"{highest_sentence(self)}.", highest_evidence(self))))
        return f"<perfnb.HighestRate: {words.removesuffix('.')}>"


def highest_sentence(highest: HighestRate) -> str:
    """Return a sentence that states the rate and whether a run confirmed it."""
    within = f"p{100 * highest.quantile:g} within {fmt.duration(highest.bound_ms)}"
    if highest.rate_per_s is None:
        return f"The highest rate with {within} is unknown"
    if highest.rate_per_s <= 0:
        return f"No rate can be served with {within}: even requests served alone take longer"
    rate = fmt.rate(highest.rate_per_s, "requests")
    bounded = fmt.with_interval(rate, highest.rate_per_s, (highest.low, highest.high))
    sure = "confirmed by a run" if highest.confirmed_ms is not None else "not refuted by a run with few requests"
    sure = "not confirmed by a run" if highest.confirmed_requests is None else sure
    return f"Up to {bounded} can be served with {within}, {sure}"


def highest_evidence(highest: HighestRate) -> str:
    """Return the results of runs at this rate and at higher rates, or an empty string if there were no runs."""
    word, said = f"p{100 * highest.quantile:g}", ""
    if highest.confirmed_ms is not None:
        measured = fmt.interval(highest.confirmed_ms, highest.confirmed_interval_ms)
        said = f"In a run at this rate, {word} was {measured}."
    elif highest.confirmed_requests is not None:
        share = f"{highest.confirmed_within:,} of {fmt.counted(highest.confirmed_requests, 'request')}"
        said = f"In a run at this rate, {share} were within the bound, but this was too few to determine {word}."
    if highest.refuted_per_s:
        rates = " and ".join(fmt.rate(rate, "requests") for rate in highest.refuted_per_s)
        runs = "a run" if len(highest.refuted_per_s) == 1 else "runs"
        said += f" {word} exceeded the bound in {runs} at {rates}."
    elif highest.rate_per_s is None:
        said = f"There were too few requests to determine {word}: raise budget_s."
    return said.strip()


def seen_in(highest: HighestRate, run: OpenRun) -> HighestRate:
    """Return a copy of a rate that includes the result of a run at that rate."""
    times = run.samples["latency_ms"].to_numpy(dtype=float)
    return replace(
        highest,
        confirmed_ms=quantile(times, highest.quantile),
        confirmed_interval_ms=quantile_interval(times, highest.quantile),
        confirmed_requests=len(times) + run.lost,
        confirmed_within=int((times <= highest.bound_ms).sum()),
    )


def exceeds(run: OpenRun, bound_ms: float, share: float) -> bool:
    """Check whether the latency in a run exceeded a bound.

    If there are too few requests to determine the quantile, this checks whether the number of requests over the bound
    is too high to be due to chance.
    """
    from scipy.special import bdtrc

    if run.saturated:
        return True
    times = run.samples["latency_ms"].to_numpy(dtype=float)
    if (known := quantile(times, share)) is not None:
        return known > bound_ms
    over = int((times > bound_ms).sum())
    return over > 0 and bool(bdtrc(over - 1, len(times), 1 - share) < _SIGNIFICANT)


@dataclass(frozen=True)
class LoadModel:
    """A service whose requests were measured alone.

    Attributes
    ----------
    service_ms : array
        The service times of requests served back to back, in order and without warm-up.
    servers : int
        The number of requests that are served at the same time.
    between_ms : float
        The time that a server is busy between two requests, due to perfnb's overhead and waiting for Python's lock.
    extra_ms : mapping of float to array
        For each pause in milliseconds, the extra time that requests took after the pause, compared with requests of the
        same size served back to back.
    runs : int
        The number of simulated runs on which each interval is based.
    """

    service_ms: Floats
    servers: int = 1
    between_ms: float = 0.0
    extra_ms: Mapping[float, Floats] = field(default_factory=dict)
    runs: int = RUNS

    @property
    def capacity_per_s(self) -> float:
        """The number of requests per second that the servers can serve if they are always busy."""
        return self.servers * 1e3 / float(self.service_ms.mean())

    @property
    def closed_per_s(self) -> float:
        """The number of requests per second when requests are served back to back."""
        return self.servers * 1e3 / (float(self.service_ms.mean()) + self.between_ms)

    @cached_property
    def pauses(self) -> pd.DataFrame:
        """The extra time after each pause, as described in `Latency.pauses`."""
        rows = [
            (pause, len(extra), float(np.median(extra)), *(quantile_interval(extra, 0.5) or (None, None)))
            for pause, extra in self.extra_ms.items()
        ]
        columns = ["pause_ms", "requests", "extra_ms", "ci_low_ms", "ci_high_ms"]
        kinds = dict.fromkeys(columns[2:], "Float64") | {"requests": "int64"}
        return pd.DataFrame(rows, columns=columns).astype(kinds).set_index("pause_ms")

    @cached_property
    def _loads(self) -> Loads:
        # Extra time is ignored unless it is significant for at least one pause, because waits are computed faster
        # without it.
        extra = self.extra_ms if (self.pauses["ci_low_ms"] > 0).any() else None
        return simulate(self.service_ms, self.servers, extra_ms=extra, between_ms=self.between_ms, runs=self.runs)

    def at(self, rate_per_s: float) -> LoadedLatency:
        """Return the latency at a given rate of independent (Poisson) arrivals."""
        runs = self._loads.at(rate_per_s, list(QUANTILES.values()))
        names = [*QUANTILES, "wait_ms", "service_ms"]
        estimates = {name: self._loads.summed_up(runs[:, place]) for place, name in enumerate(names)}
        widest = -math.inf
        for name in QUANTILES:  # a higher quantile cannot have a lower interval
            estimate, low, high = estimates[name]
            widest = max(widest, high)
            estimates[name] = estimate, low, widest
        busy_ms = runs[:, -1] + self.between_ms
        estimates["utilization"] = self._loads.summed_up(busy_ms * rate_per_s / 1e3 / self.servers)
        unknown = {name for name, q in QUANTILES.items() if quantile(self.service_ms, q) is None}
        values: dict[str, Any] = {name: None if name in unknown else value for name, (value, *_) in estimates.items()}
        intervals = {name: (low, high) for name, (_, low, high) in estimates.items() if name not in unknown}
        return LoadedLatency(rate_per_s, intervals=intervals, **values)

    @cached_property
    def curve(self) -> pd.DataFrame:
        """One row per rate, as described in `Latency.curve`."""
        rows = []
        for utilization in UTILIZATIONS:
            load = self.at(utilization * self.closed_per_s)
            row: dict[str, float | None] = {"rate_per_s": load.rate_per_s, "utilization": load.utilization}
            for name in (*QUANTILES, "wait_ms", "service_ms"):
                low, high = load.intervals.get(name, (None, None))
                stem = name.removesuffix("_ms")
                row |= {name: getattr(load, name), f"{stem}_low_ms": low, f"{stem}_high_ms": high}
            rows.append(row)
        return pd.DataFrame(rows).astype("Float64")

    def highest_rate(self, bound_ms: float, share: float) -> HighestRate:
        """Return the highest rate at which a latency quantile is within a bound, without confirming it in a run."""
        return HighestRate(*self._loads.highest_rate(bound_ms, share), bound_ms, share)


def load_model_of(measured: Measured) -> LoadModel:
    """Return the load model for a set of measurements."""
    steady, servers, paused = measured.steady, measured.concurrency, measured.paused
    between_ms = 0.0
    if len(steady) >= _FEWEST_EACH * servers:
        counted = measured.closed[measured.closed["start_ms"] >= steady["start_ms"].min()]
        lasted_ms = (counted["start_ms"] + counted["service_ms"]).max() - counted["start_ms"].min()
        between_ms = max(0.0, float(servers * lasted_ms - counted["service_ms"].sum()) / len(counted))
    usual = steady.groupby("size", observed=True)["service_ms"].median()
    expected = paused["size"].astype(object).map(usual).astype(float).fillna(float(steady["service_ms"].median()))
    extra = paused["service_ms"] - expected
    extra_ms = {float(pause): values.to_numpy(dtype=float) for pause, values in extra.groupby(paused["pause_ms"])}
    return LoadModel(steady["service_ms"].to_numpy(dtype=float), servers, between_ms, extra_ms)
