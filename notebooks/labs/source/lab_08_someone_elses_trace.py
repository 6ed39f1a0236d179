# %% [markdown]
# # Lab 8 · Reading someone else's trace
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes; the cells themselves take
# about half a minute. You should know what a profile is, for example from [lab 2](02_where_does_a_step_go.ipynb).
#
# **Afterwards you can**
#
# - open a trace that `torch.profiler` wrote on a machine you have never seen, and say what ran and what it waited for;
# - compute by hand how long a GPU was busy, and which of its work was launched too late;
# - tell launch-bound from idle for other reasons, find the rank the others wait for, and compare two GPUs;
# - give a verdict with a number: which lever, and what it could save at most.
#
# **Predict** before you look. `labs.check` tests your answers; it says what is wrong, never the answer, and you can try
# as often as you like.

# %%
import pandas as pd

import perfnb
from perfnb import labs
from perfnb.labs.made_traces import trace_file

# %% [markdown]
# ## Five files
#
# The files are in the format that `torch.profiler` writes, and they are **synthetic**: perfnb writes them, the same on
# every machine, so this lab needs no network. Something is planted in each, and your job is to find it. The numbers are
# realistic for GPUs but were not measured: they teach you how to read a trace, not which GPU to buy.
#
# - `encoder_a` and `encoder_b`: inference of a text encoder on two GPUs, "A" and "B";
# - `training_b`: training of a small image network on GPU B;
# - `rank_0` and `rank_1`: two ranks of one job that trains a recommender.
#
# `trace_file` writes each into perfnb's cache folder and returns its path. The file is plain JSON, compressed; open it
# in <https://ui.perfetto.dev> if you want to see it there too.

# %%
a = perfnb.load(trace_file("encoder_a"))
b = perfnb.load(trace_file("encoder_b"))
training = perfnb.load(trace_file("training_b"))
ranks = perfnb.load([trace_file("rank_0"), trace_file("rank_1")])

# %% [markdown]
# ## 8.1 What ran it
#
# Before any times: what is this? A trace has the name of its GPU if the profiler recorded the devices, its rank if
# there were several, and its steps if `profiler.step()` was called.

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
# `training` marks no steps, so perfnb treats all of it as one. But it is a training run of several iterations: each
# calls the model once and updates it once.
#
# **Exercise 8.1.** Give, as numbers: how many `iterations` the trace `training` holds; how many images are in its
# `batch`; and how many `ranks` took part in the job of which we have two. The column `calls` of `training.layers` tells
# how often a layer was called. The column `shapes` of `training.events` tells what an operator was given: look at the
# first `aten::conv2d`; images are *batch × channels × height × width*.

# %% answer 8.1
iterations = ...
batch = ...
world_size = ...
### BEGIN SOLUTION
iterations = training.layers.loc["SmallNet_0", "calls"]
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
# What a GPU does is in `events` under three categories: `kernel`, `gpu_memcpy`, `gpu_memset`. Each row has a start and
# a duration in nanoseconds. **Predict:** is the sum of all durations the time the GPU was busy, or is it more, or less?

# %%
WORK = ["kernel", "gpu_memcpy", "gpu_memset"]
work = ranks[0].events[ranks[0].events["category"].isin(WORK)]
work.groupby("stream")["duration_ns"].agg(["size", "sum"])

# %% [markdown]
# Three *streams*: queues whose work runs side by side. Some communication (stream 20) runs beside computation (stream
# 7), so a sum counts some time twice. What we want is the length of the **union** of the intervals.
#
# On paper first: one kernel runs from 0 to 300 µs, one from 100 to 150, one from 200 to 400, one from 900 to 950. How
# long is the GPU busy?
#
# **Exercise 8.2.** Write `busy_ms(work)`: from a frame with the columns `start_ns` and `duration_ns`, return for how
# many milliseconds at least one interval ran. One way: sort the rows by their start, go through them, and remember the
# *latest* end that you have seen; only what lies beyond it is new. (`zip(work["start_ns"], work["duration_ns"])` gives
# pairs of numbers.) It is tested on the two ranks and on a small frame with intervals like those above.


