# %% [markdown]
# # Lab 3 · Counting
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes; the cells themselves take
# about a minute. Paper and pencil help. It helps to have done [lab 2](02_where_does_a_step_go.ipynb), but it is not
# required.
#
# **Afterwards you can**
#
# - count the FLOPs of a layer and of a training step by hand, and see the profile agree to the last digit;
# - count the bytes a layer must move, see the profile agree again, and say whether the layer is compute-bound or
#   memory-bound;
# - explain why a layer with a hundredth of the FLOPs does not take a hundredth of the time;
# - say what a loop in Python costs, because you have measured it.
#
# Counts are the best kind of measurement: exact, the same on every machine, and available before anything runs.
# **Predict** first anyway.

# %%
# %load_ext perfnb

# %%
import itertools
import random
import time

import pandas as pd
import torch
from torch import nn

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # several threads wait for each other when other programs take a core away

# %% [markdown]
# ## 3.1 A linear layer
#
# A linear layer with 784 inputs and 10 outputs computes a sum of 784 products for each output. A product and an
# addition are two *floating-point operations*, two FLOPs. By convention the bias is not counted, and the first addition
# of a sum counts like the others.
#
# **Exercise 3.1.** Write `linear_flops(batch, inputs, outputs)`: the FLOPs of a forward pass. It is compared with
# torch's own counter for several sizes.


# %% answer 3.1
def linear_flops(batch, inputs, outputs):
    """FLOPs of a linear layer's forward pass."""
    ### BEGIN SOLUTION
    return 2 * batch * inputs * outputs
    ### END SOLUTION


# %% check 3.1 points=1
labs.check("3.1", linear_flops)

# %% [markdown]
# ## 3.2 A convolution
#
# A convolution is a small linear layer applied at every position of the image. At each position, each output channel is
# a sum over all input channels and over the `kernel × kernel` pixels. (At the edges there is padding; products with 0
# count too, because they are computed.)
#
# **Predict:** a layer with 3 × 3 kernels from 64 to 64 channels, on images of 32 × 32: does it need more or fewer FLOPs
# than a linear layer from 4,096 to 4,096? And which of the two has more parameters?
#
# **Exercise 3.2.** Write `conv_flops(batch, inputs, outputs, kernel, height, width)`: the FLOPs of a forward pass of a
# convolution that preserves the image size. Does your prediction hold?


# %% answer 3.2
def conv_flops(batch, inputs, outputs, kernel, height, width):
    """FLOPs of the forward pass of a convolution with unchanged size."""
    ### BEGIN SOLUTION
    places = batch * height * width
    return places * linear_flops(1, inputs * kernel * kernel, outputs)
    ### END SOLUTION


# %% check 3.2 points=1
labs.check("3.2", conv_flops)

# %% [markdown]
# ## 3.3 A training step
#
# The backward pass of a linear layer has two products, each as large as that of the forward pass: one for the gradient
# of its weights, one for the gradient of its input, which it passes on to the previous layer. Hence the rule of thumb
# that a training step needs *three times* the FLOPs of its forward pass.
#
# **Predict:** is that exact for a network whose first layer reads the data?
#
# **Exercise 3.3.** Write `training_flops(batch, widths)`: the FLOPs of forward **and** backward of a network of linear
# layers, where `widths = (784, 256, 10)` means a layer from 784 to 256 and one from 256 to 10. Activations, loss and
# optimizer are not counted.


