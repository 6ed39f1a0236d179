# %% [markdown]
# # Lab 4 · Memory
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes; the cells themselves take
# about a minute. You should know what a forward and a backward pass are, as after [lab
# 2](02_where_does_a_step_go.ipynb).
#
# **Afterwards you can**
#
# - name the tensors that are alive at each moment of a training step, and explain why their sizes do not simply add up
#   to the peak;
# - count by hand the bytes of parameters, gradients and Adam's state, and those that the backward pass keeps from the
#   forward pass;
# - predict how large a batch fits into the available memory;
# - trade time for memory with checkpointing, and name the price;
# - find a leak from step to step, and fix it;
# - distinguish reserved memory from allocated memory, and choose an order of batches that wastes none.
#
# Everything here takes only a few MiB, so it runs anywhere. The reasoning is the same for GiB.
#
# **Predict** before each measurement. `labs.check` tests your answers on this machine. It tells you what is wrong
# without giving the answer away, and you can try as often as you like.

# %%
# %load_ext perfnb

# %%
import itertools
from collections import deque

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.checkpoint import checkpoint

import perfnb
from perfnb import labs
from perfnb.labs.made_allocator import CachingAllocator, steps

torch.set_num_threads(1)  # several threads wait for each other when other programs take a core away
KIB, MIB = 2**10, 2**20

# %% [markdown]
# ## The larger Reader
#
# You have joined the meter office of a small waterworks. Customers write the number of their water meter and its
# reading on a card, a scanner cuts the card into small images, and the office's model, the *Reader*, recognises the
# characters. Maya wants to train a larger Reader: a linear layer (`stem`), a tower of eight blocks instead of three,
# and ten scores (`head`). Its parameters take 4 MiB, and the office computer has 24 MiB to spare, so she did not expect
# a problem. (Read each MiB as a GiB. Everything here is a thousand times smaller so that it runs on your computer.)
# However, the script ran out of memory, and the operating system stopped it. This picture shows the memory of a
# training step on a computer that has enough memory, from the start of the step on the left to its end on the right:


# %%
class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width), nn.GELU()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class LargerReader(nn.Module):
    def __init__(self, tower_class):
        super().__init__()
        self.stem = nn.Linear(64, 128)
        self.tower = tower_class(nn.ModuleList(Block(128, 512) for _ in range(8)))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.tower(self.stem(x)))


digits = load_digits()
images, labels = torch.tensor(digits.data[:512] / 16, dtype=torch.float32), torch.tensor(digits.target[:512])


def profiled(step):
    """Return a short profile of a step, which is good enough for its memory but not for times."""
    return perfnb.profile_step(step, steps=1, warmup=1, traced=1, flops=False)


def picture(tower_class, title):
    """Plot the memory of a training step of the larger Reader by owner, and the memory that is available."""
    torch.manual_seed(0)
    larger = LargerReader(tower_class)
    adam = torch.optim.Adam(larger.parameters(), fused=True)  # one call, so that its update is not most of the picture

    def step():
        adam.zero_grad()
        nn.functional.cross_entropy(larger(images), labels).backward()
        adam.step()

    memory = profiled(step).memory
    owners = {"parameters": "#0072B2", "optimizer_state": "#56B4E9", "gradients": "#E69F00", "activations": "#D55E00"}
    bands = [memory[owner] / MIB for owner in owners]
    bands.append((memory["inputs"] + memory["temporaries"]) / MIB)
    _, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
    names = [owner.replace("_", " ") for owner in owners]
    progress = np.linspace(0, 100, len(memory))
    ax.stackplot(progress, *bands, colors=[*owners.values(), "#BBBBBB"], labels=[*names, "the rest"])
    ax.axhline(24, color="black", linewidth=1, linestyle="--")
    ax.annotate("there are 24 MiB", (80, 24), (80, 24.6))
    ax.set(xlim=(0, 100), ylim=(0, 40), xlabel="% of the step's allocations and releases", ylabel="MiB")
    ax.set_title(f"{title}: at most {sum(bands).max():.1f} MiB")
    ax.legend(loc="upper right", ncols=2, fontsize="small")
    plt.show()


