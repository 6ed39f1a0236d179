"""Checks for lab 6, *Feeding the model*."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import random
import statistics
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from perfnb.labs.answers import ab_facts, as_fields, as_function, outcome
from perfnb.labs.exercise import Exercise, Facts, Hint
from perfnb.labs.judging import Number, all_there, hint_if
from perfnb.labs.workloads import time_ratio
from perfnb.quantities import share

#: Number of batches of a simulated loader.
BATCHES = 12
#: Seconds within which workers must exit.
TO_END_S = 10.0
#: Number of columns in made-up rows.
WIDTH = 16
#: Maximum fraction of neighbours in one order that may be neighbours in another. With random orders, this fraction is
#: about two divided by the number of rows, which is a few percent.
SHARED_NEIGHBOURS = 0.25


class Feed:
    """A simulated loader and its step, both of which sleep.

    With `ahead`, the next batch is prepared while the current one is used. Because a busy machine wakes sleeping
    threads late, the true times per batch are recorded for passes with and without steps.
    """

    def __init__(self, make_ms: float, use_ms: float, *, ahead: bool) -> None:
        self.took: dict[str, list[float]] = {"together": [], "loader": [], "model": []}
        self._make_ms, self._use_ms, self._ahead = make_ms, use_ms, ahead
        self._began = 0.0
        self._batches = self._steps = 0  # in the latest pass, until it ends

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[int]:
        self._began, self._batches, self._steps = time.perf_counter(), 0, 0
        for batch in self._made_ahead() if self._ahead else map(self._make, range(BATCHES)):
            self._batches += 1
            yield batch
        self._batches = 0
        if not self._steps:
            self._passed("loader")

    def step(self, batch: Any) -> None:
        """Use a batch."""
        self.took["model"].append(slept(self._use_ms))
        self._steps += 1
        if self._steps == self._batches == BATCHES:  # next() may never be called at the end of the pass
            self._passed("together")

    def _passed(self, kind: str) -> None:
        self.took[kind].append((time.perf_counter() - self._began) * 1e3 / BATCHES)

    def _made_ahead(self) -> Iterator[int]:
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(self._make, 0)
            for number in range(1, BATCHES):
                batch = coming.result()
                coming = pool.submit(self._make, number)
                yield batch
            yield coming.result()

    def _make(self, number: int) -> int:
        slept(self._make_ms)
        return number


def slept(ms: float) -> float:
    """Sleep and return the milliseconds that it took."""
    began = time.perf_counter()
    time.sleep(ms / 1e3)
    return (time.perf_counter() - began) * 1e3


class Marked:
    """Samples that identify the process that made them.

    The class is defined here rather than in a notebook because workers must be able to import it.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> tuple[int, int]:
        return place, os.getpid()


def text_lines(count: int, values: int, seed: int) -> list[str]:
    """Return comma-separated lines, each with a label and numbers."""
    generator = random.Random(seed)
    return [
        ",".join([str(generator.randrange(10)), *(f"{generator.gauss(0, 1):.3f}" for _ in range(values))])
        for _ in range(count)
    ]


def numbered_rows(rows: int) -> Any:
    """Return a data set where each row contains its own number and is labelled with three times that number."""
    numbers = torch.arange(rows)
    return TensorDataset(numbers.float()[:, None].repeat(1, WIDTH), 3 * numbers)


def every_item(dataset: Any) -> None:
    """Read each sample once."""
    for place in range(len(dataset)):
        dataset[place]


