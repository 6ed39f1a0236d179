# %% [markdown]
# # Lab 6 · Feeding the model
#
# **Runs on** Linux or macOS: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes, of which the cells
# themselves take about a minute (or about two if each worker starts empty and imports torch again, as on macOS). It
# helps to have done [lab 1](01_measuring_honestly.ipynb) and [lab 2](02_where_does_a_step_go.ipynb).
#
# **Afterwards you can**
#
# - test whether a step is input-bound, and compute how much a perfect loader would save, before you write one;
# - make a batch cheaper without changing the training data: parse once, copy less, fetch many rows at once;
# - choose a loader's number of workers, recognise when workers do not help, and leave none behind;
# - read samples from a file that is larger than memory.
#
# **Predict** before each measurement, on paper or in your head. `labs.check` tests your answers on this machine. It
# tells you what is wrong without giving the answer away, and you can try as often as you like.

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
from collections import OrderedDict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # several threads wait for each other when other programs take a core away
torch.manual_seed(0)
folder = tempfile.TemporaryDirectory()  # vanishes with the kernel
sys.path.insert(0, folder.name)

# %% [markdown]
# ## Waiting for the scanner
#
# You have joined the meter office of a small waterworks. Customers write the reading of their water meter on a card, a
# scanner cuts the card into small images, one for each box, and a model, the *Reader*, recognises the characters. A
# script trains the Reader every night on the images of the day. Since the scanner was moved to another building, the
# script has not been finishing by the morning.
#
# Tom wrote down who works when. Here are the first eight steps of the night. (You do not need to read the code that
# draws the picture.)

# %%
FETCH_MS, USE_MS = 60, 25


def at_work(workers, make_ms, use_ms, steps):
    """Return when batches are made and used, as rows of (who, what, start, end) in milliseconds."""
    bars, makers, free, used_from = [], [0.0] * max(workers, 1), 0.0, []
    for number in range(steps):
        maker = number % len(makers)
        begin = makers[maker] if workers else free
        if workers and number >= 2 * workers:  # a worker is at most two batches ahead
            begin = max(begin, used_from[number - 2 * workers])
        made = makers[maker] = begin + make_ms
        bars.append((f"worker {maker + 1}" if workers else "model", "make", begin, made))
        start = max(free, made)
        if workers and start > free:
            bars.append(("model", "wait", free, start))
        used_from.append(start)
        free = start + use_ms
        bars.append(("model", "use", start, free))
    return bars


LOOKS = {
    "use": {"facecolors": "#0072B2", "label": "the model computes"},
    "make": {"facecolors": "#56B4E9", "hatch": "//", "label": "a batch is made"},
    "wait": {"facecolors": "#F0E442", "hatch": "xx", "label": "the model waits"},
}


def draw(ax, bars, rows):
    """Draw one row for the model and one for each worker."""
    for what, look in LOOKS.items():
        for row, who in enumerate(rows):
            here = [(start, end - start) for each, kind, start, end in bars if (each, kind) == (who, what)]
            if here:
                ax.broken_barh(here, (row - 0.35, 0.7), edgecolor="black", linewidth=0.7, **look)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)


def picture(workers, title):
    """Draw the night's first eight steps with this number of workers."""
    bars = at_work(workers, FETCH_MS, USE_MS, 8)
    end = max(bar[3] for bar in bars if bar[1] == "use")
    _, ax = plt.subplots(figsize=(8, 2.6), layout="constrained")
    draw(ax, bars, ["model", *(f"worker {number}" for number in range(1, 5))])
    handles, labels_ = ax.get_legend_handles_labels()
    each = dict(zip(labels_, handles, strict=True))
    ax.legend(each.values(), each.keys(), loc="lower right")
    ax.set_title(f"{title}: {end:.0f} ms, the model computes for {100 * 8 * USE_MS / end:.0f} % of them")
    ax.set(xlim=(0, 700), xlabel="ms")
    plt.show()


picture(0, "The script")

