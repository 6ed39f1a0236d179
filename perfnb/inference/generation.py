"""Observe the generation of an answer: the key-value cache, and the number of guessed tokens that were kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from perfnb.inference.samples import Cache
from perfnb.inference.serving import TokenTimes, tokens_served_by

NO_CACHE = "no module returned past_key_values"


@dataclass(frozen=True)
class Generation:
    """An answer that was observed while it was generated.

    Attributes
    ----------
    tokens : list
        The tokens that were yielded or streamed, in order.
    passes : int
        The number of times that tokens arrived. In speculative decoding, this is the number of forward passes of the
        model itself.
    proposed, accepted : int or None
        The number of guessed tokens, and how many of them were kept. Both are ``None`` if the model's cache did not
        show them.
    cache : Cache or str
        The key-value cache, or the reason why it is unknown.
    """

    tokens: list[Any]
    passes: int
    proposed: int | None
    accepted: int | None
    cache: Cache | str


def watch_generation(fn: Callable[..., Any], request: Any) -> Generation:
    """Serve a request once with a hook on every module.

    The hooks make the request slower, so its time is not meaningful.
    """
    __tracebackhide__ = True
    watcher = _Watcher()
    handle = register_module_forward_hook(watcher.passed)
    try:
        tokens_served_by(fn, lambda: watcher)(request)
    finally:
        handle.remove()
    cache = NO_CACHE if watcher.cache is None else cache_of(watcher.cache)
    guesses = watcher.guesses
    known = bool(guesses) and all(0 <= kept <= guessed for guessed, kept in guesses)
    proposed, accepted = (sum(each) for each in zip(*guesses, strict=True)) if known else (None, None)
    return Generation(watcher.answer, len(guesses), proposed, accepted, cache)


class _Watcher(TokenTimes):
    """Receives the tokens, and inspects the caches of the forward passes between them."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: list[Any] = []
        #: The number of guessed tokens in each pass, and the number that were kept, which is negative if it is unknown.
        self.guesses: list[tuple[int, int]] = []
        self.cache: Any = None
        self._length: int | None = None

    def passed(self, module: Any, args: Any, output: Any) -> None:
        """Record the cache that a module returned."""
        cache = getattr(output, "past_key_values", None)
        if cache is not None:
            self.cache, self._length = cache, _length_of(cache)

    def note(self, value: Any) -> None:
        """Record tokens that have arrived.

        In the preceding forward pass, the model itself processed the known and the guessed tokens.
        """
        before = len(self)
        super().note(value)
        if came := len(self) - before:
            self.answer += value.flatten().tolist() if isinstance(value, torch.Tensor) else [value]
            guessed = -1
            if self._length is not None and self.prompt_tokens is not None:
                guessed = self._length - self.prompt_tokens - before
            self.guesses.append((guessed, came - 1))


def _length_of(cache: Any) -> int | None:
    """Return the number of tokens whose keys and values are in the cache."""
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else None


def cache_of(cache: Any) -> Cache | str:
    """Return a key-value cache's size as a function of its length, or the reason why it is unknown.

    Parameters
    ----------
    cache : object
        A cache as returned by Hugging Face models. It consists of layers with ``keys`` and ``values``. Before version
        4.54, it consists of a list of keys and a list of values.
    """
    inner = getattr(cache, "self_attention_cache", None)
    if inner is not None:  # an encoder-decoder model: the part for the encoder's output does not grow
        own, length = cache_of(inner), _length_of(inner)
        if isinstance(own, str):
            return own
        other = sum(keys.nbytes + values.nbytes for keys, values, _ in _layers_of(cache.cross_attention_cache) or ())
        return Cache((*own.layers, (other, 1)), length or own.length)
    held_layers, length = _layers_of(cache), _length_of(cache)
    if not held_layers or not length:
        return f"its layout is unknown ({type(cache).__name__})"
    layers: list[tuple[int, float]] = []
    for keys, values, layer in held_layers:
        held, size = int(keys.shape[-2]), keys.nbytes + values.nbytes
        if hasattr(layer, "residual_length"):
            return "it is quantised, and its tensors contain only a part of it"
        window = getattr(layer, "sliding_window", None)
        if hasattr(layer, "max_cache_len"):  # allocated at full size
            layers.append((size, 1))
        elif window is not None and getattr(layer, "is_sliding", False):
            layers.append((size // held, int(window) - 1))
        elif held == length:
            layers.append((size // held, math.inf))
        else:
            return f"a layer contains {held:,} of {length:,} tokens, for a reason that perfnb cannot determine"
    return Cache(tuple(layers), length)


def _layers_of(cache: Any) -> list[tuple[torch.Tensor, torch.Tensor, Any]] | None:
    """Return the keys and values of each layer, and the objects that contain them.

    The result is ``None`` if the cache contains anything else.
    """
    if hasattr(cache, "layers"):
        found = [(getattr(layer, "keys", None), getattr(layer, "values", None), layer) for layer in cache.layers]
    else:
        pairs = zip(getattr(cache, "key_cache", ()), getattr(cache, "value_cache", ()), strict=True)
        found = [(keys, values, None) for keys, values in pairs]
    tensors = [tensor for keys, values, _ in found for tensor in (keys, values)]
    known = all(isinstance(tensor, torch.Tensor) and tensor.dim() == 4 and tensor.numel() for tensor in tensors)
    return found if known else None  # type: ignore[return-value]
