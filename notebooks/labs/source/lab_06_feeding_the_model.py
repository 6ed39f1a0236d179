# %% [markdown]
# # Lab 6 · Feeding the model
#
# **Runs on** Linux or macOS: two CPU cores, 2 GB of memory, no GPU. **Takes** 50 to 60 minutes; the cells themselves
# run for about a minute (where each worker begins empty and imports torch anew, as on macOS, for about two). It helps
# to have done [lab 1](01_measuring_honestly.ipynb) and [lab 2](02_where_does_a_step_go.ipynb).
#
# **Afterwards you can**
#
# - find out by trial whether a step waits for its data, and what a perfect loader would bring, before you write one;
# - make a batch cheaper without changing what the model learns from: parse once, copy less, take many rows at once;
# - say how many workers a loader needs, which loaders they do not help, and leave none behind;
# - read samples out of a file that is larger than the memory.
#
# **Predict** before each measurement, on paper or in your head. `labs.check` tries your answers on this machine; it
# tells what is wrong, never the answer, and you may try as often as you like.

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
# `Text` holds lines of text: a label and 256 readings of a sensor, with commas between. The sensor may have begun at
# any moment, so each time a sample is asked for, its readings are shifted (rolled around) by a number that is drawn
# anew; the model never sees quite the same twice. `Far` stands for a store at the other end of a network: each sample
# takes 8 ms to arrive.
#
# They are written to a file, `lab_06_data.py`, and imported from there. That is not for order's sake. A loader's
# **workers** are processes of their own. Linux *forks* them (before Python 3.14), and they know all that the notebook
# knows; on macOS, and on Linux from Python 3.14 on, they begin empty, and import what they need. From a file they can,
# but not out of a notebook: a data set whose class was defined in a cell then ends in `Can't get attribute ...` and
# `DataLoader worker exited unexpectedly`. (Windows does the same; perfnb does not support it.) In this lab, what goes
# to workers comes out of a file; the data sets that you write in cells run without workers.

# %%
# %%writefile {folder.name}/lab_06_data.py
import time

import torch


class Text:
    """Readings in lines of text; each comes with a shift of its own."""

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
    """Samples that each take 8 ms to arrive; nothing is computed meanwhile."""

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
# **Predict:** which share of a step will be waiting for its batch: a tenth, a half, nine tenths? The magic's line feeds
# the cell from the loader, and so makes the waiting a phase of its own, `data`.

# %%
# %%profile_step --into p --name "readings from text" --steps 10 --budget 6 --no-flops for x, y in loader
optimizer.zero_grad()
loss = loss_fn(model(x), y)
loss.backward()
optimizer.step()

# %% [markdown]
# **Look at** the bar of phases, and at the verdict in the first lines: what bounds this step?
#
# A phase tells where the step *stood*. Whether a better loader would help is another question: on a GPU, or with
# workers, loading and computing go on at the same time, and the two cannot be told apart by where the step waits. So
# one *tries*. The old test is to put a **trivial model** in the place of the true one, and then a batch that is kept
# in memory in the place of the loader.
#
# **Exercise 6.1.** Write `three_times(loader, step)`: a dictionary with the milliseconds **a batch** of
#
# - `together`: an epoch of the loader, each batch given to `step(batch)`;
# - `loader`: an epoch of the loader, and nothing done with the batches;
# - `model`: `step` on one batch that you keep (`next(iter(loader))` gives one), `len(loader)` times.
#
# It is tried on a loader and a step of make-believe that sleep for known times; and on one that already makes the next
# batch while the step runs.


# %% answer 6.1
def three_times(loader, step):
    """Milliseconds a batch: together, of the loader alone, of the step alone."""
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
# And on the true loader and step:

# %%
three_times(loader, step)

# %% [markdown]
# ## 6.2 A perfect loader
#
# You have timed three blocks one after the other, and know from lab 1 what a restless machine does to that.
# `perfnb.confirm_input_bound` runs the same three (and two more) in short blocks that take turns in random order. It
# puts the trivial model in by itself, also behind a loader with workers, and puts the weights back when it ends.
#
# **Predict:** how many times as fast would the step be if the *loader* took no time? And if the *model* took none?

# %%
t = perfnb.confirm_input_bound(step, loader, model, budget_s=4)
t

