# %% [markdown]
# # Lab 6 · Feeding the model
#
# **Runs on** Linux or macOS: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes; the cells themselves
# take about a minute (about two where each worker starts empty and imports torch again, as on macOS). It helps to have
# done [lab 1](01_measuring_honestly.ipynb) and [lab 2](02_where_does_a_step_go.ipynb).
#
# **Afterwards you can**
#
# - test whether a step is input-bound, and what a perfect loader would save, before you write one;
# - make a batch cheaper without changing the training data: parse once, copy less, fetch many rows at once;
# - say how many workers a loader needs, when they do not help, and leave none behind;
# - read samples from a file that is larger than memory.
#
# **Predict** before each measurement, on paper or in your head. `labs.check` tests your answers on this machine; it
# says what is wrong, never the answer, and you can try as often as you like.

# %%
# %load_ext perfnb

# %%
import gc
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # several threads wait for each other when other programs take a core away
torch.manual_seed(0)
folder = tempfile.TemporaryDirectory()  # vanishes with the kernel
sys.path.insert(0, folder.name)

# %% [markdown]
# ## Two data sets
#
# `Text` holds lines of text: a label and 256 comma-separated sensor readings. The sensor may have started at any time,
# so each time a sample is fetched, its readings are shifted (rolled) by a new random number; the model never sees
# exactly the same sample twice. `Far` simulates remote storage: each sample takes 8 ms to arrive.
#
# They are written to a file, `lab_06_data.py`, and imported from there, for a reason. A loader's **workers** are
# separate processes. Linux *forks* them (before Python 3.14), so they know everything the notebook knows; on macOS, and
# on Linux from Python 3.14 on, they start empty and import what they need. They can import from a file but not from a
# notebook: a data set whose class was defined in a cell fails with `Can't get attribute ...` and `DataLoader worker
# exited unexpectedly`. (Windows does the same; perfnb does not support it.) In this lab, everything workers use comes
# from a file; the data sets you write in cells run without workers.

# %%
# %%writefile {folder.name}/lab_06_data.py
import time

import torch


class Text:
    """Readings from lines of text, each with its own random shift."""

    def __init__(self, lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, place):
        label, *numbers = self.lines[place].split(",")
        readings = torch.tensor([float(number) for number in numbers])
        shift = int(torch.randint(len(readings), ()))
        return torch.roll(readings, shift), int(label)


class Far:
    """Samples that each take 8 ms to arrive, without computing anything."""

    def __len__(self):
        return 512

    def __getitem__(self, place):
        time.sleep(0.008)
        return torch.full((16,), float(place)), place


# %%
from lab_06_data import Far, Text

numbers = torch.randn(1024, 256).tolist()
lines = [",".join([str(place % 10), *(f"{number:.3f}" for number in row)]) for place, row in enumerate(numbers)]
print(lines[0][:60], "...")

