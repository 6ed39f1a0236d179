# %% [markdown]
# # Lab 11 · Compilers and kernels
#
# **Runs on** any computer with a C++ compiler, such as g++: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 95
# minutes, of which the cells themselves take two or three minutes, because compiling is the subject. It helps to have
# done [lab 2](02_where_does_a_step_go.ipynb) or [lab 3](03_counting.ipynb), but neither is required.
#
# **Afterwards you can**
#
# - bound the gain of `torch.compile` before you compile anything, and read its result layer by layer;
# - find a graph break, determine its cost, and remove it;
# - predict how often torch compiles when shapes change;
# - count the bytes that fusing saves, and the memory of attention, to the byte;
# - train with `float16` gradients that do not vanish, and choose a number of threads.
#
# **Predict** before you measure, on paper or in your head. `labs.check` tests your answers. It tells you what is wrong
# without giving the answer away, and you can try as often as you like. It counts and compares values, so it does not
# matter how fast or how busy your computer is.

# %%
import math
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
# ## Tuesday at eight
#
# You have joined the meter office of a small waterworks. Customers write the number of their water meter and its
# reading on a card, one character in each box. A scanner cuts each card into small images, one for each box, and the
# office's model, the *Reader*, recognises the characters. Maya trained it, and Tom runs it on a server, which restarts
# every morning at eight, when 1,200 cards are waiting.
#
# This is the Reader. Maya wrote the normalisation (`norm`) and the activation (`act`) in small operators, as they
# appear in the papers. The office runs `Checked`. The numbers inside the Reader once became so large that it wrote
# nonsense, and it has checked them ever since.


# %%
class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


class TanhGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x * x * x)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up = RMSNorm(width), nn.Linear(width, 4 * width)
        self.act, self.down = TanhGELU(), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Reader(nn.Module):
    """Return ten scores for each image."""

    def __init__(self, width=128):
        super().__init__()
        self.stem, self.head = nn.Linear(64, width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Checked(Reader):
    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        if x.abs().max() > 1e4:
            raise ValueError("The numbers inside the Reader explode.")
        return self.head(x)


# %% [markdown]
# Tom had read that a single line, `torch.compile`, makes a model twice as fast. He tried it with one card, and it took
# 12 ms instead of 20 ms. According to a blog, fixed sizes result in the fastest code, so he wrote `dynamic=False`. On
# Tuesday, the compiled Reader started work. The office serves twelve villages, and each of them has its own form, with
# between 97 and 128 boxes. The cards come village by village, 100 from each.
#
# You do not need to read the next cell now, because we will come back to it. It runs the morning and draws a picture of
# it.

# %%
lengths = np.repeat([112, 97, 120, 104, 128, 100, 116, 108, 99, 124, 110, 106], 100)  # images on each card


class Counting:
    """Count graphs and run their operators one by one. (A real backend turns graphs into code.)"""

    def __init__(self):
        self.compiled = self.ran = 0

    def __call__(self, graph, inputs):
        self.compiled += 1

        def run(*given):
            self.ran += 1
            return graph.forward(*given)

        return run


@torch.inference_mode()
def morning(model, dynamic, lengths=lengths):
    """Return, for each card, how many graphs torch compiled when it arrived, and how many compiled graphs ran."""
    torch.compiler.reset()  # forget all compiled code, as after a restart
    backend, rows = Counting(), []
    compiled = torch.compile(model.eval(), backend=backend, dynamic=dynamic)
    for length in lengths:
        before = backend.compiled, backend.ran
        compiled(torch.zeros(int(length), 64))
        rows.append((backend.compiled - before[0], backend.ran - before[1]))
    torch.compiler.reset()
    return pd.DataFrame(rows, columns=["compiled", "ran"])


def picture(counts, title):
    """Plot when each card is done. The counts are real, and the times per card and per compilation are planted."""
    card_s = np.where(counts["ran"] == 0, 0.020, 0.012 + 0.002 * (counts["ran"] - 1))
    done_s = (2.5 * counts["compiled"] + card_s).cumsum()
    cards, compiling = np.arange(1, len(counts) + 1), counts["compiled"] > 0
    _, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
    ax.plot(cards, 0.020 * cards, color="#0072B2", label="not compiled")
    ax.plot(cards, done_s, color="#D55E00", label="compiled")
    ax.plot(cards[compiling], done_s[compiling], "v", color="#D55E00", label="torch compiles")
    ax.set(xlim=(-15, 1215), ylim=(0, 75), xlabel="cards read", ylabel="s after eight o'clock")
    ax.set_title(f"{title}: {done_s.iloc[-1]:.0f} s, and {0.020 * len(cards):.0f} s if not compiled")
    ax.legend(loc="center right")
    plt.show()


tuesday = morning(Checked(), dynamic=False)
picture(tuesday, "Tuesday")

# %% [markdown]
# The compiled Reader took more than twice as long as the uncompiled one, although Tom's measurement was right. Two
# things went wrong. Can you guess from the picture what they are?
#
# (The *numbers* of compilations and of compiled graphs are counted with the torch version on your computer. The *times*
# are **planted**, so they are the same on every computer: 20 ms for an uncompiled card, 12 ms for a compiled one, and
# 2.5 s to compile a graph. The red lines are messages from torch. On Tom's server, they were in a log that nobody read.
# You will understand them in 11.4.)
#
# ## 11.1 A prediction
#
# Let us define some terms first. An **operator** is one call into torch, such as `x * x`. If the code is uncompiled, or
# **eager**, torch runs one operator after the other, and each of them has its own function that works on whole tensors.
# Such a function is called a **kernel**. `torch.compile` records a function's operators as a **graph**, and generates
# kernels from it. One such kernel often does the work of several operators, which are then said to be **fused**.
#
# **Exercise 11.1.** What do you expect?
#
# - `gain`: how many times as fast does the compiled Reader compute a large batch?
# - `compilations`: code that was compiled for cards of one length may not fit another length. For 1,200 cards of twelve
#   different lengths, how many versions of the code does torch compile if you leave the choice to torch (without
#   `dynamic=False`)?
# - `memory`: attention, a part of many models, compares every image of a card with every other one. How many times as
#   much memory does it need for a card with 1,024 images as for a card with 64?
#
# Only the form is checked.

# %% answer 11.1
prediction = {"gain": ..., "compilations": ..., "memory": ...}
### BEGIN SOLUTION
prediction = {"gain": 2.0, "compilations": 12, "memory": 16.0}
### END SOLUTION

# %% check 11.1 points=1
labs.check("11.1", prediction)

# %% [markdown]
# ## 11.2 What a compiler can save
#
# A compiler does not make everything faster. The products of matrices in `nn.Linear` call a library that experts have
# tuned for years, and the compiled Reader calls the same library. What can become faster is everything else: `norm`,
# `act` and the additions.
#
# You can therefore compute the most that you could gain *before* you compile. Below is a profile of the uncompiled
# Reader on eight cards at once (1,024 images). **Look at** the tab *Layers*: which layers take most of the time?

# %%
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
batch = images[:1024]
torch.manual_seed(0)
reader = Reader().eval()


@torch.inference_mode()
def read(images, model):
    return model(images)


eager = perfnb.profile_step(lambda: read(batch, reader), name="eager", budget_s=4)
eager

# %% [markdown]
# **Exercise 11.2.** Write `at_most(ms, kept)`. `ms` is a dictionary with the time of each kind of layer, such as
# `{"up": 3.0, "act": 6.0, "down": 2.0, "norm": 1.0}`. `kept` lists the layers that keep their time, such as `["up",
# "down"]`. Return how many times as fast the whole model would be if all other layers took no time at all.


# %% answer 11.2
def at_most(ms, kept):
    """Return how many times as fast the model becomes at most."""
    ### BEGIN SOLUTION
    return sum(ms.values()) / sum(ms[name] for name in kept)
    ### END SOLUTION


# %% check 11.2 points=1
labs.check("11.2", at_most)


# %% [markdown]
# Now apply it to your profile. How many times as fast can the Reader become at most? (The report above has a second
# bound, which is lower, because it is more careful: it only counts the chains of small operators that it recognises,
# and assumes that a fused chain still takes as long as its longest operator. Yours assumes that such a chain takes no
# time at all, so no compiler can reach it.)


# %%
def by_kind(profile):
    """Return the milliseconds of each kind of layer, over all three blocks."""
    own = profile.layers["self_ms"]
    kinds = own.index.str.extract(r"\.(stem|norm|up|act|down|head)$", expand=False)
    return own.groupby(kinds.fillna("other").to_numpy()).sum().astype(float)


PRODUCTS = ["stem", "up", "down", "head"]
uncompiled_ms = by_kind(eager)
if at_most({"up": 1.0, "act": 1.0}, ["up"]) is not None:
    print(f"compiled, the Reader is at most {at_most(uncompiled_ms.to_dict(), PRODUCTS):.1f} times as fast")
uncompiled_ms.round(2)

# %% [markdown]
# And now compile it. The first call compiles the model, which takes between a few seconds and half a minute.
# `compile_for_profiling` makes torch record which layers each kernel computes, which allows perfnb to show layers
# inside compiled code.

# %%
torch.compiler.reset()
perfnb.compile_for_profiling()
reader.compile()  # in place; torch.compile(reader) does the same for a new name
began = time.perf_counter()
read(batch, reader)
print(f"the first call took {time.perf_counter() - began:.0f} s")

ways = {"eager": reader.forward, "compiled": reader}  # calling forward directly runs the uncompiled code
shortest_ms = dict.fromkeys(ways, math.inf)
for _ in range(40):
    for name, model in ways.items():
        began = time.perf_counter()
        read(batch, model)
        shortest_ms[name] = min(shortest_ms[name], 1e3 * (time.perf_counter() - began))
print("shortest times:", ", ".join(f"{name} {ms:.1f} ms" for name, ms in shortest_ms.items()))
print(f"compiled, it is {shortest_ms['eager'] / shortest_ms['compiled']:.1f} times as fast")
fused = perfnb.profile_step(lambda: read(batch, reader), name="compiled", budget_s=4)
eager.compare(fused)

# %% [markdown]
# The printed times are the shortest of many that were measured in turn, so other programs have little effect on their
# ratio. The comparison of the two profiles is less certain, because they were measured one after the other. (Its note
# that the two do not seem to run the same model is expected here, because compiled code consists of other operators.)
# **Look at** the layers in this comparison, and at the bars below. Which kinds of layers became faster, and which did
# not?

# %%
if fused.compiled.empty:
    print(f"torch {torch.__version__} does not tell which layers its kernels compute.")
    print("The next paragraph describes the bars that you would see with a newer version.")
else:
    kinds_ms = pd.DataFrame({"eager": uncompiled_ms, "compiled": by_kind(fused)})
    kinds_ms = kinds_ms.reindex(["up", "down", "stem", "head", "act", "norm", "other"]).fillna(0)
    colours = ["#0072B2", "#56B4E9", "#999999", "#CCCCCC", "#D55E00", "#E69F00", "#F0E442"]
    kinds_ms.T.plot.barh(stacked=True, figsize=(8, 2.2), color=colours, width=0.7)
    plt.gca().invert_yaxis()
    plt.xlabel("ms per step")
    plt.legend(ncols=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize="small")
    plt.show()
fused.compiled[["kernel", "layers", "ms"]].round(3).head(6)

# %% [markdown]
# `act` (orange) gained most, and `norm` gained as well. `up` and `down` (blue) call the same code as before, so they
# keep their times. (If another program interfered, any bar may be too long. Run the cells of both profiles again.) In
# the table of kernels they are `extern_kernels.addmm`, a call into the library. Generated kernels have names that start
# with `cpp_fused`. `other` now includes the time to enter the compiled code.
#
# A model that consists of large products gains little, however long it takes to compile. Compare the printed gain with
# your prediction, and with your bound. The gain stays below the bound, because the fused kernels still take time.
#
# ## 11.3 A graph that breaks
#
# To record a graph, torch goes through `forward` *before* it has any numbers. At `if x.abs().max() > 1e4`, it would
# need a number to know whether to raise the error. It therefore ends the graph there, which is called a **graph
# break**. It compiles the code before the `if`, lets Python run the `if`, and compiles the code after it as a second
# graph.
#
# Here is the cost for a single card. The profile's finding names the line (counted in the cell that defines `Checked`)
# and gives an upper bound on the cost of the break. In the table, each row is a compiled **region**, which is the code
# that was generated for one graph. `ms` is the time in this region, `overhead_ms` the part of it that was not spent in
# kernels, and `gap_ms` the time in Python until the next region. (The last region has no gap and no break. The finding
# corrects for the time that measuring takes, so its numbers differ from those in the table.)

# %%
torch.compiler.reset()
perfnb.compile_for_profiling()
checked, card = Checked().eval(), batch[:128]
checked.compile()
read(card, checked)
broken = perfnb.profile_step(lambda: read(card, checked), name="with a check", budget_s=3)
for finding in broken.findings.query("bottleneck == 'graph breaks'").itertuples():
    print(finding.evidence, finding.advice, sep="\n\n")
broken.compiled_regions[["function", "ms", "overhead_ms", "gap_ms", "broke"]].round(3)

# %% [markdown]
# The cost for each card is small, usually less than a tenth of its time, because there is just one break. However,
# there is a second cost. Every version of `forward` now consists of two graphs, and both have to be compiled, so each
# jump in Tom's picture is twice as high. This is the first thing that went wrong.
#
# The check needs a number, but the graph can return this number. The caller can then look at it outside the compiled
# code:


# %%
def read_safely(model, images):
    scores, largest = model(images)
    if largest > 1e4:
        raise ValueError("The numbers inside the Reader explode.")
    return scores


# %% [markdown]
# **Exercise 11.3.** Write `Whole`, a Reader whose `forward` returns two tensors: the scores, and the largest absolute
# number of `x` before the head. The check compiles it, counts the graphs, and compares the results with those of
# `Checked`.


# %% answer 11.3
class Whole(Reader):
    def forward(self, images):
        """Return the scores and the largest absolute number before the head."""
        ### BEGIN SOLUTION
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x), x.abs().max()
        ### END SOLUTION


