# %% [markdown]
# # Lab 10 · More than one process
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 70 to 90 minutes, of which the cells
# themselves take one to two minutes, because they start nine processes. You should know what a gradient, a training
# step and a median are. It helps to have done [lab 1](01_measuring_honestly.ipynb).
#
# **Afterwards you can**
#
# - start a job with several processes from a notebook, and state how well it scales, with an interval;
# - compute how many bytes each process sends per step, in how many transfers, and in what order;
# - accumulate gradients and send them once, without changing the result;
# - distinguish communication that costs time from communication that is hidden, and find the process that the others
#   wait for;
# - state what a perfect overlap of communication and computation could save, and what it could not.
#
# **Predict** before you measure, on paper or in your head. `labs.check` tests your answers. It tells you what is wrong
# without giving the answer away, and you can try as often as you like. Nothing that it judges depends on how fast or
# how busy your computer is.

# %%
import tempfile
import urllib.request
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn

import perfnb
from perfnb import labs
from perfnb.labs.made_job import CountedModel, planted_step, write_job

folder = tempfile.TemporaryDirectory()  # vanishes with the notebook's process

# %% [markdown]
# ## The second core
#
# You have joined the meter office of a small waterworks. Customers write the number of their water meter and its
# reading on a card. A scanner cuts each card into 128 small images, one for each box of the card, and the office's
# model, the *Reader*, turns them into characters. Maya's script trains the Reader every night, and it is not done by
# the morning.
#
# Each step of the script learns from 24 cards. They do not fit into memory at the same time, so the script divides them
# into four **parts** of six cards. It runs the forward and the backward pass for each part, lets the gradients add up,
# and then updates the weights once. This is called **gradient accumulation**.
#
# The office computer has two cores, and the script uses one. So Tom starts it twice, with PyTorch's
# `DistributedDataParallel` (**DDP**). Each of the two processes, the **ranks** of the job, has a copy of the Reader and
# learns from its own cards. There are two scanners, so each rank reads one of their folders: rank 0 the village's (two
# cards per part), and rank 1 the town's (four). After a backward pass, the ranks add up their gradients, so that both
# copies of the Reader make the same update.
#
# Tom expects half the time. Here is one step, before and after:

# %%
COLOURS = {"computing": "#0072B2", "sending": "#E69F00", "waiting": "#DDDDDD"}
BYTES = 2_417_704  # of all gradients of the Reader


def picture(two, title):
    """Plot one step on one process and on two ranks."""
    alone = planted_step(cards=[6])
    lanes = {"one process": alone, "rank 0": two[two["rank"] == 0], "rank 1": two[two["rank"] == 1]}
    _, ax = plt.subplots(figsize=(9, 2.6), layout="constrained")
    for place, work in enumerate(lanes.values()):
        for what, colour in COLOURS.items():
            of = work[work["what"] == what]
            spans = list(zip(of["start_ms"], of["end_ms"] - of["start_ms"], strict=True))
            y = (place + 0.15, 0.2) if what == "sending" else (place - 0.4, 0.55)
            hatch = "///" if what == "waiting" else None
            ax.broken_barh(
                spans, y, facecolor=colour, edgecolor="white", hatch=hatch, label=what if place == 1 and spans else ""
            )
        ax.annotate(f"{work['end_ms'].max():.0f} ms", (work["end_ms"].max() + 0.7, place), va="center")
    speedup = alone["end_ms"].max() / two["end_ms"].max()
    ax.set_title(f"{title}: {speedup:.2f} times as fast, efficiency {speedup / 2:.0%}")
    ax.set_yticks(range(3), lanes)
    ax.invert_yaxis()
    ax.set_xlim(0, 140)
    ax.set_xlabel("ms since the start of the step")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    plt.show()


picture(planted_step(cards=[2, 4], buckets=[BYTES]), "Tom's two processes")

