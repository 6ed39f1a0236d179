# %% [markdown]
# # Lab 8 · Reading someone else's trace
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes, of which the cells
# themselves take about half a minute. You should know what a profile is, for example from [lab
# 2](02_where_does_a_step_go.ipynb).
#
# **Afterwards you can**
#
# - open a trace that `torch.profiler` wrote on a machine that you have never seen, and find out what ran and why it
#   waited;
# - compute by hand how long a GPU was busy, and which of its work was launched too late;
# - distinguish a launch-bound step from one that is idle for other reasons, find the rank that the others wait for, and
#   compare two GPUs;
# - find out from a trace how fast data is copied to the GPU, and what slows it down;
# - give a verdict with a number: which lever to use, and how much it could save at most.
#
# **Predict** before you look. `labs.check` tests your answers. It tells you what is wrong without giving the answer
# away, and you can try as often as you like.

# %%
import gzip
import json

import matplotlib.pyplot as plt
import pandas as pd

import perfnb
from perfnb import labs
from perfnb.labs.made_traces import trace_file

# %% [markdown]
# ## A trace instead of an answer
#
# You have joined the meter office of a small waterworks. Customers write the reading of their water meter on a card, a
# scanner cuts the card into 128 small images, and a model, the *Reader*, recognises the characters. Maya has trained a
# larger Reader, with ten blocks of width 512, and it is too slow for the office computers.
#
# Tom therefore wants to rent a GPU. The supplier's brochure promises a hundred times the speed. Tom asked how long a
# step of the larger Reader takes with eight cards at once. Instead of an answer, the supplier sent a **trace**, a file
# where `torch.profiler` has recorded every operator, every call and every kernel of that step. Here it is. The upper
# row shows the calls that launch work, and the lower row shows the GPU's work. (You do not need to read the code that
# draws the picture.)

# %%
WORK = ["kernel", "gpu_memcpy", "gpu_memset"]
CALLS = ["cuda_runtime", "cuda_driver"]


def picture(profile, title, more=""):
    """Plot the calls on the host and the GPU's work in one step."""
    events = profile.events
    step_ms, origin = profile.steps["wall_ms"].sum(), events["start_ns"].min()
    _, ax = plt.subplots(figsize=(8, 1.9), layout="constrained")
    for row, kinds, colour in ((1, CALLS, "#E69F00"), (0, WORK, "#0072B2")):
        here = events[events["category"].isin(kinds)]
        bars = zip((here["start_ns"] - origin) / 1e6, here["duration_ns"] / 1e6, strict=True)
        ax.broken_barh(list(bars), (row - 0.35, 0.7), facecolors=colour)
    ax.axvline(step_ms, color="gray", linewidth=1, linestyle="--")
    ax.annotate("end of\nthe step", (step_ms, 1.1), (step_ms + 0.05, 0.9))
    ax.set_yticks((1, 0), ("calls on the host", "work of the GPU"))
    ax.set(xlim=(0, 5), ylim=(-0.5, 1.5), xlabel="ms", title=f"{title}: {step_ms:.1f} ms{more}")
    plt.show()


a = perfnb.load(trace_file("reader_a"))
picture(a, "A step on the rented GPU")

# %% [markdown]
# The GPU's row looks like a barcode: mostly gaps. Nobody needs to rent a GPU that does nothing most of the time. What
# is the cause, and what would help: a better GPU, faster kernels, or something else? At the end of this lab, the
# supplier will follow your advice, and you will draw this picture again.
#
# ## Seven files
#
# The supplier has sent more files. All of them are in the format that `torch.profiler` writes:
#
# - `reader_a` and `reader_b`: the larger Reader on two GPUs, "A" and "B";
# - `reader_a_again`: a file for the end of this lab;
# - `training_b`: the training of a small network that finds the boxes on a scanned card, on GPU B;
# - `rank_0` and `rank_1`: two ranks of a big customer's job, which trains a recommender;
# - `copies`: cards being copied to a GPU.
#
# The first six are **synthetic**. perfnb writes the same files on every computer, so this lab does not need a network.
# Something is planted in each of them, and your job is to find it. Their times are realistic, but they were never
# measured. They teach you how to read a trace, not which GPU to buy. `copies` is **real**: it was recorded on an NVIDIA
# H100.
#
# `trace_file` writes each of them into perfnb's cache folder and returns its path. The file is compressed JSON, which
# you can also open in <https://ui.perfetto.dev>.