# %% check 11.3 points=2
labs.check("11.3", Whole, checked=Checked)

# %% [markdown]
# (`torch.compile(model, fullgraph=True)` refuses to compile a function with a graph break, and names the line. Use this
# option when you think that there is no break.)
#
# ## 11.4 Other lengths, other code
#
# Compiled code is only valid under certain conditions, its **guards**, for example that the input has 64 columns.
# Before each call, torch tests the guards of all versions that it has. If no version fits, it compiles another one. The
# option `dynamic` determines whether the *number of images* is part of the guards:
#
# - `dynamic=False`: it always is. Each version is for one length only. After **eight** versions of a function, torch
#   gives up (which is what the red lines said). It does not compile any more versions, and cards of any other length
#   run uncompiled.
# - `dynamic=None`, the default: the first version is for one length only. As soon as there is a second length, torch
#   assumes that there will be more, and compiles one version for all lengths.
# - `dynamic=True`: the first version is for all lengths.
#
# **Exercise 11.4.** Write `compilations(lengths, dynamic)`, which returns how many versions torch compiles for cards of
# these lengths, in this order. `dynamic` is `False`, `None` or `True`.


# %% answer 11.4
def compilations(lengths, dynamic):
    """Return how many versions torch compiles."""
    ### BEGIN SOLUTION
    different = len(set(lengths))
    if dynamic is False:
        return min(different, 8)
    return 1 if dynamic else min(different, 2)
    ### END SOLUTION


