# %% [markdown]
# # Lab 2 · Where does a step's time go?
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes, of which the cells
# themselves take about a minute. It helps to have done [lab 1](01_measuring_honestly.ipynb), but it is not required.
#
# **Afterwards you can**
#
# - read a profile: phases, the tree of layers, forward and backward, self and total time;
# - predict and check what a layer's backward pass computes, and what freezing layers saves;
# - find the layer worth optimising, compute *before* you start how much it could save, make it faster without changing
#   its result, and show that the step became faster.
#
# **Predict** before each measurement, on paper or in the cell. `labs.check` tests your answers on this machine. It
# tells you what is wrong without giving the answer away, and you can try as often as you like.

# %%
# %load_ext perfnb

# %%
import matplotlib.pyplot as plt
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # several threads wait for each other when other programs take a core away

# %% [markdown]
# ## The night is over
#
# You have joined the meter office of a small waterworks. Customers write the number of their water meter and its
# reading on a card, a scanner cuts the card into small images, and the office's model, the *Reader*, recognises the
# characters. Maya has written a script that trains it every night: a million training steps, from ten in the evening.
# At six in the morning, Tom needs the computer for the day's cards. This was last night:

# %%
STEPS, OPENS_H = 1_000_000, 8  # the office opens eight hours after ten in the evening


def picture(steps_ms):
    """How much of the training is done at which hour, for each script: its milliseconds per step."""
    _, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    for (name, ms), colour in zip(steps_ms.items(), ("#D55E00", "#0072B2"), strict=False):
        hours = STEPS * ms / 3.6e6
        done = f"{int(22 + hours) % 24:02}:{int(60 * (hours % 1)):02}"
        ax.plot((0, hours), (0, 100), color=colour, linewidth=2, label=f"{name}: done at {done}")
        ax.plot(hours, 100, "o", color=colour)
    ax.axvspan(OPENS_H, 14, color="#BBBBBB", alpha=0.4)
    ax.annotate("the office is open", (OPENS_H, 0), (OPENS_H + 0.2, 103))
    ax.set(xlim=(0, 14), ylim=(0, 110), ylabel="% of the training done")
    ax.set_xticks(range(0, 15, 2), [f"{(22 + hour) % 24:02}:00" for hour in range(0, 15, 2)])
    ax.legend(loc="lower right")
    plt.show()


picture({"Maya's script": 44.7})

# %% [markdown]
# Nothing in the script is silly, and yet each step takes 44.7 ms. Where does that time go? And what would have to
# change to make the night long enough? At the end of this lab, you will draw this picture again, with a layer that you
# have written. (The times in the picture are **planted**, which means that they are the same on every computer. All
# other times are measured on yours.)
#
# Here is the Reader. Read its code once. Start with `Reader.forward` at the end, and look up each layer that it calls.
# Which layers does a batch pass through, and in what order? The *stem* turns 64 pixels into 128 numbers, the *blocks*
# improve these numbers, and the *head* returns a score for each of the ten digits. Before the head, Maya rescales the
# numbers of each image, because some customers press hard with their pens, and others hardly at all.


# %%
class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width), nn.GELU()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Rescale(nn.Module):
    """Rescale each row of a batch to mean 0 and standard deviation 1."""

    def forward(self, x):
        rows = []
        for row in x:
            rows.append((row - row.mean()) / (row.std() + 1e-3))
        return torch.stack(rows)


class Reader(nn.Module):
    def __init__(self, rescale):
        super().__init__()
        self.stem = nn.Linear(64, 128)
        self.blocks = nn.Sequential(*(Block(128, 512) for _ in range(3)))
        self.rescale = rescale
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.rescale(self.blocks(self.stem(x))))


torch.manual_seed(0)
digits = load_digits()  # images of 8 x 8 pixels, one for each box of a card
x, y = torch.tensor(digits.data[:128] / 16, dtype=torch.float32), torch.tensor(digits.target[:128])
loss_fn = nn.CrossEntropyLoss()
model = Reader(Rescale())
optimizer = torch.optim.Adam(model.parameters())

# %% [markdown]
# ## 2.1 A prediction
#
# A training step has four parts: the **forward** pass, the **backward** pass, the **optimizer**'s update, and the
# **rest** (the loss, zeroing gradients, and the Python code in between).
#
# **Exercise 2.1.** Fill in the share of the step that each of the four parts will take. The shares must add up to one.
# Only the form is checked, so a wrong guess costs nothing. To get started: does backward compute more than forward, or
# less?

