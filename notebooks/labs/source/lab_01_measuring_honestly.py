# %% [markdown]
# # Lab 1 · Measuring honestly
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 60 to 75 minutes. You will spend most of
# that time thinking, because the cells themselves take less than a minute.
#
# **Afterwards you can**
#
# - time a step so that the number means something: the right clock, a warm machine, a summary that is robust to noise;
# - state how certain a number is;
# - compare two versions on a noisy machine, and name the smallest difference that you would have noticed.
#
# Each section asks you to **predict** first. Write your guess down before you run the next cell, because a wrong guess
# teaches you more than a number that you merely read. Exercises are graded, but predictions are not. `labs.check` tries
# your answer on this machine and tells you what is wrong with it. It never gives the answer away, and you can try as
# often as you like.

# %%
import statistics
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # several threads wait for each other when other programs take a core away

# %% [markdown]
# ## Two numbers for one step
#
# You have joined the meter office of a small waterworks. Customers write the number of their water meter and its
# reading on a card, a scanner cuts the card into small images, and the office's model, the *Reader*, recognises the
# characters. Maya has trained it, and Tom runs the servers.
#
# The Reader is trained every night, in a very large number of **training steps**. Each step shows it a batch of images
# and improves it a little. Will one night be enough? That depends on how long a step takes, so Maya and Tom both timed
# the same step on the same computer, 71 times each. Tom was cautious and took the mean, which was 34 ms. Maya argued
# that other programs can only make a step *slower*, so she took the shortest time, which was 18 ms. If Tom is right,
# the training will last until the next afternoon. If Maya is right, it will be finished long before the office opens.
# Each dot in their pictures is a step:

# %%
WARMUP = 10


def planted_ms(seed, disturbed):
    """Return 71 planted step times: ten that become faster, then 61 of about 20 ms, some of them disturbed."""
    generator = np.random.default_rng(seed)
    times = 20 * np.exp(generator.normal(0, 0.04, 61))
    times[generator.permutation(61)[:disturbed]] *= 2.5
    return [*(20 * np.geomspace(8, 1.3, WARMUP)), *times]


planted = {"Tom": planted_ms(1, disturbed=14), "Maya": planted_ms(2, disturbed=3)}


def picture(figures):
    """Plot the times that both measured, the figure that each of them reports, and its interval if it has one."""
    _, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for ax, (name, times) in zip(axes, planted.items(), strict=True):
        figure, *ends = figures[name]
        ax.plot(times, "o", markersize=4, color="#0072B2")
        ax.axhline(figure, color="#D55E00")
        if ends:
            ax.axhspan(*ends, color="#D55E00", alpha=0.3)
        between = " [{:.1f}, {:.1f}]".format(*ends) if ends else ""
        ax.set_title(f"{name}: {figure:.1f}{between} ms")
        ax.set_xlabel("step")
        ax.set_yscale("log")
        ax.set_yticks((20, 40, 80, 160), (20, 40, 80, 160))
        ax.minorticks_off()
    axes[0].set_ylabel("ms per step")
    plt.show()


picture({"Tom": [statistics.mean(planted["Tom"])], "Maya": [min(planted["Maya"])]})

# %% [markdown]
# Both read their clocks correctly, and yet Tom's figure is almost twice as large as Maya's. Whom do you believe? At the
# end of this lab you will draw the same picture again, with figures on which they can agree.
#
# (The times in this picture are **planted**, which means that they are made up and the same on every computer. The
# times in the rest of the lab are measured on your computer, except where a machine is simulated.)
#
# ## 1.1 A stopwatch
#
# Here is the Reader for single images, and one training step. The Reader has a linear layer that turns 64 pixels into
# 128 numbers (`stem`), three `blocks`, and another linear layer that returns a score for each of the ten digits
# (`head`). The images come with scikit-learn.


# %%
class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width), nn.GELU()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(64, 128), nn.Linear(128, 10)
        self.blocks = nn.Sequential(*(Block(128, 512) for _ in range(3)))

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