# %%
b = perfnb.load(trace_file("reader_b"))
training = perfnb.load(trace_file("training_b"))
ranks = perfnb.load([trace_file("rank_0"), trace_file("rank_1")])

# %% [markdown]
# ## 8.1 What produced these traces?
#
# Before you look at any times, find out what these files are. A trace contains the name of its GPU if the profiler
# recorded the devices, its rank if there were several, and its steps if `profiler.step()` was called.

# %%
traces = {"a": a, "b": b, "training": training, "ranks[0]": ranks[0], "ranks[1]": ranks[1]}
pd.DataFrame(
    {
        name: {
            "gpus": ", ".join(p.meta["environment"]["gpus"]),
            "world_size": p.meta["trace"]["world_size"],
            "steps_marked": p.meta["trace"]["steps_marked"],
            "steps": list(p.steps["step"]),
            "step_ms": p.steps["wall_ms"].mean().round(2),
            "events": len(p.events),
        }
        for name, p in traces.items()
    }
).T

# %% [markdown]
# `training` marks no steps, so perfnb treats the whole trace as one step. However, it is a training run with several
# iterations, each of which calls the model once and updates it once.
#
# **Exercise 8.1.** Give three numbers: the number of `iterations` in the trace `training`, the number of images in its
# `batch`, and the number of `ranks` that took part in the job (we have the traces of two). The column `calls` of
# `training.layers` counts the calls to a layer. The column `shapes` of `training.events` contains the shapes of an
# operator's inputs. Look at the first `aten::conv2d`, where images are *batch × channels × height × width*.

# %% answer 8.1
iterations = ...
batch = ...
world_size = ...
### BEGIN SOLUTION
iterations = training.layers.loc["BoxFinder_0", "calls"]
first = training.events[training.events["name"] == "aten::conv2d"].iloc[0]
print(first["shapes"])
batch = 256
world_size = ranks[0].meta["trace"]["world_size"]
### END SOLUTION

# %% check 8.1 points=1
labs.check("8.1", {"iterations": iterations, "batch": batch, "ranks": world_size}, profile=training, ranks=ranks)

# %% [markdown]
# ## 8.2 Busy
#
# The work of a GPU is in `events` under three categories: `kernel`, `gpu_memcpy` and `gpu_memset`. Each row has a start
# and a duration in nanoseconds. **Predict:** is the sum of all durations equal to the time when the GPU was busy, or is
# it more or less?

# %%
work = ranks[0].events[ranks[0].events["category"].isin(WORK)]
work.groupby("stream")["duration_ns"].agg(["size", "sum"])

# %% [markdown]
# There are three *streams*, which are queues whose work runs side by side. Some communication (stream 20) runs at the
# same time as computation (stream 7), so a sum counts some of the time twice. What we need is the length of the
# **union** of the intervals. Here is a small example with four kernels:

# %%
example = pd.DataFrame({"start_ns": [0, 100_000, 200_000, 900_000], "duration_ns": [300_000, 50_000, 200_000, 50_000]})
_, ax = plt.subplots(figsize=(7, 2.3), layout="constrained")
for place, (start, duration) in enumerate(zip(example["start_ns"] / 1e3, example["duration_ns"] / 1e3, strict=True)):
    ax.barh(place, duration, left=start, color="#56B4E9", edgecolor="black", height=0.7)
    ax.annotate(f"{start:.0f} to {start + duration:.0f}", (start + duration + 10, place), va="center")
ax.set_yticks(range(4), [f"kernel {place + 1}" for place in range(4)])
ax.set(xlim=(-10, 1150), xlabel="µs")
ax.invert_yaxis()
plt.show()

# %% [markdown]
# Work it out on paper first. For how many microseconds is the GPU busy? Which kernel adds nothing?
#
# **Exercise 8.2.** Write `busy_ms(work)`, which takes a frame with the columns `start_ns` and `duration_ns` and returns
# the number of milliseconds during which at least one interval ran. One way is to sort the rows by their start, go
# through them, and remember the *latest* end that you have seen. Only the time after that end is new.
# (`zip(work["start_ns"], work["duration_ns"])` yields pairs of numbers.) Your function is tested on the two ranks and
# on a small frame with intervals like those above. You can use `example` for your own tests.