picture(Tower, "The larger Reader")

# %% [markdown]
# The parameters are the narrow band at the bottom. What is all the rest, why does it rise and fall, and which part of
# it could be smaller? At the end of this lab, you will draw this picture again, with the same batch and the same
# training result, but below the dashed line.
#
# (Bytes are counted rather than timed, so this picture does not depend on how busy your computer is.)
#
# ## The first Reader
#
# The memory of a plain chain of layers is easier to count by hand. Maya's very first Reader was one: seven linear
# layers with activations in between, trained with Adam.

# %%
WIDTHS = (64, 256, 256, 256, 256, 256, 256, 10)
BATCH = 512


def network(activation):
    layers = []
    for inputs, outputs in itertools.pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


torch.manual_seed(0)
model = network(nn.ReLU)
optimizer = torch.optim.Adam(model.parameters())
loss_fn = nn.CrossEntropyLoss()
x, y = torch.randn(BATCH, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (BATCH,))
parameters = sum(p.numel() for p in model.parameters())
print(f"{parameters:,} parameters, {4 * parameters / MIB:.2f} MiB")

# %% [markdown]
# ## 4.1 The peak
#
# The memory of a step is not a single number but a curve: tensors are allocated and freed while it runs. What counts is
# its highest point, the **peak**. If the peak does not fit, the step fails, no matter how little memory it needed
# before and after.
#
# **Predict**, on paper: which phase has the peak (forward, loss, backward or optimizer)? And at that instant, which of
# these takes the most: the parameters, their gradients, Adam's state, or the activations?

# %%
# %%profile_step --into p --name "the first Reader" --steps 10 --warmup 2
optimizer.zero_grad()
loss = loss_fn(model(x), y)
loss.backward()
optimizer.step()

# %% [markdown]
# **Look at** the tab *Memory*, which shows time on the x axis, live bytes on the y axis, and a band for each category.
# Follow the activations: they rise layer by layer during forward, and fall again in reverse order during backward. Also
# follow the gradients, which rise while the activations fall. Click on the picture to pin an instant. Below it you then
# see the owners of the memory at that moment.
#
# (The line *ran* in the report lists the steps. After the warm-up, there are **timed** steps without instrumentation,
# **lead-in** steps, which start a trace and are discarded, **traced** steps, where operators are recorded, and
# **counted** steps, which record each allocation or the FLOPs but do not measure times.)
#
# The frame `p.memory` contains the same data, with one row per change and one column per category. The column `total`
# is their sum, and all values are in bytes. `inputs` is the batch, `temporaries` are allocated and freed within the
# step, and `other` is everything else. Here is every fourth of the larger changes, in MiB:

# %%
CATEGORIES = ["parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries", "other"]
larger = p.memory[p.memory["total"].diff().abs() > 100 * KIB].iloc[::4]
(larger[[*CATEGORIES, "total"]] / MIB).set_index(larger["t_ms"].round(2)).round(2)

# %% [markdown]
# **Exercise 4.1.** Give three answers:
#
# - `most`: the largest number of bytes alive at one instant;
# - `sum_of_most`: the sum, over all `CATEGORIES`, of the largest number of bytes that each of them had at any instant;
# - `phase`: the phase of the peak, as shown in the *Memory* tab.

# %% answer 4.1
most = ...
sum_of_most = ...
phase = ...
### BEGIN SOLUTION
most = p.memory["total"].max()
sum_of_most = p.memory[CATEGORIES].max().sum()
phase = "backward"
### END SOLUTION

# %% check 4.1 points=1
labs.check("4.1", {"most": most, "sum_of_most": sum_of_most, "phase": phase}, profile=p)