torch.manual_seed(0)
model = Reader()
optimizer = torch.optim.Adam(model.parameters())
digits = load_digits()
x, y = torch.tensor(digits.data[:64] / 16, dtype=torch.float32), torch.tensor(digits.target[:64])


def train():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()


# %% [markdown]
# Python has several clocks. `time.time()` is the time of day, and it can be set back. `time.process_time()` only
# advances while *your* process computes. `time.perf_counter()` ticks evenly, whatever happens.
#
# **Predict:** which of them notice that a step waited 0.2 s for its data?

# %%
for clock in (time.time, time.process_time, time.perf_counter):
    began = clock()
    time.sleep(0.2)
    print(f"{clock.__name__:14} {clock() - began:.3f} s")

# %% [markdown]
# **Look at** the line with almost 0. Waiting takes time, too, but that clock stopped in the meantime.
#
# **Exercise 1.1.** Write `time_ms(step)`, which runs `step()` once and returns how long it took in **milliseconds**,
# including any waiting.


# %% answer 1.1
def time_ms(step):
    """Run `step` once and return its time in milliseconds."""
    ### BEGIN SOLUTION
    began = time.perf_counter()
    step()
    return (time.perf_counter() - began) * 1e3
    ### END SOLUTION


# %% check 1.1 points=1
labs.check("1.1", time_ms)

# %% [markdown]
# On a GPU there is one more trap. The CPU only *launches* the work and moves on, so a stopwatch on the CPU may stop
# before the GPU has even started. Call `torch.cuda.synchronize()` before you read the clock, or let `perfnb` do it.
#
# ## 1.2 The typical step
#
# **Predict:** you run `train()` sixty times. Will the first step take longer than the others? Twice as long? Ten times?
# And will the *mean* of the sixty be above or below the *median*?

# %%
times = []
for _ in range(60):
    began = time.perf_counter()
    train()
    times.append((time.perf_counter() - began) * 1e3)

print(f"first {times[0]:.2f} ms, mean {statistics.mean(times):.2f} ms, median {statistics.median(times):.2f} ms")
_, ax = plt.subplots(figsize=(7, 2.4), layout="constrained")
ax.plot(times, "o", markersize=4, color="#0072B2")
ax.axhline(statistics.mean(times), color="#D55E00", linestyle="--", label="mean")
ax.axhline(statistics.median(times), color="#D55E00", label="median")
ax.set(xlabel="step", ylabel="ms", ylim=(0, None))
ax.legend()
plt.show()

# %% [markdown]
# **Look at** the left edge, and then at isolated points far above the rest. The first steps pay for things that happen
# only once: memory is requested from the system, Adam creates its state, and torch looks up its kernels. These steps
# are the **warm-up**. After the warm-up, the times no longer show a trend, so the step has reached its **steady
# state**. The isolated points are moments when the machine was doing something else. Noise only *adds* time to a step.
# A few slow steps raise the mean, but they hardly affect the median. (If about half of *your* steps were slow, another
# program used the machine half of the time, and no summary can correct for that. Run the cell again when the machine is
# idle.)
#
# Why not use Maya's shortest time, then? It depends on luck and on how often you try, because the shortest of many
# steps is shorter than the shortest of a few. It also describes a step that hardly ever occurs, whereas the night
# consists of typical steps.
#
# **Exercise 1.2.** Write `typical(times_ms, warmup)`, which returns the typical step time. Half of the steps are below
# it and half are above it. The first `warmup` times are the warm-up. Your function is tested on series of several
# lengths with a known answer and a hiccup in every ninth step.


# %% answer 1.2
def typical(times_ms, warmup):
    """Return the typical step time, in the unit of `times_ms`."""
    ### BEGIN SOLUTION
    return statistics.median(times_ms[warmup:])
    ### END SOLUTION


# %% check 1.2 points=1
labs.check("1.2", typical)

# %% [markdown]
# ## 1.3 How certain is the median?
#
# You get a median from sixty-one steps, and a different median from another sixty-one. **Predict:** by how many percent
# will two such medians differ here: 0.1, 1, or 10?

# %%
every_series = []
for _ in range(8):
    series = []
    for _ in range(61):
        began = time.perf_counter()
        train()
        series.append((time.perf_counter() - began) * 1e3)
    every_series.append(series)
