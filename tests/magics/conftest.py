"""One Jupyter kernel for all tests of the magics, and proof after each that nothing was left in it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.magics.bench import SLOW_STEP, Bench, assert_whole
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
        kernel.inside("set_apart()")
        kernel.ok(SETUP)
        yield kernel


@contextmanager
def checked(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel without the variables of earlier tests; fails if something of perfnb stays in it."""
    kernel.inside("tidy()")
    kernel.inside("look()")
    yield kernel
    assert kernel.inside("left()") == []


@pytest.fixture
def kernel(shared_kernel: Kernel) -> Iterator[Kernel]:
    """The kernel, with a small model in it; fails the test if something of perfnb stays in it."""
    with checked(shared_kernel):
        yield shared_kernel


@pytest.fixture
def bench(shared_kernel: Kernel) -> Iterator[Bench]:
    """A slow step to interrupt; fails the test if something of perfnb stays, or if the next profile is not whole."""
    path = shared_kernel.folder / "board"
    path.write_bytes(bytes(1))
    shared_kernel.inside("tidy()")
    shared_kernel.ok(SLOW_STEP)
    shared_kernel.inside("look()")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 1) as board:
        yield Bench(shared_kernel, board)
    assert_whole(shared_kernel)