# %% [markdown]
# The Reader computes for less than a third of the night. For the rest of the night, the script makes its batches from
# images that it fetches over the network, and everything else waits. (The rows of the workers are still empty, because
# this script has no workers.) A faster model or a GPU would shorten the wrong part. At the end of this lab, you will
# draw this picture again, with your own loader.
#
# (The times in this picture are **planted**: it takes 60 ms to fetch a batch, and 25 ms to use it. All other times are
# measured on your computer.)
#
# ## Two data sets
#
# `Text` reads the scanner's own format, where each line contains a character and the 256 pixels of its box, separated
# by commas. (The scanner's images have 16 by 16 pixels. The other labs use them with 8 by 8 pixels.) A card is never in
# exactly the same place under the scanner, so each time a sample is fetched, its pixels are shifted (rolled) by a new
# random number, and the model never sees exactly the same sample twice. `Far` simulates the scanner in the other
# building: each sample takes 8 ms to arrive.
#
# There is a reason why both are written to a file, `lab_06_data.py`, and imported from there. A loader's **workers**
# are separate processes. On Linux (before Python 3.14), they are *forked*, so they have everything that the notebook
# has. On macOS, and on Linux since Python 3.14, they start empty and import what they need. They can import from a file
# but not from a notebook. If the class of a data set was defined in a cell, the loader fails with `Can't get attribute
# ...` and `DataLoader worker exited unexpectedly`. (They also start empty on Windows, which perfnb does not support.)
# In this lab, everything that workers use comes from a file, and the data sets that you write in cells run without
# workers.

# %%
# %%writefile {folder.name}/lab_06_data.py
import time

import torch


class Text:
    """Images that are parsed from lines of text, each with its own random shift."""

    def __init__(self, lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, place):
        label, *numbers = self.lines[place].split(",")
        pixels = torch.tensor([float(number) for number in numbers])
        shift = int(torch.randint(len(pixels), ()))
        return torch.roll(pixels, shift), int(label)


class Far:
    """Samples that take 8 ms each to arrive, without any computation."""

    def __len__(self):
        return 512

    def __getitem__(self, place):
        time.sleep(0.008)
        return torch.full((16,), float(place)), place


# %%
from lab_06_data import Far, Text

digits = load_digits()
images = np.kron(digits.images[:1024] / 16, np.ones((2, 2))).reshape(1024, 256)  # 16 by 16 pixels
characters = digits.target[:1024]
lines = [
    ",".join([str(label), *(f"{pixel:.3f}" for pixel in row)]) for label, row in zip(characters, images, strict=True)
]
print(lines[0][:60], "...")

loader = DataLoader(Text(lines), batch_size=32, shuffle=True)
model = nn.Sequential(OrderedDict(stem=nn.Linear(256, 128), act=nn.ReLU(), head=nn.Linear(128, 10)))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(batch):
    x, y = batch
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()


# %% [markdown]
# (In this lab, a Reader that only consists of its `stem` and its `head` is enough, because it reads single images.)
#
# ## 6.1 Three stopwatches
#
# **Predict:** what share of a step does this script spend waiting for its batch: a tenth, a half, nine tenths? The
# first line of the cell feeds the step from the loader, so waiting becomes a separate phase, `data`.

# %%
# %%profile_step --into p --name "images from text" --steps 10 --budget 6 --no-flops for x, y in loader
optimizer.zero_grad()
loss = loss_fn(model(x), y)
loss.backward()
optimizer.step()