# %% check 11.4 points=2
labs.check("11.4", compilations)

# %% [markdown]
# Does your torch do the same? The cell counts the versions for five cards from each village, using the Reader without
# checks:

# %%
some = [int(length) for length in lengths[::20]]
for dynamic in (False, None, True):
    counts = morning(Reader(), dynamic, some)
    uncompiled = int((counts["ran"] == 0).sum())
    expected = compilations(some, dynamic)
    print(
        f"dynamic={dynamic}: versions counted: {counts['compiled'].sum()}, "
        f"predicted: {'nothing' if expected is None else expected}; {uncompiled} of {len(some)} cards ran uncompiled"
    )

# %% [markdown]
# With `dynamic=False`, the last four villages ran uncompiled, *after* the office had waited for eight versions. This is
# the second thing that went wrong. If lengths must be fixed, as for some accelerators, you fill up (*pad*) each card to
# one of a few lengths. This means more arithmetic, but only a few versions.
#
# ## 11.5 Nine operators, one kernel
#
# Why does fusing help? Before the Reader sees an image, its brightness is corrected. Each pixel of the scanner has its
# own gain and offset:

# %%
N = 4_000_000
pixels, gains, offsets = (torch.rand(N) for _ in range(3))


def correct(pixels, gains, offsets):
    return (pixels * gains + offsets).clamp(0, 1)


# %% [markdown]
# Such operators do hardly any arithmetic. They spend their time moving numbers between memory and processor. To
# estimate it, count the tensors of `N` numbers that are moved:
#
# | operator | reads | writes |
# |---|---|---|
# | `pixels * gains` | 2 | 1 |
# | `… + offsets` | 2 | 1 |
# | `.clamp(0, 1)` | 1 | 1 |
# | **eager, together** | **5** | **3** |
# | **as one kernel** | **3** (the inputs, once) | **1** (the result) |
#
# In one kernel, the intermediate results stay in the processor's **registers** (the few places that it computes with)
# and never go to memory. 8 tensors therefore become 4. **Predict:** how many times as fast is it? And how do the
# gigabytes per second change?