# %% [markdown]
# **Exercise 6.2.** From `t.times["median_ms"]`, whose rows are `together`, `loader`, `model` and two more: how many
# times as fast (2.0 is twice as fast) would the step be with a `perfect_loader`, so that the *model alone* is left?
# And with a `perfect_model`, so that the *loader alone* is left?

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
# The second figure is what all the work on the model could bring here: a faster optimizer, a smaller network, a GPU.
# Whoever begins there works for nothing.
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
# The same line gives the same numbers each time that it is parsed. So parse all lines once, when the data set is
# made (in `__init__`), and keep the tensors.
#
# **Exercise 6.3.** Write `Parsed`, a data set like `Text`: the same length, labels and readings, and still a shift that
# is **drawn anew** each time that a sample is asked for; but an item takes less than half of the time. It is tried on
# other lines than yours. (As long as nothing stands in it, it *is* a `Text`.)


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
# Whoever remembers the sample *after* the shift is faster still, and trains on 1,024 frozen samples instead of ever new
# ones: another training, and no stopwatch tells. **What is random must stay random.**
#
# Did the step become faster? Two loaders, each with its step; neither has workers, so turns are fair.


# %%
def fed(loader):
    """A step that takes its batches from a loader, again and again."""

    def batches():
        while True:
            yield from loader

    endless = batches()
    return lambda: step(next(endless))


perfnb.ab_test(fed(loader), fed(DataLoader(Parsed(lines), batch_size=32, shuffle=True)), budget_s=3)

# %% [markdown]
# ## 6.4 Copies
#
# What is left is less visible: the numbers of a batch are **copied**. From a tensor to a new one, from samples to a
# batch, from a worker to the trainer, from there to a GPU. Each copy takes memory and time.
#
# Go back to `Text` and its loader. Follow one number on its way: from its line, into a tensor, and on until it stands
# in `x`. The loader puts a batch together with `torch.stack`.
#
# **Exercise 6.4.** By hand, before you look: `batch_bytes`, how many bytes the `x` of a batch of 32 has (readings are
# float32); and `written`, how many times each number is written into a *new tensor* until it stands in `x`, that one
# included.

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
# The profile has recorded every allocation of one step, and in which phase it was made. Here are those of the phase
# `data`, by size. **Look at** the 64 of 1,024 bytes: two for each sample. (The smaller ones are the labels, and the
# numbers by which to shift; if an epoch began in this step, its order was drawn as well, by `randperm`. What was made
# before the step began is left out: the batch of the step before lives on until `x` gets the next one, so that there
# are two at a time.)

# %%
made = p.allocations.query("phase == 'data' and start_ns >= 0")
made.groupby(["bytes", "op"], observed=True).size().rename("allocations").reset_index()

# %% [markdown]
# ## 6.5 One index for a batch
#
# The samples of a test set are not shifted: they can lie in memory as two tensors, ready to use. What could be faster?
#
# **Predict:** which share of the step will waiting for data be now?

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
# The loader takes 64 rows one by one, makes 64 pairs of them, and puts these together again, where *one* index,
# `readings[rows]`, gives the whole batch.
#
# **Exercise 6.5.** Write `at_once(dataset, batch_size)`: from a `TensorDataset`, a loader that can be run through again
# and again. Each epoch gives every sample once, in an order that is **drawn anew**, in batches of `batch_size` (the
# last may be smaller), as `DataLoader(dataset, batch_size, shuffle=True)` does, in less than half of its time.
#
# What may help: `dataset[rows]`, with a list or tensor of row numbers, is one index for all of them. Write a class
# whose `__iter__` draws an order and cuts it into batches, or look up in `help(DataLoader)` what it asks the data set
# for where `batch_size=None`, and what it takes from its `sampler`.


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
# The profile `q` has a finding on this. Compare its recommendation with your loader: it keeps the order of the loader
# that it was given, and yours has to shuffle.

# %%
for finding in q.findings.head(1).to_dict("records"):
    print(f"{finding['bottleneck']}: at most {finding['bound_share']:.0%}\n{finding['lever']}\n\n{finding['code']}")

# %% [markdown]
# ## 6.6 Enough workers
#
# A loader with `num_workers=2` has two processes that make batches while the step goes on. **Predict** for each of our
# two data sets, one that *parses* and one that *waits*: what will 1 and 3 workers bring on this machine?
#
# The step below only sleeps, for 10 ms. That is what a CPU does while a GPU computes, and so the workers have the cores
# for themselves. Here a step that computes would compete with them. `perfnb.watch` reads meanwhile how many percent of
# a core this process and its workers take. (torch warns of more workers than cores; the cell leaves the warning out.)

# %%
warnings.filterwarnings("ignore", message="This DataLoader will create")


def feeder(dataset, batch_size, workers):
    """Batches without end, from a loader of its own."""
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    while True:
        yield from loader