# %% [markdown]
# **Look at** the phases, and at the verdict at the top: what limits this step?
#
# One line shows how often the step ran, and for what purpose. It first ran as a *warm-up* until it was in a **steady
# state**, which means that its times no longer fell. Only then was it *timed*, without any recording. The *traced*
# steps recorded which operators ran when, and the **counted pass** counted allocations (and FLOPs, unless they are
# switched off). Both start with a **lead-in**, a step that is left out because the recording has only just begun.
#
# A phase shows where the step *waited*. Whether a better loader would help is another question: on a GPU, or with
# workers, loading and computing overlap, and you cannot distinguish the two by looking at where the step waits. You
# have to *try it*. The classic test is to replace the real model with a **trivial** one, and then the loader with a
# batch that is kept in memory.
#
# **Exercise 6.1.** Write `three_times(loader, step)`, which returns a dictionary with the milliseconds **per batch** of
#
# - `together`: an epoch of the loader where each batch is passed to `step(batch)`;
# - `loader`: an epoch of the loader where the batches are ignored;
# - `model`: `len(loader)` calls to `step` with one batch that you keep (which you can get from `next(iter(loader))`).
#
# It is tested on a simulated loader and step that sleep for known times, and on a loader that prepares the next batch
# while the step runs.


# %% answer 6.1
def three_times(loader, step):
    """Return the milliseconds per batch: together, loader alone, and step alone."""
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
# Now use it on the real loader and step:

# %%
three_times(loader, step)

# %% [markdown]
# ## 6.2 A perfect loader
#
# You timed three blocks back to back. If another program runs during one of them, the comparison is unfair (lab 1).
# `perfnb.confirm_input_bound` runs the same three experiments (and two more) in short interleaved blocks in random
# order. It automatically substitutes the trivial model, even behind a loader with workers, and restores the weights at
# the end.
#
# **Predict:** how many times as fast would the step be if the *loader* took no time? And if the *model* took no time?

# %%
t = perfnb.confirm_input_bound(step, loader, model, budget_s=4)
t

# %% [markdown]
# **Look at** the bars: which of the two alone is nearly as long as both together?
#
# **Exercise 6.2.** Use `t.times["median_ms"]`, whose rows are `together`, `loader`, `model` and two more. How many
# times as fast (2.0 means twice as fast) would the step be with a `perfect_loader`, which leaves the *model alone*? And
# how many times as fast with a `perfect_model`, which leaves the *loader alone*?

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
# The second figure is the most that you could gain by improving the model, whether with a faster optimizer, a smaller
# network or a GPU. If you start there, your work is wasted.
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
# Parsing the same line always produces the same numbers. It is therefore enough to parse all lines once, when the data
# set is created (in `__init__`), and to keep the tensors.
#
# **Exercise 6.3.** Write `Parsed`, a data set like `Text` with the same length, labels and pixels, and still with a
# **new random** shift each time a sample is fetched. However, a sample must take less than half the time. Your class is
# tested on lines other than yours. (As long as the class is empty, it *is* a `Text`.)


# %% answer 6.3
class Parsed(Text):
    """The samples of `Text`, with each line parsed only once."""

    ### BEGIN SOLUTION
    def __init__(self, lines):
        rows = [line.split(",") for line in lines]
        self.labels = [int(row[0]) for row in rows]
        self.pixels = [torch.tensor([float(number) for number in row[1:]]) for row in rows]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        pixels = self.pixels[place]
        return torch.roll(pixels, int(torch.randint(len(pixels), ()))), self.labels[place]

    ### END SOLUTION


# %% check 6.3 points=3
labs.check("6.3", Parsed, slow=Text)

# %% [markdown]
# Caching the sample *after* the shift would be even faster, but the Reader would then train on 1,024 frozen samples
# instead of new ones each time. That is a different training, and no stopwatch would notice the difference. **What is
# random must stay random.**
#
# Did the step become faster? Here are two loaders, each with its step. Neither has workers, so interleaving is fair.


# %%
def fed(loader):
    """Return a step that takes its batches from a loader, over and over again."""

    def batches():
        while True:
            yield from loader

    endless = batches()
    return lambda: step(next(endless))


perfnb.ab_test(fed(loader), fed(DataLoader(Parsed(lines), batch_size=32, shuffle=True)), budget_s=3)