# %% answer 8.2
def busy_ms(work):
    """Return the number of milliseconds during which at least one interval was running."""
    ### BEGIN SOLUTION
    work = work.sort_values("start_ns")
    busy, latest = 0, 0
    for start, duration in zip(work["start_ns"], work["duration_ns"], strict=True):
        busy += max(start + duration - max(start, latest), 0)
        latest = max(latest, start + duration)
    return busy / 1e6
    ### END SOLUTION


# %% check 8.2 points=2
labs.check("8.2", busy_ms, ranks=ranks)

# %% [markdown]
# `gpu_time` shows this figure for each rank, and how the busy time was spent. `kernel_ms` is the sum of the durations,
# which is a different figure.

# %%
ranks.gpu_time[["rank", "total_ms", "busy_ms", "kernel_ms", "computation_ms", "communication_ms", "overlap_ms"]]

# %% [markdown]
# ## 8.3 Late launches
#
# Back to the barcode, `a`. This is how long its GPU was busy and idle:

# %%
a.gpu_time[["total_ms", "busy_ms", "idle_ms", "idle_pct"]]

# %% [markdown]
# The GPU is idle for most of the step. Does it wait for the host? A kernel is launched by a call on the host, such as
# `cudaLaunchKernel`, and the rows of the kernel and the call have the same number in the column `correlation`. The next
# picture shows 90 µs of the barcode. A line leads from each call to the kernel that it launched.

# %%
work = a.events[a.events["category"].isin(WORK)].sort_values("start_ns")
calls = a.events[a.events["category"].isin(CALLS)].dropna(subset="correlation").set_index("correlation")
some = work.iloc[58:63]
origin = calls.loc[some["correlation"].iloc[0], "start_ns"]
_, ax = plt.subplots(figsize=(8, 2.3), layout="constrained")
ended = None
for kernel in some.itertuples():
    call, start = calls.loc[kernel.correlation], (kernel.start_ns - origin) / 1e3
    called = (call["start_ns"] - origin) / 1e3
    ax.broken_barh([(called, call["duration_ns"] / 1e3)], (0.65, 0.7), facecolors="#E69F00", edgecolor="black")
    ax.broken_barh([(start, kernel.duration_ns / 1e3)], (-0.35, 0.7), facecolors="#0072B2", edgecolor="black")
    ax.plot((called, start), (0.65, 0.35), color="gray", linewidth=1)
    if ended is not None and ended < start:
        ax.broken_barh([(ended, start - ended)], (-0.35, 0.7), facecolors="none", edgecolor="#D55E00", hatch="///")
    ended = start + kernel.duration_ns / 1e3
ax.set_yticks((1, 0), ("calls on the host", "GPU; hatched: idle"))
ax.set(ylim=(-0.5, 1.5), xlabel="µs")
plt.show()

# %% [markdown]
# **Look at** the hatched gaps. If a call comes after the GPU has finished all of its work, the launch is *late*,
# because the GPU could do nothing but wait. Two of these launches are in time, because the GPU was still busy when they
# were made. **Predict:** what share of all launches is late?
#
# **Exercise 8.3.** Write `late_share(events)`. It returns the share of the GPU's work, leaving out the first item, that
# was launched by a call that *started* after all earlier work on the GPU had ended. Use the three categories of work
# and the two categories of calls, and sort the work by its start. With several streams, *all earlier work* has ended at
# the latest end of the previous items. The function returns a number from 0 to 1. It is tested on `a`, on `b`, and on a
# small frame with several streams that only has the columns `category`, `start_ns`, `duration_ns` and `correlation`.
#
# You will find these methods useful: `series.map(other)` looks up values in another series by its index, `.cummax()`
# returns the largest value so far, and `.shift()` moves all values down by one row. Not every call has a correlation,
# so use `.dropna(subset="correlation")`.


# %% answer 8.3
def late_share(events):
    """Return the share of GPU work, except the first, that was launched after all earlier work had ended."""
    ### BEGIN SOLUTION
    work = events[events["category"].isin(WORK)].sort_values("start_ns")
    calls = events[events["category"].isin(CALLS)].dropna(subset="correlation")
    called = work["correlation"].map(calls.set_index("correlation")["start_ns"])
    ended = (work["start_ns"] + work["duration_ns"]).cummax().shift()
    return (called > ended).iloc[1:].mean()
    ### END SOLUTION


