"""One Jupyter kernel for all tests of the magics, and proof after each that nothing was left in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.magics.bench import Bench, assert_whole, bench_in
from tests.magics.kernel import Kernel, started

SETUP = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = [(torch.randn(4, 8), torch.randint(4, (4,))) for _ in range(3)]
x, y = loader[0]

def forward():
    return model(loader[0][0]).sum()

def train():
    optimizer.zero_grad()
    loss_fn(model(loader[0][0]), loader[0][1]).backward()
    optimizer.step()
"""


@pytest.fixture(scope="session")
def shared_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with started(tmp_path_factory.mktemp("kernel")) as kernel:
        kernel.ok("%load_ext perfnb")
        kernel.ok(SETUP)
        kernel.ok("%profile_step --quiet --steps 1 --warmup 0 train()\n0")  # loads what is loaded on first use
        yield kernel


@pytest.fixture
def kernel(shared_kernel: Kernel) -> Iterator[Kernel]:
    """The kernel, with a small model in it; fails the test if something of perfnb stays in it."""
    shared_kernel.inside("tidy()")
    shared_kernel.inside("look()")
    yield shared_kernel
    assert shared_kernel.inside("left()") == []


@pytest.fixture(scope="session")
def slow_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_in(tmp_path_factory.mktemp("interrupts")) as made:
        yield made


@pytest.fixture
def bench(slow_kernel: Bench) -> Iterator[Bench]:
    """A slow step to interrupt; fails the test if something of perfnb stays, or if the next profile is not whole."""
    slow_kernel.kernel.inside("tidy()")
    slow_kernel.kernel.inside("look()")
    yield slow_kernel
    assert_whole(slow_kernel.kernel)