# %% [markdown]
# ## 6.4 Copies
#
# The rest of the work is less visible. The numbers in a batch are **copied** from one tensor to the next, from samples
# to a batch, from a worker to the trainer, and from there to a GPU. Each copy takes memory and time.
#
# Go back to `Text` and its loader. Follow one number on its way from its line into a tensor, and on until it is in `x`.
# The loader assembles a batch with `torch.stack`.
#
# **Exercise 6.4.** Before you look at the profile, work out two numbers by hand: `batch_bytes`, the number of bytes in
# the `x` of a batch of 32 (pixels are float32), and `written`, the number of times that each number is written to a
# *new tensor* until it is in `x` (including `x` itself).

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
# The profile recorded every allocation of one step and its phase. Here are the allocations in the `data` phase, by
# size. **Look at** the 64 allocations of 1,024 bytes, which are two per sample. (The smaller ones are the labels and
# the shifts. If an epoch started in this step, `randperm` also drew its order. Allocations from before the step are
# left out. The previous batch exists until the next one is assigned to `x`, so there are two batches at a time.)

# %%
made = p.allocations.query("phase == 'data' and start_ns >= 0")
made.groupby(["bytes", "op"], observed=True).size().rename("allocations").reset_index()

# %% [markdown]
# ## 6.5 One index for a batch
#
# Each morning, the Reader is tested on a fixed set of images. They are not shifted, so they can be kept in memory as
# two tensors, ready to use. What could be faster?
#
# **Predict:** what share of the step will waiting for data take now?

# %%
pixels, labels = torch.tensor(images, dtype=torch.float32), torch.tensor(characters)
test_loader = DataLoader(TensorDataset(pixels, labels), batch_size=64)


# %%
def evaluate(batch):
    with torch.no_grad():
        model(batch[0])


q = perfnb.profile_step(evaluate, test_loader, name="a test set", steps=10, budget_s=3, memory=False, flops=False)
print(f"waiting for data: {q.phases.loc['data', 'share']:.0%}")

# %% [markdown]
# The loader fetches 64 rows one by one, makes 64 pairs, and stacks them again, although a *single* index,
# `pixels[rows]`, returns the whole batch.
#
# **Exercise 6.5.** Write `at_once(dataset, batch_size)`, which turns a `TensorDataset` into a loader that can be
# iterated repeatedly. Each epoch must yield every sample once, in a **new random** order and in batches of `batch_size`
# (the last batch may be smaller). This is what `DataLoader(dataset, batch_size, shuffle=True)` does, but your loader
# must take less than half of its time.
#
# Here is a hint: `dataset[rows]`, with a list or tensor of row numbers, indexes all of them at once. You can write a
# class whose `__iter__` draws an order and cuts it into batches. Or you can look up in `help(DataLoader)` how
# `batch_size=None` changes its requests to the data set, and what you can then pass as its `sampler`.


# %% answer 6.5
def at_once(dataset, batch_size):
    """Return a loader that takes all rows of a batch with a single index."""
    ### BEGIN SOLUTION
    usual = DataLoader(dataset, batch_size, shuffle=True)
    return DataLoader(dataset, sampler=usual.batch_sampler, batch_size=None)
    ### END SOLUTION


# %% check 6.5 points=2
labs.check("6.5", at_once)

# %% [markdown]
# The profile `q` has a finding about this. Compare its recommendation with your loader. The recommended code keeps the
# order of the original loader, while yours has to shuffle.

# %%
for finding in q.findings.head(1).to_dict("records"):
    print(f"{finding['bottleneck']}: at most {finding['bound_share']:.0%}\n{finding['advice']}\n\n{finding['code']}")

# %% [markdown]
# ## 6.6 Enough workers
#
# A loader with `num_workers=2` has two processes that prepare batches while the step runs. One of our two data sets
# *parses*, and the other *waits*. **Predict** for each of them: how much will you gain with 1 and with 3 workers on
# this machine?
#
# The step below only sleeps for 10 ms, like a CPU that waits while a GPU computes. The workers therefore have the cores
# to themselves, whereas a step that computes on the CPU would compete with them. Meanwhile, `perfnb.watch` records what
# percentage of a core this process and its workers use. (torch warns about more workers than cores; the cell suppresses
# the warning.)