def drawn(before: Any, after: Any, places: Sequence[int], times: int) -> Facts:
    """Check whether samples match the original ones except for their shift, and how the shifts of a sample vary."""
    same, label, shifts, never = True, True, [], []
    for place in places:
        x, y = before[place]
        turned = torch.stack([torch.roll(x, by) for by in range(len(x))])
        seen = set()
        for _ in range(times):
            sample = outcome(getitem, after, place)
            if not isinstance(sample, Sequence) or len(sample) != 2 or not isinstance(sample[0], torch.Tensor):
                raise Hint("A sample must be a pair, as before: a tensor and its label.")
            label &= isinstance(sample[1], int) and sample[1] == y
            alike = sample[0].dtype == x.dtype and sample[0].shape == x.shape
            shift = (turned == sample[0]).all(1).nonzero().flatten().tolist() if alike else []
            same &= bool(shift)
            seen.update(shift[:1])
        shifts.append(len(seen))
        in_order = sorted(seen) or [0]
        never.append(max(later - sooner - 1 for sooner, later in itertools.pairwise([*in_order, in_order[0] + len(x)])))
    return {"same": same, "label": label, "shifts": min(shifts), "never": max(never)}


def judge_orders(epochs: list[list[int]], rows: int, batch_size: int) -> None:
    """Raise a `Hint` unless each epoch contains every row once, in a new order and in new batches."""
    own = list(range(rows))
    for epoch in epochs:
        if sorted(epoch) != own:
            raise Hint(
                f"An epoch has {len(epoch)} samples, {len(set(epoch))} of them different; each of the {rows} samples "
                "of the data set must appear once."
            )
        hint_if(epoch == own, "The samples are in the order of the data set; shuffle them.")
        if _same_neighbours(own, epoch):
            raise Hint("Neighbours in the data set are still neighbours: shuffle individual samples.")
    for place, epoch in enumerate(epochs):
        hint_if(epoch in epochs[:place], "An epoch has the same order as an earlier one: shuffle anew each time.")
        if any(_same_neighbours(before, epoch) for before in epochs[:place]):
            raise Hint("Many samples have the same neighbours in two epochs: is one order derived from the other?")
        if any(_batches(before, batch_size) & _batches(epoch, batch_size) for before in (own, *epochs[:place])):
            raise Hint("The same samples share a batch again: shuffle anew each time, not just the order of batches.")


def _same_neighbours(first: list[int], second: list[int]) -> bool:
    """Check whether more rows are neighbours in both orders than expected by chance."""
    pairs = [{frozenset(pair) for pair in itertools.pairwise(order)} for order in (first, second)]
    return len(pairs[0] & pairs[1]) > SHARED_NEIGHBOURS * len(first)


def _batches(order: list[int], size: int) -> set[frozenset[int]]:
    return {frozenset(order[at : at + size]) for at in range(0, len(order), size)}


def pairs(loader: Any) -> list[tuple[Any, Any]]:
    """Return the batches of an epoch as pairs of tensors."""
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise Hint("Return a loader: something that `for batch in loader` can iterate repeatedly.")
    batches: list[Any] = outcome(list, loader)
    for batch in batches:
        if not isinstance(batch, Sequence) or len(batch) != 2 or not all(hasattr(part, "tolist") for part in batch):
            raise Hint("A batch must be a pair of tensors, x and y.")
    return batches


def numbered_batches(loader: Any) -> list[tuple[list[int], list[int]]]:
    """Return the row numbers and labels of each batch in an epoch."""
    batches = pairs(loader)
    for x, y in batches:
        if tuple(x.shape[1:]) != (WIDTH,) or y.ndim != 1:
            shapes = f"x has shape {tuple(x.shape)} and its y {tuple(y.shape)}"
            raise Hint(f"A batch's {shapes}; each needs one row per sample.")
    return [(x[:, 0].int().tolist(), y.tolist()) for x, y in batches]


def processes() -> set[int | None]:
    """Return the identifiers of this process's live child processes."""
    return {child.pid for child in multiprocessing.active_children()}


def processes_left(before: set[int | None]) -> int:
    """Wait for new child processes that are exiting, and return the number of those that are still alive."""
    gc.collect()
    until = time.perf_counter() + TO_END_S
    while (left := processes() - before) and time.perf_counter() < until:
        time.sleep(0.05)
    return len(left)


