# %% [markdown]
# # Lab 1 · Measuring honestly
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 60 to 75 minutes, almost all of it
# thinking; the cells themselves take less than a minute.
#
# **Afterwards you can**
#
# - time a step so that the number means something: the right clock, a warm machine, a summary that is robust to noise;
# - say how certain a number is, not just what it is;
# - compare two versions on a noisy machine, and say when you could *not* have seen a difference.
#
# Each section asks you to **predict** first. Write your guess down before you run the next cell: a wrong guess teaches
# you more than a number you nod at. Predictions are not graded, exercises are. `labs.check` tries your answer on this
# machine and tells you what is wrong with it. It never gives the answer away, and you can try as often as you like.

# %%
import statistics
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # several threads wait for each other when another program takes a core

# %% [markdown]
# ## 1.1 A stopwatch
#
# Here is a small network and one training step.

# %%
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))


def train():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()


# %% [markdown]
# Python has several clocks. `time.time()` is the time of day and can be set back; `time.process_time()` only counts
# while *your* process computes; `time.perf_counter()` ticks evenly, whatever happens.
#
# **Predict:** which of them notice that a step waited 0.2 s for its data?

# %%
for clock in (time.time, time.process_time, time.perf_counter):
    began = clock()
    time.sleep(0.2)
    print(f"{clock.__name__:14} {clock() - began:.3f} s")

# %% [markdown]
# Look at the line that says almost 0: waiting is time too, but that clock stopped.
#
# **Exercise 1.1.** Write `time_ms(step)`: it runs `step()` once and returns how long that took in **milliseconds**,
# including any waiting.


# %% answer 1.1
def time_ms(step):
    """Time of one call of `step` in ms."""
    ### BEGIN SOLUTION
    began = time.perf_counter()
    step()
    return (time.perf_counter() - began) * 1e3
    ### END SOLUTION


# %% check 1.1 points=1
labs.check("1.1", time_ms)

# %% [markdown]
# On a GPU there is one more trap. The CPU only *launches* the work and moves on, so a stopwatch on the CPU may stop
# before the GPU has even started. Synchronise first (`torch.cuda.synchronize()`), or let `perfnb` do it.
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
fig, ax = plt.subplots(figsize=(7, 2.2), layout="constrained")
ax.plot(times, "o", markersize=4)
ax.set(xlabel="step", ylabel="ms", yscale="log")
plt.show()

# %% [markdown]
# Look at the left edge, then at the isolated points far above the rest. The first steps pay for things that happen
# once: memory is requested from the system, Adam creates its state, kernels are looked up. The isolated points are the
# machine doing something else. Noise can only *add* time to a step, so it pulls the mean up, but not the median.
#
# **Exercise 1.2.** Write `typical(times_ms, warmup)`: the typical step time, with half of the steps below it and half
# above, where the first `warmup` times are warm-up. It is tested on series of several lengths with a known answer and a
# hiccup in every ninth step.


# %% answer 1.2
def typical(times_ms, warmup):
    """The typical step time, in the unit of `times_ms`."""
    ### BEGIN SOLUTION
    return statistics.median(times_ms[warmup:])
    ### END SOLUTION


# %% check 1.2 points=1
labs.check("1.2", typical)

# %% [markdown]
# ## 1.3 How certain is the median?
#
# Sixty-one steps give a median. Another sixty-one will give a different one. **Predict:** by how many percent will two
# such medians differ here: 0.1, 1, or 10?

# %%
medians = []
for _ in range(8):
    series = []
    for _ in range(61):
        began = time.perf_counter()
        train()
        series.append((time.perf_counter() - began) * 1e3)
    medians.append(statistics.median(series))
print("medians:", ", ".join(f"{each:.3f}" for each in medians), "ms")
print(f"the largest is {100 * (max(medians) / min(medians) - 1):.1f} % above the smallest")

# %% [markdown]
# A step time without its uncertainty is only half the answer. An interval that contains the true median in 95 of 100
# cases needs no theory of what noise looks like. Each time is below the true median with probability one half, so *how
# many* of the 61 are below it is like counting heads in 61 coin tosses. We do not know how many it was this time, but
# if it was *k*, the true median lies between the *k*-th of the sorted times and the next one. Two questions are left.
# Between which two numbers of heads do 95 of 100 trials fall? (Toss 61 coins ten thousand times and count the heads of
# each trial: `np.random.default_rng(0).binomial(61, 0.5, 10_000)`.) And which of the sorted times belong to these two
# numbers? (Python counts from 0.)
#
# **Exercise 1.3.** Write `interval(times_ms)`: the lower and upper end of a 95 % interval of the **median**. It is
# tested on 300 series of 61 times whose true median is known; in a third of them every ninth step is six times as slow.
# Do it as above, or with the bootstrap: draw 61 of the times with replacement a thousand times, and see where the
# middle 95 % of the medians lie.


