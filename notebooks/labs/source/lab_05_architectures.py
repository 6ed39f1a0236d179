# %% [markdown]
# # Lab 5 · Architectures
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 60 to 80 minutes, of which the cells
# themselves take about a minute. It helps to have done [lab 3](03_counting.ipynb), but it is not required.
#
# **Afterwards you can**
#
# - compare an MLP, a CNN and a transformer fairly, and state which quantity is held constant;
# - find out whether a difference in time comes from more arithmetic or from slower arithmetic;
# - state attention's share of a transformer, *and the length that it applies to*, by counting and by measuring;
# - fit a law to measured sizes, test it on a size that it has not seen, and see where it breaks down.
#
# **Predict** before each measurement, on paper or in the cell. `labs.check` tests your answers on this machine. It
# tells you what is wrong without giving the answer away, and you can try as often as you like.

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
# ## Longer cards
#
# You have joined the meter office of a small waterworks. Customers write the reading of their water meter on a card, a
# scanner cuts the card into small images, and a model, the *Reader*, recognises the characters. Maya chose a
# transformer for this task, because it has no more parameters than the alternatives and needs fewer FLOPs than a CNN.
#
# Then the city asked for longer cards. Before Tom ordered a computer, he timed the Reader with cards of 32 to 256
# images, drew the straight line that fits these times best on logarithmic axes, and read off the time for 1,024 images.
# Now the computer has arrived. This is his drawing, and the truth:

# %%
planted_ms = {32: 1.3, 64: 1.75, 128: 2.76, 192: 3.94, 256: 5.28, 512: 12.3, 1024: 34.2}
timed = {length: ms for length, ms in planted_ms.items() if length <= 256}


def toms_line(lengths, times_ms, length):
    """Fit a straight line on logarithmic axes, which is a power law."""
    slope, level = np.polyfit(np.log(lengths), np.log(times_ms), 1)
    return np.exp(level + slope * np.log(length))


def picture(law, title):
    """Plot the times that a law was fitted to, the law, and the times of the new cards."""
    lengths = np.geomspace(32, 1024, 60)
    new = {length: ms for length, ms in planted_ms.items() if length > 256}
    predicted = [law(list(timed), list(timed.values()), length) for length in lengths]
    _, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    ax.plot(lengths, predicted, color="#0072B2", label="the law")
    ax.plot(timed.keys(), timed.values(), "o", color="#0072B2", label="timed before")
    ax.plot(new.keys(), new.values(), "X", markersize=9, color="#D55E00", label="the new cards")
    ax.set(xscale="log", yscale="log", ylim=(1, 50), xlabel="images per card", ylabel="ms per step")
    ax.set_xticks(list(planted_ms), [str(length) for length in planted_ms])
    ax.minorticks_off()
    ax.set_title(f"{title}: {predicted[-1]:.0f} ms predicted at 1,024, {planted_ms[1024]:.0f} ms taken")
    ax.legend()
    plt.show()


picture(toms_line, "Tom's law")

# %% [markdown]
# Neither the clock nor the line was wrong, because the line is close to every dot. And yet the step takes almost three
# times as long as predicted. At the end of this lab, you will draw a law that would have saved Tom the trouble. On the
# way, you will find out whether Maya's reasons were good ones.
#
# (The times in this picture are **planted**, which means that they are the same on every computer. All other times are
# measured on yours.)

# %% [markdown]
# ## The task, and three models
#
# The task is to recognise 1,797 handwritten digits of 8 × 8 pixels, one for each box on a card. We train on 1,297 of
# them and hold out 500.

# %%
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
every_image = torch.tensor(digits.images[order] / 16, dtype=torch.float32).unsqueeze(1)
every_label = torch.tensor(digits.target[order])
train_images, train_labels = every_image[:1297], every_label[:1297]
test_images, test_labels = every_image[1297:], every_label[1297:]
train_images.shape, test_images.shape

# %% [markdown]
# The **MLP** sees 64 numbers in a row. The **CNN** sees the image through 3 × 3 kernels. The **transformer** cuts it
# into 16 patches of 2 × 2 pixels, each of which attends to all others. Read `Attention.forward` carefully, because you
# will count its FLOPs later.


