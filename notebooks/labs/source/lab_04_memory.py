# %% [markdown]
# # Lab 4 · Memory
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes; the cells themselves take
# about a minute. You should know what a forward and a backward pass are, as after [lab
# 2](02_where_does_a_step_go.ipynb).
#
# **Afterwards you can**
#
# - say which tensors live at which moment of a training step, and why their sizes do not simply add up to the peak;
# - count by hand what parameters, gradients and Adam need, and what the backward pass keeps from the forward pass;
# - predict how large a batch fits into the available memory;
# - trade time for memory with checkpointing, and say at what price;
# - find what leaks from step to step, and fix it.
#
# Everything here is small, a few MiB, so that it runs anywhere. The reasoning is the same for GiB.
#
# **Predict** before each measurement. `labs.check` tests your answers on this machine; it says what is wrong, never the
# answer, and you can try as often as you like.

# %%
# %load_ext perfnb

# %%
import itertools
from collections import deque

import pandas as pd
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # several threads wait for each other when other programs take a core away
KIB, MIB = 2**10, 2**20

# %% [markdown]
# ## The patient
#
# Seven linear layers with activations in between, and Adam.

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
# The memory of a step is not one number but a curve: tensors are allocated and freed while it runs. What counts is the
# highest point, the **peak**. If that does not fit, the step fails, no matter how little was needed before and after.
#
# **Predict**, on paper: in which phase is the peak (forward, loss, backward, optimizer)? And at that instant, which of
# these takes the most: the parameters, their gradients, Adam's state, the activations?

# %%
# %%profile_step --into p --name "seven layers" --steps 10 --warmup 2
optimizer.zero_grad()
loss = loss_fn(model(x), y)
loss.backward()
optimizer.step()

# %% [markdown]
# **Look at** the tab *Memory*: time on the x axis, live bytes on the y axis, one band per category. Follow the
# activations: up, layer by layer, through forward, and down again, in reverse order, through backward. And follow the
# gradients: they rise while the activations fall. Click on the picture to pin an instant; below it you see who owns
# what at that moment.
#
# The frame `p.memory` has the same data: one row per change, one column per category, and their sum in `total`, all in
# bytes. `inputs` is the batch; `temporaries` are allocated and freed within the step; `other` is everything else. Here
# is every fourth of the larger changes, in MiB:

# %%
CATEGORIES = ["parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries", "other"]
larger = p.memory[p.memory["total"].diff().abs() > 100 * KIB].iloc[::4]
(larger[[*CATEGORIES, "total"]] / MIB).set_index(larger["t_ms"].round(2)).round(2)

# %% [markdown]
# **Exercise 4.1.** Three answers:
#
# - `most`: the largest number of bytes alive at one instant;
# - `sum_of_most`: for each of the `CATEGORIES` the most bytes that *it* ever had in this step, summed;
# - `phase`: the phase of the peak, as the *Memory* tab shows it.

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
# The second is larger. If you add up "parameters + gradients + optimizer + activations", you count tensors that never
# coexist: when the activations are complete, at the end of forward, `zero_grad()` has freed the previous gradients and
# the new ones do not exist yet.
#
# ## 4.2 Sixteen bytes
#
# A well-known rule: *training with Adam needs 16 bytes for each parameter*: 4 for the parameter, 4 for its gradient,
# and 8 for Adam's two running averages. Let's test it.
#
# **Predict:** when are all sixteen alive: at the start of the step, at its peak, at its end?

# %%
peak = p.memory["total"].idxmax()
moments = p.memory.loc[[0, peak, p.memory.index[-1]], CATEGORIES[:3]] / parameters
moments.set_axis(["begin", "peak", "end"]).assign(together=moments.sum(axis=1).to_numpy()).round(2)

# %% [markdown]
# Bytes per parameter. The rule holds to two digits at both ends of the step. At the peak of this step it does not,
# because there are no gradients yet.
#
# Now for other models. What does the rule say about a frozen parameter (`requires_grad=False`)? A model in `bfloat16`,
# with two bytes per number? A tensor shared by two layers? *Buffers*, such as the running means of a batch
# normalisation, which belong to the model but are not trained?
#
# **Exercise 4.2.** Write `adam_bytes(model)`: a dictionary with the bytes of `parameters` (buffers count with them, as
# in the profile), `gradients` and `optimizer_state` that are alive after a training step with Adam. The model you get
# has not been trained yet. The result is compared with what a real step leaves behind, for five models. (Adam also
# keeps a count of its steps, 4 bytes for each parameter tensor. Count it or leave it out.)
#
# Useful: `model.parameters()`, `model.buffers()`, `tensor.nbytes`, `parameter.requires_grad`.