# %% [markdown]
# The second number is larger. If you add up "parameters + gradients + optimizer + activations", you count tensors that
# never exist at the same time. When the activations are complete, at the end of forward, `zero_grad()` has already
# freed the previous gradients, and the new ones do not exist yet.
#
# ## 4.2 Sixteen bytes
#
# According to a well-known rule, *training with Adam needs 16 bytes for each parameter*: 4 for the parameter, 4 for its
# gradient, and 8 for Adam's two running averages. Test this rule.
#
# **Predict:** when are all sixteen bytes alive: at the start of the step, at its peak, or at its end?

# %%
peak = p.memory["total"].idxmax()
moments = p.memory.loc[[0, peak, p.memory.index[-1]], CATEGORIES[:3]] / parameters
moments.set_axis(["begin", "peak", "end"]).assign(together=moments.sum(axis=1).to_numpy()).round(2)

# %% [markdown]
# These are bytes per parameter. The rule holds to two digits at both ends of the step. It does not hold at the peak of
# this step, because there are no gradients yet.
#
# Now for other models. Does the rule hold for a frozen parameter (`requires_grad=False`)? For a model in `bfloat16`,
# with two bytes per number? For a tensor shared by two layers? And for *buffers*, such as the running means of a batch
# normalisation, which belong to the model but are not trained?
#
# **Exercise 4.2.** Write `adam_bytes(model)`, which returns a dictionary with the bytes of `parameters` (including
# buffers, as in the profile), `gradients` and `optimizer_state` that are alive after a training step with Adam. The
# model that is passed to your function has not been trained yet. For five models, the result is compared with the
# tensors that a real step leaves behind. (Adam also counts its steps, which takes 4 bytes for each parameter tensor.
# You can include these bytes or leave them out.)
#
# You will find these useful: `model.parameters()`, `model.buffers()`, `tensor.nbytes`, `parameter.requires_grad`.


# %% answer 4.2
def adam_bytes(model):
    """Return the bytes that are alive after a training step with Adam."""
    ### BEGIN SOLUTION
    every = list(model.parameters())
    learned = sum(parameter.nbytes for parameter in every if parameter.requires_grad)
    kept = sum(tensor.nbytes for tensor in (*every, *model.buffers()))
    return {"parameters": kept, "gradients": learned, "optimizer_state": 2 * learned}
    ### END SOLUTION


# %% check 4.2 points=2
labs.check("4.2", adam_bytes)

# %% [markdown]
# The rule of *16 bytes* is therefore valid for float32 models whose parameters are all trained. For a mostly frozen
# model, the result is almost four times too large. This is one reason why you may have enough memory to fine-tune a few
# layers, but not to train all of them.
#
# ## 4.3 What backward needs
#
# Why are activations kept at all? They are kept because backward needs them:
#
# - A **linear layer** needs its *input*: the gradient of its weights is the product of its input and the incoming
#   gradient.
# - A **ReLU** needs to know where its *output* was positive.
# - A **GELU** is a smooth curve whose slope differs everywhere. It needs its *input*.
#
# Nothing else is kept. A layer reads the very tensor that the previous layer wrote. A tensor that two layers need is
# only kept once, and a tensor that no layer needs is freed immediately.
#
# **Predict:** the network has six hidden layers with 256 numbers per row. Will it keep more with GELU than with ReLU?
# By what factor? Count on paper first, and then look. The profile `p` shows the network with ReLU, and this one shows
# it with GELU:


# %%
def make_step(batch, activation=nn.ReLU):
    """Return a training step with its own model, on this many rows."""
    net = network(activation)
    adam = torch.optim.Adam(net.parameters())
    rows, targets = torch.randn(batch, WIDTHS[0]), torch.randint(0, WIDTHS[-1], (batch,))

    def step():
        adam.zero_grad()
        loss = loss_fn(net(rows), targets)
        loss.backward()
        adam.step()

    return step


