# %% [markdown]
# # Lab 2 · Where does a step's time go?
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes; the cells themselves take
# about a minute. It helps to have done [lab 1](01_measuring_honestly.ipynb), but it is not required.
#
# **Afterwards you can**
#
# - read a profile: phases, the tree of layers, forward and backward, self and total time;
# - predict and check what a layer's backward pass computes, and what freezing layers saves;
# - find the layer worth optimising, say *before* you start how much it could save, make it faster without changing its
#   result, and show that the step became faster.
#
# **Predict** before each measurement, on paper or in the cell. `labs.check` tests your answers on this machine; it says
# what is wrong, never the answer, and you can try as often as you like.

# %%
# %load_ext perfnb

# %%
import pandas as pd
import torch
from torch import nn

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # several threads wait for each other when other programs take a core away

# %% [markdown]
# ## The patient
#
# A small convolutional network, written in a hurry. Read it once. Start with `Net.forward` at the end and look up each
# layer it calls: which ones does a batch pass through, and in which order?


# %%
class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Rescale(nn.Module):
    """Rescale each row of a batch to mean 0 and standard deviation 1."""

    def forward(self, x):
        rows = []
        for row in x:
            rows.append((row - row.mean()) / (row.std() + 1e-3))
        return torch.stack(rows)


class Net(nn.Module):
    def __init__(self, rescale):
        super().__init__()
        self.stem = Block(1, 8)
        self.body = Block(8, 16)
        self.pool = nn.MaxPool2d(2)
        self.rescale = rescale
        self.head = nn.Linear(16 * 6 * 6, 10)

    def forward(self, x):
        x = self.pool(self.body(self.stem(x)))
        return self.head(self.rescale(x.flatten(1)))


torch.manual_seed(0)
x, y = torch.randn(128, 1, 12, 12), torch.randint(0, 10, (128,))
loss_fn = nn.CrossEntropyLoss()
model = Net(Rescale())
optimizer = torch.optim.Adam(model.parameters())

# %% [markdown]
# ## 2.1 A prediction
#
# A training step has parts: the **forward** pass, the **backward** pass, the **optimizer**'s update, and the **rest**
# (the loss, zeroing gradients, Python in between).
#
# **Exercise 2.1.** Fill in the share of the step that each of the four will take, as numbers that sum to one.
# Only the form is checked: a wrong guess costs nothing. A hint: does backward compute more than forward, or less?

# %% answer 2.1
prediction = {"forward": ..., "backward": ..., "optimizer": ..., "rest": ...}
### BEGIN SOLUTION
prediction = {"forward": 0.33, "backward": 0.5, "optimizer": 0.12, "rest": 0.05}
### END SOLUTION
print(prediction)

# %% check 2.1 points=1
labs.check("2.1", prediction)

# %% [markdown]
# Now measure. The body of the cell is one step. perfnb runs it repeatedly: until it is warm, then timed without
# instrumentation (`--steps 20`), then a few more times traced. The profile is bound to `p`. `--quiet` hides its report,
# which would give away what you are about to predict; we open it in 2.6. `--no-memory` skips what this lab does not
# need.

# %%
# %%profile_step --quiet --into p --name "the patient" --steps 20 --no-memory
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
# **Look at** the median step time. The brackets after it are a 95 % interval: as far as these steps can tell, the
# median lies there. (*Steady*: during warm-up the steps had stopped getting faster.) Traced steps may take longer,
# because recording takes time, but they should agree with each other. If the longest took more than 1.5 times as long
# as the shortest, or if one end of the interval is more than 1.5 times the other, other programs interfered: **run the
# two cells again** before you go on. (If the machine never gets idle, go on after a few tries: the checks will work,
# but expect noisy times.)
#
# Everything in a profile is also a pandas frame. Here are the phases beside your prediction.

# %%
shares = p.phases["share"]
measured = {part: shares[part] for part in ("forward", "backward", "optimizer")}
measured["rest"] = shares.drop(list(measured)).sum()
guess = prediction if isinstance(prediction, dict) else {}
guessed = pd.to_numeric(pd.Series(guess, dtype=object), errors="coerce")
pd.DataFrame({"predicted": guessed, "measured": pd.Series(measured)}).round(2)

# %% [markdown]
# Where were you off the most? Remember that row: we come back to it at the end of the lab.
#
# ## 2.2 Backward divided by forward
#
# **Exercise 2.2.** How many times longer than the forward phase is the backward phase? (1.0 is equally long.) Use the
# column `ms` of `p.phases`; the rows are named `forward` and `backward`. The last line shows your answer.