# %% answer 4.2
def adam_bytes(model):
    """Bytes alive after a training step with Adam."""
    ### BEGIN SOLUTION
    every = list(model.parameters())
    learned = sum(parameter.nbytes for parameter in every if parameter.requires_grad)
    kept = sum(tensor.nbytes for tensor in (*every, *model.buffers()))
    return {"parameters": kept, "gradients": learned, "optimizer_state": 2 * learned}
    ### END SOLUTION


# %% check 4.2 points=2
labs.check("4.2", adam_bytes)

# %% [markdown]
# So *16 bytes* is a rule for float32 models that train all parameters. For a mostly frozen model it is almost four
# times too much: one reason why fine-tuning a few layers fits where full training does not.
#
# ## 4.3 What backward needs
#
# Why are activations kept at all? Because backward needs them:
#
# - A **linear layer** needs its *input*: the gradient of its weights is the product of that and the incoming gradient.
# - A **ReLU** needs to know where its *output* was positive.
# - A **GELU** is a smooth curve whose slope differs everywhere. It needs its *input*.
#
# Nothing else is kept. A layer reads the very tensor that the previous layer wrote: a tensor needed by two layers is
# kept once, and one that no layer needs is freed immediately.
#
# **Predict:** the network has six hidden layers with 256 numbers per row. Will it keep more with GELU than with ReLU?
# By what factor? Count on paper, then look: the profile `p` had ReLU, and here is one with GELU. `profiled` is a short
# profile, good enough for memory only.


# %%
def profiled(step):
    """Memory profile of a step."""
    return perfnb.profile_step(step, steps=1, warmup=1, traced=1, flops=False)


def make_step(batch, activation=nn.ReLU):
    """A training step with its own model, on this many rows."""
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
    kept[f"{activation}, KiB"] = (inner["activation_bytes"] / KIB).to_numpy()
names = [type(module).__name__.replace("ReLU", "activation") for module in model]
pd.DataFrame(kept, index=pd.Index(names, name="layer")).round(1)

# %% [markdown]
# One row per layer, from first to last; the number is how much of what this layer *allocated* is kept until backward.
# Is it what you counted? The last layer has 0: its output is only needed by the loss, which keeps a tensor of its own.
#
# **Exercise 4.3.** Write `saved_bytes(batch, widths, activation)`: the bytes that the layers of such a network, in
# float32, keep for backward. `widths` is as `WIDTHS` above; there is an activation between linear layers, none after
# the last; `activation` is `"relu"` or `"gelu"`. The batch itself, the weights and the loss do not count. The result is
# compared with what autograd really keeps.


# %% answer 4.3
def saved_bytes(batch, widths, activation):
    """Bytes that the layers keep for the backward pass."""
    ### BEGIN SOLUTION
    hidden = 4 * batch * sum(widths[1:-1])
    return hidden if activation == "relu" else 2 * hidden
    ### END SOLUTION


# %% check 4.3 points=2
labs.check("4.3", saved_bytes)

# %% [markdown]
# The number of weights does not enter this sum, but the batch size does. So a model can be too big in two ways, with
# two remedies.
#
# ## 4.4 The largest batch
#
# You have 16 MiB for this step. How many rows fit? You could try 1,000, 2,000, 1,500, and so on, until it fails. Or
# measure two batches and calculate.
#
# **Predict:** the batch is doubled. Is the peak doubled?


# %%
def peak_bytes(p):
    """Peak memory of a step, without tensors that the notebook keeps for other reasons."""
    return int((p.memory["total"] - p.memory["other"]).max())


peaks = {16: peak_bytes(profiled(make_step(16))), 512: peak_bytes(p), 1024: peak_bytes(profiled(make_step(1024)))}
pd.Series(peaks, name="peak, MiB").rename_axis("batch").div(MIB).round(2).to_frame()