# %%
def make_mlp(width):
    """Return an MLP with 64 inputs, two hidden layers of the same width, and 10 outputs."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def make_cnn():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)),
    )


class Attention(nn.Module):
    """Let every position attend to every other position."""

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
    """Apply attention, and then a small MLP at each position."""

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
    """Return the number of parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


torch.manual_seed(0)
models = {"mlp": make_mlp(127), "cnn": make_cnn(), "transformer": Transformer()}
{name: f"{count(model):,}" for name, model in models.items()}

# %% [markdown]
# The MLP's width was chosen to give all three models nearly the same number of **parameters**. This is one way to
# compare fairly. You can also hold the arithmetic, the time or the quality constant. These are four different
# comparisons, and each of them may have a different winner.
#
# ## 5.1 How often a weight is used
#
# Does the same number of weights mean the same amount of work? Each weight of the MLP is used once per image, in one
# product and one addition. The CNN, however, slides its kernels over the image, and the transformer uses its weights
# once for each of its 16 patches.
#
# **Predict:** which model takes longest for a training step, and which one is next? By roughly what factor do they
# differ?
#
# The models are interleaved in random order, on the same 64 images, forward and backward:

# %%
images, labels = train_images[:64], train_labels[:64]
comparison = perfnb.compare_architectures(models, (images, labels), loss=nn.functional.cross_entropy, budget_s=5)
comparison

# %% [markdown]
# **Look at** the times with their intervals, and at the ratios with theirs (below the bars). Is the order certain, or
# do the intervals overlap? Then look at *FLOPs*, and at *achieved*, which is the FLOP/s.
#
# **Exercise 5.1.** How often does each model use a parameter, on average, for **one image** in a **forward** pass? A
# use is a product and an addition, which are two FLOPs. `comparison.table` has the columns `parameters` and
# `forward_flops`, and the FLOPs are those of the whole batch. (For example, `comparison.table.loc["cnn", "parameters"]`
# is the number of parameters of the CNN.)

# %%
comparison.table[["parameters", "forward_flops", "backward_flops", "median_ms"]].round(2)

# %% answer 5.1
uses = {"mlp": ..., "cnn": ..., "transformer": ...}
### BEGIN SOLUTION
table = comparison.table
uses = (table["forward_flops"] / 2 / table["parameters"] / len(images)).to_dict()
### END SOLUTION

# %% check 5.1 points=2
labs.check("5.1", uses, comparison=comparison, images=images)

# %% [markdown]
# The MLP is slightly below 1, because biases are added but never multiplied. The transformer is close to its 16
# positions. Parameters must be *stored*. How much a model *computes* is a different question, about which Maya's first
# reason tells you nothing.
#
# ## 5.2 More arithmetic, or slower arithmetic?
#
# A step can take longer because it computes more, or because each FLOP takes longer:
#
#     time ratio = FLOP ratio × ratio of time per FLOP
#
# Which of the two computes more, the CNN or the transformer, and which takes longer? You have seen both figures.
# **Predict:** which of them takes longer per FLOP, and by what factor?
#
# **Exercise 5.2.** Give three numbers, each of them *transformer divided by CNN*: `time` (computed from the medians in
# `comparison.table`, or taken from `comparison.ratios`), `arithmetic` (the FLOPs of a training step, which is forward
# **and** backward), and `per_flop`, the time per FLOP, which follows from the two.

# %% answer 5.2
time_ratio = ...
arithmetic = ...
per_flop = ...
### BEGIN SOLUTION
flops = table["forward_flops"] + table["backward_flops"]
time_ratio = table.loc["transformer", "median_ms"] / table.loc["cnn", "median_ms"]
arithmetic = flops["transformer"] / flops["cnn"]
per_flop = time_ratio / arithmetic
### END SOLUTION

# %% check 5.2 points=2
numbers = {"time": time_ratio, "arithmetic": arithmetic, "per_flop": per_flop}
labs.check("5.2", numbers, comparison=comparison)