# %%
torch.compiler.reset()
correct_fused = torch.compile(correct)
ways = {"three operators": correct, "one kernel": correct_fused}
best_s = dict.fromkeys(ways, math.inf)
for turn in range(20):
    for name, function in ways.items():
        began = time.perf_counter()
        function(pixels, gains, offsets)
        if turn > 0:  # the first turn compiles
            best_s[name] = min(best_s[name], time.perf_counter() - began)

moved_mb = {"three operators": 8 * 4 * N / 1e6, "one kernel": 4 * 4 * N / 1e6}
panels = {
    "MB moved (counted)": moved_mb,
    "ms (measured)": {name: 1e3 * best_s[name] for name in ways},
    "GB per s": {name: moved_mb[name] / 1e3 / best_s[name] for name in ways},
}
_, axes = plt.subplots(1, 3, figsize=(8, 2.4), layout="constrained")
for ax, (title, values) in zip(axes, panels.items(), strict=True):
    ax.bar(values.keys(), values.values(), color=["#0072B2", "#D55E00"], width=0.6)
    ax.set_title(title)
    ax.margins(y=0.2)
    for place, value in enumerate(values.values()):
        ax.annotate(f"{value:.3g}", (place, value), ha="center", va="bottom")
plt.show()

# %% [markdown]
# The time falls about as much as the bytes, or more, because the operating system must also provide memory for each
# intermediate result. The GB per second change less, because the kernel does not *move data* much *faster*. It just has
# *less data to move*.
#
# Now consider the Reader's activation. Python computes it from left to right, starting with the parentheses:
#
# `0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x * x * x)))`
#
# **Exercise 11.5.** Write `moved_bytes(n)` for a tensor `x` of `n` numbers in `float32`. Return two numbers: the bytes
# that nine operators move, and the bytes that one kernel moves. (Numbers such as 0.5 are not tensors. In `x * x`, count
# both operands.)


# %% answer 11.5
def moved_bytes(n):
    """Return the bytes that are read and written by nine operators and by one kernel."""
    ### BEGIN SOLUTION
    reads, writes = 13, 9  # five operators read one tensor, and four read two
    return 4 * n * (reads + writes), 4 * n * (1 + 1)
    ### END SOLUTION


# %% check 11.5 points=2
labs.check("11.5", moved_bytes)

# %% [markdown]
# perfnb counts bytes in the same way. Here is `act` of the first block from both profiles of 11.2, where `x` has 1,024
# × 512 numbers:

# %%
act = "reader.blocks.0.act"
rows = {"eager": (eager.layers.loc[act, "moved_bytes"], eager.layers.loc[act, "self_ms"])}
kernels = fused.compiled[(fused.compiled["layers"] == act).fillna(False)]
if len(kernels):
    rows["compiled"] = (kernels["bytes"].sum(), kernels["ms"].sum())
own = moved_bytes(1024 * 512)
for place, (name, (moved, ms)) in enumerate(rows.items()):
    yours = "not computed" if own is None else f"{own[place]:,}"
    print(f"{name:9} {moved:>12,} bytes (yours: {yours}), {ms:.2f} ms, {moved / ms / 1e6:.1f} GB per s")

# %% [markdown]
# The result may surprise you: there are eleven times fewer bytes, but the kernel is nowhere near eleven times as fast,
# and the GB per second *fell*. The fused kernel no longer waits for memory, but for arithmetic. Most of it is `tanh`,
# and the code that the compiler generates for it may be slower than torch's own kernel. With torch 2.13 on our
# computer, `tanh` alone takes 0.2 ms in eager mode and 1.1 ms compiled, and the fused kernel takes 1.3 ms, but only 0.3
# ms if we leave `tanh` out. A low byte rate is not a fault. Ask what limits the kernel now. (If there is no compiled
# row, your version of torch is too old to report it.)
#
# ## 11.6 The memory of attention
#
# Once a year, the office reads whole meter books with up to 1,024 boxes on a page. For these, the Reader uses
# *attention*, where each image looks at all others. For each pair of images there is a **score**, the product of a
# *query* of one and a *key* of the other, and each image then takes a mean of all *values*, weighted by its scores.
# Several **heads** do this side by side, each with vectors of `width` numbers. (They have nothing to do with the layer
# `head`.) Blank boxes are ignored. Maya wrote it in plain operators:


# %%
def plain(q, k, v, blank):
    """q, k, v: cards x heads x images x width. blank: cards x images, True where nobody should look."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(blank[:, None, None, :], -math.inf)
    return scores.softmax(-1) @ v


# %% [markdown]
# How much memory does it need? `q @ k.transpose(-2, -1)` has a number for each pair of images, in each head of each
# card. Let us call this a *square*. `/`, `masked_fill` and `softmax` each make a new square. A tensor is freed as soon
# as no variable refers to it and no running operator uses it. Go through the lines and find out which squares exist
# after each operator. The last product makes a tensor with the shape of `v`. (`transpose` and `blank[:, None, None, :]`
# allocate nothing.)
#
# **Exercise 11.6.** Write `plain_bytes(cards, heads, length, width)`, which returns the largest number of bytes that
# `plain` has allocated at any time, in `float32`. Do not count `q`, `k`, `v` and `blank`, because they existed before.


# %% answer 11.6
def plain_bytes(cards, heads, length, width):
    """Return the largest number of bytes allocated at any time."""
    ### BEGIN SOLUTION
    square = 4 * cards * heads * length * length
    output = 4 * cards * heads * length * width
    return 2 * square + output
    ### END SOLUTION


# %% check 11.6 points=2
labs.check("11.6", plain_bytes)

# %% [markdown]
# Now measure it. `p.memory` records the bytes that are allocated during a step. We begin with 256 images. Use this
# result to **predict** the times for 64 and for 1,024 images, where all squares are 16 times smaller or larger. Write
# down your two numbers, and compare them with the measurements.


# %%
def inputs(length):
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(4, 4, length, 32, generator=generator) for _ in range(3))
    return q, k, v, torch.rand(4, length, generator=generator) < 0.2


@torch.inference_mode()
def measured(function, length):
    """Return the peak bytes that the function has allocated, and its shortest time in milliseconds."""
    given, times = inputs(length), []
    memory = perfnb.profile_step(lambda: function(*given), name=f"{length} images", budget_s=1).memory["total"]
    for _ in range(10):
        began = time.perf_counter()
        function(*given)
        times.append(1e3 * (time.perf_counter() - began))
    return int(memory.max() - memory.iloc[0]), min(times)


SIZES = (64, 256, 1024)
plain_found = {length: measured(plain, length) for length in SIZES}
for length, (allocated, ms) in plain_found.items():
    own, expected_ms = plain_bytes(4, 4, length, 32), plain_found[256][1] * (length / 256) ** 2
    yours = "not computed" if own is None else f"{own:,}"
    print(f"{length:5} images: {allocated:>12,} bytes (yours: {yours}), {ms:6.2f} ms ({expected_ms:.2f} from 256)")

# %% [markdown]
# The bytes are exact. Between 64 and 1,024 images, they grow by a factor of 208 rather than 256, because the output
# grows only 16 times. The law is less accurate for the time. A short card spends part of its time on starting
# operators. The squares of a long card no longer fit into the processor's caches, so they come from memory, and the
# card may take much longer than predicted. (If other programs are busy, a time may be out of place. Run the cell
# again.)
#
# ## 11.7 Attention in one kernel
#
# Softmax seems to need the whole row of scores, but it does not. You can go through the keys piece by piece and only
# keep a running maximum, a running sum and a running result. This way, there is never a square in memory. torch has
# such a kernel: `nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=...)`, SDPA for short. Before you use
# it, read about `attn_mask` in its documentation (which `help` shows). Which images does `True` mark? (The
# documentation only mentions optimized kernels for CUDA. torch also has one for CPUs, which you are about to measure.)
#
# **Exercise 11.7.** Write `attention(q, k, v, blank)`, which returns the same as `plain`, but never makes a square, not
# even for the mask. The check compares the values, and looks at the size of every tensor that your function makes.


# %% answer 11.7
def attention(q, k, v, blank):
    """Return the same as plain, using one kernel."""
    ### BEGIN SOLUTION
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=~blank[:, None, None, :])
    ### END SOLUTION


# %% check 11.7 points=2
labs.check("11.7", attention)

# %% [markdown]
# **Predict:** how many bytes does it allocate for 1,024 images? Is it also faster, and is it faster for 64 images as
# well?

# %%
found = {"plain": plain_found}
if attention(*inputs(8)) is None:
    print("Write attention first, exercise 11.7.")
else:
    found["one kernel"] = {length: measured(attention, length) for length in SIZES}
_, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for (name, rows), colour in zip(found.items(), ("#0072B2", "#D55E00"), strict=False):
    left.plot(SIZES, [rows[length][0] / 1e6 for length in SIZES], "o-", color=colour, label=name)
    right.plot(SIZES, [rows[length][1] for length in SIZES], "o-", color=colour, label=name)
    print(name, "; ".join(f"{length} images: {b:,} bytes, {ms:.2f} ms" for length, (b, ms) in rows.items()))
right.plot(SIZES, [plain_found[256][1] * (length / 256) ** 2 for length in SIZES], "k:", label="plain, predicted")
for ax, title in ((left, "MB allocated at the peak"), (right, "ms")):
    ax.set(xscale="log", yscale="log", xlabel="images per card", title=title)
    ax.set_xticks(SIZES, [str(length) for length in SIZES])
    ax.minorticks_off()
    ax.legend()
plt.show()

# %% [markdown]
# Memory now grows with the length and not with its square. At 1,024 images, it needs fifty times less. The arithmetic
# is the same, so the time still grows with the square, but it is shorter, because the scores stay in the caches.
#
# ## 11.8 Gradients that vanish
#
# Another way to move fewer bytes is to use smaller number formats. `float16` has 16 bits. It also has a narrow
# **range**: the smallest number above zero is 2⁻²⁴, about 6e-8, and the largest is 65,504. Numbers are rounded, so
# everything up to half the smallest number, 2⁻²⁵, becomes zero, which is called **underflow**. The outputs of layers
# are rarely that small. Gradients often are, because a mean over many images divides them. **Look at** them: the cell
# trains a Reader for a few seconds, and draws the gradients that arrive at its blocks.

# %%
torch.manual_seed(0)
trained, loss_fn = Reader(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
for start in [*range(0, 1700, 100)] * 12:
    optimizer.zero_grad()
    loss_fn(trained(images[start : start + 100]), labels[start : start + 100]).backward()
    optimizer.step()


def gradients(scale, dtype):
    """Return all gradients that reach the Reader's blocks for one batch, with the loss multiplied by `scale`."""
    kept = []
    # torch calls these functions ("hooks") during the backward pass, with the gradients of each block's output
    handles = [block.register_full_backward_hook(lambda _, into, out: kept.append(out[0])) for block in trained.blocks]
    # autocast computes the products in this format; the weights and their gradients stay in float32
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        scores = trained(batch)
    trained.zero_grad()
    (scale * loss_fn(scores.float(), labels[:1024])).backward()
    for handle in handles:
        handle.remove()
    return torch.cat([gradient.float().flatten() for gradient in kept])


