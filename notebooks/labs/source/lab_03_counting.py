# %% [markdown]
# # Lab 3 · Counting
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes, of which the cells
# themselves take about a minute. Paper and pencil help. It helps to have done [lab 2](02_where_does_a_step_go.ipynb),
# but it is not required.
#
# **Afterwards you can**
#
# - count the FLOPs of a layer and of a training step by hand, and see the profile agree to the last digit;
# - count the bytes that a layer must move, see the profile agree again, and decide whether the layer is compute-bound
#   or memory-bound;
# - explain why a layer with a hundredth of the FLOPs does not take a hundredth of the time, and predict the time that
#   it does take;
# - name the cost of a loop in Python, because you have measured it.
#
# Counts are the best kind of measurement: exact, the same on every machine, and available before anything runs.
# **Predict** first anyway. `labs.check` tests your answers on this machine. It tells you what is wrong without giving
# the answer away, and you can try as often as you like.

# %%
# %load_ext perfnb

# %%
import itertools
import operator
import random
import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # several threads wait for each other when other programs take a core away

# %% [markdown]
# ## A tenth of the width
#
# You have joined the meter office of a small waterworks. Customers write the number of their water meter and its
# reading on a card, a scanner cuts the card into small images, and the office's model, the *Reader*, recognises the
# characters. Nearly all of its arithmetic is in **linear layers**.
#
# Tom wants faster answers, and Maya has an idea. A linear layer that is a tenth as wide, with 50 inputs and outputs
# instead of 500, needs a hundredth of the arithmetic. So it should take a hundredth of the time. She knew how long a
# layer of width 1,000 takes, drew a line through that point, and then tried the narrow layers, too. Each dot is a layer
# that processes 16 images at once:

# %%
planted_us = {25: 5.6, 50: 7.1, 100: 11.8, 250: 44.5, 500: 166, 1000: 643}
IMAGES = 16


def mayas_law(width):
    """Microseconds for a layer: as its arithmetic, which grows with the square of the width."""
    return planted_us[1000] * (width / 1000) ** 2


def picture(law, title):
    """The times of the layers, and a law."""
    widths = np.geomspace(20, 1200, 60).round().astype(int).tolist()
    _, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
    ax.plot(widths, [law(width) for width in widths], color="#0072B2", label="the law")
    ax.plot(planted_us.keys(), planted_us.values(), "o", color="#D55E00", label="the layers")
    ax.set(xscale="log", yscale="log", ylim=(0.2, 1500), xlabel="width of the layer", ylabel="µs")
    ax.set_xticks(list(planted_us), [f"{width:,}" for width in planted_us])
    ax.minorticks_off()
    ax.set_title(f"{title}: {law(50):.1f} µs predicted for a width of 50, {planted_us[50]} µs taken")
    ax.legend(loc="upper left")
    plt.show()


picture(mayas_law, "Maya's law")

# %% [markdown]
# The law is good on the right, but it becomes worse and worse towards the left: the layer with a hundredth of the
# arithmetic takes more than four times as long as she had hoped. What is missing in her law? At the end of this lab,
# you will put together a better one from three functions that you will have written by then.
#
# (The times in this picture are **planted**, which means that they are the same on every computer. All other times are
# measured on yours.)
#
# ## 3.1 A linear layer
#
# A linear layer with 64 inputs and 10 outputs computes a sum of 64 products for each output. A product and an addition
# are two *floating-point operations* (FLOPs). By convention, the bias is not counted, and the first addition in a sum
# counts like the others.
#
# **Exercise 3.1.** Write `linear_flops(batch, inputs, outputs)`, which returns the FLOPs of a forward pass. Its result
# is compared with torch's own counter for several sizes.


# %% answer 3.1
def linear_flops(batch, inputs, outputs):
    """Return the FLOPs of a linear layer's forward pass."""
    ### BEGIN SOLUTION
    return 2 * batch * inputs * outputs
    ### END SOLUTION


# %% check 3.1 points=1
labs.check("3.1", linear_flops)