def use(batch, ms=10):
    """The step: a device computes for 10 ms."""
    time.sleep(ms / 1e3)


found = {}
with perfnb.watch(interval_s=0.05) as w:
    for name, dataset, batch_size in (("Text", Text(lines), 256), ("Far", Far(), 2)):
        for workers in (0, 1, 3):
            batches = feeder(dataset, batch_size, workers)
            for _ in range(2 * workers + 1):  # first use up what lies prepared
                use(next(batches))
            with w.mark(f"{name} {workers}"):
                began = time.perf_counter()
                for _ in range(10):
                    use(next(batches))
                found[name, workers] = (time.perf_counter() - began) * 1e3 / 10
            batches.close()  # its loader is gone, and with it the workers

cpu = {key: w.summary(f"{key[0]} {key[1]}").loc[("process", "cpu_percent"), "median"] for key in found}
table = pd.DataFrame({"ms a step": pd.Series(found), "CPU %": pd.Series(cpu, dtype=float)}).round(1)
table.rename_axis(["data set", "workers"])

# %% [markdown]
# **Look at** both columns. `Text` takes CPU, and more of it with each worker, up to the cores that are free; it cannot
# become faster than these allow, and more workers than cores bring nothing. `Far` takes hardly any: its workers wait,
# and may be more than there are cores. The remedy for the first is a cheaper batch (6.3), for the second more workers.
#
# How many? Without workers a step takes `make + use`. With *n* workers a batch comes every `make / n`, and the step
# takes that or `use`, whichever is longer. Here is that law beside the times of `Far`. (On a busy machine the measured
# ones lie above it, for every batch that is handed over waits for a core as well.)

# %%
make_ms = found["Far", 0] - 10
for workers in (0, 1, 3):
    law = max(10, make_ms / workers) if workers else make_ms + 10
    print(f"{workers} workers: measured {found['Far', workers]:5.1f} ms a step, the law says {law:5.1f} ms")

# %% [markdown]
# **Exercise 6.6.** Write `make_loader(dataset, batch_size, make_ms, use_ms)` for data that *waits*: a `DataLoader`
#
# - that shuffles, and gives every sample once in each epoch;
# - with as many workers as are needed so that the step need not wait (at least one; one more than needed is fine, for
#   the times are not even, but not twice as many: each is a process with memory of its own);
# - that **keeps** its workers from one epoch to the next (`feeder` shows by which option);
# - and whose workers end when nobody holds the loader any more.
#
# It is asked for loaders of several paces, runs two epochs of each, counts the processes that made the batches, lets
# go of the loader, and counts the processes that are left.


# %% answer 6.6
def make_loader(dataset, batch_size, make_ms, use_ms):
    """A loader with enough workers, and none too many."""
    ### BEGIN SOLUTION
    workers = math.ceil(make_ms / use_ms)
    return DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=True)
    ### END SOLUTION


# %% check 6.6 points=3
labs.check("6.6", make_loader)

# %% [markdown]
# In a notebook workers are left behind more easily than anywhere else: `it = iter(loader)` in a cell keeps them until
# `it` is gone, and a loader with `persistent_workers=True` keeps them until the loader is. Each holds what it has
# loaded. `multiprocessing.active_children()` lists them.
#
# ## 6.7 Out of a file
#
# What does not fit into memory stays on a disk. How fast is yours? And is there room for the batches that workers hand
# over? (They lie in `/dev/shm`, which containers often make small; a *bus error* in a worker is its usual sign.)

# %%
checks = perfnb.system_check(data=folder.name).checks
checks[checks["check"].isin(["disk of the data", "read test", "shared memory (/dev/shm)"])][
    ["check", "found", "verdict"]
]

# %% [markdown]
# **Look at** where the read test says that it read from. A file that was read or written a moment ago lies in the
# system's *cache*, in memory: whoever reads it twice and times the second time has measured that, and not the disk. So
# do not time a first epoch by a second one, nor the other way round.
#
# How much must a disk deliver? For each step the bytes of a batch:

# %%
in_text = sum(map(len, lines[:32]))
for what, size in {"as text": in_text, "as float32": 32 * 256 * 4, "as uint8": 32 * 256}.items():
    print(f"{what:11} {size / 1e3:6.1f} kB a batch of 32; a step of 2 ms needs {size / 2e-3 / 1e6:5.1f} MB/s")