# %% answer 2.1
prediction = {"forward": ..., "backward": ..., "optimizer": ..., "rest": ...}
### BEGIN SOLUTION
prediction = {"forward": 0.33, "backward": 0.5, "optimizer": 0.12, "rest": 0.05}
### END SOLUTION
print(prediction)

# %% check 2.1 points=1
labs.check("2.1", prediction)

# %% [markdown]
# Now measure it. The body of the cell is one step, and perfnb runs it in several **passes**:
#
# - **warm-up** steps, until the step times no longer show a trend, which means that they have reached their **steady
#   state**;
# - **timed** steps (`--steps 20`) without any instrumentation, from which the step time is computed;
# - **traced** steps, where every operator is recorded. The first step under a tracer is slower than the others. It is
#   called the **lead-in** and is discarded;
# - a **counted** step, which records how much each operator computes but does not measure any times.
#
# The profile is bound to `p`. `--quiet` hides its report, because it would give away the answers to the next questions.
# You will open the report in 2.6. `--no-memory` skips the memory measurement, which is not needed in this lab.

# %%
# %%profile_step --quiet --into p --name "the Reader" --steps 20 --no-memory
optimizer.zero_grad()
loss = loss_fn(model(x), y)
loss.backward()
optimizer.step()

# %%
traced_ms = p.steps.loc[p.steps["pass"] == "traced", "wall_ms"]
print(p.timing)
longest = traced_ms.max() / traced_ms.min()
print("traced steps:", *traced_ms.round(1), f"ms: the longest takes {longest:.2f} x the shortest")

# %% [markdown]
# **Look at** the median step time. The brackets after it contain a 95 % interval. As far as these steps can tell, the
# median lies in it. Traced steps may take longer, because recording takes time, but they should agree with each other.
# If the longest took more than 1.5 times as long as the shortest, or if one end of the interval is more than 1.5 times
# the other, other programs interfered: **run the two cells again** before you continue. (If the machine is never idle,
# continue after a few tries. The checks will work, but expect noisy times.)
#
# Everything in a profile is also a pandas frame. Here are the phases next to your prediction.

# %%
shares = p.phases["share"]
measured = {part: shares[part] for part in ("forward", "backward", "optimizer")}
measured["rest"] = shares.drop(list(measured)).sum()
guess = prediction if isinstance(prediction, dict) else {}
guessed = pd.to_numeric(pd.Series(guess, dtype=object), errors="coerce")
both = pd.DataFrame({"predicted": guessed, "measured": pd.Series(measured)}).reindex(list(measured)).astype(float)
both.plot.barh(figsize=(7, 2.6), color=("#56B4E9", "#0072B2"), xlabel="share of the step").invert_yaxis()
plt.show()

# %% [markdown]
# **Look at** the pair of bars that differ the most. Remember that part of the step, because we will come back to it at
# the end of the lab.
#
# ## 2.2 Backward divided by forward
#
# **Exercise 2.2.** How many times as long as the forward phase is the backward phase? (1.0 means equally long.) Use the
# column `ms` of `p.phases`. The rows are named `forward` and `backward`. The last line shows your answer.

# %% answer 2.2
backward_by_forward = ...
### BEGIN SOLUTION
backward_by_forward = p.phases.loc["backward", "ms"] / p.phases.loc["forward", "ms"]
### END SOLUTION
print("backward by forward:", backward_by_forward)

# %% check 2.2 points=1
labs.check("2.2", backward_by_forward, profile=p)

# %% [markdown]
# Textbooks say *two*, because backward computes a gradient for the weights and another one for the input, and each of
# them is as much work as forward. Your ratio may be far from that. Time is more than arithmetic, and not every layer
# needs both gradients, as you will see.
#
# ## 2.3 Self and total
#
# The layers of a profile form a tree, as their names show: `model.blocks.0.up` is inside `model.blocks.0`, which is
# inside `model.blocks`, which is inside `model`.
#
# **Predict:** do the `total_ms` values of all rows add up to the step, to more than the step, or to less?

# %%
p.layers[["forward_ms", "backward_ms", "total_ms"]].astype(float).round(3)

# %%
print(f"sum of total_ms {p.layers['total_ms'].sum():.2f}, of self_ms {p.layers['self_ms'].sum():.2f}")
print(f"phases forward and backward together {p.phases.loc[['forward', 'backward'], 'ms'].sum():.2f} ms")
print(f"all phases, the step as traced: {p.phases['ms'].sum():.2f} ms")

