"""`latency`: how long requests take, alone and under load, and how many a second can be served within a bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.arguments import finite, require_count, require_flag, require_seconds, shown
from perfnb.draw.progress import Progress
from perfnb.draw.shown import Page, Shown
from perfnb.draw.step_output import StepOutput
from perfnb.inference.batching import Batching
from perfnb.inference.latency_view import (
    FIRST_CALLS,
    highest_line,
    latency_html,
    latency_line,
    latency_page,
    latency_text,
    load_line,
)
from perfnb.inference.queueing import UTILIZATIONS, Loads, simulate
from perfnb.inference.tokens import COLUMNS, Cache, by_request, gaps_ms, goodput
from perfnb.stats.intervals import median_interval, quantile_interval, steps_for_quantile
from perfnb.stats.intervals import quantile as sample_quantile

if TYPE_CHECKING:
    from perfnb.inference.energy import EnergyMeter
    from perfnb.inference.serving import Requests, Served

#: The quantiles of every curve.
QUANTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p95_ms": 0.95, "p99_ms": 0.99}
_MOST_REQUESTS = 20_000
#: Batch sizes beside 1, how many batches of each are made and measured, and how few are too few.
_BATCH_SIZES = (2, 4, 8, 16, 32, 64)
_BATCHES_MADE, _MOST_BATCHES, _FEWEST_BATCHES = 8, 500, 5
#: Share of the budget for requests alone, if there is something else to run too; that of these after pauses.
_ALONE_SHARE, _PAUSED_SHARE = 0.45, 0.15
#: Pauses in milliseconds, how many requests follow each, and how few are too few.
_PAUSES = (0.5, 2.0, 8.0, 32.0, 128.0)
_MOST_PAUSED, _FEWEST_PAUSED = 40, 12
#: How much longer than its schedule an open run may take; what is not served by then is lost to saturation.
_PATIENCE = 1.5
#: If the clock started requests later than this share of the service time, a run says so.
LATE = 0.01
#: Requests of each server from which the time between them is known.
_FEWEST_EACH = 10
#: The runs that a highest rate may take until one confirms it, and the most that the next one is of the last.
_CONFIRMING_RUNS, _LOWER = 3, 0.9
#: A run with too few requests for its quantile refutes a rate if as many over the bound are less likely than this.
_SIGNIFICANT = 0.05
_SEED = 20


@dataclass(frozen=True, repr=False)
class LoadedLatency:
    """Latency at a rate of arrivals, computed from service times.

    Attributes
    ----------
    rate_per_s, utilization : float
        Requests per second, and the share of the time for which servers are busy.
    p50_ms, p90_ms, p95_ms, p99_ms : float or None
        Quantiles of latency; ``None`` if the service times are too few. Infinite if requests come faster than they can
        be served.
    wait_ms, service_ms : float
        Means of waiting for a server and of being served.
    intervals : dict of str to tuple of float
        The 95 % interval of each of these, by name.
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
        return f"<perfnb.LoadedLatency: {load_line(self)}>"


