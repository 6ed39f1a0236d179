"""Serve real requests, and record when each of them arrived, started and ended.

Requests can be served back to back, after pauses, at arrival times that are fixed in advance, or in batches.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from perfnb.inference.samples import FIRST_CALLS
from perfnb.inference.serving import Requests, TokenTimes, may_hold, require_result, served_by, size_of
from perfnb.interrupts import InterruptGate

_MOST_REQUESTS = 20_000
#: The pauses in milliseconds, and the maximum and minimum number of requests after each pause.
_PAUSES = (0.5, 2.0, 8.0, 32.0, 128.0)
_MOST_PAUSED, _FEWEST_PAUSED = 40, 12
#: The batch sizes other than 1. For each size: the number of batches that are made, and the maximum and minimum number
#: of measurements.
_BATCH_SIZES = (2, 4, 8, 16, 32, 64)
_BATCHES_MADE, _MOST_BATCHES, _FEWEST_BATCHES = 8, 500, 5
#: The factor by which a run may exceed its schedule. Requests that have not been served by then are lost to saturation.
_PATIENCE = 1.5
#: The maximum delay when a sleep ends. The last part of a gap is therefore spent polling the clock.
_SPIN_S = 1e-3
#: The duration of the longest sleep. Interrupts and errors in other servers are noticed between sleeps.
_NAP_S = 0.1
SEED = 20


class Served(msgspec.Struct, frozen=True, gc=False):
    """A request that was served. All times are in nanoseconds, from `time.perf_counter_ns`.

    These records are hidden from Python's garbage collector. If thousands of records were tracked, they would trigger a
    full collection in the middle of a request. In a notebook that has imported a few libraries, this takes a quarter of
    a second.
    """

    request: int  # its index in the requests
    size: str
    arrival_ns: int  # when it was due, or when it started if there was no schedule
    start_ns: int
    end_ns: int
    #: The delay between the earliest possible start, given its arrival and a free server, and the actual start.
    late_ns: int
    #: The times when the answer's tokens arrived, if tokens were requested.
    tokens_ns: tuple[int, ...] = ()
    #: The number of tokens in the prompt, if a streamer receives it.
    prompt_tokens: int | None = None

    @property
    def service_ms(self) -> float:
        """The time from the request's start to its end."""
        return (self.end_ns - self.start_ns) / 1e6


def first_calls(served: Sequence[Served]) -> list[bool]:
    """Check for each request whether it is warm-up, which applies to the first calls of each size.

    If this would leave no other requests, because requests are slow or all sizes differ, only the very first
    calls count as warm-up.
    """
    calls: Counter[str] = Counter()
    first = []
    for request in served:
        first.append(calls[request.size] < FIRST_CALLS)
        calls[request.size] += 1
    return [place < min(FIRST_CALLS, len(first) - 1) for place in range(len(first))] if all(first) else first


class RequestRunner:
    """Serves a user's requests in runs with different arrival times.

    Parameters
    ----------
    serve : callable
        Function that serves one request and waits until its result is on the host.
    servers : int
        The number of requests that are served at the same time, in threads.
    progress : callable
        Called after each request with the name of the run, the number of requests done, and their total number.
    """

    def __init__(
        self, serve: Callable[[Any], Any], requests: Requests, servers: int, progress: Callable[..., None]
    ) -> None:
        self._serve, self._requests, self._servers, self._progress = serve, requests, servers, progress
        self._draws = requests.draws(SEED)

    def back_to_back(self, seconds: float) -> list[Served]:
        """Serve requests without pauses between them."""
        __tracebackhide__ = True
        queue = RequestQueue(self._requests, self._draws, _MOST_REQUESTS, seconds)
        return queue.serve(self._serve, self._servers, lambda done: self._progress("back to back", done))

    def after_pauses(self, usual_s: float, seconds: float) -> tuple[list[Served], list[float]]:
        """Serve requests one by one after pauses, and also return each pause in milliseconds.

        As many requests are served as the time allows, so the result is empty if there is too little time. `usual_s` is
        the time that a request usually takes.
        """
        __tracebackhide__ = True
        for kinds in range(len(_PAUSES), 0, -1):
            rounds = int(seconds / (sum(_PAUSES[:kinds]) / 1e3 + kinds * usual_s))
            if rounds >= _FEWEST_PAUSED:
                break
        else:
            return [], []
        pauses = list(_PAUSES[:kinds]) * min(rounds, _MOST_PAUSED)
        np.random.default_rng(SEED).shuffle(pauses)
        queue = RequestQueue(self._requests, self._draws, len(pauses), _PATIENCE * seconds, pauses_ms=pauses)
        served = queue.serve(self._serve, done=lambda done: self._progress("after pauses", done, len(pauses)))
        return served, pauses[: len(served)]

    def on_schedule(self, arrivals_ms: Sequence[float]) -> list[Served]:
        """Serve requests that arrive at the given times.

        Requests that could not be served during the run are missing from the result.
        """
        __tracebackhide__ = True
        count, seconds = len(arrivals_ms), _PATIENCE * arrivals_ms[-1] / 1e3 + 1.0
        queue = RequestQueue(self._requests, self._requests.draws(SEED + 1), count, seconds, arrivals_ms=arrivals_ms)
        return queue.serve(self._serve, self._servers, lambda done: self._progress("at a rate", done, count))

    def in_batches(
        self, fn: Callable[[Any], Any], batch: Callable[[list[Any]], Any], seconds: float
    ) -> tuple[dict[int, list[float]], int | None]:
        """Return the service times of batches of 2, 4 and more requests.

        The sizes are increased as long as there is enough time to measure them sufficiently often. The method also
        returns the first size where the input made by `batch` does not seem to contain all requests.
        """
        __tracebackhide__ = True
        times: dict[int, list[float]] = {}
        short: int | None = None
        draws = self._requests.draws(SEED + 2)
        for size in _BATCH_SIZES:
            batches = Requests([[self._requests[next(draws)] for _ in range(size)] for _ in range(_BATCHES_MADE)])
            what = f"batches of {size}"
            served = RequestQueue(
                *(batches, batches.draws(SEED), _MOST_BATCHES, seconds / len(_BATCH_SIZES)),
                words=f"a batch of {size} requests",
            ).serve(
                served_by(lambda requests: fn(batch(requests))),
                self._servers,
                lambda done, what=what: self._progress(what, done),  # type: ignore[misc]
            )
            steady = [one.service_ms for one, first in zip(served, first_calls(served), strict=True) if not first]
            if len(steady) < _FEWEST_BATCHES:
                break
            times[size] = steady
            if short is None and not may_hold(batch(batches[0]), size):
                short = size
        return times, short