def read_rows(function: Callable[..., Any], path: str, places: Sequence[int]) -> Facts:
    """Read rows of a file through the reader's data set.

    Return the memory that this takes, whether the samples are right, and the size of the data set when it is sent to a
    worker.
    """
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
        "read_only": any("not writable" in str(warning.message) for warning in warned),
    }
    # Never write to a tensor in a read-only map: that would crash the process.
    if right and not facts["read_only"]:
        kept = there[places[0]].copy()
        samples[0].zero_()
        again = outcome(getitem, dataset, places[0])
        facts["own"] = np.array_equal(again.numpy(), kept) and np.array_equal(there[places[0]], kept)
    return facts


#: Milliseconds that a simulated loader and its step sleep, and whether the loader prepares the next batch during
#: the step.
FEEDS = ((5.0, 12.0, False), (9.0, 4.0, True))
#: Tolerance for a time, because other programs delay sleeping threads.
NEAR = 0.25


def measure_stopwatches(answer: Any) -> Facts:
    function = as_function(answer, "three_times(loader, step)")
    cases = []
    for make_ms, use_ms, ahead in FEEDS:
        feed = Feed(make_ms, use_ms, ahead=ahead)
        said = as_fields(outcome(function, feed, feed.step), together=float, loader=float, model=float)
        if not feed.took["together"]:
            raise Hint("together was not measured: the step did not run once for each batch in a pass of the loader.")
        took = feed.took | {"model": [statistics.fmean(feed.took["model"])]}
        cases.append({"said": said, "took": took, "usual_ms": make_ms, "ahead": ahead})
    return {"cases": cases}


def judge_stopwatches(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(FEEDS)):
        for name, ms in all_there(case["said"], 3).items():
            took = case["took"][name] or [case["usual_ms"]]  # if no pass without steps was complete
            said = Number(ms, took, NEAR, name)
            said.slip(took[0] / 1e3, "looks like seconds; give milliseconds.")
            said.slip(BATCHES * took[0], "looks like the time of all batches; give it per batch.")
            said.slip(BATCHES * took[0] / 1e3, "looks like the seconds of all batches; give milliseconds per batch.")
            if name != "together":
                other = "the loader" if name == "model" else "the step"
                as_long = f"takes as long as together: does {other} still run in it? What must be left out, and what "
                said.slip(case["took"]["together"], f"{as_long}could be kept?")
            if case["ahead"] and not said.right:
                raise Hint(
                    f"{name} is wrong for a loader that prepares the next batch during the step. The times do not add "
                    "up then: measure each one separately."
                )
            said.wrong("is wrong.", "Which of loader and step should run in it?")


def measure_perfect(answer: Any, test: Any = None) -> Facts:
    hint_if(not hasattr(test, "saved_ms"), "Pass the test as well: test=t, the result of perfnb.confirm_input_bound.")
    median = test.times["median_ms"]
    times = {kind: float(median[kind]) for kind in ("together", "loader", "model")}
    return {"said": as_fields(answer, perfect_loader=float, perfect_model=float), "times": times}


def judge_perfect(facts: Facts) -> None:
    said, times = facts["said"], facts["times"]
    of_loader, of_model = times["together"] / times["model"], times["together"] / times["loader"]
    for name, wanted, other in (("perfect_loader", of_loader, of_model), ("perfect_model", of_model, of_loader)):
        speedup = Number(said[name], wanted, 0.03, name)
        speedup.slip(other, f"is the other speed-up: if the {name[8:]} took no time, which of the two would be left?")
        speedup.slip(1 / wanted, "is the fraction of the step that is left; give the speed-up.")
        saved = "seems to be how many ms would be saved; give how many times as fast the step would be."
        speedup.slip(times["together"] * (1 - 1 / wanted), saved)
        speedup.slip(1 - 1 / wanted, "is the fraction of the step that would be saved; give the speed-up.")
        speedup.wrong("does not match t.times.")