loader = DataLoader(Text(lines), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(batch):
    x, y = batch
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()


# %% [markdown]
# ## 6.1 Three stopwatches
#
# **Predict:** what share of a step is spent waiting for its batch: a tenth, a half, nine tenths? The magic's line feeds
# the cell from the loader, which makes waiting a phase of its own, `data`.

# %%
# %%profile_step --into p --name "readings from text" --steps 10 --budget 6 --no-flops for x, y in loader
optimizer.zero_grad()
loss = loss_fn(model(x), y)
loss.backward()
optimizer.step()

# %% [markdown]
# **Look at** the phases, and at the verdict at the top: what limits this step?
#
# A phase shows where the step *waited*. Whether a better loader would help is another question: on a GPU, or with
# workers, loading and computing overlap, and where the step waits does not tell them apart. So you *try it*. The
# classic test is to replace the real model by a **trivial** one, and then the loader by a batch kept in memory.
#
# **Exercise 6.1.** Write `three_times(loader, step)`: a dictionary with the milliseconds **a batch** of
#
# - `together`: an epoch of the loader, each batch given to `step(batch)`;
# - `loader`: an epoch of the loader, and nothing done with the batches;
# - `model`: `step` on one batch that you keep (`next(iter(loader))` gives one), `len(loader)` times.
#
# It is tested on a simulated loader and step that sleep for known times, and on a loader that prepares the next batch
# while the step runs.


# %% answer 6.1
def three_times(loader, step):
    """Milliseconds per batch: together, loader alone, step alone."""
    ### BEGIN SOLUTION
    count, kept = len(loader), next(iter(loader))

    def timed_ms(work):
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1e3 / count

    return {
        "together": timed_ms(lambda: [step(batch) for batch in loader]),
        "loader": timed_ms(lambda: [None for _ in loader]),
        "model": timed_ms(lambda: [step(kept) for _ in range(count)]),
    }
    ### END SOLUTION


# %% check 6.1 points=2
labs.check("6.1", three_times)

# %% [markdown]
# And on the real loader and step:

# %%
three_times(loader, step)

# %% [markdown]
# ## 6.2 A perfect loader
#
# You timed three blocks back to back, and know from lab 1 what a noisy machine does to that.
# `perfnb.confirm_input_bound` runs the same three (and two more) in short interleaved blocks in random order. It
# substitutes the trivial model by itself, even behind a loader with workers, and restores the weights at the end.
#
# **Predict:** how many times as fast would the step be if the *loader* took no time? And if the *model* took no time?

# %%
t = perfnb.confirm_input_bound(step, loader, model, budget_s=4)
t

# %% [markdown]
# **Exercise 6.2.** From `t.times["median_ms"]`, whose rows are `together`, `loader`, `model` and two more: how many
# times as fast (2.0 is twice as fast) would the step be with a `perfect_loader`, so that the *model alone* is left? And
# with a `perfect_model`, so that the *loader alone* is left?

# %% answer 6.2
perfect_loader = ...
perfect_model = ...
### BEGIN SOLUTION
median = t.times["median_ms"]
perfect_loader = median["together"] / median["model"]
perfect_model = median["together"] / median["loader"]
### END SOLUTION

# %% check 6.2 points=1
labs.check("6.2", {"perfect_loader": perfect_loader, "perfect_model": perfect_model}, test=t)

# %% [markdown]
# The second figure is all that any work on the model could gain here: a faster optimizer, a smaller network, a GPU. If
# you start there, you work for nothing.
#
# ## 6.3 Parse once
#
# A sample is *parsed*, then *shifted*. **Predict:** which of the two takes longer?

# %%
text = Text(lines)
for what, work in {
    "parse": lambda: [float(number) for number in lines[0].split(",")],
    "shift": lambda: torch.roll(torch.zeros(256), int(torch.randint(256, ()))),
    "both, as a sample": lambda: text[0],
}.items():
    times = []
    for _ in range(200):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e6)
    print(f"{what:18} {statistics.median(times):6.1f} µs")

# %% [markdown]
# Parsing the same line always gives the same numbers. So parse all lines once, when the data set is created (in
# `__init__`), and keep the tensors.
#
# **Exercise 6.3.** Write `Parsed`, a data set like `Text`: the same length, labels and readings, and still a **new
# random** shift each time a sample is fetched; but an item takes less than half the time. It is tested on other lines
# than yours. (As long as it is empty, it *is* a `Text`.)


# %% answer 6.3
class Parsed(Text):
    """The samples of `Text`, each line parsed once."""

    ### BEGIN SOLUTION
    def __init__(self, lines):
        rows = [line.split(",") for line in lines]
        self.labels = [int(row[0]) for row in rows]
        self.readings = [torch.tensor([float(number) for number in row[1:]]) for row in rows]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        readings = self.readings[place]
        return torch.roll(readings, int(torch.randint(len(readings), ()))), self.labels[place]

    ### END SOLUTION


