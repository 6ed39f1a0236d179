"""Checks of lab 6, *Feeding the model*."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from perfnb.labs.answers import as_flag, as_function, as_numbers, close, outcome, ratio_of, slip
from perfnb.labs.exercise import Exercise, Facts, Hint, all_there
from perfnb.labs.feeding import (
    BATCHES,
    Feed,
    Marked,
    drawn,
    every_item,
    judge_orders,
    marked_batches,
    numbered_batches,
    numbered_rows,
    processes,
    processes_left,
    read_rows,
    text_lines,
)
from perfnb.labs.workloads import interleaved, one_thread

#: Milliseconds that a simulated loader and its step sleep, and whether the loader prepares the next batch during the
#: step.
FEEDS = ((5.0, 12.0, False), (9.0, 4.0, True))
#: Tolerance for a time: other programs delay sleepers.
NEAR = 0.25


def measure_stopwatches(answer: Any) -> Facts:
    function = as_function(answer, "three_times(loader, step)")
    cases = []
    for make_ms, use_ms, ahead in FEEDS:
        feed = Feed(make_ms, use_ms, ahead=ahead)
        returned = outcome(function, feed, feed.step)
        if returned is None:
            raise Hint("The function returns nothing yet.")
        said = as_numbers(returned, ("together", "loader", "model"))
        if not feed.took["together"]:
            raise Hint("together was not measured: the step did not run with each batch of the loader.")
        usual = {"together": max(make_ms, use_ms) if ahead else make_ms + use_ms, "loader": make_ms, "model": use_ms}
        took = feed.took | {"model": [feed.step_ms()]}
        cases.append({"said": said, "took": took, "usual": usual, "ahead": ahead})
    return {"cases": cases}


def judge_stopwatches(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(FEEDS)):
        wanted = case["usual"] | {name: took[0] for name, took in case["took"].items() if took}
        for name, said in all_there(case["said"], 3).items():
            if any(close(said, took, NEAR) for took in case["took"][name]):
                continue
            if close(1e3 * said, wanted[name], NEAR):
                raise Hint(f"{name} looks like seconds; give milliseconds.")
            if close(said, BATCHES * wanted[name], NEAR):
                raise Hint(f"{name} looks like the time of all batches; give it per batch.")
            together = [wanted["together"], *case["took"]["together"]]
            if name != "together" and any(close(said, took, NEAR) for took in together):
                other = "the loader" if name == "model" else "the step"
                raise Hint(f"{name}: {other} still runs in it. What must be left out, and what could be kept?")
            if case["ahead"]:
                raise Hint(
                    f"{name} is wrong for a loader that prepares the next batch during the step. The times do not add "
                    "up then: measure each one separately."
                )
            raise Hint(
                f"{name} is wrong. {slip(said, wanted[name], NEAR, 'Which of loader and step should run in it?')}"
            )


def measure_perfect(answer: Any, test: Any = None) -> Facts:
    if not hasattr(test, "saved_ms"):
        raise Hint("Pass the test as well: test=t, the result of perfnb.confirm_input_bound.")
    median = test.times["median_ms"]
    times = {kind: float(median[kind]) for kind in ("together", "loader", "model")}
    return {"said": as_numbers(answer, ("perfect_loader", "perfect_model")), "times": times}


def judge_perfect(facts: Facts) -> None:
    said, times = facts["said"], facts["times"]
    wanted = {
        "perfect_loader": times["together"] / times["model"],
        "perfect_model": times["together"] / times["loader"],
    }
    for name, other in (("perfect_loader", "perfect_model"), ("perfect_model", "perfect_loader")):
        if close(said[name], wanted[name], 0.03):
            continue
        if close(said[name], wanted[other], 0.03):
            raise Hint(f"{name} is the other one: if the {name[8:]} took no time, which of the two would be left?")
        if close(said[name], 1 / wanted[name], 0.03):
            raise Hint(f"{name} is the fraction of the step that is left; give the speed-up.")
        raise Hint(f"{name} does not match t.times. {slip(said[name], wanted[name], 0.03)}")


#: Lines of made-up files, numbers per line, and how often a sample is drawn.
LINES, VALUES, DRAWS = (40, 24), 64, 12
#: Largest fraction of the original time that items may take.
MOST = 0.5
EPOCHS = 6


def measure_parsed(answer: Any, slow: Any = None) -> Facts:
    new, old = as_function(answer, "Parsed(lines)"), as_function(slow, "Text(lines)")
    cases, sets = [], []
    for seed, count in enumerate(LINES):
        before, after = old(text_lines(count, VALUES, seed)), outcome(new, text_lines(count, VALUES, seed))
        cases.append({"length": [outcome(len, after), count], **drawn(before, after, (count - 1, 0, 7), DRAWS)})
        sets.append((before, after))
    if any(not case["same"] for case in cases):
        return {"cases": cases}  # what is wrong is not timed
    before, after = sets[0]
    with one_thread():
        slow_ms, fast_ms = interleaved(lambda: every_item(before), lambda: every_item(after), [()] * (EPOCHS + 1))
    return {"cases": cases, "ratio": min(fast_ms) / min(slow_ms)}


def judge_parsed(facts: Facts) -> None:
    for case in facts["cases"]:
        if case["length"][0] != case["length"][1]:
            raise Hint(f"len() of the data set is {case['length'][0]}, for {case['length'][1]} lines.")
        if not case["label"]:
            raise Hint("A label differs from its line's, or is not an int: does each data set use its own lines?")
        if not case["same"]:
            raise Hint("A sample has different numbers, an order that no shift gives, or another dtype.")
        if case["shifts"] < 3:
            raise Hint(
                f"The same sample, drawn {DRAWS} times, came with {case['shifts']} different shift(s), but the shift"
                " must be random each time. What may be cached, and what may not?"
            )
    all_there(facts["cases"], len(LINES))
    if facts["ratio"] > MOST:
        raise Hint(
            f"The samples are right, but take {100 * facts['ratio']:.0f} % of the original time; get below "
            f"{100 * MOST:.0f} %. Something is done for every sample that always gives the same result."
        )


#: Tensors below this many bytes are labels or shifts, not samples.
SAMPLE_BYTES = 1024


def measure_copies(answer: Any, profile: Any = None) -> Facts:
    allocations = getattr(profile, "allocations", None)
    if allocations is None or not len(allocations):
        raise Hint("Pass the profile as well, profile=p; it must be recorded without --no-memory.")
    here = (allocations["phase"] == "data") & (allocations["start_ns"].fillna(-1) >= 0)  # not the batch before
    sizes = allocations["bytes"][here & (allocations["bytes"] >= SAMPLE_BYTES)]
    if not len(sizes):
        raise Hint("This profile has no batch made from samples: pass the one from the first section, profile=p.")
    said = as_numbers(answer, ("batch_bytes", "written"))
    batch_bytes = int(sizes.max())
    copied = sizes[sizes.isin([sizes.mode().iloc[0], batch_bytes])]  # an epoch's order is there too when it starts
    return {"said": said, "batch_bytes": batch_bytes, "all_bytes": int(copied.sum())}


def judge_copies(facts: Facts) -> None:
    said, batch = facts["said"], facts["batch_bytes"]
    if not close(said["batch_bytes"], batch, 1e-9):
        if close(said["batch_bytes"], batch / 4, 1e-9):
            raise Hint("batch_bytes is how many numbers x has; how many bytes does a float32 have?")
        if close(said["batch_bytes"], batch * 8, 1e-9):
            raise Hint("batch_bytes looks like bits.")
        raise Hint(
            f"batch_bytes is wrong. {slip(said['batch_bytes'], batch, 1e-9, 'Rows, times columns, times what?')}"
        )
    written = round(facts["all_bytes"] / batch)
    if close(said["written"], facts["all_bytes"], 0.01):
        raise Hint("written is in bytes; give it as a multiple of the batch's bytes.")
    if not close(said["written"], written, 0.02):
        more = "more" if said["written"] < written else "fewer"
        raise Hint(
            f"The profile shows {more}. Follow one number from its line to the batch: which calls in Text and "
            "the loader return a *new* tensor with it?"
        )


#: Rows and batch size of the tensors that are checked, and of those that are timed.
TAKEN, TIMED = (250, 32), (2048, 64)
#: Epochs whose orders are compared.
DRAWN = 5


def measure_at_once(answer: Any) -> Facts:
    from torch.utils.data import DataLoader

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
    with one_thread():
        slow_ms, fast_ms = interleaved(lambda: list(usual), lambda: list(quick), [()] * (EPOCHS + 1))
    return facts | {"ratio": min(fast_ms) / min(slow_ms)}


def judge_at_once(facts: Facts) -> None:
    first, *others = all_there(facts["rows"], DRAWN)
    if first and not all(others):
        raise Hint("The second epoch is empty: return something that can be iterated more than once.")
    if not facts["labels"]:
        raise Hint("Rows and labels no longer match: index both the same way.")
    judge_orders(facts["rows"], *TAKEN)
    if sorted(facts["sizes"]) != sorted([TAKEN[1]] * (TAKEN[0] // TAKEN[1]) + [TAKEN[0] % TAKEN[1]]):
        raise Hint(
            f"The batches have {facts['sizes']} rows; batch_size was {TAKEN[1]}, and only the last may be smaller."
        )
    if facts["ratio"] > MOST:
        raise Hint(
            f"The batches are right, but take {100 * facts['ratio']:.0f} % of the usual loader's time; get below"
            f" {100 * MOST:.0f} %. The rows of a batch are still taken one by one."
        )


#: Milliseconds to make and to use a batch, for each loader requested; its samples and its batch size.
PACES, ASKED, ASKED_BATCH = ((24.0, 10.0), (11.0, 6.0), (4.0, 10.0)), 72, 8


def measure_workers(answer: Any) -> Facts:
    function = as_function(answer, "make_loader(dataset, batch_size, make_ms, use_ms)")
    cases = []
    for make_ms, use_ms in PACES:
        before = processes()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # they sleep and use no core
            loader = outcome(function, Marked(ASKED), ASKED_BATCH, make_ms, use_ms)
            epochs = [marked_batches(loader) for _ in range(2)]
        del loader
        cases.append(
            {
                "pace": [make_ms, use_ms],
                "rows": [[place for places, _ in epoch for place in places] for epoch in epochs],
                "batches": [len(epoch) for epoch in epochs],
                "workers": [sorted({pid for _, pids in epoch for pid in pids} - {os.getpid()}) for epoch in epochs],
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
        if first_rows and not second_rows:
            raise Hint("The second epoch is empty: return the loader, not its iterator.")
        judge_orders(all_there(case["rows"], 2), ASKED, ASKED_BATCH)
        if set(case["batches"]) != {ASKED // ASKED_BATCH}:
            raise Hint(f"An epoch has {case['batches'][0]} batches: is batch_size used?")
        if not first:
            raise Hint(f"{where} the step's own process makes the batches: the loader has no workers.")
        if len(first) < needed:
            raise Hint(f"{where} {len(first)} worker(s) deliver a batch every {make_ms / len(first):.3g} ms: too slow.")
        if len(first) > needed + 1:
            raise Hint(f"{where} fewer than {len(first)} workers are enough, and each is a process that takes memory.")
        if first != second:
            raise Hint(f"{where} the second epoch started new workers, which takes time. What keeps them alive?")
        if case["left"]:
            raise Hint(
                f"The loader is gone, but {case['left']} of its workers are still running: what still refers to it?"
            )


#: Rows and columns of the file, most bytes for reading it, and largest copy for a worker.
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
    if not facts["right"]:
        raise Hint("A sample is not the row with its index as a float32 tensor.")
    if facts["peak"] > MOST_BYTES:
        raise Hint(
            f"The samples are right, but reading {len(ROWS)} rows of a {facts['file_bytes'] / mib:.0f} MiB file "
            f"took {facts['peak'] / mib:.0f} MiB; stay below {MOST_BYTES / mib:.0f}. What does np.load do by "
            "default?"
        )
    if facts["copy_bytes"] > MOST_COPY:
        raise Hint(
            f"A copy for a worker has {facts['copy_bytes'] / mib:.0f} MiB: an open memory map is pickled with "
            "all its data. Keep what is needed to open it, and open it later."
        )
    if facts["read_only"]:
        raise Hint("The tensor is read-only memory of the file itself; a step that writes to it would crash. Copy it.")
    if not facts["own"]:
        raise Hint("Writing to a sample changes later reads: give each sample memory of its own.")


def measure_helped(answer: Any, test: Any = None) -> Facts:
    ratio = ratio_of(test)
    said = as_numbers(answer, ("speedup",))
    return {
        **said,
        "shown": as_flag(answer, "shown"),
        **ratio,
        "turns": int(test.turns),
    }


def judge_helped(facts: Facts) -> None:
    if facts["turns"] < 2:
        raise Hint(
            "Neither step had workers, so they ran in single turns. Does each step take its batches from its "
            "own loader, made by feeder?"
        )
    if facts["ratio_ci"][0] > 1:
        raise Hint(
            "In this test the second step is slower: are the two in the right order? If they are, the machine "
            "is too busy: try again later."
        )
    if not close(facts["speedup"], 1 / facts["ratio"], 0.03):
        raise Hint(f"The speed-up does not match the test. {slip(facts['speedup'], 1 / facts['ratio'], 0.03)}")
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
