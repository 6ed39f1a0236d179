"""Serve requests for real: one after the other, or at arrival times fixed in advance."""

from __future__ import annotations

import concurrent.futures
import inspect
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import torch
from torch import nn

from perfnb.interrupts import InterruptGate
from perfnb.step.device import synchronize
from perfnb.step.namespace import namespace_of
from perfnb.step.steps import tensors_in

#: Requests kept of an iterable that has no length.
_MOST_KEPT = 1_000
#: A sleep may end late by up to this; the rest of a gap is spent looking at the clock.
_SPIN_S = 1e-3
#: The longest sleep, after which an interrupt or another server's error is seen.
_NAP_S = 0.1

#: Called after each request with how many are done.
Done = Callable[[int], None]


class Served(msgspec.Struct, frozen=True, gc=False):
    """One served request; instants in nanoseconds of `time.perf_counter_ns`.

    Hidden from Python's garbage collector: thousands of tracked records would trigger a full collection in the middle
    of a request, which takes a quarter of a second in a notebook that has imported a few libraries.
    """

    request: int  # its place among the requests
    size: str
    arrival_ns: int  # when it was due; when it was started, where nothing was scheduled
    start_ns: int
    end_ns: int
    #: How much later it was started than its arrival and a free server allowed.
    late_ns: int
    #: When each token of the answer came, where tokens are asked for.
    tokens_ns: tuple[int, ...] = ()
    #: Tokens of the prompt, where a streamer is handed it.
    prompt_tokens: int | None = None


class Requests:
    """The user's requests, drawn at random so that the mix of sizes stays theirs.

    Parameters
    ----------
    requests : iterable
        All of a sequence or a data set; the first 1,000 of anything else.

    Raises
    ------
    TypeError
        For what is one request itself, or would be taken apart in another way than meant.
    ValueError
        If there are none.
    """

    def __init__(self, requests: Iterable[Any]) -> None:
        __tracebackhide__ = True
        given: Any = requests
        kind = type(given)
        if isinstance(given, (str, bytes, Mapping)) or hasattr(kind, "iterrows"):
            meant = "list(frame.itertuples())" if hasattr(kind, "iterrows") else "[request] if it is one of them"
            raise TypeError(
                f"requests must hold one request after the other, which a {kind.__name__} does not: {meant}."
            )
        # The key of a pandas series is its index, not a place.
        indexed = hasattr(kind, "__len__") and hasattr(kind, "__getitem__") and not hasattr(kind, "iloc")
        self._held: Any = given if indexed else list(islice(given, None if hasattr(kind, "__len__") else _MOST_KEPT))
        if len(self._held) == 0:
            raise ValueError("requests is empty: latency needs at least one.")

    def draws(self, seed: int) -> Iterator[int]:
        """Places of requests without end: all of them, shuffled, again and again."""
        rng = random.Random(seed)
        places = list(range(len(self._held)))
        while True:
            rng.shuffle(places)
            yield from places

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, place: int) -> Any:
        return self._held[place]


def size_of(request: Any) -> str:
    """What a request's first calls depend on: the shapes of its tensors, or the length of its text or list."""
    shapes = [str(tuple(tensor.shape)) for tensor in islice(tensors_in(request), 4)]
    if shapes:
        return " ".join(shapes)
    return str(len(request)) if isinstance(request, (str, bytes, list, tuple)) else type(request).__name__


def may_hold(made: Any, count: int) -> bool:
    """Whether an input made of requests may hold so many: something in it is as long, or longer as where it is packed.

    ``True`` where nothing in it has a length.
    """
    shapes = [tuple(tensor.shape) for tensor in islice(tensors_in(made), 16)]
    lengths = [length for shape in shapes for length in shape]
    if isinstance(made, (list, tuple)):
        lengths.append(len(made))
    return not lengths or count in lengths or any(shape[:1] > (count,) for shape in shapes)