medians = [statistics.median(series) for series in every_series]
print("medians:", ", ".join(f"{each:.3f}" for each in medians), "ms")
print(f"the largest is {100 * (max(medians) / min(medians) - 1):.1f} % above the smallest")

# %% [markdown]
# A step time without its uncertainty is only half the answer. You want an interval that contains the true median in 95
# of 100 cases. For the median, you can find such an interval without a theory of the noise. Take 61 times:
#
# - Each of them is below the true median with a probability of one half. So the *number* of times below it behaves like
#   the number of heads in 61 coin tosses.
# - If that number is *k*, then the true median lies between the *k*-th of the sorted times and the next one.
#
# You do not know *k*, but coins tell you where it usually lies. Two questions are left. Between which two numbers of
# heads do 95 of 100 trials fall? (To toss 61 coins ten thousand times and count the heads in each trial, use
# `np.random.default_rng(0).binomial(61, 0.5, 10_000)`. A share `q` of these counts is below `np.quantile(counts, q)`.)
# And which of the sorted times belong to these two numbers? (Python counts from 0.)
#
# **Exercise 1.3.** Write `interval(times_ms)`, which returns the lower and upper end of a 95 % interval of the
# **median**. It is tested on 300 series of 61 times whose true median is known. In a third of these series, every ninth
# step is six times as slow. You can follow the steps above or use the *bootstrap*: draw 61 of the times with
# replacement, repeat this a thousand times, and find out where the middle 95 % of the medians lie.


# %% answer 1.3
def interval(times_ms):
    """Return the lower and upper end of a 95 % interval of the median of 61 times."""
    ### BEGIN SOLUTION
    heads = np.random.default_rng(0).binomial(len(times_ms), 0.5, 10_000)
    fewest, most = np.quantile(heads, [0.025, 0.975]).astype(int)
    ordered = sorted(times_ms)  # the k-th value is ordered[k - 1], the next one ordered[k]
    return ordered[fewest - 1], ordered[most]
    ### END SOLUTION


# %% check 1.3 points=2
labs.check("1.3", interval)

# %% [markdown]
# Here are your intervals for the eight series that you measured above:

# %%
if np.shape(interval(every_series[0])) != (2,):
    print("Write interval first, exercise 1.3.")
else:
    _, ax = plt.subplots(figsize=(7, 2.4), layout="constrained")
    for place, series in enumerate(every_series, start=1):
        ax.plot((place, place), interval(series), color="#0072B2", linewidth=4, alpha=0.5)
        ax.plot(place, statistics.median(series), "o", color="#D55E00")
    ax.set(xlabel="series of 61 steps", ylabel="ms, median and interval")
    plt.show()

# %% [markdown]
# **Look at** how far the intervals overlap. Each of them tells you how far you can trust *its* median as long as the
# machine stays in the same state. If some intervals lie far apart, the machine itself has changed its pace, which no
# interval from a single series can show. Section 1.4 deals with this problem.
#
# `perfnb.time_step` does all of this for you. It warms up until the times have reached their steady state, plans how
# many steps it needs, and prints the interval after the median. Find the interval, and the line about outliers, which
# are times far from the others. (*p95* is the time that 95 of 100 steps did not exceed.)

# %%
perfnb.time_step(train, budget_s=3)

# %% [markdown]
# ## 1.4 Two steps on a noisy machine
#
# You have changed something and want to know whether it is faster now. The obvious way is to time the old version and
# then the new one. Try this on a simulated machine, where the truth is known. The machine becomes slower over time,
# like a laptop that heats up. Both of its steps take *exactly* the same time.
#
# **Predict:** how much slower will the second one seem?

# %%
from perfnb.labs.workloads import Machine