# %% [markdown]
# Why would a FLOP take longer in one model than in another? Two columns give a clue:

# %%
comparison.table[["launches_or_ops", "intensity", "achieved_flops_per_s"]].astype(float).round(1)

# %% [markdown]
# **Look at** `launches_or_ops`, the operators that a step calls, and at `intensity`, the FLOPs for each byte moved. A
# convolution is a single operator that does a lot with each number it fetches. The transformer's step calls about a
# thousand small ones, and many of them (softmax, normalisation, GELU, copies) compute next to nothing but move
# everything. On two cores of an AMD EPYC, the transformer computed less than the CNN and took about one and a half
# times as long. Maya's second reason was true, too, and the transformer was still slower. Neither parameters nor FLOPs
# tell you the time. *Measure it.*
#
# ## What was learned
#
# A fast model that learns nothing is worthless. Accuracy must be measured on images that the model has not seen, and in
# evaluation mode. In training mode, dropout discards activations, and batch normalisation updates its statistics from
# your test data.


# %%
def accuracy(model, images, labels):
    """Return the share of images that the model recognises, and leave the model in its previous mode."""
    mode = model.training
    model.eval()
    with torch.no_grad():
        right = model(images).argmax(1) == labels
    model.train(mode)
    return right.float().mean().item()


# %% [markdown]
# Now each model is trained for 100 steps of 64 images with Adam. After every ten steps, its accuracy on the 500
# held-out images is measured.
#
# **Predict:** which model is best after the same number of *steps*? Which one is best after the same *time*?


# %%
def learn(model, steps=100):
    """Record the accuracy on held-out images by training steps and by seconds."""
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
learned = {"mlp": learn(make_mlp(127)), "cnn": learn(make_cnn()), "transformer": learn(Transformer())}
pd.concat(learned).groupby(level=0, sort=False).last().round(3)

# %%
fig, axes = plt.subplots(1, 2, figsize=(8, 2.8), sharey=True, layout="constrained")
for (name, rows), mark, colour in zip(learned.items(), "os^", ("#0072B2", "#D55E00", "#009E73"), strict=True):
    for ax, held_equal in zip(axes, ("step", "seconds"), strict=True):
        ax.plot(rows[held_equal], rows["accuracy"], marker=mark, color=colour, label=name)
axes[0].set(xlabel="steps", ylabel="accuracy on images held back", ylim=(0, 1))
axes[1].set(xlabel="seconds of training", xscale="log")
axes[0].legend()
plt.show()

# %% [markdown]
# **Look at** both pictures. They show the same runs but may have different winners. "Better" means nothing until you
# state what was held constant. And do not read too much into the pictures. They show one run of each model with a
# single learning rate, and 500 images are not enough to distinguish 97 % from 98 % (the standard error of a share *p*
# is √(*p*(1−*p*)/500), which is more than half a percent here).
#
# ## 5.3 Arithmetic of a block
#
# Now to the longer cards. Maya has read that *"attention takes 73 % of the compute"*. This statement is meaningless
# without a length. Take one `Block` of the transformer and a sequence of `length` positions, each of which is a vector
# of `width` numbers. The forward pass with a batch of one consists of
#
# - four **linear layers** at each position: `qkv` (width → 3 width), `out` (width → width), and the two of the MLP
#   (width → 4 width → width);
# - two **products** in each head: `query @ key` (every position with every other), and `scores @ value`. The heads
#   split the width, so all heads together compute as much as a single head with the full width.
#
# A product of an *a × b* and a *b × c* matrix is 2 *a b c* FLOPs. (Bias, softmax, GELU and normalisation are not
# counted.)
#
# **Predict:** if the length doubles, by what factor does each of the two parts grow?
#
# **Exercise 5.3.** Write `block_flops(length, width)`, which returns two numbers, the FLOPs of the linear layers and
# the FLOPs of the two products. They are compared with torch's counter.