# %%
kept = {}
for activation, profile in (("ReLU", p), ("GELU", profiled(make_step(BATCH, nn.GELU)))):
    inner = profile.layers[profile.layers["depth"] == 1]
    kept[activation] = (inner["activation_bytes"] / KIB).to_numpy()
names = [type(module).__name__.replace("ReLU", "activation") for module in model]
numbered = [f"{place} {name}" for place, name in enumerate(names)]
bars = pd.DataFrame(kept, index=numbered).plot.barh(figsize=(7, 4), width=0.8, color=("#0072B2", "#D55E00"))
bars.set_xlabel("KiB that are kept until backward, by the layer that allocated them")
bars.invert_yaxis()
bars.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# **Look at** the layers with a bar in only one colour. Does this match your count? The last layer keeps nothing,
# because its output is only needed by the loss, which keeps its own tensor.
#
# **Exercise 4.3.** Write `saved_bytes(batch, widths, activation)`, which returns the bytes that the layers of such a
# float32 network keep for backward. `widths` has the same form as `WIDTHS` above. There is an activation between linear
# layers, but none after the last one, and `activation` is `"relu"` or `"gelu"`. Do not count the batch itself, the
# weights and the loss. The result is compared with the tensors that autograd really keeps.


# %% answer 4.3
def saved_bytes(batch, widths, activation):
    """Return the bytes that the layers keep for the backward pass."""
    ### BEGIN SOLUTION
    hidden = 4 * batch * sum(widths[1:-1])
    return hidden if activation == "relu" else 2 * hidden
    ### END SOLUTION


# %% check 4.3 points=2
labs.check("4.3", saved_bytes)

# %% [markdown]
# This sum depends on the batch size but not on the number of weights. A model can therefore be too large in two ways,
# and each of them has its own remedy.
#
# ## 4.4 The largest batch
#
# You have 16 MiB for this step. How many rows fit? You could try 1,000, 2,000, 1,500, and so on, until the step fails.
# Or you can measure two batches and calculate.
#
# **Predict:** the batch is doubled. Is the peak doubled?


# %%
def peak_bytes(p):
    """Return the peak memory of a step, excluding tensors that the notebook keeps for other reasons."""
    return int((p.memory["total"] - p.memory["other"]).max())


peaks = {16: peak_bytes(profiled(make_step(16))), 512: peak_bytes(p), 1024: peak_bytes(profiled(make_step(1024)))}
pd.Series(peaks, name="peak, MiB").rename_axis("batch").div(MIB).round(2).to_frame()

# %% [markdown]
# If the peak consists of activations, it follows a straight line: a constant plus a number of bytes per row. Not all
# three points have to be on that line. With few rows, the peak may be elsewhere, namely at the point where the
# gradients are complete and Adam computes its update. At *that* point, the number of rows does not matter.
#
# **Exercise 4.4.** What is the largest number of rows (an `int`) that keeps the peak of the step at or below 16 MiB
# (`16 * MIB` bytes, since the dict `peaks` is also in bytes)? The check runs a step with your batch and measures it. It
# also runs a step with a batch that is 3 % larger, which must not fit.

# %% answer 4.4
largest = ...
### BEGIN SOLUTION
per_row = (peaks[1024] - peaks[512]) / 512
largest = int(1024 + (16 * MIB - peaks[1024]) / per_row)
### END SOLUTION

# %% check 4.4 points=2
labs.check("4.4", largest, make_step=make_step)

# %% [markdown]
# perfnb can do this without running anything: `estimate_memory` simulates a step with fake tensors that have shapes but
# no data. Compare its answer with yours. Then divide: how many bytes does a row need, and how many of them did you
# count in 4.3? (The rest is the row itself with its label, and two tensors of 256 numbers that exist while backward
# works on a layer.)

