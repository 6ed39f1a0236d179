# %% [markdown]
# # Lab 5 · Architectures
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 45 to 60 minutes; the cells themselves take
# about a minute. It helps to have done [lab 3](03_counting.ipynb), but it is not required.
#
# **Afterwards you can**
#
# - compare an MLP, a CNN and a transformer fairly: say what is held equal, and how the result changes if something else
#   is;
# - break down a difference in time: more arithmetic, or slower arithmetic?
# - say what share of a transformer attention takes, *and at which length*, by counting and by measuring;
# - fit a law to measured sizes, test it on one it has not seen, and see where it breaks down.
#
# **Predict** before each measurement, on paper or in the cell. `labs.check` tests your answers on this machine; it says
# what is wrong, never the answer, and you can try as often as you like.

# %%
# %load_ext perfnb

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls
from sklearn.datasets import load_digits
from torch import nn

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # several threads wait for each other when other programs take a core away

# %% [markdown]
# ## The task, and three models
#
# 1,797 handwritten digits of 8 × 8 pixels: which digit is it? We train on 1,297 of them and hold out 500.

# %%
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
every_image = torch.tensor(digits.images[order] / 16, dtype=torch.float32).unsqueeze(1)
every_label = torch.tensor(digits.target[order])
train_images, train_labels = every_image[:1297], every_label[:1297]
test_images, test_labels = every_image[1297:], every_label[1297:]
train_images.shape, test_images.shape

# %% [markdown]
# The **MLP** sees 64 numbers in a row. The **CNN** sees an image through 3 × 3 kernels. The **transformer** cuts it
# into 16 patches of 2 × 2 pixels, each of which attends to all others. Read `Attention.forward` carefully: you will
# count it later.