# %% [markdown]
# An array in an `.npy` file need not be read as a whole: `np.load(path, mmap_mode="r")` *maps* it, and only the pages
# that you touch are read. `np.array(...)` or `torch.tensor(...)` of a row then makes a copy of that row alone.
#
# **Exercise 6.7.** Write `FromFile(path)`: a data set of the rows of a two-dimensional float32 array in such a file. An
# item is a row, as a float32 tensor **of its own** (somebody may write to it). It is tried on a file of 32 MiB, and
#
# - may take 4 MiB of memory at most to be made and to give a few rows;
# - must be light when it is sent to a worker that begins empty: what the object *holds* is copied for each of them,
#   and of a map that it holds, all that is mapped.


# %% answer 6.7
class FromFile:
    """The rows of an array in a file."""

    def __init__(self, path):
        """Keep what is light, of the file at a path."""
        ### BEGIN SOLUTION
        self.path = path
        ### END SOLUTION

    def __len__(self):
        """How many rows there are."""
        ### BEGIN SOLUTION
        return len(np.load(self.path, mmap_mode="r"))
        ### END SOLUTION

    def __getitem__(self, place):
        """One row, as a tensor with memory of its own."""
        ### BEGIN SOLUTION
        return torch.tensor(np.load(self.path, mmap_mode="r")[place])
        ### END SOLUTION


# %% check 6.7 points=3
labs.check("6.7", FromFile)

# %% [markdown]
# **Predict:** from which of the three does a sample come fastest, and from which slowest?

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
# `Parsed` keeps everything in memory and shifts; `FromFile` keeps nothing, and does not shift. If yours opens the file
# for each sample, most of its time is the opening; a data set that opens it at its *first* sample, in the worker, saves
# that.
#
# ## 6.8 Did it help?
#
# Back to the store far away. A batch of 5 samples is made in 40 ms or a little more, and used in 25. You give the
# loader **one** worker. The law of 6.6 tells what that brings: **predict** the speed-up.
#
# Lab 1 has taught you to run the two in turns. Let us do so by hand:


# %%
def stepper(workers):
    """A step that takes its batches from a loader of its own."""
    batches = feeder(Far(), 5, workers)
    use(next(batches))  # the worker starts here, and not in what is timed
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
# With a worker a step takes little more than 25 ms? The law says 40 or more. Think before you read on: what does
# the worker do while it is the *other* step's turn?
#
# It works on. Each time that its step comes round, a batch lies ready that was made in somebody else's time. In a true
# training no one is so kind. So the steps must run in *blocks*: many turns of the same step in a row, of which the
# first, those that use up what lies prepared, do not count. `perfnb.ab_test` looks for workers, and then does so.
#
# **Exercise 6.8.** Compare `stepper(0)` (first) and `stepper(1)` (second) by `perfnb.ab_test(a, b, budget_s=10)`; bind
# the result to `test`. Then give
#
# - `speedup`: how many times as fast is the second? (`test.ratio` is the second's time by the first's.)
# - `shown`: has this test *shown* that it is faster (`True` or `False`)? It has if the whole interval of the ratio,
#   `test.ratio_ci`, lies below 1. On a very busy machine it may not: then say so, or take a larger `budget_s`.

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
# **Look at** the line that says how many turns a block has, and hold the ratio against the law, and against the two
# times by hand. Turns, even in random order, lie if what is compared goes on in the other's turn.
#
# At last, leave the machine as you found it:

# %%
del none, one, each, times
gc.collect()
print("workers left:", len(multiprocessing.active_children()))

# %% [markdown]
# ## On a GPU
#
# One more copy comes in between: from the host's memory to the device. A profile there has a phase `host_to_device`.
# What is usually tried, and what to measure before you believe it: `pin_memory=True` in the loader (memory from which
# the device can fetch by itself) with `x.to(device, non_blocking=True)`, so that the copy runs beside the computing;
# and sending the smaller thing, such as `uint8`, and making floats of it there. None of this was measured in this lab.
#
# ## What you take with you
#
# - Whether a step waits for its data is **tried**: trivial model, kept batch, both. Do it before you touch the model.
# - First make a batch **cheaper**: parse once, copy less, one index for many rows. Keep random what is random.
# - Workers help where making a batch is *waiting*, or where cores are free: `make / use` of them. They are processes:
#   keep them between epochs, and see that they end.
# - Map large files. What a data set holds travels to every worker that begins empty.
# - With workers compare in **blocks**; a step in turns is fed in the other's time.
#
# `labs.export("lab_06.json")` writes your answers and what was measured of them, for a teacher. Next:
# [lab 7, *The optimisation loop*](07_the_optimisation_loop.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(6).complete, labs.progress(6)
### END HIDDEN TESTS
labs.progress(6)