# %% [markdown]
# Two cores are busy, but the night is hardly shorter, although each rank only does what Tom's script tells it to do.
# **Look at** the picture. Rank 0 has little to compute, and then it waits. After each part, both ranks send their
# gradients. The short blue block at the end is the update of the weights. Which of these pieces are necessary, and
# which could be avoided?
#
# (The times in this picture are **planted**, which means that perfnb makes them up and that they are the same on every
# computer. Later in the lab, you will start real processes.)
#
# ## 10.1 A prediction
#
# Let us define some terms. A job's **speed-up** is the work that it does per second divided by the work that one
# process does per second. The **efficiency** is the speed-up divided by the number of ranks, and an efficiency of 1 is
# perfect. An exchange between all ranks is a **collective**. The one that DDP uses is an **all-reduce**: every rank
# contributes its gradients, and every rank gets their sum (DDP then divides it by the number of ranks).
#
# **Exercise 10.1.** Make three predictions. Only their form is checked.
#
# - `speedup`: you start a training step without accumulation on one rank, and then on two ranks that share the same
#   batch. How many times as fast will the second job be on your computer?
# - `transfers`: in Tom's job, a step has four parts, and the Reader has 40 tensors of parameters. How many times per
#   step does a rank send gradients?
# - `overlap`: eight GPUs train a larger Reader. Suppose that all of their sending took place while they compute. What
#   fraction of the step would that save, from 0 to 1?

# %% answer 10.1
prediction = {"speedup": ..., "transfers": ..., "overlap": ...}
### BEGIN SOLUTION
prediction = {"speedup": 1.8, "transfers": 160, "overlap": 0.5}
### END SOLUTION

# %% check 10.1 points=1
labs.check("10.1", prediction)

# %% [markdown]
# ## 10.2 Efficiency and its interval
#
# Two questions are often confused:
#
# - **strong scaling**: the same batch for all ranks together, so each rank computes a part of it. How much shorter does
#   the step become?
# - **weak scaling**: a whole batch for each rank, so the job learns from more cards per step. How much longer does the
#   step become? Ideally, not at all.
#
# A step time is measured several times, and its median is reported. Another series of steps would give another median.
# This is why perfnb adds an interval that contains the true median with a confidence of 95 %, for example 80 ms [76,
# 84]. An efficiency is computed from two such times, so it has an interval as well. Its low end is the efficiency in
# the worst case for both times, and its high end is the efficiency in the best case for both. (This is a cautious
# interval, because it is unlikely that both times are at their worst.)
#
# **Exercise 10.2.** Write `efficiency(one, several, ranks, mode)`. `one` and `several` are the step of one rank and
# that of a job with `ranks` ranks, each as three numbers: median, low end and high end, in ms. `mode` is `"strong"` or
# `"weak"`. Return three numbers: the efficiency, and the low and high end of its interval.


# %% answer 10.2
def efficiency(one, several, ranks, mode):
    """Return the efficiency of a job, and the low and high end of its interval."""
    ### BEGIN SOLUTION
    divisor = ranks if mode == "strong" else 1
    (median, low, high), (of_several, shortest, longest) = one, several
    return median / of_several / divisor, low / longest / divisor, high / shortest / divisor
    ### END SOLUTION


# %% check 10.2 points=2
labs.check("10.2", efficiency)

# %% [markdown]
# Now try this on your computer. This is the Reader: a linear layer for the images (`stem`), three blocks with attention
# and an MLP, and ten scores for each image (`head`). The function `one_batch` is what each rank runs once: it makes the
# model, the optimizer and the batches, and returns the step. perfnb starts new Python processes, sends them the
# function with everything that it needs, and has all ranks run their steps at the same time. They exchange data through
# **gloo**, which is PyTorch's library for collectives between CPUs.