# %% [markdown]
# If the peak is made of activations, it is a straight line: a constant plus a number of bytes per row. Not all three
# points have to lie on that line. With few rows the peak may be elsewhere: where the gradients are complete and Adam
# computes its update. The number of rows does not matter *there*.
#
# **Exercise 4.4.** What is the largest number of rows (an `int`) for which the peak of the step is at most 16 MiB
# (`16 * MIB` bytes; the dict `peaks` is in bytes too)? The check runs your batch and measures it; it also runs one that
# is 3 % larger, which must not fit.

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
# no data. Compare. Then divide: how many bytes does a row need, and how many of them did you count in 4.3? (The rest is
# the row itself with its target, and two tensors of 256 numbers that backward holds while it works on a layer.)

# %%
if hasattr(largest, "__index__"):
    estimate = perfnb.estimate_memory(model, (x[:16], y[:16]), "adam", loss=loss_fn)
    print("your answer:    ", largest)
    print("by the estimate:", estimate.largest_batch(16 * MIB))
    print(f"bytes for a row: {(peaks[1024] - peaks[512]) / 512:.0f}")
    print("counted in 4.3: ", saved_bytes(1, WIDTHS, "relu"))
else:
    print("first solve 4.4, with a whole number")

# %% [markdown]
# ## 4.5 Checkpoints
#
# What if the batch cannot be smaller? Then keep less. **Checkpointing** keeps only the *input* of a block. Everything
# inside is freed in forward, and when backward reaches the block, its forward pass runs again. You save memory and pay
# with time.
#
# Here is a tower of eight blocks like those in transformers.


# %%
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)

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


torch.manual_seed(1)
tower = Tower(nn.ModuleList(Block(64) for _ in range(8)))
rows = torch.randn(512, 64)

# %% [markdown]
# **Predict:** for each row, a block keeps about 640 numbers, and its input has 64. If you checkpoint each block, by how
# much does the peak drop? And if you wrap all eight blocks in *one* checkpoint? (What is alive while its backward pass
# runs?)
#
# **Exercise 4.5.** Write the `forward` of a tower that keeps less. `torch.utils.checkpoint.checkpoint`, imported in the
# first cell, does this: pass it the function, then its arguments, and `use_reentrant=False`, because the older of its
# two variants loses gradients if the input does not require them. (See `help(checkpoint)`.) Your tower must return the
# same result and the same gradients; the peak of a training step must drop below half.


# %% answer 4.5
class CheckpointedTower(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks

    def forward(self, x):
        """Like Tower, but keeps only the inputs of the blocks."""
        ### BEGIN SOLUTION
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x
        ### END SOLUTION


# %% check 4.5 points=2
labs.check("4.5", CheckpointedTower(tower.blocks), plain=tower, rows=rows)

# %% [markdown]
# One checkpoint around everything would save nothing: backward has to run all eight blocks again before it can start,
# and then everything they keep is alive at once.
#
# ## 4.6 The price
#
# If a forward pass costs one unit of arithmetic, backward costs two. **Predict:** if each block's forward pass runs
# twice, by what factor do the FLOPs of the step grow? And the time?
#
# `tower_step` creates a training step of a tower that returns its loss. (There is no optimizer, so that both towers,
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
#   traced=1)`, short, for memory and arithmetic only;
# - `test`: `perfnb.ab_test(a, b, check=1e-3, budget_s=4)` of the plain step (first) and the checkpointed one, for the
#   time.
#
# Then give three ratios, each checkpointed divided by plain: `memory`, of the peaks (`peak_bytes` is above);
# `arithmetic`, of all FLOPs; `time_ratio`, which is `test.ratio`. The FLOPs are in the first row of `plain.layers`,
# that of the whole tower, in three columns: `forward_flops`, `backward_flops`, `recompute_flops`.

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
# Did you predict 4/3 for the FLOPs, one extra forward pass on top of three? That is what textbooks say. Look where the
# second forward pass was counted:

# %%
ways = ["forward_flops", "backward_flops", "recompute_flops"]
checkpointed.layers[["module", *ways]].iloc[1:7] if hasattr(checkpointed, "layers") else "first solve 4.6"

# %% [markdown]
# `down` is not recomputed. Its backward pass needs its input, but nobody needs its output. torch stops the second
# forward pass as soon as everything the block keeps is there again. In this block that saves half of it, in others
# less: count, don't assume.
#
# ## 4.7 A leak
#
# The last kind of trouble: the model fits, but fails after an hour, because memory grows from step to step. Here is a
# training step by someone who likes to monitor things. It keeps three things on the side.


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, 4)

    def forward(self, x):
        return self.head(self.body(x))