#: Lines in made-up files, numbers per line, how often a sample is drawn, and how many neighbouring shifts may be
#: missing afterwards. If all shifts are equally likely, that many are missing in one of 10 million million trials.
LINES, VALUES, DRAWS, MISSING = (40, 24), 64, 120, 15
#: Maximum time of the items as a fraction of the original time.
MOST = 0.5
#: Number of epochs that are timed.
EPOCHS = [()] * 7


def measure_parsed(answer: Any, slow: Any = None) -> Facts:
    new, old = as_function(answer, "Parsed(lines)"), as_function(slow, "Text(lines)")
    cases, sets = [], []
    for seed, count in enumerate(LINES):
        before, after = old(text_lines(count, VALUES, seed)), outcome(new, text_lines(count, VALUES, seed))
        cases.append({"length": [outcome(len, after), count], **drawn(before, after, (count - 1, 0, 7), DRAWS)})
        sets.append((before, after))
    if any(not case["same"] for case in cases):
        return {"cases": cases}  # wrong answers are not timed
    before, after = sets[0]
    return {"cases": cases, "ratio": time_ratio(partial(every_item, after), partial(every_item, before), EPOCHS)}


def judge_parsed(facts: Facts) -> None:
    for case in facts["cases"]:
        if case["length"][0] != case["length"][1]:
            raise Hint(f"len() of the data set is {case['length'][0]}, for {case['length'][1]} lines.")
        if not case["label"]:
            raise Hint("A label differs from its line's, or is not an int: does each data set use its own lines?")
        hint_if(not case["same"], "A sample has other numbers, an order that no shift produces, or a different dtype.")
        if case["shifts"] < 3:
            raise Hint(
                f"The same sample, drawn {DRAWS} times, came with {case['shifts']} different shift(s), but the shift"
                " must be random each time. What may be cached, and what may not?"
            )
        if case["never"] > MISSING:
            raise Hint(
                f"The shift is random, but of its {VALUES} possible values, {case['never']} in a row never came in "
                f"{DRAWS} draws. Each number of a line must have the same chance to come first, as in Text."
            )
    all_there(facts["cases"], len(LINES))
    if facts["ratio"] > MOST:
        raise Hint(
            f"The samples are right, but take {share(facts['ratio'])} of the original time; get below {share(MOST)}. "
            "What is done for every sample although it always gives the same result?"
        )


#: Tensors smaller than this many bytes are labels or shifts rather than samples.
SAMPLE_BYTES = 1024


def measure_copies(answer: Any, profile: Any = None) -> Facts:
    allocations = getattr(profile, "allocations", None)
    if allocations is None or not len(allocations):
        raise Hint("Pass the profile as well, profile=p; it must be recorded without --no-memory.")
    here = (allocations["phase"] == "data") & allocations["start_ns"].ge(0).fillna(False)  # excludes the previous batch
    sizes = allocations["bytes"][here & (allocations["bytes"] >= SAMPLE_BYTES)]
    if not len(sizes):
        raise Hint("This profile has no batch made from samples: pass the one from the first section, profile=p.")
    said = as_fields(answer, batch_bytes=float, written=float)
    largest = int(sizes.max())
    copied = sizes[sizes.isin([sizes.mode().iloc[0], largest])]  # not an epoch's order
    return {"said": said, "batch_bytes": largest, "all_bytes": int(copied.sum())}


def judge_copies(facts: Facts) -> None:
    said, batch = facts["said"], facts["batch_bytes"]
    batch_bytes = Number(said["batch_bytes"], batch, 1e-9, "batch_bytes")
    batch_bytes.slip(batch / 4, "is how many numbers x has; how many bytes does a float32 have?")
    batch_bytes.slip(batch * 8, "looks like bits.")
    batch_bytes.wrong("is wrong.", "Rows, times columns, times what?")
    times = facts["all_bytes"] / batch
    written = Number(said["written"], round(times), 0.02)
    written.slip(facts["all_bytes"], "written is in bytes; give it as a multiple of the batch's bytes.", 0.01)
    if not written.right:
        more = "more" if said["written"] < times else "fewer"
        raise Hint(
            f"The profile shows {more}. Follow one number from its line to the batch: which calls in Text and "
            "the loader return a *new* tensor with it?"
        )