# %%
warnings.filterwarnings("ignore", message="This DataLoader will create")


def feeder(dataset, batch_size, workers):
    """Yield an endless supply of batches from a separate loader."""
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    while True:
        yield from loader


def use(batch, ms=10):
    """Simulate a step on a device that computes for 10 ms."""
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
table = pd.DataFrame({"ms per step": pd.Series(found), "CPU %": pd.Series(cpu, dtype=float)}).round(1)
table.rename_axis(["data set", "workers"])

# %% [markdown]
# **Look at** both columns. `Text` uses more CPU time with each worker, up to the number of free cores. It cannot become
# faster than these cores allow, so you gain nothing from more workers than cores. `Far` uses hardly any CPU time,
# because its workers only wait, so there may be more workers than cores. The cure for `Text` is a cheaper batch (6.3),
# and the cure for `Far` is more workers.
#
# How many workers do you need? Here are the first six steps with batches that take 16 ms to make and 10 ms to use, for
# 0, 1 and 2 workers:

# %%
_, axes = plt.subplots(3, 1, figsize=(8, 4.2), height_ratios=(1.2, 2, 3), sharex=True, layout="constrained")
for ax, workers in zip(axes, (0, 1, 2), strict=True):
    draw(ax, at_work(workers, 16, 10, 6), ["model", *(f"worker {number + 1}" for number in range(workers))])
    ax.set_title(f"{workers} worker{'' if workers == 1 else 's'}")
handles, found_labels = axes[1].get_legend_handles_labels()
each = dict(zip(found_labels, handles, strict=True))
axes[0].legend(each.values(), each.keys(), loc="upper left", bbox_to_anchor=(1.01, 1))
axes[2].set_xlabel("ms")
plt.show()

# %% [markdown]
# **Look at** the rows of the model. Without workers, a step takes `make + use`. With *n* workers, a batch arrives every
# `make / n`, and the step takes this time or `use`, whichever is longer. Here is this law next to the measured times of
# `Far`. (On a busy machine, the measured times are longer than predicted, because every batch also waits for a core.)

# %%
make_ms = found["Far", 0] - 10
for workers in (0, 1, 3):
    law = max(10, make_ms / workers) if workers else make_ms + 10
    print(f"{workers} workers: measured {found['Far', workers]:5.1f} ms per step, by the law {law:5.1f} ms")

# %% [markdown]
# **Exercise 6.6.** Write `make_loader(dataset, batch_size, make_ms, use_ms)` for data that *waits*. It must return a
# `DataLoader`
#
# - that shuffles, and returns every sample once per epoch;
# - with just enough workers to keep the step from waiting. There must be at least one. One more than needed is fine,
#   because times vary, but twice as many are not, because each worker is a process with its own memory;
# - that **keeps** its workers from one epoch to the next (`feeder` has the option);
# - and whose workers end as soon as nothing refers to the loader any more.
#
# The check requests loaders for several speeds, runs two epochs of each, counts the processes that made the batches,
# drops the loader, and counts the processes that are left.


# %% answer 6.6
def make_loader(dataset, batch_size, make_ms, use_ms):
    """Return a loader with enough workers, but not more."""
    ### BEGIN SOLUTION
    workers = math.ceil(make_ms / use_ms)
    return DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=True)
    ### END SOLUTION


# %% check 6.6 points=3
labs.check("6.6", make_loader)

# %% [markdown]
# It is particularly easy to leave workers behind in a notebook: `it = iter(loader)` in a cell keeps them alive until
# `it` is gone, and a loader with `persistent_workers=True` keeps them alive until the loader is gone. Each of them
# keeps everything that it has loaded in memory. `multiprocessing.active_children()` lists them.
#
# ## 6.7 From a file
#
# The images from a whole year do not fit in memory, so they stay on disk. How fast is your disk? And is there room for
# the batches that workers pass on? (They go through `/dev/shm`, which is often small in containers. The usual symptom
# is a *bus error* in a worker.)