# %% [markdown]
# The **total** of a row includes its child layers, so a sum of totals counts `model.blocks.0.up` four times: once for
# the layer itself, and once in each of the three rows around it. The **self** time of a row is its total without its
# child layers. Self times do add up: their sum is the time of the phases forward and backward.
#
# Rows in parentheses are not layers and have no parent:
#
# - `(loss)` is the backward pass of the loss. (Its forward pass is a separate phase and does not appear in any row.)
# - `(gradient accumulation)` adds new gradients to those of the parameters.
# - `(autograd engine)` is autograd's own time. In the forward pass, autograd records a *node* for each operator, which
#   can compute that operator's gradient. In the backward pass, the engine visits one node after another, and the work
#   that it does between two nodes belongs to neither of them.
#
# **Exercise 2.3.** Write `self_times(layers)`. Its argument is a frame with the column `total_ms` and the names of the
# layers as its index. Return each row's self time, as a dictionary or a series with the names as keys. Your function is
# tested on your profile's frame (without `self_ms`, of course) and on another tree that you have not seen.
# `layers["total_ms"].items()` yields names and times, and `name.rpartition(".")[0]` is the part of a name before its
# last dot.


# %% answer 2.3
def self_times(layers):
    """Return the self time of each row, by name."""
    ### BEGIN SOLUTION
    totals = layers["total_ms"].to_dict()
    own = dict(totals)
    for name, ms in totals.items():
        outer = name.rpartition(".")[0]
        if outer in own:
            own[outer] -= ms
    return own
    ### END SOLUTION


# %% check 2.3 points=2
labs.check("2.3", self_times, profile=p)

# %% [markdown]
# Which of the two do you need? A large **total** tells you *where to keep reading*; a large **self** time tells you
# that you have arrived.
#
# ## 2.4 Arithmetic of backward
#
# The forward pass of a linear layer is one matrix product. Its backward pass needs two more products of this kind: one
# for the gradient of the **weights**, and one for the gradient of its **input**. It passes the latter on to the
# previous layer, on the way back to the images.
#
# **Predict:** how many times as many FLOPs as its forward pass does the backward pass of `model.stem` need, and how
# many does that of `model.blocks.0.up` need? Look at `Reader.forward`: what comes before the stem, and what before the
# blocks?
#
# **Exercise 2.4.** Now count. `forward_flops` and `backward_flops` in `p.layers` are floating-point operations (FLOPs),
# which means multiplications and additions. They are exact, no matter how busy the machine is. Give both ratios of
# backward divided by forward.

# %% answer 2.4
stem_ratio = ...
up_ratio = ...
### BEGIN SOLUTION
flops = p.layers[["forward_flops", "backward_flops"]]
stem_ratio = flops.loc["model.stem", "backward_flops"] / flops.loc["model.stem", "forward_flops"]
up_ratio = flops.loc["model.blocks.0.up", "backward_flops"] / flops.loc["model.blocks.0.up", "forward_flops"]
### END SOLUTION
print("stem:", stem_ratio, "up:", up_ratio)

# %% check 2.4 points=2
labs.check("2.4", {"stem": stem_ratio, "up": up_ratio}, profile=p)

# %% [markdown]
# One of the ratios is smaller, because nobody needs a gradient for the images. Autograd only computes the gradients
# that are needed. You can make use of that.
#
# ## 2.5 Frozen blocks
#
# A pretrained model is often *fine-tuned*, which means that only its head continues to learn. A parameter with
# `requires_grad=False` is frozen. (`module.requires_grad_(False)` does this to all parameters in a module.)
#
# **Predict:** if the stem and the blocks are frozen, which layers still have a backward pass? How long will the forward
# pass take now? And how much of the head's own backward FLOPs will be left?
#
# **Exercise 2.5.** Freeze the `stem` and the `blocks` of the model in the next cell, and nothing else. Then run the
# cell after it, which profiles its step. (If you get an error that something *does not require grad*, nothing is left
# to train, although the head should continue to learn. Correct this and run both cells again. The check uses the last
# profile that succeeded.)

# %% answer 2.5
frozen = Reader(Rescale())
### BEGIN SOLUTION
for part in (frozen.stem, frozen.blocks):
    part.requires_grad_(False)
### END SOLUTION
frozen_optimizer = torch.optim.Adam(frozen.parameters())

# %%
# %%profile_step --quiet --into f --name "the Reader, frozen" --steps 20 --no-memory
frozen_optimizer.zero_grad()
loss = loss_fn(frozen(x), y)
loss.backward()
frozen_optimizer.step()