@dataclass
class RequestQueue:
    """Requests in order of arrival, which are served by any server that is free.

    Without `arrivals_ms`, each server takes its next request when it has finished the previous one. With `arrivals_ms`,
    a free server takes the next request when it is due, or immediately if it is already due. The schedule never waits
    for the servers, so latency measured from the schedule includes all waiting (no coordinated omission). With
    `pauses_ms`, a server is idle for that long before each request.
    """

    requests: Requests
    draws: Iterator[int]
    #: The maximum number of requests, and the time in seconds after which no more requests are started. At least one
    #: request is always served.
    count: int
    seconds: float
    arrivals_ms: Sequence[float] | None = None
    pauses_ms: Sequence[float] | None = None
    #: The description of a request in the note that is added to an exception.
    words: str = "request {place}"

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0
        self._begin_ns = time.perf_counter_ns()
        self._served: list[Served] = []
        self._error: BaseException | None = None
        self._stopped = False

    def serve(
        self, fn: Callable[[Any], Any], servers: int = 1, done: Callable[[int], None] | None = None
    ) -> list[Served]:
        """Serve the requests, calling `done` with the number of requests served so far.

        Raises
        ------
        Exception
            Any exception that `fn` raises in any server, with a note that names the request. It is raised after the
            other servers have finished their current request.
        """
        __tracebackhide__ = True
        with InterruptGate() as gate:
            work = partial(self._work, fn, nullcontext)
            others = [threading.Thread(target=work, daemon=True) for _ in range(servers - 1)]
            for other in others:
                other.start()
            try:
                self._work(fn, gate.opened, done)
                for other in others:  # each server serves the requests that it has taken, even if they are due later
                    while other.is_alive():
                        with gate.opened():
                            other.join(_NAP_S)
            finally:
                self._stopped = True
                for other in others:
                    other.join()
        if self._error is not None:
            raise self._error
        return sorted(self._served, key=lambda request: request.start_ns)

    def _work(
        self,
        fn: Callable[[Any], Any],
        opened: Callable[[], AbstractContextManager[Any]],
        done: Callable[[int], None] | None = None,
    ) -> None:
        """Serve until no request is left."""
        __tracebackhide__ = True
        try:
            while (taken := self._take()) is not None:
                place, arrival_ns = taken
                free_ns = time.perf_counter_ns()
                request = self.requests[place]
                size = size_of(request)
                with opened():
                    if arrival_ns is not None and not self._sleep_until(arrival_ns):
                        return
                    start_ns = time.perf_counter_ns()
                    try:
                        result = fn(request)
                    except Exception as error:
                        error.add_note(f"The error was raised while perfnb served {self.words.format(place=place)}.")
                        raise
                    end_ns = time.perf_counter_ns()
                require_result(result)
                due_ns = start_ns if arrival_ns is None else arrival_ns
                late_ns = 0 if arrival_ns is None else start_ns - max(due_ns, free_ns)
                tokens, prompt = (tuple(result), result.prompt_tokens) if isinstance(result, TokenTimes) else ((), None)
                self._served.append(Served(place, size, due_ns, start_ns, end_ns, late_ns, tokens, prompt))
                if done is not None:
                    done(len(self._served))
        except BaseException as error:
            self._stopped = True
            if threading.current_thread() is threading.main_thread():
                raise
            self._error = error

    def _take(self) -> tuple[int, int | None] | None:
        with self._lock:
            now_ns = time.perf_counter_ns()
            late = self._taken > 0 and now_ns > self._begin_ns + 1e9 * self.seconds
            if self._stopped or self._taken == self.count or late:
                return None
            number, self._taken = self._taken, self._taken + 1
            arrival = None
            if self.arrivals_ms is not None:
                arrival = self._begin_ns + round(self.arrivals_ms[number] * 1e6)
            elif self.pauses_ms is not None:
                arrival = now_ns + round(self.pauses_ms[number] * 1e6)
            return next(self.draws), arrival

    def _sleep_until(self, instant_ns: int) -> bool:
        """Sleep until a given time. Return ``False`` if another server failed in the meantime."""
        while (left_s := (instant_ns - time.perf_counter_ns()) / 1e9) > 0:
            if self._stopped:
                return False
            time.sleep(min(left_s - _SPIN_S, _NAP_S) if left_s > _SPIN_S else 0)
        return True
