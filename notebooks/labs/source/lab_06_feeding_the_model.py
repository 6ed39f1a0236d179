# %% [markdown]
# # Lab 6 · Feeding the model
#
# **Runs on** Linux or macOS: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes; the cells themselves
# take about a minute (about two where each worker starts empty and imports torch again, as on macOS). It helps to have
# done [lab 1](01_measuring_honestly.ipynb) and [lab 2](02_where_does_a_step_go.ipynb).
#
# **Afterwards you can**
#
# - test whether a step is input-bound, and compute how much a perfect loader would save, before you write one;
# - make a batch cheaper without changing the training data: parse once, copy less, fetch many rows at once;
# - choose the number of workers of a loader, recognise when they do not help, and leave none behind;
# - read samples from a file that is larger than memory.
#
# **Predict** before each measurement, on paper or in your head. `labs.check` tests your answers on this machine. It
# names the mistake, never the answer, and you can try as often as you like.

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
# script trains the Reader every night on the images of the day. Since the scanner has moved to another building, the
# script is not done by the morning.
#
# Tom noted who works when. Here are the first eight steps of the night. (You need not read the code that draws a
# picture.)

# %%
FETCH_MS, USE_MS = 60, 25


def at_work(workers, make_ms, use_ms, steps):
    """When batches are made and used: rows of (who, what, start, end) in ms."""
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
    """One row for the model and one for each worker."""
    for what, look in LOOKS.items():
        for row, who in enumerate(rows):
            here = [(start, end - start) for each, kind, start, end in bars if (each, kind) == (who, what)]
            if here:
                ax.broken_barh(here, (row - 0.35, 0.7), edgecolor="black", linewidth=0.7, **look)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)


def picture(workers, title):
    """The night's first eight steps with so many workers."""
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
# The Reader computes for less than a third of the night. For the rest, the script makes its batches from images that it
# fetches over the network, and everything else waits. (The rows of the workers are still empty, because this script has
# none.) A faster model, or a GPU, would shorten the wrong part. At the end of this lab, you draw this picture again,
# with a loader of your own.
#
# (The times in this picture are **planted**: 60 ms to fetch a batch, 25 ms to use it. All others are measured on your
# computer.)
#
# ## Two data sets
#
# `Text` is the scanner's own format: each line has a character and the 256 pixels of its box, separated by commas. (The
# scanner's images are 16 by 16; the other labs use them at 8 by 8.) A card is never in exactly the same place under the
# scanner, so each time a sample is fetched, its pixels are shifted (rolled) by a new random number, and the model never
# sees exactly the same sample twice. `Far` simulates the scanner in the other building: each sample takes 8 ms to
# arrive.
#
# They are written to a file, `lab_06_data.py`, and imported from there, for a reason. A loader's **workers** are
# separate processes. Linux *forks* them (before Python 3.14), so they know everything that the notebook knows; on
# macOS, and on Linux from Python 3.14 on, they start empty and import what they need. They can import from a file but
# not from a notebook: a data set whose class was defined in a cell fails with `Can't get attribute ...` and `DataLoader
# worker exited unexpectedly`. (Windows starts them empty, too; perfnb does not support it.) In this lab, everything
# that workers use comes from a file; the data sets that you write in cells run without workers.

# %%
# %%writefile {folder.name}/lab_06_data.py
import time

import torch


class Text:
    """Images from lines of text, each with its own random shift."""

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
    """Samples that each take 8 ms to arrive, without computing anything."""

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
# (For single images, a Reader without blocks is enough in this lab: its `stem` and its `head`.)
#
# ## 6.1 Three stopwatches
#
# **Predict:** what share of a step does this script spend waiting for its batch: a tenth, a half, nine tenths? The
# first line of the cell feeds it from the loader, so waiting becomes a phase of its own, `data`.

# %%
# %%profile_step --into p --name "images from text" --steps 10 --budget 6 --no-flops for x, y in loader
optimizer.zero_grad()
loss = loss_fn(model(x), y)
loss.backward()
optimizer.step()

# %% [markdown]
# **Look at** the phases, and at the verdict at the top: what limits this step?
#
# One line counts how often the step ran, and for what. It ran as a *warm-up* until it was in a **steady state**, that
# is, until its times no longer fell. Only then was it *timed*, without any recording. The *traced* steps recorded which
# operators ran when, and the **counted pass** counted allocations (and FLOPs, unless they are switched off). Both start
# with a **lead-in**, a step that is left out because the recording has only just begun.
#
# A phase shows where the step *waited*. Whether a better loader would help is another question: on a GPU, or with
# workers, loading and computing overlap, and the place where the step waits does not tell them apart. So you *try it*.
# The classic test is to replace the real model by a **trivial** one, and then the loader by a batch kept in memory.
#
# **Exercise 6.1.** Write `three_times(loader, step)`: a dictionary with the milliseconds **per batch** of
#
# - `together`: an epoch of the loader, where each batch is given to `step(batch)`;
# - `loader`: an epoch of the loader, where the batches are ignored;
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
# You timed three blocks back to back. If another program runs during one of them, the comparison is unfair (lab 1).
# `perfnb.confirm_input_bound` runs the same three (and two more) in short interleaved blocks in random order. It
# substitutes the trivial model by itself, even behind a loader with workers, and restores the weights at the end.
#
# **Predict:** how many times as fast would the step be if the *loader* took no time? And if the *model* took no time?

