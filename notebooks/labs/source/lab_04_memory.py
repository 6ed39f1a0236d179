# %% [markdown]
# # Lab 4 · Memory
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 45 to 60 minutes; the cells themselves run
# for about a minute. You should know what a forward and a backward pass are, as after
# [lab 2](02_where_does_a_step_go.ipynb).
#
# **Afterwards you can**
#
# - say which tensors live at which moment of a training step, and why their sizes do not simply add up to the peak;
# - count by hand what the parameters, their gradients and Adam need, and what the backward pass keeps of the forward
#   pass;
# - say beforehand how large a batch fits into the memory that there is;
# - trade time for memory by checkpointing, and say at which rate;
# - find what grows from step to step, and mend it.
#
# Everything here is small, a few MiB, so that it runs anywhere. The reasoning is the same where it is GiB.
#
# **Predict** before each measurement. `labs.check` tries your answers on this machine; it tells what is wrong, never
# the answer, and you may try as often as you like.

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
# Seven linear layers with an activation between each two, and Adam.

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
# A step's memory is not one number, but a curve: tensors are made and freed while it runs. What counts is the curve's
# highest point, the **peak**. If that does not fit, the step fails, and nobody asks how little was needed before and
# after.
#
# **Predict**, on paper: in which phase is the peak (forward, loss, backward, optimizer)? And at that instant, which of
# these holds most: the parameters, their gradients, Adam's state, the activations?

# %%
# %%profile_step --into p --name "seven layers" --steps 10 --warmup 2
optimizer.zero_grad()
loss = loss_fn(model(x), y)
loss.backward()
optimizer.step()

# %% [markdown]
# **Look at** the tab *Memory*: time goes to the right, bytes alive upwards, one band a category. Follow the
# activations: up, layer by layer, through forward, and down again, in reverse order, through backward. And follow the
# gradients: they go up while the activations go down. Click on the picture to keep an instant; below it stands who owns
# what then.
#
# The same is in the frame `p.memory`: a row for each change, a column for each category, and their sum in `total`, all
# in bytes. `inputs` is the batch; `temporaries` are made and freed again within the step; `other` is what belongs to
# none of the rest. Here is every fourth of the larger changes, in MiB:

# %%
CATEGORIES = ["parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries", "other"]
larger = p.memory[p.memory["total"].diff().abs() > 100 * KIB].iloc[::4]
(larger[[*CATEGORIES, "total"]] / MIB).set_index(larger["t_ms"].round(2)).round(2)

# %% [markdown]
# **Exercise 4.1.** Three answers:
#
# - `most`: the most bytes that were alive at one and the same instant;
# - `sum_of_most`: for each of the `CATEGORIES` the most bytes that *it* ever had in this step, added up;
# - `phase`: in which phase the peak is, as the tab *Memory* writes beside it.

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
# The second is larger. Who adds up "parameters + gradients + optimizer + activations" counts tensors that never meet:
# when the activations are complete, at the end of forward, `zero_grad()` has freed the gradients of the step before,
# and the new ones do not exist yet.
#
# ## 4.2 Sixteen bytes
#
# A well-known rule: *training with Adam needs 16 bytes for each parameter*: 4 for the parameter, 4 for its gradient,
# and 8 for the two running averages that Adam keeps of it. Let us put it on trial.
#
# **Predict:** when are all sixteen alive: when the step begins, at its peak, when it ends?

# %%
peak = p.memory["total"].idxmax()
moments = p.memory.loc[[0, peak, p.memory.index[-1]], CATEGORIES[:3]] / parameters
moments.set_axis(["begin", "peak", "end"]).assign(together=moments.sum(axis=1).to_numpy()).round(2)