# %% [markdown]
# ## 3.2 A convolution
#
# Before the Reader, Maya had tried a convolutional network. A convolution is a small linear layer that is applied at
# every position of the image. At each position, each output channel is a sum over all input channels and over the
# `kernel × kernel` pixels. (The edges are padded. Products with 0 count as well, because they are computed.)
#
# **Predict:** does a layer with 3 × 3 kernels and 64 input and output channels, on images of 32 × 32 pixels, need more
# or fewer FLOPs than a linear layer with 4,096 inputs and outputs? And which of the two has more parameters?
#
# **Exercise 3.2.** Write `conv_flops(batch, inputs, outputs, kernel, height, width)`, which returns the FLOPs of the
# forward pass of a convolution that preserves the image size. Was your prediction right?


# %% answer 3.2
def conv_flops(batch, inputs, outputs, kernel, height, width):
    """Return the FLOPs of the forward pass of a convolution that preserves the image size."""
    ### BEGIN SOLUTION
    places = batch * height * width
    return places * linear_flops(1, inputs * kernel * kernel, outputs)
    ### END SOLUTION


# %% check 3.2 points=1
labs.check("3.2", conv_flops)

# %% [markdown]
# ## 3.3 A training step
#
# The backward pass of a linear layer has two products, each of which is as large as the one in the forward pass: one
# for the gradient of its weights, and one for the gradient of its input, which it passes on to the previous layer.
# Hence the rule of thumb that a training step needs *three times* the FLOPs of its forward pass.
#
# **Predict:** is that exact for a network whose first layer reads the data?
#
# **Exercise 3.3.** Write `training_flops(batch, widths)`, which returns the FLOPs of the forward **and** backward pass
# of a network of linear layers. For example, `widths = (64, 256, 10)` means two layers, one from 64 to 256 and one from
# 256 to 10. Activations, loss and optimizer are not counted.


# %% answer 3.3
def training_flops(batch, widths):
    """Return the forward and backward FLOPs of a network of linear layers."""
    ### BEGIN SOLUTION
    forward = [linear_flops(batch, inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]
    return 3 * sum(forward) - forward[0]
    ### END SOLUTION


# %% check 3.3 points=2
labs.check("3.3", training_flops)

# %% [markdown]
# Does a profile report the same count? Here are the Reader and a training step. Its linear layers form a chain: `stem`,
# then `up` and `down` of each of three blocks, then `head`. (A block also adds its input to its result. This does not
# need a product, so it is not counted.)


# %%
class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width), nn.GELU()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, 128)
        self.blocks = nn.Sequential(*(Block(128, 512) for _ in range(3)))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


torch.manual_seed(0)
BATCH, WIDTHS = 256, (64, 128, 512, 128, 512, 128, 512, 128, 10)
reader = Reader()
optimizer = torch.optim.SGD(reader.parameters(), lr=0.01)
digits = load_digits()
x, y = torch.tensor(digits.data[:BATCH] / 16, dtype=torch.float32), torch.tensor(digits.target[:BATCH])

# %%
# %%profile_step --into p --name "the Reader" --steps 20 --no-memory
optimizer.zero_grad()
loss = nn.functional.cross_entropy(reader(x), y)
loss.backward()
optimizer.step()

# %%
print("by hand   ", training_flops(BATCH, WIDTHS))
print("by perfnb ", p.layers.loc["reader", ["forward_flops", "backward_flops"]].sum())
p.layers[["module", "forward_flops", "backward_flops", "parameters"]]

# %% [markdown]
# **Look at** the `backward_flops` of the stem. Look also at the layers without a count: `n/a` (`<NA>`) means that they
# were not counted, which does not mean that nothing was computed. A GELU computes little, but it takes time. (The
# counts come from a separate step, which is not timed. The line *ran* in the report calls it the **counted pass**.
# Counts therefore do not depend on how busy the machine is.)
#
# ## 3.4 Bytes
#
# Arithmetic is only half of the story. Numbers must also be fetched from memory and written back. At the very least, a
# layer reads its input and its weights once, and writes its output once. A float32 has four bytes.
#
# **Exercise 3.4.** Write `linear_bytes(batch, inputs, outputs)`, which returns the minimum number of bytes that the
# forward pass of a linear layer **without bias** moves in float32. It is tested on several sizes, and then on the
# layers in your profile.


# %% answer 3.4
def linear_bytes(batch, inputs, outputs):
    """Return the minimum number of bytes that a linear layer's forward pass moves."""
    ### BEGIN SOLUTION
    return 4 * (batch * inputs + inputs * outputs + batch * outputs)
    ### END SOLUTION