# %% check 2.5 points=2
labs.check("2.5", f, profile=p)

# %% [markdown]
# You made three predictions. Here are both profiles, `p` and `f`, side by side. The first table shows the FLOPs, in
# millions:


# %%
def side_by_side(measure):
    """Return the forward and backward values of both profiles, layer by layer."""
    both = {"p": p.layers.rename(lambda name: name.replace("model", "frozen")), "f": f.layers}
    columns = {}
    for way in ("forward", "backward"):
        for name, layers in both.items():
            columns[way, name] = layers[f"{way}_{measure}"]
    return pd.DataFrame(columns, index=f.layers.index).astype(float)


side_by_side("flops").div(1e6).round(2).dropna()

# %% [markdown]
# **Look at** the backward columns. Nothing before the head learns, so nothing before it needs a gradient, and the
# backward pass ends at the head. **Half** of the head's own backward FLOPs are left. The head still computes the
# gradient of its weights, but the gradient of its *input* would only be passed on, and nothing needs it any more.
#
# The forward FLOPs are unchanged. What about the time?

# %%
parts = side_by_side("ms").loc[["frozen.stem", "frozen.blocks", "frozen.rescale", "frozen.head"]]
_, axes = plt.subplots(1, 2, figsize=(8, 2.4), sharey=True, layout="constrained")
for ax, way in zip(axes, ("forward", "backward"), strict=True):
    ax.barh([0.2 + place for place in range(4)], parts[way, "p"].fillna(0), 0.35, color="#0072B2", label="p, all learn")
    ax.barh([0.6 + place for place in range(4)], parts[way, "f"].fillna(0), 0.35, color="#56B4E9", label="f, frozen")
    ax.set(title=way, xlabel="ms")
axes[0].set_yticks([0.4 + place for place in range(4)], ("stem", "blocks", "rescale", "head"))
axes[0].invert_yaxis()
axes[1].legend()
plt.show()

# %% [markdown]
# **Look at** the right-hand picture: backward is almost gone, even for `rescale`, which has no parameters. Forward may
# be a little faster, because autograd does not need to record nodes for layers that do not learn. This matters most for
# `rescale` with its many small operators. Forward may also look *slower*. These two profiles were taken back to back,
# so if other programs ran during the second one, they slowed it down. The counts above are not affected. In 2.8, you
# will compare times with more certainty.

# %% [markdown]
# ## 2.6 The suspect
#
# Back to the first profile. Layers with parameters have arithmetic to do. Layers **without** parameters, which only
# apply an activation or rescale something, compute next to nothing.
#
# **Predict:** which layer without parameters has the most self time? And is that more or less than the time of all
# layers in the three blocks together?

# %%
own = p.layers[["module", "parameters", "self_ms", "share", "ops"]].sort_values("self_ms", ascending=False)
own.astype({"self_ms": float, "share": float, "ops": "Int64"}).round(3).head(8)

# %%
rows = own.drop(index=[name for name in own.index if name.startswith("(")]).head(8).iloc[::-1]
colours = ["#D55E00" if count == 0 else "#0072B2" for count in rows["parameters"]]
_, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
ax.barh(rows.index, rows["self_ms"].astype(float), color=colours)
ax.set_xlabel("self time in ms; layers without parameters in orange")
plt.show()

# %% [markdown]
# **Look at** the longest orange bar. Then look at the column `ops` of the table, the number of operators that a layer
# ran, forward and backward, and at the class (`module`) of the row with the most. (Operators called by other operators
# count, too: `std` alone is several.)
#
# Two of the columns do not quite match. The milliseconds come from traced steps, and tracing adds time for every
# operator that it records. `share` is corrected for this overhead. For a layer with many operators, the share is
# therefore smaller than the milliseconds suggest.
#
# Before you rewrite anything, ask what it could save *at most*. If a layer that takes a share *s* of the step vanishes,
# the rest of the step is left. This bound is known as *Amdahl's law*, and it has saved more work than any profiler.
#
# **Exercise 2.6.** Give the full name of the layer **without parameters** with the most self time, and by which factor
# the step would be faster *at most* if the time in that row vanished (2.0 means twice as fast). Use its `share` from
# `p.layers` with all its digits, because the tolerance is 2 %.