# %% answer 3.3
def training_flops(batch, widths):
    """Forward and backward FLOPs of a network of linear layers."""
    ### BEGIN SOLUTION
    forward = [linear_flops(batch, inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]
    return 3 * sum(forward) - forward[0]
    ### END SOLUTION


# %% check 3.3 points=2
labs.check("3.3", training_flops)

# %% [markdown]
# Does a profile give the same count? Here is such a network and a training step.

# %%
torch.manual_seed(0)
BATCH, WIDTHS = 256, (784, 512, 512, 10)
net = nn.Sequential(
    nn.Linear(WIDTHS[0], WIDTHS[1]), nn.ReLU(), nn.Linear(WIDTHS[1], WIDTHS[2]), nn.ReLU(), nn.Linear(*WIDTHS[2:])
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(BATCH, WIDTHS[0]), torch.randint(0, 10, (BATCH,))

# %%
# %%profile_step --into p --name "a network to count" --steps 20 --no-memory
optimizer.zero_grad()
loss = nn.functional.cross_entropy(net(x), y)
loss.backward()
optimizer.step()

# %%
print("by hand   ", training_flops(BATCH, WIDTHS))
print("by perfnb ", p.layers.loc["net", ["forward_flops", "backward_flops"]].sum())
p.layers[["module", "forward_flops", "backward_flops", "parameters"]]

# %% [markdown]
# **Look at** the first layer's `backward_flops`. And at the layers without a count: `n/a` (`<NA>`) means not counted,
# not that nothing was computed. A ReLU does very little, but it takes time.
#
# ## 3.4 Bytes
#
# Arithmetic is only half of it. Numbers must also come from memory and go back: at the very least, a layer reads its
# input and its weights once and writes its output once. A float32 has four bytes.
#
# **Exercise 3.4.** Write `linear_bytes(batch, inputs, outputs)`: the minimum number of bytes that the forward pass of a
# linear layer **without bias** moves, in float32. It is tested on several sizes, and then on the layers of your
# profile.


# %% answer 3.4
def linear_bytes(batch, inputs, outputs):
    """Minimum bytes moved by a linear layer's forward pass."""
    ### BEGIN SOLUTION
    return 4 * (batch * inputs + inputs * outputs + batch * outputs)
    ### END SOLUTION


# %% check 3.4 points=1
labs.check("3.4", linear_bytes, profile=p, network=(BATCH, WIDTHS))

# %% [markdown]
# The profile counts bytes as well, in the column `moved_bytes`. But it covers the layer's entire training step, so it
# includes more than the forward pass without a bias:
#
# - The one or two products of **backward** move as much again each: the same three matrices in other roles. For the
#   gradient of the weights, that of the output and the input are read, and what is written is as large as the weights;
#   for the gradient of the input, that of the output and the weights are read, and what is written is as large as the
#   input.
# - The **bias** of `outputs` numbers is read in forward. Its gradient is a sum over the batch: the gradient of the
#   output is read once more, and `outputs` numbers are written.
#
# **Predict:** for which layer is `moved_bytes` less than three times your `linear_bytes`? And by how much will the sum
# by hand be off?


# %%
def bytes_by_hand(batch, inputs, outputs, products):
    """Minimum bytes moved by a linear layer with bias in a training step with this many products."""
    bias = outputs + (batch * outputs + outputs)
    return products * linear_bytes(batch, inputs, outputs) + 4 * bias


def compared():
    """Counts by hand next to the profile's."""
    table = p.layers.loc[p.layers["module"] == "Linear", ["moved_bytes"]]
    sizes = [(BATCH, *pair) for pair in itertools.pairwise(WIDTHS)]
    table.insert(0, "one product", [linear_bytes(*each) for each in sizes])
    table.insert(1, "by hand", [bytes_by_hand(*each, products=3 if n else 2) for n, each in enumerate(sizes)])
    return table.assign(off=table["by hand"] - table["moved_bytes"])


compared() if linear_bytes(1, 1, 1) else "first solve 3.4"

# %% [markdown]
# **Look at** the last column. Like FLOPs, these are not measured: they are the minimum the step needs, the same on
# every machine. Caches make the real traffic smaller or larger. (A ReLU has no FLOPs in the profile, but it has bytes.
# Forward reads and writes; backward reads the gradient of its output and its output itself, and writes a third. Does
# that agree with `p.layers.loc["net.1", "moved_bytes"]`?)
#
# FLOPs divided by bytes is the **intensity**: how much a layer does with each byte it fetches. **Predict:** a layer
# from 1,024 to 1,024, with a batch of 1, and with a batch of 256. Which intensity is larger, and by about what factor?

# %%
for batch in (1, 16, 256):
    flops, moved = linear_flops(batch, 1024, 1024), linear_bytes(batch, 1024, 1024)
    print(f"batch {batch:3}:", f"{flops / moved:6.2f} FLOP/B" if flops and moved else "first solve 3.1 and 3.4")

# %% [markdown]
# With a batch of 1, every weight is fetched for just one product and one addition. This is why a language model serving
# a single user is so slow, and why servers batch requests.
#
# ## 3.5 Under the roof
#
# A machine has a peak FLOP/s and a peak bytes/s. perfnb has measured both on yours, with a large matmul and a large
# copy:

# %%
print({dtype: f"{peak / 1e9:.1f} GFLOP/s" for dtype, peak in p.roofline.peaks.items()})
print(f"{p.roofline.bandwidth / 1e9:.1f} GB/s")

# %% [markdown]
# It computes with the numbers it has while it fetches the next ones. So a layer takes at least as long as its
# arithmetic **and** at least as long as its bytes, and the two overlap. That is the entire *roofline model*.
#
# **Exercise 3.5.** Write `least_time(flops, moved_bytes, peak, bandwidth)`: the minimum time of a layer in seconds,
# with `peak` in FLOP/s and `bandwidth` in bytes/s. It is tested on made-up layers and on those of your profile.


# %% answer 3.5
def least_time(flops, moved_bytes, peak, bandwidth):
    """Minimum time of a layer in seconds."""
    ### BEGIN SOLUTION
    return max(flops / peak, moved_bytes / bandwidth)
    ### END SOLUTION


# %% check 3.5 points=2
labs.check("3.5", least_time, roofline=p.roofline)

# %% [markdown]
# **Predict:** which of the three linear layers is closest to the roof, and which is farthest from it?

# %%
p.roofline

# %% [markdown]
# **Look at** the picture: the slope on the left is memory, the flat part on the right is arithmetic, and each point is
# a layer or an operator. Up and to the right is good. A point far *below* the roof is bound by neither: it spends its
# time on something the model does not know. What might that be? The next exercise finds out.
#
# ## 3.6 A hundred times smaller
#
# **Predict:** a linear layer from 500 to 500, and one from 50 to 50, with the same batch. How many times the FLOPs does
# the first need? How many times as long will it take?

# %%
big_layer, small_layer = nn.Linear(500, 500), nn.Linear(50, 50)
big_input, small_input = torch.randn(16, 500), torch.randn(16, 50)


def big_step():
    with torch.no_grad():
        for _ in range(20):
            big_layer(big_input)


def small_step():
    with torch.no_grad():
        for _ in range(20):
            small_layer(small_input)


big = perfnb.time_step(big_step, budget_s=3)
small = perfnb.time_step(small_step, budget_s=3)
print(big)
print(small)

# %% [markdown]
# Whatever an operator computes, calling it costs a few microseconds: Python looks up the layer, torch checks shapes,
# picks a kernel, allocates the output. The big layer hides that behind its arithmetic; the small one cannot.
#
# **Exercise 3.6.** Three numbers:
#
# - `arithmetic`: how many times the FLOPs of the small layer the big one needs;
# - `time`: how many times as long as the small one it took (`big.median_ms`, `small.median_ms`);
# - `not_arithmetic`: the share of the small layer's time, from 0 to 1, that is not arithmetic, **if** it computes as
#   fast as the big layer. (How long would it take then? The rest is not arithmetic.)

# %% answer 3.6
arithmetic = ...
time_ratio = ...
not_arithmetic = ...
### BEGIN SOLUTION
arithmetic = linear_flops(16, 500, 500) / linear_flops(16, 50, 50)
time_ratio = big.median_ms / small.median_ms
not_arithmetic = 1 - (big.median_ms / arithmetic) / small.median_ms
### END SOLUTION

# %% check 3.6 points=2
numbers = {"arithmetic": arithmetic, "time": time_ratio, "not_arithmetic": not_arithmetic}
labs.check("3.6", numbers, big=big, small=small, steps=(big_step, small_step))

# %% [markdown]
# So a network of many tiny layers is slow without computing much, and replacing one large layer by ten small ones may
# cost more than it saves. Only a *count* together with a *time* shows which of the two you have.
#
# ## 3.7 Loops of your own
#
# *"Python is a hundred times slower."* Is it? **Predict** the factor between three loops in Python and torch, for the
# product of two matrices of 16 × 16, and of 128 × 128. Is it the same factor?
#
# **Exercise 3.7.** Write `matmul(a, b)`: the product of two matrices, given and returned as lists of rows, with your
# own loops and without torch, numpy or the like. (The check reads which names your code uses.) The matrices may be
# rectangular and must not be modified.


# %% answer 3.7
def matmul(a, b):
    """The product of two matrices, as lists of rows."""
    ### BEGIN SOLUTION
    product = []
    for row in a:
        sums = [0.0] * len(b[0])
        for value, other in zip(row, b, strict=True):
            for column, factor in enumerate(other):
                sums[column] += value * factor
        product.append(sums)
    return product
    ### END SOLUTION


# %% check 3.7 points=3
labs.check("3.7", matmul)

# %% [markdown]
# Now measure the claim. The fastest of a few runs is enough here: the factor is so large that it needs no interval.


# %%
def shortest_s(function, runs):
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


rows = []
for size in (4, 16, 64, 128):
    a, b = ([[random.random() for _ in range(size)] for _ in range(size)] for _ in range(2))
    tensor_a, tensor_b = torch.tensor(a), torch.tensor(b)
    loops = shortest_s(lambda a=a, b=b: matmul(a, b), 3)
    at_once = shortest_s(lambda a=tensor_a, b=tensor_b: a @ b, 50)
    flops = 2 * size**3
    rows.append((size, loops * 1e3, at_once * 1e3, loops / at_once, flops / loops / 1e9, flops / at_once / 1e9))
columns = ["size", "loops ms", "torch ms", "times as long", "loops GFLOP/s", "torch GFLOP/s"]
pd.DataFrame(rows, columns=columns).set_index("size").round(4)

# %% [markdown]
# **Look at** the two columns of GFLOP/s. For the loops it hardly changes: each product costs the same, some tens of
# nanoseconds. For torch it grows, because the cost of the call is spread over more and more arithmetic, until it gets
# close to the roof. There is no *single* factor between Python and torch. It depends on how much each call has to do,
# and now you know how to tell.
#
# ## Takeaways
#
# - A product and an addition are two FLOPs; a training step needs three times its forward pass, minus the gradient of
#   the data, which nobody needs.
# - Time is at least `max(arithmetic / peak, bytes / bandwidth)`. Small batches are memory-bound.
# - On top comes the cost of the call: microseconds, whatever the size. A hundredth of the FLOPs is not a hundredth of
#   the time.
# - A count says what *must* be done, a time what *was* spent. The gap between them is where to look.
#
# `labs.export("lab_03.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 4,
# *Memory*](04_memory.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(3).complete, labs.progress(3)
### END HIDDEN TESTS
labs.progress(3)