# %% check 3.4 points=1
labs.check("3.4", linear_bytes, profile=p, network=(BATCH, WIDTHS))

# %% [markdown]
# The profile counts bytes as well, in the column `moved_bytes`. But it covers the layer's entire training step, so it
# includes more than the forward pass without a bias:
#
# - Each of the one or two products in **backward** moves as many bytes again, because it involves the same three
#   matrices in other roles. The gradient of the weights reads the input and the gradient of the output, and writes as
#   many numbers as there are weights. The gradient of the input reads the weights and the gradient of the output, and
#   writes as many numbers as the input has.
# - The **bias** of `outputs` numbers is read in forward. Its gradient is a sum over the batch: the gradient of the
#   output is read once more, and `outputs` numbers are written.
#
# **Predict:** which layer has less than three times your `linear_bytes` in `moved_bytes`? And how far off will the sum
# that you compute by hand be?


# %%
def bytes_by_hand(batch, inputs, outputs, products):
    """Return the minimum bytes that a linear layer with bias moves in a training step with this many products."""
    bias = outputs + (batch * outputs + outputs)
    return products * linear_bytes(batch, inputs, outputs) + 4 * bias


def compared():
    """Return the counts by hand next to those of the profile."""
    table = p.layers.loc[p.layers["module"] == "Linear", ["moved_bytes"]]
    sizes = [(BATCH, *pair) for pair in itertools.pairwise(WIDTHS)]
    table.insert(0, "one product", [linear_bytes(*each) for each in sizes])
    table.insert(1, "by hand", [bytes_by_hand(*each, products=3 if n else 2) for n, each in enumerate(sizes)])
    return table.assign(off=table["by hand"] - table["moved_bytes"])


compared() if linear_bytes(1, 1, 1) else "first solve 3.4"

# %% [markdown]
# **Look at** the last column. Like FLOPs, these bytes are not measured. They are the minimum that the step needs, and
# they are the same on every machine. Caches make the real traffic smaller or larger. (A GELU has no FLOPs in the
# profile, but it has bytes. Forward reads and writes. Backward reads the gradient of its output and its input, and
# writes a third tensor. Each of these tensors has 256 × 512 numbers. Does that agree with
# `p.layers.loc["reader.blocks.0.act", "moved_bytes"]`?)
#
# FLOPs divided by bytes is the **intensity**, which describes how much a layer computes with each byte that it moves.
# **Predict:** take a layer from 1,024 to 1,024, once with a batch of 1 and once with a batch of 256. Which intensity is
# larger, and by about what factor?

# %%
for batch in (1, 16, 256):
    flops, moved = linear_flops(batch, 1024, 1024), linear_bytes(batch, 1024, 1024)
    print(f"batch {batch:3}:", f"{flops / moved:6.2f} FLOP/B" if flops and moved else "first solve 3.1 and 3.4")

# %% [markdown]
# With a batch of 1, every weight is fetched for just one product and one addition. This is why a language model that
# serves a single user is so slow, and why servers batch requests.
#
# ## 3.5 Under the roof
#
# A machine has a peak FLOP/s and a peak bytes/s. perfnb has measured both on your machine, with large products and with
# a large copy. In its reports, the arithmetic peak is called the **ceiling**. Do not expect a layer to compute faster
# than that.

# %%
print({dtype: f"{peak / 1e9:.1f} GFLOP/s" for dtype, peak in p.roofline.peaks.items()})
print(f"{p.roofline.bandwidth / 1e9:.1f} GB/s")

# %% [markdown]
# A machine computes with the numbers that it already has while it fetches the next ones. A layer therefore takes at
# least as long as its arithmetic **and** at least as long as moving its bytes, but the two overlap. This is the entire
# *roofline model*.
#
# **Exercise 3.5.** Write `least_time(flops, moved_bytes, peak, bandwidth)`, which returns the minimum time of a layer
# in seconds, with `peak` in FLOP/s and `bandwidth` in bytes/s. It is tested on made-up layers and on the layers in your
# profile.


# %% answer 3.5
def least_time(flops, moved_bytes, peak, bandwidth):
    """Return the minimum time of a layer in seconds."""
    ### BEGIN SOLUTION
    return max(flops / peak, moved_bytes / bandwidth)
    ### END SOLUTION