# %%
if hasattr(largest, "__index__"):
    estimate = perfnb.estimate_memory(model, (x[:16], y[:16]), "adam", loss=loss_fn)
    print("your answer:    ", largest)
    print("by the estimate:", estimate.largest_batch(16 * MIB))
    print(f"bytes for a row: {(peaks[1024] - peaks[512]) / 512:.0f}")
    print("counted in 4.3: ", saved_bytes(1, WIDTHS, "relu"))
    _, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
    ends = np.array([0, 1700])
    line = peaks[512] + (ends - 512) * (peaks[1024] - peaks[512]) / 512
    ax.plot(ends, line / MIB, color="#0072B2", linewidth=1)
    ax.plot(peaks.keys(), [peak / MIB for peak in peaks.values()], "o", color="#0072B2", label="measured")
    ax.axhline(16, color="black", linewidth=1, linestyle="--")
    ax.axvline(largest, color="#D55E00", label="your answer")
    ax.set(xlim=(0, 1700), ylim=(0, 20), xlabel="rows in the batch", ylabel="peak in MiB")
    ax.legend(loc="lower right")
    plt.show()
else:
    print("first solve 4.4, with a whole number")

# %% [markdown]
# **Look at** the leftmost dot, which is above the line: this is the peak at Adam's update. A line through it and
# another dot would have led you astray.
#
# ## 4.5 Checkpoints
#
# Back to the larger Reader. What if you cannot make the batch smaller? Then you have to keep less. **Checkpointing**
# keeps only the *input* of a block. Everything inside the block is freed during forward, and when backward reaches the
# block, its forward pass runs again. You save memory and pay for it with time.
#
# Here is its tower of eight blocks. It is only half as wide, so the cells run quickly.

# %%
torch.manual_seed(1)
tower = Tower(nn.ModuleList(Block(64, 256) for _ in range(8)))
rows = torch.randn(512, 64)

# %% [markdown]
# **Predict:** for each row, a block keeps about 640 numbers, and its input has 64. If you checkpoint each block, by how
# much does the peak drop? And if you wrap all eight blocks in a *single* checkpoint? (Which tensors are alive while its
# backward pass runs?)
#
# **Exercise 4.5.** Write the `forward` of a tower that keeps less. `torch.utils.checkpoint.checkpoint`, which is
# imported in the first cell, does this for you. Pass it the function, the arguments of the function, and
# `use_reentrant=False`, because the older of its two variants loses gradients if the input does not require them. (See
# `help(checkpoint)`.) Your tower must return the same result and the same gradients, and the peak of a training step
# must drop below half.