# %% answer 8.2
def busy_ms(work):
    """Milliseconds in which at least one interval was running."""
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
# `gpu_time` has this figure for each rank, and what the busy time was made of. `kernel_ms` is the sum, which is
# something else.

# %%
ranks.gpu_time[["rank", "total_ms", "busy_ms", "kernel_ms", "computation_ms", "communication_ms", "overlap_ms"]]

# %% [markdown]
# ## 8.3 Late launches
#
# Now `a`: inference of eight sentences on GPU A. **Predict:** for what share of the step is the GPU busy: almost all,
# half, a sixth?
#
# Then look:

# %%
a.gpu_time[["total_ms", "busy_ms", "idle_ms", "idle_pct"]]

# %% [markdown]
# The GPU is idle for most of the step. Does it wait for the host? A kernel is launched by a call on the host, such as
# `cudaLaunchKernel`, and both rows have the same number in the column `correlation`. Here is one kernel, what the GPU
# did before it, and the call that launched it, in microseconds.

# %%
CALLS = ["cuda_runtime", "cuda_driver"]
work = a.events[a.events["category"].isin(WORK)].sort_values("start_ns")
calls = a.events[a.events["category"].isin(CALLS)]
before, kernel = work.iloc[60], work.iloc[61]
rows = pd.DataFrame([before, calls[calls["correlation"] == kernel["correlation"]].iloc[0], kernel])
rows["from_us"] = rows["start_ns"] / 1e3
rows["to_us"] = (rows["start_ns"] + rows["duration_ns"]) / 1e3
rows[["category", "name", "correlation", "from_us", "to_us"]]

# %% [markdown]
# The host made the call long after the GPU had finished what it had. Such a launch is *late*: the GPU could do nothing
# but wait. How many are?
#
# **Exercise 8.3.** Write `late_share(events)`: of all the GPU's work except the first, which share was launched by a
# call that *started* after all earlier work on the GPU had ended? Take the three categories of work and the two of
# calls; order the work by its start; with several streams, *all earlier work* has ended at the latest of the ends
# before it. The function returns a number from 0 to 1. It is tested on `a`, on `b`, and on a small frame with several
# streams that has only the columns `category`, `start_ns`, `duration_ns` and `correlation`.
#
# Useful: `series.map(other)` looks values up in another series by its index; `.cummax()` is the largest value so far;
# `.shift()` moves all values one row down; and not every call has a correlation: `.dropna(subset="correlation")`.


# %% answer 8.3
def late_share(events):
    """Share of GPU work, except the first, whose launch started after all earlier work had ended."""
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
# Such a step is **launch-bound**. The profile says so in time, and by operator: `host_ms` of `gpu_idle` is how long the
# GPU waited because the host was late; `launches` shows how long the calls took and what they launched.

# %%
a.gpu_idle[["idle_ms", "host_ms", "dependency_ms", "other_ms"]]

# %%
a.launches[["launched", "call_ms", "gpu_ms", "short"]].head(4)

# %% [markdown]
# All the launching calls together take less than a millisecond, and the GPU waits for more than three. The rest is what
# the host does from one launch to the next: Python, modules, torch's own way to the kernel. That is about 24 µs of host
# time for a kernel of 4 µs.
#
# ## 8.4 A faster kernel
#
# A colleague offers kernels for the operator that keeps this GPU busiest, *twice as fast*. **Predict:** by how many
# milliseconds will the step of 4.3 ms become shorter?
#
# The **critical path** is the one chain of host work, launches and GPU work that determined how long the step took.
# Only what lies on it can make the step shorter.

# %%
a.critical_path.groupby("kind", observed=True)["duration_ns"].sum() / 1e6

# %%
a.path_savings.loc[a.path_savings["by"] == "op", ["part", "path_ms", "saves_ms"]].head(4)