# %% check 3.5 points=2
labs.check("3.5", least_time, roofline=p.roofline)

# %% [markdown]
# **Predict:** which of the Reader's linear layers are closest to the roof, and which is farthest from it?

# %%
p.roofline

# %% [markdown]
# **Look at** the picture. The slope on the left is the limit set by memory, the flat part on the right is the limit set
# by arithmetic, and each point is a layer or an operator. Up and to the right is good. A point far *below* the roof is
# limited by neither. It spends its time on something that the model does not include. What might that be? The next
# exercise is about this question.
#
# ## 3.6 A hundred times smaller
#
# Here are Maya's two layers, on your computer: one from 500 to 500 and one from 50 to 50, both with 16 images.
# **Predict:** how many times as many FLOPs as the second layer does the first one need? How many times as long will it
# take?

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
# Whatever an operator computes, calling it takes a few microseconds: Python looks up the layer, torch checks shapes,
# picks a kernel, and allocates the output. This is short compared with the arithmetic of the big layer, but not
# compared with that of the small one.
#
# **Exercise 3.6.** Compute three numbers:
#
# - `arithmetic`: the FLOPs of the big layer divided by those of the small one;
# - `time`: the time of the big layer divided by that of the small one (`big.median_ms`, `small.median_ms`);
# - `not_arithmetic`: the share of the small layer's time, from 0 to 1, that is not arithmetic, **if** it computes as
#   fast as the big layer. (How long would the arithmetic take then? The rest of the time is not arithmetic.)

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
# cost more time than it saves. To find out whether a slow layer computes a lot or is merely called a lot, you need both
# a *count* and a *time*.
#
# ## 3.7 Loops of your own
#
# *"Python is a hundred times slower."* Is it? **Predict** the factor between three loops in Python and torch, for the
# product of two matrices of 16 × 16, and of 128 × 128. Is it the same factor?
#
# **Exercise 3.7.** Write `matmul(a, b)`, which returns the product of two matrices. Matrices are lists of rows. Use
# your own loops, without torch, numpy or similar libraries. (The check looks at the names that your code uses.) The
# matrices may be rectangular, and must not be modified.


# %% answer 3.7
def matmul(a, b):
    """Return the product of two matrices, as a list of rows."""
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
factors = pd.DataFrame(rows, columns=columns).set_index("size")
factors.round(4)

# %%
_, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
ax.plot(factors.index, factors["torch GFLOP/s"], "o-", color="#0072B2", label="torch")
ax.plot(factors.index, factors["loops GFLOP/s"], "s-", color="#D55E00", label="loops")
if "float32" in p.roofline.peaks:
    ax.axhline(p.roofline.peaks["float32"] / 1e9, color="black", linewidth=1, linestyle="--", label="float32 ceiling")
ax.set(xscale="log", yscale="log", xlabel="size of the matrices", ylabel="GFLOP/s")
ax.set_xticks(list(factors.index), list(factors.index))
ax.minorticks_off()
ax.legend()
plt.show()

# %% [markdown]
# **Look at** the two lines. The line for the loops is almost flat, because each product takes the same time, a few tens
# of nanoseconds. The line for torch rises, because the time of the call is spread over more and more arithmetic, until
# it approaches the ceiling. There is no *single* factor between Python and torch. It depends on how much each call has
# to compute.
#
# ## 3.8 A ladder
#
# There are more rungs on the ladder from three loops to torch. All four functions below compute the product of the same
# two matrices of 96 × 96, and all of them multiply 96³ pairs of numbers. They differ only in who runs the loops:
#
# - `loop`: three loops in Python, one multiplication at a time;
# - `row_product`: Python runs two loops, and the built-in functions `sum` and `map` run the innermost one;
# - `numpy`: a library runs all of the loops, in float64, which is Python's own precision;
# - `torch`: another library runs all of the loops, in float32, which is the precision of most models.
#
# **Predict:** how many times as fast is each rung as the one before it? Which rung gains the most?


# %%
def loop(a, b):
    size = len(a)
    product = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(size):
            for k in range(size):
                product[i][j] += a[i][k] * b[k][j]
    return product


def row_product(a, b):
    columns = list(zip(*b, strict=True))
    return [[sum(map(operator.mul, row, column)) for column in columns] for row in a]