machine = Machine("slower and slower")
run_a, run_b = machine.step(10.0), machine.step(10.0)
a_ms = [run_a() for _ in range(1000)]  # a call returns the milliseconds that it "took"
b_ms = [run_b() for _ in range(1000)]
_, ax = plt.subplots(figsize=(7, 2.4), layout="constrained")
for name, first, times, colour in (("a", 0, a_ms, "#0072B2"), ("b", 1000, b_ms, "#D55E00")):
    ax.plot(range(first, first + 1000), times, ".", markersize=2, color=colour, label=name)
    ax.plot((first, first + 1000), [statistics.median(times)] * 2, color="black")
ax.set(xlabel="run", ylabel="ms, medians in black")
ax.legend(markerscale=5)
plt.show()
print(f"b takes {statistics.median(b_ms) / statistics.median(a_ms):.2f} times as long as a")

# %% [markdown]
# **Look at** the slope of the cloud, and at the two black lines. Nothing was wrong with the clock, the number of steps
# or the median. The *order* was wrong, because a change in the machine between the two blocks looked like a change in
# the step. Interleaving them, a b a b …, helps. However, a fixed order can coincide with a rhythm of the machine. On
# the next machine, every second run is slow.

# %%
machine = Machine("every second run slow")
run_a, run_b = machine.step(10.0), machine.step(10.0)
ratios = []
for _ in range(200):
    a_ms = run_a()
    b_ms = run_b()
    ratios.append(b_ms / a_ms)
print(f"b takes {statistics.median(ratios):.2f} times as long as a")

# %% [markdown]
# **Exercise 1.4.** Write `compare(run_a, run_b, pairs)`. `run_a()` and `run_b()` run a step and return its
# milliseconds. Run each of them `pairs` times, in any order you like, and return the time of b divided by the time of
# a. The answer must be within 3 % on a steady machine, on a machine that becomes slower, and on a machine where every
# second run is slow.


# %% answer 1.4
def compare(run_a, run_b, pairs):
    """Return the time of b divided by the time of a."""
    ### BEGIN SOLUTION
    generator = np.random.default_rng(0)
    ratios = []
    for _ in range(pairs):
        if generator.random() < 0.5:
            a_ms = run_a()
            b_ms = run_b()
        else:
            b_ms = run_b()
            a_ms = run_a()
        ratios.append(b_ms / a_ms)
    return statistics.median(ratios)
    ### END SOLUTION


# %% check 1.4 points=2
labs.check("1.4", compare)

# %% [markdown]
# ## 1.5 A step against itself
#
# How do you know that a comparison is honest? Compare something with itself. This is called an **A/A test**.
# `perfnb.ab_test` runs both steps in pairs, in random order, and returns a verdict.
#
# **Predict:** which verdict will it return for `train` against `train`? And how small a difference could it have found
# here?

# %%
aa = perfnb.ab_test(train, train, budget_s=3)
aa

# %% [markdown]
# The verdict is most likely `same` or `inconclusive`. **Look at** the interval of the ratio: it should contain 1. One
# such interval in twenty does not, by pure chance. If that happened to you, do not rerun the cell until it looks right.
# Leave it, and remember it the next time someone shows you *one* test with a difference of 1 %.
#
# `inconclusive` does not mean *equal*. The smallest difference that the test would have found is in
# `aa.smallest_detectable`, as a fraction (0.01 means 1 %).
#
# **Exercise 1.5.** From `aa`, give the smallest difference that such a test finds in 9 of 10 cases, in **percent**, and
# whether it would find a speed-up of 1 % (`True` or `False`).

# %% answer 1.5
smallest_percent = ...
sees_one_percent = ...
### BEGIN SOLUTION
smallest_percent = 100 * aa.smallest_detectable
sees_one_percent = bool(aa.smallest_detectable <= 0.01)
### END SOLUTION

# %% check 1.5 points=2
labs.check("1.5", {"smallest_percent": smallest_percent, "sees_one_percent": sees_one_percent}, test=aa)

# %% [markdown]
# ## 1.6 Three claims
#
# Maya, Tom and the scanner's supplier have each rewritten a function, and each of them claims that the new version is
# *faster*. Every claim comes with the old function, the new function, and a function that creates an input.


# %%
def mean_by_loop(rows):
    return torch.stack([row.mean() for row in rows])


def mean_at_once(rows):
    return rows.mean(1)


