# %% [markdown]
# # Lab 7 · The optimisation loop
#
# **Runs on** any computer: two CPU cores, 2 GB of memory, no GPU. **Takes** 75 to 90 minutes; the cells themselves take
# one to three minutes, at least a third of it for `torch.compile`. It helps to have done [lab
# 1](01_measuring_honestly.ipynb) and [lab 2](02_where_does_a_step_go.ipynb).
#
# **Afterwards you can**
#
# - change a training script one factor at a time, and decide from a performance report whether to keep the change;
# - define in advance what would be *worse*, so that no speed-up hides a loss of quality;
# - find out which of five textbook speed-ups hold **on this machine**, for this model, and with what certainty.
#
# The loop is always the same: **predict, change one thing, report, decide, write it down.** Nobody can tell you which
# speed-ups hold: that depends on your processor. So `labs.check` judges by what is measured here. It names the mistake,
# never the answer, and you can try as often as you like.

# %%
# %load_ext perfnb

# %%
import copy
import math
import os
import tempfile
import time
import warnings

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import perfnb
from perfnb import labs

torch.set_num_threads(1)  # less noise: with several threads, each step waits for the slowest one

# The journal of this lab disappears with the kernel. To keep yours: perfnb.journal("experiments/").
folder = tempfile.TemporaryDirectory()
journal = perfnb.journal(os.path.join(folder.name, "journal"))

# For exercise 7.6. torch.compile caches what it compiles in a folder; an empty one forces it to compile here, so that
# we can measure how long that takes. It compiles one piece at a time, which needs less memory, and skips a test of
# the processor's vector instructions, which would take as long again.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder.name, "kernels")
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"

# %% [markdown]
# ## Five speed-ups, and a longer night
#
# You have joined the meter office of a small waterworks. Customers write the reading of their water meter on a card, a
# scanner cuts the card into small images, and a model, the *Reader*, recognises the characters. Every night, a script
# looks for a better Reader. It tries 300 shapes, that is, widths and numbers of blocks, and for each of them 50
# trainings with other settings. A training takes 40 steps, so it sees each digit once.
#
# Tom found five speed-ups in a textbook and switched on the four that concern training, all at once. This is the next
# night, compared with the one before:

# %%
before_tom = {"steps": 6.67, "compiling": 0.0, "wrong": 0.08}  # hours, hours, share of wrong digits
all_at_once = {"steps": 4.06, "compiling": 2.92, "wrong": 0.20}
LIMIT = 0.11  # three more wrong digits in a hundred


def picture(yours=None):
    """The hours of a night, and the share of digits that the Reader gets wrong."""
    rows = {"the script": before_tom, "with four speed-ups": all_at_once, "your choice": yours}
    _, (left, right) = plt.subplots(1, 2, figsize=(8, 2.2), width_ratios=(3, 2), sharey=True, layout="constrained")
    for row, night in enumerate(rows.values()):
        if night is not None:
            left.barh(row, night["steps"], color="#56B4E9", edgecolor="black")
            left.barh(row, night["compiling"], left=night["steps"], color="#E69F00", edgecolor="black", hatch="//")
            left.annotate(f"{night['steps'] + night['compiling']:.1f} h", (0.1, row), va="center", color="black")
            right.barh(row, night["wrong"], color="#D55E00" if night["wrong"] > LIMIT else "#56B4E9", edgecolor="black")
    left.set(xlim=(0, 8), xlabel="hours; hatched: before the first step")
    left.set_yticks(range(3), rows)
    left.set_ylim(2.5, -0.5)
    right.axvline(LIMIT, color="gray", linewidth=1, linestyle="--")
    right.annotate("limit", (LIMIT + 0.005, 2.3))
    right.set(xlim=(0, 0.3), xlabel="share of wrong digits")
    plt.show()


picture()