# %% check 6.3 points=3
labs.check("6.3", Parsed, slow=Text)

# %% [markdown]
# Caching the sample *after* the shift would be even faster, but it trains on 1,024 frozen samples instead of ever new
# ones: a different training run, and no stopwatch will tell you. **What is random must stay random.**
#
# Did the step become faster? Two loaders, each with its step; neither has workers, so interleaving is fair.


# %%
def fed(loader):
    """A step that takes its batches from a loader, over and over."""

    def batches():
        while True:
            yield from loader

    endless = batches()
    return lambda: step(next(endless))


perfnb.ab_test(fed(loader), fed(DataLoader(Parsed(lines), batch_size=32, shuffle=True)), budget_s=3)

# %% [markdown]
# ## 6.4 Copies
#
# The rest is less visible: the numbers of a batch are **copied**, from one tensor to the next, from samples to a batch,
# from a worker to the trainer, from there to a GPU. Each copy takes memory and time.
#
# Go back to `Text` and its loader. Follow one number on its way: from its line into a tensor, and on until it is in
# `x`. The loader assembles a batch with `torch.stack`.
#
# **Exercise 6.4.** By hand, before you look: `batch_bytes`, the number of bytes in the `x` of a batch of 32 (readings
# are float32); and `written`, how many times each number is written to a *new tensor* until it is in `x`, including
# that one.

# %% answer 6.4
batch_bytes = ...
written = ...
### BEGIN SOLUTION
batch_bytes = 32 * 256 * 4
written = 3  # parsed, rolled, stacked
### END SOLUTION

# %% check 6.4 points=2
labs.check("6.4", {"batch_bytes": batch_bytes, "written": written}, profile=p)

# %% [markdown]
# The profile recorded every allocation of one step and its phase. Here are those of the `data` phase, by size. **Look
# at** the 64 of 1,024 bytes: two per sample. (The smaller ones are the labels and the shifts; if an epoch started in
# this step, its order was drawn too, by `randperm`. Allocations from before the step are left out: the previous batch
# lives on until `x` gets the next one, so there are two at a time.)

# %%
made = p.allocations.query("phase == 'data' and start_ns >= 0")
made.groupby(["bytes", "op"], observed=True).size().rename("allocations").reset_index()

# %% [markdown]
# ## 6.5 One index for a batch
#
# The samples of a test set are not shifted: they can be kept in memory as two tensors, ready to use. What could be
# faster?
#
# **Predict:** what share of the step will waiting for data take now?

# %%
readings, labels = torch.tensor(numbers), torch.arange(1024) % 10
test_loader = DataLoader(TensorDataset(readings, labels), batch_size=64)


# %%
def evaluate(batch):
    with torch.no_grad():
        model(batch[0])


q = perfnb.profile_step(evaluate, test_loader, name="a test set", steps=10, budget_s=3, memory=False, flops=False)
print(f"waiting for data: {q.phases.loc['data', 'share']:.0%}")

# %% [markdown]
# The loader fetches 64 rows one by one, makes 64 pairs, and stacks them again, although a *single* index,
# `readings[rows]`, gives the whole batch.
#
# **Exercise 6.5.** Write `at_once(dataset, batch_size)`: from a `TensorDataset`, a loader that can be iterated
# repeatedly. Each epoch gives every sample once, in a **new random** order, in batches of `batch_size` (the last may be
# smaller), as `DataLoader(dataset, batch_size, shuffle=True)` does, in less than half its time.
#
# Useful: `dataset[rows]`, with a list or tensor of row numbers, indexes all of them at once. Write a class whose
# `__iter__` draws an order and cuts it into batches, or look up in `help(DataLoader)` what it requests from the data
# set with `batch_size=None`, and what it takes from its `sampler`.


# %% answer 6.5
def at_once(dataset, batch_size):
    """A loader that takes all rows of a batch with one index."""
    ### BEGIN SOLUTION
    usual = DataLoader(dataset, batch_size, shuffle=True)
    return DataLoader(dataset, sampler=usual.batch_sampler, batch_size=None)
    ### END SOLUTION


