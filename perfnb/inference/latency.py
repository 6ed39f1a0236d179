"""`latency`: measure the latency of requests, alone and under load, and find the highest rate within a bound."""

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

#: The fraction of the budget for requests alone if there are other runs, and the fraction of these requests that follow
#: a pause.
_ALONE_SHARE, _PAUSED_SHARE = 0.45, 0.15
#: The maximum number of runs to confirm a highest rate, and the largest ratio of one run's rate to the previous one's.
_CONFIRMING_RUNS, _LOWER = 3, 0.9

#: Serves requests at a rate (per second) for a duration (in seconds).
ServeAt = Callable[[float, float], OpenRun]


class Latency(Documented):
    """The latency of requests, alone and under load, which is displayed in notebooks."""

    def __init__(
        self, measured: Measured, load: LoadModel, serve_at: ServeAt, known: Iterable[HighestRate] = ()
    ) -> None:
        self._measured, self._load, self._serve_at = measured, load, serve_at
        #: The highest rates found so far. Repeated calls return the same answer.
        self._known = {(rate.bound_ms, rate.quantile): rate for rate in known}

    @property
    def samples(self) -> pd.DataFrame:
        """One row per served request.

        The columns are ``run`` (closed: back to back; open: at arrival times fixed in advance), ``request`` (its index
        in your requests), ``size``, ``arrival_ms`` and ``start_ms`` relative to the start of the run, ``wait_ms``,
        ``service_ms``, ``latency_ms`` (waiting and service together), ``late_ms`` (the part of the delay that the clock
        caused) and ``first`` (whether it was a warm-up call: the first calls of each size are excluded from all
        figures).
        """
        parts = {"closed": self._measured.closed}
        if self.open_run is not None:
            parts["open"] = self.open_run.samples
        table = pd.concat(parts, names=["run"]).reset_index("run").reset_index(drop=True)
        return table.astype({"run": "category"})

    @property
    def first_calls(self) -> pd.DataFrame:
        """The warm-up requests: the first calls of each size, which are excluded from all figures."""
        return self._measured.closed[self._measured.closed["first"]]

    def slowest(self, count: int = 10) -> pd.DataFrame:
        """Return the requests that took the longest to serve."""
        return self._measured.steady.nlargest(count, "service_ms")

    def quantile_ms(self, q: float) -> float | None:
        """Return a quantile of the service times, or ``None`` if there are too few requests (p99 needs 299)."""
        return sample_quantile(self._load.service_ms, _share("q", q))

    def quantile_interval_ms(self, q: float) -> tuple[float, float] | None:
        """Return the 95 % interval of a quantile, or ``None`` if there are too few requests (p99 needs 368)."""
        return quantile_interval(self._load.service_ms, _share("q", q))

    @property
    def pauses(self) -> pd.DataFrame:
        """The extra time of requests that arrived while the server was idle, with one row per measured pause.

        The columns are ``pause_ms``, ``requests``, and ``extra_ms``, which is the median of the additional time that
        these requests took compared with requests of the same size served back to back. Its 95 % interval is given by
        ``ci_low_ms`` and ``ci_high_ms``. The table is empty if the budget was too short.
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

        The rates are chosen such that requests with the times measured back to back would keep the servers busy for 30
        to 95 % of the time.
        """
        return self._load.curve

    def highest_rate(self, bound_ms: float, quantile: float = 0.99, *, confirm_s: float | None = None) -> HighestRate:
        """Return the highest rate at which a latency quantile stays within a bound.

        The rate is computed from the service times. A run then confirms or lowers it if you passed this bound and
        quantile to `perfnb.latency`, or if you request a run with `confirm_s`. Further calls with the same arguments
        return the same answer until you confirm it again.

        Parameters
        ----------
        confirm_s : float, optional
            Serve requests at the computed rate for at most this many seconds to check whether the bound is met. If
            latency exceeds the bound, a lower rate is tried, namely the highest rate for the service times of that run.

        Raises
        ------
        ValueError
            If there are too few service times for the quantile.
        """
        require_seconds("bound_ms", bound_ms)
        if confirm_s is not None:
            require_seconds("confirm_s", confirm_s)
        asked = float(bound_ms), _share("quantile", quantile)
        if confirm_s is not None or asked not in self._known:
            if self.quantile_ms(quantile) is None:
                raise ValueError(
                    f"{fmt.counted(len(self._load.service_ms), 'request')} are too few for the {quantile:g} quantile: "
                    "raise budget_s, or choose a smaller quantile."
                )
            highest = self._load.highest_rate(*asked)
            self._known[asked] = highest if confirm_s is None else self._confirmed(highest, float(confirm_s))
        return self._known[asked]

    def _confirmed(self, highest: HighestRate, seconds: float) -> HighestRate:
        """Return the rate if a run confirms it, or otherwise the highest lower rate that another run confirms.

        If the run at the given rate stays within the bound, the result is at least this rate.
        """
        left, bound_ms, quantile = seconds, highest.bound_ms, highest.quantile
        if highest.rate_per_s == 0:
            return highest
        own, shown = self.open_run, 0.0
        if own is not None and not exceeds(own, bound_ms, quantile):
            shown = own.rate_per_s if seen_in(highest, own).confirmed_ms is not None else 0.0
        while (rate := highest.rate_per_s) and rate > shown and left > 0:
            # A run must contain enough requests for the quantile, even if that takes all of the time.
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
        """The highest rate for the requested bound. It is unknown if there were too few requests."""
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
        """The times of batches of each size, and the gain from a dynamic batcher.

        Raises
        ------
        ValueError
            If batches were not measured. Pass ``batch=`` to measure them.
        """
        times_ms = self._measured.batches_ms
        if times_ms is None:
            raise ValueError("Batches were not measured: pass batch=, which makes one input from a list of requests.")
        return Batching({1: self._load.service_ms, **times_ms}, self._load.servers)

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """One row per request that returned tokens.

        The columns are ``run``, ``served`` (its index in the samples of that run), ``tokens``, ``ttft_ms`` (the time
        from arrival to the first token), ``prefill_ms`` (the time from the start to the first token), ``decode_ms``
        (the time from the first to the last token), ``tpot_ms`` (``decode_ms`` per token after the first; ``NA`` if
        there is only one token), ``prompt_tokens`` (``NA`` if there is no streamer that receives the prompt), and
        ``request``, ``size``, ``service_ms``, ``latency_ms`` and ``first`` as in `samples`.

        Raises
        ------
        ValueError
            If tokens were not recorded. Pass ``tokens=True`` to record them.
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
            If tokens were not recorded. Pass ``tokens=True`` to record them.
        """
        if self._measured.tokens is None:
            raise ValueError("Tokens were not recorded: pass tokens=True.")
        opened = [] if self.open_run is None else [self.open_run.tokens]
        return pd.concat([self._measured.tokens, *opened], ignore_index=True)

    @property
    def _steady_tokens(self) -> pd.DataFrame:
        """The requests that were served back to back, without the warm-up."""
        table = self.tokens
        return table[(table["run"] == "closed") & ~table["first"].astype(bool)]

    @property
    def ttft_ms(self) -> float:
        """The median time to first token of requests served alone, or NaN if there are no such requests."""
        return float(self._steady_tokens["ttft_ms"].median())

    @property
    def tpot_ms(self) -> float:
        """The median over requests of the time per token after the first, or NaN if no answer has two tokens."""
        return float(self._steady_tokens["tpot_ms"].dropna().astype(float).median())

    @property
    def itl_ms(self) -> float:
        """The median over all tokens of the time since the previous token, or NaN if no answer has two tokens.

        Requests with many tokens have more weight here than in `tpot_ms`.
        """
        known = self._steady_tokens[["run", "served"]]
        gaps = gaps_ms(self.token_times.merge(known))
        return float(np.median(gaps)) if len(gaps) else math.nan

    @property
    def output_tokens_per_s(self) -> float:
        """The number of answer tokens per second, for requests served back to back."""
        table = self._steady_tokens
        return float(table["tokens"].sum()) / len(self._load.service_ms) * self._load.closed_per_s

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """The number of prompt tokens per second of time to first token, or ``None`` if the prompts are unknown."""
        known = self._steady_tokens.dropna(subset="prompt_tokens")
        return float(known["prompt_tokens"].sum() / known["prefill_ms"].sum() * 1e3) if len(known) else None

    def kv_cache_bytes(self, length: int) -> int | None:
        """Return the size of a request's key-value cache for the total number of tokens in the prompt and the answer.

        The result is ``None`` if the size is unknown. To determine the size, perfnb serves one more request, which is
        not timed, and inspects its cache. This requires that a module returns the cache as ``past_key_values``, which
        is the case for Hugging Face models.
        """
        require_count("length", length, 1)
        cache = self._measured.cache
        return None if isinstance(cache, str) else cache.bytes_at(length)

    @property
    def costs(self) -> pd.DataFrame:
        """The cost of a thousand requests, with one row for each way of serving them.

        The column ``run`` specifies how the requests are served (closed: back to back, without a pause; open: at the
        requested rate; highest: at the highest rate for the bound). ``requests_per_s`` is the rate. ``joules`` is the
        energy that the GPUs used by torch need for 1,000 requests, and ``price`` is the price of the machine's time for
        1,000 requests, including idle time. Unknown values are ``NA``. The column ``why`` contains the reason if the
        energy is unknown.
        """
        rates: dict[str, float | None] = {"closed": self._load.closed_per_s}
        if self.open_run is not None:
            rates["open"] = None if self.open_run.saturated else self.open_run.rate_per_s
        if (asked := self._asked) is not None and asked.rate_per_s != 0:
            rates["highest"] = asked.rate_per_s
        rows, price_per_hour = [], self._measured.price_per_hour
        for run, rate in rates.items():
            joules = self._measured.joules.get(run, "it is only measured back to back and at the requested rate")
            price = None if rate is None or price_per_hour is None else price_per_hour / 3.6 / rate
            energy, why = (None, joules) if isinstance(joules, str) else (1e3 * joules, "")
            rows.append((run, rate, energy, price, why))
        columns = ["run", "requests_per_s", "joules", "price", "why"]
        return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[1:4], "Float64")).set_index("run")

    def goodput_per_s(self, **bounds_ms: float) -> float:
        """Return the number of requests per second that met all bounds in the run at a given rate.

        Parameters
        ----------
        **bounds_ms : float
            Bounds for columns of `tokens`, for example ``ttft_ms=200, tpot_ms=50``.

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
            raise ValueError(f"Bounds must be on {', '.join(allowed)}, not {', '.join(bounds_ms) or 'nothing'}.")
        # The duration must extend beyond the last arrival. Otherwise, the throughput would appear to exceed the arrival
        # rate.
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

    Requests are first served back to back to measure their service times. perfnb computes the latency at any arrival
    rate from these times by simulating a queue where each request waits for the requests before it. If you
    specify a rate, perfnb also measures the latency at this rate, with arrival times that are fixed in advance.

    Parameters
    ----------
    fn : callable
        Serves one request. It can be a model (which then runs in inference mode), a pipeline, or any other function.
    requests : iterable
        The requests to serve. They are drawn at random, and each size occurs as often as in this collection.
    rate_per_s : float, optional
        Serve requests that arrive independently of each other (Poisson) at this rate.
    bound_ms : float, optional
        Find the highest rate at which the latency's `quantile` is within this bound, and confirm it with a run.
    quantile : float
        The quantile for `bound_ms`.
    concurrency : int
        The number of requests that are served at the same time, in threads.
    arrivals : sequence of float, optional
        Arrival times in seconds, in ascending order, to use instead of `rate_per_s`. For example, they may have been
        recorded in production, or contain bursts. The last arrival must be within `budget_s`.
    batch : callable, optional
        Function that makes one input for `fn` from a list of requests, like a loader's ``collate_fn``. Pass ``list`` if
        `fn` accepts a list. Batches of 1, 2, 4 and more requests are then measured for `Latency.batching`.
    tokens : bool, optional
        Record when each token of an answer arrives. `fn` must yield tokens, or accept ``streamer=`` and pass it to
        Hugging Face's ``generate``.
    price_per_hour : float, optional
        The hourly price of the machine, in any currency, for `Latency.costs`.
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
        Any exception that `fn` raises, with a note that names the request.
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
        raise TypeError("Pass rate_per_s or arrivals, not both: each of them determines when requests arrive.")
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
            # This includes the pauses between requests from the first arrival on, because a machine uses power while it
            # waits.
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
        cache = watch_generation(fn, held[served[0].request]).cache if tokens else "tokens were not requested"
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
        raise ValueError("arrivals must not all be at the same time.")
    lasts_s = float(times[-1] - times[0])
    if lasts_s > budget_s:
        raise ValueError(
            f"arrivals span {fmt.significant(lasts_s)} s, more than budget_s={budget_s:g}: raise it, or pass fewer."
        )
    return [(each - float(times[0])) * 1e3 for each in times.tolist()]


def _rate(value: object) -> float:
    words = "of requests per second that is above 0 and at most 1e6"
    return _number("rate_per_s", value, words, lambda rate: 0 < rate <= 1e6)


def _share(name: str, value: object) -> float:
    return _number(name, value, "between 0 and 1", lambda share: 0 < share < 1)


def _number(name: str, value: object, words: str, allowed: Callable[[float], bool]) -> float:
    number = finite(value)
    if number is None or not allowed(number):
        raise ValueError(f"{name} must be a number {words}, not {shown(value)}.")
    return number
