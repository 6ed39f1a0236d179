"""Record how long a step takes, how long it waits for batches, and how many samples and tokens they contain."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch


class ExecutedStep(NamedTuple):
    """A step that was executed in any pass. `begin_ns` is the `time.perf_counter_ns` at its start."""

    pass_name: str
    begin_ns: int
    wall_ns: int
    #: How long the step waited for its batches, if known.
    data_ns: int | None
    #: The number of samples in all of the step's batches, if known.
    samples: int | None
    #: The number of token ids in the step's batches, if they appear to contain any. See `token_count`.
    tokens: int | None = None
    #: The number of batches, which is more than one if gradients are accumulated.
    batches: int = 1


class Intake:
    """Records how long a step waits for batches, and how many samples and tokens the batches contain.

    The code that runs the step reports when it waits. If a step requests batches from torch's data loaders, `take`
    fetches them, and the time spent waiting for them counts as part of the step. A step's batches are the ones that are
    passed to it. If none are passed, they are the batches from the first loader that the step uses, and batches from
    other loaders are considered part of them.

    Attributes
    ----------
    is_open : bool
        Whether a step is in progress.
    begin_ns : int
        `time.perf_counter_ns` at its start.
    wait_ns : int or None
        The time that the step has waited; ``None`` if this is unknown because waits were not reported.
    """

    def __init__(self) -> None:
        self._sizes: list[int | None] = []
        self._tokens: list[int | None] = []
        self.reset()

    def reset(self) -> None:
        """Discard the last step. No step is in progress afterwards."""
        self.is_open = False
        self.begin_ns, self._waits_from_ns, self._own_ns = 0, 0, 0
        self.wait_ns: int | None = None
        self._seen: Callable[[Any], None] | None = None
        self._loader: weakref.ref[Any] | None = None
        self._sizes.clear()
        self._tokens.clear()

    def begin(self, seen: Callable[[Any], None] | None = None, *, wait_ns: int | None = None) -> None:
        """Record the start of a step, whose batches will be passed to `seen`.

        Set `wait_ns` to 0 if all of the step's waits will be reported.
        """
        self.reset()
        self._seen, self.is_open, self.begin_ns, self.wait_ns = seen, True, time.perf_counter_ns(), wait_ns

    def wait(self) -> None:
        """Record that the current step starts to wait for a batch, or continues to wait."""
        if self.is_open and not self._waits_from_ns:
            self._waits_from_ns = time.perf_counter_ns()

    def get(self, batch: Any = None) -> None:
        """Record the end of the wait, if there was one, and add `batch` to the step's batches if it is given."""
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
        """Fetch a batch that the current step requests from a loader. Pass this method to `see_loaders`."""
        __tracebackhide__ = True
        if not self.is_open or self._waits_from_ns:  # the code that the step is waiting for may itself use loaders
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
        """End the current step and return it."""
        wall_ns = time.perf_counter_ns() - self.begin_ns - self._own_ns
        taken = total(self._sizes), total(self._tokens), max(1, len(self._sizes))
        executed = ExecutedStep(pass_name, self.begin_ns, wall_ns, self.wait_ns, *taken)
        self.reset()
        return executed


def common_size(batch: Any) -> int | None:
    """Return the size of the first dimension of all tensors in a batch, or ``None`` if their sizes differ."""
    try:
        sizes = {tensor.shape[0] for tensor in tensors_in(batch) if tensor.dim() > 0}
    except Exception:  # a batch can be any object, and an unknown size is no reason to fail
        return None
    return sizes.pop() if len(sizes) == 1 else None


def token_count(batch: Any) -> int | None:
    """Return the number of token ids in a batch.

    The token ids are the tensor named ``input_ids``, which is the name that Hugging Face tokenizers use. If there is no
    such tensor, they are the first integer tensor in the batch that has the shape [batch, sequence].
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
    except Exception:  # for the same reason as above
        return None


def total(counts: Sequence[int | None]) -> int | None:
    """Return the sum of counts over a step's batches, or ``None`` if a count is unknown or there are no batches."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def tensors_in(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """Yield the tensors in a batch, including those inside nested lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 0 and isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif depth > 0 and isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