# %% [markdown]
# Bytes for each parameter. The rule holds to two digits, at both ends of the step. At the peak of this step it does
# not, for the gradients are not there.
#
# Now for other models. What does the rule say of a parameter that is frozen (`requires_grad=False`)? Of a model in
# `bfloat16`, whose numbers have two bytes? Of a tensor that two layers share? Of *buffers*, such as the running means
# of a batch normalisation, that belong to the model, but are not learned?
#
# **Exercise 4.2.** Write `adam_bytes(model)`: a dictionary with the bytes of `parameters` (buffers count with them, as
# in the profile), `gradients` and `optimizer_state` that are alive after a training step with Adam. The model that you
# get has not been trained yet. It is compared with what a real step leaves, for five models. (Adam also keeps a count
# of its steps, 4 bytes for each parameter tensor. Count it or leave it out.)
#
# What may help: `model.parameters()`, `model.buffers()`, `tensor.nbytes`, `parameter.requires_grad`.


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
# So *16 bytes* is a rule for float32 where everything learns. For a model that is mostly frozen it is nearly four
# times too much: one reason why fine-tuning a few layers fits where training does not.
#
# ## 4.3 What backward needs
#
# Why do activations stay at all? Because backward needs them:
#
# - A **linear layer** needs its *input*: the gradient of its weights is a product of that and of what comes down from
#   above.
# - A **ReLU** needs to know where its *output* was positive.
# - A **GELU** is a smooth curve whose slope differs everywhere. It needs its *input*.
#
# Nothing else is kept. What a layer reads is the very tensor that the layer before it wrote: a tensor that two layers
# need is kept once, and one that no layer needs is freed at once.
#
# **Predict:** the network has six hidden layers of 256 numbers for each row. Will it keep more with GELU than with
# ReLU? How many times as much? Count on paper, then look: the profile `p` had ReLU, and here is one with GELU.
# `profiled` is a short profile, good for memory only.


# %%
def profiled(step):
    """A profile of the memory that a step needs."""
    return perfnb.profile_step(step, steps=1, warmup=1, traced=1, flops=False)


def make_step(batch, activation=nn.ReLU):
    """A training step of a model of its own, on so many rows."""
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
# A row is a layer, from the first to the last; a number is how much of what this layer *made* is kept until backward.
# Is it what you counted? The very last layer has 0: its output is needed by the loss alone, which keeps a tensor of
# its own.
#
# **Exercise 4.3.** Write `saved_bytes(batch, widths, activation)`: the bytes that the layers of such a network, in
# float32, keep for backward. `widths` is as `WIDTHS` above; there is an activation between each two linear layers,
# none after the last; `activation` is `"relu"` or `"gelu"`. The batch itself, the weights and the loss are not
# counted. It is compared with what autograd really keeps.


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
# The number of weights does not enter this sum, and the batch does. So a model can be too big in two ways, with two
# remedies.
#
# ## 4.4 The largest batch
#
# Somebody has 16 MiB for this step. How many rows go in? You could try: 1,000, 2,000, 1,500, and so on, until it
# fails. Or measure two batches, and compute.
#
# **Predict:** the batch is doubled. Is the peak doubled?


# %%
def peak_bytes(p):
    """The peak of a step, without what others keep in this notebook."""
    return int((p.memory["total"] - p.memory["other"]).max())


peaks = {16: peak_bytes(profiled(make_step(16))), 512: peak_bytes(p), 1024: peak_bytes(profiled(make_step(1024)))}
pd.Series(peaks, name="peak, MiB").rename_axis("batch").div(MIB).round(2).to_frame()

# %% [markdown]
# Where the peak is made of activations, it is a straight line: something that is there with any batch, plus so many
# bytes for each row. Not all three points need lie on this line. With few rows the highest point of the curve may be
# somewhere else: where the gradients are complete, and Adam computes its update. How many rows you have does not matter
# *there*.
#
# **Exercise 4.4.** How many rows (an `int`), at most, does a step have whose peak is not above 16 MiB (`16 * MIB`
# bytes; the dict `peaks` holds bytes too)? The check runs your batch and measures it; it also runs one that is 3 %
# larger, which must not fit.