# %% answer 5.3
def block_flops(length, width):
    """Return the forward FLOPs of a block's linear layers and of attention's two products."""
    ### BEGIN SOLUTION
    linear = 2 * length * (3 + 1 + 4 + 4) * width**2
    products = 2 * 2 * length**2 * width
    return linear, products
    ### END SOLUTION


# %% check 5.3 points=2
labs.check("5.3", block_flops)

# %%
for length in (16, 64, 256, 512, 4096):
    parts = block_flops(length, 64)
    words = f"{parts[1] / sum(parts):6.1%} of the arithmetic is in the two products" if parts else "first solve 5.3"
    print(f"length {length:5}: {words}")

# %% [markdown]
# At which length are both parts equal? According to your formula, at six times the width. For this block with a width
# of 64, that is 384. For a model with a width of 12,288, such as GPT-3, it is 73,728. Most statements about "quadratic
# attention" apply to lengths that few models reach.
#
# ## 5.4 Attention's share
#
# You have counted the FLOPs, and now you will measure the time. The attention *layer* consists of more than the two
# products. It includes `qkv`, `out`, softmax, and copies.
#
# **Predict:** what share of the time will the attention layer take at 64 positions, and at 512? Will its share of the
# *time* be larger or smaller than its share of the *arithmetic*?

# %%
block = Block(64)
at_lengths = perfnb.compare_architectures(
    {str(length): (block, torch.randn(1, length, 64)) for length in (64, 128, 256, 512)}, budget_s=6
)
shares = at_lengths.shares.query("by == 'kind' and part == 'attention'").set_index("name")["share"]
shares.round(3).to_frame("share of the time in attention")

# %% [markdown]
# (Each share comes from a few traced steps. If a row looks out of place, other programs interfered, so run the cell
# again. In that case, the check also says *inconclusive*.)
#
# There is also a full profile for each of the four lengths. This is the longest one:

# %%
longest = at_lengths.profiles["512"].layers
longest[["module", "forward_flops", "backward_flops", "total_ms", "ops"]]

# %% [markdown]
# **Exercise 5.4.** For the longest length, 512, give
#
# - `time`: the share of the time in attention, as in the table above;
# - `arithmetic`: the share of the block's FLOPs in the attention **layer**, forward and backward (from the frame, or
#   computed with your `block_flops`);
# - `per_flop`: how many times as long a FLOP takes inside attention as in the **rest** of the block.
#
# For the last number, note that attention takes `time` for `arithmetic`, and that the rest takes `1 - time` for `1 -
# arithmetic`.

# %% answer 5.4
attention_time = ...
attention_arithmetic = ...
attention_per_flop = ...
### BEGIN SOLUTION
attention_time = shares["512"]
flops = longest["forward_flops"] + longest["backward_flops"]
attention_arithmetic = flops["512.attention"] / flops["512"]
attention_per_flop = (attention_time / attention_arithmetic) / ((1 - attention_time) / (1 - attention_arithmetic))
### END SOLUTION

# %% check 5.4 points=3
numbers = {"time": attention_time, "arithmetic": attention_arithmetic, "per_flop": attention_per_flop}
labs.check("5.4", numbers, comparison=at_lengths)

# %% [markdown]
# **Look at** what happens to the scores, which are 512 × 512 numbers in each of four heads. They are written, read,
# divided, written, and read again by the softmax, which writes just as many. The backward pass does all of this again.
# Division and softmax hardly count in FLOPs, but they are almost half of the bytes that the operators of this step must
# move (`at_lengths.profiles["512"].ops` lists them by operator). Fused attention, such as torch's
# `scaled_dot_product_attention`, returns the same result without storing the scores. Here are all four lengths:

# %%
counted = {}
for name, profile in at_lengths.profiles.items():
    flops = profile.layers[["forward_flops", "backward_flops"]].sum(axis=1)
    counted[name] = flops[f"{name}.attention"] / flops[name]