# %% answer 1.3
def interval(times_ms):
    """Lower and upper end of a 95 % interval of the median of 61 times."""
    ### BEGIN SOLUTION
    heads = np.random.default_rng(0).binomial(len(times_ms), 0.5, 10_000)
    fewest, most = np.quantile(heads, [0.025, 0.975]).astype(int)
    ordered = sorted(times_ms)  # the k-th value is ordered[k - 1], the next one ordered[k]
    return ordered[fewest - 1], ordered[most]
    ### END SOLUTION


# %% check 1.3 points=2
labs.check("1.3", interval)

# %% [markdown]
# `perfnb.time_step` does all of this: it warms up until the times show no trend, plans how many steps it needs, and
# prints the interval after the median. Find the interval, and see what it says about outliers.

# %%
perfnb.time_step(train, budget_s=3)

# %% [markdown]
# ## 1.4 Two steps on a noisy machine
#
# You changed something and want to know whether it is faster. The obvious way: time the old version, then the new one.
# Let's try that on a simulated machine, so that we know the truth. It gets slower over time, like a laptop that heats
# up. Both of its steps take *exactly* the same time.
#
# **Predict:** how much slower will the second one seem?

# %%
from perfnb.labs.workloads import Machine

machine = Machine("slower and slower")
run_a, run_b = machine.step(10.0), machine.step(10.0)
a_ms = [run_a() for _ in range(1000)]  # a call returns the milliseconds that it "took"
b_ms = [run_b() for _ in range(1000)]
print(f"b takes {statistics.median(b_ms) / statistics.median(a_ms):.2f} times as long as a")

# %% [markdown]
# Nothing was wrong with the clock, the number of steps or the median. The *order* was wrong: whatever changed in the
# machine between the two blocks looked like a change of the step. Interleaving them, a b a b …, helps. But a fixed
# order can fall into step with the machine: here is one on which every second run is slow.

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
# a. The answer must be within 3 % on a steady machine, on one that gets slower, and on one where every second run is
# slow.


# %% answer 1.4
def compare(run_a, run_b, pairs):
    """The time of b divided by the time of a."""
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
# How do you know that a comparison is honest? Compare something with itself. This is the **A/A test**. `perfnb.ab_test`
# runs both in pairs, in random order, and gives a verdict.
#
# **Predict:** what will it say about `train` against `train`? And how small a difference could it have found here?

# %%
aa = perfnb.ab_test(train, train, budget_s=3)
aa

# %% [markdown]
# The verdict is most likely `same` or `inconclusive`. One such interval in twenty misses 1 by pure chance. If that
# happened to you, do not rerun the cell until it looks right: leave it, and remember it the next time someone shows you
# *one* test with a difference of 1 %.
#
# `inconclusive` does not mean *equal*. What the test could have found is in `aa.smallest_detectable`, as a fraction:
# 0.01 is 1 %.
#
# **Exercise 1.5.** From `aa`: the smallest difference that it finds in 9 of 10 cases, in **percent**, and whether it
# would find a speed-up of 1 % (`True` or `False`).

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
# Three colleagues have each rewritten a function, and each says: *mine is faster*. Every claim comes with the old
# function, the new function, and something that creates an input.


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
# **Predict** all three before you measure. Then test each. With `check=1e-4`, `ab_test` also compares what the two
# return, because a wrong result may well be fast. It expects functions without arguments, hence the `lambda`.

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

# %% [markdown]
# **Exercise 1.6.** Judge each claim: `"faster"` (with the same result), `"not shown"` (no relevant difference was
# found) or `"wrong result"`.

# %% answer 1.6
verdicts = ...
### BEGIN SOLUTION
verdicts = {"mean": "faster", "square": "not shown", "spread": "wrong result"}
### END SOLUTION

# %% check 1.6 points=2
labs.check("1.6", verdicts, claims=claims)

# %% [markdown]
# ## Takeaways
#
# - Use `perf_counter`, after warm-up, and the **median**: noise only ever adds time.
# - No number without an **interval**. No comparison without **interleaving in random order**.
# - Try every comparison on two equal things first.
# - *Not shown* is a result. Always say how small a difference you could have seen.
# - Compare the **results** before you compare the times.
#
# `labs.export("lab_01.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 2,
# *Where does a step's time go?*](02_where_does_a_step_go.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(1).complete, labs.progress(1)
### END HIDDEN TESTS
labs.progress(1)