# %%
checks = perfnb.system_check(data=folder.name).checks
checks[checks["check"].isin(["disk of the data", "read test", "shared memory (/dev/shm)"])][
    ["check", "found", "verdict"]
]

# %% [markdown]
# **Look at** the row of the read test: did it read from the disk or from the cache? A recently read or written file is
# in the system's *cache*, in memory. If you read a file twice and time the second read, you measure the cache rather
# than the disk. You should therefore not predict a first epoch from a second one, or the other way round.
#
# How much data must the disk deliver? It must deliver the bytes of one batch in each step:

# %%
in_text = sum(map(len, lines[:32]))
for what, size in {"as text": in_text, "as float32": 32 * 256 * 4, "as uint8": 32 * 256}.items():
    print(f"{what:11} {size / 1e3:6.1f} kB per batch of 32; a step of 2 ms needs {size / 2e-3 / 1e6:5.1f} MB/s")

# %% [markdown]
# You do not have to read all of an array in an `.npy` file: `np.load(path, mmap_mode="r")` *maps* it, and the system
# reads only the pages that you touch. `np.array(...)` or `torch.tensor(...)` of a row then copies only that row.
#
# **Exercise 6.7.** Write `FromFile(path)`, a data set that contains the rows of a two-dimensional float32 array in such
# a file. An item is a row as a separate float32 tensor (a **copy**, because someone may write to it). It is tested on a
# file of 32 MiB. Your data set
#
# - may use at most 4 MiB of memory to be created and to return a few rows;
# - must be cheap to send to a worker that starts empty. Everything that the object *contains* is copied for each
#   worker, and for a memory map this is the entire mapped array.


# %% answer 6.7
class FromFile:
    """A data set with the rows of an array in a file."""

    def __init__(self, path):
        """Only keep the path, which is cheap to copy."""
        ### BEGIN SOLUTION
        self.path = path
        ### END SOLUTION

    def __len__(self):
        """Return the number of rows."""
        ### BEGIN SOLUTION
        return len(np.load(self.path, mmap_mode="r"))
        ### END SOLUTION

    def __getitem__(self, place):
        """Return one row as a tensor with its own memory."""
        ### BEGIN SOLUTION
        return torch.tensor(np.load(self.path, mmap_mode="r")[place])
        ### END SOLUTION


# %% check 6.7 points=3
labs.check("6.7", FromFile)

# %% [markdown]
# **Predict:** which of the three data sets returns a sample fastest, and which is the slowest?

# %%
path = Path(folder.name) / "images.npy"
np.save(path, pixels.numpy())
for what, dataset in {"Text": text, "Parsed": Parsed(lines), "FromFile": FromFile(path)}.items():
    times = []
    for place in range(200):
        began = time.perf_counter()
        dataset[place]
        times.append((time.perf_counter() - began) * 1e6)
    print(f"{what:9} {statistics.median(times):6.1f} µs per sample")

# %% [markdown]
# `Parsed` keeps everything in memory and shifts the samples, whereas `FromFile` keeps nothing and does not shift. If
# your data set opens the file for every sample, opening it takes most of the time. You can avoid this by opening the
# file for the *first* sample, in the worker.
#
# ## 6.8 Did it help?
#
# Back to the scanner in the other building. Making a batch of 5 samples takes 40 ms or a little more, and using it
# takes 25 ms. The loader has **one** worker. **Predict** the speed-up with the law from 6.6.
#
# To compare two steps fairly, you interleave them, as in lab 1. Let us do this by hand:


# %%
def stepper(workers):
    """Return a step that takes its batches from its own loader."""
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
# Does a step with a worker really take little more than 25 ms? According to the law, it should take 40 ms or more.
# Before you continue, think about the worker's activity during the *other* step's turn.

