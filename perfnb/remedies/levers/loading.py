"""Levers that change how batches are loaded."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from perfnb import quantities as fmt
from perfnb.bench.values import Values
from perfnb.findings.proposed_code import workers_line
from perfnb.remedies.lever import Lever, Switch
from perfnb.remedies.lines import is_named
from perfnb.remedies.subject import Subject
from perfnb.remedies.values import compare_batches
from perfnb.step.environment import usable_cpus
from perfnb.step.namespace import loader_facts
from perfnb.step.refusals import without_plain_loader

#: The number of batches that are made to measure how long a batch takes, and the time limit for this in seconds.
_BATCHES, _SECONDS = 5, 1.0


def _refuses(subject: Subject) -> str:
    return without_plain_loader(subject.loader and subject.loader[1], subject.batches)


def workers_for(subject: Subject) -> int:
    """Return the number of workers needed to make batches as fast as the step uses them, but at most one per core.

    Streams get one worker, because each worker would load all of the stream's samples.
    """
    __tracebackhide__ = True
    assert subject.loader is not None
    if isinstance(subject.loader[1].dataset, IterableDataset):
        return 1
    workers: int = subject.once("workers", lambda subject: workers_needed(*_making(subject), usable_cpus()))
    return workers


def workers_needed(making_s: float, using_s: float, cores: float) -> int:
    """Return the number of workers that the finding recommends, given the times to make and to use a batch."""
    return min(max(1, math.ceil(making_s / max(using_s, 1e-6))), max(1, int(cores)))


def _making(subject: Subject) -> tuple[float, float]:
    """Return the seconds needed to make a batch, and the seconds that its step takes."""
    __tracebackhide__ = True
    assert subject.loader is not None
    with subject.restored(), subject.gate.opened():
        batches, stops = iter(subject.loader[1]), [time.perf_counter()]
        for _ in islice(batches, _BATCHES):
            stops.append(time.perf_counter())
            if stops[-1] > stops[0] + _SECONDS:
                break
        begin = time.perf_counter()
        subject.run()
        middle = time.perf_counter()
        subject.run()
        using_s = min(middle - begin, time.perf_counter() - middle)
    making_s = statistics.median(later - earlier for earlier, later in pairwise(stops)) if len(stops) > 1 else 0.0
    return making_s, using_s


def loader_with_workers(loader: DataLoader[Any], workers: int, pinned: bool = False, **changed: Any) -> DataLoader[Any]:
    """Return a copy of a loader that loads batches ahead in workers.

    The copy has the arguments of the lever's line of code, some of which may be `changed`.
    """
    arguments: dict[str, Any] = {word: getattr(loader, word) for word in loader_facts(loader)["same"]}
    arguments |= {"num_workers": workers, "persistent_workers": True, "pin_memory": loader.pin_memory or pinned}
    return DataLoader(loader.dataset, **arguments | changed)


@contextmanager
def _workers(subject: Subject) -> Iterator[DataLoader[Any]]:
    ahead = loader_with_workers(subject.batches, workers_for(subject), "cuda" in subject.kinds)
    try:
        yield ahead
    finally:
        _end_workers(ahead)


def _end_workers(loader: DataLoader[Any]) -> None:
    iterator: Any = loader._iterator
    if iterator is not None:
        loader._iterator = None
        iterator._shutdown_workers()


def no_rest(subject: Subject) -> str:
    """Return the reason why a second loader cannot continue from the first loader's position.

    The result is empty if it can, or if there is no first loader.
    """
    stream = subject.loader is not None and isinstance(subject.loader[1].dataset, IterableDataset)
    return "a stream does not report which samples remain" if stream else ""


class RestOfData:
    """Load the remaining items of a loader's iterator in worker processes while `on`, in order and each item once.

    This object serves as the second loader's sampler and draws from the first loader's sampler. Samples that were drawn
    but not delivered are put back, which lets the first loader continue where the second one ended.

    Parameters
    ----------
    subject : Subject
        The subject whose loader is the first one.
    failed : callable
        A function that is called with the second loader's error, after which the first loader continues.
    """

    def __init__(self, subject: Subject, failed: Callable[[Exception], object]) -> None:
        loader = subject.loader[1]  # type: ignore[index]
        order = "sampler" if loader.batch_sampler is None else "batch_sampler"
        seeds = torch.Generator().manual_seed(torch.initial_seed())  # does not change the run's random numbers
        changed = {order: self, "generator": seeds}
        self._second = loader_with_workers(loader, workers_for(subject), "cuda" in subject.kinds, **changed)
        self._failed = failed
        self._is_on = False
        self._first: Any = None
        self._ahead: Iterator[Any] | None = None
        self._drawn = deque[Any]()

    def __iter__(self) -> Iterator[Any]:
        for indices in self._first._sampler_iter:
            self._drawn.append(indices)
            yield indices

    @contextmanager
    def on(self) -> Iterator[None]:
        """Start taking batches from workers."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False
            self._give_back()

    def stop(self) -> None:
        """End the workers; new workers are started if more batches are requested."""
        self._give_back()
        _end_workers(self._second)

    def next(self, first: Iterator[Any]) -> Any:
        """Return the next batch of the first loader's iterator."""
        if not self._is_on or getattr(first, "_dataset", None) is not self._second.dataset:
            return next(first)
        if first is not self._first:
            self._give_back()
        try:
            if self._ahead is None:
                self._first = first
                self._ahead = iter(self._second)
            batch = next(self._ahead)
            self._drawn.popleft()
            return batch
        except StopIteration:
            return next(first)  # the first iterator has also run out
        except Exception as error:
            self.stop()
            self._failed(error)
        return next(first)

    def _give_back(self) -> None:
        if self._first is not None:
            self._first._sampler_iter = chain(tuple(self._drawn), self._first._sampler_iter)
        self._drawn.clear()
        self._first = self._ahead = None


@contextmanager
def _prepared(subject: Subject) -> Iterator[Switch]:
    with _workers(subject) as ahead:

        @contextmanager
        def on() -> Iterator[None]:
            before, subject.batches = subject.batches, ahead
            try:
                yield
            finally:
                subject.batches = before

        yield on


def _check(subject: Subject, _: Switch) -> Values:
    with _workers(subject) as fresh:  # a sampler that has been used draws a different order for its next epoch
        return compare_batches(subject.batches, fresh, subject)


def _code(subject: Subject) -> list[str]:
    """Return code that creates the same loader again, based on its attributes."""
    assert subject.loader is not None
    name, loader = subject.loader
    if not is_named(name, loader):
        return [f"# where the DataLoader is created: num_workers={workers_for(subject)}"]
    return [workers_line({"name": name, **loader_facts(loader)}, workers_for(subject), "cuda" in subject.kinds)]


LOADER_WORKERS = Lever(
    "loader_workers",
    "worker processes that load batches ahead of time, on a copy of the loader; at most one per core",
    _refuses,
    _prepared,
    _code,
    answers=("input pipeline",),
    costly=True,
    in_blocks=True,
    check=_check,
    says=lambda subject: [fmt.counted(workers_for(subject), "worker")],
)