# %% answer 4.5
class CheckpointedTower(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks

    def forward(self, x):
        """Run the blocks like Tower, but only keep their inputs."""
        ### BEGIN SOLUTION
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x
        ### END SOLUTION


# %% check 4.5 points=2
labs.check("4.5", CheckpointedTower(tower.blocks), plain=tower, rows=rows)

# %% [markdown]
# A single checkpoint around everything would save nothing. Backward has to run all eight blocks again before it can
# start, so all tensors that they keep are alive at the same time.
#
# ## 4.6 The price
#
# If a forward pass costs one unit of arithmetic, backward costs two. **Predict:** if each block's forward pass runs
# twice, by what factor do the FLOPs of the step grow? And the time?
#
# `tower_step` creates a training step of a tower, which returns its loss. (It has no optimizer, so that both towers,
# which share their blocks, stay the same.)


# %%
def tower_step(net):
    def step():
        net.zero_grad()
        loss = net(rows).square().mean()
        loss.backward()
        return loss

    return step


# %% [markdown]
# **Exercise 4.6.** Make three measurements:
#
# - `plain` and `checkpointed`: profiles of both steps, `perfnb.profile_step(tower_step(...), steps=1, warmup=1,
#   traced=1)`. They are short because you only need their memory and arithmetic;
# - `test`: `perfnb.ab_test(a, b, check=1e-3, budget_s=4)` with the plain step first and the checkpointed step second,
#   for the time.
#
# Then give three ratios of checkpointed divided by plain: `memory`, the ratio of the peaks (`peak_bytes` is defined
# above), `arithmetic`, the ratio of all FLOPs, and `time_ratio`, which is `test.ratio`. The first row of `plain.layers`
# describes the whole tower. It contains the FLOPs in three columns: `forward_flops`, `backward_flops` and
# `recompute_flops`.

# %% answer 4.6
plain = ...
checkpointed = ...
test = ...
memory = ...
arithmetic = ...
time_ratio = ...
### BEGIN SOLUTION
light = CheckpointedTower(tower.blocks)
plain = perfnb.profile_step(tower_step(tower), steps=1, warmup=1, traced=1)
checkpointed = perfnb.profile_step(tower_step(light), steps=1, warmup=1, traced=1)
test = perfnb.ab_test(tower_step(tower), tower_step(light), check=1e-3, budget_s=4)
flops = ["forward_flops", "backward_flops", "recompute_flops"]
memory = peak_bytes(checkpointed) / peak_bytes(plain)
arithmetic = checkpointed.layers.iloc[0][flops].sum() / plain.layers.iloc[0][flops].sum()
time_ratio = test.ratio
### END SOLUTION

# %%
test

# %% check 4.6 points=3
ratios = {"memory": memory, "arithmetic": arithmetic, "time": time_ratio}
labs.check("4.6", ratios, plain=plain, checkpointed=checkpointed, test=test)

# %% [markdown]
# Did you predict 4/3 for the FLOPs, because there is one more forward pass in addition to three units of work? That is
# the figure in textbooks. Find the layers where the second forward pass was counted:

# %%
ways = ["forward_flops", "backward_flops", "recompute_flops"]
checkpointed.layers[["module", *ways]].iloc[1:7] if hasattr(checkpointed, "layers") else "first solve 4.6"

# %% [markdown]
# `down` is not recomputed. Its backward pass needs its input, but nobody needs its output, so torch stops the second
# forward pass as soon as it has all tensors that the block keeps. In this block, this saves half of the second forward
# pass, but in other blocks it saves less. Count the FLOPs instead of assuming a factor.
#
# ## 4.7 A leak
#
# Here is the next kind of trouble: the model fits, but the script fails after an hour because memory grows from step to
# step. Tom likes to monitor things. His training step for the small Reader with three blocks records three of them.


# %%
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, 128)
        self.blocks = nn.Sequential(*(Block(128, 512) for _ in range(3)))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


class Monitor:
    """Record the strength of a layer's output in each step."""

    def __init__(self, layer):
        self.strengths = []
        layer.register_forward_hook(self.record)

    def record(self, layer, inputs, output):
        """Record the output. torch calls this after each run of the layer."""
        self.strengths.append(output.square().mean())


torch.manual_seed(2)
reader = Reader()
reader_optimizer = torch.optim.Adam(reader.parameters())
monitor = Monitor(reader.blocks)
losses, recent = [], deque(maxlen=5)


def train_step():
    chosen = torch.randint(len(images), (256,))
    reader_optimizer.zero_grad()
    scores = reader(images[chosen])
    loss = loss_fn(scores, labels[chosen])
    loss.backward()
    reader_optimizer.step()
    losses.append(loss.item())
    recent.append(scores.detach())


# %% [markdown]
# **Predict:** which of `losses`, `recent` and `monitor.strengths` makes memory grow, and by about how many bytes per
# step? Write your guess down. Section 4.3 is all you need to make a good one.
#
# Then let perfnb search for the leak. `find_leaks` runs the step repeatedly and watches for tensors that are not freed.

# %%
leaks = perfnb.find_leaks(train_step)
leaks

# %% [markdown]
# **Exercise 4.7.** Give two answers:
#
# - `layer`: the full name of the layer that allocated most of the leaked memory;
# - `kib_per_step`: the number of KiB by which torch's memory grows per step.
#
# The frame `leaks.survivors` has both, in bytes.