#: Rows and batch sizes of the tensors that are checked and of the tensors that are timed.
TAKEN, TIMED = (250, 32), (2048, 64)
#: Number of epochs whose orders are compared.
DRAWN = 5


def measure_at_once(answer: Any) -> Facts:
    function = as_function(answer, "at_once(dataset, batch_size)")
    loader = outcome(function, numbered_rows(TAKEN[0]), TAKEN[1])
    epochs = [numbered_batches(loader) for _ in range(DRAWN)]
    facts: Facts = {
        "sizes": [len(labels) for _, labels in epochs[0]],
        "rows": [[row for rows, _ in epoch for row in rows] for epoch in epochs],
        "labels": all(labels == [3 * row for row in rows] for epoch in epochs for rows, labels in epoch),
    }
    if not facts["labels"] or len(facts["rows"][0]) != TAKEN[0]:
        return facts
    dataset, size = numbered_rows(TIMED[0]), TIMED[1]
    usual, quick = DataLoader(dataset, size, shuffle=True), outcome(function, dataset, size)
    return facts | {"ratio": time_ratio(partial(list, quick), partial(list, usual), EPOCHS)}


def judge_at_once(facts: Facts) -> None:
    first, *others = all_there(facts["rows"], DRAWN)
    hint_if(first and not all(others), "A later epoch is empty: return something that can be iterated more than once.")
    hint_if(not facts["labels"], "Rows and labels no longer match: index both the same way.")
    judge_orders(facts["rows"], *TAKEN)
    if sorted(facts["sizes"]) != sorted([TAKEN[1]] * (TAKEN[0] // TAKEN[1]) + [TAKEN[0] % TAKEN[1]]):
        raise Hint(f"Batches have {facts['sizes']} rows, but batch_size was {TAKEN[1]}; only the last may be smaller.")
    if facts["ratio"] > MOST:
        raise Hint(
            f"The batches are right, but take {share(facts['ratio'])} of the usual loader's time; get below "
            f"{share(MOST)}. Are the rows of a batch still taken one by one?"
        )


#: Milliseconds that it takes to make and to use a batch, for each requested loader; and its samples and batch size.
PACES, ASKED, ASKED_BATCH = ((24.0, 10.0), (11.0, 6.0), (4.0, 10.0)), 72, 8


def measure_workers(answer: Any) -> Facts:
    function = as_function(answer, "make_loader(dataset, batch_size, make_ms, use_ms)")
    cases = []
    for make_ms, use_ms in PACES:
        before = processes()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # workers sleep and use no core
            loader = outcome(function, Marked(ASKED), ASKED_BATCH, make_ms, use_ms)
            epochs = [pairs(loader) for _ in range(2)]
        del loader
        cases.append(
            {
                "pace": [make_ms, use_ms],
                "rows": [[place for places, _ in epoch for place in places.tolist()] for epoch in epochs],
                "batches": [len(epoch) for epoch in epochs],
                "workers": [
                    sorted({pid for _, pids in epoch for pid in pids.tolist()} - {os.getpid()}) for epoch in epochs
                ],
                "left": processes_left(before),
            }
        )
    return {"cases": cases}


def judge_workers(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(PACES)):
        make_ms, use_ms = case["pace"]
        needed = int(-(-make_ms // use_ms))
        first, second = case["workers"]
        first_rows, second_rows = case["rows"]
        where = f"For make_ms={make_ms:g} and use_ms={use_ms:g}"
        hint_if(first_rows and not second_rows, "The second epoch is empty: return the loader, not its iterator.")
        judge_orders(all_there(case["rows"], 2), ASKED, ASKED_BATCH)
        if set(case["batches"]) != {ASKED // ASKED_BATCH}:
            raise Hint(f"An epoch has {case['batches'][0]} batches: is batch_size used?")
        hint_if(not first, f"{where} the step's own process makes the batches: the loader has no workers.")
        if len(first) < needed:
            raise Hint(f"{where} {len(first)} worker(s) deliver a batch every {make_ms / len(first):.3g} ms: too slow.")
        if len(first) > needed + 1:
            raise Hint(f"{where} fewer than {len(first)} workers are enough, and each is a process that takes memory.")
        if first != second:
            raise Hint(f"{where} the second epoch started new workers, which takes time. What keeps them alive?")
        if case["left"]:
            raise Hint(f"The loader is gone, but {case['left']} of its workers are still running: what refers to it?")


#: Rows and columns of the file, maximum bytes for reading it, and maximum size of the copy for a worker.
FILE, MOST_BYTES, MOST_COPY = (2048, 4096), 4 << 20, 1 << 20
ROWS = (0, 2047, 5, 700, 5)


def measure_file(answer: Any) -> Facts:
    function = as_function(answer, "FromFile(path)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=FILE)
        rows[:] = np.random.default_rng(3).standard_normal(FILE, dtype=np.float32)
        rows.flush()
        del rows
        return read_rows(function, str(path), ROWS) | {"file_bytes": path.stat().st_size}


def judge_file(facts: Facts) -> None:
    mib = 1 << 20
    if facts["length"] != FILE[0]:
        raise Hint(f"len() of the data set is {facts['length']}; the array in the file has {FILE[0]} rows.")
    hint_if(not facts["right"], "A sample is not the row with its index as a float32 tensor.")
    if facts["peak"] > MOST_BYTES:
        raise Hint(
            f"The samples are right, but reading {len(ROWS)} rows of a {facts['file_bytes'] / mib:.0f} MiB file "
            f"took {facts['peak'] / mib:.0f} MiB; stay below {MOST_BYTES / mib:.0f}. What does np.load do by "
            "default?"
        )
    if facts["copy_bytes"] > MOST_COPY:
        raise Hint(
            f"A copy for a worker has {facts['copy_bytes'] / mib:.0f} MiB. (An open memory map is pickled with all its "
            "data.) Keep what is needed to open the file, and open it later."
        )
    if facts["read_only"]:
        raise Hint("The tensor is read-only memory of the file itself; a step that writes to it would crash. Copy it.")
    hint_if(not facts["own"], "Writing to a sample changes later reads: give each sample memory of its own.")


def measure_helped(answer: Any, test: Any = None) -> Facts:
    return ab_facts(test) | as_fields(answer, speedup=float, shown=bool) | {"turns": int(test.turns)}


def judge_helped(facts: Facts) -> None:
    if facts["turns"] < 2:
        raise Hint(
            "The test found no workers, so the steps ran in single turns. Does each step take its batches from its "
            "own loader, made by feeder?"
        )
    if facts["ratio_ci"][0] > 1:
        raise Hint(
            "In this test the second step is slower: are the two in the right order? If they are, the machine "
            "is too busy: try again later."
        )
    Number(facts["speedup"], 1 / facts["ratio"], 0.03).wrong("The speed-up does not match the test.")
    if facts["shown"] != (facts["ratio_ci"][1] < 1):
        raise Hint(
            "shown does not follow: a difference is shown only if the ratio's interval excludes 1. On a busy "
            "machine that takes a larger budget_s."
        )


EXERCISES = (
    Exercise("6.1", "Three stopwatches", measure_stopwatches, judge_stopwatches, timed=True),
    Exercise("6.2", "A perfect loader", measure_perfect, judge_perfect),
    Exercise("6.3", "Parse once", measure_parsed, judge_parsed, timed=True),
    Exercise("6.4", "Copies", measure_copies, judge_copies),
    Exercise("6.5", "One index for a batch", measure_at_once, judge_at_once, timed=True),
    Exercise("6.6", "Enough workers", measure_workers, judge_workers),
    Exercise("6.7", "From a file", measure_file, judge_file),
    Exercise("6.8", "Did it help?", measure_helped, judge_helped, timed=True),
)
