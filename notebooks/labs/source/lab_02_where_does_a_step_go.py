# %% [markdown]
# # Lab 2 · Where does a step go?
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 45 to 60 minutes; the cells themselves run
# for about a minute. It helps to have done [lab 1](01_measuring_honestly.ipynb) before, but you need not.
#
# **Afterwards you can**
#
# - read a profile: phases, the tree of layers, forward and backward, self and total time;
# - say beforehand, and check, what a layer's backward pass computes, and what freezing layers saves;
# - find the layer that is worth your work, say *before* you begin how much it could bring, make it faster without
#   changing its result, and show that the step became faster.
#
# **Predict** before each measurement, on paper or in the cell. `labs.check` tries your answers on this machine; it
# tells what is wrong, never the answer, and you may try as often as you like.

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
# A small convolutional network, written by somebody in a hurry. Read it once. Begin with `Net.forward`, at the end, and
# look up each layer that it calls: which ones does a batch pass through, in which order?


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
    """Gives each row of a batch the mean 0 and the standard deviation 1."""

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
# **Exercise 2.1.** Fill in which share of the step each of the four will take, as numbers that add up to 1. Only the
# form is judged: a wrong guess costs nothing. A hint: does backward compute more than forward, or less?

# %% answer 2.1
prediction = {"forward": ..., "backward": ..., "optimizer": ..., "rest": ...}
### BEGIN SOLUTION
prediction = {"forward": 0.33, "backward": 0.5, "optimizer": 0.12, "rest": 0.05}
### END SOLUTION
print(prediction)

# %% check 2.1 points=1
labs.check("2.1", prediction)

# %% [markdown]
# Now measure. The cell's body is one step. perfnb runs it again and again: until it is warm, then timed without any
# instrument (`--steps 20` are these), then a few more traced. The profile is bound to `p`. `--quiet` keeps its report
# back, which would give away what you are about to predict; we open it in 2.6. `--no-memory` leaves out what this lab
# does not need.

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
# **Look at** the median step time. The brackets behind it are a 95 % interval: as well as these steps tell, the median
# lies there. (*Steady*: the steps of the warm-up had stopped becoming faster.) Traced steps may take longer: writing
# down what runs takes time. But they should agree with each other. If the longest took more than 1.5 times as long as
# the shortest, or if one end of the interval is more than 1.5 times the other, other work on the machine was in them:
# **run the two cells again** before you go on. (Where it never gets quiet, go on after a few tries: the checks will do,
# but expect rough times.)
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
# Where were you off by most? Keep the row in mind: at the end of the lab we come back to it.
#
# ## 2.2 Backward by forward
#
# **Exercise 2.2.** How many times as long as the forward phase does the backward phase take? Use the column `ms` of
# `p.phases`; the rows are named `forward` and `backward`. The last line shows you your answer.

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
# forward. Yours may be far from it. Time is not only arithmetic; and not every layer needs both gradients, as we shall
# see.
#
# ## 2.3 Self and total
#
# A profile's layers are a tree, and the names tell it: `model.body.conv` lies in `model.body`, which lies in `model`.
#
# **Predict:** do the values of `total_ms` of all rows add up to the step, to more, or to less?

# %%
p.layers[["forward_ms", "backward_ms", "total_ms"]].astype(float).round(3)

# %%
print(f"sum of total_ms {p.layers['total_ms'].sum():.2f}, of self_ms {p.layers['self_ms'].sum():.2f}")
print(f"phases forward and backward together {p.phases.loc[['forward', 'backward'], 'ms'].sum():.2f} ms")
print(f"all phases, the step as traced: {p.phases['ms'].sum():.2f} ms")

# %% [markdown]
# The **total** of a row holds the layers inside it, so a sum of totals counts the convolution three times: as itself,
# in its block, and in the model. The **self** time of a row is its total without the layers inside, and these do add
# up, to the phases forward and backward.
#
# Rows in parentheses belong to no layer, and lie in nothing: `(loss)` is the backward pass of the loss (its forward
# pass is a phase of its own, and in no row), `(gradient accumulation)` adds gradients to those of the parameters, and
# `(autograd engine)` is autograd's own time. Forward, it noted a *node* for each operator, which knows how to go back
# through it; backward, the engine passes from node to node, and what it does between them belongs to none.
#
# **Exercise 2.3.** Write `self_times(layers)`: from a frame with the column `total_ms` and the layers' names as its
# index, return each row's self time, as a dictionary or series by name. It gets your profile's frame (without
# `self_ms`, of course), and another tree that you have not seen. `layers["total_ms"].items()` gives names and times.