class Monitor:
    """Records the strength of a layer's output in each step."""

    def __init__(self, layer):
        self.strengths = []
        layer.register_forward_hook(self.record)

    def record(self, layer, inputs, output):
        """Called by torch after each run of the layer."""
        self.strengths.append(output.square().mean())


torch.manual_seed(2)
net = Net()
net_optimizer = torch.optim.Adam(net.parameters())
monitor = Monitor(net.body)
losses, recent = [], deque(maxlen=5)


def train_step():
    batch = torch.randn(256, 32)
    net_optimizer.zero_grad()
    scores = net(batch)
    loss = scores.square().mean()
    loss.backward()
    net_optimizer.step()
    losses.append(loss.item())
    recent.append(scores.detach())


# %% [markdown]
# **Predict:** which of `losses`, `recent` and `monitor.strengths` makes memory grow, and by about how many bytes per
# step? Write it down; 4.3 is all you need for a good guess.
#
# Then let perfnb look. `find_leaks` runs the step repeatedly and watches what is not freed.

# %%
leaks = perfnb.find_leaks(train_step)
leaks

# %% [markdown]
# **Exercise 4.7.** Two answers:
#
# - `layer`: the full name of the layer that allocated most of the leaked memory;
# - `kib_per_step`: by how many KiB torch's memory grows per step.
#
# The frame `leaks.survivors` has it too, in bytes.

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
# Each entry of the list is one number, 4 bytes. But `square` keeps its input for a backward pass, as in 4.3; the number
# remembers how it was computed, and so holds on to the entire output of the layer, 256 rows of 128 numbers.
# `loss.backward()` frees what *its* graph has kept, but not this branch, which does not lead to the loss.
#
# ## 4.8 The leak fixed
#
# **Exercise 4.8.** Write the monitor so that memory does not grow. `strengths` must have the same values as before, one
# per step, and the network must learn the same. (Keeping one number per step is fine.) The check trains a small network
# with your monitor, compares, and runs `find_leaks`.


# %% answer 4.8
class QuietMonitor:
    """Records the strength of a layer's output in each step."""

    def __init__(self, layer):
        self.strengths = []
        layer.register_forward_hook(self.record)

    def record(self, layer, inputs, output):
        """Called by torch after each run of the layer."""
        ### BEGIN SOLUTION
        self.strengths.append(output.detach().square().mean().item())
        ### END SOLUTION


# %% check 4.8 points=3
labs.check("4.8", QuietMonitor, leaky=Monitor)

# %% [markdown]
# There is more than one good answer: `.item()` gives a Python number, `.detach()` a tensor without a graph, and under
# `torch.no_grad()` there never was one. (`.item()` has a price on a GPU: it waits until all earlier work is done.)
#
# ## Takeaways
#
# - Memory is a **curve**. Only what is alive at the same time adds up, and only the highest point has to fit.
# - Between steps, each trained float32 parameter takes **4 + 4 + 8** bytes, a frozen one 4, one in bfloat16 2 + 2 + 4.
# - **Activations** are kept because backward needs them. They grow with the batch, and which tensors are kept depends
#   on the layer: its input, its output, or nothing.
# - Two measurements and a line give the largest batch, if both lie on the **same** branch of the curve.
# - **Checkpointing** is a trade: count what is recomputed, and measure the time.
# - A number that remembers its graph is as large as its graph. `.item()` and `.detach()` let it go.
#
# `labs.export("lab_04.json")` writes your answers and their measurements to a file for your teacher. For more on
# memory, with a transformer, see [the memory notebook](../memory.ipynb). Next: [lab 5,
# *Architectures*](05_architectures.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(4).complete, labs.progress(4)
### END HIDDEN TESTS
labs.progress(4)
