"""`latency`: measure how long requests take, alone and under load, and the highest rate within a bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.arguments import finite, require_count, require_flag, require_seconds, shown
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.draw.progress import Progress
from perfnb.draw.step_output import StepOutput
from perfnb.inference.batching import Batching
from perfnb.inference.latency_view import latency_document
from perfnb.inference.load_model import (
    HighestRate,
    LoadedLatency,
    LoadModel,
    exceeds,
    load_model_of,
    seen_in,
)
from perfnb.inference.queueing import poisson_arrivals
from perfnb.inference.samples import Measured, OpenRun, by_request, gaps_ms, goodput, open_run_of, samples_of, tokens_of
from perfnb.stats.intervals import quantile as sample_quantile
from perfnb.stats.intervals import quantile_interval, steps_for_quantile

__all__ = ["HighestRate", "Latency", "LoadedLatency", "OpenRun", "latency"]

#: The share of the budget for requests alone, if something else must run too, and the share of these after pauses.
_ALONE_SHARE, _PAUSED_SHARE = 0.45, 0.15
#: The number of runs that a highest rate may take until one confirms it, and the largest ratio of one rate to the
#: previous one.
_CONFIRMING_RUNS, _LOWER = 3, 0.9

#: Serves requests at a rate per second for this many seconds.
ServeAt = Callable[[float, float], OpenRun]


class Latency(Documented):
    """The latency of requests, alone and under load. A notebook displays it."""

    def __init__(
        self, measured: Measured, load: LoadModel, serve_at: ServeAt, known: Iterable[HighestRate] = ()
    ) -> None:
        self._measured, self._load, self._serve_at = measured, load, serve_at
        #: The highest rates found so far, so that a question has one answer.
        self._known = {(rate.bound_ms, rate.quantile): rate for rate in known}

    @property
    def samples(self) -> pd.DataFrame:
        """One row per served request.

        The columns are ``run`` (closed: back to back; open: at arrival times fixed in advance), ``request`` (its index
        in your requests), ``size``, ``arrival_ms`` and ``start_ms`` relative to the start of the run, ``wait_ms``,
        ``service_ms``, ``latency_ms`` (waiting and service together), ``late_ms`` (how late the clock started the
        request) and ``first`` (whether it was a warm-up call: the first calls of each size are excluded from all
        figures).
        """
        parts = {"closed": self._measured.closed}
        if self.open_run is not None:
            parts["open"] = self.open_run.samples
        table = pd.concat(parts, names=["run"]).reset_index("run").reset_index(drop=True)
        return table.astype({"run": "category"})

    @property
    def first_calls(self) -> pd.DataFrame:
        """The warm-up: the first calls of each size, which are excluded from all figures."""
        return self._measured.closed[self._measured.closed["first"]]

    def slowest(self, count: int = 10) -> pd.DataFrame:
        """Return the requests that took the longest to serve."""
        return self._measured.steady.nlargest(count, "service_ms")

    def quantile_ms(self, q: float) -> float | None:
        """Return a quantile of the service times, or ``None`` if there are too few requests (p99 needs 299)."""
        return sample_quantile(self._load.service_ms, _share("q", q))

    def quantile_interval_ms(self, q: float) -> tuple[float, float] | None:
        """Return that quantile's 95 % interval, or ``None`` if there are too few requests (p99 needs 368)."""
        return quantile_interval(self._load.service_ms, _share("q", q))

    @property
    def pauses(self) -> pd.DataFrame:
        """The extra time of requests that arrived while the server was idle, with one row per measured pause.

        The columns are ``pause_ms``, ``requests``, and ``extra_ms``: the median of the time that these requests took in
        addition to requests of the same size served back to back. Its 95 % interval is from ``ci_low_ms`` to
        ``ci_high_ms``. The table is empty if the budget was too short.
        """
        return self._load.pauses

    def at(self, rate_per_s: float) -> LoadedLatency:
        """Return the latency at a given rate of independent (Poisson) arrivals.

        It is computed from the service times and the extra time after pauses.
        """
        return self._load.at(_rate(rate_per_s))

    @property
    def curve(self) -> pd.DataFrame:
        """One row per rate, with the values of `LoadedLatency` and, for each of them, ``_low`` and ``_high``.

        The rates are chosen so that requests with the times measured back to back would keep the servers busy for 0.3
        to 0.95 of the time.
        """
        return self._load.curve

    def highest_rate(self, bound_ms: float, quantile: float = 0.99, *, confirm_s: float | None = None) -> HighestRate:
        """Return the highest rate at which a latency quantile stays within a bound.

        The rate is computed from the service times, and runs then confirm or lower it: the runs for the bound and
        quantile that you passed to `perfnb.latency`, and the runs that you request with `confirm_s`. Further calls with
        the same arguments return the same answer until you confirm it again.

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
        if confirm_s is not None:
            require_seconds("confirm_s", confirm_s)
        asked = float(bound_ms), _share("quantile", quantile)
        if confirm_s is not None or asked not in self._known:
            if self.quantile_ms(quantile) is None:
                raise ValueError(
                    f"{fmt.counted(len(self._load.service_ms), 'request')} are too few for the {quantile:g} quantile: "
                    "raise budget_s, or ask for a smaller quantile."
                )
            highest = self._load.highest_rate(*asked)
            self._known[asked] = highest if confirm_s is None else self._confirmed(highest, float(confirm_s))
        return self._known[asked]

    def _confirmed(self, highest: HighestRate, seconds: float) -> HighestRate:
        """Return the rate if a run confirms it, or otherwise the highest lower rate that another run confirms.

        The result is not lower than the given rate if the run at that rate stayed within the bound.
        """
        left, bound_ms, quantile = seconds, highest.bound_ms, highest.quantile
        if highest.rate_per_s == 0:
            return highest
        own, shown = self.open_run, 0.0
        if own is not None and not exceeds(own, bound_ms, quantile):
            shown = own.rate_per_s if seen_in(highest, own).confirmed_ms is not None else 0.0
        while (rate := highest.rate_per_s) and rate > shown and left > 0:
            # A run has enough requests for the quantile, if necessary by taking all the time.
            lasts = min(left, max(seconds / _CONFIRMING_RUNS, steps_for_quantile(quantile) / rate))
            left -= lasts
            run = self._serve_at(rate, lasts)
            if not exceeds(run, bound_ms, quantile):
                return seen_in(highest, run)
            times = run.samples["service_ms"].to_numpy(dtype=float)
            lower = replace(self._load, service_ms=times, extra_ms={}).highest_rate(bound_ms, quantile)
            highest = replace(
                lower,
                rate_per_s=min(lower.rate_per_s or 0.0, _LOWER * rate),
                low=min(lower.low, _LOWER * rate),
                high=min(lower.high, _LOWER * rate),
                refuted_per_s=(*highest.refuted_per_s, rate),
            )
        if own is not None and shown > 0:
            low, high = min(highest.low, shown), max(highest.high, shown)
            return seen_in(replace(highest, rate_per_s=shown, low=low, high=high), own)
        return replace(highest, rate_per_s=None, low=0.0, high=highest.refuted_per_s[-1])

    @property
    def _asked(self) -> HighestRate | None:
        """The highest rate for the requested bound, which is unknown if there were too few requests."""
        bound = self._measured.asked_bound
        if bound is None or bound in self._known or self.quantile_ms(bound[1]) is not None:
            return bound and self.highest_rate(*bound)
        return HighestRate(None, 0.0, math.inf, *bound)

    @property
    def open_run(self) -> OpenRun | None:
        """The run at ``rate_per_s``, or ``None`` if you did not specify a rate."""
        return self._measured.open_run

    @property
    def saturated(self) -> bool:
        """Whether requests in the run at ``rate_per_s`` arrived faster than they were served."""
        return self.open_run is not None and self.open_run.saturated

    @cached_property
    def batching(self) -> Batching:
        """The times of batches of each size, and how much a dynamic batcher would gain.

        Raises
        ------
        ValueError
            If batches were not measured: pass ``batch=``.
        """
        times_ms = self._measured.batches_ms
        if times_ms is None:
            raise ValueError("Batches were not measured: pass batch=, which makes one input from a list of requests.")
        return Batching({1: self._load.service_ms, **times_ms}, self._load.servers)

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """One row per request that returned tokens.

        ``run`` and ``served`` (its place among the samples of that run), ``tokens``, ``ttft_ms`` (from its arrival to
        its first token), ``prefill_ms`` (the same from its start), ``decode_ms`` (from the first to the last token),
        ``tpot_ms`` (that per later token; ``NA`` with a single one), ``prompt_tokens`` (``NA`` if no streamer gets the
        prompt), and ``request``, ``size``, ``service_ms``, ``latency_ms`` and ``first`` as in `samples`.

        Raises
        ------
        ValueError
            If tokens were not requested: pass ``tokens=True``.
        """
        return by_request(self.token_times, self.samples)

    @property
    def token_times(self) -> pd.DataFrame:
        """One row per token.

        The columns are ``run``, ``served`` (as in `tokens`), ``token``, ``after_arrival_ms``, ``after_start_ms`` and
        ``prompt_tokens``.

        Raises
        ------
        ValueError
            If tokens were not requested: pass ``tokens=True``.
        """
        if self._measured.tokens is None:
            raise ValueError("Tokens were not recorded: pass tokens=True.")
        opened = [] if self.open_run is None else [self.open_run.tokens]
        return pd.concat([self._measured.tokens, *opened], ignore_index=True)

    @property
    def _steady_tokens(self) -> pd.DataFrame:
        """The requests served back to back, without warm-up."""
        table = self.tokens
        return table[(table["run"] == "closed") & ~table["first"].astype(bool)]

    @property
    def ttft_ms(self) -> float:
        """The median time to the first token of a request served alone. It is NaN if there are no such requests."""
        return float(self._steady_tokens["ttft_ms"].median())

    @property
    def tpot_ms(self) -> float:
        """The median, over requests, of the time per token after the first. It is NaN if no answer had two tokens."""
        return float(self._steady_tokens["tpot_ms"].dropna().astype(float).median())

    @property
    def itl_ms(self) -> float:
        """The median, over all tokens, of the time since the previous token. It is NaN if no answer had two tokens.

        Requests with many tokens have more weight here than in `tpot_ms`.
        """
        known = self._steady_tokens[["run", "served"]]
        gaps = gaps_ms(self.token_times.merge(known))
        return float(np.median(gaps)) if len(gaps) else math.nan

    @property
    def output_tokens_per_s(self) -> float:
        """Answer tokens per second, for requests served back to back."""
        table = self._steady_tokens
        return float(table["tokens"].sum()) / len(self._load.service_ms) * self._load.closed_per_s

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Prompt tokens per second until the first token arrived, or ``None`` if the prompts are unknown."""
        known = self._steady_tokens.dropna(subset="prompt_tokens")
        return float(known["prompt_tokens"].sum() / known["prefill_ms"].sum() * 1e3) if len(known) else None

    def kv_cache_bytes(self, length: int) -> int | None:
        """Return the size of a request's key-value cache for this many tokens, including the prompt and the answer.

        The result is ``None`` if the size is unknown. To determine it, perfnb serves one more request, which is not
        timed, and inspects its cache. The cache is visible if a module returns it as ``past_key_values``, as Hugging
        Face models do.
        """
        require_count("length", length, 1)
        cache = self._measured.cache
        return None if isinstance(cache, str) else cache.bytes_at(length)

    @property
    def costs(self) -> pd.DataFrame:
        """The cost of a thousand requests, with one row per way to serve them.

        The column ``run`` names the way to serve them (closed: back to back, without a pause; open: at the requested
        rate; highest: at the highest rate for the bound). The other columns are ``requests_per_s``, and for 1,000
        requests, ``joules`` (used by the GPUs that torch uses) and ``price`` (of the machine's time, including the time
        when it waits). Each of them is ``NA`` if it is unknown. The column ``why`` contains the reason why the energy
        is unknown.
        """
        rates: dict[str, float | None] = {"closed": self._load.closed_per_s}
        if self.open_run is not None:
            rates["open"] = None if self.open_run.saturated else self.open_run.rate_per_s
        if (asked := self._asked) is not None and asked.rate_per_s != 0:
            rates["highest"] = asked.rate_per_s
        rows, price_per_hour = [], self._measured.price_per_hour
        for run, rate in rates.items():
            joules = self._measured.joules.get(run, "it is measured back to back and at the rate asked for")
            price = None if rate is None or price_per_hour is None else price_per_hour / 3.6 / rate
            energy, why = (None, joules) if isinstance(joules, str) else (1e3 * joules, "")
            rows.append((run, rate, energy, price, why))
        columns = ["run", "requests_per_s", "joules", "price", "why"]
        return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[1:4], "Float64")).set_index("run")

    def goodput_per_s(self, **bounds_ms: float) -> float:
        """Return how many requests per second met all bounds in the run at a rate.

        Parameters
        ----------
        **bounds_ms : float
            The bound for each column of `tokens`: ``ttft_ms=200, tpot_ms=50``.

        Raises
        ------
        ValueError
            If there was no run at a rate, or if a bound does not apply to one of these columns.
        """
        run = self.open_run
        if run is None:
            raise ValueError("Goodput is only measured in a run at a given rate: pass rate_per_s= or arrivals=.")
        allowed = ("ttft_ms", "tpot_ms", "latency_ms", "prefill_ms", "decode_ms")
        if not bounds_ms or any(name not in allowed for name in bounds_ms):
            raise ValueError(f"Bounds are on {', '.join(allowed)}, not {', '.join(bounds_ms) or 'nothing'}.")
        # Not only from the first arrival to the last: otherwise more requests would seem to be served than come.
        due_s = (len(run.samples) + run.lost) / run.rate_per_s
        seconds = max(due_s, float((run.samples["arrival_ms"] + run.samples["latency_ms"]).max()) / 1e3)
        return goodput(self.tokens[self.tokens["run"] == "open"], seconds, bounds_ms)

    def _document(self) -> Document:
        return latency_document(self, self._measured, self._load, self._asked)


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

    Requests are first served back to back to measure their service times. The latency at any arrival rate can be
    computed from these times, because each request also waits for the requests before it. If you specify a rate, perfnb
    also measures the latency at this rate, with arrival times that are fixed in advance.

    Parameters
    ----------
    fn : callable
        Serves one request. It can be a model (which then runs in inference mode), a pipeline, or any other function.
    requests : iterable
        The requests to serve. They are drawn at random, so that each size occurs as often as in this collection.
    rate_per_s : float, optional
        Serve requests that arrive independently of each other (Poisson) at this rate.
    bound_ms : float, optional
        Find the highest rate at which the latency's `quantile` is within this bound, and confirm it with a run.
    quantile : float
        The quantile for `bound_ms`.
    concurrency : int
        Requests served at the same time, in threads.
    arrivals : sequence of float, optional
        Arrival times in seconds, in ascending order, to be used instead of `rate_per_s`. For example, they can be
        recorded or bursty. The last arrival must be within `budget_s`.
    batch : callable, optional
        Makes one input of `fn` from a list of requests, as a loader's ``collate_fn`` does; ``list`` if `fn` takes a
        list. Batches of 1, 2, 4 and more are measured too, for `Latency.batching`.
    tokens : bool, optional
        Record when each token of an answer arrives. `fn` must yield tokens, or accept ``streamer=`` and pass it to
        Hugging Face's ``generate``.
    price_per_hour : float, optional
        Price of the machine, in any currency, for `Latency.costs`.
    budget_s : float
        The approximate total time in seconds.

    Returns
    -------
    Latency

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or if `fn` returns a result that has not been computed yet, such as a coroutine, a
        future or a generator.
    Exception
        Whatever `fn` raises, with a note that names the request.
    """
    from perfnb.inference.energy import energy_meter
    from perfnb.inference.generation import watch_generation
    from perfnb.inference.request_runner import SEED, RequestRunner, Served, first_calls
    from perfnb.inference.serving import Requests, served_by, serves_in_training, tokens_served_by
    from perfnb.step.environment import Conditions

    __tracebackhide__ = True
    if not callable(fn):
        raise TypeError(f"latency needs a function or model that serves one request, not {shown(fn)}.")
    require_seconds("budget_s", budget_s)
    require_count("concurrency", concurrency, 1)
    if bound_ms is not None:
        require_seconds("bound_ms", bound_ms)
    quantile = _share("quantile", quantile)
    asked_bound = None if bound_ms is None else (float(bound_ms), quantile)
    rate = None if rate_per_s is None else _rate(rate_per_s)
    schedule = None if arrivals is None else _schedule(arrivals, budget_s)
    if rate is not None and schedule is not None:
        raise TypeError("Pass rate_per_s or arrivals, not both: each sets when requests arrive.")
    if batch is not None and not callable(batch):
        raise TypeError(f"batch must be a function that makes one input from a list of requests, not {shown(batch)}.")
    if tokens is not None:
        require_flag("tokens", tokens)
    if price_per_hour is not None:
        price_per_hour = _number("price_per_hour", price_per_hour, "of at least 0", lambda price: price >= 0)
    if tokens and batch is not None:
        raise TypeError("Pass tokens or batch, not both: batches are timed as a whole.")
    held = Requests(requests)
    if tokens:
        serve: Callable[[Any], Any] = tokens_served_by(fn)
    else:
        serve = served_by(fn if batch is None else (lambda request: fn(batch([request]))))

    def poisson(rate_per_s: float, seconds: float) -> list[float]:
        count = max(1, round(rate_per_s * seconds))
        return [float(at_ms) for at_ms in poisson_arrivals(count, rate_per_s, np.random.default_rng(SEED))]

    def serve_at(rate_per_s: float, seconds: float) -> OpenRun:
        arrivals_ms = poisson(rate_per_s, seconds)
        with StepOutput(), Progress() as progress:
            served = RequestRunner(serve, held, concurrency, progress).on_schedule(arrivals_ms)
        return open_run_of(served, arrivals_ms, rate_per_s, concurrency)

    runs = (rate is not None) + (bound_ms is not None) + (batch is not None)
    alone_s = (_ALONE_SHARE if runs else 1.0) * budget_s
    each_s = (budget_s - alone_s) / max(1, runs)
    conditions = Conditions()
    with StepOutput(), Progress() as progress, energy_meter() as meter, conditions:

        def joules(served: Sequence[Served]) -> float | str:
            # With pauses between requests, from the first arrival, because a machine takes power while it waits.
            used = meter(min(one.arrival_ns for one in served), max(one.end_ns for one in served))
            return used if isinstance(used, str) else used / len(served)

        runner = RequestRunner(serve, held, concurrency, progress)
        served = runner.back_to_back(alone_s * (1 - _PAUSED_SHARE))
        first = first_calls(served)
        closed = samples_of(served, first)
        usual_ms = float(closed.loc[~closed["first"], "service_ms"].median())
        paused, pauses_ms = runner.after_pauses(usual_ms / 1e3, alone_s * _PAUSED_SHARE)
        batches_ms, short_batch = (None, None) if batch is None else runner.in_batches(fn, batch, each_s)
        if rate is not None:
            schedule = poisson(rate, each_s)
        on_schedule = [] if schedule is None else runner.on_schedule(schedule)
        cache = watch_generation(fn, held[served[0].request]).cache if tokens else "tokens were not asked for"
        per_request = {"closed": joules(served[first.index(False) :])}
        if on_schedule:
            per_request["open"] = joules(on_schedule)
    measured = Measured(
        name=str(getattr(fn, "__name__", type(fn).__name__)),
        concurrency=concurrency,
        closed=closed,
        paused=samples_of(paused).assign(pause_ms=pauses_ms),
        open_run=None if schedule is None else open_run_of(on_schedule, schedule, rate, concurrency),
        asked_rate=rate,
        asked_bound=asked_bound,
        batches_ms=batches_ms,
        short_batch=short_batch,
        tokens=tokens_of("closed", served) if tokens else None,
        cache=cache,
        price_per_hour=price_per_hour,
        joules=per_request,
        in_training=serves_in_training(fn),
        noise=conditions.facts,
    )
    found = Latency(measured, load_model_of(measured), serve_at)
    if asked_bound is not None and found.quantile_ms(quantile) is not None:
        found.highest_rate(*asked_bound, confirm_s=each_s)
    return found


def _schedule(arrivals: Sequence[float], budget_s: float) -> list[float]:
    times = np.asarray(arrivals, dtype=float)
    if times.ndim != 1 or not len(times) or not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise ValueError("arrivals must contain at least one time in seconds, in ascending order.")
    if times[-1] <= times[0]:
        raise ValueError("arrivals must not all be at the same instant.")
    lasts_s = float(times[-1] - times[0])
    if lasts_s > budget_s:
        raise ValueError(
            f"arrivals last {fmt.significant(lasts_s)} s, more than budget_s={budget_s:g}: raise it, or pass fewer."
        )
    return [(each - float(times[0])) * 1e3 for each in times.tolist()]


def _rate(value: object) -> float:
    words = "of requests per second above 0 and at most 1e6"
    return _number("rate_per_s", value, words, lambda rate: 0 < rate <= 1e6)


def _share(name: str, value: object) -> float:
    return _number(name, value, "between 0 and 1", lambda share: 0 < share < 1)


def _number(name: str, value: object, words: str, allowed: Callable[[float], bool]) -> float:
    number = finite(value)
    if number is None or not allowed(number):
        raise ValueError(f"{name} must be a number {words}, not {shown(value)}.")
    return number