# %% answer 2.2
backward_by_forward = ...
### BEGIN SOLUTION
backward_by_forward = p.phases.loc["backward", "ms"] / p.phases.loc["forward", "ms"]
### END SOLUTION
print("backward by forward:", backward_by_forward)

# %% check 2.2 points=1
labs.check("2.2", backward_by_forward, profile=p)

# %% [markdown]
# A textbook says *two*: backward computes a gradient for the weights and one for the input, each as much work as
# forward. Yours may be far from that. Time is not only arithmetic, and not every layer needs both gradients, as we will
# see.
#
# ## 2.3 Self and total
#
# The layers of a profile form a tree, as the names show: `model.body.conv` lies in `model.body`, which lies in `model`.
#
# **Predict:** do the `total_ms` values of all rows add up to the step, to more, or to less?

# %%
p.layers[["forward_ms", "backward_ms", "total_ms"]].astype(float).round(3)

# %%
print(f"sum of total_ms {p.layers['total_ms'].sum():.2f}, of self_ms {p.layers['self_ms'].sum():.2f}")
print(f"phases forward and backward together {p.phases.loc[['forward', 'backward'], 'ms'].sum():.2f} ms")
print(f"all phases, the step as traced: {p.phases['ms'].sum():.2f} ms")

# %% [markdown]
# The **total** of a row includes its child layers, so a sum of totals counts the convolution three times: as itself, in
# its block, and in the model. The **self** time of a row is its total without child layers, and self times do add up,
# to the phases forward and backward.
#
# Rows in parentheses are not layers and have no parent: `(loss)` is the backward pass of the loss (its forward pass is
# a phase of its own and in no row), `(gradient accumulation)` adds gradients to those of the parameters, and `(autograd
# engine)` is autograd's own time. In forward it records a *node* for each operator, which knows how to compute that
# operator's gradient; in backward the engine visits node after node, and its work between them belongs to none of them.
#
# **Exercise 2.3.** Write `self_times(layers)`: from a frame with the column `total_ms` and the layers' names as its
# index, return each row's self time, as a dictionary or series by name. It is tested on your profile's frame (without
# `self_ms`, of course) and on another tree that you have not seen. `layers["total_ms"].items()` gives names and times.


# %% answer 2.3
def self_times(layers):
    """Self time of each row, by name."""
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
# Which one to look at when? A large **total** tells you *where to keep reading*; a large **self** time tells you that
# you have arrived.
#
# ## 2.4 Arithmetic of backward
#
# The forward pass of a convolution is one big matrix product. Its backward pass needs the gradient of the **weights**,
# another such product, and the gradient of its **input**, one more, which it passes on to the previous layer on the way
# back to the images.
#
# **Predict:** how many times the FLOPs of its forward does the backward of `model.stem.conv` need, and the backward of
# `model.body.conv`? Look at the first line of `Net.forward`: what comes before the stem, and what before the body?
#
# **Exercise 2.4.** Now count: `forward_flops` and `backward_flops` of `p.layers` are floating-point operations (FLOPs),
# multiplications and additions; they are exact, whatever else the machine is doing. Give both ratios, backward divided
# by forward.

# %% answer 2.4
stem_ratio = ...
body_ratio = ...
### BEGIN SOLUTION
flops = p.layers[["forward_flops", "backward_flops"]]
stem_ratio = flops.loc["model.stem.conv", "backward_flops"] / flops.loc["model.stem.conv", "forward_flops"]
body_ratio = flops.loc["model.body.conv", "backward_flops"] / flops.loc["model.body.conv", "forward_flops"]
### END SOLUTION
print("stem:", stem_ratio, "body:", body_ratio)

# %% check 2.4 points=2
labs.check("2.4", {"stem": stem_ratio, "body": body_ratio}, profile=p)

# %% [markdown]
# One of them is smaller, because nobody needs a gradient of the images. Autograd computes what is needed and nothing
# else. Let's use that.
#
# ## 2.5 A frozen body
#
# A pretrained model is often *fine-tuned*: only its head keeps learning. A parameter with `requires_grad=False` is
# frozen. (`module.requires_grad_(False)` does this to all parameters in a module.)
#
# **Predict:** if the stem and the body are frozen, which layers still have a backward pass? How long will the forward
# pass take now? And how much of the head's own backward FLOPs will be left?
#
# **Exercise 2.5.** Freeze the `stem` and the `body` of the model in the next cell, and nothing else. Then run the next
# cell, which profiles its step. (If it says that something *does not require grad*, nothing is left to train: the head
# must stay as it is. Run both cells again: the check uses the last profile that succeeded.)