# %% answer 2.6
suspect = ...
at_most = ...
### BEGIN SOLUTION
without = p.layers[(p.layers["parameters"] == 0) & p.layers["calls"].notna()]
suspect = without["self_ms"].astype(float).idxmax()
at_most = 1 / (1 - p.layers.loc[suspect, "share"])
### END SOLUTION
print("without", suspect, "the step would be at most", at_most, "times as fast")

# %% check 2.6 points=2
labs.check("2.6", {"layer": suspect, "at_most": at_most}, profile=p)

# %% [markdown]
# You found it by hand. Now open the report of the same profile.

# %%
p

# %% [markdown]
# **Look at** the verdict, and note the *up to* in it. This figure is not your bound, and at the end of the lab you will
# know why. (*Low confidence* means that the figure is an estimate. The finding explains the cause of the uncertainty.)
# The verdict should be about many short operators, which is called *dispatch overhead*. On a busy machine it may be
# about something else, such as *synchronisation*, because torch's `std` reads a number each time the loop calls it. In
# that case, *dispatch overhead* is further down in the *Findings* tab, and it is still the finding to read. Its *Why*
# counts fewer ops than the column `ops`, because it leaves out those called by other operators.
#
# The table of layers is the frame that you already know, drawn as a tree. In the tab *Roofline*, a **ceiling** is the
# highest rate that this machine reached with large products. [Lab 3](03_counting.ipynb) explains it. If there are any
# notes, they are caveats.
#
# For dispatch overhead, the report recommends that each op do more: a larger batch, or fewer and wider layers. (Would a
# larger batch help *here*? Look at the loop in `Rescale` again before you continue.) You will do it by hand. It also
# mentions `torch.compile`, which should do the same automatically; [lab 7](07_the_optimisation_loop.ipynb) puts that to
# the test.
#
# ## 2.7 The same, faster
#
# `Rescale` processes its rows one by one. For each of 128 rows, it calls a mean, a standard deviation, a subtraction,
# an addition and a division. Each of these operators works on very few numbers, but a call takes a few microseconds no
# matter how few they are. In addition, autograd records each of these calls, and visits each of them again in the
# backward pass.
#
# **Exercise 2.7.** Write the layer so that it handles all rows at once. It must return the same as `Rescale`, pass on
# the same gradient, leave its input unchanged, and take less than half the time, forward and backward. It is tested on
# new batches of several sizes. You need `x.mean(dim, keepdim=True)`, and likewise `std`.


# %% answer 2.7
class RescaleAtOnce(nn.Module):
    """Rescale all rows of a batch at once to mean 0 and standard deviation 1."""

    def forward(self, x):
        """The rows of x, rescaled."""
        ### BEGIN SOLUTION
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-3)
        ### END SOLUTION


# %% check 2.7 points=3
labs.check("2.7", RescaleAtOnce(), slow=Rescale())

# %% [markdown]
# ## 2.8 Did it help?
#
# A faster layer does not yet make a faster step. **Predict:** by which factor will the whole step be faster? According
# to your bound from 2.6, it cannot be more than that. Or can it?
#
# To compare fairly, each step needs its own model, with the same weights, and the two must be interleaved in random
# order. Two profiles back to back are not enough, because the machine drifts between them. `make_step` returns a
# training step with its own model around the given layer, as in `make_step(Rescale())`. With `torch.manual_seed`, all
# of them start from the same weights.


# %%
def make_step(rescale):
    """Return a training step with its own model. The step returns the loss."""
    torch.manual_seed(1)
    net = Reader(rescale)
    adam = torch.optim.Adam(net.parameters())

    def step():
        adam.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        adam.step()
        return loss

    step.__name__ = f"step with {type(rescale).__name__}"
    return step


# %% [markdown]
# **Exercise 2.8.** Use `perfnb.ab_test(a, b, check=1e-3, budget_s=5)` to compare the training step with `Rescale()`
# (first) and the training step with `RescaleAtOnce()` (second). Bind the result to `test`. `check=1e-3` compares the
# losses that the steps return. Then give the speed-up: how many times as fast is the second? `test.ratio` is the time
# of the second divided by the first. (The check briefly runs two such steps itself, to make sure that you compared
# these two.)

# %% answer 2.8
test = ...
speedup = ...
### BEGIN SOLUTION
test = perfnb.ab_test(make_step(Rescale()), make_step(RescaleAtOnce()), check=1e-3, budget_s=5)
speedup = 1 / test.ratio
### END SOLUTION
print("speed-up:", speedup)

# %%
test

# %% check 2.8 points=3
labs.check("2.8", speedup, test=test, steps=[make_step(Rescale()), make_step(RescaleAtOnce())])