@dataclass(frozen=True, repr=False)
class HighestRate:
    """The highest rate at which a quantile of latency is within a bound.

    Attributes
    ----------
    rate_per_s : float or None
        Requests per second; 0 where not even a request alone is served in time, and ``None`` if it is not known,
        because latency exceeded the bound in a run at each rate that was tried.
    low, high : float
        Its 95 % interval.
    bound_ms, quantile : float
        The bound, and the share of requests within it.
    confirmed_ms : float or None
        That quantile in a real run at `rate_per_s`: ``None`` without a run, or with too few requests, and infinite if
        requests came faster than they were served.
    confirmed_interval_ms : tuple of float or None
        Its 95 % interval; ``None`` if there were too few requests for one.
    confirmed_requests, confirmed_within : int or None
        How many requests were due in that run, and how many were served within the bound.
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
        return f"<perfnb.HighestRate: {highest_line(self)}>"

    def _seen_in(self, run: OpenRun) -> HighestRate:
        """This rate, with what a run at it showed."""
        times = run.samples["latency_ms"].to_numpy(dtype=float)
        return replace(
            self,
            confirmed_ms=math.inf if run.saturated else sample_quantile(times, self.quantile),
            confirmed_interval_ms=None if run.saturated else quantile_interval(times, self.quantile),
            confirmed_requests=len(times) + run.lost,
            confirmed_within=int((times <= self.bound_ms).sum()),
        )

    @property
    def _refuted(self) -> bool:
        """Whether the run exceeded the bound; one with too few requests for the quantile, if that is no chance."""
        from scipy.special import bdtrc

        if self.confirmed_ms is not None:
            return self.confirmed_ms > self.bound_ms
        if not self.confirmed_requests or self.confirmed_within is None:
            return False
        over = self.confirmed_requests - self.confirmed_within
        return over > 0 and bool(bdtrc(over - 1, self.confirmed_requests, 1 - self.quantile) < _SIGNIFICANT)


@dataclass(frozen=True)
class OpenRun:
    """Requests served at arrival times that were fixed in advance.

    Attributes
    ----------
    rate_per_s : float
        Arrivals per second: those asked for, or those of the recorded schedule.
    samples : DataFrame
        As `Latency.samples`, without ``run``.
    lost : int
        Requests that were due, and not served while the run lasted.
    late : float
        By how much the clock started 1 of 100 requests late, as a share of the median service time.
    tokens : DataFrame
        A row per token, if tokens were asked for: ``run``, ``served`` (place among the samples), ``token``,
        ``after_arrival_ms`` and ``after_start_ms``.
    concurrency : int
        Requests served at the same time.
    """

    rate_per_s: float
    samples: pd.DataFrame
    lost: int
    late: float
    tokens: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(COLUMNS)), repr=False)
    concurrency: int = 1

    @property
    def saturated(self) -> bool:
        """Whether requests came faster than they were served: some were never, or would not be if the run went on."""
        busy = self.rate_per_s * float(self.samples["service_ms"].mean()) / 1e3 / self.concurrency
        return self.lost > 0 or busy >= 1


class Latency(Page, Shown):
    """How long requests take, alone and under load. Shows itself in a notebook."""

    def __init__(
        self,
        samples: pd.DataFrame,
        opened: OpenRun | None,
        concurrency: int,
        name: str,
        serve: Callable[[float, float], OpenRun],
    ) -> None:
        self._closed, self._open, self._concurrency, self._name = samples, opened, concurrency, name
        self._serve = serve
        #: Requests served alone after pauses.
        self._paused = samples.iloc[:0].assign(pause_ms=0.0)
        #: The highest rate for the bound that was asked for, or why there is none.
        self._highest: HighestRate | str | None = None
        #: Whether a model was served that was still in training mode.
        self._in_training = False
        #: The rate that was asked for; ``None`` for recorded arrivals.
        self._asked_rate: float | None = None
        #: What may have disturbed the requests.
        self._noise: dict[str, Any] = {}
        self._batching: Batching | None = None
        #: A size at which the input made by ``batch`` does not seem to hold all requests.
        self._short_batch: int | None = None
        #: The tokens of the requests served back to back.
        self._tokens: pd.DataFrame | None = None
        #: The key-value cache of an answer, or why it is not known.
        self._cache: Cache | str = "tokens were not asked for"
        self._price_per_hour: float | None = None
        #: Joules of a request in each run, or why they are not known.
        self._joules: dict[str, float | str] = {}

    @cached_property
    def _service_ms(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        steady = self._closed.loc[~self._closed["first"], "service_ms"]
        return steady.to_numpy(dtype=float)

    @property
    def _capacity_per_s(self) -> float:
        """Requests per second that the servers serve if each is busy all the time."""
        return self._concurrency * 1e3 / float(self._service_ms.mean())

    @cached_property
    def _between_ms(self) -> float:
        """How long a server is busy between two requests: with perfnb's own work, and waiting for Python's lock."""
        if len(self._service_ms) < _FEWEST_EACH * self._concurrency:
            return 0.0
        began = self._closed.loc[~self._closed["first"], "start_ms"].min()
        counted = self._closed[self._closed["start_ms"] >= began]
        lasted_ms = float((counted["start_ms"] + counted["service_ms"]).max() - began)
        return max(0.0, (self._concurrency * lasted_ms - float(counted["service_ms"].sum())) / len(counted))

    @property
    def _closed_per_s(self) -> float:
        """Requests per second served back to back."""
        return self._concurrency * 1e3 / (float(self._service_ms.mean()) + self._between_ms)

    @cached_property
    def _loads(self) -> Loads:
        # What pauses add is only counted where some do for certain: waits are computed faster without.
        longer = (self.pauses["ci_low_ms"] > 0).any()
        extra = self._extra_ms if longer else None
        return simulate(self._service_ms, self._concurrency, extra_ms=extra, between_ms=self._between_ms)

    @cached_property
    def _extra_ms(self) -> dict[float, np.ndarray[Any, np.dtype[np.float64]]]:
        """How much longer than back to back requests of their size took after each pause."""
        steady = self._closed[~self._closed["first"]]
        usual = steady.groupby("size", observed=True)["service_ms"].median()
        expected = self._paused["size"].astype(object).map(usual).fillna(float(np.median(self._service_ms)))
        extra = self._paused["service_ms"] - expected.astype(float)
        return {float(pause): each.to_numpy() for pause, each in extra.groupby(self._paused["pause_ms"])}

    @property
    def pauses(self) -> pd.DataFrame:
        """How much longer requests took that found the server idle, by how long it was: a row per pause measured.

        By ``pause_ms``: ``requests``, and ``extra_ms``, the median of what they took more than those of their size
        back to back, with its 95 % interval from ``ci_low_ms`` to ``ci_high_ms``. Without rows if the budget was too
        short.
        """
        rows = []
        for pause, extra in self._extra_ms.items():
            low, high = median_interval(extra) or (None, None)
            rows.append((pause, len(extra), float(np.median(extra)), low, high))
        columns = ["pause_ms", "requests", "extra_ms", "ci_low_ms", "ci_high_ms"]
        kinds = dict.fromkeys(columns[2:], "Float64") | {"requests": "int64"}
        return pd.DataFrame(rows, columns=columns).astype(kinds).set_index("pause_ms")

    @property
    def samples(self) -> pd.DataFrame:
        """A row per request served.

        ``run`` (closed: back to back; open: at arrival times fixed in advance), ``request`` (its place among yours),
        ``size``, ``arrival_ms`` and ``start_ms`` in the run, ``wait_ms``, ``service_ms``, ``latency_ms`` (both
        together), ``late_ms`` (by how much the clock started it late) and ``first`` (warm-up: the first calls of its
        size, left out of all figures).
        """
        parts = {"closed": self._closed} | ({"open": self._open.samples} if self._open is not None else {})
        table = pd.concat(parts, names=["run"]).reset_index("run").reset_index(drop=True)
        return table.astype({"run": "category"})

    def quantile_ms(self, q: float) -> float | None:
        """Quantile of the service times; ``None`` if there are too few for it (p99: 299)."""
        return sample_quantile(self._service_ms, _share("q", q))

    def quantile_interval_ms(self, q: float) -> tuple[float, float] | None:
        """95 % interval of that quantile; ``None`` if there are too few (p99: 368)."""
        return quantile_interval(self._service_ms, _share("q", q))

    def at(self, rate_per_s: float) -> LoadedLatency:
        """Latency at a rate of independent (Poisson) arrivals, computed from the service times and what pauses add."""
        rate = _rate(rate_per_s)
        runs = self._loads.at(rate, list(QUANTILES.values()))
        names = [*QUANTILES, "wait_ms", "service_ms"]
        estimates = {name: self._loads.summed_up(runs[:, place]) for place, name in enumerate(names)}
        widest = -math.inf
        for name in QUANTILES:  # a higher quantile has no lower bounds
            estimate, low, high = estimates[name]
            widest = max(widest, high)
            estimates[name] = estimate, low, widest
        busy_ms = runs[:, -1] + self._between_ms
        estimates["utilization"] = self._loads.summed_up(busy_ms * rate / 1e3 / self._concurrency)
        known = {name: value for name, value in estimates.items() if self._carries(name)}
        values: dict[str, Any] = {name: known[name][0] if name in known else None for name in estimates}
        return LoadedLatency(rate, intervals={name: each[1:] for name, each in known.items()}, **values)

    def _carries(self, name: str) -> bool:
        q = QUANTILES.get(name)
        return q is None or sample_quantile(self._service_ms, q) is not None

    @cached_property
    def curve(self) -> pd.DataFrame:
        """A row per rate: `LoadedLatency` with ``_low`` and ``_high`` for each value.

        The rates are those that back to back keep the servers busy for 0.3 to 0.95 of the time.
        """
        rows = []
        for utilization in UTILIZATIONS:
            found = self.at(self._loads.rate(utilization))
            row: dict[str, float | None] = {"rate_per_s": found.rate_per_s, "utilization": found.utilization}
            for name in (*QUANTILES, "wait_ms", "service_ms"):
                low, high = found.intervals.get(name, (None, None))
                stem = name.removesuffix("_ms")
                row |= {name: getattr(found, name), f"{stem}_low_ms": low, f"{stem}_high_ms": high}
            rows.append(row)
        return pd.DataFrame(rows).astype("Float64")

    def highest_rate(self, bound_ms: float, quantile: float = 0.99, *, confirm_s: float | None = None) -> HighestRate:
        """The highest rate at which a quantile of latency stays within a bound.

        For the bound and quantile that `perfnb.latency` was given, this is the result that the report shows, with the
        runs that confirmed or refuted it. Any other rate is computed from the service times.

        Parameters
        ----------
        confirm_s : float, optional
            Serve requests at this rate to see whether it holds, for at most this many seconds. If latency exceeds the
            bound, a lower rate is tried: the highest one for the service times of that run.

        Raises
        ------
        ValueError
            If the service times are too few for the quantile.
        """
        require_seconds("bound_ms", bound_ms)
        if self.quantile_ms(_share("quantile", quantile)) is None:
            raise ValueError(
                f"{fmt.counted(len(self._service_ms), 'request')} are too few for the {quantile:g} quantile: raise "
                "budget_s, or ask for a smaller quantile."
            )
        known = self._highest
        asked = (float(bound_ms), float(quantile))
        if confirm_s is None and isinstance(known, HighestRate) and (known.bound_ms, known.quantile) == asked:
            return known
        rate, low, high = self._loads.highest_rate(bound_ms, quantile)
        found = HighestRate(rate, low, high, *asked)
        if confirm_s is None or rate <= 0:
            return found
        require_seconds("confirm_s", confirm_s)
        return self._confirmed(found, float(confirm_s))

    def _confirmed(self, found: HighestRate, seconds: float) -> HighestRate:
        """The rate that a run confirms, or the highest below it that another one does."""
        left = seconds
        while (rate := found.rate_per_s) and left > 0:
            # A run has enough requests for the quantile, if need be by taking all the time.
            lasts = min(left, max(seconds / _CONFIRMING_RUNS, steps_for_quantile(found.quantile) / rate))
            left -= lasts
            run = self._serve(rate, lasts)
            found = found._seen_in(run)
            if not found._refuted:
                return found
            times = run.samples["service_ms"].to_numpy(dtype=float)
            loads = simulate(times, self._concurrency, between_ms=self._between_ms)
            lower, low, high = (min(each, _LOWER * rate) for each in loads.highest_rate(found.bound_ms, found.quantile))
            tried = (*found.refuted_per_s, rate)
            found = HighestRate(lower, low, high, found.bound_ms, found.quantile, refuted_per_s=tried)
        return replace(found, rate_per_s=None, low=0.0, high=found.refuted_per_s[-1])

    def _find_highest(self, bound_ms: float, quantile: float, seconds: float) -> None:
        try:
            self._highest = self.highest_rate(bound_ms, quantile, confirm_s=seconds)
        except ValueError as error:  # too few requests in this budget
            self._highest = str(error)

    @property
    def open_run(self) -> OpenRun | None:
        """The run at ``rate_per_s``; ``None`` if no rate was given."""
        return self._open

    @property
    def saturated(self) -> bool:
        """Whether requests came faster, in the run at ``rate_per_s``, than they were served."""
        return self._open is not None and self._open.saturated

    @property
    def batching(self) -> Batching:
        """Batches of each size, and what a dynamic batcher would gain.

        Raises
        ------
        ValueError
            If batches were not measured: pass ``batch=``.
        """
        if self._batching is None:
            raise ValueError("Batches were not measured: pass batch=, which makes one input from a list of requests.")
        return self._batching

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """A row per request that gave tokens.

        ``run`` and ``served`` (its place among the samples of that run), ``tokens``, ``ttft_ms`` (from its arrival to
        its first token), ``prefill_ms`` (the same from its start), ``decode_ms`` (from the first to the last token),
        ``tpot_ms`` (that per later token; ``NA`` with a single one), ``prompt_tokens`` (``NA`` where no streamer is
        handed the prompt), and ``request``, ``size``, ``service_ms``, ``latency_ms`` and ``first`` as in `samples`.

        Raises
        ------
        ValueError
            If tokens were not asked for: pass ``tokens=True``.
        """
        return by_request(self._all_tokens, self.samples)

    @property
    def token_times(self) -> pd.DataFrame:
        """A row per token: ``run``, ``served`` (as in `tokens`), ``token``, ``after_arrival_ms``, ``after_start_ms``,
        ``prompt_tokens``.

        Raises
        ------
        ValueError
            If tokens were not asked for: pass ``tokens=True``.
        """
        return self._all_tokens.copy()

    @property
    def _all_tokens(self) -> pd.DataFrame:
        if self._tokens is None:
            raise ValueError("Tokens were not recorded: pass tokens=True.")
        opened = [] if self._open is None else [self._open.tokens]
        return pd.concat([self._tokens, *opened], ignore_index=True) if opened else self._tokens

    @property
    def _steady_tokens(self) -> pd.DataFrame:
        """The requests served back to back, without warm-up."""
        table = self.tokens
        return table[(table["run"] == "closed") & ~table["first"].astype(bool)]

    @property
    def ttft_ms(self) -> float:
        """Median time to the first token of a request served alone; of nothing, NaN."""
        return float(self._steady_tokens["ttft_ms"].median())

    @property
    def tpot_ms(self) -> float:
        """Median over requests of the time per token after the first; NaN if no answer had two."""
        return float(self._steady_tokens["tpot_ms"].dropna().astype(float).median())

    @property
    def itl_ms(self) -> float:
        """Median over all tokens of the gap since the token before: requests with many tokens weigh more than in
        `tpot_ms`. NaN if no answer had two.
        """
        known = self._steady_tokens[["run", "served"]]
        gaps = gaps_ms(self._all_tokens.merge(known))
        return float(np.median(gaps)) if len(gaps) else math.nan

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens of answers per second, of requests served back to back."""
        table = self._steady_tokens
        return float(table["tokens"].sum()) / len(self._service_ms) * self._closed_per_s if len(table) else math.nan

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Tokens of prompts per second until the first token came; ``None`` where prompts are not known."""
        known = self._steady_tokens.dropna(subset="prompt_tokens")
        return float(known["prompt_tokens"].sum() / known["prefill_ms"].sum() * 1e3) if len(known) else None

    def kv_cache_bytes(self, length: int) -> int | None:
        """Size of the key-value cache of a request with so many tokens, prompt and answer; ``None`` if it is not known.

        Derived from the cache of one more request, which is not timed: it is visible where a module returns it as
        ``past_key_values``, as Hugging Face's models do.
        """
        require_count("length", length, 1)
        return None if isinstance(self._cache, str) else self._cache.bytes_at(length)

    @property
    def costs(self) -> pd.DataFrame:
        """What a thousand requests take, a row per way to serve them.

        By ``run`` (closed: back to back, without a pause; open: at the rate asked for; highest: at the highest rate for
        the bound): ``requests_per_s``, ``joules`` (of the GPUs that torch uses) and ``price`` (of the machine's time,
        also while it waits) of 1,000 requests, each ``NA`` where it is not known, and ``why`` the energy is not.
        """
        rates: dict[str, float | None] = {"closed": self._closed_per_s}
        if self._open is not None:
            rates["open"] = None if self._open.saturated else self._open.rate_per_s
        if isinstance(self._highest, HighestRate) and self._highest.rate_per_s != 0:
            rates["highest"] = self._highest.rate_per_s
        rows = []
        for run, rate in rates.items():
            joules = self._joules.get(run, "it is measured back to back and at the rate asked for")
            known = None if rate is None or self._price_per_hour is None else self._price_per_hour / 3.6 / rate
            row = {"run": run, "requests_per_s": rate, "price": known}
            row |= {"joules": None, "why": joules} if isinstance(joules, str) else {"joules": 1e3 * joules, "why": ""}
            rows.append(row)
        columns = ["run", "requests_per_s", "joules", "price", "why"]
        numbers = dict.fromkeys(columns[1:4], "Float64")
        return pd.DataFrame(rows)[columns].astype(numbers).set_index("run")

    def goodput_per_s(self, **bounds_ms: float) -> float:
        """Requests per second within all bounds, in the run at a rate.

        Parameters
        ----------
        **bounds_ms : float
            By column of `tokens`: ``ttft_ms=200, tpot_ms=50``.

        Raises
        ------
        ValueError
            Without a run at a rate, or for a bound on something else.
        """
        if self._open is None:
            raise ValueError("Goodput is that of a run at a rate: pass rate_per_s= or arrivals=.")
        allowed = ("ttft_ms", "tpot_ms", "latency_ms", "prefill_ms", "decode_ms")
        if not bounds_ms or any(name not in allowed for name in bounds_ms):
            raise ValueError(f"Bounds are on {', '.join(allowed)}, not {', '.join(bounds_ms) or 'nothing'}.")
        table = self.tokens
        samples = self._open.samples
        # Not from the first arrival to the last alone: more than come would then seem to be served.
        due_s = (len(samples) + self._open.lost) / self._open.rate_per_s
        seconds = max(due_s, float((samples["arrival_ms"] + samples["latency_ms"]).max()) / 1e3)
        return goodput(table[table["run"] == "open"], seconds, bounds_ms)

    @property
    def first_calls(self) -> pd.DataFrame:
        """The warm-up: the first calls of each size, left out of all figures."""
        return self._closed[self._closed["first"]]

    def slowest(self, count: int = 10) -> pd.DataFrame:
        """The requests that took longest to serve."""
        return self._closed[~self._closed["first"]].nlargest(count, "service_ms")

    def _line(self) -> str:
        return latency_line(self)

    def _text(self) -> str:
        return latency_text(self)

    def _html(self) -> str:
        return latency_html(self)

    def _page(self) -> str:
        return latency_page(self)


def latency(
    fn: Callable[[Any], Any],
    requests: Iterable[Any],
    *,
    rate_per_s: float | None = None,
    bound_ms: float | None = None,
    quantile: float = 0.99,
    concurrency: int = 1,
    arrivals: Sequence[float] | None = None,
    batch: Callable[[list[Any]], Any] | None = None,
    tokens: bool | None = None,
    price_per_hour: float | None = None,
    budget_s: float = 30.0,
) -> Latency:
    """Measure how long requests take, and compute how long they would take under load.

    Requests are served back to back for their service times. Latency at any rate of arrivals follows from those: a
    request also waits for those before it. With a rate, it is measured too, with arrivals fixed in advance.

    Parameters
    ----------
    fn : callable
        Serves one request: a model (which then runs in inference mode), a pipeline, any function.
    requests : iterable
        What it is called with; drawn at random, so that sizes come as often as they do here.
    rate_per_s : float, optional
        Serve requests that arrive independently of each other (Poisson) at this rate.
    bound_ms : float, optional
        Find the highest rate at which `quantile` of latency is within this bound, and confirm it by a run.
    quantile : float
        For `bound_ms`.
    concurrency : int
        Requests served at the same time, in threads.
    arrivals : sequence of float, optional
        Seconds at which requests arrive, ascending, such as recorded or bursty ones; instead of `rate_per_s`. They may
        last as long as `budget_s`.
    batch : callable, optional
        Makes one input of `fn` from a list of requests, as a loader's ``collate_fn`` does; ``list`` if `fn` takes a
        list. Batches of 1, 2, 4 and more are measured too, for `Latency.batching`.
    tokens : bool, optional
        Record when each token of an answer comes. `fn` yields tokens, or takes ``streamer=`` and hands it to Hugging
        Face's ``generate``.
    price_per_hour : float, optional
        Of the machine, in any currency; for `Latency.costs`.
    budget_s : float
        Seconds in all, about.

    Returns
    -------
    Latency

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and for what is returned before it is computed: a coroutine, a future, a
        generator.
    Exception
        Whatever `fn` raises, with a note that names the request.
    """
    from perfnb.inference.energy import EnergyMeter
    from perfnb.inference.generation import watch_generation
    from perfnb.inference.serving import Requests, any_in_training, served_by, tokens_served_by, used_by
    from perfnb.step.environment import Conditions

    __tracebackhide__ = True
    if not callable(fn):
        raise TypeError(f"latency needs something to call with each request, not {shown(fn)}.")
    require_seconds("budget_s", budget_s)
    require_count("concurrency", concurrency, 1)
    if bound_ms is not None:
        require_seconds("bound_ms", bound_ms)
    _share("quantile", quantile)
    rate = None if rate_per_s is None else _rate(rate_per_s)
    schedule = None if arrivals is None else _schedule(arrivals, budget_s)
    if rate is not None and schedule is not None:
        raise TypeError("Pass rate_per_s or arrivals, not both: each says when requests arrive.")
    if batch is not None and not callable(batch):
        raise TypeError(f"batch must make one input from a list of requests, not {shown(batch)}.")
    if tokens is not None:
        require_flag("tokens", tokens)
    if price_per_hour is not None:
        price_per_hour = _price(price_per_hour)
    if tokens and batch is not None:
        raise TypeError("Pass tokens or batch, not both: batches are timed as a whole.")
    held = Requests(requests)
    if tokens:
        serve: Callable[[Any], Any] = tokens_served_by(fn)
    else:
        serve = served_by(fn if batch is None else (lambda request: fn(batch([request]))))
    conditions = Conditions()
    with StepOutput(), Progress() as progress, EnergyMeter() as meter, conditions:
        draws = held.draws(_SEED)
        runs = (rate is not None) + (bound_ms is not None) + (batch is not None)
        alone = _ALONE_SHARE if runs else 1.0
        share = (1 - alone) / max(1, runs)
        served = _closed_run(serve, held, draws, concurrency, alone * (1 - _PAUSED_SHARE) * budget_s, progress)
        closed = _frame(served, warm_up=True)
        paused = _paused_run(serve, held, draws, closed, alone * _PAUSED_SHARE * budget_s, progress)
        times, short = (
            ({}, None) if batch is None else _batch_times(fn, batch, held, concurrency, share * budget_s, progress)
        )
        if rate is not None:
            schedule = _poisson(rate, share * budget_s)
        opened, joules = None, {"closed": _joules(meter, served, warm_up=True)}
        if schedule is not None:
            opened, served_then = _open_run(serve, held, schedule, rate, concurrency, progress)
            joules["open"] = _joules(meter, served_then, warm_up=False)
        seen = watch_generation(fn, held[served[0].request]) if tokens and served else None

    def serve_at(rate_per_s: float, seconds: float) -> OpenRun:
        with StepOutput(), Progress() as progress:
            return _open_run(serve, held, _poisson(rate_per_s, seconds), rate_per_s, concurrency, progress)[0]

    found = Latency(closed, opened, concurrency, str(getattr(fn, "__name__", type(fn).__name__)), serve_at)
    found._paused, found._price_per_hour, found._joules = paused, price_per_hour, joules
    found._asked_rate, found._noise = rate, conditions.facts
    found._in_training = any_in_training(used_by(fn))
    if tokens:
        found._tokens = _tokens("closed", served)
    if seen is not None:
        found._cache = seen.cache
    if batch is not None:
        found._short_batch = short
        found._batching = Batching({1: found._service_ms} | times, concurrency)
    if bound_ms is not None:
        found._find_highest(bound_ms, quantile, share * budget_s)
    return found


def _closed_run(
    serve: Callable[[Any], Any], requests: Requests, draws: Any, servers: int, seconds: float, progress: Any
) -> list[Served]:
    from perfnb.inference import serving

    __tracebackhide__ = True
    return serving.serve(
        serve,
        requests,
        draws,
        count=_MOST_REQUESTS,
        until_s=time.perf_counter() + seconds,
        servers=servers,
        done=lambda count: progress("back to back", count),
    )


def _paused_run(
    serve: Callable[[Any], Any], requests: Requests, draws: Any, closed: pd.DataFrame, seconds: float, progress: Any
) -> pd.DataFrame:
    """Requests served one by one after pauses, as many of them after each as fit; their pause in ``pause_ms``."""
    from perfnb.inference import serving

    __tracebackhide__ = True
    usual_s = float(closed.loc[~closed["first"], "service_ms"].median()) / 1e3
    rounds = {
        count: int(seconds / (sum(_PAUSES[:count]) / 1e3 + count * usual_s)) for count in range(1, len(_PAUSES) + 1)
    }
    most = max((count for count, fit in rounds.items() if fit >= _FEWEST_PAUSED), default=0)
    if not most:
        return closed.iloc[:0].assign(pause_ms=0.0)
    each = list(_PAUSES[:most]) * min(rounds[most], _MOST_PAUSED)
    np.random.default_rng(_SEED).shuffle(each)
    served = serving.serve(
        serve,
        requests,
        draws,
        count=len(each),
        until_s=time.perf_counter() + _PATIENCE * seconds,
        pauses_ms=each,
        done=lambda done: progress("after pauses", done, len(each)),
    )
    return _frame(served, warm_up=False).assign(pause_ms=each[: len(served)])


def _batch_times(
    fn: Callable[[Any], Any],
    batch: Callable[[list[Any]], Any],
    requests: Requests,
    servers: int,
    seconds: float,
    progress: Any,
) -> tuple[dict[int, Any], int | None]:
    """Service times of batches of 2, 4 and so on, as long as they gain and are measured often enough.

    And the first size at which the input does not seem to hold all requests.
    """
    from perfnb.inference import serving

    __tracebackhide__ = True
    found: dict[int, Any] = {}
    short: int | None = None
    draws = requests.draws(_SEED + 2)
    for size in _BATCH_SIZES:
        batches = serving.Requests([[requests[next(draws)] for _ in range(size)] for _ in range(_BATCHES_MADE)])
        served = serving.serve(
            serving.served_by(lambda made: fn(batch(made))),
            batches,
            batches.draws(_SEED),
            count=_MOST_BATCHES,
            until_s=time.perf_counter() + seconds / len(_BATCH_SIZES),
            servers=servers,
            done=lambda count, size=size: progress(f"batches of {size}", count),  # type: ignore[misc]
            words=f"a batch of {size} requests",
        )
        table = _frame(served, warm_up=True)
        steady = table.loc[~table["first"], "service_ms"].to_numpy(dtype=float)
        if len(steady) < _FEWEST_BATCHES:
            break
        found[size] = steady
        if short is None and not serving.may_hold(batch(batches[0]), size):
            short = size
    return found, short


def _open_run(
    serve: Callable[[Any], Any],
    requests: Requests,
    arrivals_ms: Sequence[float],
    rate_per_s: float | None,
    servers: int,
    progress: Any,
) -> tuple[OpenRun, list[Served]]:
    from perfnb.inference import serving

    __tracebackhide__ = True
    count, lasts_s = len(arrivals_ms), arrivals_ms[-1] / 1e3
    served = serving.serve(
        serve,
        requests,
        requests.draws(_SEED + 1),
        count=count,
        until_s=time.perf_counter() + _PATIENCE * lasts_s + 1.0,
        servers=servers,
        arrivals_ms=arrivals_ms,
        done=lambda done: progress("at a rate", done, count),
    )
    samples = _frame(served, warm_up=False)
    usual = float(samples["service_ms"].median()) if len(samples) else math.inf
    late = float(samples["late_ms"].quantile(0.99)) / usual if len(samples) else 0.0
    tokens = _tokens("open", served)
    return OpenRun(rate_per_s or count / lasts_s, samples, count - len(served), late, tokens, servers), served


def _joules(meter: EnergyMeter, served: Sequence[Served], warm_up: bool) -> float | str:
    """Joules of a request, or why they are not known; from the first one after the warm-up to the last."""
    first = _frame(served, warm_up)["first"].to_numpy(dtype=bool)
    if not len(first):
        return "no request was served"
    steady = served[int(first.argmin()) :]
    # With pauses between requests, from the first arrival: a machine takes power while it waits.
    joules = meter.joules(min(one.arrival_ns for one in steady), max(one.end_ns for one in steady))
    return joules if isinstance(joules, str) else joules / len(steady)


def _frame(served: Sequence[Served], warm_up: bool) -> pd.DataFrame:
    """The samples of a run."""
    names = ["request", "size", "arrival_ns", "start_ns", "end_ns", "late_ns"]
    table = pd.DataFrame(list(map(attrgetter(*names), served)), columns=names)
    began = int(table["arrival_ns"].min()) if len(table) else 0
    first = warm_up & (table.groupby("size").cumcount() < FIRST_CALLS)
    if len(table) and first.all():  # requests are slow, or no two have the same size
        first = pd.Series(range(len(table))) < min(FIRST_CALLS, len(table) - 1)
    return pd.DataFrame(
        {
            "request": table["request"],
            "size": table["size"].astype("category"),
            "arrival_ms": (table["arrival_ns"] - began) / 1e6,
            "start_ms": (table["start_ns"] - began) / 1e6,
            "wait_ms": (table["start_ns"] - table["arrival_ns"]) / 1e6,
            "service_ms": (table["end_ns"] - table["start_ns"]) / 1e6,
            "latency_ms": (table["end_ns"] - table["arrival_ns"]) / 1e6,
            "late_ms": table["late_ns"] / 1e6,
            "first": first,
        }
    )


def _tokens(run: str, served: Sequence[Served]) -> pd.DataFrame:
    """The tokens of a run."""
    rows = [
        (run, number, place, (at - one.arrival_ns) / 1e6, (at - one.start_ns) / 1e6, one.prompt_tokens)
        for number, one in enumerate(served)
        for place, at in enumerate(one.tokens_ns)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _poisson(rate_per_s: float, seconds: float) -> list[float]:
    """Independent arrivals in milliseconds, as many as the rate makes of the time.

    Given their number, Poisson arrivals are spread evenly at random. Gaps drawn one by one would bring the few requests
    of a short run at a quite different rate than the one it is reported for.
    """
    count = max(1, round(rate_per_s * seconds))
    return [float(each) for each in np.sort(np.random.default_rng(_SEED).uniform(0, 1e3 * count / rate_per_s, count))]


def _schedule(arrivals: Sequence[float], budget_s: float) -> list[float]:
    times = np.asarray(arrivals, dtype=float)
    if times.ndim != 1 or not len(times) or not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise ValueError("arrivals must be seconds, ascending, at least one.")
    if times[-1] <= times[0]:
        raise ValueError("arrivals must not all be at the same instant.")
    lasts_s = float(times[-1] - times[0])
    if lasts_s > budget_s:
        raise ValueError(
            f"arrivals last {fmt.significant(lasts_s)} s, more than budget_s={budget_s:g}: raise it, or pass fewer."
        )
    return [(each - float(times[0])) * 1e3 for each in times.tolist()]


def _rate(value: object) -> float:
    rate = finite(value)
    if rate is None or not 0 < rate <= 1e6:
        raise ValueError(
            f"rate_per_s must be a number of requests per second above 0 and at most 1e6, not {shown(value)}."
        )
    return rate


def _price(value: object) -> float:
    price = finite(value)
    if price is None or price < 0:
        raise ValueError(f"price_per_hour must be a number of at least 0, not {shown(value)}.")
    return price


def _share(name: str, value: object) -> float:
    share = finite(value)
    if share is None or not 0 < share < 1:
        raise ValueError(f"{name} must be a number between 0 and 1, not {shown(value)}.")
    return share
