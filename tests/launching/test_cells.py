"""``%%profile_step --ranks`` in a real kernel."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from tests.launching.jobs import processes_of_jobs
from tests.magics.kernel import Kernel, started

pytestmark = [pytest.mark.kernel, pytest.mark.deep]

SETUP = """
import os, threading, time
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    def forward(self, x):
        return self.inner(x)
model = Net()
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = [(torch.randn(8), torch.randint(4, ()).item()) for _ in range(64)]
loader = torch.utils.data.DataLoader(rows, batch_size=8)
lock = threading.Lock()
before = [parameter.clone() for parameter in model.parameters()]
"""
OPTIONS = "--ranks 2 --ddp --steps 2 --warmup 1 --no-memory --no-flops"
STEP = "optimizer.zero_grad()\nloss_fn(model(x), y).backward()\noptimizer.step()"
ENDLESS = f"%%profile_step --ranks 2 --ddp --steps 100000 --budget 600 for x, y in loader\ntime.sleep(0.001)\n{STEP}"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """Yield a kernel with a model of a class of its own."""
    with started(tmp_path_factory.mktemp("kernel")) as one:
        one.ok("%load_ext perfnb")
        one.ok(SETUP)
        yield one


def test_a_cell(kernel: Kernel) -> None:
    reply = kernel.ok(f"%%profile_step {OPTIONS} --split --into r for x, y in loader\nprint(len(x))\n{STEP}")

    assert "[rank 0] 4\n" in reply.text()
    assert "[rank 1] 4\n" in reply.text()
    assert reply.shown()[-1].startswith("perfnb · ranks · 2 ranks")
    assert kernel.value("list(r.ranks)") == [0, 1]
    assert kernel.value("r[1].layers.loc['model.module.inner', 'module']") == "Sequential"
    assert kernel.value("all(torch.equal(a, b) for a, b in zip(before, model.parameters()))")
    assert kernel.value("torch.distributed.is_initialized()") is False


def test_interrupts(kernel: Kernel) -> None:
    chance = random.Random(20261123)
    for _ in range(6):
        cell, queued = kernel.send(ENDLESS), kernel.send("after = True")
        time.sleep(chance.uniform(0.5, 12.0))
        kernel.manager.interrupt_kernel()
        begin = time.monotonic()
        reply, after = kernel.wait(cell), kernel.wait(queued)
        print(f"ended {time.monotonic() - begin:.2f} s after the interrupt")

        assert (reply.status, reply.error) == ("error", "KeyboardInterrupt")
        assert after.status == "aborted"
        assert processes_of_jobs(kernel.value("__import__('os').getpid()")) == []
        assert [one.name for one in (kernel.folder / "temporary").glob("perfnb-*")] == []
    test_a_cell(kernel)