# %% check 8.3 points=3
labs.check("8.3", late_share, profile=a, other=b)

# %% [markdown]
# Such a step is **launch-bound**. The profile measures this in milliseconds and by operator. `host_ms` in `gpu_idle` is
# how long the GPU waited because the host was late, and `launches` contains the durations of the calls and of the
# launched work.

# %%
a.gpu_idle[["idle_ms", "host_ms", "dependency_ms", "other_ms"]]

# %%
a.launches[["launched", "call_ms", "gpu_ms", "short"]].head(4)

# %% [markdown]
# All the launching calls together take less than a millisecond, and the GPU waits for more than three. The host spends
# the rest of the time between one launch and the next: in Python, in modules, and in torch before it reaches the
# kernel. This is about 24 µs of host time for a kernel of 4 µs.
#
# ## 8.4 A faster kernel
#
# The supplier offers kernels that are *twice as fast* for the operator that keeps this GPU busiest. **Predict:** by how
# many milliseconds will the step of 4.3 ms become shorter?
#
# The **critical path** is the chain of host work, launches and GPU work that determined how long the step took. Only a
# change on this path can make the step shorter.

# %%
a.critical_path.groupby("kind", observed=True)["duration_ns"].sum() / 1e6

# %%
a.path_savings.loc[a.path_savings["by"] == "op", ["part", "path_ms", "saves_ms"]].head(4)

# %% [markdown]
# The kinds are the host between operators (`host`), in operators (`operator`), and in calls to the GPU's library
# (`call`). The few microseconds of `memcpy` are the copy of the result, which the host waits for at the end. Kernels
# would appear as `computation`. In the table of operators, `saves_ms` is the time that their part of the path costs the
# step. Nearly all of this time is on the *host*.
#
# **Exercise 8.4.** Give the `op` whose kernels together took longest on the GPU (see the column `gpu_ms` in
# `launches`), its `share` of the time of all such work, from 0 to 1, and `saves_ms`, the number of milliseconds by
# which the step becomes shorter if that op's *kernels* take half as long and everything else stays the same.

# %% answer 8.4
op = ...
share = ...
saves_ms = ...
### BEGIN SOLUTION
gpu_ms = a.launches["gpu_ms"].astype(float)
op = gpu_ms.idxmax()
share = gpu_ms[op] / gpu_ms.sum()
path = a.critical_path
saves_ms = path.loc[(path["op"] == op) & path["device"].notna(), "duration_ns"].sum() / 1e6 / 2
### END SOLUTION

# %% check 8.4 points=2
labs.check("8.4", {"op": op, "share": share, "saves_ms": saves_ms}, profile=a)

# %% [markdown]
# Two thirds of the GPU's work becomes twice as fast, but the step takes as long as before, because nothing waits for
# that work. A larger batch, a compiled model or CUDA graphs can help here. Each of them gives the GPU more work per
# launch.
#
# ## 8.5 Idle again
#
# `training` ran on GPU B. That GPU is idle too:

# %%
training.gpu_time[["total_ms", "busy_ms", "idle_ms", "idle_pct"]]

# %%
training.gpu_idle[["idle_ms", "host_ms", "dependency_ms", "other_ms"]]

# %%
training.kernels[["calls", "total_ms", "mean_us"]].head(4).round(1)

# %% [markdown]
# The GPU is idle for 74 % of the time, because the host was late, as in `a`. **Predict:** is this step launch-bound,
# too? Compare how long kernels run here (the batch is large), and remember how long a launch takes.
#
# *The host was late* means that the next launch came late, but it does not tell you the reason. Calls on the host are
# in `events` under `cuda_runtime`. The names of this GPU's calls start with `hip`, because it is programmed through
# AMD's library.
#
# **Exercise 8.5.** Give the name of the `call` that took most of the host's time in total, the number of these calls
# `per_iteration` (see 8.1 for the iterations), and the share of the step that they take, from 0 to 1 (`call_share`).
# The `wall_ms` of the single step is in `training.steps`.

# %% answer 8.5
call = ...
per_iteration = ...
call_share = ...
### BEGIN SOLUTION
on_host = training.events[training.events["category"].isin(CALLS)]
by_name = on_host.groupby("name", observed=True)["duration_ns"].agg(["size", "sum"]).sort_values("sum")
call = by_name.index[-1]
per_iteration = by_name["size"].iloc[-1] / iterations
call_share = by_name["sum"].iloc[-1] / 1e6 / training.steps["wall_ms"].sum()
### END SOLUTION

