"""A slow step in a kernel of its own, to be interrupted."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.magics.kernel import Kernel, started, until

#: A step of some 10 to 30 ms, nearly all of it in Python, with many module calls. The board tells how many have begun.
SLOW_STEP = """
import mmap, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(40) for layer in (nn.Linear(16, 16), nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
rows = torch.randn(8, 16)
file = open('board', 'r+b')
board = mmap.mmap(file.fileno(), 1)

def step():
    board[0] += 1
    for _ in range(4):
        optimizer.zero_grad()
        model(rows).pow(2).mean().backward()
        optimizer.step()
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

    def reach(self, steps: int) -> None:
        """Wait until as many steps have begun."""
        until(lambda: self.board[0] >= steps)


@contextmanager
def bench_in(folder: Path) -> Iterator[Bench]:
    """A kernel with the slow step, after its first profile."""
    (folder / "board").write_bytes(bytes(1))
    with started(folder) as kernel, (folder / "board").open("r+b") as file, mmap.mmap(file.fileno(), 1) as board:
        kernel.ok("%load_ext perfnb")
        kernel.ok(SLOW_STEP)
        kernel.ok(PROFILE)
        yield Bench(kernel, board)


def assert_whole(kernel: Kernel) -> None:
    """Nothing of a profile is left, and the next one sees all."""
    assert kernel.inside("left()") == []
    kernel.ok("p = None")
    kernel.ok("%profile_step --steps 2 --warmup 1 --quiet --into p step()")
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []
    assert kernel.inside("left()") == []
