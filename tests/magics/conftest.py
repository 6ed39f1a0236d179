"""One Jupyter kernel for all tests of the magics, and proof after each that nothing was left in it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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


class SharedKernel:
    """The kernel that the tests of the magics share; one that a failed test may have left broken is not used again."""

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._make_folder = make_folder
        self._open: ExitStack | None = None
        self._kernel: Kernel | None = None

    def get(self) -> Kernel:
        """Return the kernel, started where there is none."""
        if self._kernel is None:
            self._open = ExitStack()
            kernel = self._open.enter_context(started(self._make_folder()))
            kernel.ok("%load_ext perfnb")
            kernel.ok(SETUP)
            kernel.ok("%profile_step --quiet --steps 1 --warmup 0 train()\n0")  # loads what is loaded on first use
            kernel.inside("set_apart()")
            kernel.ok(SETUP)
            kernel.inside("tidy()")
            self._kernel = kernel
        return self._kernel

    def end(self) -> None:
        """End the kernel, so that the next test starts a new one."""
        self._kernel = None
        if self._open is not None:
            self._open.close()
            self._open = None

    @contextmanager
    def lent(self, failed: Callable[[], bool]) -> Iterator[Kernel]:
        """The kernel for one test, without the variables of earlier ones; ended where the test fails."""
        kernel = self.get()
        try:
            kernel.inside("tidy()")
            yield kernel
        except BaseException:
            self.end()
            raise
        if failed():
            self.end()


@pytest.fixture(scope="session")
def shared_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedKernel]:
    shared = SharedKernel(lambda: tmp_path_factory.mktemp("kernel"))
    yield shared
    shared.end()


@contextmanager
def checked(shared: SharedKernel, failed: Callable[[], bool] = lambda: False) -> Iterator[Kernel]:
    """The shared kernel; fails if something of perfnb stays in it."""
    with shared.lent(failed) as kernel:
        kernel.inside("look()")
        yield kernel
        if not failed():  # its own message names the fault
            assert kernel.inside("left()") == []


@pytest.fixture
def kernel(shared_kernel: SharedKernel, failed: Callable[[], bool]) -> Iterator[Kernel]:
    """Yield the kernel, with a small model in it; fails the test if something of perfnb stays in it."""
    with checked(shared_kernel, failed) as kernel:
        yield kernel


@pytest.fixture
def bench(shared_kernel: SharedKernel, failed: Callable[[], bool]) -> Iterator[Bench]:
    """Yield a slow step to interrupt; fails the test if something of perfnb stays, or if the next profile is not
    whole.
    """
    with shared_kernel.lent(failed) as kernel:
        path = kernel.folder / "board"
        path.write_bytes(bytes(1))
        kernel.ok(SLOW_STEP)
        kernel.inside("look()")
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 1) as board:
            yield Bench(kernel, board)
        if not failed():
            assert_whole(kernel)