# %% [markdown]
# The night has become *longer*, and the Readers make more than twice as many mistakes. Which of the four is to blame?
# With all of them switched on at once, nobody can tell. At the end of this lab, you draw the row that is still empty.
#
# (The figures in this picture are **planted**: they are the same on every computer. All others are measured on yours.)
#
# ## The script
#
# The script trains the Reader for single images of 8 by 8 pixels: a few blocks with a residual connection, cross
# entropy, AdamW, batches of 32. Nothing in it is wrong. Could it be faster?
#
# It is written as a class, so that a change is *one method* that you override; the rest is inherited. Read it once:
# which method would you override for another optimizer, and which for another precision of the forward pass?


# %%
class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(64, 128), nn.Linear(128, 10)
        self.blocks = nn.Sequential(*(Block(128, 512) for _ in range(3)))

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


class Script:
    """The original training script."""

    def __init__(self):
        torch.manual_seed(0)  # every training starts from the same weights
        self.net = Reader()
        self.model = self.make_model(self.net)
        self.optimizer = self.make_optimizer()

    def make_model(self, net):
        """The model that predict calls: here the net itself."""
        return net

    def make_optimizer(self):
        return torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def predict(self, x):
        """The scores of the ten digits for each image."""
        return self.model(x)

    def step(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.predict(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
images, labels = (
    torch.tensor(digits.images, dtype=torch.float32).flatten(1)[order] / 16,
    torch.tensor(digits.target)[order],
)
held_out = (images[1280:], labels[1280:])  # 517 held-out digits
batches = list(zip(images[:1280].split(32), labels[:1280].split(32), strict=True))  # 40 of 32 digits

# %% [markdown]
# ## 7.1 A prediction
#
# The textbook has five ways to make such a script faster:
#
# - `fused`: the optimizer updates all weights in one call, instead of with several operators for each tensor;
# - `bf16`: the forward pass computes in 16 bits (`bfloat16`) where that is safe;
# - `larger batches`: 256 digits per step instead of 32, for the same number of digits;
# - `compile`: `torch.compile` turns the model into C++ and fuses successive operators into one loop;
# - `int8`: inference with 8-bit weights.
#
# First look at where the script's step spends its time, then predict. Only the phases are displayed; the full profile,
# `p`, also gives recommendations, which you should find yourself.

# %%
p = perfnb.profile_step(Script().step, batches, name="the script", budget_s=4, memory=False)
p.phases.round(3)

# %% [markdown]
# **Exercise 7.1.** For each of the five: by what factor do you expect it to be faster on this machine? 2.0 is twice as
# fast, 1.0 no difference, 0.5 half as fast. Use the column `share`: what could `fused` gain *at most*, if the optimizer
# took no time at all? (`int8` means 256 images at once.) Only the form is checked.
#
# (These are shares of a *traced* step, which is slower: tracing adds a little time to each operator, however short. So
# a phase with many short operators has a somewhat smaller share without tracing, and this is not an exact bound, as lab
# 2 explains. For a prediction it is good enough.)

# %% answer 7.1
prediction = {"fused": ..., "bf16": ..., "larger batches": ..., "compile": ..., "int8": ...}
### BEGIN SOLUTION
at_most = 1 / (1 - float(p.phases.loc["optimizer", "share"]))
prediction = {"fused": (1 + at_most) / 2, "bf16": 1.5, "larger batches": 3.0, "compile": 1.3, "int8": 2.0}
### END SOLUTION

# %% check 7.1 points=1
labs.check("7.1", prediction)

# %% [markdown]
# ## 7.2 What would be worse?
#
# *Before* you make anything faster, decide what must not get worse, how to measure it, and how much worse you accept.
# Afterwards it is easy to find reasons why the loss does not matter.
#
# Ours: the fraction of held-out digits that the model gets **wrong**. (A loss, so lower is better.)
#
# **Exercise 7.2.** Write `wrong(model, x, y)`: the share, 0 to 1, of the images `x` whose label `y` the model gets
# wrong, as a Python number (`.item()` converts a tensor). The model gives ten scores per image; the digit with the
# highest is its answer. Some models have dropout, which must be off during evaluation (`model.eval()`). Training
# continues afterwards: restore the model's mode (`model.training` is the mode, `model.train(mode)` sets it), and
# compute no gradients (`with torch.no_grad():`).


# %% answer 7.2
def wrong(model, x, y):
    """Share of images that the model gets wrong."""
    ### BEGIN SOLUTION
    mode = model.training
    model.eval()
    with torch.no_grad():
        share = (model(x).argmax(1) != y).float().mean().item()
    model.train(mode)
    return share
    ### END SOLUTION


# %% check 7.2 points=2
labs.check("7.2", wrong)

# %% [markdown]
# How precise is this fraction? 517 digits are held out, so one digit is 0.002. Chance moves it by more than that. Here
# is the same script six times, each for three epochs' worth of steps: three times with different batches, and three
# times with different initial weights.

# %%
shares = []
for seed in range(6):
    one, drawn = Script(), torch.Generator().manual_seed(seed if seed < 3 else 0)
    if seed >= 3:
        torch.manual_seed(seed)
        one.net.load_state_dict(Reader().state_dict())
    for index in torch.randint(0, 40, (120,), generator=drawn).tolist():
        one.step(batches[index])
    shares.append(wrong(one.net, *held_out))
if None not in shares:
    shares = [round(float(share), 3) for share in shares]
    print(f"wrong: other batches {shares[:3]}, other weights {shares[3:]}; {max(shares) - min(shares):.3f} apart")

# %% [markdown]
# This is how much it varies when *nothing* has changed. Maya accepts **three more wrong digits in a hundred**: the
# candidate may exceed the script by 0.03. Compare the two numbers: if chance alone moves the result by almost that much
# or more, a limit of 0.03 on two differently initialised trainings would judge by luck.
#
# In a report both sides therefore get the same weights and the same batches. That keeps them closer together, but not
# identical: after a few hundred steps even different rounding leads to a different model, and that alone has made a
# difference of 0.02. This has two consequences. *Before* and *after* can only be compared within one report, because
# the next one trains for a different number of steps. And a difference close to the limit, on either side, proves
# nothing: you need more held-out digits, or several trainings.
#
# `tried` makes a performance report of a candidate against the script. Both train in pairs, in random order, on the
# same batches; afterwards both have seen the same number of digits, and `wrong` evaluates them. The script is the
# report's *baseline*, also called *before*; the candidate is *after*. Each report goes into a journal together with
# your expectation. You do not have to change anything in this cell.

# %%
ACCEPTED = 0.03
reports, made_of = {}, {}


def tried(change, candidate, before=None, given=batches, nets=None, budget_s=4, expected=None, of=None):
    """A/B test of a change, kept in `reports` and the journal; `candidate` and `before` are steps."""
    if wrong(Reader(), *held_out) is None:
        print("Write wrong first, exercise 7.2.")
        return None
    reports[change] = perfnb.ab_test(
        before,
        candidate,
        change=change,
        batches=given,
        quality=lambda: {"added wrong share": float(wrong(nets[1], *held_out) - wrong(nets[0], *held_out))},
        limits={"added wrong share": ACCEPTED},
        budget_s=budget_s,
    )
    made_of[change] = of  # what the report tested, so that the check recognises an outdated report
    before_wrong, after_wrong = (wrong(net, *held_out) for net in nets)
    print(f"{change}: share of wrong digits before {before_wrong:.3f}, after {after_wrong:.3f}")
    if expected is None and isinstance(prediction, dict):
        expected = prediction.get(change)
    hypothesis = f"{expected:.3g} times as fast" if isinstance(expected, (int, float)) else ""
    journal.add(reports[change], name=change, hypothesis=hypothesis)
    return reports[change]


def tried_training(change, candidate, budget_s=4, expected=None):
    """The same for a training against the script; a larger `budget_s` gives more pairs."""
    before = Script()
    return tried(
        change,
        candidate.step,
        before.step,
        nets=(before.net, candidate.net),
        budget_s=budget_s,
        expected=expected,
        of=type(candidate),
    )


# %% [markdown]
# ## 7.3 The fused optimizer
#
# By default, torch's AdamW on a CPU loops over the tensors, with about ten operators for each. With `fused=True` one
# call updates them all. It is the same arithmetic, so what should happen to the quality? (Look at the fraction of wrong
# digits before and after, and remember the effect of rounding.)
#
# **Exercise 7.3.** Make a training `Fused` that differs from `Script` in this one thing: override `make_optimizer`.
# Replace the line by your method; `class Fused(Script):` inherits everything else.


# %% answer 7.3
class Fused(Script):
    """The script, with the fused optimizer."""

    ### BEGIN SOLUTION
    def make_optimizer(self):
        return torch.optim.AdamW(self.net.parameters(), lr=1e-3, fused=True)

    ### END SOLUTION


# %%
tried_training("fused", Fused())

# %% [markdown]
# **Look at the report**: first comes the decision with its reason, and below it the smallest difference that these
# pairs can find: *detect a difference of 1.6 % in 9 of 10 runs* means that they would often miss one of 1 %. *step
# time* has the change with its 95 % interval: the typical ratio of the pairs (the Hodges-Lehmann estimate, similar to a
# median), where the two steps of a pair ran right after each other. Each pair is a dot below it. In the table, the
# medians of *median step* are over all steps; if times vary a lot, their ratio is different, and the pairs are the
# better evidence. *loss: added wrong share* is what you defined: by how much the fraction of wrong digits exceeds the
# script's, with the accepted limit. The notes are about the machine. Before the pairs that count, both steps run for a
# while as a warm-up, until they are in a **steady state**, that is, until their times no longer fall. If they never get
# there, or if neighbouring pairs resemble each other, the interval is wider.
#
# Utilisation, memory and FLOPs are not there: they need a profile of both sides, and here all the time is spent on
# pairs.
#
# Changed your answer? Run its cell *and* the report's again: a report on the old code is no evidence for the new code.
# The check runs its own trial.

# %% check 7.3 points=2
labs.check("7.3", Fused, script=Script, batches=batches, reports=reports, made_of=made_of)

# %% [markdown]
# ## 7.4 bfloat16
#
# A `bfloat16` has 16 bits: the range of a `float32` with three digits of precision. Processors with native instructions
# multiply such matrices at least twice as fast; others emulate them, which is slow. Under `torch.autocast`, matrix
# products run in `bfloat16` while the weights stay in `float32`, so that small updates are not lost.
#
# How fast could this processor be? The **ceiling** is the highest rate that perfnb measured here with large matrices,
# for each type that the processor multiplies natively. (If `bfloat16` is missing below, it is only emulated.) No step
# computes faster than the ceiling of its type.

# %%
print({dtype: f"{peak / 1e9:,.0f} GFLOP/s" for dtype, peak in p.roofline.peaks.items()})
p.roofline

# %% [markdown]
# **Look at** the distance between the step's products and the ceiling of `float32`, and then at the ceiling of
# `bfloat16`. Raising the roof helps whoever touches it.
#
# **Predict:** the layers are small, 128 by 512, and every product first converts its operands. Do these products touch
# the roof? Will `bfloat16` be faster, and if so, by as much as the two ceilings differ?
#
# **Exercise 7.4.** Make a training `Bf16`: only `predict` computes under `torch.autocast("cpu", dtype=torch.bfloat16)`
# (use it in a `with` statement). Call `self.model(x)` in it, as the script does, and not `super()`, so that another
# class can reuse the method, as 7.8 does. Return `.float()` of the scores, so that the loss is computed in `float32`;
# cross entropy in `bfloat16` has three digits (the check accepts that). Weights, optimizer and everything else stay the
# same, and it is not fused: one thing at a time.


# %% answer 7.4
class Bf16(Script):
    """The script, with a forward pass in bfloat16."""

    ### BEGIN SOLUTION
    def predict(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(x).float()

    ### END SOLUTION


# %%
tried_training("bf16", Bf16())

# %% check 7.4 points=2
labs.check("7.4", Bf16, script=Script, batches=batches, reports=reports, made_of=made_of)

# %% [markdown]
# Compare the ratio with the two ceilings. On the processor where this was written, `bfloat16` has six times the ceiling
# of `float32`, and the step became slower all the same: its products are so small that converting the operands costs
# more than multiplying them. You could have seen it in the picture above. *A ceiling is no promise: look first at how
# far below it you are.*
#
# `accept`, `reject` and `inconclusive` are all correct here if it is the decision of your report. The last one does not
# mean *no gain*: it means that so few pairs on such a noisy machine cannot tell. If you want to know, give it more
# time, as in `tried_training("bf16", Bf16(), budget_s=12)`.
#
# A second report may come to a different decision, especially if the gain is small or the machine noisy. The remedy is
# more pairs, not repeating until it says `accept`: if you ask often enough, you get every answer once. Decide on the
# number of pairs in advance, then accept the answer.
#
# ## 7.5 Larger batches
#
# A step on 256 digits takes *longer* than one on 32, so comparing steps is meaningless. You have to compare the same
# **work**: the same number of digits, in steps of 32 or in one step of 256.
#
# **Exercise 7.5.** Write `learn(training, samples, size)`: learn from all of `samples`, a pair of images `x` and labels
# `y`, in batches of `size`, with `training.step((x, y))` for each. Each sample is used once, in order; the last batch
# may be smaller. `x.split(size)` cuts a tensor into pieces.


# %% answer 7.5
def learn(training, samples, size):
    """Learn from all samples, in batches of `size`."""
    ### BEGIN SOLUTION
    x, y = samples
    for batch in zip(x.split(size), y.split(size), strict=True):
        training.step(batch)
    ### END SOLUTION


# %% [markdown]
# **Predict** two things: how many times as fast 256 digits are at once compared with eight steps; and which of the two
# models will be better after the same number of digits. One has made eight times as many updates. (In the report a
# *step* is 256 digits on both sides.)
#
# Time is measured in pairs, as before. For quality, two more trainings, `few`, see the 1280 digits *once*: by then the
# script has made 40 updates, and the other five.

# %%
portions = list(zip(images[:1280].split(256), labels[:1280].split(256), strict=True))
small, large, few = Script(), Script(), (Script(), Script())
for samples in portions:
    learn(few[0], samples, 32)
    learn(few[1], samples, 256)
tried(
    "larger batches",
    lambda samples: learn(large, samples, 256),
    lambda samples: learn(small, samples, 32),
    given=portions,
    nets=(few[0].net, few[1].net),
    budget_s=5,
    of=learn,
)

# %% check 7.5 points=2
labs.check("7.5", learn, reports=reports, made_of=made_of)

# %% [markdown]
# **Look at** both, the time and the loss. Throughput is not progress: what counts is the time until the model is good
# enough. But is the loss permanent? Here two such trainings continue.

# %%
if wrong(Reader(), *held_out) is None:
    print("Write wrong first, exercise 7.2.")
else:
    _, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
    for size, mark, colour in ((32, "o", "#0072B2"), (256, "s", "#D55E00")):
        training, course = Script(), []
        for _ in range(8):
            for samples in portions:
                learn(training, samples, size)
            course.append(wrong(training.net, *held_out))
        ax.plot([1280 * (epoch + 1) for epoch in range(8)], course, marker=mark, color=colour, label=f"steps of {size}")
    ax.set(xlabel="digits learned from", ylabel="share of wrong digits")
    ax.set_ylim(bottom=0)
    ax.legend()
    plt.show()

# %% [markdown]
# **Look at** the left end and at the right end. Early on, the larger batch is worse after the same digits; later, when
# both have converged, the difference is within chance (7.2). So *is it as good?* depends on when you ask, and "the same
# number of digits" is a choice that belongs in the journal. The fairest measure is the time to reach a given accuracy;
# you have everything that you need for that. A larger batch usually needs a larger learning rate, and that is *another
# factor*: a separate training with its own report. Try it when you have time.
#
# ## 7.6 Compiling, and when it pays off
#
# `torch.compile(net)` returns a model that is compiled on its first call: C++ is generated and a compiler runs, for
# half a minute or so. So there are two questions: is the step faster, and after how many steps has this paid for the
# compilation?
#
# **Exercise 7.6.** Two things. Make a training `Compiled`: `make_model` returns `torch.compile(net)`. And write
# `pays_after(first_s, before_ms, ratio, verdict)`: the number of steps after which the compilation has paid for itself.
# `first_s` are the **seconds** of the first step, which compiles; `before_ms` the **milliseconds** of a step of the
# script; `ratio` and `verdict` are those of the report: a compiled step takes `ratio` times as long as the script's.
# Return `math.inf` if no gain was shown, that is, if the verdict is not `"faster"`.


# %% answer 7.6
class Compiled(Script):
    """The script, with a compiled model."""

    ### BEGIN SOLUTION
    def make_model(self, net):
        return torch.compile(net)

    ### END SOLUTION


def pays_after(first_s, before_ms, ratio, verdict):
    """Number of steps after which compiling has paid off; math.inf if never."""
    ### BEGIN SOLUTION
    if verdict != "faster":
        return math.inf
    return 1000 * first_s / (before_ms * (1 - ratio))
    ### END SOLUTION


# %% [markdown]
# The next cell runs the first step of `Compiled`, which may take a minute on a busy machine. If you run it again, it
# keeps the time of the step that compiled. Without a C++ compiler the step fails with one sentence, and the exercise
# only asks for `pays_after`.

# %%
compiled = Compiled()
first = first if isinstance(first, dict) else {"seconds": None}  # reset if this cell runs again
began = time.perf_counter()
try:
    compiled.step(batches[0])
    seconds = time.perf_counter() - began
    first["seconds"] = max(seconds, first["seconds"] or 0.0)
    print(f"The first step took {seconds:.3g} s.")
    if seconds < 0.5:
        print("That compiled nothing: make_model has returned the net itself, or this kernel has compiled it before.")
except Exception as error:
    print(f"The first step failed: {type(error).__name__}, {str(error).strip().splitlines()[0][:150]}")

# %%
reports.pop("compile", None)
if first["seconds"] is not None:
    tried_training("compile", Compiled())  # the same code, so nothing is recompiled
reports.get("compile")

# %%
if "compile" in reports:
    r = reports["compile"]
    steps = pays_after(first["seconds"], r.baseline.median_ms, r.ratio, r.verdict)
    if steps == math.inf:
        print("Paid back: never, as far as this report tells; no gain was shown.")
    elif steps is not None:
        print(f"Paid back after {steps:,.0f} steps.")

# %% check 7.6 points=3
evidence = {"script": Script, "batches": batches, "reports": reports, "made_of": made_of}
labs.check("7.6", pays_after, training=Compiled, first=first, **evidence)

# %% [markdown]
# If it pays off, after how many epochs, with 40 steps each? And in the script, which compiles each of its 300 shapes
# anew and takes 2,000 steps with it? Compiling is worthwhile for chains of operators that do little work per number,
# and for long trainings.
#
# ## 7.7 int8 for inference
#
# At inference time, *dynamic quantisation* stores the weights of linear layers as 8-bit integers with a scale; the
# inputs of each layer are converted on the fly. That is a quarter of the bytes, and some processors multiply such
# numbers several times as fast.
#
# torch's own function for it is `torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)`. It works
# on CPUs and is *deprecated*: its successor is the separate package `torchao`, which you may use if you have it. The
# next cell silences the two deprecation warnings, and trains a Reader to quantise.

# %%
warnings.filterwarnings("ignore", message="torch.ao.quantization is deprecated")
warnings.filterwarnings("ignore", message="torch.quantize_per_tensor, torch.quantize_per_channel")

trained = Fused()
for _ in range(8):
    for batch in batches:
        trained.step(batch)
trained.net.eval()
if wrong(trained.net, *held_out) is not None:
    print(f"share of wrong digits: {wrong(trained.net, *held_out):.3f}")

# %% [markdown]
# Your prediction in 7.1 was for 256 images at once, and so is the report.
#
# **Exercise 7.7.** Write `quantised(net)`: it returns a model with int8 weights and leaves `net` unchanged. (Import
# what you need inside the function.) Then run the report: the baseline is the trained model, and quality is judged as
# before.


# %% answer 7.7
def quantised(net):
    """The model for inference, with weights in int8."""
    ### BEGIN SOLUTION
    from torch.ao.quantization import quantize_dynamic

    return quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
    ### END SOLUTION


# %%
def answering(model):
    """A step that only runs inference."""

    def answer(x):
        with torch.inference_mode():
            return model(x)

    return answer


small_net = None
reports.pop("int8", None)
try:
    small_net = quantised(copy.deepcopy(trained.net))
except Exception as error:
    print(f"int8 is not available here: {type(error).__name__}, {error}")
if small_net is not None:
    sides, nets = (answering(small_net), answering(trained.net)), (trained.net, small_net)
    tried("int8", *sides, given=list(images[:1280].split(256)), nets=nets, budget_s=2.5, of=quantised)
reports.get("int8")

# %% check 7.7 points=2
labs.check("7.7", quantised, net=trained.net, x=held_out[0], reports=reports, made_of=made_of)

# %% [markdown]
# This decision is for 256 images at once. With a single image, converting it may cost more than the product gains. If
# you have time, give `tried` the images one by one. *Does it help?* has no answer until you name the input.
#
# ## 7.8 Everything that helped
#
# Now combine the changes that your reports accepted. Do speed-ups multiply? If one takes 20 % off the optimizer and
# another 20 % off the forward pass, what is left of the step?
#
# **Exercise 7.8.** Make a training `Best` with whichever of `fused` and `bf16` was accepted, and nothing else: see
# `reports["fused"].decision`. In the class, the line `make_optimizer = Fused.make_optimizer` reuses that method; a
# class can also inherit from two, `class Best(One, Other):`. Leave out a change that was rejected or inconclusive. If
# both were, `Best` is the script: write `pass`. Larger batches and compilation are left out here in any case.
#
# Then bind three names. `product`: the product of the speed-ups in it, each `1 / ratio` with the ratio of its report,
# `reports["fused"].ratio` (1.0 if there are none); that is what you expect. `best`: the report that
# `tried_training("best", Best(), expected=product)` makes. `speedup`: `1 / ratio` of that report.
#
# Your reports decide, and those of another run may decide differently. So if you make a report again, or restart the
# notebook and run all of it, check this answer again. (Or make it automatic: a class body may contain an `if`.) If a
# decision is close, give its report more pairs *before* you use it (`budget_s`).


# %% answer 7.8
class Best(Script):
    """The script, with all changes that the reports accepted."""

    ### BEGIN SOLUTION
    if reports["fused"].decision == "accept":
        make_optimizer = Fused.make_optimizer
    if reports["bf16"].decision == "accept":
        predict = Bf16.predict
    ### END SOLUTION


product = ...
best = ...
speedup = ...
### BEGIN SOLUTION
product = math.prod(1 / reports[name].ratio for name in ("fused", "bf16") if reports[name].decision == "accept")
best = tried_training("best", Best(), expected=product)
speedup = 1 / best.ratio
### END SOLUTION

# %%
best

# %% check 7.8 points=3
answer = {"product": product, "speedup": speedup}
evidence = {"script": Script, "batches": batches, "reports": reports, "made_of": made_of, "journal": journal}
labs.check("7.8", answer, training=Best, **evidence)

# %% [markdown]
# Compare `product` and `speedup`. If `Best` has both changes, they may differ for a reason: the time that one of them
# has saved cannot be saved again by the other. If it has one change, they are two reports of the same thing, and differ
# only by noise and by other programs. If it has none, `speedup` is that of the script against itself.
#
# ## Which of them helped?
#
# Your journal has all of it: your expectation, the measurement, and the decision. A change that you tried several times
# has several lines: the last is for your current code. The others stay, because the number of attempts is part of the
# evidence. A change that was faster but rejected was worse in quality than allowed: its report has the figure.

# %%
history = journal.history
history = history.assign(speedup=1 / history["candidate_ratio"]).set_index("number")
history[["change", "hypothesis", "speedup", "decision"]].round(2)

# %% [markdown]
# And here are your expectations next to the measurements, with their 95 % intervals. **Look at** the distances: where
# were you off the most?

# %%
if not isinstance(prediction, dict):
    print("First solve 7.1.")
else:
    _, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
    for row, change in enumerate(prediction):
        report = reports.get(change)
        if isinstance(prediction[change], (int, float)):
            ax.plot(prediction[change], row, "D", color="#D55E00", label="expected" if row == 0 else None)
        if report is not None and report.ratio_ci is not None:
            low, high = (1 / end for end in reversed(report.ratio_ci))
            ax.plot((low, high), (row, row), color="#0072B2", linewidth=3, label="measured" if row == 0 else None)
            ax.plot(1 / report.ratio, row, "|", color="#0072B2", markersize=14)
            ax.annotate(report.decision, (1.02, row), xycoords=("axes fraction", "data"), va="center")
    ax.axvline(1, color="gray", linewidth=1, linestyle="--")
    ax.set_yticks(range(len(prediction)), prediction)
    ax.set(xscale="log", xlabel="times as fast as the script (left of the line: slower)")
    ax.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"])
    ax.minorticks_off()
    ax.invert_yaxis()
    ax.legend(loc="lower right")
    plt.show()

# %% [markdown]
# Give this notebook to someone with a different processor, and some of these lines will change. That is the point.
#
# ## The night again
#
# Tom has tried the four changes one by one on the office computer. These figures are planted, like those of the first
# picture: the ratio of the step times, the share of wrong digits that a change adds within 40 steps, and the seconds
# before the first step. The cell keeps a change if it passes three rules: the step is faster, the loss is within the
# accepted limit, and by **your** `pays_after` it pays off within the 2,000 steps of a shape.

# %%
one_by_one = {
    "fused": {"ratio": 0.80, "added": 0.00, "first_s": 0},
    "bf16": {"ratio": 1.35, "added": 0.00, "first_s": 0},
    "larger batches": {"ratio": 0.60, "added": 0.12, "first_s": 0},
    "compile": {"ratio": 0.94, "added": 0.00, "first_s": 35},
}
SHAPES, STEPS, STEP_MS = 300, 2000, 40
kept = {}
for change, found in one_by_one.items():
    verdict = "faster" if found["ratio"] < 1 else "slower"
    steps = pays_after(found["first_s"], STEP_MS, found["ratio"], verdict)
    if steps is None:
        print("Write pays_after first, exercise 7.6.")
        break
    rules = (verdict == "faster", found["added"] <= ACCEPTED, steps <= STEPS)
    if all(rules):
        kept[change] = found
    print(f"{change:15} faster: {rules[0]!s:6} loss accepted: {rules[1]!s:6} pays off in time: {rules[2]}")
else:
    ratio = math.prod(found["ratio"] for found in kept.values())
    picture(
        {
            "steps": SHAPES * STEPS * STEP_MS * ratio / 3.6e6,
            "compiling": SHAPES * sum(found["first_s"] for found in kept.values()) / 3600,
            "wrong": before_tom["wrong"] + sum(found["added"] for found in kept.values()),
        }
    )

# %% [markdown]
# One change of four is left. It makes the night shorter by more than an hour, and the Readers are as good as before.
# Compiling made each step faster and yet the night longer, because no shape was in use for long enough to pay for it.
# Larger batches would have saved the most time, at the price of quality. Once they are tried one by one, each of the
# four has a clear answer.
#
# ## Takeaways
#
# - **Quality first**: what would be worse, by how much, and how precisely do you know it?
# - **One factor at a time.** Two changes in one report are no evidence for either.
# - The same **work** on both sides: count samples, not steps.
# - *Inconclusive* does not mean *no gain*, and a gain within the noise is no gain.
# - A one-off cost (compiling) is paid back over a number of **steps**; a change that depends on the input needs one
#   report per input.
# - Accepted changes do not necessarily multiply: measure the combination.
#
# `labs.export("lab_07.json")` writes your answers and their measurements to a file for your teacher. Next: [lab 8,
# *Reading someone else's trace*](08_someone_elses_trace.ipynb)

# %% progress
### BEGIN HIDDEN TESTS
assert labs.progress(7).complete, labs.progress(7)
### END HIDDEN TESTS
labs.progress(7)