# %%
rows = {  # in ms: when the making of a batch starts, and when its use starts
    "step without worker": ((0, 90, 180), (40, 130, 220)),
    "step with worker": ((), (65, 155, 245)),
    "the worker": ((0, 65, 155), ()),
}
_, ax = plt.subplots(figsize=(8, 2.3), layout="constrained")
for row, (made_at, used_at) in enumerate(rows.values()):
    ax.broken_barh(
        [(start, 40) for start in made_at], (row - 0.35, 0.7), facecolors="#56B4E9", edgecolor="black", hatch="//"
    )
    ax.broken_barh([(start, 25) for start in used_at], (row - 0.35, 0.7), facecolors="#0072B2", edgecolor="black")
ax.set_yticks(range(3), rows)
ax.set_ylim(2.5, -0.5)
ax.set_xlabel("ms; hatched: a batch is made; plain: it is used")
plt.show()

# %% [markdown]
# **Look at** the last row. The worker starts on the next batch as soon as one is taken, and it continues to work while
# the other step has its turn. Each time its own step comes round, a batch is ready, part of which was made during the
# other step's turn. In real training, nobody does you that favour. The steps must therefore run in *blocks*: many runs
# of the same step back to back, of which the first runs do not count because they consume prefetched batches.
# `perfnb.ab_test` looks for workers, and runs blocks if it finds any.
#
# **Exercise 6.8.** Use `perfnb.ab_test(a, b, budget_s=10)` to compare `stepper(0)` (first) and `stepper(1)` (second),
# and bind the result to `test`. Then give
#
# - `speedup`: how many times as fast the second step is. (`test.ratio` is the time of the second step divided by that
#   of the first.)
# - `shown`: whether this test has *shown* that it is faster (`True` or `False`). This is the case if the entire
#   interval of the ratio, `test.ratio_ci`, is below 1. On a very busy machine it may not be. In that case, answer
#   `False` or use a larger `budget_s`.

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
# **Look at** the note about blocks, and compare the ratio with the law and with the two times that you measured by
# hand. Interleaving, even in random order, is misleading if work continues during the other step's turn.
#
# Finally, leave the machine as you found it:

# %%
del none, one, each, times
gc.collect()
print("workers left:", len(multiprocessing.active_children()))

# %% [markdown]
# ## The night again
#
# Tom uses your `make_loader` in the script. Here are the same eight steps on the same axes, with the same planted times
# and with your loader's number of workers:

# %%
own = make_loader(Far(), 32, FETCH_MS, USE_MS)
if getattr(own, "num_workers", None) is None:
    print("Write make_loader first, exercise 6.6.")
else:
    picture(own.num_workers, f"With {own.num_workers} workers")

# %% [markdown]
# After the first batch, the model never waits. The workers fetch as slowly as before, but they do it side by side, and
# each batch is there when it is needed. A batch now takes 25 ms instead of 85 ms, although no part of the model has
# become faster.
#
# ## On a GPU
#
# On a GPU, there is one more copy, from host memory to the device. A profile on a GPU therefore has a phase
# `host_to_device`. The usual remedies are `pin_memory=True` in the loader (memory that the device can read directly)
# together with `x.to(device, non_blocking=True)`, and sending something smaller, such as `uint8`, which becomes float
# on the device. [Lab 8](08_someone_elses_trace.ipynb) measures the first of these remedies in a trace from a real GPU.
#
# ## Takeaways
#
# - To find out whether a step is input-bound, **test it** with a trivial model, with a cached batch, and with both. Do
#   it before you touch the model.
# - First make a batch **cheaper**: parse once, copy less, and use one index for many rows. What is random must stay
#   random.
# - Workers help if making a batch is mostly *waiting*, or if cores are free: you need `make / use` of them. Workers are
#   processes, so keep them between epochs, and make sure that they end.
# - Memory-map large files. Everything that a data set contains is sent to every worker that starts empty.
# - With workers, compare in **blocks**, because an interleaved step gets its batches during the other step's turn.
#
# `labs.export("lab_06.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 7, *The
# optimisation loop*](07_the_optimisation_loop.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(6).complete, labs.progress(6)
### END HIDDEN TESTS
labs.progress(6)