# %%
t = perfnb.confirm_input_bound(step, loader, model, budget_s=4)
t

# %% [markdown]
# **Look at** the bars: which of the two alone is nearly as long as both together?
#
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
# The second figure is the most that any work on the model could gain here: a faster optimizer, a smaller network, a
# GPU. If you start there, your work is wasted.
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
# **Exercise 6.3.** Write `Parsed`, a data set like `Text`: the same length, labels and pixels, and still a **new
# random** shift each time a sample is fetched; but a sample takes less than half the time. It is tested on other lines
# than yours. (While it is empty, it *is* a `Text`.)


# %% answer 6.3
class Parsed(Text):
    """The samples of `Text`, each line parsed once."""

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
# Caching the sample *after* the shift would be even faster, but then the Reader trains on 1,024 frozen samples instead
# of ever new ones. That is a different training, and no stopwatch will notice. **What is random must stay random.**
#
# Did the step become faster? Here are two loaders, each with its step. Neither has workers, so interleaving is fair.


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
# **Exercise 6.4.** By hand, before you look: `batch_bytes`, the number of bytes in the `x` of a batch of 32 (pixels are
# float32); and `written`, how many times each number is written to a *new tensor* until it is in `x` (`x` itself
# counts, too).

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
# `pixels[rows]`, gives the whole batch.
#
# **Exercise 6.5.** Write `at_once(dataset, batch_size)`: from a `TensorDataset`, a loader that can be iterated
# repeatedly. Each epoch gives every sample once, in a **new random** order, in batches of `batch_size` (the last may be
# smaller), like `DataLoader(dataset, batch_size, shuffle=True)`, but in less than half of its time.
#
# Useful: `dataset[rows]`, with a list or tensor of row numbers, indexes all of them at once. Write a class whose
# `__iter__` draws an order and cuts it into batches. Or look up in `help(DataLoader)` how `batch_size=None` changes its
# requests to the data set, and what its `sampler` may be then.


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
# two data sets, one that *parses* and one that *waits*: how much will 1 and 3 workers gain on this machine?
#
# The step below only sleeps, for 10 ms, like a CPU while a GPU computes. So the workers have the cores to themselves; a
# step that computes here would compete with them. Meanwhile `perfnb.watch` records how many percent of a core this
# process and its workers use. (torch warns about more workers than cores; the cell suppresses the warning.)

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
table = pd.DataFrame({"ms per step": pd.Series(found), "CPU %": pd.Series(cpu, dtype=float)}).round(1)
table.rename_axis(["data set", "workers"])

# %% [markdown]
# **Look at** both columns. `Text` uses CPU, more with each worker, up to the number of free cores; it cannot get faster
# than these allow, and more workers than cores gain nothing. `Far` uses hardly any: its workers wait, and there may be
# more of them than cores. The cure for the first is a cheaper batch (6.3), for the second more workers.
#
# How many? Here are the first six steps with batches that take 16 ms to make and 10 ms to use, for 0, 1 and 2 workers:

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
# `make / n`, and the step takes that or `use`, whichever is longer. Here is this law next to the measured times of
# `Far`. (On a busy machine the measured times are above it, because every batch also waits for a core.)

# %%
make_ms = found["Far", 0] - 10
for workers in (0, 1, 3):
    law = max(10, make_ms / workers) if workers else make_ms + 10
    print(f"{workers} workers: measured {found['Far', workers]:5.1f} ms per step, by the law {law:5.1f} ms")

# %% [markdown]
# **Exercise 6.6.** Write `make_loader(dataset, batch_size, make_ms, use_ms)` for data that *waits*: a `DataLoader`
#
# - that shuffles, and gives every sample once in each epoch;
# - with just enough workers that the step does not wait (at least one; one more than needed is fine, because times
#   vary, but not twice as many: each is a process with its own memory);
# - that **keeps** its workers from one epoch to the next (`feeder` has the option);
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
# gone, and a loader with `persistent_workers=True` keeps them until the loader is gone. Each holds all that it has
# loaded. `multiprocessing.active_children()` lists them.
#
# ## 6.7 From a file
#
# The images of a whole year do not fit in memory, so they stay on disk. How fast is yours? And is there room for the
# batches that workers pass on? (They go through `/dev/shm`, which is often small in containers; the usual symptom is a
# *bus error* in a worker.)

# %%
checks = perfnb.system_check(data=folder.name).checks
checks[checks["check"].isin(["disk of the data", "read test", "shared memory (/dev/shm)"])][
    ["check", "found", "verdict"]
]

# %% [markdown]
# **Look at** the row of the read test: did it read from the disk or from the cache? A recently read or written file is
# in the system's *cache*, in memory. If you read it twice and time the second read, you measure the cache, not the
# disk. So do not predict a first epoch from a second one, or the other way round.
#
# How much must the disk deliver? The bytes of one batch for each step:

# %%
in_text = sum(map(len, lines[:32]))
for what, size in {"as text": in_text, "as float32": 32 * 256 * 4, "as uint8": 32 * 256}.items():
    print(f"{what:11} {size / 1e3:6.1f} kB per batch of 32; a step of 2 ms needs {size / 2e-3 / 1e6:5.1f} MB/s")

# %% [markdown]
# You do not have to read all of an array in an `.npy` file: `np.load(path, mmap_mode="r")` *maps* it, and the system
# reads only the pages that you touch. `np.array(...)` or `torch.tensor(...)` of a row then copies only that row.
#
# **Exercise 6.7.** Write `FromFile(path)`: a data set of the rows of a two-dimensional float32 array in such a file. An
# item is a row as a separate float32 tensor (a **copy**, because someone may write to it). It is tested on a file of 32
# MiB, and
#
# - may use at most 4 MiB of memory to be created and to return a few rows;
# - must be cheap to send to a worker that starts empty: everything that the object *holds* is copied for each worker,
#   and for a memory map that is the entire mapped array.


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
# `Parsed` keeps everything in memory and shifts; `FromFile` keeps nothing and does not shift. If yours opens the file
# for every sample, opening takes most of the time; a data set that opens it on its *first* sample, in the worker,
# avoids that.
#
# ## 6.8 Did it help?
#
# Back to the scanner in the other building. Making a batch of 5 samples takes 40 ms or a little more, using it 25 ms.
# You give the loader **one** worker. **Predict** the speed-up by the law of 6.6.
#
# To compare two steps fairly, you interleave them, as in lab 1. Let us do that by hand:


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
# With a worker, a step takes little more than 25 ms? By the law, it should be 40 ms or more. Think before you continue:
# what is the worker doing during the *other* step's turn?

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
# **Look at** the last row. The worker starts on the next batch as soon as one is taken, and keeps working while the
# other step has its turn. Each time its own step comes round, a batch is ready, part of which was made on the other's
# time. In real training nobody does you that favour. So the steps must run in *blocks*: many runs of the same step back
# to back, of which the first ones, which consume prefetched batches, do not count. `perfnb.ab_test` looks for workers,
# and runs blocks if it finds any.
#
# **Exercise 6.8.** Compare `stepper(0)` (first) and `stepper(1)` (second) by `perfnb.ab_test(a, b, budget_s=10)`; bind
# the result to `test`. Then give
#
# - `speedup`: how many times as fast is the second? (`test.ratio` is the time of the second divided by the first.)
# - `shown`: has this test *shown* that it is faster (`True` or `False`)? It has if the entire interval of the ratio,
#   `test.ratio_ci`, is below 1. On a very busy machine it may not be: then the answer is `False`, or you use a larger
#   `budget_s`.

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
# **Look at** the note about blocks, and compare the ratio with the law and with the two times measured by hand.
# Interleaving, even in random order, misleads if work continues during the other's turn.
#
# Finally, leave the machine as you found it:

# %%
del none, one, each, times
gc.collect()
print("workers left:", len(multiprocessing.active_children()))

# %% [markdown]
# ## The night again
#
# Tom puts your `make_loader` into the script. Here are the same eight steps, with the same planted times and on the
# same axes, with as many workers as your loader has:

# %%
own = make_loader(Far(), 32, FETCH_MS, USE_MS)
if getattr(own, "num_workers", None) is None:
    print("Write make_loader first, exercise 6.6.")
else:
    picture(own.num_workers, f"With {own.num_workers} workers")

# %% [markdown]
# After the first batch, the model never waits. The workers fetch as slowly as before, but side by side, and each batch
# is there when it is needed. A batch now takes 25 ms instead of 85, and no part of the model has become faster.
#
# ## On a GPU
#
# There is one more copy: from host memory to the device. A profile on a GPU has a phase `host_to_device`. The usual
# remedies are `pin_memory=True` in the loader (memory that the device can read directly) with `x.to(device,
# non_blocking=True)`, and sending something smaller, such as `uint8`, which becomes float on the device. [Lab
# 8](08_someone_elses_trace.ipynb) measures the first of them in a trace of a real GPU.
#
# ## Takeaways
#
# - To find out whether a step is input-bound, **test it** with a trivial model, with a cached batch, and with both. Do
#   it before you touch the model.
# - First make a batch **cheaper**: parse once, copy less, one index for many rows. What is random must stay random.
# - Workers help if making a batch is mostly *waiting*, or if cores are free: you need `make / use` of them. They are
#   processes: keep them between epochs, and make sure that they end.
# - Memory-map large files. All that a data set holds is sent to every worker that starts empty.
# - With workers, compare in **blocks**: an interleaved step gets its batches on the other's time.
#
# `labs.export("lab_06.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 7, *The
# optimisation loop*](07_the_optimisation_loop.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(6).complete, labs.progress(6)
### END HIDDEN TESTS
labs.progress(6)