exact = gradients(1.0, torch.float32)
_, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
ax.axvspan(-50, -25, color="#D55E00", alpha=0.2, label="float16: zero")
ax.axvspan(16, 30, color="black", alpha=0.2, label="float16: infinite")
for scale, colour in ((1, "#0072B2"), (2**16, "#009E73")):
    sizes = torch.log2((scale * exact).abs().clamp(min=1e-14)).numpy()
    ax.hist(sizes, bins=np.arange(-46, 26, 0.5), histtype="step", color=colour, label=f"gradients x {scale:,}")
    lost = (gradients(float(scale), torch.float16) == 0).float().mean() - (exact == 0).float().mean()
    print(f"loss x {scale:,}: {lost:.1%} of the gradients become zero in float16")
ax.set(xlim=(-46, 30), xlabel="size of a gradient, as a power of two", ylabel="how many")
ax.legend(loc="upper right", fontsize="small")
plt.show()

# %% [markdown]
# There is plenty of room for large numbers. The range is wide enough, but the gradients are in the wrong part of it.
# **Loss scaling** moves them. If you multiply the loss by a large number, the chain rule makes all gradients larger by
# the same factor. After the backward pass, divide the gradients of the weights (which are kept in `float32`) by it
# again.
#
# If the scale is too large, some gradients become infinite. Such a step must be skipped, because the weights would be
# lost otherwise. (Some may also become `nan`, which is not a number, because 0 times infinity is undefined.) A training
# loop then continues with half the scale, and doubles it again after a while. `torch.amp.GradScaler` does this.
#
# **Exercise 11.8.** Write `scaled_step(loss_of, optimizer, scale)`, which runs one training step. `loss_of()` computes
# the loss. Clear the gradients from the previous step, and make sure that small gradients survive. The weights
# (`optimizer.param_groups[0]["params"]`) must then move as they would in `float32`. Return `True`. If a gradient is not
# finite, leave the weights alone and return `False`.