# %% check 8.5 points=2
labs.check("8.5", {"call": call, "per_iteration": per_iteration, "share": call_share}, profile=training)

# %% [markdown]
# Memory is freed and allocated again (`hipMalloc`) two dozen times in *each* iteration. Each free waits until the GPU
# has finished and then takes about 2 ms, while nothing is launched. Torch has a memory pool to avoid exactly this, but
# here the pool seems to be switched off. The trace does not show whether this was intended.
#
# One GPU is idle for 84 % of the time and the other for 74 %, and the cure for one does not help the other. *Idle* is
# only a symptom.
#
# ## 8.6 The straggler
#
# In a job of several ranks, all of them must reach a collective before it can end. We have the traces of two of 64
# ranks, with three steps each. **Predict** from the next table: which of the two holds up the other?

# %%
ranks.times[["rank", "step", "wall_ms", "computation_ms", "communication_ms", "exposed_ms"]]


# %%
def collectives(rank):
    """Return the start and end of the communication kernels, in milliseconds."""
    events = ranks[rank].events
    found = events[(events["category"] == "kernel") & events["name"].str.startswith("nccl")]
    start, end = found["start_ns"] / 1e6, (found["start_ns"] + found["duration_ns"]) / 1e6
    return pd.DataFrame({"end": end, f"started_{rank}": start, "step": found["step"].astype(int)})


both = pd.merge_asof(
    collectives(0), collectives(1)[["end", "started_1"]], on="end", direction="nearest", tolerance=0.3
).dropna()
both["later"] = (both["started_1"] > both["started_0"]).map({True: "rank 1", False: "rank 0"})
both.round(3)

# %% [markdown]
# These are the collectives that ended on both ranks at about the same time: fifteen of eighteen. (The other three
# involve ranks whose traces we do not have.) They end together, but each rank starts when it gets there. The rank that
# arrives first waits *inside* the kernel, so a long collective can be the sign of a rank that had nothing else to do.
# In the first exchange of each step, one rank arrives a few milliseconds after the other. In the other exchanges, they
# differ by less than half a millisecond.
#
# **Exercise 8.6.** Give the `rank` that holds up the other, and `waits_ms`, how long the other waits for it, in
# milliseconds per step as the mean of the three steps. `ranks.times` has a column `waiting_ms`, which also corrects for
# differences between the ranks' clocks: the clock of rank 1 is 0.15 ms ahead (see `ranks.clocks`).

# %% answer 8.6
straggler = ...
waits_ms = ...
### BEGIN SOLUTION
straggler = ranks.straggler
waits_ms = ranks.times.groupby("rank")["waiting_ms"].mean()[1 - straggler]
### END SOLUTION

# %% check 8.6 points=2
labs.check("8.6", {"rank": straggler, "waits_ms": waits_ms}, ranks=ranks)

# %% [markdown]
# Here is the first step of both ranks. Each bar is a collective of all ranks, from its start on this rank to its end.
# **Look at** the one bar that is mostly hatched:

# %%
step = both[both["step"] == both["step"].min()]
origin = step[["started_0", "started_1"]].min().min()
ready = step[["started_0", "started_1"]].max(axis=1)
_, ax = plt.subplots(figsize=(8, 2.2), layout="constrained")
for rank in (0, 1):
    started = step[f"started_{rank}"]
    ax.barh(rank, ready - started, left=started - origin, color="#E69F00", hatch="//", edgecolor="black")
    ax.barh(rank, step["end"] - ready, left=ready - origin, color="#56B4E9", edgecolor="black")
ax.set_yticks((0, 1), ("rank 0", "rank 1"))
ax.invert_yaxis()
ax.set_xlabel("ms; hatched: the other rank is not there yet; plain: both are there, and the data move")
plt.show()

# %% [markdown]
# Why is rank 1 late? Compare the kernels of the two ranks, in milliseconds per step. (Any of the 62 other ranks may
# hold up both of them, too.)

# %%
kernels = pd.DataFrame({rank: ranks[rank].kernels["total_ms"].astype(float) for rank in (0, 1)}).fillna(0)
kernels["more"] = kernels[1] - kernels[0]
kernels.sort_values("more", ascending=False).rename(lambda name: name[:60]).head(3).round(2)