# %% answer 4.7
layer = ...
kib_per_step = ...
### BEGIN SOLUTION
layer = leaks.survivors["layer"].iloc[0]
kib_per_step = leaks.survivors["bytes_per_step"].sum() / KIB
### END SOLUTION

# %% check 4.7 points=2
labs.check("4.7", {"layer": layer, "kib_per_step": kib_per_step}, leaks=leaks)

# %% [markdown]
# **Look at** the rising line in the report. Each entry of the list is a single number of 4 bytes. However, `square`
# keeps its input for a backward pass, as in 4.3. The number remembers how it was computed, so it keeps the entire
# output of the blocks alive, which is 256 rows of 128 numbers. `loss.backward()` frees the tensors that *its* graph has
# kept, but not the tensors of this branch, because the branch does not lead to the loss.
#
# ## 4.8 The leak fixed
#
# **Exercise 4.8.** Write the monitor in such a way that memory does not grow. `strengths` must contain the same values
# as before, one per step, and the training must not change. (Keeping one number per step is fine.) The check trains a
# small network with each of the two monitors, compares them, and runs `find_leaks`.


# %% answer 4.8
class QuietMonitor:
    """Record the strength of a layer's output in each step."""

    def __init__(self, layer):
        self.strengths = []
        layer.register_forward_hook(self.record)

    def record(self, layer, inputs, output):
        """Record the output. torch calls this after each run of the layer."""
        ### BEGIN SOLUTION
        self.strengths.append(output.detach().square().mean().item())
        ### END SOLUTION


# %% check 4.8 points=3
labs.check("4.8", QuietMonitor, leaky=Monitor)

# %% [markdown]
# There is more than one good answer: `.item()` returns a Python number, `.detach()` returns a tensor without a graph,
# and no graph is recorded under `torch.no_grad()`. (On a GPU, `.item()` has a price, because it waits until all earlier
# work is done.)
#
# ## 4.9 Reserved, but of no use
#
# For one night, Maya rented a GPU. *"Out of memory: tried to allocate 62 MiB. 60 MiB are allocated, and 2 GiB are
# reserved but unallocated."* Nothing leaks, and yet the next tensor does not fit. On a GPU, torch does not ask the
# driver for each tensor, because that would take too long. Its **caching allocator** reserves memory in large pieces
# called *segments*. Each tensor gets a *block* of a segment, and freed blocks are kept for later tensors. There are
# therefore two figures: **reserved** memory, which torch has requested from the driver, and **allocated** memory, which
# tensors use (`torch.cuda.memory_reserved()` and `memory_allocated()`).
#
# You do not need a GPU here, because the allocator is simulated. It follows the same rules as torch's allocator. A
# request gets the smallest free block that is large enough, and the rest of that block stays free. If no block is large
# enough, a new segment is reserved. Adjacent free blocks are merged again, but only within a segment.
#
# The next cell makes two requests, frees both of them, and then makes a request that is larger than either of them.
# **Predict:** how much is reserved at the end?

# %%
gpu = CachingAllocator()
first, second = gpu.allocate(40), gpu.allocate(50)
gpu.free(first)
gpu.free(second)
third = gpu.allocate(60)
print(f"reserved {gpu.reserved_mib} MiB, allocated {gpu.allocated_mib} MiB")

# %% [markdown]
# 90 MiB were free, but none of it could be used for a request of 60 MiB. This is **fragmentation**.
#
# Now consider a training run with cards of different lengths. Each step needs memory for its activations in proportion
# to its longest card, and frees it before the next step. `steps` runs a list of sizes, in MiB, through a fresh
# allocator.
#
# **Exercise 4.9.** Write `ordered(sizes)`, which returns the same sizes, each of them as often as before, in an order
# that makes the allocator reserve as little as possible. There is more than one such order.