# %% check 6.5 points=2
labs.check("6.5", at_once)

# %% [markdown]
# The profile `q` has a finding about this. Compare its recommendation with your loader: it keeps the order of the
# loader it was given, while yours has to shuffle.

# %%
for finding in q.findings.head(1).to_dict("records"):
    print(f"{finding['bottleneck']}: at most {finding['bound_share']:.0%}\n{finding['advice']}\n\n{finding['code']}")

# %% [markdown]
# ## 6.6 Enough workers
#
# A loader with `num_workers=2` has two processes that prepare batches while the step runs. **Predict** for each of our
# two data sets, one that *parses* and one that *waits*: what will 1 and 3 workers gain on this machine?
#
# The step below only sleeps, for 10 ms. That is what a CPU does while a GPU computes, so the workers have the cores to
# themselves. A step that computes here would compete with them. Meanwhile `perfnb.watch` records how many percent of a
# core this process and its workers use. (torch warns about more workers than cores; the cell suppresses the warning.)

# %%
warnings.filterwarnings("ignore", message="This DataLoader will create")


def feeder(dataset, batch_size, workers):
    """An endless supply of batches from its own loader."""
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    while True:
        yield from loader


def use(batch, ms=10):
    """The step: a device that computes for 10 ms."""
    time.sleep(ms / 1e3)


found = {}
with perfnb.watch(interval_s=0.05) as w:
    for name, dataset, batch_size in (("Text", Text(lines), 256), ("Far", Far(), 2)):
        for workers in (0, 1, 3):
            batches = feeder(dataset, batch_size, workers)
            for _ in range(2 * workers + 1):  # use up the prefetched batches first
                use(next(batches))
            with w.mark(f"{name} {workers}"):
                began = time.perf_counter()
                for _ in range(10):
                    use(next(batches))
                found[name, workers] = (time.perf_counter() - began) * 1e3 / 10
            batches.close()  # this stops the loader and its workers

cpu = {key: w.summary(f"{key[0]} {key[1]}").loc[("process", "cpu_percent"), "median"] for key in found}
table = pd.DataFrame({"ms a step": pd.Series(found), "CPU %": pd.Series(cpu, dtype=float)}).round(1)
table.rename_axis(["data set", "workers"])

# %% [markdown]
# **Look at** both columns. `Text` uses CPU, more with each worker, up to the number of free cores; it cannot get faster
# than these allow, and more workers than cores gain nothing. `Far` uses hardly any: its workers wait, and there may be
# more of them than cores. The cure for the first is a cheaper batch (6.3), for the second more workers.
#
# How many? Without workers a step takes `make + use`. With *n* workers a batch arrives every `make / n`, and the step
# takes that or `use`, whichever is longer. Here is that law next to the times of `Far`. (On a busy machine the measured
# times are above it, because every batch also waits for a core.)

# %%
make_ms = found["Far", 0] - 10
for workers in (0, 1, 3):
    law = max(10, make_ms / workers) if workers else make_ms + 10
    print(f"{workers} workers: measured {found['Far', workers]:5.1f} ms a step, the law says {law:5.1f} ms")

# %% [markdown]
# **Exercise 6.6.** Write `make_loader(dataset, batch_size, make_ms, use_ms)` for data that *waits*: a `DataLoader`
#
# - that shuffles, and gives every sample once in each epoch;
# - with as many workers as needed so that the step does not wait (at least one; one more than needed is fine, because
#   times vary, but not twice as many: each is a process with its own memory);
# - that **keeps** its workers from one epoch to the next (`feeder` shows the option);
# - and whose workers end when nothing refers to the loader any more.
#
# The check requests loaders for several speeds, runs two epochs of each, counts the processes that made the batches,
# drops the loader, and counts the processes that are left.