def square(rows):
    return (rows * rows).sum(1)


def square_renamed(matrix):
    return (matrix * matrix).sum(1)


def spread(rows):
    return rows.std(1)


def spread_of_some(rows):
    return rows[:, ::8].std(1)


def some_rows():
    return (torch.randn(256, 1024),)


claims = {
    "mean": (mean_by_loop, mean_at_once, some_rows),
    "square": (square, square_renamed, some_rows),
    "spread": (spread, spread_of_some, some_rows),
}

# %% [markdown]
# **Predict** all three results before you measure. Then test each claim. With `check=1e-4`, `ab_test` also compares the
# results of the two functions, because a function with a wrong result may well be fast. It expects functions without
# arguments, which is why the cell uses `lambda`.

# %%
tests = {}
for name, (before, after, make) in claims.items():
    rows = make()[0]
    tests[name] = perfnb.ab_test(
        lambda before=before, rows=rows: before(rows),
        lambda after=after, rows=rows: after(rows),
        budget_s=2,
        check=1e-4,
    )
    ratio = "{:.2f} to {:.2f}".format(*tests[name].ratio_ci) if tests[name].ratio_ci else "not known"
    print(f"{name:7} {tests[name].verdict:13} ratio {ratio}  results: {tests[name].check or 'agree'}")

_, ax = plt.subplots(figsize=(7, 1.8), layout="constrained")
for name, test in tests.items():
    if test.ratio_ci:
        ax.plot(test.ratio_ci, (name, name), color="#0072B2", linewidth=4, alpha=0.5)
        ax.plot(test.ratio, name, "o", color="#D55E00")
ax.axvline(1, color="black", linewidth=1, linestyle="--")
ax.set(xscale="log", xlabel="time of the new function, divided by that of the old one")
ax.set_xticks((0.02, 0.05, 0.1, 0.2, 0.5, 1), (0.02, 0.05, 0.1, 0.2, 0.5, 1))
ax.minorticks_off()
ax.invert_yaxis()
plt.show()

# %% [markdown]
# **Look at** the picture. To the left of the dashed line, the new function is faster. Is that enough for the claim?
#
# **Exercise 1.6.** Judge each claim: `"faster"` (with the same result), `"not shown"` (no relevant difference was
# found, whether the verdict is `same` or `inconclusive`) or `"wrong result"`.

# %% answer 1.6
verdicts = ...
### BEGIN SOLUTION
verdicts = {"mean": "faster", "square": "not shown", "spread": "wrong result"}
### END SOLUTION

# %% check 1.6 points=2
labs.check("1.6", verdicts, claims=claims)

# %% [markdown]
# ## Maya and Tom again
#
# Here are their planted times again, on the same axes. This time, both of them use your `typical`, which leaves out the
# ten warm-up steps, and your `interval` for the 61 steps that follow.

# %%
if typical([1.0], 0) is None or np.shape(interval(planted["Tom"][WARMUP:])) != (2,):
    print("First solve 1.2 and 1.3.")
else:
    picture({name: [typical(times, WARMUP), *interval(times[WARMUP:])] for name, times in planted.items()})

# %% [markdown]
# The dots are the same, but now the two agree: their intervals overlap, although other programs disturbed almost every
# fourth of Tom's steps. The planted time of an undisturbed step was 20 ms. Tom had counted the warm-up and the
# disturbances as part of the step, and Maya had picked the luckiest of 71 steps. Before you argue about a number, ask
# *which* number it is: which steps it describes, how it summarises them, and how certain it is.
#
# ## Takeaways
#
# - Use `perf_counter` in steady state, and report the **median**. Noise only adds time, and the shortest step is a
#   lucky one.
# - Never report a number without an **interval**, and never compare without **interleaving in random order**.
# - Try every comparison on two equal steps first.
# - *Not shown* is a result. Always add how small a difference you would have noticed.
# - Compare the **results** before you compare the times.
#
# `labs.export("lab_01.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 2,
# *Where does a step's time go?*](02_where_does_a_step_go.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(1).complete, labs.progress(1)
### END HIDDEN TESTS
labs.progress(1)
