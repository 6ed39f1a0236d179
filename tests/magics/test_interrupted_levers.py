"""Interrupts of ``%%try_levers`` at random instants in a real kernel: training continues as if nothing had been
tried.
"""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from tests.magics.bench import Bench
from tests.magics.kernel import Kernel

pytestmark = [pytest.mark.slow, pytest.mark.deep]

#: Batch norm, dropout, Adam, a loader that shuffles by torch's random numbers, and noise from Python's.
TRAINING = """
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def made():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2),
                        nn.Linear(8 * 36, 4))
    adam = torch.optim.AdamW(net.parameters(), lr=0.01)
    feed = DataLoader(TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 4, (64,))), batch_size=8, shuffle=True)
    return net, adam, feed

def train_net(net, adam, feed, steps):
    found = []
    while len(found) < steps:
        for images, labels in feed:
            adam.zero_grad()
            noise = 0.01 * random.random() + 0.01 * float(np.random.rand())
            cost = nn.functional.cross_entropy(net(images + noise), labels)
            cost.backward()
            adam.step()
            found.append(cost.item())
            if len(found) == steps:
                break
    return found

net, adam, feed = made()
train_net(net, adam, feed, 5)
alone = train_net(net, adam, feed, 50)
"""
AGAIN = "net, adam, feed = made()\n_ = train_net(net, adam, feed, 5)"
LEVERS = (
    *("threads", "autocast", "channels_last", "fused_optimizer", "foreach_optimizer", "gc_freeze", "checkpointing"),
    "loader_workers",
)
BODY = """
board[0] = min(board[0] + 1, 255)
adam.zero_grad()
cost = nn.functional.cross_entropy(net(images + 0.01 * random.random()), labels)
cost.backward()
adam.step()
"""


def cell(levers: tuple[str, ...]) -> str:
    return f"%%try_levers --quiet --budget 30 --levers {','.join(levers)} for images, labels in feed{BODY}"


def interrupted(bench: Bench, levers: tuple[str, ...], steps: int, delay_s: float) -> str:
    """Interrupt a trial so long after some steps; what it passed through, or "too late"."""
    kernel = bench.kernel
    kernel.ok(AGAIN)
    trial, queued = bench.begin(cell(levers))
    bench.reach(steps)
    time.sleep(delay_s)
    kernel.manager.interrupt_kernel()
    reply, after = kernel.wait(trial), kernel.wait(queued)
    at = f"an interrupt {delay_s * 1e3:.0f} ms after step {steps} began"
    where = "too late"
    if reply.status != "ok":
        assert (reply.status, reply.error) == ("error", "KeyboardInterrupt"), f"{at}: {reply.message}"
        assert after.status == "aborted", f"{at}: the next cell ran"
        where = passed_through(kernel)
    kernel.ok("after = train_net(net, adam, feed, 50)")
    assert kernel.value("after == alone"), f"{at}, in {where}: training continues differently"
    # The second are the threads that torch.compile keeps from its first compilation on.
    kept = ("QueueFeederThread", "ThreadPoolExecutor")
    left = [each for each in kernel.inside("left()") if not any(name in each for name in kept)]
    assert not left, f"{at}, in {where}: {left}"
    return where


def passed_through(kernel: Kernel) -> str:
    functions = kernel.inside("interrupted_in()")
    parts = ("measure_yardstick", "time_levers", "check", "prepared", "_confirm", "step_seconds")
    return next((name for name in parts if name in functions), "between")


@pytest.fixture
def training(bench: Bench) -> Bench:
    bench.kernel.ok(TRAINING)
    bench.kernel.ok(AGAIN)
    bench.kernel.ok(f"%%try_levers --quiet --budget 30 --levers gc_freeze for images, labels in feed{BODY}")
    bench.kernel.ok("after = train_net(net, adam, feed, 50)")
    assert bench.kernel.value("after == alone"), "it continues differently without an interrupt"
    bench.kernel.inside("look()")
    return bench


def test_at_random_instants_of_trials_in_place(training: Bench) -> None:
    chance = random.Random(20261123)
    hit: Counter[str] = Counter()
    for number in range(16):
        steps = (1, 4, 7, 20)[number % 4] + chance.randint(0, 3 if number % 4 < 3 else 200)
        hit[interrupted(training, LEVERS, steps, chance.uniform(0.0, 0.05))] += 1
    print("interrupts by where they were raised:", dict(hit))
    assert sum(hit.values()) == 16
    assert hit["too late"] < 16


def test_at_random_instants_of_a_loader_with_workers(training: Bench) -> None:
    chance = random.Random(7)
    hit: Counter[str] = Counter()
    for _ in range(4):
        hit[interrupted(training, ("loader_workers",), 12 + chance.randint(0, 30), chance.uniform(0.0, 0.3))] += 1
    print("interrupts by where they were raised:", dict(hit))
    assert hit["too late"] < 4


def test_while_it_compiles(training: Bench) -> None:
    """With the lever on, the first step compiles, which takes seconds: an interrupt comes through all the same."""
    chance = random.Random(3)
    hit: Counter[str] = Counter()
    for _ in range(3):
        training.kernel.ok("torch._dynamo.reset()")
        hit[interrupted(training, ("compile",), 8, chance.uniform(0.1, 2.0))] += 1
    print("interrupts by where they were raised:", dict(hit))
    assert hit["too late"] < 3
