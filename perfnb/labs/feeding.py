"""What the checks of lab 6 feed to the reader's code, and how they inspect the results."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import random
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import getitem
from typing import Any

from perfnb.labs.answers import outcome
from perfnb.labs.exercise import Facts, Hint

#: Batches of a simulated loader.
BATCHES = 12
#: Seconds that workers have to exit.
TO_END_S = 10.0
#: Columns of made-up rows.
WIDTH = 16
#: Largest fraction of neighbours in one order that may be neighbours in another. With random orders it is about two
#: divided by the number of rows, a few percent.
STILL_BESIDE = 0.25


class Feed:
    """A simulated loader and its step, which sleep; with `ahead` the next batch is prepared while one is used.

    They record the true times of passes with and without steps, and of steps outside any pass, because a busy machine
    wakes sleepers late.
    """

    def __init__(self, make_ms: float, use_ms: float, *, ahead: bool) -> None:
        self.took: dict[str, list[float]] = {"together": [], "loader": [], "model": []}
        self._make_ms, self._use_ms, self._ahead = make_ms, use_ms, ahead
        self._used: list[float] = []
        self._running = self._steps = 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[int]:
        began, steps = time.perf_counter(), self._steps
        self._running += 1
        try:
            yield from self._made_ahead() if self._ahead else map(self._make, range(BATCHES))
            self.took["together" if self._steps > steps else "loader"].append(
                (time.perf_counter() - began) * 1e3 / BATCHES
            )
        finally:
            self._running -= 1

    def step(self, batch: Any) -> None:
        """Use a batch."""
        ms = slept(self._use_ms)
        self._used.append(ms)
        if self._running:
            self._steps += 1
        else:
            self.took["model"].append(ms)

    def step_ms(self) -> float:
        """Mean time of the steps outside any pass, or of all steps if an unfinished iterator was kept."""
        used = self.took["model"] or self._used
        return sum(used) / len(used)

    def _made_ahead(self) -> Iterator[int]:
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(self._make, 0)
            for number in range(1, BATCHES + 1):
                batch = coming.result()
                if number < BATCHES:
                    coming = pool.submit(self._make, number)
                yield batch

    def _make(self, number: int) -> int:
        slept(self._make_ms)
        return number


def slept(ms: float) -> float:
    """Sleep; returns the milliseconds it took."""
    began = time.perf_counter()
    time.sleep(ms / 1e3)
    return (time.perf_counter() - began) * 1e3


class Marked:
    """Samples that tell which process made them; defined here, not in a notebook, so that workers can import it."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> tuple[int, int]:
        return place, os.getpid()


def text_lines(count: int, values: int, seed: int) -> list[str]:
    """Comma-separated lines of a label and numbers."""
    generator = random.Random(seed)
    return [
        ",".join([str(generator.randrange(10)), *(f"{generator.gauss(0, 1):.3f}" for _ in range(values))])
        for _ in range(count)
    ]


def numbered_rows(rows: int) -> Any:
    """A data set whose rows hold their own number, labelled with three times that number."""
    import torch
    from torch.utils.data import TensorDataset

    numbers = torch.arange(rows)
    return TensorDataset(numbers.float()[:, None].repeat(1, WIDTH), 3 * numbers)


def every_item(dataset: Any) -> None:
    """Take each sample once."""
    for place in range(len(dataset)):
        dataset[place]


def drawn(before: Any, after: Any, places: Sequence[int], times: int) -> Facts:
    """Whether samples match the original ones except for their shift, and how many shifts appeared per place."""
    import torch

    same, label, shifts = True, True, []
    for place in places:
        x, y = before[place]
        turned = [torch.roll(x, by) for by in range(len(x))]
        seen = set()
        for _ in range(times):
            sample = outcome(getitem, after, place)
            if not isinstance(sample, Sequence) or len(sample) != 2 or not isinstance(sample[0], torch.Tensor):
                raise Hint("A sample must be a pair, as before: a tensor and its label.")
            label &= isinstance(sample[1], int) and sample[1] == y
            alike = sample[0].dtype == x.dtype
            found = [by for by, other in enumerate(turned) if alike and torch.equal(sample[0], other)]
            same &= bool(found)
            seen.update(found[:1])
        shifts.append(len(seen))
    return {"same": same, "label": label, "shifts": min(shifts)}