# %% answer 2.5
frozen = Net(Rescale())
### BEGIN SOLUTION
for part in (frozen.stem, frozen.body):
    part.requires_grad_(False)
### END SOLUTION
frozen_optimizer = torch.optim.Adam(frozen.parameters())

# %%
# %%profile_step --quiet --into f --name "the patient, frozen" --steps 20 --no-memory
frozen_optimizer.zero_grad()
loss = loss_fn(frozen(x), y)
loss.backward()
frozen_optimizer.step()

# %% check 2.5 points=2
labs.check("2.5", f, profile=p)

# %% [markdown]
# You made three predictions. Here are both profiles side by side, first the FLOPs, in millions:


# %%
def side_by_side(measure):
    """Forward and backward of both profiles, layer by layer."""
    both = {"p": p.layers.rename(lambda name: name.replace("model", "frozen")), "f": f.layers}
    columns = {}
    for way in ("forward", "backward"):
        for name, layers in both.items():
            columns[way, name] = layers[f"{way}_{measure}"]
    return pd.DataFrame(columns, index=f.layers.index).astype(float)


side_by_side("flops").div(1e6).round(2).dropna()

# %% [markdown]
# **Look at** the backward columns. Nothing before the head learns, so nothing before it needs a gradient: the backward
# pass ends at the head. Of the head's own backward FLOPs, **half** are left. It still computes the gradient of its
# weights, but the gradient of its *input* would only be passed on, and nobody needs it any more.
#
# The forward FLOPs are unchanged. And the time?

# %%
side_by_side("ms").round(2)

# %% [markdown]
# Backward is almost gone, including that of the parameterless layers in between (apart from the engine's own few
# microseconds). Forward may be a little faster: where nothing learns, autograd has no nodes to record, which matters
# most for `Rescale` with its many small operators. Or it may look *slower*: these are two profiles taken back to back,
# and if other programs ran during the second, they are in it. The counts above are not affected; for times we will
# demand more in 2.8.
#
# (If you fine-tune for real: a frozen `BatchNorm2d` still updates its running mean and variance unless it is also in
# `eval()` mode.)

# %% [markdown]
# ## 2.6 The suspect
#
# Back to the first profile. Layers with parameters have arithmetic to do. What about those **without**: activation,
# pooling, rescaling? They compute next to nothing.
#
# **Predict:** which layer without parameters has the most self time? And is that more or less than the two convolutions
# together?

# %%
own = p.layers[["module", "parameters", "self_ms", "share", "ops"]].sort_values("self_ms", ascending=False)
own.astype({"self_ms": float, "share": float, "ops": "Int64"}).round(3).head(8)

# %% [markdown]
# **Look at** the column `ops`, the number of operators a layer ran, forward and backward, and at the class (`module`)
# of the row with the most. (Operators called by other operators count too: `std` alone is several.)
#
# Two of the columns do not quite match. Milliseconds are as traced, and tracing adds time for every operator it
# records; `share` is corrected for that. With many operators, the share is smaller than the milliseconds suggest.
#
# Before you rewrite anything: what could it save *at most*? If a layer takes a share *s* of the step and vanishes, the
# rest is left. This bound is *Amdahl's law*, and it has saved more work than any profiler.
#
# **Exercise 2.6.** Give the full name of the layer **without parameters** with the most self time, and by which factor
# the step would be faster *at most* if the time in that row vanished (2.0 is twice as fast). Use its `share` from
# `p.layers` with all its digits: the tolerance is 2 %.

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
# You found it by hand. Now open the report of the same profile and see what it says.

# %%
p

# %% [markdown]
# **Look at** the verdict, and note the *up to* in it: it is not your bound, and at the end you will know why. (*Low
# confidence* means that the figure is an estimate; the finding says of what.) It should be about many short operators,
# *dispatch overhead*. If it is about something else, the machine was busy while you measured: *dispatch overhead* is
# then second or third in the *Findings* tab, and it is the one to read. The *Why* line counts fewer ops than the column
# `ops`, because it leaves out those called by other operators. The table of layers is the frame you know, drawn as a
# tree. The notes, if any, are caveats.
#
# The report recommends letting each op do more: a larger batch, fewer and wider layers. (Would a larger batch help
# *here*? Look at the loop in `Rescale` again before you go on.) You will do it by hand. It also mentions
# `torch.compile`, which should do the same automatically; [lab 7](07_the_optimisation_loop.ipynb) puts that to the
# test.
#
# ## 2.7 The same, faster
#
# `Rescale` takes its rows one by one: for each of 128 rows a mean, a standard deviation, a subtraction, an addition, a
# division. Each of these calls an operator on very few numbers, and a call costs a few microseconds however few they
# are. And autograd records every one of them and goes back through every one.
#
# **Exercise 2.7.** Write the layer so that it handles all rows at once. It must return the same as `Rescale`, pass on
# the same gradient, leave its input unchanged, and take less than half the time, forward and backward. It is tested on
# new batches of several sizes. What you need: `x.mean(dim, keepdim=True)` and likewise `std`.


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
# A faster layer does not make a faster step yet. **Predict:** by which factor will the whole step be faster? Your bound
# from 2.6 says how much it can be at most. Or does it?
#
# To compare fairly, each step needs its own model, with the same weights, and the two must be interleaved in random
# order. Two profiles back to back are not enough: the machine drifts between them. `make_step` returns a training step
# with its own model around the given layer, as in `make_step(Rescale())`; `torch.manual_seed` gives all of them the
# same weights.