# %% answer 2.3
def self_times(layers):
    """The self time of each row, by its name."""
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
# When to look at which? A large **total** tells you *where to go on reading*; a large **self** time tells you that you
# have arrived.
#
# ## 2.4 Arithmetic of backward
#
# A convolution's forward pass is one big product. Its backward pass needs the gradient of the **weights**, which is
# again such a product, and the gradient of its **input**, one more, which it hands on to the layer before it, the next
# one on the way back to the images.
#
# **Predict:** how many times the forward's arithmetic does the backward of `model.stem.conv` need, and how many times
# that of `model.body.conv`? Look at the first line of `Net.forward`: what comes before the stem, what before the body?
#
# **Exercise 2.4.** Now count: `forward_flops` and `backward_flops` of `p.layers` are floating-point operations (FLOPs),
# multiplications and additions; they are exact, whatever else the machine is doing. Give both ratios, backward by
# forward.

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
# One of them is smaller, because nobody asks for a gradient of the images. Autograd computes what somebody needs, and
# nothing else. Let us make use of that.
#
# ## 2.5 A frozen body
#
# A model that somebody else has trained is often *fine-tuned*: only its head learns on. A parameter with
# `requires_grad=False` is frozen. (`module.requires_grad_(False)` does this to all parameters in a module.)
#
# **Predict:** if the stem and the body are frozen, which layers still have a backward pass? How long will the forward
# pass take now? And what will be left of the head's own backward arithmetic?
#
# **Exercise 2.5.** Freeze the `stem` and the `body` of the model in the next cell, and nothing else. Then run the cell
# after it, which profiles its step. (If it says that something *does not require grad*, nothing is left that learns:
# the head must stay as it is. Run both cells again: the check looks at the last profile that succeeded.)

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
# You made three predictions. Here are both profiles side by side, first the arithmetic, in millions of operations:


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
# **Look at** the columns of backward. Nothing before the head learns, so nothing before it needs a gradient: the
# backward pass ends at the head. And of the head's own backward arithmetic, **half** is left. It still computes the
# gradient of its weights; but that of its *input* it would only hand on, and nobody asks for it any more.
#
# The arithmetic of forward is what it was. And the time?

# %%
side_by_side("ms").round(2)

# %% [markdown]
# Backward is nearly gone, also of the layers in between that have no parameters (the engine's own few microseconds
# aside). Forward may be a little faster than it was: where nothing learns, autograd has no nodes to note down, which
# `Rescale` feels most, with its many small operators. Or it may look *slower*: these are two profiles, taken one after
# the other, and where other programs ran during the second, they are in it. The counts above do not care; of times we
# shall ask for more in 2.8.
#
# (Who fine-tunes in earnest: a frozen `BatchNorm2d` still updates its running mean and variance, unless it is in
# `eval()` mode as well.)

# %% [markdown]
# ## 2.6 The suspect
#
# Back to the first profile. Layers with parameters have arithmetic to do. What of those **without**: activation,
# pooling, rescaling? They compute next to nothing.
#
# **Predict:** which of the layers without parameters takes the most time of its own? And will that be more or less than
# the two convolutions together?

# %%
own = p.layers[["module", "parameters", "self_ms", "share", "ops"]].sort_values("self_ms", ascending=False)
own.astype({"self_ms": float, "share": float, "ops": "Int64"}).round(3).head(8)

# %% [markdown]
# **Look at** the column `ops`, how many operators a layer ran, forward and backward, and at the class (`module`) of the
# row that has most. (Operators that other operators call are counted too: `std` alone is several.)
#
# Two of the columns do not quite fit together. Milliseconds are as traced, and tracing costs time for every operator
# that it writes down; `share` is corrected for that. Where there are many operators, the share is smaller than the
# milliseconds would make it.
#
# Before you rewrite anything: what could it bring *at most*? If a layer took a share *s* of the step and vanished, the
# rest would be left. This bound is *Amdahl's law*, and it has saved more work than any profiler.
#
# **Exercise 2.6.** Give the full name of the layer **without parameters** that has the most self time, and by which
# factor the step would be faster *at most* if the time in that row vanished (2.0 is twice as fast). Use its `share`,
# and compute with all of its digits, as it stands in `p.layers`: 2 % are allowed.

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
# You have found it by hand. Now open the report of the same profile, and see what it makes of it.

# %%
p

# %% [markdown]
# **Look at** the verdict, and note the *at most* in it: it is not your bound, and at the end you can say why.
# (*Confidence low* says that the figure is an estimate; the finding tells of what.) It should be about many short
# operators, *dispatch overhead*. If it is about something else, the machine was busy while you measured: *dispatch
# overhead* is then the second or third under the tab *Findings*, and it is the one to read. The line *Why* counts fewer
# ops than the column `ops`, as it leaves out those that other operators call. The table of layers is the frame that you
# know, drawn as a tree. And the notes, where there are any, say what to be careful about.
#
# The report advises to let each op do more: a larger batch, fewer and wider layers. (Would a larger batch help *here*?
# Look at the loop in `Rescale` again before you go on.) You will do it by hand. It also names `torch.compile`, which is
# to do the same by itself; [lab 7](07_the_optimisation_loop.ipynb) puts that to the test.
#
# ## 2.7 The same, faster
#
# `Rescale` takes its rows one by one: for each of 128 rows a mean, a standard deviation, a subtraction, an addition, a
# division. Each of these is a call of an operator on very few numbers, and a call costs some microseconds however few
# they are. And autograd remembers every one of them, and goes back through every one of them.
#
# **Exercise 2.7.** Write the layer so that it treats all rows at once. It must return the same as `Rescale`, pass the
# same gradient down, leave its input as it is, and take less than half of the time, forward and backward. It is tried
# on fresh batches of several sizes, rows by numbers. What you need: `x.mean(dim, keepdim=True)` and the same of `std`.