# %% answer 6.6
def make_loader(dataset, batch_size, make_ms, use_ms):
    """A loader with enough workers, but no more."""
    ### BEGIN SOLUTION
    workers = math.ceil(make_ms / use_ms)
    return DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=True)
    ### END SOLUTION


# %% check 6.6 points=3
labs.check("6.6", make_loader)

# %% [markdown]
# Notebooks make it especially easy to leave workers behind: `it = iter(loader)` in a cell keeps them until `it` is
# gone, and a loader with `persistent_workers=True` keeps them until the loader is gone. Each holds whatever it has
# loaded. `multiprocessing.active_children()` lists them.
#
# ## 6.7 From a file
#
# Data that does not fit in memory stays on disk. How fast is yours? And is there room for the batches that workers pass
# on? (They go through `/dev/shm`, which is often small in containers; a *bus error* in a worker is the usual symptom.)

# %%
checks = perfnb.system_check(data=folder.name).checks
checks[checks["check"].isin(["disk of the data", "read test", "shared memory (/dev/shm)"])][
    ["check", "found", "verdict"]
]

# %% [markdown]
# **Look at** where the read test says it read from. A recently read or written file is in the system's *cache*, in
# memory: if you read it twice and time the second read, you measure the cache, not the disk. So do not predict a first
# epoch from a second one, or the other way round.
#
# How much must the disk deliver? The bytes of one batch per step:

# %%
in_text = sum(map(len, lines[:32]))
for what, size in {"as text": in_text, "as float32": 32 * 256 * 4, "as uint8": 32 * 256}.items():
    print(f"{what:11} {size / 1e3:6.1f} kB a batch of 32; a step of 2 ms needs {size / 2e-3 / 1e6:5.1f} MB/s")

# %% [markdown]
# You do not have to read all of an array in an `.npy` file: `np.load(path, mmap_mode="r")` *maps* it, and only the
# pages you touch are read. `np.array(...)` or `torch.tensor(...)` of a row then copies only that row.
#
# **Exercise 6.7.** Write `FromFile(path)`: a data set of the rows of a two-dimensional float32 array in such a file. An
# item is a row as a separate float32 tensor (a **copy**, since someone may write to it). It is tested on a file of 32
# MiB, and
#
# - may use at most 4 MiB of memory to be created and to return a few rows;
# - must be cheap to send to a worker that starts empty: everything the object *holds* is copied for each worker, and
#   for a memory map that is the entire mapped array.


# %% answer 6.7
class FromFile:
    """The rows of an array in a file."""

    def __init__(self, path):
        """Keep only what is cheap to copy."""
        ### BEGIN SOLUTION
        self.path = path
        ### END SOLUTION

    def __len__(self):
        """Number of rows."""
        ### BEGIN SOLUTION
        return len(np.load(self.path, mmap_mode="r"))
        ### END SOLUTION

    def __getitem__(self, place):
        """One row, as a tensor with its own memory."""
        ### BEGIN SOLUTION
        return torch.tensor(np.load(self.path, mmap_mode="r")[place])
        ### END SOLUTION


# %% check 6.7 points=3
labs.check("6.7", FromFile)

# %% [markdown]
# **Predict:** which of the three returns a sample fastest, and which slowest?

# %%
path = Path(folder.name) / "readings.npy"
np.save(path, readings.numpy())
for what, dataset in {"Text": text, "Parsed": Parsed(lines), "FromFile": FromFile(path)}.items():
    times = []
    for place in range(200):
        began = time.perf_counter()
        dataset[place]
        times.append((time.perf_counter() - began) * 1e6)
    print(f"{what:9} {statistics.median(times):6.1f} µs a sample")