# %% answer 4.9
def ordered(sizes):
    """Return the same sizes in an order that reserves as little as possible."""
    ### BEGIN SOLUTION
    return sorted(sizes, reverse=True)
    ### END SOLUTION


# %% check 4.9 points=2
labs.check("4.9", ordered)

# %% [markdown]
# **Look at** one epoch of 40 batches, first sorted by length, as in some loaders, and then in your order. The grey area
# is memory that is reserved but not allocated.

# %%
sizes = [20 + 2 * place for place in range(40)]
orders = {"shortest first": sizes}
if (own := ordered(sizes)) is None:
    print("Write ordered first, exercise 4.9.")
else:
    orders["your order"] = list(own)
_, axes = plt.subplots(1, 2, figsize=(8, 2.8), sharey=True, layout="constrained")
for ax, (name, order) in zip(axes, orders.items(), strict=False):
    gpu = steps(order)
    reserved, allocated = zip(*gpu.history, strict=True)
    ax.fill_between(range(len(reserved)), reserved, color="#BBBBBB", step="post", label="reserved")
    ax.fill_between(range(len(allocated)), allocated, color="#0072B2", step="post", label="allocated")
    ax.set_title(f"{name}: {gpu.reserved_mib:,} MiB")
    ax.set_xlabel("allocations and releases")
axes[0].set_ylabel("MiB")
axes[0].legend(loc="upper left")
plt.show()

# %% [markdown]
# The steps are the same, and no two of them are ever in memory together. If the shortest batch comes first, each step
# is a little larger than all blocks that earlier steps left behind. If the longest batch comes first, every later step
# fits into its block. You should therefore run the longest batch *once* before the training starts, or pad all batches
# to a few sizes. The order of the other batches does not matter and should stay random.
#
# (When memory runs out, torch returns segments that are entirely free to the driver and tries again. This helps here,
# but it takes time, and it does not help if a small tensor keeps each segment in use.)
#
# ## The larger Reader again
#
# Back to the office computer, which has 24 MiB for Maya's training step. Here is the same picture on the same axes, for
# the same step with the same batch. Only the tower has changed: it is the one that you wrote in 4.5.

# %%
if not isinstance(CheckpointedTower(tower.blocks)(rows), torch.Tensor):
    print("Write CheckpointedTower first, exercise 4.5.")
else:
    picture(CheckpointedTower, "With checkpoints")

# %% [markdown]
# It fits. The mountain of activations has become a low ridge that consists of the blocks' inputs, with a tooth for each
# block that is recomputed. The peak is now near the end of backward, where nearly all gradients exist. No checkpoint
# can lower that part, because it consists of the 16 bytes per parameter from 4.2. The price is the additional time from
# 4.6.
#
# ## Takeaways
#
# - Memory is a **curve**. Only tensors that are alive at the same time add up, and only the highest point has to fit.
# - Between steps, each trained float32 parameter takes **4 + 4 + 8** bytes, a frozen parameter takes 4 bytes, and a
#   bfloat16 parameter takes 2 + 2 + 4 bytes.
# - **Activations** are kept because backward needs them. They grow with the batch. Which tensors are kept depends on
#   the layer: its input, its output, or nothing.
# - You can find the largest batch with two measurements and a line, if both points are on the **same** branch of the
#   curve.
# - **Checkpointing** trades time for memory. Count the recomputation, and measure the time.
# - A number that remembers its graph is as large as its graph. `.item()` and `.detach()` let it go.
# - **Reserved** minus **allocated** is memory that torch has but may not be able to use. Run the largest batch first.
#
# `labs.export("lab_04.json")` writes your answers and their measurements to a file for your teacher. For more on
# memory, with a transformer, see [the memory notebook](../memory.ipynb). Next: [lab 5,
# *Architectures*](05_architectures.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(4).complete, labs.progress(4)
### END HIDDEN TESTS
labs.progress(4)