# %% [markdown]
# The kinds are the host between operators (`host`), in them (`operator`), and in calls of the GPU's library (`call`);
# the few microseconds of `memcpy` are the copy of the result, for which the host waits at the end. Work of kernels
# would be `computation`. Of the operators, `saves_ms` is what their *host* time, and whatever else of them lies on the
# path, costs the step.
#
# **Exercise 8.4.** Give the `op` whose kernels took longest on the GPU, all of them together (column `gpu_ms` of
# `launches`); its `share` of the time of all such work, from 0 to 1; and `saves_ms`, by how much the step gets shorter
# if that op's *kernels* take half as long and everything else stays.

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
# Two thirds of the GPU's work made twice as fast, and the step takes as long as before: nobody waits for that work.
# What can help here is a larger batch, a compiled model or CUDA graphs: each gives the GPU more to do for what the host
# does.
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
# 74 % idle, because the host was late: as in `a`. **Predict:** launch-bound too? Compare how long kernels run here (the
# batch is large), and remember how long a launch takes.
#
# *The host was late* tells you that the next launch came late, not what the host did before. Calls on the host are in
# `events` under `cuda_runtime`. The names of this GPU's calls start with `hip`: it is programmed through AMD's library.
#
# **Exercise 8.5.** Give the name of the `call` in which the host spent the most time in total; how many of them there
# are `per_iteration` (the iterations are those of 8.1); and which share of the step they take, from 0 to 1
# (`call_share`; `training.steps` has the one step's `wall_ms`).

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
# has finished, then takes about 2 ms, during which nothing is launched. Torch keeps a memory pool to avoid exactly
# this; here the pool seems to be switched off. Whether on purpose, the trace does not say.
#
# Two GPUs, idle 84 % and 74 % of the time, and the cure for one does not help the other. *Idle* is a symptom.
#
# ## 8.6 The straggler
#
# In a job of several ranks all must reach a collective before it can end. Two of 64 ranks are here, with three steps
# each. **Predict** from the next table: which of the two holds the other up?

# %%
ranks.times[["rank", "step", "wall_ms", "computation_ms", "communication_ms", "exposed_ms"]]


# %%
def collectives(rank):
    """Start and end of the communication kernels, in ms."""
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
# These are the collectives that ended on both ranks at about the same time: fifteen of eighteen. (The other three are
# with ranks whose traces we do not have.) They end together, and start when each rank reaches them. Whoever arrives
# first waits *inside* the kernel: a long collective can be the sign of a rank that had nothing else to do. In the first
# exchange of each step one rank comes some milliseconds after the other; in the rest they differ by less than half a
# millisecond.
#
# **Exercise 8.6.** Give the `rank` that holds the other up, and for how many ms of a step the other waits for it
# (`waits_ms`), as the mean of the three steps. `ranks.times` has a column `waiting_ms`, which also allows for clocks
# that differ between the ranks: the clock of rank 1 is 0.15 ms ahead (`ranks.clocks`).

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
# What does it do more of? Look at the kernels of the two, in ms a step. (Any of the 62 other ranks may hold up both.)

# %%
kernels = pd.DataFrame({rank: ranks[rank].kernels["total_ms"].astype(float) for rank in (0, 1)}).fillna(0)
kernels["more"] = kernels[1] - kernels[0]
kernels.sort_values("more", ascending=False).rename(lambda name: name[:60]).head(3).round(2)

# %% [markdown]
# By their names, lookups in embedding tables, forward and backward. It looks as if the tables, or the lookups, are not
# evenly distributed.
#
# ## 8.7 Two machines
#
# `a` and `b` ran the same model on the same shapes, on two GPUs. Kernels may have other names on another GPU, but the
# operators above them are the same: `compare` sets the work of the GPUs side by side under the closest operator that
# both have.
#
# **Predict:** the step of `b` is shorter than that of `a` (3.9 and 4.3 ms; look at 8.1). Does its GPU also work for a
# shorter time?

# %%
compared = a.compare(b)
compared.by_op[["op", "calls_a", "gpu_ms_a", "gpu_ms_b", "grew_gpu_ms"]].head(8)