# %% [markdown]
# `Parsed` keeps everything in memory and shifts; `FromFile` keeps nothing and does not shift. If yours opens the file
# for every sample, opening takes most of the time; a data set that opens it on its *first* sample, in the worker,
# avoids that.
#
# ## 6.8 Did it help?
#
# Back to remote storage. Making a batch of 5 samples takes 40 ms or a little more, using it 25 ms. You give the loader
# **one** worker. The law from 6.6 says what that gains: **predict** the speed-up.
#
# Lab 1 taught you to interleave the two. Let's do that by hand:


# %%
def stepper(workers):
    """A step that takes its batches from its own loader."""
    batches = feeder(Far(), 5, workers)
    use(next(batches))  # start the worker here, outside the timing
    return lambda: use(next(batches), ms=25)


none, one = stepper(0), stepper(1)
times = {none: [], one: []}
for _ in range(20):
    for each in (none, one):
        began = time.perf_counter()
        each()
        times[each].append((time.perf_counter() - began) * 1e3)
for what, each in {"none": none, "one": one}.items():
    print(f"{what:4} worker(s): {statistics.median(times[each]):5.1f} ms")

# %% [markdown]
# With a worker, a step takes little more than 25 ms? The law says 40 or more. Think before you read on: what does the
# worker do during the *other* step's turn?
#
# It keeps working. Each time its step comes round, a batch is ready that was prepared on someone else's time. In real
# training nobody does you that favour. So the steps must run in *blocks*: many runs of the same step back to back,
# where the first ones, which consume prefetched batches, do not count. `perfnb.ab_test` looks for workers and does this
# if it finds any.
#
# **Exercise 6.8.** Compare `stepper(0)` (first) and `stepper(1)` (second) by `perfnb.ab_test(a, b, budget_s=10)`; bind
# the result to `test`. Then give
#
# - `speedup`: how many times as fast is the second? (`test.ratio` is the time of the second divided by the first.)
# - `shown`: has this test *shown* that it is faster (`True` or `False`)? It has if the entire interval of the ratio,
#   `test.ratio_ci`, is below 1. On a very busy machine it may not be: then say so, or use a larger `budget_s`.

# %% answer 6.8
test = ...
speedup = ...
shown = ...
### BEGIN SOLUTION
test = perfnb.ab_test(stepper(0), stepper(1), budget_s=10)
speedup = 1 / test.ratio
shown = test.ratio_ci is not None and test.ratio_ci[1] < 1
### END SOLUTION

# %%
test

# %% check 6.8 points=2
labs.check("6.8", {"speedup": speedup, "shown": shown}, test=test)

# %% [markdown]
# **Look at** the line that says how many runs a block has, and compare the ratio with the law and with the two times
# measured by hand. Interleaving, even in random order, misleads if work continues during the other's turn.
#
# Finally, leave the machine as you found it:

# %%
del none, one, each, times
gc.collect()
print("workers left:", len(multiprocessing.active_children()))

# %% [markdown]
# ## On a GPU
#
# There is one more copy: from host memory to the device. A profile on a GPU has a phase `host_to_device`. The usual
# remedies, to be measured before you believe them: `pin_memory=True` in the loader (memory the device can read
# directly) with `x.to(device, non_blocking=True)`, so that the copy overlaps with computation; and sending something
# smaller, such as `uint8`, and converting it to float on the device. None of this was measured in this lab.
#
# ## Takeaways
#
# - To find out whether a step is input-bound, **test it**: trivial model, cached batch, both. Do it before you touch
#   the model.
# - First make a batch **cheaper**: parse once, copy less, one index for many rows. What is random must stay random.
# - Workers help if making a batch is mostly *waiting*, or if cores are free: you need `make / use` of them. They are
#   processes: keep them between epochs, and make sure they end.
# - Memory-map large files. Everything a data set holds is sent to every worker that starts empty.
# - With workers, compare in **blocks**: an interleaved step gets its batches on the other's time.
#
# `labs.export("lab_06.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 7, *The
# optimisation loop*](07_the_optimisation_loop.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(6).complete, labs.progress(6)
### END HIDDEN TESTS
labs.progress(6)