# %% [markdown]
# **Look at** the interval, and at the first sentence, which compares the results as well: the second step is faster,
# and its results are the same. (The line below it names the difference that the pairs *detect in 9 of 10 runs*: they
# might have missed a smaller one.) The ratio is not quite the ratio of the two medians in the table, because it is the
# median of the ratios of the pairs. Both steps of a pair run under the same conditions, which cancel out in their
# ratio. The conditions do not cancel out in two medians over all pairs, and even less in two profiles taken back to
# back. On a busy machine, two profiles of the same step that were taken minutes apart once showed 98.7 ms and 38.5 ms.
#
# Now compare the factor with your bound from 2.6, and with a second bound.

# %%
layer, engine = p.layers.loc[["model.rescale", "(autograd engine)"], "share"]
print(f"at most {1 / (1 - layer):.2f} times as fast if the row of the layer vanishes")
print(f"at most {1 / (1 - layer - engine):.2f} times as fast if the row of the engine vanishes as well")
print("measured:", speedup)

# %% [markdown]
# Two things may surprise you.
#
# - It may be *less* than the first bound, because the new layer takes some time, too.
# - It may be *more* than "at most". The bound counts a single row. The engine's own time between the nodes of the graph
#   is in another row, but nearly all of these nodes came from the loop and vanished with it. The second bound takes
#   this into account. A bound is only as good as its accounting and its measurement: the shares come from a few traced
#   steps, but the factor comes from many pairs. If the factor is far beyond both bounds, look at the times in 2.1
#   again. If traced steps took much longer than timed ones, other programs may have interfered, and may have affected
#   other layers more than yours.
#
# The report's **verdict** contains a bound, too. It states how many milliseconds, and what percentage of the step,
# could be saved at most. Why is it different from your bound? Think about it before you read the answer below.
#
# The verdict counts a *cause*, and your bound counts a *place*. Dispatch overhead is the time of short ops and of
# calling them, in all layers and in the loss. It does not include longer ops and other time in the loop, although they
# vanished with the loop. Your bound includes the whole row, no matter what the time was spent on, but nothing from
# other layers. Both are bounds, and neither is a forecast.
#
# And what about the **part of the step in 2.1** where your prediction was the furthest off? Forward and backward are
# long here because of the loop, not because of the arithmetic. The optimizer's part grows with the number of
# parameters, which is 400,000 here, and not with the batch.
#
# ## The night again
#
# How long would Tom's computer need with your layer? His computer is **planted**, so it does not matter how busy yours
# is. On his computer, calling an operator takes 8 µs, and everything in the step except the rescaling layer takes 16
# ms. The number of operators is not planted. The next cell counts the operators that the two layers call, forward and
# backward.


# %%
class Counter(TorchDispatchMode):
    """Count the operators that run inside the ``with`` statement."""

    calls = 0

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        self.calls += 1
        return operator(*arguments, **(options or {}))


def planted_ms(layer):
    """How many operators a layer calls, forward and backward, and the time of the step on Tom's computer."""
    features = torch.randn(128, 128, requires_grad=True)
    with Counter() as counter:
        if not isinstance(rescaled := layer(features), torch.Tensor):
            return 0, None
        rescaled.sum().backward()
    return counter.calls, 16 + 0.008 * counter.calls


steps_ms = {}
for name, layer in {"Maya's script": Rescale(), "your layer": RescaleAtOnce()}.items():
    calls, ms = planted_ms(layer)
    if ms is None:
        print("Write RescaleAtOnce first, exercise 2.7.")
    else:
        print(f"{name:13} {calls:5,} calls, {ms:.1f} ms per step")
        steps_ms[name] = round(ms, 1)
picture(steps_ms)

# %% [markdown]
# The script is done in the middle of the night. Both layers multiply and add about the same number of numbers, but
# yours calls a hundredth of the operators.
#
# ## Takeaways
#
# - **Predict, measure, explain, change, verify**: the profile is the second step of five.
# - **Total** time tells you where to keep reading, and **self** time tells you where to stop.
# - Backward computes what is needed: usually twice as much as forward, as much as forward in the first layer, and
#   nothing if neither a layer nor anything before it learns.
# - The slow part is often not the part that computes a lot. Count the **ops**.
# - Use Amdahl's bound *before* you start; compare results, and pairs in random order, *afterwards*.
#
# `labs.export("lab_02.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 3,
# *Counting*](03_counting.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(2).complete, labs.progress(2)
### END HIDDEN TESTS
labs.progress(2)
