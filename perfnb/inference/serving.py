"""Prepare the user's requests, and serve them either completely or token by token."""

from __future__ import annotations

import concurrent.futures
import inspect
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn

from perfnb.step.data_waits import tensors_in
from perfnb.step.device import synchronize
from perfnb.step.namespace import namespace_of

#: The number of requests that are used from an iterable without a length.
_MOST_KEPT = 1_000
#: The attribute of a cell's function that returns the variables that the cell uses.
USES = "__perfnb_uses__"


class Requests:
    """The user's requests, which are drawn at random to preserve the mix of sizes.

    Parameters
    ----------
    requests : iterable
        If this is a sequence or a data set, all of its requests are used. Otherwise, the first 1,000 are used.

    Raises
    ------
    TypeError
        If the value is itself a request, or if iterating over it would split it in an unintended way.
    ValueError
        If there are no requests.
    """

    def __init__(self, requests: Iterable[Any]) -> None:
        __tracebackhide__ = True
        given: Any = requests
        kind = type(given)
        if isinstance(given, (str, bytes, Mapping)) or hasattr(kind, "iterrows"):
            meant = "list(frame.itertuples())" if hasattr(kind, "iterrows") else "[request] if it is a single request"
            raise TypeError(f"requests must be a collection of requests, not a {kind.__name__}: pass {meant}.")
        # A pandas series is indexed by label, not by position.
        indexed = hasattr(kind, "__len__") and hasattr(kind, "__getitem__") and not hasattr(kind, "iloc")
        self._held: Any = given if indexed else list(islice(given, None if hasattr(kind, "__len__") else _MOST_KEPT))
        if len(self._held) == 0:
            raise ValueError("requests is empty: latency needs at least one.")

    def draws(self, seed: int) -> Iterator[int]:
        """Yield indices of requests endlessly, in shuffled passes over all requests."""
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
    """Return the size of a request, on which the set-up work of the first calls depends.

    This is the shapes of its tensors, or the length of its text or list.
    """
    shapes = [str(tuple(tensor.shape)) for tensor in islice(tensors_in(request), 4)]
    if shapes:
        return " ".join(shapes)
    return str(len(request)) if isinstance(request, (str, bytes, list, tuple)) else type(request).__name__


def may_hold(made: Any, count: int) -> bool:
    """Check whether an input made from requests may contain this many of them.

    Some part of the input must have this length, or a greater length if it is packed. The result is also ``True`` if no
    part of the input has a length.
    """
    shapes = [tuple(tensor.shape) for tensor in islice(tensors_in(made), 16)]
    lengths = [length for shape in shapes for length in shape]
    if isinstance(made, (list, tuple)):
        lengths.append(len(made))
    return not lengths or count in lengths or any(shape[:1] > (count,) for shape in shapes)


def served_by(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that serves a request and waits until the result is on the host.

    As in production, a model runs without recording operations for the backward pass. If a request is a mapping whose
    keys are the model's parameters, such as a tokenizer's output, it is passed as keyword arguments.
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


def serves_in_training(fn: Any) -> bool:
    """Check whether a function serves a model that is in training mode.

    The model may be the function itself, the object to which a method belongs, an attribute of either of them, or an
    argument, default or variable that the function uses.
    """
    used: list[Any] = []
    while isinstance(fn, partial):
        used += [*fn.args, *fn.keywords.values()]
        fn = fn.func
    owner = getattr(fn, "__self__", fn)
    used += [owner, *getattr(owner, "__dict__", {}).values(), *(getattr(fn, "__defaults__", None) or ())]
    used += [*namespace_of(fn).values(), *getattr(fn, USES, list)()]
    return any(isinstance(value, nn.Module) and value.training for value in used)


def require_result(result: Any) -> None:
    """Raise an error for a result that has not been computed yet, because timing such a request would be meaningless.

    Raises
    ------
    TypeError
    """
    __tracebackhide__ = True
    kind = type(result).__name__
    if inspect.isawaitable(result) or isinstance(result, (concurrent.futures.Future, torch.futures.Future)):
        if inspect.iscoroutine(result):
            result.close()  # otherwise, Python warns that it was never awaited
        raise TypeError(
            f"The function returned a {kind} before its result was ready: pass a function that waits for the result, "
            "such as asyncio.run_coroutine_threadsafe(serve(request), loop).result() with a loop in another thread."
        )
    if isinstance(result, (Iterator, AsyncIterator)):
        raise TypeError(
            f"The function returned a {kind}, which does not compute anything until it is iterated over: return "
            "list(...), or pass tokens=True if it yields tokens."
        )


class TokenTimes(list[int]):
    """The times when tokens arrived.

    Instances can be passed as a streamer to Hugging Face's ``generate``, which passes the prompt to it first.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The number of tokens in the prompt, once it has been passed.
        self.prompt_tokens: int | None = None

    def put(self, value: Any) -> None:
        """Record tokens that have arrived. With speculative decoding, several tokens can arrive at once."""
        if self.prompt_tokens is None:
            self.prompt_tokens = int(value.numel()) if isinstance(value, torch.Tensor) else len(value)
            return
        self.note(value)

    def end(self) -> None:
        """Do nothing. ``generate`` calls this method after the last token."""

    def note(self, value: Any) -> None:
        """Record a token that an answer yielded. Empty tokens are ignored."""
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                synchronize()  # otherwise, the time would be recorded before the token is computed
            count = value.numel()
        else:
            count = 1 if not isinstance(value, (str, bytes, list, tuple)) else min(1, len(value))
        self.extend([time.perf_counter_ns()] * count)


def tokens_served_by(
    fn: Callable[..., Any], made: Callable[[], TokenTimes] = TokenTimes
) -> Callable[[Any], TokenTimes]:
    """Serve a request token by token. `fn` must accept ``streamer=`` or return an iterator of tokens."""
    streams = "streamer" in inspect.signature(fn).parameters

    def serve(request: Any) -> TokenTimes:
        __tracebackhide__ = True
        times = made()
        if streams:
            fn(request, streamer=times)
            if times.prompt_tokens is None:
                raise TypeError("The function accepts streamer= but does not use it: pass the streamer to generate.")
        else:
            answer = fn(request)
            if not isinstance(answer, Iterator):
                raise TypeError(
                    "Token times need a function that yields tokens, or that accepts streamer= and passes it to "
                    f"generate. This function returned {type(answer).__name__}."
                )
            for token in answer:
                times.note(token)
        synchronize()
        return times

    return serve