a, b = ([[random.random() for _ in range(96)] for _ in range(96)] for _ in range(2))
array_a, array_b, tensor_a, tensor_b = np.array(a), np.array(b), torch.tensor(a), torch.tensor(b)
ladder_ms = {
    "loop": 1e3 * shortest_s(lambda: loop(a, b), 3),
    "row_product": 1e3 * shortest_s(lambda: row_product(a, b), 5),
    "numpy": 1e3 * shortest_s(lambda: array_a @ array_b, 200),
    "torch": 1e3 * shortest_s(lambda: tensor_a @ tensor_b, 200),
}
_, ax = plt.subplots(figsize=(7, 2.2), layout="constrained")
bars = ax.barh(list(ladder_ms), list(ladder_ms.values()), color="#0072B2")
ax.bar_label(bars, [f"{ms:.3g} ms" for ms in ladder_ms.values()], padding=3)
ax.set_xscale("log")
ax.set_xlim(right=20 * max(ladder_ms.values()))
ax.set_xlabel("ms for a product, logarithmic")
ax.invert_yaxis()
plt.show()

# %% [markdown]
# **Exercise 3.8.** From `ladder_ms`: how many times as fast is each rung as the one **before** it (`row_product`,
# `numpy`, `torch`), and how many times as fast is the last one as the first (`all_rungs`)?

# %% answer 3.8
gains = {"row_product": ..., "numpy": ..., "torch": ..., "all_rungs": ...}
### BEGIN SOLUTION
gains = {
    "row_product": ladder_ms["loop"] / ladder_ms["row_product"],
    "numpy": ladder_ms["row_product"] / ladder_ms["numpy"],
    "torch": ladder_ms["numpy"] / ladder_ms["torch"],
    "all_rungs": ladder_ms["loop"] / ladder_ms["torch"],
}
### END SOLUTION

# %% check 3.8 points=1
labs.check("3.8", gains, ladder_ms=ladder_ms)

# %% [markdown]
# Gains multiply: the last figure is the product of the other three. Nearly all of it comes from one rung, where Python
# stops running the loops. The last rung is usually worth a factor of about two, which comes from the precision: float32
# needs half as many bytes, and each instruction processes twice as many numbers. *"torch is thousands of times as fast
# as Python"* is true here, and yet it tells you little about torch.
#
# ## A better law
#
# Back to Maya's narrow layers. You now know three things that a layer's time depends on: its arithmetic, its bytes, and
# the call. The office computer is planted. It computes 50 GFLOP/s and moves 8 GB/s, and a call takes 5 µs. Your three
# functions provide the rest:

# %%
CALL_US, PEAK, BANDWIDTH = 5, 50e9, 8e9


def your_law(width):
    """Microseconds for a layer: the call, and then the arithmetic or the bytes, whichever takes longer."""
    flops, moved = linear_flops(IMAGES, width, width), linear_bytes(IMAGES, width, width)
    return CALL_US + 1e6 * least_time(flops, moved, PEAK, BANDWIDTH)


if None in (linear_flops(1, 1, 1), linear_bytes(1, 1, 1), least_time(1, 1, 1, 1)):
    print("First solve 3.1, 3.4 and 3.5.")
else:
    picture(your_law, "Your law")

# %% [markdown]
# The dots are the same. On the right, both laws agree, because the arithmetic takes nearly all of the time there. On
# the left, the time approaches that of the call, no matter how narrow the layer is. In between, at a width of 100,
# moving the bytes takes a little longer than the arithmetic. Maya's idea was not wrong, but it ends where something
# other than arithmetic begins to count.
#
# ## Takeaways
#
# - A product and an addition are two FLOPs. A training step needs three times as many as its forward pass, minus those
#   for the gradient of the data, which nobody needs.
# - Time is at least `max(arithmetic / peak, bytes / bandwidth)`. Small batches are memory-bound.
# - The call adds a few microseconds, no matter how small the layer is. A hundredth of the FLOPs does not take a
#   hundredth of the time.
# - A count gives the work that *must* be done, and a time the effort that *was* spent. The gap between them is the
#   place to look.
#
# `labs.export("lab_03.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 4,
# *Memory*](04_memory.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(3).complete, labs.progress(3)
### END HIDDEN TESTS
labs.progress(3)