lengths = [int(name) for name in shares.index]
_, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
ax.plot(lengths, [shares[str(length)] for length in lengths], "o-", color="#D55E00", label="share of the time")
ax.plot(lengths, [counted[str(length)] for length in lengths], "s-", color="#0072B2", label="share of the FLOPs")
ax.axhline(0.73, color="black", linewidth=1, linestyle="--")
ax.annotate("73 %", (64, 0.73), (64, 0.75))
ax.set(xscale="log", ylim=(0, 1), xlabel="length", ylabel="attention layer's share")
ax.set_xticks(lengths, [str(length) for length in lengths])
ax.minorticks_off()
ax.legend(loc="lower right")
plt.show()

# %% [markdown]
# ## 5.5 At which length?
#
# You can now complete the sentence that Maya has read: 73 % at *which* length? There are two answers, one for each
# curve. Both are about the attention **layer**, including `qkv` and `out`.
#
# **Exercise 5.5.** For a block of width 64:
#
# - `flops`: the smallest length, a whole number, at which the attention layer has at least 73 % of the block's FLOPs.
#   Use the parts from 5.3 to write its share of the forward pass as a formula, and solve the formula for the length, or
#   search with a loop. (Backward has twice as many FLOPs in all of these parts, so the share is the same.)
# - `time`: the length at which it takes 73 % of the time on this machine. Interpolate linearly between the measured
#   lengths. (`np.interp(0.73, known_shares, known_lengths)` does this. If all shares are on one side of 73 %, it
#   returns the first or the last length, and you may do the same.)

# %% answer 5.5
at_flops = ...
at_time = ...
### BEGIN SOLUTION
at_flops = next(n for n in range(1, 10_000) if (8 * n * 64**2 + 4 * n**2 * 64) / sum(block_flops(n, 64)) >= 0.73)
at_time = np.interp(0.73, [shares[str(length)] for length in lengths], lengths)
### END SOLUTION

# %% check 5.5 points=2
labs.check("5.5", {"flops": at_flops, "time": at_time}, comparison=at_lengths)

# %% [markdown]
# **Look at** the distance between the two lengths. If you count FLOPs, you expect attention to dominate at a length of
# about nine times the width. If you measure time, it dominates at a much shorter length, because the scores are moved
# again and again. Both lengths grow with the width, so at the width of a large model they are far away.
#
# ## 5.6 A held-out size
#
# Can the time at 512 be predicted from shorter lengths? `perfnb.scaling_study` interleaves the measurements of several
# sizes, fits a **power law**, time = factor × size ^ exponent (plus a constant, if the data show one), and predicts the
# time for any size. A law always fits the data that it was fitted to. The real test is a size that it has **not** seen.


# %%
def make_step(length):
    """Return a training step of a block on a sequence of this length."""
    block, x = Block(64), torch.randn(1, length, 64)

    def step():
        block.zero_grad()
        block(x).sum().backward()

    return step


FITTED, HELD_OUT = (32, 64, 128, 192, 256), 512

# %% [markdown]
# **Predict:** the two parts grow with the length and with its square. What exponent will a single power law have? And
# will its prediction for the longer sequence be too high or too low?
#
# **Exercise 5.6.** Bind `study` to a `perfnb.scaling_study(make_step, sizes, budget_s=4)` with the sizes `FITTED`, and
# `held_out` to a `perfnb.time_step(step, budget_s=2)` with the step of size `HELD_OUT`. Then give
#
# - `off_by`: the fraction of the **predicted** time by which the measured time is longer (0.1 means 10 % longer, and a
#   negative number means shorter). `study.predict(size)` has `median_ms` and `ci_ms`, and the timing has `median_ms`;
# - `inside`: whether the measured median lies in the interval `ci_ms` of the prediction (`True` or `False`).

# %% answer 5.6
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

# %% check 5.6 points=3
labs.check("5.6", {"off_by": off_by, "inside": inside}, study=study, held_out=held_out)