# %% [markdown]
# Judging by their names, these are lookups in embedding tables, in the forward and the backward pass. It looks as if
# the tables or the lookups are not evenly distributed.
#
# ## 8.7 Two machines
#
# `a` and `b` ran the same Reader with the same shapes on two GPUs. Kernels may have different names on another GPU, but
# the operators that call them are the same. `compare` therefore shows the work of the two GPUs side by side under the
# closest operator that both have.
#
# **Predict:** the step of `b` is shorter than that of `a` (4.0 and 4.3 ms, see 8.1). Does its GPU also work for a
# shorter time?

# %%
compared = a.compare(b)
compared.by_op[["op", "calls_a", "gpu_ms_a", "gpu_ms_b", "grew_gpu_ms"]].head(8)

# %% [markdown]
# Each row is an operator with given shapes. `a` is the first trace, and `b` is the second.
#
# **Exercise 8.7.** Give the op whose GPU time, *summed over all its shapes*, grew most from `a` to `b` (`grown`), its
# time in `b` divided by its time in `a` (`op_ratio`), and the same ratio for the time when the GPUs were busy in the
# step (`busy_ratio`). You can find `busy_ms` in `gpu_steps` of each trace.

# %% answer 8.7
grown = ...
op_ratio = ...
busy_ratio = ...
### BEGIN SOLUTION
by_op = compared.by_op.groupby("op", observed=True)[["gpu_ms_a", "gpu_ms_b", "grew_gpu_ms"]].sum()
grown = by_op["grew_gpu_ms"].astype(float).idxmax()
op_ratio = by_op.loc[grown, "gpu_ms_b"] / by_op.loc[grown, "gpu_ms_a"]
busy_ratio = b.gpu_steps["busy_ms"].sum() / a.gpu_steps["busy_ms"].sum()
### END SOLUTION

# %% check 8.7 points=2
labs.check("8.7", {"op": grown, "op_ratio": op_ratio, "busy_ratio": busy_ratio}, profile=a, other=b)

# %% [markdown]
# The GPU that works longer has the shorter step. Both GPUs wait for their hosts most of the time, so the length of the
# step depends on the hosts and their software, and hardly at all on the GPUs.
#
# ## 8.8 A verdict
#
# A verdict consists of a lever and a number. The number is how much the lever could save *at most* per step, if the
# problem that it fixes took no time at all. There are four levers:
#
# | lever | its bound: the most that it can save |
# |---|---|
# | `"faster kernels"` | the time of the GPU's work on the critical path |
# | `"fewer launches"` | the time when the GPU waits for the host, and the host prepares launches |
# | `"no allocation"` | the time when the GPU waits for the host, and the host allocates or frees memory |
# | `"hidden communication"` | the time in communication while nothing is computed |
#
# **Exercise 8.8.** For `reader_a`, `training_b` and `rank_0`, give the lever with the largest bound, and that bound in
# ms per step (`training` counts as one step, and for rank 0 you should take the mean of its three steps). You already
# know the tables that you need: `gpu_idle`, `critical_path`, and `ranks.times`, whose `exposed_ms` is communication
# while nothing is computed. The answer is a dictionary such as `{"reader_a": ("faster kernels", 1.5), ...}`, with other
# levers and figures.

# %% answer 8.8
verdict = ...
### BEGIN SOLUTION
own = ranks.times[ranks.times["rank"] == 0]
verdict = {
    "reader_a": ("fewer launches", a.gpu_idle["host_ms"].sum()),
    "training_b": ("no allocation", training.gpu_idle["host_ms"].sum()),
    "rank_0": ("hidden communication", own["exposed_ms"].mean()),
}
### END SOLUTION

# %% check 8.8 points=3
labs.check("8.8", verdict, profile=a, training=training, ranks=ranks)

# %% [markdown]
# Now compare your verdict with perfnb's. Here is its report on `a`. Also open the tab *Timeline*. In a running
# notebook, you can drag and zoom until you see single kernels in the GPU's row, and the host's work above them.

# %%
a

# %% [markdown]
# Here are the findings for all three traces. (For `a`, perfnb also counts the GPU's idle time before its first and
# after its last work. For `training`, it only counts the time during calls that allocate or free memory.) `confidence`
# shows how certain perfnb is.

# %%
pd.concat({name: p.findings for name, p in (("a", a), ("training", training), ("ranks[0]", ranks[0]))})[
    ["bottleneck", "bound_ms", "bound_share", "confidence"]
]