# %% answer 4.4
largest = ...
### BEGIN SOLUTION
per_row = (peaks[1024] - peaks[512]) / 512
largest = int(1024 + (16 * MIB - peaks[1024]) / per_row)
### END SOLUTION

# %% check 4.4 points=2
labs.check("4.4", largest, make_step=make_step)

# %% [markdown]
# perfnb can do this without running anything: `estimate_memory` walks through a step with tensors that have a shape and
# no numbers. Compare. Then divide: how many bytes does a row need, and how many of them are what you counted in 4.3?
# (The rest: the row itself with its target, and two tensors of 256 numbers that the backward pass holds while it works
# on a layer.)

# %%
if hasattr(largest, "__index__"):
    estimate = perfnb.estimate_memory(model, (x[:16], y[:16]), "adam", loss=loss_fn)
    print("your answer:    ", largest)
    print("by the estimate:", estimate.largest_batch(16 * MIB))
    print(f"bytes for a row: {(peaks[1024] - peaks[512]) / 512:.0f}, of which {saved_bytes(1, WIDTHS, 'relu')} by 4.3")
else:
    print("first solve 4.4, with a whole number")

# %% [markdown]
# ## 4.5 Checkpoints
#
# What if the batch must not be smaller? Then keep less. **Checkpointing** keeps only what goes *into* a block. Its
# inside is freed in forward, and when backward comes to the block, its forward pass is run once more. Memory is paid
# for with time.
#
# Here is a tower of eight blocks, of the kind that transformers have.


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
# **Predict:** for each row, a block keeps about 640 numbers, and 64 go into it. If you checkpoint each block, by how
# much does the peak of a step fall? And if you wrap all eight blocks into *one* checkpoint? (What is alive while its
# backward pass runs?)
#
# **Exercise 4.5.** Write the `forward` of a tower that keeps less. `torch.utils.checkpoint.checkpoint`, which the first
# cell has imported, calls something as described: give it what to call, then what to call it on, and
# `use_reentrant=False`, for the older of its two ways loses gradients where the input asks for none.
# (`help(checkpoint)` tells more.) Your tower must return the same and give the same gradients; the peak of a training
# step must be less than half.


# %% answer 4.5
class CheckpointedTower(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks

    def forward(self, x):
        """As Tower, but keeps only what goes into the blocks."""
        ### BEGIN SOLUTION
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x
        ### END SOLUTION


# %% check 4.5 points=2
labs.check("4.5", CheckpointedTower(tower.blocks), plain=tower, rows=rows)

# %% [markdown]
# One checkpoint around everything would save nothing: its backward pass has to run all eight blocks again before it can
# begin, and then all that they keep is alive at once.
#
# ## 4.6 The price
#
# A forward pass is one part of arithmetic, a backward pass two. **Predict:** with each block's forward pass run twice,
# how many times the arithmetic of before does the step need? And how many times the time?
#
# `tower_step` makes a training step of a tower that returns its loss. (There is no optimizer, so that both towers,
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
# - `plain` and `checkpointed`: profiles of both steps,
#   `perfnb.profile_step(tower_step(...), steps=1, warmup=1, traced=1)`, short, for memory and arithmetic only;
# - `test`: `perfnb.ab_test(a, b, check=1e-3, budget_s=4)` of the plain step (first) and the checkpointed one, for the
#   time.
#
# Then give three ratios, each the checkpointed step by the plain one: `memory`, of their peaks (`peak_bytes` is
# above); `arithmetic`, of all their FLOPs; `time_ratio`, which is `test.ratio`. The FLOPs stand in the first row of
# `plain.layers`, that of the whole tower, in three columns: `forward_flops`, `backward_flops`, `recompute_flops`.

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
# Did you predict 4/3 for the arithmetic, one forward pass more on top of three? That is what textbooks say. Look where
# the second forward pass was counted:

# %%
ways = ["forward_flops", "backward_flops", "recompute_flops"]
checkpointed.layers[["module", *ways]].iloc[1:7] if hasattr(checkpointed, "layers") else "first solve 4.6"

# %% [markdown]
# `down` is not computed again. Its own backward pass needs its input; its output nobody needs. torch stops the second
# forward pass as soon as all that the block keeps is there again. In this block that saves half of it, in others less:
# count, do not believe.
#
# ## 4.7 A leak
#
# The last kind of trouble: the model fits, and fails after an hour, for memory grows from step to step. Here is a
# training step by somebody who likes to look on. It keeps three things beside the training.


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, 4)

    def forward(self, x):
        return self.head(self.body(x))


