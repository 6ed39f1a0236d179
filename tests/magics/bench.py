"""A slow step in the kernel, to be interrupted."""

from __future__ import annotations

import mmap

from tests.magics.kernel import Kernel, until

#: A step of some 10 to 30 ms, nearly all of it in Python, with many module calls. The board tells how many have begun.
SLOW_STEP = """
import mmap, time, torch
from torch import nn
torch.manual_seed(0)
deep = nn.Sequential(*[layer for _ in range(10) for layer in (nn.Linear(16, 16), nn.ReLU())])
descent = torch.optim.SGD(deep.parameters(), lr=1e-3)
rows = torch.randn(8, 16)
with open('board', 'r+b') as file:
    board = mmap.mmap(file.fileno(), 1)

def train_deep(times=1):
    descent.zero_grad()
    found = rows
    for _ in range(times):
        found = deep(found)
    found.pow(2).mean().backward()
    descent.step()

def step():
    board[0] += 1
    for _ in range(4):  # few: an interrupt in an optimizer's first lines can leave torch without gradients
        train_deep(4)

def short_step():
    train_deep()
    time.sleep(0.01)  # compared with it, interruptions by other programs are short
"""
PROFILE = "%%profile_step --steps 5 --warmup 3 --into p\nstep()"
WARMUP, TIMED, ALL = 3, 8, 12


class Bench:
    """A kernel with a slow step, and a view of how many steps of a profile have begun."""

    def __init__(self, kernel: Kernel, board: mmap.mmap) -> None:
        self.kernel = kernel
        self.board = board

    def begin(self, cell: str = PROFILE) -> tuple[str, str]:
        """Queue a profile and a cell after it, as "Run all" does."""
        self.board[0] = 0
        return self.kernel.send(cell), self.kernel.send("after = True")

    def begun(self) -> int:
        """Return how many steps have begun."""
        return int(self.board[0])

    def reach(self, steps: int) -> None:
        """Wait until as many steps have begun."""
        until(lambda: self.begun() >= steps)


def assert_whole(kernel: Kernel) -> None:
    """Nothing of a profile is left, and the next one of the same model sees all."""
    assert not (found := kernel.inside("left()")), found
    kernel.ok("p = None")
    kernel.ok("%profile_step --steps 2 --warmup 1 --quiet --into p short_step()")
    assert not (found := kernel.inside("unwhole(get_ipython().user_ns['p'], 'deep')")), found
    assert not (found := kernel.inside("left()")), found
