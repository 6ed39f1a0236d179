"""Record a step's duration, its waits for batches, and the number of samples and tokens in them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch


class ExecutedStep(NamedTuple):
    """An executed step of any pass; `begin_ns` is the `time.perf_counter_ns` at its start."""

    pass_name: str
    begin_ns: int
    wall_ns: int
    #: How long it waited for its batches, if known.
    data_ns: int | None
    #: The number of samples in all its batches, if known.
    samples: int | None
    #: The number of token ids in its batches, if they seem to have some; see `token_count`.
    tokens: int | None = None
    #: The number of batches: more than one if gradients are accumulated.
    batches: int = 1


class Intake:
    """Records how long a step waits for batches, and how many samples and tokens these contain.

    The code that runs the step reports when it waits. `take` handles batches that a step itself requests from torch's
    data loaders, and all these waits count as part of the step. A step's batches are those that are passed to it or, if
    there are none, those from the first loader that it uses; batches from other loaders are considered part of them.

    Attributes
    ----------
    is_open : bool
        Whether a step is in progress.
    begin_ns : int
        `time.perf_counter_ns` at its start.
    wait_ns : int or None
        The time it has waited; ``None`` if this is unknown because waits were not reported.
    """

    def __init__(self) -> None:
        self._sizes: list[int | None] = []
        self._tokens: list[int | None] = []
        self.reset()

    def reset(self) -> None:
        """Discard the last step, so that no step is in progress."""
        self.is_open = False
        self.begin_ns, self._waits_from_ns, self._own_ns = 0, 0, 0
        self.wait_ns: int | None = None
        self._seen: Callable[[Any], None] | None = None
        self._loader: weakref.ref[Any] | None = None
        self._sizes.clear()
        self._tokens.clear()

    def begin(self, seen: Callable[[Any], None] | None = None, *, wait_ns: int | None = None) -> None:
        """Record that a step begins; `seen` is called with its batches.

        `wait_ns` is 0 if all its waits will be reported.
        """
        self.reset()
        self._seen, self.is_open, self.begin_ns, self.wait_ns = seen, True, time.perf_counter_ns(), wait_ns

    def wait(self) -> None:
        """Record that the current step waits for a batch, or is still waiting."""
        if self.is_open and not self._waits_from_ns:
            self._waits_from_ns = time.perf_counter_ns()

    def get(self, batch: Any = None) -> None:
        """Record that the wait, if there was one, is over; `batch` belongs to the step, if given."""
        now = time.perf_counter_ns()
        if self._waits_from_ns:
            self.wait_ns = (self.wait_ns or 0) + now - self._waits_from_ns
            self._waits_from_ns = 0
        if batch is not None:
            if self._seen is not None:
                self._seen(batch)
            self._sizes.append(common_size(batch))
            self._tokens.append(token_count(batch))
            self._own_ns += time.perf_counter_ns() - now

    def take(self, loader: Any, fetch: Callable[[], Any]) -> Any:
        """Fetch a batch that the current step requests from a loader, as `see_loaders` requires."""
        __tracebackhide__ = True
        if not self.is_open or self._waits_from_ns:  # what the step already waits for may itself ask loaders
            return fetch()
        if not self._sizes:
            self._loader = weakref.ref(loader)
        batch = None
        self.wait()
        try:
            batch = fetch()
        finally:
            self.get(batch if self._loader is not None and self._loader() is loader else None)
        return batch

    def end(self, pass_name: str) -> ExecutedStep:
        """End the current step, and return it."""
        wall_ns = time.perf_counter_ns() - self.begin_ns - self._own_ns
        taken = total(self._sizes), total(self._tokens), max(1, len(self._sizes))
        executed = ExecutedStep(pass_name, self.begin_ns, wall_ns, self.wait_ns, *taken)
        self.reset()
        return executed


def common_size(batch: Any) -> int | None:
    """Return the length of the first dimension of all tensors of a batch; ``None`` if they differ."""
    try:
        sizes = {tensor.shape[0] for tensor in tensors_in(batch) if tensor.dim() > 0}
    except Exception:  # a batch may be anything, and its size is not worth an error
        return None
    return sizes.pop() if len(sizes) == 1 else None


def token_count(batch: Any) -> int | None:
    """Return the number of token ids in a batch.

    These are found under ``input_ids``, the name that Hugging Face's tokenizers use. Otherwise, the first integer
    tensor of shape [batch, sequence] in the batch is used.
    """
    try:
        if isinstance(batch, Mapping) and "input_ids" in batch:
            ids = batch["input_ids"]
            return ids.numel() if isinstance(ids, torch.Tensor) and not ids.is_floating_point() else None
        tensors = list(tensors_in(batch))
        if not tensors or any(tensor.is_floating_point() for tensor in tensors):
            return None
        first = tensors[0]
        is_text = first.dtype in (torch.int64, torch.int32) and first.dim() == 2 and first.shape[1] > 1
        return first.numel() if is_text else None
    except Exception:  # as above
        return None


def total(counts: Sequence[int | None]) -> int | None:
    """Return the sum over a step's batches; ``None`` if one is unknown, or there is none."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def tensors_in(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch, inside nested lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 0 and isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif depth > 0 and isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