def served_by(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A request's whole way: the call, and the wait until its result is on the host.

    A model itself runs without recording what backward would need, as it is served. A mapping whose keys are its
    parameters, such as a tokenizer's, reaches it as keyword arguments.
    """
    without_gradients: Callable[[], AbstractContextManager[Any]] = (
        torch.inference_mode if isinstance(fn, nn.Module) else nullcontext
    )

    names = set(inspect.signature(fn.forward).parameters) if isinstance(fn, nn.Module) else set()
    call: Callable[..., Any] = fn

    def serve(request: Any) -> Any:
        __tracebackhide__ = True
        by_name = isinstance(request, Mapping) and names.issuperset(request)
        with without_gradients():
            result = call(**request) if by_name else call(request)
        synchronize()
        return result

    return serve


def used_by(fn: Any) -> list[Any]:
    """What a function may serve: itself, its object, their attributes, and the variables that it uses."""
    if isinstance(fn, partial):
        return [*fn.args, *fn.keywords.values(), *used_by(fn.func)]
    owner, defaults = getattr(fn, "__self__", fn), getattr(fn, "__defaults__", None) or ()
    return [owner, *getattr(owner, "__dict__", {}).values(), *defaults, *namespace_of(fn).values()]


def any_in_training(values: Iterable[Any]) -> bool:
    """Whether one of these is a model in training mode."""
    return any(isinstance(each, nn.Module) and each.training for each in values)


def require_result(result: Any) -> None:
    """Refuse what has still to be computed: its request took no time yet.

    Raises
    ------
    TypeError
    """
    __tracebackhide__ = True
    kind = type(result).__name__
    if inspect.isawaitable(result) or isinstance(result, (concurrent.futures.Future, torch.futures.Future)):
        if inspect.iscoroutine(result):
            result.close()  # or Python warns that nobody awaited it
        raise TypeError(
            f"The function returned a {kind}, before its result was there: pass one that waits for the result, such as "
            "asyncio.run_coroutine_threadsafe(serve(request), loop).result() with a loop in another thread."
        )
    if isinstance(result, (Iterator, AsyncIterator)):
        raise TypeError(
            f"The function returned a {kind}, which computes nothing until it is gone through: return list(...) of it, "
            "or pass tokens=True if it yields tokens."
        )


class TokenTimes(list[int]):
    """When each token came. Also a streamer for Hugging Face's ``generate``, which hands it the prompt first."""

    def __init__(self) -> None:
        super().__init__()
        #: Tokens of the prompt, once it was handed over.
        self.prompt_tokens: int | None = None

    def put(self, value: Any) -> None:
        """Note the tokens that came; several at once where they were guessed ahead."""
        if self.prompt_tokens is None:
            self.prompt_tokens = int(value.numel()) if isinstance(value, torch.Tensor) else len(value)
            return
        self.note(value)

    def end(self) -> None:
        """Called by ``generate`` after the last token."""

    def note(self, value: Any) -> None:
        """Note what an answer yielded: nothing where that is empty."""
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                synchronize()  # or it would be noted before it is computed
            count = value.numel()
        else:
            count = 1 if not isinstance(value, (str, bytes, list, tuple)) else min(1, len(value))
        self.extend([time.perf_counter_ns()] * count)


def tokens_served_by(
    fn: Callable[..., Any], made: Callable[[], TokenTimes] = TokenTimes
) -> Callable[[Any], TokenTimes]:
    """Serve a request token by token: `fn` takes ``streamer=``, or returns an iterator of tokens."""
    streams = "streamer" in inspect.signature(fn).parameters

    def serve(request: Any) -> TokenTimes:
        __tracebackhide__ = True
        times = made()
        if streams:
            fn(request, streamer=times)
            if times.prompt_tokens is None:
                raise TypeError("The function takes streamer= and puts nothing into it: hand it to generate.")
        else:
            answer = fn(request)
            if not isinstance(answer, Iterator):
                raise TypeError(
                    "Tokens need a function that yields them, or one that takes streamer= and hands it to generate; "
                    f"this one returned {type(answer).__name__}."
                )
            for token in answer:
                times.note(token)
        synchronize()
        return times

    return serve


def serve(
    fn: Callable[[Any], Any],
    requests: Requests,
    draws: Iterator[int],
    *,
    count: int,
    until_s: float,
    servers: int = 1,
    arrivals_ms: Sequence[float] | None = None,
    pauses_ms: Sequence[float] | None = None,
    done: Done | None = None,
    words: str = "request {place}",
) -> list[Served]:
    """Serve requests until there are `count`, or until `until_s` (`time.perf_counter`), but at least one.

    Without `arrivals_ms` each server takes its next request when the last one is done. With them, the free server takes
    the next request when that is due, or at once if it is due already: the schedule never waits for the servers, so
    latency counted from it holds all waiting (no coordinated omission). With `pauses_ms` a server is idle for so long
    before each request.

    Raises
    ------
    Exception
        Whatever `fn` raises, from whichever server, after the others have finished their request; with a note that
        says which request it was, in `words`.
    """
    __tracebackhide__ = True
    queue = _Queue(requests, draws, count, until_s, arrivals_ms, pauses_ms, words)
    with InterruptGate() as gate:
        others = [threading.Thread(target=queue.work, args=(fn, nullcontext), daemon=True) for _ in range(servers - 1)]
        for other in others:
            other.start()
        try:
            queue.work(fn, gate.opened, done)
            for other in others:  # each serves what it has taken, also what is due later
                while other.is_alive():
                    with gate.opened():
                        other.join(_NAP_S)
        finally:
            queue.stopped = True
            for other in others:
                other.join()
    if queue.error is not None:
        raise queue.error
    return sorted(queue.served, key=lambda one: one.start_ns)


class _Queue:
    """Requests in order of arrival, taken by whichever server is free."""

    def __init__(
        self,
        requests: Requests,
        draws: Iterator[int],
        count: int,
        until_s: float,
        arrivals_ms: Sequence[float] | None,
        pauses_ms: Sequence[float] | None,
        words: str,
    ) -> None:
        self._requests, self._draws, self._count, self._until_s = requests, draws, count, until_s
        self._arrivals, self._pauses, self._words = arrivals_ms, pauses_ms, words
        self._lock = threading.Lock()
        self._taken = 0
        self._begin_ns = time.perf_counter_ns()
        self.served: list[Served] = []
        self.error: BaseException | None = None
        self.stopped = False

    def work(
        self, fn: Callable[[Any], Any], opened: Callable[[], AbstractContextManager[Any]], done: Done | None = None
    ) -> None:
        """Serve until there is nothing left."""
        __tracebackhide__ = True
        try:
            while (taken := self._take()) is not None:
                place, arrival_ns = taken
                free_ns = time.perf_counter_ns()
                request = self._requests[place]
                size = size_of(request)
                with opened():
                    if arrival_ns is not None and not self._sleep_until(arrival_ns):
                        return
                    start_ns = time.perf_counter_ns()
                    try:
                        result = fn(request)
                    except Exception as error:
                        error.add_note(f"It was raised while perfnb served {self._words.format(place=place)}.")
                        raise
                    end_ns = time.perf_counter_ns()
                require_result(result)
                due_ns = start_ns if arrival_ns is None else arrival_ns
                late_ns = 0 if arrival_ns is None else start_ns - max(due_ns, free_ns)
                tokens, prompt = (tuple(result), result.prompt_tokens) if isinstance(result, TokenTimes) else ((), None)
                self.served.append(Served(place, size, due_ns, start_ns, end_ns, late_ns, tokens, prompt))
                if done is not None:
                    done(len(self.served))
        except BaseException as error:
            self.stopped = True
            if threading.current_thread() is threading.main_thread():
                raise
            self.error = error

    def _take(self) -> tuple[int, int | None] | None:
        with self._lock:
            late = self._taken > 0 and time.perf_counter() > self._until_s
            if self.stopped or self._taken == self._count or late:
                return None
            number, self._taken = self._taken, self._taken + 1
            arrival = None
            if self._arrivals is not None:
                arrival = self._begin_ns + round(self._arrivals[number] * 1e6)
            elif self._pauses is not None:
                arrival = time.perf_counter_ns() + round(self._pauses[number] * 1e6)
            return next(self._draws), arrival

    def _sleep_until(self, instant_ns: int) -> bool:
        """Wait for an instant; ``False`` if another server failed meanwhile."""
        while (left_s := (instant_ns - time.perf_counter_ns()) / 1e9) > 0:
            if self.stopped:
                return False
            time.sleep(min(left_s - _SPIN_S, _NAP_S) if left_s > _SPIN_S else 0)
        return True