# %%
path = ranks[0].critical_path.groupby(["step", "kind"], observed=True)["duration_ns"].sum() / 1e6
calls = ranks[0].events.loc[ranks[0].events["category"].isin(CALLS), "name"].astype(str)
print(path.unstack("step").round(1), calls.value_counts(), sep="\n\n")

# %% [markdown]
# Be careful with rank 0. It has 11 ms of communication that nothing hides, and yet none of it is on the critical path.
# According to this trace, that path is on the host, and for nearly all of it, no event describes what the host was
# doing. Now look at the calls in the trace. There are launches, copies and fills, but not a single call that waits for
# the GPU. If the host did wait, perhaps for communication, the trace shows it as working. In addition, the GPU has
# nothing to do for 5 ms per step, but the trace does not explain why the host launched nothing. *At most* is not *at
# least*. In this case, the verdict is to record more, for example with stacks. A good verdict names its gaps.
#
# ## 8.9 Two cures for one wait
#
# *Hidden communication* is one lever, but exposed communication has two causes. Look at the picture in 8.6 again. A
# faster network shortens the plain part and leaves the hatched one. A better balance of the work does the opposite.
# `ranks.collectives` has a row for each rank and kind of collective. Its times are per step: `exposed_ms` is the time
# without any simultaneous computation, and `waiting_ms` is how long this rank waited in the collective for the last
# rank.
#
# **Exercise 8.9.** For rank 0, give two times in milliseconds per step. How much could a perfect balance save at most
# (`balance_ms`), if no rank ever waited for another one? And how much could an infinitely fast network save at most
# (`network_ms`), if the ranks remained as unequal as now? You cannot save communication that is already hidden.

# %% answer 8.9
balance_ms = ...
network_ms = ...
### BEGIN SOLUTION
of_rank = ranks.collectives[ranks.collectives["rank"] == 0]
balance_ms = of_rank["waiting_ms"].sum()
network_ms = of_rank["exposed_ms"].sum() - balance_ms
### END SOLUTION

# %% check 8.9 points=2
labs.check("8.9", {"balance_ms": balance_ms, "network_ms": network_ms}, ranks=ranks)

# %% [markdown]
# The straggler causes one third of the exposed communication. If you buy a faster network for this job, you hope to
# save eleven milliseconds, but you save at most seven and a half.
#
# ## 8.10 Cards on their way
#
# The cards must reach the GPU before it can read them. Memory on the host comes in two kinds. Ordinary memory is
# **pageable**: the operating system may move it at any time, so the GPU cannot read it by itself. The driver first
# copies it, piece by piece, to a place that stays where it is. **Pinned** memory stays where it is from the start
# (`tensor.pin_memory()`, or `pin_memory=True` in a `DataLoader`), and the GPU reads it directly.
#
# `copies` was recorded on an H100. In each of its six steps, 256 cards of 128 images (8 MiB) and 256 labels (2 KiB) are
# copied to the GPU, where a Reader without blocks reads them. The first three steps copy from pageable memory, and the
# last three from pinned memory with `non_blocking=True`. The name of a copy includes its direction, *HtoD* or *DtoH*
# (host to device or device to host), and the kind of host memory. Its size is only in the file itself:

# %%
content = json.loads(gzip.decompress(trace_file("copies").read_bytes()))
called_us = {e["args"]["correlation"]: e["dur"] for e in content["traceEvents"] if e["cat"] == "cuda_runtime"}
copies = pd.DataFrame(
    {
        "name": event["name"],
        "bytes": event["args"]["bytes"],
        "us": event["dur"],
        "call_us": called_us[event["args"]["correlation"]],
    }
    for event in content["traceEvents"]
    if event["cat"] == "gpu_memcpy"
)
copies

# %% [markdown]
# **Predict** before you compute: how many times as fast is a copy from pinned memory? And how much shorter will the
# whole step become? Will it gain more than the copies, just as much, or less?
#
# **Exercise 8.10.** Give `pageable` and `pinned`, the bandwidth of the copies **to** the GPU from each kind of memory
# in GB/s (10⁹ bytes per second). Take cards and labels together, and divide all of their bytes by all of their time.
# Also give `saves_ms`, which is how much less time these copies take *per step* from pinned memory.

