"""What the checks of lab 6 feed to the reader's code, and how they look at what comes out of it."""

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

from perfnb.labs.exercise import Facts, Hint, outcome

#: Batches of a loader of make-believe.
BATCHES = 12
#: Seconds that workers have to end.
TO_END_S = 10.0
#: Columns of made-up rows.
WIDTH = 16
#: The share of neighbours in one order that may be neighbours in another. Of orders drawn anew it is two in the number
#: of rows: a few percent, whoever's rows they are.
STILL_BESIDE = 0.25


class Feed:
    """A loader of make-believe and its step, which sleep; with `ahead` the next batch is made while one is used.

    They note what passes through the loader truly took, with steps in them and without, and steps outside of any: on a
    busy machine a sleeper is woken late.
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
        """Mean of the steps outside of any pass; of all where an iterator that was not used up was never let go."""
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
    """Sleep; returns the milliseconds that it took."""
    began = time.perf_counter()
    time.sleep(ms / 1e3)
    return (time.perf_counter() - began) * 1e3


class Marked:
    """Samples that tell which process made them. Here, and not in a notebook, so that every worker can import it."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> tuple[int, int]:
        return place, os.getpid()


def text_lines(count: int, values: int, seed: int) -> list[str]:
    """Lines of a label and numbers, with commas between."""
    generator = random.Random(seed)
    return [
        ",".join([str(generator.randrange(10)), *(f"{generator.gauss(0, 1):.3f}" for _ in range(values))])
        for _ in range(count)
    ]


def numbered_rows(rows: int) -> Any:
    """A data set whose rows hold their own number, and three times of it as a label."""
    import torch
    from torch.utils.data import TensorDataset

    numbers = torch.arange(rows)
    return TensorDataset(numbers.float()[:, None].repeat(1, WIDTH), 3 * numbers)


def every_item(dataset: Any) -> None:
    """Take each sample once."""
    for place in range(len(dataset)):
        dataset[place]


def drawn(before: Any, after: Any, places: Sequence[int], times: int) -> Facts:
    """Whether samples are those of before, but for their shift, and how many shifts were seen at a place."""
    import torch

    same, label, shifts = True, True, []
    for place in places:
        x, y = before[place]
        turned = [torch.roll(x, by) for by in range(len(x))]
        seen = set()
        for _ in range(times):
            sample = outcome(getitem, after, place)
            if not isinstance(sample, Sequence) or len(sample) != 2 or not isinstance(sample[0], torch.Tensor):
                raise Hint("A sample is a pair, as before: a tensor and its label.")
            label &= isinstance(sample[1], int) and sample[1] == y
            alike = sample[0].dtype == x.dtype
            found = [by for by, other in enumerate(turned) if alike and torch.equal(sample[0], other)]
            same &= bool(found)
            seen.update(found[:1])
        shifts.append(len(seen))
    return {"same": same, "label": label, "shifts": min(shifts)}


def judge_orders(epochs: list[list[int]], rows: int, batch_size: int) -> None:
    """Raise a `Hint` unless each epoch has every row once, in an order and in batches of its own."""
    own = list(range(rows))
    for epoch in epochs:
        if len(set(epoch)) < min(len(epoch), rows):
            raise Hint("Some samples come twice in an epoch, and others not at all.")
        if sorted(epoch) != own:
            raise Hint(f"An epoch has {len(epoch)} of the {rows} samples; each must come once.")
        if epoch == own:
            raise Hint("The samples come in the order of the data set; they must be shuffled.")
        if _still_beside(own, epoch):
            raise Hint("Samples that are neighbours in the data set come as neighbours: shuffle every one of them.")
    for place, epoch in enumerate(epochs):
        if epoch == epochs[0] and place == 1:
            raise Hint("The second epoch has the order of the first: it must be drawn anew each time.")
        if epoch in epochs[:place]:
            raise Hint("The order of an epoch before comes again: it must be drawn anew each time.")
        if any(_still_beside(before, epoch) for before in epochs[:place]):
            raise Hint(
                "The order of one epoch is made from that of another: many samples come beside those beside which they "
                "came before. It must be drawn anew each time."
            )
        if any(_batches(before, batch_size) & _batches(epoch, batch_size) for before in (own, *epochs[:place])):
            raise Hint("The same samples come together in a batch again: which they are must be drawn anew each time.")


def _still_beside(first: list[int], second: list[int]) -> bool:
    """Whether more rows than chance would leave so are neighbours in both orders."""
    pairs = [{frozenset(pair) for pair in itertools.pairwise(order)} for order in (first, second)]
    return len(pairs[0] & pairs[1]) > STILL_BESIDE * len(first)


def _batches(order: list[int], size: int) -> set[frozenset[int]]:
    return {frozenset(order[at : at + size]) for at in range(0, len(order), size)}


def numbered_batches(loader: Any) -> list[tuple[list[int], list[int]]]:
    """Of each batch of an epoch the rows' numbers and the labels."""
    batches = []
    for batch in _listed(loader):
        if not isinstance(batch, Sequence) or len(batch) != 2 or not all(hasattr(part, "tolist") for part in batch):
            raise Hint("A batch is a pair of tensors, x and y.")
        x, y = batch
        if tuple(x.shape[1:]) != (WIDTH,) or y.ndim != 1:
            raise Hint(f"x of a batch has the shape {tuple(x.shape)} and y {tuple(y.shape)}; each has a row a sample.")
        batches.append((x[:, 0].int().tolist(), y.tolist()))
    return batches


def marked_batches(loader: Any) -> list[tuple[list[int], list[int]]]:
    """Of each batch of an epoch the samples' numbers and the processes that made them."""
    try:
        return [(batch[0].tolist(), batch[1].tolist()) for batch in _listed(loader)]
    except (AttributeError, IndexError, TypeError):
        raise Hint("The batches are not those that a DataLoader makes of the data set.") from None


def _listed(loader: Any) -> list[Any]:
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise Hint("Return a loader: something that `for batch in loader` can run through, again and again.")
    batches: list[Any] = outcome(list, loader)
    return batches


def processes() -> set[int | None]:
    """The processes that this one has started, and that live."""
    return {child.pid for child in multiprocessing.active_children()}


def processes_left(before: set[int | None]) -> int:
    """How many processes live on that were not there before; those that are ending are waited for."""
    gc.collect()
    until = time.perf_counter() + TO_END_S
    while (left := processes() - before) and time.perf_counter() < until:
        time.sleep(0.05)
    return len(left)


def read_rows(function: Callable[..., Any], path: str, places: Sequence[int]) -> Facts:
    """What a data set of the rows in a file takes of memory, gives, and weighs when it is sent to a worker."""
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
        raise Hint("The data set has no length yet: __len__ must tell how many rows the file has.") from None
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
    # A tensor in a map that is for reading only must not be written to: it would end the process.
    if right and not facts["read_only"]:
        kept = there[places[0]].copy()
        samples[0].zero_()
        again = outcome(getitem, dataset, places[0])
        facts["own"] = np.array_equal(again.numpy(), kept) and np.array_equal(there[places[0]], kept)
    return facts