# %%
def make_step(rescale):
    """A training step with its own model; it returns the loss."""
    torch.manual_seed(1)
    net = Net(rescale)
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
# **Exercise 2.8.** Compare the training step with `Rescale()` (first) and that with `RescaleAtOnce()` (second) by
# `perfnb.ab_test(a, b, check=1e-3, budget_s=5)`; bind the result to `test`. `check=1e-3` compares the losses that the
# steps return. Then give the speed-up: how many times as fast is the second? `test.ratio` is the time of the second
# divided by the first. (The check briefly runs two such steps itself, to make sure that these are what you compared.)

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
# **Look at** the interval and at what the first sentence says of the results: faster, and the same. (Below it stands
# which difference the pairs *detect in 9 of 10 runs*: they might have missed a smaller one.) The ratio is not quite
# that of the two medians in the table: it is the median of the pairs' own ratios. Both steps of a pair see the same
# conditions, which cancel in their ratio; they do not cancel in two medians over all pairs, and even less in two
# profiles taken back to back. On a busy machine, two profiles of the old step, minutes apart, said 98.7 ms and 38.5 ms.
# A profile of the new step in a quieter hour (14 ms) would have claimed 7 times as fast as the first; the pairs
# measured in the busy hour said 2.5.
#
# Now compare the factor with your bound from 2.6, and with another one.

# %%
layer, engine = p.layers.loc[["model.rescale", "(autograd engine)"], "share"]
print(f"at most {1 / (1 - layer):.2f} times as fast if the row of the layer vanishes")
print(f"at most {1 / (1 - layer - engine):.2f} times as fast if the row of the engine vanishes as well")
print("measured:", speedup)

# %% [markdown]
# Two things may surprise you.
#
# - It may be *less* than the first bound. The new layer takes some time, too.
# - It may be *more* than "at most". The bound counts one row. The engine's own time between the nodes of the graph is
#   in another row, but nearly all of these nodes came from the loop and vanished with it: that is the second bound. A
#   bound is only as good as what it counts, and as its measurement: the shares come from a few traced steps, the factor
#   from many pairs. If the factor is far beyond both bounds, look at the times of 2.1 again: did traced steps take much
#   longer than timed ones? Then other programs may have interfered, in other layers more than in yours.
#
# And the **verdict** of the report said how many milliseconds, and percent of the step, could be saved at most: what
# does it count, and why is it not your bound? Think first; the answer follows.
#
# The verdict counts a *cause*, your bound counts a *place*. The verdict's is the time of short ops and of calling ops,
# in all layers and in the loss, where no call counts for more than a call can cost. It excludes longer ops and other
# time in the loop, although that vanished with the loop too. Your bound takes the whole row, whatever the time was
# spent on, and nothing from other layers. Both are bounds; neither is a forecast.
#
# If you like, profile the new step as well: `fast = make_step(RescaleAtOnce())` in one cell, then `%profile_step
# fast()`. Read it as you read the first. (Its layers start with `Net`, because the model has no name in the notebook.)
# What is the suspect now, and what is the bound?
#
# And **the row of 2.1** where you were off the most? Forward and backward are long here because of the loop, not the
# arithmetic: if you thought of the convolutions, you guessed them too small and the rest too large. The optimizer's
# part grows with the number of parameters, here only seven thousand, and not with the batch.
#
# ## Takeaways
#
# - **Predict, measure, explain, change, verify**: the profile is the second step of five.
# - **Total** time tells you where to keep reading, **self** time where to stop.
# - Backward computes what is needed: usually twice the forward, once for the first layer, and nothing if neither a
#   layer nor anything before it learns.
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
