"""Real ranks: what they give, how they fail, and that nothing of them stays."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import perfnb
from perfnb.errors import CaptureError
from tests.launching.jobs import FAST, endless, failing, interrupt_soon, processes_of_jobs, small, with_workers
from tests.waiting import wait_until

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("nothing_left")]


def test_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(60):\n"
        "    optimizer.zero_grad(); model(torch.ones(6, 8)).sum().backward(); optimizer.step()\n"
        "print('done', sys.argv[1:], dist.get_rank())\n"
        "dist.destroy_process_group()\n"
    )

    ranks = perfnb.profile_ranks(script, args=["--epochs", "3"], at=5)

    assert ranks.ranks == [0, 1]
    assert "model" in ranks[1].layers.index
    printed = capsys.readouterr().out
    assert "[rank 1] done ['--epochs', '3'] 1\n" in printed
    assert "The whole run was saved" not in printed


def test_a_rank_that_is_killed() -> None:
    chance = random.Random(20261123)
    for _ in range(3):
        folder = Path(tempfile.mkdtemp())
        killed = chance.randrange(2)
        error = run_and(endless(folder), lambda at=folder, rank=killed: kill(at, rank, chance.uniform(0.0, 1.0)))
        assert isinstance(error, CaptureError), error
        assert f"Rank {killed} of 2 was terminated by SIGKILL" in str(error)
        assert processes_of_jobs() == []
    assert perfnb.profile_ranks(small, **FAST).ranks == [0, 1]


def test_interrupts_at_random_instants() -> None:
    chance = random.Random(20261123)
    before = set(Path(tempfile.gettempdir()).glob("perfnb-*"))
    slowest_s = 0.0
    for number in range(6):
        folder = Path(tempfile.mkdtemp())
        at = [None]
        delay_s = chance.uniform(0.0, 8.0) if number % 2 else chance.uniform(0.0, 1.0)

        def interrupt(folder: Path = folder, at: list[Any] = at, delay_s: float = delay_s, late: int = number) -> None:
            if late % 2 == 0:  # when both ranks run steps
                wait_until(lambda: len(list(folder.glob("rank_*"))) == 2, 120)
            interrupt_soon(delay_s)()
            at[0] = time.monotonic()

        error = run_and(endless(folder), interrupt)
        slowest_s = max(slowest_s, time.monotonic() - at[0])
        assert isinstance(error, KeyboardInterrupt), error
        assert processes_of_jobs() == []
        assert set(Path(tempfile.gettempdir()).glob("perfnb-*")) == before
    print(f"all ranks had ended {slowest_s:.2f} s after the interrupt at most")
    assert perfnb.profile_ranks(small, **FAST).ranks == [0, 1]


def test_an_interrupt_ends_the_workers_of_loaders_too(tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_until(lambda: len(list(tmp_path.glob("worker_*"))) == 2, 120)
        interrupt_soon(0.2)()

    error = run_and(with_workers(tmp_path, 10**6), interrupt)

    assert isinstance(error, KeyboardInterrupt), error
    assert processes_of_jobs() == []
    assert [one.name for one in tmp_path.glob("worker_*") if runs(int(one.read_text()))] == []


def runs(pid: int) -> bool:
    """Return whether a process runs: one that has ended stays visible until the system's first process takes note of
    it.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_and(target: Any, meanwhile: Any) -> BaseException | None:
    """Run an endless job, do something meanwhile, and return what the job ended with."""
    thread = threading.Thread(target=meanwhile)
    thread.start()
    try:
        perfnb.profile_ranks(target, steps=100_000, budget_s=600.0)
    except BaseException as error:
        return error
    finally:
        thread.join()
    return None


def kill(folder: Path, rank: int, delay_s: float) -> None:
    """Kill a rank some time after both run steps."""
    wait_until(lambda: len(list(folder.glob("rank_*"))) == 2, 120)
    time.sleep(delay_s)
    os.kill(int((folder / f"rank_{rank}").read_text()), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="a rank looks for its parent five times a second elsewhere")
def test_the_ranks_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "import perfnb, sys\nfrom pathlib import Path\nfrom tests.launching.jobs import with_workers\n"
        "perfnb.profile_ranks(with_workers(Path(sys.argv[1]), 10**6), steps=100_000, budget_s=600.0)\n"
    )
    root, env = str(Path(__file__).parents[2]), {**os.environ, "TMPDIR": str(tmp_path)}
    with psutil.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=root, env=env) as one:
        wait_until(lambda: len(list(tmp_path.glob("worker_*"))) == 2, 120)
        below = one.children(recursive=True)
        assert len(list(tmp_path.glob("perfnb-job-*"))) == 1
        one.kill()
    assert len(below) >= 5  # the launcher, two ranks and their loaders' workers

    _, alive = psutil.wait_procs(below, timeout=60)

    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert list(tmp_path.glob("perfnb-job-*")) == []


@pytest.mark.slow
def test_the_exception_of_the_first_rank_that_fails() -> None:
    with pytest.raises(KeyError, match="gone") as caught:
        perfnb.profile_ranks(failing, **FAST)

    assert caught.value.__notes__ == ["perfnb: raised by rank 1 of 2; its traceback is above."]
    assert '{}["gone"]' in str(caught.value.__cause__)
    assert "perfnb/step" not in str(caught.value.__cause__)