# %% [markdown]
# **Look at** the law, at the column *off by*, and at the interval of your prediction. If the study chose a single power
# law, its exponent is below 1, because a short step is mostly call overhead. In that case, its predictions beyond the
# measured sizes are far too low, just like Tom's. If the study also found a constant, it predicts better, but with a
# wide interval, because five sizes cannot determine three numbers precisely. (The study and the timing ran back to
# back, so part of `off_by` may come from a change in the machine.)
#
# ## 5.7 A law that knows more
#
# You know more than the power law. You know that there is call overhead, which does not depend on the length, a part
# that grows with the length, and a part that grows with its square.
#
#     time = constant + a × length + b × length²
#
# **Exercise 5.7.** Write `predict(lengths, times_ms, length)`, which fits this law to the times at `lengths` and
# returns its prediction for `length`. It is tested on made-up steps with a known law, some of them with 3 % noise. Two
# things make it work beyond the measured range:
#
# - no part of a time is negative. `nnls(rows, wanted)[0]` returns the factors that bring `rows @ factors` closest to
#   `wanted`, with no factor below 0;
# - each size should be weighted by its *relative* error. To do this, divide each row by its measured time, and let all
#   wanted values be 1.
#
# (`np.column_stack([a, b, c])` makes rows with three columns. Turn `lengths` and `times_ms` into arrays of float
# first.)


# %% answer 5.7
def predict(lengths, times_ms, length):
    """Return the predicted time at a length, using a constant, a linear and a quadratic term."""
    ### BEGIN SOLUTION
    lengths, times_ms = np.asarray(lengths, dtype=float), np.asarray(times_ms, dtype=float)
    rows = np.column_stack([np.ones_like(lengths), lengths, lengths**2])
    factors = nnls(rows / times_ms[:, None], np.ones_like(times_ms))[0]
    return factors @ [1, length, length**2]
    ### END SOLUTION


# %% check 5.7 points=3
labs.check("5.7", predict)

# %% [markdown]
# Now compare both laws on your machine, fitted to the same five lengths. **Predict:** which one is closer at 512? And
# at 1,024?

# %%
if isinstance(study, perfnb.results.ScalingStudy) and isinstance(held_out, perfnb.Timing):
    fitted = study.table["size"].to_numpy(float), study.table["median_ms"].to_numpy(float)
    measured = {HELD_OUT: held_out.median_ms, 1024: perfnb.time_step(make_step(1024), budget_s=2).median_ms}
    laws = {"power law": {size: study.predict(size).median_ms for size in measured}}
    laws["your law"] = {size: predict(*fitted, size) for size in measured}
    print(pd.DataFrame({"measured": measured, **laws}).astype(float).round(2), "milliseconds", sep="\n\n")
else:
    print("first solve 5.6")

# %% [markdown]
# **Look at** the last row, too. On the machine where this was written (an AMD EPYC, three runs, CPU time), the law
# above was 3 to 30 % off at 512, and at 1,024 the step took two to two and a half times as long as predicted. At that
# length, the scores of four heads take 16 MiB, and each step returned blocks of that size to the operating system and
# requested them again. Your law accounts for arithmetic and calls, but not for memory. Every law breaks down where
# something starts to matter that did not matter in the range where the law was fitted. You should therefore hold out a
# size, test the law on it, and trust the law no further than it was tested.
#
# And what about Tom? Here is his picture again, with the same dots and your law:

# %%
if predict([1.0], [1.0], 1.0) is None:
    print("first solve 5.7")
else:
    picture(predict, "Your law")

# %% [markdown]
# The line through the dots is nearly the same. The difference is beyond the dots, because your law accounts for the
# part of the time that grows with the square of the length.
#
# ## Takeaways
#
# - "Compared" means that *something* was held constant. State whether it was the parameters, the arithmetic, the time
#   or the quality.
# - Parameters are not FLOPs, and FLOPs are not time. Time ratio = work ratio × ratio of time per unit of work.
# - Attention's share depends on the length, so always state both. Its share of the time is larger than its share of the
#   FLOPs, because moving the scores takes time but no FLOPs.
# - Test a law on data that it has not seen. You get a better law from knowing where the cost comes from than from a
#   better fit.
#
# `labs.export("lab_05.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 6,
# *Feeding the model*](06_feeding_the_model.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(5).complete, labs.progress(5)
### END HIDDEN TESTS
labs.progress(5)