# %%
class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out(seen.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Reader(nn.Module):
    """Return the scores of ten characters for each image."""

    def __init__(self, width=128, heads=4, blocks=3):
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


digits = load_digits()
images = torch.tensor(digits.images[: 14 * 128], dtype=torch.float32).reshape(14, 128, 64) / 16
targets = torch.tensor(digits.target[: 14 * 128]).reshape(14, 128)


def cards(count, first=0):
    """Return the images on this number of cards, and the characters that they show."""
    chosen = torch.arange(first, first + count) % 14
    return images[chosen], targets[chosen]


def loss_of(model, images, targets):
    return nn.functional.cross_entropy(model(images).flatten(0, 1), targets.flatten())


def one_batch():
    """Return the step and its batches. Each rank calls this function once."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Reader())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch):
        optimizer.zero_grad()
        loss_of(model, *batch).backward()
        optimizer.step()

    return step, [cards(8), cards(8, 6)]


briefly = {"warmup": 2, "steps": 12, "traced": 1, "budget_s": 3, "memory": False, "flops": False}
alone = perfnb.profile_ranks(one_batch, ranks=1, threads=1, **briefly)
strong = perfnb.profile_ranks(one_batch, ranks=2, threads=1, split=True, **briefly)  # a part of each batch for each
weak = perfnb.profile_ranks(one_batch, ranks=2, threads=1, **briefly)  # a whole batch for each

# %%


def step_of(job):
    """Return the median and interval of the slowest rank's step in milliseconds."""
    slowest = max((rank.timing for rank in job), key=lambda timing: timing.median_ms)
    return (slowest.median_ms, *(slowest.ci_ms or (np.nan, np.nan)))


one = step_of(alone)
for mode, job in (("strong", strong), ("weak", weak)):
    several = step_of(job)
    if (found := efficiency(one, several, 2, mode)) is None:
        print("Write efficiency first, exercise 10.2.")
    else:
        print(f"{mode:6} one rank {one[0]:5.1f} ms, two ranks {several[0]:5.1f} ms: ", end="")
        print(f"efficiency {found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]")
        if mode == "strong":
            print(f"       so the speed-up is {2 * found[0]:.2f}; you predicted {prediction['speedup']}")

# %% [markdown]
# The speed-up in strong scaling is twice its efficiency. If the interval is wide, or the efficiency is near one half,
# other programs probably need a core, so the second rank does not have one to itself. An efficiency above 1 is rarely
# real: usually, another program disturbed the run on *one* rank. In both cases, run the last two cells again when your
# computer is idle. (An interval of `nan` means that your computer was too slow for enough steps within the budget.)
#
# `perfnb.rank_scaling` does all of this in one call. It also runs the competitor that is easily forgotten: *one*
# process whose operators use both cores. That process sends nothing, and on one computer without a GPU it is often as
# fast as two ranks. Two ranks pay off where a single process cannot use the additional hardware, such as a second GPU
# or a second computer. The study takes another half a minute. Set `STUDY` to `True` if you want to see it.

# %%
STUDY = False
perfnb.rank_scaling(one_batch, ranks=(1, 2), mode="strong", rounds=1, steps=12, traced=3) if STUDY else None

# %% [markdown]
# ## 10.3 Around the ring
#
# What does a rank send? An all-reduce is usually done in a **ring**. Each rank cuts its gradients into as many equal
# pieces as there are ranks. Two rounds follow:
#
# 1. Each rank passes a piece to its neighbour, which adds its own piece and passes the result on. After `ranks - 1`
#    such passes, each rank has *one* piece with the sum over all ranks.
# 2. The finished pieces go around in the same way, again in `ranks - 1` passes, until every rank has all of them.
#
# Draw three ranks and three pieces on paper, and count how many pieces rank 0 sends in each round.
#
# **Exercise 10.3.** Write `sent_bytes(parameters, ranks, times)`, which returns the bytes that *one* rank sends per
# step. The model has `parameters` parameters, each with a gradient in float32. `times` is the number of times that all
# of these gradients are exchanged in a step.


# %% answer 10.3
def sent_bytes(parameters, ranks, times):
    """Return the bytes that one rank sends per step."""
    ### BEGIN SOLUTION
    pieces = 2 * (ranks - 1)
    return times * pieces * 4 * parameters / ranks
    ### END SOLUTION


# %% check 10.3 points=2
labs.check("10.3", sent_bytes)

# %% [markdown]
# Now start Tom's job: the two ranks, their uneven parts, and DDP. Tom has read that large transfers are efficient, so
# he passes `bucket_cap_mb=25`, and you will soon see what this means.


# %%
def toms_job():
    """Return the step and batches for each rank of Tom's job."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Reader(), bucket_cap_mb=25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mine, first = (2, 0) if torch.distributed.get_rank() == 0 else (4, 2)  # of the six cards of a part

    def step(parts):
        optimizer.zero_grad()
        for images, targets in parts:
            (loss_of(model, images, targets) / len(parts)).backward()
        optimizer.step()

    return step, [[cards(mine, 6 * place + first) for place in range(4)]] * 2


def transfers(job):
    """Return the bytes of each all-reduce in a step on rank 0, ordered by start."""
    of_rank = job.collectives[job.collectives["rank"] == 0].dropna(subset="bytes").sort_values("bucket")
    return [int(size) for size in of_rank["bytes"]]


tom = perfnb.profile_ranks(toms_job, ranks=2, steps=6, traced=2, budget_s=5, memory=False)
parameters = sum(each.numel() for each in Reader().parameters())
print(f"{parameters:,} parameters; transfers of a step, in bytes: {transfers(tom)}")
print(f"You predicted {prediction['transfers']} transfers.")
for ranks in (2, 8, 64):
    if (size := sent_bytes(parameters, ranks, 4)) is not None:
        print(f"With {ranks:2} ranks, each of them sends {size / 1e6:.1f} MB per step.")

# %% [markdown]
# There are neither 160 transfers nor 40, but only four: one per part, each with all gradients. (perfnb lists the bytes
# of the *gradients*. With two ranks, a rank sends exactly as many, because 2 × (2 - 1) / 2 is 1.) Between 2 and 64
# ranks, the bytes that each rank sends do not even double. This is why the ring is popular: the time of a large
# transfer hardly depends on the number of ranks. What grows is the number of passes, and each pass has a **latency**,
# which is the time that even an empty transfer takes.
#
# ## 10.4 Buckets
#
# Because of the latency, DDP does not send each gradient separately. It collects them in **buckets** and sends a bucket
# when it is full. It does not have to wait for the end of the backward pass: while the first bucket is on its way, the
# backward pass computes the gradients of the next.
#
# The rules are short:
#
# - The backward pass computes the gradients of the *last* layer first, so buckets are filled from the end of the model.
# - A gradient is never cut. A bucket that has reached its size, exactly or by any number of bytes more, is sent, and
#   the next gradient starts a new one.
# - What is left at the end of the backward pass is sent, too.
#
# Try it on paper with gradients of 4, 3, 2, 6 and 1 bytes, in the order of the model, and buckets that are full at 5
# bytes. Which buckets are sent, and which one comes first?
#
# **Exercise 10.4.** Write `buckets(sizes, full)`. `sizes` contains the size of each gradient in bytes, in the order of
# the model, and a bucket is full as soon as it has at least `full` bytes. Return a list with the size of each bucket in
# bytes, in the order of sending.


# %% answer 10.4
def buckets(sizes, full):
    """Return the sizes of the buckets in bytes, in the order of sending."""
    ### BEGIN SOLUTION
    sent, held = [], 0
    for size in reversed(sizes):
        held += size
        if held >= full:
            sent.append(held)
            held = 0
    return [*sent, held] if held else sent
    ### END SOLUTION


# %% check 10.4 points=3
labs.check("10.4", buckets)

# %% [markdown]
# Tom's buckets are full at 25 MB (DDP counts in MiB: 25 × 2²⁰ bytes), and the whole Reader has 2.4 MB of gradients. His
# only bucket is therefore never full, and it is sent when the backward pass is over, so nothing can hide it.
# **Predict:** how many buckets are there with `bucket_cap_mb=0.5`, and how large is the last one, which nothing can
# hide?

# %%
sizes = [4 * each.numel() for each in Reader().parameters()]
planned = {mib: buckets(list(sizes), mib * 2**20) for mib in (25, 1, 0.5, 0.1)}
for mib, sent in planned.items():
    if sent is None:
        print("Write buckets first, exercise 10.4.")
        break
    print(f"{mib:4} MiB: number of buckets {len(sent):2}, bytes of the last one {sent[-1]:9,}")

# %% [markdown]
# Smaller buckets start earlier, but each of them has its latency. The last bucket is always smaller than a full one.
# How much smaller it is depends on where the last full bucket happens to end. With 1 MiB and with 0.5 MiB, it ends at
# the same gradient. In this Reader, a bucket of 0.5 MiB contains about a fifth of all gradients.
#
# ## 10.5 Once per step
#
# Tom's job sends all gradients four times per step, although only the sum of the four parts is used. DDP cannot know
# that a part is not the last one, so you have to tell it. Inside `with model.no_sync():`, gradients just add up on each
# rank, and nothing is sent.
#
# There is one trap. DDP prepares its transfers in the *forward* pass. A backward pass sends if the forward pass before
# it ran outside `no_sync`, wherever the backward pass itself runs.
#
# **Exercise 10.5.** Write `night_step(model, optimizer, parts)`, which runs one step of the script. `parts` is a list
# of pairs `(images, targets)`. Run a forward and a backward pass for each part, send the gradients once, and update the
# weights once. The result is the same as with all parts in one batch, so divide each loss by the number of parts (all
# of them have equally many cards). Use `loss_of(model, images, targets)` for the loss.
#
# To try it out, wrap a Reader in `CountedModel`. It behaves like DDP but without a second process, and records in
# `synced` for each backward pass whether it would have sent the gradients. For example:
#
# ```python
# counted = CountedModel(Reader())
# night_step(counted, torch.optim.SGD(counted.parameters(), lr=0.01), [cards(1)] * 4)
# counted.synced
# ```


# %% answer 10.5
def night_step(model, optimizer, parts):
    """Run forward and backward for each part, exchange the gradients once, and update the weights once."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    with model.no_sync():
        for images, targets in parts[:-1]:
            (loss_of(model, images, targets) / len(parts)).backward()
    images, targets = parts[-1]
    (loss_of(model, images, targets) / len(parts)).backward()
    optimizer.step()
    ### END SOLUTION


# %% check 10.5 points=3
labs.check("10.5", night_step)

# %% [markdown]
# Now start the job with all three changes: your step, smaller buckets, and three cards per part for each rank.
# **Predict** the number of transfers and their bytes.


# %%
def evenly():
    """Return the repaired step with 24 evenly shared cards. (14 of them are different, and then they repeat.)"""
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Reader(), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(parts):
        night_step(model, optimizer, parts)

    return step, [[cards(3, 6 * place + 3 * rank) for place in range(4)]] * 2


counted = CountedModel(Reader())
night_step(counted, torch.optim.SGD(counted.parameters(), lr=0.01), [cards(1)] * 4)
repaired = None
if not any(counted.synced):
    print("Write night_step first, exercise 10.5.")
else:
    repaired = perfnb.profile_ranks(evenly, ranks=2, steps=6, traced=2, budget_s=5, memory=False)
    print(f"sent after part: {[place for place, sent in enumerate(counted.synced, 1) if sent]}")
    print(f"transfers:       {transfers(repaired)}")
    print(f"your buckets:    {planned[0.5]}")
    print(f"bytes per step:  {sum(transfers(tom)):,} before, {sum(transfers(repaired)):,} now")

# %% [markdown]
# The job sends a quarter of the bytes, in the buckets that you computed. Next is perfnb's report on **Tom's** job.
# These are some of the terms in it:
#
# | the report has | it means |
# |---|---|
# | timed step, traced step | a step that is only timed; one that is run with a profiler, and therefore takes longer |
# | micro-step | the forward and backward pass for one part |
# | communicating, alone | all time in collectives, and that part of it when nothing is computed |
# | waiting | the part of the communication before the last rank has arrived |
# | idle | the time when the rank neither computes nor communicates |
# | clock ahead | how much later it is on the clock of this rank than on that of rank 0. perfnb corrects for that |

# %%
tom

# %% [markdown]
# **Look at** the timeline of one step: four times forward, backward and communication. Rank 0, which has fewer cards,
# communicates for longer than rank 1. It does not send data all of that time. A collective ends when the last rank has
# arrived, and the ranks that arrive earlier wait *inside* it. The column *waiting* in the last table shows this part.
#
# And now **your** job. A lane in the timeline only shows communication while nothing is computed, so transfers that the
# backward pass hides are not visible there. Compare the columns *communicating* and *alone* instead. (On a busy
# computer, a report may name a rank that just had to wait for a core. The bytes and the counts do not depend on that.)

# %%
repaired if repaired is not None else print("Write night_step first, exercise 10.5.")

# %% [markdown]
# ## 10.6 Exposed
#
# Only part of the communication costs time. While a bucket is sent *and* something is computed, the sending is
# **hidden**. While a bucket is sent and nothing is computed, the sending is **exposed**, and the step takes longer.
#
# Try it on paper. A rank computes from 0 to 4 ms and from 6 to 9 ms, and it sends from 3 to 5 ms and from 8 to 12 ms.
# How much of the sending is exposed?
#
# **Exercise 10.6.** Write `exposed_ms(computing, sending)`. Both arguments are lists of pairs `(start, end)` in
# milliseconds. Within each list, no two pairs overlap. Return the number of milliseconds during which something is sent
# and nothing is computed.


# %% answer 10.6
def exposed_ms(computing, sending):
    """Return the number of milliseconds during which something is sent while nothing is computed."""
    ### BEGIN SOLUTION
    sent = sum(end - start for start, end in sending)
    hidden = sum(max(0, min(end, until) - max(start, since)) for start, end in computing for since, until in sending)
    return sent - hidden
    ### END SOLUTION


# %% check 10.6 points=2
labs.check("10.6", exposed_ms)

# %% [markdown]
# Apply your function to the planted step in the opening picture, making one change after the other. Each transfer in it
# has a latency of 0.5 ms. **Predict:** what will happen if the same bytes are sent in fifty buckets instead of five?

# %%
ONCE, ALWAYS = (False, False, False, True), (True, True, True, True)
plans = {
    "Tom's job": ([2, 4], [BYTES], ALWAYS),
    "shared evenly": ([3, 3], [BYTES], ALWAYS),
    "and sent once": ([3, 3], [BYTES], ONCE),
    "and in five buckets": ([3, 3], planned[0.5], ONCE),
    "in fifty buckets instead": ([3, 3], [BYTES / 50] * 50, ONCE),
}
for name, (shares, sent, synced) in plans.items():
    if sent is None:
        print(f"{name:25} Write buckets first, exercise 10.4.")
        continue
    work = planted_step(shares, sent, synced)
    of_rank = work[work["rank"] == 1]
    computing, sending = (
        of_rank.loc[of_rank["what"] == what, ["start_ms", "end_ms"]].to_numpy().tolist()
        for what in ("computing", "sending")
    )
    if (exposed := exposed_ms(computing, sending)) is None:
        print("Write exposed_ms first, exercise 10.6.")
        break
    total = sum(end - start for start, end in sending)
    print(f"{name:25} step {work['end_ms'].max():5.1f} ms, sending {total:4.1f} ms, exposed {exposed:4.1f} ms")

# %% [markdown]
# **Look at** the column *exposed*. Even shares remove the waiting but none of the sending. `no_sync` removes three of
# four transfers. Five buckets take *longer* to send than one, but less than half as much of the sending is exposed.
# With fifty buckets, more is exposed than with a single one, because you now wait for the latency of each transfer.
#
# What about your real ranks? A CPU has no separate engine for communication. gloo needs the cores to add and to copy,
# and the backward pass needs them at the same time. Overlap therefore hides less on a CPU than in the planted step,
# where the network does the work, or on GPUs. `no_sync`, on the other hand, saves three of four transfers on any
# hardware.
#
# In the next table, the first row is the slowest rank's median over the *timed* steps. The other rows are means over
# both ranks and the *traced* steps, which take longer. You should therefore only compare numbers within a row. If your
# job is not faster than Tom's, look at `computation_ms`. Both jobs process 24 cards, so if yours took longer, another
# program needed one of the cores. Tom's job suffers less from this, because his rank 0 often waits and leaves its core
# free.

# %%
measured = {"Tom's": tom, "yours": repaired}
COLUMNS = ["wall_ms", "computation_ms", "communication_ms", "exposed_ms", "waiting_ms"]
pd.DataFrame(
    {
        name: pd.concat([pd.Series({"timed step": step_of(job)[0]}), job.times[COLUMNS].astype(float).mean()])
        for name, job in measured.items()
        if job is not None
    }
).round(1)

# %% [markdown]
# ## 10.7 The straggler
#
# Tom's supplier rents out computers with eight GPUs. To make an offer, the supplier trained a larger Reader for eight
# steps and sent a **trace** of each rank, which is a file with the start and the end of each operation. (These traces
# are **synthetic**. perfnb writes the same files on every computer, and the problem that you should find is planted.)
#
# With two ranks you can see who waits for whom. With eight, it helps to have a table. A rank that is late in every step
# is a **straggler**: it has more work than the others, or slower hardware. A rank that is late only *once* is not a
# straggler, because something disturbed it. And the rank that spends the most time in collectives is not to blame. On
# the contrary, it is waiting for the others.

# %%
rented = perfnb.load(write_job(folder.name))
rented.times.pivot(index="step", columns="rank", values="waiting_ms").astype(float).round(1)

# %% [markdown]
# The table shows how many milliseconds each rank (columns) waits in collectives in each step (rows) until the last rank
# has arrived. `rented.times` has a row for each rank and step, and `rented.times.groupby("rank")["waiting_ms"].mean()`
# returns the mean of each rank over all steps.
#
# **Exercise 10.7.** Give the number of the straggling `rank`, and `waits_ms`, the number of milliseconds per step for
# which the *other seven* ranks wait in collectives on average.

# %% answer 10.7
straggler = ...
waits_ms = ...
### BEGIN SOLUTION
waiting = rented.times.groupby("rank")["waiting_ms"].mean()
straggler = waiting.astype(float).idxmin()
waits_ms = waiting.drop(straggler).mean()
### END SOLUTION

# %% check 10.7 points=2
labs.check("10.7", {"rank": straggler, "waits_ms": waits_ms}, ranks=rented)

# %% [markdown]
# What does this rank do that the others do not? An operation on a GPU runs as one or more **kernels**, functions that
# the GPU executes. Here are the kernels of each rank, in milliseconds per step. (`gemm` is a matrix product. `nccl` is
# NVIDIA's library for collectives, and `RING` is the ring of 10.3.)

# %%
kernels = pd.DataFrame({rank: rented[rank].kernels["total_ms"].astype(float) for rank in rented.ranks}).fillna(0)
kernels.rename(lambda name: name[:40]).round(2)

# %% [markdown]
# Somebody forgot a line that was meant for debugging: rank 5 computes a histogram of its weights in every step, and the
# seven other ranks wait for it. Rank 2 did so once. If a job has a straggler, first look for work of this kind, which
# *one* rank does for all of them, such as logging, writing a checkpoint, or testing the model.
#
# ## 10.8 Perfect overlap
#
# The supplier also writes: "With perfect overlap of communication and computation, the step will be half as long." Is
# it true? These are the times of a mean step on each rank:

# %%
mean = rented.times.groupby("rank")[[*COLUMNS, "overlap_ms"]].mean().astype(float)
mean.round(1)

# %% [markdown]
# `overlap_ms` is the time when a rank computes and communicates at the same time, and `exposed_ms` is the time when it
# only communicates. `communication_ms` is therefore the sum of these two. `waiting_ms` is a part of `exposed_ms`,
# because hardly any rank computes while it waits in this job.
#
# Perfect overlap would move exposed sending to times when the rank computes. It has two limits:
#
# - Waiting for a late rank is not sending. No overlap makes that rank come earlier.
# - Sending is hidden behind computing, and each millisecond of computing can only hide one millisecond of sending.
#   Computing that already hides something cannot hide anything else.
#
# Everything else, such as copies, stays.
#
# Try it on paper. A step takes 20 ms. The rank computes for 10 ms and communicates for 13 ms. For 5 ms it does both at
# the same time, and for 2 ms it waits for another rank. How many milliseconds of sending are exposed, how many
# milliseconds of computing are free to hide them, and how long would the step take with perfect overlap?
#
# **Exercise 10.8.** Write `best_ms(step, computing, sending, both, waiting)`, which returns how many milliseconds a
# rank's step takes with perfect overlap. All arguments are in milliseconds and describe the measured step:
#
# | argument | time of the rank |
# |---|---|
# | `step` | the whole step |
# | `computing` | all computing |
# | `sending` | all communication, waiting included |
# | `both` | computing and communicating at once |
# | `waiting` | waiting for another rank, while nothing is computed |


# %% answer 10.8
def best_ms(step, computing, sending, both, waiting):
    """Return the milliseconds that a step takes with perfect overlap."""
    ### BEGIN SOLUTION
    exposed = sending - both - waiting
    free = computing - both
    return step - min(exposed, free)
    ### END SOLUTION


# %% check 10.8 points=3
labs.check("10.8", best_ms)

# %% [markdown]
# **Look at** what each cure could do for rank 0: perfect balance (no rank waits for another one), perfect overlap, and
# both.

# %%
row = mean.loc[0]
best = best_ms(row["wall_ms"], row["computation_ms"], row["communication_ms"], row["overlap_ms"], row["waiting_ms"])
if best is None:
    print("Write best_ms first, exercise 10.8.")
else:
    now, waiting = row["wall_ms"], row["waiting_ms"]
    cures = {"now": now, "perfect balance": now - waiting, "perfect overlap": best, "both": best - waiting}
    _, ax = plt.subplots(figsize=(8, 2.2), layout="constrained")
    bars = ax.barh(list(cures), list(cures.values()), color=["#999999", "#56B4E9", "#E69F00", "#009E73"])
    ax.bar_label(bars, [f" {ms:.1f} ms, {1 - ms / now:.0%} saved" for ms in cures.values()], padding=3)
    sending = row["communication_ms"] - waiting
    ax.axvline(sending, color="black", linewidth=1, linestyle="--")
    ax.annotate("its sending alone ", (sending, -0.75), ha="right", va="center")
    ax.set_xlim(0, 50)
    ax.set_ylim(-1.1, 3.6)
    ax.set_xlabel("ms per step of rank 0")
    ax.invert_yaxis()
    plt.show()
    print(f"Perfect overlap saves {1 - best / now:.2f} of the step; you predicted {prediction['overlap']}")

# %% [markdown]
# Perfect overlap would not save half of the step, but only about a quarter. These GPUs compute for 16 ms and send for
# more than 24 ms. There is not enough computing to hide the sending, and beyond the dashed line no overlap can help.
# The only remedies are fewer bytes (gradients in lower precision), fewer exchanges (accumulation with `no_sync`), or a
# faster network.
#
# Here is perfnb's own report on the job. Its verdict has a bound of 17 ms, almost twice what your function found. The
# reason is given in the report: the bound is for hiding the communication *or* sending less. **Look at** the timeline,
# too. Thin lines connect the times at which the ranks arrive at a collective, and one rank stands out.

# %%
rented

# %% [markdown]
# ## The second core again
#
# Back to the office. Here is the step from the opening picture with your changes: the cards are shared evenly, the
# gradients are sent once, and the buckets are those that your function computes.

# %%
if not any(counted.synced) or planned[0.5] is None:
    print("Write buckets and night_step first, exercises 10.4 and 10.5.")
else:
    picture(planted_step(cards=[3, 3], buckets=planned[0.5], synced=counted.synced), "Two processes, repaired")

# %% [markdown]
# The night is now little more than half as long, on the same two cores. All that is left to gain is the orange tail of
# the last bucket, and the optimizer's update, which both ranks do in full.
#
# (Tom's job had another fault, which no clock shows. DDP takes the mean over the *ranks*, so a card from the village
# counted twice as much as a card from the town. If all ranks have the same number of cards, there is no such
# difference.)
#
# ## An extra: a real trace
#
# The authors of Holistic Trace Analysis (HTA), a tool that analyses such traces, publish the traces of a real job with
# eight ranks that train a vision transformer. If you have a network connection and a few gigabytes of memory, set
# `REAL` to `True` to apply your function to these traces. Nothing else in this lab needs them.

# %%
REAL = False
PLACE = "https://raw.githubusercontent.com/facebookresearch/HolisticTraceAnalysis/main/tests/data/vision_transformer"
if REAL:
    files = [Path(folder.name) / f"real_rank-{rank}.json.gz" for rank in range(8)]
    try:
        for rank, path in enumerate(files):
            urllib.request.urlretrieve(f"{PLACE}/rank-{rank}.json.gz", path)
    except OSError as error:
        print(f"The traces could not be downloaded: {error}")
    else:
        real = perfnb.load(files).times.groupby("rank").mean().astype(float)
        for rank, row in real.fillna(0.0).iterrows():
            given = row["wall_ms"], row["computation_ms"], row["communication_ms"], row["overlap_ms"], row["waiting_ms"]
            print(f"rank {rank}: step {row['wall_ms']:.0f} ms, with perfect overlap {best_ms(*given) or np.nan:.0f} ms")

# %% [markdown]
# ## Takeaways
#
# - Ask whether strong or weak scaling is meant, and state the efficiency with an interval.
# - First reduce *how often* and *how much* the ranks send. Both are counts that you can compute before you measure.
# - Small buckets start early, and large buckets save latency. Only the exposed part of their time matters.
# - The rank that communicates longest is usually waiting. Look for the rank that waits least.
# - Perfect overlap is a bound with two limits: it does not make a late rank arrive earlier, and it cannot hide more
#   sending than there is computing.
#
# `labs.export("lab_10.json")` writes your answers and their measurements to a file for your teacher.

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(10).complete, labs.progress(10)
### END HIDDEN TESTS
labs.progress(10)
