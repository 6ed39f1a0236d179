"""How batches are loaded."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

from perfnb import quantities as fmt
from perfnb.bench.values import Values
from perfnb.remedies.lever import Lever, Switch, is_named
from perfnb.remedies.subject import Subject
from perfnb.remedies.values import compare_batches
from perfnb.step.environment import usable_cpus

#: Batches made to see how long one takes, and seconds for that.
_BATCHES, _SECONDS = 5, 1.0


def _refuses(subject: Subject) -> str:
    if subject.loader is None:
        return "no DataLoader feeds the step (pass it as batches, or as loader=)"
    if type(subject.loader[1]) is not DataLoader:
        return f"perfnb cannot copy a {type(subject.loader[1]).__name__}, which may keep its position"
    if subject.loader[1].num_workers:
        return "the loader has workers already"
    if subject.batches is not subject.loader[1]:
        return "the step's batches do not come straight from the loader"
    return ""


def workers_for(subject: Subject) -> int:
    """As many workers as make batches as fast as the step uses them, no more than there are cores.

    One for a stream, of which each worker would load every sample.
    """
    __tracebackhide__ = True
    if "workers" not in subject.chosen:
        streams = subject.loader is not None and isinstance(subject.loader[1].dataset, IterableDataset)
        subject.chosen["workers"] = 1 if streams else workers_needed(*_making(subject), usable_cpus())
    found: int = subject.chosen["workers"]
    return found


def workers_needed(making_s: float, using_s: float, cores: float) -> int:
    """The number that the finding on the input pipeline recommends, from what a batch takes to make and to use."""
    return min(max(1, math.ceil(making_s / max(using_s, 1e-6))), max(1, int(cores)))


def _making(subject: Subject) -> tuple[float, float]:
    """Seconds that a batch takes to make, and seconds that its step takes."""
    __tracebackhide__ = True
    assert subject.loader is not None
    with subject.restored(), subject.gate.opened():
        batches, until = iter(subject.loader[1]), time.perf_counter() + _SECONDS
        taken = []
        for _ in range(_BATCHES):
            begin = time.perf_counter()
            if next(batches, None) is None:
                break
            taken.append(time.perf_counter() - begin)
            if time.perf_counter() > until:
                break
        steps = []
        for _ in range(2):
            begin = time.perf_counter()
            subject.run()
            steps.append(time.perf_counter() - begin)
    return statistics.median(taken or [0.0]), min(steps)


def loader_with_workers(loader: DataLoader[Any], workers: int, pinned: bool = False) -> DataLoader[Any]:
    """A copy of a loader, from its own attributes, that loads ahead in workers."""
    shape: dict[str, Any]
    if isinstance(loader.dataset, IterableDataset):  # takes no sampler
        shape = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        shape = {"batch_sampler": loader.batch_sampler}
    else:
        shape = {"batch_size": None, "sampler": loader.sampler}
    return DataLoader(
        loader.dataset,
        **shape,
        num_workers=workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory or pinned,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        persistent_workers=True,
        prefetch_factor=2,
    )


@contextmanager
def _workers(subject: Subject) -> Iterator[DataLoader[Any]]:
    ahead = loader_with_workers(subject.batches, workers_for(subject), "cuda" in subject.kinds)
    try:
        yield ahead
    finally:
        iterator: Any = ahead._iterator
        if iterator is not None:
            ahead._iterator = None
            iterator._shutdown_workers()


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
    with _workers(subject) as fresh:  # one that has run draws the order of its next epoch otherwise
        return compare_batches(subject.batches, fresh, subject)


def _code(subject: Subject) -> list[str]:
    """The same loader again, from its own attributes."""
    if subject.loader is None:
        return []
    name, loader = subject.loader
    if name is None or not is_named(name, loader):
        return [f"# where the DataLoader is made: num_workers={workers_for(subject)}, persistent_workers=True"]
    same = [f"{name}.dataset"]
    if isinstance(loader.dataset, IterableDataset):
        same += [f"batch_size={loader.batch_size}"] + ["drop_last=True"] * loader.drop_last
    elif loader.batch_sampler is not None:
        same += [f"batch_sampler={name}.batch_sampler"]
    else:
        same += ["batch_size=None", f"sampler={name}.sampler"]
    if loader.collate_fn is not default_collate:
        same += [f"collate_fn={name}.collate_fn"]
    same += [
        f"{word}={name}.{word}"
        for word in ("timeout", "worker_init_fn", "generator")
        if getattr(loader, word, None)  # 0 or None by default
    ]
    same += ["pin_memory=True"] if loader.pin_memory or "cuda" in subject.kinds else []
    same += [f"num_workers={workers_for(subject)}", "persistent_workers=True"]
    return [f"{name} = torch.utils.data.DataLoader({', '.join(same)})"]


LOADER_WORKERS = Lever(
    "loader_workers",
    "worker processes that load batches ahead, on a copy of the loader",
    _refuses,
    _prepared,
    _code,
    answers=("input pipeline",),
    costly=True,
    in_blocks=True,
    check=_check,
    says=lambda subject: [fmt.counted(workers_for(subject), "worker")],
)