# %% [markdown]
# A row is an operator with given shapes; `a` is the first trace, `b` the second.
#
# **Exercise 8.7.** Give the op whose GPU time, *all its shapes together*, grew most from `a` to `b` (`grown`); its time
# in `b` divided by that in `a` (`op_ratio`); and the same ratio for how long the GPUs were busy in the step
# (`busy_ratio`; `busy_ms` is in `gpu_steps` of each trace).

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
# The GPU that works longer has the shorter step. Both wait for their hosts most of the time, so the step's length tells
# you about the hosts and what runs there, and hardly anything about the GPUs.
#
# ## 8.8 A verdict
#
# A verdict is a lever and a number: what could it save *at most* per step, if the problem it fixes took no time at all?
# Four levers:
#
# | lever | its bound: the most that can go |
# |---|---|
# | `"faster kernels"` | the time of the GPU's work on the critical path |
# | `"fewer launches"` | the time for which the GPU waits for the host, where the host prepares launches |
# | `"no allocation"` | the time for which the GPU waits for the host, where the host takes or gives back memory |
# | `"hidden communication"` | the time in communication beside which nothing is computed |
#
# **Exercise 8.8.** For `encoder_a`, `training_b` and `rank_0`, give the lever with the largest bound, and that bound in
# ms of a step (`training` counts as one step; of rank 0 take the mean of its two). You have met these tables:
# `gpu_idle`, `critical_path`, and `ranks.times`, whose `exposed_ms` is communication beside which nothing is computed.
# The answer is a dictionary such as `{"encoder_a": ("faster kernels", 1.5), ...}`, with other words and figures.

# %% answer 8.8
verdict = ...
### BEGIN SOLUTION
own = ranks.times[ranks.times["rank"] == 0]
verdict = {
    "encoder_a": ("fewer launches", a.gpu_idle["host_ms"].sum()),
    "training_b": ("no allocation", training.gpu_idle["host_ms"].sum()),
    "rank_0": ("hidden communication", own["exposed_ms"].mean()),
}
### END SOLUTION

# %% check 8.8 points=3
labs.check("8.8", verdict, profile=a, training=training, ranks=ranks)

# %% [markdown]
# Now let perfnb give its own verdict, and compare. Here is its report on `a`. Open the tab *Timeline* too: drag and
# zoom (in a notebook that runs) until you see single kernels in the GPU's row, and above them what the host did.

# %%
a

# %% [markdown]
# And here are the findings of all three. (In `a` it counts the GPU's idle time before its first and after its last
# work as well; in `training` only the time during calls that take or give back memory.) `confidence` says how sure it
# is.

# %%
pd.concat({name: p.findings for name, p in (("a", a), ("training", training), ("ranks[0]", ranks[0]))})[
    ["bottleneck", "bound_ms", "bound_share", "confidence"]
]

# %%
path = ranks[0].critical_path.groupby(["step", "kind"], observed=True)["duration_ns"].sum() / 1e6
calls = ranks[0].events.loc[ranks[0].events["category"].isin(CALLS), "name"].astype(str)
print(path.unstack("step").round(1), calls.value_counts(), sep="\n\n")

# %% [markdown]
# Be careful with rank 0. There are 11 ms of communication that nothing hides, and yet none of it lies on the critical
# path, which by this trace is the host's, and nearly all of it is time in which no event says what the host does. Look
# at which calls the trace has: launches, copies and fills, and not one in which a host waits for its GPU. Where the
# host did wait, for communication perhaps, it seems to work. And for 5 ms of a step the GPU has nothing to do, and the
# trace does not say why the host launched nothing. *At most* is not *at least*: here the verdict is to record more, for
# instance with stacks. A good verdict names what it does not know.
#
# ## Takeaways
#
# - First **what**, then how long: GPU, ranks, steps, batch.
# - A GPU is busy for the length of a **union**. Sums count twice, spans count gaps.
# - *Idle* is a symptom. Follow the **correlation** back to the host, and see what it did.
# - Only what lies on the **critical path** makes a step shorter.
# - The rank that communicates longest is the one that **waits**.
# - Compare machines by the work of their GPUs, under operators that both have, not by the length of a step that neither
#   GPU determines.
# - A verdict is a lever with a **bound**, and says what the trace cannot show.
#
# `labs.export("lab_08.json")` writes your answers and their measurements to a file for your teacher.

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(8).complete, labs.progress(8)
### END HIDDEN TESTS
labs.progress(8)