# %% answer 8.10
pageable = ...
pinned = ...
saves_ms = ...
### BEGIN SOLUTION
to_gpu = copies[copies["name"].str.contains("HtoD")].groupby("name")[["bytes", "us"]].sum()
gb_per_s = to_gpu["bytes"] / to_gpu["us"] / 1e3
pageable = gb_per_s["Memcpy HtoD (Pageable -> Device)"]
pinned = gb_per_s["Memcpy HtoD (Pinned -> Device)"]
saves_ms = (to_gpu["us"].max() - to_gpu["us"].min()) / 3 / 1e3
### END SOLUTION

# %% check 8.10 points=2
labs.check("8.10", {"pageable": pageable, "pinned": pinned, "saves_ms": saves_ms})

# %% [markdown]
# Now **look at** one step of each kind, on the same axis:

# %%
_, axes = plt.subplots(2, 1, figsize=(8, 3.6), sharex=True, layout="constrained")
for ax, number, kind in zip(axes, (5, 8), ("pageable", "pinned"), strict=True):
    (mark,) = [event for event in content["traceEvents"] if event["name"] == f"ProfilerStep#{number}"]
    here = [event for event in content["traceEvents"] if mark["ts"] <= event["ts"] < mark["ts"] + mark["dur"]]
    for row, kinds, colour in ((2, CALLS, "#E69F00"), (1, ["gpu_memcpy"], "#009E73"), (0, ["kernel"], "#0072B2")):
        bars = [(event["ts"] - mark["ts"], event["dur"]) for event in here if event["cat"] in kinds]
        ax.broken_barh(bars, (row - 0.35, 0.7), facecolors=colour)
    ax.axvline(mark["dur"], color="gray", linewidth=1, linestyle="--")
    ax.set_yticks((2, 1, 0), ("calls on the host", "copies", "kernels"))
    ax.set_title(f"from {kind} memory: {mark['dur'] / 1e3:.2f} ms")
axes[1].set_xlabel("µs")
plt.show()

# %% [markdown]
# The copies became half a millisecond shorter, and the step became a whole millisecond shorter. In the upper picture,
# the *call* takes even longer than the copy, because the host itself fills the driver's buffers piece by piece. Until
# it has done that, it cannot launch anything, so the GPU has to wait again. In the lower picture, the call returns
# after a few microseconds, and the launches are there before the copy has ended. Also note the labels: 2 KiB reach only
# a small fraction of the bandwidth, because each copy has a fixed cost. You should therefore pin the memory and combine
# small copies into large ones.
#
# ## The barcode again
#
# Tom sends your verdict on `reader_a` to the supplier: fewer launches. The supplier records all of the step's kernels
# once, as a **CUDA graph**, and then launches the graph with a single call. The GPU is the same, and so is every
# kernel. The titles use your functions. (This file is synthetic, too.)

# %%
again = perfnb.load(trace_file("reader_a_again"))
for profile, title in ((a, "Kernel by kernel"), (again, "As one graph")):
    events = profile.events
    busy, late = busy_ms(events[events["category"].isin(WORK)]), late_share(events)
    if busy is None or late is None:
        print("First solve 8.2 and 8.3.")
        break
    picture(profile, title, f", GPU busy for {busy:.2f} ms, {100 * late:.0f} % of launches late")

# %% [markdown]
# The step takes less than a quarter of the time, although the GPU is busy for 0.69 ms, as before. Nothing became
# faster, but the waiting has disappeared. (The long bar on the host is the call that waits for the result.) Only now
# would faster kernels make the step shorter.
#
# ## Takeaways
#
# - First find out **what** ran (GPU, ranks, steps, batch), and then how long it took.
# - A GPU is busy for the length of a **union** of intervals. A sum counts overlaps twice, and a span includes the gaps.
# - *Idle* is a symptom. Follow the **correlation** back to the host, and find the reason there.
# - Only a change on the **critical path** makes a step shorter.
# - The rank that communicates longest is the one that **waits**.
# - To compare machines, compare the work of their GPUs under operators that both have. Do not compare the length of a
#   step that neither GPU determines.
# - Copies from pinned memory are faster, and they do not hold up the host.
# - A verdict consists of a lever and a **bound**, and it states what the trace cannot show.
#
# `labs.export("lab_08.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 9,
# *Serving*](09_serving.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(8).complete, labs.progress(8)
### END HIDDEN TESTS
labs.progress(8)