# %%
def make_mlp(width):
    """64 pixels, two hidden layers of the same width, 10 outputs."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def make_cnn():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)),
    )


class Attention(nn.Module):
    """Every position attends to every other."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5  # length x length numbers per head
        mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention, then a small MLP at each position."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, width=32, depth=2):
        super().__init__()
        self.embedding = nn.Linear(4, width)
        self.position = nn.Parameter(torch.randn(16, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        patches = nn.functional.unfold(images, 2, stride=2).transpose(1, 2)
        return self.head(self.blocks(self.embedding(patches) + self.position).mean(1))


def count(model):
    """Number of parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


torch.manual_seed(0)
cnn, transformer = make_cnn(), Transformer()
print(f"cnn {count(cnn):,}, transformer {count(transformer):,}")

# %% [markdown]
# ## 5.1 The same number of parameters
#
# Three models can be compared with the same number of parameters, the same arithmetic, the same time, or the same
# quality. These are four different comparisons. We start with the first, as most people do.
#
# **Exercise 5.1.** Which width brings the MLP's number of parameters as close as possible to the CNN's? Find it on
# paper or with a loop; `make_mlp` shows the layers, and `nn.Linear(a, b)` has `a × b` weights and `b` biases.

# %% answer 5.1
width = ...
### BEGIN SOLUTION
width = min(range(1, 300), key=lambda width: abs(count(make_mlp(width)) - count(cnn)))
### END SOLUTION

# %% check 5.1 points=1
labs.check("5.1", width, like=cnn)

# %%
mlp = make_mlp(64 if width is None or width is ... else int(width))  # 64 until you have an answer
models = {"mlp": mlp, "cnn": cnn, "transformer": transformer}
{name: f"{count(model):,}" for name, model in models.items()}

# %% [markdown]
# ## 5.2 How often a weight is used
#
# The same number of weights; the same amount of work? Each weight of the MLP is used once per image: one product, one
# addition. But the CNN slides its kernels over the image, and the transformer uses its weights once for each of its 16
# patches.
#
# **Predict:** which model takes longest for a training step, and which is next? By roughly what factor?
#
# The models are interleaved in random order, on the same 64 images, forward and backward:

# %%
images, labels = train_images[:64], train_labels[:64]
comparison = perfnb.compare_architectures(models, (images, labels), loss=nn.functional.cross_entropy, budget_s=5)
comparison

# %% [markdown]
# **Look at** the times with their intervals, and at the ratios with theirs (below the bars). Is the order certain, or
# do the intervals overlap? Then at *FLOPs*, and at *achieved*, the FLOP/s.
#
# **Exercise 5.2.** For each model: how often does it use a parameter, on average, for **one image** in a **forward**
# pass? A use is a product and an addition, that is, two FLOPs. `comparison.table` has the columns `parameters` and
# `forward_flops`; the FLOPs are those of the whole batch. (`comparison.table.loc["cnn", "parameters"]` is one of them.)

# %%
comparison.table[["parameters", "forward_flops", "backward_flops", "median_ms"]].round(2)

# %% answer 5.2
uses = {"mlp": ..., "cnn": ..., "transformer": ...}
### BEGIN SOLUTION
table = comparison.table
uses = (table["forward_flops"] / 2 / table["parameters"] / len(images)).to_dict()
### END SOLUTION

# %% check 5.2 points=2
labs.check("5.2", uses, comparison=comparison, images=images)

# %% [markdown]
# The MLP is slightly below 1, because biases are added but never multiplied. The transformer is close to its 16
# positions. The number of parameters says how much a model must *store*; it says next to nothing about how much it must
# *compute*.
#
# ## 5.3 More arithmetic, or slower arithmetic?
#
# A step takes longer because it computes more, or because each FLOP takes longer:
#
#     time ratio = FLOP ratio × ratio of time per FLOP
#
# Which computes more, CNN or transformer, and which takes longer? You have seen both figures. **Predict:** in which of
# the two does a FLOP take longer, and by what factor?
#
# **Exercise 5.3.** Three numbers, each *transformer divided by CNN*: `time` (by the medians of `comparison.table`, or
# from `comparison.ratios`), `arithmetic` (the FLOPs of a training step, which is forward **and** backward), and
# `per_flop`, the time per FLOP, which follows from the two.

# %% answer 5.3
time_ratio = ...
arithmetic = ...
per_flop = ...
### BEGIN SOLUTION
flops = table["forward_flops"] + table["backward_flops"]
time_ratio = table.loc["transformer", "median_ms"] / table.loc["cnn", "median_ms"]
arithmetic = flops["transformer"] / flops["cnn"]
per_flop = time_ratio / arithmetic
### END SOLUTION

# %% check 5.3 points=2
numbers = {"time": time_ratio, "arithmetic": arithmetic, "per_flop": per_flop}
labs.check("5.3", numbers, comparison=comparison)

# %% [markdown]
# Why would a FLOP take longer in one model than in another? Two columns give a clue:

# %%
comparison.table[["launches_or_ops", "intensity", "achieved_flops_per_s"]].astype(float).round(1)

# %% [markdown]
# **Look at** `launches_or_ops`, the operators that a step calls, and at `intensity`, the FLOPs for each byte moved. A
# convolution is a single operator that does a lot with each number it fetches. The transformer's step calls about a
# thousand small ones, and many of them (softmax, normalisation, GELU, copies) compute next to nothing but move
# everything. On two cores of an AMD EPYC, the transformer computed less than the CNN and took about one and a half
# times as long. Neither parameters nor FLOPs are time. *Measure.*
#
# ## 5.4 What was learned
#
# A fast model that learns nothing is worthless. Accuracy must be measured on images the model has not seen, and in
# evaluation mode: in training mode, dropout discards activations, and batch normalisation updates its statistics from
# your test data.
#
# **Exercise 5.4.** Write `accuracy(model, images, labels)`: the share of images, from 0 to 1, for which the largest of
# the model's outputs is that of the label. It runs the model in evaluation mode, leaves no gradients behind, and
# restores the model's mode. (`model.training` is the mode, `model.eval()` and `model.train(mode)` set it. Under `with
# torch.no_grad():` no gradients are kept, and `outputs.argmax(1)` is the position of the largest value in each row.)


# %% answer 5.4
def accuracy(model, images, labels):
    """Share of images that the model recognises."""
    ### BEGIN SOLUTION
    mode = model.training
    model.eval()
    with torch.no_grad():
        right = model(images).argmax(1) == labels
    model.train(mode)
    return right.float().mean().item()
    ### END SOLUTION


# %% check 5.4 points=2
labs.check("5.4", accuracy)

# %% [markdown]
# Now each model trains: 100 steps of 64 images with Adam, and every ten steps your function evaluates the 500 held-out
# images.
#
# **Predict:** which is best after the same number of *steps*? Which is best after the same *time*?


# %%
def learn(model, steps=100):
    """Accuracy on held-out images, by training steps and by seconds."""
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    rows, seconds = [], 0.0
    for step in range(1, steps + 1):
        began = time.perf_counter()
        chosen = torch.randint(len(train_images), (64,), generator=generator)
        adam.zero_grad()
        nn.functional.cross_entropy(model(train_images[chosen]), train_labels[chosen]).backward()
        adam.step()
        seconds += time.perf_counter() - began
        if step % 10 == 0:
            rows.append((step, seconds, accuracy(model, test_images, test_labels)))
    return pd.DataFrame(rows, columns=["step", "seconds", "accuracy"]).astype(float)


torch.manual_seed(2)
learned = {"mlp": learn(make_mlp(len(mlp[1].bias))), "cnn": learn(make_cnn()), "transformer": learn(Transformer())}
pd.concat(learned).groupby(level=0, sort=False).last().round(3)

# %%
if all(rows["accuracy"].notna().all() for rows in learned.values()):
    fig, axes = plt.subplots(1, 2, figsize=(8, 2.8), sharey=True, layout="constrained")
    for (name, rows), mark, colour in zip(learned.items(), "os^", ("#0072B2", "#D55E00", "#009E73"), strict=True):
        for ax, held_equal in zip(axes, ("step", "seconds"), strict=True):
            ax.plot(rows[held_equal], rows["accuracy"], marker=mark, color=colour, label=name)
    axes[0].set(xlabel="steps", ylabel="accuracy on images held back", ylim=(0, 1))
    axes[1].set(xlabel="seconds of training", xscale="log")
    axes[0].legend()
    plt.show()
else:
    print("first solve 5.4")

# %% [markdown]
# **Look at** both pictures. They show the same runs but may have different winners. "Better" means nothing until you
# say what was held equal. And do not read too much into them: one run each, one learning rate, and 500 images, which
# cannot tell 97 % from 98 % (the standard error of a share *p* is √(*p*(1−*p*)/500), here more than half a percent).
#
# ## 5.5 Arithmetic of a block
#
# *"Attention takes 73 % of the compute."* That statement is meaningless without a length. Take one `Block` of the
# transformer, and a sequence of `length` positions, each a vector of `width` numbers. Forward pass, a batch of one:
#
# - four **linear layers**, at each position: `qkv` (width → 3 width), `out` (width → width), and the two of the MLP
#   (width → 4 width → width);
# - two **products** in each head: `query @ key` (every position with every other), and `scores @ value`. The heads
#   split the width, so all heads together compute as much as a single one of full width.
#
# A product of an *a × b* and a *b × c* matrix is 2 *a b c* FLOPs. (Bias, softmax, GELU and normalisation are not
# counted.)
#
# **Predict:** if the length doubles, by what factor does each of the two parts grow?
#
# **Exercise 5.5.** Write `block_flops(length, width)`: two numbers, the FLOPs of the linear layers and the FLOPs of the
# two products. They are compared with torch's counter.


# %% answer 5.5
def block_flops(length, width):
    """FLOPs of a block's forward pass: its linear layers, and attention's two products."""
    ### BEGIN SOLUTION
    linear = 2 * length * (3 + 1 + 4 + 4) * width**2
    products = 2 * 2 * length**2 * width
    return linear, products
    ### END SOLUTION


# %% check 5.5 points=2
labs.check("5.5", block_flops)

# %%
for length in (16, 64, 256, 512, 4096):
    parts = block_flops(length, 64)
    words = f"{parts[1] / sum(parts):6.1%} of the arithmetic is in the two products" if parts else "first solve 5.5"
    print(f"length {length:5}: {words}")

# %% [markdown]
# At which length are both parts equal? Your formula says: at six times the width. For this block's width of 64 that is
# 384; for a model of width 12,288, such as GPT-3, it is 73,728. Most of what is said about "quadratic attention"
# applies to lengths that few models reach.
#
# ## 5.6 Attention's share
#
# You have counted; now measure. The attention *layer* is more than the two products: it includes `qkv`, `out`, softmax,
# and copies.
#
# **Predict:** what share of the time will the attention layer take at 64 positions, and at 512? Will its share of the
# *time* be larger than its share of the *arithmetic*, or smaller?

# %%
block = Block(64)
at_lengths = perfnb.compare_architectures(
    {str(length): (block, torch.randn(1, length, 64)) for length in (64, 128, 256, 512)}, budget_s=6
)
shares = at_lengths.shares.query("by == 'kind' and part == 'attention'").set_index("name")["share"]
shares.round(3).to_frame("share of the time in attention")

# %% [markdown]
# (Each share comes from a few traced steps. If a row looks out of place, other programs interfered: run the cell again.
# The check will also say *inconclusive*.)
#
# Each of the four also has a full profile. Here is the longest:

# %%
longest = at_lengths.profiles["512"].layers
longest[["module", "forward_flops", "backward_flops", "total_ms", "ops"]]

# %% [markdown]
# **Exercise 5.6.** For the longest, 512:
#
# - `time`: the share of the time in attention, as in the table above;
# - `arithmetic`: the share of the block's FLOPs in the attention **layer**, forward and backward (from the frame, or by
#   your `block_flops`);
# - `per_flop`: how many times as long a FLOP takes inside attention as in the **rest** of the block.
#
# For the last, note that attention takes `time` and the rest `1 - time`, with `arithmetic` and `1 - arithmetic`.

# %% answer 5.6
attention_time = ...
attention_arithmetic = ...
attention_per_flop = ...
### BEGIN SOLUTION
attention_time = shares["512"]
flops = longest["forward_flops"] + longest["backward_flops"]
attention_arithmetic = flops["512.attention"] / flops["512"]
attention_per_flop = (attention_time / attention_arithmetic) / ((1 - attention_time) / (1 - attention_arithmetic))
### END SOLUTION

# %% check 5.6 points=3
numbers = {"time": attention_time, "arithmetic": attention_arithmetic, "per_flop": attention_per_flop}
labs.check("5.6", numbers, comparison=at_lengths)

# %% [markdown]
# **Look at** what happens to the scores, 512 × 512 numbers in each of four heads: they are written, read, divided,
# written, and read again by the softmax, which writes as many; and the backward pass does all that again. Division and
# softmax hardly count in FLOPs, but they are almost half of the bytes that the operators of this step must move
# (`at_lengths.profiles["512"].ops` lists them by operator). Fused attention, such as torch's
# `scaled_dot_product_attention`, gives the same result without storing the scores. Here are all four lengths:

# %%
counted = {}
for name, profile in at_lengths.profiles.items():
    flops = profile.layers[["forward_flops", "backward_flops"]].sum(axis=1)
    counted[name] = flops[f"{name}.attention"] / flops[name]
pd.DataFrame({"share of arithmetic": pd.Series(counted), "share of time": shares}).astype(float).round(3)

# %% [markdown]
#
# ## 5.7 A held-out size
#
# Can the time at 512 be predicted from shorter lengths? `perfnb.scaling_study` measures several sizes interleaved, fits
# a **power law**, time = factor × size ^ exponent (plus a constant, if the data show one), and predicts any size. A law
# always fits the data it was fitted to. The test is a size it has **not** seen.


# %%
def make_step(length):
    """A training step of a block on a sequence of this length."""
    block, x = Block(64), torch.randn(1, length, 64)

    def step():
        block.zero_grad()
        block(x).sum().backward()

    return step


FITTED, HELD_OUT = (32, 64, 128, 192, 256), 512

# %% [markdown]
# **Predict:** the two parts grow with the length and with its square. What exponent will a single power law get? And
# will its prediction for the longer sequence be too high or too low?
#
# **Exercise 5.7.** Bind to `study` a `perfnb.scaling_study(make_step, sizes, budget_s=4)` of the sizes `FITTED`, and to
# `held_out` a `perfnb.time_step(step, budget_s=2)` of the step of size `HELD_OUT`. Then give
#
# - `off_by`: by what fraction of the **predicted** time the measured one is longer (0.1 for 10 % longer, negative if
#   shorter); `study.predict(size)` has `median_ms` and `ci_ms`, the timing has `median_ms`;
# - `inside`: whether the measured median lies in the interval `ci_ms` of the prediction (`True` or `False`).

# %% answer 5.7
study = ...
held_out = ...
off_by = ...
inside = ...
### BEGIN SOLUTION
study = perfnb.scaling_study(make_step, FITTED, budget_s=4)
held_out = perfnb.time_step(make_step(HELD_OUT), budget_s=2)
prediction = study.predict(HELD_OUT)
off_by = held_out.median_ms / prediction.median_ms - 1
inside = prediction.ci_ms[0] <= held_out.median_ms <= prediction.ci_ms[1]
### END SOLUTION

# %%
study

# %% check 5.7 points=3
labs.check("5.7", {"off_by": off_by, "inside": inside}, study=study, held_out=held_out)

# %% [markdown]
# **Look at** the law, at the column *off by*, and at the interval of your prediction. One of two things has happened.
#
# - The study chose a single power law. Then its exponent is below 1, because a short step is mostly call overhead; the
#   residuals bend, and the study may warn that one law does not hold. Beyond the sizes it knows, its predictions are
#   far too low: we saw half of the measured time.
# - The study found a constant in addition to the power law. Then it fits within a few percent and predicts better, but
#   its interval is wide, because five sizes cannot pin down three numbers. Wide, but honest.
#
# (The study and the timing ran back to back: part of `off_by` may be a change of the machine.)
#
# ## 5.8 A law that knows more
#
# You know more than the power law does: there is call overhead, whatever the length, a part that grows with the length,
# and one that grows with its square.
#
#     time = constant + a × length + b × length²
#
# **Exercise 5.8.** Write `predict(lengths, times_ms, length)`: fit this law to the times at `lengths`, and return its
# prediction for `length`. It is tested on made-up steps with a known law, some with 3 % noise. Two things make it work
# beyond the measured range:
#
# - no part of a time is negative: `nnls(rows, wanted)[0]` gives the factors, none below 0, for which `rows @ factors`
#   is closest to `wanted`;
# - each size should count by its *relative* error: divide each row by its measured time, and want 1 for each.
#
# (`np.column_stack([a, b, c])` makes rows of three columns. Turn `lengths` and `times_ms` into arrays of float first.)


# %% answer 5.8
def predict(lengths, times_ms, length):
    """Predicted time at a length: a constant, a linear and a quadratic term."""
    ### BEGIN SOLUTION
    lengths, times_ms = np.asarray(lengths, dtype=float), np.asarray(times_ms, dtype=float)
    rows = np.column_stack([np.ones_like(lengths), lengths, lengths**2])
    factors = nnls(rows / times_ms[:, None], np.ones_like(times_ms))[0]
    return factors @ [1, length, length**2]
    ### END SOLUTION


# %% check 5.8 points=3
labs.check("5.8", predict)

# %% [markdown]
# Now both laws on your machine, fitted to the same five lengths. **Predict:** which is closer at 512? And at 1,024?

# %%
if isinstance(study, perfnb.results.ScalingStudy) and isinstance(held_out, perfnb.Timing):
    fitted = study.table["size"].to_numpy(float), study.table["median_ms"].to_numpy(float)
    measured = {HELD_OUT: held_out.median_ms, 1024: perfnb.time_step(make_step(1024), budget_s=2).median_ms}
    laws = {"power law": {size: study.predict(size).median_ms for size in measured}}
    laws["your law"] = {size: predict(*fitted, size) for size in measured}
    print(pd.DataFrame({"measured": measured, **laws}).astype(float).round(2), "milliseconds", sep="\n\n")
else:
    print("first solve 5.7")

# %% [markdown]
# **Look at** the last row too. On the machine where this was written (an AMD EPYC, three runs, CPU time), a single
# power law predicted half of the time at 512 and an eighth at 1,024. The law above was 3 to 30 % off at 512, and at
# 1,024 the step took two to two and a half times as long as predicted. Why? At 1,024 the scores of four heads are 16
# MiB, and each step returned blocks of that size to the operating system and requested them again: about 18,000 pages
# per step, compared with none at 256. Your law knows about arithmetic and calls but not about memory. Every law ends
# where something starts to matter that did not matter where it was fitted. So hold out a size, test, and trust a law no
# further than it was tested.
#
# The *scaling laws* of large models are fitted in the same way, loss against parameters, data and compute instead of
# time against length, and they must pass the same test.
#
# ## 5.9 Where the 73 % begin
#
# *"Attention takes 73 % of the compute."* Now you can name the length that the sentence leaves out. For the attention
# **layer**, that is `qkv`, `out` and the two products; the rest of the block is the MLP.
#
# **Predict:** for this block's width of 64, is that length below or above 512? And for a width of 12,288?
#
# **Exercise 5.9.** Write `length_for(share, width)`: the length at which the attention layer has this share of the
# FLOPs of a block, for shares above a third. (However short the sequence, `qkv` and `out` are a third of the block's
# linear layers.) Write the share as a fraction, with what you counted in 5.5, and solve it for the length on paper.


# %% answer 5.9
def length_for(share, width):
    """The length at which the attention layer has this share of a block's FLOPs."""
    ### BEGIN SOLUTION
    return width * (6 * share - 2) / (1 - share)
    ### END SOLUTION


# %% check 5.9 points=2
labs.check("5.9", length_for)

# %% [markdown]
# So much for the arithmetic. And the **time**? Here are the shares that you measured in 5.6, next to the arithmetic.

# %%
lengths = np.array([int(name) for name in shares.index])
measured_shares = shares.to_numpy(float)
rising = np.maximum.accumulate(measured_shares)  # np.interp needs values that do not fall
every = np.arange(16, 1025)
_, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.plot(every, (2 * 64 + every) / (6 * 64 + every), color="#0072B2", label="of the arithmetic")
ax.plot(lengths, measured_shares, "s-", color="#D55E00", label="of the time, measured")
ax.axhline(0.73, color="black", linewidth=1, linestyle="--")
ax.set_ylim(0, 1)
ax.set_xlabel("length")
ax.set_ylabel("attention's share")
ax.legend(loc="lower right")
plt.show()
print(f"73 % of the arithmetic: at a length of {length_for(0.73, 64) or float('nan'):.0f}")
if rising[0] < 0.73 < rising[-1]:
    print(f"73 % of the time: at a length of about {np.interp(0.73, rising, lengths):.0f}")
else:
    print(f"73 % of the time: not between the lengths {lengths[0]} and {lengths[-1]}")

# %% [markdown]
# The same sentence is true at two lengths, depending on whether *compute* means FLOPs or seconds. On an idle machine,
# the time gets there first. For a width of 12,288 your formula gives a length of about 108,000. Ask for the length and
# for the unit whenever you read such a sentence.
#
# ## Takeaways
#
# - "Compared" means: *something* was held equal. Parameters, arithmetic, time or quality? Say which.
# - Parameters are not FLOPs, and FLOPs are not time. Time ratio = work ratio × ratio of time per unit of work.
# - Attention's share depends on the length: always state both. Its share of the time is larger than its share of the
#   FLOPs, because moving the scores takes time but counts as no FLOPs.
# - Test a law on data it has not seen. Knowing where the cost comes from gives a better law than a better fit does.
#
# `labs.export("lab_05.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 6,
# *Feeding the model*](06_feeding_the_model.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(5).complete, labs.progress(5)
### END HIDDEN TESTS
labs.progress(5)
