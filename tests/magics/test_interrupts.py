"""Interrupts at random instants of every pass: the cell ends, the queue stops, nothing stays, the next is whole."""

from __future__ import annotations

import mmap
import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest

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
WARMUP, TIMED, LEAD_IN, ALL = 3, 8, 9, 12
INSTANTS = 20


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


@pytest.fixture(scope="module")
def slow_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("interrupts")
    (folder / "board").write_bytes(bytes(1))
    with started(folder) as kernel, (folder / "board").open("r+b") as file, mmap.mmap(file.fileno(), 1) as board:
        kernel.ok("%load_ext perfnb")
        kernel.ok(SLOW_STEP)
        kernel.ok(PROFILE)
        yield Bench(kernel, board)


@pytest.fixture
def bench(slow_kernel: Bench) -> Iterator[Bench]:
    slow_kernel.kernel.inside("tidy()")
    slow_kernel.kernel.inside("look()")
    yield slow_kernel
    assert_whole(slow_kernel.kernel)


def assert_whole(kernel: Kernel) -> None:
    """Nothing of a profile is left, and the next one sees all."""
    assert kernel.inside("left()") == []
    assert kernel.ok("handler = __import__('tests.magics.inside', fromlist=['x']).interrupts_are_default()")
    assert kernel.value("handler") is True
    kernel.ok("p = None")
    kernel.ok("%profile_step --steps 2 --warmup 1 --quiet --into p step()")
    assert kernel.inside("unwhole(get_ipython().user_ns['p'])") == []
    assert kernel.inside("left()") == []


def where(functions: list[str]) -> str:
    """The part of a profile that the functions belong to."""
    for name in ("warm_up", "time", "trace", "_ipython_display_", "recording_of"):
        if name in functions:
            return name
    return "between"


def instants(chance: random.Random, step_s: float, tail_s: float) -> Iterator[tuple[int, float, bool]]:
    """When to interrupt: so many steps have begun, and so many seconds later; whether that is after the last step."""
    for number in range(INSTANTS):
        if number % 4 == 3:
            yield ALL, step_s + chance.uniform(0.0, tail_s), True
        else:
            first, last = [(1, WARMUP), (WARMUP + 1, TIMED), (TIMED + 1, ALL)][number % 4]
            yield chance.randint(first, last), chance.uniform(0.0, 0.9 * step_s), False


def test_at_random_instants(bench: Bench) -> None:
    kernel = bench.kernel
    hit: Counter[str] = Counter()
    for steps, delay_s, in_tail in instants(random.Random(20261121), *durations(bench)):
        profile, queued = bench.begin()
        bench.reach(steps)
        time.sleep(delay_s)
        kernel.manager.interrupt_kernel()
        reply, after = kernel.wait(profile), kernel.wait(queued)

        at = f"an interrupt {delay_s * 1e3:.1f} ms after step {steps} began"
        if reply.status == "ok":
            assert in_tail, f"{at} was lost"
            hit["too late"] += 1
        else:
            assert (reply.status, reply.error, reply.message) == ("error", "KeyboardInterrupt", ""), at
            assert after.status == "aborted", f"{at}: the next cell ran"
            hit[where(kernel.inside("interrupted_in()"))] += 1
        assert_whole(kernel)
    print("interrupts by where they were raised:", dict(hit))
    assert min(hit["warm_up"], hit["time"], hit["trace"]) >= 3
    assert hit["recording_of"] + hit["_ipython_display_"] + hit["between"] >= 1
    assert hit["too late"] <= INSTANTS // 4
    assert sum(hit.values()) == INSTANTS


def test_the_traceback_ends_in_the_users_code(bench: Bench) -> None:
    bench.kernel.ok("import time\ndef pause():\n    board[0] += 1\n    time.sleep(20)")
    profile, queued = bench.begin("%%profile_step --steps 5\npause()")
    bench.reach(1)
    time.sleep(0.1)
    bench.kernel.manager.interrupt_kernel()
    reply = bench.kernel.wait(profile)

    assert bench.kernel.wait(queued).status == "aborted"
    assert "----> 4     time.sleep(20)" in reply.traceback
    assert "perfnb/" not in reply.traceback


def durations(bench: Bench) -> tuple[float, float]:
    """Seconds that a step takes, and all that comes after the last one."""
    profile, queued = bench.begin()
    bench.reach(ALL)
    begin = time.monotonic()
    assert bench.kernel.wait(profile).status == bench.kernel.wait(queued).status == "ok"
    step_s = bench.kernel.value("float(p.steps['wall_ms'].median())") / 1e3
    return step_s, max(time.monotonic() - begin - step_s, step_s)


def test_a_second_interrupt_waits_for_the_first(bench: Bench) -> None:
    cell = (
        "%%profile_step --steps 5 --warmup 3\ntry:\n    step()\n    time.sleep(5)\n"
        "finally:\n    time.sleep(0.3)\n    ended = True"
    )
    bench.kernel.ok("import time\nended = False")
    profile, queued = bench.begin(cell)
    bench.reach(1)
    time.sleep(0.1)
    for _ in range(3):
        bench.kernel.manager.interrupt_kernel()
        time.sleep(0.05)

    assert bench.kernel.wait(profile).error == "KeyboardInterrupt"
    assert bench.kernel.wait(queued).status == "aborted"
    assert bench.kernel.value("ended") is True


def test_a_step_that_catches_interrupts(bench: Bench) -> None:
    cell = (
        "%%profile_step --steps 5 --warmup 3 --into p\ntry:\n    step()\n    time.sleep(0.1)\n"
        "except KeyboardInterrupt:\n    caught += 1"
    )
    bench.kernel.ok("import time\ncaught = 0")
    profile, queued = bench.begin(cell)
    bench.reach(2)
    time.sleep(0.02)
    bench.kernel.manager.interrupt_kernel()

    assert bench.kernel.wait(profile).status == bench.kernel.wait(queued).status == "ok"
    assert bench.kernel.value("caught") == 1


def test_while_waiting_for_a_loaders_workers(bench: Bench) -> None:
    bench.kernel.ok(
        "import time\nclass Slow(torch.utils.data.Dataset):\n    def __len__(self): return 64\n"
        "    def __getitem__(self, i):\n        board[0] += 1\n        time.sleep(0.2)\n        return rows[0]\n"
        "loader = torch.utils.data.DataLoader(Slow(), batch_size=8, num_workers=2)"
    )
    profile, queued = bench.begin("%%profile_step --steps 5 --warmup 3 for x in loader\nmodel(x)")
    bench.reach(2)
    bench.kernel.manager.interrupt_kernel()

    assert bench.kernel.wait(profile).error == "KeyboardInterrupt"
    assert bench.kernel.wait(queued).status == "aborted"
    bench.kernel.ok("del loader")