class Monitor:
    """Remembers, for each step, how strong the output of a layer was."""

    def __init__(self, layer):
        self.strengths = []
        layer.register_forward_hook(self.record)

    def record(self, layer, inputs, output):
        """Called by torch whenever the layer has run."""
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
# **Predict:** which of `losses`, `recent` and `monitor.strengths` makes memory grow, and by about how many bytes a
# step? Write it down; a good guess needs nothing but 4.3.
#
# Then let perfnb look. `find_leaks` runs the step again and again and sees what stays.

# %%
leaks = perfnb.find_leaks(train_step)
leaks

# %% [markdown]
# **Exercise 4.7.** Two answers:
#
# - `layer`: the full name of the layer that made most of what stays;
# - `kib_per_step`: by how many KiB torch's memory grows in a step.
#
# The frame `leaks.survivors` says it too, in bytes.

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
# Each entry of the list is one number, 4 bytes. But `square` has kept its input for a backward pass, as in 4.3; the
# number remembers how it was made, and through that holds on to the whole output of the layer, 256 rows of 128 numbers.
# `loss.backward()` frees what *its* graph has kept; of this branch, which leads to no loss, it knows nothing.
#
# ## 4.8 The leak mended
#
# **Exercise 4.8.** Write the monitor so that memory does not grow. `strengths` must have the same values as before, one
# for each step, and the network must learn the same. (One number a step is allowed to stay.) The check trains a small
# network with your monitor, compares, and lets `find_leaks` look.


# %% answer 4.8
class QuietMonitor:
    """Remembers, for each step, how strong the output of a layer was."""

    def __init__(self, layer):
        self.strengths = []
        layer.register_forward_hook(self.record)

    def record(self, layer, inputs, output):
        """Called by torch whenever the layer has run."""
        ### BEGIN SOLUTION
        self.strengths.append(output.detach().square().mean().item())
        ### END SOLUTION


# %% check 4.8 points=3
labs.check("4.8", QuietMonitor, leaky=Monitor)

# %% [markdown]
# There is more than one good answer: `.item()` makes a number of Python, `.detach()` a tensor without a past, and under
# `torch.no_grad()` it never had one. (`.item()` has a price on a GPU: it waits until everything before it has been
# computed.)
#
# ## What you take with you
#
# - Memory is a **curve**. Only what is alive together adds up, and only the highest point has to fit.
# - **4 + 4 + 8** bytes hold for each float32 parameter that learns, between the steps. A frozen one has 4, one in
#   bfloat16 has 2 + 2 + 4.
# - **Activations** stay because a layer's backward needs them. They grow with the batch, and which tensors stay depends
#   on the layer: its input, its output, or nothing.
# - Two measurements and a line tell the largest batch, if both lie on the **same** branch of the curve.
# - **Checkpointing** trades: count what is computed again, and measure the time.
# - A number that remembers its graph is as large as its graph. `.item()` and `.detach()` let go.
#
# `labs.export("lab_04.json")` writes your answers and what was measured of them, for a teacher. More on the same
# subject, on a transformer: [the notebook on memory](../memory.ipynb). Next:
# [lab 5, *Architectures*](05_architectures.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(4).complete, labs.progress(4)
### END HIDDEN TESTS
labs.progress(4)
