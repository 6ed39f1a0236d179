"""Interrupts of steps that catch them, clean up, wait, or end: each reaches the notebook once, when it is safe."""

from __future__ import annotations

import time

import pytest

from tests.magics.bench import ALL, TIMED, WARMUP, Bench
from tests.tracebacks import frames_of_perfnb

pytestmark = pytest.mark.slow

#: Waits, as a clean-up does, until the test has finished its own work.
RELEASED = """
import os, time
def released():
    while not os.path.exists('release'):
        time.sleep(0.01)
    os.remove('release')
"""


def test_the_traceback_ends_in_the_users_code(bench: Bench) -> None:
    bench.kernel.ok("import time\ndef pause():\n    board[0] += 1\n    time.sleep(20)")
    profile, queued = bench.begin("%%profile_step --steps 5\npause()")
    bench.reach(1)
    time.sleep(0.1)
    bench.kernel.manager.interrupt_kernel()
    reply = bench.kernel.wait(profile)

    assert bench.kernel.wait(queued).status == "aborted"
    assert "----> 4     time.sleep(20)" in reply.traceback
    assert frames_of_perfnb(reply.traceback) == []


def test_a_second_interrupt_waits_for_the_first(bench: Bench) -> None:
    cell = (
        "%%profile_step --steps 5 --warmup 3\ntry:\n    step()\n    time.sleep(100)\n"
        "finally:\n    board[0] = 100\n    released()\n    ended = True"
    )
    bench.kernel.ok(f"{RELEASED}\nended = False")
    profile, queued = bench.begin(cell)
    bench.reach(1)
    time.sleep(0.1)
    bench.kernel.manager.interrupt_kernel()
    bench.reach(100)
    for _ in range(2):
        bench.kernel.manager.interrupt_kernel()
        time.sleep(0.05)
    (bench.kernel.folder / "release").touch()

    assert bench.kernel.wait(profile).error == "KeyboardInterrupt"
    assert bench.kernel.wait(queued).status == "aborted"
    assert bench.kernel.value("ended") is True


IN_ONE_CELL = """
import os, signal
before = signal.getsignal(signal.SIGINT)
try:
    %profile_step --steps 2 --warmup 1 --quiet {statement}
except BaseException as error:
    raised = type(error).__name__
else:
    raised = "nothing"
same = signal.getsignal(signal.SIGINT) is before is signal.default_int_handler
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("statement", "raised"),
    [
        ("train_deep()", "nothing"),
        ("1 / 0", "ZeroDivisionError"),
        ("os.kill(os.getpid(), signal.SIGINT)", "KeyboardInterrupt"),
    ],
)
def test_the_handler_of_interrupts_is_given_back(bench: Bench, statement: str, raised: str) -> None:
    bench.kernel.ok(IN_ONE_CELL.format(statement=statement))

    assert bench.kernel.value("(raised, same)") == (raised, True)


CAUGHT = 200
CATCHES = f"""%%profile_step --steps 5 --warmup 3 --into p
try:
    step()
    if board[0] == last:
        time.sleep(100)
except KeyboardInterrupt:
    board[0] = {CAUGHT}
    released()
    passed = True
"""


@pytest.mark.deep
@pytest.mark.parametrize("steps", [WARMUP - 1, WARMUP, TIMED, ALL])
def test_an_interrupt_that_waits_is_not_lost(bench: Bench, steps: int) -> None:
    """The body catches the first; the second comes while perfnb's gate is closed, lastly with no step to follow."""
    bench.kernel.ok(f"{RELEASED}\nlast, passed = {steps}, False")
    profile, queued = bench.begin(CATCHES)
    bench.reach(steps)
    time.sleep(0.2)
    bench.kernel.manager.interrupt_kernel()
    bench.reach(CAUGHT)
    bench.kernel.manager.interrupt_kernel()
    (bench.kernel.folder / "release").touch()

    assert bench.kernel.wait(profile).error == "KeyboardInterrupt"
    assert bench.kernel.wait(queued).status == "aborted"
    assert bench.kernel.value("passed") is True
    assert bench.board[0] == CAUGHT, "another step began"


@pytest.mark.deep
def test_a_step_that_catches_interrupts(bench: Bench) -> None:
    cell = (
        "%%profile_step --steps 5 --warmup 3 --into p\nboard[0] += 1\ntry:\n    train_deep()\n    time.sleep(0.1)\n"
        "except KeyboardInterrupt:\n    caught += 1"
    )
    bench.kernel.ok("import time\ncaught = 0")
    profile, queued = bench.begin(cell)
    bench.reach(2)
    time.sleep(0.02)
    bench.kernel.manager.interrupt_kernel()

    assert bench.kernel.wait(profile).status == bench.kernel.wait(queued).status == "ok"
    assert bench.kernel.value("caught") == 1


@pytest.mark.deep
def test_while_waiting_for_a_loaders_workers(bench: Bench) -> None:
    bench.kernel.ok(
        "import time\nclass Slow(torch.utils.data.Dataset):\n    def __len__(self): return 64\n"
        "    def __getitem__(self, i):\n        board[0] += 1\n        time.sleep(0.2)\n        return rows[0]\n"
        "slow = torch.utils.data.DataLoader(Slow(), batch_size=8, num_workers=2)"
    )
    profile, queued = bench.begin("%%profile_step --steps 5 --warmup 3 for x in slow\ndeep(x)")
    bench.reach(2)
    bench.kernel.manager.interrupt_kernel()

    assert bench.kernel.wait(profile).error == "KeyboardInterrupt"
    assert bench.kernel.wait(queued).status == "aborted"
    bench.kernel.ok("del slow")