def judge_orders(epochs: list[list[int]], rows: int, batch_size: int) -> None:
    """Raise a `Hint` unless each epoch has every row once, in its own order and its own batches."""
    own = list(range(rows))
    for epoch in epochs:
        if len(set(epoch)) < min(len(epoch), rows):
            raise Hint("Some samples appear twice in an epoch, and others not at all.")
        if sorted(epoch) != own:
            raise Hint(f"An epoch has {len(epoch)} of the {rows} samples; each must appear once.")
        if epoch == own:
            raise Hint("The samples are in the order of the data set; shuffle them.")
        if _still_beside(own, epoch):
            raise Hint("Neighbours in the data set are still neighbours: shuffle individual samples.")
    for place, epoch in enumerate(epochs):
        if epoch == epochs[0] and place == 1:
            raise Hint("The second epoch has the same order as the first: shuffle anew each time.")
        if epoch in epochs[:place]:
            raise Hint("An epoch repeats the order of an earlier one: shuffle anew each time.")
        if any(_still_beside(before, epoch) for before in epochs[:place]):
            raise Hint(
                "One epoch's order is derived from another's: many samples have the same neighbours. Shuffle anew "
                "each time."
            )
        if any(_batches(before, batch_size) & _batches(epoch, batch_size) for before in (own, *epochs[:place])):
            raise Hint("The same samples share a batch again: shuffle anew each time, not just the order of batches.")


def _still_beside(first: list[int], second: list[int]) -> bool:
    """Whether more rows than expected by chance are neighbours in both orders."""
    pairs = [{frozenset(pair) for pair in itertools.pairwise(order)} for order in (first, second)]
    return len(pairs[0] & pairs[1]) > STILL_BESIDE * len(first)


def _batches(order: list[int], size: int) -> set[frozenset[int]]:
    return {frozenset(order[at : at + size]) for at in range(0, len(order), size)}


def numbered_batches(loader: Any) -> list[tuple[list[int], list[int]]]:
    """Row numbers and labels of each batch of an epoch."""
    batches = []
    for batch in _listed(loader):
        if not isinstance(batch, Sequence) or len(batch) != 2 or not all(hasattr(part, "tolist") for part in batch):
            raise Hint("A batch must be a pair of tensors, x and y.")
        x, y = batch
        if tuple(x.shape[1:]) != (WIDTH,) or y.ndim != 1:
            raise Hint(
                f"A batch's x has shape {tuple(x.shape)} and its y {tuple(y.shape)}; each needs one row per sample."
            )
        batches.append((x[:, 0].int().tolist(), y.tolist()))
    return batches


def marked_batches(loader: Any) -> list[tuple[list[int], list[int]]]:
    """Sample numbers of each batch of an epoch, and the processes that made them."""
    try:
        return [(batch[0].tolist(), batch[1].tolist()) for batch in _listed(loader)]
    except (AttributeError, IndexError, TypeError):
        raise Hint("The batches are not what a DataLoader makes from the data set.") from None


def _listed(loader: Any) -> list[Any]:
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise Hint("Return a loader: something that `for batch in loader` can iterate repeatedly.")
    batches: list[Any] = outcome(list, loader)
    return batches


def processes() -> set[int | None]:
    """Live child processes of this one."""
    return {child.pid for child in multiprocessing.active_children()}


def processes_left(before: set[int | None]) -> int:
    """Number of new child processes still alive; those that are exiting are waited for."""
    gc.collect()
    until = time.perf_counter() + TO_END_S
    while (left := processes() - before) and time.perf_counter() < until:
        time.sleep(0.05)
    return len(left)


def read_rows(function: Callable[..., Any], path: str, places: Sequence[int]) -> Facts:
    """How much memory a data set of a file's rows takes, what it returns, and its size when sent to a worker."""
    import numpy as np
    import torch

    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    tracemalloc.start()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            dataset = outcome(function, path)
            samples = [outcome(getitem, dataset, place) for place in places]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        torch.set_warn_always(always)
    try:
        length = len(dataset)
    except TypeError:
        raise Hint("The data set has no length yet: __len__ must return the number of rows in the file.") from None
    there = np.load(path, mmap_mode="r")
    right = all(
        isinstance(sample, torch.Tensor)
        and sample.dtype == torch.float32
        and np.array_equal(sample.detach().numpy(), there[place])
        for place, sample in zip(places, samples, strict=True)
    )
    facts = {
        "length": length,
        "peak": peak,
        "right": right,
        "copy_bytes": len(outcome(pickle.dumps, outcome(function, path))),
        "read_only": any("not writable" in str(each.message) for each in warned),
    }
    # Never write to a tensor in a read-only map: that would crash the process.
    if right and not facts["read_only"]:
        kept = there[places[0]].copy()
        samples[0].zero_()
        again = outcome(getitem, dataset, places[0])
        facts["own"] = np.array_equal(again.numpy(), kept) and np.array_equal(there[places[0]], kept)
    return facts