# %% answer 11.8
def scaled_step(loss_of, optimizer, scale):
    """Run one step. Return True if it was taken, and False if it was skipped."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    (scale * loss_of()).backward()
    gradients = [weight.grad for weight in optimizer.param_groups[0]["params"]]
    for gradient in gradients:
        gradient /= scale
    if not all(gradient.isfinite().all() for gradient in gradients):
        return False
    optimizer.step()
    return True
    ### END SOLUTION


# %% check 11.8 points=2
labs.check("11.8", scaled_step)

# %% [markdown]
# `bfloat16` has the range of `float32` but fewer digits. It does not need a scale, which is why most people now use it
# for training if their hardware supports it.
#
# ## 11.9 Threads
#
# The last way to make a kernel faster is to divide it among threads. Waking another thread takes time, so torch does
# not divide small tensors. **Predict:** at how many numbers do two threads begin to pay off? And can they ever be
# slower than one?

# %%
tensors = [torch.rand(2**power) for power in range(10, 21, 2)]
best_us = {1: [math.inf] * len(tensors), 2: [math.inf] * len(tensors)}
for _ in range(60):
    for threads, times in best_us.items():
        torch.set_num_threads(threads)
        torch.tanh(tensors[-1])  # starts the threads
        for place, x in enumerate(tensors):
            began = time.perf_counter()
            torch.tanh(x)
            times[place] = min(times[place], 1e6 * (time.perf_counter() - began))
torch.set_num_threads(1)

_, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
ax.plot([x.numel() for x in tensors], np.divide(best_us[1], best_us[2]), "o-", color="#0072B2")
ax.axhline(1, color="black", linewidth=1, linestyle="--")
ax.set(xscale="log", xlabel="numbers in a tensor", ylabel="times as fast")
ax.set_ylim(bottom=0)
ax.set_title("tanh with two threads, compared with one")
plt.show()

# %% [markdown]
# On an idle computer, the curve starts near 1, because torch does not divide the smallest tensor. It may then fall
# below 1. It crosses 1 somewhere between a few thousand and a hundred thousand numbers, and approaches 2. On a busy
# computer, it may stay far below 1, because the second thread waits for a core, and the first one waits for the second.
# (If it lies flat near 0, run the cell again after a minute.) This is why a server that answers two cards at the same
# time uses one thread for each, as this lab does.
#
# A simple model explains this curve. `serial_ms` cannot be divided, `divisible_ms` is divided by the number of threads,
# and each thread after the first costs `start_ms`, however small the tensor is.
#
# > ms = serial + divisible / threads + start × (threads − 1)
#
# **Exercise 11.9.** Write `best_threads(serial_ms, divisible_ms, start_ms, cores)`, which returns the number of
# threads, from 1 to `cores`, with the shortest time.


# %% answer 11.9
def best_threads(serial_ms, divisible_ms, start_ms, cores):
    """Return the number of threads with the shortest time."""
    ### BEGIN SOLUTION
    return min(range(1, cores + 1), key=lambda n: serial_ms + divisible_ms / n + start_ms * (n - 1))
    ### END SOLUTION


# %% check 11.9 points=1
labs.check("11.9", best_threads)

# %% [markdown]
# ## Wednesday at eight
#
# Tom takes your `Whole`, which has one graph per version, and removes `dynamic=False`. Here is the morning again, with
# the same cards, the same planted times and the same axes. **Predict** where the curve jumps, and how often.

# %%
if Whole()(torch.zeros(2, 64)) is None:
    print("Write Whole first, exercise 11.3.")
else:
    picture(morning(Whole(), dynamic=None), "Wednesday")

# %% [markdown]
# There are two jumps instead of eight, each of them half as high, and after them every card takes 12 ms. The lines
# cross after about 600 cards, which is 5 s of compiling divided by the 8 ms that each card saves. On a morning with 300
# cards, the uncompiled Reader would win. (With `dynamic=True` there is only one jump. And torch keeps generated code on
# disk, so compiling again after a restart is faster than the first time.)
#
# ## Takeaways
#
# - Before you compile, compute a bound on the gain, because matrix products keep their time.
# - Compiling only pays off after a number of calls. Count the versions: graphs × shapes.
# - Fusing saves bytes, not arithmetic. Count the bytes, and then ask what limits the kernel now.
# - Attention does not need to store a square of scores. SDPA returns the same values with memory that grows with the
#   length.
# - Small gradients vanish in `float16` without a scale. More threads only help if there is enough work to divide.
#
# `labs.export("lab_11.json")` writes your answers and their measurements to a file for your teacher.

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(11).complete, labs.progress(11)
### END HIDDEN TESTS
labs.progress(11)