# %% answer 2.7
class RescaleAtOnce(nn.Module):
    """Gives each row of a batch the mean 0 and the standard deviation 1, all rows at once."""

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
# A faster layer is not yet a faster step. **Predict:** by which factor will the whole step be faster? Your bound of 2.6
# says how much it can be at most. Or does it?
#
# To compare fairly, the two steps need a model each, with the same weights, and run in turns, in random order. Two
# profiles one after the other would not do: the machine drifts between them. `make_step` gives a training step for a
# model of its own, around the layer that it is given, as in `make_step(Rescale())`; `torch.manual_seed` gives all of
# them the same weights.


# %%
def make_step(rescale):
    """A training step that returns its loss, on a model of its own."""
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
# `perfnb.ab_test(a, b, check=1e-3, budget_s=5)`; bind the result to `test`. `check=1e-3` compares what the steps
# return, their losses. Then give the speed-up: how many times as fast is the second? `test.ratio` is the second's time
# by the first's. (The check runs two such steps itself for a moment, to see that these were what you compared.)

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
# **Look at** the interval and at the line about the results: faster, and the same. (*They find a difference of so many
# percent in 9 of 10 runs*: a smaller one these pairs might have missed.) The ratio is not quite that of the
# two medians in the table: it is the median of the pairs' own ratios. Both steps of a pair meet the same weather, so
# that it falls out of their ratio; it does not fall out of two medians, each over all pairs. In two profiles, one after
# the other, it is all still in. On a busy machine, two profiles of the old step, minutes apart, said 98.7 ms and 38.5
# ms. A profile of the new step in a quieter hour (14 ms), set beside the first, would have claimed 7 times as fast;
# the pairs of the busy hour said 2.5.
#
# Now compare the factor with your bound of 2.6, and with another one.

# %%
layer, engine = p.layers.loc[["model.rescale", "(autograd engine)"], "share"]
print(f"at most {1 / (1 - layer):.2f} times as fast if the row of the layer vanishes")
print(f"at most {1 / (1 - layer - engine):.2f} times as fast if the row of the engine vanishes as well")
print("measured:", speedup)

# %% [markdown]
# Two things may surprise you.
#
# - It may be *less* than the first bound. The new layer takes some time as well.
# - It may be *more* than "at most". The bound counts what stands in one row. The engine's own time between the nodes of
#   the graph stands in another; but nearly all of these nodes were made by the loop, and they vanished too: this is the
#   second bound. A bound is as good as what it counts, and no better. And it is as good as its measurement: the shares
#   come from a few traced steps, the factor from many pairs. If the factor lies far beyond both bounds, look again at
#   the times of 2.1: did traced steps take much longer than timed ones? Then other work on the machine may have been
#   in them, in other layers more than in yours.
#
# And the **verdict** of the report said that at most so many milliseconds could be saved, so many percent of the step:
# what does it count, and why is it not your bound? Think first; the answer stands in the next lines.
#
# The verdict counts a *cause*, your bound counts a *place*. The verdict's is the time of short ops and of calling ops,
# in all layers and in the loss, and no call counts for more than a call can cost. Longer ops are not in it, and time in
# the loop beyond that is not in it either, though it vanished with the loop. Your bound takes the whole row, whatever
# the time went into, and nothing of the other layers. Both are bounds; none of them is a forecast.
#
# If you like, profile the new step as well: `fast = make_step(RescaleAtOnce())` in one cell, then
# `%profile_step fast()`. Read it as you read the first. (Its layers begin with `Net`, as the model has no name in the
# notebook.) What is the suspect now, and what would be the bound?
#
# And **the row of 2.1** in which you were off by most? Forward and backward are long here because of the loop, not of
# the arithmetic: whoever thought of the convolutions guessed them too small, and the rest too large. The optimizer's
# part grows with the number of parameters, here only seven thousand, and not with the batch.
#
# ## What you take with you
#
# - **Predict, measure, explain, change, verify**: the profile is the second step of five.
# - **Total** time tells where to go on reading, **self** time where to stop.
# - Backward computes what somebody needs: usually twice the forward, for the first layer once, and where neither a
#   layer nor anything before it learns, nothing.
# - What is slow is often not what computes much. Count the **ops**.
# - Amdahl's bound *before* you begin; results compared, and pairs in random order, *after*.
#
# `labs.export("lab_02.json")` writes your answers and what was measured of them, for a teacher. Next:
# [lab 3, *Counting*](03_counting.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(2).complete, labs.progress(2)
### END HIDDEN TESTS
labs.progress(2)
